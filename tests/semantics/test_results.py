"""The results of a call: whole lines whatever happens, and their summary."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.semantics.results import Row, read, summary, write


def row(name: str, difference: str = "", acted: str = "", error: str = "") -> Row:
    return {"name": name, "difference": difference, "acted": acted.split(), "seconds": 2.0, "error": error, "said": {}}


def test_a_row_is_in_the_file_at_once_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with path.open("w") as file:
        for name in ("0000", "0001"):
            write(row(name), file)
            assert [one["name"] for one in read(path)][-1] == name
    path.write_text(path.read_text() + json.dumps(row("0002"))[:30])
    assert [*read(path)] == [row("0000"), row("0001")]


def test_the_summary_counts_what_happened() -> None:
    said = summary(
        [
            row("0000", acted="library moved planned plain-code recorded recorded-code"),
            row("0001", "run: line 3: calls 4 instead of 2", "library kept"),
            row("0002", acted="moved plain-code recorded with-pixels"),
            row("0003", acted="failed", error="ValueError: by mistake"),
            row("0004", acted="failed meant", error="ValueError: corrupt 5"),
        ]
    )
    assert said.splitlines() == [
        "5 scripts, 2.0 s each: 1 with a difference",
        "  0001  run: line 3: calls 4 instead of 2",
        "  moved 2; of 2 with transforms that can move: 1",
        "  batches recorded in 2, some made with pixels in 1; of 2 whose plain code calls the library, such calls were "
        "recorded in 1",
        "  kept 1, planned 1, equal within tolerances only 0",
        "  ending with an error plainly too: 2, where that is the point: 1",
        "    1 x error: ValueError: by mistake",
    ]


def test_no_results() -> None:
    assert summary([]).splitlines()[0] == "0 scripts, 0.0 s each: 0 with a difference"
