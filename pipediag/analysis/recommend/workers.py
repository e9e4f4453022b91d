"""Rules for the loader's workers: their number and start, prefetching, and competition for cores."""

from __future__ import annotations

import math
from dataclasses import replace

from ...session.events import EDITED
from ..amortised import epoch_start, other_loaders
from ..diagnosis import Recommendation
from ..numbers.intervals import Interval, exactly
from ..numbers.ladder import LadderView
from ..ranks.shared_cores import workers_that_fit
from ..thresholds import GATE, QUEUED
from ..trials.threads import outcome as fewer_threads
from ..trials.threads import queued_share, wanting_to_run
from ..whatif import Change, WhatIf
from ..words import counted, number, percent
from .tried import RISKS, found_best, predicted_only, refuted
from .view import ALL, View, at_line

#: CPU time does not limit workers that are blocked for more than this share of their time.
_BLOCKED = 0.3
#: Cores from which more threads certainly run than one, or than there are cores for.
_SEVERAL = 1.1
#: Seconds of an epoch in which starting workers, from a tenth of a second to several, is worth avoiding.
_SHORT_EPOCH = 60.0
_TIMED = "computed from these times, not tried: no steady window includes the time between {}"
#: Risk of the first workers. That others run shows that the code can.
_FIRST = "code that needs a library's threads hangs in forked ones: multiprocessing_context='spawn' starts them afresh"
#: How batches of an iterable are made in workers.
_AS_A_DATASET = (
    "DataLoader(dataset, batch_size=None, num_workers={}), where dataset is an IterableDataset whose __iter__ makes "
    "the batches, in each worker its part of them (torch.utils.data.get_worker_info())"
)


def more_workers(view: View) -> Recommendation | None:
    """Recommend more workers, if these have cores, or hardly need any."""
    work, cores, model = view.work, view.session.cores, view.whatif
    wanted, fit = model.workers_wanted(), workers_that_fit(view.session)
    if work is None or cores is None or wanted is None or not model.waits:
        return None
    wanted = wanted if fit is None else min(wanted, fit)
    if wanted <= model.workers or view.loader.nests:
        return None
    if (view.ladder.full("baseline") and not _sleep(view)) or refuted(view.session, "num-workers"):
        return None
    plain = view.loader.plain_iterable
    if plain and (view.loader.dataset_code is None or view.loader.dataset_code.library):
        return None  # it may have workers of its own
    run, loop = number(work.run), number(model.loop + model.lost.value)
    if model.workers:
        who = "1 worker gives" if model.workers == 1 else f"{model.workers} workers give"
        evidence = f"{who} a batch every {number(model.supply)} ms, each made in {run} ms"
    else:
        evidence = f"the training process makes each batch itself, in {run} ms"
    epoch, keep = (view.loader.epoch or 0) * model.base / 1000, ""
    notes = predicted_only(view, "num-workers")
    if not model.workers and 0 < epoch < _SHORT_EPOCH and not view.session.warned(EDITED):
        keep = ", persistent_workers=True"
        notes.append(f"an epoch takes {number(epoch)} s, and its workers are started anew unless they persist")
    title = f"num_workers={wanted} instead of {model.workers}"
    how = f"num_workers={wanted}{keep} {view.in_the_loader}"
    if plain:
        title, how = f"Make the batches in {counted(wanted, 'worker')}", _AS_A_DATASET.format(wanted)
    return view.made(
        "num-workers",
        title,
        view.workers_stage,
        Change(workers=wanted),
        [
            f"{evidence}; the loop could take one every {loop} ms",
            f"a worker uses {percent(work.cpu / work.run)} of a core, and {number(model.free)} of {cores:g} cores are "
            "free for workers",
            *notes,
        ],
        how,
        RISKS["num-workers"] if model.workers else f"{RISKS['num-workers']}; {_FIRST}",
    )


def _sleep(view: View) -> bool:
    """Return whether the workers are blocked for so long that CPU time does not limit them."""
    return view.seen.get("worker_blocked", 0.0) > _BLOCKED


