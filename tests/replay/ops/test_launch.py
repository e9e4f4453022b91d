"""A launch like an earlier one runs the kernel that was compiled for it; any other is compiled by triton."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.replay.ops.triton import _launch
from pipediag.replay.ops.triton._launch import _Launcher

GRID = (3, 2)
MEMORY = torch.zeros(64, dtype=torch.uint8)


class Kernel:
    """A function ``(x, stride, size, factor, BLOCK, NAME)``, with what triton keeps of it; counts its compilations."""

    def __init__(self) -> None:
        def param(name: str, constant: bool = False) -> Any:
            return SimpleNamespace(name=name, is_constexpr=constant, do_not_specialize=name == "size")

        self.params = [*map(param, ("x", "stride", "size", "factor")), param("BLOCK", True), param("NAME", True)]
        self.compiled = 0
        self.ran: list[tuple[int, Any, Any]] = []  # the number of the compiled kernel, the grid, the arguments

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, **given: Any) -> Any:
            assert _launch.OPTIONS.items() <= given.items() and len(grid) == len(GRID)
            self.compiled += 1
            return Compiled(self, self.compiled)

        return run


class Compiled:
    def __init__(self, kernel: Kernel, number: int) -> None:
        self._kernel, self._number = kernel, number

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args: self._kernel.ran.append((self._number, grid, args))


def run(launcher: _Launcher, x: torch.Tensor = MEMORY, stride: int = 1, size: int = 7, factor: float = 0.5,
        block: int = 8, name: str = "a", index: int = 0) -> None:  # fmt: skip
    launcher(index, GRID, (x, stride, size, factor), {"NAME": name, "BLOCK": block})


def test_the_same_kinds_of_arguments_are_compiled_once() -> None:
    kernel = Kernel()
    launcher = _Launcher(kernel)
    run(launcher)
    other = torch.ones(128, dtype=torch.uint8)[16:]
    run(launcher, x=other, size=1000, factor=2.5)
    assert kernel.compiled == 1
    ((number, grid, args),) = kernel.ran
    assert (number, grid, args[1:]) == (1, (3, 2, 1), (1, 1000, 2.5, 8, "a")) and args[0] is other


@pytest.mark.parametrize(
    "changed",
    [
        {"x": MEMORY.int()},
        {"x": MEMORY[1:]},
        {"stride": 2},
        {"size": 1 << 31},
        {"block": 16},
        {"name": "b"},
        {"index": 1},
    ],
    ids=str,
)
def test_what_triton_compiles_anew_is_given_to_it(changed: dict[str, Any]) -> None:
    kernel = Kernel()
    launcher = _Launcher(kernel)
    for _ in range(2):
        run(launcher)
        run(launcher, **changed)
    assert kernel.compiled == 2 and [number for number, *_ in kernel.ran] == [1, 2]


def test_the_number_of_remembered_kernels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch, "_MOST", 2)
    kernel = Kernel()
    launcher = _Launcher(kernel)
    for stride in (1, 2, 3, 1):
        run(launcher, stride=stride)
    assert kernel.compiled == 4 and not kernel.ran
    run(launcher, stride=3)
    assert kernel.compiled == 4
