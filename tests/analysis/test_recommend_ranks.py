"""Advice for a rank that holds up a job: what differs on it, and no more workers than the job's cores carry."""

from __future__ import annotations

from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Recommendation
from pipediag.session import Session

from ..made import job


def advice(session: Session) -> dict[str, Recommendation]:
    return {one.id: one for one in diagnose_session(session).recommendations}


def changed(late: dict[str, Any], others: dict[str, Any] | None = None, **more: Any) -> Session:
    """A job of four ranks with these facts of the late rank 2 and of the others."""
    session = job(4, **more)
    for rank in session.ranks:
        for name, value in (late if rank.rank == 2 else others or {}).items():
            setattr(rank, name, value)
    return session


def test_its_data_if_nothing_else_differs() -> None:
    """The stage is named in which its workers spend the most time beyond that of the others."""
    one = advice(job(4))["late-rank"]
    assert (one.title, one.stage) == ("Find out why batches take longer on rank 2: its data", "load")
    assert one.evidence == [
        "load takes 368 ms of a batch on rank 2, elsewhere 143",
        "the gain if rank 2 supplied batches as soon as the others: measured with it fed from a cache",
    ]
    assert "DistributedSampler" in one.how
    straggler = diagnose_session(job(4)).straggler
    assert straggler is not None and one.predicted == straggler.gain and one.measured is None


def test_observed_only() -> None:
    session = job(4)
    session.rank_trials = []
    assert advice(session)["late-rank"].evidence[-1].endswith(": as its workers supply batches, not tried")


def test_its_host_if_that_differs() -> None:
    one = advice(changed({"host": "far"}))["late-rank"]
    assert one.title.endswith("on rank 2: its data or its host")
    assert one.how.endswith("; see what else runs on far")


def test_its_cores() -> None:
    one = advice(changed({"cores": 4.0, "host": "far", "affinity": "0-3"}))["late-rank"]
    assert (one.title, one.evidence[0]) == (
        "Give rank 2 as many cores as the others", "rank 2 has 4 cores, the others 32"
    )  # fmt: skip


def test_its_storage() -> None:
    one = advice(changed({"storage": "nfs"}, {"storage": "ext4"}))["late-rank"]
    assert (one.title, one.evidence[0]) == (
        "Let rank 2 read its data where the others do", "rank 2 has data on nfs, the others on ext4"
    )  # fmt: skip


def test_its_workers() -> None:
    one = advice(changed({"workers": 2, "worker_ms": 214.4}))["late-rank"]
    assert (one.title, one.evidence[0]) == (
        "num_workers=4 on rank 2, as on the others", "rank 2 has 2 workers, the others 4"
    )  # fmt: skip


def test_no_more_workers_than_there_are_cores_for() -> None:
    """32 cores carry 7 workers a rank, 12 carry 2: then the job's cores are no reason to ask for 4."""
    assert advice(changed({"workers": 2, "worker_ms": 214.4}, cores=12))["late-rank"].title.startswith("Find out why")


@pytest.mark.parametrize("cores, title", [(32, "num_workers=7 instead of 4"), (12, None)])
def test_more_workers_for_every_rank(cores: int, title: str | None) -> None:
    """Their workers sleep, so they would need hardly any cores: a single process is told to start many more."""
    found = advice(job(4, None, cores=cores)).get("num-workers")
    assert (found.title if found else None) == title


def test_none_without_a_late_rank() -> None:
    assert "late-rank" not in advice(job(4, None))
