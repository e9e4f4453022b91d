"""A trial changes nothing that belongs to the user."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Sampler
from torchvision.transforms import v2

from pipediag.loop import separate_process
from pipediag.loop.separate_process import TrialFailed
from pipediag.remedy import offload
from pipediag.remedy.loader import found, witnesses
from pipediag.replay.plan import Plan
from pipediag.usercode import randomness

from .sameness import Images, check_same, draws, floats, loader, moved, pixels, seen

CPU = torch.device("cpu")
WORKERS = pytest.mark.parametrize("workers", [0, 1])


def chain() -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianBlur(3), v2.RandomVerticalFlip()])


# ---- nothing changes


class Watched(Images):
    """Counts its calls, caches, and draws from its own generators."""

    def __init__(self) -> None:
        super().__init__(chain(), length=20)
        self.calls = 0
        self.kept: dict[int, Tensor] = {}
        self.python = random.Random(0)
        self.numpy = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        raw = self.kept.setdefault(index, pixels(index))
        return self.transform(raw), (self.python.random(), float(self.numpy.random())), draws()

    def state(self) -> Any:
        generators = self.python.getstate(), repr(self.numpy.bit_generator.state)
        return self.calls, sorted(self.kept), generators, dict(vars(self.transform))


class WatchedMore(Watched):
    """Also draws from a torch generator, which only a forked process can have."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), torch.rand((), generator=self.torch)

    def state(self) -> Any:
        return super().state(), self.torch.get_state().tolist()


class Shuffled(Sampler[int]):
    """Draws from its own generator, and counts its epochs."""

    def __init__(self, seed: int = 3) -> None:
        self.generator = np.random.default_rng(seed)
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(self.generator.permutation(20).tolist())

    def __len__(self) -> int:
        return 20

    def state(self) -> Any:
        return self.epochs, repr(self.generator.bit_generator.state)


def _state(*objects: Any) -> Any:
    python, of_torch, of_numpy = randomness.state()
    own = [one.state() for one in objects]
    with np.printoptions(threshold=sys.maxsize):
        return own, python, of_torch.tolist(), str(of_numpy)


@pytest.mark.parametrize(
    ("kind", "workers", "method"),
    [(WatchedMore, 0, None), (WatchedMore, 1, "fork"), pytest.param(Watched, 1, "spawn", marks=pytest.mark.slow)],
)
def test_a_trial_changes_nothing_of_the_users(kind: type[Watched], workers: int, method: str | None) -> None:
    dataset, sampler = kind(), Shuffled()
    made = loader(dataset, sampler=sampler, num_workers=workers, multiprocessing_context=method)
    before, settings = _state(dataset, sampler), dict(vars(made))
    offloaded = offload(made, CPU, samples=10)
    assert _state(dataset, sampler) == before
    assert vars(made) == settings
    assert moved(offloaded) == ["RandomHorizontalFlip GaussianBlur RandomVerticalFlip"]
    assert offloaded.certificate is not None
    assert offloaded.certificate.passed


