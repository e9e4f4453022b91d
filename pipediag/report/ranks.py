"""Report the ranks of a distributed job: a row for each, and whether one of them holds the others."""

from __future__ import annotations

from ..analysis import Diagnosis
from ..analysis.ranks.stragglers import by_pace, input_pace
from ..analysis.words import number, percent, shown
from ..session import Rank
from .document import Paragraph, Section, Table

#: Maximum number of rows. Of more ranks, the first, those that hold the job, and those with the slowest and fastest
#: input have one.
ROWS = 16
_HEADERS = ("rank", "device", "cores", "workers", "waits ms", "worker ms", "batch every ms", "mostly in", "")


def section(diagnosis: Diagnosis) -> Section:
    """Return a row for each rank. The time between batches is a worker's time for one, divided by the workers."""
    ranks, lead = diagnosis.session.ranks, ""
    if len(ranks) < 2:
        return Section("ranks", [])
    some = shown_of(diagnosis)
    holding = diagnosis.straggler.ranks if diagnosis.straggler else ()
    hosts, storages = ({getattr(rank, name) for rank in ranks} for name in ("host", "storage"))
    rows = []
    for rank in some:
        cores = number(rank.cores) if rank.cores else ""
        cores += f" (node {rank.numa_node})" if rank.numa_node is not None else ""
        stage, share = max(rank.shares.items(), key=lambda item: item[1], default=("", 0.0))
        notes = ["holds up the job"] * (rank.rank in holding)
        notes += [f"data on {rank.storage}"] * bool(len(storages) > 1 and rank.storage)
        notes += [f"ended: {rank.ended}"] if rank.ended else []
        times = (rank.wait_ms, rank.worker_ms, input_pace(rank))
        rows.append(
            [
                str(rank.rank),
                f"{rank.host} {rank.device}".strip() if len(hosts) > 1 else rank.device,
                cores,
                str(rank.workers),
                *(number(ms) if ms is not None else "" for ms in times),
                f"{shown(stage)} {percent(share)}" if stage else "",
                ", ".join(notes),
            ]
        )
    more = f"and {len(ranks) - len(some)} more like them" if len(some) < len(ranks) else ""
    if diagnosis.session.of_rank is not None:
        lead = f"the step and its stages are those of rank {diagnosis.session.of_rank}"
    return Section(
        "ranks",
        [
            Table(_HEADERS, "rlrrrrrll", rows, narrow=True),
            Paragraph(more),
            Paragraph(lead),
            Paragraph(diagnosis.no_straggler),
        ],
        page=1,
    )


def shown_of(diagnosis: Diagnosis) -> list[Rank]:
    ranks = sorted(diagnosis.session.ranks, key=lambda rank: rank.rank)
    if len(ranks) <= ROWS:
        return ranks
    holding = diagnosis.straggler.ranks if diagnosis.straggler else ()
    by_speed = by_pace(ranks)
    # Slowest and fastest in turn, after those that are named elsewhere.
    ends = [one for pair in zip(by_speed, reversed(by_speed), strict=True) for one in pair]
    named = [one for one in ranks if one.rank in holding or one.rank == diagnosis.session.of_rank][: ROWS // 2]
    chosen = dict.fromkeys([ranks[0].rank, *(one.rank for one in named), *(one.rank for one in ends)])
    numbers = set([*chosen][:ROWS])
    return [one for one in ranks if one.rank in numbers]
