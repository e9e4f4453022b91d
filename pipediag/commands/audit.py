"""Implement ``pipediag audit``: check a script's input pipeline before tuning it or training for long."""

from __future__ import annotations

from dataclasses import replace

from ..analysis import diagnose_session
from ..analysis.audit import audit as run_checklist
from ..errors import EXIT_GATE, EXIT_OK
from ..host.passes import Request
from .measuring import exit_code, measure
from .results import Results, say


def audit(request: Request, results: Results, percent: float, price: float | None) -> int:
    """Measure what the checklist needs, show and write it; return the exit code: 3 if the audit failed.

    Args:
        results: where the report goes.
        percent: percentage of a step that the input pipeline may cost.
        price: what an hour of training costs, in any currency.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    session = measure(replace(request, audit=percent / 100, knobs=True), results)
    if not session.anything_seen:
        return exit_code(session)
    checked = run_checklist(diagnose_session(results.reported(session), price), percent / 100)
    results.deliver(checked)
    code = exit_code(session)
    if code == EXIT_OK and checked.failed:
        say(f"not met: {'; '.join(item.title for item in checked.failed)}")
        code = EXIT_GATE
    return results.code(code)
