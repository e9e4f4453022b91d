"""Which lines are left out while the loop runs, and what is made of that."""

from __future__ import annotations

from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.stopping import next_round
from pipediag.report.evidence import not_measured
from pipediag.session import HotLine, Rung, Session, Window, is_of_ladder, is_rung, left_out, ordered, received

from ..made import climbing, inside, make, waits

FILTER = HotLine("data.py:5", "x = median_filter(x)", 0.6, "median_filter", "Photos.__getitem__", "load")
NOISE = HotLine("data.py:21", "x += noise", 0.3, "x += noise", "noisy", "load")
MORE = HotLine("data.py:22", "x *= noise", 0.05, "x *= noise", "noisy", "load")
STACK = HotLine("data.py:61", "torch.stack(batch)", 1.0, "torch.stack", "pad", "collate")
LOADING = dict(climbing(warm=50.0), baseline=101.0)


def session(
    *lines: HotLine, ladder: Any = LOADING, collate_ms: float = 0.0, links: int = 0, wait: float = 50.0, **more: Any
) -> Session:
    """A loop that waits for its workers, whose time is that of the lines."""
    found = inside(*[1.0] * links, load=10.0, lines=list(lines), looks=100)
    seen = waits(wait, worker_ms=200.0, collate_ms=collate_ms)
    no_raw = {} if links else {"raw": "not separable: no transform was found"}
    ladder = {name: ms for name, ms in ladder.items() if name not in no_raw}
    return make(ladder, evidence=seen, inside=found, unavailable={**no_raw, **more.pop("unavailable", {})}, **more)


def without(found: Session, rung: str, ms: float, worker_ms: float, rounds: int = 5) -> Session:
    """The session with windows of ``rung``."""
    found.rungs[rung] = Rung(rung)
    for round_ in range(rounds):
        seen = {"worker_ms": worker_ms, "wait_ms": 1.0}
        found.windows.append(Window(rung, round_, 10, ms / 100, 10, evidence=seen))
    return found


def asked(found: Session) -> list[str]:
    return [name for name in next_round(found) if left_out(name) is not None]


class TestAsked:
    def test_the_line_with_most_of_the_time(self) -> None:
        found = session(FILTER, NOISE)
        assert asked(found) == ["without:data.py:5"] and "baseline" in next_round(found)
        assert asked(without(found, "without:data.py:5", 70.0, 80.0, rounds=1)) == ["without:data.py:5"]
        assert asked(without(session(FILTER, NOISE), "without:data.py:5", 70.0, 80.0)) == []

    def test_the_function_around_a_line_that_cannot_be_left_out(self) -> None:
        refused = {"without:data.py:21": "it calls nothing"}
        assert asked(session(NOISE, MORE, unavailable=refused)) == ["without:data.py:21()"]
        refused["without:data.py:21()"] = "it changes what it is given"
        assert asked(session(NOISE, MORE, unavailable=refused)) == []

    def test_another_line_of_that_function_is_the_same_function(self) -> None:
        """Which of them takes the most may change from round to round."""
        refused = {"without:data.py:22": "it calls nothing"}
        found = without(session(MORE, NOISE, unavailable=refused), "without:data.py:21()", 70.0, 80.0, rounds=1)
        assert asked(found) == ["without:data.py:21"], "the line itself first"
        found.rungs["without:data.py:21"] = Rung("without:data.py:21", False, "it calls nothing")
        assert asked(found) == ["without:data.py:21()"]

    def test_what_makes_whole_samples_is_not_left_out(self) -> None:
        assert asked(session(FILTER, unavailable={"without:data.py:5": "it reads on"})) == []
        found = session(STACK, ladder=dict(climbing(sample=50.0)), collate_ms=190.0)
        assert asked(found) == ["without:data.py:61"]
        found.rungs["without:data.py:61"] = Rung("without:data.py:61", False, "it returns nothing")
        assert asked(found) == []

    def test_the_next_line_if_the_first_cannot_be_left_out(self) -> None:
        assert asked(session(FILTER, NOISE, unavailable={"without:data.py:5": "it reads on"})) == ["without:data.py:21"]

    @pytest.mark.parametrize("share", [0.2, 0.24])
    def test_no_line_of_little_time(self, share: float) -> None:
        small = HotLine("data.py:5", "f(x)", share, "f", "Photos.__getitem__", "load")
        others = [HotLine(f"data.py:{n}", "g(x)", 0.19, "g", "Photos.__getitem__", "load") for n in range(30, 34)]
        assert asked(session(small, *others)) == []

    def test_no_line_of_a_library(self) -> None:
        assert asked(session(HotLine("PIL/Image.py:5", "f(x)", 1.0, "f", "open", "load", library=True))) == []

    def test_not_where_transforms_are_known(self) -> None:
        assert asked(session(FILTER, links=1)) == []

    def test_not_of_a_stream(self) -> None:
        found = session(FILTER)
        assert found.loader is not None
        found.loader.iterable = True
        assert asked(found) == []

    def test_not_where_only_some_rungs_are_wanted(self) -> None:
        found = session(FILTER)
        del found.rungs["warm"]
        assert asked(found) == []

    def test_not_if_the_loop_does_not_starve(self) -> None:
        assert asked(session(FILTER, ladder=climbing(), wait=0.1)) == []


