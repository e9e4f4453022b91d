"""Warnings found in the numbers themselves, PARTIAL, and when enough has been measured."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.stopping import next_round
from pipediag.session import RUNGS, Session, Warning_

from .made import FLAT, climbing, make, without


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


def test_full_cpu() -> None:
    evidence = {"baseline": {"cores_busy": 3.8}}
    session = make(climbing(raw=30.0), evidence=evidence, environment={"cores": 4})
    (warning,) = diagnose_session(session).warnings
    assert warning.code == "full-cpu"
    assert "3.8 of 4 usable cores" in warning.message
    assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"cores": 16})) == []
    assert codes(make(climbing(raw=30.0), evidence=evidence, environment={"python": "3"})) == []


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


class TestSettled:
    """Whether more windows could change the verdict."""

    @pytest.mark.parametrize("cost", [0.2, 30.0])
    def test_decided(self, cost: float) -> None:
        assert not next_round(make(climbing(raw=cost), rounds=3))

    def test_straddling_the_gate(self) -> None:
        """5 % of the step is 2.7 ms, and the cost of transforms about that."""
        assert next_round(make(climbing(raw=2.7), rounds=3, noise=0.01))

    def test_noise(self) -> None:
        assert next_round(make(climbing(raw=30.0), rounds=3, noise=0.3))

    def test_too_few_windows(self) -> None:
        assert next_round(make(climbing(raw=30.0), rounds=2))

    def test_one_rung_lags(self) -> None:
        session = make(climbing(raw=30.0), rounds=3)
        session.windows.pop(0)
        assert next_round(session)

    @pytest.mark.parametrize("ladder", [{}, {"baseline": 90.0}, {"device": 50.0, "host": 60.0}])
    def test_nothing_to_compare(self, ladder: dict[str, float]) -> None:
        assert next_round(make(ladder, rounds=5))

    def test_small_stages_that_sum_to_the_gate(self) -> None:
        """Each stage is certainly below the gate, but whether the pipeline as a whole is below is open."""
        assert next_round(make(climbing(**dict.fromkeys(RUNGS[1:], 0.44)), rounds=3, noise=0.004))

    def test_controls_do_not_hold_it_up(self) -> None:
        assert not next_round(make({**climbing(raw=30.0), "supply": 30.0}, rounds=3))
