"""Decoding JPEGs on the device gives the plain loader's batches, for any kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from pipediag import cache
from pipediag.remedy import OffloadedLoader, loader, offload
from pipediag.replay.decode import nvjpeg
from pipediag.replay.decode.decoding import Files, both_ways, why_not, with_pixels
from pipediag.replay.decode.jpeg_header import decodable
from pipediag.replay.pack.packing import pack
from pipediag.replay.plan import Plan
from pipediag.replay.run.replay import replay
from pipediag.session.remedies import DECODING

from ...devices import GPU
from ...remedy.sameness import jpeg

CPU = torch.device("cpu")
CHAIN = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5] * 3, [0.3] * 3)])
#: Kinds of files, and whether the device decodes them.
KINDS = {
    "4:2:0.jpg": True,
    "4:4:4.jpg": True,
    "4:2:2.jpg": True,
    "progressive.jpg": False,
    "grey.jpg": False,
    "cmyk.jpg": False,
    "png.jpg": False,
    "turned.jpg": True,  # by EXIF, which no code here reads
}


def encoded(kind: str, height: int, width: int, seed: int = 0, quality: int = 75) -> bytes:
    options: dict[str, Any] = {
        "4:4:4.jpg": {"subsampling": 0},
        "4:2:2.jpg": {"subsampling": 1},
        "progressive.jpg": {"progressive": True},
    }.get(kind, {})
    if kind == "turned.jpg":
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif}
    mode, format = {"grey.jpg": "L", "cmyk.jpg": "CMYK"}.get(kind, "RGB"), "PNG" if kind == "png.jpg" else "JPEG"
    return jpeg(height, width, seed, mode, format, quality=quality, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for k in range(40):
        kind = list(KINDS)[k % len(KINDS)]
        path = root / f"class{k % 3}" / f"{k:02}-{kind}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(kind, 40 + 3 * k, 90 - 2 * k, seed=k))
    return root


@pytest.fixture(autouse=True)
def _a_cpu_decodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send files to the CPU too, where Pillow decodes them, to test this without a GPU."""
    monkeypatch.setattr(loader, "why_not", lambda device: "" if device.type == "cpu" else why_not(device))


def offloaded(data: Any, device: torch.device, workers: int = 0, **options: Any) -> OffloadedLoader:
    made = DataLoader(data, 8, shuffle=True, num_workers=workers, **options)
    return offload(made, device, approximate=True, samples=16)


def batches(source: Any) -> list[Any]:
    torch.manual_seed(5)
    return [(images.cpu(), labels.cpu()) for images, labels in source]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_every_kind_of_file_gives_the_plain_batches(
    folder: Path, device: torch.device, workers: int
) -> None:
    data = ImageFolder(str(folder), CHAIN)
    expected = batches(DataLoader(data, 8, shuffle=True, num_workers=workers))
    made = offloaded(data, device, workers)
    assert made.plan.decodes
    assert made.certificate is not None
    assert made.certificate.passed
    (decoded,) = (verdict for verdict in made.certificate.ops if verdict.name == DECODING)
    assert decoded.samples > 4
    got = batches(made)
    assert made.unrecorded == 0
    for (images, labels), (real, real_labels) in zip(got, expected, strict=True):
        assert torch.equal(labels, real_labels)
        assert torch.equal(images, real)


def test_a_folder_that_is_loaded_once_gives_the_plain_batches(folder: Path, device: torch.device) -> None:
    """The device decodes its files in every epoch, so the cache has no picture to keep."""
    data = ImageFolder(str(folder), CHAIN)
    expected = batches(DataLoader(data, 8, shuffle=True, num_workers=2))
    made = offload(cache(DataLoader(data, 8, shuffle=True, num_workers=2)), device, approximate=True, samples=16)
    assert made.plan.pieces, made.plan.reasons
    for _ in range(3):
        for (images, labels), (real, real_labels) in zip(batches(made), expected, strict=True):
            assert torch.equal(labels, real_labels)
            assert torch.equal(images, real)
    assert made.unrecorded == 0


def test_only_files_that_the_device_decodes_are_sent(folder: Path) -> None:
    data = ImageFolder(str(folder), CHAIN)
    plan = offloaded(data, CPU).plan
    with plan.installed(plan.recorders(data)):
        packed = pack(torch.utils.data.default_collate([data[k] for k in range(len(data))]))
    assert packed.files is not None
    sent = sum(KINDS[Path(path).name[3:]] for path, _ in data.samples)
    assert 0 < sent < len(data)
    assert len(packed.files.rows) == sent
    pixels = sum(3 * height * width for *_, height, width, _, _ in packed.files.rows.tolist())
    assert packed.files.nbytes >= pixels
    assert {height for *_, height, _, _, _ in packed.files.rows.tolist()} <= {40 + 3 * k for k in range(40)}


