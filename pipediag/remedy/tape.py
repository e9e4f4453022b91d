"""What was called on an image that is not there: the functional calls of one sample, and the ops that replay them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ladder.places import label
from .ops import NotRecordable, Op, State, is_exact


class Call(NamedTuple):
    """A functional call as it was made, for those who want to check its replay."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None  # which of several results
    ops: int  # how many ops it is replayed by
    drawn_from: Tensor | None  # where torch's generator stood, for a call that draws by itself

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

    Tapes share their beginnings, as the images of several views do: each holds one call and the tape before it.
    """

    __slots__ = ("_before", "_call", "_made", "_site", "source", "source_size", "state")

    def __init__(self, source: Any, state: State) -> None:
        self.source = source
        self.source_size = state.size
        self.state = state
        self._before: Tape | None = None
        self._made: list[Op] = []
        self._site = 0
        self._call: Any = None

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
        """The tape with one call more; ``pillow`` where the call changes whose image it is, ``state`` its type."""
        state = state or self.state
        if state.pillow and not session.allow_approximate:
            _refuse_approximate(ops)
        if session.refused and ops:
            _refuse(fn)
        after = Tape.__new__(Tape)
        after.source, after.source_size = self.source, self.source_size
        after._before, after._made, after._site = self, ops, session.site
        after._call = (fn, args, kwargs, part, drawn_from)
        if ops:
            state = State(ops[-1].shape, ops[-1].dtype, state.pillow, state.mask, state.strided)
        after.state = state if pillow is None else state._replace(pillow=pillow)
        return after

    @property
    def made(self) -> bool:
        """Whether the last call did anything to the image."""
        return bool(self._made)

    def follows(self, tape: Tape) -> bool:
        """Whether it is ``tape`` with one call more."""
        return self._before is tape

    def then_as(self, other: Tape) -> Tape:
        """The tape with the last call of ``other`` more, which was made on an image of the same state."""
        after = Tape.__new__(Tape)
        after.source, after.source_size = self.source, self.source_size
        after._before, after._made, after._call, after.state = self, other._made, other._call, other.state
        after._site = session.site
        return after

    def track(self) -> tuple[tuple[Op, ...], tuple[int, ...]]:
        """All ops, and for each the link of the user's chain that it came from."""
        ops: list[Op] = []
        sites: list[int] = []
        for tape in self._from_the_first():
            ops += tape._made
            sites += [tape._site] * len(tape._made)
        return tuple(ops), tuple(sites)

    @property
    def ops(self) -> tuple[Op, ...]:
        return self.track()[0]

    @property
    def calls(self) -> list[Call]:
        """What was called, in order."""
        made = []
        for tape in self._from_the_first():
            if tape._call is not None:
                fn, args, kwargs, part, drawn_from = tape._call
                made.append(Call(fn, args, kwargs or {}, part, len(tape._made), drawn_from))
        return made

    def pixels(self) -> Any:
        """The image itself: the source after all calls, made one by one."""
        image = self.source
        for call in self.calls:
            image = call(image)
        return image

    @property
    def first(self) -> Tape:
        """The tape that this one began as."""
        return self._from_the_first()[0]

    def _from_the_first(self) -> list[Tape]:
        tapes: list[Tape] = []
        tape: Tape | None = self
        while tape is not None:
            tapes.append(tape)
            tape = tape._before
        return tapes[::-1]


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

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Nothing is recorded, inside."""
        before, self.active = self.active, False
        try:
            yield
        finally:
            self.active = before


session = _Session()
