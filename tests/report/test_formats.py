"""A format is one writer and one entry in the table: every kind of report can then be written in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.sweep import Run, Sweep
from pipediag.report import RENDERERS, Subject, check_output, write, written_by
from pipediag.report.document import Block, Section, Table, Title

from ..made import climbing, inside, make


def outline(blocks: Iterable[Block]) -> str:
    """Titles, and the number of rows of each table."""

    def lines(found: Iterable[Block]) -> Iterator[str]:
        for block in found:
            match block:
                case Title(headlines):
                    yield " / ".join(headlines)
                case Section(title, inner):
                    yield from (title, *lines(inner))
                case Table(rows=rows):
                    yield f"table of {len(rows)} rows"

    return "\n".join(lines(blocks))


FAST, SLOW = (diagnose_session(make(climbing(raw=cost), inside=inside(cost))) for cost in (10.0, 30.0))
RUNS = [Run((("--size", size),), ["train.py"], FAST) for size in ("1", "2")]


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (SLOW, ["BOTTLENECK: TRANSFORM", "table of 7 rows", "inside a worker, ms per sample"]),
        (audit(SLOW), ["AUDIT: 2 failed, 1 passed, 6 unmeasurable", "what would help"]),
        (
            compare(SLOW, FAST),
            ["BOTTLENECK: TRANSFORM / BOTTLENECK: TRANSFORM", "steps a second", "table of 7 rows", "ms of a step"],
        ),
        (Sweep("train.py", 2, RUNS), ["SWEEP of train.py: 2 of 2 measured", "table of 2 rows"]),
    ],
    ids=["diagnosis", "audit", "comparison", "sweep"],
)
def test_each_kind_of_report_in_a_new_format(
    subject: Subject, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RENDERERS, ".outline", written_by(outline))
    target = tmp_path / "x.outline"
    check_output(str(target))
    write(subject, str(target))
    assert target.read_text().splitlines()[: len(expected)] == expected