def prefetch(view: View) -> Recommendation | None:
    """Recommend a deeper queue, if the loop waits although the workers are fast enough on average."""
    model, loader = view.whatif, view.loader
    if not irregular(view.ladder, model) or refuted(view.session, "prefetch-factor") or found_best(view, "no-workers"):
        return None
    alone, base = view.ladder.ms("supply").value, model.base
    steady = max(model.loop + model.lost.value, alone)
    stalled, now = view.seen.get("stalled_ms", 0.0), loader.prefetch_factor or 2
    beside = " while workers run" if model.lost.value > 0 else ""
    evidence = [
        f"the loop alone takes {number(model.loop + model.lost.value)} ms a step{beside} and the loader alone "
        f"{number(alone)} ms a batch, but together they take {number(base)} ms"
    ]
    if stalled > 0:
        evidence.append(f"the loop waits {number(stalled)} ms of each step for one batch while later ones are ready")
    tail = view.session.tail
    if tail is not None and tail.p50_ms > 0:
        evidence.append(
            f"a sample takes {number(tail.p50_ms)} ms (median) to {number(tail.p99_ms)} ms (99th percentile)"
        )
    best = max(steady, base - stalled) if stalled > 0 else steady
    return view.made(
        "prefetch-factor",
        f"prefetch_factor={2 * now} instead of {now}",
        view.workers_stage,
        model.speedup(base, Interval(best, steady, best)),
        [*evidence, "the gain of a queue that is never empty", *predicted_only(view, "prefetch-factor")],
        f"prefetch_factor={2 * now} {view.in_the_loader}; in_order=False lets ready batches go before a slow one",
        f"{model.workers * now} more batches lie in host memory; in_order=False changes the order of the batches",
        at_most=True,
    )


def irregular(ladder: LadderView, model: WhatIf) -> bool:
    """Return whether batches arrive irregularly: loop and loader are fast enough alone, but slower together.

    With all cores in use that is not known, since the two may compete for them.
    """
    if not model.workers or not ladder.has("supply") or ladder.full("baseline"):
        return False
    stalled = ladder.evidence("baseline").get("stalled_ms", 0.0)
    certain = stalled > GATE * model.base or ladder.cost("baseline", "supply").low > 0
    steady = max(model.loop + model.lost.value, ladder.ms("supply").value)
    return certain and model.base - steady > GATE * model.base


def threads(view: View) -> Recommendation | None:
    """Recommend fewer threads: as measured if they were tried, else if more threads than cores run and one waits.

    A library that may use many threads in a worker often uses one: its own share of a core shows how many run.
    """
    if (trial := fewer_threads(view.session)) is not None and trial.pays:
        count, waits = trial.threads, percent(queued_share(view.session))
        return view.made(
            "threads",
            f"{counted(count, 'thread')} for torch in the training process",
            "compute",
            None,
            [
                f"measured in {trial.rounds} rounds against the script as it is, which has {trial.before} threads",
                f"one of these waits for a core {waits} of each step, and all operations wait for it",
            ],
            f"OMP_NUM_THREADS={count} in the environment, or torch.set_num_threads({count}) before the loop; then "
            "analyse again: what data costs beside a faster step is not known yet",
            "on cores that nothing else uses, more threads are faster; sums may round differently",
            trial.speedup,
        )
    model, running = view.whatif, wanting_to_run(view.session)
    queued, used = view.seen.get("worker_queued", 0.0), view.seen.get("process_cpu", 0.0)
    if not model.workers or not running.exceed or (running.each == 1 and trial is not None):
        return None
    if running.each > 1:
        used = view.seen.get("worker_cpu", 0.0) / max(1e-3, 1 - queued)
    if used <= _SEVERAL * (1 if running.each > 1 else running.own_share):
        return None
    if queued < QUEUED and model.lost.value <= GATE * model.base:
        return None
    who = "a worker" if running.each > 1 else "the training process"
    evidence = [str(running), f"{who} uses {used:.1f} cores when it runs"]
    if queued > 0:
        evidence.append(f"a worker waits for a core {percent(queued)} of its time")
    if model.lost.value > 0:
        evidence.append(_in_the_way(view))
    how = f"{running.limit} in the worker_init_fn"
    if running.each == 1:
        own = running.own_share
        how = f"torch.set_num_threads({own}) or OMP_NUM_THREADS={own} in the training process"
    return view.made(
        "threads",
        "Run no more threads than cores",
        "contention",
        Change(loop=model.lost, supply=exactly(1 - queued)),
        [*evidence, ALL],
        how,
        "a transform that gains from threads of its own takes longer for each sample",
        at_most=True,
    )


