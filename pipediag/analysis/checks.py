"""Find warnings that a reader needs before trusting the numbers."""

from __future__ import annotations

import itertools
import math
import statistics

from ..session import Session, Warning_, is_of_ladder
from .amortised import seen_once
from .diagnosis import Stage
from .numbers.chain import parts_of_sample
from .numbers.foreign_load import others, worth_telling
from .numbers.ladder import LadderView
from .numbers.loop_and_workers import made_again
from .ranks.shared_cores import too_many
from .thresholds import GATE, SLOW
from .verdict import disagreements
from .waterfall import input_stages
from .words import first_of, number, percent, shown

#: Largest number of files named in a warning.
FILES = 4
#: Sample sizes vary if the largest is at least this many times the smallest.
VARIED = 1.5
#: Steps depend on the batch if they differ by this share of the median, and by this many times the spread of repeats.
DEPENDENT, REPEATABLE = 0.2, 3.0


def missing(ladder: LadderView) -> list[str]:
    """Return the ladder's rungs that could be measured but have no window."""
    available = [rung.name for rung in ladder.session.rungs.values() if rung.available]
    return [name for name in available if is_of_ladder(name) and not ladder.windows(name)]


def warnings(ladder: LadderView, pieces: list[Stage]) -> list[Warning_]:
    session = ladder.session
    help = "a longer budget sees more of them; the first one also imports and reads what later ones find ready"
    found = [
        _partial(ladder),
        *_not_monotone(ladder),
        *_disagreeing(ladder),
        _foreign_load(ladder),
        _paused(ladder),
        too_many(session.ranks),
        _full_cpu(ladder, pieces),
        Warning_("start-seen-once", told, help) if (told := seen_once(ladder)) else None,
        _keeps_samples(ladder),
        _heavy_tail(ladder),
        _varying_sizes(session),
        _varying_steps(ladder),
        _wrote(session),
    ]
    return [w for w in found if w is not None]


def _partial(ladder: LadderView) -> Warning_ | None:
    lacking = missing(ladder)
    if not lacking:
        return None
    return Warning_(
        "partial",
        f"PARTIAL: time ran out before these rungs were measured: {', '.join(lacking)}",
        "give it a longer budget" if ladder.session.ended == "budget" else "",
    )


def _not_monotone(ladder: LadderView) -> list[Warning_]:
    """Warn of a rung that is certainly faster than the one below it: that breaks the ladder's order."""
    if not ladder.has("baseline"):
        return []
    gate = GATE * ladder.ms("baseline").value
    costs = {slow: ladder.cost(slow, fast) for fast, slow in itertools.pairwise(ladder.rungs)}
    return [
        Warning_(
            "not-monotone",
            f"with {shown(ladder.stage(rung))} a step is {number(-cost.value)} ms faster than without, "
            "which added work cannot do",
            "something else changed between the two rungs (CPU load, caches, batch contents); judge the neighbouring "
            "stages together",
        )
        for rung, cost in costs.items()
        if cost.high < -gate
    ]


def _disagreeing(ladder: LadderView) -> list[Warning_]:
    """Warn of rungs whose steps contradict the workers' time for a batch."""
    if not ladder.has("baseline"):
        return []
    return [
        Warning_(
            "rungs-disagree",
            f"under the rung {rung} a step takes {number(measured)} ms, but the workers' time for a batch predicts "
            f"{number(expected)} ms",
            "the workers' stages are costed by the workers' time; full cores or blocked workers make rungs differ",
        )
        for rung, expected, measured in disagreements(ladder)
    ]


def _foreign_load(ladder: LadderView) -> Warning_ | None:
    """Warn of other processes that use cores: the verdict holds only for a machine under the same load."""
    session = ladder.session
    windows = [window for rung in ladder.rungs for window in ladder.windows_used(rung)]
    used = others(session, windows)
    if used < worth_telling(session):
        return None
    own = [window.evidence["cores_used"] for window in windows if "cores_used" in window.evidence]
    return Warning_(
        "foreign-load",
        f"other processes used {used:.1f} of {session.cores:g} cores during the measurement, the script and its "
        f"workers {statistics.median(own):.1f}",
        "the figures hold for a machine this busy; analyse on a quiet one",
    )


def _paused(ladder: LadderView) -> Warning_ | None:
    """Warn of stops and pauses that were cut out of windows."""
    cut = ladder.cut_out
    if not cut:
        return None
    times, longest = "once" if len(cut) == 1 else f"{len(cut)} times", number(max(seconds for seconds, _ in cut))
    known = all(stopped for _, stopped in cut)
    why = "" if known else ": it was stopped, or its own code slept"
    return Warning_(
        "paused",
        f"the script {'was stopped' if known else 'stood still'} {times}, for up to {longest} s{why}; this is left out",
        "analyse again if the script was not stopped by hand",
    )


