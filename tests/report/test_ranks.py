"""The ranks of a job in reports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.compare import compare
from pipediag.analysis.ranks.stragglers import Change
from pipediag.analysis.summary import summarise
from pipediag.report import RENDERERS, screen
from pipediag.report.diagnosis import MOST_RANKS, ranks_section
from pipediag.report.document import Paragraph, Table

from ..made import DOCUMENTS, FLAT, job, make, tried


@pytest.fixture(scope="module")
def held() -> Diagnosis:
    """A job of four ranks that rank 2 holds."""
    return diagnose_session(job(4, 2))


def table(diagnosis: Diagnosis) -> Table:
    found = ranks_section(diagnosis).blocks[0]
    assert isinstance(found, Table)
    return found


def told(diagnosis: Diagnosis) -> list[str]:
    return [block.text for block in ranks_section(diagnosis).blocks if isinstance(block, Paragraph) and block.text]


def numbers(diagnosis: Diagnosis) -> list[int]:
    return [int(row[0]) for row in table(diagnosis).rows]


def test_what_only_some_ranks_have() -> None:
    session = job(4, 2, hosts=2)
    session.ranks[1].storage, session.ranks[1].ended, session.ranks[1].numa_node = "nfs", "killed", 1
    session.ranks[1].worker_ms = session.ranks[1].wait_ms = None
    session.ranks[1].shares = {}
    rows = table(diagnose_session(session)).rows
    assert rows[1] == ["1", "node0 cuda:1", "32 (node 1)", "4", "", "", "", "", "data on nfs, ended: killed"]
    assert rows[3][1] == "node1 cuda:3"


@pytest.mark.parametrize("late", [None, 40])
def test_of_many_ranks_the_extremes(late: int | None) -> None:
    """The first, the straggler, the slowest and the fastest have rows."""
    session = job(64, late, hosts=8)
    for rank, worker_ms in ((7, 900.0), (50, 2.0)):
        session.ranks[rank].worker_ms = worker_ms
    diagnosis = diagnose_session(session)
    shown = numbers(diagnosis)
    assert len(shown) == MOST_RANKS and shown == sorted(shown)
    assert {0, 7, 50} <= {*shown} and (late is None or late in shown)
    assert told(diagnosis)[0] == "and 48 more like them"


def test_sixteen_ranks_have_a_row_each() -> None:
    diagnosis = diagnose_session(job(16, 3, hosts=2))
    assert numbers(diagnosis) == [*range(16)]
    assert "more like them" not in " ".join(told(diagnosis))


def test_why_no_rank_is_named() -> None:
    diagnosis = diagnose_session(job(4, None))
    assert told(diagnosis)[-1].startswith("No rank holds up the others: ")
    assert not any(row[-1] for row in table(diagnosis).rows)


@pytest.mark.parametrize("ending", [*DOCUMENTS, ".html"])
def test_one_process_has_no_ranks(ending: str) -> None:
    diagnosis = diagnose_session(make(FLAT))
    assert not ranks_section(diagnosis).blocks
    written = RENDERERS[ending](diagnosis)
    assert isinstance(written, str)
    if ending == ".json":
        data = json.loads(written)
        assert (data["ranks"], data["straggler"], data["no_straggler"]) == ([], None, None)
    else:
        assert "holds up the job" not in written and "holds up the" not in written and "anks</h2>" not in written


def test_the_published_form(held: Diagnosis) -> None:
    data = held.to_dict()
    assert [(rank["rank"], rank["straggler"]) for rank in data["ranks"]] == [
        (0, False), (1, False), (2, True), (3, False)
    ]  # fmt: skip
    assert data["ranks"][2].keys() >= {
        "host", "device", "cores", "numa_node", "workers", "step_ms", "wait_ms", "worker_ms", "shares",
    }  # fmt: skip
    assert data["straggler"].keys() == {"ranks", "kind", "gain", "sentence", "level"}
    assert data["straggler"]["gain"].keys() == {"value", "low", "high"}
    assert diagnose_session(job(4, None)).to_dict()["no_straggler"].startswith("No rank holds up the others: ")


def test_the_screen_without_a_trial(held: Diagnosis) -> None:
    """It says what each rank's workers supply, and names the rank."""
    shown = screen.write(summarise(diagnose_session(replace(held.session, rank_trials=[]))))
    told = " ".join(shown.split())
    assert "Rank 2 holds up the job (observed: its workers give a batch every 107 ms, those of the others every" in told
    assert shown.count("\n") <= screen.LINES


def test_the_screen_says_when_workers_are_too_many() -> None:
    shown = screen.write(summarise(diagnose_session(job(4, 2, cores=8))))
    assert "4 ranks x 4 workers on 8 cores: 16 workers" in shown
    assert shown.count("\n") <= screen.LINES


def test_a_job_of_which_only_some_ranks_are_known() -> None:
    session = job(4, 2)
    session.ranks = session.ranks[:3]
    assert "3 of 4 ranks on 1 host" in screen.write(summarise(diagnose_session(session)))


def test_runs_of_other_numbers_of_ranks_are_compared_with_a_warning(held: Diagnosis) -> None:
    alone = replace(held.session, ranks=[], rank_trials=[], of_rank=None)
    found = compare(diagnose_session(alone), held)
    assert [(one.code, one.message) for one in found.warnings] == [
        ("other-ranks", "not the same number of ranks: 1 before, 4 after")
    ]
    assert not compare(held, held).warnings


def test_a_slower_step_is_named_though_the_job_does_not_wait_for_data() -> None:
    """Only trials show it: the ranks' inputs are alike, and fast enough."""
    session = job(3, None)
    session.windows = make(FLAT, rounds=4).windows
    session.rank_trials = []
    step = {0: 80.0, 1: 100.0, 2: 80.0}

    def ms(change: Change) -> float:
        return max(own + change.delay_ms * (rank in change.delayed) for rank, own in step.items())

    tried(session, session.ranks, ms)
    diagnosis = diagnose_session(session)
    assert diagnosis.straggler is not None and diagnosis.straggler.kind == "step"
    shown = " ".join(screen.write(summarise(diagnosis)).split())
    assert shown.startswith("YOUR TRAINING LOSES NO TIME TO DATA")
    assert "Rank 1 holds up the job: its own step takes longest. Delaying it by 20 ms delays the job" in shown
    assert [row[-1] for row in table(diagnosis).rows] == ["", "holds up the job", ""]
