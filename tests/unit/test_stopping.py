"""What is worth measuring next, and when enough has been measured."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis.stopping import next_round
from pipediag.session import CONTROLS, RUNGS, Session, Window, cut_of, cut_rung, ordered

from .made import FLAT, climbing, cut, inside, make, without


class TestEnough:
    """Whether more windows could change the verdict."""

    @pytest.mark.parametrize("cost", [0.2, 30.0])
    def test_decided(self, cost: float) -> None:
        assert next_round(make(climbing(raw=cost), rounds=3)) == []

    def test_too_few_windows(self) -> None:
        assert next_round(make(climbing(raw=30.0), rounds=2)) == list(RUNGS)

    def test_one_rung_lags(self) -> None:
        session = make(climbing(raw=30.0), rounds=3)
        session.windows = [w for w in session.windows if w.rung != "worker" or w.round < 2]
        assert next_round(session) == ["worker"]

    def test_straddling_the_gate(self) -> None:
        """5 % of the step is 2.7 ms, and the cost of transforms about that."""
        assert next_round(make(climbing(raw=2.7), rounds=3, noise=0.01))

    def test_noise(self) -> None:
        assert next_round(make(climbing(raw=30.0), rounds=3, noise=0.3))

    def test_small_stages_that_sum_to_the_gate(self) -> None:
        """Each stage is certainly below the gate, but whether the pipeline as a whole is below is open."""
        session = make(climbing(**dict.fromkeys(RUNGS[1:], 0.44)), rounds=3, noise=0.0)
        for window, wobble in zip(session.windows_of("baseline"), (0.99, 1.0, 1.03), strict=True):
            window.seconds *= wobble
        assert {"device", "baseline"} <= {*next_round(session)}

    def test_straddling_but_narrow(self) -> None:
        """A cost of 4.5 to 5.5 % is known well enough."""
        session = make(
            climbing(raw=2.8, **dict.fromkeys(("host", "worker", "sample", "warm", "baseline"), 0.0)), noise=0.0
        )
        for window, wobble in zip(session.windows_of("raw"), (-0.2, -0.1, 0.0, 0.1, 0.2), strict=True):
            window.seconds += wobble * window.steps / 1000
        assert next_round(session) == []

    def test_undecided_pairs_only(self) -> None:
        """What varies is the raw rung: so much for the transforms, and so much for what comes after them."""
        session = make(climbing(raw=3.0, warm=3.0), rounds=3, noise=0.0)
        for window, wobble in zip(session.windows_of("raw"), (-2.0, 0.0, 2.0), strict=True):
            window.seconds += wobble * window.steps / 1000
        assert next_round(session) == ["sample", "raw", "warm"]

    def test_both_ends_where_the_whole_is_undecided(self) -> None:
        session = make({"device": 50.0, "raw": 51.0, "baseline": 53.0}, rounds=3, noise=0.0)
        for window, wobble in zip(session.windows_of("baseline"), (-1.0, 0.0, 1.0), strict=True):
            window.seconds += wobble * window.steps / 1000
        assert {"device", "baseline"} <= {*next_round(session)}


class TestNothingToCompare:
    @pytest.mark.parametrize("ladder", [{"baseline": 90.0}, {"device": 50.0, "host": 60.0}])
    def test_the_rungs_there_are(self, ladder: dict[str, float]) -> None:
        assert next_round(make(ladder, rounds=5)) == list(ladder)

    def test_a_rung_that_lags_first(self) -> None:
        session = make({"device": 50.0, "host": 60.0}, rounds=5)
        session.windows = [w for w in session.windows if w.rung != "host" or w.round < 1]
        assert next_round(session) == ["host"]

    def test_nothing_at_all(self) -> None:
        assert next_round(Session()) == []
        assert next_round(make({"supply": 3.0})) == []


class TestRefused:
    """What cannot be measured does not hold up what can."""

    def test_without_windows(self) -> None:
        session = make(without(climbing(warm=30.0), "raw"), rounds=3, unavailable={"raw": "not separable"})
        assert next_round(session) == []

    def test_with_windows_from_before_it_was_refused(self) -> None:
        session = make(climbing(raw=3.0, warm=3.0), rounds=3, noise=0.3, unavailable={"raw": "not separable"})
        assert "raw" not in next_round(session)
        session = make({"baseline": 90.0, "raw": 80.0}, rounds=1, unavailable={"raw": "not separable"})
        assert next_round(session) == ["baseline"]


class TestControls:
    """They stand beside the ladder, and are repeated only where they may tell of contention."""

    def test_the_loader_alone_is_not_repeated(self) -> None:
        session = make(climbing(raw=30.0), rounds=3)
        session.windows.append(Window("supply", 0, 10, 0.3))
        assert next_round(session) == []

    def slow(self, *loaded: float) -> Session:
        """Steps of a second, and as many windows of the loop beside loading workers."""
        session = make({name: 20 * ms for name, ms in climbing(raw=30.0).items()}, rounds=3)
        session.windows += [Window("device+load", i, 10, ms / 100) for i, ms in enumerate(loaded)]
        return session

    def test_no_sign_of_contention(self) -> None:
        assert next_round(self.slow(1001.0)) == []

    def test_a_sign_of_contention(self) -> None:
        assert next_round(self.slow(1400.0)) == ["device", "device+load"]
        assert next_round(self.slow(1400.0, 1400.0)) == ["device", "device+load"]

    def test_contention_decided(self) -> None:
        assert next_round(self.slow(1400.0, 1401.0, 1400.0)) == []

    def test_contention_undecided(self) -> None:
        assert next_round(self.slow(1000.0, 1080.0, 1160.0)) == ["device", "device+load"]

    def test_quick_steps_are_soon_repeated(self) -> None:
        session = make(climbing(raw=30.0), rounds=3, noise=0.0)
        session.windows.append(Window("device+load", 0, 10, 0.5))
        assert next_round(session) == ["device", "device+load"]

    def test_refused(self) -> None:
        session = self.slow(1400.0)
        session.rungs["device+load"] = make({}, unavailable={"device+load": "why"}).rungs["device+load"]
        assert next_round(session) == []


def chained(*costs: float, cuts: tuple[int, ...] | None = None, rounds: int = 3, **more: object) -> Session:
    """A chain whose links take training as much as they take the workers; cut at these places so far."""
    ladder = climbing(raw=sum(costs))
    return make(cut(ladder, costs, *cuts) if cuts else ladder, rounds=rounds, noise=0.0, inside=inside(*costs), **more)  # type: ignore[arg-type]


def cuts_of(session: Session) -> list[int]:
    """Where the chain is cut next."""
    return sorted(links for name in next_round(session) if (links := cut_of(name)) is not None)


class TestCuts:
    """Where a costly chain is cut."""

    @pytest.mark.parametrize(
        "costs, places",
        [
            ((1.0, 20.0, 1.0), [1, 2]),
            ((20.0, 1.0, 1.0), [1]),
            ((1.0, 1.0, 20.0), [2]),
            ((10.0, 10.0), [1]),
            ((1.0, 1.0, 20.0, 1.0, 1.0), [2, 3]),
        ],
    )
    def test_around_a_link_that_takes_most_of_the_time(self, costs: tuple[float, ...], places: list[int]) -> None:
        assert cuts_of(chained(*costs)) == places

    @pytest.mark.parametrize(
        "costs, place",
        [
            ((3.0, 3.0, 3.0, 3.0), 2),
            ((6.0, 6.0, 1.0, 1.0, 1.0), 1),
            ((1.0, 1.0, 1.0, 6.0, 6.0), 4),
            ((1.0, 2.0, 3.0, 4.0), 3),
            ((5.0, 1.0, 1.0, 5.0), 2),
        ],
    )
    def test_else_where_the_halves_are_most_alike(self, costs: tuple[float, ...], place: int) -> None:
        assert cuts_of(chained(*costs)) == [place]

    def test_in_the_middle_where_nothing_is_known_of_the_links(self) -> None:
        session = chained(5.0, 5.0, 5.0, 5.0, 5.0)
        assert session.inside is not None
        for link in session.inside.links:
            link.cost.wall_ms = 0.0
        assert cuts_of(session) == [2]

    def test_with_the_ends_of_the_range(self) -> None:
        """The new rung is compared with its neighbours, round by round."""
        assert next_round(chained(1.0, 20.0, 1.0)) == ["sample", "transform:2", "transform:1", "raw"]

    def test_already_after_one_round(self) -> None:
        assert cuts_of(chained(1.0, 20.0, 1.0, rounds=1)) == [1, 2]

    def test_costly_ranges_are_cut_further(self) -> None:
        session = chained(6.0, 6.0, 6.0, 6.0, cuts=(2,))
        assert next_round(session) == ["sample", "transform:3", "transform:2", "transform:1", "raw"]

    def test_cheap_ranges_are_not(self) -> None:
        session = chained(0.5, 0.5, 6.0, 6.0, cuts=(2,))
        assert next_round(session) == ["sample", "transform:3", "transform:2"]

    def test_a_cut_gets_its_windows(self) -> None:
        session = chained(1.0, 20.0, 1.0, cuts=(1, 2))
        session.windows = [w for w in session.windows if cut_of(w.rung) is None or w.round == 2]
        assert next_round(session) == ["transform:2", "transform:1"]

    def test_cut_as_far_as_it_goes(self) -> None:
        assert next_round(chained(10.0, 20.0, 10.0, cuts=(1, 2))) == []

    def test_single_links_are_not_cut(self) -> None:
        assert next_round(chained(30.0)) == []

    def test_not_while_it_is_cheap(self) -> None:
        assert next_round(chained(0.5, 1.0, 0.5)) == []

    def test_not_without_a_look_inside(self) -> None:
        assert next_round(make(climbing(raw=30.0), rounds=3)) == []

    def test_not_where_the_chain_cannot_be_cut(self) -> None:
        session = make(climbing(raw=30.0), rounds=3, inside=inside(10.0, 20.0, unsplit="samples differ"))
        assert next_round(session) == []

    def test_not_where_other_code_takes_the_time(self) -> None:
        session = make(climbing(raw=30.0), rounds=3, inside=inside(2.0, 2.0, between=20.0))
        assert next_round(session) == []

    def test_not_without_the_raw_rung(self) -> None:
        ladder = without(climbing(warm=30.0), "raw")
        session = make(ladder, rounds=3, inside=inside(10.0, 20.0), unavailable={"raw": "not separable"})
        assert next_round(session) == []

    def test_not_without_the_sample_rung(self) -> None:
        session = make(without(climbing(raw=30.0), "sample"), rounds=3, inside=inside(10.0, 20.0))
        assert cuts_of(session) == []

    def test_a_refused_cut_is_not_asked_for_again(self) -> None:
        session = chained(1.0, 20.0, 1.0, unavailable={"transform:1": "no", "transform:2": "no"})
        assert next_round(session) == []

    def test_the_other_one_is_measured_all_the_same(self) -> None:
        session = chained(1.0, 20.0, 1.0, unavailable={"transform:1": "no"})
        assert next_round(session) == ["sample", "transform:2", "raw"]

    def test_a_cut_refused_after_its_first_window(self) -> None:
        session = chained(1.0, 20.0, 1.0, cuts=(1, 2), rounds=1, unavailable={"transform:1": "no"})
        found = next_round(session)
        assert "transform:1" not in found
        assert "transform:2" in found


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=9))
def test_cutting_comes_to_an_end(costs: list[float]) -> None:
    """As many rounds as are asked for; every range that costs more than the gate is then one link."""
    cuts: tuple[int, ...] = ()
    for _ in range(12):
        session = chained(*costs, cuts=cuts)
        chosen = next_round(session)
        assert chosen == ordered(chosen)
        assert not {*chosen} & {*CONTROLS}
        places = {links for name in chosen if (links := cut_of(name)) is not None}
        assert places <= set(range(1, len(costs)))
        if not places - {*cuts}:
            break
        cuts = tuple(sorted({*cuts, *places}))
    assert not places - {*cuts}
    ends = [0, *cuts, len(costs)]
    for first, last in itertools.pairwise(ends):
        assert last - first == 1 or sum(costs[first:last]) <= 0.06 * (51 + sum(costs))


def test_flat_ladders_are_settled_whatever_the_chain() -> None:
    assert next_round(make(FLAT, rounds=3, inside=inside(5.0, 5.0))) == []


def test_cut_rungs_are_named_by_the_links_behind_them() -> None:
    assert [cut_rung(links) for links in (1, 12)] == ["transform:1", "transform:12"]
