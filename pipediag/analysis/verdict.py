"""Judge whether the loop starves, how certain that is, which stage costs most, and what limits next.

Only what would be wrong in an experiment repeated is called certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import hypot
from statistics import median

from ..session import LADDER, LONGER, RUNGS, STAGE_OF_RUNG, Session
from ..session.events import KEPT_BATCHES
from ..session.remedies import listed
from .amortised import amortised, described, open_start
from .diagnosis import Stage, Verdict
from .numbers.chain import heaviest, parts_of_sample
from .numbers.foreign_load import others, stolen, worth_telling
from .numbers.intervals import Interval, exactly, largest, least
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import OF_THE_WORKERS, made_again, sides
from .thresholds import AGREE, CO_BOTTLENECK, CONTENTION, GATE, RESOLUTION, RUN_TO_RUN
from .trials.threads import wanting_to_run
from .waterfall import input_stages, ranked
from .words import counted, loop_of, named, number, percent, percent_of, shown, unfed, waiting, whose

OBSERVED, INTERVENED, PROVEN = "observed", "intervened", "proven"
#: Rounding error, relative.
_DUST = 1e-9
#: Windows that each side of a comparison needs, and times at which they were measured: one says nothing about others.
ENOUGH = 2
#: Pairs of windows agree if the shares that they give lie within this range, and if other processes lengthened the step
#: of one of them by less than this share.
_APART, DISTURBED = 0.25, 0.1
#: Share of a step for which other processes may make the loop wait for a core though it is fed: what data costs beside
#: them differs from what it costs without them, or beside more, by up to as much.
_CROWDED = 0.1
#: Number of steps that show nothing yet if the loop waits in none of them and was not fed from a cache.
_FIRST_STEPS = 4
#: Number of runs of a script from which on it ends too soon to be measured twice in one of them.
_SHORT = 2
#: Verdicts on what remains of a step, which rest on the kernel's counters.
_COUNTED = ("contention", "ipc")
#: Description of each stage's work.
_WORK = {
    **{kind.stage: kind.work for kind in LADDER},
    "sampler": "choosing the samples of a batch (the sampler runs in the training process)",
}
#: Stages that are divided by lines of code.
_OF_LINES = {"load": "loading", "collate": "collating"}
#: Description of the load stage if the transforms cannot be separated from it.
_WHOLE_DATASET = "making the samples (the dataset's code: loading and transforms together)"


def judge(ladder: LadderView, pieces: list[Stage]) -> Verdict:
    """Return the verdict. It is ``inconclusive`` only while it is open whether the loop starves at all."""
    starved = starved_share(ladder)
    if starved is None:
        have = ", ".join(ladder.rungs)
        seen = "no step of the training loop was seen"
        if have:
            seen = f"only {have} {'was' if len(ladder.rungs) == 1 else 'were'} measured"
        return Verdict("inconclusive", f"Too little is known to say whether the loop starves: {seen}.")
    session, base = ladder.session, ladder.ms("baseline")
    ranked, now = input_stages(ladder, pieces), 1000.0 / base.value
    top, starving = _costliest(ladder, ranked), starves(ladder, starved)
    level = INTERVENED if ladder.intervened else OBSERVED
    verdict = partial(Verdict, level=level, starved=starved, uncertain=why_uncertain(ladder, ""))
    start = next(iter(amortised(ladder)), None)
    starting = start.ms.beside(base.value) if start is not None else exactly(0.0)
    if start is not None and start.ms.value > (top.ms.value if top else 0.0) and decided(starting):
        beside = [top.stage] if top is not None and starving else []
        return verdict(
            "startup",
            described(ladder, start),
            uncertain=why_uncertain(ladder, "") or _at_the_gate(starting),
            culprit=start.culprit,
            co_bottlenecks=beside,
            next_ceiling=([*beside, "compute"][0], now),
        )
    if starving is None or (starving and top is None):
        return verdict("inconclusive", _undecided(ladder, starved, top))
    if not starving or top is None:
        found = verdict("none", _not_starved(ladder, starved), next_ceiling=("compute", now))
        uncertain = found.uncertain or _at_the_gate(starved) or open_start(ladder)
        return replace(found, uncertain=uncertain, level=level if uncertain else PROVEN)
    # As large as the largest or nearly, or not certainly smaller.
    large = [p for p in ranked if p.ms.value >= CO_BOTTLENECK * top.ms.value * (1 - _DUST) or p.ms.high >= top.ms.low]
    others = [piece.stage for piece in large if piece is not top and piece.ms.value > GATE * base.value]
    best = now / max(1e-3, 1 - starved.value) if ladder.intervened else 0.0
    after = top.without.steps_per_s if top.without is not None else now
    after = min(after, best) if best else after
    following = _following(ladder, ranked, top, after, best)
    if top.stage == "contention":
        sentence = _contended(ladder, top.ms, late=any(stage in OF_THE_WORKERS for stage in others))
    else:
        sentence = _starving(ladder, starved, top, others, following, after, best)
        sentence += _largest_part(session, top, pieces)
        sentence += "" if best else _only_observed(ladder)
    uncertain = why_uncertain(ladder, top.stage) or _at_the_gate(starved) or open_start(ladder, top.ms.value)
    uncertain = uncertain or (_beyond_the_wait(ladder) if top.stage in OF_THE_WORKERS else "")
    uncertain = uncertain or _open_which(ladder, ranked, top)
    return verdict(
        top.stage,
        sentence,
        level=PROVEN if not uncertain and _agrees(ladder, top) else level,
        uncertain=uncertain,
        culprit=top.culprit,
        co_bottlenecks=others,
        next_ceiling=(following, after),
    )


def starves(ladder: LadderView, starved: Interval) -> bool | None:
    """Return whether the loop starves, or None while open. Less certainty suffices if it certainly does not wait.

    Not if other processes may have disturbed one side of the measurements: workers that are on time also take cores. A
    loop that waits for other loaders in its steps starves as far as is known. Its first steps show nothing: they are
    slow, and their batches were made before. Of a loop that was watched, nothing is known if no batch was seen to come
    from anywhere.
    """
    if draws_unseen(ladder.session):
        return None
    waited, known = ladder.waited("baseline"), decided(starved)
    if known is not True and ladder.waits_beside > GATE:
        return None
    if (
        known is False
        and not (ladder.intervened or ladder.session.watched)
        and ladder.session.steps_seen < _FIRST_STEPS
    ):
        return None
    alike = not ladder.intervened or ladder.disturbed("baseline", ladder.ceiling) <= DISTURBED
    if known is None and alike and waited is not None and waited.high < GATE and starved.value < GATE:
        return False
    return known


def draws_unseen(session: Session) -> bool:
    """Return whether a watched loop was seen to draw no batch: a function that it calls may make them."""
    watched = session.watched
    return watched is not None and session.loader is None and watched.shares.get("other", 0.0) > GATE


def _at_the_gate(starved: Interval) -> str:
    """Return, as a clause, that another run may fall on the other side of the gate; empty if none certainly does."""
    if starved.low > GATE or starved.high < GATE:
        return ""
    return f"another run may find {'less' if starved.value > GATE else 'more'} than {percent(GATE)}"


def _beyond_the_wait(ladder: LadderView) -> str:
    """Return, as a clause, that the input costs a loop without workers more than its time in ``next()``.

    It makes its batches there. The rest of the cost is what else differs between steps with new and with cached
    batches: they may be larger, or the core slower.
    """
    waited, found = ladder.waited("baseline"), sides(ladder)
    if ladder.session.workers or waited is None:
        return ""
    beyond = found.waits.value + found.sampler - waited.high * found.step.value
    if waited.high >= GATE and beyond <= GATE * found.step.value:
        return ""
    return f"it makes its batches in {percent(waited.value)} of a step"


def _open_which(ladder: LadderView, ranked: list[Stage], top: Stage) -> str:
    """Return, as a clause, why another stage than the costliest may cost more; empty if none is known to.

    Workers that are late may also take cores from the training process, which may be the larger cost. Where cores are
    short, work that does not need one may cost little: the loop without it tells. And the samples that were looked into
    are usual ones: what batches that take far longer cost may be due to any stage of a sample.
    """
    if any(piece.stage == "contention" and piece.ms.value > top.ms.value for piece in ranked):
        return "workers taking CPU time may cost more"
    seen, found = ladder.evidence("baseline"), sides(ladder)
    less = [p.without.steps_per_s for p in ranked if p is not top and p.stage in OF_THE_WORKERS and p.without]
    if top.without is not None and top.without.measured and (1 + GATE) * top.without.steps_per_s < max(less, default=0):
        return "the loop was hardly faster without it"
    of_samples = [p for p in ranked if p.stage in OF_THE_WORKERS and (p.stage != "collate" or "collate_ms" not in seen)]
    rival = next((piece.ms.value for piece in of_samples if piece is not top), None)
    waits = found.waits.value
    slow = min(waits, max(ladder.beyond_usual("baseline") * waits, ladder.rare.waits.ms, _slow_batches_ms(ladder)[0]))
    if top.stage not in OF_THE_WORKERS or rival is None or slow <= GATE * found.step.value:
        return ""
    ahead = (1 - slow / waits) * (top.ms.value - rival)
    return "a few batches take far longer, and it is open in which stage" if ahead < slow else ""


def decided(starved: Interval) -> bool | None:
    """Return whether the loop starves, or None while open. An interval no wider than the gate is precise enough."""
    if starved.low > GATE or starved.high < GATE:
        return starved.low > GATE
    return starved.value > GATE if starved.high - starved.low <= GATE else None


def _costliest(ladder: LadderView, ranked: list[Stage]) -> Stage | None:
    """Return the costliest stage on the side that limits the loop: the workers' if the loop certainly waits for them.

    Contention is returned only if it is certain and most of the cost.
    """
    cost, found = sum(piece.ms.value for piece in ranked), sides(ladder)
    gate = GATE * found.step.value
    late = ladder.session.workers > 0 and found.waits.low > gate
    for piece in ranked:
        if piece.stage == "contention":
            if piece.ms.low > gate and piece.ms.value >= CONTENTION * cost:
                return piece
        elif piece.ms.value > 0 and (piece.stage in OF_THE_WORKERS or not late):
            return piece
    return None


def _following(ladder: LadderView, ranked: list[Stage], top: Stage, after: float, best: float) -> str:
    """Return what limits the loop without the costliest stage: the next largest of the side that limits then."""
    if best and after > (1 - GATE) * best:
        return "compute"
    found, left = sides(ladder), 1000.0 / after
    rest = [p for p in ranked if p is not top]
    late = left > (1 + RESOLUTION) * (found.step.value - found.waits.value)
    if ladder.session.workers:
        rest = [p for p in rest if (p.stage in OF_THE_WORKERS) == late]
    worth = [p for p in rest if p.ms.value > (0.0 if late else GATE * left)]
    return worth[0].stage if worth else "compute"


def _agrees(ladder: LadderView, top: Stage) -> bool:
    """Return whether the rungs next to the costliest stage were each measured twice and agree with its cost."""
    if top.ms.low <= 0 or any(ladder.has(rung) and ladder.windows(rung) < ENOUGH for rung in rungs_beside(top.stage)):
        return False
    if top.stage not in OF_THE_WORKERS:
        return bool(top.rung) or top.covers in (["contention"], ["sampler"])  # rungs measured it, or a clock
    return (ladder.has("sample") or ladder.has("raw")) and not disagreements(ladder)


def disagreements(ladder: LadderView) -> list[tuple[str, float, float]]:
    """Return rungs whose steps contradict a worker's time: name, milliseconds expected and measured.

    The law for a loop that waits for its workers: a step takes their time for a batch divided by their number, but at
    least the time that the training process needs.
    """
    took, found = ladder.evidence("baseline").get("worker_ms", 0.0), sides(ladder)
    if not ladder.session.workers or took <= 0 or found.waits.value <= GATE * found.step.value:
        return []
    apart = []
    for rung in ("sample", "raw"):
        made = ladder.evidence(rung).get("worker_ms") if ladder.has(rung) else None
        if not made:
            continue
        expected = max(found.ready, found.step.value * made / took)
        measured = ladder.ms(rung)
        if not measured.low / AGREE <= expected <= measured.high * AGREE:
            apart.append((rung, expected, measured.value))
    return apart


def starved_share(ladder: LadderView) -> Interval | None:
    """Return the share of a step that the input pipeline costs, or None if unknown.

    The interval holds for another run of the same script: its input may cost :data:`.thresholds.RUN_TO_RUN` of its cost
    more or less. That matters little for shares near 0 or 1. Other processes that hold up the step may do so half as
    much or half as much again; that matters if the loop waits, and its workers have no time in hand. And it meets more
    or fewer rare long steps, of which the windows may have met too few.
    """
    share = measured_share(ladder)
    if share is None:
        return None
    part, base = min(1.0, max(0.0, share.value)), ladder.ms("baseline").value
    waits = min(1.0, part / (2 * GATE))
    by_others = waits * ladder.crowded("baseline", ladder.ceiling) / 2 if ladder.intervened else 0.0
    # The number of rare steps varies by twice its root, in 95 % of runs.
    by_chance = 2 * hypot((1 - part) * ladder.rare.waits.sd, part * ladder.rare.trains.sd) / base
    slow_ms, deviation = _slow_batches_ms(ladder)
    if not ladder.has(LONGER):
        by_chance = max(by_chance, (1 - part) * 2 * deviation / base)
    share = share.blurred(hypot(RUN_TO_RUN * part * (1 - part), by_others, by_chance))
    # Slow batches may have been made outside of all windows, and the long window may have waited less or more.
    missed = max(0.0, slow_ms - ladder.rare.waits.ms)
    less, more = 0.0, (1 - part) * missed / (base + missed)
    usual, longer = ladder.waited("baseline"), ladder.waited(LONGER) if ladder.has(LONGER) else None
    if usual is not None and longer is not None:
        less, more = max(0.0, usual.low - longer.value), max(more, longer.value - usual.high)
    return least(Interval(share.value, share.low - less, share.high + more).not_negative(), exactly(1.0))


def _slow_batches_ms(ladder: LadderView) -> tuple[float, float]:
    """Return by how many milliseconds slow batches make a mean step longer, and the standard deviation of that.

    They are counted over all batches of the loop as it is, also between windows. While one worker makes a slow batch,
    the others fill their queues and wait if the order is kept. All workers hide slow batches as far as they have time
    in hand. A time at which the process stood still is no batch's.
    """
    slow, loader = ladder.session.slow_batches, ladder.session.loader
    share = measured_share(ladder)
    if slow is None or loader is None or share is None or not slow.batches:
        return 0.0, 0.0
    workers = ladder.session.workers
    hidden = min(1.0, max(0.0, share.value) / (2 * GATE)) if workers else 1.0
    queued = workers * (loader.prefetch_factor or 2) * ladder.ms("baseline").value
    costs = [max(ms / max(1, workers), ms - queued) for ms in slow.longer_ms if not ladder.stood_still_for(ms)]
    return hidden * sum(costs) / slow.batches, hidden * hypot(*costs) / slow.batches


def measured_share(ladder: LadderView) -> Interval | None:
    """Return the share of the baseline step that the input pipeline cost in this run, or None if unknown.

    This is ``1 - ceiling / baseline``, but at least the share in which the loop waited. Only the waiting counts if the
    loop was not fed from a cache.
    """
    if not ladder.has("baseline"):
        return None
    waited = ladder.waited("baseline")
    if not ladder.intervened:
        return waited
    share = ladder.share("baseline", ladder.ceiling).not_negative()
    return share if waited is None else largest(share, waited)


def why_uncertain(ladder: LadderView, bottleneck: str) -> str:
    """Return why it is not certain whether the loop starves and what for, as a clause; empty if it is certain."""
    return next(filter(None, _reasons(ladder, bottleneck)), "")


def _reasons(ladder: LadderView, bottleneck: str) -> Iterator[str]:
    session, ceiling = ladder.session, ladder.ceiling if ladder.intervened else ""
    if not ceiling:
        yield f"seen in {counted(session.steps_seen, 'step')} only"
        return
    if session.warned(KEPT_BATCHES):
        yield "the script goes on without its loader after an epoch"
    paired, used = ladder.paired("baseline", ceiling), others(session, ladder.windows_used("baseline"))
    who = f"other processes used {number(used)} of {session.cores:g} cores" if used else "the machine was busy"
    busy = [who] if used >= worth_telling(session) else []
    short = ["the script is short"] if session.script.passes > _SHORT else []
    because = f", as {listed(short + busy)}" if short + busy else ""
    if len(paired) < ENOUGH:
        yield f"measured once only{because}"
    elif min(ladder.times("baseline"), ladder.times(ceiling)) < ENOUGH:
        yield f"measured at one time only{because}"
    windows = [window for pair in paired for window in pair]
    if stolen(windows, session.cores):
        yield "this virtual machine's host took CPU time away"
    if (share := ladder.waits_beside) > GATE:
        yield f"the loop waits {percent(share)} of a step for another loader, too"
    shares = [1 - fast / slow for slow, fast in ladder.steps_of_pairs("baseline", ceiling)]
    if shares and max(shares) - min(shares) > _APART:
        beside = f", while {who}" if busy else ""
        yield f"its measurements differ: {percent(max(0.0, min(shares)))} and {percent(max(0.0, *shares))}{beside}"
    at_times = ladder.unlike("baseline", ceiling)
    if shares and at_times is not None and abs(at_times - median(shares)) > _APART:
        yield f"while other processes use more cores, data costs {percent(max(0.0, at_times))}"
    if ladder.disturbed("baseline", ceiling) > DISTURBED:
        yield f"{who}, and not evenly"
    if shares and (crowded := ladder.crowded("baseline", ceiling)) > _CROWDED:
        yield f"{who}; without them data may cost up to {percent(median(shares) + crowded)}"
    if session.loader is not None and session.loader.dataset_lasts and made_again(ladder) is not None:
        yield "the dataset keeps what it has made, so later epochs cost less"
    if bottleneck in _COUNTED and session.workers:
        yield from busy  # these are what remains of a step, and so is the time that others take
        if any(window.account is None for window in windows):
            yield "the kernel does not count how long threads wait for a core"


def rungs_beside(stage: str) -> tuple[str, ...]:
    """Return the rungs that prove what a stage costs: with and without it.

    The workers' stages are part of the baseline, so the rung without the stage is enough.
    """
    adding = next((rung for rung, of in STAGE_OF_RUNG.items() if of == stage), "")
    if not adding:  # contention, the sampler: the same work with and without
        return ("worker", "host", "device")
    without = RUNGS[max(0, RUNGS.index(adding) - 1)]
    return (without, adding) if adding in ("host", "worker") else (without,)


def so_far(session: Session) -> list[str]:
    """Return the interim result in parts, the most important first; empty before the first steps.

    Once the loop was fed from a cache, the first part is what data costs, the figure of the later headline. Until then
    it is the time in ``next()``, which misleads at first: the loop uses up batches that were queued in its slow first
    step. So the workers' pace stands beside it.
    """
    ladder = LadderView(session)
    waits = waiting(ladder)
    if not waits:
        return []
    if draws_unseen(session):
        return ["the loop was seen to draw from no loader, generator or queue yet"]
    step, starved = number(ladder.ms("baseline").value), starved_share(ladder)
    parts = [waits]
    if ladder.intervened and starved is not None:
        parts = [f"data costs {percent(max(0.0, starved.value))} of a step of {step} ms"]
    elif session.workers and (made := ladder.evidence("baseline").get("worker_ms", 0.0)):
        who = counted(session.workers, "worker")
        parts.append(f"a step takes {step} ms, a batch from {who} {number(made / session.workers)} ms")
    inside = parts_of_sample(session.inside, lambda cost: cost.wall_ms)
    return [*parts, *(f"{shown(name)} is {percent(share)} of a sample" for name, share in inside[:1])]


def _starving(
    ladder: LadderView,
    share: Interval,
    top: Stage,
    others: list[str],
    following: str,
    after: float,
    best: float,
) -> str:
    """Return the sentence for a starving loop.

    ``after`` is steps per second without the costliest stage; ``best`` is the same without any input cost, 0 if
    unknown.
    """
    base, what, session = ladder.ms("baseline"), _WORK[top.stage], ladder.session
    if top.stage == "load" and "transform" in top.covers:
        what = _WHOLE_DATASET
    if session.watched is not None:
        of = "each step" if session.counts_steps else "its time"
        return f"{whose(session).capitalize()} waits for data {percent_of(of, share)}, for {what}."
    text = (
        f"Data costs {whose(session)} {percent_of('each step', share)}: "
        f"{what} costs {number(top.ms.value)} of {number(base.value)} ms."
    )
    if others:
        text += f" A comparable part goes into {listed([*map(shown, others)])}."
    if not best:
        return text
    if after <= (1 + RESOLUTION) * 1000.0 / base.value:
        text += " Removing it alone would not make the loop faster"
        text += f": {shown(following)} would still limit it" if following != "compute" else ""
        return text + f"; if data were free, {number(best)} steps/s."
    text += f" Without it the loop would run at about {number(after)} steps/s"
    if following != "compute":
        return text + f", limited next by {shown(following)}; if data were free, {number(best)}."
    text += f" instead of {number(1000.0 / base.value)}"
    if after < (1 - GATE) * best:  # several small costs remain
        return text + f"; if data were free, {number(best)}."
    return text + ", limited by the model itself."


def _only_observed(ladder: LadderView) -> str:
    """Return the evidence behind a verdict from the loop's own waiting, and what would make it stronger."""
    session = ladder.session
    if session.watched is not None:
        moments, seconds = counted(session.watched.looks, "moment"), session.watched.seconds
        return (
            f" This was observed from outside at {moments} in {seconds:g} s. It does not prove what would make the "
            "loop faster: only feeding it from a cache does."
        )
    more = "Give a longer budget" if session.ended == "budget" else "Let it train for more steps"
    return (
        f" This was observed in {session.steps_seen} steps; {unfed(session)}. "
        f"{more}, and pipediag measures how fast it would be."
    )


