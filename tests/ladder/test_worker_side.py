"""What workers serve under each rung, tested by direct calls: nothing here starts a process."""

from __future__ import annotations

import functools
import pickle
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, default_collate
from torchvision import transforms

from pipediag.ladder.probes import inspection as probe
from pipediag.ladder.probes.hotlines import HotLines
from pipediag.ladder.probes.inspection import TIMED, Inspection
from pipediag.ladder.workers import worker_side as stations
from pipediag.ladder.workers.delivery import NO_COST, Delivery
from pipediag.ladder.workers.rung_switch import RungSwitch
from pipediag.ladder.workers.worker_side import WorkerSide
from pipediag.ladder.workers.worker_state import ALLOWANCE, MAX_ITEMS, MIN_ITEMS, SHARE, queue_clock, with_children
from pipediag.loop.wrappers import StagedCollate, StagedDataset, StagedIterable
from pipediag.measure.evidence import BatchCost
from pipediag.session import NOT_YET, Inside, cut_rung
from pipediag.usercode import tree

from ..things import Compose, Double, DoubleInPlace, Items, Sample, Shift, Transformed, same, scene

MIB = 1 << 20


class Bench:
    """A worker without a process: asks the wrappers for batches the way torch's fetcher does."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any] = default_collate,
        *,
        batch: int | None = 4,
        pool_bytes: int = 64 * MIB,
        batch_queues: list[Any] | None = None,
        looks_inside: bool = True,
    ) -> None:
        self.dataset = dataset
        self.rung_switch = RungSwitch()
        self.rung_switch.pool_bytes = pool_bytes
        self.station = WorkerSide(dataset, collate, self.rung_switch, batch_queues or [], looks_inside)
        self._staged = StagedDataset(self.station)
        self._collate = StagedCollate(self.station)
        self._batch = batch
        self._next = 0

    def batch(self, rung: str | None = None) -> Delivery:
        """Switch to ``rung``, and return the next batch of a sequential sampler."""
        if rung is not None:
            self.rung_switch.set(rung)
        count = self._batch or 1
        indices = [i % len(self.dataset) for i in range(self._next, self._next + count)]
        self._next += count
        samples = self._staged[indices[0]] if self._batch is None else self._staged.__getitems__(indices)
        return self._collate(samples)

    def stable(self, rung: str, within: int = 40) -> Delivery:
        """Return the first batch that was made under ``rung`` from beginning to end, with all caches full."""
        for _ in range(within):
            delivery = self.batch(rung)
            if delivery.fits(rung):
                return delivery
        raise AssertionError(f"{rung} never became stable")

    def warmed(self, rung: str, batches: int = 10) -> Delivery:
        """Return :meth:`stable`, after enough plain batches to represent the dataset."""
        for _ in range(batches):
            self.batch("baseline")
        return self.stable(rung)

    def counting(self, rung: str, batches: int = 6) -> tuple[list[int], int]:
        """Return the indices fetched, and the number of transform calls, during ``batches`` stable batches."""
        self.stable(rung)
        self.dataset.fetched.clear()
        before = self.dataset.transform.calls
        for _ in range(batches):
            assert self.batch().fits(rung)
        return list(self.dataset.fetched), self.dataset.transform.calls - before


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be worker 0."""
    monkeypatch.setattr(stations, "get_worker_info", lambda: SimpleNamespace(id=0))


@pytest.fixture
def never_waiting_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other processes, a part of a sleep would count as waiting for a core."""
    monkeypatch.setattr(stations, "queue_clock", lambda: lambda: 0.0)


@pytest.fixture
def as_second_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be worker 1."""
    monkeypatch.setattr(stations, "get_worker_info", lambda: SimpleNamespace(id=1))


class Pictures(Transformed):
    """Pictures that pass through a transform of torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = transforms.Compose([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        self.fetched.append(index)
        return self.transform(Image.new("RGB", (40, 30), (index, 90, 200)))


def made(make: Callable[[Any, int], Any], transform: Any = None) -> Items:
    """Return a dataset whose ``__getitem__`` is ``make``, with a transform if it is to have one."""
    dataset: Items = type("Made", (Items,), {"__getitem__": make})()
    if transform is not None:
        vars(dataset)["transform"] = transform
    return dataset


class Chained(Items):
    """Three transforms in a row: double, add one, double again."""

    def __init__(self, size: int = 64) -> None:
        super().__init__(size)
        self.transform = Compose([Double(), Shift(), Double()])

    @property
    def calls(self) -> list[int]:
        return [part.calls for part in self.transform.parts]

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.raw(index)), index


class Slow(Double):
    """Doubles within ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def __call__(self, x: Any) -> Any:
        time.sleep(self.seconds)
        return super().__call__(x)


def changed(transform: Any) -> Items:
    """Return a dataset that changes what its transform has returned: it is not separable."""
    return made(lambda self, index: (self.transform(self.raw(index)) + 1, index), transform)


def failing(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any) -> Any:
        raise error

    return fails


def parcel(contents: Any, queues: int = 1) -> list[Any]:
    """Return queues for workers, of which the first holds the cached batch."""
    found: list[Any] = [queue.Queue() for _ in range(queues)]
    found[0].put(contents)
    return found


each_rung = pytest.mark.parametrize("rung", ["baseline", "sample", "raw", "warm"])
each_cached_rung = pytest.mark.parametrize("rung", ["sample", "raw", "warm"])


