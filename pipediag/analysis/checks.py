"""Find warnings in the numbers that a reader needs before trusting them."""

from __future__ import annotations

import statistics

from ..session import CONTROLS, Session, Warning_, fed_apart
from .cores import busy_cores, full
from .diagnosis import Stage
from .ladder import LadderView, known
from .sentences import first_of, number, percent, shown
from .shared_cores import too_many
from .thresholds import GATE
from .verdict import disagreements
from .waterfall import input_stages

#: Other processes are reported if they use at least this share of the cores and at least this many cores.
FOREIGN, _OTHERS = 0.1, 0.4
#: Most files of the script's that are named.
FILES = 4
#: The tail is heavy if the 99th percentile is at least this many times the median.
SLOW = 3.0
#: Sample sizes vary if the largest is at least this many times the smallest.
VARIED = 1.5
#: Steps depend on the batch if they differ by this share of the median, and by this many times the spread of repeats.
DEPENDENT, REPEATABLE = 0.2, 3.0


def partial(ladder: LadderView) -> bool:
    """Return whether a rung that could be measured lacks windows."""
    return bool(missing(ladder))


def missing(ladder: LadderView) -> list[str]:
    rungs = ladder.session.rungs.values()
    available = [
        r.name for r in rungs if r.available and r.name not in CONTROLS and not fed_apart(r.name) and known(r.name)
    ]
    return [name for name in available if not ladder.windows(name)]


def warnings(ladder: LadderView, pieces: list[Stage]) -> list[Warning_]:
    session = ladder.session
    found = [
        _partial(ladder),
        *_not_monotone(ladder),
        *_disagreeing(ladder),
        _foreign_load(ladder),
        too_many(session.ranks),
        _full_cpu(ladder, pieces),
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
        "give it more time: --budget SECONDS" if ladder.session.ended == "budget" else "",
    )


def _not_monotone(ladder: LadderView) -> list[Warning_]:
    """Warn of a rung that is certainly faster than the one below it: that breaks the ladder's order."""
    if not ladder.has("baseline"):
        return []
    gate = GATE * ladder.ms("baseline").value
    found = []
    for slow, fast in zip(ladder.rungs[1:], ladder.rungs, strict=False):
        cost = ladder.cost(slow, fast)
        if cost.high < -gate:
            found.append(
                Warning_(
                    "not-monotone",
                    f"adding {shown(ladder.stage(slow))} made the step {number(-cost.value)} ms faster, "
                    "which added work cannot do",
                    "something else changed between the two rungs (CPU load, caches, batch contents); "
                    "read the neighbouring stages together",
                )
            )
    return found


def _disagreeing(ladder: LadderView) -> list[Warning_]:
    """Warn of rungs whose steps contradict the workers' time for a batch."""
    if not ladder.has("baseline"):
        return []
    return [
        Warning_(
            "rungs-disagree",
            f"under the rung {rung} a step takes {number(measured)} ms, but the workers' time for a batch predicts "
            f"{number(expected)} ms",
            "the workers' stages are charged by the workers' time; full cores or blocked workers make rungs differ",
        )
        for rung, expected, measured in disagreements(ladder)
    ]


def _foreign_load(ladder: LadderView) -> Warning_ | None:
    """Warn of other processes that take cores: the verdict holds only for a machine under the same load."""
    seen = ladder.evidence("baseline") if ladder.has("baseline") else {}
    cores = ladder.session.environment.get("cores")
    if not cores or "cores_busy" not in seen or ladder.session.environment.get("cgroup_quota"):
        return None
    others = seen["cores_busy"] - seen.get("cores_used", seen["cores_busy"])
    if others < max(_OTHERS, FOREIGN * cores):
        return None
    return Warning_(
        "foreign-load",
        f"other processes used {others:.1f} of {cores:g} cores during the measurement, the script and its "
        f"workers {seen['cores_used']:.1f}",
        "the figures hold for a machine this busy; analyse on a quiet one",
    )


