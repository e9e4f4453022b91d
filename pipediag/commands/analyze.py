"""Implement ``pipediag analyze``, ``demo`` and ``audit``: measure a script, and save the plan of a remedy that pays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..analysis.audit import audit as run_checklist
from ..analysis.trials.remedy import best, outcomes, remedy_of, why_none
from ..errors import EXIT_GATE, EXIT_OK, SessionFileError, UsageError
from ..host.passes import Request
from ..host.script import Target
from ..remedy import saved_plan
from ..report.files import check_writable
from .results import Results, exit_code, gated, measure, say

_DEMO = Path(__file__).parents[1] / "demo" / "train.py"
_NOT_TRIED = "the analysis ended before a remedy was tried"


def demo(budget: float, results: Results, fail_over: float | None) -> int:
    """Analyze the built-in script for ``budget`` seconds; return the exit code."""
    return analyze(Request(Target(str(_DEMO)), budget, knobs=True), results, fail_over)


def analyze(
    request: Request,
    results: Results,
    fail_over: float | None,
    plan: str | None = None,
    price: float | None = None,
) -> int:
    """Measure the script and report the diagnosis; return the exit code, 3 if data certainly costs over ``fail_over``.

    The ``plan`` of the remedy is written if the remedy pays. ``price`` is what an hour of training costs.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    if plan is not None:
        if not request.apply:
            raise UsageError("--plan saves the remedy that --apply measures: give both")
        check_writable("--plan", plan)
    if request.approximate and not request.apply:
        raise UsageError("--approximate changes the remedy that --apply measures: give both")
    if request.profile:
        check_writable("--profile", request.profile)
    session = measure(request, results)
    if not session.anything_seen:
        return exit_code(session)
    if plan is not None:
        result = best(session)
        remedy = remedy_of(session, result.rung) if result is not None else None
        if result is None or not result.applied or remedy is None or result.speedup is None:
            say(f"{plan} was not written: {why_none(session) or _NOT_TRIED}")
        else:
            try:
                saved_plan.write(session, remedy, result.speedup.to_dict(), plan)
                remedy.plan_file = plan
            except SessionFileError as error:
                results.fail(plan, str(error))
    elif request.apply and not outcomes(session):
        say(f"no remedy was kept: {_NOT_TRIED}")
    diagnosis = results.diagnosed(session, price)
    results.deliver(diagnosis)
    return results.code(gated(diagnosis, fail_over))


def audit(request: Request, results: Results, percent: float, price: float | None) -> int:
    """Measure what the checklist needs, show and write it; return the exit code, 3 if the audit failed.

    ``percent`` of a step is what the input pipeline may cost.

    Raises:
        NothingMeasured, UsageError: see :func:`pipediag.host.passes.analyze_script`.
    """
    session = measure(replace(request, audit=percent / 100, knobs=True), results)
    if not session.anything_seen:
        return exit_code(session)
    checked = run_checklist(results.diagnosed(session, price), percent / 100)
    results.deliver(checked)
    code = exit_code(session)
    if code == EXIT_OK and checked.failed:
        say(f"not met: {'; '.join(item.title for item in checked.failed)}")
        code = EXIT_GATE
    return results.code(code)
