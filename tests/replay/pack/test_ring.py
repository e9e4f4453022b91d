"""Batches through a ring are the plain loader's, whatever happens to slots, workers and iterators."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import signal
import weakref
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as torchs_worker
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.errors import PipediagError, UsageError
from pipediag.loop.wrappers import InitWorker, StagedDataset
from pipediag.replay.pack import ring as ring_module
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.pack.ring import Lease, Ring, shared_memory
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find
from pipediag.replay.run.replay import replay
from pipediag.replay.worker import PackingSide, Unrecorded, handed_on
from pipediag.streams.to_device import packing
from pipediag.usercode import tree

from ...devices import GPU
from ...remedy.sameness import Images
from ...things import same
from ..waiting import synchronising_forbidden

CPU = torch.device("cpu")


# ---- loaders


def all_alike(index: int) -> int:
    return 5000


class Numbers(Dataset[Any]):
    """Sample ``index`` is a tensor of ``size(index)`` elements, all ``index``."""

    def __init__(self, length: int, size: Callable[[int], int] = all_alike) -> None:
        self.length = length
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((self.size(index),), index, dtype=torch.int32)


def loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, **settings})


def ring_for(plain: DataLoader[Any], slots: int | None = None, device: torch.device | None = None) -> Ring:
    return Ring(plain.num_workers, slots or (plain.prefetch_factor or 0) + 2, device)


def sent(plain: DataLoader[Any], slots: int | None = None) -> Iterator[Packed]:
    """One iterator's packed batches."""
    return iter(packing(plain, ring_for(plain, slots)))


def numbers_of(packed: Packed) -> list[int]:
    """The indices of a batch of :class:`Numbers`, whose samples must be complete."""
    values = packed.batch.of(packed.memory)
    assert torch.equal(values, values[:, :1].expand_as(values))
    return [int(value) for value in values[:, 0]]


def place_of(packed: Packed) -> int:
    assert isinstance(packed.slot, Lease)
    return packed.memory.data_ptr()


def check_same_batches(ours: Iterable[Packed], theirs: Iterable[Any]) -> int:
    count = 0
    for mine, want in zip(ours, theirs, strict=True):
        assert same(replay(mine, CPU), want, layout=True)
        count += 1
    return count


# ---- the batches


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Record:
    image: Any
    label: Any


class Mover:
    """The user's own object that moves itself."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def to(self, device: Any) -> Mover:
        return Mover(self.value.to(device))


class Checking(UserDict):  # type: ignore[type-arg]
    """A container that looks at its items."""

    def __setitem__(self, key: str, value: Any) -> None:
        assert isinstance(value, Tensor)
        super().__setitem__(key, value)


DTYPES = (torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)


class Nested(Dataset[Any]):
    """Samples with everything that torch's collate function takes."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 7, 5, generator=generator)
        arrays = (np.arange(6, dtype=np.int16).reshape(2, 3) + index, np.float32(index), np.arange(0))
        return {
            "image": image,
            "last": image.to(torch.float64).permute(2, 0, 1),
            "numbers": (index, index / 3, index % 2 == 0),
            "arrays": list(arrays),
            "pair": Pair(torch.tensor(index), {"name": f"sample {index}", "raw": b"\x00\x01"}),
            "nothing": torch.empty(0, 3),
            "dtypes": [image[0].mul(9).to(dtype) for dtype in DTYPES],
        }


def as_objects(samples: Sequence[Any]) -> Any:
    """The user's own collate function; its batch holds everything that a batch may hold."""
    images = torch.stack([sample["image"] for sample in samples])
    boxes = torch.arange(4.0).repeat(len(samples), 1)
    return [
        Record(images.contiguous(memory_format=torch.channels_last), torch.arange(len(samples))),
        (images.transpose(0, 3), images[:, :1], images[:1].expand(4, -1, -1, -1).contiguous(), images[0, 0, 0, 0]),
        Pair(tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=(7, 5)), tv_tensors.Image(images[0])),
        {"sparse": torch.eye(3).to_sparse(), "mover": Mover(images[1:]), "array": images.numpy().copy(), "none": None},
        OrderedDict(a=images, b=images),
        defaultdict(list, c=[images.double(), "name"]),
        Checking(x=images.half()),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(3, requires_grad=True),
        images,
        images,
    ]


