"""Read the transform chain and its costs inside a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..session import NOT_YET, Cost, Inside, Link, Place, Session

#: The chain cannot be split if the code that applies it takes more than this share of the transforms' time and more
#: than these milliseconds: the ladder would charge that code to the first link.
_BETWEEN_SHARE, _BETWEEN_MS = 0.25, 0.1
#: Share of a range's worker time above which one link represents the range.
_NEARLY_ALL = 0.8


def why_unsplit(session: Session) -> str:
    """Return why the chain has no rungs of its own; empty if it has some or fewer than two links."""
    inside = session.inside
    if inside is None or len(inside.links) < 2:
        return ""
    if inside.unsplit:
        return inside.unsplit
    own = sum(link.cost.wall_ms for link in inside.links)
    between = inside.between.wall_ms
    if between > _BETWEEN_MS and between > _BETWEEN_SHARE * own:
        return f"the code that applies the transforms takes {between:.2g} ms a sample itself"
    return ""


def merged(found: list[Inside]) -> Inside:
    """Merge the workers' findings: average the costs of those that saw the same chain as the most detailed one.

    Raises:
        ValueError: ``found`` is empty.
    """
    closest = max(found, key=lambda inside: (bool(inside.lines), inside.samples))
    chains = {(_chain(one), one.unsplit) for one in found if one.unsplit != NOT_YET}
    if len(chains) > 1 and not closest.unsplit:
        return replace(closest, unsplit="the workers found different chains of transforms")
    alike = [one for one in found if one.samples and _chain(one) == _chain(closest)] or [closest]
    links = [
        replace(link, cost=_mean([(one.samples, one.links[n].cost) for one in alike]))
        for n, link in enumerate(closest.links)
    ]
    return replace(
        closest,
        samples=sum(one.samples for one in alike),
        whole=_mean([(one.samples, one.whole) for one in alike]),
        load=_mean([(one.samples, one.load) for one in alike]),
        between=_mean([(one.samples, one.between) for one in alike]),
        links=links,
    )


def _chain(inside: Inside) -> tuple[tuple[str, str], ...]:
    return tuple((link.name, link.where) for link in inside.links)


def _mean(costs: list[tuple[int, Cost]]) -> Cost:
    """Return the average cost, weighted by the number of samples."""
    count = max(1, sum(samples for samples, _ in costs))
    wall = sum(samples * cost.wall_ms for samples, cost in costs) / count
    return Cost(round(wall, 4), round(sum(samples * cost.cpu_ms for samples, cost in costs) / count, 4))


def joined(links: list[Link]) -> Place | None:
    """Return one place for a range of links that was not split further, or None if the range is empty."""
    if not links:
        return None
    return Place(", ".join(link.name for link in links), links[0].where)


def dominant(links: list[Link]) -> Place | None:
    """Return the link that takes nearly all of the workers' time for a range of links, or None."""
    if len(links) == 1:
        return Place(links[0].name, links[0].where)
    total = sum(link.cost.wall_ms for link in links)
    for link in links:
        if total > 0 and link.cost.wall_ms >= _NEARLY_ALL * total:
            return Place(link.name, link.where)
    return None


def heaviest(inside: Inside | None) -> tuple[Link, float] | None:
    """Return the link that takes most of a worker's time, and its share of the time to make a sample, or None."""
    if inside is None or not inside.links or inside.whole.wall_ms <= 0:
        return None
    link = max(inside.links, key=lambda link: link.cost.wall_ms)
    return link, link.cost.wall_ms / inside.whole.wall_ms


def parts_of_sample(inside: Inside | None, ms: Callable[[Cost], float]) -> list[tuple[str, float]]:
    """Return loading and each transform with its share of a worker's time for a sample, largest first.

    ``ms`` picks wall or CPU time. The list is empty if that time is unknown.
    """
    if inside is None or ms(inside.whole) <= 0:
        return []
    parts = [("load", inside.load), *((link.name, link.cost) for link in inside.links)]
    shares = [(name, ms(cost) / ms(inside.whole)) for name, cost in parts]
    return sorted(shares, key=lambda part: part[1], reverse=True)
