"""Which rank of a job a process is, from the variables of launchers and schedulers."""

from __future__ import annotations

import itertools

import pytest

from pipediag.measure.own_rank import LOCAL_VARIABLES, local_rank


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, 1),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, 0),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, None),  # one process per host
        ({"SLURM_LOCALID": "3", "SLURM_NTASKS": "4"}, 3),
        ({"SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_LOCALID": "x", "SLURM_NTASKS": "4", "MPI_LOCALRANKID": "2", "PMI_SIZE": "8"}, 2),
    ],
)
def test_number_on_the_host(environment: dict[str, str], found: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in itertools.chain(*LOCAL_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_rank() == found
