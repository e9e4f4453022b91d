"""Implement ``pipediag demo``: analyze the built-in script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..host.passes import Request
from ..host.script import Target
from .analyze import analyze

_SCRIPT = Path(__file__).parents[1] / "demo" / "train.py"


def demo(budget: float, outputs: Sequence[str], fail_over: float | None) -> int:
    """Analyze the script for ``budget`` seconds; see :func:`pipediag.commands.analyze.analyze`."""
    return analyze(Request(Target(str(_SCRIPT)), budget, knobs=True), outputs, fail_over)