def with_boxes(samples: Sequence[Any]) -> Any:
    """A batch of images and of values that are not packed."""
    boxes = torch.arange(4.0).repeat(len(samples), 1)
    boxes = tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=(7, 5))
    return [torch.stack([sample["image"] for sample in samples]), boxes, "name"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for index in range(info.id, 9, info.num_workers):
            yield {"x": torch.full((4,), index), "y": index}


def by_index(sample: Any) -> Any:
    return sample["image"], sample["numbers"][0]


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "nested": lambda: loader(Nested()),
    "nested, one worker": lambda: loader(Nested(), num_workers=1, batch_size=4, prefetch_factor=3),
    "nested, in the process": lambda: loader(Nested(), num_workers=0),
    "the short last batch left out": lambda: loader(Nested(), drop_last=True),
    "own collate": lambda: loader(Nested(), collate_fn=as_objects),
    "boxes beside the images": lambda: loader(Nested(), collate_fn=with_boxes),
    "no batching": lambda: loader(Nested(), batch_size=None),
    "no batching, own collate": lambda: loader(Nested(), batch_size=None, collate_fn=by_index),
    "shuffled": lambda: loader(Nested(), shuffle=True, generator=torch.Generator().manual_seed(3)),
    "iterable": lambda: loader(Stream()),
    "a batch that is a tensor": lambda: loader(Numbers(9)),
    "no tensor at all": lambda: loader([f"sample {k}" for k in range(5)]),
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_the_plain_loaders(name: str) -> None:
    plain, other = LOADERS[name](), LOADERS[name]()
    for _ in range(2):
        assert check_same_batches(sent(plain), other) > 0


@pytest.mark.parametrize("name", ["nested", "own collate", "iterable"])
def test_workers_that_stay_for_several_epochs(name: str) -> None:
    plain, other = LOADERS[name](), LOADERS[name]()
    settings = {key: getattr(plain, key) for key in ("batch_size", "collate_fn")}
    plain = loader(plain.dataset, persistent_workers=True, **settings)
    twin = packing(plain, ring_for(plain))
    for _ in range(3):
        assert check_same_batches(twin, other) > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(method: str) -> None:
    """Two epochs of one worker, which gets everything pickled."""
    plain = loader(Nested(), num_workers=1, multiprocessing_context=method, persistent_workers=True)
    twin, other = packing(plain, ring_for(plain)), loader(Nested())
    places = set()
    for _ in range(2):
        for mine, want in zip(twin, other, strict=True):
            places.add(place_of(mine))
            assert same(replay(mine, CPU), want, layout=True)
    assert len(places) <= 4


def test_the_loader_itself_is_not_changed() -> None:
    plain = loader(Nested())
    before = dict(vars(plain))
    list(sent(plain))
    assert vars(plain) == before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time that torch's loader waits for its workers after an error."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)


class Uneven(Dataset[Any]):
    """Samples that cannot be stacked."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@pytest.mark.parametrize(
    "samples",
    [
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(4), torch.zeros(3)),
        (torch.zeros(3), torch.zeros(3, 1)),
        ([torch.zeros(3)], [torch.zeros(3), torch.zeros(3)]),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse()),
        ({"x": torch.zeros(3)}, {"y": torch.zeros(3)}),
        (object(), object()),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, requires_grad=True), torch.zeros(2)),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.usefixtures("impatient")
def test_samples_that_cannot_be_stacked_raise_the_plain_loaders_error(samples: tuple[Any, ...], workers: int) -> None:
    plain = loader(Uneven(*samples), num_workers=workers)
    ours, theirs = outcome(sent(plain)), outcome(iter(plain))
    assert ours[0] == theirs[0]
    if theirs[0] is None:
        assert same(replay(ours[1], CPU), theirs[1], layout=True)


def outcome(batches: Iterator[Any]) -> tuple[Any, Any]:
    """The kind of error and its last line, or the batch."""
    try:
        return None, next(batches)
    except Exception as error:
        return (type(error), str(error).splitlines()[-1]), None


def test_types_added_to_torchs_collate_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    def movers(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return Mover(default_collate([one.value for one in batch]).double() + 1)

    monkeypatch.setitem(default_collate_fn_map, Mover, movers)
    samples = [(Mover(torch.full((2,), k)), torch.full((3,), k)) for k in range(5)]
    plain = loader(Uneven(*samples), multiprocessing_context="fork")
    assert check_same_batches(sent(plain), plain) == 3


# ---- the slots


def test_slots_are_used_again() -> None:
    plain = loader(Numbers(80), num_workers=2, prefetch_factor=2)
    places: dict[int, int] = {}
    for k, packed in enumerate(sent(plain)):
        assert numbers_of(packed) == [2 * k, 2 * k + 1]
        places[place_of(packed)] = places.get(place_of(packed), 0) + 1
        packed.release()
        del packed
    assert sum(places.values()) == 40
    assert len(places) <= 2 * 4, "more memories than slots"


def test_a_kept_batch_does_not_change() -> None:
    """One batch is kept as it arrived, and one is kept after its replay released the slot."""
    batches = sent(loader(Numbers(210), num_workers=1), slots=5)
    kept, released = next(batches), next(batches)
    made = replay(released, CPU)
    for k, packed in enumerate(batches):
        assert numbers_of(packed) == [2 * k + 4, 2 * k + 5]
        assert place_of(packed) != place_of(kept)
    assert k == 102
    assert numbers_of(kept) == [0, 1]
    assert made[:, 0].tolist() == [2, 3]


def test_more_batches_are_kept_than_there_are_slots() -> None:
    """Batches without a free slot arrive in separate memory; nothing waits, nothing is lost."""
    kept = list(sent(loader(Numbers(60), num_workers=2), slots=3))
    assert [numbers_of(packed) for packed in kept] == [[2 * k, 2 * k + 1] for k in range(30)]
    in_slots = [packed for packed in kept if packed.slot is not None]
    assert len(in_slots) == len({place_of(packed) for packed in in_slots}) == 2 * 3


def test_a_slot_that_is_released_late_is_used_again() -> None:
    batches = sent(loader(Numbers(40), num_workers=1), slots=4)
    kept = [next(batches) for _ in range(8)]
    places = {place_of(packed) for packed in kept if packed.slot is not None}
    assert len(places) == 4
    kept.clear()
    for _ in range(2):  # were made already
        next(batches)
    assert {place_of(packed) for packed in batches} <= places


def growing(index: int) -> int:
    return 2000 + 400 * (index // 2)


def up_and_down(index: int) -> int:
    return 1000 + 4000 * (index // 2 % 7)


@pytest.mark.parametrize("size", [growing, up_and_down])
def test_batches_of_many_sizes(size: Callable[[int], int]) -> None:
    dataset = Numbers(120, size)
    plain = loader(dataset, num_workers=1)
    ring = ring_for(plain)
    for k, packed in enumerate(packing(plain, ring)):
        assert numbers_of(packed) == [2 * k, 2 * k + 1]
        assert packed.memory.numel() == 2 * 4 * dataset.size(2 * k)
        assert isinstance(packed.slot, Lease)
    assert k == 59
    assert len(ring._mapped) <= 4
    assert max(mapped.storage.nbytes() for mapped in ring._mapped.values()) <= 8 * max(map(size, range(120))) * 9 / 8


def test_an_epoch_that_ends_early_returns_its_slots() -> None:
    plain = loader(Numbers(60), persistent_workers=True)
    ring = ring_for(plain)
    twin = packing(plain, ring)
    for _ in range(6):
        for k, packed in enumerate(twin):
            assert numbers_of(packed) == [2 * k, 2 * k + 1]
            assert isinstance(packed.slot, Lease)
            del packed
            if k == 4:
                break
    assert len(ring._mapped) <= 2 * 4
    whole = [(numbers_of(packed), packed.slot is not None) for packed in twin]
    assert whole == [([2 * k, 2 * k + 1], True) for k in range(30)]


def test_two_iterators_at_once() -> None:
    plain = loader(Numbers(40))
    for k, (one, other) in enumerate(zip(sent(plain), sent(plain), strict=True)):
        assert numbers_of(one) == numbers_of(other) == [2 * k, 2 * k + 1]
        assert place_of(one) != place_of(other)
    assert k == 19


def test_two_iterators_through_one_ring_are_refused() -> None:
    twin = packing(loader(Numbers(40), num_workers=1), Ring(1, 4))
    first = iter(twin)
    assert numbers_of(next(first)) == [0, 1]
    with pytest.raises(PipediagError, match="make one for each"):
        next(iter(twin))
    assert numbers_of(next(first)) == [2, 3]


@pytest.fixture
def unsignalled() -> Iterator[None]:
    """Disable torch's signal handler, which raises wherever the process is when a worker dies."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("impatient", "unsignalled")
def test_a_worker_that_dies() -> None:
    plain = loader(Numbers(40), timeout=1)
    before = mapped_memory()
    batches: Any = sent(plain)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the first loader of a process has set it
    kept = [next(batches) for _ in range(4)]
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    batches._workers[0].join()
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(batches)
    del batches
    gc.collect()  # the error has seen the iterator
    assert [numbers_of(packed) for packed in kept] == [[2 * k, 2 * k + 1] for k in range(4)]
    kept.clear()
    assert mapped_memory() <= before
    assert [numbers_of(packed) for packed in sent(plain)] == [[2 * k, 2 * k + 1] for k in range(20)]


def mapped_memory() -> int:
    """The number of torch's shared memory blocks that this process has mapped, or open as files."""
    mapped = sum("/torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return mapped + sum("/torch_" in file for file in map(target_of, Path("/proc/self/fd").iterdir()))


def target_of(file: Path) -> str:
    try:
        return os.readlink(file)
    except FileNotFoundError:  # closed meanwhile
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("ends_early", [False, True])
def test_forty_epochs_leak_nothing(ends_early: bool) -> None:
    def epoch() -> weakref.ref[Ring]:
        plain = loader(Numbers(8), num_workers=1)
        ring = ring_for(plain)
        for packed in packing(plain, ring):
            numbers_of(packed)
            if ends_early:
                break
        return weakref.ref(ring)

    epoch()
    before = mapped_memory()
    for _ in range(40):
        assert epoch()() is None
    assert mapped_memory() <= before


def test_memory_is_unmapped_once_no_batch_is_kept() -> None:
    before = mapped_memory()
    plain = loader(Numbers(8), num_workers=1)
    kept = list(sent(plain))
    assert mapped_memory() > before
    assert [numbers_of(packed) for packed in kept] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    kept.clear()
    assert mapped_memory() <= before


def test_without_shared_memory_batches_are_sent_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipediag.replay.pack.ring.shared_memory", lambda size: None)
    monkeypatch.setattr("pipediag.replay.pack.packing.shared_memory", lambda size: None)
    plain = loader(Nested(), multiprocessing_context="fork")
    arrived = list(sent(plain))
    assert all(packed.slot is None and not packed.memory.is_shared() for packed in arrived)
    assert check_same_batches(arrived, plain) == 6


def test_more_shared_memory_than_there_is() -> None:
    assert shared_memory(1 << 50) is None
    storage = shared_memory(100)
    assert storage is not None and storage.nbytes() == 100 and storage.is_shared()


# ---- one slot, in one process


#: The result of ``get_worker_info()``.
WORKER = torchs_worker.WorkerInfo(id=1, num_workers=2, seed=0, dataset=None)
SIZES = st.integers(1, 3000)


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a worker too."""
    monkeypatch.setattr(torchs_worker, "_worker_info", WORKER)


def arrived(claim: Any) -> Lease:
    """The lease that the training process gets."""
    lease = pickle.loads(ForkingPickler.dumps(claim))
    assert isinstance(lease, Lease)
    return lease


def claimed(ring: Ring, size: int = 1000, value: int = 0) -> Any:
    claim = ring.claim(size)
    assert claim is not None
    assert claim.memory.shape == (size,)
    claim.memory.fill_(value)
    return claim


def test_there_is_no_slot_outside_a_worker() -> None:
    assert Ring(2, 3).claim(1000) is None


@pytest.mark.usefixtures("in_worker")
def test_a_slot_is_free_when_its_batch_is_released() -> None:
    ring = Ring(2, 1)
    lease = arrived(claimed(ring, value=7))
    assert lease.memory.unique().tolist() == [7]
    assert ring.claim(1000) is None
    lease.release()
    assert lease.released
    again = arrived(claimed(ring, value=8))
    lease.release()
    assert ring.claim(1000) is None, "the second release freed the next batch"
    assert again.memory.unique().tolist() == [8]
    del lease, again
    assert ring.claim(1000) is not None


@pytest.mark.usefixtures("in_worker")
def test_a_slot_that_has_arrived_is_sent_as_a_few_bytes() -> None:
    ring = Ring(2, 1)
    arrived(claimed(ring))
    claim = claimed(ring)
    message = bytes(ForkingPickler.dumps(claim))
    assert len(message) < 100
    lease = pickle.loads(message)
    assert lease.memory.data_ptr() == claim.memory.data_ptr()  # the same memory, since this is one process


@pytest.mark.usefixtures("in_worker")
def test_an_abandoned_slot_is_restored() -> None:
    ring = Ring(2, 1)
    claimed(ring).abandon()
    lease = arrived(claimed(ring))  # with its memory, which the training process does not know yet
    assert ring.claim(1000) is None
    lease.release()
    claimed(ring).abandon()
    assert arrived(claimed(ring)).memory.data_ptr() == lease.memory.data_ptr()


@pytest.mark.usefixtures("in_worker")
def test_a_smaller_batch_fits_and_a_larger_one_replaces_a_free_slot() -> None:
    ring = Ring(2, 2)
    kept = arrived(claimed(ring, 1000, 1))
    small = arrived(claimed(ring, 400, 2))
    assert small._mapped.storage.nbytes() == 1000
    assert ring.claim(2000) is None
    del small
    large = arrived(claimed(ring, 2000, 3))
    assert large._mapped.storage.nbytes() == 2000 + 2000 // 8
    assert large.memory.unique().tolist() == [3]
    assert kept.memory.unique().tolist() == [1]
    assert len(ring._mapped) == 2


@pytest.mark.usefixtures("in_worker")
def test_slots_for_batches_of_different_sizes_are_larger_from_the_first() -> None:
    ring = Ring(2, 1, varying=True)
    small = arrived(claimed(ring, 1000, 1))
    memory = small._mapped.storage.data_ptr()
    del small
    large = arrived(claimed(ring, 1125, 2))
    assert large._mapped.storage.data_ptr() == memory
    assert large._mapped.storage.nbytes() == 1125


@pytest.mark.usefixtures("in_worker")
def test_a_copy_in_a_forked_process_releases_nothing() -> None:
    ring = Ring(2, 1)
    lease = arrived(claimed(ring))
    child = os.fork()
    if not child:
        lease.release()
        del lease
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ring.claim(1000) is None
    lease.release()
    assert ring.claim(1000) is not None


@pytest.mark.usefixtures("in_worker")
def test_a_ring_that_is_gone() -> None:
    ring = Ring(2, 1)
    message = ForkingPickler.dumps(claimed(ring))
    ring = Ring(2, 1)
    with pytest.raises(PipediagError, match="a ring that is gone"):
        pickle.loads(message)


@pytest.mark.usefixtures("in_worker")
def test_a_lease_cannot_be_copied() -> None:
    ring = Ring(2, 1)
    lease = arrived(claimed(ring))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="clone its tensors"):
            copied(lease)


class Event:
    """A device's event that the test lets pass."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


@pytest.mark.usefixtures("in_worker")
def test_a_slot_that_is_being_copied_from_is_released_by_the_event() -> None:
    ring = Ring(2, 2)
    first, second = arrived(claimed(ring, value=1)), arrived(claimed(ring, value=2))
    events = Event(), Event()
    first.release_after(events[0])  # type: ignore[arg-type]
    second.release_after(events[1])  # type: ignore[arg-type]
    memory = first.memory
    del first, second
    assert ring.claim(1000) is None, "the device still reads from both"
    events[0].passed = True
    ring_module._COPIES.settle()
    assert arrived(claimed(ring, value=3)).memory.data_ptr() == memory.data_ptr()
    events[1].passed = True
    ring_module._COPIES.settle()
    assert [ring.claim(1000) is not None for _ in range(3)] == [True, True, False]


WHAT = ["claim", "arrive", "release", "drop", "abandon"]
#: (the action, the index of the batch in transit or held, the size of the next batch)
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 9), SIZES))


