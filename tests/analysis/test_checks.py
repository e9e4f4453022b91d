"""Warnings found in the numbers."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.session import RUNGS, BatchStep, Cost, Session, Slow, Tail, Warning_

from ..made import FLAT, blocks, climbing, cut, inside, lacking, make, waits, without


def codes(session: Session) -> list[str]:
    return [warning.code for warning in diagnose_session(session).warnings]


def test_nothing_to_warn_of() -> None:
    diagnosis = diagnose_session(make(climbing(raw=30.0)))
    assert diagnosis.warnings == []
    assert not diagnosis.partial


def test_partial() -> None:
    session = make(FLAT)
    session.windows.clear()
    diagnosis = diagnose_session(session)
    assert diagnosis.partial
    (warning,) = diagnosis.warnings
    assert warning.code == "partial"
    assert warning.message == f"PARTIAL: time ran out before these rungs were measured: {', '.join(RUNGS)}"
    assert warning.help == "", "the loop ended"
    session.ended = "budget"
    (warning,) = diagnose_session(session).warnings
    assert "budget" in warning.help


def test_what_was_only_observed_is_not_measured() -> None:
    session = make(without(FLAT, *RUNGS), observed=blocks(3, 100.0, 20.0))
    assert codes(session) == []
    session.rungs = make(FLAT).rungs
    (warning,) = diagnose_session(session).warnings
    assert warning.message.endswith("device, host, worker, sample, raw, warm, baseline")


def test_partial_names_only_what_lacks_windows() -> None:
    session = lacking(lacking(make(FLAT), "raw"), "warm", after=1)
    (warning,) = diagnose_session(session).warnings
    assert warning.message.endswith("were measured: raw")


def test_a_rung_that_cannot_be_measured_is_not_lacking() -> None:
    session = make(
        without(climbing(), "raw", "host"), unavailable={"raw": "not separable"}, absent=["host"], device="cpu"
    )
    assert not diagnose_session(session).partial


def test_not_monotone() -> None:
    session = make(climbing(raw=30.0) | {"warm": 60.0})
    (warning,) = diagnose_session(session).warnings
    assert warning.code == "not-monotone"
    assert warning.message.startswith("with loading a step is 20")


def test_not_monotone_within_the_noise_is_nothing() -> None:
    assert codes(make(FLAT | {"warm": 99.0}, noise=0.02)) == []
    waiting = {rung: {"wait_ms": 90.0 if rung != "warm" else 70.0} for rung in RUNGS[2:]}
    assert codes(make(FLAT | {"warm": 80.0}, rounds=1, evidence=waiting)) == [], "windows of workers differ by that"


def test_controls_are_not_lacking() -> None:
    """Controls are outside the ladder."""
    assert codes(lacking(make(FLAT | {"supply": 30.0}), "supply")) == []


def test_a_cut_that_lacks_windows() -> None:
    session = lacking(make(cut(climbing(raw=30.0), (10.0, 20.0)), inside=inside(10.0, 20.0)), "transform:1")
    (warning,) = diagnose_session(session).warnings
    assert warning.message.endswith("were measured: transform:1")


class TestFullCpu:
    """Cores in use before the costliest stage was added, and after."""

    def warning(
        self, before: float, under: float, quota: float | None = None, key: str = "cores_busy", **more: object
    ) -> Warning_ | None:
        seen = {"sample": {key: before}, "baseline": {key: under, "process_cpu": 0.5}}
        environment = {"cores": 4, "cgroup_quota": quota}
        session = make(climbing(raw=30.0), evidence=seen, environment=environment, **more)  # type: ignore[arg-type]
        found = diagnose_session(session).warnings
        assert len(found) < 2
        return found[0] if found else None

    def test_room_left(self) -> None:
        assert self.warning(1.0, 3.5) is None

    def test_full(self) -> None:
        """The stage has filled the machine by itself."""
        warning = self.warning(1.0, 3.8)
        assert warning.code == "full-cpu"
        assert warning.message == "3.8 of 4 usable cores are in use while the script runs as it is"

    def test_tipped_over(self) -> None:
        """The machine was full before: the stage may be innocent."""
        warning = self.warning(3.7, 3.9)
        assert warning.code == "tipping-over"
        assert "3.9 of 4 usable cores" in warning.message
        assert "3.7 already were without transforms" in warning.message
        assert warning.help.endswith("not known")

    def test_nothing_is_suspected_of_a_loop_that_does_not_wait(self) -> None:
        full = {rung: {"cores_busy": 3.9} for rung in RUNGS}
        assert codes(make(climbing(), evidence=full, environment={"cores": 4})) == ["full-cpu"]

    @pytest.mark.parametrize(("used", "told"), [(0.5, []), (1.8, []), (3.0, ["tipping-over"])])
    def test_not_where_others_fill_it(self, used: float, told: list[str]) -> None:
        seen = {rung: {"cores_busy": 3.8, "cores_used": used} for rung in RUNGS}
        found = codes(make(climbing(raw=30.0), evidence=seen, environment={"cores": 4}))
        assert found == ["foreign-load", *told]

    def test_what_the_workers_do_with_their_time(self) -> None:
        warning = self.warning(3.7, 3.9, inside=inside(1.0, 6.0, load=3.0))
        assert warning.help == "judge by the workers' CPU time: B 60 %, loading 30 %, A 10 %"

    def test_the_largest_four(self) -> None:
        warning = self.warning(3.7, 3.9, inside=inside(1.0, 2.0, 3.0, 4.0, 5.0, load=5.0))
        assert warning.help.endswith("loading 25 %, E 25 %, D 20 %, C 15 %")

    def test_time_without_a_cpu_does_not_count(self) -> None:
        found = inside(1.0, 6.0, load=3.0)
        found.links[1].cost = Cost(6.0, 0.0)
        found.whole = Cost(10.0, 4.0)
        warning = self.warning(3.7, 3.9, inside=found)
        assert warning.help.endswith("loading 75 %, A 25 %, B 0 %")

    def test_before_the_whole_chain_not_before_its_costliest_link(self) -> None:
        ladder = cut(climbing(raw=30.0), (20.0, 10.0))
        full = {"cores_busy": 3.9}
        for before, code in ((1.0, "full-cpu"), (3.9, "tipping-over")):
            evidence = {"sample": {"cores_busy": before}, "transform:1": full, "raw": full, "baseline": full}
            session = make(ladder, evidence=evidence, environment={"cores": 4}, inside=inside(20.0, 10.0))
            assert codes(session) == [code]

    @pytest.mark.parametrize("key, quota", [("cores_used", 4.0), ("cores_busy", 4.0), ("cores_used", None)])
    def test_whose_use_counts(self, key: str, quota: float | None) -> None:
        """Other processes on other cores take nothing from a quota."""
        warning = self.warning(3.8, 3.9, quota=quota, key=key)
        assert (warning and warning.code) == (None if quota and key == "cores_busy" else "tipping-over")

    def test_not_without_knowing_the_cores(self) -> None:
        evidence = {"baseline": {"cores_busy": 3.8}}
        assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"cores": 16})) == []
        assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"python": "3"})) == []

    def test_only_the_baseline_measured(self) -> None:
        evidence = {"baseline": {"cores_busy": 3.8}}
        assert codes(make({"baseline": 30.0}, evidence=evidence, environment={"cores": 4})) == ["full-cpu"]


class TestDisagreement:
    """Rungs that contradict a worker's time for a batch."""

    def session(self, raw: float, worker_ms: float = 100.0, rounds: int = 3, **more: object) -> Session:
        """Workers take 200 ms a batch, ``worker_ms`` without loading, and the loop waits for them."""
        seen = {**waits(50.0, worker_ms=200.0, collate_ms=0.0), "raw": {"worker_ms": worker_ms, "wait_ms": 10.0}}
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "raw": raw, "baseline": 100.0}
        found = inside(10.0, load=10.0)
        return make(ladder, rounds=rounds, noise=0.0, evidence=seen, inside=found, **more)  # type: ignore[arg-type]

    def test_where_it_should_be(self) -> None:
        assert codes(self.session(51.0)) == []

    def test_far_from_it(self) -> None:
        (warning,) = diagnose_session(self.session(90.0)).warnings
        assert warning.code == "rungs-disagree"
        assert warning.message == (
            "under the rung raw a step takes 90 ms, but the workers' time for a batch predicts 50 ms"
        )

    def test_the_verdict_is_not_proven_then(self) -> None:
        levels = [diagnose_session(self.session(raw)).verdict.level for raw in (51.0, 90.0)]
        assert levels == ["proven", "intervened"]

    def test_no_less_than_the_training_process_needs(self) -> None:
        """Workers that are five times as fast do not make the loop five times as fast."""
        assert codes(self.session(51.0, worker_ms=40.0)) == []

    def test_not_where_the_loop_does_not_wait(self) -> None:
        session = self.session(90.0)
        for window in session.windows_of("baseline"):
            window.evidence["wait_ms"] = 2.0
        assert "rungs-disagree" not in codes(session)

    def test_not_without_workers(self) -> None:
        assert "rungs-disagree" not in codes(self.session(90.0, workers=0))

    def test_not_without_their_time(self) -> None:
        session = self.session(90.0)
        for window in session.windows:
            window.evidence.pop("worker_ms", None)
        assert codes(session) == []


