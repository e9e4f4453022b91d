"""Implement ``pipediag audit``: check a script's input pipeline before tuning it or training for long."""

from __future__ import annotations

from dataclasses import replace

from ..analysis import diagnose_session
from ..analysis.audit import audit as run_checklist
from ..host.passes import Request
from .measuring import exit_code, gated, measure
from .results import Results


def audit(request: Request, results: Results, percent: float, price: float | None) -> int:
    """Measure what the checklist needs, show and write it; return the exit code.

    Args:
        results: where the report goes.
        percent: percentage of a step that the input pipeline may cost; the exit code is 3 if it certainly costs more.
        price: what an hour of training costs, in any currency.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    session = measure(replace(request, audit=percent / 100, knobs=True), results)
    if not session.anything_seen:
        return exit_code(session)
    diagnosis = diagnose_session(session, price)
    results.deliver(run_checklist(diagnosis, percent / 100))
    return results.code(gated(diagnosis, percent))
