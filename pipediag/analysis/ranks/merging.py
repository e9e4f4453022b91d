"""Merge the sessions of a job's ranks into one, and summarise each rank.

All ranks of a job take the same time for a step, since they wait for each other. The job's session is that of the rank
whose input limits the job; the others do not wait for their own loaders. With equal inputs, chance decides in each step
which rank waits for its loader, while the others wait for that rank within their training step. So the job waits at
least as long as the rank that waits longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...session import REMEDIES, Rank, Session, Warning_, Window, fed_apart
from ..numbers.ladder import LadderView
from ..numbers.paired_windows import WORKERS
from ..thresholds import GATE
from ..waterfall import worker_shares
from ..words import numbered
from .shared_cores import groups
from .stragglers import by_pace, input_pace, straggler_of

#: An input is slower than the leading rank's if it takes this many times as long: windows of equal ones differ by less.
_SLOWER = 1 + 2 * WORKERS.sd
#: Largest number of warnings of one kind kept from other ranks.
_MOST_WARNINGS = 2


def job_session(sessions: Mapping[int, Session]) -> Session:
    """Return the session of a job, given the ranks' sessions by rank. A single session is returned as it is.

    It is the session of the rank whose input limits the job, with all ``ranks`` summarised. What concerns the whole job
    comes from the leading rank: the script, how the measurement ended, the trials of settings, remedies and ranks. If
    several ranks share cores, the session has the rank's part of them.
    """
    if len(sessions) == 1:
        return next(iter(sessions.values()))
    leading = sessions[min(sessions)]
    ranks = [summary(number, sessions[number], len(sessions)) for number in sorted(sessions)]
    rank = _limiting(replace(leading, ranks=ranks), ranks)
    own = sessions[rank.rank]
    job = leading if own is leading else _led(own, leading)
    sharing = next(group.ranks for group in groups(ranks) if rank in group.ranks)

    def files_of(kind: str) -> list[str]:
        return [*dict.fromkeys(file for rank in sorted(sessions) for file in getattr(sessions[rank].script, kind))]

    windows, environment = _share_of_host(job, [sessions[one.rank] for one in sharing])
    return replace(
        job,
        windows=_longest_waits(windows, sessions),
        # Of the rank that waits for the largest share of its steps.
        observed=max(
            (session.observed for session in sessions.values()),
            key=lambda seen: sum(one.waited for one in seen) / sum(one.seconds for one in seen) if seen else -1.0,
        ),
        environment=environment,
        script=replace(leading.script, wrote=files_of("wrote"), overwrote=files_of("overwrote")),
        warnings=_warnings(sessions, min(sessions)),
        ranks=ranks,
        rank_trials=leading.rank_trials,
        of_rank=rank.rank,
    )


def summary(number: int, session: Session, ranks: int) -> Rank:
    """Return a rank's description of itself with the figures of its session.

    ``ranks`` is the number of ranks, for a rank that did not say.
    """
    own = session.ranks[0] if session.ranks else Rank(number, max(ranks, number + 1))
    ladder = LadderView(session)
    workers = session.workers if session.loader is not None else own.workers
    found = replace(own, rank=number, workers=workers, ended=own.ended or session.script.error)
    if not ladder.has("baseline"):
        return found
    seen = ladder.evidence("baseline")
    return replace(
        found,
        step_ms=round(ladder.ms("baseline").value, 4),
        wait_ms=seen.get("wait_ms"),
        worker_ms=seen.get("worker_ms"),
        shares={stage: round(share, 4) for stage, share in worker_shares(ladder).items()},
    )


def _limiting(leading: Session, ranks: Sequence[Rank]) -> Rank:
    """Return the rank whose input limits the job: a straggler, else by its pace, else the leading rank."""
    found, lead = straggler_of(leading), ranks[0]
    if found is not None and found.kind == "input":
        return by_pace([rank for rank in ranks if rank.rank in found.ranks])[0]
    known = [rank for rank in ranks if input_pace(rank) is not None]
    if not known or lead not in known:
        return by_pace(known)[0] if known else lead
    slowest = by_pace(known)[0]
    slow, own = input_pace(slowest) or 0.0, input_pace(lead) or 0.0
    clearly = slow > _SLOWER * own and slow - own > GATE * (lead.step_ms or 0.0)
    return slowest if clearly else lead


def _led(own: Session, leading: Session) -> Session:
    """Return a rank's session with the trials of the leading rank in place of its own."""
    trials = {window.round for window in leading.windows if fed_apart(window.rung)}

    def of_trials(window: Window) -> bool:
        return fed_apart(window.rung) or window.round in trials

    windows = [window for window in own.windows if not of_trials(window)]
    rungs = {name: rung for name, rung in own.rungs.items() if not fed_apart(name)}
    return replace(
        own,
        windows=[*windows, *filter(of_trials, leading.windows)],
        rungs={**rungs, **{name: rung for name, rung in leading.rungs.items() if fed_apart(name)}},
        **{name: getattr(leading, name) for name in ("knobs", *REMEDIES.values(), "ended")},
        **{name: getattr(own, name) or getattr(leading, name) for name in ("batch", "syncs", "prefix", "profile")},
    )