class TestForeignLoad:
    """Cores used by other processes."""

    def found(
        self, busy: float, used: float | None = 4.0, cores: int | None = 16, quota: float | None = None
    ) -> list[str]:
        seen = {"cores_busy": busy, "process_cpu": 1.0, **({} if used is None else {"cores_used": used})}
        environment = {"cgroup_quota": quota, **({} if cores is None else {"cores": cores})}
        return codes(make(climbing(raw=30.0), evidence={"baseline": seen}, environment=environment))

    def test_said_with_its_numbers(self) -> None:
        seen = {"cores_busy": 9.0, "cores_used": 4.0}
        (warning,) = diagnose_session(make(climbing(raw=30.0), evidence={"baseline": seen})).warnings
        assert warning.code == "foreign-load"
        assert warning.message == (
            "other processes used 5.0 of 16 cores during the measurement, the script and its workers 4.0"
        )

    @pytest.mark.parametrize("busy, cores", [(5.0, 16), (4.3, 4), (4.0, 16), (3.0, 16)])
    def test_not_for_next_to_nothing(self, busy: float, cores: int) -> None:
        assert "foreign-load" not in self.found(busy, cores=cores)

    def test_the_least_that_is_said(self) -> None:
        assert self.found(5.7) == ["foreign-load"]
        assert "foreign-load" in self.found(1.5, used=1.0, cores=2)

    def test_not_under_a_quota(self) -> None:
        """Other processes on other cores take nothing from the quota."""
        assert self.found(9.0, quota=8.0) == []

    def test_not_without_the_figures(self) -> None:
        assert self.found(9.0, used=None) == []
        assert self.found(9.0, cores=None) == []


