"""The cells that every report shows."""

from __future__ import annotations

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.report import rows
from pipediag.report.rows import WorkerRow
from pipediag.session import HotLine, Inside, Session, Startup

from .made import FLAT, climbing, cut, inside, make, without


def chained(*costs: float, cuts: tuple[int, ...] = (), names: tuple[str, ...] = ()) -> Diagnosis:
    session = make(cut(climbing(raw=sum(costs)), costs, *cuts), noise=0.0, inside=inside(*costs))
    for link, name in zip(session.links, names, strict=False):
        link.name = name
    return diagnose_session(session)


class TestLadderRows:
    def stages(self, diagnosis: Diagnosis) -> dict[str, str]:
        return {row.rung: row.stage for row in rows.ladder_rows(diagnosis)}

    def test_a_row_for_each_cut(self) -> None:
        found = rows.ladder_rows(chained(5.0, 20.0, 10.0))[4:7]
        assert [(row.rung, row.stage, row.cost) for row in found] == [
            ("transform:2", "transform: C", "+10"),
            ("transform:1", "transform: B", "+20"),
            ("raw", "transform: A", "+5"),
        ]
        assert [row.share for row in found] == ["12 %", "23 %", "6 %"]

    def test_a_range_by_its_links(self) -> None:
        assert self.stages(chained(5.0, 5.0, 20.0, cuts=(2,)))["raw"] == "transform: A, B"

    def test_a_long_range_by_its_ends(self) -> None:
        names = ("RandomResizedCrop", "RandomHorizontalFlip", "ColorJitter", "RandomGrayscale", "Last")
        found = self.stages(chained(5.0, 5.0, 5.0, 5.0, 5.0, cuts=(4,), names=names))
        assert found["raw"] == "transform: RandomResizedCrop and 3 more"
        assert found["transform:4"] == "transform: Last"

    def test_a_short_range_of_many(self) -> None:
        assert self.stages(chained(*[4.0] * 8, cuts=(7,)))["raw"] == "transform: A, B, C, D, E, F, G"

    def test_the_links_of_a_chain_that_was_not_cut(self) -> None:
        diagnosis = diagnose_session(make(climbing(raw=30.0), inside=inside(10.0, 20.0)))
        assert self.stages(diagnosis)["raw"] == "transform: A, B"

    def test_no_links_known(self) -> None:
        assert self.stages(diagnose_session(make(climbing(raw=30.0))))["raw"] == "transform"

    def test_stages_covered_beside(self) -> None:
        session = make(without(climbing(raw=30.0), "raw"), inside=inside(10.0, 20.0))
        assert self.stages(diagnose_session(session))["warm"] == "load (with transform)"

    def test_what_is_left_over_is_last(self) -> None:
        assert rows.ladder_rows(chained(5.0, 20.0))[-1].stage == "residual"


class TestWorkerRows:
    def rows(self, found: Inside | None) -> list[WorkerRow]:
        return rows.worker_rows(diagnose_session(make(FLAT, inside=found)))

    def test_loading_then_the_transforms_in_their_order(self) -> None:
        assert self.rows(inside(5.0, 12.5, load=7.5)) == [
            WorkerRow("load", "data.py:5", "7.5", "7.5", "30 %"),
            WorkerRow("A", "aug.py:10", "5", "5", "20 %"),
            WorkerRow("B", "aug.py:20", "12.5", "12.5", "50 %"),
        ]

    @pytest.mark.parametrize("between, shown", [(0.1, False), (0.5, True)])
    def test_the_code_between_them_where_it_takes_some_time(self, between: float, shown: bool) -> None:
        names = [row.name for row in self.rows(inside(5.0, 3.0, between=between))]
        assert names == ["load", "A", "B"] + ["(between them)"] * shown

    def test_wall_and_cpu(self) -> None:
        found = inside(5.0, load=5.0)
        found.links[0].cost.cpu_ms = 19.5
        assert self.rows(found)[1] == WorkerRow("A", "aug.py:10", "5", "19.5", "50 %")

    @pytest.mark.parametrize("found", [None, Inside(), inside(5.0, samples=0)])
    def test_nothing_looked_into(self, found: Inside | None) -> None:
        assert self.rows(found) == []

    def test_without_a_loader(self) -> None:
        session = make(FLAT, inside=inside(5.0))
        session.loader = None
        assert rows.worker_rows(diagnose_session(session))[0].where == ""


