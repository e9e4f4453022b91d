"""Write the small made-up data that the public scripts read, each in the layout of the data set that it stands for."""

from __future__ import annotations

import io
import json
import math
import os
import random
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..recipes import data as recipes_data
from ..recipes.data import picture

#: Distinct pictures, recordings and clouds; further files are links to these.
DISTINCT = 24
_WORDS = 2000


def prepare(folder: Path, kinds: Iterable[str]) -> dict[str, float]:
    """Write the missing kinds; return the seconds that each took. Kinds of the recipes are written by them."""
    folder.mkdir(parents=True, exist_ok=True)
    took = {}
    for kind in sorted(kinds):
        done = folder / f".{kind}"
        if done.exists():
            continue
        began = time.perf_counter()
        if kind in WRITERS:
            WRITERS[kind](folder)
        else:
            recipes_data.WRITERS[kind](folder, False)
        done.touch()
        took[kind] = round(time.perf_counter() - began, 1)
    return took


def _pictures(size: tuple[int, int], count: int = DISTINCT) -> list[bytes]:
    return [picture(seed, size) for seed in range(count)]


def _png(jpeg: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).save(out, "PNG")
    return out.getvalue()


def _blobs(seed: int, size: tuple[int, int], classes: int = 2) -> bytes:
    """Return a PNG mask of a few smooth areas; two classes are 0 and 255."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, classes, (6, 6), dtype=np.uint8) * (255 if classes == 2 else 1)
    out = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def _spread(folder: Path, names: Iterable[str], contents: list[bytes]) -> None:
    """Write the contents in turn under the names; a repeated content is a link to its first file."""
    first: dict[int, Path] = {}
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        which = number % len(contents)
        if which in first:
            os.link(first[which], path)
        else:
            path.write_bytes(contents[which])
            first[which] = path


def _speech(seed: int, seconds: float, rate: int) -> bytes:
    """Return a 16-bit wave file of a few gliding tones and noise."""
    import numpy as np
    from scipy.io import wavfile

    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    wave = sum(np.sin(2 * np.pi * (f * at + 20 * np.sin(at * g))) for f, g in rng.uniform(1, 400, (6, 2)))
    wave = 0.1 * wave + rng.normal(0, 0.05, at.size)
    out = io.BytesIO()
    wavfile.write(out, rate, (np.clip(wave, -1, 1) * 32000).astype(np.int16))
    return out.getvalue()


def _sentences(count: int, words: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    known = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(_WORDS)]
    return [" ".join(rng.choices(known, k=rng.randint(words // 2, words))) for _ in range(count)]


def nuclei(folder: Path) -> None:
    """Images of 256 x 256 and one mask each, as PNG, in the layout that nested U-Net's preprocessing writes."""
    size = (256, 256)
    root = folder / "nuclei" / "dsb2018_96"
    names = [f"{number:04d}.png" for number in range(1200)]
    _spread(root / "images", names, [_png(made) for made in _pictures(size)])
    _spread(root / "masks" / "0", names, [_blobs(seed, size) for seed in range(DISTINCT)])


def yolo(folder: Path) -> None:
    """JPEGs of 640 x 480 with boxes in YOLO's text files, and the YAML file that names them."""
    root, rng = folder / "yolo", random.Random(0)
    made = _pictures((640, 480))
    for part, count in (("train", 3000), ("val", 8)):
        names = [f"{number:05d}" for number in range(count)]
        _spread(root / "images" / part, [f"{name}.jpg" for name in names], made)
        labels = root / "labels" / part
        labels.mkdir(parents=True)
        for name in names:
            boxes = [
                f"{rng.randrange(20)} {rng.uniform(0.3, 0.7):.4f} {rng.uniform(0.3, 0.7):.4f} 0.3 0.3" for _ in range(6)
            ]
            (labels / f"{name}.txt").write_text("\n".join(boxes) + "\n")
    text = f"path: {root}\ntrain: images/train\nval: images/val\nnames:\n"
    (root / "data.yaml").write_text(text + "".join(f"  {n}: kind{n}\n" for n in range(20)))