def _full_cpu(ladder: LadderView, pieces: list[Stage]) -> Warning_ | None:
    """Warn of a full machine, where the stage that exceeds the limit may not be the cause (as in the articles)."""
    if not ladder.has("baseline") or not full(ladder, "baseline"):
        return None
    cores = ladder.session.environment["cores"]
    told = f"{busy_cores(ladder, 'baseline'):.1f} of {cores:g} usable cores are in use while the script runs as it is"
    top = next((piece for piece in input_stages(ladder, pieces) if piece.ms.value > 0), None)
    added_by = next((r for r in ladder.rungs if top is not None and top.stage in ladder.covered(r)), "")
    before = ladder.below(added_by) if added_by else None
    if top is None or before is None or not full(ladder, before):
        return Warning_("full-cpu", told, "freeing CPU time anywhere in the workers helps as well")
    return Warning_(
        "tipping-over",
        f"{told}, and {busy_cores(ladder, before):.1f} were already before {shown(top.stage)} was added: it may not be "
        "the cause, only the stage that filled the machine",
        f"judge by the workers' CPU time: {_shares(ladder.session) or 'not known'}",
    )


def _shares(session: Session) -> str:
    """Return the parts of a worker's CPU time as text, largest first."""
    inside = session.inside
    if inside is None or inside.whole.cpu_ms <= 0:
        return ""
    parts = [("load", inside.load.cpu_ms), *((link.name, link.cost.cpu_ms) for link in inside.links)]
    ranked = sorted(parts, key=lambda part: part[1], reverse=True)[:4]
    return ", ".join(f"{name} {percent(ms / inside.whole.cpu_ms)}" for name, ms in ranked)


def _heavy_tail(ladder: LadderView) -> Warning_ | None:
    """Warn of a few slow samples that hold up whole batches and the ready batches behind them."""
    tail = ladder.session.tail
    if tail is None or tail.p50_ms <= 0 or tail.p99_ms < SLOW * tail.p50_ms or not ladder.has("baseline"):
        return None
    seen, base = ladder.evidence("baseline"), ladder.ms("baseline").value
    stalled = seen.get("stalled_ms", 0.0)
    named = [slow for slow in tail.slowest if slow.index]
    if stalled < GATE * base:
        return None
    which = ", ".join(f"{slow.index} ({number(slow.ms)} ms)" for slow in named[:4])
    return Warning_(
        "heavy-tail",
        f"some samples take far longer than others (median {number(tail.p50_ms)} ms, 99th percentile "
        f"{number(tail.p99_ms)} ms): {number(stalled)} ms of each step are spent waiting for a batch while later ones "
        "are ready" + (f"; slowest indices: {which}" if which else ""),
        "fix or drop those samples, raise prefetch_factor, or let later batches go first: in_order=False",
    )


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
    """Warn of a model whose step depends on the batch: the ceiling is an average over the cached batches."""
    session = ladder.session
    steps = [(statistics.median(s.ms), max(s.ms) - min(s.ms), s.nbytes) for s in session.batch_steps if len(s.ms) > 1]
    if len(steps) < 3:
        return None
    medians = [median for median, _, _ in steps]
    spread = max(medians) - min(medians)
    noise = statistics.median(again for _, again, _ in steps)
    if spread < DEPENDENT * statistics.median(medians) or spread < REPEATABLE * noise:
        return None
    if ladder.has("baseline") and spread < GATE * ladder.ms("baseline").value:
        return None
    small, large = min(steps, key=lambda s: s[0]), max(steps, key=lambda s: s[0])
    sized = f" ({_kib(small[2])} against {_kib(large[2])})" if small[2] != large[2] else ""
    return Warning_(
        "varying-steps",
        f"the model's own step depends on the batch: {number(small[0])} to {number(large[0])} ms with the same "
        f"batches fed from the device repeatedly{sized}",
        "the ceiling is an average over the cached batches; batches of similar size would make the steps alike",
    )


def _wrote(session: Session) -> Warning_ | None:
    if not session.script.wrote:
        return None
    return Warning_(
        "wrote-files",
        f"the analysed script wrote {first_of(session.script.wrote, FILES)}",
        "it ran for real, and more than once if passes > 1; --workdir DIR runs it in a scratch directory",
    )
