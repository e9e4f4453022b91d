"""What plain code, collate functions and streams do with images moves, with the plain loader's batches."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F2
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.loop.separate_process import Numbered, why_not_repeated
from pipediag.remedy import NotRecordable, OffloadedLoader, offload
from pipediag.replay.certify.certifying import Certificate, certify
from pipediag.replay.certify.samples import real, recorded
from pipediag.replay.ops.families.resizing import uint8_in_fixed_point
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find
from pipediag.replay.run.replay import replay
from pipediag.replay.worker import AlsoExecuted, Executed, PackingSide
from pipediag.usercode import randomness, tree

from .plain_code import MEAN, SCRIPTS, STD, Items, Pipeline, Stream, flip_and_resize_v2
from .sameness import picture, pixels, seen

#: What moves of each script, by the names of the functions; what stays has one of these reasons.
MOVES: dict[str, str] = {
    "flip_and_crop_v1": "Image.crop Image.transpose normalize to_tensor",
    "flip_and_resize_v2": "horizontal_flip normalize resize to_dtype",
    "flipped_by_chance": "horizontal_flip",
    "some_flipped": "horizontal_flip",
    "image_and_mask": "Image.transform Image.transpose to_tensor",
    "jitter_once_for_frames": "adjust_brightness adjust_contrast adjust_saturation to_tensor",
    "monodepth": (
        "Image.resize Image.transpose adjust_brightness adjust_contrast adjust_hue adjust_saturation to_tensor"
    ),
    "compose_made_in_getitem": "Image.transpose normalize resized_crop to_tensor",
    "compose_v2_made_in_getitem": "adjust_brightness adjust_contrast resized_crop to_dtype",
    "list_of_frames": "horizontal_flip resize to_dtype",
    "clip_as_stack": "horizontal_flip normalize resize to_dtype",
    "clip_in_a_compose": "horizontal_flip resized_crop to_dtype",
    "clip_channels_first": "center_crop to_dtype",
    "video_of_torchvision": "horizontal_flip resized_crop to_dtype",
    "pillow_by_hand": "Image.resize Image.transpose normalize to_tensor",
    "functions_imported_by_name": "Image.resize Image.transpose normalize to_tensor",
    "scaled_by_arithmetic": "div resize sub to_dtype",
    "multiplied_in_place": "Image.transpose mul_ sub_ to_tensor",
    "numpy_at_the_end": "normalize",
    "crop_by_slices": "crop horizontal_flip to_dtype",
    "branch_on_the_mean": "horizontal_flip normalize",
    "transform_in_collate": "Image.transpose normalize resized_crop to_tensor",
    "batch_normalized_in_collate": "normalize resize to_dtype",
    "set_transform": "",
    "set_transform_to_an_object": "",
    "processor": "normalize resize to_dtype",
    "processor_that_crops": "center_crop normalize resize to_dtype",
    "processor_that_pads": "normalize pad resize to_dtype",
    "processor_without_groups": "center_crop normalize resize to_dtype",
    "processor_that_rescales": "mul normalize resize",
    "patched": "normalize resize to_dtype",
    "tiled": "crop normalize resize to_dtype",
    "padded_to_the_largest": "horizontal_flip to_dtype",
    "processor_in_set_transform": "",
    "stream_with_functions": "horizontal_flip normalize resize to_dtype",
    "stream_with_a_transform": "",
    "webdataset": "Image.transpose normalize resized_crop to_tensor",
    "webdataset_shuffled": "Image.transpose normalize resized_crop to_tensor",
    "webdataset_batched": "Image.transpose normalize resized_crop to_tensor",
}
#: Scripts whose transform, an object or function that the dataset holds, moves as a whole.
HELD = {
    "monodepth",
    "set_transform",
    "set_transform_to_an_object",
    "processor_in_set_transform",
    "stream_with_a_transform",
}
SAMPLES = 12


def trial(loader: DataLoader[Any]) -> tuple[Any, Callable[[Any], Any]]:
    """The dataset and the collate function as a trial gets them."""
    stream = isinstance(loader.dataset, IterableDataset)
    collate = loader.collate_fn
    if loader.batch_size is None:
        return Numbered(loader.dataset), lambda samples: [collate(sample) for sample in samples]
    return Numbered(loader.dataset) if stream else loader.dataset, collate


def planned(loader: DataLoader[Any]) -> Plan:
    return find(*trial(loader), list(range(SAMPLES)), Plan())


def equal(ours: Any, theirs: Any) -> bool:
    mine, want = list(tree.leaves(ours)), list(tree.leaves(theirs))
    return len(mine) == len(want) and all(
        torch.equal(one, other) and type(one) is type(other) if isinstance(other, Tensor) else one == other
        for one, other in zip(mine, want, strict=True)
    )


def script_of(kind: str, name: str) -> Callable[[int], DataLoader[Any]]:
    """Return a script; skip what this torchvision cannot resize, or resizes with other roundings than the device."""
    if name == "tiled":
        try:
            F2.resize(torch.zeros(1, 8, 8, dtype=torch.uint8), [4, 4], interpolation=v2.InterpolationMode.LANCZOS)
        except NotImplementedError:
            pytest.skip("this torchvision resizes no tensor with Lanczos's filter")
    if name == "patched" and not uint8_in_fixed_point():
        pytest.skip("this torchvision resizes bytes in float32")
    return SCRIPTS[kind, name]


def are_equal(proof: Certificate) -> bool:
    """Return whether pixels are equal: by construction, unless this torchvision resizes bytes in float32."""
    return proof.pixels == "equal" or (not uint8_in_fixed_point() and proof.pixels.startswith("equal on "))


@pytest.mark.parametrize(("kind", "name"), SCRIPTS)
def test_batches_are_bit_equal(kind: str, name: str) -> None:
    torch.manual_seed(0)
    random.seed(0)
    make = script_of(kind, name)
    plan = planned(make(0))
    assert " ".join(sorted({site.function for site in plan.called})) == MOVES[name], plan.reasons
    assert bool(plan.pieces) == (name in HELD)
    offloaded = OffloadedLoader(make(0), plan, torch.device("cpu"))
    ours, theirs = seen(offloaded, 2), seen(make(0), 2)
    assert equal(ours.batches, theirs.batches)
    assert ours.after == theirs.after, "the generators end elsewhere"
    assert offloaded.unrecorded == 0, offloaded.why
    assert offloaded.recorded == len(theirs.batches)


@pytest.mark.parametrize("name", ["batch_normalized_in_collate", "processor", "transform_in_collate"])
def test_what_the_collate_function_calls_is_certified_call_by_call(name: str) -> None:
    loader = SCRIPTS["collate", name](0)
    plan, indices = planned(loader), list(range(SAMPLES))
    kept = randomness.state()
    plain = real(loader.dataset, loader.collate_fn, indices)
    randomness.restore(kept)
    proof = certify([(plain, recorded(loader.dataset, loader.collate_fn, indices, plan))], plan, torch.device("cpu"))
    assert proof.passed and are_equal(proof)
    assert {verdict.name for verdict in proof.ops} == set(MOVES[name].split())


def test_a_call_that_needs_a_collate_function_to_be_exact_is_named() -> None:
    def collate(samples: Any) -> Any:
        return F2.gaussian_blur(torch.stack([image for image, *_ in samples]), [3, 3])

    loader = DataLoader(Items(lambda index: (pixels(index).float(),)), 4, collate_fn=collate)
    plan, indices = planned(loader), [0, 1, 2, 3]
    plain = real(loader.dataset, collate, indices)
    proof = certify([(plain, recorded(loader.dataset, collate, indices, plan))], plan, torch.device("cpu"))
    assert [one.name for one in proof.elsewhere] == ["gaussian_blur"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("item", name) for name in ("flip_and_resize_v2", "clip_as_stack", "compose_made_in_getitem")),
        *(("item", name) for name in ("pillow_by_hand", "crop_by_slices", "clip_channels_first")),
        *(("collate", name) for name in ("processor_without_groups", "patched", "tiled", "padded_to_the_largest")),
    ],
)
def test_a_spot_check_records_a_batch_that_is_executed(kind: str, name: str) -> None:
    loader = script_of(kind, name)(0)
    plan = planned(loader)
    side = PackingSide(loader.dataset, loader.collate_fn, plan)
    kept = randomness.state()
    made = side.samples(AlsoExecuted([0, 1, 2, 3], 2))
    randomness.restore(kept)
    assert isinstance(made, Executed)
    assert equal(made.batch, loader.collate_fn([loader.dataset[k] for k in range(4)]))
    proof = certify([_pair(made)], plan, torch.device("cpu"))
    assert proof.passed and proof.unrecorded == 0, proof.why


def _pair(made: Executed) -> Any:
    plain, twin = pickle.loads(made.evidence)
    return plain if plain.batch is not None else plain._replace(batch=made.batch), twin


def item_with(change: Callable[[Tensor], Any]) -> DataLoader[Any]:
    return DataLoader(Items(lambda index: (change(F2.resize(pixels(index), [24, 32])), index)), 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda image: image.double() / torch.rand(24, 32), "div of torch.float32, torch.float64 is not recorded"),
        (lambda image: image.float().mean(), "before the transforms, or on the batch"),
        (lambda image: torch.from_numpy(image.numpy()), "torchvision's functions of tensors in place of numpy's"),
        (lambda image: image.half() * 2, "v2.functional.to_dtype"),
    ],
)
def test_what_stays_says_what_to_change(change: Callable[[Tensor], Any], says: str) -> None:
    loader = item_with(change)
    plan = planned(loader)
    assert not plan.moves
    assert any(says in reason and "test_plain_code.py" in reason for reason in plan.reasons), plan.reasons


def written_into(image: Tensor) -> Tensor:
    image[..., 1:3, 1:4] = 0.5
    return image


#: Values for each pixel, and an order of three images.
RAMP, ORDER = torch.linspace(-1, 1, 24 * 32).view(24, 32), torch.tensor([2, 0, 1])
MIX = torch.eye(3)[ORDER]


def put(image: Tensor, index: Any, value: Any) -> Tensor:
    image[index] = value
    return image


def used_twice(view: Tensor) -> Any:
    """A view on which functions of images are called, and which is then rearranged again, and read."""
    flipped = F2.horizontal_flip(view)
    return flipped, F2.vertical_flip(view.unsqueeze(1).squeeze(1)), view.permute(2, 0, 1), view.sum()


@pytest.mark.parametrize(
    "change",
    [
        lambda image: (image.transpose(1, 2), image[0], image.flip(-1), image[..., 3:20, :9], image.roll(2, 1)),
        lambda image: (torch.cat([image, image]), torch.stack([image, image], 1), image.view(-1, 8), image.clone()),
        lambda image: (torch.cat([image, torch.ones(1, 24, 32)]), F2.normalize(image[None, :, 4:], MEAN, STD)),
        lambda image: (torch.nn.functional.pad(image, (1, 2)), torch.nn.functional.pad(image, (0, 0, 0, 0, 0, 1))),
        lambda image: (image.unsqueeze(0).mul_(2.0), image),
        lambda image: (image, image.unsqueeze(0).mul_(2.0)),
        lambda image: (image[:, 2:9].mul_(2.0), image),
        lambda image: (image.permute(1, 2, 0), image.mul_(2.0)),
        lambda image: (torch.stack([image, image]).mul_(2.0), image),
        lambda image: (image.clone().mul_(2.0), image),
        lambda image: (image.permute(1, 2, 0).contiguous(), image.mul_(2.0)),
        lambda image: (image.permute(1, 2, 0).sqrt(), image.permute(1, 2, 0)),
        lambda image: (image[:, torch.tensor([3, 1])], image[image > 0.99].sum(), image[:, np.array([0, 2])]),
        lambda image: (used_twice(image.clone()), image),
        lambda image: (image[None].expand(2, -1, -1, -1).float().sub(1.0).sum(0),),
        lambda image: (torch.stack([image[:, 2:9, 3:12], image[:, 1:8, 4:13]])[0], image),
        lambda image: (image[:, :, ::2].unsqueeze(0), image.unfold(2, 4, 2).unsqueeze(0).expand(2, -1, -1, -1, -1)),
        lambda image: (written_into(image.permute(0, 2, 1)), image),
        lambda image: (written_into(image * torch.ones(24, 32)), (image + image).mul_(2.0), (image + 1).sqrt(), image),
        lambda image: (written_into(image.clone().roll(1, 2)), written_into(torch.stack([image, image])), image),
        lambda image: (F2.vertical_flip(image.permute(1, 2, 0).contiguous().permute(2, 0, 1)), image),
        lambda image: (image.permute(1, 2, 0), put(image, 0, 0.0)),
        lambda image: ((view := image * RAMP)[0], view.mul_(2.0)),
        lambda image: image * 2 if (image > 0.5).float().max() > 0.1 else image,
        lambda image: (image, float(image.max()), image.min().item(), f"{image.max():.3f}", image.max() in (1, 2)),
        lambda image: (image, torch.tensor([image.max(), 1.0]), [5, 6][image.bool().max()], max(image.min(), 2)),
        lambda image: (tv_tensors.Mask((image[:1] * 255).byte()) == 3, tv_tensors.Image(image) > 0.4),
        lambda image: (image.half() > 0.5, image[image > 0.5].sum(), torch.where(image > 2)[0], image.unique()[:1]),
    ],
)
def test_rearranged_images_are_what_they_are_without_the_remedy(change: Callable[[Tensor], Any]) -> None:
    check_rearranged(change)


def check_rearranged(change: Callable[[Tensor], Any]) -> OffloadedLoader:
    """Compare an offloaded loader's batches with the plain ones, and return it."""

    def item(index: int) -> Any:
        return change(F2.to_dtype(F2.resize(pixels(index), [24, 32]), torch.float32, scale=True))

    loader = DataLoader(Items(item), 4)
    offloaded = OffloadedLoader(loader, planned(loader), torch.device("cpu"))
    ours, theirs = seen(offloaded).batches, seen(loader).batches
    assert equal(ours, theirs), offloaded.plan
    assert [one.stride() for one in tree.leaves(ours) if isinstance(one, Tensor)] == [
        one.stride() for one in tree.leaves(theirs) if isinstance(one, Tensor)
    ]
    return offloaded


