"""Warnings found in the numbers themselves, and PARTIAL."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.session import RUNGS, BatchStep, Cost, Session, Slow, Tail, Warning_

from .made import FLAT, climbing, cut, inside, make, without


def codes(session: Session) -> list[str]:
    return [warning.code for warning in diagnose_session(session).warnings]


def test_nothing_to_warn_of() -> None:
    diagnosis = diagnose_session(make(climbing(raw=30.0)))
    assert diagnosis.warnings == []
    assert not diagnosis.partial


def test_partial() -> None:
    session = make(FLAT, rounds=2)
    diagnosis = diagnose_session(session)
    assert diagnosis.partial
    (warning,) = diagnosis.warnings
    assert warning.code == "partial"
    assert "PARTIAL" in warning.message
    assert all(name in warning.message for name in RUNGS)
    assert "--budget" in warning.help


def test_partial_names_only_what_lacks_windows() -> None:
    session = make(FLAT)
    session.windows = [w for w in session.windows if w.rung != "raw" or w.round < 2]
    (warning,) = diagnose_session(session).warnings
    assert warning.message.endswith("for raw")


def test_a_rung_that_cannot_be_measured_is_not_lacking() -> None:
    session = make(
        without(climbing(), "raw", "host"), unavailable={"raw": "not separable"}, absent=["host"], device="cpu"
    )
    assert not diagnose_session(session).partial


def test_not_monotone() -> None:
    session = make(climbing(raw=30.0) | {"warm": 60.0})
    (warning,) = diagnose_session(session).warnings
    assert warning.code == "not-monotone"
    assert warning.message.startswith("adding load made the step 20")


def test_not_monotone_within_the_noise_is_nothing() -> None:
    assert codes(make(FLAT | {"warm": 99.0}, noise=0.02)) == []
    assert codes(make(FLAT | {"warm": 80.0}, rounds=1)) == ["partial"]


def test_controls_are_not_lacking() -> None:
    """They stand beside the ladder, and need not be repeated."""
    session = make(FLAT | {"supply": 30.0, "device+load": 100.0})
    session.windows = [w for w in session.windows if w.rung in RUNGS or w.round == 0]
    assert codes(session) == []


def test_a_cut_that_lacks_windows() -> None:
    session = make(cut(climbing(raw=30.0), (10.0, 20.0)), inside=inside(10.0, 20.0))
    session.windows = [w for w in session.windows if w.rung != "transform:1" or w.round < 2]
    (warning,) = diagnose_session(session).warnings
    assert warning.message.endswith("for transform:1")


class TestFullCpu:
    """Cores in use before the costliest stage was added, and with it."""

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
        assert warning is not None
        assert warning.code == "full-cpu"
        assert warning.message == "3.8 of 4 usable cores are in use under the baseline"

    def test_tipped_over(self) -> None:
        """The machine was full before: the stage may be innocent."""
        warning = self.warning(3.7, 3.9)
        assert warning is not None
        assert warning.code == "tipping-over"
        assert "3.9 of 4 usable cores" in warning.message
        assert "3.7 were before transform was added" in warning.message
        assert warning.help.endswith("not known")

    def test_what_the_workers_do_with_their_time(self) -> None:
        warning = self.warning(3.7, 3.9, inside=inside(1.0, 6.0, load=3.0))
        assert warning is not None
        assert warning.help == "judge by what the workers' time goes into: B 60 %, load 30 %, A 10 %"

    def test_the_largest_four(self) -> None:
        warning = self.warning(3.7, 3.9, inside=inside(1.0, 2.0, 3.0, 4.0, 5.0, load=5.0))
        assert warning is not None
        assert warning.help.endswith("load 25 %, E 25 %, D 20 %, C 15 %")

    def test_time_without_a_cpu_does_not_count(self) -> None:
        found = inside(1.0, 6.0, load=3.0)
        found.links[1].cost = Cost(6.0, 0.0)
        found.whole = Cost(10.0, 4.0)
        warning = self.warning(3.7, 3.9, inside=found)
        assert warning is not None
        assert warning.help.endswith("load 75 %, A 25 %, B 0 %")

    def test_before_the_whole_chain_not_before_its_costliest_link(self) -> None:
        ladder = cut(climbing(raw=30.0), (20.0, 10.0))
        full = {"cores_busy": 3.9}
        for before, code in ((1.0, "full-cpu"), (3.9, "tipping-over")):
            evidence = {"sample": {"cores_busy": before}, "transform:1": full, "raw": full, "baseline": full}
            session = make(ladder, evidence=evidence, environment={"cores": 4}, inside=inside(20.0, 10.0))
            assert codes(session) == [code]

    @pytest.mark.parametrize("key, code", [("cores_used", "tipping-over"), ("cores_busy", None)])
    def test_under_a_quota_only_its_own_use_counts(self, key: str, code: str | None) -> None:
        """What others do on the machine's other cores takes nothing from the quota."""
        warning = self.warning(3.8, 3.9, quota=4.0, key=key)
        assert (warning and warning.code) == code

    @pytest.mark.parametrize("key", ["cores_used", "cores_busy"])
    def test_without_a_quota_anybodys_use_counts(self, key: str) -> None:
        warning = self.warning(3.8, 3.9, key=key)
        assert warning is not None
        assert warning.code == "tipping-over"

    def test_not_without_knowing_the_cores(self) -> None:
        evidence = {"baseline": {"cores_busy": 3.8}}
        assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"cores": 16})) == []
        assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"python": "3"})) == []

    def test_only_the_baseline_measured(self) -> None:
        evidence = {"baseline": {"cores_busy": 3.8}}
        assert codes(make({"baseline": 30.0}, evidence=evidence, environment={"cores": 4})) == ["full-cpu"]


class TestHeavyTail:
    """Slow samples matter where batches that are ready wait behind them."""

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
    """The same batch takes the same time again; another batch takes another."""

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
    session = make(FLAT, rounds=2)
    session.warn("writes-in-place", "it does")
    assert codes(session) == ["writes-in-place", "partial"]
    assert codes(session) == ["writes-in-place", "partial"]
    assert session.warnings == [Warning_("writes-in-place", "it does")]
