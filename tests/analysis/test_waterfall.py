"""The waterfall sums to the baseline, also if rungs are missing; the two sides of a step; the loop without a stage."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Diagnosis, Stage, Without
from pipediag.analysis.numbers.intervals import exactly
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.loop_and_workers import OF_THE_WORKERS, sides
from pipediag.analysis.waterfall import by_stage
from pipediag.analysis.whatif import Change, what_if
from pipediag.report import RENDERERS
from pipediag.session import RUNGS, STAGE_OF_RUNG, Account, Cost, HotLine, Inside, Part, Place, Rung, Session, Window

from ..made import blocks, but, climbing, cut, inside, lacking, make, views, waits, without

LADDERS = st.dictionaries(st.sampled_from(RUNGS), st.floats(0.01, 5000), min_size=1, max_size=7)


def pieces(session: Session) -> dict[str, Stage]:
    """Return the pieces by stage; each stage has one piece."""
    found = diagnose_session(session).waterfall
    assert len({piece.stage for piece in found}) == len(found)
    return {piece.stage: piece for piece in found}


def test_whole_ladder() -> None:
    costs = {"host": 3.0, "worker": 4.0, "sample": 5.0, "raw": 20.0, "warm": 10.0, "baseline": 8.0}
    found = pieces(make(climbing(**costs), noise=0.0))
    assert list(found) == list(STAGE_OF_RUNG.values())
    assert {stage: piece.ms.value for stage, piece in found.items()} == pytest.approx(
        {"compute": 50.0, **{STAGE_OF_RUNG[rung]: ms for rung, ms in costs.items()}}, abs=1e-9
    )
    assert found["transform"].share == pytest.approx(0.2)
    assert found["transform"].covers == ["transform"]


@given(LADDERS, st.integers(1, 4), st.floats(0, 0.3), st.integers())
def test_sums_to_the_baseline(ladder: dict[str, float], rounds: int, noise: float, seed: int) -> None:
    session = make(ladder | {"baseline": 200.0}, rounds=rounds, noise=noise, seed=seed)
    sums_up(session)
    covered = [stage for piece in diagnose_session(session).waterfall for stage in piece.covers]
    if len(ladder | {"baseline": 1}) > 1:
        assert covered == list(STAGE_OF_RUNG.values())


def sums_up(session: Session) -> None:
    """Check that no piece is negative, that each lies in its interval, and that they sum to the step."""
    found = diagnose_session(session).waterfall
    base = LadderView(session).ms("baseline").value
    assert math.fsum(piece.ms.value for piece in found) == pytest.approx(base, rel=1e-9)
    assert math.fsum(piece.share for piece in found) == pytest.approx(1.0)
    for piece in found:
        slack = 1e-9 * base
        assert -slack <= piece.ms.value <= base + slack
        assert piece.ms.low - slack <= piece.ms.value <= piece.ms.high + slack
        assert piece.ms.low >= -slack
        assert all(map(math.isfinite, (piece.ms.low, piece.ms.high)))
    for piece in found[1:]:
        assert piece.without.steps_per_s > 0


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any measurement of a loop: rungs in any order, waiting, and the workers' time."""
    ms, share = st.floats(0.01, 5000), st.floats(0, 1)
    ladder = draw(LADDERS)
    evidence: dict[str, dict[str, float]] = {}
    for rung in ladder:
        seen = evidence.setdefault(rung, {})
        if draw(st.booleans()):
            seen["wait_ms"] = draw(share) * ladder[rung]
        if draw(st.booleans()):
            seen |= {"worker_ms": draw(ms), "worker_cpu": 0.9, "worker_queued": 0.05, "worker_blocked": 0.05}
            if draw(st.booleans()):
                seen["collate_ms"] = draw(share) * seen["worker_ms"]
    chain = draw(st.lists(st.floats(0, 50), max_size=4))
    return make(
        ladder,
        rounds=draw(st.integers(1, 2)),
        noise=draw(st.floats(0, 0.3)),
        seed=draw(st.integers()),
        workers=draw(st.sampled_from([0, 1, 8])),
        evidence=evidence,
        inside=inside(*chain, load=draw(st.floats(0, 50)), between=draw(st.floats(0, 5)))
        if draw(st.booleans())
        else None,
        observed=blocks(draw(st.integers(0, 3)), 100.0, 100 * draw(share), draw(st.floats(0, 500)), noise=0.2),
        device=draw(st.sampled_from(["cpu", "cuda"])),
    )


@given(sessions())
def test_any_session_sums_up(session: Session) -> None:
    diagnosis = diagnose_session(session)
    if diagnosis.waterfall:
        sums_up(session)
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert RENDERERS[".txt"](diagnosis)


