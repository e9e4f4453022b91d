"""Build the text cells that all reports share: the ladder's rows, the evidence, the headline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..analysis import Diagnosis
from ..analysis.chain import why_unsplit
from ..analysis.diagnosis import Stage
from ..analysis.intervals import Interval, total
from ..analysis.ladder import known
from ..analysis.sentences import number
from ..session import CONTROLS, RUNG_MEANING, Session, ordered, settings_of


@dataclass(frozen=True)
class StageRow:
    """A piece of the baseline step; ``without`` is steps per second without it, with a ~ if predicted."""

    stage: str
    cost: str
    interval: str
    share: str
    without: str
    bar: float  # share of the baseline step, 0 to 1


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict as a title."""
    bottleneck = diagnosis.verdict.bottleneck
    names = {"none": "NOT STARVED", "inconclusive": "INCONCLUSIVE"}
    return names.get(bottleneck, f"BOTTLENECK: {bottleneck.upper()}")


def level(diagnosis: Diagnosis) -> str:
    """Return the verdict's level of evidence, to follow the headline."""
    level = diagnosis.verdict.level
    return f"  ({level})" if level else ""


def setting(diagnosis: Diagnosis) -> str:
    """Return the subject of the analysis in one line."""
    session = diagnosis.session
    parts = [" ".join(session.script.argv) or "a loop in this process"]
    loader = session.loader
    if loader is not None:
        batch = f"batch {loader.batch_size}, " if loader.batch_size else ""
        workers = f"{loader.num_workers} worker{'' if loader.num_workers == 1 else 's'}"
        pinned = ", pinned" if loader.pin_memory else ""
        parts.append(f"{loader.dataset} ({batch}{workers}{pinned})")
    device = session.device
    parts.append(str(device.get("name") or device.get("type") or "unknown device"))
    return " | ".join(parts)


def step_line(diagnosis: Diagnosis) -> str:
    """Return the step as compute and input cost, with the rates; empty if the loop was not fed from a cache."""
    ladder = diagnosis.ladder
    if not ladder.intervened:
        return ""
    base, best = ladder.ms("baseline").value, ladder.ms(ladder.ceiling).value
    return (
        f"step {ms(base)} = compute {ms(best)} + input {ms(base - best)};  "
        f"{number(1000 / base)} steps/s now, {number(1000 / best)} with cached batches"
    )


def rung_line(diagnosis: Diagnosis) -> str:
    """Return the steps per second under every measured rung, fastest first."""
    ladder = diagnosis.ladder
    rates = [f"{rung} {number(ladder.ms(rung).inverse(1000.0).value)}" for rung in ladder.rungs]
    return f"steps/s by rung: {', '.join(rates)}" if len(rates) > 1 else ""


def stage_rows(diagnosis: Diagnosis) -> list[StageRow]:
    """Return one row per piece of the step, from the device outwards; transforms of negligible cost share one."""
    rows, small = [], [p for p in diagnosis.waterfall if p.stage == "transform" and p.share < _SMALL]
    for piece in diagnosis.waterfall:
        if len(small) > 1 and piece in small:
            if piece is small[-1]:
                rows.append(_row(_merged(small)))
            continue
        rows.append(_row(piece))
    return rows


#: Share of a step below which transforms have no row of their own.
_SMALL = 0.01


def _merged(pieces: list[Stage]) -> Stage:
    links = [name for piece in reversed(pieces) for name in piece.links]
    share = sum(piece.share for piece in pieces)
    return Stage("transform", total([piece.ms for piece in pieces]), share, None, ["transform"], "", links)


def _row(piece: Stage) -> StageRow:
    covers = [c for c in piece.covers if c != piece.stage]
    stage = piece.stage + (f" (with {', '.join(covers)})" if covers else "")
    if piece.links:
        stage += f": {_links(piece.links)}"
    without = ""
    if piece.without is not None:
        without = ("" if piece.without.measured else "~") + number(piece.without.steps_per_s)
    return StageRow(
        stage,
        number(piece.ms.value),
        between_ms(piece.ms),
        f"{100 * piece.share:.0f} %",
        without,
        min(1.0, piece.share),
    )


#: Maximum width of the transforms' names in one cell.
_WIDTH = 30


def _links(names: list[str]) -> str:
    """Return the names of a row's transforms, shortened to the first and a number if they are too long."""
    text = ", ".join(names)
    if len(text) > _WIDTH and len(names) > 1:
        text = f"{names[0][: _WIDTH - 11]} and {len(names) - 1} more"
    return text[:_WIDTH]


@dataclass(frozen=True)
class WorkerRow:
    """One piece of work inside a worker: milliseconds of wall and CPU time per sample."""

    name: str
    where: str
    wall: str
    cpu: str
    share: str


