"""Rule for a distributed job: what differs on the rank whose input holds up the others."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ...session import Rank
from ...session.remedies import listed
from ..diagnosis import Recommendation
from ..ranks.shared_cores import workers_that_fit
from ..ranks.stragglers import straggler_of
from ..verdict import PROVEN
from ..words import counted, number, numbered
from .view import View

#: Title, evidence and way of a change.
_Found = tuple[str, list[str], str]
#: A figure of a rank differs from that of the others if it is at least this many times as large.
_OTHERWISE = 1.2


def late_rank(view: View) -> Recommendation | None:
    """Recommend making the input of a late rank like that of the others, by what differs on it."""
    found = straggler_of(view.session)
    if found is None or found.kind != "input":
        return None
    late = [rank for rank in view.session.ranks if rank.rank in found.ranks]
    others = [rank for rank in view.session.ranks if rank.rank not in found.ranks]
    who = numbered(found.ranks)
    fit = workers_that_fit(view.session)
    title, differs, how = _workers(who, late, others, fit) or _host(who, late, others) or _data(who, late, others)
    known = "measured with it fed from a cache" if found.level == PROVEN else "as its workers supply batches, not tried"
    return view.made(
        "late-rank",
        title,
        view.workers_stage,
        found.gain,
        [*differs, f"the gain if {who} supplied batches as soon as the others: {known}"],
        how,
        "what differs may be meant: then the other ranks wait for it in any case",
    )


def _workers(who: str, late: Sequence[Rank], others: Sequence[Rank], fit: int | None) -> _Found | None:
    """Return what to do if the late ranks have fewer workers, and cores for as many as the others."""
    now, usual = max(rank.workers for rank in late), int(median(rank.workers for rank in others))
    if usual < _OTHERWISE * now or usual == now or (fit is not None and usual > fit):
        return None
    told = f"{who} {_has(late)} {counted(now, 'worker')}, the others {usual}"
    return f"num_workers={usual} on {who}, as on the others", [told], f"num_workers={usual} in the DataLoader of {who}"


def _host(who: str, late: Sequence[Rank], others: Sequence[Rank]) -> _Found | None:
    """Return what to do if the late ranks have fewer cores, or read from another file system."""
    cores, usual = max(rank.cores for rank in late), median(rank.cores for rank in others)
    if cores and usual >= _OTHERWISE * cores:
        told = f"{who} {_has(late)} {cores:g} cores, the others {usual:g}"
        return f"Give {who} as many cores as the others", [told], "another affinity, quota or host"
    here, there = ({rank.storage for rank in side} - {""} for side in (late, others))
    if here and there and here.isdisjoint(there):
        told = f"{who} {_has(late)} data on {listed(sorted(here))}, the others on {listed(sorted(there))}"
        return f"Let {who} read its data where the others do", [told], "the same file system, or a copy on each host"
    return None


def _data(who: str, late: Sequence[Rank], others: Sequence[Rank]) -> _Found:
    """Return what to do if the late ranks' batches take longer for another reason: look at what differs most."""
    told = f"a worker of {who} takes {number(_took(late))} ms for a batch, elsewhere {number(_took(others))}"
    stages = sorted({stage for rank in (*late, *others) for stage in rank.shares})
    most = max(stages, key=lambda stage: _took(late, stage) - _took(others, stage), default="")
    theirs, usual = _took(late, most), _took(others, most)
    if most and theirs > usual:
        told = f"{most} takes {number(theirs)} ms of a batch on {who}, elsewhere {number(usual)}"
    hosts = {rank.host for rank in late}
    apart = hosts.isdisjoint(rank.host for rank in others)
    how = "compare its samples: a DistributedSampler over one shuffled dataset gives every rank alike ones"
    how += f"; see what else runs on {listed(sorted(hosts))}" if apart else ""
    return f"Find out why batches take longer on {who}: its data{' or its host' * apart}", [told], how


def _took(ranks: Sequence[Rank], stage: str = "") -> float:
    """Return a worker's milliseconds for a batch, or for a stage of it: the median over ranks."""
    return median((rank.worker_ms or 0.0) * (rank.shares.get(stage, 0.0) if stage else 1.0) for rank in ranks)


def _has(ranks: Sequence[Rank]) -> str:
    return "has" if len(ranks) == 1 else "have"
