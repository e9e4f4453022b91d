"""JPEGs that Pillow opens undecoded behave as its own pictures."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
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
from torchvision.io import ImageReadMode

from pipediag.replay.decode.jpeg_header import decodable
from pipediag.replay.decode.undecoded import Undecoded, is_undecoded, undecoded_pictures

from ...remedy.sameness import jpeg


def undecoded(data: bytes) -> Any:
    with undecoded_pictures():
        return PIL.Image.open(io.BytesIO(data))


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"optimize": True}, {"quality": 100}])
def test_usual_jpegs_stay_undecoded(options: dict[str, Any]) -> None:
    data = jpeg(**options)
    assert decodable(data)
    assert is_undecoded(undecoded(data))


def test_restart_markers_are_part_of_the_scan() -> None:
    assert decodable(jpeg(restart_marker_rows=1))


def adobe_rgb() -> bytes:
    return jpeg(keep_rgb=True)


def of_other_precision() -> bytes:
    data = bytearray(jpeg())
    data[data.index(b"\xff\xc0") + 4] = 12
    return bytes(data)


def with_other_sampling() -> bytes:
    data = bytearray(jpeg())
    data[data.index(b"\xff\xc0") + 11] = 0x41
    return bytes(data)


def with_byte(marker: int, at: int, value: int) -> bytes:
    """A file with the byte at offset ``at`` in its first segment of a kind replaced."""
    data = bytearray(jpeg())
    data[data.index(bytes([0xFF, marker])) + at] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(with_byte(0xC4, 8, 255), id="a broken Huffman table"),
        pytest.param(with_byte(0xDB, 4, 3), id="a missing quantization table"),
        pytest.param(with_byte(0xDA, 7, 9), id="a scan of an unknown component"),
        pytest.param(with_byte(0xE0, 3, 0), id="a segment of no length"),
        pytest.param(jpeg(progressive=True), id="progressive"),
        pytest.param(jpeg(mode="L"), id="grey"),
        pytest.param(jpeg(mode="CMYK"), id="CMYK"),
        pytest.param(adobe_rgb(), id="RGB without a transform"),
        pytest.param(of_other_precision(), id="12 bits"),
        pytest.param(with_other_sampling(), id="4:1:1"),
        pytest.param(jpeg(format="PNG"), id="PNG"),
        pytest.param(jpeg()[:-2], id="without its end"),
        pytest.param(jpeg()[:900], id="truncated"),
        pytest.param(jpeg()[:-60] + b"\xff\x3f" + jpeg()[-58:], id="a marker in its data"),
        pytest.param(jpeg()[:20], id="only a header"),
        pytest.param(b"", id="empty"),
    ],
)
def test_other_files_do_not(data: bytes) -> None:
    assert not decodable(data)


@given(st.data())
def test_files_stay_undecoded_only_if_the_cpu_decodes_them(choose: st.DataObject) -> None:
    data = bytearray(jpeg(subsampling=choose.draw(st.integers(0, 2)), comment=b"one"))
    for at in choose.draw(st.lists(st.integers(2, data.index(b"\xff\xda") + 13), min_size=1, max_size=2)):
        data[at] = choose.draw(st.integers(0, 255))
    known = decodable(bytes(data))
    if known is not None:
        size = known.height, known.width
        tensor = torch.ops.image.decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), ImageReadMode.RGB.value)
        assert tensor.shape == (3, *size)
        try:
            picture: Any = PIL.Image.open(io.BytesIO(data))
        except Exception:  # the user's code gets it
            return
        assert np.array(picture.convert("RGB")).shape == (*size, 3)


def test_an_undecoded_picture_knows_its_header(tmp_path: Path) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg(dpi=(72, 72)))
    with undecoded_pictures():
        picture = PIL.Image.open(path)
    plain = PIL.Image.open(path)
    assert (picture.size, picture.mode, picture.format) == (plain.size, plain.mode, plain.format)
    assert picture.info == plain.info
    assert dict(picture.getexif()) == dict(plain.getexif())
    assert is_undecoded(picture)
    picture.close()
    plain.close()


def test_a_converted_picture_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg())
    with undecoded_pictures(), open(path, "rb") as file:  # as torchvision's ImageFolder opens it
        picture = PIL.Image.open(file).convert("RGB")
    assert is_undecoded(picture)
    assert picture.format is None  # as a picture without a file
    path.unlink()
    expected = PIL.Image.open(io.BytesIO(jpeg())).convert("RGB")
    assert picture.tobytes() == expected.tobytes()
    assert type(picture) is PIL.Image.Image
    assert vars(picture).keys() <= vars(expected).keys()


USES: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda picture: np.asarray(picture).tolist(),
    "getpixel": lambda picture: picture.getpixel((3, 4)),
    "resize": lambda picture: picture.resize((9, 11)).tobytes(),
    "crop": lambda picture: picture.crop((1, 2, 20, 30)).tobytes(),
    "grey": lambda picture: picture.convert("L").tobytes(),
    "copied": lambda picture: picture.copy().tobytes(),
    "split": lambda picture: [band.tobytes() for band in picture.split()],
    "pickle": lambda picture: pickle.loads(pickle.dumps(picture)).tobytes(),
    "deepcopy": lambda picture: copy.deepcopy(picture).tobytes(),
    "rotate": lambda picture: picture.rotate(30).tobytes(),
    "exif": lambda picture: ImageOps.exif_transpose(picture).tobytes(),
    "thumbnail": lambda picture: (picture.thumbnail((8, 8)), picture.size, picture.tobytes()),
    "draft": lambda picture: (picture.draft("RGB", (8, 8)), picture.size, picture.tobytes()),
    "equal": lambda picture: picture == PIL.Image.open(io.BytesIO(jpeg())).convert("RGB"),
    "save": lambda picture: picture.save(io.BytesIO(), "PNG"),
    "load": lambda picture: (picture.load()[5, 6], picture.tobytes()),
}


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("use", USES)
def test_every_use_gives_pillows_result(use: str, converted: bool) -> None:
    picture, plain = undecoded(jpeg()), PIL.Image.open(io.BytesIO(jpeg()))
    if converted:
        picture, plain = picture.convert("RGB"), plain.convert("RGB")
    assert is_undecoded(picture)
    assert USES[use](picture) == USES[use](plain)


def test_a_broken_file_raises_pillows_error() -> None:
    data = jpeg()[:900]
    with pytest.raises(OSError, match="truncated"):
        undecoded(data).convert("RGB")


def test_open_is_pillows_own_again() -> None:
    before = PIL.Image.open
    with pytest.raises(ZeroDivisionError), undecoded_pictures():
        assert PIL.Image.open is not before
        1 / 0  # noqa: B018
    assert PIL.Image.open is before


def test_a_picture_that_was_opened_before_is_left_alone() -> None:
    plain = PIL.Image.open(io.BytesIO(jpeg()))
    with undecoded_pictures():
        assert not isinstance(plain.convert("RGB"), Undecoded)


# ---- files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "one.jpg"
    made.write_bytes(jpeg())
    return made


def opened(path: Path) -> Any:
    with undecoded_pictures():
        return PIL.Image.open(path)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.filterwarnings("error")
def test_no_file_stays_open(path: Path) -> None:
    before = descriptors()
    kept = [opened(path) for _ in range(5)]
    assert descriptors() == before
    assert all(np.array_equal(np.asarray(picture), np.asarray(PIL.Image.open(path))) for picture in kept)
    del kept
    assert descriptors() == before


def test_the_users_own_file_stays_open_at_its_position(path: Path) -> None:
    with open(path, "rb") as plain, open(path, "rb") as ours:
        real = PIL.Image.open(plain)
        with undecoded_pictures():
            picture = PIL.Image.open(ours)
        assert is_undecoded(picture)
        assert ours.tell() == plain.tell()
        assert picture.tobytes() == real.tobytes()
        assert not ours.closed


def left(picture: Any) -> None:
    with picture:
        pass


@pytest.mark.parametrize("end", [left, lambda picture: picture.close(), lambda picture: picture.verify()])
def test_a_closed_picture_raises_as_pillows_does(path: Path, end: Callable[[Any], None]) -> None:
    plain, picture = PIL.Image.open(path), opened(path)
    kept = picture.lasting
    for one in (plain, picture):
        end(one)
    with pytest.raises(Exception) as expected:  # Pillow's, whatever it is
        plain.convert("RGB")
    with pytest.raises(expected.type):
        picture.convert("RGB")
    assert kept.tobytes() == PIL.Image.open(path).tobytes()  # the picture that a transform got before


def test_a_converted_picture_is_closed_without_its_pixels(path: Path) -> None:
    picture = opened(path).convert("RGB")
    kept = picture.lasting
    picture.close()
    with pytest.raises(ValueError, match="closed image"):
        picture.convert("L")
    assert is_undecoded(kept)


@pytest.mark.parametrize("orientation", [None, 1, 6])
def test_a_picture_turned_by_its_header(tmp_path: Path, orientation: int | None) -> None:
    exif = PIL.Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg(exif=exif))
    picture, plain = opened(path), PIL.Image.open(path)
    assert picture.getexif().get(0x0112) == orientation
    assert is_undecoded(picture)
    with undecoded_pictures():
        turned, expected = ImageOps.exif_transpose(picture), ImageOps.exif_transpose(plain)
        assert ImageOps.exif_transpose(picture, in_place=True) is None
    assert is_undecoded(picture) is (orientation != 6)
    assert is_undecoded(turned) is (orientation != 6)
    assert turned.size == expected.size
    assert dict(turned.getexif()) == dict(expected.getexif())
    assert turned.tobytes() == expected.tobytes()
    assert picture.tobytes() == expected.tobytes()
