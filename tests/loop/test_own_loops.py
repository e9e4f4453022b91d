"""Loops over something else than a DataLoader: watched code does what it did, and the loop that trains is found."""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pipediag.host.own_loops import OwnLoops, marked
from pipediag.loop import iterables

CODE = {
    "nested": "out = []\nfor i in range(3):\n    for j in 'ab': out.append([(i, j, k) for k in range(2)])",
    "else": "out = []\nfor i in range(3):\n    if i == 5: break\nelse:\n    out.append(i)",
    "break": "out = []\nfor i in range(9):\n    if i == 2: break\nelse:\n    out.append('all')\nout.append(i)",
    "changed meanwhile": "out = [1, 2]\nfor i in out:\n    if i < 4: out.append(i + 2)",
    "next": "it = iter([1, 2])\nout = [next(it), next(it), next(it, 3)]\n"
    "try: next(it)\nexcept StopIteration: out += [4]",
    "an own next": "def next(it): return 'own'\nout = [next([1])]",
    "a next of a loop": "out = []\nfor next in (str, int): out.append(next('1'))",
    "enumerate and zip": "out = []\nfor i, (a, b) in enumerate(zip('ab', [1, 2]), 5): out.append((i, a, b))",
    "unpacked": "out = []\nargs = ['ab', [1, 2]]\nfor a, b in zip(*args): out.append((a, b))",
    "generator": "def g(n):\n    for i in range(n):\n        got = yield i\n        if got: yield got\nit = g(3)\n"
    "out = [next(it), it.send('x'), next(it)]",
    "a length": "def tqdm(items): return [len(items), *items]\nout = []\nfor i in tqdm([7, 8]): out.append(i)",
    "future": "from __future__ import annotations\nout = []\nfor i in (1, 2):\n    x: Unknown = i\n    out.append(x)",
    "nested deep": f"out = []\nfor i in (1, 2): out.append({'+'.join(['i'] * 900)})",
    "with a bare file": "out = []\nfor line in open(__file__): out.append(len(line))",
}


@pytest.mark.parametrize("name", CODE)
def test_watched_code_does_the_same(name: str) -> None:
    plain: dict[str, Any] = {"__file__": __file__}
    exec(compile(CODE[name], "x.py", "exec", dont_inherit=True), plain)
    watched: dict[str, Any] = {"__file__": __file__}
    with OwnLoops().watched():
        exec(marked(CODE[name], "x.py"), watched)
    assert watched["out"] == plain["out"] != []


def test_lines_stay_where_they_are() -> None:
    code = "for i in range(3):\n    pass\n\nfor j in (1,\n          0):\n    1 / j\n"
    with OwnLoops().watched(), pytest.raises(ZeroDivisionError) as failed:
        exec(marked(code, "x.py"), {})
    assert traceback.extract_tb(failed.value.__traceback__)[-1].lineno == 6


def test_code_that_outlives_the_analysis_goes_on_unwatched() -> None:
    names: dict[str, Any] = {}
    with OwnLoops().watched():
        exec(marked("def f():\n    it = iter('ab')\n    return [next(it)] + [c for c in it]", "x.py"), names)
    assert names["f"]() == ["a", "b"]


