"""The account of a step in reports: its parts sum to the step, and its absence is said."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import RENDERERS
from pipediag.report.evidence import TITLE, account_rows
from pipediag.session import Account, Session

from ..made import climbing, make


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
