"""What every report shows, as text cells: the ladder's rows, the evidence, the headline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..analysis import Diagnosis
from ..analysis.diagnosis import Stage
from ..analysis.intervals import Interval
from ..analysis.sentences import number
from ..session import CONTROLS, RUNG_MEANING


@dataclass(frozen=True)
class Row:
    rung: str
    steps_per_s: str
    stage: str
    cost: str
    interval: str
    share: str
    bar: float  # share of the baseline step, 0 to 1


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one word, for a title."""
    bottleneck = diagnosis.verdict.bottleneck
    names = {"none": "NOT STARVED", "inconclusive": "INCONCLUSIVE"}
    return names.get(bottleneck, f"BOTTLENECK: {bottleneck.upper()}")


def setting(diagnosis: Diagnosis) -> str:
    """What was analysed, on one line."""
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
    """The step as compute and wait."""
    ladder = diagnosis.ladder
    if not ladder.has("baseline") or len(ladder.rungs) < 2:
        return ""
    base, best = ladder.ms("baseline").value, ladder.ms(ladder.rungs[0]).value
    return (
        f"step {ms(base)} = compute {ms(best)} + input {ms(base - best)};  "
        f"{number(1000 / base)} steps/s now, {number(1000 / best)} with cached batches"
    )


def ladder_rows(diagnosis: Diagnosis) -> list[Row]:
    """One row a measured rung, fastest first, then what is left over."""
    ladder = diagnosis.ladder
    rows = []
    pieces = {p.covers[-1]: p for p in diagnosis.waterfall if p.covers}
    for rung in ladder.rungs:
        rate = ladder.ms(rung).inverse(1000.0)
        piece = pieces.get(ladder.covered(rung)[-1])
        rows.append(_row(rung, number(rate.value), piece))
    rows += [_row("", "", p) for p in diagnosis.waterfall if p.stage == "residual"]
    return rows


def _row(rung: str, rate: str, piece: Stage | None) -> Row:
    if piece is None:
        return Row(rung, rate, "", "", "", "", 0.0)
    # Compute is a rung's own time; the others are differences, and may be below nothing by chance.
    sign = "+" if piece.stage != "compute" and piece.ms.value >= 0 else ""
    covers = [c for c in piece.covers if c != piece.stage]
    stage = piece.stage + (f" (with {', '.join(covers)})" if covers else "")
    between = "" if piece.stage == "residual" else between_ms(piece.ms)
    share = f"{100 * piece.share:.0f} %"
    return Row(rung, rate, stage, sign + number(piece.ms.value), between, share, max(0.0, min(1.0, piece.share)))


def not_measured(diagnosis: Diagnosis) -> list[str]:
    """Rungs without a row, with the reason."""
    ladder, lines = diagnosis.ladder, []
    for name in (*RUNG_MEANING,):
        standing = diagnosis.session.rungs.get(name)
        if standing is not None and not ladder.has(name) and standing.exists:
            lines.append(f"{name}: {standing.why_not or 'not reached'}")
    return lines


def evidence_lines(diagnosis: Diagnosis) -> list[str]:
    """What was seen beside the clock under the baseline, and the controls."""
    ladder, session = diagnosis.ladder, diagnosis.session
    seen = ladder.evidence("baseline") if ladder.has("baseline") else {}
    lines = []
    if "worker_ms" in seen:
        who = "a worker" if session.loader and session.loader.num_workers else "the training process"
        parts = [f"{_percent(seen['worker_cpu'])} on a CPU"]
        if seen["worker_queued"] >= 0.01:
            parts.append(f"{_percent(seen['worker_queued'])} waiting for a core")
        parts.append(f"{_percent(seen['worker_blocked'])} blocked (storage, network, sleep)")
        lines.append(f"making a batch takes {who} {ms(seen['worker_ms'])}: {', '.join(parts)}")
    if "cores_busy" in seen:
        usable = session.environment.get("cores")
        of = f" of {usable:g} usable" if usable else ""
        lines.append(
            f"cores in use: {seen['cores_busy']:.1f}{of}, the training process itself {seen['process_cpu']:.1f}"
        )
    if "gpu_utilization" in seen:
        lines.append(f"GPU busy {_percent(seen['gpu_utilization'])} of the time (by NVML)")
    if seen.get("disk_read_mb", 0.0) >= 0.01:
        lines.append(f"read from storage, not from the page cache: {seen['disk_read_mb']:.2f} MB a step")
    for control in CONTROLS:
        if ladder.has(control):
            rate = 1000.0 / ladder.ms(control).value
            lines.append(f"{RUNG_MEANING[control]}: {number(rate)} steps/s ({control})")
    if session.startups:
        seconds = sorted(s.seconds for s in session.startups)[len(session.startups) // 2]
        lines.append(f"from iter() to the first batch: {seconds:.2g} s")
    if session.caches:
        limit = session.caches.get("held_bytes", 0) / 2**20
        lines.append(
            f"caches hold at most {limit:.0f} MiB: {session.caches.get('device', 0)} batches on the device, "
            f"{session.caches.get('host', 0)} on the host, {session.caches.get('shared', 0)} shared by the workers, "
            f"and samples"
        )
    return lines


def between_ms(interval: Interval) -> str:
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window"
    return f"{number(interval.low)} .. {number(interval.high)}"


def ms(value: float) -> str:
    return f"{number(value)} ms" if value < 1000 else f"{number(value / 1000)} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
