"""Read the lines at which samples are made: what a person can change in loading."""

from __future__ import annotations

from dataclasses import replace

from ...session import HotLine, Inside

#: Minimum share of a sample's time of a line of loading that stands by itself, and the most of such lines.
_NAMED, _MOST = 0.1, 8
#: Minimum share of a line worth listing, and the number of lines listed.
_LISTED, _LINES = 0.05, 5


def averaged(found: list[Inside]) -> list[HotLine]:
    """Return the workers' lines with their average shares, the hottest first."""
    weights = [inside.looks or bool(inside.lines) for inside in found]
    lines = dict[tuple[str, str], HotLine]()
    for inside, weight in zip(found, weights, strict=True):
        for line in inside.lines:
            one = lines.setdefault((line.where or line.text, line.stage), replace(line, share=0.0))
            one.share += line.share * weight / sum(weights)
    ranked = sorted(lines.values(), key=lambda line: line.share, reverse=True)
    return [replace(line, share=round(line.share, 4)) for line in ranked]


def hottest(inside: Inside | None, stage: str = "") -> list[HotLine]:
    """Return the lines worth listing, the hottest first; with ``stage``, its lines only."""
    lines = inside.lines if inside is not None else []
    wanted = [line for line in lines if (line.where or line.text) and (not stage or line.stage in ("", stage))]
    return [line for line in wanted if line.share >= _LISTED][:_LINES]


def of_loading(inside: Inside) -> list[HotLine]:
    """Return the lines of loading that stand by themselves, then the others of a function, then all others.

    The others together are never more than a line that stands by itself, as far as they are known. If none does, the
    list is empty.
    """
    lines = [line for line in inside.lines if line.stage == "load"]
    found = [line for line in lines if line.where and line.share >= _NAMED]
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
        found.append(_together(group, f"other lines of {function}" if function in single else function))
        left = [line for line in left if line not in group]
    if not found or not left:
        return found
    functions = {line.function for line in left}
    return [*found, _together(left, f"other lines of {functions.pop() if len(functions) == 1 else 'loading'}")]


def _together(lines: list[HotLine], name: str) -> HotLine:
    """Return several lines as one, at the hottest."""
    most = max(lines, key=lambda line: (bool(line.where), line.share))
    return most if len(lines) == 1 and most.where else replace(most, name=name, share=_share(lines))


def _share(lines: list[HotLine]) -> float:
    return sum(line.share for line in lines)
