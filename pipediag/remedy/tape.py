"""What was called on an image that is not there: the functional calls of one sample, and the ops that replay them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..usercode.places import label
from .ops import NotRecordable, Op, State, Track, is_exact, state_of


class Call(NamedTuple):
    """A functional call as it was made, for those who want to check its replay."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None = None  # which of several results
    drawn_from: Tensor | None = None  # where torch's generator stood, for a call that draws by itself
    ops: int = 0  # how many ops it is replayed by

    @property
    def name(self) -> str:
        return label(self.fn)

    def __call__(self, image: Any) -> Any:
        with torch.random.fork_rng(devices=(), enabled=self.drawn_from is not None):
            if self.drawn_from is not None:
                torch.set_rng_state(self.drawn_from)
            # The original is needed afterwards, also where the call was to write into it.
            image = image.clone() if isinstance(image, Tensor) else image
            result = self.fn(image, *self.args, **self.kwargs)
        return result if self.part is None else result[self.part]


class Tape:
    """What a recording image stands for: its source, what was called on it so far, and its state after that.

    Attributes:
        source: the image that it began with.
        state: what is known of the image now.
        open: nobody has the image but the chain that is at work on it, which goes on writing on this tape. Whoever
            else calls something on an image writes on a copy.
    """

    __slots__ = ("_calls", "_first", "_ops", "_sites", "open", "source", "source_size", "state")

    def __init__(self, source: Any, state: State) -> None:
        self.source = source
        self.source_size = state.size
        self.state = state
        self.open = False
        self._first: Tape | None = None
        self._ops: list[Op] = []
        self._sites: list[int] = []  # for each op the link of the user's chain that it came from
        self._calls: list[tuple[Callable[[Any], Call], Any, int]] = []

    def copy(self) -> Tape:
        again = Tape.__new__(Tape)
        again.source, again.source_size, again.state, again.open = self.source, self.source_size, self.state, False
        again._first = self._first or self
        again._ops, again._sites, again._calls = self._ops.copy(), self._sites.copy(), self._calls.copy()
        return again

    def then(
        self,
        ops: list[Op],
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        part: int | None = None,
        pillow: bool | None = None,
        drawn_from: Tensor | None = None,
        state: State | None = None,
    ) -> Tape:
        """A tape with one call more; ``pillow`` where the call changes whose image it is, ``state`` its type."""
        if self.state.pillow and not session.allow_approximate:
            _refuse_approximate(ops)
        if session.refused and ops:
            _refuse(fn)
        after = self.copy()
        if state is not None:
            after.state = state
        after.add(ops, Call._make, (fn, args, kwargs or {}, part, drawn_from, 0))
        if pillow is not None:
            after.state = after.state._replace(pillow=pillow)
        return after

    def add(self, ops: list[Op], call: Callable[[Any], Call], drawn: Any) -> None:
        """Write down one call more; ``call(drawn)`` tells what was called, to those who ask."""
        self._calls.append((call, drawn, len(ops)))
        for op in ops:
            self._ops.append(op)
            self._sites.append(session.site)
            state, shape, dtype = self.state, op.shape, op.kind.dtype
            if shape != state.shape or dtype is not state.dtype:
                self.state = state_of((shape, dtype, state.pillow, state.mask, state.strided, True))

    def track(self) -> Track:
        return tuple(self._ops), tuple(self._sites)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self._ops)

    @property
    def calls(self) -> list[Call]:
        """What was called, in order."""
        return [call(drawn)._replace(ops=ops) for call, drawn, ops in self._calls]

    def pixels(self) -> Any:
        """The image itself: the source after all calls, made one by one."""
        image = self.source
        for call in self.calls:
            image = call(image)
        return image

    @property
    def first(self) -> Tape:
        """The tape that this one began as."""
        return self._first or self


def _refuse_approximate(ops: list[Op]) -> None:
    for op in ops:
        if not is_exact(op, True):
            raise NotRecordable(f"Pillow's {op.name} differs from the tensors' (allow_approximate=True moves it)")


def _refuse(fn: Callable[..., Any]) -> None:
    if label(fn) in session.refused:
        raise NotRecordable(f"{label(fn)} gives other pixels on the device, as its certificate shows")


class _Session:
    """What holds while one sample is recorded."""

    active = False  # whether anything is recorded now
    site = 0  # the link of the chain that is at work
    allow_approximate = False
    refused: frozenset[str] = frozenset()
    copies = False  # sources are copied, because the dataset writes into them again
    seen: list[tuple[Any, Any]] | None = None  # in a trial: the images that were stood in for, and copies of them
    number = 0  # of the recordings begun so far
    dictation: list[tuple[str, Call]] | None = None  # calls that are told instead, by the functional's name

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Nothing is recorded, inside."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before


session = _Session()
