"""The cells and lines that every report shows."""

from __future__ import annotations

from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import RENDERERS, evidence
from pipediag.report import diagnosis as report
from pipediag.report.document import Title
from pipediag.report.evidence import TITLE, account_rows
from pipediag.session import Account, Inside, Session, Startup

from ..golden import agrees
from ..made import FLAT, blocks, but, climbing, cut, inside, lacking, make, waits, without
from .test_reports import GOLDEN


def exact(ladder: dict[str, float], **more: Any) -> Session:
    return make(ladder, noise=0.0, **more)


def chained(*costs: float, cuts: tuple[int, ...] = (), names: tuple[str, ...] = ()) -> Session:
    session = exact(cut(climbing(raw=sum(costs)), costs, *cuts), inside=inside(*costs))
    return but(session, **{f"links__{number}__name": name for number, name in enumerate(names)})


def by_time(*costs: float) -> Session:
    """A loop whose transforms are costed by a worker's time, without a single cut."""
    ladder = climbing(raw=sum(costs))
    seen = waits(sum(costs) + 0.6, worker_ms=10 * sum(costs) + 24, collate_ms=0.0)
    return exact(ladder, evidence=seen, inside=inside(*costs))


def accounted(counted: bool = True) -> Session:
    ladder = climbing(raw=30.0)
    accounts = {
        **{rung: Account(cpu_ms=0.9 * ms, other_ms=0.1 * ms) for rung, ms in ladder.items()},
        "baseline": Account(cpu_ms=45.0, queue_ms=4.0, waits_ms=30.0, other_ms=2.2),
    }
    return exact(ladder, accounts=accounts if counted else {})


LONG = ("RandomResizedCrop", "RandomHorizontalFlip", "ColorJitter", "RandomGrayscale", "Last")
OBSERVED = make({}, observed=blocks(9, 100.0, 40.0, 250.0))
#: Sessions of which golden/rows.txt shows the rows and lines.
SHOWN: dict[str, Session] = {
    "a row for each cut": chained(5.0, 20.0, 10.0),
    "a row for each link, by a worker's time": by_time(10.0, 20.0),
    "cheap links share one, and are not one thing to do without": by_time(0.1, 20.0, 0.1, 0.1),
    "one cheap link has its own": by_time(0.1, 20.0),
    "a range by its links": chained(5.0, 5.0, 20.0, cuts=(2,)),
    "a long range by its ends": chained(5.0, 5.0, 5.0, 5.0, 5.0, cuts=(4,), names=LONG),
    "a short range of many": chained(*[4.0] * 8, cuts=(7,)),
    "the links of a chain that was not cut": exact(climbing(raw=30.0), inside=inside(10.0, 20.0, unsplit="because")),
    "no links known": exact(climbing(raw=30.0)),
    "stages covered beside": exact(without(climbing(raw=30.0), "raw"), inside=inside(10.0, 20.0)),
    "rates are measured under a rung, or predicted and marked": exact(climbing(warm=30.0)),
    "some rungs": exact({"device": 50.0, "worker": 62.5, "baseline": 100.0}),
    "only observed": OBSERVED,
    "nothing": make({}),
    "one rung": exact({"baseline": 100.0}),
    "no baseline": exact({"device": 50.0}),
    "without cached batches the ceiling is unknown": exact({"raw": 80.0, "baseline": 90.0}),
    "little code between the links": exact(FLAT, inside=inside(5.0, 3.0, between=0.1)),
    "more code between the links": exact(FLAT, inside=inside(5.0, 3.0, between=0.5)),
    "wall and CPU": exact(FLAT, inside=but(inside(5.0, load=5.0), links__0__cost__cpu_ms=19.5)),
    "nobody looked inside": exact(FLAT, inside=Inside()),
    "no sample was timed": exact(FLAT, inside=inside(5.0, samples=0)),
    "no loader is known": but(exact(FLAT, inside=inside(5.0)), loader=None),
    "why a rung was not measured": exact(
        without(climbing(), "raw"), unavailable={"raw": "not separable: why"}, absent=["supply"]
    ),
    "a rung that was not reached": lacking(exact(climbing()), "warm"),
    "why a link was not opened": exact(
        climbing(raw=30.0), inside=but(inside(10.0, 20.0), links__1__whole="its parts run at random")
    ),
    "a cut that could not be measured": exact(
        climbing(raw=30.0), inside=inside(10.0, 20.0), unavailable={"transform:1": "not separable: replaying failed"}
    ),
    "starts": exact(FLAT, startups=[0.25, 0.5, 0.75]),
    "starts in parts": exact(FLAT, startups=[Startup(2.0, launch=0.5, ready=1.5), Startup(0.1, renewed=True)]),
    "kept workers only": exact(FLAT, startups=[Startup(0.1, renewed=True)]),
    "the training thread's account": accounted(),
    "the kernel does not count": accounted(False),
}  # fmt: skip


def test_what_is_shown() -> None:
    lines = []
    for name, session in SHOWN.items():
        found = diagnose_session(session)
        rows: list[tuple[str, ...]] = [row[:-1] for row in report.stage_rows(found)]
        rows += evidence.worker_rows(found)
        rows += [(row.rung, f"{row.step:.4g}", *(f"{ms:.3g}" for ms in row.parts)) for row in account_rows(found)]
        told = [report.step_line(found), report.rung_line(found), *map(" | ".join, rows)]
        told += [*(f"not measured: {line}" for line in evidence.not_measured(found)), *evidence.evidence_lines(found)]
        lines += [name, *(f"    {line}".rstrip() for line in told if line), ""]
    agrees(GOLDEN / "rows.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("session", "note"), [(OBSERVED, "seen in 36 steps"), (make(climbing(raw=30.0)), "certain"), (Session(), "")]
)
def test_how_surely_it_is_known(session: Session, note: str) -> None:
    (title,) = (one for one in report.blocks(diagnose_session(session)) if isinstance(one, Title))
    assert title.note.rpartition(", ")[2] == note


def test_bars_are_shares_of_the_step() -> None:
    rows = report.stage_rows(diagnose_session(SHOWN["a row for each cut"]))[4:7]
    assert [row.bar for row in rows] == pytest.approx([10 / 86, 20 / 86, 5 / 86])


def test_the_parts_of_an_account_sum_to_the_step() -> None:
    rows = account_rows(diagnose_session(accounted()))
    assert all(row.step == pytest.approx(sum(row.parts)) for row in rows) and len(rows) == 4


@pytest.mark.parametrize("ending", [".txt", ".md", ".html"])
def test_every_format_shows_it(ending: str) -> None:
    text = RENDERERS[ending](diagnose_session(accounted()))
    assert TITLE[1:] in text and "waits for a core" in text and "81.2" in text


def test_it_is_said_that_the_kernel_does_not_count() -> None:
    text = RENDERERS[".txt"](diagnose_session(accounted(False)))
    assert TITLE not in text and "the kernel does not count it" in text
