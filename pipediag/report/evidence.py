"""Report other evidence: a worker's time, rungs without a measurement, evidence and controls."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..analysis import Diagnosis
from ..analysis.amortised import epoch_start, other_loaders
from ..analysis.numbers.chain import grains, why_unsplit
from ..analysis.numbers.foreign_load import mean_account
from ..analysis.numbers.hot_lines import familiar, hottest, of_stage
from ..analysis.numbers.ladder import LadderView
from ..analysis.words import counted, few, number, percent, shown, waiting
from ..session import CONTROLS, RUNG_MEANING, Cost, HotLine, Profile, left_out, line_left_out, ordered, settings_of
from .document import Listing, Section, Table

#: Share of a sample's time from which the code between the transforms has a row.
_SEEN = 0.02
TITLE = "what the training thread does in a step, ms"
#: The parts of a step, in the order of the columns.
PARTS = ("on a CPU", "waits for a core", "waits for data", "other blocking")
_RUNGS = ("device", "host", "worker", "baseline")
_NOT_COUNTED = "the training thread's account: the kernel does not count it, or another thread draws the batches"


def sections(diagnosis: Diagnosis) -> list[Section]:
    inside = Table(("", "wall", "cpu", "share", ""), "lrrrl", worker_rows(diagnosis), ruled=False)
    return [
        Section("inside a worker, ms per sample", [inside]),
        Section("hottest lines there", [Listing(hot_lines(diagnosis), code=True)], page=3),
        Section("not measured", [Listing(not_measured(diagnosis))], page=3),
        Section("other evidence", [Listing(evidence_lines(diagnosis))], page=3),
    ]


def worker_parts(diagnosis: Diagnosis) -> list[tuple[str, str, Cost]]:
    """Return the parts of a worker's time for a sample with their places: loading, then the transforms in order."""
    inside, loader = diagnosis.session.inside, diagnosis.session.loader
    if inside is None or not inside.samples or inside.whole.wall_ms <= 0 or diagnosis.session.watched is not None:
        return []  # the size of a watched batch is not known
    where = loader.dataset_code.where if loader and loader.dataset_code else ""
    parts = [(shown("load"), where, inside.load), *((one.in_full, one.where, one.cost) for one in grains(inside.links))]
    between = [("(between them)", "", inside.between)]
    return parts + between * (inside.between.wall_ms > _SEEN * inside.whole.wall_ms)


def worker_rows(diagnosis: Diagnosis) -> list[tuple[str, str, str, str, str]]:
    """Return :func:`worker_parts` as cells: name, milliseconds of wall and CPU time, share of the wall time, place."""
    inside = diagnosis.session.inside
    return [
        (name, number(cost.wall_ms), number(cost.cpu_ms), percent(cost.wall_ms / inside.whole.wall_ms), where)
        for name, where, cost in worker_parts(diagnosis)
        if inside is not None
    ]


def hot_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the lines that take most of a worker's time for a sample, hottest first, then those of collating."""
    inside = diagnosis.session.inside
    collating = of_stage(inside, "collate") if inside is not None else []
    return [
        *(_told(line, percent(line.share)) for line in hottest(inside)),
        *(_told(line, f"{percent(line.share)} of collating") for line in collating),
    ]


def _told(line: HotLine, share: str) -> str:
    """Return a line in words, with the function of a library that takes most of its time."""
    does = familiar(line)
    return "  ".join(filter(None, (share, line.where, line.text, does and f"(in {does})")))


def not_measured(diagnosis: Diagnosis) -> list[str]:
    """Return the rungs that have no measurement, with the reason."""
    ladder, lines = diagnosis.ladder, []
    for name in ordered({*RUNG_MEANING, *diagnosis.session.rungs}):
        found = diagnosis.session.rungs.get(name)
        if found is not None and not ladder.has(name) and found.exists and settings_of(name) is None:
            where, why = left_out(name), found.why_not or "not reached"
            lines.append(f"{name}: {why}" if where is None else f"{line_left_out(where)}: timed, not proven: {why}")
    if any(map(ladder.windows, _RUNGS)) and not account_rows(diagnosis):
        lines.append(_NOT_COUNTED)
    if unsplit := why_unsplit(diagnosis.session):
        lines.append(f"single transforms: {unsplit}")
    lines += [f"parts of {link.name}: {link.whole}" for link in diagnosis.session.links if link.whole]
    return [*dict.fromkeys(lines)]


