"""What a reader sees of intervals: on the screen and in the text, of any session, none is broken."""

from __future__ import annotations

import re

from hypothesis import Phase, given, settings

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.summary import summarise
from pipediag.report import RENDERERS
from pipediag.report.screen import write
from pipediag.session import Session

from .test_waterfall import sessions

_NUMBER = r"-?\d+(?:\.\d+)?"
#: A figure with its interval: 62 % of every step (56 to 68 %), 1.9x predicted (1.7 to 2.2).
_SHARE = re.compile(rf"({_NUMBER}) %[^()%]*\(({_NUMBER}) to ({_NUMBER}) %")
_SPEEDUP = re.compile(rf"({_NUMBER})x \(({_NUMBER}) to ({_NUMBER}|more)\)")
_BETWEEN = re.compile(rf"({_NUMBER}) (?:to|\.\.) ({_NUMBER})\b")


def unbroken(text: str) -> None:
    text = " ".join(text.split())
    assert not re.search(r"\b(nan|inf)\b", text), text
    for value, low, high in _SHARE.findall(text):
        assert 0 <= float(low) <= float(value) <= float(high) <= 100, (value, low, high, text)
    for value, low, high in _SPEEDUP.findall(text):
        assert 0 <= float(low) <= float(value) <= (float(high) if high != "more" else float("inf")), (value, low, high)
    for low, high in _BETWEEN.findall(text):
        assert float(low) <= float(high), (low, high, text)


@settings(max_examples=25, phases=[Phase.generate])
@given(sessions(), sessions())
def test_of_any_session(one: Session, other: Session) -> None:
    found = diagnose_session(one)
    for shown in (found, audit(found), compare(found, diagnose_session(other))):
        unbroken(write(summarise(shown), width=200, max_lines=None))
        unbroken(RENDERERS[".txt"](shown))
