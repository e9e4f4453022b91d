"""Compose a training script from chosen parts. The same parts give the same text, and the same seed the same parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from textwrap import indent

from .parts import CHOICES, CURRICULUM, OWN, PIL, SEVERAL, STATES, TENSORS

#: What was chosen, by the name of the choice: an option, or several.
Parts = dict[str, str | tuple[str, ...]]

_FILES = ("png", "jpeg", "gifs", "npz")
#: A spawned worker imports torch anew, so only this share of what asks for one gets it.
_SPAWNED = 0.15
#: Loops after which the number of calls depends on how far the workers had got.
_OPEN_ENDED = ("break", "peek", "twice", "finally", "error", "try")


def invent(seed: int, number: int, without: frozenset[str] = frozenset()) -> Parts:
    """Return the parts of the script with this number; ``without`` leaves out options."""
    rng = random.Random(f"{seed} {number}")
    parts: Parts = {name: rng.choice([o for o in options if o not in without] or [options[0]])
                    for name, options in CHOICES.items()}  # fmt: skip
    for name, (most, options) in SEVERAL.items():
        allowed = [option for option in options if option not in without]
        chosen = rng.sample(allowed, min(len(allowed), rng.randint(0, most)))
        parts[name] = tuple(chosen)
    if rng.random() >= _SPAWNED and parts["context"] == "spawn":
        parts["context"] = ""
    return settled(parts)


def shrunk(parts: Parts, fails: Callable[[Parts], bool]) -> Parts:
    """Return plainer parts that still fail: each choice by its plainest option, each of several left out."""
    while True:
        for plainer in _plainer(parts):
            if fails(plainer):
                parts = plainer
                break
        else:
            return parts


def _plainer(parts: Parts) -> list[Parts]:
    found: list[Parts] = []
    for name in SEVERAL:
        chosen = parts[name]
        found += [{**parts, name: ()}] if len(chosen) > 1 else []
        found += [{**parts, name: tuple(one for one in chosen if one != left)} for left in chosen]
    found += [{**parts, name: options[0]} for name, options in CHOICES.items() if parts[name] != options[0]]
    plainer = [settled(one) for one in found]
    return [one for one in plainer if one != parts and size(one) < size(parts)]


def size(parts: Parts) -> int:
    """Return how far parts are from the plainest ones."""
    return sum(len(parts[name]) for name in SEVERAL) + sum(
        parts[name] != options[0] for name, options in CHOICES.items()
    )


def settled(parts: Parts) -> Parts:
    """Return the parts with what does not go together, or would not be deterministic, replaced by what does."""
    p = dict(parts)
    state = set(p["state"])
    if p["source"] == "iterable":
        p.update(fetch="item", sampler="none", call="compose" if p["call"] in ("joint", "wrapped") else p["call"])
    if p["source"] not in _FILES or (p["opened"] == "torchvision" and p["source"] in ("gifs", "npz")):
        p["opened"] = "open"
    if kind_of(p) != "pil":
        p["pil"] = ()
    if p["source"] == "npz":
        p["opened"] = p["opened"] if p["opened"] in ("helper", "imported") else "open"
    if p["call"] in ("collate", "wrapped"):
        p["sample"] = "pair"
    if p["call"] == "collate" or p["collate"] == "lists":
        p.update(collate="lists" if p["collate"] == "lists" else "default", sample="pair")
    if p["call"] == "collate" and p["collate"] == "lists":
        p["collate"] = "default"
    if p["sampler"] == "unbatched":
        p.update(collate="default", last="keep", call="compose" if p["call"] == "collate" else p["call"])
    if p["generator"] == "own" and p["sampler"] not in ("shuffle", "none"):
        p["generator"] = "none"
    # Which worker has got how far is a matter of time.
    if state & {"seen"} and p["workers"] not in "01":
        p["workers"] = "1"
    if state & {"seen"} and p["loop"] in (*_OPEN_ENDED, "skip"):
        p["loop"] = "plain"
    if state & {"seen"} and p["beside"] != "one":
        p["beside"] = "one"
    if p["beside"] in ("samplers", "three") and p["loop"] not in ("plain", "accumulate", "kept", "inplace"):
        p["beside"] = "after"
    if p["beside"] == "splits" or p["beside"] == "three":
        p["curriculum"] = tuple(one for one in p["curriculum"] if one != "grow")
    if p["source"] == "iterable" and p["beside"] in ("splits", "three"):
        p["beside"] = "after"
    if p["beside"] in ("splits", "three") and p["sampler"] not in ("none", "shuffle", "unbatched"):
        p["sampler"] = "shuffle"
    if p["workers"] == "0":
        p.update(lasting="", context="", prefetch="", init="")
    if p["context"] == "spawn":
        p.update(workers="1", lasting="persistent", form="main", rebuilt="", beside="one")
        p["loop"] = p["loop"] if p["loop"] in ("plain", "accumulate", "kept", "inplace", "exit") else "plain"
        p["state"] = tuple(one for one in p["state"] if one not in ("closure", "own", "function"))
        p["ten"] = tuple(one for one in p["ten"] if one != "generator")
    if p["rebuilt"]:
        p["lasting"] = ""
    if p["loop"] == "twice" and p["lasting"]:
        p["loop"] = "plain"
    if p["loop"] in ("skip", "error", "try"):
        p["error"] = "corrupt"
    elif p["error"]:
        p["error"] = ""
    if p["loop"] != "patch":
        p["patched"] = CHOICES["patched"][0]
    stages = stages_of(p)
    has = [CURRICULUM[one][0] for one in CURRICULUM]
    del has
    fitting = {
        "indices": p["sampler"] == "subset",
        "epoch": p["sampler"] == "own",
        "grow": p["sampler"] in ("none", "shuffle") and p["generator"] == "none",
        "transform": p["call"] not in ("item", "collate", "two", "function"),
        "note": p["call"] not in ("item", "two"),
    }
    p["curriculum"] = tuple(
        one
        for one in p["curriculum"]
        if fitting.get(one, not CURRICULUM[one][0] or (CURRICULUM[one][0] in stages and p["call"] != "item"))
    )
    edited = any(STATES[one].edit for one in p["state"]) or p["curriculum"]
    shared = any(STATES[one].shared for one in p["state"])
    if p["edits"] == "inside" and (not edited or (shared and p["workers"] != "0")):
        p["edits"] = "between"
    if not p["state"]:
        p["where"] = "before"
    return p


def kind_of(parts: Parts) -> str:
    """Return what the source gives: a picture (pil), a tensor of bytes (u8) or of floats (f32)."""
    source = parts["source"]
    if source in ("array", "pictures"):
        return "pil"
    if source in ("png", "jpeg", "gifs"):
        return "u8" if parts["opened"] == "torchvision" else "pil"
    return "u8" if source == "tensor" else "f32"


def stages_of(parts: Parts) -> list[str]:
    """Return the expressions of the transform's stages."""
    kind, v2 = kind_of(parts), parts["library"] == "v2"
    change = {
        "tensor": ["T.ToImage()", "T.ToDtype(torch.float32, scale=True)"] if v2 else ["T.ToTensor()"],
        "pil": ["T.PILToTensor()", "T.ConvertImageDtype(torch.float32)"],
        "numpy": ["ToArray()"],
        "strided": ["ToArray(strided=True)"],
    }[str(parts["convert"])]
    if kind == "u8":
        change = ["T.ConvertImageDtype(torch.float32)"] if parts["convert"] != "numpy" else ["ToFloat()"]
    pictures = [PIL[name] for name in parts["pil"]]
    if kind == "pil" and set(parts["pil"]) & {"resize", "crop", "sized", "thumbnail"}:
        pictures.append("T.Resize((9, 10))")
    return [*pictures, *(change if kind != "f32" else []), *(TENSORS[name] for name in parts["ten"])]


