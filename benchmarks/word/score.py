"""Hold pipediag's answers against the native turns, and against each other. Pure: cells in, numbers and tables out.

A cell is the plain data of one script under one load: ``script``, ``load`` (busy processes beside it), ``others_used``
(cores that others used before it began; None if unknown), ``turns`` (what :mod:`.native` timed, in this order) and
``answers`` (:func:`.asking.answer` with ``repeat``, ``error``, ``seconds``).
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from pipediag.analysis.thresholds import GATE

from .cases import KNOWN, Case

Cell = Mapping[str, Any]

#: Distance between a claimed interval and the truth from which the claim is wrong, as a share of the step: native turns
#: of one script differ by as much where other processes take cores.
TOLERANCE = 0.12
#: Least part of the cost that is a stage's if naming it is right.
PART = 1 / 3
#: Differences between the pairs of a cell, and cores used by others, from which its truth deserves doubt.
UNSTEADY, DISTURBED = 0.15, 0.25
#: What must be reached: wrong certain answers, contradictions by pairs, conclusive answers of the quiet ones.
MOST_WRONG, MOST_CONTRADICTIONS, LEAST_CONCLUSIVE = 2, 0.03, 0.90
RIGHT, WRONG, OPEN, FAILED, UNKNOWN = "right", "wrong", "open", "failed", "no truth"


@dataclass(frozen=True)
class Truth:
    """What the native turns say: the share of a plain step that the input costs, from the lowest pair to the highest.

    ``late`` is the part of the cost that the loop waits in ``next()``. ``own`` is the rest: what the step takes longer
    beside the loader's workers. ``removed`` is the part that goes without the planted cost; None if not measured.
    """

    value: float
    low: float
    high: float
    late: float
    own: float
    removed: float | None

    @property
    def starves(self) -> bool | None:
        """Whether the loop starves; None if its pairs disagree."""
        return None if self.low <= GATE < self.high else self.low > GATE


def truth(cell: Cell) -> Truth | None:
    """Return what the turns of a cell say, or None if there is no pair of a plain and a cached one."""
    turns: dict[str, list[Mapping[str, Any]]] = {}
    for turn in cell["turns"]:
        turns.setdefault(turn["turn"], []).append(turn)
    pairs = list(zip(turns.get("plain", []), turns.get("cached", []), strict=False))
    if not pairs:
        return None
    shares = [1 - cached["ms"] / plain["ms"] for plain, cached in pairs]
    plain_ms = statistics.median(plain["ms"] for plain, _ in pairs)
    cost = plain_ms * statistics.median(shares)
    late = min(1.0, statistics.median(p["waited_ms"] for p, _ in pairs) / cost) if cost > 0 else 0.0
    freed = [turn["ms"] for turn in turns.get("free", [])]
    removed = (plain_ms - statistics.median(freed)) / cost if freed and cost > 0 else None
    return Truth(statistics.median(shares), min(shares), max(shares), late, 1 - late if cost > 0 else 0.0, removed)


def stages(case: Case, true: Truth) -> frozenset[str]:
    """Return the stages that are right to name; empty if the truth does not tell.

    It does not where the loop may not starve, and where the cost remains although what causes it was removed.
    Contention is right where workers slow the step down rather than being late.
    """
    confirmed = true.removed is None or true.removed >= 1 - PART
    if not true.starves or not case.stages or not confirmed:
        return frozenset()
    own = {"contention"} if true.own >= PART else set()
    return frozenset({*case.stages} - {"contention"} | own)


def faults(case: Case, true: Truth, answer: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a conclusive answer.

    - ``share``: the claimed interval is further from the truth than the tolerance. *None* claims less than the gate, a
      stage claims more.
    - ``stage``: the loop starves, and another stage is named.
    - ``foreign``: the loop does not starve, and its workers are said to slow it down: what does is not its own.
    """
    named = answer["verdict"]["bottleneck"]
    found = []
    low, high = _ends(answer)
    low, high = (low, min(high, GATE)) if named == "none" else (max(low, GATE), max(high, GATE))
    if max(low - true.high, true.low - high) > TOLERANCE:
        found.append("share")
    right = stages(case, true)
    if right and named not in {*right, "none"}:
        found.append("stage")
    if named == "contention" and true.starves is False:
        found.append("foreign")
    return found


def outcome(case: Case, true: Truth | None, answer: Mapping[str, Any]) -> str:
    """Return ``right``, ``wrong``, ``open`` (no answer yet), ``failed`` (no report) or ``no truth``."""
    if answer.get("verdict") is None:
        return FAILED
    if not conclusive(answer):
        return OPEN
    if true is None:
        return UNKNOWN
    return WRONG if faults(case, true, answer) else RIGHT


