"""Score pipediag's reports on the cases against the truth. Pure: records in, numbers and tables out.

A record is the plain data of one case: ``name``, ``label``, ``accepts``, ``plants`` (``stage``, ``key``, ``names``,
``lines``, ``library``: where the planted code is), ``truth`` (see :class:`~benchmarks.accuracy.truth.Truth`; None if
not measured) and ``report`` (``verdict`` and ``waterfall`` of pipediag's JSON; None if the analysis failed).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Record = Mapping[str, Any]

VERDICTS = (
    "none",
    "transfer",
    "ipc",
    "collate",
    "transform",
    "load",
    "storage",
    "startup",
    "contention",
    "inconclusive",
    "failed",
)
#: Minimum share of the step that a plant costs if its label is confirmed; below ``UNSTARVED`` the label is ``none``.
STARVED, UNSTARVED = 0.10, 0.05
#: Maximum ratio of two costs that are both bottlenecks; either may be named first.
ALIKE = 1.5
#: Maximum share of the cost spent waiting if workers slow the training process rather than being late.
LATE = 0.5

RIGHT, COVERS, MISPLACED, WRONG, MISSING, UNASKED = "right", "covers", "misplaced", "wrong", "missing", "unasked"


@dataclass(frozen=True)
class Attribution:
    """One plant's cost according to pipediag, in milliseconds per step.

    ``error`` is its distance from the truth as a share of the baseline step. ``covered`` is True if the range of the
    truth's repetitions overlaps the 95 % interval.
    """

    key: str
    truth_ms: float
    found_ms: float
    low: float
    high: float
    error: float
    covered: bool


@dataclass(frozen=True)
class Score:
    """The score of one case.

    Attributes:
        expected: The correct verdict; of two similar bottlenecks, the one that pipediag named.
        culprit: ``right`` (name and place), ``covers`` (named among other code), ``misplaced`` (right name, wrong
            line), ``wrong`` (other code was named with confidence), ``missing``, or ``unasked`` (no code to name).
    """

    name: str
    confirmed: bool
    expected: str
    verdict: str
    verdict_right: bool
    decided: bool
    culprit: str
    attributions: tuple[Attribution, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score(record: Record) -> Score:
    """Score one case."""
    report = record["report"]
    verdict = report["verdict"]["bottleneck"] if report else "failed"
    expected, right = _expected(record, verdict)
    return Score(
        name=record["name"],
        confirmed=confirmed(record),
        expected=expected,
        verdict=verdict,
        verdict_right=right,
        decided=verdict not in ("inconclusive", "failed"),
        culprit=_culprit(record, verdict, right),
        attributions=tuple(_attributions(record)) if report else (),
    )


def confirmed(record: Record) -> bool:
    """Return whether the measured truth confirms the case's label; an unmeasured label counts as confirmed."""
    truth = record["truth"]
    if truth is None:
        return True
    whole, base = truth["whole"], truth["baseline_ms"]
    if record["label"] == "none":
        return bool(whole["ms"] < UNSTARVED * base)
    if record["label"] == "contention" and truth["waited_ms"] > LATE * whole["ms"]:
        return False
    return bool(all(cost["low"] > STARVED * base for cost in truth["costs"].values()))


def _expected(record: Record, verdict: str) -> tuple[str, bool]:
    """Return the correct verdict, and whether ``verdict`` is correct."""
    costs = _costs_of_stages(record)
    if record["label"] == "none" or len(costs) < 2:
        if verdict in record["accepts"]:
            return verdict, True
        return record["label"], verdict == record["label"]
    (top, most), (other, less) = sorted(costs.items(), key=lambda item: -item[1])[:2]
    if most > ALIKE * less:
        return top, verdict == top
    if verdict not in (top, other):
        return top, False
    named = {verdict, *(_stage_of(item) for item in record["report"]["verdict"]["co_bottlenecks"])}
    return verdict, {top, other} <= named


