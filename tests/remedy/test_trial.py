"""A trial changes nothing of the user's, and its certificate passes what is equal and nothing else."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Sampler, default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.loop.separate_process import TrialFailed
from pipediag.remedy import certificate, kernels, offload
from pipediag.remedy.certificate_samples import History, Real, Recorded, Stacked, images, real, recorded, tensor_of
from pipediag.remedy.certifying import Certificate, Verdict, certify
from pipediag.remedy.custom import Refused
from pipediag.remedy.differences import FLOAT_TOLERANCE, Difference
from pipediag.remedy.plan import Piece, Plan
from pipediag.remedy.scouting import find, given_to
from pipediag.remedy.trial import found, reference_at, witnesses
from pipediag.session import Elsewhere
from pipediag.usercode import randomness

from .sameness import Images, check_same, draws, floats, loader, moved, pixels, seen, stayed

CPU = torch.device("cpu")
WORKERS = pytest.mark.parametrize("workers", [0, 1])


def chain() -> Any:
    return v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianBlur(3), v2.RandomVerticalFlip()])


# ---- nothing of the user's is changed


class Watched(Images):
    """Counts, caches, and draws from generators of its own."""

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
    """Draws from a generator of torch's, too, which no loader can send to a process that is not forked."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), torch.rand((), generator=self.torch)

    def state(self) -> Any:
        return super().state(), self.torch.get_state().tolist()


class Shuffled(Sampler[int]):
    """Draws from a generator of its own, and counts its epochs."""

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


def _stands(*objects: Any) -> Any:
    python, of_torch, of_numpy = randomness.state()
    own = [one.state() for one in objects]
    return own, python, of_torch.tolist(), of_numpy[1].tolist(), of_numpy[2:]


@pytest.mark.parametrize(
    ("kind", "workers", "method"),
    [(WatchedMore, 0, None), (WatchedMore, 1, "fork"), pytest.param(Watched, 1, "spawn", marks=pytest.mark.slow)],
)
def test_a_trial_changes_nothing_of_the_users(kind: type[Watched], workers: int, method: str | None) -> None:
    dataset, sampler = kind(), Shuffled()
    made = loader(dataset, sampler=sampler, num_workers=workers, multiprocessing_context=method)
    before, settings = _stands(dataset, sampler), dict(vars(made))
    offloaded = offload(made, CPU, samples=10)
    assert _stands(dataset, sampler) == before
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
    """Code of the user's own, which needs pixels and keeps the number of its calls."""

    of_all = 0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: Tensor) -> Tensor:
        self.calls += 1
        Pixelwise.of_all += 1
        return sample * 0.5


@WORKERS
def test_a_proof_changes_nothing_of_the_users_own_code(workers: int) -> None:
    link = Pixelwise()
    offloaded = offload(loader(Images(v2.Compose([v2.RandomHorizontalFlip(), link]), floats), num_workers=workers), CPU)
    assert "Pixelwise: it keeps state between calls" in offloaded.plan.reasons
    assert (link.calls, Pixelwise.of_all) == (0, 0)


class FromFile(Images):
    """Reads from a file that is open already, and whose beginning was read."""

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


# ---- what a trial is made on


class Raises(Images):
    def __getitem__(self, index: int) -> Any:
        raise KeyError("no such file")


class Dies(Images):
    """Ends a process that is not the one it was made in, at one index."""

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


def test_a_certificate_whose_process_dies() -> None:
    dataset = Dies(12)
    offloaded = offload(loader(dataset), CPU, samples=16)
    assert offloaded.plan.pieces == ()
    assert "exited unexpectedly" in offloaded.plan.reasons[-1]
    check_same(seen(offloaded), seen(loader(dataset)), CPU)


class Unpicklable(Images):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("not this one")