@given(steps=STEPS)
def test_no_held_batch_is_overwritten(steps: list[tuple[str, int, int]]) -> None:
    """In any order in which a worker fills slots and the training process returns them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchs_worker, "_worker_info", WORKER)
        ring = Ring(2, 3)
        in_transit: list[tuple[Any, int]] = []
        held: list[tuple[Lease, int]] = []
        for value, (step, which, size) in enumerate(steps, 1):
            if step == "claim":
                claim = ring.claim(size)
                assert (claim is None) == (len(in_transit) + len(held) == 3), "a slot is lost, or there is one too many"
                if claim is not None:
                    claim.memory.fill_(value)
                    in_transit.append((claim, value))
            elif step == "arrive" and in_transit:
                claim, filled = in_transit.pop(0)
                held.append((arrived(claim), filled))
            elif step == "release" and held:
                held.pop(which % len(held))[0].release()
            elif step == "drop" and held:
                del held[which % len(held)]
            elif step == "abandon" and in_transit:  # packing abandons only the latest
                in_transit.pop()[0].abandon()
            assert all(lease.memory.unique().tolist() == [value] for lease, value in held)
        assert len(ring._mapped) <= 3


class PageLock:
    """Stand-in for the page lock that notes its calls."""

    locked: ClassVar[list[int]]
    unlocked: ClassVar[list[int]]
    works: ClassVar[bool]

    def __init__(self, device: torch.device) -> None:
        assert device == torch.device("cuda")

    def lock(self, storage: Any) -> bool:
        self.locked.append(storage.data_ptr())
        return self.works

    def unlock(self, storage: Any) -> None:
        self.unlocked.append(storage.data_ptr())


@pytest.fixture(params=[True, False])
def page_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[PageLock]:
    kind = type("OfOneTest", (PageLock,), {"locked": [], "unlocked": [], "works": request.param})
    monkeypatch.setattr(ring_module, "_PageLock", kind)
    return kind


def test_each_slot_is_locked_once_and_unlocked_with_its_memory(page_lock: type[PageLock]) -> None:
    plain = loader(Numbers(80))
    ring = ring_for(plain, device=torch.device("cuda"))
    kept: list[Packed] = []
    places = set()
    batches = iter(packing(plain, ring))
    for packed in batches:
        places.add(place_of(packed))
        kept[:] = [packed]
        assert isinstance(packed.slot, Lease)
        assert packed.slot.page_locked == page_lock.works
    assert sorted(page_lock.locked) == sorted(places)
    assert page_lock.unlocked == []
    last = place_of(packed)
    del ring, batches, packed
    assert sorted(page_lock.unlocked) == (sorted(places - {last}) if page_lock.works else [])
    assert numbers_of(kept[0]) == [78, 79]
    kept.clear()
    assert sorted(page_lock.unlocked) == (sorted(places) if page_lock.works else [])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_no_pages_are_locked() -> None:
    plain = loader(Numbers(4))
    ring = ring_for(plain, device=torch.device("cuda"))
    (first, _) = packing(plain, ring)
    assert isinstance(first.slot, Lease) and not first.slot.page_locked


# ---- packed batches


@pytest.mark.parametrize("over", ["released", "replayed", "copied"])
def test_a_batch_is_used_once(over: str) -> None:
    packed = next(sent(loader(Numbers(4))))
    assert isinstance(packed.slot, Lease)
    event = Event()
    if over == "released":
        packed.release()
    elif over == "replayed":
        replay(packed, CPU)
    else:
        packed.slot.release_after(event)  # type: ignore[arg-type]
    for use in (lambda: replay(packed, CPU), packed.pin_memory):
        with pytest.raises(UsageError, match="has been released"):
            use()
    event.passed = True
    ring_module._COPIES.settle()
    assert packed.slot.released


def test_the_result_shares_no_memory_with_the_batch() -> None:
    """The CPU reads the memory in place and frees the slot at once."""
    packed = next(sent(loader(Nested())))
    assert isinstance(packed.slot, Lease)
    begin = packed.memory.untyped_storage().data_ptr()
    made = replay(packed, CPU)
    assert packed.slot.released
    starts = [tensor.untyped_storage().data_ptr() for tensor in tree.tensors(made) if tensor.numel()]
    assert begin not in starts and len(set(starts)) == len(starts) > 8


def through_workers(plain: DataLoader[Any], plan: Plan, ring: Ring | None) -> DataLoader[Any]:
    side = PackingSide(plain.dataset, plain.collate_fn, plan, ring)
    twin = copy.copy(plain)
    init = InitWorker(side, plain.worker_init_fn)
    twin.__dict__.update(
        dataset=StagedDataset(side), collate_fn=handed_on, worker_init_fn=init, pin_memory=False, _iterator=None
    )
    return twin


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("with_ring", [True, False])
def test_workers_send_recorded_batches_and_others(moved: bool, with_ring: bool) -> None:
    chain = v2.Compose([v2.RandomCrop(24), v2.RandomHorizontalFlip()])
    plain = loader(Images(chain, length=30))
    plan = find(plain.dataset, plain.collate_fn, range(4), Plan()) if moved else Plan()
    assert len(plan.pieces) == moved
    torch.manual_seed(0)
    theirs = list(plain)
    torch.manual_seed(0)
    arrived = iter(through_workers(plain, plan, ring_for(plain) if with_ring else None))
    for want in theirs:
        packed = next(arrived)
        assert isinstance(packed, Packed)
        assert isinstance(packed.slot, Lease) == with_ring
        assert len(packed.results) == moved
        assert same(replay(packed, CPU), want, layout=True)


class Sometimes(Images):
    """The samples from 8 on cannot be recorded: their code needs pixels."""

    def __getitem__(self, index: int) -> Any:
        image, *rest = super().__getitem__(index)
        return (image - image.min() if index >= 8 else image, *rest)


@pytest.mark.parametrize("with_ring", [True, False])
def test_batches_made_with_pixels_are_packed_if_there_is_a_ring(with_ring: bool) -> None:
    plain = loader(Sometimes(v2.RandomHorizontalFlip(1.0), length=12), num_workers=1)
    plan = find(plain.dataset, plain.collate_fn, range(4), Plan())
    torch.manual_seed(0)
    theirs = list(plain)
    torch.manual_seed(0)
    batches = list(through_workers(plain, plan, ring_for(plain, 9) if with_ring else None))
    assert [isinstance(one, Unrecorded) for one in batches] == [False] * 4 + [True] * 2
    for one, want in zip(batches[4:], theirs[4:], strict=True):
        assert isinstance(one, Unrecorded) and "NotRecordable" in one.reason
        assert isinstance(one.batch, Packed) == with_ring
        assert same(replay(one.batch, CPU) if with_ring else one.batch, want, layout=True)


# ---- on a GPU

CUDA = torch.device("cuda")


class TestOnGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("name", ["nested", "shuffled", "a batch that is a tensor"])
    def test_batches_arrive_page_locked_and_are_copied_without_waiting(self, name: str) -> None:
        plain, other = LOADERS[name](), LOADERS[name]()
        for packed, want in zip(packing(plain, ring_for(plain, device=CUDA)), other, strict=True):
            assert isinstance(packed.slot, Lease) and packed.slot.page_locked
            assert packed.memory.is_pinned()
            with synchronising_forbidden():
                made = replay(packed, CUDA)
            assert all(tensor.is_cuda for tensor in tree.tensors(made))
            assert same(tree.move(made, CPU), want, layout=True)

    def test_other_values_arrive_too(self) -> None:
        plain, other = LOADERS["own collate"](), LOADERS["own collate"]()
        for packed, want in zip(packing(plain, ring_for(plain, device=CUDA)), other, strict=True):
            assert same(tree.move(replay(packed, CUDA), CPU), tree.move(tree.move(want, CUDA), CPU), layout=True)

    def test_a_page_locked_slot_is_not_pinned_again(self) -> None:
        plain = loader(Nested(), collate_fn=with_boxes)
        for packed, want in zip(packing(plain, ring_for(plain, device=CUDA)), plain, strict=True):
            pinned = packed.pin_memory()
            assert pinned.slot is packed.slot and pinned.memory.data_ptr() == packed.memory.data_ptr()
            assert pinned.batch[1].is_pinned()
            with synchronising_forbidden():
                made = replay(pinned, CUDA)
            assert same(tree.move(made, CPU), tree.move(tree.move(pin_memory(want), CUDA), CPU), layout=True)

    def test_pinning_moves_a_batch_out_of_a_slot_that_is_not_page_locked(self) -> None:
        packed = next(sent(loader(Numbers(4))))
        assert isinstance(packed.slot, Lease) and not packed.slot.page_locked
        pinned = packed.pin_memory()
        assert packed.slot.released and pinned.slot is None and pinned.memory.is_pinned()
        assert replay(pinned, CUDA)[:, 0].tolist() == [0, 1]

    def test_no_slot_is_overwritten_while_the_device_reads_it(self) -> None:
        plain = loader(Numbers(200), num_workers=1)
        batches = iter(packing(plain, ring_for(plain, device=CUDA)))
        copying = torch.cuda.Stream()
        first = next(batches)
        place, slot = place_of(first), first.slot
        assert isinstance(slot, Lease)
        with torch.cuda.stream(copying):
            torch.cuda._sleep(4_000_000_000)  # some seconds, in which the rest of the epoch arrives
            there = first.on_device(CUDA)
        del first
        assert not slot.released
        for k, packed in enumerate(batches, 1):
            assert numbers_of(packed) == [2 * k, 2 * k + 1]
            assert slot.released or place_of(packed) != place
            packed.release()
        copying.synchronize()
        assert numbers_of(there) == [0, 1]
        ring_module._COPIES.settle()
        assert slot.released

    def test_pages_that_cannot_be_locked_leave_no_error_behind(self) -> None:
        lock, storage = ring_module._PageLock(CUDA), shared_memory(1 << 16)
        assert storage is not None
        assert lock.lock(storage)
        assert not lock.lock(storage), "it is locked already"
        assert (torch.ones(3, device=CUDA) + 1).tolist() == [2, 2, 2]
        lock.unlock(storage)
        assert lock.lock(storage), "it was unlocked"
        lock.unlock(storage)

    def test_a_tensor_that_fills_most_of_the_memory_is_not_copied_again(self) -> None:
        packed = next(sent(loader([(torch.full((3, 64), float(k)), k) for k in range(4)])))
        images, labels = replay(packed, CUDA)
        assert images.untyped_storage().nbytes() == packed.memory.numel()
        assert labels.untyped_storage().nbytes() == 16
        assert (images[1].unique().tolist(), labels.tolist()) == ([1], [0, 1])
        images.zero_()
        assert labels.tolist() == [0, 1]
