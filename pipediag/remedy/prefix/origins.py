"""What the tensors of a training step come from: the step's batch alone, or also what the loop learns or keeps.

A dispatch mode follows the memory that every operation reads and makes, over several steps of the loop's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...usercode import randomness, tree
from ...usercode.dispatch import switched_on
from .memory import UNKNOWN, Keys
from .operations import operands, written_by
from .rewinding import generator_state


class Origins(TorchDispatchMode):  # type: ignore[misc]
    """Tells of tensors whether they depend on the batch alone.

    They do not where something was read on the way that requires grad, that the loop writes to in the steps watched,
    or that the step before has left; nor once a random generator has been drawn from in the step. Give it two steps: in
    the first it is seen what changes.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._keys = Keys()
        self._batch: frozenset[int] = frozenset()
        self._made: set[int] = set()
        self._lost: set[int] = {UNKNOWN}
        self._paused = True
        self._stood: tuple[Any, bytes] | None = None

    @contextmanager
    def step(self, batch: Any) -> Iterator[None]:
        """One step of the loop's, which is given ``batch``."""
        self._lost |= self._made
        self._made.clear()
        self._batch = self._keys.of_all(tree.tensors(batch))
        self._stood = self._generators()
        with switched_on(self):
            self._paused = False
            try:
                yield
            finally:
                self._paused = True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done inside is none of the loop's doing."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    def drawn(self) -> bool:
        """Whether random numbers were drawn since the step began."""
        now = self._generators()
        assert self._stood is not None
        return bool(randomness.moved(self._stood[0], now[0])) or now[1] != self._stood[1]

    def strays(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one of the tensors depends on something else than the batch."""
        return any(tensor.requires_grad or self._keys.of(tensor) & self._lost for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._paused:
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        lost = self.strays(operands((args, kwargs)))
        written = self._keys.of_all(written_by(getattr(func, "_schema", None), args, kwargs))
        given = self._keys.of_all(operands((args, kwargs)))
        made = self._keys.of_all(operands(result)) - given
        self._made |= made
        self._lost |= written - self._made - self._batch
        if lost:
            self._lost |= made | written

    def _generators(self) -> tuple[Any, bytes]:
        on_device = b"" if self._device.type == "cpu" else bytes(generator_state(self._device).numpy())
        return randomness.state(), on_device
