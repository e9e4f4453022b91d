"""What is made without the calls at a line is what it was with them, and what cannot be kept is called."""

from __future__ import annotations

import io
import operator
import random
import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipediag.ladder.workers import kept_calls
from pipediag.ladder.workers.kept_calls import KeptCalls
from pipediag.session import without_rung
from pipediag.usercode.paths import private, same
from pipediag.usercode.places import short

from . import left_out
from .left_out import CALLS, Holder, draws, fails, in_place, item, never, own_sizes, padded, passed, slowly
from .test_worker_side import Bench, made

MIB = 1 << 20


@pytest.fixture(autouse=True)
def none_made() -> None:
    CALLS.clear()


def where(mark: str) -> str:
    """Return the user's line that ends with ``mark``."""
    lines = Path(left_out.__file__).read_text().splitlines()
    return f"{short(left_out.__file__)}:{next(n for n, text in enumerate(lines, 1) if text.endswith(mark))}"


def made_again(make: Callable[[], Any], times: int = 5, room: float = MIB) -> tuple[list[Any], int, str]:
    """Return what is made again and again, the calls of :func:`slowly` after the first time, and why none is kept."""
    kept, found = KeptCalls(where("# the line"), room), list[Any]()
    found.append(private(kept.make("key", make)))
    first = len(CALLS)
    found += [private(kept.make("key", make)) for _ in range(times)]
    return found, len(CALLS) - first, kept.why_not


