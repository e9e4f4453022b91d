"""The cells that every report shows."""

from __future__ import annotations

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.report import RENDERERS, evidence
from pipediag.report import diagnosis as report
from pipediag.report.document import Title
from pipediag.report.evidence import TITLE, account_rows
from pipediag.session import Account, Inside, Session, Startup

from ..made import FLAT, blocks, climbing, cut, inside, make, waits, without


def chained(*costs: float, cuts: tuple[int, ...] = (), names: tuple[str, ...] = ()) -> Diagnosis:
    session = make(cut(climbing(raw=sum(costs)), costs, *cuts), noise=0.0, inside=inside(*costs))
    for link, name in zip(session.links, names, strict=False):
        link.name = name
    return diagnose_session(session)


class TestStageRows:
    def stages(self, diagnosis: Diagnosis) -> list[str]:
        return [row.stage for row in report.stage_rows(diagnosis)]

    def test_a_row_for_each_cut(self) -> None:
        found = report.stage_rows(chained(5.0, 20.0, 10.0))[4:7]
        assert [(row.stage, row.cost, row.share) for row in found] == [
            ("transforms: C", "10", "12 %"),
            ("transforms: B", "20", "23 %"),
            ("transforms: A", "5", "6 %"),
        ]
        assert [row.bar for row in found] == pytest.approx([10 / 86, 20 / 86, 5 / 86])

    def test_a_row_for_each_link_by_a_workers_time(self) -> None:
        """Without a single cut."""
        session = make(climbing(raw=30.0), noise=0.0, evidence=waits(30.6, worker_ms=324.0), inside=inside(10.0, 20.0))
        assert self.stages(diagnose_session(session)) == [
            "the model's own step", "copying to the device", "hand-off", "transforms: B", "transforms: A",
            "loading (with collating)",
        ]  # fmt: skip

    def test_cheap_links_share_one(self) -> None:
        costs = (0.1, 20.0, 0.1, 0.1)
        session = make(climbing(raw=20.0), noise=0.0, evidence=waits(20.6, worker_ms=220.0), inside=inside(*costs))
        found = {row.stage: row for row in report.stage_rows(diagnose_session(session))}
        assert {"transforms: B", "transforms: A, C, D"} <= {*found}
        assert found["transforms: A, C, D"].cost == "0.277"
        assert found["transforms: A, C, D"].without == "", "they are not one thing to do without"

    def test_one_cheap_link_has_its_own(self) -> None:
        session = make(climbing(raw=20.0), noise=0.0, evidence=waits(20.6, worker_ms=220.0), inside=inside(0.1, 20.0))
        assert {"transforms: A", "transforms: B"} <= {*self.stages(diagnose_session(session))}

    def test_a_range_by_its_links(self) -> None:
        assert "transforms: A, B" in self.stages(chained(5.0, 5.0, 20.0, cuts=(2,)))

    def test_a_long_range_by_its_ends(self) -> None:
        names = ("RandomResizedCrop", "RandomHorizontalFlip", "ColorJitter", "RandomGrayscale", "Last")
        found = self.stages(chained(5.0, 5.0, 5.0, 5.0, 5.0, cuts=(4,), names=names))
        assert "transforms: RandomResizedCrop and 3 more" in found
        assert "transforms: Last" in found

    def test_a_short_range_of_many(self) -> None:
        assert "transforms: A, B, C, D, E, F, G" in self.stages(chained(*[4.0] * 8, cuts=(7,)))

    def test_the_links_of_a_chain_that_was_not_cut(self) -> None:
        diagnosis = diagnose_session(make(climbing(raw=30.0), inside=inside(10.0, 20.0)))
        assert "transforms: A, B" in self.stages(diagnosis)

    def test_no_links_known(self) -> None:
        assert "transforms" in self.stages(diagnose_session(make(climbing(raw=30.0))))

    def test_stages_covered_beside(self) -> None:
        session = make(without(climbing(raw=30.0), "raw"), inside=inside(10.0, 20.0))
        assert "loading (with transforms)" in self.stages(diagnose_session(session))

    def test_without_it(self) -> None:
        """Rates are measured under a rung, or predicted and marked; the model has none, as training needs it."""
        found = {
            row.stage: row.without for row in report.stage_rows(diagnose_session(make(climbing(warm=30.0), noise=0.0)))
        }
        assert found == {
            "the model's own step": "", "copying to the device": "~12.3", "hand-off": "~12.3", "collating": "~12.4",
            "transforms": "~12.4", "loading": "19.7", "reading from storage": "~12.4",
        }  # fmt: skip