def test_a_drift_between_the_rungs_is_in_no_piece() -> None:
    """Drift between rungs is not part of the step."""
    session = Session()
    for rung, times in {"device": (50.0, 60.0, 90.0), "baseline": (100.0, 150.0, 130.0)}.items():
        session.windows += [Window(rung, i, 10, ms / 100) for i, ms in enumerate(times)]
    found = {stage: piece.ms.value for stage, piece in pieces(session).items()}
    assert found == pytest.approx({"compute": 200 / 3, "load": 60.0})


def test_rungs_of_the_training_process_out_of_order() -> None:
    """A rung measured at a slow time takes nothing from compute, nor from the workers."""
    found = pieces(make({"device": 10.0, "host": 100.0, "worker": 11.0, "baseline": 100.0}, noise=0.0))
    assert {stage: piece.ms.value for stage, piece in found.items()} == pytest.approx(
        {"compute": 10.0, "transfer": 90.0, "ipc": 0.0, "load": 0.0}
    )


class TestWorkersTime:
    """The wait for the workers is divided in proportion to their time."""

    LADDER: ClassVar = {"device": 50.0, "host": 52.0, "worker": 55.0, "baseline": 100.0}

    def test_by_share(self) -> None:
        """The loop waits 45 ms: 10 of a worker's 80 ms are collating, the rest is divided as in a sample."""
        seen = waits(45.0, worker_ms=80.0, collate_ms=10.0)
        session = make(self.LADDER, noise=0.0, evidence=seen, inside=inside(1.0, 3.0, load=10.0))
        found = diagnose_session(session).waterfall
        assert [(p.stage, p.links, p.ms.value) for p in found] == [
            ("compute", [], pytest.approx(50.0)),
            ("transfer", [], pytest.approx(2.0)),
            ("ipc", [], pytest.approx(3.0)),
            ("collate", [], pytest.approx(45 * 10 / 80)),
            ("transform", ["B"], pytest.approx(45 * 15 / 80)),
            ("transform", ["A"], pytest.approx(45 * 5 / 80)),
            ("load", [], pytest.approx(45 * 50 / 80)),
        ]
        assert [p.culprit for p in found if p.stage == "transform"] == [
            Place("B", "aug.py:20"), Place("A", "aug.py:10")
        ]  # fmt: skip

    def test_a_batch_that_its_samples_do_not_explain_is_collating(self) -> None:
        """A worker did not live to report it: the samples take 14 ms each, and the collate function is the user's."""
        own = HotLine("data.py:9", "stack(x)", 1.0, "stack", "collate", "collate")
        for batch, lines, collates in ((40.0, [own], False), (9000.0, [own], True), (9000.0, [], False)):
            found = inside(1.0, 3.0, load=10.0)
            found.lines = lines
            session = make(self.LADDER, noise=0.0, evidence=waits(45.0, worker_ms=14.0 * batch), inside=found)
            pieces = diagnose_session(session).waterfall
            assert (sum(p.ms.value for p in pieces if p.stage == "collate") > 40) == collates

    def test_all_calls_of_a_transform_at_one_place_are_one_piece(self) -> None:
        """Each of ten views is too small to be certain, but not all of them together."""
        seen = waits(45.0, worker_ms=80.0, collate_ms=0.0)
        found = views(inside(0.4, 0.2, load=2.0), 10)
        session = make(self.LADDER, noise=0.001, evidence=seen, inside=found)
        transforms = [p for p in diagnose_session(session).waterfall if p.stage == "transform"]
        assert [(p.links, p.culprit) for p in transforms] == [
            (["B"], Place("B", "aug.py:20")), (["A"], Place("A", "aug.py:10"))
        ]  # fmt: skip
        assert [p.ms.value for p in transforms] == pytest.approx([45 / 4, 45 / 2], rel=0.01)
        assert all(p.ms.low > 0.5 * p.ms.value for p in transforms)
        assert len(session.links) == 20, "cuts count the calls"

    def test_a_wrapper_is_named_by_what_it_runs(self) -> None:
        found = inside(1.0, 3.0, load=4.0)
        found.links[1].parts = [Part("Blur", "aug.py:25", cost=Cost(2.7)), Part("Noise", cost=Cost(0.3))]
        seen = waits(45.0, worker_ms=80.0, collate_ms=0.0)
        transforms = diagnose_session(make(self.LADDER, noise=0.0, evidence=seen, inside=found)).waterfall[-4:-1]
        assert [(p.links, p.ms.value) for p in transforms] == [
            (["Noise"], pytest.approx(45 * 0.3 / 8)),
            (["Blur"], pytest.approx(45 * 2.7 / 8)),
            (["A"], pytest.approx(45 / 8)),
        ]

    def test_rungs_do_not_move_it(self) -> None:
        """Marginal costs of rungs do not move the shares."""
        rungs = {**self.LADDER, "sample": 55.0, "raw": 56.0, "warm": 99.0}
        seen = waits(45.0, worker_ms=80.0, collate_ms=0.0)
        found = pieces(make(rungs, noise=0.0, evidence=seen, inside=inside(6.0, load=2.0)))
        assert found["transform"].ms.value == pytest.approx(45 * 0.75)
        assert found["load"].without == Without(pytest.approx(1000 / 56.0), True)

    def test_collating_as_under_its_rung_in_older_sessions(self) -> None:
        seen = {**waits(45.0, worker_ms=80.0), "sample": {"worker_ms": 25.0, "worker_queued": 0.0, "copy_ms": 5.0}}
        found = pieces(make({**self.LADDER, "sample": 55.0}, noise=0.0, evidence=seen, inside=inside(load=2.0)))
        assert found["collate"].ms.value == pytest.approx(45 * 20 / 80)

    def test_collating_that_is_not_known_is_with_the_loading(self) -> None:
        found = pieces(make(self.LADDER, noise=0.0, evidence=waits(45.0, worker_ms=80.0), inside=inside(2.0, load=2.0)))
        assert "collate" not in found
        assert found["load"].covers == ["collate", "load"]
        assert found["load"].ms.value == pytest.approx(22.5)

    def test_the_code_between_the_links_goes_with_them(self) -> None:
        seen = waits(45.0, worker_ms=80.0, collate_ms=0.0)
        found = pieces(make(self.LADDER, noise=0.0, evidence=seen, inside=inside(6.0, load=1.0, between=1.0)))
        assert found["transform"].ms.value == pytest.approx(45 * 7 / 8)

    def test_storage_is_what_workers_take_less_on_warm_files(self) -> None:
        seen = {**waits(45.0, worker_ms=80.0, collate_ms=0.0), "warm": {"worker_ms": 40.0}}
        rungs = {**self.LADDER, "raw": 56.0, "warm": 60.0}
        found = pieces(make(rungs, noise=0.0, evidence=seen, inside=inside(2.0, load=6.0)))
        assert {stage: p.ms.value for stage, p in found.items() if stage in ("transform", "load", "storage")} == (
            pytest.approx({"transform": 45 / 4, "load": 45 / 4, "storage": 45 / 2})
        )
        assert found["load"].without is not None
        assert not found["load"].without.measured, "under raw the storage is gone too"

    @pytest.mark.parametrize(
        ("seen", "warm_worker", "warm"),
        [
            # Caches of the CPU are warm as well; workers that storage holds up are blocked.
            ({"worker_blocked": 0.0}, 40.0, 60.0),
            # Windows that differ by chance.
            ({}, 78.0, 98.0),
        ],
    )
    def test_what_is_no_storage(self, seen: dict[str, float], warm_worker: float, warm: float) -> None:
        evidence = {
            **waits(45.0, worker_ms=80.0, collate_ms=0.0, **seen), "warm": {"worker_ms": warm_worker}
        }  # fmt: skip
        session = make({**self.LADDER, "warm": warm}, noise=0.0, evidence=evidence, inside=inside(2.0, load=6.0))
        assert "storage" not in pieces(session)

    def test_a_rung_that_was_not_measured_may_be_in_what_is_left(self) -> None:
        """Transfer and hand-off are unknown, so contention is too."""
        found = pieces(make({"device": 50.0, "baseline": 100.0}, noise=0.0, evidence=waits(20.0)))
        assert {stage: piece.ms.value for stage, piece in found.items()} == pytest.approx(
            {"compute": 50.0, "ipc": 30.0, "load": 20.0}
        )
        assert found["ipc"].covers == ["transfer", "ipc"]

    @pytest.mark.parametrize(("megabytes", "stage"), [(0, "ipc"), (1, "contention"), (50, "ipc")])
    def test_moving_few_bytes_does_not_explain_what_is_left(self, megabytes: int, stage: str) -> None:
        """The 30 ms beyond the wait are not those of one megabyte, but may be those of fifty, or of an unknown size."""
        session = make({"device": 50.0, "baseline": 100.0}, noise=0.0, evidence=waits(20.0))
        session.loader.batch_bytes = megabytes * 10**6
        assert pieces(session)[stage].ms.value == pytest.approx(30.0)
        verdict = diagnose_session(session).verdict
        assert verdict.level == "intervened"
        assert (verdict.bottleneck == "contention") == (stage == "contention")