def _full_cpu(ladder: LadderView, pieces: list[Stage]) -> Warning_ | None:
    """Warn of a full machine: the stage that exceeds the limit may not be the cause.

    A machine of which other processes use more cores than the script with its workers has a warning of its own.
    """
    if not ladder.has("baseline") or not ladder.full("baseline"):
        return None
    cores, busy = ladder.session.cores, ladder.busy_cores("baseline")
    if busy > 2 * ladder.evidence("baseline").get("cores_used", math.inf):
        return None
    told = f"{busy:.1f} of {cores:g} usable cores are in use while the script runs as it is"
    top = next((piece for piece in input_stages(ladder, pieces) if piece.share > GATE), None)
    added_by = next((r for r in ladder.rungs if top is not None and top.stage in ladder.covered(r)), "")
    before = ladder.below(added_by) if added_by else None
    if top is None or before is None or not ladder.full(before):
        return Warning_("full-cpu", told, "freeing CPU time anywhere in the workers may help as well")
    shares = parts_of_sample(ladder.session.inside, lambda cost: cost.cpu_ms)
    parts = [f"{shown(name)} {percent(share)}" for name, share in shares[:4]]
    return Warning_(
        "tipping-over",
        f"{told}, and {ladder.busy_cores(before):.1f} already were without {shown(top.stage)}: "
        "it may not be the cause, but only the stage that filled the machine",
        f"judge by the workers' CPU time: {', '.join(parts) or 'not known'}",
    )


def _heavy_tail(ladder: LadderView) -> Warning_ | None:
    """Warn of a few slow samples that hold up whole batches and the ready batches behind them."""
    tail = ladder.session.tail
    if tail is None or tail.p50_ms <= 0 or tail.p99_ms < SLOW * tail.p50_ms or not ladder.has("baseline"):
        return None
    stalled = ladder.evidence("baseline").get("stalled_ms", 0.0)
    if stalled < GATE * ladder.ms("baseline").value:
        return None
    which = ", ".join(f"{slow.index} ({number(slow.ms)} ms)" for slow in tail.slowest[:4] if slow.index)
    return Warning_(
        "heavy-tail",
        f"some samples take far longer than others (median {number(tail.p50_ms)} ms, 99th percentile "
        f"{number(tail.p99_ms)} ms): {number(stalled)} ms of each step are spent waiting for a batch while later ones "
        "are ready" + (f"; slowest indices: {which}" if which else ""),
        "fix or drop those samples, raise prefetch_factor, or let later batches go first: in_order=False",
    )


def _keeps_samples(ladder: LadderView) -> Warning_ | None:
    """Warn of a dataset that keeps what it has made: only the first epoch costs what was measured."""
    loader, found = ladder.session.loader, made_again(ladder)
    if found is None or loader is None:
        return None
    told = f"a sample takes {number(found[0])} ms of a core, and {number(found[1])} ms when it is made again: "
    if not loader.dataset_lasts:
        told += "what the dataset keeps is lost with the workers, at the end of each epoch"
        return Warning_("keeps-samples", told, "persistent_workers=True keeps it, or make it before the workers start")
    told += "the dataset keeps it, so that later epochs cost less than this"
    return Warning_("keeps-samples", told, "a longer budget reaches later epochs")


def _varying_sizes(session: Session) -> Warning_ | None:
    """Warn of samples that differ in size and time, with the time by class of size."""
    sizes = sorted(session.inside.sizes) if session.inside else []
    if len(sizes) < 6 or sizes[-1][0] < VARIED * max(1.0, sizes[0][0]):
        return None
    third = len(sizes) // 3
    classes = [sizes[:third], sizes[third:-third], sizes[-third:]]
    told = "; ".join(
        f"{_kib(part[0][0])} to {_kib(part[-1][0])}: {number(statistics.median(ms for _, ms in part))} ms"
        for part in classes
    )
    return Warning_(
        "varying-sizes",
        f"samples differ in size, and in the time a worker takes for each ({told})",
        "cached rungs are served from samples that span these sizes; shares are averages over them",
    )


def _kib(nbytes: float) -> str:
    return f"{number(nbytes / 1024)} KiB"


def _varying_steps(ladder: LadderView) -> Warning_ | None:
    """Warn of a model whose step depends on the batch: the ceiling is an average over the cached batches.

    A batch's shortest step counts: other processes only make it longer.
    """
    session = ladder.session
    steps = [(min(s.ms), max(s.ms) - min(s.ms), s.nbytes) for s in session.batch_steps if len(s.ms) > 1]
    if len(steps) < 3:
        return None
    shortest = [ms for ms, _, _ in steps]
    spread = max(shortest) - min(shortest)
    noise = statistics.median(again for _, again, _ in steps)
    if spread < DEPENDENT * statistics.median(shortest) or spread < REPEATABLE * noise:
        return None
    if ladder.has("baseline") and spread < GATE * ladder.ms("baseline").value:
        return None
    small, large = min(steps, key=lambda s: s[0]), max(steps, key=lambda s: s[0])
    sized = f" ({_kib(small[2])} against {_kib(large[2])})" if small[2] != large[2] else ""
    return Warning_(
        "varying-steps",
        f"the model's own step depends on the batch: {number(small[0])} to {number(large[0])} ms, with each batch fed "
        f"from the device several times{sized}",
        "the ceiling is an average over the cached batches; with batches of similar size, steps would differ less",
    )


def _wrote(session: Session) -> Warning_ | None:
    if not session.script.wrote:
        return None
    return Warning_(
        "wrote-files",
        f"the analysed script wrote {first_of(session.script.wrote, FILES)}",
        "the script really runs, once in every pass; --workdir DIR runs it in a scratch directory",
    )