class TestLines:
    """What stands above and below the table."""

    def observed(self) -> Diagnosis:
        return diagnose_session(make({}, observed=blocks(9, 100.0, 40.0, 250.0)))

    def test_neither_where_the_loop_was_only_observed(self) -> None:
        assert report.step_line(self.observed()) == report.rung_line(self.observed()) == ""

    @pytest.mark.parametrize("ladder", [{}, {"baseline": 100.0}, {"device": 50.0}])
    def test_nor_where_nothing_is_to_be_compared(self, ladder: dict[str, float]) -> None:
        assert report.step_line(diagnose_session(make(ladder))) == ""

    def test_without_cached_batches_the_ceiling_is_unknown(self) -> None:
        """The fastest rung there is still holds the transforms."""
        assert report.step_line(diagnose_session(make({"raw": 80.0, "baseline": 90.0}))) == ""

    def test_how_surely_it_is_known(self) -> None:
        proven = diagnose_session(make(climbing(raw=30.0)))
        notes = [
            title.note
            for one in (self.observed(), proven, diagnose_session(Session()))
            for title in report.blocks(one)
            if isinstance(title, Title)
        ]
        assert [note.rpartition(", ")[2] for note in notes] == ["seen in 36 steps", "certain", ""]


class TestWorkerRows:
    def rows(self, found: Inside | None) -> list[tuple[str, ...]]:
        return [*evidence.worker_rows(diagnose_session(make(FLAT, inside=found)))]

    @pytest.mark.parametrize("between, shown", [(0.1, False), (0.5, True)])
    def test_the_code_between_them_where_it_takes_some_time(self, between: float, shown: bool) -> None:
        names = [row[0] for row in self.rows(inside(5.0, 3.0, between=between))]
        assert names == ["loading", "A", "B"] + ["(between them)"] * shown

    def test_wall_and_cpu(self) -> None:
        found = inside(5.0, load=5.0)
        found.links[0].cost.cpu_ms = 19.5
        assert self.rows(found)[1] == ("A", "5", "19.5", "50 %", "aug.py:10")

    @pytest.mark.parametrize("found", [None, Inside(), inside(5.0, samples=0)])
    def test_nothing_looked_into(self, found: Inside | None) -> None:
        assert self.rows(found) == []

    def test_without_a_loader(self) -> None:
        session = make(FLAT, inside=inside(5.0))
        session.loader = None
        assert evidence.worker_rows(diagnose_session(session))[0][-1] == ""


class TestNotMeasured:
    def lines(self, session: Session) -> list[str]:
        found = evidence.not_measured(diagnose_session(session))
        return [line for line in found if "account" not in line]

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
        found = evidence.evidence_lines(diagnose_session(session))
        return [line for line in found if line.startswith(beginning)]

    def test_startup(self) -> None:
        session = make(FLAT, startups=[0.25, 0.5, 0.75])
        assert self.lines(session, "from iter()") == ["from iter() to the first batch: 0.5 s"]

    def test_startup_in_parts(self) -> None:
        session = make(FLAT, startups=[Startup(2.0, launch=0.5, ready=1.5), Startup(0.1, renewed=True)])
        assert self.lines(session, "from iter()") == [
            "from iter() to the first batch: 2 s (workers launched 0.5 s, ready 1.5 s)"
        ]
        assert self.lines(session, "in later epochs") == ["in later epochs, with the same workers: 0.1 s"]

    def test_kept_workers_only(self) -> None:
        session = make(FLAT, startups=[Startup(0.1, renewed=True)])
        assert self.lines(session, "from iter()") == []


def session(*, counted: bool = True) -> Session:
    ladder = climbing(raw=30.0)
    accounts = {
        **{rung: Account(cpu_ms=0.9 * ms, other_ms=0.1 * ms) for rung, ms in ladder.items()},
        "baseline": Account(cpu_ms=45.0, queue_ms=4.0, waits_ms=30.0, other_ms=2.2),
    }
    return make(ladder, noise=0.0, accounts=accounts if counted else {})


def test_the_parts_sum_to_the_step() -> None:
    rows = {row.rung: row for row in account_rows(diagnose_session(session()))}
    assert list(rows) == ["device", "host", "worker", "baseline"]
    assert rows["baseline"].parts == (45.0, 4.0, 30.0, 2.2)
    assert all(row.step == pytest.approx(sum(row.parts)) for row in rows.values())


@pytest.mark.parametrize("ending", [".txt", ".md", ".html"])
def test_every_format_shows_it(ending: str) -> None:
    text = RENDERERS[ending](diagnose_session(session()))
    assert TITLE[1:] in text and "waits for a core" in text and "81.2" in text


def test_it_is_said_that_the_kernel_does_not_count() -> None:
    text = RENDERERS[".txt"](diagnose_session(session(counted=False)))
    assert TITLE not in text and "the kernel does not count it" in text
