"""Rules for lines of code in loading and collating: what each would gain, and what is known to help there.

What a line does is told by the functions that were seen to run below it, never by its text.
"""

from __future__ import annotations

from ...session import HotLine, Place
from ..diagnosis import Recommendation
from ..forecast.whatif import Change
from ..numbers.hot_lines import OTHERS, mostly, of_stage, short
from ..numbers.work import Work, saving
from ..sentences import percent
from ..thresholds import WORTH
from .calls import LOOPS, decodes, way_for
from .view import ALL, View, at_line, share_text

#: Largest number of lines of a stage for which something is recommended.
_NAMED = 3


def cheaper(view: View) -> list[Recommendation]:
    """Recommend making each line cheaper whose work costs the loop a worthwhile gain, costliest first."""
    work, found = view.work, list[Recommendation]()
    if work is None:
        return []
    for stage, whole in (("load", work.load), ("collate", work.collate)):
        lines = of_stage(view.inside, stage)
        total = sum(line.share for line in lines)
        for line in lines[:_NAMED]:
            ms = whole * line.share / total
            known = any(map(decodes, mostly(line))) or line.name.startswith(OTHERS)
            if not known and view.whatif.faster(Change(work=saving(ms))).value >= WORTH:
                found.append(_cheaper(view, work, line, stage, ms))
    return found


def _cheaper(view: View, work: Work, line: HotLine, stage: str, ms: float) -> Recommendation:
    calls = mostly(line)
    way = way_for(line, view.on_cpu)
    evidence = [f"{line.where} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time: {ALL}"]
    if line.text:
        evidence.append(f"its hottest line: {line.text}")
    evidence += [f"{percent(line.calls[name] / line.share)} of it in {short(name)}" for name in calls[-1:]]
    how, risk = LOOPS, ""
    if way is not None:
        how, risk = way.how, way.risk
    elif calls:
        how = "call it less often: on smaller data, once for the whole batch, or once for all epochs"
    place = Place(
        line.name, line.where, line.library, view.loader.dataset_code.made if view.loader.dataset_code else ""
    )
    return view.made(
        "line",
        f"Make {line.name if line.name != line.text else line.function} cheaper",
        stage,
        Change(work=saving(ms)),
        evidence,
        f"{at_line(place)}{how}",
        risk or "another implementation has to give the same results",
        at_most=True,
    )