_CONVERSIONS = {
    "ToArray": """
class ToArray:
    def __init__(self, strided=False):
        self.strided = strided

    def __call__(self, image):
        x = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        return x if self.strided else x.contiguous()
""",
    "ToFloat": """
class ToFloat:
    def __call__(self, x):
        return x.float() / 255
""",
}
_COMPOSE = """
class Chain:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x
"""
_JOINT = """
class Joint:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x, y):
        if random.random() < 0.5:
            x, y = TF.hflip(x), y + 1
        for transform in self.transforms:
            x = transform(x)
        return x, y
"""
_MOVED = """
def moved(x, level):
    if isinstance(x, Image.Image):
        return ImageChops.offset(x, level, 0)
    return [torch.roll(view, level, -1) for view in x] if isinstance(x, list) else torch.roll(x, level, -1)
"""
_OWN_SAMPLER = """
class Own(Sampler):
    def __init__(self, n):
        self.n, self.epoch = n, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.n).tolist())

    def __len__(self):
        return self.n
"""
_WRAPPED = """
class Wrapped(Dataset):
    def __init__(self, base, transform):
        self.base, self.transform = base, transform
        alive.add(self)

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        x, y = self.base[i]
        return self.transform(x), y
"""
_IMPORTS = """import argparse
import io
import multiprocessing as mp
import os
import random
import sys
from collections import namedtuple
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import torch
import torchvision
from PIL import Image, ImageChops, ImageEnhance, ImageOps
from torch.utils.data import (BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, Subset,
                              SubsetRandomSampler, WeightedRandomSampler, default_collate, get_worker_info, random_split)
from torchvision.transforms import functional as TF

import helper
from helper import load
from record import alive, called, files, finish, saw
"""
_LOADS = {
    "tensor": "x = self.pixels[i]",
    "array": "x = Image.fromarray(self.arrays[i])",
    "list": "x = torch.tensor(self.rows[i])",
    "drawn": "x = torch.from_numpy(np.random.default_rng(i).random((3, 12, 14), dtype=np.float32))",
    "pictures": "x = self.pictures[i]",
    "iterable": "x = self.pixels[i] / 255",
}
_OPENS = {
    "open": "x = Image.open(self.paths[i]).convert('RGB')",
    "with": "with open(self.paths[i], 'rb') as file:\n    x = Image.open(file)\n    x = x.convert('RGB')",
    "bytes": "with open(self.paths[i], 'rb') as file:\n    x = Image.open(io.BytesIO(file.read())).convert('RGB')",
    "helper": "x = helper.load(self.paths[i])",
    "imported": "x = load(self.paths[i])",
    "torchvision": "x = torchvision.io.read_image(self.paths[i])",
    "cached": "x = opened(self.paths[i])",
}
_MADE = {
    "tensor": "self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())",
    "array": "self.arrays = list(pixels(n))",
    "list": "self.rows = (pixels(n).transpose(0, 3, 1, 2) / 255).tolist()",
    "drawn": "",
    "pictures": "self.pictures = [Image.fromarray(one) for one in pixels(n)]",
    "iterable": "self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())",
}
_SAMPLES = {
    "pair": ("x, y", "batch[0], batch[1]"),
    "dict": ("{'x': x, 'y': y}", "batch['x'], batch['y']"),
    "named": ("Sample(x, y)", "batch.x, batch.y"),
    "indexed": ("x, y, i", "batch[0], batch[1]"),
    "string": ("x, float(y), f'sample {i}'", "batch[0], batch[1]"),
    "numpy": ("x, np.float32([y, i])", "batch[0], batch[1]"),
    "nested": ("{'in': (x, [y, i]), 'out': {'name': b'n'}}", "batch['in'][0], batch['in'][1][0]"),
    "alone": ("x", "batch, 0.5"),
}
_PATCHES = {
    "hflip": "torchvision.transforms.functional.hflip",
    "resize": "torchvision.transforms.functional.resize",
    "rotate": "Image.Image.rotate",
    "open": "Image.open",
}


