"""Single images, and stacks that functions change, have the strides that they have without the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as older
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pipediag.replay.layout import copied, is_dense, laid_out, same_strides
from pipediag.replay.pack.packing import pack, pack_any, pack_plain
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.plain_code import Tried
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import stand_in_for_stack
from pipediag.replay.run.replay import replay

from ...remedy.sameness import picture

CPU = torch.device("cpu")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "a view": lambda x: torch.cat([x, x], 2)[..., 1 : 1 + x.shape[-1]],
    "expanded": lambda x: x[:1].expand(3, -1, -1),
}
OF_TENSORS = {
    "nothing": [],
    "crop": [v2.CenterCrop(9), v2.ToDtype(torch.float32, scale=True)],
    "view": [v2.RandomHorizontalFlip(1.0), v2.RandomCrop(8)],
    "resize": [v2.Resize(10), v2.RandomVerticalFlip(0.5)],
    "gray": [v2.Grayscale(3)],
    "permuted": [v2.RandomChannelPermutation()],
    "v1": [v1.ConvertImageDtype(torch.float32), v1.Normalize([0.5], [0.5])],
    "equalized": [v1.RandomEqualize(1.0), v1.ColorJitter(0.3, hue=0.1)],
    "own layout": [v2.RandomHorizontalFlip(1.0), lambda x: x.contiguous(memory_format=torch.contiguous_format)],
}
OF_PICTURES = {
    "ToTensor": [v1.RandomHorizontalFlip(1.0), v1.ToTensor()],
    "PILToTensor": [v1.Resize(9), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
    "ToImage": [v2.RandomCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "gray": [v1.Grayscale(), v1.ToTensor()],
    "gray bytes": [v1.Grayscale(), v1.PILToTensor()],
}

OF_STACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda images: images,
    "blurred": lambda images: older.gaussian_blur(images, [3, 3], [0.5]),
    "blurred by v2": lambda images: F.gaussian_blur(images, [3, 3], [0.5]),
    "reflected": lambda images: F.pad(images, [1, 2, 3, 4], padding_mode="reflect"),
    "padded": lambda images: F.pad(images, [1, 2, 3, 4]),
    "brightened and flipped": lambda images: F.horizontal_flip(older.adjust_brightness(images, 1.1)),
    "divided": lambda images: images.div(2),
}


def both(transforms: list[Any], source: Any) -> tuple[Tensor, Tensor]:
    """Return an image as the remedy gives it, not stacked, and as it is without."""
    transform = v2.Compose(transforms) if transforms else v2.Compose([v2.Identity()])
    torch.manual_seed(0)
    with recording():
        packed = pack_any([Recorder(transform, 0)(source)], stood=-1)
    torch.manual_seed(0)
    return replay(packed, CPU)[0], transform(source)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chain", OF_TENSORS)
def test_tensors(chain: str, layout: str) -> None:
    source = LAYOUTS[layout](torch.randint(0, 256, (3, 12, 14), dtype=torch.uint8))
    for one in (source, tv_tensors.Image(source)):
        made, plain = both(OF_TENSORS[chain], one)
        assert type(made) is type(plain) and torch.equal(made, plain)
        assert made.stride() == plain.stride()


@pytest.mark.parametrize(
    "change", [v2.RandomPerspective(0.5, 1.0), v2.RandomRotation(20), v2.ElasticTransform(sigma=1.0), v2.Resize(9)]
)
def test_masks_without_channels(change: Any) -> None:
    made, plain = both([v2.RandomHorizontalFlip(1.0), change], tv_tensors.Mask(torch.randint(0, 9, (12, 14))))
    assert type(made) is type(plain) and made.shape == plain.shape
    assert made.stride() == plain.stride()


@pytest.mark.parametrize("chain", OF_PICTURES)
def test_pictures(chain: str) -> None:
    made, plain = both(OF_PICTURES[chain], picture(0))
    assert type(made) is type(plain) and torch.equal(made, plain)
    assert made.stride() == plain.stride()


@pytest.mark.parametrize(
    "view", [lambda x: x.T, lambda x: x[:, 1:3], lambda x: x[:1].expand(4, 6), lambda x: x[:, :1].T]
)
def test_tensors_that_no_op_changes(view: Callable[[Tensor], Tensor]) -> None:
    tensor = view(torch.rand(6, 6))
    (made,) = replay(pack_plain([tensor]), CPU)
    assert made.stride() == tensor.stride() and torch.equal(made, tensor)


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", OF_STACKS)
def test_stacks_of_one_sample(name: str, layout: str) -> None:
    def change(images: Tensor) -> Tensor:
        # A hue's result lies with channels last.
        return OF_STACKS[name](older.adjust_hue(images, 0.1) if layout == "channels last" else images)

    frames = torch.rand(2, 3, 12, 14)
    with recording(calls=Tried({})):
        packed = pack([change(torch.stack(list(stand_in_for_stack(frames).parts)))])
    ours, theirs = replay(packed, CPU)[0], change(frames)
    assert theirs.is_contiguous() == (layout == "contiguous")
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride()


@pytest.mark.parametrize("source", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", [*OF_STACKS, "hue", "hue and contrast", "cropped", "one", "every other", "again"])
@pytest.mark.parametrize("needed", [False, True])
def test_stacks_in_every_layout(name: str, source: str, needed: bool) -> None:
    """Where code needs them, the pixels of each image are made by itself, which may lie otherwise than in the stack."""
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        **OF_STACKS,
        "hue": lambda images: older.adjust_hue(images, 0.1),
        "hue and contrast": lambda images: older.adjust_contrast(older.adjust_hue(images, 0.1), 1.1),
        "cropped": lambda images: older.crop(older.adjust_hue(images, 0.1), 1, 2, 6, 7),
        "one": lambda images: older.adjust_hue(images, 0.1)[1],
        "again": lambda images: older.hflip(older.adjust_hue(images, 0.1).contiguous()),
        "every other": lambda images: older.hflip(older.adjust_hue(images, 0.1))[::2],
    }
    format = torch.contiguous_format if source == "contiguous" else torch.channels_last
    frames = torch.rand(3, 3, 12, 14).contiguous(memory_format=format)
    with recording(calls=Tried({})), session.going_on():
        recorded = changes[name](stand_in_for_stack(frames))
        ours = recorded.settled() if needed else replay(pack([recorded]), CPU)[0]
    theirs = changes[name](frames)
    assert ours.stride() == theirs.stride() and torch.allclose(ours, theirs, atol=1e-6)


def test_layouts() -> None:
    dense = torch.rand(2, 3, 4).permute(2, 0, 1)
    gaps, repeated, overlapping = torch.rand(4, 6)[:, :3], torch.rand(3, 1).expand(3, 5), torch.rand(9).unfold(0, 3, 1)
    assert [is_dense(one) for one in (dense, gaps, repeated)] == [True, False, False]
    for one in (dense, gaps, repeated):
        assert torch.equal(copied(one), one) and copied(one).stride() == one.stride()
        assert same_strides(laid_out(one.contiguous(), one.stride()), one)
    assert torch.equal(copied(overlapping), overlapping)
    assert not same_strides(gaps.contiguous(), gaps)
    without_memory = torch.empty_strided((4, 3), (6, 1), device="meta")
    assert copied(without_memory).is_meta and copied(without_memory).stride() == (6, 1)
