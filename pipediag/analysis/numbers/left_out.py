"""Tell which rung leaves out which of the user's lines: the calls at one line, or a function with all its lines."""

from __future__ import annotations

from ...session import HotLine, Session, left_out, line_left_out, without_rung
from .hot_lines import of_stage

#: Methods that make whole samples or batches.
_WHOLE = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__")


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
