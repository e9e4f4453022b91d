"""Pictures that share the cache's pixels: whatever is done with them, they and later ones are as plainly."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageOps

from pipediag.memo import lent
from pipediag.memo.arena import Arena
from pipediag.memo.memo import Memo, Tally
from pipediag.memo.system import Mapping

from .conftest import Seconds

SIZE = (150, 120)


@pytest.fixture(params=["large pages", "small pages"])
def memo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Memo:
    if request.param == "small pages":
        monkeypatch.setattr(Mapping, "enlarge", lambda self, begin, end: False)
    return Memo(Arena.create(256 << 20), Tally(), Seconds())


@pytest.fixture(params=["RGB", "CMYK"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 4), dtype=np.uint8)
    Image.frombytes("CMYK", SIZE, pixels.tobytes()).convert(request.param).save(tmp_path / "a.jpg")
    return tmp_path / "a.jpg"


def by_access(picture: Any) -> None:
    picture.load()[3, 4] = tuple(range(len(picture.getbands())))


def loaded_before(picture: Any) -> None:
    picture.load()
    pixels = picture.load()
    pixels[0, 0] = pixels[1, 1]


def by_map(picture: Any) -> None:
    found: list[Any] = []
    found.extend(map(type(picture).load, [picture]))
    found[0][1, 2] = found[0][5, 5]


def decoded_into(picture: Any) -> None:
    picture.frombytes(bytes(SIZE[0] * SIZE[1] * len(picture.getbands())))


def by_core(picture: Any) -> None:
    picture.getim()
    picture.im.putpixel((0, 0), (1,) * len(picture.getbands()))


def by_copy(picture: Any) -> None:
    other = picture.copy()
    other.paste(0, (0, 0, 9, 9))
    picture.putpixel((2, 2), (0,) * len(picture.getbands()))


def opaque(picture: Any) -> None:
    if picture.mode == "RGB":
        picture.putalpha(7)


WRITES: list[Callable[[Any], Any]] = [
    by_access,
    loaded_before,
    by_map,
    decoded_into,
    by_core,
    by_copy,
    opaque,
    lambda picture: picture.paste(5, (2, 2, 70, 80)),
    lambda picture: ImageDraw.Draw(picture).rectangle((1, 1, 50, 60), fill=3),
    lambda picture: picture.thumbnail((64, 64)),
    lambda picture: picture.convert("RGB").load(),
    lambda picture: picture.convert("L"),
    lambda picture: ImageOps.exif_transpose(picture, in_place=True),
    lambda picture: picture.__arrow_c_array__() if hasattr(picture, "__arrow_c_array__") else None,
]


def made(path: Path, write: Callable[[Any], Any]) -> list[bytes]:
    """The pixels of a picture, before and after it is written to, and of what comes of it otherwise."""
    picture = Image.open(path)
    early = picture.convert(picture.mode)
    write(picture)
    write(early)
    others = (early, copy.copy(picture), copy.deepcopy(picture), pickle.loads(pickle.dumps(picture)), picture.crop())
    resized = picture.resize((20, 30)), picture.transpose(Image.Transpose.ROTATE_90), picture.rotate(12)
    return [one.tobytes() for one in (picture, *others, *resized)] + [np.asarray(early).tobytes()]


@pytest.mark.parametrize("write", WRITES)
def test_writing_is_as_plainly(path: Path, memo: Memo, write: Callable[[Any], Any]) -> None:
    plain = made(path, write)
    with memo.installed():
        assert [made(path, write) for _ in range(3)] == [plain] * 3
        assert made(path, lambda picture: None) == made(path, lambda picture: picture.load())
    assert memo.hits == 4 and memo.arena.entries == 1


@pytest.mark.parametrize("write", WRITES)
def test_writing_at_once_is_as_plainly(path: Path, memo: Memo, write: Callable[[Any], Any]) -> None:
    def written() -> bytes:
        picture = Image.open(path)
        if write is decoded_into or write is by_core:
            picture.load()
        write(picture)
        return picture.tobytes()

    plain = written()
    with memo.installed():
        assert [written() for _ in range(4)] == [plain] * 4


def test_a_picture_that_is_only_read_is_lent(path: Path, memo: Memo) -> None:
    with memo.installed():
        for _ in range(3):
            picture = Image.open(path)
            converted = picture.convert(picture.mode)
        assert lent.is_lent(picture) and lent.is_lent(converted) and lent.is_lent(converted.copy())
        assert type(converted) is Image.Image and converted.size == SIZE
        plain = converted.tobytes()
        again = Image.open(path)
        again.load()
        assert lent.is_lent(again)
        pixels = again.load()
        assert not lent.is_lent(again) and pixels is not None
    assert not lent.is_lent(converted), "nothing watches it outside"
    converted.load()[0, 0] = (9,) * len(converted.getbands())
    with memo.installed():
        assert Image.open(path).tobytes() == plain


def test_pictures_are_lent_and_watched_while_calls_are_recorded(path: Path, memo: Memo) -> None:
    pytest.importorskip("torchvision")
    from pipediag.replay.record.hooks import recording
    from pipediag.replay.record.substitutes import stand_in

    plain = Image.open(path).convert("RGB")
    for number in range(3):  # each time, the layers are others
        with memo.installed(), recording():
            read = Image.open(path)
            read.convert(read.mode)
            assert lent.is_lent(read) or number < 2
            picture = plain.copy()
            recorded = stand_in(picture)
            picture.frombytes(bytes(len(plain.tobytes())))
            assert recorded.tape.source.tobytes() == plain.tobytes()
            drawn = plain.copy()
            recorded = stand_in(drawn)
            drawn.load()[0, 0] = (1, 2, 3)
            assert recorded.tape.source.tobytes() == plain.tobytes()


def test_nothing_is_lent_if_load_is_the_users(path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Image.Image.load
    monkeypatch.setattr(Image.Image, "load", lambda self: plain(self))
    with memo.installed():
        for _ in range(3):
            picture = Image.open(path)
            picture.convert("RGB")
            assert not lent.is_lent(picture)
    assert memo.hits == 2


def test_a_failed_decoding_leaves_what_pillow_leaves(path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch) -> None:
    half = path.read_bytes()
    half = half[: len(half) // 2]

    def tried(data: bytes) -> bytes:
        picture = Image.open(io.BytesIO(data))
        try:
            picture.load()
        except OSError:
            monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        pixels = picture.tobytes()
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
        return pixels

    plain = tried(half), tried(path.read_bytes())
    with memo.installed():
        for _ in range(3):
            assert (tried(half), tried(path.read_bytes())) == plain


def test_room_that_is_given_back_is_empty() -> None:
    arena = Arena.create(256 << 20)
    space = arena.space(100_000)
    if space is None:
        pytest.skip("no large pages for files in memory")
    space.body[:] = b"x" * 100_000
    arena.give_back(space)
    again = arena.space(100_000)
    assert again is not None and again.begin == space.begin and bytes(again.body) == bytes(100_000)
    assert arena.add(bytes(16), "head", again) and again.kept is not None and again.kept.readonly
    entry = arena.find(bytes(16))
    assert entry is not None and entry.head == "head" and bytes(entry.body) == bytes(100_000)


@pytest.mark.parametrize("has_large", [True, False])
def test_room_is_taken_a_claim_at_a_time(monkeypatch: pytest.MonkeyPatch, has_large: bool) -> None:
    calls: list[tuple[int, int]] = []
    enlarge = Mapping.enlarge

    def counted(self: Mapping, begin: int, end: int) -> bool:
        calls.append((begin, end))
        return has_large and enlarge(self, begin, end)

    monkeypatch.setattr(Mapping, "enlarge", counted)
    arena = Arena.create(1 << 30)
    bodies = {bytes([number]) * 16: bytes([number]) * 700_001 for number in range(30)}
    for key, body in bodies.items():
        assert arena.add(key, "head", [body[:999], body[999:]])
    assert [end - begin for begin, end in calls] == [16 << 20, 16 << 20] and calls[0][1] == calls[1][0]
    found = {key: arena.find(key) for key in bodies}
    assert {key: entry and (entry.head, bytes(entry.body)) for key, entry in found.items()} == {
        key: ("head", body) for key, body in bodies.items()
    }


def test_the_file_is_no_larger_than_what_is_claimed(tmp_path: Path) -> None:
    arena = Arena.create(1 << 30, tmp_path)
    empty = (tmp_path / "memo.cache").stat().st_size
    arena.add(bytes(16), None, [bytes(1000)])
    assert empty <= 2 << 20 and (tmp_path / "memo.cache").stat().st_size <= empty + (16 << 20)