def compose(parts: Parts) -> str:
    """Return the script's text."""
    p = parts
    states = [STATES[name] for name in p["state"]]
    library = (
        "from torchvision import transforms as T"
        if p["library"] == "v1"
        else "from torchvision.transforms import v2 as T"
    )
    body = _body(p)
    stored = ["LEVEL"] * ("global" in p["state"]) + ["FACTOR"] * ("level" in p["curriculum"])
    if p["form"] == "main":
        main = ([f"global {', '.join(stored)}"] if stored else []) + [body]
        run = f"\n\ndef main():\n{indent(chr(10).join(main), '    ')}\n\n\nif __name__ == '__main__':\n    main()\n"
        run += indent(_last(p), "    ") + "\n"
    else:
        names = "['batch', 'batches', 'data', 'dataset', 'kept', 'loader', 'other', 'train', 'val', 'sampler', 'extra', 'first']"
        run = f"\n{body}\nfor name in {names}:\n    globals().pop(name, None)\n{_last(p)}\n"
    return "".join(
        [
            _IMPORTS,
            library + "\n\n",
            "N, EPOCHS = 16, 3\n",
            "".join(f"\n\n{state.top}\n" for state in states if state.top),
            _classes(p),
            _dataset(p),
            run,
        ]
    )


def _classes(p: Parts) -> str:
    stages = " ".join(stages_of(p))
    needed = [text for call, text in OWN.items() if call in stages]
    needed += [text for name, text in _CONVERSIONS.items() if f"{name}(" in stages]
    needed += [_MOVED] if p["state"] else []
    needed += {"own": [_COMPOSE], "joint": [_JOINT], "wrapped": [_WRAPPED]}.get(str(p["call"]), [])
    needed += [_OWN_SAMPLER] if p["sampler"] == "own" else []
    needed += ["\nSample = namedtuple('Sample', 'x y')\n"] if p["sample"] == "named" else []
    if p["opened"] == "cached":
        needed.append(
            "\n@lru_cache(maxsize=None)\ndef opened(path):\n    called()\n    return Image.open(path).convert('RGB')\n"
        )
    if p["init"] == "seeded":
        needed.append("\ndef seed_worker(number):\n    np.random.seed(torch.initial_seed() % 2**31 + number)\n")
    needed.append(_transform(p))
    needed.append(_collate(p))
    return "".join(f"\n{text}" for text in needed if text)