@pytest.mark.parametrize(
    ("missing", "ladder", "stage", "covers", "ms"),
    [
        # Loading and transforms cannot be separated.
        (("raw",), {"raw": 30.0, "warm": 5.0}, "load", ["transform", "load"], 35.0),
        (("sample", "raw", "warm"), {"raw": 30.0}, "load", ["collate", "transform", "load", "storage"], 30.6),
        (RUNGS[1:-1], {"raw": 30.0}, "load", ["transfer", "ipc", "collate", "transform", "load", "storage"], 31.0),
        (("warm",), {"baseline": 30.0}, "load", ["load", "storage"], 30.2),
        # It is charged to what comes after.
        (("worker",), {"sample": 30.0}, "collate", ["ipc", "collate"], 30.2),
        (("device",), {"raw": 30.0}, "compute", ["compute", "transfer"], 50.2),
    ],
)
def test_rungs_that_are_missing(
    missing: Sequence[str], ladder: dict[str, float], stage: str, covers: list[str], ms: float
) -> None:
    found = pieces(make(without(climbing(**ladder), *missing), noise=0.0))
    assert found[stage].covers == covers
    assert found[stage].ms.value == pytest.approx(ms)
    assert [name for piece in found.values() for name in piece.covers] == list(STAGE_OF_RUNG.values())