class TestFound:
    def piece(self, found: Session, where: str) -> Any:
        pieces = diagnose_session(found).to_dict()["waterfall"]
        return next(one for one in pieces if (one["culprit"] or {}).get("where") == where)

    def test_what_was_measured_is_said(self) -> None:
        guessed = self.piece(session(FILTER, NOISE), "data.py:5")["without"]
        assert not guessed["measured"]
        measured = self.piece(without(session(FILTER, NOISE), "without:data.py:5", 70.0, 80.0), "data.py:5")["without"]
        assert measured["measured"] and measured["steps_per_s"] == pytest.approx(1000 / 70, rel=0.02)
        other = self.piece(without(session(FILTER, NOISE), "without:data.py:5", 70.0, 80.0), "data.py:21")["without"]
        assert not other["measured"], "it was left out of the other line only"

    def test_never_slower_than_the_loop(self) -> None:
        found = self.piece(without(session(FILTER), "without:data.py:5", 170.0, 80.0), "data.py:5")["without"]
        assert found["steps_per_s"] == pytest.approx(1000 / 101, rel=0.02)

    def test_not_if_the_workers_time_is_still_there(self) -> None:
        """The line's calls were left out, but they are not what takes its time."""
        found = without(session(FILTER), "without:data.py:5", 98.0, 190.0)
        assert not self.piece(found, "data.py:5")["without"]["measured"]

    def test_not_beside_cold_storage(self) -> None:
        """The rung reads from the page cache: it leaves out more than the line."""
        found = session(FILTER)
        for window in found.windows:
            if window.rung == "warm":
                window.evidence.update(worker_ms=100.0)
            if window.rung == "baseline":
                window.evidence.update(worker_blocked=0.5)
        assert not self.piece(without(found, "without:data.py:5", 70.0, 40.0), "data.py:5")["without"]["measured"]

    def test_the_lines_of_a_function_come_together(self) -> None:
        found = self.piece(without(session(FILTER, NOISE, MORE), "without:data.py:22()", 80.0, 120.0), "data.py:21")
        assert found["culprit"]["name"] == "noisy" and found["without"]["measured"]
        apart = self.piece(session(FILTER, NOISE, MORE), "data.py:21")
        assert apart["culprit"]["name"] == "x += noise"
        assert found["ms"]["value"] == pytest.approx(apart["ms"]["value"] * 0.35 / 0.3, rel=0.01)

    def test_it_is_no_rung_of_the_ladder(self) -> None:
        found = without(session(FILTER), "without:data.py:5", 70.0, 80.0)
        assert "without:data.py:5" not in found.measured()
        result = diagnose_session(found)
        assert "without:data.py:5" not in result.ladder.rungs and not result.partial
        found.rungs["without:data.py:5"] = Rung("without:data.py:5")
        found.windows = [one for one in found.windows if left_out(one.rung) is None]
        assert not diagnose_session(found).partial, "the answer is there without it"

    def test_what_cannot_be_proven_is_said(self) -> None:
        refused = {"without:data.py:5": "median_filter changes what it is given", "without:data.py:21()": "it calls"}
        told = not_measured(diagnose_session(session(FILTER, unavailable=refused)))
        assert "data.py:5: timed, not proven: median_filter changes what it is given" in told
        assert "data.py:21: timed, not proven: it calls" in told

    def test_survives_a_file(self) -> None:
        found = without(session(FILTER), "without:data.py:5", 70.0, 80.0)
        assert Session.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("name", ["without:data.py:5", "without:a b/ü.py:12()", "without:In[3]:7"])
def test_names(name: str) -> None:
    assert is_rung(name) and not is_of_ladder(name)
    assert ordered([name, "baseline", "supply"]) == ["baseline", "supply", name]
    assert "whose results are cached" in received(name)


@pytest.mark.parametrize("name", ["without:", "without:data.py", "without:data.py:", "without:data.py:x", "without:()"])
def test_no_names(name: str) -> None:
    assert left_out(name) is None and not is_rung(name)


def test_a_name_that_is_too_long() -> None:
    assert left_out(f"without:{'ü' * 116}.py:1") is not None
    assert left_out(f"without:{'ü' * 130}.py:1") is None