def _costs_of_stages(record: Record) -> dict[str, float]:
    """Return the true cost of each stage; two planted links of one chain are one stage."""
    truth = record["truth"]
    costs: dict[str, float] = {}
    for plant in record["plants"]:
        cost = truth["costs"].get(plant["key"], {"ms": 0.0})["ms"] if truth else 0.0
        costs[plant["stage"]] = costs.get(plant["stage"], 0.0) + cost
    return costs


def _stage_of(item: Any) -> str:
    return str(item.get("stage", "")) if isinstance(item, Mapping) else str(item)


# The culprit


def names_in(culprit: str) -> list[str]:
    """Return every piece of code in a culprit's name: ``A``, ``A, B`` or ``Compose(A, B)``."""
    inside = re.fullmatch(r"[^(]*\((.*)\)", culprit)
    return [name.strip() for name in (inside.group(1) if inside else culprit).split(",") if name.strip()]


def _culprit(record: Record, verdict: str, right: bool) -> str:
    found = record["report"]["verdict"].get("culprit") if record["report"] else None
    if verdict in ("inconclusive", "failed"):
        return MISSING if any(p["names"] for p in record["plants"]) and record["label"] != "none" else UNASKED
    here = [p for p in record["plants"] if p["names"] and record["label"] != "none" and p["stage"] == verdict]
    accepted = [p for p in record["plants"] if p["names"]] if verdict in record["accepts"] else []
    if right and not here and not accepted:
        return UNASKED
    if not found:
        return MISSING
    if right and accepted and not here:
        return COVERS  # the named stage includes the planted one's code
    outcomes = [_compare(plant, found["name"], found.get("where", "")) for plant in here]
    return min(outcomes, key=[RIGHT, MISPLACED, COVERS, WRONG].index, default=WRONG)


def _compare(plant: Mapping[str, Any], name: str, where: str) -> str:
    file, _, line = where.rpartition(":")
    here = line.isdigit() and int(line) in plant["lines"]
    if here and plant["stage"] in ("load", "storage", "collate"):
        return RIGHT  # a line of loading or collating is named by what it calls
    called = {_bare(n) for n in plant["names"]}
    mentioned = [_bare(n) for n in names_in(name)]
    if not called & set(mentioned):
        return WRONG
    if len(mentioned) > 1 or "(" in name:
        return COVERS
    if plant["library"] and "torchvision" in file:
        return RIGHT
    return RIGHT if here else MISPLACED


def _bare(name: str) -> str:
    return name.removesuffix(".__call__").removesuffix(".forward")


# The waterfall


def _attributions(record: Record) -> list[Attribution]:
    truth = record["truth"]
    if truth is None or record["label"] == "none":
        return []
    found = []
    for plant in record["plants"]:
        cost = truth["costs"].get(plant["key"])
        pieces = pieces_of(plant, record["report"]["waterfall"])
        if cost is None or not pieces:
            continue
        value, low, high = _sum([piece["ms"] for piece in pieces])
        error = (value - cost["ms"]) / truth["baseline_ms"]
        covered = low <= cost["high"] and high >= cost["low"]
        found.append(Attribution(plant["key"], cost["ms"], value, low, high, error, covered))
    return found