def _transform(p: Parts) -> str:
    stages = stages_of(p)
    listed = "[" + ", ".join(stages) + "]"
    if p["call"] == "function":
        made = "".join(f"stage_{n} = {stage}\n" for n, stage in enumerate(stages))
        steps = "".join(f"    x = stage_{n}(x)\n" for n in range(len(stages)))
        return f"\n{made}\n\ndef transform(x):\n{steps}    return x\n"
    if p["call"] == "two":
        half = len(stages) // 2
        first, second = (
            "T.Compose([" + ", ".join(some) + "])" if some else "None" for some in (stages[:half], stages[half:])
        )
        return f"\ndef make_transform():\n    return {first}, {second}\n"
    made = {"own": f"Chain({listed})", "joint": f"Joint({listed})"}.get(str(p["call"]))
    if (
        p["call"] == "sequential"
        and p["library"] == "v2"
        and stages
        and all(stage.startswith("T.") for stage in stages)
    ):
        made = f"torch.nn.Sequential({', '.join(stages)})"
    if made is None:
        made = f"T.Compose({listed})" if stages else "T.Lambda(str.strip)" if False else "Identity()"
    identity = (
        "\nclass Identity:\n    transforms = ()\n\n    def __call__(self, x):\n        return x\n"
        if made == "Identity()"
        else ""
    )
    return (
        f"{identity}\n\ndef make_transform():\n    return {made}\n"
        if identity
        else f"\ndef make_transform():\n    return {made}\n"
    )