class Views(Dataset):  # type: ignore[misc]
    """Two views of one photo, with other tensors."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*4:*.jpg"))
        self.transform = CHAIN

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        photo = PIL.Image.open(self.paths[index]).convert("RGB")
        return {"views": [self.transform(photo), self.transform(photo)], "own": torch.full((3,), index), "id": index}


def test_two_views_of_a_photo_share_its_file(folder: Path) -> None:
    data = Views(folder)
    plan = offload(DataLoader(data, 4), CPU, approximate=True, samples=8).plan
    assert plan.decodes
    with plan.installed(plan.recorders(data)):
        torch.manual_seed(1)
        packed = pack(torch.utils.data.default_collate([data[k] for k in range(4)]))
    assert packed.files is not None
    assert len(packed.files.rows) == 4
    torch.manual_seed(1)
    expected = torch.utils.data.default_collate([data[k] for k in range(4)])
    got = replay(packed, CPU)
    assert all(map(torch.equal, got["views"], expected["views"]))
    assert torch.equal(got["own"], expected["own"])
    assert torch.equal(got["id"], expected["id"])


class Prepared(Dataset):  # type: ignore[misc]
    """Photos that the dataset prepares before the transform."""

    def __init__(self, root: Path, prepare: Callable[[Path], Any]) -> None:
        self.paths = sorted(root.rglob("*.jpg"))
        self.prepare = prepare
        self.transform = CHAIN

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        made = self.prepare(self.paths[index])
        return (made if isinstance(made, Tensor) else self.transform(made)), index


def within_with(path: Path) -> Any:
    with PIL.Image.open(path) as photo:
        return CHAIN(photo.convert("RGB"))


def closed(path: Path) -> Any:
    photo = PIL.Image.open(path)
    made = photo.convert("RGB")
    photo.close()
    return made


def turned(path: Path) -> Any:
    return ImageOps.exif_transpose(PIL.Image.open(path)).convert("RGB")


def made_smaller(path: Path) -> Any:
    photo = PIL.Image.open(path)
    photo.thumbnail((50, 50))
    return photo.convert("RGB")


def drafted(path: Path) -> Any:
    photo = PIL.Image.open(path)
    photo.draft("RGB", (30, 30))
    return photo.convert("RGB")


#: Ways to prepare a photo, and whether the device can still decode it.
PREPARED: dict[Callable[[Path], Any], bool] = {
    within_with: True,
    closed: True,
    turned: True,
    made_smaller: False,
    drafted: False,
    lambda path: PIL.Image.open(path).convert("RGB").resize((45, 41)): False,
    lambda path: PIL.Image.open(path).convert("L").convert("RGB"): False,
}


@pytest.mark.parametrize("prepare", PREPARED, ids=lambda prepare: prepare.__name__)
def test_datasets_that_prepare_photos(folder: Path, prepare: Callable[[Path], Any]) -> None:
    data = Prepared(folder, prepare)
    expected = batches(DataLoader(data, 8, shuffle=True))
    made = offloaded(data, CPU)
    assert made.plan.decodes is PREPARED[prepare]
    for (images, labels), (real, real_labels) in zip(batches(made), expected, strict=True):
        assert torch.equal(images, real)
        assert torch.equal(labels, real_labels)
    assert made.unrecorded == 0


class InWith(Prepared):
    """Photos that are transformed while their file is open."""

    def __getitem__(self, index: int) -> Any:
        with PIL.Image.open(self.paths[index]) as photo:
            return self.transform(photo), photo.size[0]


def test_a_file_may_be_closed_after_its_transform(folder: Path) -> None:
    data = InWith(folder, PIL.Image.open)
    data.paths = [path for path in data.paths if "grey" not in path.name and "cmyk" not in path.name]
    expected = batches(DataLoader(data, 8, shuffle=True))
    made = offloaded(data, CPU)
    assert made.plan.decodes
    for (images, sizes), (real, real_sizes) in zip(batches(made), expected, strict=True):
        assert torch.equal(images, real)
        assert torch.equal(sizes, real_sizes)
    assert made.unrecorded == 0


def test_a_link_that_needs_pixels_decodes_in_the_worker(folder: Path) -> None:
    def needs_pixels(photo: Any) -> Any:
        return PIL.Image.fromarray(255 - np.asarray(photo))

    data = ImageFolder(str(folder), T.Compose([needs_pixels, *CHAIN.transforms]))
    expected = batches(DataLoader(data, 8, shuffle=True))
    made = offloaded(data, CPU)
    assert not made.plan.decodes
    assert made.plan.undecoded == "none reaches the moved transforms undecoded"
    assert all(torch.equal(ours, real) for (ours, _), (real, _) in zip(batches(made), expected, strict=True))


def truncated(data: bytes) -> bytes:
    return data[:-200]


def with_a_broken_table(data: bytes) -> bytes:
    at = data.index(b"\xff\xc4") + 8
    return data[:at] + b"\xff" + data[at + 1 :]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("spoilt", [truncated, with_a_broken_table])
def test_a_broken_file_raises_the_plain_loaders_error(
    tmp_path: Path, workers: int, spoilt: Callable[[bytes], bytes]
) -> None:
    for k in range(24):
        path = tmp_path / "one" / f"{k:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        data = encoded("4:2:0.jpg", 50, 60, seed=k)
        path.write_bytes(data if k < 20 else spoilt(data))
    data = ImageFolder(str(tmp_path), CHAIN)
    made = offload(DataLoader(data, 4, num_workers=workers), CPU, approximate=True, samples=8)
    assert made.plan.decodes
    seen = []
    with pytest.raises(OSError, match=r"truncated|broken data stream"):
        for batch in made:
            seen.append(batch)
    assert len(seen) == 5


def test_why_not_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(CPU) == "the device cpu has no JPEG engine"
    with pytest.raises(nvjpeg.CannotDecode, match=r"libnvjpeg\.so\.999 is not installed: pip install nvidia-nvjpeg"):
        nvjpeg._library(999)


def test_a_plan_says_that_it_decodes(folder: Path) -> None:
    assert "decoded on the device: JPEGs" in str(offloaded(ImageFolder(str(folder), CHAIN), CPU).plan)
    assert "decoded" not in str(Plan())


# ---- on a GPU


def packed_files(data: list[bytes], sizes: list[tuple[int, int]]) -> tuple[Tensor, Files]:
    """A batch's memory with the files, and four bytes on either side of the gap for their pixels."""
    slab = torch.frombuffer(bytearray(b"abcd" + b"".join(data) + b"efgh"), dtype=torch.uint8)
    begin = slab.numel() - 4
    rows, offset, at = [], 4, begin
    for file, (height, width) in zip(data, sizes, strict=True):
        known = decodable(file)
        rows.append((offset, len(file), at, height, width, known.sampling if known else 0x11, 0))
        offset, at = offset + len(file), at + 3 * height * width
    return slab, Files(begin, at - begin, np.array(rows))