@pytest.mark.parametrize("method", [None, "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_loaders_own_generator_is_left_alone(method: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    workers = {"num_workers": 1, "multiprocessing_context": method} if method else {}
    offloaded = offload(loader(Images(chain()), shuffle=True, generator=generator, **workers), CPU, samples=8)
    assert torch.equal(generator.get_state(), before)
    assert offloaded.plan.pieces


class Pixelwise:
    """The user's own code, which counts its calls."""

    of_all = 0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: Tensor) -> Tensor:
        self.calls += 1
        Pixelwise.of_all += 1
        return sample * 0.5


class Printing(Images):
    """Dataset whose samples print, also by other means than Python's."""

    def __getitem__(self, index: int) -> Any:
        print("sample", index, flush=True)
        os.write(2, b"sample")
        return super().__getitem__(index)


@WORKERS
def test_what_a_trial_prints_is_not_seen(workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert offload(loader(Printing(chain()), num_workers=workers), CPU, samples=8).plan.pieces
    assert capfd.readouterr() == ("", "")


@WORKERS
def test_a_trial_changes_nothing_of_the_users_own_code(workers: int) -> None:
    link = Pixelwise()
    offloaded = offload(loader(Images(v2.Compose([v2.RandomHorizontalFlip(), link]), floats), num_workers=workers), CPU)
    assert offloaded.plan.reasons == ("Pixelwise: it keeps state from call to call",)
    assert (link.calls, Pixelwise.of_all) == (0, 0)


class FromFile(Images):
    """Reads from an open file, not at its beginning."""

    def __init__(self, path: Path) -> None:
        super().__init__(v2.RandomHorizontalFlip(), length=40)
        path.write_bytes(struct.pack("<I", 40) + b"".join(pixels(index).numpy().tobytes() for index in range(40)))
        self.file = path.open("rb")
        self.first = struct.unpack("<I", self.file.read(4))

    def __getitem__(self, index: int) -> Any:
        size = 3 * 40 * 56
        self.file.seek(4 + index * size)
        raw = torch.frombuffer(bytearray(self.file.read(size)), dtype=torch.uint8)
        return self.transform(raw.reshape(3, 40, 56)), draws()


@WORKERS
def test_the_position_in_an_open_file_is_left_alone(workers: int, tmp_path: Path) -> None:
    dataset = FromFile(tmp_path / "images")
    before = os.lseek(dataset.file.fileno(), 0, os.SEEK_CUR)
    offload(loader(dataset, num_workers=workers), CPU)
    assert os.lseek(dataset.file.fileno(), 0, os.SEEK_CUR) == before


@WORKERS
def test_batches_from_an_open_file_are_the_plain_loaders(workers: int, tmp_path: Path) -> None:
    theirs = seen(loader(FromFile(tmp_path / "theirs"), num_workers=workers))
    offloaded = offload(loader(FromFile(tmp_path / "ours"), num_workers=workers), CPU)
    check_same(seen(offloaded), theirs, CPU)
    assert moved(offloaded) == ["RandomHorizontalFlip"]


def appends(folder: Path) -> None:
    with open(folder / "log", "a") as log:
        log.write("sample")


def counts(folder: Path) -> None:
    with (folder / "log").open("r+") as log:
        log.write("sample")


def maps(folder: Path) -> None:
    mapped = np.load(folder / "array.npy", mmap_mode="r+")
    mapped += 1
    assert mapped[0] == 1


def saves(folder: Path) -> None:
    np.save(folder / "array.npy", np.ones(4))
    torch.save(torch.ones(4), folder / "tensor.pt")
    (folder / "new").write_text("sample")


def makes_again(folder: Path) -> None:
    (folder / "inner").mkdir(exist_ok=True)


def writes_temporary_files(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as inner, tempfile.NamedTemporaryFile("w") as file:
        file.write("sample")
        file.flush()
        assert Path(shutil.copy(file.name, inner)).read_text() == "sample"


def replaces(folder: Path) -> None:
    number, name = tempfile.mkstemp()
    os.close(number)
    try:
        os.replace(name, folder / "log")
    finally:
        Path(name).unlink(missing_ok=True)


class Writing(Images):
    """Dataset whose samples change files."""

    def __init__(self, write: Callable[[Path], Any], folder: Path) -> None:
        super().__init__(chain(), length=20)
        self.write, self.folder = write, folder
        self.log = (folder / "open").open("w", buffering=1)
        self.mapped = np.memmap(folder / "mapped", np.uint8, "w+", shape=(4,))

    def __getitem__(self, index: int) -> Any:
        self.log.write("sample\n")
        self.mapped += 1
        self.write(self.folder)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("write", "reason", "workers"),
    [
        (appends, "", 0),
        (maps, "", 0),
        (saves, "", 1),
        (makes_again, "", 0),
        (writes_temporary_files, "", 1),
        (counts, "UnsupportedOperation: not writable", 0),
        (lambda folder: os.rename(folder / "log", folder / "other"), "a trial changes no file", 0),
        (lambda folder: os.remove(folder / "log"), "a trial changes no file", 0),
        (lambda folder: os.mkdir(folder / "other"), "a trial changes no file", 0),
        (lambda folder: os.rmdir(folder / "inner"), "a trial changes no file", 0),
        (replaces, "a trial changes no file", 0),
        (lambda folder: os.open(folder / "log", os.O_WRONLY | os.O_TRUNC), "a trial changes no file", 0),
    ],
)
def test_a_trial_changes_no_file(
    write: Callable[[Path], Any], reason: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "log").write_text("before")
    np.save(folder / "array.npy", np.zeros(4))
    dataset = Writing(write, folder)
    before = {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")}
    plan = offload(loader(dataset, num_workers=workers), CPU, samples=8).plan
    assert {path: path.is_dir() or path.read_bytes() for path in tmp_path.rglob("*")} == before
    assert reason in "".join(plan.reasons) if reason else plan.pieces, plan.reasons


# ---- processes and samples


class Raises(Images):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such file")


class Dies(Images):
    """Ends any other process than the one that made it, at one index."""

    def __init__(self, index: int) -> None:
        super().__init__(chain(), length=20)
        self.index, self.process = index, os.getpid()

    def __getitem__(self, index: int) -> Any:
        if index == self.index and os.getpid() != self.process:
            os._exit(1)
        return super().__getitem__(index)


@WORKERS
def test_a_dataset_that_raises(workers: int) -> None:
    made = loader(Raises(chain()), num_workers=workers)
    with pytest.raises(TrialFailed, match="the dataset itself raises KeyError: 'no such file'"):
        found(made, Plan(), 4)
    with pytest.raises(TrialFailed, match="KeyError"):
        next(witnesses(made, Plan(), 4))
    offloaded = offload(made, CPU)
    assert offloaded.plan.pieces == ()
    (reason,) = offloaded.plan.reasons
    assert reason.startswith("the dataset itself raises KeyError: 'no such file' (sample ")


@pytest.mark.parametrize("batched", [True, False])
def test_a_sampler_that_asks_for_nothing(batched: bool) -> None:
    made = loader(Images(chain()), sampler=[], **({} if batched else {"batch_size": None}))
    with pytest.raises(TrialFailed, match="the loader asks for no sample"):
        found(made, Plan(), 4)
    assert list(offload(made, CPU)) == []


@WORKERS
def test_a_trial_whose_process_dies(workers: int) -> None:
    made = loader(Dies(0), num_workers=workers)
    with pytest.raises(TrialFailed, match="trying it ended the process"):
        found(made, Plan(), 4)
    offloaded = offload(made, CPU)
    assert offloaded.plan.pieces == ()
    (reason,) = offloaded.plan.reasons
    assert reason.startswith("trying it ended the process: ")


class NeedsThreads(Images):
    """Waits for a lock that another thread holds, which no forked process has."""

    def __init__(self) -> None:
        super().__init__(chain())
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        if index == 3 and multiprocessing.parent_process() is not None:
            self.lock.acquire()
        return super().__getitem__(index)


def test_code_that_stands_still_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separate_process, "_LOOK", 1)
    dataset = NeedsThreads()
    with dataset.lock:
        offloaded = offload(loader(dataset), CPU, samples=10)
    assert "stood still" in offloaded.plan.reasons[0] and not offloaded.recorded


def test_a_certificate_whose_process_dies() -> None:
    dataset = Dies(12)
    offloaded = offload(loader(dataset), CPU, samples=16)
    assert offloaded.plan.pieces == ()
    assert "exited unexpectedly" in offloaded.plan.reasons[-1]
    check_same(seen(offloaded), seen(loader(dataset)), CPU)


class Unpicklable(Images):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("not this one")


def test_a_dataset_that_cannot_be_pickled() -> None:
    made = loader(Unpicklable(chain()), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(TrialFailed, match="it cannot be tried in a process of its own: not this one"):
        found(made, Plan(), 4)
    assert moved(offload(loader(Unpicklable(chain())), CPU)) == ["RandomHorizontalFlip GaussianBlur RandomVerticalFlip"]


def test_no_process_is_left_behind() -> None:
    before = set(multiprocessing.active_children())
    offload(loader(Images(chain())), CPU)
    both = witnesses(loader(Images(chain())), Plan(), 16)
    next(both)
    del both  # ended after the first group
    end = time.monotonic() + 10
    while set(multiprocessing.active_children()) - before and time.monotonic() < end:
        time.sleep(0.05)
    assert set(multiprocessing.active_children()) <= before


class Collecting(Images):
    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return super().__getitem__(index)


class Finalized:
    """Notes the process that collects it. It references itself, so it waits for the garbage collector."""

    def __init__(self, file: Path) -> None:
        self.file, self.ring = file, self

    def __del__(self) -> None:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize("frozen", [False, True], ids=["nothing frozen", "something frozen"])
def test_garbage_is_collected_by_this_process(tmp_path: Path, frozen: bool) -> None:
    """Collecting a tensor on the device would crash any other process."""
    file = tmp_path / "collected"
    gc.unfreeze()
    gc.collect()
    gc.disable()
    try:
        if frozen:
            gc.freeze()
        count = gc.get_freeze_count()
        Finalized(file)
        offload(loader(Collecting(chain())), CPU)
        assert gc.get_freeze_count() == count
        gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
        gc.freeze()  # as it was
    assert file.read_text() == f"{os.getpid()}\n"


def test_samples_are_the_first_of_the_sampler() -> None:
    pairs = list(witnesses(loader(Images(chain()), sampler=[7, 3, 5, 1] * 3), Plan(), 10))
    assert [pair[1].number for pair in pairs] == [8, 2]
    assert [sample[1] for pair in pairs for sample in pair[0].samples] == [7, 3, 5, 1, 7, 3, 5, 1, 7, 3]


def test_both_ways_begin_in_one_state() -> None:
    plan = found(loader(Watched(), sampler=Shuffled()), Plan(), 8)
    for made, told in witnesses(loader(Watched(), sampler=Shuffled()), plan, 12):
        assert told.packed is not None
        memory = told.packed.memory
        # Draws from the dataset's own generators.
        own = zip(*(plain.of(memory) for plain in told.packed.batch[1]), strict=True)
        assert [tuple(map(float, one)) for one in own] == [sample[1] for sample in made.samples]
        assert randomness.moved(made.random_state, told.random_state) is None


class Placed(Images):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), os.getpid())


def test_several_workers_share_the_samples() -> None:
    made = loader(Placed(chain(), length=40), num_workers=2)
    pairs = list(witnesses(made, found(made, Plan(), 4), 36))
    assert [told.number for _, told in pairs] == [8, 8, 8, 8, 4]
    samples = [sample for real, _ in pairs for sample in real.samples]
    assert [sample[1] for sample in samples] == list(range(36))
    assert len({sample[-1] for sample in samples}) == 2
    for real, told in pairs:
        assert told.packed is not None and randomness.moved(real.random_state, told.random_state) is None


def init_by_seed(worker_id: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.begun = worker_id


class NeedsInit(Images):
    """Works only in a worker that :func:`init_by_seed` has initialized."""

    begun: int

    def __getitem__(self, index: int) -> Any:
        return self.transform(pixels(index)), self.begun


def test_a_trial_calls_the_workers_init_function() -> None:
    made = loader(NeedsInit(chain()), num_workers=1, worker_init_fn=init_by_seed)
    assert found(made, Plan(), 4).pieces
    with pytest.raises(TrialFailed, match="begun"):  # not called without workers, as in training
        found(loader(NeedsInit(chain()), worker_init_fn=init_by_seed), Plan(), 4)
