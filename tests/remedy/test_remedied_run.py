"""A run under the remedy gives the plain loader's batches; giving it up loses and repeats no sample."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchvision.transforms import v2

from pipediag.remedy.finding import Known
from pipediag.remedy.remedied_run import RemediedRun
from pipediag.replay.certify import certifying
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.plan import Piece, Plan
from pipediag.streams import to_device

CPU = torch.device("cpu")
NATIVE: Callable[[Any], Any] = DataLoader._get_iterator
BATCHES = 12


class Images(Dataset[tuple[Tensor, int]]):
    def __init__(self, *links: Callable[[Any], Any], damaged: int = -1) -> None:
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), *links])
        self.damaged = damaged

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.damaged:
            raise LookupError(f"sample {index} is damaged")
        return self.transform(torch.full((3, 8, 8), 5 * index, dtype=torch.uint8)), index


class Kept(Images):
    """Images that code keeps outside of their batches."""

    def __init__(self, share: int) -> None:
        super().__init__(v2.ToDtype(torch.float32))
        self.share, self.kept = share, list[Tensor]()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, _ = super().__getitem__(index)
        if index % self.share == 0:
            self.kept.append(image)
        return image, index


class Lines(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


class Run(RemediedRun):
    """A run whose iterator is that of one loader, which it keeps."""

    def __init__(self, loader: DataLoader[Any], said: Lines, **settings: Any) -> None:
        super().__init__(loader, CPU, NATIVE, contextlib.nullcontext, said, **settings)
        self.loader = loader
        self.kept: Any = None  # the iterator of a loader with persistent workers

    def begun(self) -> Any:
        """The result of ``iter()``, which a loader with persistent workers resets."""
        if self.kept is not None and self.loader.persistent_workers:
            self.kept._reset(self.loader)
            return self.kept
        made = self.iterator(self.loader)
        self.kept = made if self.loader.persistent_workers else None
        return made


#: What the tests before have found out: the same transforms need not be tried again.
KNOWN = Known()


def stand_in(loader: DataLoader[Any], said: Lines | None = None, **settings: Any) -> Run:
    known = None if "planned" in settings else KNOWN
    return Run(loader, said if said is not None else Lines(), **{"known": known, **settings})


def make(workers: int, dataset: Dataset[Any] | None = None, **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset or Images(), batch_size=4, shuffle=True, num_workers=workers, **settings)


def labels(batches: Iterator[Any]) -> list[int]:
    return [int(label) for _, batch in batches for label in batch]


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_batches_and_draws_are_the_plain_loaders(workers: int, persistent: bool) -> None:
    def epochs(loader: Any, iterate: Callable[[], Iterator[Any]]) -> tuple[list[list[Any]], Tensor]:
        torch.manual_seed(3)
        seen = [list(iterate()) for _ in range(3)]
        return seen, torch.get_rng_state()

    plain = make(workers, persistent_workers=persistent)
    theirs, state = epochs(plain, lambda: iter(plain))
    loader = make(workers, persistent_workers=persistent)
    stand = stand_in(loader)
    ours, after = epochs(loader, stand.begun)
    assert [name for name, _ in stand.links] == ["RandomHorizontalFlip"]
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(state, after) and stand.course.handed == 3 * BATCHES and not stand.course.given_up


def test_the_iterator_is_one_of_torchs_kind() -> None:
    loader = make(0)
    iterator = stand_in(loader).begun()
    assert isinstance(iterator, _BaseDataLoaderIter) and iter(iterator) is iterator and len(iterator) == BATCHES
    next(iterator)
    assert iterator._num_yielded == 1
    iterator._reset(loader)
    assert len(list(iterator)) == BATCHES
    with pytest.raises(StopIteration):
        next(iterator)


WORKERS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])


def batches_of(
    loader: DataLoader[Any], stand: Run | None, disturb: Callable[[int, int], object] = lambda epoch, step: None
) -> tuple[list[Any], Tensor]:
    """The batches of three epochs, plainly or under a run, and the state of the generator at the end.

    An error of a batch stands in its place; ``disturb`` is called after each batch.
    """
    torch.manual_seed(3)
    seen: list[Any] = []
    kept: Any = None
    for epoch in range(3):
        if kept is not None and loader.persistent_workers:
            kept._reset(loader)
        else:
            kept = NATIVE(loader) if stand is None else stand.begun()
        for step in range(10**6):
            try:
                seen.append(next(kept))
            except StopIteration:
                break
            except LookupError as error:
                seen.append([str(error).splitlines()[0]])
            disturb(epoch, step)
    return seen, torch.get_rng_state()


def alike(one: tuple[list[Any], Tensor], other: tuple[list[Any], Tensor]) -> bool:
    def equal(x: Any, y: Any) -> bool:
        return torch.equal(x, y) if isinstance(x, Tensor) else bool(x == y)

    pairs = zip(one[0], other[0], strict=True)
    return torch.equal(one[1], other[1]) and all(equal(x, y) for a, b in pairs for x, y in zip(a, b, strict=True))


class TestGivingUpIsExact:
    """The batches are bit for bit those of the plain loader, before and after, in this epoch and the next ones."""

    @WORKERS
    def test_in_mid_epoch(self, workers: int, persistent: bool) -> None:
        said = Lines()
        stand = stand_in(make(workers, persistent_workers=persistent), said)
        at = (1, 4)
        ours = batches_of(stand.loader, stand, lambda *now: stand.give_up("a test") if now == at else None)
        assert alike(ours, batches_of(make(workers, persistent_workers=persistent), None))
        assert said == ["back to the plain loader: a test"] and stand.course.handed == BATCHES + 5

    @WORKERS
    def test_if_a_batch_cannot_be_brought_to_the_device(
        self, workers: int, persistent: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = Lines()
        stand = stand_in(make(workers, persistent_workers=persistent), said)
        right = stand.offloaded.feed.arrive

        def arrive(sent: Any) -> Any:
            if isinstance(sent, Packed) and stand.course.handed == 3:
                raise RuntimeError("no memory")
            return right(sent)

        monkeypatch.setattr(stand.offloaded.feed, "arrive", arrive)
        ours = batches_of(stand.loader, stand)
        assert alike(ours, batches_of(make(workers, persistent_workers=persistent), None))
        assert stand.course.given_up == "RuntimeError: no memory" and len(said) == 1

    @WORKERS
    def test_a_corrupt_sample_that_the_loop_skips(self, workers: int, persistent: bool) -> None:
        """Nothing is given up for it: the workers go on."""
        data, said = Images(), Lines()
        stand = stand_in(make(workers, data, persistent_workers=persistent), said)
        data.damaged = 17
        ours = batches_of(stand.loader, stand)
        assert alike(ours, batches_of(make(workers, Images(damaged=17), persistent_workers=persistent), None))
        assert sum(len(batch) == 1 for batch in ours[0]) == 3 and not said

    @pytest.mark.parametrize(("share", "given_up"), [(1, to_device._KEPT), (8, "")])
    def test_most_images_are_kept_outside_of_their_batches(self, share: int, given_up: str) -> None:
        """What is kept is a usual image, which had to be made here too."""
        stand, plain = stand_in(make(0, data := Kept(share))), make(0, Kept(share))
        assert alike(batches_of(stand.loader, stand), batches_of(plain, None))
        assert stand.course.given_up == given_up and stand.course.handed > BATCHES // 2
        assert {type(image) for image in data.kept} == {Tensor}
        assert torch.equal(torch.stack(data.kept), torch.stack(plain.dataset.kept))

    @WORKERS
    def test_changes_in_the_training_process(self, workers: int, persistent: bool) -> None:
        """Persistent workers must not see them."""

        def change(loader: DataLoader[Any]) -> Callable[[int, int], None]:
            def disturb(epoch: int, step: int) -> None:
                loader.dataset.transform.transforms[0].p = 1.0
                loader.dataset.transform.note = epoch

            return disturb

        stand = stand_in(make(workers, persistent_workers=persistent))
        plain = make(workers, persistent_workers=persistent)
        assert alike(batches_of(stand.loader, stand, change(stand.loader)), batches_of(plain, None, change(plain)))
        assert not stand.course.given_up and stand.offloaded.recorded

    def test_of_the_users_own_code_with_persistent_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def of(stand: Run | None, loader: DataLoader[Any]) -> tuple[list[Any], Tensor]:
            def disturb(epoch: int, step: int) -> None:
                if (epoch, step) == (0, BATCHES - 1):
                    patch.setitem(globals(), "STRENGTH", torch.tensor(0.7))

            with monkeypatch.context() as patch:
                return batches_of(loader, stand, disturb)

        stand = stand_in(make(2, Images(v2.ToDtype(torch.float32), darken), persistent_workers=True))
        plain = make(2, Images(v2.ToDtype(torch.float32), darken), persistent_workers=True)
        assert [name for name, _ in stand.links] == ["RandomHorizontalFlip", "ToDtype", "darken"]
        assert alike(of(stand, stand.loader), of(None, plain))

    def test_of_the_users_own_code_inside_an_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without workers each sample sees it."""

        def of(stand: Run | None, loader: DataLoader[Any]) -> tuple[list[Any], Tensor]:
            def disturb(epoch: int, step: int) -> None:
                strength.fill_(0.5 + step / 16)

            strength = torch.tensor(0.5)
            monkeypatch.setitem(globals(), "STRENGTH", strength)
            return batches_of(loader, stand, disturb)

        stand = stand_in(make(0, Images(v2.ToDtype(torch.float32), darken)))
        plain = make(0, Images(v2.ToDtype(torch.float32), darken))
        assert [name for name, _ in stand.links] == ["RandomHorizontalFlip", "ToDtype", "darken"]
        assert alike(of(stand, stand.loader), of(None, plain))

    def test_a_persistent_loader_that_evaluates_gets_plain_batches(self) -> None:
        stand = stand_in(make(2, persistent_workers=True))
        iterator = stand.begun()
        assert len(list(iterator)) == stand.course.handed == BATCHES
        with torch.no_grad():
            iterator._reset(stand.loader)
            assert len(list(iterator)) == BATCHES
        assert stand.course.handed == BATCHES and not stand.course.given_up


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_dataset_is_raised_unchanged(workers: int) -> None:
    damaged = Images()
    stand = stand_in(make(workers, damaged))
    damaged.damaged = 17
    seen: list[int] = []
    batches = stand.begun()
    with pytest.raises(LookupError, match="sample 17 is damaged") as raised:
        for _, batch in batches:
            seen += batch.tolist()
    assert 17 not in seen and len(seen) == len(set(seen)) == 4 * stand.course.handed
    assert "pipediag/remedy" not in str(raised.value)
    seen += labels(batches)  # a loop that continues loses only that batch, as with the plain loader
    assert 17 not in seen and len(seen) == len(set(seen)) == 4 * (BATCHES - 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_after_an_error_of_the_dataset_has_the_remedy(workers: int) -> None:
    damaged, said = Images(), Lines()
    stand = stand_in(make(workers, damaged), said)
    damaged.damaged = 17
    with pytest.raises(LookupError, match="sample 17 is damaged"):
        list(stand.begun())
    assert not stand.course.given_up and not said
    damaged.damaged, handed = -1, stand.course.handed
    assert sorted(labels(stand.begun())) == list(range(4 * BATCHES))
    assert stand.course.handed == handed + BATCHES


def test_a_worker_that_dies_ends_the_epoch_as_with_the_plain_loader() -> None:
    said, data = Lines(), Images()
    sampler = RandomSampler(data, replacement=True, num_samples=1600)  # far more than are fetched ahead
    stand = stand_in(DataLoader(data, batch_size=4, sampler=sampler, num_workers=2), said)
    before = set(multiprocessing.active_children())
    batches = stand.begun()
    next(batches)
    os.kill((set(multiprocessing.active_children()) - before).pop().pid or 0, signal.SIGKILL)
    with pytest.raises((RuntimeError, OSError, EOFError)):  # whichever comes first, as with the plain loader
        for _ in batches:
            pass
    assert not stand.course.given_up and not said
    assert len(list(stand.begun())) == 400


def darken(image: Tensor) -> Tensor:
    return image * STRENGTH


STRENGTH = torch.tensor(0.5)


class TestChanges:
    def given_up(self, change: Callable[[DataLoader[Any]], object]) -> str:
        loader = make(0, Images(v2.ToDtype(torch.float32), darken))
        stand = stand_in(loader)
        assert [name for name, _ in stand.links] == ["RandomHorizontalFlip", "ToDtype", "darken"]
        assert len(list(stand.begun())) == BATCHES and not stand.course.given_up
        change(loader)
        theirs = list(NATIVE(loader))
        assert len(list(stand.begun())) == len(theirs)
        return stand.course.given_up

    def test_none(self) -> None:
        assert self.given_up(lambda loader: None) == ""

    @pytest.mark.parametrize(("name", "value"), [("p", 1.0), ("note", {"epochs": [1, 2]})])
    def test_settings_of_torchvisions_transforms_are_followed(self, name: str, value: Any) -> None:
        assert self.given_up(lambda loader: setattr(loader.dataset.transform.transforms[0], name, value)) == ""

    def test_of_the_code_of_a_transform(self) -> None:
        def change(loader: DataLoader[Any]) -> None:
            loader.dataset.transform.transforms[0].transform = lambda image, params: image

        assert "RandomHorizontalFlip has changed" in self.given_up(change)

    def test_of_a_global_that_the_users_own_code_uses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        change = lambda loader: monkeypatch.setitem(globals(), "STRENGTH", torch.tensor(0.7))  # noqa: E731
        assert self.given_up(change) == "", "each call reads it, as in the plain script"

    def test_of_the_chain(self) -> None:
        assert "has changed" in self.given_up(
            lambda loader: setattr(loader.dataset, "transform", v2.Compose([v2.RandomVerticalFlip()]))
        )

    def test_of_the_sampler(self) -> None:
        def change(loader: DataLoader[Any]) -> None:
            loader.__dict__["sampler"] = RandomSampler(loader.dataset)

        assert self.given_up(change) == "the loader has another sampler than before"


@pytest.mark.parametrize("links", [(), (v2.ToDtype(torch.float32), darken)], ids=["torchvisions", "own"])
def test_a_rebuilt_loader_is_not_certified_again(links: tuple[Any, ...]) -> None:
    dataset, known = Images(*links), Known()
    certificate = stand_in(make(0, dataset), known=known).offloaded.certificate
    again = stand_in(make(0, dataset), known=known)
    assert again.offloaded.certificate is certificate is not None
    assert alike(batches_of(again.loader, again), batches_of(make(0, dataset), None))
    other = stand_in(make(0, Images(*links)), known=known)
    assert other.offloaded.certificate is certificate
    gone = weakref.ref(dataset)
    del dataset, again
    assert gone() is None


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from range(4 * BATCHES)


class TestHandOffAlone:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_batches_are_the_plain_loaders(self, workers: int) -> None:
        """Nothing moves, so there are no spot checks."""
        loader = make(workers)
        stand = stand_in(loader, transforms=False, every=1, after=0.0)
        torch.manual_seed(3)
        ours = list(stand.begun())
        torch.manual_seed(3)
        assert same(ours, list(NATIVE(loader)))
        assert stand.links == [] and not stand.course.given_up and stand._check.checked == 0
        assert not stand.offloaded.plan.pieces

    def test_of_a_stream(self) -> None:
        stand = stand_in(DataLoader(Numbers(), batch_size=4, num_workers=1), transforms=False)
        for _ in range(2):
            assert [n for batch in stand.begun() for n in batch.tolist()] == list(range(4 * BATCHES))

    def test_a_stream_does_not_begin_again_after_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stand = stand_in(DataLoader(Numbers(), batch_size=4, num_workers=1), transforms=False)
        iterator = stand.begun()
        seen = next(iterator).tolist()

        def broken(sent: Any) -> Any:
            raise RuntimeError("no memory")

        monkeypatch.setattr(stand.offloaded.feed, "arrive", broken)
        assert seen + [n for batch in iterator for n in batch.tolist()] == list(range(4 * BATCHES))
        assert stand.course.given_up == "RuntimeError: no memory"


class Still:
    """A clock that stands still."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds


class TestSpotCheck:
    def test_passes_again_and_again(self) -> None:
        said = Lines()
        stand = stand_in(make(0), said, clock=Still(), every=4, after=0.0)
        torch.manual_seed(3)
        ours = list(stand.begun())
        torch.manual_seed(3)
        assert same(ours, list(NATIVE(make(0)))), "the run's random numbers have changed"
        assert stand._check.checked == 2 and not said

    @WORKERS
    def test_nothing_runs_but_what_the_plain_script_runs(self, workers: int, persistent: bool) -> None:
        """Not even where samples are checked; those are the plain loader's, bit by bit."""

        class Counting(Images):
            made = torch.zeros(4 * BATCHES, dtype=torch.int64).share_memory_()

            def __getitem__(self, index: int) -> tuple[Tensor, int]:
                self.made[index] += 1
                return super().__getitem__(index)

        said = Lines()
        loader = make(workers, Counting(v2.ToDtype(torch.float32)), persistent_workers=persistent)
        plain, state = batches_of(make(workers, loader.dataset, persistent_workers=persistent), None)
        stand = stand_in(loader, said, clock=Still(), every=3, after=0.0)
        Counting.made.zero_()
        ours, after = batches_of(loader, stand)
        assert same(ours, plain) and torch.equal(after, state) and not said
        assert stand._check.checked >= 3 and Counting.made.unique().tolist() == [3]

    @pytest.mark.parametrize(("wrong", "why"), [(False, ""), (True, "its first batches found other pixels")])
    def test_a_known_plan_is_certified_before_anything_moves(
        self, monkeypatch: pytest.MonkeyPatch, wrong: bool, why: str
    ) -> None:
        plan = Plan(pieces=(Piece((0,), 0, ("RandomHorizontalFlip", "ToDtype")),))
        right = certifying.replay
        if wrong:
            monkeypatch.setattr(certifying, "replay", lambda *args: [right(*args)[0] + 1, right(*args)[1]])
        replays: list[int] = []
        monkeypatch.setattr(to_device, "replay", lambda *args: replays.append(1) or right(*args))
        certified: list[Any] = []
        said, loader = Lines(), make(0, Images(v2.ToDtype(torch.float32)))
        stand = stand_in(loader, said, planned=plan, told=certified.append, clock=Still())
        plain, state = batches_of(make(0, loader.dataset), None)
        ours, after = batches_of(loader, stand)
        assert same(ours, plain) and torch.equal(after, state)
        proof = stand.offloaded.certificate
        assert proof is not None and proof.passed is not wrong and proof.samples == 48, "an epoch has no more"
        assert len(replays) == (0 if wrong else 2 * BATCHES - 1)
        assert len(said) == wrong and why in stand.course.given_up and certified == [stand] * (not wrong)
        compared = {one.name: one.samples for one in (*proof.ops, *proof.whole)}
        assert compared["to_dtype"] == compared["whole batches, float32"] == 48

    def test_none_in_the_first_minute(self) -> None:
        clock = Still(1000.0)
        stand = stand_in(make(0), clock=clock, every=4)
        list(stand.begun())
        assert stand._check.checked == 0
        clock.seconds += 60.0
        list(stand.begun())
        assert stand._check.checked > 0

    def test_takes_little_of_the_time(self) -> None:
        class Ticking:
            ticks = 0.0

            def now(self) -> float:
                self.ticks += 1.0
                return self.ticks

        stand = stand_in(make(0), clock=Ticking(), every=2, after=0.0)
        list(stand.begun())
        assert stand._check.checked == 1, "it took a second, and is not due again within the next minutes"

    def test_other_pixels_end_the_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For example because a driver fails in the middle of an epoch."""
        said = Lines()
        stand = stand_in(make(0, Images(v2.ToDtype(torch.float32))), said, every=4, after=0.0)
        right = certifying.replay

        def wrong(*args: Any) -> Any:
            images, labels = right(*args)
            return [images + 1, labels]

        monkeypatch.setattr(certifying, "replay", wrong)
        assert sorted(labels(stand.begun())) == list(range(4 * BATCHES))
        assert stand.course.handed == 5 and "other pixels" in stand.course.given_up
        assert said == [f"back to the plain loader: {stand.course.given_up}"]

    def test_a_failed_check_ends_the_remedy_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        damaged = Images()
        stand = stand_in(make(0, damaged), every=2, after=0.0)
        iterator = stand.begun()
        seen = labels(iter([next(iterator)]))

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise OSError("no process")

        monkeypatch.setattr("pipediag.remedy.spotcheck.certify", refuse)
        seen += labels(iterator)
        assert sorted(seen) == list(range(4 * BATCHES))
        assert stand.course.given_up == "a spot check failed with OSError: no process" and stand.course.handed == 3
