"""Sum up an audit: which checks failed, and what to do about them."""

from __future__ import annotations

from dataclasses import replace

from ..audit import FAILED, PASSED, UNMEASURABLE, Audit
from ..sentences import counted
from .of_diagnosis import ACTIONS, advice, of_diagnosis
from .parts import Action, Summary


def of_audit(audit: Audit) -> Summary:
    """Sum up an audit."""
    inner, failed = of_diagnosis(audit.diagnosis), audit.count(FAILED)
    items = sorted(audit.items, key=lambda item: [FAILED, UNMEASURABLE, PASSED].index(item.status))
    actions = []
    for item in items:
        actions += [advice(audit.diagnosis.session, one) for one in item.advice]
        actions += [Action(one) for one in item.todo if item.status == FAILED]
    passed, open_ = audit.count(PASSED), audit.count(UNMEASURABLE)
    return replace(
        inner,
        headline="The audit failed" if failed else "The audit passed",
        figures=f"{failed} of {counted(len(items), 'check')} failed, {passed} passed, {open_} unmeasurable",
        certainty="",
        tone="bad" if failed else "good",
        basis="",
        causes=[],
        rest="",
        findings_title="Checks",
        findings=[(item.status, item.title) for item in items],
        actions=list(dict.fromkeys(actions))[:ACTIONS],
    )
