"""Each live loader has its own remedy, nothing of the script's is kept alive, and on a CPU nothing moves."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from pipediag.errors import RunOver
from pipediag.host.rerouting import Rerouting
from pipediag.loop.training import Places
from pipediag.remedy import spotcheck
from pipediag.remedy.saved_plan import MOVES_ON_CPU

v2 = pytest.importorskip("torchvision.transforms.v2")


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, *links: Any) -> None:
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), *links])

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform((torch.arange(48) * index % 251).to(torch.uint8).reshape(3, 4, 4)), index


class Trained:
    """What a training under :class:`Rerouting` said, and what it got."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.seen: list[Any] = []
        self.model = nn.Linear(48, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def under_remedy(self, script: Callable[[Trained], None], **options: Any) -> Trained:
        options = {"plan": None, "approximate": False, "cache_dir": None, **options}
        torch.manual_seed(3)
        with Rerouting(say=self.said.append, warn=self.warned.append, **options).installed():
            script(self)
        return self

    def plainly(self, script: Callable[[Trained], None]) -> Trained:
        torch.manual_seed(3)
        script(self)
        return self

    def epoch(self, loader: Any) -> None:
        for images, labels in loader:
            self.seen += [images.clone(), labels.clone()]
            self.model(images.flatten(1).float()).sum().backward()
            self.optimizer.step()

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Trained)
        return all(torch.equal(one, two) for one, two in zip(self.seen, other.seen, strict=True))

    @property
    def moved(self) -> list[str]:
        return [line for line in self.said if line.startswith("moved from the loader")]


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MOVES_ON_CPU, "1")


def two_subsets(training: Trained, workers: int = 1) -> None:
    data = Images()
    loaders = [
        DataLoader(
            data,
            batch_size=4,
            sampler=SubsetRandomSampler(range(first, first + 12)),
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        for first in (0, 12)
    ]
    for _ in range(3):
        for loader in loaders:
            training.epoch(loader)


@pytest.mark.usefixtures("moves")
@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_over_one_dataset_get_their_own_samples(workers: int) -> None:
    ours = Trained().under_remedy(lambda training: two_subsets(training, workers))
    assert ours == Trained().plainly(lambda training: two_subsets(training, workers))
    assert len(ours.moved) == 2 and not ours.warned
    assert len(set(ours.moved)) == 2, "the user cannot tell the loaders of one line apart"


def rebuilt(training: Trained) -> Iterator[int]:
    """A script that makes dataset and loader for every epoch; yield how many datasets live after each."""
    made: list[weakref.ref[Any]] = []
    for _ in range(4):
        data = Images()
        made.append(weakref.ref(data))
        training.epoch(DataLoader(data, batch_size=4, shuffle=True))
        del data
        yield sum(one() is not None for one in made)


@pytest.mark.usefixtures("moves")
def test_no_dataset_is_kept_and_none_is_certified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    certify = spotcheck.certify
    monkeypatch.setattr(spotcheck, "certify", lambda *args: calls.append(1) or certify(*args))
    living: list[int] = []
    gc.disable()
    try:
        ours = Trained().under_remedy(lambda training: living.extend(rebuilt(training)))
    finally:
        gc.enable()
    assert living == [0, 0, 0, 0]
    assert ours == Trained().plainly(lambda training: list(rebuilt(training)) and None)
    assert len(calls) == 1 and len(ours.moved) == 1 and ours.moved == ours.said[-1:]


@pytest.mark.usefixtures("moves")
def test_a_loader_dies_with_the_scripts_references() -> None:
    left: list[Any] = []

    def script(training: Trained) -> None:
        loader = DataLoader(Images(), batch_size=4, num_workers=1, persistent_workers=True)
        training.epoch(loader)
        training.epoch(loader)
        left.extend(map(weakref.ref, (loader, loader.dataset, loader.sampler)))
        del loader
        assert [one() for one in left] == [None] * 3

    gc.disable()
    try:
        assert Trained().under_remedy(script).moved
    finally:
        gc.enable()


def train(training: Trained) -> None:
    loader = DataLoader(Images(), batch_size=4, shuffle=True)
    for _ in range(2):
        training.epoch(loader)


def test_on_a_cpu_nothing_moves_without_a_plan() -> None:
    ours = Trained().under_remedy(train)
    assert ours == Trained().plainly(train) and not ours.warned
    (line,) = ours.said
    assert line.startswith("nothing was moved: on a CPU nothing moves unless it was measured to be faster")


def test_what_fails_of_ours_leaves_the_script_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Rerouting, "_run", broken)
    ours = Trained().under_remedy(train)
    assert ours == Trained().plainly(train)
    assert "nothing was moved" in ours.warned[0] and "OSError: no room" in ours.warned[0]