class TestAlternatives:
    """The first worker tries cheaper ways on request, during a batch that counts for nothing."""

    def tried(self, bench: Bench) -> Any:
        delivery = bench.batch("baseline")
        assert delivery.notes is None or delivery.notes.alternatives is None or not delivery.fits("baseline")
        return None if delivery.notes is None else delivery.notes.alternatives

    def asked(self, dataset: Any) -> Bench:
        bench = Bench(dataset)
        bench.warmed("raw")
        assert self.tried(bench) is None
        bench.rung_switch.tries = True
        return bench

    @pytest.mark.usefixtures("as_worker")
    def test_once_on_request(self) -> None:
        bench = self.asked(Pictures())
        told = self.tried(bench)
        assert [(link, one.key) for link, one in told] == [(0, "hue"), (0, "tensor")]
        assert self.tried(bench) is None
        bench.rung_switch.tries = False
        assert bench.batch().fits("baseline")

    def test_samples_are_taken_apart_for_it(self) -> None:
        """The rung that needs them need not have been measured."""
        bench = Bench(Pictures())
        for _ in range(10):
            bench.batch("baseline")
        bench.rung_switch.tries = True
        assert len(self.tried(bench)) == 2

    @pytest.mark.usefixtures("as_second_worker")
    def test_not_in_the_other_workers(self) -> None:
        assert self.tried(self.asked(Pictures())) is None

    @pytest.mark.parametrize(
        "dataset", [Transformed(), made(lambda self, index: self.raw(index))], ids=["nothing to try", "not separable"]
    )
    def test_nothing_was_tried(self, dataset: Any) -> None:
        assert self.tried(self.asked(dataset)) == []

    def test_a_trial_that_fails_is_no_error_of_the_script(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stations, "tried", failing(ImportError("no torchvision")))
        assert self.tried(self.asked(Pictures())) == []


class TestRungs:
    """What each rung runs of the user's code. ``baseline`` runs everything, on the indices requested."""

    @pytest.mark.parametrize(
        ("rung", "fetched", "transformed"), [("baseline", [*range(4, 28)], 24), ("sample", [], 0), ("raw", [], 24)]
    )
    def test_what_is_called(self, rung: str, fetched: list[int], transformed: int) -> None:
        assert Bench(Transformed()).counting(rung) == (fetched, transformed)

    @pytest.mark.parametrize("rung", ["device", "host", "supply"])
    def test_workers_keep_loading_while_a_cache_feeds_the_loop(self, rung: str) -> None:
        bench = Bench(Transformed())
        delivery = bench.batch(rung)
        assert delivery.fits("baseline")
        assert bench.dataset.fetched == [0, 1, 2, 3]

    def test_warm_fetches_a_few_items_repeatedly(self) -> None:
        fetched, transformed = Bench(Transformed(size=1000)).counting("warm", 30)
        assert len(fetched) == transformed == 120
        assert MIN_ITEMS <= len(set(fetched)) <= MAX_ITEMS

    @pytest.mark.parametrize("rung", ["sample", "raw", "warm", "transform:1", "transform:2"])
    def test_batches_have_the_users_structure(self, rung: str) -> None:
        images, labels = Bench(Chained()).stable(rung).batch
        assert images.shape == (4, 2, 3)
        assert same(images[:, 0, 0], 4.0 * labels + 2)

    @pytest.mark.parametrize("rung", ["sample", "raw", "warm", "transform:1", "transform:2"])
    def test_items_are_served_cyclically(self, rung: str) -> None:
        """All items that the worker keeps are served equally often."""
        bench = Bench(Chained(1000))
        bench.warmed(rung)
        labels = [int(label) for _ in range(16) for label in bench.batch().batch[1]]
        counts = {label: labels.count(label) for label in labels}
        assert len(counts) >= MIN_ITEMS
        assert max(counts.values()) - min(counts.values()) <= 1

    def test_switching_back_and_forth(self) -> None:
        bench = Bench(Chained())
        for rung in ("sample", "raw", "transform:2", "warm", "transform:1", "baseline", "raw", "sample"):
            bench.stable(rung)
        for rung in ("raw", "transform:2", "baseline", "sample", "warm", "transform:1", "raw"):
            assert bench.batch(rung).fits(rung), "cached items stay cached"

    def test_a_batch_belongs_to_the_rung_under_which_it_began(self) -> None:
        bench = Bench(Transformed())
        samples = StagedDataset(bench.station).__getitems__([0, 1])
        bench.rung_switch.set("sample")
        delivery = StagedCollate(bench.station)(samples)
        assert delivery.rung == "baseline"
        assert not delivery.stable

    @each_cached_rung
    def test_not_stable_while_filling(self, rung: str) -> None:
        first = Bench(Transformed()).batch(rung)
        assert first.rung == rung
        assert not first.stable
        assert same(first.batch[1], torch.arange(4)), "the loop gets valid batches meanwhile"

    @pytest.mark.parametrize("size", [1, 2, 5, 12, 40, 64])
    @each_cached_rung
    def test_distinct_items_for_any_batch_size(self, rung: str, size: int) -> None:
        """Even a worker that has seen only a handful of indices waits for more."""
        bench = Bench(Transformed(size=1000), batch=size)
        bench.stable(rung)
        labels = {int(label) for _ in range(40) for label in bench.batch().batch[1]}
        assert MIN_ITEMS <= len(labels) <= MAX_ITEMS

    @each_cached_rung
    def test_a_dataset_with_few_items(self, rung: str) -> None:
        bench = Bench(Transformed(size=3), batch=2)
        bench.stable(rung)
        assert {int(label) for _ in range(8) for label in bench.batch().batch[1]} == {0, 1, 2}

    @each_rung
    def test_without_automatic_batching(self, rung: str) -> None:
        bench = Bench(Transformed(size=1000), lambda sample: sample, batch=None)
        bench.stable(rung)
        labels = set()
        for _ in range(40):
            image, label = bench.batch().batch
            assert same(image, torch.full((2, 3), 2.0 * label))
            labels.add(label)
        assert len(labels) >= MIN_ITEMS

    def test_changing_a_batch_does_not_change_the_cache(self) -> None:
        bench = Bench(Transformed())
        for _ in range(20):
            images, labels = bench.stable("sample").batch
            assert same(images[:, 0, 0], 2.0 * labels)
            images.zero_()

    def test_a_collate_function_that_empties_its_samples(self) -> None:
        def collate(samples: list[dict[str, Any]]) -> Any:
            return default_collate([s.pop("image") for s in samples]), [s.pop("label") for s in samples]

        dicts = made(lambda self, index: {"image": self.transform(self.raw(index)), "label": index}, Double())
        bench = Bench(dicts, collate)
        for rung in ("sample", "raw", "sample", "raw"):
            for _ in range(20):
                images, labels = bench.stable(rung).batch
                assert images[:, 0, 0].tolist() == [2.0 * label for label in labels]

    def test_transforms_that_change_their_input(self) -> None:
        bench = Bench(Transformed(DoubleInPlace()))
        bench.stable("raw")
        for _ in range(10):
            delivery = bench.batch()
            images, labels = delivery.batch
            assert same(images[:, 0, 0], 2.0 * labels)
            assert delivery.cost.copy > 0

    def test_costs(self) -> None:
        cost = Bench(Transformed()).stable("raw").cost
        assert cost.wall > cost.collate > 0
        assert cost.cpu >= 0
        assert cost.queued >= 0
        assert cost.copy == 0