def test_what_could_not_be_separated_is_the_datasets() -> None:
    found = pieces(make(without(climbing(raw=30.0, warm=5.0), "raw"), unavailable={"raw": "not separable"}))
    assert found["load"].culprit is not None and found["load"].culprit.name == "Photos.__getitem__"


def test_a_stage_that_does_not_exist_is_not_covered() -> None:
    session = make(without(climbing(raw=30.0), "host", "worker"), absent=["host", "worker"], workers=0, device="cpu")
    found = pieces(session)
    assert list(found) == ["compute", "collate", "transform", "load", "storage"]
    assert found["collate"].covers == ["collate"]


def test_no_baseline_no_waterfall() -> None:
    assert pieces(make(without(climbing(), "baseline"))) == {}


def test_costs_are_paired_within_rounds() -> None:
    """A machine that halves its speed between rounds does not widen the interval of a cost."""
    session = make({"device": 50.0, "baseline": 60.0}, rounds=4, noise=0.0)
    for window in session.windows:
        window.seconds *= 2**window.round  # on both
    ladder = LadderView(session)
    share = ladder.share("baseline", "device")
    assert [share.value, share.low, share.high] == pytest.approx([1 / 6] * 3)
    cost = ladder.cost("baseline", "device")
    assert [cost.value, cost.low, cost.high] == pytest.approx([10.0 * (1 + 2 + 4 + 8) / 4] * 3)


def test_no_round_in_common() -> None:
    session = make({"device": 50.0}, rounds=1, noise=0.0)
    other = make({"baseline": 80.0}, rounds=2, noise=0.0).windows[1]
    session.windows.append(other)
    ladder = LadderView(session)
    cost, ratio = ladder.cost("baseline", "device"), ladder.ratio("baseline", "device")
    assert (cost.value, ratio.value) == (pytest.approx(30.0), pytest.approx(1.6))
    assert 1.0 < ratio.low < 1.55 < 1.65 < ratio.high, "as uncertain as such windows are known to be"
    assert 20.0 < cost.low < 29.0 < 31.0 < cost.high


@pytest.mark.parametrize("workers, expected", [(0, 30.0), (1, 30.0), (4, 37.5)])
def test_copies_of_raw_samples_are_not_the_transforms(workers: int, expected: float) -> None:
    """10 ms of copying a batch: workers make the copies side by side, so a step waits for its share only."""
    ladder = {"device": 40.0, "sample": 50.0, "raw": 90.0, "baseline": 95.0}
    session = make(ladder, noise=0.0, workers=workers, evidence={"raw": {"copy_ms": 10.0}})
    assert pieces(session)["transform"].ms.value == pytest.approx(expected)


def test_copies_never_use_up_the_step() -> None:
    session = make({"device": 40.0, "raw": 90.0}, noise=0.0, workers=1, evidence={"raw": {"copy_ms": 500.0}})
    assert LadderView(session).ms("raw").value == pytest.approx(9.0)


def test_evidence_is_the_median() -> None:
    session = make({"baseline": 90.0}, rounds=3, evidence={"baseline": {"worker_ms": 3.9}})
    session.windows[0].evidence = {"worker_ms": 5.0, "copy_ms": 2.0}
    session.windows[1].evidence = {"worker_ms": 4.0}
    assert LadderView(session).evidence("baseline") == {"worker_ms": 4.0, "copy_ms": 2.0}


def chained(*costs: float, cuts: tuple[int, ...] = (), workers: tuple[float, ...] = (), **more: object) -> Session:
    """A chain cut at these places (by default everywhere), and its links' cost in the workers."""
    ladder = cut(climbing(raw=sum(costs)), costs, *cuts)
    return make(ladder, noise=0.0, inside=inside(*(workers or costs)), **more)  # type: ignore[arg-type]


