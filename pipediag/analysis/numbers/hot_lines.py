"""Read the lines at which batches are made: what a person can change in loading and collating.

A rung can leave out the calls at one line, or a function with all its lines.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Collection
from dataclasses import replace

from ...session import HotLine, Inside, Session, left_out, line_left_out, without_rung

#: Minimum number of looks at the running line: of fewer, chance decides which line takes the most.
_FEWEST = 8
#: Minimum share of a sample's time of a line of loading that stands by itself, and the most of such lines.
_NAMED, _MOST = 0.1, 8
#: Minimum share of a line worth listing, and the number of lines listed.
_LISTED, _LINES = 0.05, 5
#: A function does what a line does if it runs for at least this share of the line's time.
_MOSTLY = 0.5
#: The method with which a library's transform works, and classes that run other transforms.
_TRANSFORM = re.compile(
    r"[\w.]*(?:transform|augment|albumentation)\w*\.(?:\w+\.)*(\w+)\.(?:__call__|forward|transform|apply)$"
)
_RUNS_OTHERS = re.compile(
    r".*(Compose|Sequential)$|(Random|Sometimes|One|Some)(Apply|Choice|Order|Of)$"
    r"|(_?RandomApply|Basic|Dual|ImageOnly|Map|Randomizable)?Transform$"
)
#: How lines are named that come together beside others of the same function or stage.
OTHERS = "other lines of"
#: Modules whose functions wait for what others do: they do not say what a line does.
_WAITING = ("threading.", "selectors.", "queue.", "concurrent.futures.")
_BUILT_IN = frozenset(dir(builtins))
#: Methods of lists, dictionaries and strings that no library's arrays have.
_OF_LISTS = frozenset(
    {"append", "extend", "get", "setdefault", "items", "index", "join", "startswith", "endswith", "lower"}
)
#: Methods that make whole samples or batches.
_WHOLE = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__")
#: A name that a reader knows: no part of a library's own, and no special method.
_PRIVATE = re.compile(r"^[_<]")


def averaged(found: list[Inside]) -> list[HotLine]:
    """Return the workers' lines with their average shares, the hottest first; none if there were too few looks."""
    if 0 < sum(inside.looks for inside in found) < _FEWEST:
        return []
    weights = [inside.looks or bool(inside.lines) for inside in found]
    lines = dict[tuple[str, str], HotLine]()
    for inside, weight in zip(found, weights, strict=True):
        part = weight / max(1, sum(weights))
        for line in inside.lines:
            empty = replace(line, share=0.0, calls={}, transforms={})
            one = lines.setdefault((line.where or line.text, line.stage), empty)
            one.share += line.share * part
            _add(one.calls, line.calls, part)
            _add(one.transforms, line.transforms, part)
    ranked = sorted(lines.values(), key=lambda line: line.share, reverse=True)
    for line in ranked:
        line.share = round(line.share, 4)
        for shares in (line.calls, line.transforms):
            shares.update({name: round(share, 4) for name, share in shares.items()})
    return ranked


def hottest(inside: Inside | None, stage: str = "") -> list[HotLine]:
    """Return the lines worth listing, the hottest first: those of a sample, or with ``stage`` its lines only."""
    lines = inside.lines if inside is not None else []
    stages = ("", stage) if stage else ("", "load", "transform")
    wanted = [line for line in lines if (line.where or line.text) and line.stage in stages]
    return [line for line in wanted if line.share >= _LISTED][:_LINES]


def within(inside: Inside | None, transform: str, others: Collection[str], share: float) -> HotLine | None:
    """Return the line at which a transform spends most of its time if that is in other code than its own, or None.

    ``share`` is the transform's of a sample's time, ``others`` are the names of the other transforms: their lines are
    not this one's. Nor is one that takes far longer than the transform, if it was not seen which transforms run it.
    """

    def part(line: HotLine) -> float:
        return line.transforms.get(transform, 0.0) if line.transforms else line.share

    lines = [line for line in inside.lines if line.stage == "transform" and line.where] if inside is not None else []
    lines = [line for line in lines if not line.library and line.function.partition(".")[0] not in others]
    most = max(lines, key=part, default=None)
    if most is None or most.function.partition(".")[0] == transform or not part(most) >= _MOSTLY * share > 0:
        return None
    return replace(most, name=named(most)) if most.transforms or _MOSTLY * most.share <= share else None


