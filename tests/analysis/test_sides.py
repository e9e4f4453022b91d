"""The two sides of a step, and the bounds of what workers take from the training process."""

from __future__ import annotations

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.numbers.ladder import LadderView
from pipediag.analysis.numbers.sides import sides
from pipediag.session import RUNGS, Account, Session

from ..made import climbing, make, waits, without


def costs(session: Session) -> dict[str, float]:
    """The milliseconds of a step by stage, and their sum."""
    found = diagnose_session(session).waterfall
    return {piece.stage: piece.ms.value for piece in found} | {"step": sum(piece.ms.value for piece in found)}


class TestTheLoaderAlone:
    """A step of 90 ms waits 10 ms; its own side needs 50 ms with batches ready."""

    RUNGS = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 90.0}

    def cost(self, supply: float | None = None) -> dict[str, float]:
        alone = {} if supply is None else {"supply": supply}
        return costs(make({**self.RUNGS, **alone}, noise=0.0, evidence=waits(10.0)))

    def test_unknown(self) -> None:
        assert (self.cost()["contention"], self.cost()["load"]) == (pytest.approx(30.0), pytest.approx(10.0))

    def test_fast_enough_for_the_training(self) -> None:
        """The workers would be early: all of it is lost to them."""
        assert self.cost(40.0) == pytest.approx(self.cost())

    def test_as_slow_as_the_loop(self) -> None:
        """Without contention the loop would wait for the workers just as long."""
        found = self.cost(90.0)
        assert "contention" not in found and found["load"] == pytest.approx(40.0)

    def test_between(self) -> None:
        found = self.cost(78.0)
        assert found["contention"] == pytest.approx(12.0) and found["load"] == pytest.approx(28.0)
        assert found["step"] == pytest.approx(90.0)

    def test_slower_than_the_loop(self) -> None:
        """It was measured at another time."""
        assert "contention" not in self.cost(120.0)


class TestTheThreadThatPins:
    """A step of 90 ms waits 10 ms; its thread is blocked 22 ms longer than with ready batches, and queues 5 ms."""

    def session(
        self, *missing: str, pinned: bool = True, device: str = "cuda", megabytes: int = 0, queue: float = 5.0
    ) -> Session:
        rungs = dict.fromkeys(("device", "host", "worker"), 50.0) | {"baseline": 85.0 + queue}
        accounts = dict.fromkeys(RUNGS, Account(cpu_ms=30.0, other_ms=20.0)) | {
            "baseline": Account(cpu_ms=33.0, queue_ms=queue, waits_ms=10.0, other_ms=42.0)
        }
        seen = waits(10.0, worker_ms=200.0, worker_cpu=1.0)
        session = make(without(rungs, *missing), noise=0.0, evidence=seen, accounts=accounts, device=device)
        assert session.loader is not None
        session.loader.pin_memory, session.loader.batch_bytes = pinned, megabytes * 10**6
        return session

    def test_its_lock_is_hand_off(self) -> None:
        found = costs(self.session())
        assert found["ipc"] == pytest.approx(22.0) and found["contention"] == pytest.approx(8.0)
        assert found["step"] == pytest.approx(90.0)
        assert sides(LadderView(self.session())).locked == pytest.approx(22.0)

    def test_the_run_queue_and_cpu_time_bound_contention(self) -> None:
        """Of 30 ms only 8 are seen in what the workers take from the thread."""
        assert sides(LadderView(self.session())).lost.value == pytest.approx(8.0)

    @pytest.mark.parametrize("unpinned", [{"pinned": False}, {"device": "cpu"}])
    def test_without_it_blocking_is_not_hand_off(self, unpinned: dict[str, object]) -> None:
        found = costs(self.session(**unpinned))  # type: ignore[arg-type]
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