def transforms(session: Session) -> dict[str, Stage]:
    """The transforms' pieces by rung."""
    return {p.rung: p for p in diagnose_session(session).waterfall if p.stage == "transform"}


class TestCuts:
    """The transform stage in pieces."""

    @pytest.mark.parametrize(
        ("session", "expected"),
        [
            (
                chained(5.0, 20.0, 10.0),
                {
                    "transform:2": (["C"], Place("C", "aug.py:30")),
                    "transform:1": (["B"], Place("B", "aug.py:20")),
                    "raw": (["A"], Place("A", "aug.py:10")),
                },
            ),
            # A range is named by its links, or by the link that takes nearly all of it.
            (
                chained(5.0, 5.0, 10.0, 10.0, cuts=(2,)),
                {
                    "transform:2": (["C", "D"], Place("C, D", "aug.py:30")),
                    "raw": (["A", "B"], Place("A, B", "aug.py:10")),
                },
            ),
            (
                chained(10.0, 0.5, 10.0, 10.0, cuts=(2,)),
                {
                    "transform:2": (["C", "D"], Place("C, D", "aug.py:30")),
                    "raw": (["A", "B"], Place("A", "aug.py:10")),
                },
            ),
            # A chain that was not cut is the loader's transform, unless it is nearly one link.
            (
                make(climbing(raw=30.0), inside=inside(10.0, 20.0)),
                {"raw": (["A", "B"], Place("Compose(Crop, Flip)", "data.py:40"))},
            ),
            (
                make(climbing(raw=30.0), inside=inside(1.0, 20.0)),
                {"raw": (["A", "B"], Place("B", "aug.py:20"))},
            ),
            (make(climbing(raw=30.0), inside=inside(10.0)), {"raw": (["A"], Place("A", "aug.py:10"))}),
            # Nobody looked inside.
            (make(climbing(raw=30.0)), {"raw": ([], Place("Compose(Crop, Flip)", "data.py:40"))}),
        ],
    )
    def test_names(self, session: Session, expected: dict[str, tuple[list[str], Place]]) -> None:
        found = transforms(session)
        assert [(rung, (piece.links, piece.culprit)) for rung, piece in found.items()] == [*expected.items()]
        assert all(piece.covers == ["transform"] for piece in found.values())

    def test_sums_to_the_baseline(self) -> None:
        found = diagnose_session(chained(5.0, 20.0, 10.0)).waterfall
        assert [piece.ms.value for piece in found if piece.stage == "transform"] == pytest.approx([10.0, 20.0, 5.0])
        assert math.fsum(piece.ms.value for piece in found) == pytest.approx(86.0)
        assert all(piece.links == [] for piece in found if piece.stage != "transform")
        assert [piece.stage for piece in found] == [
            "compute", "transfer", "ipc", "collate", *["transform"] * 3, "load", "storage",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("inside", "culprit"),
        [
            # By worker time: most of the sample goes into it.
            (inside(10.0, 20.0), Place("B", "aug.py:20")),
            (inside(10.0, 10.0, load=5.0), Place("Photos.__getitem__", "data.py:5")),
        ],
    )
    def test_raw_and_its_cuts_are_missing(self, inside: Inside, culprit: Place) -> None:
        session = make(without(climbing(raw=30.0), "raw"), inside=inside, unavailable={"raw": "why"})
        found = pieces(session)["load"]
        assert (found.covers, found.culprit) == (["transform", "load"], culprit)

    def test_the_last_window_of_raw_is_lost(self) -> None:
        """A cut without the rung ``raw``: the rest of the chain cannot be separated from loading."""
        session = lacking(chained(5.0, 20.0, cuts=(1,)), "raw")
        found = {piece.rung: piece for piece in diagnose_session(session).waterfall}
        assert found["transform:1"].links == ["B"]
        assert found["warm"].stage == "load"
        assert found["warm"].covers == ["transform", "load"]

    def test_sample_is_missing(self) -> None:
        session = lacking(chained(5.0, 20.0, cuts=(1,)), "sample")
        found = transforms(session)
        assert found["transform:1"].covers == ["collate", "transform"]
        assert found["transform:1"].links == ["B"]