def _share_of_host(job: Session, sharing: Sequence[Session]) -> tuple[list[Window], dict[str, Any]]:
    """Return the windows and the machine's facts as one of the ranks ``sharing`` cores has them.

    Each rank has an equal part of the cores. Other ranks are no foreign load: the cores in use are its own and its part
    of those that processes outside the job use.
    """
    count = len(sharing)
    if count < 2:
        return job.windows, job.environment
    used: dict[tuple[int, str, int], list[float]] = {}
    for session in sharing:
        for window in session.windows:
            if "cores_used" in window.evidence:
                used.setdefault(_which(window), []).append(window.evidence["cores_used"])
    windows = []
    for window in job.windows:
        seen, cores = dict(window.evidence), used.get(_which(window), [])
        if "cores_busy" in seen and "cores_used" in seen:
            # Assume that a rank with unknown use uses as much as the others.
            others = max(0.0, seen["cores_busy"] - count * sum(cores) / len(cores))
            seen["cores_busy"] = round(seen["cores_used"] + others / count, 4)
        windows.append(replace(window, evidence=seen))
    return windows, {**job.environment, **({"cores": round(job.cores / count, 2)} if job.cores else {})}


def _longest_waits(windows: Sequence[Window], sessions: Mapping[int, Session]) -> list[Window]:
    """Return the windows, each with the wait of the rank that waits longest in it."""
    longest: dict[tuple[int, str, int], float] = {}
    for window in (window for session in sessions.values() for window in session.windows):
        if "wait_ms" in window.evidence:
            longest[_which(window)] = max(longest.get(_which(window), 0.0), window.evidence["wait_ms"])
    found = []
    for window in windows:
        if "wait_ms" in window.evidence:
            wait = min(longest[_which(window)], window.ms_per_step)
            window = replace(window, evidence={**window.evidence, "wait_ms": wait})
        found.append(window)
    return found


def _which(window: Window) -> tuple[int, str, int]:
    return window.attempt, window.rung, window.round


def _warnings(sessions: Mapping[int, Session], lead: int) -> list[Warning_]:
    """Return the leading rank's warnings, then those of other ranks alone, with their ranks."""
    told = {(one.code, one.message): one for one in sessions[lead].warnings}
    others: dict[tuple[str, str], tuple[Warning_, list[int]]] = {}
    for rank in sorted(sessions):
        for one in sessions[rank].warnings:
            if (one.code, one.message) not in told:
                others.setdefault((one.code, one.message), (one, []))[1].append(rank)
    found, alike = list(told.values()), dict.fromkeys((one.code for one, _ in others.values()), 0)
    for one, who in others.values():
        alike[one.code] += 1
        if alike[one.code] <= _MOST_WARNINGS:
            found.append(replace(one, message=f"{numbered(who)}: {one.message}"))
    return found
