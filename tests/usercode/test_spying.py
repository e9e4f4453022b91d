"""Transforms that a stream's stages were given beforehand: found, watched from the first item on, and put back."""

from __future__ import annotations

import functools
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from pipediag import marker
from pipediag.usercode.spying import Recorder, opened, stage_slots

from ..things import Compose, Double, Shift


def mapped(items: Iterator[Any], *functions: Any) -> Iterator[Any]:
    for item in items:
        for function in functions:
            item = item if function is None else function(item)
        yield item


class Curried:
    """A function of a stream, with its further arguments."""

    def __init__(self, function: Any, *args: Any, **kw: Any) -> None:
        self.function, self.args, self.kw = function, args, kw

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        result: Iterator[Any] = self.function(items, *self.args, **self.kw)
        return result


class Pipeline(IterableDataset[Any]):
    def __init__(self, *stages: Any) -> None:
        self.stages = [list(range(4)), *stages]
        self.scale = 1

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.stages[0])
        for stage in self.stages[1:]:
            items = stage(items)
        return items


class Inside(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        yield from self.dataset


def names(dataset: Any) -> list[str]:
    return [slot.name for slot in stage_slots(dataset)]


def recorded(make: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What ``make`` returns, and the functions called meanwhile, each with those inside it."""
    recorder = Recorder()
    marker.recorder = recorder
    try:
        made = make()
    finally:
        marker.recorder = None
    return made, [(type(one.call.fn), [type(inner.call.fn) for inner in one.inner]) for one in recorder.seen]


def test_arguments_of_stages() -> None:
    def by_name(items: Iterator[Any], function: Any) -> Iterator[Any]:
        yield from map(function, items)

    by_keyword = functools.partial(by_name, function=Double())
    assert names(Pipeline(Curried(mapped, Double(), None, Shift()))) == ["args[0]", "args[2]"]
    assert names(Pipeline(Curried(mapped, key=Double(), size=3), by_keyword)) == ["kw['key']", "function"]
    assert names(Inside(Pipeline(Curried(mapped, Double())))) == ["args[0]"]


def test_what_is_no_stage() -> None:
    def loaded(items: Any, function: Any) -> Iterator[Any]:
        yield from map(function, items)

    assert names(Pipeline(Curried(loaded, Double()))) == [], "it makes the raw data"
    assert names(Pipeline(Compose([Double(), Shift()]), mapped)) == [], "no generator function with arguments"
    assert names(Inside([1, 2])) == []


def test_calls_are_seen_by_whoever_records_when_the_item_is_made() -> None:
    dataset = Pipeline(Curried(mapped, Compose([Double(), Shift()])))
    before = dataset.stages[1].args
    items = opened(dataset)
    assert recorded(lambda: next(items)) == (1, [(Compose, [Double, Shift])])
    assert next(items) == 3, "nobody records"
    assert recorded(lambda: next(items)) == (5, [(Compose, [Double, Shift])])
    assert list(items) == [7]
    assert dataset.stages[1].args == before and list(dataset) == [1, 3, 5, 7]
    assert recorded(lambda: list(dataset)) == ([1, 3, 5, 7], [])


def test_a_stream_without_stages_is_its_own_iterator() -> None:
    dataset = Pipeline()
    assert type(opened(dataset)) is type(iter(dataset))


def test_the_stages_own_errors_come_through_and_nothing_stays_replaced() -> None:
    def failing(item: Any) -> Any:
        raise KeyError(item)

    dataset = Pipeline(Curried(mapped, failing))
    before = dataset.stages[1].args
    with pytest.raises(KeyError):
        next(opened(dataset))
    assert dataset.stages[1].args == before


def test_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    file = tmp_path / "data.tar"
    with tarfile.open(file, "w") as tar:
        for number in range(3):
            info = tarfile.TarInfo(f"{number}.cls")
            info.size = 1
            tar.addfile(info, io.BytesIO(str(number).encode()))
    dataset = (
        webdataset.WebDataset(str(file), shardshuffle=False)
        .decode()
        .to_tuple("cls")
        .map_tuple(Compose([Double(), Shift()]))
    )
    items = opened(dataset)
    first, calls = recorded(lambda: next(items))
    assert first == (1,) and calls[-1] == (Compose, [Double, Shift])
    second, calls = recorded(lambda: next(items))
    assert second == (3,) and calls[-1] == (Compose, [Double, Shift])
    assert list(items) == [(5,)]
