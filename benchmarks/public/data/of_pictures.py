"""Write pictures, each kind in the layout of the data set that it stands for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from ...recipes.data import picture
from .making import DISTINCT, blobs, pictures, png, sentences, spread


def nuclei(folder: Path) -> None:
    """Images of 256 x 256 and one mask each, as PNG, in the layout that nested U-Net's preprocessing writes."""
    size = (256, 256)
    root = folder / "nuclei" / "dsb2018_96"
    names = [f"{number:04d}.png" for number in range(1200)]
    spread(root / "images", names, [png(made) for made in pictures(size)])
    spread(root / "masks" / "0", names, [blobs(seed, size) for seed in range(DISTINCT)])


def yolo(folder: Path) -> None:
    """JPEGs of 640 x 480 with boxes in YOLO's text files, and the YAML file that names them."""
    root, rng = folder / "yolo", random.Random(0)
    made = pictures((640, 480))
    for part, count in (("train", 3000), ("val", 8)):
        names = [f"{number:05d}" for number in range(count)]
        spread(root / "images" / part, [f"{name}.jpg" for name in names], made)
        labels = root / "labels" / part
        labels.mkdir(parents=True)
        for name in names:
            boxes = [
                f"{rng.randrange(20)} {rng.uniform(0.3, 0.7):.4f} {rng.uniform(0.3, 0.7):.4f} 0.3 0.3" for _ in range(6)
            ]
            (labels / f"{name}.txt").write_text("\n".join(boxes) + "\n")
    text = f"path: {root}\ntrain: images/train\nval: images/val\nnames:\n"
    (root / "data.yaml").write_text(text + "".join(f"  {n}: kind{n}\n" for n in range(20)))


def clips(folder: Path) -> None:
    """Frames of 340 x 256 as JPEGs, 40 to a clip, in the layout of Kinetics as extracted frames, and its annotation."""
    root = folder / "clips"
    made = pictures((340, 256))
    database = {}
    for number in range(600):
        label, part = f"kind{number % 10}", "training" if number < 590 else "validation"
        name = f"clip{number:04d}"
        database[name] = {"subset": part, "annotations": {"label": label, "segment": [1, 41]}}
        if number < 12:
            names = [f"image_{frame:05d}.jpg" for frame in range(1, 42)]
            spread(root / "jpg" / label / name, names, made)
        else:
            (root / "jpg" / label).mkdir(exist_ok=True)
            (root / "jpg" / label / name).symlink_to(root / "jpg" / label / f"clip{number % 10:04d}")
    whole = {"labels": [f"kind{n}" for n in range(10)], "database": database}
    (root / "annotation.json").write_text(json.dumps(whole))


def drives(folder: Path) -> None:
    """JPEGs of 1242 x 375 in the layout of KITTI's raw drives, and monodepth2's lists of them."""
    root = folder / "drives"
    drive = "2011_09_26/2011_09_26_drive_0001_sync"
    names = [f"{drive}/image_02/data/{number:010d}.jpg" for number in range(2002)]
    spread(root / "kitti", names, pictures((1242, 375), 12))
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
    spread(root, names, pictures((500, 375)))
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
    spread(root / "Images", names, pictures((500, 400)))
    texts = iter(sentences(5 * len(names), 14))
    rows = [f"{names[n // 5]},{n % 5},{next(texts)},{n // 5}" for n in range(5 * len(names))]
    (root / "captions.csv").write_text("image,caption_number,caption,id\n" + "\n".join(rows) + "\n")


def sharp(folder: Path) -> None:
    """PNGs of 1020 x 678 in the layout of DIV2K as SRGAN reads it."""
    made = [png(jpeg) for jpeg in pictures((1020, 678), 12)]
    spread(folder / "sharp" / "DIV2K_train_HR", [f"{number:04d}.png" for number in range(2400)], made)
    spread(folder / "sharp" / "DIV2K_valid_HR", ["0001.png", "0002.png"], made)


def poses(folder: Path) -> None:
    """JPEGs of 1280 x 720 with the joints of a person, in the layout of MPII."""
    root, rng = folder / "poses" / "mpii", random.Random(0)
    names = [f"{number:05d}.jpg" for number in range(2000)]
    spread(root / "images", names, pictures((1280, 720), 12))
    (root / "annot").mkdir()

    def person(name: str) -> dict[str, Any]:
        x, y = rng.randint(400, 800), rng.randint(250, 450)
        joints = [[x + rng.randint(-150, 150), y + rng.randint(-200, 200)] for _ in range(16)]
        return {"image": name, "center": [x, y], "scale": 2.5, "joints": joints, "joints_vis": [1] * 16}

    for part, chosen in (("train", names), ("valid", names[:8])):
        (root / "annot" / f"{part}.json").write_text(json.dumps([person(name) for name in chosen]))


def cars(folder: Path) -> None:
    """JPEGs of 959 x 640 and GIF-like masks as PNG, in the layout of Carvana as U-Net reads it."""
    size = (959, 640)
    names = [f"{number:04d}" for number in range(1200)]
    spread(folder / "cars" / "imgs", [f"{name}.jpg" for name in names], pictures(size))
    spread(folder / "cars" / "masks", [f"{name}.png" for name in names], [blobs(n, size) for n in range(DISTINCT)])


def flowers(folder: Path) -> None:
    """JPEGs of 320 x 320 in one flat folder."""
    spread(folder / "flowers", [f"{number:05d}.jpg" for number in range(3000)], pictures((320, 320)))
