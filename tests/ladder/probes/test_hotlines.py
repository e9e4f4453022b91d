"""Which lines take the time: a planted line is found, and the tracer is removed afterwards."""

from __future__ import annotations

import functools
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipediag.ladder.probes import hotlines
from pipediag.ladder.probes.hotlines import HotLines
from pipediag.session import HotLine
from pipediag.usercode.places import short

HERE = short(__file__)


def cheap() -> int:
    return 1 + 1


def costly() -> str:
    total = cheap()
    time.sleep(0.1)  # planted
    for _ in range(3):
        total += cheap()
    return "sample"


def calls_costly() -> str:
    return costly()  # not the line itself


def many() -> None:
    time.sleep(0.004)
    time.sleep(0.004)
    time.sleep(0.004)
    time.sleep(0.004)
    time.sleep(0.004)
    time.sleep(0.004)
    time.sleep(0.004)


def yields() -> Iterator[str]:
    time.sleep(0.01)  # in a generator
    yield "sample"


def in_a_library() -> str:
    return textwrap.fill(TEXT)  # all of it in the library


TEXT = "some words " * 2000


def line_of(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    (line,) = (number for number, found in enumerate(source, 1) if found.endswith(text) and '"' not in found[-20:])
    return line


def traced(make: Callable[[], Any], most: int = 2) -> list[HotLine]:
    lines = HotLines(most)
    while not lines.complete:
        lines.trace(make)
    return lines.figures()


class TestLines:
    def test_a_planted_line_is_found(self) -> None:
        first = traced(costly)[0]
        assert first.where == f"{HERE}:{line_of('# planted')}"
        assert first.text == "time.sleep(0.1)  # planted"
        assert 0.8 < first.share <= 1

    def test_the_innermost_line_is_charged(self) -> None:
        lines = traced(calls_costly)
        assert lines[0].where == f"{HERE}:{line_of('# planted')}"
        assert not [line for line in lines if line.text.endswith("# not the line itself")]

    def test_lines_without_time_are_not_named(self) -> None:
        assert [line.text for line in traced(costly)] == ["time.sleep(0.1)  # planted"]

    def test_generators(self) -> None:
        assert traced(lambda: next(yields()))[0].where == f"{HERE}:{line_of('# in a generator')}"

    def test_library_code_counts_for_the_line_that_calls_it(self) -> None:
        first = traced(in_a_library)[0]
        assert first.where == f"{HERE}:{line_of('# all of it in the library')}"
        assert first.share > 0.8

    def test_library_functions_are_named_if_no_users_line_runs(self) -> None:
        """As with a library's dataset class."""
        lines = traced(functools.partial(textwrap.fill, TEXT))
        assert {line.text for line in lines} & {"_split", "_wrap_chunks", "<method 'split' of 're.Pattern' objects>"}
        assert not [line for line in lines if HERE in line.where]
        assert lines == sorted(lines, key=lambda line: line.share, reverse=True)

    def test_at_most_five(self) -> None:
        assert len(traced(many)) == 5

    def test_samples_are_returned(self) -> None:
        lines = HotLines(1)
        assert [lines.trace(costly) for _ in range(4)] == ["sample"] * 4

    def test_slow_samples_are_few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hotlines, "_SECONDS", 0.01)
        lines = HotLines(100)
        lines.trace(costly)
        assert not lines.complete
        lines.trace(costly)
        assert lines.complete

    def test_nothing_traced(self) -> None:
        assert HotLines().figures() == []


class TestTracer:
    def test_is_removed_afterwards(self) -> None:
        traced(in_a_library)
        assert sys.gettrace() is None
        assert sys.getprofile() is None

    def test_is_removed_between_samples(self) -> None:
        lines = HotLines()
        lines.trace(costly)
        assert sys.gettrace() is None

    @pytest.mark.parametrize("earlier", [0, 2], ids=["traced", "profiled"])
    def test_is_removed_after_an_error(self, earlier: int) -> None:
        def fails() -> None:
            raise OSError("disk on fire")

        lines = HotLines(earlier)
        for _ in range(earlier):
            lines.trace(costly)
        with pytest.raises(OSError, match="disk on fire"):
            lines.trace(fails)
        assert sys.gettrace() is None
        assert sys.getprofile() is None

    @pytest.mark.parametrize("get, put", [(sys.gettrace, sys.settrace), (sys.getprofile, sys.setprofile)])
    def test_does_not_replace_a_debugger(self, get: Any, put: Any) -> None:
        def theirs(*_: Any) -> None:
            return None

        before = get()
        put(theirs)
        try:
            lines = HotLines()
            assert lines.complete
            assert get() is theirs
        finally:
            put(before)
        assert lines.figures() == []
