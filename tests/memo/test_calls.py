"""Arrays, decoders and sounds: under a memo as plainly, and only the library's own functions."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipediag.memo.calls import SOUND, by_path
from pipediag.memo.memo import Memo, layered
from pipediag.patches import LIVE

from .test_values import same

VOLUME = np.random.default_rng(0).integers(0, 99, (6, 7, 8), dtype=np.int16)


@pytest.fixture
def files(folder: Path) -> Path:
    from scipy.io import wavfile

    np.save(folder / "a.npy", np.asfortranarray(VOLUME))
    np.savez_compressed(folder / "a.npz", volume=VOLUME, label=np.int64(3))
    np.save(folder / "objects.npy", np.array([None, 1]), allow_pickle=True)
    wavfile.write(folder / "a.wav", 8000, VOLUME.reshape(-1, 2))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / "a.jpg")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / "a.png")
    return folder


def volume(files: Path) -> Any:
    with np.load(files / "a.npz") as file:
        return file["volume"], file["label"], sorted(file)


def wav(files: Path) -> Any:
    from scipy.io import wavfile

    return wavfile.read(files / "a.wav")


def through_torchvision(name: str, how: str = "UNCHANGED") -> Callable[[Path], Any]:
    def read(files: Path) -> Any:
        io = pytest.importorskip("torchvision.io")
        return io.decode_image(io.read_file(str(files / name)), io.ImageReadMode[how])

    return read


def read_image(files: Path) -> Any:
    return pytest.importorskip("torchvision.io").read_image(str(files / "a.jpg"), apply_exif_orientation=True)


def imread(files: Path) -> Any:
    cv2 = pytest.importorskip("cv2")
    return cv2.imread(str(files / "a.jpg")), cv2.imread(str(files / "a.png"), cv2.IMREAD_GRAYSCALE)


def imdecode(files: Path) -> Any:
    cv2 = pytest.importorskip("cv2")
    return cv2.imdecode(np.fromfile(files / "a.jpg", np.uint8), cv2.IMREAD_COLOR)


def sound(files: Path) -> Any:
    soundfile = pytest.importorskip("soundfile")
    return soundfile.read(str(files / "a.wav")), soundfile.read(
        files / "a.wav", frames=5, dtype="int16", always_2d=True
    )


def with_librosa(files: Path) -> Any:
    librosa = pytest.importorskip("librosa")
    return *librosa.load(str(files / "a.wav"), sr=None), *librosa.load(files / "a.wav", sr=4000, mono=False)


READS: list[tuple[Callable[[Path], Any], int]] = [
    (lambda files: np.load(files / "a.npy"), 1),
    (lambda files: np.load(str(files / "objects.npy"), allow_pickle=True).tolist(), 0),
    (lambda files: np.array(np.load(files / "a.npy", mmap_mode="r")), 0),
    (volume, 2),
    (wav, 1),
    (through_torchvision("a.jpg"), 1),
    (through_torchvision("a.png", "GRAY"), 1),
    (read_image, 1),
    (imread, 2),
    (imdecode, 1),
    (sound, 2),
    (with_librosa, 2),
]


@pytest.mark.parametrize(("read", "hits"), READS, ids=[read.__qualname__.split(".")[0] for read, _ in READS])
def test_as_plainly(files: Path, memo: Memo, read: Callable[[Path], Any], hits: int) -> None:
    plain = read(files)
    with memo.installed():
        results = [read(files) for _ in range(3)]
        assert all(same(plain, result) for result in results)
        for result in results:
            change(result)
        assert same(plain, read(files))
    assert memo.hits == 3 * hits
    assert LIVE == [] and same(plain, read(files))


def change(result: Any) -> None:
    for part in result if isinstance(result, tuple) else (result,):
        if isinstance(part, (np.ndarray, torch.Tensor)) and part.ndim:
            part[0] = 1


def test_errors_are_the_librarys(files: Path, memo: Memo) -> None:
    with memo.installed():
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                np.load(files / "none.npy")
            with pytest.raises(ValueError, match="allow_pickle"):
                np.load(files / "objects.npy")
            with np.load(files / "a.npz") as archive, pytest.raises(KeyError, match="nothing"):
                archive["nothing"]
            with pytest.raises(TypeError):
                np.load()
    assert memo.hits == 0


def test_a_replaced_archive_is_read_again(files: Path, memo: Memo) -> None:
    with memo.installed():
        for value in (1, 2, 1):
            np.savez(files / "b.npz", x=np.full(5, value))
            with np.load(files / "b.npz") as archive:
                assert archive["x"].tolist() == [value] * 5


def test_other_bytes_of_a_tensor(files: Path, memo: Memo) -> None:
    io = pytest.importorskip("torchvision.io")
    data = io.read_file(str(files / "a.jpg"))
    with memo.installed():
        one = io.decode_jpeg(data)
        data[-20] ^= 1
        other = io.decode_jpeg(data)
    assert not torch.equal(one, other) and torch.equal(other, io.decode_jpeg(data)) and memo.hits == 0


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "fake_sounds.py").write_text(
        "import numpy as np\n__version__ = '1'\nmade = []\n"
        "def read(path, gain=1):\n    made.append(path)\n    return np.fromfile(path, np.uint8) * gain, 8000\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("pipediag.memo.memo.CALLS", (by_path(SOUND, "fake_sounds", "read"),))
    monkeypatch.setitem(sys.modules, "fake_sounds", None)  # so that it is removed in the end
    del sys.modules["fake_sounds"]
    return "fake_sounds"


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_a_library_that_is_imported_later(files: Path, memo: Memo, library: str) -> None:
    with memo.installed():
        assert library not in sys.modules
        sounds = imported(library)
        for _ in range(3):
            assert sounds.read(files / "a.wav")[0].dtype == np.uint8
        assert len(sounds.made) == 1
        sounds.read(files / "a.wav", gain=2)
        sounds.read(files / "a.wav", gain=np.ones(1))
        sounds.read(files / "a.wav", gain=np.ones(1))
        assert len(sounds.made) == 4, "an array is no simple argument"
        sounds.__version__ = "2"
        sounds.read(files / "a.wav")
        assert len(sounds.made) == 5
    assert sounds.read.__code__.co_filename.endswith("fake_sounds.py")


def test_a_patch_of_the_users_stays(files: Path, memo: Memo, library: str) -> None:
    sounds = imported(library)
    with memo.installed():
        ours = sounds.read

        def louder(path: Any) -> Any:
            signal, rate = ours(path)
            return signal + 1, rate

        sounds.read = louder
        assert same(sounds.read(files / "a.wav"), sounds.read(files / "a.wav"))
        assert len(sounds.made) == 1
    assert sounds.read is louder
    sounds.read(files / "a.wav")
    assert len(sounds.made) == 2, "the function is the library's again"


def test_what_the_user_has_replaced_is_not_known(files: Path, memo: Memo, library: str) -> None:
    sounds = imported(library)
    plain = sounds.read
    sounds.read = lambda path: (len(sounds.made), plain(path))
    with memo.installed():
        assert [sounds.read(files / "a.wav")[0] for _ in range(3)] == [0, 1, 2]


def test_a_package_that_gets_its_functions_late(
    files: Path, memo: Memo, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``__getattr__`` takes the function of a submodule and keeps it, as that of ``librosa``."""
    (folder / "lazy_sounds").mkdir()
    (folder / "lazy_sounds" / "core.py").write_text(
        "made = []\ndef read(path):\n    made.append(path)\n    return 1, 2\n"
    )
    (folder / "lazy_sounds" / "__init__.py").write_text(
        "def __getattr__(name):\n"
        "    from importlib import import_module\n"
        "    globals()[name] = getattr(import_module('lazy_sounds.core'), name)\n"
        "    return globals()[name]\n"
    )
    monkeypatch.syspath_prepend(folder)
    reads = tuple(by_path(SOUND, module, "read") for module in ("lazy_sounds.core", "lazy_sounds"))
    monkeypatch.setattr("pipediag.memo.memo.CALLS", reads)
    sounds = imported("lazy_sounds")
    for _ in range(3):
        with memo.installed():
            assert sounds.read(files / "a.wav") == (1, 2)
    made = imported("lazy_sounds.core").made
    assert len(made) == 1 and memo.hits == 2
    sounds.read(files / "a.wav")
    assert len(made) == 2
    for module in ("lazy_sounds.core", "lazy_sounds"):
        del sys.modules[module]


