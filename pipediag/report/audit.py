"""Turn an audit into blocks: its checklist, and what would help."""

from __future__ import annotations

from ..analysis.audit import DOES_NOT_APPLY, FAILED, NOT_MEASURED, OPEN, PASSED, Audit, Item
from ..analysis.summary import Tone, summarise
from . import advice
from .diagnosis import setting, title, warnings
from .document import Block, Check, Checklist

_TONES: dict[str, Tone] = {
    FAILED: "bad", OPEN: "doubtful", NOT_MEASURED: "doubtful", PASSED: "good", DOES_NOT_APPLY: ""
}  # fmt: skip


def blocks(audit: Audit) -> list[Block]:
    return [
        title(summarise(audit), setting(audit.diagnosis)),
        Checklist([Check(one.status, one.title, one.figures, _todo(one), _TONES[one.status]) for one in audit.items]),
        advice.section(audit.diagnosis),
        warnings(audit.diagnosis.warnings, audit.diagnosis.session),
    ]


def _todo(item: Item) -> list[str]:
    """Return what would fix an item, one line each."""
    return [f"{one.title}: {advice.gain(one)}" for one in item.advice] + item.todo