def fewer_workers(view: View) -> Recommendation | None:
    """Recommend fewer workers, if they are on time but compete with the training process."""
    model = view.whatif
    if view.verdict.bottleneck != "contention" or model.work is None or model.lost.value <= 0:
        return None
    enough = max(1, model.workers_enough())
    if enough >= model.workers or refuted(view.session, "fewer-workers") or found_best(view, "no-workers"):
        return None
    return view.made(
        "fewer-workers",
        f"num_workers={enough} instead of {model.workers}",
        "contention",
        Change(workers=enough),
        [
            _in_the_way(view),
            f"{model.workers} workers give a batch every {number(model.supply)} ms and the loop takes one every "
            f"{number(model.loop)} ms at best: {enough} are enough",
            "at best contention falls with their number; it stays if it comes from the batches that they make",
            *predicted_only(view, "fewer-workers"),
        ],
        f"num_workers={enough} {view.in_the_loader}",
        RISKS["fewer-workers"],
        at_most=True,
    )


def _in_the_way(view: View) -> str:
    lost = number(view.whatif.lost.value)
    return f"waiting not included, a step takes {lost} ms longer while workers run than with cached batches"


def more_cores(view: View) -> Recommendation | None:
    """Recommend a machine with more cores per device, if no number of workers suffices on this one."""
    work, cores, model = view.work, view.session.cores, view.whatif
    wanted = model.cores_wanted()
    if view.on_cpu or work is None or cores is None or wanted is None:
        return None
    if not model.waits or math.ceil(wanted) <= cores:
        return None
    if _sleep(view):
        return None
    needed, each, loop = math.ceil(wanted), number(work.cpu / model.loop), number(model.loop)
    workers = max(model.workers, math.ceil(work.run / model.loop))
    return view.made(
        "more-cores",
        f"About {needed} CPU cores instead of {cores:g}",
        view.workers_stage,
        Change(workers=workers, cores=float(needed)),
        [
            f"a batch takes the workers {number(work.cpu)} ms of CPU time and the loop can take one every {loop} ms: "
            f"{each} cores, in addition to {number(model.taken)} for the training process and others"
        ],
        f"an instance with at least {needed} cores for each device and num_workers={workers} {view.in_the_loader}; "
        "or less work for the workers",
        "predicted for cores of the same speed",
    )


def one_iterator(view: View) -> Recommendation | None:
    """Recommend one iterator for many batches, if the loop makes a new one for every batch."""
    loader, base = view.loader, view.whatif.base
    start = epoch_start(view.ladder)
    if loader.left_after != 1 or start is None or start.per_step is None or not start.starts:
        return None
    each = start.per_step
    where = f" at {loader.where}" if loader.where else ""
    return view.made(
        "one-iterator",
        "Take batches from one iterator",
        "startup",
        _gain(base, each, 0.0),
        [
            f"the loop makes a new iterator for every batch: {number(each.value)} ms until it gives the first one, in "
            f"addition to {number(base)} ms for the step itself",
            _TIMED.format("iterators"),
        ],
        f"batches = iter(loader) before the loop and next(batches) in it, in place of next(iter(loader)){where}",
        "each batch then comes from the rest of the epoch, not from all samples; StopIteration begins the next epoch",
        startup_ms=each.value,
    )


def cheaper_sampler(view: View) -> Recommendation | None:
    """Recommend a sampler that begins faster, if most of an epoch's start is its choice of the first batches."""
    start, place = epoch_start(view.ladder), view.loader.sampler
    if start is None or start.per_step is None or place is None or not start.starts or not start.by_sampler:
        return None
    one, each = start.usual, start.per_step
    return view.made(
        "sampler-start",
        f"Let {place.name} begin faster",
        "startup",
        _gain(view.whatif.base, each, each.value * (1 - one.sampler / one.seconds)),
        [
            f"an epoch begins with {number(one.seconds)} s until the first batch, of which the sampler takes "
            f"{number(one.sampler)} s to choose the first batches",
            _TIMED.format("epochs"),
        ],
        f"{at_line(place)}the order of all samples made with whole arrays, or once for all epochs; no worker runs the "
        "sampler",
        "another way of choosing may give other batches",
        startup_ms=each.value,
        at_most=True,
    )