def evidence_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the baseline's evidence and the controls."""
    ladder, session = diagnosis.ladder, diagnosis.session
    seen = ladder.evidence("baseline") if ladder.has("baseline") else {}
    lines = []
    if (watched := session.watched) is not None:
        kinds = {"data": "for data", "start": "starting a loader", "trains": "training", "other": "elsewhere"}
        shares = [f"{percent(watched.shares.get(kind, 0.0))} {name}" for kind, name in kinds.items()]
        lines.append(f"process {watched.pid} at {counted(watched.looks, 'moment')}: {', '.join(shares)}")
        by = watched.steps_by
        lines.append(f"steps were counted by {by}" if by else "its steps could not be counted")
    if "worker_ms" in seen and session.counts_steps:
        who = "a worker" if session.loader and session.loader.num_workers else "the training process"
        parts = [f"{percent(seen['worker_cpu'])} on a CPU"] if "worker_cpu" in seen else []
        if seen.get("worker_queued", 0.0) >= 0.01:
            parts.append(f"{percent(seen['worker_queued'])} waiting for a core")
        if "worker_blocked" in seen:
            parts.append(f"{percent(seen['worker_blocked'])} blocked (storage, network, sleep)")
        where_it_goes = f": {', '.join(parts)}" if parts else ""
        lines.append(f"making a batch takes {who} {ms(seen['worker_ms'])}{where_it_goes}")
    if "wait_ms" in seen:
        stalled = seen.get("stalled_ms", 0.0)
        behind = f", {ms(stalled)} of it for one slow batch while later ones were ready" if stalled >= 0.01 else ""
        share, step = ladder.waited("baseline"), ladder.ms("baseline").value
        assert share is not None, "its wait is known"
        lines.append(f"{waiting(ladder)}: {ms(share.value * step)} of {ms(step)}{behind}")
    if "cores_busy" in seen and "process_cpu" in seen:
        usable = session.cores
        of = f" of {usable:g} usable" if usable else ""
        own = seen.get("cores_used", seen["process_cpu"])
        lines.append(
            f"cores in use: {seen['cores_busy']:.1f}{of}, {own:.1f} of them by the script and its workers, "
            f"{seen['process_cpu']:.1f} by the training process itself"
        )
    if "gpu_utilization" in seen:
        lines.append(f"GPU busy {percent(seen['gpu_utilization'])} of the time (by NVML)")
    if seen.get("disk_read_mb", 0.0) >= 0.01:
        lines.append(f"read from storage, not from the page cache: {seen['disk_read_mb']:.2f} MB a step")
    for control in CONTROLS:
        if ladder.has(control):
            rate = 1000.0 / ladder.ms(control).value
            lines.append(f"{RUNG_MEANING[control]}: {number(rate)} steps/s ({control})")
    lines += _startup_lines(ladder)
    if session.caches:
        limit = session.caches.get("held_bytes", 0) / 2**20
        lines.append(
            f"caches hold at most {limit:.0f} MiB: {session.caches.get('device', 0)} batches on the device, "
            f"{session.caches.get('host', 0)} on the host, {session.caches.get('shared', 0)} shared by the workers, "
            f"and samples"
        )
    return lines


def _startup_lines(ladder: LadderView) -> list[str]:
    session, start, lines = ladder.session, epoch_start(ladder), []
    if started := sorted((s for s in session.startups if not s.renewed), key=lambda s: s.seconds):
        one = start.usual if start is not None and not start.usual.renewed else started[len(started) // 2]
        parts = f" (workers launched {one.launch:.2g} s, ready {one.ready:.2g} s)" if one.ready and start else ""
        ends = f"; ending the workers {start.shutdown:.2g} s" if start is not None and start.shutdown else ""
        lines.append(f"from iter() to the first batch: {one.seconds:.2g} s{parts}{ends}")
    if renewed := sorted(s.seconds for s in session.startups if s.renewed):
        lines.append(f"in later epochs, with the same workers: {renewed[len(renewed) // 2]:.2g} s")
    lines += [
        f"another loader is started at {one.where} every {counted(one.every, 'step')} and takes the loop "
        f"{number(one.seconds.value)} s: {number(one.per_step.value)} ms a step"
        for one in other_loaders(ladder)
    ]
    return lines


def ms(value: float) -> str:
    return f"{number(value)} ms" if value < 1000 else f"{number(value / 1000)} s"


class AccountRow(NamedTuple):
    """A rung, milliseconds of its step, and the parts of the step in the order of :data:`PARTS`."""

    rung: str
    step: float
    parts: tuple[float, float, float, float]


def account_rows(diagnosis: Diagnosis) -> list[AccountRow]:
    """Return a row for each of the rungs that have an account; the parts of a row sum to its step."""
    rows = []
    for rung in _RUNGS:
        account = mean_account(diagnosis.ladder.windows_used(rung))
        if account is not None:
            parts = (account.cpu_ms, account.queue_ms, account.waits_ms, account.other_ms)
            rows.append(AccountRow(rung, sum(parts), parts))
    return rows


def account_section(diagnosis: Diagnosis) -> Section:
    cells = [[row.rung, number(row.step), *map(number, row.parts)] for row in account_rows(diagnosis)]
    return Section(TITLE, [Table(("", "step", *PARTS), "lrrrrr", cells, ruled=False)], page=3)


def model_section(diagnosis: Diagnosis) -> Section:
    """Say what the model's side of a step consists of, and what of it could run a batch ahead."""
    profile, prefix, lines = diagnosis.session.profile, diagnosis.session.prefix, list[str]()
    tables = _tables(profile) if profile is not None and profile.steps else []
    if profile is not None and profile.why_not:
        lines.append(f"no trace was recorded: {profile.why_not}")
    elif profile is not None:
        busy = f"operators take {number(profile.busy_ms)} ms of a step of {number(profile.step_ms)} ms on the device"
        lines.append(f"{profile.steps} steps on batches that lie on the device: {profile.trace}; {busy}")
    if prefix is not None:
        of = f"{number(prefix.ms)} ms of a step of {number(prefix.ms + prefix.rest_ms)} ms go into a frozen part that"
        frozen = f"{of} learns nothing: {few(prefix.modules)}"
        frozen += f"; it cannot run a batch ahead: {prefix.why_not}" if prefix.why_not else ""
        unknown = f"whether a frozen part of the model could run a batch ahead is not known: {prefix.why_not}"
        lines.append(frozen if prefix.modules else unknown)
    return Section("the model's side", [Listing(lines), *tables], page=5)


def _tables(profile: Profile) -> list[Table]:
    tables, step = [], profile.step_ms or math.inf
    for name, shares in (("module", profile.modules), ("operator", profile.operators), ("kernel", profile.kernels)):
        rows = [(one.name, number(one.calls), number(one.ms), percent(max(0.0, one.ms / step))) for one in shares]
        headers = (name, "calls a step", "ms a step", "share")
        tables.append(Table(headers, "lrrr", rows, code=True, extra=name == "kernel"))
    return tables
