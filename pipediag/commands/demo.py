"""Implement ``pipediag demo``: analyze the built-in script."""

from __future__ import annotations

from pathlib import Path

from ..host.passes import Request
from ..host.script import Target
from .analyze import analyze
from .results import Results

_SCRIPT = Path(__file__).parents[1] / "demo" / "train.py"


def demo(budget: float, results: Results, fail_over: float | None) -> int:
    """Analyze the script for ``budget`` seconds; see :func:`pipediag.commands.analyze.analyze`."""
    return analyze(Request(Target(str(_SCRIPT)), budget, knobs=True), results, fail_over)