class TestEngine:
    pytestmark = GPU
    device = torch.device("cuda")

    @given(
        st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=12),
        st.sampled_from([kind for kind, known in KINDS.items() if known]),
        st.integers(1, 100),
        st.integers(0, 2**32 - 1),
    )
    def test_pixels_are_pillows(self, sizes: list[tuple[int, int]], kind: str, quality: int, seed: int) -> None:
        assert not why_not(self.device)
        data = [encoded(kind, height, width, seed + k, quality) for k, (height, width) in enumerate(sizes)]
        for ours, pillows in both_ways(*packed_files(data, sizes), self.device):
            assert torch.equal(ours, pillows)

    def test_the_rest_of_the_memory_is_untouched(self) -> None:
        memory, files = packed_files([encoded("4:2:0.jpg", 33, 47)], [(33, 47)])
        made = with_pixels(memory, files, self.device).cpu()
        assert torch.equal(made[: files.begin], memory[: files.begin])
        assert torch.equal(made[files.begin + files.nbytes :], memory[files.begin :])

    def test_files_that_the_engine_refuses_are_decoded_by_pillow(self) -> None:
        kinds = ["4:2:0.jpg", "progressive.jpg", "4:4:4.jpg", "png.jpg"]
        data = [encoded(kind, 64, 80, seed=k) for k, kind in enumerate(kinds)]
        memory, files = packed_files(data, [(64, 80)] * 4)
        assert all(torch.equal(ours, pillows) for ours, pillows in both_ways(memory, files, self.device))

    def test_a_broken_scan_crashes_nothing(self) -> None:
        data = bytearray(encoded("4:2:0.jpg", 200, 300))
        data[3000:4000] = np.random.default_rng(0).integers(0, 255, 1000, dtype=np.uint8).tobytes()  # no marker
        good = encoded("4:4:4.jpg", 50, 50)
        memory, files = packed_files([bytes(data), good], [(200, 300), (50, 50)])
        with_pixels(memory, files, self.device)
        torch.cuda.synchronize()
        *_, (ours, pillows) = both_ways(*packed_files([good], [(50, 50)]), self.device)
        assert torch.equal(ours, pillows)

    def test_batches_of_changing_size_reuse_one_decoder(self) -> None:
        for number in (3, 1, 7, 3):
            data = [encoded("4:4:4.jpg", 40 + k, 60, seed=k) for k in range(number)]
            memory, files = packed_files(data, [(40 + k, 60) for k in range(number)])
            assert all(torch.equal(ours, pillows) for ours, pillows in both_ways(memory, files, self.device))

    def test_the_memory_may_be_dropped_at_once(self) -> None:
        data = [encoded("4:4:4.jpg", 300, 400, seed=k) for k in range(16)]
        made = []
        for _ in range(8):
            memory, files = packed_files(data, [(300, 400)] * 16)
            made.append(with_pixels(memory, files, self.device)[files.begin : files.begin + files.nbytes])
            del memory
        first = with_pixels(*packed_files(data, [(300, 400)] * 16), self.device, on_cpu=True)
        expected = first[files.begin : files.begin + files.nbytes]
        assert all(torch.equal(one, expected) for one in made)