def test_the_modules_beside_the_script_are_watched_but_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text("def f(items):\n    for item in items: yield item\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("colorsys", None)
    try:
        with OwnLoops().watched():
            beside, library = (importlib.import_module(name) for name in ("beside_the_script", "colorsys"))
        assert "__pipediag_each__" in beside.f.__code__.co_names
        assert "__pipediag_each__" not in library.rgb_to_hsv.__code__.co_names
    finally:
        sys.modules.pop("beside_the_script", None)


def batches(number: int = 40) -> Iterator[torch.Tensor]:
    for value in range(number):
        yield torch.full((2,), float(value))


LOOPS = {
    "for": ("for batch in batches():\n    step(batch)", 1),
    "for in epochs": ("for epoch in range(3):\n    for batch in batches():\n        step(batch)", 2),
    "counted": ("for i, batch in enumerate(batches()):\n    step((i, batch))", 1),
    "next": ("it = batches()\nfor i in range(40):\n    step(\n        next(it)\n    )", 4),
    "next in epochs": ("for i in range(3):\n    it = batches()\n    for j in range(40): step(next(it))", 3),
    "parameters": (
        "for batch in batches():\n    for p in list(model.parameters()): p.grad = None\n    step(batch)\n"
        "    for p in model.parameters(): p.data.clamp_(-1, 1)",
        1,
    ),
    "slices of a batch": (
        "for batch in batches():\n    for part in batch.split(1): step(part, last=False)\n    step()",
        1,
    ),
    "through a generator": (
        "def doubled(items):\n    for item in items: yield 2 * item\nfor batch in doubled(batches()):\n    step(batch)",
        3,
    ),
    "a dictionary": ("for i in range(3):\n    for batch in ({'x': one} for one in batches()):\n        step(batch)", 2),
    "arrays": ("for batch in (one.numpy() for one in batches()):\n    step(batch)", 1),
}


def trained(code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[OwnLoops, list[Any]]:
    """Run a loop; return what was found, and the iterables that were to be measured."""
    measured: list[Any] = []

    native = iterables.loader_over

    def loader_over(iterable: Any) -> Any:
        measured.append(iterable)
        return native(iterable)

    monkeypatch.setattr(iterables, "loader_over", loader_over)
    loops = OwnLoops()

    def step(batch: Any = None, last: bool = True) -> None:
        if last:
            loops.stepped()

    model = torch.nn.Linear(2, 2)
    with loops.watched():
        exec(marked(code, "train.py"), {"batches": batches, "step": step, "model": model})
    return loops, measured


@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_that_trains_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, line = LOOPS[name]
    loops, measured = trained(code, monkeypatch)
    assert loops.place is not None and loops.place.startswith(f"train.py:{line}:")
    assert len(measured) == (3 if "epoch" in code or "range(3)" in code else 1)  # one for every start of that loop


@pytest.mark.parametrize(
    "code",
    [
        "for i in range(40):\n    batch = next(batches())\n    step(batch)",  # another iterator for every step
        "for i in range(40):\n    step(torch.ones(2) if False else i)",
        "for epoch in range(40):\n    for batch in batches(3):\n        pass\n    step()",  # not a loop that steps
    ],
)
def test_no_other_loop_is_taken(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loops, measured = trained(code, monkeypatch)
    assert loops.place is None and not measured


def test_a_thread_that_draws_ahead_is_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached batches would reach the thread's queue, and not the step."""
    loops = OwnLoops()
    names: dict[str, Any] = {"batches": batches, "queue": []}
    with loops.watched():
        exec(marked("def ahead():\n    for batch in batches(): queue.append(batch)", "train.py"), names)
        thread = threading.Thread(target=names["ahead"])
        thread.start()
        thread.join()
        for _ in range(10):
            loops.stepped()
    assert loops.place is None


@pytest.mark.parametrize("dropped", [0, 3])
@pytest.mark.parametrize("left", [0, 4])
def test_a_loop_gets_as_many_batches_as_without_an_analysis(
    dropped: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loader(list[Any]):
        """Drops some batches; its first epoch gives what an earlier one has left."""

        def __init__(self, iterable: Any) -> None:
            self.dataset = iterables.Batches(iterable)
            self.left = left

        def __iter__(self) -> Iterator[Any]:
            if self.left:
                self.left -= self.left
                yield from range(left)
                return
            batches = iter(self.dataset)
            for _ in range(dropped):
                next(batches)
            yield from batches

    monkeypatch.setattr(iterables, "loader_over", Loader)
    loops, names = OwnLoops(), {"batches": batches, "got": []}
    with loops.watched():
        loops.place = "train.py:1:13"
        exec(marked("for batch in batches(10):\n    got.append(batch)", "train.py"), names)
    assert len(names["got"]) == max(10, 10 - dropped + left)


class Pages:
    def __iter__(self) -> Iterator[int]:
        return (n for n in range(2))

    def rows(self) -> Iterator[int]:
        yield 1


def test_the_name_of_what_makes_the_batches() -> None:
    named = [iterables.Batches(one).name for one in (iter(Pages()), Pages().rows(), (n for n in "ab"), Pages(), [1])]
    assert named == ["Pages", "Pages.rows()", "a generator", "Pages", "list"]