def _collate(p: Parts) -> str:
    if p["call"] == "collate":
        return (
            "\nclass Transformed:\n    def __init__(self, transform):\n        self.transform = transform\n\n"
            "    def __call__(self, samples):\n        return default_collate([(self.transform(x), y) for x, y in samples])\n"
        )
    if p["collate"] == "function":
        return "\ndef collate(samples):\n    called()\n    return default_collate(samples[::-1])\n"
    if p["collate"] == "object":
        return (
            "\nclass Collate:\n    calls = 0\n\n    def __call__(self, samples):\n        self.calls += 1\n"
            "        return {'samples': default_collate(samples), 'calls': self.calls}\n"
        )
    if p["collate"] == "inplace":
        return (
            "\ndef first_tensor(x):\n    while not isinstance(x, torch.Tensor):\n"
            "        x = x[0] if isinstance(x, (list, tuple)) else next(iter(x.values()))\n    return x\n\n\n"
            "def collate(samples):\n    for n, sample in enumerate(samples):\n        first_tensor(sample)[0, 0, 0] = n\n"
            "    return default_collate(samples)\n"
        )
    return "\ndef collate(samples):\n    return list(samples)\n" if p["collate"] == "lists" else ""


def _dataset(p: Parts) -> str:
    states = [STATES[name] for name in p["state"]]
    source, call = str(p["source"]), str(p["call"])
    made = f"self.paths = files('{source}')" if source in _FILES else _MADE[source]
    init = [
        "self.n = n",
        "self.transform = transform",
        "self.labels = [i % 3 for i in range(n)]",
        "alive.add(self)",
        made,
    ]
    init += [state.init for state in states]
    if call == "two":
        init.append("self.first, self.second = transform")
    if source == "npz" and p["opened"] == "open":
        load = "x = torch.from_numpy(np.load(self.paths[i])['x'])"
    elif source == "npz":
        load = _OPENS[str(p["opened"])].replace("x = ", "x = torch.from_numpy(") + ")"
    else:
        load = _OPENS[str(p["opened"])] if source in _FILES else _LOADS[source]
    item = ["called()"]
    item += ["if i == 5:\n    raise ValueError(f'corrupt {i}')"] if p["error"] else []
    item += [load, "y = self.labels[i]"]
    shift = [f"x = moved(x, {state.reads})" for state in states]
    change = {
        "views": "x = [self.transform(x), self.transform(x)]",
        "joint": "x, y = self.transform(x, y)",
        "two": "x = self.second(self.first(x) if self.first else x) if self.second else x",
        "item": "x = make_transform()(x)",
        "collate": "",
        "wrapped": "",
    }.get(call, "x = self.transform(x)")
    item += [*shift, change] if p["where"] == "before" else [change, *shift]
    item.append(f"return {_SAMPLES[str(p['sample'])][0]}")
    methods = [
        f"def __init__(self, n, transform, args=None, {_handed(p)}):\n{indent(chr(10).join(filter(None, init)), '    ')}"
    ]
    methods += [state.method for state in states if state.method]
    if source == "iterable":
        methods.append(
            "def __iter__(self):\n    info = get_worker_info()\n"
            "    for i in range(info.id if info else 0, self.n, info.num_workers if info else 1):\n        yield self.sample(i)"
        )
    else:
        methods.append("def __len__(self):\n    return self.n")
    name = "sample" if source == "iterable" else "__getitem__"
    methods.append(f"def {name}(self, i):\n{indent(chr(10).join(filter(None, item)), '    ')}")
    if p["fetch"] == "items":
        methods.append("def __getitems__(self, indices):\n    return [self[i] for i in reversed(indices)][::-1]")
    of = "IterableDataset" if source == "iterable" else "Dataset"
    level = "    level = 0\n\n" if "class" in p["state"] else ""
    pixels = (
        "\n\ndef pixels(n):\n    return np.random.default_rng(1).integers(0, 256, (n, 12, 14, 3), dtype=np.uint8)\n"
    )
    return f"{pixels}\n\nclass Data({of}):\n{level}{indent((chr(10) * 2).join(methods), '    ')}\n"


