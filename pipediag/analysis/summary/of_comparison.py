"""Sum up a comparison: faster or slower, and which stages certainly changed."""

from __future__ import annotations

from ..compare import Comparison, StageChange
from ..sentences import number
from .of_diagnosis import answer
from .parts import Rate, Summary, Tone
from .words import STAGES

#: Most notes that are named.
_NOTES = 3


def of_comparison(comparison: Comparison) -> Summary:
    """Sum up a comparison."""
    loop, sides = comparison.loop, (comparison.before, comparison.after)
    tone: Tone = "doubtful"
    headline, figures, certainty = "The two runs cannot be compared", "", ""
    if loop is not None and loop.speedup is not None:
        gain = loop.speedup
        headline, tone = "The loop is as fast as before, as far as can be told", ""
        if loop.significant:
            headline, tone = ("The loop is faster", "good") if gain.value > 1 else ("The loop is slower", "bad")
        figures = f"{number(gain.value)}x the steps a second"
        certainty = f"{number(gain.low)} to {number(gain.high)}, {'' if loop.significant else 'not '}certain"
    rates = [
        Rate(name, side.ladder.ms("baseline").inverse(1000.0).value)
        for name, side in zip(("before", "after"), sides, strict=True)
        if side.ladder.has("baseline")
    ]
    changed = [one for one in comparison.stages if one.significant]
    return Summary(
        headline,
        figures,
        certainty,
        tone,
        " -> ".join(answer(side).headline.lower() for side in sides),
        rates,
        findings_title="Stages that certainly changed, ms a step" if changed else "",
        findings=[(STAGES[one.stage], _change(one)) for one in changed],
        careful=[one.message for one in comparison.warnings[:_NOTES]],
        notes=len(comparison.warnings[_NOTES:]),
    )


def _change(one: StageChange) -> str:
    assert one.before is not None and one.after is not None and one.change is not None, "it changed"
    change = one.change
    sign = "+" if change.value > 0 else ""
    interval = f"{number(change.low)} to {number(change.high)}"
    return f"{number(one.before.value)} -> {number(one.after.value)}   {sign}{number(change.value)} ({interval})"
