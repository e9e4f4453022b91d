"""Rules for lines of code in loading and collating: what each would gain, and what is known to help there.

What a line does is told by the functions that were seen to run below it, never by its text.
"""

from __future__ import annotations

from ...session import HotLine, Place
from ..diagnosis import Recommendation
from ..forecast.whatif import Change
from ..numbers.hot_lines import OTHERS, familiar, is_python, mostly, of_stage
from ..numbers.work import Work, saving
from ..thresholds import WORTH
from .calls import LOOPS, SAME_RESULTS, decodes, way_for
from .view import ALL, View, at_line, share_text

#: Largest number of lines of a stage for which something is recommended.
_NAMED = 3
#: What helps where a library's functions take the time of which nothing else is known.
_FEWER = (
    "call it less often, or on less data (float32, smaller arrays, the whole batch at once); numba for a loop around it"
)


def cheaper(view: View) -> list[Recommendation]:
    """Recommend making each line cheaper whose work costs the loop a worthwhile gain, costliest first.

    Lines of one function that only run Python code are one piece of work: of a loop, no line is the one to change.
    """
    work, found = view.work, list[Recommendation]()
    if work is None:
        return []
    for stage, whole in (("load", work.load), ("collate", work.collate)):
        lines = of_stage(view.inside, stage)
        total, pieces = sum(line.share for line in lines), dict[str, list[HotLine]]()
        for line in lines:
            key = line.function if is_python(line) else line.where
            pieces.setdefault(key, []).append(line)
        costs = [(whole * sum(line.share for line in piece) / total, piece[0]) for piece in pieces.values()]
        for ms, line in sorted(costs, key=lambda cost: cost[0], reverse=True)[:_NAMED]:
            known = any(map(decodes, mostly(line))) or line.name.startswith(OTHERS)
            if not known and view.whatif.faster(Change(work=saving(ms))).value >= WORTH:
                found.append(_cheaper(view, work, line, stage, ms))
    return found


def what_helps(line: HotLine, on_cpu: bool) -> tuple[str, str, str]:
    """Return title, instruction and risk of making a line cheaper; ``on_cpu`` if the training runs there."""
    python, way = is_python(line), way_for(line, on_cpu)
    title = f"Make {(python and line.function) or line.name} cheaper"
    if way is not None:
        return title, way.how, way.risk or SAME_RESULTS
    return title, f"{LOOPS}; or once, and the result stored, if nothing is random" if python else _FEWER, SAME_RESULTS


def _cheaper(view: View, work: Work, line: HotLine, stage: str, ms: float) -> Recommendation:
    title, how, risk = what_helps(line, view.on_cpu)
    piece = line.function if is_python(line) else line.where
    evidence = [f"{piece} takes {view.per_sample(ms)}, {share_text(ms, work.run)} of a worker's time: {ALL}"]
    if line.text:
        evidence.append(f"its hottest line: {line.text}")
    if does := familiar(line):
        evidence.append(f"most of it in {does}")
    dataset = view.loader.dataset_code
    place = Place(line.name, line.where, line.library, dataset.made if dataset is not None else "")
    change = Change(work=saving(ms))
    return view.made("line", title, stage, change, evidence, f"{at_line(place)}{how}", risk, at_most=True)