class TestHotLines:
    def test_line_by_line(self) -> None:
        lines = [HotLine("aug.py:34", "x = blur(x)", 0.581), HotLine("data.py:9", "", 0.2)]
        diagnosis = diagnose_session(make(FLAT, inside=inside(5.0, lines=lines)))
        assert rows.hot_lines(diagnosis) == ["58 %  aug.py:34  x = blur(x)", "20 %  data.py:9"]

    def test_a_function_without_a_place(self) -> None:
        diagnosis = diagnose_session(make(FLAT, inside=inside(5.0, lines=[HotLine("", "<built-in>", 0.5)])))
        assert rows.hot_lines(diagnosis) == ["50 %  <built-in>"]

    def test_none(self) -> None:
        assert rows.hot_lines(diagnose_session(make(FLAT))) == []


class TestNotMeasured:
    def lines(self, session: Session) -> list[str]:
        return rows.not_measured(diagnose_session(session))

    def test_rungs(self) -> None:
        session = make(without(climbing(), "raw"), unavailable={"raw": "not separable: why"}, absent=["supply"])
        assert self.lines(session) == ["raw: not separable: why"]

    def test_a_rung_that_was_not_reached(self) -> None:
        session = make(climbing())
        session.windows = [w for w in session.windows if w.rung != "warm"]
        assert self.lines(session) == ["warm: not reached"]

    def test_why_the_chain_was_not_cut(self) -> None:
        found = self.lines(make(climbing(raw=30.0), inside=inside(10.0, 20.0, unsplit="because")))
        assert found == ["single transforms: because"]

    def test_why_a_link_was_not_opened(self) -> None:
        found = inside(10.0, 20.0)
        found.links[1].whole = "it decides at random which of its parts run"
        assert self.lines(make(climbing(raw=30.0), inside=found)) == [
            "parts of B: it decides at random which of its parts run"
        ]

    def test_a_cut_that_could_not_be_measured(self) -> None:
        session = make(
            climbing(raw=30.0),
            inside=inside(10.0, 20.0),
            unavailable={"transform:1": "not separable: replaying failed"},
        )
        assert self.lines(session) == ["transform:1: not separable: replaying failed"]


class TestEvidence:
    def lines(self, session: Session, beginning: str) -> list[str]:
        found = rows.evidence_lines(diagnose_session(session))
        return [line for line in found if line.startswith(beginning)]

    def seen(self, **figures: float) -> Session:
        return make(climbing(raw=30.0), evidence={"baseline": figures}, environment={"cores": 8})

    def test_waiting(self) -> None:
        assert self.lines(self.seen(wait_ms=40.0), "the loop") == ["the loop waits 40 ms a step for batches"]

    def test_waiting_for_one_slow_batch(self) -> None:
        assert self.lines(self.seen(wait_ms=40.0, stalled_ms=12.5), "the loop") == [
            "the loop waits 40 ms a step for batches, 12.5 ms of it for one slow batch while later ones were ready"
        ]

    def test_cores(self) -> None:
        (line,) = self.lines(
            self.seen(process_cpu=0.9, cores_used=3.1, cores_busy=5.0), "cores in use: 5.0 of 8 usable"
        )
        assert line.endswith(", 3.1 of them by the script and its workers, 0.9 by the training process itself")

    def test_startup(self) -> None:
        session = make(FLAT, startups=[0.25, 0.5, 0.75])
        assert self.lines(session, "from iter()") == ["from iter() to the first batch: 0.5 s"]

    def test_startup_in_parts(self) -> None:
        session = make(FLAT, startups=[Startup(2.0, launch=0.5, ready=1.5), Startup(0.1, renewed=True)])
        assert self.lines(session, "from iter()") == [
            "from iter() to the first batch: 2 s (workers launched 0.5 s, ready 1.5 s)"
        ]
        assert self.lines(session, "the same") == ["the same in later epochs, with the workers kept: 0.1 s"]

    def test_kept_workers_only(self) -> None:
        session = make(FLAT, startups=[Startup(0.1, renewed=True)])
        assert self.lines(session, "from iter()") == []