class TestJoined:
    """All links together are one stage."""

    def stage(self, session: Session) -> Stage:
        """The transforms as one stage; the other stages are left alone."""
        found = diagnose_session(session).waterfall
        joined = by_stage(LadderView(session), found)
        assert [p for p in joined if p.stage != "transform"] == [p for p in found if p.stage != "transform"]
        (stage,) = (p for p in joined if p.stage == "transform")
        return stage

    def test_the_whole_stage(self) -> None:
        stage = self.stage(chained(5.0, 20.0, 10.0))
        assert (stage.ms.value, stage.share) == (pytest.approx(35.0), pytest.approx(35.0 / 86.0))
        assert (stage.links, stage.rung) == (["A", "B", "C"], "raw")

    @pytest.mark.parametrize(
        ("session", "culprit"),
        [
            (chained(5.0, 20.0), "B"),
            (chained(20.0, 5.0, 9.0), "A"),
            (chained(1.0, 2.0, 9.0), "C"),
            # Workers' time decides between links that certainly cost something: on the ladder, a link seems free if
            # it fits into the workers' spare time.
            (chained(20.0, 5.0, workers=(10.0, 15.0), evidence=waits(25.6, worker_ms=200.0)), "B"),
            (chained(20.0, 0.0, workers=(10.0, 15.0)), "A"),
            # Without workers' times the ladder decides.
            (but(chained(20.0, 5.0, workers=(0.0, 0.0)), inside__samples=0), "A"),
        ],
    )
    def test_its_culprit_is_the_costliest_link(self, session: Session, culprit: str) -> None:
        assert self.stage(session).culprit.name == culprit


class TestBelow:
    """The next faster rung, and the stages between."""

    def test_cuts_lie_between_sample_and_raw(self) -> None:
        ladder = LadderView(chained(5.0, 20.0, 10.0, 1.0, cuts=(1, 3)))
        found = {rung: (ladder.below(rung), ladder.stage(rung)) for rung in ladder.rungs[3:8]}
        assert [*found.items()] == [
            ("sample", ("worker", "collate")),
            ("transform:3", ("sample", "transform")),
            ("transform:1", ("transform:3", "transform")),
            ("raw", ("transform:1", "transform")),
            ("warm", ("raw", "load")),
        ]
        links = {rung: [link.name for link in ladder.links(rung)] for rung in ladder.rungs}
        assert {rung: names for rung, names in links.items() if names} == {
            "transform:3": ["D"],
            "transform:1": ["B", "C"],
            "raw": ["A"],
        }

    def test_a_stage_without_its_own_rung(self) -> None:
        session = lacking(chained(5.0, 20.0, cuts=(1,)), "sample", "worker")
        session.rungs["worker"] = Rung("worker", False, "no workers", exists=False)
        assert LadderView(session).covered("transform:1") == ["collate", "transform"]


def test_a_stage_is_as_certain_as_its_parts_together() -> None:
    """Each link's share of a worker's time is uncertain; their sum is less so."""
    session = chained(10.0, 10.0, 10.0, evidence=waits(30.6, worker_ms=300.0))
    ladder = LadderView(session)
    found = diagnose_session(session).waterfall
    parts = [part for part in found if part.stage == "transform"]
    stage = next(part for part in by_stage(ladder, found) if part.stage == "transform")
    assert stage.ms.value == pytest.approx(sum(part.ms.value for part in parts))
    assert stage.ms.high - stage.ms.low < sum(part.ms.high - part.ms.low for part in parts)
    assert stage.ms.low > 0


def test_parts_by_rungs_are_as_uncertain_as_the_rungs() -> None:
    session = make(climbing(raw=30.0), rounds=3, noise=0.0)
    for window, off in zip(session.windows_of("raw"), (0.7, 1.0, 1.4), strict=True):
        window.seconds *= off
    found = pieces(session)["transform"].ms
    assert found.high - found.low > 20.0


#: A step of 120 ms waits 67 ms for four workers; its own side takes 53 ms.
LATE = {"device": 50.0, "host": 52.0, "worker": 53.0, "baseline": 120.0}


def late(cores: int = 16) -> Session:
    seen = waits(67.0, worker_ms=460.0, worker_cpu=1.0, collate_ms=46.0, process_cpu=0.25)
    seen["worker"] = {"process_cpu": 30 / 53}
    return make(LATE, noise=0.0, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})


def rate(found: Session, name: str) -> float:
    """Return the steps per second without a transform, or a stage."""
    pieces = diagnose_session(found).waterfall
    piece = next(one for one in pieces if name in (one.stage, *one.links))
    assert piece.without is not None and not piece.without.measured
    return piece.without.steps_per_s


