"""The transform chain and its costs: when it has rungs of its own, and how its parts are named."""

from __future__ import annotations

import pytest

from pipediag.analysis.chain import dominant, heaviest, joined, merged, why_unsplit
from pipediag.session import NOT_YET, Cost, Inside, Link, Place, Session

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


class TestNames:
    def test_joined(self) -> None:
        assert joined(inside(1.0, 2.0, 3.0).links) == Place("A, B, C", "aug.py:10")
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
        assert heaviest(found) == (found.links[1], 0.6)

    @pytest.mark.parametrize("found", [None, Inside(), Inside(whole=Cost(5.0)), inside(1.0, load=-1.0)])
    def test_heaviest_of_nothing(self, found: Inside | None) -> None:
        assert heaviest(found) is None
