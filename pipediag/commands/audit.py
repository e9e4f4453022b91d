"""Implement ``pipediag audit``: check a script's input pipeline before tuning it or training for long."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from .. import report
from ..analysis import diagnose_session
from ..analysis.audit import audit as run_checklist
from ..host.passes import Request
from .measuring import exit_code, gated, measure, say_how_it_failed, show


def audit(request: Request, outputs: Sequence[str], percent: float, price: float | None = None) -> int:
    """Measure what the checklist needs, show and write it; return the exit code.

    Args:
        percent: percentage of a step that the input pipeline may cost; the exit code is 3 if it certainly costs more.
        price: what an hour of training costs, in any currency.

    Raises:
        NothingMeasured, UsageError, SessionFileError: see :func:`pipediag.host.passes.analyze_script` and
            :mod:`pipediag.report`.
    """
    session = measure(replace(request, audit=percent / 100, knobs=True))
    code = exit_code(session)
    if not session.anything_seen:
        say_how_it_failed(session)
        return code
    diagnosis = diagnose_session(session, price)
    checked = run_checklist(diagnosis, percent / 100)
    show(report.render_for(checked, sys.stdout))
    for path in outputs:
        report.write(checked, path)
    return gated(code, diagnosis, percent)