def _largest_part(session: Session, top: Stage, pieces: list[Stage]) -> str:
    """Return which part of the costliest stage dominates, by the workers' time."""
    parts = [p for p in pieces if p.stage == top.stage and p.links and p.culprit is not None and p.ms.value > 0]
    if (top.stage == "transform" and len(parts) > 1) or (top.stage in _OF_LINES and parts):
        parts = ranked(parts)
        told = [
            f"{named(p.culprit)} costs "
            + (f"{number(p.ms.value)} ms" if session.counts_steps else f"{percent(p.share)} of the time")
            for p in parts[:3]
            if p.culprit is not None and p.ms.value >= CO_BOTTLENECK * parts[0].ms.value
        ]
        return f" Of {_OF_LINES.get(top.stage, 'the transforms')}, {'; '.join(told)}."
    most = heaviest(session.inside)
    if top.stage == "load" and "transform" in top.covers and most is not None and most[1] >= CO_BOTTLENECK:
        link, share = most
        return f" {percent(share)} of the time a worker spends on a sample goes into {named(link)}."
    return ""


def _not_starved(ladder: LadderView, share: Interval) -> str:
    base = ladder.ms("baseline")
    if not ladder.intervened:
        of = f"a {number(base.value)} ms step" if ladder.session.counts_steps else "its time"
        share_text = percent_of(of, share)
        return f"Not starved: the loop waits for data {share_text}.{_only_observed(ladder)}"
    best = ladder.best
    takes = f"a step takes {number(base.value)} ms with the loader and {number(best.value)} ms with cached batches"
    waits = share.value > 1 - best.value / base.value + RESOLUTION
    costs = "; the loop waits for data" if waits else ", so data costs"
    return f"Not starved: {takes}{costs} {percent_of('', share)}. To be faster, work on the model's own step."


