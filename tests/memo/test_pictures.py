"""Pillow's pictures under a memo are those of Pillow: pixels, attributes, the file's state and errors."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin

from pipediag.memo.memo import Memo

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 53, 4), dtype=np.uint8)


def text() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("before", "x" * 10)
    info.add(b"prVt", b"behind", after_idat=True)
    return info


def with_language() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("title", "Bild", "de", "Titel")
    return info


def exif() -> Image.Exif:
    found = Image.Exif()
    found[0x0112] = 6
    return found


#: Name, mode, options of ``save``, and whether ``load`` is answered from what is kept.
KINDS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("a.jpg", "RGB", {"quality": 90}, True),
    ("b.jpg", "L", {}, True),
    ("c.jpg", "CMYK", {"progressive": True}, True),
    ("d.jpg", "RGB", {"exif": exif(), "dpi": (72, 72), "comment": b"hello"}, True),
    ("e.png", "RGB", {}, True),
    ("f.png", "RGBA", {"dpi": (30, 30)}, True),
    ("g.png", "L", {"pnginfo": text()}, True),
    ("h.png", "LA", {}, True),
    ("i.png", "1", {}, False),
    ("j.png", "P", {"transparency": 3}, True),
    ("k.png", "I;16", {}, True),
    ("l.png", "RGB", {"exif": exif(), "icc_profile": b"profile"}, True),
    ("m.png", "L", {"transparency": 7}, True),
    ("n.gif", "P", {}, False),
    ("o.bmp", "RGB", {}, False),
    ("p.tif", "RGB", {"compression": "tiff_lzw"}, False),
    ("q.webp", "RGB", {}, False),
]


def saved(folder: Path, name: str, mode: str, options: dict[str, Any]) -> Path:
    picture = Image.fromarray(PIXELS)
    picture = picture.convert("L").convert("I;16") if mode == "I;16" else picture.convert(mode)
    picture.save(folder / name, **options)
    return folder / name


def shown(value: Any) -> Any:
    """A value that compares by content, or its type."""
    return value if isinstance(value, (bool, int, float, str, bytes, tuple, list, dict)) else type(value)


def facts(picture: Image.Image) -> dict[str, Any]:
    """Everything that a script can see of a loaded picture."""
    hidden = {"_im", "im", "map", "_fp", "palette", "_exif", "fp"}
    palette = picture.palette and (picture.palette.mode, picture.palette.dirty, bytes(picture.getpalette() or b""))
    return {
        "type": type(picture),
        "pixels": (picture.mode, picture.size, picture.tobytes(), picture.im.mode, picture.readonly),
        "palette": palette,
        "info": list(picture.info.items()),
        "attributes": {name: shown(value) for name, value in vars(picture).items() if name not in hidden},
        "exif": dict(picture.getexif()),
        "file": getattr(picture, "fp", 0) is None,
        "text": dict(getattr(picture, "text", {})),
        "format": (picture.format, getattr(picture, "filename", None), getattr(picture, "n_frames", 1)),
    }


def opened(path: Path) -> dict[str, Any]:
    picture = Image.open(path)
    file = picture.fp  # type: ignore[attr-defined]
    picture.load()
    return facts(picture) | {"closed": file.closed}


def by_file(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        picture = Image.open(file)
        picture.load()
        return facts(picture) | {"place": file.tell(), "closed": file.closed}


def from_memory(path: Path) -> dict[str, Any]:
    file = io.BytesIO(path.read_bytes())
    picture = Image.open(file)
    picture.load()
    return facts(picture) | {"place": file.tell(), "closed": file.closed}


def drafted(path: Path) -> dict[str, Any]:
    picture = Image.open(path)
    picture.draft("L", (20, 20))
    picture.load()
    return facts(picture)


@pytest.mark.parametrize("read", [opened, by_file, from_memory, drafted])
@pytest.mark.parametrize(("name", "mode", "options", "kept"), KINDS, ids=[kind[0] for kind in KINDS])
def test_as_plainly(
    folder: Path, memo: Memo, name: str, mode: str, options: dict[str, Any], kept: bool, read: Callable[[Path], Any]
) -> None:
    path = saved(folder, name, mode, options)
    plain = read(path)
    with memo.installed():
        assert read(path) == plain
        assert memo.hits == 0
        assert read(path) == plain == read(path)
    assert memo.hits == (2 if kept else 0)
    assert read(path) == plain


def test_text_with_a_language_is_not_kept(folder: Path, memo: Memo) -> None:
    """Its class would be lost."""
    path = saved(folder, "a.png", "L", {"pnginfo": with_language()})
    with memo.installed():
        read = [Image.open(path) for _ in range(3)]
        for picture in read:
            picture.load()
            assert picture.text["title"].lang == "de"  # type: ignore[attr-defined]
    assert memo.hits == 0


def test_pictures_do_not_share_pixels(folder: Path, memo: Memo) -> None:
    path = saved(folder, "a.png", "RGB", {})
    plain = Image.open(path).tobytes()
    with memo.installed():
        for _ in range(4):
            picture = Image.open(path)
            pixels = picture.load()
            assert picture.tobytes() == plain and pixels is not None
            pixels[0, 0] = (1, 2, 3)
            picture.paste((9, 9, 9), (3, 3, 20, 20))
            picture.info["mine"] = 1
    assert memo.hits == 3


def test_a_changed_file_is_read_again(folder: Path, memo: Memo) -> None:
    path = folder / "a.bmp.jpg"
    with memo.installed():
        for shade in (10, 200, 10, 90):
            Image.new("L", (16, 16), shade).save(path)
            found = os.stat(path)
            assert abs(np.asarray(Image.open(path))[0, 0] - shade) < 3
            os.utime(path, ns=(found.st_atime_ns, 10**18))  # as if it had not been written since
            assert abs(np.asarray(Image.open(path))[0, 0] - shade) < 3


def test_other_bytes_of_the_same_size(memo: Memo) -> None:
    with memo.installed():
        for shade in (10, 11, 10, 11):
            file = io.BytesIO()
            Image.new("L", (8, 8), shade).save(file, "png")
            assert Image.open(file).getpixel((0, 0)) == shade
    assert memo.hits == 2


def test_a_file_that_was_just_written_is_not_kept(folder: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipediag.memo.keys.SETTLED", 60.0)
    path = saved(folder, "a.png", "RGB", {})
    with memo.installed():
        for _ in range(3):
            Image.open(path).load()
    assert memo.hits == memo.kept == 0


def test_a_truncated_file_fails_each_time(folder: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("a.jpg", "RGB"), ("b.png", "RGB")):
        path = saved(folder, name, mode, {})
        path.write_bytes(path.read_bytes()[:-400])
        with memo.installed():
            for _ in range(3):
                with pytest.raises(OSError, match=r"(?i)truncated"):
                    Image.open(path).load()
            monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
            lenient = [opened(path) for _ in range(3)]
            assert lenient[0] == lenient[1] == lenient[2]
            monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
            with pytest.raises(OSError, match=r"(?i)truncated"):
                Image.open(path).load()


def test_frames_closing_and_verifying_are_pillows(folder: Path, memo: Memo) -> None:
    path = saved(folder, "a.png", "RGB", {})
    moving = folder / "b.png"
    frames = [Image.new("RGB", (5, 5), (shade, 0, 0)) for shade in (10, 20, 30)]
    frames[0].save(moving, save_all=True, append_images=frames[1:])
    with memo.installed(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with Image.open(path) as picture:
                picture.load()
                picture.seek(0)
                with pytest.raises(EOFError):
                    picture.seek(1)
            Image.open(path).verify()
            verified = Image.open(path)
            verified.verify()
            with pytest.raises(Exception):
                verified.load()
            with Image.open(moving) as picture:
                found = []
                for frame in range(3):
                    picture.seek(frame)
                    found.append(picture.convert("RGB").getpixel((0, 0)))
            assert found == [(10, 0, 0), (20, 0, 0), (30, 0, 0)]
            converted = Image.open(path).convert("L")
            assert type(converted) is Image.Image and converted.size == (53, 37)
    assert memo.hits > 0


def test_a_class_of_the_users_is_left_alone(folder: Path, memo: Memo) -> None:
    class Mine(PngImagePlugin.PngImageFile):
        def load_end(self) -> None:
            super().load_end()
            self.info["count"] = self.info.get("count", 0) + 1

    path = saved(folder, "a.png", "RGB", {})
    with memo.installed():
        for _ in range(3):
            picture = Mine(str(path))
            picture.load()
            assert picture.info["count"] == 1
    assert memo.hits == 0


@pytest.mark.parametrize("step", ["decoder", "load_end"])
def test_code_of_the_users_that_takes_part_runs_each_time(
    folder: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    calls = []

    def load_end(picture: Any, plain: Any = PngImagePlugin.PngImageFile.load_end) -> None:
        calls.append(step)
        plain(picture)

    def decoder(mode: str, *args: Any) -> Any:
        calls.append(step)
        return Image.core.zip_decoder(mode, *args)  # type: ignore[attr-defined]

    path = saved(folder, "a.png", "RGB", {})
    with memo.installed():
        Image.open(path).load()
        if step == "decoder":
            monkeypatch.setitem(Image.DECODERS, "zip", decoder)  # type: ignore[arg-type]
        else:
            monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_end", load_end)
        for _ in range(3):
            Image.open(path).load()
    assert len(calls) == 3