IMAGE = np.arange(48, dtype=np.float32).reshape(4, 4, 3)
RESULTS: dict[str, Any] = {
    "array": IMAGE,
    "Fortran order": np.asfortranarray(IMAGE),
    "tensor": torch.arange(6.0).reshape(2, 3),
    "picture": Image.new("RGB", (5, 4), (1, 2, 3)),
    "scalar": np.float64(0.5),
    "number": 3.5,
    "nested": {"boxes": [np.ones(3), (1, "a")], "mask": torch.zeros(2, dtype=torch.bool)},
    "tokens": UserDict({"ids": torch.arange(3), "length": 3}),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_result_is_kept(what: str) -> None:
    found, calls, why = made_again(lambda: passed(lambda x: slowly(private(x)), RESULTS[what]))
    assert (calls, why) == (0, "")
    assert all(same(one, RESULTS[what]) is True and type(one) is type(RESULTS[what]) for one in found)


def test_each_time_a_copy_that_may_be_written_into() -> None:
    def make() -> Any:
        x = passed(lambda: slowly(np.zeros(3)))
        x += 1
        return x

    found, calls, _ = made_again(make)
    assert calls == 0 and all(one.tolist() == [1.0, 1.0, 1.0] for one in found)


def test_the_code_around_it_finds_what_it_found() -> None:
    """It draws what it drew, before the call, in it, and after it."""

    def make() -> Any:
        size = random.randrange(2, 50)
        x = passed(draws, np.random.rand(size))
        return size, x, torch.rand(2), random.gauss(0, 1), np.random.randn()

    found, calls, why = made_again(make)
    assert (calls, why) == (0, "")
    assert all(same(one, found[0]) is True for one in found)


def test_the_generators_stay_where_they_were() -> None:
    kept = KeptCalls(where("# the line"), MIB)
    for _ in range(3):
        states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
        with kept.undisturbed():
            kept.make("key", lambda: passed(draws, np.random.rand(3)))
        assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
        assert (np.random.get_state()[1] == states[2]).all()


def test_arithmetic_on_what_nobody_else_holds() -> None:
    """numpy computes it in place."""
    x = np.random.rand(256, 256)
    _, _, why = made_again(lambda: passed(operator.mul, passed(operator.pow, x, 2.2), passed(np.exp, x)), room=16 * MIB)
    assert why == ""


def test_several_calls_in_their_order() -> None:
    found, calls, _ = made_again(lambda: [passed(lambda x: slowly(x * 2), IMAGE[:n]) for n in range(1, 5)])
    assert calls == 0 and [len(x) for x in found[-1]] == [1, 2, 3, 4]


def test_a_call_inside_a_call_belongs_to_it() -> None:
    found, calls, why = made_again(lambda: passed(lambda: slowly(passed(slowly, 1) + 1)))
    assert (found[-1], calls, why) == (2, 0, "")


def test_a_method_of_an_object_that_it_leaves_as_it_is() -> None:
    holder = Holder()
    found, calls, why = made_again(lambda: passed(holder.pure, IMAGE))
    assert (calls, why) == (0, "") and same(found[-1], 2 * IMAGE)


HOLDER, TEXT = Holder(), "the same line\n"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: passed(slowly, None), "returns nothing"),
    "a generator": (lambda: [*passed(lambda: slowly(i for i in range(3)))], "cannot be copied"),
    "an object": (lambda: type(passed(lambda: slowly(Holder()))), "cannot be copied"),
    "the same twice": (lambda: passed(lambda x: slowly([x + 0] * 2), IMAGE), "cannot be copied"),
    "a file": (lambda: passed(lambda f: slowly(f.readline()), io.StringIO(10 * TEXT)), "reads on"),
    "an iterator": (lambda: passed(lambda it: slowly(next(it)), iter([1, 2])), "reads on"),
    "its argument": (lambda: passed(slowly, IMAGE.copy()), "returns part"),
    "a view": (lambda: passed(lambda x: slowly(x[1:]), IMAGE.copy()), "returns part"),
    "a tensor of an array": (lambda: passed(lambda x: slowly(torch.from_numpy(x)), IMAGE.copy()), "returns part"),
    "an item": (lambda: passed(lambda x: slowly(x[0]), [Image.new("L", (2, 2))]), "returns part"),
    "in place": (lambda: passed(in_place, IMAGE.copy()), "changes"),
    "a counter": (lambda: passed(HOLDER.counts, IMAGE), "changes"),
    "a list of its own": (lambda: passed(HOLDER.remembers, IMAGE), "changes"),
    "quick": (lambda: passed(abs, -1), "too quick"),
    "large": (lambda: passed(lambda: slowly(np.zeros(2 * MIB, np.uint8))), "too much"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_kept_is_called_each_time(what: str) -> None:
    make, why = REFUSED[what]
    plain = private(make())
    CALLS.clear()
    found, calls, why_not = made_again(make)
    assert why in why_not, why_not
    assert calls in (5, 0 if what == "quick" else 5)
    assert all(same(one, plain) is True for one in found)


def test_an_error_comes_each_time() -> None:
    kept = KeptCalls(where("# the line"), MIB)
    for _ in range(4):
        with pytest.raises(ValueError, match="as it does"):
            kept.make("key", lambda: passed(fails, 1))
    assert len(CALLS) == 4

    def survives() -> int:
        try:
            return passed(fails, 1)
        except ValueError:
            return 7

    found, calls, why = made_again(survives)
    assert (found, calls) == ([7] * 6, 5) and "raises an error" in why


def test_a_warning_is_of_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made_again(lambda: passed(lambda x: slowly(x) / 0, np.ones(3)))
        made_again(lambda: passed(warnings.warn, "of the caller", stacklevel=1))
        passed(warnings.warn, "of the caller", stacklevel=1)
    files = {warning.filename for warning in seen}
    assert files == {__file__, left_out.__file__}
    assert {one.lineno for one in seen if one.filename == left_out.__file__} == {int(where("# the line").split(":")[1])}


def test_other_arguments_than_the_first_time() -> None:
    """A generator of the dataset's own goes on: its sizes are new ones each time."""
    own = np.random.default_rng(1)

    def make() -> Any:
        size = int(own.integers(2, 10_000))
        return size, passed(lambda n: slowly(np.ones(n)), size)

    found, _, why = made_again(make)
    assert all(len(x) == size for size, x in found)
    assert "arguments differ" in why


def test_calls_of_another_thread_are_made() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        found, calls, _ = made_again(lambda: pool.submit(passed, slowly, 3).result())
    assert (found, calls) == ([3] * 6, 5)


def test_a_cache_that_the_first_call_fills() -> None:
    holder = Holder()

    def make() -> Any:
        return passed(holder.counts if holder.count == 0 else holder.pure, IMAGE)

    _, calls, why = made_again(make)
    assert (calls, why) == (1, "")


# The rung


def rung(mark: str) -> str:
    return without_rung(where(mark))


@pytest.mark.parametrize("mark", ["# of a sample", "# of a batch"])
@pytest.mark.parametrize("batch", [3, 4, 24])
def test_batches_without_the_line(mark: str, batch: int) -> None:
    bench = Bench(made(item), padded, batch=batch)
    first = bench.warmed(rung(mark))
    seen = {tuple(first.batch[1].tolist()): first.batch[0].clone()}
    for _ in range(20):
        before, calls = random.getstate(), len(CALLS)
        delivery = bench.batch()
        xs, numbers = delivery.batch
        again = seen.get(tuple(numbers.tolist()))
        if delivery.fits(rung(mark)):
            assert len(CALLS) - calls == (1 if mark == "# of a sample" else batch)
            assert again is None or torch.equal(again, xs), "a batch that comes again is the same"
        assert random.getstate() == before
        seen[tuple(numbers.tolist())] = xs.clone()
        xs += 1  # as a loop may do
    assert delivery.fits(rung(mark)) and delivery.cost.copy > 0
    plain = bench.batch("baseline")
    assert plain.fits("baseline") and len(plain.batch[0]) == batch


def test_without_automatic_batching() -> None:
    bench = Bench(made(item), lambda sample: sample, batch=None)
    bench.warmed(rung("# of a sample"))
    calls = len(CALLS)
    assert bench.batch().batch[0].shape == (6, 6) and len(CALLS) == calls


def test_a_dataset_that_makes_whole_batches() -> None:
    dataset = made(item)
    type(dataset).__getitems__ = lambda self, indices: [self[index] for index in indices]  # type: ignore[attr-defined]
    bench = Bench(dataset, padded)
    bench.warmed(rung("# of a sample"))
    calls = len(CALLS)
    bench.stable(rung("# of a sample"))
    assert len(CALLS) - calls == 1, "that of the batch"


def test_code_that_fails_without_it_goes_on_with_it() -> None:
    bench = Bench(made(own_sizes), torch.stack)
    for _ in range(10):
        bench.batch("baseline")
    delivery = next(one for one in (bench.batch(rung("# of another size each time")) for _ in range(5)) if one.why_not)
    assert "fails without it: AssertionError" in delivery.why_not and not delivery.stable
    assert bench.batch().batch.shape == (4, 1)


@pytest.mark.parametrize("mark, why", [("# never", "does not run"), ("# quick", "too quick"), ("# no such", "")])
def test_a_line_that_cannot_be_left_out(mark: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "too quick":
        monkeypatch.setattr(kept_calls, "_QUICK", 60.0)  # a machine with other work may interrupt it for long
    name = rung(mark) if why else "without:no_such_file.py:3"
    bench = Bench(made(never), torch.stack)
    for _ in range(10):
        bench.batch("baseline")
    said = [bench.batch(name) for _ in range(6)]
    assert any((why or "not found") in one.why_not for one in said if one.why_not), [one.why_not for one in said]
    assert not any(one.fits(name) for one in said[-2:]) and said[-1].batch.shape == (4, 1)