def conclusive(answer: Mapping[str, Any]) -> bool:
    return answer.get("verdict") is not None and answer["verdict"]["bottleneck"] != "inconclusive"


def contradictions(cell: Cell) -> tuple[int, list[float]]:
    """Return the number of pairs of answers, and how far apart the intervals of the contradicting ones are."""
    claimed = [_ends(answer) for answer in cell["answers"] if answer.get("claimed")]
    pairs = list(itertools.combinations(claimed, 2))
    gaps = [max(one[0] - other[1], other[0] - one[1]) for one, other in pairs]
    return len(pairs), [round(gap, 4) for gap in gaps if gap > 0]


def by_line(case: Case, answer: Mapping[str, Any]) -> bool | None:
    """Return whether the culprit's line is that of the costly code; None if there is no such line to name."""
    if not case.code or answer["verdict"]["bottleneck"] not in case.stages:
        return None
    file, _, line = ((answer["verdict"]["culprit"] or {}).get("where") or "").rpartition(":")
    return file.endswith(f"{case.name}.py") and line.isdigit() and int(line) in case.lines


def _ends(answer: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the claimed interval; an open end is null in JSON."""
    claimed = answer.get("claimed") or {"low": None, "high": None}
    low, high = claimed["low"], claimed["high"]
    return (0.0 if low is None else low), (1.0 if high is None else high)


# Counting


@dataclass(frozen=True)
class Totals:
    """Counts over all cells.

    Attributes:
        none: Scripts without starvation by their quiet turns.
        certain: Answers that are called certain; ``wrong_certain`` of them are wrong, by their first fault in
            ``faults``.
        wrong_proven: Wrong answers of the level *proven*, certain or not.
        lines: Culprits with the right line, of ``lines_asked``.
        pairs: Pairs of answers on one script under one load.
        unsteady: Cells whose native pairs differ much.
        disturbed: Cells that began while others used the cores.
    """

    scripts: int
    none: int
    analyses: int
    outcomes: dict[str, int]
    quiet: int
    quiet_conclusive: int
    certain: int
    wrong_certain: int
    wrong_proven: int
    faults: dict[str, int]
    lines: int
    lines_asked: int
    pairs: int
    contradictions: int
    unsteady: int
    disturbed: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": self.missed}

    @property
    def missed(self) -> list[str]:
        """What is not reached; empty if all is."""
        found = []
        if self.wrong_proven:
            found.append(f"{self.wrong_proven} wrong answers are proven")
        if self.wrong_certain > MOST_WRONG:
            found.append(f"{self.wrong_certain} wrong answers are certain")
        if self.contradictions > MOST_CONTRADICTIONS * self.pairs:
            found.append(f"{self.contradictions} of {self.pairs} pairs contradict each other")
        if self.quiet_conclusive < LEAST_CONCLUSIVE * self.quiet:
            found.append(f"{self.quiet_conclusive} of {self.quiet} quiet answers are conclusive")
        return found


def totals(cells: Sequence[Cell]) -> Totals:
    judged = [(KNOWN[cell["script"]], truth(cell), answer) for cell in cells for answer in cell["answers"]]
    outcomes = [outcome(*one) for one in judged]
    wrong = [one for one, how in zip(judged, outcomes, strict=True) if how == WRONG]
    certain = [(case, true, answer) for case, true, answer in wrong if answer["certain"]]
    lines = [by_line(case, answer) for case, _, answer in judged if conclusive(answer)]
    quiet = [answer for cell in cells if cell["load"] == 0 for answer in cell["answers"]]
    pairs = [contradictions(cell) for cell in cells]
    calm = [truth(cell) for cell in cells if cell["load"] == 0]
    return Totals(
        scripts=len({cell["script"] for cell in cells}),
        none=sum(true is not None and true.starves is False for true in calm),
        analyses=len(judged),
        outcomes=dict(Counter(outcomes)),
        quiet=len(quiet),
        quiet_conclusive=sum(map(conclusive, quiet)),
        certain=sum(bool(answer.get("certain")) for _, _, answer in judged),
        wrong_certain=len(certain),
        wrong_proven=sum(answer["verdict"]["level"] == "proven" for _, _, answer in wrong),
        faults=dict(Counter(faults(case, true, answer)[0] for case, true, answer in certain if true)),
        lines=sum(line is True for line in lines),
        lines_asked=sum(line is not None for line in lines),
        pairs=sum(count for count, _ in pairs),
        contradictions=sum(len(gaps) for _, gaps in pairs),
        unsteady=sum(true is not None and true.high - true.low > UNSTEADY for true in map(truth, cells)),
        disturbed=sum((cell.get("others_used") or 0) > DISTURBED for cell in cells),
    )


# Words


def line(case: Case, load: int, true: Truth | None, answer: Mapping[str, Any]) -> str:
    """Return one analysis as a line: script, load, verdict, level, claimed share, certain or not, right or not."""
    how = outcome(case, true, answer)
    parts = [f"{case.name} beside {load}"]
    if how == FAILED:
        return " | ".join([*parts, f"FAILED: {answer['error']}"])
    verdict = answer["verdict"]
    wrong = ", ".join(faults(case, true, answer)) if how == WRONG and true else ""
    parts += [
        f"{verdict['bottleneck']} ({verdict['level']})",
        _share(answer),
        "certain" if answer["certain"] else "not certain",
        f"{how.upper() if wrong else how}{': ' + wrong if wrong else ''}",
        f"truth {shown(true)}",
        f"{answer['seconds']:.0f} s",
    ]
    return " | ".join(parts)


def shown(true: Truth | None) -> str:
    return "?" if true is None else f"{100 * true.value:.0f} % ({100 * true.low:.0f} to {100 * true.high:.0f})"


def _share(answer: Mapping[str, Any]) -> str:
    if not answer.get("claimed"):
        return "?"
    low, high = _ends(answer)
    return f"{100 * answer['claimed']['value']:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def table(cells: Sequence[Cell]) -> str:
    """Return the Markdown table of scripts by load, the counts, and what was wrong."""
    loads = sorted({cell["load"] for cell in cells})
    by_place = {(cell["script"], cell["load"]): cell for cell in cells}
    rows = []
    for case in KNOWN.values():
        if any((case.name, load) in by_place for load in loads):
            row = {"script": f"`{case.name}`", "right": ", ".join(case.stages) or "none"}
            for load in loads:
                heading = f"beside {load} busy" if load else "quiet"
                row[heading] = _cell(case, by_place.get((case.name, load)))
            rows.append(row)
    parts = [tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True), _counts(totals(cells))]
    return "\n\n".join([*parts, *filter(None, [_wrong(cells), _apart(cells)])])


def _cell(case: Case, cell: Cell | None) -> str:
    """Return the truth of a cell, and how often what was answered."""
    if cell is None:
        return ""
    true = truth(cell)
    answers: Counter[str] = Counter()
    for answer in cell["answers"]:
        how = outcome(case, true, answer)
        name = how if how in (FAILED, OPEN) else answer["verdict"]["bottleneck"]
        answers[f"**{name}**" if how == WRONG else name] += 1
    said = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in answers.most_common())
    return f"{shown(true)}: {said or '-'}"


def _counts(t: Totals) -> str:
    lines = [
        f"- {t.analyses} analyses of {t.scripts} scripts, {t.none} of which do not starve when quiet: "
        + ", ".join(f"{count} {how}" for how, count in sorted(t.outcomes.items(), key=lambda item: -item[1])),
        f"- certain: {t.certain}, {t.wrong_certain} of them wrong; wrong and proven: {t.wrong_proven}",
        f"- contradictions: {t.contradictions} of {t.pairs} pairs",
        f"- conclusive on the quiet machine: {t.quiet_conclusive} of {t.quiet}",
        f"- culprits by line: {t.lines} of {t.lines_asked}",
        f"- doubtful: in {t.unsteady} cells the native pairs differ by more than {100 * UNSTEADY:.0f} points, and "
        f"{t.disturbed} began while others used the cores",
        f"- not reached: {'; '.join(t.missed)}" if t.missed else "- not reached: nothing",
    ]
    return "\n".join(lines)


def _wrong(cells: Sequence[Cell]) -> str:
    rows = []
    for cell in cells:
        case, true = KNOWN[cell["script"]], truth(cell)
        for answer in cell["answers"]:
            if true is None or outcome(case, true, answer) != WRONG:
                continue
            verdict = answer["verdict"]
            rows.append(
                {
                    "wrong": f"`{case.name}` beside {cell['load']}",
                    "answer": f"{verdict['bottleneck']} ({verdict['level']}), {_share(answer)}",
                    "certain": "yes" if answer["certain"] else "no",
                    "truth": shown(true),
                    "fault": ", ".join(faults(case, true, answer)),
                }
            )
    return tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True) if rows else ""


def _apart(cells: Sequence[Cell]) -> str:
    rows = [
        {
            "contradict each other": f"`{cell['script']}` beside {cell['load']}",
            "answers": "; ".join(_share(answer) for answer in cell["answers"] if answer.get("claimed")),
        }
        for cell in cells
        if contradictions(cell)[1]
    ]
    return tabulate(rows, headers="keys", tablefmt="pipe", disable_numparse=True) if rows else ""
