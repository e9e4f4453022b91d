"""Record the functional calls of one sample on an image without pixels, and the ops that replay them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import PIL.Image
import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import get_worker_info

from ...usercode.places import label
from ..decode.undecoded import is_undecoded
from ..layout import copied
from ..ops.op import NotRecordable, Op, State, Track, state_of


def spoken(fn: Callable[..., Any]) -> str:
    """Return the name of a function, or of a method of tensors."""
    return label(fn).removeprefix("TensorBase.")


class Call(NamedTuple):
    """Functional call with its arguments, which can run again on real pixels."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # index in a result that is a tuple
    drawn_from: Tensor | None = None  # state of torch's generator before the call, if it draws
    ops: int = 0  # number of ops that replay it
    site: int = 0  # index of the link of the user's chain that made it

    @property
    def name(self) -> str:
        return spoken(self.fn)

    def __call__(self, image: Any) -> Any:
        # It was recorded outside of autocast, but code may need the pixels inside.
        draws = self.drawn_from is not None
        with torch.random.fork_rng(devices=(), enabled=draws), torch.autocast("cpu", enabled=False):
            if self.drawn_from is not None:
                torch.set_rng_state(self.drawn_from)
            # The original is still needed, even if the call writes into its input.
            image = copied(image) if isinstance(image, Tensor) else image
            result = self.fn(image, *self.args, **self.kwargs)
        return result if self.part is None else result[self.part]


class _Source:
    """What all images that were made from one share.

    Attributes:
        exposed: True if code got its memory past the count of writing.
        viewed: True if code got a real view of it, of which it can get the memory so.
    """

    __slots__ = ("exposed", "viewed")

    def __init__(self) -> None:
        self.exposed = self.viewed = False


class _Memory:
    """Memory that several images would share: an image and views of it.

    Attributes:
        writings: number of recorded calls that write into it.
        lent: the real images that code got for one of them, and their versions then.
    """

    __slots__ = ("lent", "writings")

    def __init__(self) -> None:
        self.writings = 0
        self.lent: list[tuple[Tensor, tuple[int, bool]]] = []


class Shared(NamedTuple):
    """Memory that an image shares with others, and the number of recorded calls that had written there by then."""

    memory: _Memory
    writings: int

    def now(self) -> Shared:
        return self._replace(writings=self.memory.writings)

    def is_written(self, but: Tensor | None = None) -> bool:
        """Return whether it was written into since, other than by the real image ``but``."""
        return self.memory.writings != self.writings or any(
            _version(image) != version for image, version in self.memory.lent if image is not but
        )