def speakers(folder: Path) -> None:
    """Recordings of 8 s in the layout of VoxCeleb, with MUSAN's noises, impulse responses, and the lists of files."""
    root = folder / "speakers"
    made = [_speech(seed, 8.0, 16000) for seed in range(DISTINCT)]
    names = [f"id{speaker:05d}/clip/{number:05d}.wav" for speaker in range(100) for number in range(30)]
    _spread(root / "wav", names, made)
    (root / "train_list.txt").write_text("".join(f"{name.split('/')[0]} {name}\n" for name in names))
    (root / "test_list.txt").write_text("".join(f"{n % 2} {names[n]} {names[n + 1]}\n" for n in range(8)))
    for kind in ("noise", "speech", "music"):
        _spread(root / "musan" / kind / "a" / "b", [f"{number}.wav" for number in range(24)], made)
    _spread(root / "rirs" / "a" / "b", [f"{n}.wav" for n in range(24)], [_speech(n, 0.5, 16000) for n in range(6)])


def commands(folder: Path) -> None:
    """Recordings of one second in the layout of Google's speech commands."""
    root = folder / "commands"
    made = [_speech(seed, 1.0, 16000) for seed in range(DISTINCT)]
    words = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "cat"]
    for part, count in (("train", 200), ("valid", 2)):
        _spread(root / part, [f"{word}/{number:04d}.wav" for word in words for number in range(count)], made)
    _spread(root / "train" / "_background_noise_", ["hum.wav", "hiss.wav"], [_speech(n, 20.0, 16000) for n in (1, 2)])


def readings(folder: Path) -> None:
    """Recordings of 7 s at 22,050 Hz with LJSpeech's lists."""
    root = folder / "readings"
    names = [f"LJ{number:05d}" for number in range(2000)]
    made = [_speech(seed, 7.0, 22050) for seed in range(DISTINCT)]
    _spread(root / "wavs", [f"{name}.wav" for name in names], made)
    (root / "train.txt").write_text("".join(f"{name}|text\n" for name in names))
    (root / "valid.txt").write_text("".join(f"{name}|text\n" for name in names[:2]))


def clips(folder: Path) -> None:
    """Frames of 340 x 256 as JPEGs, 40 to a clip, in the layout of Kinetics as extracted frames, and its annotation."""
    root = folder / "clips"
    made = _pictures((340, 256))
    database = {}
    for number in range(600):
        label, part = f"kind{number % 10}", "training" if number < 590 else "validation"
        name = f"clip{number:04d}"
        database[name] = {"subset": part, "annotations": {"label": label, "segment": [1, 41]}}
        if number < 12:
            names = [f"image_{frame:05d}.jpg" for frame in range(1, 42)]
            _spread(root / "jpg" / label / name, names, made)
        else:
            (root / "jpg" / label).mkdir(exist_ok=True)
            (root / "jpg" / label / name).symlink_to(root / "jpg" / label / f"clip{number % 10:04d}")
    whole = {"labels": [f"kind{n}" for n in range(10)], "database": database}
    (root / "annotation.json").write_text(json.dumps(whole))


def clouds(folder: Path) -> None:
    """Point clouds of 10,000 points with normals, as text, in the layout of ModelNet40 (resampled)."""
    import numpy as np

    root, rng = folder / "clouds" / "modelnet40_normal_resampled", np.random.default_rng(0)
    root.mkdir(parents=True)
    kinds = [f"kind{letter}" for letter in "abcdefghij"]
    (root / "modelnet10_shape_names.txt").write_text("\n".join(kinds) + "\n")
    made = []
    for _ in range(12):
        points = rng.normal(size=(10000, 6))
        points[:, :3] /= np.linalg.norm(points[:, :3], axis=1, keepdims=True) / rng.uniform(0.5, 1.0, 3)
        made.append("\n".join(",".join(f"{value:.6f}" for value in row) for row in points).encode())
    for part, count in (("train", 2000), ("test", 16)):
        names = [f"{kinds[number % 10]}_{part}{number:04d}" for number in range(count)]
        (root / f"modelnet10_{part}.txt").write_text("\n".join(names) + "\n")
        _spread(root, [f"{name.split('_')[0]}/{name}.txt" for name in names], made)