def _handed(p: Parts) -> str:
    """Return the further arguments of the dataset, which the script makes before it."""
    names = {"config": "cfg", "value": "value", "closure": "reads", "shared": "level"}
    return ", ".join([*(f"{names[one]}=None" for one in p["state"] if one in names), "**others"])


def _stage(p: Parts, number: int) -> str:
    """Return the expression of a stage, in the loop."""
    call = p["call"]
    if call == "function":
        return f"stage_{number}"
    if call == "two":
        half = len(stages_of(p)) // 2
        return f"transform[0].transforms[{number}]" if number < half else f"transform[1].transforms[{number - half}]"
    if call == "sequential" and p["library"] == "v2" and all(stage.startswith("T.") for stage in stages_of(p)):
        return f"transform[{number}]"
    return f"transform.transforms[{number}]"


def _edits(p: Parts) -> list[str]:
    stages = stages_of(p)
    found = [STATES[name].edit for name in p["state"] if STATES[name].edit]
    for name in p["curriculum"]:
        needs, edit = CURRICULUM[name]
        found.append(edit.format(stage=_stage(p, stages.index(needs))) if needs else edit)
    return found


def _loader(p: Parts, dataset: str, sampler: str) -> str:
    """Return the expression that makes a loader; ``sampler`` are its words for the order, or none for the plain order."""
    words = ["batch_size=4"]
    if "batch_sampler" in sampler or "batch_size" in sampler:
        words = []
    words += [sampler] if sampler else []
    words += [f"num_workers={p['workers']}"] if p["workers"] != "0" else []
    words += ["persistent_workers=True"] if p["lasting"] else []
    words += [f"multiprocessing_context='{p['context']}'"] if p["context"] else []
    words += [f"prefetch_factor={p['prefetch']}"] if p["prefetch"] else []
    words += ["worker_init_fn=seed_worker"] if p["init"] else []
    words += ["drop_last=True"] if p["last"] == "drop" and words[:1] == ["batch_size=4"] else []
    words += ["generator=generator"] if p["generator"] == "own" else []
    collate = {"function": "collate", "inplace": "collate", "lists": "collate", "object": "Collate()"}.get(
        str(p["collate"])
    )
    collate = "Transformed(transform)" if p["call"] == "collate" else collate
    words += [f"collate_fn={collate}"] if collate else []
    return f"DataLoader({dataset}, {', '.join(words)})"