class Tape:
    """Record of a recording image: its source, the calls on it so far, and its state after them.

    Attributes:
        given: the original image, which user code may write into later; None for a stack of images.
        source: an image with the same pixels, which stays as it is. It may be ``given`` itself, a tensor: then its
            version shows writing.
        begun: the shape and dtype of the source.
        state: the shape and dtype after all calls.
        settled: True if the source is what an earlier tape's calls gave, because code needed the pixels.
        open: True while only the running chain references the image: the chain may then write on this tape. Any other
            call writes on a copy.
    """

    __slots__ = ("_beside", "_calls", "_first", "_ops", "_shared", "_sites", "_source", "_version", "begun", "given",
                 "open", "settled", "source", "state")  # fmt: skip

    def __init__(self, given: Any, state: State, source: Any = None) -> None:
        self.given = given
        self.source = given if source is None else source
        self.begun = self.state = state
        self.open = self.settled = False
        self._source = _Source()
        self._version = _version(given)  # before the first call
        self._shared: Shared | None = None  # None if no other image shares its memory
        self._beside: Shared | None = None  # of a real one, in memory of its own: what it would lie in
        self._first: Tape | None = None
        self._ops: list[Op] = []
        self._sites: list[int] = []  # one for each op
        self._calls: list[tuple[Callable[[Any], Call], Any, int, int]] = []

    def copy(self) -> Tape:
        self._require_current()
        if self._source.viewed:
            raise NotRecordable("code holds the memory of an image, and may write into it")
        if self._shared is None:
            self._shared = Shared(_Memory(), 0)
        again = Tape.__new__(Tape)
        again.source, again.begun, again.state, again.open = self.source, self.begun, self.state, False
        again._source = self._source
        again.given, again.settled, again._version = self.given, self.settled, self._version
        again._first, again._shared, again._beside = self._first or self, self._shared, self._beside
        again._ops, again._sites, again._calls = self._ops.copy(), self._sites.copy(), self._calls.copy()
        return again

    def apart(self) -> Tape:
        """Return a copy for an image that shares no memory with this one."""
        again = self.copy()
        again._shared = again._beside = None
        return again

    def then(
        self,
        ops: list[Op],
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        part: int | None = None,
        drawn_from: Tensor | None = None,
        state: State | None = None,
    ) -> Tape:
        """Return a copy with one more call. ``state`` replaces the image's if the call changes its type.

        Raises:
            NotRecordable: the function is refused.
        """
        if session.refused and ops and spoken(fn) in session.refused:
            raise NotRecordable(f"{spoken(fn)} gives other pixels on the device, as its certificate shows")
        if why := why_not_now():
            raise NotRecordable(why)
        if session.calls is not None and ops:
            session.calls.wrote(fn)
        after = self.copy()
        if state is not None:
            after.state = state
        after.add(ops, Call._make, (fn, args, kwargs or {}, part, drawn_from, 0, 0))
        return after

    def add(self, ops: list[Op], call: Callable[[Any], Call], drawn: Any) -> None:
        """Append one call and its ops; ``call(drawn)`` returns the call when it is needed."""
        if self.settled and not self._calls:
            self._version = _version(self.given)
        self._calls.append((call, drawn, len(ops), session.site))
        for op in ops:
            self._ops.append(op)
            self._sites.append(session.site)
            if not op.kind.operation.is_view:
                self._shared = self._beside = None
            state, shape, dtype = self.state, op.shape, op.kind.dtype
            if shape != state.shape or dtype is not state.dtype:
                self.state = state_of((shape, dtype, state.mask, state.strided, True))

    @property
    def source_size(self) -> tuple[int, int]:
        """Height and width of the source."""
        return self.begun.size

    @property
    def is_original(self) -> bool:
        """True if no call was made on the source."""
        return not self._calls

    def track(self) -> Track:
        return tuple(self._ops), tuple(self._sites)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self._ops)

    @property
    def calls(self) -> list[Call]:
        return [call(drawn)._replace(ops=ops, site=site) for call, drawn, ops, site in self._calls]

    @property
    def is_current(self) -> bool:
        """False if another image was written into that shares memory with this one: only real ones show that."""
        if self.source is not self.given:
            written = self._is_live and not _is_still(self.source, self.given)
        else:
            written = (self._calls or not self.settled) and _version(self.given) != self._version
            written = written or bool(self._calls and self._source.exposed)
        if written or (self._beside is not None and self._beside.is_written(self.given)):
            return False
        return self._shared is None or not self._shared.is_written()

    def _require_current(self) -> None:
        if not self.is_current:
            raise NotRecordable("an image is written into, and it or one that shares its memory is used as it was")

    def settled_on(self, image: Tensor, state: State) -> Tape:
        """Return the tape of a real image that code needed. It may lie in the memory of this one's source."""
        made = Tape(image, state)
        made.settled, made._beside = True, self.beside()
        if self._is_view:
            made._source = self._source
        return made

    def expose(self, wholly: bool) -> None:
        """Note that code gets the source's memory past its count of writing, as an array for example, or a view of it.

        Nothing is recorded of it any more. If the former, what was recorded is not current either.
        """
        if self._is_view:
            self._source.viewed, self._source.exposed = True, self._source.exposed or wholly

    @property
    def _is_view(self) -> bool:
        return all(op.kind.operation.is_view for op in self._ops)

    @property
    def _is_live(self) -> bool:
        """True if the image lies in the memory of the given one, and shows what is written there."""
        is_apart = self._shared is None and self._first is not None
        return isinstance(self.given, Tensor) and not is_apart and self._is_view

    def beside(self) -> Shared | None:
        """Return the memory that the image shares with others, of which a real one has a copy; None if with none."""
        return self._beside if self._shared is None else self._shared.now()

    def note_writing(self) -> None:
        """Note that a call, on a tape that follows this one, writes into the image's memory."""
        if self._shared is not None:
            self._shared.memory.writings += 1

    def lend(self, image: Tensor) -> None:
        """Note that code gets the real image, and may write into it."""
        if self._shared is not None:
            self._shared.memory.lent.append((image, _version(image)))

    def pixels(self) -> Any:
        """Return the real image: run all calls on the source.

        Raises:
            NotRecordable: its memory was written into by another image.
        """
        shared = self._shared
        if self._calls or self._beside is not None or (shared is not None and shared != shared.now()):
            self._require_current()
        image = self.source if self._calls else self.given
        for call in self.calls:
            image = call(image)
        return image

    def check(self) -> None:
        """Raise NotRecordable if code that has the pixels wrote into them after the first call, or by another image."""
        self._require_current()

    @property
    def first(self) -> Tape:
        """The original of which this tape is a copy; the tape itself if it is no copy."""
        return self._first or self

    def is_needed(self) -> None:
        """Note that code needs the pixels, for the reason that was noted last."""
        if session.calls is not None:
            session.calls.needs([self], session.needed_for)


