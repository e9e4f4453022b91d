"""Sum up a result for one screen: the answer and its certainty, now against possible, where, what to do, careful."""

from __future__ import annotations

from ..audit import Audit
from ..compare import Comparison
from ..diagnosis import Diagnosis
from ..sweep import Sweep
from .of_audit import of_audit
from .of_comparison import of_comparison
from .of_diagnosis import of_diagnosis
from .of_sweep import of_sweep
from .parts import Action, Rate, StageCost, Summary, Tone

__all__ = ["Action", "Rate", "StageCost", "Summary", "Tone", "summarise"]


def summarise(subject: Diagnosis | Audit | Comparison | Sweep) -> Summary:
    """Sum up a result of any kind."""
    if isinstance(subject, Audit):
        return of_audit(subject)
    if isinstance(subject, Comparison):
        return of_comparison(subject)
    return of_sweep(subject) if isinstance(subject, Sweep) else of_diagnosis(subject)