class TestHeavyTail:
    """Slow samples matter if ready batches wait behind them."""

    def session(self, stalled: float, p99: float = 90.0, slowest: list[Slow] | None = None) -> Session:
        session = make(climbing(warm=30.0), evidence={"baseline": {"wait_ms": 40.0, "stalled_ms": stalled}})
        slow = [Slow("17", 120.0), Slow("4", 95.5)] if slowest is None else slowest
        session.tail = Tail(400, 10.0, p99, slow)
        return session

    def test_named(self) -> None:
        (warning,) = diagnose_session(self.session(20.0)).warnings
        assert warning.code == "heavy-tail"
        assert "median 10 ms, 99th percentile 90 ms" in warning.message
        assert "20 ms of each step are spent waiting" in warning.message
        assert warning.message.endswith("slowest indices: 17 (120 ms), 4 (95.5 ms)")
        assert "in_order=False" in warning.help

    def test_at_most_four(self) -> None:
        (warning,) = diagnose_session(self.session(20.0, slowest=[Slow(f"i{n}", 99.0) for n in range(8)])).warnings
        assert "i3" in warning.message
        assert "i4" not in warning.message

    def test_items_of_a_stream_have_no_index(self) -> None:
        (warning,) = diagnose_session(self.session(20.0, slowest=[Slow("", 120.0)])).warnings
        assert "slowest" not in warning.message

    @pytest.mark.parametrize("stalled, p99", [(20.0, 29.0), (2.0, 90.0), (0.0, 90.0)])
    def test_not_where_it_costs_next_to_nothing(self, stalled: float, p99: float) -> None:
        assert codes(self.session(stalled, p99)) == []

    def test_not_without_the_figures(self) -> None:
        session = self.session(20.0)
        session.tail = None
        assert codes(session) == []
        session.tail = Tail()
        assert codes(session) == []