def _version(image: Any) -> tuple[int, bool]:
    """Return what differs once a tensor was written into, or code has its memory as an array, where nothing counts
    writing; the same always for what is no tensor."""
    if not isinstance(image, Tensor):
        return 0, False
    with torch._C.DisableTorchFunctionSubclass():
        # torch lets nobody resize memory that an array shares.
        return 0 if image.is_inference() else image._version, image.untyped_storage().resizable()


def _is_still(copy: Tensor, image: Tensor) -> bool:
    """Return whether an image has the pixels that it had when it was copied."""
    if is_undecoded(image):
        return True
    with torch._C.DisableTorchFunction():
        if (copy.shape, copy.dtype) != (image.shape, image.dtype):
            return False
        return torch.equal(copy, image) or bool(((copy == image) | (copy.isnan() & image.isnan())).all())


class _Session(threading.local):
    """State of the recording in this thread. A thread without one has the values below."""

    active = False  # True during a recording
    site = 0  # index of the running link
    refused: frozenset[str] = frozenset()  # names of functions that are not recorded
    copies = False  # True if sources are copied, because the dataset overwrites them
    seen: list[tuple[Any, Any]] | None = None  # in a trial: the replaced images, with copies of them
    number = 0  # identifies the recording in this process
    given: dict[
        int, tuple[PIL.Image.Image, PIL.Image.Image]
    ]  # by id: the user's pictures, and others that share their pixels
    dictation: list[tuple[str, Call]] | None = None  # if given, calls are appended here, not to the tape
    calls: Any = None  # the calls of plain code at which a recording begins (:mod:`.plain_code`), if any
    twins: Any = None  # the twins of real images, while calls are recorded that execute (:mod:`.twins`)
    live = False  # True for samples that are trained on: code that needs pixels gets them, and goes on
    stood = 0  # number of images replaced so far
    settled = 0  # number of images whose pixels were needed so far
    why = ""  # what needed the first one of the batch
    needed_for = ""  # what needed the last one

    def __init__(self) -> None:
        self.given = {}

    @contextmanager
    def begun(self, refused: frozenset[str], copies: bool, twins: Any = None, calls: Any = None) -> Iterator[None]:
        """Record inside the context; afterwards go on with the recording around it, if any."""
        before = dict(vars(self))
        self.__dict__.update(active=twins is None, site=0, refused=refused, copies=copies, seen=None, dictation=None)
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

    def idle(self) -> AbstractContextManager[None]:
        """Suspend recording inside the context."""
        return self._with(active=False)

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
