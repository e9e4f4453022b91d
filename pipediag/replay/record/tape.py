"""Record the functional calls of one sample on an image without pixels, and the ops that replay them."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

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
        """Return the result for a copy of the image: the original is still needed, even if the call writes into it."""
        return self.on(copied(image) if isinstance(image, Tensor) else image)

    def on(self, image: Any) -> Any:
        """Return the result for the image itself, into which the call may write."""
        # It was recorded outside of autocast, but code may need the pixels inside.
        draws = self.drawn_from is not None
        with torch.random.fork_rng(devices=(), enabled=draws), torch.autocast("cpu", enabled=False):
            if self.drawn_from is not None:
                torch.set_rng_state(self.drawn_from)
            result = self.fn(image, *self.args, **self.kwargs)
        return result if self.part is None else result[self.part]


class _Recorded(NamedTuple):
    """Call as a tape holds it: ``call(drawn)`` returns it when it is needed."""

    call: Callable[[Any], Call]
    drawn: Any
    ops: int
    site: int

    def made(self) -> Call:
        return self.call(self.drawn)._replace(ops=self.ops, site=self.site)

    def on(self, image: Any) -> Any:
        return self.call(self.drawn).on(image)


_Calls = Sequence[_Recorded]


def _made_by(calls: _Calls, image: Any) -> Any:
    for one in calls:
        image = one.on(image)
    return image


class Memory:
    """What an image and views of it lie in, and what is written there.

    As long as no code has the real image, each writing is a recorded call. Once code has it, or a view of it, code may
    write there unseen: nothing more is recorded of an image in this memory, and all of them are views of the real one.

    Attributes:
        source: what its calls are made on, which nobody writes into.
        real: the real image; None if only calls made it, and no code needed it. It is a user's image from the start if
            the recording began with that.
        is_taken: True if code that got recorded images needed the real one.
        writings: the calls that wrote there, each with the calls that make what it wrote into from the whole.
        rows: the memory of the stack in which this is a row, if any.
    """

    __slots__ = ("__weakref__", "_calls", "_version", "is_taken", "real", "rows", "source", "writings")

    def __init__(self, source: Any, calls: _Calls = (), given: Tensor | None = None) -> None:
        self.source, self._calls = source, calls
        self.real = given
        self._version = _version(given)
        self.is_taken = False
        self.writings: list[tuple[_Calls, Callable[[Any], object]]] = []
        self.rows: Rows | None = None

    def is_as_it_was(self, writings: int) -> bool:
        """Return whether an image that includes this number of writings has the same pixels still, and is recorded."""
        if self.is_taken or writings != len(self.writings):
            return False
        if self.real is None or (self._version is not None and _version(self.real) == self._version):
            return True
        return _is_still(self.source, self.real)

    def image(self) -> Any:
        """Return the real image, into which code may write from now on."""
        if not self.is_taken and self.rows is not None:
            self.rows.image()
        if self.real is None:
            self.real = self.pixels()
        self.is_taken = True
        return self.real

    def pixels(self) -> Any:
        """Return the image that the recorded calls make."""
        image = _made_by(self._calls, copied(self.source) if isinstance(self.source, Tensor) else self.source)
        for path, write in self.writings:
            write(_made_by(path, image))
        return image


class Rows:
    """Memory of a stack of images, each of which lies in a row of it."""

    def __init__(self, memories: Sequence[Memory], real: Tensor | None = None) -> None:
        self._memories = [weakref.ref(memory) for memory in memories]
        self._real = real
        for memory in memories:
            memory.rows = self

    def image(self) -> Tensor:
        """Return the real stack, into which code may write from now on."""
        alive = [(k, memory) for k, ref in enumerate(self._memories) if (memory := ref()) is not None]
        if self._real is None:
            rows = {k: memory.pixels().as_subclass(Tensor) for k, memory in alive}
            none = torch.zeros_like(next(iter(rows.values())))  # nothing holds the others any more
            self._real = torch.stack([rows.get(k, none) for k in range(len(self._memories))])
            for k, memory in alive:
                memory.real = self._real[k]
        for _, memory in alive:
            memory.is_taken = True
        return self._real

    @staticmethod
    def of(memories: Sequence[Memory | None]) -> Tensor | None:
        """Return the real stack whose rows these are, or the part of it; None if they are no such rows."""
        rows = memories[0].rows if memories[0] is not None else None
        if rows is None or any(one is None or one.rows is not rows for one in memories):
            return None
        numbers = [next(k for k, ref in enumerate(rows._memories) if ref() is one) for one in memories]
        step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
        if step < 1 or numbers != [*range(numbers[0], numbers[-1] + 1, step)]:
            return None
        whole = rows.image()
        return whole if numbers == [*range(len(whole))] else whole[numbers[0] : numbers[-1] + 1 : step]


class Tape:
    """Record of a recording image: its source, the calls on it so far, and its state after them.

    Attributes:
        given: the user's image that the recording began with; None for a stack of images.
        source: an image with the same pixels, which nobody writes into.
        begun: the shape and dtype of the source.
        state: the shape and dtype after all calls.
        settled: True if it stands for a real image that code needed, which is ``given``. Nothing is recorded of it.
        open: True while only the running chain references the image: the chain may then write on this tape. Any other
            call writes on a copy.
        is_picture: True if the image is one of Pillow's.
    """

    __slots__ = ("_calls", "_first", "_memory", "_ops", "_path", "_sites", "_writings", "begun", "given",
                 "is_picture", "open", "settled", "source", "state")  # fmt: skip

    def __init__(self, given: Any, state: State, source: Any = None) -> None:
        self.given = given
        self.source = given if source is None else source
        self.begun = self.state = state
        self.open = self.settled = False
        self.is_picture = not isinstance(self.source, Tensor)
        self._first: Tape | None = None
        self._ops: list[Op] = []
        self._sites: list[int] = []  # one for each op
        self._calls: list[_Recorded] = []
        self._memory: Memory | None = None  # if no other image lies there, and the user has none
        self._path: tuple[_Recorded, ...] = ()  # the calls that make the image of the whole memory
        self._writings = 0  # number of writings into the memory that the image includes

    @staticmethod
    def of_users(image: Tensor, state: State, memory: Memory) -> Tape:
        """Return the tape of a tensor of the user's."""
        tape = Tape(image, state, memory.source)
        tape._memory = memory
        return tape

    @staticmethod
    def of_real(image: Any, state: State) -> Tape:
        """Return the tape of an image that stands for a real one, which code needed."""
        tape = Tape(image, state)
        tape.settled = True
        if isinstance(image, Tensor):
            tape._memory = Memory(image, given=image)
            tape._memory.is_taken = True
        return tape

    def copy(self) -> Tape:
        """Return a copy for another image in the same memory.

        Raises:
            NotRecordable: see :meth:`check`.
        """
        self.check()
        if self._memory is None:
            self._memory = Memory(self.source, self._calls)
            self.open = False
        again = Tape.__new__(Tape)
        again.given, again.source, again.begun, again.state = self.given, self.source, self.begun, self.state
        again.open, again.settled, again.is_picture = False, False, self.is_picture
        again._first = self._first or self
        again._memory, again._path, again._writings = self._memory, self._path, self._writings
        again._ops, again._sites, again._calls = self._ops.copy(), self._sites.copy(), self._calls.copy()
        return again

    def apart(self) -> Tape:
        """Return a copy for an image that shares no memory with this one."""
        again = self.copy()
        again._memory, again._path, again._writings = None, (), 0
        return again

    def laid(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Tape:
        """Return a copy for the same image, which lies otherwise in memory than the calls say: as ``fn`` gives it."""
        again = self.copy()
        again._calls.append(_Recorded(Call._make, (fn, args, {}, None, None, 0, 0), 0, session.site))
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
        copies: bool = False,
    ) -> Tape:
        """Return a copy with one more call.

        Args:
            state: replaces the image's if the call changes its type.
            copies: whether the result is a tensor in memory of its own although no op makes it, or of a picture.

        Raises:
            NotRecordable: the function is refused, or :meth:`check`.
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
        after.add(ops, Call._make, (fn, args, kwargs or {}, part, drawn_from, 0, 0), copies)
        return after

    def add(self, ops: list[Op], call: Callable[[Any], Call], drawn: Any, copies: bool = False) -> None:
        """Append one call and its ops; ``call(drawn)`` returns the call when it is needed."""
        made = _Recorded(call, drawn, len(ops), session.site)
        self._calls.append(made)
        self.is_picture = self.is_picture and not copies
        for op in ops:
            self._ops.append(op)
            self._sites.append(session.site)
            copies = copies or not op.kind.operation.is_view
            state, shape, dtype = self.state, op.shape, op.kind.dtype
            if shape != state.shape or dtype is not state.dtype:
                self.state = state_of((shape, dtype, state.mask, state.strided, True))
        if copies:
            self._memory, self._path, self._writings = None, (), 0
        elif self._memory is not None:
            self._path = (*self._path, made)

    def writing(self, after: Tape) -> Tape:
        """Return the tape of this image ``after`` a call that writes into it, as its last call did."""
        return self.written(after, after._calls[-1].on)

    def written(self, after: Tape, write: Callable[[Any], object]) -> Tape:
        """Return the tape ``after`` a writing into this image, which ``write`` repeats on the real one."""
        assert self._memory is not None  # there is a copy
        self._memory.writings.append((self._path, write))
        after._memory, after._path, after._writings = self._memory, self._path, len(self._memory.writings)
        return after

    @property
    def source_size(self) -> tuple[int, int]:
        """Height and width of the source."""
        return self.begun.size

    @property
    def is_original(self) -> bool:
        """True if no call was made on the source."""
        return not self._calls

    @property
    def is_users(self) -> bool:
        """True if the image lies in the memory of the user's own."""
        return self._memory is not None and isinstance(self.given, Tensor) and self._memory.real is self.given

    def track(self) -> Track:
        return tuple(self._ops), tuple(self._sites)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self._ops)

    @property
    def calls(self) -> list[Call]:
        return [one.made() for one in self._calls]

    @property
    def is_recorded(self) -> bool:
        """False if the image stands for a real one, or was written into other than by its own calls."""
        if self.settled:
            return False
        return self._memory is None or self._memory.is_as_it_was(self._writings)

    def check(self) -> None:
        """Check that the image is what its calls make, and that more can be recorded.

        Raises:
            NotRecordable: it is not.
        """
        if not self.is_recorded:
            is_real = self.settled or (self._memory is not None and self._memory.is_taken)
            raise NotRecordable(session.why if is_real and session.why else WRITTEN)

    def pixels(self) -> Any:
        """Return the real image, which lies in the memory that it shares with others: all of them are real now."""
        if self.settled or (self.is_picture and not self._calls):
            return self.given
        if self.is_picture:  # Pillow's functions return pictures that share no memory
            return _made_by(self._calls, self.source)
        if self._memory is None:
            return Memory(self.source, self._calls).pixels()
        whole = self._memory.image()
        image = _made_by(self._path, whole)
        # A call that makes a copy here, which was not known, made memory of its own.
        return image if image is whole or _shares_memory(image, whole) else Memory(self.source, self._calls).pixels()

    @staticmethod
    def stack(tapes: Sequence[Tape], given: Tensor | None = None) -> None:
        """Note that images which lie in no shared memory yet are the rows of a stack; of the real one ``given``."""
        if given is None:
            if any(tape.settled or tape._memory is not None for tape in tapes):
                return
            for tape in tapes:
                tape._memory, tape.open = Memory(tape.source, tape._calls), False
        Rows([tape._memory for tape in tapes if tape._memory is not None], given)

    @staticmethod
    def stacked(tapes: Sequence[Tape]) -> Tensor | None:
        """Return the real stack whose rows are these images; None if they are no such rows."""
        return Rows.of([None if tape._path else tape._memory for tape in tapes])

    @property
    def first(self) -> Tape:
        """The original of which this tape is a copy; the tape itself if it is no copy."""
        return self._first or self

    def is_needed(self) -> None:
        """Note that code needs the pixels, for the reason that was noted last."""
        if session.calls is not None:
            session.calls.needs([self], session.needed_for)


WRITTEN = "an image is written into, and it or one that shares its memory is used as it was"


def _version(image: Any) -> int | None:
    """Return what differs once a tensor was written into; None if nothing shows that, or for what is no tensor."""
    if not isinstance(image, Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        # torch lets nobody resize memory that an array shares.
        counts = not image.is_inference() and image.untyped_storage().resizable()
        return image._version if counts else None


def _is_still(copy: Tensor, image: Tensor) -> bool:
    """Return whether an image has the pixels that it had when it was copied."""
    if is_undecoded(image):
        return True
    with torch._C.DisableTorchFunction():
        if (copy.shape, copy.dtype) != (image.shape, image.dtype):
            return False
        return torch.equal(copy, image) or bool(((copy == image) | (copy.isnan() & image.isnan())).all())


def _shares_memory(image: Any, whole: Any) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        one, other = (tensor.untyped_storage().data_ptr() for tensor in (image, whole))
        return bool(one == other)


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