def _body(p: Parts) -> str:
    lines = ["torch.manual_seed(3)", "random.seed(4)", "np.random.seed(5)", "torch.set_num_threads(1)"]
    lines += ["args = argparse.Namespace(epoch=0)"]
    lines += [STATES[name].before for name in p["state"] if STATES[name].before]
    if p["call"] not in ("function",):
        lines.append("transform = make_transform()")
    names = {"config": "cfg", "value": "value", "closure": "reads", "shared": "level"}
    handed = "".join(f", {names[one]}={names[one]}" for one in p["state"] if one in names)
    make_data = [f"data = Data({'N - 6' if 'grow' in p['curriculum'] else 'N'}, transform, args{handed})"]
    make_data.append("dataset = Wrapped(data, transform)" if p["call"] == "wrapped" else "dataset = data")
    if "grow" in p["curriculum"]:
        make_data[0] = make_data[0].replace("N - 6", "N") + "\ndata.n = N - 6"
    lines += make_data
    sampler = {
        "none": "",
        "shuffle": "shuffle=True",
        "subset": "sampler=sampler",
        "weighted": "sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N)",
        "own": "sampler=sampler",
        "batches": "batch_sampler=BatchSampler(RandomSampler(dataset), 5, False)",
        "unbatched": "batch_size=None",
        "replacement": "sampler=RandomSampler(dataset, replacement=True, num_samples=12)",
    }[str(p["sampler"])]
    if p["sampler"] == "subset":
        lines.append("sampler = SubsetRandomSampler(list(range(0, N, 2)) + [5, 11, 13])")
    if p["sampler"] == "own":
        lines.append("sampler = Own(N)")
    if p["generator"] == "own":
        lines.append("generator = torch.Generator().manual_seed(11)")
    beside, over = p["beside"], "dataset"
    make_other: list[str] = []
    if beside in ("splits", "three", "validation"):
        if beside != "validation":
            lines.append("train, val = random_split(dataset, [12, 4])")
            over = "train"
            sampler = sampler.replace("dataset", "train")
        make_other.append(
            f"val_loader = {_loader({**p, 'sampler': 'none', 'generator': 'none'}, 'val' if beside != 'validation' else 'dataset', '')}"
        )
    if beside in ("samplers", "after", "three"):
        other = (
            ""
            if p["source"] == "iterable" or p["sampler"] == "unbatched"
            else "sampler=SubsetRandomSampler(list(range(1, 12, 2)))"
        )
        other = "batch_size=None" if p["sampler"] == "unbatched" else other
        make_other.append(f"other = {_loader({**p, 'generator': 'none'}, over, other)}")
    make = [f"loader = {_loader(p, over, sampler)}", *make_other]
    lines += make if not p["rebuilt"] else []
    lines += [
        "model = torch.nn.Linear(48, 1)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
        "",
        f"def loss_of(batch):\n{indent(_loss(p), '    ')}",
        "",
        f"def step_on(batch):\n{indent(_step(p), '    ')}",
        "",
    ]
    if beside in ("splits", "three", "validation"):
        lines += [
            "def evaluate():\n    with torch.no_grad():\n        for batch in val_loader:\n            saw('val', batch, loss_of(batch).item())",
            "",
        ]
    if p["loop"] == "kept":
        lines.append("kept = []")
    if p["loop"] == "peek":
        lines += [*(make if p["rebuilt"] else []), "saw('peek', next(iter(loader)))"]
    epoch = [*_patch(p), *(make if p["rebuilt"] else []), *(_edits(p) if p["edits"] == "between" else []), *_loop(p)]
    if p["rebuilt"] and p["edits"] == "between" and "indices" not in p["curriculum"]:
        epoch = [*_patch(p), *_edits(p), *make, *_loop(p)]
    if beside in ("after", "three"):
        epoch.append("for batch in other:\n    saw('other', batch)\n    step_on(batch)")
    if beside in ("splits", "three"):
        epoch.append("evaluate()")
    if p["loop"] == "resume":
        epoch.append(
            _RESUME
            + indent(
                "\n".join(
                    [
                        *make_data,
                        *(["train, val = random_split(dataset, [12, 4])"] if over == "train" else []),
                        *(make if not p["rebuilt"] else []),
                    ]
                ),
                "    ",
            )
        )
    lines.append(f"for epoch in range(EPOCHS):\n{indent(chr(10).join(epoch), '    ')}")
    if p["loop"] == "kept":
        lines.append("for batch in kept:\n    saw('kept', batch)")
    if p["loop"] == "patch":
        lines.append(f"saw('patched', {_PATCHES[str(p['patched'])]}.__name__)")
    lines.append("saw('weights', model.weight)")
    return "\n".join(lines)


_RESUME = """if epoch == 0:
    torch.save({'model': model.state_dict(), 'rng': torch.get_rng_state()}, 'checkpoint.pt')
    random.random(), np.random.rand(), torch.rand(1)
    checkpoint = torch.load('checkpoint.pt')
    model.load_state_dict(checkpoint['model'])
    torch.set_rng_state(checkpoint['rng'])
"""


def _patch(p: Parts) -> list[str]:
    if p["loop"] != "patch":
        return []
    target = _PATCHES[str(p["patched"])]
    return [f"if epoch == 1:\n    original = {target}\n\n    def patched(*given, **named):\n        called()\n        return original(*given, **named)\n\n    {target} = patched"]  # fmt: skip


