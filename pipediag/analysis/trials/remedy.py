"""Decide which remedies are tried, whether one pays, and what it saves.

The loop under it is compared with the unmodified loop, in rounds of their own.

There are four: the offload, which moves transforms; the offload that decodes JPEGs on the device too, if that is
allowed; a cache of samples, with the offload if that pays; and the hand-off alone, which is tried if none of the others
pays.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ...session import DECODED, HANDED_OVER, LOADED_ONCE, REMEDIED, REMEDIES, Remedy, Script, Session
from ..numbers.intervals import Interval, exceeds, plain, total
from ..numbers.ladder import LadderView
from ..numbers.loop_and_workers import saving
from ..numbers.paired_windows import (
    FIRST_LOOKS,
    LEAST,
    PACE,
    PRODUCTION,
    WORKERS,
    Noise,
    mean_rate,
    paired_ratio,
    sure_gain,
)
from ..thresholds import AGREE, GATE, RESOLUTION
from ..whatif import Change, Savings, savings, what_if
from ..words import number

#: The hand-off alone, in words.
HAND_OFF = "hand-off: batches through re-used page-locked memory, copied ahead of the loop"
#: The remedies other than the offload, as text before their result.
BESIDE = {
    DECODED: "with JPEGs decoded there too",
    LOADED_ONCE: "samples loaded once",
    HANDED_OVER: "the hand-off alone",
}
#: Number of rounds before the first look at a trial, and the fewest that allow a judgement.
FIRST_LOOK = FEWEST = FIRST_LOOKS[0]
#: Number of windows of the loop from which on the multiple of its workers' time that a step takes is known.
_FEWEST_WINDOWS = 4
#: Milliseconds to read a kept sample, as measured for images of 224 x 224 to 500 x 375 (docs/cache.md).
READ_BACK_MS = 0.1
#: Remedies in the order in which they are tried. The one that can bring most is first, since time may run out.
ORDER = (DECODED, REMEDIED, LOADED_ONCE, HANDED_OVER)


@dataclass(frozen=True)
class Outcome:
    """The result of ``--apply`` for one remedy."""

    rung: str
    applied: bool  # true if the loop is certainly faster under the remedy, by more than the instrument's resolution
    speedup: Interval | None = None  # measured speedup; None if no round has both rungs
    reverted: str = ""  # why the remedy was taken back; empty if it was not
    why_not: str = ""  # why it was not tried; empty if it was
    open: bool = False  # true if it was taken back for want of time


def remedy_of(session: Session, rung: str) -> Remedy | None:
    """Return the remedy that is measured under ``rung``."""
    remedy: Remedy | None = getattr(session, REMEDIES[rung])
    return remedy


def outcome(session: Session, rung: str = REMEDIED) -> Outcome | None:
    """Return the result of a remedy, or None if it was not requested."""
    remedy = remedy_of(session, rung)
    if remedy is None:
        return None
    if remedy.why_not:
        return Outcome(rung, False, why_not=remedy.why_not)
    measured = speedup(session, rung)
    found = session.rungs.get(rung)
    if found is not None and not found.available:
        return Outcome(rung, False, measured, reverted=found.why_not)
    if measured is None or not can_be_judged(session, rung):
        why = "there was no time for enough windows; give a longer --apply-budget"
        return Outcome(rung, False, measured, reverted=why, open=True)
    gains = sure(session, rung, last=True)
    if gains and remedy.keeping is not None and remedy.keeping.fits < 1:
        gains = measured.low > LEAST
    if gains:
        return Outcome(rung, True, measured)
    why = "the loop is slower under it" if measured.high < 1 else "the loop is not faster by enough to matter"
    if gains is None:
        why = "it is open whether the loop is faster under it; a longer --apply-budget may decide it"
    return Outcome(rung, False, measured, reverted=why, open=gains is None)


def outcomes(session: Session) -> list[Outcome]:
    """Return the results of the remedies that were tried, the offload's first."""
    return [result for rung in REMEDIES if (result := outcome(session, rung)) is not None]


