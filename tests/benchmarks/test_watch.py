from __future__ import annotations

import pytest

from benchmarks.watch.__main__ import judged
from benchmarks.watch.cases import CASES, Case

KNOWN = {case.name: case for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_tells_its_pace_on_the_lines_that_it_has(case: Case) -> None:
    compile(case.paced, case.script, "exec")
    assert len(case.paced.splitlines()) == len(case.source.splitlines())
    assert "pace" in case.paced


def test_a_culprit_is_right_at_the_lines_or_by_the_name_of_the_code() -> None:
    case = KNOWN["slow_collate"]
    line = next(n for n, text in enumerate(case.source.splitlines(), 1) if "around, words = [], []" in text)
    assert case.names("around.append", f"/tmp/slow_collate.py:{line}")
    assert not case.names("around.append", "/tmp/slow_collate.py:1")
    assert not case.names("around.append", f"/tmp/other.py:{line}")
    assert KNOWN["jitter_folder"].names("ColorJitter", "torchvision/transforms/transforms.py:1275")


@pytest.mark.parametrize(
    ("truth", "said", "share", "right"),
    [
        (0.5, "load", 0.45, True),
        (0.5, "load", 0.3, False),
        (0.5, "none", 0.45, False),
        (0.0, "inconclusive", 0.04, False),
    ],
)
def test_what_is_right(truth: float, said: str, share: float, right: bool) -> None:
    watch = {
        "bottleneck": said,
        "share": share,
        "culprit": "",
        "where": "",
        "first_s": 1,
        "steps_per_s": None,
        "pace": 1,
    }
    marks = judged(KNOWN["remote"], {"truth": truth, "watch": watch})
    assert (marks["starved"] and marks["near"]) is right
