"""JPEGs that torchvision reads undecoded behave as the tensors that it returns."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_image
from torchvision.transforms import v2

from pipediag.remedy import loader, offload
from pipediag.replay.decode.undecoded import is_undecoded, undecoded_tensors
from pipediag.replay.ops.op import NotRecordable
from pipediag.replay.pack.packing import pack
from pipediag.session.remedies import DECODING

from ...remedy.sameness import jpeg

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
CPU = torch.device("cpu")


def as_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def undecoded() -> Any:
    with undecoded_tensors():
        return decode_jpeg(as_bytes(jpeg()))


def test_torchvision_and_pillow_decode_alike() -> None:
    """So a certificate may compare the device with either decoder."""
    for k in range(60):
        data = jpeg(17 + 3 * k, 90 - k, k, quality=30 + k, subsampling=k % 3)
        pillows = torch.from_numpy(np.array(PIL.Image.open(io.BytesIO(data)))).permute(2, 0, 1)
        assert torch.equal(decode_jpeg(as_bytes(data)), pillows)


@pytest.mark.parametrize("mode", [ImageReadMode.UNCHANGED, ImageReadMode.RGB])
def test_every_reader_returns_jpegs_undecoded(tmp_path: Path, mode: ImageReadMode) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg())
    expected = read_image(str(path))
    with undecoded_tensors():
        images = [
            decode_jpeg(as_bytes(jpeg()), mode),
            *decode_jpeg([as_bytes(jpeg())] * 2, mode),
            decode_image(as_bytes(jpeg()), mode),
            read_image(str(path), mode),
        ]
    path.unlink()
    for image in images:
        assert is_undecoded(image)
        assert torch.equal(image, expected)
        assert type(image) is Tensor
        assert image.stride() == expected.stride()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        pytest.param(jpeg(), {"mode": ImageReadMode.GRAY}, id="read as grey"),
        pytest.param(jpeg(), {"apply_exif_orientation": True}, id="turned by EXIF"),
        pytest.param(jpeg(progressive=True), {}, id="progressive"),
        pytest.param(jpeg(mode="L"), {}, id="grey"),
        pytest.param(jpeg(mode="CMYK"), {"mode": ImageReadMode.RGB}, id="CMYK"),
    ],
)
def test_other_files_are_decoded(data: bytes, options: dict[str, Any]) -> None:
    with undecoded_tensors():
        image = decode_image(as_bytes(data), **options)
    assert type(image) is Tensor
    assert torch.equal(image, decode_image(as_bytes(data), **options))


def test_a_truncated_file_raises_torchvisions_error() -> None:
    with pytest.raises(RuntimeError) as expected:
        decode_image(as_bytes(jpeg()[:900]))
    with undecoded_tensors(), pytest.raises(RuntimeError) as got:
        decode_image(as_bytes(jpeg()[:900]))
    assert str(got.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_its_shape_and_type_need_no_pixels() -> None:
    image, real = undecoded(), decode_jpeg(as_bytes(jpeg()))
    for facts in (
        lambda x: (x.shape, x.size(), x.size(1), x.ndim, x.dim(), len(x), x.numel(), x.dtype, x.device),
        lambda x: (x.is_contiguous(), x.is_cpu, x.requires_grad, x.is_floating_point(), torch.is_tensor(x)),
    ):
        assert facts(image) == facts(real)
    assert isinstance(image, Tensor)
    assert is_undecoded(image)


def test_a_tv_tensor_of_it_stays_undecoded() -> None:
    image = tv_tensors.Image(undecoded())
    assert isinstance(image, tv_tensors.Image)
    assert is_undecoded(image)
    real = tv_tensors.Image(decode_jpeg(as_bytes(jpeg())))
    assert torch.equal(v2.functional.horizontal_flip(image), v2.functional.horizontal_flip(real))
    assert type(image) is tv_tensors.Image


def test_writing_into_it_changes_no_clone() -> None:
    image = undecoded()
    kept = image.clone()
    assert is_undecoded(kept)
    image[:, 3:9, 4:8] = 7
    assert bool((image[:, 3:9, 4:8] == 7).all())
    assert torch.equal(kept, decode_jpeg(as_bytes(jpeg())))


def test_a_tv_tensor_shares_its_pixels() -> None:
    plain, real = undecoded(), decode_jpeg(as_bytes(jpeg()))
    image = tv_tensors.Image(plain)
    kept = image.clone()
    plain[0] = 9
    assert not is_undecoded(image)
    image[1] = 8
    assert torch.equal(kept, tv_tensors.Image(real))
    real[0], real[1] = 9, 8
    assert torch.equal(plain, real)
    assert torch.equal(image, tv_tensors.Image(real))


def test_its_bytes_are_its_own() -> None:
    data = as_bytes(jpeg())
    with undecoded_tensors():
        image = decode_jpeg(data)
    data.zero_()
    assert torch.equal(image, decode_jpeg(as_bytes(jpeg())))


def _copied(image: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers clone()
        return torch.tensor(image)


USES: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x.float() / 255,
    "index": lambda x: x[:, 2:9, ::2],
    "iterate": lambda x: [*x][1],
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "asarray": lambda x: torch.from_numpy(np.asarray(x).copy()),
    "copied": _copied,
    "as_tensor": lambda x: torch.as_tensor(x, dtype=torch.float64),
    "stack": lambda x: torch.stack([x, x]),
    "collate": lambda x: default_collate([x, x]),
    "in place": lambda x: x.add_(1),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "view": lambda x: x.permute(1, 2, 0),
    "clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "image": lambda x: tv_tensors.Image(x) + 0,
    "mask": lambda x: tv_tensors.Mask(x),
    "ToImage": lambda x: v2.ToImage()(x) + 0,
    "Resize": v2.Resize((9, 11)),
    "picture": lambda x: v2.functional.pil_to_tensor(v2.functional.to_pil_image(x)),
    "operator": lambda x: torch.ops.image.encode_jpeg(x.contiguous(), 50),
    "module": lambda x: torch.nn.functional.avg_pool2d(x[None].double(), 3),
    "dlpack": lambda x: torch.from_dlpack(x),
    "shared": lambda x: x.share_memory_(),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_gives_torchvisions_result(use: str) -> None:
    image, real = undecoded(), decode_jpeg(as_bytes(jpeg()))
    assert is_undecoded(image)
    got, expected = USES[use](image), USES[use](real)
    assert type(got) is type(expected)
    assert torch.equal(got, expected)
    assert torch.equal(image, real)


def halved(image: Tensor) -> Tensor:
    return image // 2


def cleared(image: Tensor) -> Tensor:
    return image.zero_()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_compiled_code_reads_pixels_and_writes_none() -> None:
    """Compiled code calls operators directly, where an image cannot become a usual tensor."""
    assert torch.equal(torch.jit.script(halved)(undecoded()), decode_jpeg(as_bytes(jpeg())) // 2)
    refused = NotRecordable.raised
    with pytest.raises(RuntimeError):  # the interpreter's own
        torch.jit.script(cleared)(undecoded())
    assert NotRecordable.raised == refused + 1


def test_the_operators_are_torchvisions_again() -> None:
    before = torch.ops.image.decode_jpeg
    with pytest.raises(ZeroDivisionError), undecoded_tensors():
        assert torch.ops.image.decode_jpeg is not before
        1 / 0  # noqa: B018
    assert torch.ops.image.decode_jpeg is before


# ---- in a loader


class Photos(Dataset):  # type: ignore[misc]
    """JPEGs of different sizes, every fifth progressive, that torchvision reads."""

    def __init__(self, wrap: Callable[[Tensor], Tensor] = torch.as_tensor, keeps: bool = False) -> None:
        self.data = [jpeg(40 + k, 70 - k, k, progressive=k % 5 == 4) for k in range(24)]
        self.wrap = wrap
        self.keeps = keeps
        self.transform = v2.Compose(
            [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image = decode_image(as_bytes(self.data[index]))
        made = self.transform(self.wrap(image))
        return (made, image[:, :8, :8], index) if self.keeps else (made, index)


@pytest.fixture(autouse=True)
def _a_cpu_decodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "why_not", lambda device: "")


def batches(source: Any) -> list[Any]:
    torch.manual_seed(5)
    return list(source)


@pytest.mark.parametrize("wrap", [torch.as_tensor, tv_tensors.Image], ids=["tensor", "Image"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_plain_batches(wrap: Any, workers: int) -> None:
    plain = DataLoader(Photos(wrap), 6, shuffle=True, num_workers=workers)
    expected = batches(plain)
    made = offload(plain, CPU, approximate=True, samples=16)
    assert made.plan.decodes
    assert made.certificate is not None
    assert made.certificate.passed
    assert any(verdict.name == DECODING and verdict.samples > 8 for verdict in made.certificate.ops)
    for (ours, labels), (real, real_labels) in zip(batches(made), expected, strict=True):
        assert torch.equal(ours, real)
        assert torch.equal(labels, real_labels)
    assert made.unrecorded == 0


def test_a_dataset_that_also_uses_the_pixels() -> None:
    plain = DataLoader(Photos(keeps=True), 6, shuffle=True)
    expected = batches(plain)
    made = offload(plain, CPU, approximate=True, samples=16)
    for ours, real in zip(batches(made), expected, strict=True):
        assert all(map(torch.equal, ours, real))
    assert not made.plan.decodes  # the worker decodes all files


def test_an_image_outside_the_transforms_is_sent_as_pixels() -> None:
    data = Photos()
    plan = offload(DataLoader(data, 6), CPU, approximate=True, samples=8).plan
    with plan.installed(plan.recorders(data)):
        packed = pack([data[0], decode_image(as_bytes(data.data[1]))])
    assert torch.equal(packed.batch[1].of(packed.memory), decode_image(as_bytes(data.data[1])))


def test_a_file_is_compared_with_the_decoder_that_read_it() -> None:
    data = Photos()
    plan = offload(DataLoader(data, 6), CPU, approximate=True, samples=8).plan
    with plan.installed(plan.recorders(data)):
        packed = pack(default_collate([data[k] for k in range(4)]))
    assert packed.files is not None
    assert packed.files.rows[:, 6].tolist() == [1] * 4
