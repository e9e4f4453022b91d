"""Turn a diagnosis into blocks: the verdict first, then where a step goes, then the ranks of a job and the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ..analysis import Diagnosis
from ..analysis.audit import DOES_NOT_APPLY, FAILED, NOT_MEASURED, OPEN, PASSED, Audit
from ..analysis.diagnosis import Stage
from ..analysis.numbers.intervals import Interval, total
from ..analysis.ranks.stragglers import by_pace, input_pace
from ..analysis.summary import Summary, Tone, summarise
from ..analysis.summary.parts import shorter_paths
from ..analysis.words import counted, ends, job, number, percent, shown
from ..session import CACHED, Place, Rank, Session, Warning_
from . import evidence, remedy
from .document import Block, Check, Checklist, Code, Listing, Location, Paragraph, Section, Table, Title
from .evidence import ms
from .progress import fitting

_HEADERS = ("where a step goes", "ms", "95 % interval", "share", "steps/s without it")
#: Share of a step below which transforms have no row of their own.
_SMALL = 0.01
#: Maximum width of the transforms' names in one cell.
_WIDTH = 32
#: Maximum number of rows for ranks. Of more ranks, the first, those that hold the job, and those with the slowest and
#: fastest input have one.
MOST_RANKS = 16
_RANK_HEADERS = ("rank", "device", "cores", "workers", "waits ms", "worker ms", "batch every ms", "mostly in", "")
_TONES: dict[str, Tone] = {
    FAILED: "bad", OPEN: "doubtful", NOT_MEASURED: "doubtful", PASSED: "good", DOES_NOT_APPLY: ""
}  # fmt: skip


def blocks(diagnosis: Diagnosis) -> list[Block]:
    verdict, rows, session = diagnosis.verdict, stage_rows(diagnosis), diagnosis.session
    culprit, summary = verdict.culprit or Place(""), summarise(diagnosis)
    following, _, command = summary.next.partition(": ")
    where = culprit.where + (f", made at {culprit.made}" if culprit.made else "")
    headers, cells = _HEADERS, [row[:-1] for row in rows]
    if not session.counts_steps:  # of a watched loop: the rows are those of a second
        headers, cells = ("where a second goes", *_HEADERS[1:4], ""), [(*cells_of[:4], "") for cells_of in cells]
    return [
        title(summary, setting(diagnosis)),
        Paragraph(
            f"bottleneck: {shown(verdict.bottleneck)}" + (f" ({verdict.level})" if verdict.level else ""), "line"
        ),
        Paragraph(verdict.sentence),
        Paragraph(diagnosis.straggler.sentence if diagnosis.straggler else ""),
        Location("culprit", culprit.name, shorter_paths(session, where)),
        *([Code(following, [command])] if session.watched is not None and command else []),
        Paragraph(step_line(diagnosis), "line"),
        Table(headers, "lrlrr", cells, bars=[row.bar for row in rows]),
        Paragraph(rung_line(diagnosis), "list"),
        ranks_section(diagnosis),
        evidence.account_section(diagnosis),
        *evidence.sections(diagnosis),
        remedy.settings_section(diagnosis),
        remedy.advice_section(diagnosis),
        evidence.model_section(diagnosis),
        remedy.section(diagnosis),
        warnings(diagnosis.warnings, session),
    ]


def warnings(found: Iterable[Warning_], session: Session) -> Section:
    """Return each warning with its help."""
    told = [shorter_paths(session, w.message + (f" ({w.help})" if w.help else "")) for w in found]
    return Section("warnings", [Listing(told)], page=4)


def title(summary: Summary, subject: str = "") -> Title:
    figures = f": {summary.figures}" if summary.figures else ""
    return Title(summary.headline.upper() + figures, summary.certainty, subject, summary.tone)


def setting(diagnosis: Diagnosis) -> str:
    """Return the subject of the analysis in one line."""
    session = diagnosis.session
    parts = [session.script.line]
    loader = session.loader
    if loader is not None and loader.plain_iterable:
        parts.append(f"{loader.dataset} (no DataLoader)")
    elif loader is not None:
        batch = f"batch {loader.batch_size}, " if loader.batch_size else ""
        pinned = ", pinned" if loader.pin_memory else ""
        parts.append(f"{loader.dataset} ({batch}{counted(loader.num_workers, 'worker')}{pinned})")
    parts += filter(None, [job(session.ranks)])
    device = session.device
    parts.append(str(device.get("name") or device.get("type") or "unknown device"))
    return " | ".join(parts)


def step_line(diagnosis: Diagnosis) -> str:
    """Return the step as compute and input cost, with the rates; empty if the loop was not fed from a cache."""
    ladder = diagnosis.ladder
    if not ladder.intervened or ladder.ceiling not in CACHED:
        return ""
    base, best = ladder.ms("baseline").value, ladder.best.value
    return (
        f"step {ms(base)} = model {ms(best)} + data {ms(base - best)};  "
        f"{number(1000 / base)} steps/s now, {number(1000 / best)} possible with cached batches"
    )


def rung_line(diagnosis: Diagnosis) -> str:
    """Return the steps per second under every measured rung, fastest first."""
    ladder = diagnosis.ladder
    rates = [f"{rung} {number(ladder.ms(rung).inverse(1000.0).value)}" for rung in ladder.rungs]
    return f"steps/s by rung: {', '.join(rates)}" if len(rates) > 1 else ""


class StageRow(NamedTuple):
    """A piece of the baseline step; ``without`` is steps per second without it, with a ~ if predicted."""

    stage: str
    cost: str
    interval: str
    share: str
    without: str
    bar: float  # share of the baseline step, 0 to 1


def stage_rows(diagnosis: Diagnosis) -> list[StageRow]:
    """Return a row for each piece of the step, from the device outwards; transforms of negligible cost share one."""
    rows, small = [], [p for p in diagnosis.waterfall if p.stage == "transform" and p.share < _SMALL]
    for piece in diagnosis.waterfall:
        if len(small) < 2 or piece not in small:
            rows.append(_row(piece))
        elif piece is small[-1]:
            links = [name for one in reversed(small) for name in one.links]
            ms, share = total([one.ms for one in small]), sum(one.share for one in small)
            rows.append(_row(Stage("transform", ms, share, None, ["transform"], "", links)))
    return rows


def _row(piece: Stage) -> StageRow:
    covers, name = [*map(shown, piece.others)], shown(piece.stage)
    name += f" (with {', '.join(covers)})" if covers else ""
    if piece.links:  # all names, or the first and how many more if they are too long
        links, more = [", ".join(piece.links)], ""
        if len(links[0]) > _WIDTH and len(piece.links) > 1:
            links, more = piece.links[:1], f" and {len(piece.links) - 1} more"
        name += f": {fitting(links, _WIDTH - len(more))}{more}"
    without = ""
    if piece.without is not None:
        without = ("" if piece.without.measured else "~") + number(piece.without.steps_per_s)
    return StageRow(name, value(piece.ms), between(piece.ms), percent(piece.share), without, min(1.0, piece.share))


def ranks_section(diagnosis: Diagnosis) -> Section:
    """Return a row for each rank. The time between batches is a worker's time for one, divided by the workers."""
    ranks, lead = diagnosis.session.ranks, ""
    if len(ranks) < 2:
        return Section("ranks", [])
    some = _with_a_row(diagnosis)
    holding = diagnosis.straggler.ranks if diagnosis.straggler else ()
    hosts, storages = ({getattr(rank, name) for rank in ranks} for name in ("host", "storage"))
    rows = []
    for rank in some:
        cores = number(rank.cores) if rank.cores else ""
        cores += f" (node {rank.numa_node})" if rank.numa_node is not None else ""
        stage, share = max(rank.shares.items(), key=lambda item: item[1], default=("", 0.0))
        notes = ["holds up the job"] * (rank.rank in holding)
        notes += [f"data on {rank.storage}"] * bool(len(storages) > 1 and rank.storage)
        notes += [f"ended: {rank.ended}"] if rank.ended else []
        times = (rank.wait_ms, rank.worker_ms, input_pace(rank))
        rows.append(
            [
                str(rank.rank),
                f"{rank.host} {rank.device}".strip() if len(hosts) > 1 else rank.device,
                cores,
                str(rank.workers),
                *(number(ms) if ms is not None else "" for ms in times),
                f"{shown(stage)} {percent(share)}" if stage else "",
                ", ".join(notes),
            ]
        )
    more = f"and {len(ranks) - len(some)} more like them" if len(some) < len(ranks) else ""
    if diagnosis.session.of_rank is not None:
        lead = f"the step and its stages are those of rank {diagnosis.session.of_rank}"
    return Section(
        "ranks",
        [
            Table(_RANK_HEADERS, "rlrrrrrll", rows, narrow=True),
            Paragraph(more),
            Paragraph(lead),
            Paragraph(diagnosis.no_straggler),
        ],
        page=1,
    )