def best(session: Session) -> Outcome | None:
    """Return the result of the remedy that pays most; if none does, that of the first; None if none was requested.

    A cache of samples takes memory and gains nothing in the first epoch, so it must certainly pay more than the others.
    """

    def gain(result: Outcome) -> float:
        if not result.applied or result.speedup is None:
            return 0.0
        return result.speedup.low if result.rung == LOADED_ONCE else result.speedup.value

    return max(outcomes(session), key=gain, default=None)


def why_none(session: Session) -> str:
    """Return why no remedy is kept; empty if one is, or if none was requested."""
    if any_kept(session):
        return ""
    results = outcomes(session)
    whys = [(BESIDE.get(one.rung, "transforms moved"), why) for one in results if (why := one.why_not or one.reverted)]
    if len(whys) == 1 and results[0].rung not in BESIDE:
        return whys[0][1]
    return "; ".join(f"{name}: {why}" for name, why in whys)


def commands_to_keep(remedy: Remedy, result: Outcome, script: Script) -> list[str]:
    """Return the commands that run ``script`` under a remedy that pays.

    Without a plan or an option, ``pipediag run`` only moves transforms.
    """
    needs_plan = result.rung in (HANDED_OVER, LOADED_ONCE)
    plan = ["--plan", remedy.plan_file or "plan.json"] if remedy.plan_file or needs_plan else []
    also = ["--approximate"] if result.rung == DECODED and not plan else []
    commands = [["pipediag", "run", *plan, *also, *script.argv]]
    if plan and not remedy.plan_file:
        commands.insert(0, ["pipediag", "analyze", "--apply", *plan, *script.options, *script.argv])
    return [shlex.join(command) for command in commands]


def speedup(session: Session, rung: str = REMEDIED) -> Interval | None:
    """Return the loop's speedup under a remedy, paired round by round, or None without pairs.

    A cache of samples is measured on samples that are kept. If only a part of them fits, this is the speedup of a loop
    that makes the others anew.
    """
    unmodified, remedied, noise = by_work(session, rung)
    if not unmodified:
        return None
    measured, remedy = paired_ratio(unmodified, remedied, noise), remedy_of(session, rung)
    if remedy is None or remedy.keeping is None or remedy.keeping.fits == 1:
        return measured
    fits = remedy.keeping.fits
    return measured.inverse().times(fits).shifted(1 - fits).inverse()


def sure(session: Session, rung: str, last: bool = False) -> bool | None:
    """Return whether a remedy pays, or None while that is open; ``last`` if there will be no more rounds."""
    return sure_gain(*by_work(session, rung), last=last)


def by_work(session: Session, rung: str) -> tuple[list[float], list[float], Noise]:
    """Return the milliseconds per batch without and with a remedy in each round that has both, and their prior noise.

    A loop that waits for its workers takes a fixed multiple of their time for a batch. That time varies far less than
    the loop's pace, and the multiple is known from all windows of the loop, those of the ladder included. So if every
    window of the loop waits, its pace in a round is the multiple of that time.
    """
    unmodified, remedied = paired(session, "baseline", rung)
    rounds = {window.round for window in session.windows_of(rung)}
    plain_windows = session.windows_of("baseline")
    made = {window.round: window.evidence.get("worker_ms", 0.0) for window in plain_windows if window.waits}
    if len(made) < len(plain_windows) or len(made) < _FEWEST_WINDOWS or not all(made.values()):
        return unmodified, remedied, PACE
    steps = sum(window.steps for window in plain_windows)
    multiple = sum(window.ms_per_batch / made[window.round] * window.steps for window in plain_windows) / steps
    by_made = [multiple * ms for round_, ms in sorted(made.items()) if round_ in rounds]
    noise = PRODUCTION if any(window.waits for window in session.windows_of(rung)) else WORKERS
    # All rounds share the error of the multiple, which more rounds do not reduce.
    shared = PACE.sd / math.sqrt(2 * len(made))
    return by_made, remedied, Noise(math.hypot(noise.sd, shared * math.sqrt(len(by_made))), noise.degrees)


