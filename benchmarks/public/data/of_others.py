"""Write recordings, text, clouds, volumes and tables, each in the layout of the data set that it stands for."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

from .making import DISTINCT, sentences, speech, spread


def speakers(folder: Path) -> None:
    """Recordings of 8 s in the layout of VoxCeleb, with MUSAN's noises, impulse responses, and the lists of files."""
    root = folder / "speakers"
    made = [speech(seed, 8.0, 16000) for seed in range(DISTINCT)]
    names = [f"id{speaker:05d}/clip/{number:05d}.wav" for speaker in range(100) for number in range(30)]
    spread(root / "wav", names, made)
    (root / "train_list.txt").write_text("".join(f"{name.split('/')[0]} {name}\n" for name in names))
    (root / "test_list.txt").write_text("".join(f"{n % 2} {names[n]} {names[n + 1]}\n" for n in range(8)))
    for kind in ("noise", "speech", "music"):
        spread(root / "musan" / kind / "a" / "b", [f"{number}.wav" for number in range(24)], made)
    spread(root / "rirs" / "a" / "b", [f"{n}.wav" for n in range(24)], [speech(n, 0.5, 16000) for n in range(6)])


def commands(folder: Path) -> None:
    """Recordings of one second in the layout of Google's speech commands."""
    root = folder / "commands"
    made = [speech(seed, 1.0, 16000) for seed in range(DISTINCT)]
    words = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "cat"]
    for part, count in (("train", 200), ("valid", 2)):
        spread(root / part, [f"{word}/{number:04d}.wav" for word in words for number in range(count)], made)
    spread(root / "train" / "_background_noise_", ["hum.wav", "hiss.wav"], [speech(n, 20.0, 16000) for n in (1, 2)])


def readings(folder: Path) -> None:
    """Recordings of 7 s at 22,050 Hz with LJSpeech's lists."""
    root = folder / "readings"
    names = [f"LJ{number:05d}" for number in range(2000)]
    made = [speech(seed, 7.0, 22050) for seed in range(DISTINCT)]
    spread(root / "wavs", [f"{name}.wav" for name in names], made)
    (root / "train.txt").write_text("".join(f"{name}|text\n" for name in names))
    (root / "valid.txt").write_text("".join(f"{name}|text\n" for name in names[:2]))


def pairs(folder: Path) -> None:
    """Pairs of sentences on one line, separated by a tab."""
    (folder / "pairs").mkdir()
    first, second = sentences(40000, 24, 1), sentences(40000, 24, 2)
    (folder / "pairs" / "corpus.txt").write_text("".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)))


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
        spread(root, [f"{name.split('_')[0]}/{name}.txt" for name in names], made)


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
    known = sorted({word for sentence in sentences(2000, 24) for word in sentence.split()})
    (root / "bert").mkdir(parents=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known]
    pieces += [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    listed = root / "bert" / "vocab.txt"
    listed.write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    BertTokenizerFast(vocab_file=str(listed)).save_pretrained(root / "bert")
    text = BertConfig(vocab_size=len(dict.fromkeys(pieces)), max_position_embeddings=256, **sized)
    BertForMaskedLM(text).save_pretrained(root / "bert")
    (root / "corpus.txt").write_text("\n".join(sentences(20000, 24)) + "\n")
