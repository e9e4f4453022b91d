"""The rungs of the remedies: their batches, and that their errors never reach the script."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

import pipediag
from pipediag.clock import SystemClock
from pipediag.ladder.remedy_trial import RemediedFeed, Trial
from pipediag.measure.device import Device
from pipediag.memo import system
from pipediag.session import (
    HANDED_OVER,
    LOADED_ONCE,
    REMEDIED,
    BatchFacts,
    Cost,
    Inside,
    Leaf,
    Remedy,
    Session,
    Window,
)

v2 = pytest.importorskip("torchvision.transforms.v2")


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(torch.full((3, 6, 6), index, dtype=torch.uint8)), index


def trial(loader: DataLoader[Any], endless: bool = True, session: Session | None = None, rung: str = REMEDIED) -> Trial:
    loop_side: Any = SimpleNamespace(
        feed=SimpleNamespace(loader=loader, endless=endless, backlog=loader.num_workers),
        setting=SimpleNamespace(session=session or Session(), aside=contextlib.nullcontext),
        device=Device(torch.device("cpu")),
        clock=SystemClock(),
    )
    return Trial(rung, loop_side, None, math.inf)


def make(workers: int = 0, transform: Any = None, **settings: Any) -> DataLoader[Any]:
    chain = transform or v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)])
    return DataLoader(Images(chain), batch_size=4, shuffle=True, num_workers=workers, **settings)


def feed_of(made: Trial) -> RemediedFeed:
    assert made.feed is not None, made.remedy.why_not
    return made.feed


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_go_on_beyond_the_epoch(workers: int) -> None:
    loader = make(workers)
    kept = vars(loader).copy()
    made = trial(loader)
    feed = feed_of(made)
    seen: list[int] = []
    for _ in range(7):
        delivery = feed.take()
        assert delivery is not None and delivery.fits(REMEDIED)
        images, labels = delivery.batch
        assert images.dtype is torch.float32
        seen += labels.tolist()
    assert sorted(seen[:12]) == sorted(seen[12:24]) == list(range(12))
    assert len(feed.worker_pids) == feed.workers == workers and feed.waited > 0 and feed.backlog >= workers
    feed.close()
    feed.close()
    assert vars(loader) == kept


def test_its_workers_are_neither_seen_nor_paused_on_a_cpu() -> None:
    """They fill their queues, and then idle."""
    feed = feed_of(trial(make(1)))
    for _ in range(3):
        assert feed.take() is not None
        feed.pause()
        assert (feed.ready, feed.at_work) == (0, 0)
    feed.close()


def test_without_a_length_the_data_ends() -> None:
    feed = feed_of(trial(make(), endless=False))
    assert [feed.take() is not None for _ in range(4)] == [True, True, True, False]
    feed.renew()
    assert feed.take() is not None


def test_the_scripts_generators_are_left_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    loader = make(generator=generator)
    before = (generator.get_state(), random.getstate(), torch.get_rng_state())
    made = trial(loader)
    assert torch.equal(generator.get_state(), before[0])
    assert random.getstate() == before[1] and torch.equal(torch.get_rng_state(), before[2])
    feed_of(made).take()
    assert torch.equal(generator.get_state(), before[0])


def test_an_error_makes_the_rung_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = feed_of(trial(make()))
    assert feed.take() is not None

    class Broken:
        def __iter__(self) -> Iterator[Any]:
            raise RuntimeError("no memory")

    feed.close()
    monkeypatch.setattr(feed, "_offloaded", Broken())
    delivery = feed.take()
    assert delivery is not None and not delivery.fits(REMEDIED)
    assert delivery.rung == REMEDIED and delivery.why_not == "under the remedy: RuntimeError: no memory"


def through_numpy(image: Tensor) -> Tensor:
    return torch.from_numpy(image.numpy().copy())


def test_no_feed_if_nothing_moves() -> None:
    made = trial(make(transform=v2.Compose([v2.RandomHorizontalFlip(), through_numpy])))
    assert made.feed is None and "numpy" in made.remedy.why_not
    assert [kept.name for kept in made.remedy.stayed if kept.name] == ["through_numpy"]


def test_the_moved_transforms_are_reported() -> None:
    remedy = trial(make(transform=v2.Compose([through_numpy, v2.RandomHorizontalFlip()]))).remedy
    assert [place.name for place in remedy.moved] == ["RandomHorizontalFlip"] and not remedy.why_not
    assert [(kept.name, "numpy" in kept.why) for kept in remedy.stayed] == [("through_numpy", True)]
    assert remedy.proof is not None and remedy.proof.passed and remedy.memory_bytes is None
    assert remedy.plan["dataset"].endswith("Images") and remedy.plan["batch_size"] == 4
    assert [name for name, _ in remedy.plan["moved"]] == ["RandomHorizontalFlip"]


def test_the_hand_off_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipediag.remedy.handoff.why_not", lambda loader, device: "")
    made = trial(make(transform=v2.Compose([v2.RandomHorizontalFlip(), through_numpy])), rung=HANDED_OVER)
    delivery = feed_of(made).take()
    assert delivery is not None and delivery.fits(HANDED_OVER) and not delivery.fits(REMEDIED)
    assert made.remedy.moved == [] and made.remedy.proof is None and not made.remedy.why_not
    assert made.remedy.plan["moved"] == () and made.remedy.plan["batch_size"] == 4
    sent: list[str] = []
    made.send(lambda kind, data: sent.append(kind))
    assert sent == ["handoff"]


@pytest.mark.parametrize(
    ("raises", "batch", "why"),
    [
        (False, None, "it is for a GPU"),
        (True, None, "trying it failed with ZeroDivisionError: division by zero"),
        # no batch is made if it cannot pay
        (
            True,
            BatchFacts(leaves=[Leaf("", [4], "int64", 8, 32, copied=False)]),
            "the loop copies no part of its batches to the device",
        ),
    ],
)
def test_why_the_hand_off_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, raises: bool, batch: BatchFacts | None, why: str
) -> None:
    if raises:
        monkeypatch.setattr("pipediag.remedy.handoff.why_not", lambda loader, device: 1 / 0)
    made = trial(make(1), session=Session(batch=batch), rung=HANDED_OVER)
    assert made.feed is None and why in made.remedy.why_not


@pytest.mark.parametrize(("ms", "samples"), [(0.1, 64), (400.0, 37), (60_000.0, 8)])
def test_slow_samples_are_certified_on_fewer(monkeypatch: pytest.MonkeyPatch, ms: float, samples: int) -> None:
    asked: list[tuple[int, bool]] = []

    def refuse(loader: Any, device: Any, samples: int, approximate: bool) -> Any:
        asked.append((samples, approximate))
        raise RuntimeError("enough")

    monkeypatch.setattr("pipediag.remedy.offload", refuse)
    made = trial(make(), session=Session(inside=Inside(8, Cost(ms, ms))))
    assert asked == [(samples, False)] and made.feed is None
    assert made.remedy.why_not == "trying it failed with RuntimeError: enough"


@pipediag.pure
def loaded(index: int) -> Tensor:
    time.sleep(0.002)
    return torch.full((3, 6, 6), index, dtype=torch.uint8)


class Loading(Images):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(loaded(index)), index


def loading(workers: int = 0) -> DataLoader[Any]:
    chain = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32)])
    return DataLoader(Loading(chain), batch_size=4, shuffle=True, num_workers=workers)


class TestLoadedOnce:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_its_first_batches_are_kept_and_served_again(self, workers: int) -> None:
        made = trial(loading(workers), rung=LOADED_ONCE)
        keeping, feed = made.remedy.keeping, feed_of(made)
        assert keeping is not None and keeping.what == "kept as @pipediag.pure gives them"
        assert keeping.nbytes >= 12 * 108 and keeping.fits == 1
        seen = [feed.take() for _ in range(8)]
        labels = [tuple(delivery.batch[1].tolist()) for delivery in seen if delivery is not None]
        assert len(labels) == 8 and len(set(labels)) == 2, "only the batches that were kept at first"
        for delivery in seen:
            assert delivery is not None and delivery.fits(LOADED_ONCE)
            images, numbers = delivery.batch
            assert torch.equal(images[:, 0, 0, 0], numbers.float())
        assert made.remedy.plan["caches"] and not made.remedy.plan["moved"]
        assert made.remedy.plan["dataset"].endswith("Loading")
        feed.close()

    def test_together_with_the_offload_if_that_pays(self) -> None:
        session = Session(remedy=Remedy(device="cpu"))
        for round_ in range(1, 5):
            session.windows += [Window("baseline", round_, 10, 1.0), Window(REMEDIED, round_, 10, 0.3)]
        made = trial(loading(), session=session, rung=LOADED_ONCE)
        feed_of(made)
        assert [place.name for place in made.remedy.moved] == ["RandomHorizontalFlip", "ToDtype"]
        assert made.remedy.plan["caches"] and len(made.remedy.plan["moved"]) == 2

    def test_why_it_is_not_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for free, loader, why in (
            (None, make(), "mark functions of your own with @pipediag.pure"),
            (None, DataLoader(Stream(), batch_size=4), "iterable"),
            (40, loading(), "of the samples fit into memory"),
        ):
            if free is not None:
                monkeypatch.setattr(system, "free_memory", lambda: 40)
            made = trial(loader, rung=LOADED_ONCE)
            assert made.feed is None and why in made.remedy.why_not


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((3,), number) for number in range(100))