def can_be_judged(session: Session, rung: str) -> bool:
    """Return whether there are enough rounds for a first look at a remedy."""
    return _rounds(session, rung) >= FEWEST


def _rounds(session: Session, rung: str) -> int:
    return len(paired(session, "baseline", rung)[0])


def paired(
    session: Session, before: str, after: str, rounds: Sequence[int] | None = None
) -> tuple[list[float], list[float]]:
    """Return the milliseconds per batch under two rungs in each round that has both; only in ``rounds`` if given."""
    one, other = ({w.round: w for w in session.windows_of(rung)} for rung in (before, after))
    both = [round_ for round_ in sorted(one.keys() & other.keys()) if rounds is None or round_ in rounds]
    return [one[round_].ms_per_batch for round_ in both], [other[round_].ms_per_batch for round_ in both]


def to_dict(session: Session, rung: str = REMEDIED) -> dict[str, Any] | None:
    """Return the published form; see :meth:`pipediag.analysis.Diagnosis.to_dict`."""
    came, remedy = outcome(session, rung), remedy_of(session, rung)
    if came is None or remedy is None:
        return None
    facts = asdict(remedy)
    told = {
        "applied": came.applied,
        "why_not": came.why_not or None,
        "device": remedy.device,
        "moved": facts["moved"],
        "stayed": facts["stayed"],
        "certificate": facts["proof"],
        "keeping": facts["keeping"],
        "measured_speedup": plain(came.speedup),
        "rounds": _rounds(session, rung),
        "memory_bytes": remedy.memory_bytes,
        "reverted": came.reverted or None,
        "how": {"diff": remedy.edit.diff or None, "why_no_diff": remedy.edit.why_not or None},
    }
    moves_nothing = {"moved", "stayed", "certificate"} if rung == HANDED_OVER else set()
    left_out = moves_nothing | ({"keeping"} if rung != LOADED_ONCE else set())
    return {key: value for key, value in told.items() if key not in left_out}


def under_way(session: Session) -> str | None:
    """Return the rung of the remedy that is being tried, or None before the first."""
    return next((rung for rung in reversed(ORDER) if remedy_of(session, rung) is not None), None)


def next_trial(session: Session) -> list[str]:
    """Return the rungs of another round of the trial under way; empty once it is decided."""
    pair = ["baseline", under_way(session) or REMEDIED]
    if any(found.name in pair and not found.available for found in session.rungs.values()):
        return []
    return [] if sure(session, pair[1]) is not None else pair


def left_to_try(session: Session, approximate: bool) -> str | None:
    """Return the rung of the remedy to go on with or to begin; None once all are decided."""
    begun = under_way(session)
    if begun is None:
        return DECODED if approximate else REMEDIED
    remedy = remedy_of(session, begun)
    decided = (remedy is not None and remedy.why_not) or not next_trial(session)
    return following(session, begun) if decided else begun


def any_kept(session: Session) -> bool:
    return any(result.applied for result in outcomes(session))


def following(session: Session, rung: str) -> str | None:
    """Return the rung of the remedy to try after that of ``rung``, or None."""
    if rung == DECODED:
        return REMEDIED
    has_ladder = "device" in session.measured()  # without one, a gain of the hand-off could pass for the cache's
    if rung == REMEDIED and has_ladder and not at_ceiling(session) and loading_matters(session) is not False:
        return LOADED_ONCE
    return HANDED_OVER if rung != HANDED_OVER and not any_kept(session) else None


def reserved(session: Session, rung: str) -> list[str]:
    """Return the rungs of later remedies for which time is reserved while that of ``rung`` is tried."""
    if rung == DECODED:
        return [REMEDIED]
    return [LOADED_ONCE] if rung == REMEDIED and not at_ceiling(session) and loading_matters(session) is True else []