class TestVaryingSizes:
    def session(self, *sizes: list[float]) -> Session:
        return make(climbing(raw=30.0), inside=inside(10.0, sizes=list(sizes)))

    def test_by_class_of_size(self) -> None:
        kib = 1024.0
        sizes = [[40 * kib, 9.0], [10 * kib, 2.0], [20 * kib, 4.0], [11 * kib, 3.0], [22 * kib, 5.0], [44 * kib, 10.0]]
        (warning,) = diagnose_session(self.session(*sizes)).warnings
        assert warning.code == "varying-sizes"
        assert "(10 KiB to 11 KiB: 2.5 ms; 20 KiB to 22 KiB: 4.5 ms; 40 KiB to 44 KiB: 9.5 ms)" in warning.message

    def test_alike(self) -> None:
        assert codes(self.session(*[[1000.0 + n, 5.0] for n in range(12)])) == []

    def test_too_few(self) -> None:
        assert codes(self.session(*[[1000.0 * n, 5.0] for n in range(1, 6)])) == []

    def test_samples_of_nothing(self) -> None:
        assert codes(self.session(*[[0.0, 5.0]] * 8)) == []


class TestVaryingSteps:
    """Steps on one batch take the same time; steps on different batches do not."""

    def session(self, *steps: BatchStep) -> Session:
        session = make(climbing(raw=30.0))
        session.batch_steps = list(steps)
        return session

    def test_by_size(self) -> None:
        steps = [BatchStep(1024 * n, [10.0 * n, 10.0 * n + 0.2]) for n in (1, 2, 3)]
        (warning,) = diagnose_session(self.session(*steps)).warnings
        assert warning.code == "varying-steps"
        assert "10.1 to 30.1 ms" in warning.message
        assert warning.message.endswith("(1 KiB against 3 KiB)")

    def test_by_content(self) -> None:
        steps = [BatchStep(1024, [10.0 * n, 10.0 * n + 0.2]) for n in (1, 2, 3)]
        (warning,) = diagnose_session(self.session(*steps)).warnings
        assert "KiB" not in warning.message

    def test_noise(self) -> None:
        """A batch's own steps differ as much as different batches' do."""
        assert codes(self.session(*[BatchStep(1024, [10.0 * n, 10.0 * n + 12.0]) for n in (1, 2, 3)])) == []

    def test_alike(self) -> None:
        assert codes(self.session(*[BatchStep(1024 * n, [10.0 + 0.1 * n] * 2) for n in range(8)])) == []

    def test_too_few(self) -> None:
        assert codes(self.session(*[BatchStep(1, [10.0 * n] * 2) for n in (1, 2)])) == []
        assert codes(self.session(*[BatchStep(1, [10.0 * n]) for n in (1, 2, 3)])) == []


def test_written_files() -> None:
    session = make(FLAT)
    session.script.wrote = [f"out{i}.pt" for i in range(6)]
    (warning,) = diagnose_session(session).warnings
    assert warning.code == "wrote-files"
    assert "out3.pt and 2 more" in warning.message
    assert "out4" not in warning.message
    assert "--workdir" in warning.help


def test_warnings_of_the_measurement_come_first_and_are_not_added_to() -> None:
    session = lacking(make(FLAT), "raw")
    session.warn("writes-in-place", "it does")
    assert codes(session) == ["writes-in-place", "partial"]
    assert codes(session) == ["writes-in-place", "partial"]
    assert session.warnings == [Warning_("writes-in-place", "it does")]
