"""Record the functional calls of one sample on an image without pixels, and the ops that replay them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..layout import Strides
from ..ops.op import NotRecordable, Op, State, Track, state_of
from .call import Call, Recorded, itself, made_by, spoken
from .memory import Memory, Rows, shares_memory
from .session import session, why_not_now


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
        self._calls: list[Recorded] = []
        self._memory: Memory | None = None  # if no other image lies there, and the user has none
        self._path: tuple[Recorded, ...] = ()  # the calls that make the image of the whole memory
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
        again._calls.append(Recorded(Call._make, (fn, args, {}, None, None, 0, 0), 0, session.site))
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
        made = Recorded(call, drawn, len(ops), session.site)
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
    def memory(self) -> Memory | None:
        """The memory that it shares with other images; None if no other lies there."""
        return self._memory

    @property
    def is_whole(self) -> bool:
        """True if it fills its memory."""
        return all(one.ops == 0 and one.made().fn is itself for one in self._path)

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
            raise not_recorded(self.settled or (self._memory is not None and self._memory.is_taken))

    def pixels(self) -> Any:
        """Return the real image, which lies in the memory that it shares with others: all of them are real now."""
        if self.settled or (self.is_picture and not self._calls):
            return self.given
        if self.is_picture:  # Pillow's functions return pictures that share no memory
            return made_by(self._calls, self.source)
        if self._memory is None:
            return Memory(self.source, self._calls).pixels()
        whole = self._memory.image()
        image = made_by(self._path, whole)
        # A call that makes a copy here, which was not known, made memory of its own.
        return image if image is whole or shares_memory(image, whole) else Memory(self.source, self._calls).pixels()

    @staticmethod
    def stack(tapes: Sequence[Tape], given: Tensor | None, strides: Callable[[], Strides]) -> None:
        """Note that images which lie in no shared memory yet are the rows of a stack; of the real one ``given``."""
        if given is None:
            if any(tape.settled or tape._memory is not None for tape in tapes):
                Rows.lay([None if tape._path else tape._memory for tape in tapes], strides)
                return
            for tape in tapes:
                tape._memory, tape.open = Memory(tape.source, tape._calls), False
        Rows([tape._memory for tape in tapes if tape._memory is not None], given, strides)

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


def not_recorded(is_real: bool) -> NotRecordable:
    """Return the error: an image is real now, or else another one was written into that shares its memory."""
    written = "an image is written into, and it or one that shares its memory is used as it was"
    return NotRecordable(session.why if is_real and session.why else written)