def pairs(folder: Path) -> None:
    """Pairs of sentences on one line, separated by a tab."""
    (folder / "pairs").mkdir()
    first, second = _sentences(40000, 24, 1), _sentences(40000, 24, 2)
    (folder / "pairs" / "corpus.txt").write_text("".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)))


def drives(folder: Path) -> None:
    """JPEGs of 1242 x 375 in the layout of KITTI's raw drives, and monodepth2's lists of them."""
    root = folder / "drives"
    drive = "2011_09_26/2011_09_26_drive_0001_sync"
    names = [f"{drive}/image_02/data/{number:010d}.jpg" for number in range(2002)]
    _spread(root / "kitti", names, _pictures((1242, 375), 12))
    lists = root / "splits" / "eigen_zhou"
    lists.mkdir(parents=True)
    (lists / "train_files.txt").write_text("".join(f"{drive} {number} l\n" for number in range(1, 2001)))
    (lists / "val_files.txt").write_text("".join(f"{drive} {number} l\n" for number in range(1, 41)))


def words(folder: Path) -> None:
    """Pictures of words in two LMDBs, as of the text recognition benchmark: MJSynth and SynthText."""
    import lmdb

    rng = random.Random(0)
    made = [picture(seed, (rng.randint(90, 260), 40)) for seed in range(200)]
    for part, count in (("train/MJ", 12000), ("train/ST", 12000), ("valid", 64)):
        path = folder / "words" / part
        path.mkdir(parents=True)
        with lmdb.open(str(path), map_size=1 << 30) as env, env.begin(write=True) as out:
            for number in range(1, count + 1):
                out.put(f"image-{number:09d}".encode(), made[number % len(made)])
                word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randint(3, 10)))
                out.put(f"label-{number:09d}".encode(), word.encode())
            out.put(b"num-samples", str(count).encode())


def boxes(folder: Path) -> None:
    """JPEGs of 500 x 375 with boxes in the lists that the object detection tutorial makes of VOC."""
    root, rng = folder / "boxes", random.Random(0)
    names = [f"images/{number:05d}.jpg" for number in range(3000)]
    _spread(root, names, _pictures((500, 375)))
    objects = []
    for _ in names:
        corners = [(rng.randint(0, 300), rng.randint(0, 200)) for _ in range(rng.randint(1, 4))]
        objects.append(
            {
                "boxes": [[x, y, x + rng.randint(60, 190), y + rng.randint(60, 170)] for x, y in corners],
                "labels": [rng.randint(1, 20) for _ in corners],
                "difficulties": [0 for _ in corners],
            }
        )
    (root / "TRAIN_images.json").write_text(json.dumps([str(root / name) for name in names]))
    (root / "TRAIN_objects.json").write_text(json.dumps(objects))


def captions(folder: Path) -> None:
    """JPEGs of 500 x 400 and five captions each, in the layout of Flickr 8k."""
    root = folder / "captions"
    names = [f"{number:05d}.jpg" for number in range(1000)]
    _spread(root / "Images", names, _pictures((500, 400)))
    texts = iter(_sentences(5 * len(names), 14))
    rows = [f"{names[n // 5]},{n % 5},{next(texts)},{n // 5}" for n in range(5 * len(names))]
    (root / "captions.csv").write_text("image,caption_number,caption,id\n" + "\n".join(rows) + "\n")