def _loss(p: Parts) -> str:
    x, y = _SAMPLES[str(p["sample"])][1].split(", ", 1)
    lines = ["batch = batch['samples']"] if p["collate"] == "object" else []
    if p["collate"] == "lists":
        lines.append("batch = default_collate(batch)")
    lines.append(f"x, y = {x}, {y}")
    lines += ["x = x[0]"] if p["call"] == "views" else []
    lines += ["y = y[..., 0]"] if p["sample"] == "numpy" else []
    lines += ["x = x.reshape(-1, *x.shape[-3:])", "y = torch.as_tensor(y, dtype=torch.float32).reshape(-1)"]
    lines += ["x.mul_(0.5)"] if p["loop"] == "inplace" else []
    lines += ["x = torch.nn.functional.adaptive_avg_pool2d(x.float(), 4).flatten(1)"]
    return "\n".join([*lines, "return ((model(x).squeeze(1) - y) ** 2).mean()"])


def _step(p: Parts) -> str:
    return "loss = loss_of(batch)\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()\nsaw('loss', loss.item())"


def _loop(p: Parts) -> list[str]:
    loop = p["loop"]
    inside = _edits(p) if p["edits"] == "inside" else []
    work = ["saw('batch', str(epoch), str(step), batch)", "step_on(batch)"]
    if loop == "accumulate":
        work[1] = (
            "loss = loss_of(batch)\nloss.backward()\nsaw('loss', loss.item())\nif step % 2:\n    optimizer.step()\n    optimizer.zero_grad()"
        )
    if loop == "kept":
        work.append("kept.append(batch)")
    if inside:
        work.append("if step == 1:\n" + indent("\n".join(inside), "    "))
    if p["beside"] == "validation":
        work.append("if step == 1:\n    evaluate()")
    if p["beside"] in ("samplers", "three") and loop in ("plain", "accumulate", "kept", "inplace"):
        work = ["batch, extra = batch", *work, "saw('extra', extra)", "step_on(extra)"]
    if loop == "break":
        work.append("if step == 1 and epoch < 2:\n    break")
    if loop == "finally":
        work.append("if epoch == 1 and step == 1:\n    raise KeyError('stopped')")
    work_text = indent("\n".join(work), "    ")
    source = "zip(loader, other)" if "batch, extra = batch" in work else "loader"
    each = f"for step, batch in enumerate({source}):\n{work_text}"
    if loop in ("skip",):
        return [
            "batches, step = iter(loader), -1",
            "while True:\n    step += 1\n    try:\n        batch = next(batches)\n    except StopIteration:\n        break\n"
            "    except ValueError as error:\n        saw('skipped', str(error).splitlines()[-1])\n        continue\n"
            + work_text,
        ]
    if loop == "next":
        return [
            "batches = iter(loader)",
            f"for step in range({'4' if p['source'] == 'iterable' else 'len(loader)'}):\n    batch = next(batches)\n{work_text}",
        ]
    if loop == "lookahead":
        return [
            "batches = iter(loader)\nahead, step = next(batches, None), -1",
            "while ahead is not None:\n    batch, ahead, step = ahead, next(batches, None), step + 1\n" + work_text,
        ]
    if loop == "twice":
        return [f"for step, (batch, again) in enumerate(zip(loader, loader)):\n    saw('again', again)\n{work_text}"]
    if loop == "finally":
        return [f"try:\n{indent(each, '    ')}\nfinally:\n    saw('finally')"]
    if loop == "try":
        return [
            f"try:\n{indent(each, '    ')}\nexcept ValueError as error:\n    saw('failed', str(error).splitlines()[-1])"
        ]
    return [each]


def _last(p: Parts) -> str:
    lines = [f"finish(calls={p['loop'] not in _OPEN_ENDED})"]
    return "\n".join([*lines, *(["sys.exit(3)"] if p["loop"] == "exit" else [])])