def counted(samples: list[Any]) -> Any:
    """Shift each sample's labels in place by its position in the batch, as collating graphs and boxes does."""
    for place, (image, marks, _) in enumerate(samples):
        image += place
        marks += place
    return default_collate(samples)


def padded(samples: list[Any]) -> Any:
    """Pad all samples in place to the longest one."""
    longest = max(len(image) for image, _, _ in samples)
    for image, marks, _ in samples:
        image.resize_(longest)
        marks.resize(longest, refcheck=False)
    return default_collate(samples)


class TestCollateThatWrites:
    """Collate functions that write into their samples: in training each sample is new, in a cache it is not."""

    class Marked(Items):
        """A transformed image, with marks and a label beside it."""

        def __init__(self, vary: bool = False, transform: Callable[[Any], Any] | None = None) -> None:
            super().__init__(1000)
            self.transform = transform or Double()
            self.vary = vary

        def __getitem__(self, index: int) -> Any:
            length = 1 + index % 3 if self.vary else 2
            image = torch.full((length,), float(index))
            return self.transform(image), np.full(length, index), index

    @each_rung
    def test_labels_stay_correct(self, rung: str) -> None:
        bench = Bench(self.Marked(), counted)
        for _ in range(40):
            images, marks, labels = bench.batch(rung).batch
            places = torch.arange(4)
            assert same(images[:, 0], 2.0 * labels + places)
            assert same(marks[:, 0], labels + places)

    @pytest.mark.parametrize("rung", ["sample", "raw"])
    def test_the_cost_of_copying_is_reported(self, rung: str) -> None:
        assert Bench(self.Marked(), counted).stable(rung).cost.copy > 0

    @pytest.mark.parametrize("rung", ["sample", "raw"])
    def test_a_transform_that_does_nothing(self, rung: str) -> None:
        """The sample that is made again then holds the cached input itself."""
        bench = Bench(self.Marked(transform=lambda x: x), counted)
        for _ in range(40):
            images, _, labels = bench.batch(rung).batch
            assert same(images[:, 0], labels + torch.arange(4.0))

    @each_rung
    def test_padding_in_place(self, rung: str) -> None:
        bench = Bench(self.Marked(vary=True), padded)
        for _ in range(40):
            images, marks, labels = bench.batch(rung).batch
            assert same(images[:, 0], 2.0 * labels) and same(marks[:, 0], labels)
            assert images.shape[1] == max(1 + int(label) % 3 for label in labels), "no cached sample was padded"

    def test_pictures(self) -> None:
        def collate(samples: list[Any]) -> Any:
            for picture in samples:
                picture.putpixel((0, 0), picture.getpixel((0, 0)) + 100)
            return [picture.getpixel((0, 0)) for picture in samples]

        bench = Bench(made(lambda _, index: Image.new("L", (1, 1), index)), collate)
        for _ in range(40):
            assert all(100 <= pixel < 164 for pixel in bench.batch("sample").batch)

    def test_transforms_in_collate(self) -> None:
        """Their results are kept as they were before the collate function wrote into them."""
        transform = Double()

        def collate(samples: list[Any]) -> Any:
            images = [transform(image) for image, _ in samples]
            for image in images:
                image += 1000
            return torch.stack(images), torch.tensor([label for _, label in samples])

        bench = Bench(plain(), collate)
        for rung in ("raw", "sample"):
            for _ in range(20):
                images, _ = bench.batch(rung).batch
                assert ((images >= 1000) & (images <= 1000 + 2 * 64)).all()
        assert transform.calls

    def test_streams(self) -> None:
        def collate(samples: list[Any]) -> Any:
            for place, (image, _) in enumerate(samples):
                image += place
            return default_collate(samples)

        bench = Stream(Numbers(), collate=collate)
        for _ in range(40):
            images, labels = bench.batch("sample").batch
            assert same(images[:, 0], labels + torch.arange(4.0))