class TestPlan:
    def plan(self, order: int) -> Any:
        from pipediag.remedy.saved_plan import SavedPlan, versions
        from pipediag.replay.plan import Piece, Plan, moved_links

        plan = Plan(pieces=(Piece((0,), 0, ("RandomHorizontalFlip",)),))
        line = f"test_rerouting.py:{Trained.epoch.__code__.co_firstlineno + 1}"
        return SavedPlan(
            f"{__name__}.Images",
            4,
            "cpu",
            tuple(moved_links(plan, Images())),
            where=line,
            order=order,
            versions=versions(),
        )

    @pytest.mark.parametrize("order", [0, 1])
    def test_names_one_of_two_loaders_at_a_line(self, order: int) -> None:
        ours = Trained().under_remedy(lambda training: two_subsets(training, 0), plan=self.plan(order))
        assert ours == Trained().plainly(lambda training: two_subsets(training, 0))
        assert len(ours.moved) == 1 and not ours.warned

    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("persistent", [False, True])
    def test_what_moves_is_certified_on_the_first_batches(
        self, monkeypatch: pytest.MonkeyPatch, workers: int, persistent: bool
    ) -> None:
        """Nothing is tried: no code of the script's runs that does not run in the plain script."""

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("it tries")

        monkeypatch.setattr("pipediag.remedy.loader.tried", refuse)

        def script(training: Trained) -> None:
            loader = DataLoader(
                Images(), 4, shuffle=True, num_workers=workers, persistent_workers=persistent and workers > 0
            )
            for _ in range(4):
                training.epoch(loader)

        plan = dataclasses.replace(self.plan(0), pieces=(((0,), 0, ("RandomHorizontalFlip",)),))
        ours = Trained().under_remedy(script, plan=plan)
        assert ours == Trained().plainly(script) and not ours.warned
        first, second = ours.said
        assert first.startswith("RandomHorizontalFlip of the loader at ") and first.endswith("batches are compared")
        assert second == ours.moved[0] and "to cpu: RandomHorizontalFlip; the pixels are equal" in second

    def test_of_other_transforms_is_refused(self) -> None:
        plan = dataclasses.replace(self.plan(0), pieces=(((0,), 0, ("RandomVerticalFlip",)),), moved=(("Other", "0"),))
        with pytest.raises(RunOver, match="the plan moves Other, of this loader moves RandomHorizontalFlip"):
            Trained().under_remedy(train, plan=plan)

    def test_of_a_loader_that_is_not_there(self) -> None:
        ours = Trained().under_remedy(lambda training: two_subsets(training, 0), plan=self.plan(2))
        assert ours == Trained().plainly(lambda training: two_subsets(training, 0))
        assert ours.said == ["nothing was moved: the plan's loader was not iterated"]

    def test_of_a_loader_at_another_line(self) -> None:
        plan = dataclasses.replace(self.plan(0), where="test_rerouting.py:1", order=2)
        with pytest.raises(
            RunOver, match=r"made for another loader \(.*iterated as number 3 at test_rerouting\.py:1\)"
        ):
            Trained().under_remedy(lambda training: two_subsets(training, 0), plan=plan)


class Thing:
    """Something that can die."""


def test_places() -> None:
    places, one, other = Places(), Thing(), Thing()
    assert [places.of(thing, "a.py:1") for thing in (one, other, one)] == [("a.py:1", 0), ("a.py:1", 1), ("a.py:1", 0)]
    assert places.of(other, "a.py:2") == ("a.py:2", 0)
    del one
    again = Thing()
    assert places.of(again, "a.py:1") == ("a.py:1", 0), "it is in the place of the one that is gone"
    assert places.of(Thing(), "a.py:1") == ("a.py:1", 2)