@pytest.mark.parametrize(
    ("session", "name", "ms"),
    [
        # The workers take less: of 460 ms for a batch, B takes half.
        (late(), "B", 60.0),
        (late(), "load", 120.0 * 0.7),
        # Down to the training process, not 12 ms.
        (
            make(LATE, noise=0.0, evidence=waits(67.0, worker_ms=460.0, collate_ms=0.0), inside=inside(9.0, load=1.0)),
            "A",
            53.0,
        ),
        # On full cores it still needs its own: four cores do 460 ms of samples and 30 of training in 122.5 ms.
        (late(cores=4), "B", 120.0 * (30 + 230) / (30 + 460)),
        # What the workers hide brings nothing.
        (late(), "transfer", 120.0),
        # The training process's own saves what it takes.
        (
            make(
                {"device": 50.0, "host": 80.0, "worker": 81.0, "baseline": 81.0},
                noise=0.0,
                evidence=waits(0.0, worker_ms=40.0),
            ),
            "transfer",
            51.0,
        ),
    ],
)
def test_the_loop_without_it(session: Session, name: str, ms: float) -> None:
    assert rate(session, name) == pytest.approx(1000 / ms, rel=1e-4)


@given(st.floats(2.0, 67.0), st.floats(50.0, 900.0), st.floats(0.2, 1.0), st.sampled_from([1, 2, 16]), st.booleans())
def test_the_table_says_what_advice_predicts(
    wait: float, worker_ms: float, worker_cpu: float, cores: int, alone: bool
) -> None:
    seen = waits(wait, worker_ms=worker_ms, worker_cpu=worker_cpu, collate_ms=0.0, process_cpu=0.5)
    rungs = {**LATE, "supply": 90.0} if alone else LATE
    found = make(rungs, noise=0.0, evidence=seen, inside=inside(1.0, 5.0, load=3.0), environment={"cores": cores})
    numbers = what_if(LadderView(found))
    for name, ms in zip("AB", numbers.work.links, strict=True):
        predicted = numbers.faster(Change(work=exactly(ms))).value
        assert rate(found, name) == pytest.approx(predicted * 1000 / 120.0)


#: Milliseconds of the sampler in a step whose own work takes 20 ms.
SAMPLER = 30.0


def with_sampler(*missing: str, workers: int = 2, sampler_ms: float = SAMPLER, waits_ms: float = SAMPLER) -> Session:
    """A loop whose batches are ready, but which waits in ``next()`` for its sampler."""
    rungs = dict.fromkeys(("device", "host"), 20.0) | dict.fromkeys(("worker", "sample", "raw", "baseline"), 50.0)
    seen = waits(waits_ms, waits_ms, worker_ms=2.0, collate_ms=0.5, sampler_ms=sampler_ms)
    seen["worker"]["sampler_ms"] = sampler_ms
    absent = ("host", "worker") if not workers else ()
    found = make(
        without(rungs, *missing, *absent),
        workers=workers,
        noise=0.0005,
        evidence=seen,
        inside=inside(0.01, load=0.04),
        absent=absent,
        device="cpu",
        environment={"cores": 2},
    )
    found.loader.sampler = Place("Balanced", "train.py:20")
    return found


def costs(diagnosis: Diagnosis) -> dict[str, float]:
    return {piece.stage: piece.ms.value for piece in diagnosis.waterfall}


@pytest.mark.parametrize(("missing", "workers"), [((), 2), (("worker",), 2), (("host", "worker"), 2), ((), 0)])
def test_it_is_named_with_its_line(missing: tuple[str, ...], workers: int) -> None:
    found = diagnose_session(with_sampler(*missing, workers=workers))
    assert found.verdict.bottleneck == "sampler" and found.verdict.certain
    assert found.verdict.culprit == Place("Balanced", "train.py:20")
    ms = costs(found)
    assert ms["sampler"] == pytest.approx(SAMPLER, abs=0.2) and ms["compute"] == pytest.approx(20.0, abs=0.2)
    assert sum(ms.values()) == pytest.approx(50.0, abs=0.2)
    assert ms.get("ipc", 0.0) < 1.0 and ms.get("load", 0.0) < 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_what_helps_is_a_cheaper_sampler(workers: int) -> None:
    first = diagnose_session(with_sampler(workers=workers)).recommendations[0]
    assert (first.stage, first.title) == ("sampler", "Make Balanced cheaper")
    assert first.how.startswith("train.py:20: ")
    assert first.gain is not None and first.gain.value == pytest.approx(2.5, rel=0.05)
    ids = [one.id for one in diagnose_session(with_sampler(workers=workers)).recommendations]
    assert not {"num-workers", "hand-off", "prefetch-factor"} & {*ids}


def test_beside_workers_that_are_late() -> None:
    """Of 60 ms of waiting the sampler takes half."""
    ladder = {**climbing(worker=30.0), "baseline": 110.0}
    found = make(ladder, noise=0.0005, evidence=waits(60.0, 30.0, worker_ms=400.0, collate_ms=0.0, sampler_ms=30.0))
    ms = costs(diagnose_session(found))
    assert ms["sampler"] == pytest.approx(30.0) and ms["ipc"] == pytest.approx(0.0, abs=0.5)
    assert sum(ms[stage] for stage in OF_THE_WORKERS if stage in ms) == pytest.approx(30.0, abs=1.0)