def test_a_dataset_that_cannot_be_pickled_where_it_has_to_be() -> None:
    made = loader(Unpicklable(chain()), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(TrialFailed, match="it cannot be tried in a process of its own: not this one"):
        found(made, Plan(), 4)
    assert moved(offload(loader(Unpicklable(chain())), CPU)) == ["RandomHorizontalFlip GaussianBlur RandomVerticalFlip"]


def test_no_process_is_left_behind() -> None:
    before = set(multiprocessing.active_children())
    offload(loader(Images(chain())), CPU)
    both = witnesses(loader(Images(chain())), Plan(), 16)
    next(both)
    del both  # broken off after the first group
    end = time.monotonic() + 10
    while set(multiprocessing.active_children()) - before and time.monotonic() < end:
        time.sleep(0.05)
    assert set(multiprocessing.active_children()) <= before


class Collecting(Images):
    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return super().__getitem__(index)


class Finalized:
    """Notes the process that collects it. In a ring with itself it waits for the collector."""

    def __init__(self, file: Path) -> None:
        self.file, self.ring = file, self

    def __del__(self) -> None:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize("frozen", [False, True], ids=["nothing frozen", "something frozen"])
def test_what_is_garbage_by_now_is_left_to_this_process(tmp_path: Path, frozen: bool) -> None:
    """A tensor on the device would end any other that collects it."""
    file = tmp_path / "collected"
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
    assert file.read_text() == f"{os.getpid()}\n"


def test_samples_are_those_the_sampler_asks_for_first() -> None:
    pairs = list(witnesses(loader(Images(chain()), sampler=[7, 3, 5, 1] * 3), Plan(), 10))
    assert [pair[1].number for pair in pairs] == [8, 2]
    assert [sample[1] for pair in pairs for sample in pair[0].samples] == [7, 3, 5, 1, 7, 3, 5, 1, 7, 3]


def test_both_ways_begin_in_one_state() -> None:
    plan = found(loader(Watched(), sampler=Shuffled()), Plan(), 8).plan
    for made, told in witnesses(loader(Watched(), sampler=Shuffled()), plan, 12):
        assert told.packed is not None
        memory = told.packed.memory
        # What was drawn from the dataset's own generators.
        own = zip(*(plain.of(memory) for plain in told.packed.batch[1]), strict=True)
        assert [tuple(map(float, one)) for one in own] == [sample[1] for sample in made.samples]
        assert randomness.moved(made.random_state, told.random_state) is None


def init_by_seed(worker_id: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.begun = worker_id


class NeedsInit(Images):
    """Works only in a worker that was begun with :func:`init_by_seed`."""

    begun: int

    def __getitem__(self, index: int) -> Any:
        return self.transform(pixels(index)), self.begun


def test_the_workers_own_beginning_is_made_in_a_trial() -> None:
    made = loader(NeedsInit(chain()), num_workers=1, worker_init_fn=init_by_seed)
    assert found(made, Plan(), 4).plan.pieces
    with pytest.raises(TrialFailed, match="begun"):  # without workers it is not called in training, either
        found(loader(NeedsInit(chain()), worker_init_fn=init_by_seed), Plan(), 4)


# ---- scouting


def test_finding_draws_nothing_and_leaves_the_transforms_in_place() -> None:
    dataset = Images(chain())
    transform, links = dataset.transform, list(dataset.transform.transforms)  # type: ignore[attr-defined]
    before = randomness.state()
    plan = find(dataset, default_collate, range(4), Plan()).plan
    assert randomness.moved(randomness.state(), before) is None
    assert dataset.transform is transform
    assert dataset.transform.transforms == links
    assert plan.pieces[0].moves == ("RandomHorizontalFlip", "GaussianBlur", "RandomVerticalFlip")


def test_finding_leaves_the_transforms_in_place_when_the_dataset_raises() -> None:
    dataset = Raises(chain())
    transform, before = dataset.transform, randomness.state()
    with pytest.raises(KeyError):
        find(dataset, default_collate, range(4), Plan())
    assert dataset.transform is transform
    assert randomness.moved(randomness.state(), before) is None


def test_code_of_the_users_own_is_named_by_its_place() -> None:
    chain = v2.Compose([v2.RandomHorizontalFlip(), Pixelwise(), v2.RandomVerticalFlip()])
    one = find(Images(chain, floats), default_collate, range(4), Plan())
    assert one.plan.pieces[0].start == 2
    assert one.own_code == ((one.plan.pieces[0].path, 1),)


def test_what_a_link_is_given() -> None:
    dataset = Images(v2.Compose([v2.CenterCrop(20), Pixelwise(), v2.Normalize([0.5], [0.5])]), floats)
    (place,) = find(dataset, default_collate, range(4), Plan()).own_code
    given = given_to(dataset, place, [3, 1])
    assert given is not None
    assert all(torch.equal(one, F.center_crop(floats(index), [20])) for one, index in zip(given, (3, 1), strict=True))


def test_what_a_link_is_given_counts_only_where_it_is_plain_tensors() -> None:
    dataset = Images(v2.Compose([v2.CenterCrop(20), Pixelwise()]), lambda index: tv_tensors.Image(floats(index)))
    place = (0,), 1
    assert given_to(dataset, place, [0, 1]) is None
    with pytest.raises(Refused, match="something else than one plain tensor"):
        reference_at(loader(dataset), place, 2)


def halved(sample: Tensor) -> Tensor:
    return sample * 0.5


def test_the_results_of_a_link_come_from_a_process_of_its_own() -> None:
    dataset = Images(v2.Compose([v2.CenterCrop(20), halved]), floats)
    ((inputs, expected),) = reference_at(loader(dataset, sampler=[3, 1]), ((0,), 1), 2).groups
    assert torch.equal(inputs[:2], torch.stack([F.center_crop(floats(index), [20]) for index in (3, 1)]))
    assert torch.equal(expected, inputs * 0.5)


# ---- what the certificate catches


def certified(dataset: Any, samples: int = 9) -> Certificate:
    return certificate(loader(dataset), CPU, samples=samples)


def wrong(name: str, change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the kernels gives something else than it should."""
    right = kernels.KERNELS[name]
    monkeypatch.setitem(kernels.KERNELS, name, lambda *args: change(right(*args)))


def test_what_is_right_passes() -> None:
    proof = certified(Images(chain(), floats))
    assert proof.passed
    assert proof.failed == frozenset()
    assert (proof.samples, proof.unrecorded, proof.why) == (9, 0, "")
    assert {verdict.name for verdict in proof.ops} == {"horizontal_flip", "gaussian_blur", "vertical_flip"}
    assert all(verdict.difference.within for verdict in (*proof.ops, *proof.whole))
    assert all(verdict.difference.equal for verdict in proof.ops if verdict.name != "gaussian_blur")


def test_a_wrong_kernel_is_named_and_left_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made + 1e-3, monkeypatch)
    proof = certified(Images(chain(), floats))
    assert proof.failed == {"gaussian_blur"}
    assert not proof.passed
    assert proof.faithful
    assert proof.draws_equal
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert moved(offloaded) == ["RandomVerticalFlip"]
    assert stayed(offloaded) == ["RandomHorizontalFlip GaussianBlur"]
    assert "GaussianBlur: gaussian_blur gives other pixels on the device, as its certificate shows" in (
        offloaded.plan.reasons
    )
    assert offloaded.certificate is not None
    assert offloaded.certificate.passed
    check_same(seen(offloaded), seen(loader(Images(chain(), floats))), CPU)


def test_a_difference_within_the_tolerance_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made + 2e-6, monkeypatch)
    proof = certified(Images(chain(), floats))
    assert proof.passed
    (blur,) = (verdict for verdict in proof.ops if verdict.name == "gaussian_blur")
    assert 1e-6 < blur.difference.largest < FLOAT_TOLERANCE


def test_one_wrong_byte_in_a_thousand_passes_and_more_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(pixels_of_a_row: int) -> Callable[[Tensor], Tensor]:
        def change(made: Tensor) -> Tensor:
            made = made.clone()
            made[..., 0, 0, :pixels_of_a_row] ^= 1
            return made

        return change

    wrong("gaussian_blur", off(2), monkeypatch)  # of 3 * 40 * 56
    assert certified(Images(chain())).passed
    wrong("gaussian_blur", off(20), monkeypatch)
    assert certified(Images(chain())).failed == {"gaussian_blur"}


def test_a_wrong_dtype_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made.double(), monkeypatch)
    proof = certified(Images(chain(), floats))
    assert "gaussian_blur" in proof.failed
    (blur,) = (verdict for verdict in proof.ops if verdict.name == "gaussian_blur")
    assert blur.difference.largest == math.inf


def test_a_wrong_shape_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("gaussian_blur", lambda made: made[..., :-1], monkeypatch)
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert "shape" in offloaded.plan.reasons[-1]
    check_same(seen(offloaded), seen(loader(Images(chain(), floats))), CPU)


def test_an_error_of_a_kernel_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(made: Tensor) -> Tensor:
        raise RuntimeError("not on this device")

    wrong("gaussian_blur", missing, monkeypatch)
    offloaded = offload(loader(Images(chain(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert offloaded.plan.reasons[-1] == "RuntimeError: not on this device"


class DoesMore:
    """Inverts real images alone."""

    def __call__(self, sample: Tensor) -> Tensor:
        return F.invert(sample) if type(sample) is Tensor else F.vertical_flip(sample)


class DrawsMore:
    """Draws once more for real images."""

    def __call__(self, sample: Tensor) -> Tensor:
        if type(sample) is Tensor:
            random.random()
        return F.vertical_flip(sample)


def test_a_call_that_was_not_recorded() -> None:
    proof = certified(Images(DoesMore(), floats))
    assert not proof.faithful
    assert proof.draws_equal
    assert proof.failed == frozenset()
    assert not proof.passed
    assert "FAIL the samples were changed by something that was not recorded" in str(proof).splitlines()
    offloaded = offload(loader(Images(DoesMore(), floats)), CPU)
    assert offloaded.plan.pieces == ()
    assert offloaded.plan.reasons[-1] == "its batches differ from those of the workers"
    assert offloaded.certificate is not None


def test_a_draw_too_many() -> None:
    class WithoutDraws(Images):
        def __getitem__(self, index: int) -> Any:
            return self.transform(floats(index))

    proof = certified(WithoutDraws(DrawsMore()))
    assert not proof.draws_equal
    assert proof.faithful
    assert not proof.passed
    assert "FAIL the draws differ (9 samples, cpu)" in str(proof).splitlines()
    assert offload(loader(WithoutDraws(DrawsMore())), CPU).plan.pieces == ()


@pytest.mark.parametrize("change", [lambda real: real.double(), lambda real: real[:, :-1], lambda real: real + 1e-3])
def test_real_samples_that_are_otherwise(change: Callable[[Tensor], Tensor]) -> None:
    """Dtype, shape or pixels of the real samples are not what was recorded: no function is to blame."""
    dataset = Images(v2.Compose([v2.RandomHorizontalFlip(1.0)]), floats)
    plan = find(dataset, _only_images, range(4), Plan()).plan
    one, other = _both(dataset, plan)
    proof = certify([(_changed(one, change), other)], plan, CPU)
    assert not proof.faithful
    assert not proof.passed
    assert proof.failed == frozenset()
    assert certify([(one, other)], plan, CPU).passed


def _only_images(samples: Any) -> Tensor:
    return torch.stack([sample[0] for sample in samples])


def _both(dataset: Any, plan: Plan) -> tuple[Real, Recorded]:
    begun = randomness.state()
    one = real(dataset, _only_images, range(4))
    randomness.restore(begun)
    return one, recorded(dataset, _only_images, range(4), plan)


def _changed(one: Real, change: Callable[[Tensor], Tensor]) -> Real:
    samples = [(change(sample[0]), *sample[1:]) for sample in one.samples]
    return one._replace(samples=samples, batch=_only_images(samples))


class Sometimes(Images):
    """Its second group of eight samples needs pixels."""

    def __getitem__(self, index: int) -> Any:
        sample = self.transform(floats(index))
        return sample * sample.mean() if index == 9 else sample


def test_samples_that_could_not_be_recorded_are_counted() -> None:
    proof = certified(Sometimes(chain(), length=20), samples=20)
    assert (proof.samples, proof.unrecorded) == (20, 8)
    assert proof.why.startswith("NotRecordable: ")
    assert proof.passed
    assert str(proof).splitlines()[-1] == f"8 of the samples could not be recorded: {proof.why}"


def test_a_certificate_of_nothing_does_not_pass() -> None:
    proof = certify([], Plan(), CPU)
    assert not proof.passed
    assert (proof.samples, proof.ops, proof.whole) == (0, (), ())
    never = Recorded(4, None, None, randomness.state(), "for a reason")
    proof = certify([(Real([], [], never.random_state), never)], Plan(), CPU)
    assert not proof.passed
    assert (proof.samples, proof.unrecorded, proof.why) == (4, 4, "for a reason")


def test_recording_goes_on_as_for_real_where_it_cannot_be_recorded() -> None:
    dataset = Sometimes(chain(), length=20)
    plan = find(dataset, default_collate, range(4), Plan()).plan
    begun = randomness.state()
    one = real(dataset, default_collate, range(8, 12))
    randomness.restore(begun)
    other = recorded(dataset, default_collate, range(8, 12), plan)
    assert other.packed is None
    assert other.why.startswith("NotRecordable: ")
    assert randomness.moved(one.random_state, other.random_state) is None


# ---- which image belongs to which


def test_images_of_nested_samples_are_found_in_order() -> None:
    a, b, c, d, e = (History(k, ()) for k in range(5))
    kept = {"views": [a, b], "label": None, "pair": (c, None), "rest": {"x": d, "y": [e]}}
    made = {"views": ["a", "b"], "label": 7, "pair": ("c", 8), "rest": {"x": "d", "y": ["e"]}}
    assert [(one.source, image) for one, image in images(kept, made)] == list(zip(range(5), "abcde", strict=True))


def test_images_of_stacks_belong_to_their_rows() -> None:
    stack = torch.arange(6).reshape(2, 3)
    pairs = list(images(Stacked([History(0, ()), History(1, ())]), stack))
    assert [one.source for one, _ in pairs] == [0, 1]
    assert [row.tolist() for _, row in pairs] == [[0, 1, 2], [3, 4, 5]]


def test_samples_of_another_structure_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(images([History(0, ())], ["a", "b"]))


def test_pixels_of_any_image() -> None:
    assert type(tensor_of(tv_tensors.Image(pixels(0)))) is Tensor
    assert torch.equal(tensor_of(F.to_pil_image(pixels(0))), pixels(0))


# ---- verdicts


@pytest.mark.parametrize(
    ("difference", "equal", "within"),
    [
        (Difference(), True, True),
        (Difference(largest=FLOAT_TOLERANCE), False, True),
        (Difference(largest=1.01 * FLOAT_TOLERANCE), False, False),
        (Difference(largest=1.01 * FLOAT_TOLERANCE, off=1e-9), False, False),
        (Difference(largest=1e-3, tolerance=2e-3), False, True),
        (Difference(largest=math.inf), False, False),
        (Difference(largest=math.nan), False, False),
        (Difference(floating=False), True, True),
        (Difference(largest=1, off=1e-3, floating=False), False, True),
        (Difference(largest=1, off=1.01e-3, floating=False), False, False),
        (Difference(largest=2, off=1e-9, floating=False), False, False),
    ],
)
def test_tolerances(difference: Difference, equal: bool, within: bool) -> None:
    assert difference.equal is equal
    assert difference.within is within
    assert Verdict("op", 1, difference).passed is within


def infinite(index: int) -> Tensor:
    made = floats(index)
    made[0, 0, 0] = math.inf
    return made


def test_equal_infinities_pass() -> None:
    assert certified(Images(v2.RandomHorizontalFlip(), infinite)).passed


def test_an_infinity_hides_no_other_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("horizontal_flip", lambda made: made + 0.5, monkeypatch)
    assert not certified(Images(v2.RandomHorizontalFlip(1.0), infinite)).passed


@pytest.mark.parametrize(
    ("ours", "theirs", "passed"),
    [
        ((1e-3, 0.5), (1e-3, 0.5), True),
        ((1e-3, 0.5), (0.99e-3, 0.5), False),
        ((1e-3, 0.50009), (1e-3, 0.5), True),
        ((1e-3, 0.50011), (1e-3, 0.5), False),
        ((1e-3, 0.1), (2e-3, 0.5), True),
        ((1e-3, 0.1), (0.0, 0.0), False),
        ((math.inf, 1.0), (1.0, 1.0), False),
    ],
)
@pytest.mark.parametrize("floating", [True, False])
def test_as_far_off_as_torchvision_itself(ours: Any, theirs: Any, passed: bool, floating: bool) -> None:
    scale = 1 if floating else 3000  # in levels, beyond what passes by itself
    made = Difference(ours[0] * scale, ours[1], floating)
    own = Difference(theirs[0] * scale, theirs[1], floating)
    assert Verdict("op", 1, made, own).passed is passed


@pytest.mark.parametrize(
    ("largest", "off", "passed"),
    [(4 / 255, 1e-3, True), (4 / 255, 1.01e-3, False), (4.01 / 255, 1e-3, False)],
)
def test_a_level_that_was_rounded_on_the_way(largest: float, off: float, passed: bool) -> None:
    difference = Difference(largest, off)
    assert Verdict("whole batches, float32", 1, difference, rounded=True).passed is passed
    assert not Verdict("whole batches, float32", 1, difference).passed


def test_the_batches_inherit_that_an_op_was_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(made: Tensor) -> Tensor:
        made = made.clone()
        made[..., 0, 0, :2] ^= 1
        return made

    wrong("gaussian_blur", off, monkeypatch)
    ends = [v2.GaussianBlur(3), v2.ToDtype(torch.float32, scale=True)]
    proof = certified(Images(v2.Compose(ends)))
    (whole,) = (verdict for verdict in proof.whole if verdict.name == "whole batches, float32")
    assert whole.rounded
    assert not whole.difference.within
    assert whole.passed
    assert proof.passed
    assert not replace(whole, rounded=False).passed


def test_results_in_half_precision_may_be_off_by_their_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong("to_dtype", lambda made: made * (1 + 2**-10), monkeypatch)
    proof = certified(Images(v2.ToDtype(torch.float16, scale=True)))
    (op,) = proof.ops
    assert op.difference.tolerance == 2 * torch.finfo(torch.float16).eps
    assert op.passed
    assert not op.difference.equal


# ---- what is told


def told_by(*ops: Verdict, **settings: Any) -> Certificate:
    given = {"faithful": True, "draws_equal": True, "samples": 9, "unrecorded": 0, "why": "", "device": "cpu"}
    return Certificate(ops, (), **{**given, **settings})


def test_the_lines_of_a_certificate() -> None:
    proof = told_by(
        Verdict("crop", 9, Difference()),
        Verdict("resize", 8, Difference(1e-3, 0.25)),
        Verdict("rotate", 7, Difference(2e-3, 0.5), Difference(0.0021, 0.5)),
        Verdict("posterize", 6, Difference(1, 5e-4, floating=False)),
    )
    assert str(proof).splitlines() == [
        "ok   crop (9 samples): equal",
        "FAIL resize (8 samples): largest 0.001 of the range, 25 % off",
        "ok   rotate (7 samples): largest 0.002 of the range, 50 % off; torchvision itself: 0.0021",
        "ok   posterize (6 samples): largest 1 levels, 0.05 % off",
        "     the pixels are too far off on 9 samples",
        "ok   the random generators end where they would have (9 samples, cpu)",
    ]
    assert proof.failed == {"resize"}


@pytest.mark.parametrize(
    ("ops", "elsewhere", "pixels"),
    [
        ([Difference()], [], "equal"),
        ([Difference(1e-6)], [], "within the tolerances on 9 samples"),
        (
            [Difference()],
            [("Blur", "by one level"), ("Gamma", "in the last digits"), ("Warp", "by one level")],
            "equal on 9 samples; Blur and Warp may differ by one level, Gamma may differ in the last digits elsewhere",
        ),
    ],
)
def test_equal_is_said_only_of_what_is_exact(
    ops: list[Difference], elsewhere: list[tuple[str, str]], pixels: str
) -> None:
    proof = told_by(*(Verdict("op", 9, one) for one in ops), elsewhere=tuple(Elsewhere(*one) for one in elsewhere))
    assert proof.pixels == pixels
    assert f"     the pixels are {pixels}" in str(proof).splitlines()


def test_nothing_compared_is_not_equal() -> None:
    assert told_by(unrecorded=9).pixels == "equal on 0 samples"


@pytest.mark.parametrize(
    ("links", "elsewhere"),
    [
        ([v2.RandomCrop(24), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.ToDtype(torch.float32, scale=True)], []),
        ([v2.RandomHorizontalFlip(), v2.GaussianBlur(3)], [Elsewhere("GaussianBlur", "by one level")]),
        (
            [v2.ToDtype(torch.float32, scale=True), v2.RandomApply([v2.GaussianBlur(3)], p=0.9)],
            [Elsewhere("RandomApply (gaussian_blur)", "in the last digits")],
        ),
        ([v2.RandomRotation(20)], [Elsewhere("RandomRotation (rotate)", "by a neighbouring pixel")]),
        (
            [v2.RandomHorizontalFlip(1e-9), v2.RandomVerticalFlip(), v2.RandomCrop(24)],
            [Elsewhere("RandomHorizontalFlip", "without a known bound")],
        ),
        ([halved, v2.RandomCrop(24)], [Elsewhere("halved", "without a known bound")]),
    ],
)
def test_transforms_that_are_not_exact_are_named(links: list[Any], elsewhere: list[Elsewhere]) -> None:
    assert certified(Images(v2.Compose(links))).elsewhere == tuple(elsewhere)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"faithful": False}, "FAIL the samples were changed by something that was not recorded"),
        ({"draws_equal": False}, "FAIL the draws differ (9 samples, cpu)"),
        ({"unrecorded": 9, "why": "it is so"}, "9 of the samples could not be recorded: it is so"),
    ],
)
def test_each_reason_not_to_pass_is_told(settings: dict[str, Any], line: str) -> None:
    assert told_by().passed
    proof = told_by(**settings)
    assert not proof.passed
    assert line in str(proof).splitlines()


def test_the_lines_of_a_plan() -> None:
    assert str(Plan()) == "nothing moves"
    assert str(Plan(reasons=("for this", "and that"))) == "nothing moves\n- for this\n- and that"
    pieces = (Piece((0,), 0, ("Crop", "Flip")), Piece((1,), 1, ("Open", "Flip")))
    assert str(Plan(pieces, ("Open: it opens",))).splitlines() == [
        "moves to the device: Crop, Flip",
        "moves to the device: Flip",
        "stays in the workers: Open",
        "- Open: it opens",
    ]