class TestCuts:
    """Rungs that serve samples with their first transforms already applied."""

    @pytest.mark.parametrize("links", [1, 2])
    def test_only_the_later_transforms_run(self, links: int) -> None:
        bench = Bench(Chained())
        bench.stable(cut_rung(links))
        bench.dataset.fetched.clear()
        before = bench.dataset.calls
        for _ in range(6):
            assert bench.batch().fits(cut_rung(links))
        made = [after - earlier for after, earlier in zip(bench.dataset.calls, before, strict=True)]
        assert made == [0] * links + [24] * (3 - links)
        assert bench.dataset.fetched == []

    def test_not_stable_while_filling(self) -> None:
        bench = Bench(Chained())
        bench.stable("raw")
        first = bench.batch("transform:1")
        assert (first.rung, first.stable) == ("transform:1", False)
        assert bench.batch().fits("transform:1")

    def test_without_automatic_batching(self) -> None:
        bench = Bench(Chained(), lambda sample: sample, batch=None)
        image, label = bench.stable("transform:2").batch
        assert same(image, torch.full((2, 3), 4.0 * label + 2))
        before = bench.dataset.calls
        bench.batch()
        assert [after - earlier for after, earlier in zip(bench.dataset.calls, before, strict=True)] == [0, 0, 1]

    def test_changing_a_batch_does_not_change_the_cache(self) -> None:
        dataset = Chained()
        dataset.transform.parts[2] = lambda x: x
        bench = Bench(dataset, lambda samples: samples[0])
        for _ in range(20):
            image, label = bench.stable("transform:2").batch
            assert same(image, torch.full((2, 3), 2.0 * label + 1))
            image.zero_()

    @pytest.mark.parametrize("rung", ["transform:3", "transform:9"])
    def test_a_cut_that_this_chain_lacks(self, rung: str) -> None:
        bench = Bench(Chained())
        for _ in range(4):
            delivery = bench.batch(rung)
        assert delivery.fits(rung)
        assert delivery.why_not == "this worker found another chain of transforms"
        assert same(delivery.batch[1], torch.arange(12, 16)), "the loop gets its batches nevertheless"

    def test_samples_through_different_transforms(self) -> None:
        class Odd(Chained):
            def __getitem__(self, index: int) -> Any:
                image = self.raw(index)
                return (self.transform(image) if index % 2 else self.transform.parts[0](image)), index

        delivery = Bench(Odd()).stable("transform:1")
        assert delivery.why_not == "samples pass through different transforms"

    def test_not_separable(self) -> None:
        delivery = Bench(changed(Chained().transform)).stable("transform:1")
        assert "pipediag.stage" in delivery.why_not

    def test_making_the_cut_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaying may fail where the user's code does not: the error becomes the reason, and the loop continues."""
        bench = Bench(Chained())
        bench.stable("raw")
        for apart in bench.station._states[-1].chain.samples:
            apart.linked.calls[1].fn = failing(LookupError("not prepared"))
        delivery = bench.batch("transform:1")
        assert "LookupError: not prepared" in delivery.why_not
        assert len(delivery.batch[1]) == 4
        assert bench.batch("raw").fits("raw")

    def test_many_cuts_within_little_memory(self) -> None:
        bench = Bench(Chained(), pool_bytes=0)
        for rung in ("transform:1", "transform:2", "transform:1", "raw", "transform:2"):
            images, labels = bench.stable(rung).batch
            assert same(images[:, 0, 0], 4.0 * labels + 2)

    def test_transforms_in_collate_cannot_be_cut(self) -> None:
        dataset = changed(Compose([Slow(0.002), type("SlowToo", (Slow,), {})(0.002)]))
        bench = Bench(dataset, collate_with(Double()))
        delivery = bench.batch("raw")
        for _ in range(6):
            if delivery.notes is not None and delivery.notes.inside is not None:
                break
            delivery = bench.batch()
        assert delivery.notes is not None and delivery.notes.inside is not None
        assert len(delivery.notes.inside.links) < 2 or delivery.notes.inside.unsplit
        assert bench.stable("transform:1").why_not


