"""Which lines take the time: looks at a thread that waits at known lines, and the thread that looks."""

from __future__ import annotations

import contextlib
import dis
import gc
import linecache
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipediag.ladder.probes import hotlines
from pipediag.ladder.probes.hotlines import LOOKS, HotLines
from pipediag.session import HotLine
from pipediag.usercode.places import short

HERE = short(__file__)
GATE = threading.Event()


def makes(sample: Callable[[], Any]) -> Any:
    """Stand for the function of pipediag's that calls the dataset's code."""
    return sample()


def collates(samples: Callable[[], Any]) -> Any:
    """Stand for the function of pipediag's that calls the collate function."""
    return samples()


def plain() -> None:
    GATE.wait()  # in a function


def calls_plain() -> None:
    plain()  # not the line itself


def yields() -> Iterator[None]:
    GATE.wait()  # in a generator
    yield


def transform() -> None:
    plain()


def on_two_lines() -> None:
    sorted(
        [1, 2],
        key=lambda _: GATE.wait() and 1,  # in a lambda
    )


def line_of(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    (line,) = (number for number, found in enumerate(source, 1) if found.endswith(text) and '"' not in found[-20:])
    return line


def function(source: str, file: str) -> Any:
    """Return the function ``f`` of a source text, as if it stood in a file."""
    scope: dict[str, Any] = {}
    exec(compile(source, file, "exec"), scope)
    return scope["f"]


def looked_at(*samples: tuple[Callable[[], Any], float]) -> HotLines:
    """Look once at each sample while it waits, for so many seconds."""
    lines = HotLines([makes.__code__])
    for sample, seconds in samples:
        look(lines, lambda sample=sample: makes(sample), seconds)
    return lines


def look(lines: HotLines, run: Callable[[], Any], seconds: float) -> None:
    GATE.clear()
    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 10
    while not GATE._cond._waiters and time.monotonic() < until:  # type: ignore[attr-defined]
        time.sleep(0.001)
    assert thread.ident is not None
    lines.look(thread.ident, seconds)
    GATE.set()
    thread.join()


class TestLines:
    def test_time_is_that_of_the_users_line_that_calls_a_library(self) -> None:
        (line,) = looked_at((plain, 1.0)).figures([])
        where = f"{HERE}:{line_of('# in a function')}"
        calls = {f"threading.{name}wait": 1.0 for name in ("Event.", "Condition.")}
        if sys.version_info < (3, 11):
            calls = {"threading.wait": 1.0}
        assert line == HotLine(where, "GATE.wait()  # in a function", 1.0, "GATE.wait", "plain", "load", False, calls)

    @pytest.mark.parametrize(
        "sample, text",
        [
            (calls_plain, "# in a function"),
            (lambda: next(yields()), "# in a generator"),
            (on_two_lines, "# in a lambda"),
        ],
    )
    def test_the_innermost_line_of_the_users(self, sample: Callable[[], Any], text: str) -> None:
        (line,) = looked_at((sample, 1.0)).figures([])
        assert line.where == f"{HERE}:{line_of(text)}"
        assert line.name == "GATE.wait"

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no columns")
    def test_a_line_is_named_by_the_call_that_takes_most(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether the time below a call is in one place or in several."""
        source = "def f(own, gate):\n    return own.a(gate), own.b(gate)\n"
        user = function(source, "data.py")
        monkeypatch.setitem(linecache.cache, "data.py", (1, None, source.splitlines(keepends=True), "data.py"))
        waits = [function(f"def f(gate):\n{space * ' '}gate.wait()", "/site-packages/y.py") for space in (1, 2)]
        later = function("def f(gate):\n  1\n  2\n  return gate.wait()", "/site-packages/z.py")
        calls = [(waits[0], bool, 4.0), (bool, waits[1], 3.0), (bool, later, 3.0)]
        samples = [(partial(user, SimpleNamespace(a=a, b=b), GATE), seconds) for a, b, seconds in calls]
        (line,) = looked_at(*samples).figures([])
        assert (line.name, line.share) == ("own.b", 1.0)

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="a function's begin has no instruction of its own")
    @pytest.mark.parametrize("callers, name", [("data.py", "found.append(g(x))"), ("/site-packages/y.py", "f")])
    def test_the_time_before_a_function_begins_is_its_callers(
        self, callers: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first moment at which code lets another thread run may be in the next function that it calls."""
        source = "def f(found, x):\n    x in found\n    found.append(g(x))\n"
        monkeypatch.setitem(linecache.cache, callers, (1, None, source.splitlines(keepends=True), callers))
        monkeypatch.setitem(linecache.cache, "g.py", (1, None, ["def f(x): pass\n"], "g.py"))
        g = function("def f(x): pass", "g.py")
        stack = [(g, "RESUME"), (function(source, callers), "CALL"), (makes, "CALL")]
        places = []
        for code, opname in ((one.__code__, opname) for one, opname in stack):
            at = next(one.offset for one in dis.get_instructions(code) if one.opname == opname)
            places.append((code, at, {}))
        monkeypatch.setattr(hotlines, "stack_of", lambda *_: places)
        lines = HotLines([makes.__code__])
        lines.look(1, 1.0)
        assert [line.name for line in lines.figures([])] == [name]

    def test_looks_go_on_while_the_lines_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines, real = looked_at((plain, 2.0)), hotlines._at_work

        def at_work(stack: Any) -> Any:
            lines._seconds[False, (len(lines._seconds),)] = 1.0
            return real(stack)

        monkeypatch.setattr(hotlines, "_at_work", at_work)
        assert lines.figures(())

    def test_shares_are_those_of_the_seconds(self) -> None:
        """A look that came late counts for all the time since the last."""
        lines = looked_at((plain, 1.0), (lambda: next(yields()), 2.0), (calls_plain, 5.0)).figures([])
        assert [(line.function, line.share) for line in lines] == [("plain", 0.75), ("yields", 0.25)]

    def test_lines_within_transforms_are_told_apart(self) -> None:
        lines = looked_at((plain, 1.0), (transform, 3.0)).figures([transform.__code__])
        assert [(line.stage, line.share) for line in lines] == [("transform", 0.75), ("load", 0.25)]
        assert len({line.where for line in lines}) == 1

    def test_a_librarys_line_if_none_of_the_users_runs(self) -> None:
        """As with a library's dataset class."""
        (line,) = looked_at((GATE.wait, 1.0)).figures([])
        assert line.library
        assert line.where.startswith("threading.py:")

    @pytest.mark.parametrize("caller", ["data.py", hotlines.__file__])
    @pytest.mark.parametrize("file", ["<frozen abc>", "<string>"])
    def test_what_the_interpreters_modules_do_is_their_callers(self, caller: str, file: str) -> None:
        """``isinstance`` runs code of ``<frozen abc>``; a dataclass has methods in ``<string>``."""
        lock, lines = threading.Lock(), HotLines([makes.__code__])
        lock.acquire()
        check = function("def f(lock):\n    lock.acquire()", file)
        calls = function("def f(check, lock):\n    check(lock)", caller)
        thread = threading.Thread(target=lambda: makes(lambda: calls(check, lock)))
        thread.start()
        assert thread.ident is not None
        until = time.monotonic() + 10
        while sys._current_frames()[thread.ident].f_code is not check.__code__ and time.monotonic() < until:
            time.sleep(0.001)
        lines.look(thread.ident, 1.0)
        lock.release()
        thread.join()
        assert [line.where for line in lines.figures([])] == ([] if caller == hotlines.__file__ else ["data.py:2"])

    def test_the_collate_functions_own_lines(self) -> None:
        lines = HotLines([makes.__code__], [collates.__code__])
        look(lines, lambda: makes(plain), 1.0)
        look(lines, lambda: collates(calls_plain), 1.0)
        look(lines, lambda: collates(GATE.wait), 3.0)  # torch's own collating has no line of the user's
        found = {line.stage: line.share for line in lines.figures([])}
        assert found == {"load": 1.0, "collate": 0.25}

    def test_the_last_of_very_many_come_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hotlines, "_LINES", 1)
        lines = looked_at((plain, 3.0), (lambda: next(yields()), 1.0)).figures([])
        assert [(line.where == "", line.share) for line in lines] == [(False, 0.75), (True, 0.25)]

    def test_contexts_of_pipediag_do_not_count(self) -> None:
        enters = function("def f(gate):\n    gate.wait()", contextlib.__file__)
        ours = function("def f(enters, gate):\n    enters(gate)", hotlines.__file__)
        assert looked_at((partial(ours, enters, GATE), 1.0)).looks == 0

    def test_what_the_users_code_holds_is_freed_at_once(self) -> None:
        """Also where the script has switched the collection of garbage off."""

        class Held:
            pass

        died: list[bool] = []

        def sample() -> None:
            held = Held()
            weakref.finalize(held, died.append, True)
            GATE.wait()

        gc.disable()
        try:
            assert looked_at((sample, 1.0)).looks == 1
            assert died == [True]
        finally:
            gc.enable()

    def test_other_code_than_the_datasets_does_not_count(self) -> None:
        lines = HotLines([makes.__code__])
        look(lines, plain, 1.0)
        lines.look(-1, 1.0)  # a thread that has ended
        assert (lines.looks, lines.figures([])) == (0, [])


class TestPace:
    @pytest.mark.parametrize(
        ("looks", "own", "elapsed", "affordable"),
        [
            (LOOKS - 1, 0.0, 0.0, True),
            (LOOKS, 0.0, 0.0, False),
            # costly looks wait for their share
            (0, 0.1, 0.1 / hotlines._SHARE - 1, False),
            (0, 0.1, 0.1 / hotlines._SHARE, True),
        ],
    )
    def test_another_look(self, looks: int, own: float, elapsed: float, affordable: bool) -> None:
        lines = HotLines([])
        lines.looks, lines.own = looks, own
        assert lines.affordable(elapsed) is affordable

    def test_the_pause_grows_with_the_cost_of_a_look(self) -> None:
        lines = HotLines([])
        assert lines._pause() == hotlines._PAUSE
        each = 2 * hotlines._PAUSE * hotlines._SHARE
        lines.looks, lines.own = 10, 10 * each
        assert lines._pause() == hotlines._PAUSE, "what may be spent in any case is spent at once"
        lines.looks = 1 + int(hotlines._ALLOWANCE / each)
        lines.own = lines.looks * each
        assert lines._pause() == pytest.approx(2 * hotlines._PAUSE)
        lines.own = 10.0
        assert lines._pause() == hotlines._LONGEST

    def test_there_is_news_if_there_are_twice_as_many(self) -> None:
        lines, told = HotLines([]), []
        for lines.looks in range(LOOKS + 1):
            if lines.news:
                told.append(lines.looks)
                lines.figures([])
        assert told == [8, 16, 32, 64, 128, 256, LOOKS]


class TestThread:
    def there(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("pipediag")]

    def test_finds_a_planted_line(self) -> None:
        def sample() -> None:
            sum(range(100))
            time.sleep(0.05)  # planted

        lines = HotLines([makes.__code__])
        until = time.monotonic() + 10
        while lines.looks < 3 and time.monotonic() < until:
            with lines.watching():
                assert self.there() == ["pipediag-lines"]
                makes(sample)
        lines.close()
        assert self.there() == []
        assert lines.figures([])[0].where == f"{HERE}:{line_of('# planted')}"
        assert 0 < lines.own == lines.taken()
        assert lines.taken() == 0

    def test_ends_when_there_is_nothing_to_look_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hotlines, "_IDLE", 0.01)
        lines = HotLines([makes.__code__])
        for _ in range(2):  # it begins again
            with lines.watching():
                (thread,) = (one for one in threading.enumerate() if one.name == "pipediag-lines")
            thread.join(10)
            assert self.there() == []

    def test_an_error_leaves_nothing_behind(self) -> None:
        before, lines = sys.getswitchinterval(), HotLines([])
        with pytest.raises(OSError, match="disk on fire"), lines.watching():
            raise OSError("disk on fire")
        lines.close()
        assert sys.getswitchinterval() == before
        assert self.there() == []
        HotLines([]).close()  # what never began