def test_one_that_hardly_takes_time_changes_nothing() -> None:
    seen = waits(30.0, 5.0, worker_ms=200.0, collate_ms=0.0)
    plain = make(climbing(raw=30.0), evidence=seen)
    seen["baseline"]["sampler_ms"] = 0.3
    timed = make(climbing(raw=30.0), evidence=seen)
    assert diagnose_session(timed).waterfall == diagnose_session(plain).waterfall


class TestTheLoaderAlone:
    """A step of 90 ms waits 10 ms; its own side needs 50 ms with batches ready."""

    RUNGS = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 90.0}

    @pytest.mark.parametrize(
        ("supply", "contention", "load"),
        [
            (None, 30.0, 10.0),
            # Fast enough for the training: the workers would be early, and all of it is lost to them.
            (40.0, 30.0, 10.0),
            (78.0, 12.0, 28.0),
            # As slow as the loop: without contention it would wait for the workers just as long.
            (90.0, 0.0, 40.0),
            # Measured at another time.
            (120.0, 0.0, 40.0),
        ],
    )
    def test_bounds_contention(self, supply: float | None, contention: float, load: float) -> None:
        alone = {} if supply is None else {"supply": supply}
        found = costs(diagnose_session(make({**self.RUNGS, **alone}, noise=0.0, evidence=waits(10.0))))
        assert (found.get("contention", 0.0), found["load"]) == (pytest.approx(contention), pytest.approx(load))
        assert sum(found.values()) == pytest.approx(90.0)
        assert contention or "contention" not in found


class TestTheThreadThatPins:
    """A step of 90 ms waits 10 ms; its thread is blocked 22 ms longer than with ready batches, and queues 5 ms."""

    def session(
        self, *missing: str, pinned: bool = True, device: str = "cuda", megabytes: int = 0, queue: float = 5.0
    ) -> Session:
        rungs = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 85.0 + queue}
        accounts = dict.fromkeys(LATE, Account(cpu_ms=30.0, other_ms=20.0)) | {
            "baseline": Account(cpu_ms=33.0, queue_ms=queue, waits_ms=10.0, other_ms=42.0)
        }
        seen = waits(10.0, worker_ms=200.0, worker_cpu=1.0)
        session = make(without(rungs, *missing), noise=0.0, evidence=seen, accounts=accounts, device=device)
        session.loader.pin_memory, session.loader.batch_bytes = pinned, megabytes * 10**6
        return session

    def test_its_lock_is_hand_off(self) -> None:
        found = costs(diagnose_session(self.session()))
        assert found["ipc"] == pytest.approx(22.0) and found["contention"] == pytest.approx(8.0)
        assert sum(found.values()) == pytest.approx(90.0)
        assert sides(LadderView(self.session())).locked == pytest.approx(22.0)

    def test_the_run_queue_and_cpu_time_bound_contention(self) -> None:
        """Of 30 ms only 8 are seen in what the workers take from the thread."""
        assert sides(LadderView(self.session())).lost.value == pytest.approx(8.0)

    @pytest.mark.parametrize("unpinned", [{"pinned": False}, {"device": "cpu"}])
    def test_without_it_blocking_is_not_hand_off(self, unpinned: dict[str, object]) -> None:
        found = costs(diagnose_session(self.session(**unpinned)))  # type: ignore[arg-type]
        assert found["ipc"] == pytest.approx(0.0) and found["contention"] == pytest.approx(30.0)

    def test_where_the_rung_of_the_hand_off_was_not_measured(self) -> None:
        found = diagnose_session(self.session("worker", megabytes=1, queue=25.0)).waterfall
        assert [(piece.stage, piece.ms.value, piece.covers) for piece in found[2:4]] == [
            ("ipc", pytest.approx(22.0), ["ipc"]),
            ("contention", pytest.approx(28.0), ["contention"]),
        ]

    def test_nor_can_it_be_told_from_contention_there_if_bytes_explain_both(self) -> None:
        found = diagnose_session(self.session("worker", megabytes=50)).waterfall
        assert [(piece.stage, piece.ms.value) for piece in found[2:3]] == [("ipc", pytest.approx(30.0))]


def test_without_workers_nothing_is_lost() -> None:
    ladder = without(climbing(raw=30.0), "host", "worker")
    found = sides(LadderView(make(ladder, workers=0, device="cpu", evidence=waits(30.5))))
    assert (found.lost.value, found.locked, found.handed) == (0.0, 0.0, 0.0)