def pieces_of(plant: Mapping[str, Any], waterfall: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pieces that contain a plant: those of its link, else of its stage, else the one covering its stage."""
    stage = [p for p in waterfall if p["stage"] == plant["stage"]]
    called = {_bare(n) for n in plant["names"]}
    link = [p for p in stage if p.get("culprit") and called & {_bare(n) for n in names_in(p["culprit"]["name"])}]
    return link or stage or [p for p in waterfall if plant["stage"] in p.get("covers", [])]


def _sum(intervals: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Add the values; add the half-widths of independent intervals in quadrature."""
    value = sum(_number(i["value"]) for i in intervals)
    below = math.hypot(*(_number(i["value"]) - _number(i["low"], -math.inf) for i in intervals))
    above = math.hypot(*(_number(i["high"], math.inf) - _number(i["value"]) for i in intervals))
    return value, value - below, value + above


def _number(value: Any, otherwise: float = 0.0) -> float:
    """Return a number; an open end of an interval is not a number in JSON."""
    return float(value) if isinstance(value, (int, float)) else otherwise


# Counting


@dataclass(frozen=True)
class Summary:
    """Counts over the confirmed cases; ``unconfirmed`` names the excluded others."""

    cases: int
    decided: int
    verdict_right: int
    verdict_wrong: int
    culprits: dict[str, int]
    attributions: int
    error_median: float | None
    error_p90: float | None
    covered: int
    unconfirmed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(scores: Sequence[Score]) -> Summary:
    kept = [s for s in scores if s.confirmed]
    errors = sorted(abs(a.error) for s in kept for a in s.attributions)
    return Summary(
        cases=len(kept),
        decided=sum(s.decided for s in kept),
        verdict_right=sum(s.verdict_right for s in kept),
        verdict_wrong=sum(s.decided and not s.verdict_right for s in kept),
        culprits=dict(Counter(s.culprit for s in kept)),
        attributions=len(errors),
        error_median=statistics.median(errors) if errors else None,
        error_p90=errors[math.ceil(0.9 * len(errors)) - 1] if errors else None,
        covered=sum(a.covered for s in kept for a in s.attributions),
        unconfirmed=tuple(s.name for s in scores if not s.confirmed),
    )


def confusion(scores: Sequence[Score]) -> dict[str, dict[str, int]]:
    """Count each verdict by the correct one, over the confirmed cases."""
    table: dict[str, dict[str, int]] = {}
    for label in VERDICTS:
        row = Counter(s.verdict for s in scores if s.confirmed and s.expected == label)
        if row:
            table[label] = {verdict: row[verdict] for verdict in VERDICTS if row[verdict]}
    return table


def markdown(scores: Sequence[Score]) -> str:
    """Return the confusion matrix, the summary and the misses as Markdown."""
    parts = [_matrix(scores), _summary(summarise(scores)), _misses(scores)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _matrix(scores: Sequence[Score]) -> str:
    table = confusion(scores)
    columns = [v for v in VERDICTS if v in table or any(v in row for row in table.values())]
    lines = ["| planted \\ verdict | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for label, row in table.items():
        cells = [(f"**{row[v]}**" if v == label else str(row[v])) if v in row else "" for v in columns]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _summary(s: Summary) -> str:
    asked = sum(n for outcome, n in s.culprits.items() if outcome != UNASKED)
    lines = [
        f"- verdicts: {s.verdict_right} of {s.cases} right, {s.verdict_wrong} wrong, {s.cases - s.decided} not decided",
        f"- culprits: {s.culprits.get(RIGHT, 0)} of {asked} right by name and line, {s.culprits.get(COVERS, 0)} named "
        f"among others, {s.culprits.get(MISPLACED, 0)} with another line, {s.culprits.get(WRONG, 0)} wrong, "
        f"{s.culprits.get(MISSING, 0)} not named",
    ]
    if s.error_median is not None and s.error_p90 is not None:
        lines.append(
            f"- cost of the planted stage: off by {100 * s.error_median:.1f} % of a step (median; 90 % of them by less "
            f"than {100 * s.error_p90:.1f} %); the truth meets the 95 % interval in {s.covered} of {s.attributions}"
        )
    if s.unconfirmed:
        lines.append(f"- left out, their label not borne out by the native runs: {', '.join(s.unconfirmed)}")
    return "\n".join(lines)


def _misses(scores: Sequence[Score]) -> str:
    missed = [s for s in scores if s.confirmed and (not s.verdict_right or s.culprit in (MISPLACED, WRONG, MISSING))]
    if not missed:
        return ""
    lines = ["| case | planted | verdict | culprit |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {s.name} | {s.expected} | {s.verdict} | {s.culprit} |" for s in missed)])
