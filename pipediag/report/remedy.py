"""Report the remedy: what moved, how exact it is, whether it pays, and how to keep it."""

from __future__ import annotations

import shlex

from ..analysis import Diagnosis
from ..analysis.recommend.view import named
from ..analysis.remedy import HAND_OFF, Outcome, best, outcome, remedy_of
from ..analysis.sentences import elsewhere, number
from ..session import HANDED_OVER, Apart, Kept, Proof, Remedy
from .document import Block, Code, Listing, Section


def section(diagnosis: Diagnosis) -> Section:
    session = diagnosis.session
    remedy, result, kept = session.remedy, outcome(session), best(session)
    if remedy is None or result is None or kept is None:
        return Section("remedy", [])
    findings = [_findings(diagnosis, remedy, result)]
    handed, handoff = session.handoff, outcome(session, HANDED_OVER)
    if handed is not None and handoff is not None:
        findings.insert(0 if handoff.applied else 1, _of_handoff(handed, handoff))
    found: list[Block] = [Listing([line for lines in findings for line in lines])]
    applied = remedy_of(session, kept.rung)
    if kept.applied and applied is not None:
        diff = applied.edit.diff.splitlines()
        found += [Code("to keep it", diff, "diff")] if diff else []
        commands = _commands(applied, kept, session.script.argv)
        found.append(Code("or leave the script as it is" if diff else "to keep it", commands))
    return Section("remedy", found, page=5)


def _commands(remedy: Remedy, result: Outcome, script: list[str]) -> list[str]:
    """Return the commands that keep a remedy; without a plan, ``run`` only moves transforms."""
    plan = ["--plan", remedy.plan_file or "plan.json"] if remedy.plan_file or result.rung == HANDED_OVER else []
    also = ["--approximate"] if remedy.decodes and not plan else []
    commands = [["pipediag", "run", *plan, *also, *script]]
    if plan and not remedy.plan_file:
        commands.insert(0, ["pipediag", "analyze", "--apply", *plan, *script])
    return [shlex.join(command) for command in commands]


def _findings(diagnosis: Diagnosis, remedy: Remedy, result: Outcome) -> list[str]:
    """Return the findings, the most important first."""
    if why := result.why_not:
        others = [kept for kept in remedy.stayed if why not in (kept.why, f"{kept.name}: {kept.why}")]
        return [f"nothing was moved: {why}", *map(_kept, others)]
    moved = [*(["JPEG decoding"] if remedy.decodes else []), *map(named, remedy.moved)]
    lines = [_verdict(result) + _predicted(diagnosis), f"moved to {remedy.device}: {', '.join(moved)}"]
    lines += [_kept(kept) for kept in remedy.stayed]
    if remedy.proof is not None:
        lines.append(_proof(remedy.proof))
    return lines + _cost(remedy, result)


def _of_handoff(remedy: Remedy, result: Outcome) -> list[str]:
    if result.why_not:
        return [f"the hand-off alone was not tried: {result.why_not}"]
    return [f"{HAND_OFF}; {_verdict(result)}", *_cost(remedy, result)]


def _cost(remedy: Remedy, result: Outcome) -> list[str]:
    """Return how much memory a remedy takes, and why no change of the script is offered, if none is."""
    lines = []
    if remedy.memory_bytes is not None:
        lines.append(f"memory of the device at its peak: {remedy.memory_bytes / 2**20:.0f} MiB more")
    if result.applied and not remedy.edit.diff:
        lines.append(f"no change of the script is offered: {remedy.edit.why_not}")
    return lines


def _verdict(result: Outcome) -> str:
    if result.speedup is None:
        return f"reverted: {result.reverted}"
    speedup = result.speedup
    ratio = f"{number(speedup.value)} times the steps ({number(speedup.low)} to {number(speedup.high)})"
    return f"it pays: {ratio}" if result.applied else f"reverted: {result.reverted}; {ratio}"


def _predicted(diagnosis: Diagnosis) -> str:
    """Return the predicted speedup as text; empty if there is no prediction."""
    expected = [one.predicted for one in diagnosis.recommendations if one.id == "offload" and one.predicted]
    return f", predicted {number(expected[0].value)}" if expected else ""


def _kept(kept: Kept) -> str:
    return f"stays in the workers: {kept.name}" + (f", {kept.why}" if kept.why else "") if kept.name else kept.why


def _proof(proof: Proof) -> str:
    verdict = "passed" if proof.passed else "failed"
    apart = [_apart(one) for one in proof.apart if one.largest != 0]
    exact = "equal to the CPU's pixels" + (" on these" if proof.elsewhere != [] else "")
    pixels = f"largest differences to the CPU's pixels: {'; '.join(apart)}" if apart else exact
    others = f"; {words}" if (words := elsewhere(proof.elsewhere or [])) else ""
    draws = "the same random draws" if proof.draws_equal else "other random draws"
    unrecorded = f"; {proof.unrecorded} not recorded ({proof.why})" if proof.unrecorded else ""
    return f"certificate {verdict} on {proof.samples} samples: {pixels}{others}; {draws}{unrecorded}"


def _apart(apart: Apart) -> str:
    if apart.largest is None:
        return f"{apart.name} not comparable"
    return f"{apart.name} {apart.largest:.2g} {'levels' if apart.levels else 'of the range'}"
