"""A format is one writer and one entry in the table: every kind of report can then be written in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.sweep import Run, Sweep
from pipediag.errors import UsageError
from pipediag.report import RENDERERS, Subject, check_output, ending_of, write, written_by
from pipediag.report.document import Block, Section, Table, Title

from ..made import climbing, inside, make


def outline(blocks: Iterable[Block]) -> str:
    """Titles, and the number of rows of each table."""

    def lines(found: Iterable[Block]) -> Iterator[str]:
        for block in found:
            match block:
                case Title(headline):
                    yield headline
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
        (
            SLOW,
            ["DATA COSTS YOUR TRAINING 38 % OF EVERY STEP", "table of 7 rows", "inside a worker, ms per sample"],
        ),
        (audit(SLOW), ["THE AUDIT FAILED: 2 of 9 checks failed, 6 not measured, 1 passed", "what would help"]),
        (
            compare(SLOW, FAST),
            [
                "THE LOOP IS FASTER: 1.33x the steps a second",
                "steps a second",
                "table of 7 rows",
                "a worker's own ms for a sample",
            ],
        ),
        (
            Sweep("train.py", 2, RUNS),
            ["2 OF 2 RUNS MEASURED: --size=1 makes the most samples a second", "table of 2 rows"],
        ),
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


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a.json", ".json"), ("a.json.gz", ".json.gz"), ("a.b.html", ".html"), ("a.gz", ""), (".json", ""), ("json", "")],
)
def test_the_longest_ending_wins(name: str, ending: str) -> None:
    assert ending_of(f"/some.md/{name}") == ending


@pytest.mark.parametrize(("ending", "module", "data"), [(".html", "page", "<p>"), (".json.gz", "trace", b"\x1f\x8b")])
def test_modules_are_imported_when_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, module: str, data: str | bytes
) -> None:
    given: list[Subject] = []
    fake = SimpleNamespace(write=lambda subject: given.append(subject) or data)
    monkeypatch.setitem(__import__("sys").modules, f"pipediag.report.{module}", fake)
    file = tmp_path / f"x{ending}"
    write(SLOW, str(file))
    assert given == [SLOW]
    assert file.read_bytes() == (data if isinstance(data, bytes) else data.encode())


def test_a_timeline_shows_a_diagnosis_only(tmp_path: Path) -> None:
    check_output(str(tmp_path / "x.json.gz"))
    with pytest.raises(UsageError, match="timeline of one run"):
        check_output(str(tmp_path / "x.json.gz"), of_a_diagnosis=False)
    check_output("-")