def test_layers_are_removed_in_any_order(library: str) -> None:
    sounds = imported(library)
    plain = sounds.read
    with layered(sounds, "read", lambda plain: lambda *args: "ours"):
        assert sounds.read() == "ours"
    assert sounds.read is plain
    with layered(sounds, "nothing", lambda plain: plain):
        assert not hasattr(sounds, "nothing")


def test_a_layer_that_is_taken_out_frees_what_it_held(library: str) -> None:
    class Held:
        pass

    def make(plain: Callable[..., Any]) -> Callable[..., Any]:
        held = Held()
        made.append(weakref.ref(held))
        return lambda *args: held

    made: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        with layered(imported(library), "read", make):
            assert made[0]() is not None
        assert made[0]() is None
    finally:
        gc.enable()


def test_what_does_not_recur_is_not_kept_for_long(
    files: Path, memo: Memo, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipediag.memo.memo._JUDGED", 20)
    monkeypatch.setattr("pipediag.memo.memo._EVERY", 4)
    monkeypatch.setattr("pipediag.memo.memo._UNPROVEN", 0.0)
    sounds = imported(library)
    with memo.installed():
        for gain in range(200):
            sounds.read(files / "a.npy", gain)
        kept = memo.arena.entries
        assert 15 <= kept <= 30
        sounds.read(files / "a.npy", 0)
    assert len(sounds.made) == 201