class TestNotes:
    """The findings that accompany a batch."""

    def inside(self, bench: Bench, rung: str = "raw") -> Inside:
        found = []
        for _ in range(12):
            delivery = bench.batch(rung)
            if delivery.notes is not None and delivery.notes.inside is not None:
                found.append(delivery.notes.inside)
        assert len(found) == 1, "reported once"
        return found[0]

    def test_inside(self) -> None:
        inside = self.inside(Bench(Chained()))
        assert [link.name for link in inside.links] == ["Double", "Shift", "Double"]
        assert inside.samples == TIMED
        assert len(inside.sizes) == TIMED
        assert inside.unsplit == ""
        assert inside.whole.wall_ms > 0
        assert inside.threads["torch"] == torch.get_num_threads()

    @pytest.mark.usefixtures("never_waiting_for_a_core")
    def test_a_costly_link(self) -> None:
        dataset = Chained()
        dataset.transform.parts[1] = Slow(0.01)
        inside = self.inside(Bench(dataset))
        name, cost = max(((link.name, link.cost.wall_ms) for link in inside.links), key=lambda link: link[1])
        assert name == "Slow"
        assert 10 <= cost <= inside.whole.wall_ms

    def test_timings_of_training_samples_accompany_each_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last two of the worker's first batch of four, which includes one-time loading; then all but two.

        They are told whenever there are twice as many.
        """
        monkeypatch.setattr(HotLines, "affordable", lambda *_: False)
        bench = Bench(Chained())
        told = [bench.batch("baseline").notes for _ in range(20)]
        insides = [notes.inside for notes in told if notes is not None and notes.inside is not None]
        assert [inside.samples for inside in insides] == [2, 4, 8, 16, TIMED]
        assert {inside.unsplit for inside in insides} == {NOT_YET}
        assert bench.dataset.fetched == list(range(64)) + list(range(16)), "no additional sample is made"

    def test_findings_are_reported_again_once_the_chain_is_taken_apart(self) -> None:
        bench = Bench(Chained())
        for _ in range(20):
            bench.batch("baseline")
        bench.dataset.fetched.clear()
        inside = self.inside(bench)
        assert (inside.samples, inside.unsplit, len(inside.links)) == (TIMED, "", 3)
        notes = bench.batch("baseline").notes
        assert notes is None or notes.inside is None, "reported once more, then no longer"

    def test_known_from_an_earlier_pass(self) -> None:
        assert self.inside(Bench(Chained(), looks_inside=False)).samples == 0

    def test_a_dataset_that_is_not_separable_is_inspected_nevertheless(self) -> None:
        inside = self.inside(Bench(changed(Chained().transform)))
        assert inside.samples == TIMED
        assert inside.links

    def test_no_findings(self) -> None:
        bench = Bench(Chained())
        bench.stable("sample")
        assert bench.batch().notes is None

    def test_times_of_samples_under_the_baseline(self) -> None:
        def make(self: Any, index: int) -> Any:
            time.sleep(0.2 * (index in (6, 15)))
            return self.transform(self.raw(index)), index

        bench = Bench(made(make, Double()), batch=8)
        for slow in ("6", "15"):
            notes = bench.batch("baseline").notes
            assert notes is not None and notes.slowest is not None and notes.slowest[1] == slow
            assert notes.slowest[0] == max(notes.times) >= 0.05  # without the wait for a core
            assert len(notes.times) <= 8

    @pytest.mark.parametrize("rung", ["sample", "raw", "warm", "transform:1"])
    def test_no_times_under_other_rungs(self, rung: str) -> None:
        bench = Bench(Chained(), batch=8)
        for _ in range(8):
            notes = bench.batch(rung).notes
            assert notes is None or (notes.times, notes.slowest) == ([], None)

    def test_samples_made_together_have_no_individual_times(self) -> None:
        notes = Bench(Many()).batch("baseline").notes
        assert notes is not None and notes.inside is not None
        assert (notes.times, notes.slowest) == ([], None)
        assert notes.inside.samples == 4, "but they have a mean time"

    def test_the_first_batch_says_when_the_worker_was_ready(self) -> None:
        bench = Bench(Chained())
        before = time.perf_counter()
        bench.station.ready()
        after = time.perf_counter()
        first, second = bench.batch("sample"), bench.batch()
        assert first.notes is not None and first.notes.ready is not None
        assert before <= first.notes.ready <= after
        assert second.notes is None or second.notes.ready is None

    def test_when_a_batch_was_made(self) -> None:
        before = time.perf_counter()
        delivery = Bench(Chained()).batch("baseline")
        assert before <= delivery.made <= time.perf_counter()
        assert pickle.loads(pickle.dumps(Delivery(None, "raw", True, delivery.cost, 0, made=5.0))).made == 5.0


class TestOwnTime:
    """What pipediag does in a worker is not charged to the user, and waits while the loop is timed."""

    #: Planted seconds, far more than a batch takes.
    PLANTED = 0.3

    def slowly(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
        native = getattr(owner, name)

        def slow(*args: Any) -> Any:
            time.sleep(seconds)
            return native(*args)

        monkeypatch.setattr(owner, name, slow)

    def news(self, delivery: Delivery) -> bool:
        return delivery.notes is not None and delivery.notes.inside is not None

    @pytest.mark.parametrize("owner, name", [(stations, "find_slots"), (Inspection, "figures"), (probe, "with_nested")])
    def test_is_told_apart(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.slowly(monkeypatch, owner, name, self.PLANTED)
        delivery = Bench(Transformed()).batch("baseline")
        assert delivery.fits("baseline")
        assert delivery.cost.own >= self.PLANTED
        assert delivery.cost.wall < self.PLANTED / 2
        assert delivery.notes is not None and max(delivery.notes.times) < self.PLANTED / 2

    def test_is_told_apart_sample_by_sample(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slowly(monkeypatch, probe.tree, "nbytes", 0.05)
        delivery = Bench(Transformed()).batch("baseline")
        notes = delivery.notes
        assert delivery.cost.own >= 2 * 3 * 0.05 and delivery.cost.wall < 0.05
        assert notes is not None and notes.inside is not None
        assert max(notes.times) < 0.05 and notes.inside.whole.wall_ms < 50

    def test_of_a_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slowly(monkeypatch, Inspection, "figures", self.PLANTED)
        station = WorkerSide(Numbers(), default_collate, RungSwitch(), [])
        items = iter(StagedIterable(station))
        delivery = StagedCollate(station)([next(items)])
        assert delivery.cost.own >= self.PLANTED and delivery.cost.wall < self.PLANTED / 2

    def test_nothing_is_inspected_while_the_loop_is_timed(self) -> None:
        bench = Bench(Transformed())
        with bench.rung_switch.undisturbed():
            timed = [bench.batch("baseline") for _ in range(3)]
        assert not any(map(self.news, timed))
        assert self.news(bench.batch())

    def test_inspection_waits_beyond_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slowly(monkeypatch, Inspection, "figures", 1.5 * ALLOWANCE)
        bench = Bench(Transformed())
        bench.batch("baseline")
        state = bench.station._states[-1]
        assert state.inspection is not None and state.inspection.times
        paused = [bench.batch() for _ in range(5)]
        assert not any(map(self.news, paused))
        state.begun = (state.begun[0] - 3 * ALLOWANCE / SHARE, *state.begun[1:])
        state.cost()  # of a long batch
        assert self.news(bench.batch())

    def test_batches_of_quick_samples_are_fetched_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A look at each sample would slow them down."""
        bench = Bench(Transformed(), looks_inside=False)
        bench.batch("baseline")
        state = bench.station._states[-1]
        looked: list[int] = []
        monkeypatch.setattr(bench.station, "_timed", lambda *_: looked.append(1))
        state.typical, state.batches = 1e-6, 1
        for _ in range(5):
            bench.batch()
        assert looked == []


class Strict(Compose):
    def __call__(self, x: Any) -> Any:
        assert all(type(part) in (Double, Shift) for part in self.parts)
        return super().__call__(x)


