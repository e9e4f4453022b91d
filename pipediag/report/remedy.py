"""Report what would help, and what was tried: remedies (what moved, how exact it is), other loader settings."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..analysis import Diagnosis
from ..analysis.diagnosis import Recommendation
from ..analysis.recommend.tried import IDS
from ..analysis.trials.halving import arms, rate
from ..analysis.trials.halving import best as best_settings
from ..analysis.trials.remedy import BESIDE, HAND_OFF, Outcome, best, commands_to_keep, outcomes, remedy_of, savings_of
from ..analysis.trials.settings import current
from ..analysis.whatif import Savings
from ..analysis.words import ends, named, number, shown, times, together
from ..session import DECODED, HANDED_OVER, LOADED_ONCE, Kept, Proof, Remedy
from ..session.remedies import DECODING, elsewhere
from .document import Advice, Block, Code, Listing, Paragraph, Section, Table

#: Units of time, with their seconds; a time is given in the largest unit of which it has at least two.
_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
#: What is the case if a remedy beside the offload was not tried.
_INSTEAD = {
    DECODED: "JPEGs are decoded in the workers",
    HANDED_OVER: "the hand-off alone was not tried",
    LOADED_ONCE: "samples are not kept",
}


def advice_section(diagnosis: Diagnosis) -> Section:
    blocks: list[Block] = [Paragraph(diagnosis.nothing_to_gain)]
    for count, one in enumerate(diagnosis.recommendations, 1):
        (how, *code), saved = one.how.splitlines(), savings(diagnosis, one.savings)
        blocks.append(Advice(count, one.title, shown(one.stage), gain(one), saved, one.evidence, how, code, one.risk))
    return Section("what would help", blocks, page=1)


def gain(one: Recommendation) -> str:
    """Return the measured speedup as text, or the predicted one, which may be a bound."""
    if one.measured is not None:
        predicted = f", {number(one.predicted.value)}x predicted" if one.predicted else ""
        return f"{times(one.measured)} measured{predicted}"
    if one.predicted is None:
        return "not predicted"
    return f"at most {times(one.predicted)}" if one.at_most else times(one.predicted)


def savings(diagnosis: Diagnosis, saved: Savings | None) -> str:
    """Return what a change brings, in one line; empty if unknown."""
    if saved is None:
        return ""
    unit, seconds = next((one for one in _UNITS if saved.now >= 2 * one[1]), _UNITS[-1])
    now, then = saved.now / seconds, saved.then.times(1 / seconds)
    between = ends(then)
    took = f"{number(then.value)} {unit}{between and f' ({between})'}"
    if saved.batches is None:
        told = f"hour of today's training: {took}"
    else:
        start = " with its start" if saved.with_start else ""
        told = f"epoch of {saved.batches} batches{start}: {took} instead of {number(now)} {unit}"
    costs = saved.costs(diagnosis.price)
    if costs is not None:
        told += f"; costs {_money(costs[1].value)} instead of {_money(costs[0])}"
    loader = diagnosis.session.loader
    if saved.workers is not None and loader is not None:
        told += f"; {saved.workers} of {loader.num_workers} workers keep up"
    return told


def _money(amount: float) -> str:
    return number(amount) if amount >= 0.01 else f"{amount:.2g}"


def section(diagnosis: Diagnosis) -> Section:
    session = diagnosis.session
    results, kept = outcomes(session), best(session)
    if kept is None:
        return Section("remedy", [])
    results.sort(key=lambda result: result.rung != kept.rung)
    lines = [line for result in results for line in _findings(diagnosis, result)]
    if saved := savings(diagnosis, savings_of(diagnosis.ladder, kept.rung)):
        lines.insert(1, saved)
    found: list[Block] = [Listing(lines)]
    applied = remedy_of(session, kept.rung)
    if kept.applied and applied is not None:
        diff = applied.edit.diff.splitlines()
        found += [Code("to keep it", diff, "diff")] if diff else []
        commands = commands_to_keep(applied, kept, session.script)
        found.append(Code("or leave the script as it is" if diff else "to keep it", commands))
    return Section("remedy", found, page=5)


def _findings(diagnosis: Diagnosis, result: Outcome) -> list[str]:
    """Return the findings on one remedy, the most important first."""
    remedy = remedy_of(diagnosis.session, result.rung)
    assert remedy is not None, "it has a result"
    if result.why_not and result.rung in _INSTEAD:
        return [f"{_INSTEAD[result.rung]}: {result.why_not}"]
    if result.why_not:
        others = [kept for kept in remedy.stayed if result.why_not not in (kept.why, f"{kept.name}: {kept.why}")]
        return [f"nothing was moved: {result.why_not}", *_stayed(others)]
    if result.rung == HANDED_OVER:
        return [f"{HAND_OFF}; {_verdict(result)}", *_cost(remedy, result)]
    moved = [*dict.fromkeys(map(named, remedy.moved))]
    if remedy.keeping is not None:
        kept = remedy.keeping
        part = "" if kept.fits == 1 else f", {kept.fits:.0%} of the samples"
        room = f"{number(kept.nbytes / 1e9)} of {number(kept.free / 1e9)} GB free{part}"
        lines = [f"{BESIDE[LOADED_ONCE]}: {_verdict(result)}, from the second epoch on"]
        lines.append(f"samples are {kept.what}: {room}")
        lines += [f"moved to {remedy.device}: {', '.join(moved)}"] if moved else []
    elif result.rung == DECODED:
        lines = [f"{BESIDE[DECODED]}: {_verdict(result)}", f"moved to {remedy.device}: {', '.join([DECODING, *moved])}"]
    else:
        expected = (one.predicted for one in diagnosis.recommendations if one.id == "offload" and one.predicted)
        predicted = next((f", predicted {number(one.value)}" for one in expected), "")
        lines = [_verdict(result) + predicted, f"moved to {remedy.device}: {', '.join(moved)}"]
        lines += _stayed(remedy.stayed)
    if remedy.proof is not None:
        lines.append(_proof(remedy.proof))
    return lines + _cost(remedy, result)


def _cost(remedy: Remedy, result: Outcome) -> list[str]:
    """Return how much memory a remedy takes, and why no change of the script is offered if it pays."""
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
    between = ends(speedup) if math.isfinite(speedup.high) else "in one round"
    ratio = f"{number(speedup.value)} times the steps{between and f' ({between})'}"
    return f"it pays: {ratio}" if result.applied else f"reverted: {result.reverted}; {ratio}"


def _stayed(stayed: Iterable[Kept]) -> list[str]:
    """Return what stays in the workers and why, with the transforms of one reason in one line."""
    return [
        f"stays in the workers: {names}{', ' * bool(why)}{why}" if names else why
        for names, why in together((kept.name, kept.why) for kept in stayed)
    ]


def _proof(proof: Proof) -> str:
    verdict, apart = "passed" if proof.passed else "failed", []
    for one in proof.apart:
        if one.largest is None:
            apart.append(f"{one.name} not comparable")
        elif one.largest:
            apart.append(f"{one.name} {one.largest:.2g} {'levels' if one.levels else 'of the range'}")
    exact = "equal to the CPU's pixels" + (" on these" if proof.elsewhere != [] else "")
    pixels = f"largest differences to the CPU's pixels: {'; '.join(apart)}" if apart else exact
    others = f"; {words}" if (words := elsewhere(proof.elsewhere or [])) else ""
    draws = "the same random draws" if proof.draws_equal else "other random draws"
    unrecorded = f"; {proof.unrecorded} not recorded ({proof.why})" if proof.unrecorded else ""
    return f"certificate {verdict} on {proof.samples} samples: {pixels}{others}; {draws}{unrecorded}"


def settings_section(diagnosis: Diagnosis) -> Section:
    """Return a row for the present loader, then one for each measured setting, and why others were not measured."""
    session, chosen = diagnosis.session, best_settings(diagnosis.session)
    rows, notes, plain = list[list[str]](), list[str](), rate(session, "baseline")
    for arm in arms(session):
        if arm.speedup is None:
            why = f"not tried: {arm.why_not}" if arm.why_not else "there was no time"
            notes.append(f"{arm.settings.written}: {why}")
            continue
        if arm.why_not:
            notes.append(f"{arm.settings.written}: {arm.why_not}")
        steps, startup = rate(session, arm.rung), arm.settings.startup
        first = f"{number(startup)} s" if startup is not None else ""
        judged = "best" if chosen is not None and arm.rung == chosen.rung else arm.verdict
        rows.append([arm.settings.written, number(steps.value) if steps else "", times(arm.speedup), first, judged])
    if rows and plain is not None and session.loader is not None:
        rows.insert(0, [f"{current(session.loader).written} (current)", number(plain.value), "", "", ""])
    else:
        rows = []
    # The reason for trying none is included only if an unmeasured recommendation depends on a trial.
    predicted = any(one.id in IDS and one.measured is None for one in diagnosis.recommendations)
    if session.knobs is not None and session.knobs.why_not and predicted:
        notes.append(f"none: {session.knobs.why_not}; their gains are predicted")
    headers = ("settings", "steps/s", "times the baseline", "first batch", "")
    table = Table(headers, "lrlrl", rows, ruled=False)
    return Section("other loader settings, measured on the loop", [table, Listing(notes)], page=2)