def mixed(image: Tensor) -> Any:
    several = torch.stack([image, image.flip(-1), image * RAMP])
    return 0.3 * several + (1 - 0.3) * several[ORDER], image


@pytest.mark.parametrize(
    "change",
    [
        lambda image: (image * RAMP, RAMP.expand_as(image) * image, image - image.flip(-1), RAMP + image, image),
        lambda image: ((image + image.roll(1, 2)).mul(0.5) - 0.1, torch.sub(image, RAMP), torch.mul(RAMP, image)),
        lambda image: (image[0].mul(9).long(), (image * 9).int(), image.permute(1, 2, 0).double(), image[:1].byte()),
        lambda image: (image[0].unsqueeze(-1).long().expand(-1, -1, 3), (image * RAMP).long().squeeze()),
        lambda image: (torch.nn.utils.rnn.pad_sequence([image, image[:2] * 2]), image),
        lambda image: (
            F2.erase(image, 2, 3, 5, 6, torch.tensor(0.5)),
            F2.erase(image, 1, 1, 2, 2, torch.ones(1)),
            image,
        ),
        lambda image: (torch.stack([image, image * 2, image + 1])[ORDER], torch.stack([image, image])[ORDER[1:2]]),
        mixed,
        lambda image: (
            image > 0.5,
            (image > 0.5).float(),
            (image[0] > 0.5).long(),
            (1 - (image > 0.5).float()) * image,
        ),
        lambda image: (torch.where(image > 0.5, image, torch.zeros_like(image)), torch.where(image > 0.5, 1.0, 0.0)),
        lambda image: (image.masked_fill(image < 0.2, 0.0), (image > 0.1).where(image < 0.3, image > 0.2), image),
        lambda image: ((image > 0.2) & (image < 0.7), ~(image > 0.2), torch.logical_or(image > 0.9, image < 0.1)),
        lambda image: ((image - image.min()) / (image.max() - image.min()), torch.max(image, 1 - image), image.amax()),
        lambda image: (torch.stack([(image[0] * 4).long() == k for k in range(4)]).float(), (image * 9).int() % 4),
        lambda image: ((image * 255).to(torch.uint8) // 64, image.permute(1, 2, 0) / 255, (image > 0.5) / 7),
        lambda image: (torch.rot90(image, 1, (1, 2)), image.rot90(3, (-2, -1)), image.fliplr(), torch.flipud(image)),
        lambda image: (-image, abs(-image), image.clamp(min=0.2), torch.clamp(image * 1.5, max=1.0), image.bool()),
        lambda image: (torch.matmul(MIX, image.flatten(1)).view(image.shape), torch.einsum("ij,jhw->ihw", MIX, image)),
        lambda image: (MIX @ image.view(3, -1), (image.permute(1, 2, 0) @ MIX).permute(2, 0, 1) * 2, image),
        lambda image: (F2.hflip(torch.tensordot(MIX[:1], image, dims=1)), (MIX @ image.reshape(3, -1)).view_as(image)),
        lambda image: (image.type(torch.LongTensor), image.type(torch.float64), image > np.float64(0.5)),
        lambda image: (put(put(image, 0, 0.0), (..., 3), 1.0), image * 2),
        lambda image: put(image, (1, slice(2, 5), slice(None, None, 2)), RAMP[2:5, ::2]),
        lambda image: put(image, image < 0.3, 0),
        lambda image: image.mul_((RAMP > 0).float()),
        lambda image: (image + torch.randn_like(image) * 0.1).clamp_(0, 1),
        lambda image: put(put(image * RAMP, (slice(None), 2), 0), image > 0.5, 2).masked_fill_(image < 0.2, 3).add_(1),
    ],
)
def test_arithmetic_and_conversions_of_rearranged_images_need_no_pixels(change: Callable[[Tensor], Any]) -> None:
    offloaded = check_rearranged(change)
    if not offloaded.recorded and not uint8_in_fixed_point():
        pytest.skip("this torchvision resizes bytes as float32, which the kernels do not repeat exactly")
    assert offloaded.recorded and not offloaded.unrecorded, offloaded.why


def test_one_function_with_a_number_and_with_a_value_for_each_channel() -> None:
    """As of a picture that is scaled, and then normalized by hand: both divide."""
    channels = torch.tensor([0.2, 0.3, 0.4])[:, None, None]
    loader = item_with(lambda image: (image.float() / 255 - channels) / channels)
    offloaded = offload(loader, "cpu")
    assert offloaded.plan.moves, offloaded.plan.reasons
    assert equal(seen(offloaded).batches, seen(loader).batches)
    assert offloaded.recorded and not offloaded.unrecorded, offloaded.why


@pytest.mark.parametrize(
    "change",
    [
        lambda image: (torch.zeros_like(image), torch.rand_like(image), torch.randint_like(image, 9), image),
        lambda image: (torch.randn_like(image.permute(1, 2, 0)), torch.full_like(image[:, ::2], 2.0), image),
        lambda image: (torch.ones_like(torch.stack([image, image]), dtype=torch.uint8), torch.cat([image, image])),
        lambda image: (image.new_zeros(3), image.new_full((2, 2), 0.5), image.new_tensor([1, 2]), image.flip(-1)),
        lambda image: (torch.rand(3, 1, 1).expand_as(image), torch.rand(3 * 24 * 32).view_as(image), image),
        lambda image: (torch.tensor([7]).type_as(image), torch.rand(2304).reshape_as(image.permute(2, 0, 1)), image),
        lambda image: (torch.cat([image, image.new_zeros(3, 24, 4)], 2), torch.zeros_like(image).add_(1.0)),
    ],
)
def test_what_takes_only_the_form_of_an_image_needs_no_pixels(change: Callable[[Tensor], Any]) -> None:
    def item(index: int) -> Any:
        return change(F2.to_dtype(F2.resize(pixels(index), [24, 32]), torch.float32, scale=True))

    made = []
    for loader in (plain := DataLoader(Items(item), 4), OffloadedLoader(plain, planned(plain), torch.device("cpu"))):
        torch.manual_seed(3)
        made.append(list(loader))
    assert equal(*made)
    strides = [[one.stride() for one in tree.leaves(batches) if isinstance(one, Tensor)] for batches in made]
    assert strides[0] == strides[1]
    assert loader.recorded and not loader.unrecorded  # type: ignore[attr-defined]


def test_a_picture_in_the_batch_stays() -> None:
    def collate(samples: Any) -> Any:
        return [image for image, *_ in samples]

    loader = DataLoader(Items(lambda index: (F2.horizontal_flip(picture(index)),)), 4, collate_fn=collate)
    plan = planned(loader)
    assert not plan.moves
    assert "only tensors are sent" in " ".join(plan.reasons)


def test_a_branch_that_no_trial_took_gets_its_pixels() -> None:
    def item(index: int) -> Any:
        image = F2.resize(pixels(index), [24, 32])
        return (image.sub_(int(image.min())) if index == 17 else image), index

    plan = planned(DataLoader(Items(item), 4))
    made = DataLoader(Items(item, 20), 4)
    offloaded = OffloadedLoader(made, plan, torch.device("cpu"))
    assert equal(seen(offloaded).batches, seen(made).batches)
    assert (offloaded.recorded, offloaded.unrecorded) == (4, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_late_call_that_is_not_exact_runs_on_pixels_if_none_was_compared(stream: bool) -> None:
    def item(index: int) -> Any:
        image = F2.to_dtype(F2.vertical_flip(pixels(index)), torch.float32, scale=True)
        return (F2.gaussian_blur(image, [7, 7], [0.4 + index % 5]) if index >= 16 else F2.invert(image)), index

    def made() -> DataLoader[Any]:
        return DataLoader(Stream(item, 24) if stream else Items(item, 24), 4)

    offloaded = offload(made(), "cpu", samples=8)
    assert offloaded.certificate is not None and offloaded.certificate.pixels == "equal"
    assert equal(seen(offloaded).batches, seen(made()).batches)
    assert (offloaded.recorded, offloaded.unrecorded) == (4, 2) and "gaussian_blur" in offloaded.why
    offloaded = offload(made(), "cpu", samples=20)
    assert "gaussian_blur may differ" in offloaded.certificate.pixels
    assert len(list(offloaded)) == offloaded.recorded == 6


def test_a_stream_goes_on_after_a_sample_that_needs_pixels() -> None:
    def item(index: int) -> Any:
        image = F2.resize(pixels(index), [24, 32])
        return (image.sub_(int(image.min())) if index == 17 else image), index

    plan = planned(DataLoader(Stream(item, 12), 4))
    made = DataLoader(Stream(item, 24), 4)
    offloaded = OffloadedLoader(made, plan, torch.device("cpu"))
    assert equal(seen(offloaded).batches, seen(made).batches)
    assert (offloaded.recorded, offloaded.unrecorded) == (5, 1)


def test_a_stream_ends_where_its_code_may_have_lost_a_sample() -> None:
    """The dataset takes an error that only a recorded image raises for one of its own, and leaves the sample out."""

    def item(index: int) -> Any:
        image = F2.resize(pixels(index), [24, 32])
        if index == 17:
            with contextlib.suppress(Exception):
                v2.ToDtype({tv_tensors.Mask: torch.float32})(image)
        return image, index

    plan = planned(DataLoader(Stream(item, 12), 4))
    offloaded = OffloadedLoader(DataLoader(Stream(item, 24), 4), plan, torch.device("cpu"))
    batches = iter(offloaded)
    assert len([next(batches) for _ in range(4)]) == 4
    with pytest.raises(NotRecordable, match="may have left out a sample"):
        next(batches)


def test_an_error_of_a_stream_is_raised_as_it_is() -> None:
    def item(index: int) -> Any:
        if index == 14:
            raise KeyError("no such file")
        return F2.resize(pixels(index), [24, 32]), index

    plan = planned(DataLoader(Stream(item, 12), 4))
    with pytest.raises(KeyError, match="no such file"):
        list(OffloadedLoader(DataLoader(Stream(item), 4), plan, torch.device("cpu")))


def test_a_collate_function_of_a_stream_that_fails_runs_once() -> None:
    runs: list[int] = []

    def collate(samples: Any) -> Any:
        runs.append(len(samples))
        if len(runs) == 2:
            raise ValueError("a batch without a face")
        return torch.stack([image for image, *_ in samples])

    plan = planned(
        DataLoader(Stream(flip_and_resize_v2, 8), 4, collate_fn=lambda samples: torch.stack([samples[0][0]]))
    )
    offloaded = OffloadedLoader(
        DataLoader(Stream(flip_and_resize_v2), 4, collate_fn=collate), plan, torch.device("cpu")
    )
    with pytest.raises(ValueError, match="a batch without a face"):
        list(offloaded)
    assert runs == [4, 4]


#: A library whose stages call the functions that they are given, as webdataset's do.
LIBRARY = """
import random
import PIL.Image
from torch.utils.data import IterableDataset

class Pipeline(IterableDataset):
    def __init__(self, source, *stages):
        self.source, self.stages = source, stages
    def __iter__(self):
        samples = self.source()
        for stage in self.stages:
            samples = stage(samples)
        return samples
    def then(self, stage):
        return Pipeline(self.source, *self.stages, stage)
    def map_tuple(self, *functions):
        def stage(samples):
            for sample in samples:
                yield tuple(function(value) for function, value in zip(functions, sample))
        return self.then(stage)
    def shuffle(self, size):
        def stage(samples):
            held = []
            for sample in samples:
                held.append(sample)
                if len(held) >= size:
                    yield held.pop(random.randrange(len(held)))
            yield from held
        return self.then(stage)
    def bright(self):
        def stage(samples):
            for image, label in samples:
                yield (image.rotate(180) if image.getextrema()[0][1] > 250 else image), label
        return self.then(stage)
"""


class Source:
    def __call__(self) -> Any:
        return ((picture(index), index) for index in range(24))


@pytest.fixture
def pipeline(tmp_path: Any) -> Callable[..., Any]:
    file = tmp_path / "site-packages" / "pipes.py"
    file.parent.mkdir()
    file.write_text(LIBRARY)
    module: dict[str, Any] = {"__name__": "pipes"}
    exec(compile(LIBRARY, str(file), "exec"), module)
    return module["Pipeline"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("late", [False, True])
def test_transforms_that_only_a_library_calls_move(pipeline: Any, late: bool, workers: int) -> None:
    augment = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    stages = pipeline(Source()).map_tuple(augment, float)
    stages = stages.shuffle(7) if late else stages

    def made() -> DataLoader[Any]:
        return DataLoader(stages, 4, num_workers=workers)

    offloaded = offload(made(), "cpu", samples=16)
    assert {site.where for site in offloaded.plan.called} == {"pipes.py:19"}
    assert {site.function for site in offloaded.plan.called} == set(MOVES["webdataset"].split())
    assert offloaded.certificate is not None and offloaded.certificate.pixels == "equal"
    ours, theirs = seen(offloaded, 2), seen(made(), 2)
    assert equal(ours.batches, theirs.batches) and ours.after == theirs.after
    assert (offloaded.recorded, offloaded.unrecorded) == (len(theirs.batches), 0)


def test_a_library_that_reads_pixels_gets_them(pipeline: Any) -> None:
    stages = pipeline(Source()).map_tuple(v1.Resize((24, 32)), int).bright().map_tuple(v1.ToTensor(), float)
    offloaded = offload(DataLoader(stages, 4), "cpu", samples=16)
    assert "to_tensor" in {site.function for site in offloaded.plan.called}
    assert any("resize" in why and "pipes.py" in why for why in offloaded.plan.reasons), offloaded.plan
    assert equal(seen(offloaded, 2).batches, seen(DataLoader(stages, 4), 2).batches)


class Chained(IterableDataset[Any]):
    def __init__(self) -> None:
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.Resize([24, 32])])

    def __iter__(self) -> Any:
        return ((self.transform(pixels(index)), index) for index in range(12))


def test_a_stream_goes_on_after_the_loop_has_edited_its_chain() -> None:
    plan = planned(DataLoader(Chained(), 4))
    assert plan.pieces

    def batches(loader: Any, chain: Any) -> list[Any]:
        torch.manual_seed(0)
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == 1:
                chain.transforms.append(v2.RandomInvert())
        return found

    plain, data = DataLoader(Chained(), 4), Chained()
    offloaded = OffloadedLoader(DataLoader(data, 4), plan, torch.device("cpu"))
    assert equal(batches(offloaded, data.transform), batches(plain, plain.dataset.transform))  # type: ignore[attr-defined]
    assert (offloaded.recorded, offloaded.unrecorded) == (1, 2)
    assert "other transforms" in offloaded.why


class OwnIterator(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return torch.zeros(3, 4, 4)


class Holding(IterableDataset[Any]):
    def __init__(self) -> None:
        self.rows = iter(range(8))

    def __iter__(self) -> Any:
        return self.rows


@pytest.mark.parametrize(("stream", "says"), [(OwnIterator(), "write __iter__"), (Holding(), "rows, which a trial")])
def test_a_stream_that_a_trial_would_use_up_stays(stream: Any, says: str) -> None:
    assert says in why_not_repeated(stream)
    assert says in offload(DataLoader(stream, 2), "cpu").plan.reasons[0]


def test_streams_that_begin_anew_are_tried() -> None:
    assert why_not_repeated(Pipeline(iter)) == ""
    with open(__file__) as file:
        stream = Stream(lambda index: index)
        stream.file = file  # type: ignore[attr-defined]
        assert why_not_repeated(stream) == ""


def test_a_loader_with_workers_moves_what_its_code_calls() -> None:
    make = SCRIPTS["item", "clip_as_stack"]
    offloaded = offload(make(2), "cpu", samples=8)
    assert offloaded.certificate is not None and are_equal(offloaded.certificate)
    assert equal(seen(offloaded).batches, seen(make(2)).batches)
    assert offloaded.unrecorded == 0, offloaded.why


# ---- what only a late sample does


def flipped(image: Any) -> Any:
    return F2.horizontal_flip(image)


def _stack_written(image: Any, other: Any) -> Any:
    stack = torch.stack([image, other, image])
    image.mul_(2)
    stack[0].sub_(0.5)
    stack[1:].add_(1)
    return stack, image, other


def _caught(image: Any, other: Any) -> Any:
    try:
        image = F1.normalize((image * 255).to(torch.uint8), [0.5] * 3, [0.2] * 3)
    except TypeError as error:
        return image, str(error)
    return image, ""


def _refused(image: Any, other: Any) -> Any:
    calls = (
        lambda: F2.adjust_hue(image, 0.7),
        lambda: F2.posterize(image, 9),
        lambda: F2.pad(image, [1, 2, 3]),
        lambda: F2.resize(image, [0, 5]),
        lambda: F1.adjust_brightness(image, -1),
        lambda: image.size(7),
        lambda: image.squeeze("a"),
        lambda: image.absent,
        lambda: torch.stack([image, F2.resize(other, [5, 5])]),
    )
    said = []
    for call in calls:
        try:
            said.append(str(call()))
        except Exception as error:
            said.append(f"{type(error)}: {error}")
    return image, said


def _written_in_a_thread(image: Any, other: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: image.mul_(0.5)).result()
    return image


LATER: dict[str, Callable[[Any, Any], Any]] = {
    "stack written": _stack_written,
    "error caught": _caught,
    "calls refused": _refused,
    "written in a thread": _written_in_a_thread,
    "to a picture": lambda image, other: F1.pil_to_tensor(F1.to_pil_image(image)),
    "same object": lambda image, other: (F2.resize(image, [40, 56]) is image, image.float() is image, image),
    "converted alias": lambda image, other: (image.float().mul_(0.5), image),
    "clip's strides": lambda image, other: [F1.adjust_hue(torch.stack([image, other]), 0.1) * 0],
    "clip converted": lambda image, other: F1.convert_image_dtype(torch.stack([image, other]), torch.float64),
    "copied": lambda image, other: (copy.deepcopy(image).mul_(0.5), pickle.loads(pickle.dumps(other)), image),
    "further dimension": lambda image, other: (image.unsqueeze(0).mul_(0.5), image),
    "collated": lambda image, other: torch.utils.data.default_collate([image, other.clone()]),
}


@pytest.mark.parametrize("name", LATER)
def test_what_only_a_late_sample_does_is_what_it_does_without_recording(name: str) -> None:
    calls = [0]

    def item(index: int) -> Any:
        calls[0] += 1
        image, other = flipped(pixels(index) / 255), flipped(pixels(index + 1) / 255)
        made = LATER[name](image, other) if index >= 8 else (image, other)
        return made if isinstance(made, tuple) else (made,)

    plan = find(Items(item), lambda samples: samples, list(range(8)), Plan())
    side = PackingSide(Items(item, 20), lambda samples: samples, plan)
    calls[0] = 0
    made = side.samples([8, 9])
    batch = replay(made, torch.device("cpu")) if isinstance(made, Packed) else made.batch
    assert calls[0] == 2, "the user's code ran more often"
    plain = [item(8), item(9)]
    assert equal([sample[:-1] for sample in batch], plain)
    strides = [[leaf.stride() for leaf in tree.leaves(some) if isinstance(leaf, Tensor)] for some in (batch, plain)]
    assert [one for one in strides[0] if one] == strides[1]


@pytest.mark.parametrize(
    "asks",
    [
        lambda image: type(image) is Tensor,
        lambda image: image.__class__.__name__,
        lambda image: {Tensor: 1}.get(type(image)),
        lambda image: [*map(type, [image])],
    ],
)
def test_nothing_moves_where_code_asks_for_exact_types(asks: Callable[[Any], Any]) -> None:
    def item(index: int) -> Any:
        image = flipped(pixels(index))
        return image, asks(image) if index > 100 else 0

    plan = planned(DataLoader(Items(item), 4))
    assert not plan.moves
    assert any("use isinstance()" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    "asks",
    [
        lambda image: f"{type(image)} {type(image).__name__}",
        lambda image: isinstance(image, (Tensor, type)),
    ],
)
def test_printing_a_type_hinders_nothing(asks: Callable[[Any], Any]) -> None:
    def item(index: int) -> Any:
        image = flipped(pixels(index))
        return image, asks(image) if index > 100 else 0

    assert planned(DataLoader(Items(item), 4)).moves


@dataclasses.dataclass
class Held:
    image: Tensor


def test_comparing_objects_of_a_dataclass_hinders_nothing() -> None:
    def item(index: int) -> Any:
        held = Held(flipped(pixels(index)))
        return held.image, index == 200 and held == Held(held.image)

    assert planned(DataLoader(Items(item), 4)).moves


def test_a_function_that_no_sample_compared_is_left_to_plain_code() -> None:
    def item(index: int) -> Any:
        image = flipped(pixels(index))
        return (F2.vertical_flip(image) if index >= 12 else image), index

    made = DataLoader(Items(item, 20), 4)
    offloaded = offload(made, "cpu", samples=8)
    assert equal(seen(offloaded).batches, seen(made).batches)
    assert (offloaded.recorded, offloaded.unrecorded) == (3, 2)
    assert "vertical_flip was not among" in offloaded.why