def _undecided(ladder: LadderView, share: Interval, top: Stage | None) -> str:
    most = f" Most of it would be {shown(top.stage)}." if top is not None else ""
    found = f"It is not yet certain whether the loop starves: data costs {percent_of('each step', share)}.{most}"
    if draws_unseen(ladder.session):
        return "It is open whether the loop waits for data: it was seen to draw from no loader, generator or queue."
    if ladder.waits_beside > GATE:
        return f"{found} The loop waits for another loader, too: --loader N analyses the N-th that it iterates."
    return f"{found} A longer budget narrows the interval."


def _contended(ladder: LadderView, lost: Interval, late: bool) -> str:
    """Return the sentence for workers in the way, which may be late, too; with advice for too many threads."""
    base, running, told = ladder.ms("baseline"), wanting_to_run(ladder.session), ""
    if running.exceed:
        told = f" {running}."
        if running.each > 1:
            told = f" {running}: {running.limit} in a worker_init_fn limits each worker to one."
        elif running.own > 1:
            own = f"OMP_NUM_THREADS or torch.set_num_threads({running.own_share})"
            told = f" {running}: {own} limits the training process."
    helps = "Fewer workers or fewer threads, not more, may help, and so may less work for the workers."
    if late:  # fewer of them would be later still
        helps = "Less work for the workers may help with both, and fewer threads may help."
    return (
        f"The workers are {'late, and' if late else 'not late, but'} they compete with the {loop_of(ladder.session)} "
        f"process for the CPU: while they run, a step takes {number(lost.value)} ms longer (of {number(base.value)} "
        f"ms), waiting not included. {helps}{told}"
    )
