"""Render the remedy's part of the reports: what moved, how exact it is, whether it pays, and how to keep it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from ..analysis import Diagnosis
from ..analysis.recommend.view import named
from ..analysis.remedy import Outcome, outcome
from ..analysis.sentences import number
from ..session import Apart, Kept, Proof, Remedy
from .text import bullet


@dataclass(frozen=True)
class Section:
    """A report's section on the remedy.

    Attributes:
        lines: the findings, the most important first.
        diff: the change that keeps it; empty if there is none or if the remedy does not pay.
        commands: the commands that do the same without a change.
    """

    lines: list[str]
    diff: str = ""
    commands: list[str] = field(default_factory=list)


def section(diagnosis: Diagnosis) -> Section | None:
    """Return the section, or None if no remedy was requested."""
    remedy, came = diagnosis.session.remedy, outcome(diagnosis.session)
    if remedy is None or came is None:
        return None
    if came.why_not:
        return Section([f"nothing was moved: {came.why_not}", *map(_kept, _others(remedy, came.why_not))])
    lines = [_result(came) + _predicted(diagnosis), f"moved to {remedy.device}: {', '.join(map(named, remedy.moved))}"]
    lines += [_kept(kept) for kept in remedy.stayed]
    if remedy.proof is not None:
        lines.append(_proof(remedy.proof))
    if remedy.memory_bytes is not None:
        lines.append(f"memory of the device at its peak: {remedy.memory_bytes / 2**20:.0f} MiB more")
    if not came.applied:
        return Section(lines)
    if not remedy.edit.diff:
        lines.append(f"no change of the script is offered: {remedy.edit.why_not}")
    return Section(lines, remedy.edit.diff, _commands(diagnosis))


def terminal(diagnosis: Diagnosis) -> list[str]:
    """Return lines for the terminal, indented."""
    found = section(diagnosis)
    if found is None:
        return []
    lines = ["", "remedy:", *map(bullet, found.lines)]
    if found.diff:
        lines += ["", "to keep it (patch -p0):", "", *found.diff.splitlines()]
    if found.commands:
        lines += ["", "or leave the script as it is:" if found.diff else "to keep it:", ""]
        lines += [f"  {command}" for command in found.commands]
    return lines


def markdown(diagnosis: Diagnosis) -> list[str]:
    found = section(diagnosis)
    if found is None:
        return []
    lines = ["", "## Remedy", "", *(f"- {line}" for line in found.lines)]
    if found.diff:
        lines += ["", "To keep it:", "", "```diff", *found.diff.splitlines(), "```"]
    if found.commands:
        lines += ["", "Or leave the script as it is:" if found.diff else "To keep it:", ""]
        lines += ["```", *found.commands, "```"]
    return lines


def _result(came: Outcome) -> str:
    if came.speedup is None:
        return f"reverted: {came.reverted}"
    ratio = f"{number(came.speedup.value)} times the steps ({number(came.speedup.low)} to {number(came.speedup.high)})"
    return f"it pays: {ratio}" if came.applied else f"reverted: {came.reverted}; {ratio}"


def _predicted(diagnosis: Diagnosis) -> str:
    """Return the predicted speedup as text; empty if there is no prediction."""
    expected = [one.predicted for one in diagnosis.recommendations if one.id == "offload" and one.predicted]
    return f", predicted {number(expected[0].value)}" if expected else ""


def _kept(kept: Kept) -> str:
    return f"stays in the workers: {kept.name}" + (f", {kept.why}" if kept.why else "") if kept.name else kept.why


def _others(remedy: Remedy, told: str) -> list[Kept]:
    """Return the transforms that stay, without the reason in ``told``."""
    return [kept for kept in remedy.stayed if told not in (kept.why, f"{kept.name}: {kept.why}")]


def _proof(proof: Proof) -> str:
    verdict = "passed" if proof.passed else "failed"
    apart = [_apart(one) for one in proof.apart if one.largest != 0]
    exact = f"largest differences to the CPU's pixels: {'; '.join(apart)}" if apart else "equal to the CPU's pixels"
    draws = "the same random draws" if proof.draws_equal else "other random draws"
    unrecorded = f"; {proof.unrecorded} not recorded ({proof.why})" if proof.unrecorded else ""
    return f"certificate {verdict} on {proof.samples} samples: {exact}; {draws}{unrecorded}"


def _apart(apart: Apart) -> str:
    if apart.largest is None:
        return f"{apart.name} not comparable"
    return f"{apart.name} {apart.largest:.2g} {'levels' if apart.levels else 'of the range'}"


def _commands(diagnosis: Diagnosis) -> list[str]:
    remedy = diagnosis.session.remedy
    plan = ["--plan", remedy.plan_file] if remedy is not None and remedy.plan_file else []
    return [shlex.join(["pipediag", "run", *plan, *diagnosis.session.script.argv])]