def persistent_workers(view: View) -> Recommendation | None:
    """Recommend keeping the workers between epochs, if more than the first launch of a process was seen."""
    loader, base = view.loader, view.whatif.base
    start = epoch_start(view.ladder)
    if loader.persistent_workers or loader.left_after == 1 or start is None or start.per_step is None:
        return None
    if not start.launching or not start.starts:
        return None
    one, each = start.usual, start.per_step
    evidence = [
        f"every epoch of {counted(loader.epoch or 0, 'batch', 'batches')} begins with {number(one.seconds)} s until "
        f"the first batch: {number(each.value)} ms per step, in addition to {number(base)} ms for the step itself",
        f"the workers take {number(one.ready)} s of that to get ready",
    ]
    if start.once > GATE * start.seconds.value:
        evidence.append(f"their first batch takes {number(start.once)} s longer than later ones")
    if start.shutdown:
        evidence.append(f"ending the previous epoch's workers takes another {number(start.shutdown)} s")
    evidence.append(f"timed in {counted(start.starts, 'start')} after the first of the process")
    evidence.append(_TIMED.format("epochs"))
    # Workers that are kept still make a first batch, unless it is ready before it is asked for. At worst, it takes as
    # long as that of new ones.
    left, most = (
        1 - saved / start.seconds.value for saved in (start.launching, max(0.0, start.launching - start.once))
    )
    gain = replace(_gain(base, each, each.value * left), low=_gain(base, each, each.value * most).low)
    title, how = "Keep the workers from epoch to epoch", f"persistent_workers=True {view.in_the_loader}"
    if view.session.warned(EDITED):
        title += ", and share with them what changes"
        how = (
            "first put what the script changes in its dataset between epochs into shared memory, as "
            f"torch.zeros(1).share_memory_(), or workers that are kept do not see it; then {how}"
        )
    return view.made(
        "persistent-workers",
        title,
        "startup",
        gain,
        evidence,
        how,
        "changes to the dataset object between epochs no longer reach the workers, which keep their memory",
        startup_ms=each.value,
    )


def starting_others(view: View) -> Recommendation | None:
    """Recommend keeping the workers of the other loader that costs the loop most, or else using it less often."""
    found = sorted(other_loaders(view.ladder), key=lambda one: one.per_step.value)
    if not found or found[-1].per_step.value <= 0:
        return None
    one, base = found[-1], view.whatif.base + found[-1].hidden
    cost, left = one.per_step, max(0.0, one.spent.value * (1 - one.kept / one.seconds.value) - one.hidden)
    evidence = [
        f"every {counted(one.every, 'step')} the loop waits {number(one.seconds.value)} s for the loader at "
        f"{one.where}: {number(cost.value)} ms per step, in addition to {number(base)} ms for the step itself"
    ]
    if one.kept and not one.persistent:
        title = "Keep the workers of the other loader"
        risk = "its workers stay in memory beside those of the training loader"
        how = f"persistent_workers=True in the DataLoader that is iterated at {one.where}"
        evidence.append(f"launching its workers and ending them takes {number(one.kept)} s of that")
    else:
        title, left = "Use the other loader half as often", max(0.0, one.spent.value / 2 - one.hidden)
        risk = "what it is used for, such as a validation, is known less often"
        how = f"use the loader that is iterated at {one.where} less often, or with fewer batches"
    return view.made(
        "other-loaders", title, "startup", _gain(base, cost, left), [*evidence, _TIMED.format("steps")], how, risk
    )


def _gain(base: float, cost: Interval, left: float) -> Interval:
    """Return the speedup if ``left`` milliseconds a step remain of a cost beside the step; at best, none remain."""
    remains = left / cost.value
    value, low = ((base + ms) / (base + ms * remains) for ms in (cost.value, cost.low))
    return Interval(value, low, (base + cost.high) / base)
