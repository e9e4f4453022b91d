"""Read the transform chain and its costs inside a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ...session import NOT_YET, Cost, Inside, Link, Part, Place, Session
from .hot_lines import averaged

#: The chain cannot be split if the code that applies it takes more than this share of the transforms' time and more
#: than these milliseconds: the ladder would charge that code to the first link.
_BETWEEN_SHARE, _BETWEEN_MS = 0.25, 0.1
#: Share of a range's worker time above which one transform represents the range.
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
    closest = max(found, key=lambda inside: (inside.unsplit != NOT_YET, inside.samples))
    answers = {one.same_twice for one in found}
    same = False if False in answers else True if True in answers else None
    closest = replace(closest, lines=averaged(found), looks=sum(one.looks for one in found), same_twice=same)
    chains = {(_chain(one), one.unsplit) for one in found if one.unsplit != NOT_YET}
    if len(chains) > 1 and not closest.unsplit:
        return replace(closest, unsplit="the workers found different chains of transforms")
    alike = [one for one in found if one.samples and _chain(one) == _chain(closest)] or [closest]
    links = [
        replace(link, cost=_mean([(one.samples, one.links[n].cost) for one in alike]), parts=_parts(alike, n))
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


def _parts(found: list[Inside], link: int) -> list[Part]:
    """Return the parts of a link with their average costs; a worker may have seen no call of a part."""
    parts, costs = dict[tuple[str, str, str], Part](), dict[tuple[str, str, str], dict[int, Cost]]()
    for n, one in enumerate(found):
        for part in one.links[link].parts:
            key = (part.name, part.where, part.origin)
            parts.setdefault(key, part)
            costs.setdefault(key, {})[n] = part.cost
    return [
        replace(part, cost=_mean([(one.samples, costs[key].get(n, Cost())) for n, one in enumerate(found)]))
        for key, part in parts.items()
    ]


def _mean(costs: list[tuple[int, Cost]]) -> Cost:
    """Return the average cost, weighted by the number of samples."""
    count = max(1, sum(samples for samples, _ in costs))
    wall = sum(samples * cost.wall_ms for samples, cost in costs) / count
    return Cost(round(wall, 4), round(sum(samples * cost.cpu_ms for samples, cost in costs) / count, 4))


@dataclass(frozen=True)
class Grain:
    """What a person can change in a chain: one transform at one place, with the cost of all its calls for a sample."""

    name: str
    where: str
    cost: Cost
    within: str = ""  # the wrapper that runs it, such as ``RandomApply``; empty if the chain itself does

    @property
    def place(self) -> Place:
        return Place(self.name, self.where)

    @property
    def in_full(self) -> str:
        return f"{self.name} in {self.within}" if self.within else self.name


def grains(links: Iterable[Link]) -> list[Grain]:
    """Merge links by name and place: a sample of ten views passes through one transform ten times.

    A wrapper gives way to the parts that it runs; its own code counts for them. The order is that of the first calls.
    """
    found: dict[tuple[str, str, str], Grain] = {}
    for link in links:
        for origin, one in grains_of(link):
            key = (one.name, one.where, origin)
            before = found.setdefault(key, replace(one, cost=Cost()))
            cost = Cost(before.cost.wall_ms + one.cost.wall_ms, before.cost.cpu_ms + one.cost.cpu_ms)
            found[key] = replace(before, cost=cost, within=one.within if before.within == one.within else "")
    return [*found.values()]


def grains_of(link: Link) -> Iterator[tuple[str, Grain]]:
    """Yield the grains of one link, each with the module that defines it.

    A part without a line of the user's is at that of its wrapper, if the wrapper has one.
    """
    whole = sum(part.cost.wall_ms for part in link.parts)
    if whole <= 0:
        yield link.origin, Grain(link.name, link.where, link.cost)
        return
    for part in link.parts:
        share = part.cost.wall_ms / whole
        cost = Cost(share * link.cost.wall_ms, share * link.cost.cpu_ms)
        known = part.where and (link.library or not part.library)
        yield part.origin, Grain(part.name, part.where if known else link.where or part.where, cost, link.name)


def joined(links: list[Link]) -> Place | None:
    """Return one place for a range of links that was not split further, or None if the range is empty."""
    found = grains(links)
    return Place(", ".join(dict.fromkeys(one.name for one in found)), found[0].where) if found else None


def dominant(links: list[Link]) -> Place | None:
    """Return the transform that takes nearly all of the workers' time for a range of links, or None."""
    found = grains(links)
    if len(found) == 1:
        return found[0].place
    total = sum(one.cost.wall_ms for one in found)
    return next((one.place for one in found if total > 0 and one.cost.wall_ms >= _NEARLY_ALL * total), None)


def heaviest(inside: Inside | None) -> tuple[Place, float] | None:
    """Return the transform that takes most of a worker's time, and its share of the time to make a sample, or None."""
    if inside is None or not inside.links or inside.whole.wall_ms <= 0:
        return None
    one = max(grains(inside.links), key=lambda one: one.cost.wall_ms)
    return one.place, one.cost.wall_ms / inside.whole.wall_ms


def parts_of_sample(inside: Inside | None, ms: Callable[[Cost], float]) -> list[tuple[str, float]]:
    """Return loading and each transform with its share of a worker's time for a sample, largest first.

    ``ms`` picks wall or CPU time. The list is empty if that time is unknown.
    """
    if inside is None or ms(inside.whole) <= 0:
        return []
    parts = [("load", inside.load), *((one.name, one.cost) for one in grains(inside.links))]
    shares = [(name, ms(cost) / ms(inside.whole)) for name, cost in parts]
    return sorted(shares, key=lambda part: part[1], reverse=True)
