"""The transform chain and its costs: when it has rungs of its own, and how its parts are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipediag.analysis.numbers.chain import (
    Grain,
    dominant,
    grains,
    heaviest,
    joined,
    merged,
    parts_of_sample,
    why_unsplit,
)
from pipediag.session import NOT_YET, Cost, Inside, Link, Part, Place, Session

from ..made import inside


class TestWhyUnsplit:
    @pytest.mark.parametrize(
        "found",
        [None, Inside(), Inside(unsplit="because"), inside(10.0), inside(10.0, unsplit="because"), inside(10.0, 20.0)],
        ids=["not looked", "nothing", "no links", "one link", "one link all the same", "a chain"],
    )
    def test_no_reason(self, found: Inside | None) -> None:
        assert why_unsplit(Session(inside=found)) == ""

    def test_as_the_worker_says(self) -> None:
        assert why_unsplit(Session(inside=inside(10.0, 20.0, unsplit="because"))) == "because"

    @pytest.mark.parametrize("between, costly", [(0.05, False), (7.0, False), (8.0, True), (40.0, True)])
    def test_the_code_between_the_links(self, between: float, costly: bool) -> None:
        why = why_unsplit(Session(inside=inside(10.0, 20.0, between=between)))
        assert why == (f"the code that applies the transforms takes {between:.2g} ms a sample itself" if costly else "")

    @pytest.mark.parametrize("between, costly", [(0.09, False), (0.2, True)])
    def test_quick_links(self, between: float, costly: bool) -> None:
        assert bool(why_unsplit(Session(inside=inside(0.01, 0.02, between=between)))) is costly


class TestMerged:
    def test_the_figures_of_the_one_that_looked(self) -> None:
        looked, other = inside(10.0, 20.0), Inside(links=[Link("A", "aug.py:10"), Link("B", "aug.py:20")])
        assert merged([other, looked, other]) == looked
        assert looked.unsplit == ""

    @pytest.mark.parametrize(
        "other",
        [
            Inside(),
            Inside(links=[Link("A", "aug.py:10")]),
            Inside(links=[Link("B", "aug.py:20"), Link("A", "aug.py:10")]),
        ],
        ids=["none", "shorter", "other order"],
    )
    def test_different_chains(self, other: Inside) -> None:
        assert merged([inside(10.0, 20.0), other]).unsplit == "the workers found different chains of transforms"

    def test_a_worker_that_has_not_taken_its_chain_apart_does_not_contradict(self) -> None:
        looked, other = inside(10.0, 20.0), Inside(unsplit=NOT_YET)
        assert merged([looked, other]) == looked

    def test_all_that_have_taken_it_apart_are_compared(self) -> None:
        """This includes chains without rungs and workers without a timed sample."""
        looked, chain = inside(10.0, 20.0), [Link("A", "aug.py:10"), Link("B", "aug.py:20")]
        apart = "the workers found different chains of transforms"
        assert merged([looked, Inside(links=chain, unsplit="samples differ")]).unsplit == apart
        assert merged([looked, inside(10.0, 20.0, 5.0)]).unsplit == apart
        assert merged([looked, Inside(links=chain)]).unsplit == ""
        assert merged([looked, inside(30.0, 5.0)]).unsplit == ""

    def test_what_has_not_taken_it_apart_is_not_compared_whatever_it_saw(self) -> None:
        looked, early = inside(10.0, 20.0, samples=40), inside(10.0, samples=8, unsplit=NOT_YET)
        assert merged([looked, early]) == merged([early, looked]) == looked

    def test_nobody_has_taken_it_apart(self) -> None:
        early = [Inside(samples=samples, unsplit=NOT_YET) for samples in (2, 8)]
        assert (merged(early).unsplit, merged(early).samples) == (NOT_YET, 10)

    def test_costs_are_averages_over_the_samples_of_all(self) -> None:
        found = merged([inside(10.0, 20.0, samples=30), inside(40.0, 20.0, samples=10)])
        assert found.samples == 40
        assert [link.cost.wall_ms for link in found.links] == [17.5, 20.0]
        assert (found.whole.wall_ms, found.load.wall_ms) == (39.5, 2.0)

    def test_the_closest_reason_stays(self) -> None:
        assert merged([inside(10.0, 20.0, unsplit="because"), Inside()]).unsplit == "because"

    def test_of_nothing(self) -> None:
        with pytest.raises(ValueError):
            merged([])

    def test_parts_are_averages_too_though_a_worker_saw_none_of_their_calls(self) -> None:
        wholes = inside(10.0, samples=30), inside(10.0, samples=10)
        blur, noise = Part("Blur", "aug.py:1", "lib", True), Part("Noise")
        wholes[0].links[0].parts = [replace(blur, cost=Cost(4.0, 4.0))]
        wholes[1].links[0].parts = [replace(blur, cost=Cost(8.0, 8.0)), replace(noise, cost=Cost(2.0, 2.0))]
        assert merged([*wholes]).links[0].parts == [
            replace(blur, cost=Cost(5.0, 5.0)),
            replace(noise, cost=Cost(0.5, 0.5)),
        ]


class TestGrains:
    def test_calls_of_one_transform_at_one_place_are_one(self) -> None:
        links = [Link(name, where, Cost(2.0, 1.0)) for name, where in [("A", "x:1"), ("B", "x:2"), ("A", "x:1")]]
        assert grains(links) == [Grain("A", "x:1", Cost(4.0, 2.0)), Grain("B", "x:2", Cost(2.0, 1.0))]

    @pytest.mark.parametrize(
        "other", [Link("A", "x:2"), Link("B", "x:1"), Link("A", "x:1", origin="lib")], ids=["place", "name", "origin"]
    )
    def test_others_stay_apart(self, other: Link) -> None:
        assert len(grains([Link("A", "x:1"), other])) == 2

    def test_one_without_a_line_is_merged_by_name(self) -> None:
        assert len(grains([Link("A"), Link("A")])) == 1

    def test_a_wrapper_gives_way_to_what_it_runs(self) -> None:
        """Its own code counts for them; a transform that also runs outside of it is one with that."""
        parts = [
            Part("Blur", "x:2", "lib", cost=Cost(6.0, 6.0)),
            Part("Jitter", "x:3", "lib", cost=Cost(3.0, 3.0)),
        ]
        links = [Link("RandomApply", "x:1", Cost(12.0, 12.0), parts=parts), Link("Jitter", "x:3", Cost(1.0), "", "lib")]
        blur, jitter = grains(links)
        assert blur == Grain("Blur", "x:2", Cost(8.0, 8.0), "RandomApply")
        assert jitter == Grain("Jitter", "x:3", Cost(5.0, 4.0))
        assert [one.in_full for one in grains(links[:1])] == ["Blur in RandomApply", "Jitter in RandomApply"]

    @pytest.mark.parametrize("part", [Part("Blur", "lib/blur.py:90", library=True), Part("Blur")])
    @pytest.mark.parametrize("where", ["x:1", ""])
    def test_a_part_without_a_line_of_the_users_is_at_its_wrappers(self, part: Part, where: str) -> None:
        part = replace(part, cost=Cost(1.0, 1.0))
        assert grains([Link("RandomApply", where, parts=[part])])[0].where == (where or part.where)

    def test_parts_that_took_no_time_do_not_replace_it(self) -> None:
        assert grains([Link("RandomApply", "x:1", parts=[Part("Blur")])]) == [Grain("RandomApply", "x:1", Cost())]

    def test_parts_of_a_sample(self) -> None:
        found = inside(2.0, 3.0, 2.0, load=3.0)
        found.links[2] = replace(found.links[0])
        told = parts_of_sample(found, lambda cost: cost.wall_ms)
        assert told == [("A", 0.4), ("load", 0.3), ("B", 0.3)]


class TestNames:
    def test_joined(self) -> None:
        assert joined(inside(1.0, 2.0, 3.0).links) == Place("A, B, C", "aug.py:10")
        assert joined(2 * inside(1.0, 2.0).links) == Place("A, B", "aug.py:10")
        assert joined([]) is None

    @pytest.mark.parametrize(
        "costs, name",
        [
            ((5.0,), "A"),
            ((0.0,), "A"),
            ((1.0, 9.0), "B"),
            ((9.0, 1.0, 1.0), "A"),
            ((4.0, 6.0), None),
            ((0.0, 0.0), None),
        ],
    )
    def test_dominant(self, costs: tuple[float, ...], name: str | None) -> None:
        place = dominant(inside(*costs).links)
        assert (place and place.name) == name

    def test_dominant_of_nothing(self) -> None:
        assert dominant([]) is None

    def test_heaviest(self) -> None:
        found = inside(3.0, 12.0, load=5.0)
        assert heaviest(found) == (Place("B", "aug.py:20"), 0.6)

    def test_heaviest_of_several_views(self) -> None:
        """All calls of A together take more than C."""
        found = inside(4.0, 9.0, 4.0, 3.0)
        found.links[0] = replace(found.links[2])
        assert heaviest(found) == (Place("B", "aug.py:20"), 9 / 22)
        found.links[3] = replace(found.links[2])
        assert heaviest(found) == (Place("C", "aug.py:30"), 12 / 22)

    @pytest.mark.parametrize("found", [None, Inside(), Inside(whole=Cost(5.0)), inside(1.0, load=-1.0)])
    def test_heaviest_of_nothing(self, found: Inside | None) -> None:
        assert heaviest(found) is None