def leaves_rest(session: Session, rung: str) -> bool:
    """Return whether a trial that has had its share of the time leaves the rest to later ones.

    It does not before its first look, nor while the loop seems faster under it: a gain that a few more rounds would
    prove is worth more than the first rounds of another remedy.
    """
    gain = speedup(session, rung) if can_be_judged(session, rung) else None
    return gain is not None and gain.value <= LEAST


def at_ceiling(session: Session) -> bool:
    """Return whether the loop is within the gate of its ceiling under a remedy that pays: no other can gain much."""
    model = LadderView(session)
    if not model.has("device"):
        return False
    least = model.ms("device").value / (1 - GATE)
    kept = [result.rung for result in outcomes(session) if result.applied]
    return any(median(window.ms_per_step for window in session.windows_of(rung)) <= least for rung in kept)


def loading_matters(session: Session) -> bool | None:
    """Return whether the loop gains if samples are loaded only once, or None if that is open.

    That saves a worker at least the time for loading, but reading a kept sample takes time too.
    """
    inside, model = session.inside, what_if(LadderView(session))
    least = READ_BACK_MS if inside is None else max(READ_BACK_MS, GATE * inside.whole.wall_ms)
    if inside is not None and inside.samples and inside.load.wall_ms < least:
        return False
    if model is None or model.work is None:
        return None
    return exceeds(model.faster(Change(work=saving(model.work.load))), LEAST)


def why_no_handoff(session: Session) -> str:
    """Return why the hand-off alone certainly does not pay in the measured loop; empty if it may.

    At best it hides the hand-off and the copy. If the loop waits for workers, it may also make their collating faster.
    """
    leaves = session.batch.leaves if session.batch is not None else []
    if leaves and all(leaf.copied is False for leaf in leaves):
        return "the loop copies no part of its batches to the device"
    model = what_if(LadderView(session))
    if model is None or model.transfer is None or model.handoff is None:
        return ""
    most = total([model.transfer.not_negative(), model.handoff.not_negative()]).high
    collating = model.work.collate / model.work.run if model.waits and model.work is not None else 0.0
    if most / model.base + collating > RESOLUTION:
        return ""
    return f"handing a batch over and copying it cost at most {number(most)} ms of a {number(model.base)} ms step"


def savings_of(ladder: LadderView, rung: str) -> Savings | None:
    """Return what the remedy that was measured under ``rung`` brings, or None if it does not pay."""
    came = outcome(ladder.session, rung)
    if came is None or not came.applied or came.speedup is None:
        return None
    step_ms, loader = ladder.ms("baseline").value if ladder.has("baseline") else None, ladder.session.loader
    return savings(came.speedup, step_ms, loader.epoch if loader else None, workers=workers_needed(ladder, rung))


def workers_needed(ladder: LadderView, rung: str) -> int | None:
    """Return the fewest workers that keep up with the loop under a remedy; None if unknown or if all are needed.

    This is the number of workers that are busy at a time: the cores that they use under the remedy, plus a worker's
    blocked time for a batch divided by the step. The blocked time is today's, since the remedy does not change how data
    is read. The upper end of each interval counts, times :data:`AGREE`. The number is unknown if the loop still waits
    for batches.
    """
    loader, windows = ladder.session.loader, ladder.session.windows_of(rung)
    today = ladder.evidence("baseline")
    if loader is None or not {"worker_ms", "worker_blocked"} <= today.keys():
        return None
    if not all({"cores_used", "process_cpu", "wait_ms"} <= window.evidence.keys() for window in windows):
        return None
    cores = [window.evidence["cores_used"] - window.evidence["process_cpu"] for window in windows]
    steps = [window.ms_per_step for window in windows]
    waits = sum(window.evidence["wait_ms"] for window in windows) > GATE * sum(steps)
    if len(windows) < FEWEST or waits or min(cores) <= 0:  # 0: below the resolution of the processes' clocks
        return None
    blocked = today["worker_ms"] * today["worker_blocked"]
    needed = math.ceil(AGREE * (mean_rate(cores, WORKERS).high + blocked / mean_rate(steps).low))
    return needed if needed < loader.num_workers else None
