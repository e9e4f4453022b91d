"""Several epochs over a folder with bad files give the plain loader's batches and leak no memory and no files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

SCRIPT = Path(__file__).parents[2] / "remedy" / "scripts" / "decode_endurance.py"
EPOCHS = 4
#: KiB by which a process may grow after its second epoch; a leak of one photo per batch is more.
_GROWTH = 4096


def encoded(rng: np.random.Generator, mode: str = "RGB", format: str = "JPEG", **options: Any) -> bytes:
    height, width = rng.integers(30, 70, 2)
    noise, file = rng.integers(0, 256, (height, width, 3), dtype=np.uint8), io.BytesIO()
    PIL.Image.fromarray(noise).convert(mode).save(file, format, **options)
    return file.getvalue()


def bad(kind: int, data: bytes) -> bytes:
    table = bytearray(data)
    table[table.index(b"\xff\xc4") + 8] = 255
    scan = bytearray(data)
    scan[-400:-300] = bytes(100)
    return [data[:-300], bytes(table), bytes(scan), b"", b"no picture"][kind]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    others: list[dict[str, Any]] = [{"format": "PNG"}, {"mode": "L"}, {"mode": "CMYK"}, {"progressive": True}]
    for k in range(1500):
        options = others[k % 4] if k % 10 == 0 else {"subsampling": k % 3}
        data = encoded(rng, **options)
        path = root / f"class{k % 3}" / f"{k:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bad(k // 20 % 5, data) if k % 20 == 5 else data)
    return root


def run(*arguments: Any) -> tuple[dict[str, Any], int]:
    """Return the script's output, and its number of files that were closed only by the garbage collector."""
    command = [sys.executable, "-W", "always::ResourceWarning", SCRIPT, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr.count("ResourceWarning: unclosed file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "start", "persistent"),
    [("pillow", "fork", 1), ("pillow", "fork", 0), ("pillow", "spawn", 1), ("torchvision", "fork", 1)],
)
def test_epochs_take_no_more_than_the_plain_loaders(folder: Path, reader: str, start: str, persistent: int) -> None:
    plain, left_open = run(folder, "plain", reader, start, EPOCHS, persistent)
    made, ours_left_open = run(folder, "offloaded", reader, start, EPOCHS, persistent)
    assert not made["why"]
    assert [epoch["batches"] for epoch in made["epochs"]] == [epoch["batches"] for epoch in plain["epochs"]]
    # Before the first epoch, the trial reads some of the files too.
    assert ours_left_open <= left_open + 16
    _, second, *_, last = made["epochs"]
    assert last["memory"] <= second["memory"] + _GROWTH
    assert last["worker memory"] <= second["worker memory"] + _GROWTH
    assert last["files"] <= second["files"]
    most = max(epoch["worker files"] for epoch in plain["epochs"])
    assert max(epoch["worker files"] for epoch in made["epochs"]) <= most
    assert not any(epoch["shared memory"] for epoch in made["epochs"])
