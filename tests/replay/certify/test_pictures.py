"""The pictures of a certificate are small, show the samples that differ most, and may be missing."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from pipediag.remedy import offload
from pipediag.remedy.summary import proof
from pipediag.replay.certify import certifying
from pipediag.replay.certify import pictures as certificate_pictures
from pipediag.replay.certify.pictures import MOST, NBYTES, Pictures
from pipediag.session import Pictured, Remedy, Session

from ...remedy.sameness import Images, image, loader


def batch(number: int = 6, side: int = 40, channels: int = 3) -> Tensor:
    """Smooth images of different brightness."""
    ramp = torch.linspace(0, 200, side).expand(channels, side, side)
    return torch.stack([ramp + 5 * n for n in range(number)]).to(torch.uint8)


def drawn(made: Tensor, want: Tensor) -> tuple[Pictured, ...]:
    pictures = Pictures()
    pictures.add(made, want)
    return pictures.drawn()


def opened(png: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(png)))


def nbytes(pictures: Any) -> int:
    return sum(len(one.cpu) + len(one.device) + len(one.difference) for one in pictures)


def test_the_most_different_come_first() -> None:
    want = batch()
    made = want.clone()
    made[4, 0, 3, 3] += 2
    made[1, 0, 7, 7] += 9
    found = drawn(made, want)
    assert [one.largest for one in found] == [9, 2, 0, 0] and len(found) == MOST
    assert found[2].cpu == drawn(want[:1], want[:1])[0].cpu, "of equal ones, the first"
    assert found[2].cpu == found[2].device and opened(found[2].difference).convert("L").getextrema() == (0, 0)


@pytest.mark.parametrize("side", [40, 300])
def test_one_pixel_that_differs_is_seen(side: int) -> None:
    want = batch(1, side)
    made = want.clone()
    made[0, :, side // 2, side // 2] += 1
    (found,) = drawn(made, want)
    assert found.largest == 1
    assert opened(found.difference).convert("L").getextrema() == (0, 255)
    assert max(opened(found.cpu).size) == min(side, 96) == max(opened(found.difference).size)


def test_floats_are_scaled_by_the_range_on_the_cpu() -> None:
    want = (batch(1).float() - 100) / 50
    made = want + (want.max() - want.min()) / 255 * 3
    assert drawn(made, want)[0].largest == pytest.approx(3, abs=1e-3)
    assert drawn(want.half(), want.half())[0].largest == 0


@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 20, 30), (20, 30, 3), (20, 30, 1)])
@pytest.mark.parametrize("several", [True, False])
def test_layouts(shape: tuple[int, ...], several: bool) -> None:
    want = (torch.arange(1800)[: torch.Size(shape).numel()] % 256).to(torch.uint8).reshape(shape)
    (found,) = drawn(want[None], want[None]) if several else drawn(want, want)
    assert opened(found.cpu).size == (30, 20)
    assert opened(found.cpu).mode == ("L" if 1 in shape else "P")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(8, 10),
        torch.zeros(2, 4, 9, 9),
        torch.zeros(3, 3, 8, 8, dtype=torch.int64),
        torch.zeros(2, 3, 0, 8),
        torch.full((2, 3, 8, 8), float("nan")),
        torch.full((2, 3, 8, 8), float("inf")),
        torch.tensor(1.0),
    ],
    ids=str,
)
def test_other_tensors_are_left_out(tensor: Tensor) -> None:
    assert drawn(tensor, tensor) == ()


def test_other_shapes_are_left_out() -> None:
    assert drawn(torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 9)) == ()
    assert drawn(torch.zeros(2, 3, 8, 8).half(), torch.zeros(2, 3, 8, 8)) == ()


def test_subclasses_of_a_tensor() -> None:
    assert len(drawn(tv_tensors.Image(batch(2)), tv_tensors.Image(batch(2)))) == 2


def test_pictures_of_noise_fit() -> None:
    want = torch.randint(0, 256, (8, 3, 224, 224), dtype=torch.uint8)
    made = torch.randint(0, 256, (8, 3, 224, 224), dtype=torch.uint8)
    found = drawn(made, want)
    assert found and nbytes(found) <= NBYTES


def certified() -> certifying.Certificate:
    chain = v2.Compose([v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    made = offload(loader(Images(chain, image)), "cpu", samples=8)
    assert made.certificate is not None
    return made.certificate


def test_a_certificate_has_pictures_that_a_session_keeps() -> None:
    found = proof(certified())
    assert found.passed and 0 < len(found.pictured) <= MOST
    assert all(one.largest == 0 and one.cpu == one.device for one in found.pictured)
    session = Session()
    session.remedy = Remedy(proof=found)
    again = Session.from_dict(session.to_dict())
    assert again.remedy is not None and again.remedy.proof == found


@pytest.mark.parametrize("broken", ["_levels", "_png"])
def test_a_failure_to_draw_does_not_fail_the_certificate(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise OSError("no encoder")

    monkeypatch.setattr(certificate_pictures, broken, fail)
    certificate = certified()
    assert certificate.passed and certificate.pictured == ()
