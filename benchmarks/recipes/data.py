"""Write the data that the recipes train on, once into a folder, with costs like those of real data."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import shutil
import struct
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

#: Number of distinct pictures in all JPEG files: decoding costs the same if pictures repeat.
PICTURES = 60
SIZE = (500, 400)
#: Number of real files in a folder of pictures; further ones are links to them.
FILES = 2000
CLASSES = 10
_JPEG_QUALITY = 92


def prepare(folder: Path, kinds: set[str], gpu: bool) -> dict[str, float]:
    """Write the missing ``kinds``; return the seconds that each took."""
    folder.mkdir(parents=True, exist_ok=True)
    if kinds & {"pets", "tar"}:
        kinds = kinds | {"images"}
    took = {}
    for kind, write in WRITERS.items():
        done = folder / f".{kind}"
        if kind in kinds and not done.exists():
            began = time.perf_counter()
            try:
                write(folder, gpu)
                done.touch()
            except Exception as error:  # a missing package affects only the recipes that read this
                (folder / f".{kind}.failed").write_text(repr(error))
            took[kind] = round(time.perf_counter() - began, 1)
    for link in (folder / "data", folder / "work" / "data"):  # scripts that expect ../data or ../../data
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder.resolve())
    return took


def picture(seed: int, size: tuple[int, int] = SIZE) -> bytes:
    """Return a JPEG of smooth areas, edges and noise, of about 100 kB at the usual size."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    width, height = size
    coarse = rng.integers(0, 256, (height // 40 + 1, width // 40 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    fine = rng.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    texture = np.asarray(Image.fromarray(fine).resize(size, Image.Resampling.BILINEAR), dtype=np.float32) - 128
    noise = rng.normal(0, 9, (height, width, 3)).astype(np.float32)
    pixels = np.clip(smooth + 0.25 * texture + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue()


def _pictures(size: tuple[int, int] = SIZE, count: int = PICTURES) -> list[bytes]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(picture, range(count), [size] * count, chunksize=4))


def images(folder: Path, gpu: bool) -> None:
    """Write an ImageFolder, ``images/train`` and ``images/val``."""
    made = _pictures()
    for part, count in (("train", 51200 if gpu else 1200), ("val", 512 if gpu else 40)):
        written: list[Path] = []
        for number in range(count):
            path = folder / "images" / part / f"class_{number % CLASSES}" / f"{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            if number < FILES:
                path.write_bytes(made[number % len(made)])
                written.append(path)
            else:  # epochs of realistic length without the disk space
                os.link(written[number % FILES], path)


def pets(folder: Path, gpu: bool) -> None:
    """Write the images into one flat folder, named by class; on a GPU four copies, for the script's three epochs."""
    (folder / "pets").mkdir()
    for path in (folder / "images" / "train").glob("*/*.jpg"):
        for copy in range(4 if gpu else 1):
            os.link(path, folder / "pets" / f"breed{path.parent.name[-1]}_{copy}{path.stem}.jpg")


def tar(folder: Path, gpu: bool) -> None:
    """Write the images as one tar file of class folders."""
    with tarfile.open(folder / "images.tar", "w") as out:
        for path in sorted((folder / "images" / "train").glob("*/*.jpg")):
            out.add(path, arcname=f"{path.parent.name}/{path.name}")


def cyclegan(folder: Path, gpu: bool) -> None:
    made = _pictures((256, 256))
    for part, count in (("train", 1000 if gpu else 200), ("test", 20)):
        for side in "AB":
            path = folder / "cyclegan" / part / side
            path.mkdir(parents=True)
            for number in range(count):
                (path / f"{number}.jpg").write_bytes(made[(number + (side == "B")) % len(made)])


def cifar(folder: Path, gpu: bool) -> None:
    """Write CIFAR-10 and CIFAR-100 in their original pickles."""
    import numpy as np

    rng = np.random.default_rng(0)
    total = 50000 if gpu else 10000

    def write(path: Path, count: int, labels: dict[str, int]) -> None:
        coarse = rng.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)
        pixels = coarse.repeat(4, 2).repeat(4, 3).reshape(count, 3072)
        named = {key: rng.integers(0, classes, count).tolist() for key, classes in labels.items()}
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps({"data": pixels, **named}))

    ten, hundred = folder / "cifar-10-batches-py", folder / "cifar-100-python"
    for number in range(1, 6):
        write(ten / f"data_batch_{number}", total // 5, {"labels": 10})
    write(ten / "test_batch", 1000, {"labels": 10})
    (ten / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    for name, count in (("train", total), ("test", 1000)):
        write(hundred / name, count, {"fine_labels": 100, "coarse_labels": 20})
    names = {"fine_label_names": [str(i) for i in range(100)]}
    (hundred / "meta").write_bytes(pickle.dumps(names))


def mnist(folder: Path, gpu: bool) -> None:
    """Write MNIST and FashionMNIST as idx files."""
    import numpy as np

    rng = np.random.default_rng(0)
    for dataset in ("MNIST", "FashionMNIST"):
        raw = folder / dataset / "raw"
        raw.mkdir(parents=True)
        for part, count in (("train", 60000 if gpu else 20000), ("t10k", 2000)):
            digits = rng.integers(0, 256, (count, 7, 7), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
            labels = rng.integers(0, 10, count, dtype=np.uint8)
            image = struct.pack(">iiii", 2051, count, 28, 28) + digits.tobytes()
            label = struct.pack(">ii", 2049, count) + labels.tobytes()
            for name, content in ((f"{part}-images-idx3-ubyte", image), (f"{part}-labels-idx1-ubyte", label)):
                (raw / name).write_bytes(content)
                with gzip.open(raw / f"{name}.gz", "wb", 1) as packed:
                    packed.write(content)


def voc(folder: Path, gpu: bool) -> None:
    """Write images and masks in the layout of VOC2012."""
    import numpy as np
    from PIL import Image

    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    made, rng = _pictures(), np.random.default_rng(0)
    for part, count in (("train", 1400 if gpu else 200), ("val", 8)):
        names = [f"{part}_{number:05d}" for number in range(count)]
        (root / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
        for number, name in enumerate(names):
            (root / "JPEGImages" / f"{name}.jpg").write_bytes(made[number % len(made)])
            coarse = Image.fromarray(rng.integers(0, 21, (8, 10), dtype=np.uint8), "P")
            coarse.resize(SIZE, Image.Resampling.NEAREST).save(root / "SegmentationClass" / f"{name}.png")


def coco(folder: Path, gpu: bool) -> None:
    """Write images with boxes and polygons in the layout of COCO 2017."""
    made, rng = _pictures(), random.Random(0)
    (folder / "coco" / "annotations").mkdir(parents=True)
    for part, count in (("train2017", 1200 if gpu else 120), ("val2017", 8)):
        (folder / "coco" / part).mkdir()
        files: list[dict[str, Any]] = []
        objects: list[dict[str, Any]] = []
        for number in range(count):
            name = f"{number:012d}.jpg"
            (folder / "coco" / part / name).write_bytes(made[number % len(made)])
            files.append({"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
            for _ in range(rng.randint(2, 8)):
                x, y, w, h = rng.randint(0, 350), rng.randint(0, 250), rng.randint(40, 140), rng.randint(40, 140)
                outline = [x, y, x + w, y, x + w, y + h, x + w // 2, y + h // 2, x, y + h]
                box = {"bbox": [x, y, w, h], "area": w * h, "segmentation": [outline], "iscrowd": 0}
                kind = rng.randint(1, 80)
                objects.append({"id": len(objects) + 1, "image_id": number, "category_id": kind, **box})
        kinds = [{"id": number, "name": str(number)} for number in range(1, 91)]
        whole = {"info": {}, "images": files, "annotations": objects, "categories": kinds}
        (folder / "coco" / "annotations" / f"instances_{part}.json").write_text(json.dumps(whole))


def bsds(folder: Path, gpu: bool) -> None:
    """Write BSDS300: 200 images, so that an epoch has few batches."""
    made = _pictures((481, 321))
    for part, count in (("train", 200), ("test", 20)):
        path = folder / "bsds" / "BSDS300" / "images" / part
        path.mkdir(parents=True)
        for number in range(count):
            (path / f"{number}.jpg").write_bytes(made[number % len(made)])


def text(folder: Path, gpu: bool) -> None:
    """Write characters and tokens: ``text/input.txt``, a small corpus in three files, and ``text/*.bin``."""
    import numpy as np

    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    (folder / "text").mkdir()
    lines = [" ".join(rng.choices(words, k=12)) for _ in range(12000)]
    whole = "O God, O God!\n" + "\n".join(lines)
    (folder / "text" / "input.txt").write_text(whole)
    for name, part in (("train", lines), ("valid", lines[:200]), ("test", lines[:200])):
        (folder / "text" / f"{name}.txt").write_text("\n".join(part))
    for name in ("train", "val"):
        np.random.default_rng(1).integers(0, 50000, 1_000_000, dtype=np.uint16).tofile(folder / "text" / f"{name}.bin")


def h5(folder: Path, gpu: bool) -> None:
    """Write pairs of small patches in the format of SRCNN."""
    import h5py
    import numpy as np

    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (20000 if gpu else 6000, 33, 33)).astype(np.float32)
    (folder / "h5").mkdir()
    with h5py.File(folder / "h5" / "train.h5", "w") as out:
        out["lr"], out["hr"] = patches, patches
    with h5py.File(folder / "h5" / "eval.h5", "w") as out:
        for side in ("lr", "hr"):
            for number in range(2):
                out[f"{side}/{number}"] = rng.integers(0, 256, (99, 99)).astype(np.float32)


def graphs(folder: Path, gpu: bool) -> None:
    """Write random graphs as MUTAG, in the raw format of the TU collection."""
    raw, rng = folder / "tu" / "TU" / "MUTAG" / "raw", random.Random(0)
    raw.mkdir(parents=True)
    edges: list[tuple[int, int]] = []
    members: list[int] = []
    labels: list[int] = []
    nodes: list[int] = []
    for graph in range(6000):
        size, first = rng.randint(12, 60), len(members) + 1
        for node in range(size):
            members.append(graph + 1)
            nodes.append(rng.randint(0, 6))
            for other in rng.sample(range(size), 3):
                edges.append((first + node, first + other))
        labels.append(rng.choice((-1, 1)))
    (raw / "MUTAG_A.txt").write_text("".join(f"{a}, {b}\n" for a, b in edges))
    for name, values in (("graph_indicator", members), ("graph_labels", labels), ("node_labels", nodes)):
        (raw / f"MUTAG_{name}.txt").write_text("".join(f"{value}\n" for value in values))


def hub(folder: Path, gpu: bool) -> None:
    """Write what a script would download from Hugging Face: random weights of a ResNet-50-D."""
    import timm
    from safetensors.torch import save_file

    model = timm.create_model("resnet50d", pretrained=False)
    name = model.pretrained_cfg["hf_hub_id"].replace("/", "--")
    snapshot = folder / "hub" / "huggingface" / "hub" / f"models--{name}"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs" / "main").write_text("0" * 40)
    (snapshot / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_file(model.state_dict(), snapshot / "snapshots" / ("0" * 40) / "model.safetensors")


def weights(folder: Path, gpu: bool) -> None:
    """Write what two scripts would download with torch.hub: an empty list of models, random weights of MobileNetV2."""
    import torch
    from torchvision.models import mobilenet_v2

    hub = folder / "hub" / "torch" / "hub"
    listed, checkpoints = hub / "facebookresearch_xcit_main", hub / "checkpoints"
    listed.mkdir(parents=True)
    (listed / "hubconf.py").write_text("dependencies = ['torch']\n")
    checkpoints.mkdir()
    torch.save(mobilenet_v2().state_dict(), checkpoints / "mobilenet_v2-b0353104.pth")


WRITERS: dict[str, Callable[[Path, bool], None]] = {
    "images": images,
    "pets": pets,
    "tar": tar,
    "cyclegan": cyclegan,
    "cifar": cifar,
    "mnist": mnist,
    "voc": voc,
    "coco": coco,
    "bsds": bsds,
    "text": text,
    "h5": h5,
    "graphs": graphs,
    "hub": hub,
    "weights": weights,
}


def forget(folder: Path) -> None:
    """Remove the files that scripts wrote beside the data."""
    shutil.rmtree(folder / "work", ignore_errors=True)
