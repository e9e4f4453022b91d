"""Products of a matrix and an image's channels are recorded, however they are written, and change nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.pack.packing import pack
from pipediag.replay.record.hooks import recording
from pipediag.replay.record.recorder import Recorder
from pipediag.replay.record.session import session
from pipediag.replay.record.substitutes import is_recording
from pipediag.replay.run.replay import replay

from .. import batches
from ..batches import property_settings
from .test_strides import LAYOUTS

YCBCR = torch.tensor([[0.299, 0.587, 0.114], [-0.16874, -0.33126, 0.5], [0.5, -0.41869, -0.08131]])

#: The product of a matrix and one image.
Way = Callable[[Tensor, Tensor], Tensor]
WAYS: dict[str, Way] = {
    "matmul": lambda m, x: torch.matmul(m, x.view(len(x), -1)).view(len(m), *x.shape[1:]),
    "operator": lambda m, x: (m @ x.reshape(x.shape[0], -1)).reshape(-1, x.shape[1], x.shape[2]),
    "mm": lambda m, x: torch.mm(m, x.flatten(1)).view((len(m), *x.shape[1:])),
    "methods": lambda m, x: m.mm(torch.flatten(x, start_dim=1)).unflatten(1, x.shape[1:]),
    "as": lambda m, x: m.matmul(x.view(len(x), -1)).view_as(x),
    "einsum": lambda m, x: torch.einsum("ij,jhw->ihw", m, x),
    "einsum of any dimensions": lambda m, x: torch.einsum("oc, c... -> o...", m, x),
    "tensordot": lambda m, x: torch.tensordot(m, x, dims=1),
    "tensordot of named dimensions": lambda m, x: torch.tensordot(m, x, dims=([1], [0])),
    "channels last": lambda m, x: (x.permute(1, 2, 0) @ m.T).permute(2, 0, 1),
}


def recorded(transform: Any, images: Any) -> list[Any]:
    """Return what the remedy makes of images, one by one."""
    recorder = Recorder(transform, 0)
    with recording():
        packed = pack([recorder(image) for image in images])
    return replay(packed, torch.device("cpu"))


@given(
    x=batches.images((torch.float32,), channels=(1, 3, 4)),
    rows=st.integers(1, 4),
    way=st.sampled_from([*WAYS]),
    seed=st.integers(0, 99),
)
@property_settings(60)
def test_the_product_is_torchs_but_for_the_last_digits(x: Tensor, rows: int, way: str, seed: int) -> None:
    rows = x.size(1) if way == "as" else rows
    matrices = torch.randn(len(x), rows, x.size(1), generator=torch.Generator().manual_seed(seed))

    class Multiplied(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            self.last = WAYS[way](matrices[self.count], image)
            self.count += 1
            return self.last

    transform = Multiplied()
    transform.count = 0
    made = recorded(transform, x)
    transform.count = 0
    for one, image in zip(made, x, strict=True):
        plain = transform(image)
        torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-6)
        assert one.stride() == plain.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
def test_images_in_every_layout(way: str, layout: str) -> None:
    """Where torch refuses to flatten an image, nothing is recorded."""
    source = LAYOUTS[layout](torch.rand(3, 12, 14))
    for image in (source, tv_tensors.Image(source)):
        chain = v2.Compose([lambda image: WAYS[way](YCBCR, image * 255) + YCBCR[:, :1, None], v2.Normalize([9], [2])])
        (made,) = recorded(chain, [image])
        plain = chain(image)
        assert type(made) is type(plain) and made.stride() == plain.stride()
        torch.testing.assert_close(made, plain, rtol=1e-5, atol=1e-3)
        try:
            plain = WAYS[way](YCBCR, image)
        except RuntimeError:
            with pytest.raises(NotRecordable):
                recorded(v2.Lambda(lambda image: WAYS[way](YCBCR, image)), [image])
        else:
            (made,) = recorded(v2.Lambda(lambda image: WAYS[way](YCBCR, image)), [image])
            assert made.stride() == plain.stride()


def test_one_launch_multiplies_each_image_by_its_own_matrix() -> None:
    """Also one that is written into between the samples."""
    matrix = torch.eye(3)

    def turned(image: Tensor) -> Tensor:
        matrix.copy_(matrix.roll(1, 0))
        return torch.matmul(matrix, image.view(3, -1)).view(image.shape)

    images = torch.rand(3, 3, 5, 6)
    for one, image, by in zip(recorded(turned, images), images, (1, 2, 3), strict=True):
        assert torch.equal(one, image.roll(by, 0))


@pytest.mark.parametrize("call", [WAYS["matmul"], lambda m, x: x + m[:, :1, None]], ids=["matrix", "offset"])
def test_what_is_written_into_after_the_call(call: Way) -> None:
    """The pixels are needed later, and are still those of the call."""
    matrix = torch.eye(3)

    def centred(image: Tensor) -> Tensor:
        matrix.copy_(torch.eye(3))
        made = call(matrix, image)
        matrix.mul_(2)
        return made * made.mean()

    image = torch.rand(3, 8, 9)
    with recording(), session.going_on():
        made = Recorder(centred, 0)(image)
    assert torch.equal(made, centred(image))


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "mean of flat": lambda x: x - x.view(3, -1).mean(1)[:, None, None],
    "rows": lambda x: torch.stack([row.view(x.shape[1:]) for row in x.view(3, -1)]),
    "written": lambda x: x.view(3, -1).mul_(2).view(x.shape),
    "by an index": lambda x: x.flatten(1)[:2].view(2, *x.shape[1:]),
    "all in one": lambda x: x.view(-1),
    "float64": lambda x: (YCBCR.double() @ x.double().view(3, -1)).view(x.shape),
    "a gradient": lambda x: (nn.Parameter(YCBCR) @ x.view(3, -1)).view(x.shape),
    "other letters": lambda x: torch.einsum("ij,jhw->iwh", YCBCR, x),
    "a diagonal": lambda x: torch.einsum("ii,ihw->ihw", YCBCR, x),
    "columns": lambda x: torch.einsum("ij,ihw->jhw", YCBCR, x),
    "other dimensions": lambda x: torch.tensordot(x, YCBCR, dims=([0], [1])),
    "the image's left": lambda x: x.view(3, -1).T @ YCBCR,
    "another order": lambda x: x.permute(2, 1, 0).permute(2, 1, 0),
    "rows for channels": lambda x: (x.permute(1, 2, 0) @ YCBCR).permute(2, 1, 0),
    "no product": lambda x: (YCBCR @ x.view(3, -1)).relu().view(x.shape),
    "two images": lambda x: x.view(3, -1) @ x.view(3, -1).T,
    "another shape": lambda x: (YCBCR @ x.view(3, -1)).view(-1, x.shape[2], x.shape[1]),
    "many channels": lambda x: (torch.ones(5, 3) @ x.view(3, -1)).view(-1, *x.shape[1:]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_all_else_needs_the_pixels(other: str) -> None:
    """They are those of the call itself where a sample is trained on."""
    image = torch.rand(3, 6, 7)
    with pytest.raises(NotRecordable):
        recorded(OTHERS[other], [image])
    plain = OTHERS[other](image.clone())
    settled = session.settled
    with recording(), session.going_on():
        made = Recorder(OTHERS[other], 0)(image.clone())
    assert session.settled > settled
    assert torch.equal(made, plain) and (made.stride(), made.requires_grad) == (plain.stride(), plain.requires_grad)


def test_a_flat_image_is_no_result_of_a_transform() -> None:
    """It is refused by whoever stacks it."""
    with recording():
        made = [Recorder(lambda image: image.view(3, -1), 0)(torch.rand(3, 6, 7)) for _ in range(2)]
        assert made[0].shape == (3, 42) and made[0].numel() == 126
        with pytest.raises(NotRecordable):
            torch.stack(made)


def test_pixels_that_autocast_must_not_round() -> None:
    """They are needed inside of it, but were computed before."""

    def mixed(image: Tensor) -> Tensor:
        turned = WAYS["matmul"](YCBCR, image)
        with torch.autocast("cpu", torch.bfloat16):
            return turned * turned.mean()

    image = torch.rand(3, 8, 9)
    with recording(), session.going_on():
        made = Recorder(mixed, 0)(image)
    assert torch.equal(made.settled() if is_recording(made) else made, mixed(image))


def test_autocast_itself_rounds() -> None:
    def mixed(image: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return WAYS["matmul"](YCBCR, image)

    image = torch.rand(3, 8, 9)
    with recording(), session.going_on():
        made = Recorder(mixed, 0)(image)
    assert made.dtype == torch.bfloat16 and torch.equal(made, mixed(image))


def test_an_image_is_written_into_through_its_view() -> None:
    """Also where only some samples do so."""

    def doubled(image: Tensor) -> Tensor:
        flat = image.view(3, -1)
        product = YCBCR @ flat
        flat.mul_(2)
        return product.view(image.shape) + image

    image = torch.rand(3, 8, 9)
    plain = doubled(image.clone())
    with recording(), session.going_on():
        try:
            made = Recorder(doubled, 0)(image.clone())
        except NotRecordable:
            return
    assert torch.equal(made.settled() if is_recording(made) else made, plain)
