"""What workers tell beside their batches: who found what inside, and how the samples' times are spread."""

from __future__ import annotations

import random

import pytest

from pipediag.ladder import worker_reports
from pipediag.ladder.delivery import NO_COST, Delivery, Notes
from pipediag.ladder.worker_reports import WorkerReports
from pipediag.session import NOT_YET, Inside, Slow


def delivery(notes: Notes | None, worker: int = 0) -> Delivery:
    return Delivery(None, "baseline", True, NO_COST, worker, notes=notes)


def told(*batches: list[float]) -> WorkerReports:
    """Batches of sample times in seconds; a sample is called by its number in its batch."""
    heard = WorkerReports()
    for times in batches:
        slowest = max((seconds, str(i)) for i, seconds in enumerate(times)) if times else None
        heard.take(delivery(Notes(times, slowest)))
    return heard


class TestTail:
    def test_exactly(self) -> None:
        tail = told([i / 1000 for i in range(1, 101)]).tail
        assert tail is not None
        assert (tail.samples, tail.p50_ms, tail.p99_ms) == (100, 50.5, 100.0)
        assert tail.slowest == [Slow("99", 100.0)]

    @pytest.mark.parametrize("batches", [[], [[]], [[0.1]]])
    def test_of_nothing(self, batches: list[list[float]]) -> None:
        assert told(*batches).tail is None

    def test_batches_without_notes(self) -> None:
        heard = WorkerReports()
        heard.take(delivery(None))
        assert heard.tail is None
        assert heard.insides == {}

    def test_the_slowest_are_named_slowest_first(self) -> None:
        tail = told([0.1, 0.3], [0.5, 0.2], [0.1, 0.2, 0.4]).tail
        assert tail is not None
        assert tail.slowest == [Slow("0", 500.0), Slow("2", 400.0), Slow("1", 300.0)]

    def test_a_few_are_named(self) -> None:
        heard = WorkerReports()
        for number in range(30):
            heard.take(delivery(Notes([0.01 * number], (0.01 * number, f"i{number}"))))
        tail = heard.tail
        assert tail is not None
        assert [slow.index for slow in tail.slowest] == [f"i{number}" for number in range(29, 21, -1)]

    def test_the_same_batch_told_twice_is_named_once(self) -> None:
        tail = told([0.1, 0.5], [0.2, 0.5]).tail
        assert tail is not None
        assert tail.slowest == [Slow("1", 500.0)]

    def test_an_index_that_is_slow_again_is_named_once(self) -> None:
        heard = WorkerReports()
        for epoch in range(20):
            heard.take(delivery(Notes([0.5], (0.5 + epoch / 1000, "7"))))
            heard.take(delivery(Notes([0.4], (0.4 + epoch / 1000, "12"))))
        tail = heard.tail
        assert tail is not None
        assert [slow.index for slow in tail.slowest] == ["7", "12"]

    def test_a_choice_of_many_stands_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_reports, "_KEPT", 500)
        draw = random.Random(1)
        tail = told(*[[draw.uniform(0, 1) for _ in range(10)] for _ in range(2000)]).tail
        assert tail is not None
        assert tail.samples == 20_000
        assert tail.p50_ms == pytest.approx(500, abs=70)
        assert tail.p99_ms == pytest.approx(990, abs=30)


class TestHistogram:
    @pytest.mark.parametrize("samples", [2, 50, 5000])
    def test_every_sample_is_in_one_bin(self, samples: int) -> None:
        draw = random.Random(2)
        tail = told([draw.lognormvariate(-4, 1) for _ in range(samples)]).tail
        assert tail is not None
        assert tail.edges_ms == sorted({*tail.edges_ms})
        assert len(tail.edges_ms) == len(tail.counts) + 1 <= 41
        assert sum(tail.counts) == samples
        assert tail.edges_ms[0] <= tail.p50_ms <= tail.p99_ms <= tail.edges_ms[-1]

    def test_bins_are_equal_on_a_logarithmic_scale(self) -> None:
        tail = told([0.001] * 8 + [1.0]).tail
        assert tail is not None
        assert tail.edges_ms == pytest.approx([1.0, 10.0, 100.0, 1000.0], rel=1e-3)
        assert tail.counts == [8, 0, 1]

    @pytest.mark.parametrize("seconds", [0.0, 0.002])
    def test_of_equal_times(self, seconds: float) -> None:
        tail = told([seconds] * 100).tail
        assert tail is not None
        assert tail.counts == [100]
        assert tail.edges_ms[0] < tail.edges_ms[1] <= tail.edges_ms[0] + 0.001


class TestInsides:
    def test_a_worker_of_a_new_epoch_does_not_undo_what_was_found(self) -> None:
        """Without persistent workers, each epoch has new ones, which have not taken their samples apart."""
        heard = WorkerReports()
        first, apart, anew = (Inside(samples=n, unsplit=why) for n, why in ((4, NOT_YET), (9, ""), (2, NOT_YET)))
        for inside, revision in ((first, 1), (apart, 2), (anew, 2)):
            heard.take(delivery(Notes(inside=inside)))
            assert heard.revision == revision
        assert heard.insides == {0: apart}
        heard.take(delivery(Notes(inside=anew), worker=1))
        assert heard.insides == {0: apart, 1: anew}

    def test_by_worker(self) -> None:
        heard = WorkerReports()
        heard.take(delivery(Notes(inside=Inside(samples=3)), 0))
        heard.take(delivery(Notes(), 0))
        heard.take(delivery(Notes(inside=Inside()), 1))
        assert heard.insides == {0: Inside(samples=3), 1: Inside()}
        assert heard.revision == 2

    def test_the_last_word_of_a_worker_counts(self) -> None:
        heard = WorkerReports()
        for samples in (2, 8):
            heard.take(delivery(Notes(inside=Inside(samples=samples))))
        assert (heard.insides, heard.revision) == ({0: Inside(samples=8)}, 2)
