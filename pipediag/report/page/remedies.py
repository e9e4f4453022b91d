"""Show what the remedies gained, samples under them, and the loader settings that were tried."""

from __future__ import annotations

import re

from ...analysis import Diagnosis
from ...analysis.trials.halving import arms, rate
from ...analysis.trials.remedy import BESIDE, Outcome, outcomes, paired, remedy_of
from ...analysis.words import number, times
from ...session import HANDED_OVER, Pictured, Session
from .. import remedy
from ..document import Table, filled
from . import svg
from .parts import Chart, PageBlock, Part, Pictures, with_drawings

#: Maximum characters of all pictures together.
_ROOM = 150_000
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def part(diagnosis: Diagnosis) -> Part | None:
    session = diagnosis.session
    blocks: list[PageBlock] = []
    if measured := [one for one in outcomes(session) if one.speedup is not None]:
        blocks.append(_gains(session, measured))
    blocks += remedy.section(diagnosis).blocks
    if pictures := _pictures(session):
        blocks.append(pictures)
    lead = "The loop as it is and under each remedy, measured in turn." if measured else ""
    return Part("remedies", "Remedies", blocks, lead)


def _gains(session: Session, measured: list[Outcome]) -> Chart:
    rounds = [paired(session, "baseline", one.rung) for one in measured]
    pairs = [[1000.0 * len(ms) / sum(ms) for ms in pair] for pair in rounds]
    high = max(max(pair) for pair in pairs)
    rows = []
    for one, (before, after) in zip(measured, pairs, strict=True):
        assert one.speedup is not None, "it was measured"
        label = f"{number(before)} steps/s before, {number(after)} after"
        drawn = svg.bars(label, [(before / high, "neutral"), (after / high, "good" if one.applied else "soft")])
        result = "pays" if one.applied else "reverted"
        name = BESIDE.get(one.rung, "transforms on the device")
        rows.append([name, drawn, number(before), number(after), times(one.speedup), result])
    headers = ("remedy", "steps/s before and after", "before", "after", "gain", "")
    return Chart("Steps per second without and with each remedy", headers, "lgrrrl", rows)


def _pictures(session: Session) -> Pictures | None:
    """Return the samples of the first certificate with pictures, as many as fit."""
    for one in outcomes(session):
        found = remedy_of(session, one.rung)
        if one.rung == HANDED_OVER or found is None or found.proof is None or not found.proof.pictured:
            continue
        usable, room = [], _ROOM
        for sample in found.proof.pictured:
            room -= sum(map(len, _images(sample)))
            if room >= 0 and all(map(_BASE64.fullmatch, _images(sample))):
                usable.append(sample)
        return Pictures(usable, len(found.proof.pictured) - len(usable)) if usable else None
    return None


def _images(sample: Pictured) -> tuple[str, str, str]:
    return sample.cpu, sample.device, sample.difference


def settings(diagnosis: Diagnosis) -> Part:
    """Return the loader settings that were tried on the loop, with bars."""
    session, blocks = diagnosis.session, list[PageBlock]()
    rungs = ["baseline", *(arm.rung for arm in arms(session) if arm.speedup is not None)]
    rates = [found.value if (found := rate(session, rung)) else 0.0 for rung in rungs]
    for block in filled(remedy.settings_section(diagnosis).blocks):
        if isinstance(block, Table):
            shares = [
                (f"{number(one)} steps/s", one / max(rates), "accent" if n else "neutral")
                for n, one in enumerate(rates)
            ]
            drawings = [svg.bar(*one) for one in shares]
            blocks.append(with_drawings(block, "Steps per second under each setting", "", drawings))
        else:
            blocks.append(block)
    return Part("settings", "Other loader settings", blocks, "Measured on the running loop." if blocks else "")