def sharp(folder: Path) -> None:
    """PNGs of 1020 x 678 in the layout of DIV2K as SRGAN reads it."""
    made = [_png(jpeg) for jpeg in _pictures((1020, 678), 12)]
    _spread(folder / "sharp" / "DIV2K_train_HR", [f"{number:04d}.png" for number in range(2400)], made)
    _spread(folder / "sharp" / "DIV2K_valid_HR", ["0001.png", "0002.png"], made)


def poses(folder: Path) -> None:
    """JPEGs of 1280 x 720 with the joints of a person, in the layout of MPII."""
    root, rng = folder / "poses" / "mpii", random.Random(0)
    names = [f"{number:05d}.jpg" for number in range(2000)]
    _spread(root / "images", names, _pictures((1280, 720), 12))
    (root / "annot").mkdir()

    def person(name: str) -> dict[str, Any]:
        x, y = rng.randint(400, 800), rng.randint(250, 450)
        joints = [[x + rng.randint(-150, 150), y + rng.randint(-200, 200)] for _ in range(16)]
        return {"image": name, "center": [x, y], "scale": 2.5, "joints": joints, "joints_vis": [1] * 16}

    for part, chosen in (("train", names), ("valid", names[:8])):
        (root / "annot" / f"{part}.json").write_text(json.dumps([person(name) for name in chosen]))


def volumes(folder: Path) -> None:
    """Two stacks of 80 x 256 x 256 with their cells, as HDF5."""
    import h5py
    import numpy as np
    from scipy import ndimage

    root, rng = folder / "volumes", np.random.default_rng(0)
    for part in ("train", "val"):
        (root / part).mkdir(parents=True)
        size = (80, 256, 256) if part == "train" else (40, 80, 80)
        seeds = np.zeros(size, np.uint16)
        for number in range(1, 200):
            seeds[tuple(rng.integers(0, side) for side in size)] = number
        nearest = ndimage.distance_transform_edt(seeds == 0, return_distances=False, return_indices=True)
        raw = rng.normal(100, 20, size).astype(np.float32)
        with h5py.File(root / part / "stack.h5", "w") as out:
            out["raw"], out["label"] = raw, seeds[tuple(nearest)]


def crystals(folder: Path) -> None:
    """Crystals of 12 to 30 atoms as CIF files, with the tables that CGCNN reads."""
    root, rng = folder / "crystals", random.Random(0)
    root.mkdir()
    elements = ["Na", "Cl", "O", "Si", "Fe", "Ti", "Mg", "Al", "Ca", "K", "Mn", "Cu"]
    for number in range(1500):
        sides = [rng.uniform(6.0, 9.0) for _ in range(3)]
        head = ["data_made", "_symmetry_space_group_name_H-M 'P 1'"]
        head += [f"_cell_length_{axis} {side:.4f}" for axis, side in zip("abc", sides, strict=True)]
        head += [f"_cell_angle_{angle} 90.0" for angle in ("alpha", "beta", "gamma")]
        head += ["loop_", "_atom_site_label", "_atom_site_type_symbol"]
        head += [f"_atom_site_fract_{axis}" for axis in "xyz"] + ["_atom_site_occupancy"]
        places = rng.sample([(x / 4, y / 4, z / 4) for x in range(4) for y in range(4) for z in range(4)], 24)
        for index, place in enumerate(places[: rng.randint(12, 24)]):
            element = rng.choice(elements)
            head.append(f"{element}{index} {element} {place[0]:.4f} {place[1]:.4f} {place[2]:.4f} 1.0")
        (root / f"made{number:04d}.cif").write_text("\n".join(head) + "\n")
    (root / "id_prop.csv").write_text("".join(f"made{n:04d},{rng.uniform(-2, 2):.4f}\n" for n in range(1500)))
    (root / "atom_init.json").write_text(
        json.dumps({str(number): [rng.randint(0, 1) for _ in range(92)] for number in range(1, 101)})
    )


