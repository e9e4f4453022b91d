"""Keep the state of the recording in each thread."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import get_worker_info

from ..ops.op import NotRecordable
from .call import Call


class _Session(threading.local):
    """State of the recording in this thread. A thread without one has the values below."""

    active = False  # True during a recording
    site = 0  # index of the running link
    refused: frozenset[str] = frozenset()  # names of functions that are not recorded
    number = 0  # identifies the recording in this process
    given: dict[int, tuple[Any, Any]]  # by id: the user's pictures, and others that share their pixels; tensors' memory
    dictation: list[tuple[str, Call]] | None = None  # if given, calls are appended here, not to the tape
    calls: Any = None  # the calls of plain code at which a recording begins (:mod:`.plain_code`), if any
    twins: Any = None  # the twins of real images, while calls are recorded that execute (:mod:`.twins`)
    live = False  # True for samples that are trained on: code that needs pixels gets them, and goes on
    stood = 0  # number of images replaced so far
    settled = 0  # number of images whose pixels were needed so far
    why = ""  # what needed the first one of the batch
    needed_for = ""  # what needed the last one
    made: list[Any] | None = None  # if given, a weak reference to each new recording image is appended here

    def __init__(self) -> None:
        self.given = {}

    @contextmanager
    def begun(self, refused: frozenset[str], twins: Any = None, calls: Any = None) -> Iterator[None]:
        """Record inside the context; afterwards go on with the recording around it, if any."""
        before = dict(vars(self))
        self.__dict__.update(active=twins is None, site=0, refused=refused, dictation=None)
        self.given = {}
        self.twins = twins
        self.calls = calls
        self.number = next(_NUMBERS)
        try:
            yield
        finally:
            counted = {name: one for name, one in vars(self).items() if name in _COUNTED}
            self.__dict__.clear()
            self.__dict__.update(before | counted)

    def note_made(self, image: Any) -> None:
        if self.made is not None:
            self.made.append(weakref.ref(image))

    def idle(self) -> AbstractContextManager[None]:
        """Suspend recording inside the context, and ``vmap``, ``grad`` and their like: they would wrap what is made."""
        if torch._C._functorch.maybe_current_level() is None:
            return self._with(active=False)
        return self._idle_beneath()

    @contextmanager
    def _idle_beneath(self) -> Iterator[None]:
        with temporarily_clear_interpreter_stack(), self._with(active=False):
            yield

    def beginning_nowhere(self) -> AbstractContextManager[None]:
        """Begin to record at no call of plain code inside the context."""
        return self._with(calls=None)

    def of_twins(self) -> AbstractContextManager[None]:
        """Record a call on twins inside the context."""
        return self._with(active=True, twins=None, live=False)

    def going_on(self, live: bool = True) -> AbstractContextManager[None]:
        """Give code inside the context the pixels that it needs, so that the user's code runs once, or do not."""
        return self._with(live=live)

    @contextmanager
    def _with(self, **values: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in values}
        self.__dict__.update(values)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def settles(self, error: NotRecordable) -> None:
        """Note that pixels are needed, for the reason in ``error``.

        Raises:
            NotRecordable: ``error``, in a trial.
        """
        if not self.live or self.dictation is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and with it the user's dataset
        NotRecordable.raised -= 1  # nothing is hidden
        self.settled += 1
        self.why = self.why or str(error)
        self.needed_for = str(error)


def why_not_now() -> str:
    """Return why a call must run on real images here, whatever it is; empty if it may be recorded."""
    if torch.is_autocast_enabled("cpu"):  # a worker inherits it if the loop begins its epoch under autocast
        return "autocast is on for the CPU, and may round inside of it"
    if torch.is_inference_mode_enabled() and get_worker_info() is None:  # no mark of it gets out of a worker
        return "inference mode is on, and marks the tensors that are made in it"
    if torch._C._functorch.maybe_current_level() is not None:
        return "vmap or its like is on, and looks into the memory of tensors"
    modes = _get_current_function_mode_stack() if torch._C._len_torch_function_stack() else []
    modes = [*modes, *_get_current_dispatch_mode_stack()] if torch._C._len_torch_dispatch_stack() else modes
    for mode in modes:
        if not isinstance(mode, DeviceContext) and not type(mode).__module__.startswith(_OURS):
            return f"the mode {type(mode).__name__} is on, and sees each call of torch's"
    return ""


_OURS = __name__.partition(".")[0] + "."
#: What a recording leaves behind.
_COUNTED = ("stood", "settled", "why", "needed_for")
_NUMBERS = itertools.count(1)
session = _Session()


def on_pixels(image: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call ``fn`` with the pixels of a recording image; no recording begins inside."""
    pixels = image.settled()
    with session.beginning_nowhere():
        return fn(pixels, *args, **kwargs)