def does(line: HotLine, known: Callable[[str], bool]) -> float:
    """Return the share of the time in which a function that is ``known`` by its name ran below a line."""
    return max((share for name, share in line.calls.items() if known(name)), default=0.0)


def mostly(line: HotLine) -> list[str]:
    """Return the libraries' functions that do what a line does, the outer ones first, without those that only wait."""
    return [name for name, share in line.calls.items() if share >= _MOSTLY * line.share and not _only_waits(name)]


def waits(line: HotLine) -> bool:
    """Return whether a line waits for what other threads or processes do."""
    return not mostly(line) and does(line, _only_waits) >= _MOSTLY * line.share > 0


def _only_waits(function: str) -> bool:
    return function.startswith(_WAITING)


def is_python(line: HotLine) -> bool:
    """Return whether a line runs Python code of its own: it calls nothing, or only what Python has built in."""
    written = line.text.startswith(line.name.removesuffix("...")) or line.name == line.function
    built_in = line.name in _BUILT_IN or line.name.rpartition(".")[2] in _OF_LISTS
    own = line.name.endswith("]") or built_in or written
    return own and not mostly(line)


def familiar(line: HotLine) -> str:
    """Return the innermost function that does what a line does and that a reader knows, or ""."""
    return next((short(name) for name in reversed(mostly(line)) if not _PRIVATE.match(name.rpartition(".")[2])), "")


def named(line: HotLine) -> str:
    """Return what a line calls, and what that calls in turn if it passes the work on to another library.

    A line that only takes an item, or calls a special method, is named by what does the work; a library's transform, by
    its class; a library's own line, by its function.
    """
    if line.library and line.function and is_python(line):
        return line.function
    statement = line.name in (line.text, line.text.removesuffix(":"))
    names, plain = mostly(line), not statement and not line.name.endswith("]")
    transforms = [found[1] for name in names if (found := _TRANSFORM.match(name)) and not _RUNS_OTHERS.match(found[1])]
    if transforms:
        return f"{line.name} > {transforms[-1]}" if plain and transforms[-1] not in line.name else transforms[-1]
    last = names[-1].partition(".")[0] if names else ""
    public = [name for name in names if name.startswith(f"{last}.") and not _PRIVATE.match(name.rpartition(".")[2])]
    if names and not public and line.name in _BUILT_IN:  # next(reader) runs a special method
        return f"{line.name} > {short(names[-1].rpartition('.')[0])}"
    said = line.name.rpartition(".")[2]
    passed_on = bool(names) and last != names[0].partition(".")[0]
    if not public or public[0].rpartition(".")[2] == said or (plain and not passed_on):
        return line.name
    return f"{line.name} > {short(public[0])}" if plain and not _PRIVATE.match(said) else short(public[0])


def short(function: str) -> str:
    """Return a library's function as one writes it: its package, its class if it has one, and its name."""
    package, *inside = function.split(".")  # older sessions have functions of no package
    kept = [part for part in inside[-2:-1] if part[:1].isupper()] + inside[-1:]
    return ".".join([package, *kept])


