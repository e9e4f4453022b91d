"""The marker: transparent outside an analysis, recorded inside one."""

from __future__ import annotations

from typing import Any

import pytest

import pipediag
from pipediag import marker
from pipediag.usercode.spying import Recorder, spied


def triple(x: int, *, plus: int = 0) -> int:
    """Three times."""
    return 3 * x + plus


def test_transparent_outside_an_analysis() -> None:
    marked = pipediag.stage("augment")(triple)
    assert marked(2, plus=1) == 7
    assert (marked.__name__, marked.__doc__) == ("triple", "Three times.")


def test_decorator() -> None:
    @pipediag.stage("augment")
    def prepare(x: list[int]) -> list[int]:
        return [*x, 1]

    assert prepare([0]) == [0, 1]
    recorder = Recorder()
    with spied([], recorder):
        prepare([0])
    (seen,) = recorder.seen
    assert (seen.call.name, seen.call.args, seen.result) == ("augment", ([0],), [0, 1])


def test_decorator_of_a_method() -> None:
    class Owner:
        @pipediag.stage("augment")
        def prepare(self, x: int) -> int:
            return x + 1

    assert Owner().prepare(1) == 2


def test_exceptions_pass_through() -> None:
    def fails() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        pipediag.stage("s")(fails)()
    with pytest.raises(KeyError), spied([], Recorder()):
        pipediag.stage("s")(fails)()
    assert marker.recorder is None


def test_the_recorder_gets_the_call() -> None:
    class Noting:
        def call(self, name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return name, fn, args, kwargs

    marker.recorder = Noting()
    try:
        assert pipediag.stage("s")(triple)(2, plus=1) == ("s", triple, (2,), {"plus": 1})
    finally:
        marker.recorder = None
    assert pipediag.stage("s")(triple)(2, plus=1) == 7


def test_only_the_outermost_mark_counts() -> None:
    inner = pipediag.stage("inner")(triple)
    outer = pipediag.stage("outer")(lambda x: [inner(x)])
    recorder = Recorder()
    with spied([], recorder):
        assert outer(2) == [6]
    assert [one.call.name for one in recorder.seen] == ["outer"]


def test_nested_analyses_restore_each_other() -> None:
    first, second = Recorder(), Recorder()
    with spied([], first):
        with spied([], second):
            assert marker.recorder is second
        assert marker.recorder is first
