"""Gather findings from the workers' notes, and send each once, and again when it has changed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from pipediag.ladder import findings as module
from pipediag.ladder.findings import Findings
from pipediag.ladder.workers.delivery import NO_COST, Delivery, Notes
from pipediag.measure.evidence import BatchCost
from pipediag.session import NOT_YET, Alternative, HotLine, Inside, Link, Session, Slow, SlowBatches, Startup


def delivery(notes: Notes | None, worker: int = 0) -> Delivery:
    return Delivery(None, "baseline", True, NO_COST, worker, notes=notes)


def timed(*batches: list[float]) -> Findings:
    """Findings from batches of sample times in seconds; a sample's name is its number in its batch."""
    findings = Findings()
    for times in batches:
        slowest = max((seconds, str(i)) for i, seconds in enumerate(times)) if times else None
        findings.take(delivery(Notes(times, slowest)))
    return findings


class TestSlowBatches:
    """All batches of the loop as it is count, but the first of a worker; time without a core does not."""

    def taken(self, *batches: tuple[str, float], queued: float = 0.0, first: bool = False) -> Findings:
        findings = Findings()
        for rung, seconds in batches:
            notes = Notes(ready=1.0) if first else None
            findings.take(Delivery(None, rung, False, BatchCost(seconds, queued=queued), 0, notes=notes))
        return findings

    def test_by_how_much_they_exceed_the_median(self) -> None:
        plain = [("baseline", 0.5)] * 3 + [("longer", 0.75), ("longer", 4.5), ("baseline", 0.9)]
        assert self.taken(*plain, ("raw", 9.0), ("device", 9.0)).slow_batches == SlowBatches(6, [3875.0])

    def test_many_are_met_by_every_window(self) -> None:
        found = self.taken(*[("baseline", 0.5)] * 400, *[("baseline", 1.5)] * 201).slow_batches
        assert found == SlowBatches(601, [])

    @pytest.mark.parametrize("more", [{"first": True}, {"queued": 3.0}])
    def test_what_is_no_slow_batch(self, more: dict[str, Any]) -> None:
        findings, sent = self.taken(*[("baseline", 0.5)] * 3), list[dict[str, Any]]()
        other = self.taken(("baseline", 3.5), **more)
        findings._batches += other._batches
        findings.send_new(lambda kind, data: sent.append(data), 0, False)
        assert [data["longer_ms"] for data in sent] == [[]]


class TestTail:
    def test_exact(self) -> None:
        tail = timed([i / 1000 for i in range(1, 101)]).tail
        assert tail is not None
        assert (tail.samples, tail.p50_ms, tail.p99_ms) == (100, 50.5, 100.0)
        assert tail.slowest == [Slow("99", 100.0)]

    @pytest.mark.parametrize(
        ("batches", "slowest"),
        [
            ([[0.1, 0.3], [0.5, 0.2], [0.1, 0.2, 0.4]], [("0", 500.0), ("2", 400.0), ("1", 300.0)]),
            ([[0.1, 0.5], [0.2, 0.5]], [("1", 500.0)]),  # one index in two batches
        ],
    )
    def test_slowest_first(self, batches: list[list[float]], slowest: list[tuple[str, float]]) -> None:
        tail = timed(*batches).tail
        assert tail is not None and [(one.index, one.ms) for one in tail.slowest] == slowest

    @pytest.mark.parametrize("batches", [[], [[]], [[0.1]]])
    def test_fewer_than_two_samples(self, batches: list[list[float]]) -> None:
        findings = timed(*batches)
        findings.take(delivery(None))
        assert findings.tail is None and findings.insides == {}

    def test_only_a_few_are_named(self) -> None:
        findings = Findings()
        for number in range(30):
            findings.take(delivery(Notes([0.01 * number], (0.01 * number, f"i{number}"))))
        tail = findings.tail
        assert tail is not None
        assert [slow.index for slow in tail.slowest] == [f"i{number}" for number in range(29, 21, -1)]

    def test_an_index_slow_in_every_epoch_is_named_once(self) -> None:
        findings = Findings()
        for epoch in range(20):
            findings.take(delivery(Notes([0.5], (0.5 + epoch / 1000, "7"))))
            findings.take(delivery(Notes([0.4], (0.4 + epoch / 1000, "12"))))
        tail = findings.tail
        assert tail is not None
        assert [slow.index for slow in tail.slowest] == ["7", "12"]

    def test_a_random_subset_represents_many_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_KEPT", 500)
        draw = random.Random(1)
        tail = timed(*[[draw.uniform(0, 1) for _ in range(10)] for _ in range(2000)]).tail
        assert tail is not None
        assert tail.samples == 20_000
        assert tail.p50_ms == pytest.approx(500, abs=70)
        assert tail.p99_ms == pytest.approx(990, abs=30)


class TestHistogram:
    @pytest.mark.parametrize("samples", [2, 50, 5000])
    def test_every_sample_is_in_one_bin(self, samples: int) -> None:
        draw = random.Random(2)
        tail = timed([draw.lognormvariate(-4, 1) for _ in range(samples)]).tail
        assert tail is not None
        assert tail.edges_ms == sorted({*tail.edges_ms})
        assert len(tail.edges_ms) == len(tail.counts) + 1 <= 41
        assert sum(tail.counts) == samples
        assert tail.edges_ms[0] <= tail.p50_ms <= tail.p99_ms <= tail.edges_ms[-1]

    def test_bins_are_equal_on_a_logarithmic_scale(self) -> None:
        tail = timed([0.001] * 8 + [1.0]).tail
        assert tail is not None
        assert tail.edges_ms == pytest.approx([1.0, 10.0, 100.0, 1000.0], rel=1e-3)
        assert tail.counts == [8, 0, 1]

    @pytest.mark.parametrize("seconds", [0.0, 0.002])
    def test_equal_times(self, seconds: float) -> None:
        tail = timed([seconds] * 100).tail
        assert tail is not None
        assert tail.counts == [100]
        assert tail.edges_ms[0] < tail.edges_ms[1] <= tail.edges_ms[0] + 0.001