def clicks(folder: Path) -> None:
    """200,000 rows of 39 fields in an LMDB, as pytorch-fm caches Criteo's."""
    import lmdb
    import numpy as np

    rng = np.random.default_rng(0)
    sizes = rng.integers(10, 2000, 39).astype(np.uint32)
    rows = np.concatenate([rng.integers(0, 2, (200000, 1)), rng.integers(0, sizes, (200000, 39))], 1).astype(np.uint32)
    (folder / "clicks").mkdir()
    with lmdb.open(str(folder / "clicks" / "criteo"), map_size=1 << 31) as env, env.begin(write=True) as out:
        out.put(b"field_dims", sizes.tobytes())
        for number, row in enumerate(rows):
            out.put(struct.pack(">I", number), row.tobytes())


def cars(folder: Path) -> None:
    """JPEGs of 959 x 640 and GIF-like masks as PNG, in the layout of Carvana as U-Net reads it."""
    size = (959, 640)
    names = [f"{number:04d}" for number in range(1200)]
    _spread(folder / "cars" / "imgs", [f"{name}.jpg" for name in names], _pictures(size))
    _spread(folder / "cars" / "masks", [f"{name}.png" for name in names], [_blobs(n, size) for n in range(DISTINCT)])


def meters(folder: Path) -> None:
    """Hourly readings of seven sensors over two years, as the ETT tables."""
    import datetime

    rng = random.Random(0)
    began = datetime.datetime(2016, 7, 1)
    rows = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for hour in range(17420):
        values = [math.sin(hour / 24 * k) * 5 + rng.gauss(0, 1) for k in range(1, 8)]
        rows.append(f"{began + datetime.timedelta(hours=hour)}," + ",".join(f"{value:.4f}" for value in values))
    (folder / "meters").mkdir()
    (folder / "meters" / "ETTh1.csv").write_text("\n".join(rows) + "\n")


def tiny(folder: Path) -> None:
    """Small models of transformers with random weights: a ViT with its image processor, a BERT with its tokenizer."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertTokenizerFast,
        ViTConfig,
        ViTForImageClassification,
        ViTImageProcessor,
    )

    root = folder / "tiny"
    sized = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 192}
    vision = ViTConfig(image_size=160, patch_size=32, **sized)
    ViTForImageClassification(vision).save_pretrained(root / "vit")
    ViTImageProcessor(size={"height": 160, "width": 160}).save_pretrained(root / "vit")
    known = sorted({word for sentence in _sentences(2000, 24) for word in sentence.split()})
    (root / "bert").mkdir(parents=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    listed = root / "bert" / "vocab.txt"
    listed.write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    BertTokenizerFast(vocab_file=str(listed)).save_pretrained(root / "bert")
    text = BertConfig(vocab_size=len(dict.fromkeys(pieces)), max_position_embeddings=256, **sized)
    BertForMaskedLM(text).save_pretrained(root / "bert")
    (root / "corpus.txt").write_text("\n".join(_sentences(20000, 24)) + "\n")


def flowers(folder: Path) -> None:
    """JPEGs of 320 x 320 in one flat folder."""
    _spread(folder / "flowers", [f"{number:05d}.jpg" for number in range(3000)], _pictures((320, 320)))


WRITERS: dict[str, Callable[[Path], None]] = {
    "nuclei": nuclei,
    "yolo": yolo,
    "speakers": speakers,
    "commands": commands,
    "readings": readings,
    "clips": clips,
    "clouds": clouds,
    "pairs": pairs,
    "drives": drives,
    "words": words,
    "boxes": boxes,
    "captions": captions,
    "sharp": sharp,
    "poses": poses,
    "volumes": volumes,
    "crystals": crystals,
    "clicks": clicks,
    "cars": cars,
    "meters": meters,
    "tiny": tiny,
    "flowers": flowers,
}