def _with_a_row(diagnosis: Diagnosis) -> list[Rank]:
    ranks = sorted(diagnosis.session.ranks, key=lambda rank: rank.rank)
    if len(ranks) <= MOST_RANKS:
        return ranks
    holding = diagnosis.straggler.ranks if diagnosis.straggler else ()
    by_speed = by_pace(ranks)
    # Slowest and fastest in turn, after those that are named elsewhere.
    ends = [one for pair in zip(by_speed, reversed(by_speed), strict=True) for one in pair]
    named = [one for one in ranks if one.rank in holding or one.rank == diagnosis.session.of_rank][: MOST_RANKS // 2]
    chosen = dict.fromkeys([ranks[0].rank, *(one.rank for one in named), *(one.rank for one in ends)])
    numbers = set([*chosen][:MOST_RANKS])
    return [one for one in ranks if one.rank in numbers]


def value(interval: Interval | None) -> str:
    return number(interval.value) if interval is not None else ""


def between(interval: Interval | None) -> str:
    """Return the ends of an interval, empty if both round to its value; they are infinite if there was one window."""
    if interval is None:
        return ""
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "one window"
    return ends(interval).replace(" to ", " .. ")


def audit_blocks(audit: Audit) -> list[Block]:
    return [
        title(summarise(audit), setting(audit.diagnosis)),
        Checklist(
            [
                Check(
                    one.status,
                    one.title,
                    one.figures,
                    [*(f"{fix.title}: {remedy.gain(fix)}" for fix in one.advice), *one.todo],
                    _TONES[one.status],
                )
                for one in audit.items
            ]
        ),
        remedy.advice_section(audit.diagnosis),
        warnings(audit.diagnosis.warnings, audit.diagnosis.session),
    ]