class TestInsides:
    def test_a_worker_of_a_new_epoch_does_not_undo_what_was_found(self) -> None:
        """Without persistent workers, each epoch has new ones, which have not yet timed single links."""
        findings = Findings()
        first, split, new = (Inside(samples=n, unsplit=why) for n, why in ((4, NOT_YET), (9, ""), (2, NOT_YET)))
        for inside, revision in ((first, 1), (split, 2), (new, 2)):
            findings.take(delivery(Notes(inside=inside)))
            assert findings.revision == revision
        assert findings.insides == {0: split}
        findings.take(delivery(Notes(inside=new), worker=1))
        assert findings.insides == {0: split, 1: new}


class Sent:
    """A sender, and the events that it has sent."""

    def __init__(self, looks_inside: bool = True) -> None:
        self.findings = Findings()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.looks_inside = looks_inside

    def take(self, notes: Notes, worker: int = 0) -> None:
        self.findings.take(delivery(notes, worker))

    def now(self) -> list[str]:
        """Send what is new; return the kinds of the events."""
        self.events.clear()
        self.findings.send_new(lambda kind, data: self.events.append((kind, data)), 2, self.looks_inside)
        return [kind for kind, _ in self.events]

    def session(self) -> Session:
        session = Session()
        for kind, data in self.events:
            session.apply(kind, data)
        return session


def test_each_startup_is_sent_once() -> None:
    sent = Sent()
    sent.findings.startups.append(Startup(2.0, launch=0.5, ready=1.5))
    assert sent.now() == ["startup"]
    assert sent.session().startups == [Startup(2.0, 2, 0.5, 1.5)], "with the number of the pass"
    assert sent.now() == []
    sent.findings.startups += [Startup(3.0), Startup(0.1, renewed=True)]
    assert sent.now() == ["startup", "startup"]


def test_lines_that_were_looked_at_longer_are_kept() -> None:
    """The workers of a new epoch start from nothing, but may go further."""
    findings, lines = Findings(), [HotLine("data.py:1", "", 1.0)]
    split = Inside(samples=32, lines=lines, looks=10)
    for inside, revision in (
        (split, 1),
        (Inside(samples=8, looks=9, unsplit=NOT_YET), 1),
        (Inside(samples=8, looks=20, unsplit=NOT_YET), 2),
        (Inside(samples=9, lines=lines, looks=5), 3),
    ):
        findings.take(delivery(Notes(inside=inside)))
        assert findings.revision == revision
    assert findings.insides == {0: Inside(samples=9, looks=20)}


def test_transforms_are_located_when_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when a batch arrives: the search for the lines that construct them parses files."""
    searched: list[list[Link]] = []

    def located(links: list[Link]) -> list[Link]:
        searched.append(links)
        return [replace(link, where="train.py:3", library=False) for link in links]

    monkeypatch.setattr(module, "located", located)
    sent = Sent()
    inside = Inside(samples=2, links=[Link("Crop", "torchvision/crop.py:7", library=True)])
    for _ in range(5):
        sent.take(Notes(inside=inside))
    assert searched == []
    sent.now()
    assert searched == [inside.links]
    found = sent.session().inside
    assert found is not None and found.links == [Link("Crop", "train.py:3")]


def test_workers_with_different_chains() -> None:
    sent = Sent()
    sent.take(Notes(inside=Inside(samples=32, links=[Link("A"), Link("B")])), 0)
    sent.now()
    sent.take(Notes(inside=Inside(links=[Link("B")])), 1)
    sent.now()
    inside = sent.session().inside
    assert inside is not None
    assert inside.unsplit == "the workers found different chains of transforms"


def test_a_known_inside_is_not_sent() -> None:
    sent = Sent(looks_inside=False)
    sent.take(Notes(inside=Inside(samples=32)))
    assert sent.now() == []


def test_the_inside_is_sent_again_when_it_grows() -> None:
    """A worker sends what it has timed so far with each batch, and finally the chain."""
    sent = Sent()
    for inside in (Inside(samples=2, unsplit=NOT_YET), Inside(samples=8, unsplit=NOT_YET), Inside(samples=32)):
        sent.take(Notes(inside=inside))
        assert sent.now() == ["inside"]
        assert sent.session().inside == inside
        assert sent.now() == []


def test_the_tail_is_sent_whenever_samples_were_added() -> None:
    sent = Sent()
    sent.take(Notes([0.01], (0.01, "5")))
    assert sent.now() == [], "one sample has no spread"
    sent.take(Notes([0.03], (0.03, "7")))
    assert sent.now() == ["tail"]
    tail = sent.session().tail
    assert tail is not None
    assert (tail.samples, tail.p50_ms) == (2, 20.0)
    assert sent.now() == []
    sent.take(Notes())
    assert sent.now() == []
    sent.take(Notes([0.02], (0.02, "9")))
    assert sent.now() == ["tail"]


def test_alternatives_are_known_once_a_worker_has_sent_them() -> None:
    findings, one = Findings(), Alternative("ColorJitter", "train.py:3", "hue", 8, 5.0, 3.0)
    findings.take(delivery(Notes()))
    assert findings.alternatives is None
    findings.take(delivery(Notes(alternatives=[(0, one)])))
    findings.take(delivery(Notes()))
    assert findings.alternatives == [(0, one)]