class TestInspectionIsHarmless:
    """The user's loop never sees an effect of the inspection."""

    def test_a_class_that_refuses_replaced_parts(self) -> None:
        """Samples that fail under timers are made without."""
        bench = Bench(Transformed(Strict([Double(), Shift()])))
        for _ in range(8):
            assert len(bench.batch("baseline").batch[1]) == 4
        assert bench.stable("raw").why_not == ""

    def test_a_part_with_an_array_of_weights(self) -> None:
        class Choice(Compose):
            p = torch.tensor([0.5, 0.5])

            def __call__(self, x: Any) -> Any:
                time.sleep(0.001)
                return self.parts[0](x)

        assert "pipediag.stage" in Bench(changed(Choice([Slow(0.01)]))).stable("raw").why_not

    def test_the_tracer_is_gone(self) -> None:
        Bench(Chained()).stable("raw")
        assert sys.gettrace() is None
        assert sys.getprofile() is None

    def test_the_transforms_are_restored(self) -> None:
        dataset = Chained()
        parts = list(dataset.transform.parts)
        Bench(dataset).stable("transform:1")
        assert all(a is b for a, b in zip(dataset.transform.parts, parts, strict=True))


class Many(Transformed):
    """A dataset that fetches a whole batch at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("__getitems__ is there to be used")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        return [(self.transform(self.raw(i)), i) for i in indices]


@each_rung
def test_getitems_is_used_if_it_exists(rung: str) -> None:
    bench = Bench(Many())
    images, labels = bench.stable(rung).batch
    assert same(images[:, 0, 0], 2.0 * labels)
    if rung == "baseline":
        assert bench.dataset.asked == [[0, 1, 2, 3]]
    bench.dataset.asked.clear()
    bench.batch()
    assert [len(asked) for asked in bench.dataset.asked] == {"baseline": [4], "warm": [4]}.get(rung, [])


class TestWorkerRung:
    @pytest.mark.usefixtures("as_worker")
    def test_sends_the_cached_batch(self) -> None:
        cached_batch = {"x": torch.ones(2)}
        bench = Bench(Transformed(), batch_queues=parcel(cached_batch, queues=2))
        sent: list[Any] = []
        for _ in range(3):
            delivery = bench.batch("worker")
            assert delivery.fits("worker")
            assert same(delivery.batch, cached_batch)
            assert not tree.share_memory(delivery.batch, [cached_batch, sent]), "new memory, as in training"
            assert delivery.cost.copy > 0
            assert delivery.worker == 0
            sent.append(delivery.batch)
        assert bench.dataset.fetched == []

    @pytest.mark.usefixtures("as_worker")
    def test_without_automatic_batching(self) -> None:
        bench = Bench(Transformed(), lambda sample: sample, batch=None, batch_queues=parcel("parcel"))
        assert bench.stable("worker").batch == "parcel"

    @pytest.mark.usefixtures("as_worker")
    def test_the_users_collate_is_not_called(self) -> None:
        calls = []
        bench = Bench(Transformed(), lambda samples: calls.append(len(samples)), batch_queues=parcel("parcel"))
        bench.batch("worker")
        assert calls == []


class TestMemory:
    """A worker caches what its allowance permits, and at least one item."""

    @staticmethod
    def big() -> torch.Tensor:
        return torch.zeros(MIB, dtype=torch.uint8)

    @pytest.mark.parametrize(
        ("rung", "room", "make", "transform", "collate"),
        [
            ("sample", 20, lambda self, index: (TestMemory.big(), index), None, default_collate),
            (
                "raw",
                15,
                lambda self, index: (self.transform(TestMemory.big()), index),
                lambda x: x[:2],
                default_collate,
            ),
            (
                "raw",
                15,
                lambda own, index: (own.transform(torch.zeros(2)), index, TestMemory.big()),
                Double(),
                default_collate,
            ),
            (
                "sample",
                20,
                lambda self, index: Sample(TestMemory.big(), index),
                None,
                lambda samples: ([s.image for s in samples], [s.label for s in samples]),
            ),
        ],
        ids=["samples", "raw samples", "large other parts", "objects of user classes"],
    )
    def test_items(self, rung: str, room: int, make: Any, transform: Any, collate: Any) -> None:
        for pool, counts in ((room * MIB, (5, 6)), (0, (1,))):
            bench = Bench(made(make, transform), collate, pool_bytes=pool)
            bench.warmed(rung)
            assert len({int(label) for _ in range(80) for label in bench.batch().batch[1]}) in counts

    def test_stream(self) -> None:
        class Big(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                for index in range(1000):
                    yield TestMemory.big(), index

        bench = Stream(Big(), pool_bytes=5 * MIB)
        bench.stable("sample")
        assert 1 <= len({int(label) for _ in range(20) for label in bench.batch().batch[1]}) <= 5


@each_rung
def test_samples_that_refer_to_each_other(rung: str) -> None:
    bench = Bench(made(lambda self, _: self.transform(scene(3)), lambda whole: whole), list)
    assert len(bench.stable(rung).batch) == 4


class TestImpossible:
    """The raw rung says why it cannot be served, and the loop gets its batches nevertheless."""

    def test_not_separable(self) -> None:
        bench = Bench(changed(Double()))
        for _ in range(4):
            delivery = bench.batch("raw")
        assert delivery.fits("raw")
        assert "pipediag.stage" in delivery.why_not
        assert same(delivery.batch[1], torch.arange(12, 16))
        assert bench.batch("baseline").why_not == ""
        assert bench.stable("sample").why_not == ""

    def test_replaying_fails(self) -> None:
        """The transform needs state that ``__getitem__`` prepares."""

        class Dataset(Transformed):
            prepared = False

            def __getitem__(self, index: int) -> Any:
                self.prepared = True
                try:
                    return self.transform(self.raw(index)), index
                finally:
                    self.prepared = False

            def check(self, x: Any) -> Any:
                if not self.prepared:
                    raise LookupError("not prepared")
                return x * 2

        dataset = Dataset()
        dataset.transform = dataset.check
        delivery = Bench(dataset).stable("raw")
        assert "LookupError: not prepared" in delivery.why_not

    @pytest.mark.parametrize(
        ("dataset", "collate"),
        [
            (made(failing(OSError("on fire"))), default_collate),
            (Transformed(), failing(OSError("on fire"))),
        ],
        ids=["dataset", "collate"],
    )
    def test_an_error_of_the_users_code_ends_the_batch_it_belongs_to(self, dataset: Any, collate: Any) -> None:
        bench = Bench(dataset, collate)
        with pytest.raises(OSError, match="on fire"):
            bench.batch("baseline")
        bench.rung_switch.set("warm")
        assert bench.station.begin().rung == "warm"


def collate_with(transform: Any) -> Callable[[Any], Any]:
    def collate(samples: Any) -> Any:
        images = torch.stack([transform(image) for image, _ in samples])
        return images, torch.tensor([label for _, label in samples])

    return collate


def plain() -> Items:
    """Return a dataset without transforms: they are in the collate function."""
    return made(lambda self, index: (self.raw(index), index))


class TestTransformsInCollate:
    def test_raw_runs_them_but_sample_does_not_and_neither_loads(self) -> None:
        transform = Double()
        bench = Bench(plain(), collate_with(transform))
        for rung, calls, loads in (("raw", 4, 0), ("sample", 0, 0), ("raw", 4, 0), ("baseline", 4, 4)):
            assert bench.stable(rung).why_not == ""
            before = transform.calls, len(bench.dataset.fetched)
            delivery = bench.batch()
            assert (transform.calls, len(bench.dataset.fetched)) == (before[0] + calls, before[1] + loads), rung
            assert delivery.batch[0].shape == (4, 2, 3)

    @pytest.mark.parametrize("kind", ["map", "stream"])
    def test_of_whole_batches(self, kind: str) -> None:
        """As for MixUp: eight samples are cached, and a batch has four."""
        transform = Double()

        def collate(samples: Any) -> Any:
            images, labels = default_collate(samples)
            return transform(images), labels

        bench = Bench(plain(), collate) if kind == "map" else Stream(Numbers(), collate=collate)
        bench.stable("sample")
        before = transform.calls
        assert len(bench.batch().batch[0]) == 4
        assert transform.calls == before

    def test_an_item_of_a_stream_that_is_not_a_list(self) -> None:
        """Without automatic batching the collate function gets single items, which may have no length."""

        class Scalars(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                return iter(torch.arange(100.0))

        bench = Stream(Scalars(), collate=lambda item: item + 1, batch=1)
        bench.rung_switch.set("sample")
        for _ in range(40):
            assert bench._collate(next(bench._source)).batch.ndim == 0

    def test_whole_batches_that_do_not_fit(self) -> None:
        """Their transforms then count as collating."""
        transform = Double()
        bench = Bench(plain(), lambda samples: transform(default_collate([x for x, _ in samples])), pool_bytes=100)
        bench.stable("sample")
        before = transform.calls
        assert bench.batch().batch.shape == (4, 2, 3)
        assert transform.calls == before + 1

    def test_without_automatic_batching(self) -> None:
        """The collate function gets one item at a time."""
        transform = Double()
        bench = Bench(plain(), lambda item: (transform(item[0]) + 0, item[1]), batch=None)
        for rung, calls in (("raw", 1), ("sample", 0)):
            bench.stable(rung)
            bench.dataset.fetched.clear()
            before = transform.calls
            assert bench.batch().batch[0].shape == (2, 3)
            assert (bench.dataset.fetched, transform.calls - before) == ([], calls)

    def test_the_stubs_are_removed_afterwards(self) -> None:
        transform = Double()
        collate = collate_with(transform)
        bench = Bench(plain(), collate)
        bench.stable("sample")
        bench.batch()
        assert collate.__closure__ is not None
        assert collate.__closure__[0].cell_contents is transform

    def test_in_the_dataset_and_in_collate(self) -> None:
        inner, outer = Double(), Double()
        bench = Bench(Transformed(inner), collate_with(outer))
        bench.stable("raw")
        before = inner.calls, outer.calls
        bench.batch()
        assert (inner.calls, outer.calls) == (before[0] + 4, before[1] + 4)
        bench.stable("sample")
        before = inner.calls, outer.calls
        bench.batch()
        assert (inner.calls, outer.calls) == before

    @pytest.mark.parametrize(
        "collate", [list, tuple, dict, functools.partial(default_collate), Sample, len], ids=lambda fn: str(fn)[:20]
    )
    @each_rung
    def test_collate_functions_of_any_kind(self, rung: str, collate: Any) -> None:
        """``collate_fn=list`` keeps samples apart; a class makes its own batch."""
        bench = Bench(Transformed(), collate)
        delivery = bench.stable(rung)
        assert type(delivery.batch) is type(collate([(torch.ones(1), 1), (torch.ones(1), 2)]))

    def test_without_any_transform(self) -> None:
        delivery = Bench(plain()).stable("raw")
        assert "pipediag.stage" in delivery.why_not


class Numbers(IterableDataset[Any]):
    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.drawn = 0

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.size):
            self.drawn += 1
            yield torch.full((2,), float(index)), index


class Stream(Bench):
    """A worker over an iterable dataset."""

    def __init__(self, dataset: Any, *, batch: int = 4, **options: Any) -> None:
        super().__init__(dataset, **options)
        self._source = iter(StagedIterable(self.station))
        self._size = batch

    def batch(self, rung: str | None = None) -> Delivery:
        if rung is not None:
            self.rung_switch.set(rung)
        samples = []
        for _ in range(self._size):
            try:
                samples.append(next(self._source))
            except StopIteration:
                break
        if not samples:
            raise StopIteration
        return self._collate(samples)


class TestStream:
    def test_baseline(self) -> None:
        bench = Stream(Numbers())
        assert [bench.batch().batch[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_sample_does_not_read_the_source(self) -> None:
        bench = Stream(Numbers())
        assert not bench.batch("sample").stable
        bench.stable("sample")
        drawn = bench.dataset.drawn
        labels = {int(label) for _ in range(10) for label in bench.batch().batch[1]}
        assert bench.dataset.drawn == drawn
        assert len(labels) >= MIN_ITEMS

    def test_the_source_continues_where_it_was(self) -> None:
        bench = Stream(Numbers())
        bench.batch("baseline")
        bench.stable("sample")
        drawn = bench.dataset.drawn
        assert bench.batch("baseline").batch[1][0] == drawn

    @pytest.mark.usefixtures("as_worker")
    def test_worker(self) -> None:
        bench = Stream(Numbers(), batch_queues=parcel("parcel"))
        drawn = bench.dataset.drawn
        assert bench.batch("worker").batch == "parcel"
        assert bench.dataset.drawn == drawn

    def test_the_end(self) -> None:
        bench = Stream(Numbers(6))
        assert [len(bench.batch("baseline").batch[1]) for _ in range(2)] == [4, 2]
        with pytest.raises(StopIteration):
            bench.batch()
        bench.rung_switch.set("sample")
        assert bench.station.begin().rung == "sample"

    def test_a_cached_rung_never_ends(self) -> None:
        bench = Stream(Numbers(20))
        bench.stable("sample")
        for _ in range(50):
            assert bench.batch().fits("sample")

    def inspected(self, dataset: Any) -> tuple[Inside, list[int], Stream]:
        """Return the findings made while the sample cache was filled, and the labels of the batches meanwhile."""
        bench, labels, found = Stream(dataset), [], []
        for _ in range(6):
            delivery = bench.batch("sample")
            labels += delivery.batch[1].tolist()
            if delivery.notes is not None and delivery.notes.inside is not None:
                found.append(delivery.notes.inside)
            if delivery.stable:
                break
        assert len(found) == 1
        return found[0], labels, bench

    def test_items_are_inspected_while_they_are_cached(self) -> None:
        """A stream cannot be rewound: the loop gets every item."""
        inside, labels, bench = self.inspected(Numbers())
        assert labels[:MIN_ITEMS] == list(range(MIN_ITEMS))
        assert bench.dataset.drawn == MIN_ITEMS
        assert 0 < inside.samples < MIN_ITEMS

    @pytest.mark.usefixtures("never_waiting_for_a_core")
    def test_transforms_of_a_stream(self) -> None:
        class Augmented(Numbers):
            def __init__(self) -> None:
                super().__init__()
                self.augment = Double()

            def __iter__(self) -> Iterator[Any]:
                for image, label in super().__iter__():
                    time.sleep(0.001)
                    yield self.augment(image), label

        inside, _, _ = self.inspected(Augmented())
        assert [link.name for link in inside.links] == ["Double"]
        assert inside.load.wall_ms >= 1

    @pytest.mark.parametrize("size", [1, 3, 6])
    def test_a_stream_that_ends_while_it_is_inspected(self, size: int) -> None:
        bench = Stream(Numbers(size))
        labels: list[int] = []
        with pytest.raises(StopIteration):
            for _ in range(4):
                labels += bench.batch("sample").batch[1].tolist()
        assert labels == list(range(size))

    def test_times_of_items_under_the_baseline(self) -> None:
        notes = Stream(Numbers()).batch("baseline").notes
        assert notes is not None and notes.slowest is not None and notes.slowest[1] == ""
        assert len(notes.times) <= 4

    @pytest.mark.parametrize("rung", ["transform:1", "raw"])
    def test_rungs_of_transforms_serve_the_baseline(self, rung: str) -> None:
        """Transforms may be anywhere in a stream."""
        bench = Stream(Numbers())
        bench.batch(rung)
        assert bench.batch().batch[1].tolist() == [4, 5, 6, 7]


class TestSentToWorkers:
    """A worker gets a pickled or a forked copy, which begins with empty caches."""

    def test_pickled(self) -> None:
        bench = Bench(Transformed(Double()), default_collate)
        bench.stable("sample")
        assert bench.station._states
        twin = WorkerSide.__new__(WorkerSide)
        state = bench.station.__getstate__()
        twin.__dict__.update(state)
        assert twin._states == {}
        assert pickle.dumps({k: v for k, v in state.items() if k != "rung_switch"})

    def test_delivery(self) -> None:
        delivery = Delivery({"x": 1}, "raw", True, BatchCost(1.0, 2.0, 3.0, 4.0, 5.0), 2, "why")
        twin = pickle.loads(pickle.dumps(delivery))
        for name in Delivery.__slots__:
            assert getattr(twin, name) == getattr(delivery, name)

    def test_a_delivery_pins_its_batch(self) -> None:
        class Pinnable:
            pinned = False

            def pin_memory(self, *args: Any) -> Pinnable:
                self.pinned = True
                return self

        delivery = Delivery([Pinnable(), "text"], "raw", True, NO_COST, 0)
        assert delivery.pin_memory() is delivery
        assert delivery.batch[0].pinned


@pytest.mark.parametrize("rung, stable, fits", [("raw", True, True), ("raw", False, False), ("sample", True, False)])
def test_fits(rung: str, stable: bool, fits: bool) -> None:
    assert Delivery(None, rung, stable, NO_COST, 0).fits("raw") is fits


def test_programs_that_a_worker_runs_use_its_time() -> None:
    clock = with_children(lambda: 1.0)
    before = clock()
    subprocess.run([sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.1: pass"], check=True)
    assert before >= 1.0 and clock() - before >= 0.1


def test_queue_clock_goes_forward() -> None:
    clock = queue_clock()
    assert 0 <= clock() <= clock()
