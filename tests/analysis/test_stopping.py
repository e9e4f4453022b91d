"""What is worth measuring next, and when enough has been measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.stopping import next_round
from pipediag.session import CONTROLS, RUNGS, Session, Window, cut_of, cut_rung, ordered

from ..made import FLAT, blocks, but, climbing, cut, inside, lacking, make, waits, without


class TestEnough:
    """Whether more windows could change the verdict."""

    @pytest.mark.parametrize("cost, rounds", [(0.2, 6), (30.0, 2)])
    def test_decided(self, cost: float, rounds: int) -> None:
        assert next_round(make(climbing(raw=cost), rounds=rounds)) == []

    @pytest.mark.parametrize("cost", [0.2, 30.0])
    def test_the_headline_is_made_sure(self, cost: float) -> None:
        """One window of the baseline or ``device`` might be chance."""
        assert {"device", "baseline"} <= {*next_round(make(climbing(raw=cost), rounds=1))}

    def test_every_rung_gets_a_window(self) -> None:
        ladder = climbing(raw=30.0)
        assert next_round(lacking(make(ladder), "host", "sample", "raw", "warm")) == ["host", "sample", "raw"]
        assert next_round(lacking(make(ladder), "warm")) == ["warm"]

    def test_first_whether_it_starves_then_where(self) -> None:
        session = make(climbing(raw=30.0), rounds=1)
        windows, session.windows = session.windows, []
        assert next_round(session) == ["device", "worker", "baseline"]
        session.windows = [w for w in windows if w.rung in ("device", "worker", "baseline")]
        beside = ["device", "host", "sample", "raw", "baseline"]
        assert next_round(session) == beside, "loop and machine may begin unlike they go on"
        session.windows += [replace(w, round=1) for w in windows if w.rung in beside]
        assert next_round(session) == ["sample", "warm"], "the rung without the costliest stage is measured twice"
        session.windows = [w for w in windows if w.rung != "worker"]
        assert next_round(session) == ["worker"]

    def test_one_is_enough_for_what_is_beside_the_question(self) -> None:
        session = lacking(make(climbing(raw=30.0), rounds=3), "raw", "warm", after=1)
        assert next_round(session) == []
        assert next_round(lacking(session, "sample", after=1)) == ["sample"]

    def test_windows_back_to_back_are_one_time(self) -> None:
        """A machine that is fast for a second makes both of them fast; the first window was slow, and is left out."""
        session = make(climbing(raw=30.0), rounds=3)
        (first, second, third), others = (
            [w for w in session.windows if (w.rung == "device") is device] for device in (True, False)
        )
        first.seconds *= 1.4
        session.windows = [first, *others[: len(others) // 2], second, third, *others[len(others) // 2 :]]
        found = diagnose_session(session).verdict
        assert (found.certain, found.uncertain) == (False, "measured at one time only")
        assert next_round(session) == ["device", "baseline"]
        session.windows += [replace(one, round=3) for one in (others[-1], second)]
        assert diagnose_session(session).verdict.certain and next_round(session) == []

    def test_straddling_the_gate(self) -> None:
        """The transforms cost about 2.7 ms, which is 5 % of the step."""
        assert next_round(make(climbing(raw=2.7), rounds=3, noise=0.01))

    def test_noise(self) -> None:
        noisy = [make(climbing(raw=30.0), rounds=3, noise=0.3, seed=seed) for seed in range(20)]
        assert sum(bool(next_round(session)) for session in noisy) >= 15

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
        """Only the rung ``worker`` varies, so only the hand-off is undecided."""
        session = make(climbing(worker=4.0, raw=30.0), rounds=3, noise=0.0)
        for window, wobble in zip(session.windows_of("worker"), (-3.0, 0.0, 3.0), strict=True):
            window.seconds += wobble * window.steps / 1000
        assert next_round(session) == ["host", "worker"]

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
        assert next_round(lacking(make({"device": 50.0, "host": 60.0}, rounds=5), "host")) == ["host"]

    def test_nothing_at_all(self) -> None:
        assert next_round(Session()) == []


class TestRefused:
    """Rungs that cannot be measured do not hold up the others."""

    def test_without_windows(self) -> None:
        session = make(without(climbing(warm=30.0), "raw"), rounds=3, unavailable={"raw": "not separable"})
        assert next_round(session) == []

    def test_with_windows_from_before_it_was_refused(self) -> None:
        session = make(climbing(raw=3.0, warm=3.0), rounds=3, noise=0.3, unavailable={"raw": "not separable"})
        assert "raw" not in next_round(session)
        session = make({"baseline": 90.0, "raw": 80.0}, rounds=1, unavailable={"raw": "not separable"})
        assert next_round(session) == ["baseline"]


class TestControls:
    """Controls are outside the ladder, and one window of each is enough."""

    def test_the_loader_alone_is_not_repeated(self) -> None:
        session = make(climbing(raw=30.0), rounds=3)
        session.windows.append(Window("supply", 0, 10, 0.3))
        assert next_round(session) == []

    def test_not_even_where_there_is_nothing_to_compare_it_with(self) -> None:
        assert next_round(make({"supply": 3.0})) == []

    def test_it_gets_its_window(self) -> None:
        session = make(climbing(raw=30.0) | {"supply": 3.0}, rounds=3)
        assert next_round(lacking(session, "supply")) == ["supply"]


class TestWaits:
    """Rounds that follow from the loop's waiting and its workers' time."""

    LADDER: ClassVar = {"device": 50.0, "host": 50.0, "worker": 50.0, "sample": 50.0, "warm": 89.0, "baseline": 90.0}

    def late(self, raw: float, rounds: int, made: float = 100.0, wait: float = 40.0) -> Session:
        """Workers take 160 ms a batch, ``made`` of it without the loading; windows of the loop differ by its wait."""
        seen = {**waits(wait, worker_ms=160.0, collate_ms=0.0), "raw": {"worker_ms": made, "wait_ms": wait / 2}}
        ladder = {**self.LADDER, "raw": raw}
        return make(ladder, rounds=rounds, noise=0.0, evidence=seen, inside=inside(10.0, load=6.0))

    def test_a_rung_that_contradicts_the_workers_time_is_measured_again(self) -> None:
        assert "raw" in next_round(self.late(90.0, 2, made=60.0))

    def test_until_it_is_believed(self) -> None:
        assert "raw" not in next_round(self.late(90.0, 3, made=60.0))

    def test_one_that_agrees_is_not(self) -> None:
        assert "raw" not in next_round(self.late(56.25, 2))
        assert next_round(self.late(56.25, 3)) == []

    def test_not_where_the_loop_is_not_late(self) -> None:
        assert "raw" not in next_round(self.late(90.0, 2, made=60.0, wait=1.0))

    def test_storage_or_loading(self) -> None:
        """Whether it is storage depends on faster warm files, and one window may be chance."""
        session = but(self.late(56.25, 3), inside=inside(1.0, load=15.0))
        assert next_round(lacking(session, "warm", after=1)) == ["warm", "baseline"]

    def test_whether_workers_are_in_the_way(self) -> None:
        """Of 81 ms the loop waits about 28 and needs 50.4 itself: contention is 2.6 ms, more or less."""
        session = make(climbing(raw=30.0), rounds=2, noise=0.0, evidence=waits(28.0))
        for window, wait in zip(session.windows_of("baseline"), (23.0, 33.0), strict=True):
            window.evidence["wait_ms"] = wait
        assert next_round(session) == ["worker", "baseline"]

    def test_what_was_only_observed_is_to_be_measured(self) -> None:
        session = make({}, observed=blocks(5, 100.0, 50.0))
        session.rungs = make(FLAT).rungs
        assert next_round(session) == ["device", "worker", "baseline"]


def chained(*costs: float, cuts: tuple[int, ...] | None = None, rounds: int = 3, **more: object) -> Session:
    """A chain whose links cost training as much as they cost the workers, cut at these places so far."""
    ladder = climbing(raw=sum(costs))
    return make(cut(ladder, costs, *cuts) if cuts else ladder, rounds=rounds, noise=0.0, inside=inside(*costs), **more)  # type: ignore[arg-type]


def cuts_of(session: Session) -> list[int]:
    """Where the chain is cut next."""
    return sorted(links for name in next_round(session) if (links := cut_of(name)) is not None)


class TestCuts:
    """Where a costly chain is cut."""

    @pytest.mark.parametrize(
        ("costs", "places"),
        [
            # Around a link that takes most of the time.
            ((1.0, 20.0, 1.0), [1, 2]),
            ((20.0, 1.0, 1.0), [1]),
            ((1.0, 1.0, 20.0), [2]),
            ((10.0, 10.0), [1]),
            ((1.0, 1.0, 20.0, 1.0, 1.0), [2, 3]),
            # Else where the halves are most alike.
            ((3.0, 3.0, 3.0, 3.0), [2]),
            ((6.0, 6.0, 1.0, 1.0, 1.0), [1]),
            ((1.0, 1.0, 1.0, 6.0, 6.0), [4]),
            ((1.0, 2.0, 3.0, 4.0), [3]),
            ((5.0, 1.0, 1.0, 5.0), [2]),
            # Not while it is cheap, and not a single link.
            ((0.5, 1.0, 0.5), []),
            ((30.0,), []),
        ],
    )
    def test_where(self, costs: tuple[float, ...], places: list[int]) -> None:
        assert cuts_of(chained(*costs)) == places

    def test_in_the_middle_where_nothing_is_known_of_the_links(self) -> None:
        session = chained(5.0, 5.0, 5.0, 5.0, 5.0)
        for cost in (session.inside.whole, *(link.cost for link in session.inside.links)):
            cost.wall_ms = 0.0
        assert cuts_of(session) == [2]

    def test_nothing_else_is_measured_again_for_it(self) -> None:
        """The workers' time gives the links' costs; their rungs say how fast the loop is without them."""
        assert next_round(chained(1.0, 20.0, 1.0)) == ["transform:2", "transform:1"]

    def test_already_after_one_round(self) -> None:
        assert cuts_of(chained(1.0, 20.0, 1.0, rounds=1)) == [1, 2]

    @pytest.mark.parametrize(
        ("session", "asked"),
        [
            # Costly ranges are cut further; one that takes less than a quarter of a worker's time stays in one piece.
            (chained(6.0, 6.0, 6.0, 6.0, cuts=(2,)), ["transform:3", "transform:1"]),
            (chained(0.5, 0.5, 6.0, 6.0, cuts=(2,)), ["transform:3"]),
            # A cut gets its windows.
            (lacking(chained(1.0, 20.0, 1.0, cuts=(1, 2)), "transform:1"), ["transform:1"]),
            # Cut as far as it goes.
            (chained(10.0, 20.0, 10.0, cuts=(1, 2)), []),
            # Nobody looked inside, the chain cannot be cut, or other code takes the time.
            (make(climbing(raw=30.0), rounds=3), []),
            (make(climbing(raw=30.0), rounds=3, inside=inside(10.0, 20.0, unsplit="samples differ")), []),
            (make(climbing(raw=30.0), rounds=3, inside=inside(2.0, 2.0, between=20.0)), []),
            # The rung before the chain, or the one behind it, is not known.
            (
                make(
                    without(climbing(warm=30.0), "raw"),
                    rounds=3,
                    inside=inside(10.0, 20.0),
                    unavailable={"raw": "not separable"},
                ),
                [],
            ),
            (make(without(climbing(raw=30.0), "sample"), rounds=3, inside=inside(10.0, 20.0)), None),
            # A refused cut is not asked for again; the other one is measured all the same.
            (chained(1.0, 20.0, 1.0, unavailable={"transform:1": "no", "transform:2": "no"}), []),
            (chained(1.0, 20.0, 1.0, unavailable={"transform:1": "no"}), ["transform:2"]),
        ],
    )
    def test_what_is_asked_for(self, session: Session, asked: list[str] | None) -> None:
        """None is anything but a cut."""
        found = next_round(session)
        assert found == asked if asked is not None else cuts_of(session) == []

    def test_a_cut_refused_after_its_first_window(self) -> None:
        session = chained(1.0, 20.0, 1.0, cuts=(1, 2), rounds=1, unavailable={"transform:1": "no"})
        assert "transform:1" not in next_round(session)
        assert "transform:2" in next_round(lacking(session, "transform:2"))


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=9))
def test_cutting_comes_to_an_end(costs: list[float]) -> None:
    """After all rounds asked for, every range with a large part of a worker's time is a single link."""
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
        small = sum(costs[first:last]) <= 0.25 * (2 + sum(costs))
        assert last - first == 1 or small or sum(costs) <= 0.06 * (51 + sum(costs))


def test_flat_ladders_are_settled_whatever_the_chain() -> None:
    assert next_round(make(FLAT, rounds=3, inside=inside(5.0, 5.0))) == []


def test_cut_rungs_are_named_by_the_links_behind_them() -> None:
    assert [cut_rung(links) for links in (1, 12)] == ["transform:1", "transform:12"]