def worker_rows(diagnosis: Diagnosis) -> list[WorkerRow]:
    """Return a worker's cost per sample: the loading, then the transforms in their order."""
    inside = diagnosis.session.inside
    if inside is None or not inside.samples or inside.whole.wall_ms <= 0:
        return []
    whole = inside.whole
    loader = diagnosis.session.loader
    where = loader.dataset_code.where if loader and loader.dataset_code else ""
    pieces = [("load", where, inside.load), *((link.name, link.where, link.cost) for link in inside.links)]
    if inside.between.wall_ms > 0.02 * whole.wall_ms:
        pieces.append(("(between them)", "", inside.between))
    return [
        WorkerRow(name, where, number(c.wall_ms), number(c.cpu_ms), _percent(c.wall_ms / whole.wall_ms))
        for name, where, c in pieces
    ]


def hot_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the lines that take most of a worker's time, hottest first."""
    inside = diagnosis.session.inside
    lines = inside.lines if inside else []
    return ["  ".join(filter(None, (_percent(line.share), line.where, line.text))) for line in lines]


def not_measured(diagnosis: Diagnosis) -> list[str]:
    """Return the rungs that have no measurement, with the reason."""
    ladder, lines = diagnosis.ladder, []
    for name in filter(known, ordered({*RUNG_MEANING, *diagnosis.session.rungs})):
        found = diagnosis.session.rungs.get(name)
        if found is not None and not ladder.has(name) and found.exists and settings_of(name) is None:
            lines.append(f"{name}: {found.why_not or 'not reached'}")
    unsplit = why_unsplit(diagnosis.session)
    if unsplit:
        lines.append(f"single transforms: {unsplit}")
    lines += [f"parts of {link.name}: {link.whole}" for link in diagnosis.session.links if link.whole]
    return lines


def evidence_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the baseline's evidence and the controls."""
    ladder, session = diagnosis.ladder, diagnosis.session
    seen = ladder.evidence("baseline") if ladder.has("baseline") else {}
    lines = []
    if "worker_ms" in seen:
        who = "a worker" if session.loader and session.loader.num_workers else "the training process"
        parts = [f"{_percent(seen['worker_cpu'])} on a CPU"] if "worker_cpu" in seen else []
        if seen.get("worker_queued", 0.0) >= 0.01:
            parts.append(f"{_percent(seen['worker_queued'])} waiting for a core")
        if "worker_blocked" in seen:
            parts.append(f"{_percent(seen['worker_blocked'])} blocked (storage, network, sleep)")
        told = f": {', '.join(parts)}" if parts else ""
        lines.append(f"making a batch takes {who} {ms(seen['worker_ms'])}{told}")
    if "wait_ms" in seen:
        stalled = seen.get("stalled_ms", 0.0)
        behind = f", {ms(stalled)} of it for one slow batch while later ones were ready" if stalled >= 0.01 else ""
        lines.append(f"the loop waits {ms(seen['wait_ms'])} a step for batches{behind}")
    if "cores_busy" in seen:
        usable = session.environment.get("cores")
        of = f" of {usable:g} usable" if usable else ""
        own = seen.get("cores_used", seen["process_cpu"])
        lines.append(
            f"cores in use: {seen['cores_busy']:.1f}{of}, {own:.1f} of them by the script and its workers, "
            f"{seen['process_cpu']:.1f} by the training process itself"
        )
    if "gpu_utilization" in seen:
        lines.append(f"GPU busy {_percent(seen['gpu_utilization'])} of the time (by NVML)")
    if seen.get("disk_read_mb", 0.0) >= 0.01:
        lines.append(f"read from storage, not from the page cache: {seen['disk_read_mb']:.2f} MB a step")
    for control in CONTROLS:
        if ladder.has(control):
            rate = 1000.0 / ladder.ms(control).value
            lines.append(f"{RUNG_MEANING[control]}: {number(rate)} steps/s ({control})")
    lines += _startup_lines(session)
    if session.caches:
        limit = session.caches.get("held_bytes", 0) / 2**20
        lines.append(
            f"caches hold at most {limit:.0f} MiB: {session.caches.get('device', 0)} batches on the device, "
            f"{session.caches.get('host', 0)} on the host, {session.caches.get('shared', 0)} shared by the workers, "
            f"and samples"
        )
    return lines


def _startup_lines(session: Session) -> list[str]:
    lines = []
    started = sorted((s for s in session.startups if not s.renewed), key=lambda s: s.seconds)
    if started:
        one = started[len(started) // 2]
        workers = session.loader.num_workers if session.loader else 0
        parts = f" (workers launched {one.launch:.2g} s, ready {one.ready:.2g} s)" if one.ready and workers else ""
        lines.append(f"from iter() to the first batch: {one.seconds:.2g} s{parts}")
    renewed = sorted(s.seconds for s in session.startups if s.renewed)
    if renewed:
        lines.append(f"the same in later epochs, with the workers kept: {renewed[len(renewed) // 2]:.2g} s")
    return lines


def between_ms(interval: Interval) -> str:
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window"
    return f"{number(interval.low)} .. {number(interval.high)}"


def ms(value: float) -> str:
    return f"{number(value)} ms" if value < 1000 else f"{number(value / 1000)} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