def of_stage(inside: Inside, stage: str, whole: Collection[str] = ()) -> list[HotLine]:
    """Return the lines of ``load`` or ``collate`` that stand by themselves, then those of a function, then all others.

    The others together are never more than a line that stands by itself, as far as they are known. If none does, the
    list is empty. The lines of the functions ``whole`` come together first.
    """
    lines = [replace(line, name=named(line)) for line in inside.lines if line.stage == stage]
    apart = [[line for line in lines if line.where and line.function == function] for function in whole]
    joint = [replace(_together(group, group[0].function), name=group[0].function) for group in apart if group]
    lines = [line for line in lines if line.function not in whole or not line.where]
    found = joint + [line for line in lines if line.where and line.share >= _NAMED]
    single = {line.function for line in found}
    left = [line for line in lines if line not in found]
    groups = dict[str, list[HotLine]]()
    for line in left:
        if line.where:
            groups.setdefault(line.function, []).append(line)
    for function, group in sorted(groups.items(), key=lambda item: _share(item[1]), reverse=True):
        least = min((line.share for line in found), default=_NAMED)
        if len(found) == _MOST or (_share(group) < _NAMED and _share(left) <= least):
            break
        found.append(_together(group, f"{OTHERS} {function}" if function in single else function))
        left = [line for line in left if line not in group]
    if not found or not left:
        return found
    functions, what = {line.function for line in left}, "collating" if stage == "collate" else "loading"
    return [*found, _together(left, f"{OTHERS} {functions.pop() if len(functions) == 1 else what}")]


def _add(total: dict[str, float], calls: dict[str, float], part: float = 1.0) -> None:
    for name, share in calls.items():
        total[name] = total.get(name, 0.0) + share * part


def _together(lines: list[HotLine], name: str) -> HotLine:
    """Return several lines as one, at the hottest."""
    most = max(lines, key=lambda line: (bool(line.where), line.share))
    if len(lines) == 1 and most.where:
        return most
    calls = dict[str, float]()
    for line in lines:
        _add(calls, line.calls)
    return replace(most, name=name, share=_share(lines), calls=calls)


def _share(lines: list[HotLine]) -> float:
    return sum(line.share for line in lines)


def rung_of(session: Session, stage: str, name: str, where: str) -> str:
    """Return the rung that leaves out a part of a stage, known by name and line; empty if none does."""
    inside = session.inside
    line = _at(inside.lines, stage, where) if inside is not None and stage in ("load", "collate") else None
    if inside is None or line is None:
        return ""
    if known := functions_left_out(session).get(name):
        return known
    alone = any((one.name, one.where, one.share) == (name, where, line.share) for one in of_stage(inside, stage))
    return _if_any(without_rung(where)) if alone else ""


def rungs_for(session: Session, stage: str, where: str, large: float) -> list[str]:
    """Return the rungs that can leave out a line of a stage, and the function that the line is in.

    Of these, one that leaves out less than the share ``large`` of the stage is not returned.
    """
    lines = [one for one in session.inside.lines if one.stage == stage] if session.inside is not None else []
    line, whole = _at(lines, stage, where), sum(one.share for one in lines)
    if line is None:
        return []
    rungs = [_if_any(without_rung(where))] if line.share >= large * whole else []
    together = sum(one.share for one in lines if one.function == line.function)
    collate = session.loader.collate if session.loader is not None else None
    everything = line.function.rpartition(".")[2] in _WHOLE or (collate is not None and line.function == collate.name)
    if together >= large * whole and not everything:
        rungs.append(functions_left_out(session).get(line.function) or _if_any(without_rung(f"{where}()")))
    return [rung for rung in rungs if rung]


def functions_left_out(session: Session) -> dict[str, str]:
    """Return the rungs that leave out a function, by its name, whether they can be measured or not."""
    functions = {line.where: line.function for line in session.inside.lines} if session.inside is not None else {}
    wholes = {rung: line_left_out(where) for rung in session.rungs if (where := left_out(rung) or "").endswith("()")}
    return {functions[where]: rung for rung, where in wholes.items() if where in functions}


def _at(lines: list[HotLine], stage: str, where: str) -> HotLine | None:
    """Return the user's line of a stage at a place."""
    return next((one for one in lines if one.where == where and one.stage == stage and not one.library), None)


def _if_any(rung: str) -> str:
    """Return a rung, or "" if its line has no name that a rung can have."""
    return rung if left_out(rung) is not None else ""
