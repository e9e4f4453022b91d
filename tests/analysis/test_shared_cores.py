"""Which ranks share cores, and whether they start more processes than there are."""

from __future__ import annotations

import pytest

from pipediag.analysis.ranks.shared_cores import groups, too_many, workers_that_fit
from pipediag.session import Rank, Session


def ranks(
    count: int, workers: int, cores: float, affinity: tuple[str, ...] = ("",), cpus: int = 64, hosts: int = 1
) -> list[Rank]:
    """``count`` ranks; their affinities repeat, host by host."""
    return [
        Rank(
            n,
            count,
            f"node{n * hosts // count}",
            cpus=cpus,
            cores=cores,
            affinity=affinity[n % len(affinity)],
            workers=workers,
        )
        for n in range(count)
    ]


def grouped(found: list[Rank]) -> list[tuple[list[int], float]]:
    return [([rank.rank for rank in group.ranks], group.cores) for group in groups(found)]


@pytest.mark.parametrize(
    "affinity, cores, expected",
    [
        (("0-15",), 16.0, [([0, 1, 2, 3], 16.0)]),
        (("0-7", "8-15"), 8.0, [([0, 2], 8.0), ([1, 3], 8.0)]),
        (("0-3", "4-7", "8-11", "12-15"), 4.0, [([0], 4.0), ([1], 4.0), ([2], 4.0), ([3], 4.0)]),
        (("0-3,32-35", "4-7,36-39", "0-1", "7"), 8.0, [([0, 2], 8.0), ([1, 3], 8.0)]),
        (("0-7", "6-9", "9-12", "20"), 8.0, [([0, 1, 2], 13.0), ([3], 1.0)]),
        (("0-63",), 12.5, [([0, 1, 2, 3], 12.5)]),
    ],
)
def test_groups_by_the_numbers_of_cores(
    affinity: tuple[str, ...], cores: float, expected: list[tuple[list[int], float]]
) -> None:
    """Ranks share cores if they have any in common, directly or through others. A quota limits the sum."""
    found = ranks(4, 2, cores, affinity)
    for rank in found:
        rank.cores = min(rank.cores, sum(1 for _ in _numbers(rank.affinity)))
    if cores == 12.5:
        assert all(rank.cores == 12.5 for rank in found)
    assert grouped(found) == expected


def _numbers(affinity: str) -> list[int]:
    spans = [part.partition("-") for part in affinity.split(",")]
    return [n for first, _, last in spans for n in range(int(first), int(last or first) + 1)]


@pytest.mark.parametrize("affinity", ["", "all", "0-", "-3", "0,x", "0" * 5000])
def test_without_numbers_ranks_share_what_is_not_enough_for_each(affinity: str) -> None:
    assert grouped(ranks(4, 2, 64.0, (affinity,))) == [([0, 1, 2, 3], 64.0)]
    assert grouped(ranks(4, 2, 16.0, (affinity,))) == [([n], 16.0) for n in range(4)]


def test_hosts_share_nothing() -> None:
    assert grouped(ranks(4, 2, 64.0, hosts=2)) == [([0, 1], 64.0), ([2, 3], 64.0)]


def test_more_workers_than_cores() -> None:
    found = too_many(ranks(8, 15, 64.0, ("0-63",)))
    assert found is not None
    assert found.code == "more-workers-than-cores"
    assert found.message == "8 ranks x 15 workers on 64 cores: 120 workers and the ranks' own processes share them"
    assert found.help == "with 7 workers per rank, every process would have a core"


def test_as_many_processes_as_cores_are_no_warning() -> None:
    assert too_many(ranks(8, 7, 64.0, ("0-63",))) is None
    assert too_many(ranks(8, 8, 64.0, ("0-63",))) is not None


def test_ranks_with_cores_of_their_own() -> None:
    """Eight ranks with eight cores and seven workers each fit; with one more worker each they do not."""
    apart = tuple(f"{8 * n}-{8 * n + 7}" for n in range(8))
    assert too_many(ranks(8, 7, 8.0, apart)) is None
    found = too_many(ranks(8, 8, 8.0, apart))
    assert found is not None
    assert found.message == (
        "1 rank x 8 workers on 8 cores: 8 workers and the ranks' own processes share them; 7 other groups of ranks "
        "also have too few cores"
    )


def test_the_host_is_named_if_there_are_several() -> None:
    found = too_many(ranks(4, 40, 64.0, ("0-63",), hosts=2))
    assert found is not None and found.message.startswith("2 ranks x 40 workers on 64 cores of node0: ")


def test_few_cores() -> None:
    found = too_many(ranks(4, 1, 2.0, ("0-1",)))
    assert found is not None
    assert found.help == "0.5 cores per rank are too few: use fewer ranks, or more cores"


def test_nothing_to_say() -> None:
    assert too_many([]) is None
    assert too_many(ranks(1, 100, 2.0)) is None, "one process is no job"
    assert too_many(ranks(4, 0, 2.0)) is None, "without workers there are none too many"
    assert too_many(ranks(4, 4, 0.0)) is None, "unknown cores"


def test_a_hostile_affinity_costs_nothing() -> None:
    """Numbers may be large: ranges are compared, not listed."""
    found = ranks(2, 2, 8.0, ("0-999999999", "5"))
    assert grouped(found)[0][0] == [0, 1]


@pytest.mark.parametrize(
    "found, of_rank, fit",
    [
        (ranks(2, 2, 2.0, ("0-1",)), 1, 1),  # a core for each process would be none for workers
        (ranks(4, 2, 32.0, ("0-31",)), 0, 7),
        (ranks(4, 2, 8.0, ("0-7", "8-15")), 3, 3),
        (ranks(2, 2, 16.0, ("0-15",), hosts=2), 0, 15),
        (ranks(2, 2, 0.0), 0, None),  # not known how many cores there are
        (ranks(1, 2, 16.0), 0, None),
        (ranks(2, 2, 16.0), None, None),
    ],
)
def test_workers_that_fit(found: list[Rank], of_rank: int | None, fit: int | None) -> None:
    assert workers_that_fit(Session(ranks=found, of_rank=of_rank)) == fit
