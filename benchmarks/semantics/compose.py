"""Compose a training script from chosen parts. The same parts give the same text."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from textwrap import dedent, indent

from .parts import CURRICULUM, FILES, PIL, STATES, TENSORS, State

#: What was chosen, by the name of the choice: an option, or several.
Parts = dict[str, str | tuple[str, ...]]

#: Loops after which the number of calls depends on how far the workers had got.
OPEN_ENDED = ("break", "peek", "twice", "finally", "error", "try", "endless", "deleted", "caught")
#: Loops whose script ends with an error, by intent.
ENDS_WITH_ERROR = ("error", "finally")
_OWN = Path(__file__).with_name("own.py")
_IMPORTS = """
import argparse
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
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler, default_collate, get_worker_info, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import tv_tensors
from torchvision.transforms import functional as TF

import helper
from helper import load
from record import alive, called, files, finish, saw
"""
_LIBRARIES = {"v1": "from torchvision import transforms as T", "v2": "from torchvision.transforms import v2 as T"}
#: How a dataset holds its samples, and how it makes one of them.
_SOURCES = {
    "tensor": ("self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())", "x = self.pixels[i]"),
    "array": ("self.arrays = list(pixels(n))", "x = Image.fromarray(self.arrays[i])"),
    "list": ("self.rows = (pixels(n).transpose(0, 3, 1, 2) / 255).tolist()", "x = torch.tensor(self.rows[i])"),
    "drawn": ("", "x = torch.from_numpy(np.random.default_rng(i).random((3, 12, 14), dtype=np.float32))"),
    "pictures": ("self.pictures = [Image.fromarray(one) for one in pixels(n)]", "x = self.pictures[i]"),
    "handle": (
        "pixels(n).tofile('pixels.bin')\nself.handle = None",
        "if self.handle is None:\n    self.handle = open('pixels.bin', 'rb')\n"
        "self.handle.seek(504 * i)\nx = Image.frombytes('RGB', (14, 12), self.handle.read(504))",
    ),
    "iterable": ("self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())", "x = self.pixels[i] / 255"),
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
_OPENS_ARRAYS = {
    "open": "x = torch.from_numpy(np.load(self.paths[i])['x'])",
    "helper": "x = torch.from_numpy(helper.load(self.paths[i]))",
    "imported": "x = torch.from_numpy(load(self.paths[i]))",
}
#: How a dataset applies its transform.
_CALLS = {
    "views": "x = [self.transform(x), self.transform(x)]",
    "joint": "x, y = self.transform(x, y)",
    "two": "x = self.second(self.first(x))",
    "item": "x = make_transform()(x)",
    "boxes": (
        "box = tv_tensors.BoundingBoxes([[1, 2, 7, 9]], format='XYXY', canvas_size=(12, 14))\n"
        "x, box = self.transform(x, box)\ny = y + int(box.sum())"
    ),
    "collate": "",
    "wrapped": "",
}
#: The form of a sample, and where a loop finds picture and label in a batch of them.
_SAMPLES = {
    "pair": ("x, y", "batch[0], batch[1]"),
    "dict": ("{'x': x, 'y': y}", "batch['x'], batch['y']"),
    "named": ("Sample(x, y)", "batch.x, batch.y"),
    "indexed": ("x, y, i", "batch[0], batch[1]"),
    "string": ("x, float(y), f'sample {i}'", "batch[0], batch[1]"),
    "numpy": ("x, np.float32([y, i])", "batch[0], batch[1][..., 0]"),
    "nested": ("{'in': (x, [y, i]), 'out': {'name': b'n'}}", "batch['in'][0], batch['in'][1][0]"),
    "alone": ("x", "batch, 0.5"),
}
_COLLATES = {
    "function": "collate_reversed",
    "inplace": "collate_in_place",
    "lists": "collate_listed",
    "object": "Collate()",
    "closure": "counting_collate()",
}
_SAMPLERS = {
    "none": "",
    "shuffle": "shuffle=True",
    "subset": "sampler=sampler",
    "weighted": "sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N)",
    "own": "sampler=sampler",
    "batches": "batch_sampler=BatchSampler(RandomSampler(dataset), 5, False)",
    "unbatched": "batch_size=None",
    "stateful": "sampler=sampler",
    "drawn": "sampler=sampler",
    "ranks": "sampler=sampler",
    "seeded": "sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(2))",
    "replacement": "sampler=RandomSampler(dataset, replacement=True, num_samples=12)",
}
_PATCHES = {
    "hflip": "torchvision.transforms.functional.hflip",
    "resize": "torchvision.transforms.functional.resize",
    "rotate": "Image.Image.rotate",
    "open": "Image.open",
}
#: What makes the sampler of that name.
_MADE_SAMPLERS = {
    "subset": "SubsetRandomSampler(list(range(0, N, 2)) + [5, 11, 13])",
    "own": "OwnSampler(N)",
    "stateful": "StatefulSampler(N)",
    "drawn": "DrawnSampler(N)",
    "ranks": "DistributedSampler(dataset, 2, 0)",
}
#: Names by which the loop hands its objects to the dataset.
_HANDED = {"config": "cfg", "value": "value", "closure": "reads", "shared": "level"}
_SPLIT = "train, val = random_split(dataset, [12, 4])"


def kind_of(parts: Parts) -> str:
    """Return what the source gives: a picture (pil), a tensor of bytes (u8) or of floats (f32)."""
    source = parts["source"]
    if source in ("array", "pictures", "handle"):
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


def compose(parts: Parts) -> str:
    """Return the script's text."""
    p = parts
    body = _body(p)
    if p["form"] == "main":
        stored = ["LEVEL"] * ("global" in p["state"]) + ["FACTOR"] * ("level" in p["curriculum"])
        words = [f"global {', '.join(stored)}"] if stored else []
        body = f"def main():\n{_in(*words, body)}\n\n\nif __name__ == '__main__':\n    main()\n{_in(_last(p))}"
    else:
        names = "batch batches ahead again data dataset kept loader other train val val_loader sampler extra"
        body += f"\nfor name in '{names}'.split():\n    globals().pop(name, None)\n{_last(p)}"
    own = [state.top for state in _states(p) if state.top] + [_transform(p)]
    text = "\n\n\n".join([*own, _dataset(p), body])
    head = f"{_IMPORTS.strip()}\n{_LIBRARIES[str(p['library'])]}\n\nN, EPOCHS = 16, 3\n"
    return "\n\n".join([head, *_pasted(text), text]) + "\n"


def _in(*lines: str) -> str:
    """Return lines, indented, without empty ones."""
    return indent("\n".join(filter(None, lines)), "    ")


def _states(p: Parts) -> list[State]:
    return [STATES[name] for name in p["state"]]


@cache
def _definitions() -> dict[str, str]:
    """Return what stands at the top of ``own.py``, by name."""
    source = _OWN.read_text()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = "".join(f"@{ast.unparse(one)}\n" for one in node.decorator_list)
            found[node.name] += ast.get_source_segment(source, node) or ""
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = ast.unparse(node)
    return found


def _pasted(text: str) -> list[str]:
    """Return the definitions that a script needs, in order."""
    needed: set[str] = set()
    while True:
        words = {*re.findall(r"\w+", " ".join([text, *(_definitions()[name] for name in needed)]))}
        if words & {*_definitions()} == needed:
            return [f"{one}\n" for name, one in _definitions().items() if name in needed]
        needed = words & {*_definitions()}


def _transform(p: Parts) -> str:
    stages = stages_of(p)
    if p["call"] == "function":
        made = [f"stage_{n} = {stage}" for n, stage in enumerate(stages)]
        steps = [f"x = stage_{n}(x)" for n in range(len(stages))]
        return "\n".join([*made, "", "", f"def transform(x):\n{_in(*steps, 'return x')}"])
    half = len(stages) // 2
    made = {
        "two": f"{_composed(stages[:half])}, {_composed(stages[half:])}",
        "joint": f"Joint([{', '.join(stages)}])",
        "own": f"Chain([{', '.join(stages)}])",
        "nested": f"T.Compose([{_composed(stages[:half])}, {_composed(stages[half:])}])",
        "sequential": f"torch.nn.Sequential({', '.join(stages)})",
    }
    call = "own" if p["call"] == "sequential" and not _are_modules(p) else str(p["call"])
    return f"def make_transform():\n    return {made.get(call, _composed(stages))}"


def _composed(stages: list[str]) -> str:
    # Version 2 refuses an empty list.
    return f"T.Compose([{', '.join(stages)}])" if stages else "Chain([])"


def _are_modules(p: Parts) -> bool:
    stages = stages_of(p)
    return p["library"] == "v2" and bool(stages) and all(stage.startswith("T.") for stage in stages)


def _dataset(p: Parts) -> str:
    source = str(p["source"])
    opens = _OPENS_ARRAYS if source == "npz" else _OPENS
    made, load = (f"self.paths = files('{source}')", opens[str(p["opened"])]) if source in FILES else _SOURCES[source]
    init = ["self.n = n", "self.transform = transform", "self.labels = [i % 3 for i in range(n)]", "alive.add(self)"]
    init += [made, *(state.init for state in _states(p))]
    init += ["self.first, self.second = transform"] if p["call"] == "two" else []
    shift = [f"x = moved(x, {state.reads})" for state in _states(p)]
    change = _CALLS.get(str(p["call"]), "x = self.transform(x)")
    item = [
        "called()",
        "if i == 5:\n    raise ValueError(f'corrupt {i}')" if p["error"] else "",
        load,
        "y = self.labels[i]",
    ]
    item += [*shift, change] if p["where"] == "before" else [change, *shift]
    item += [f"return {_SAMPLES[str(p['sample'])][0]}"]
    handed = "".join(f", {_HANDED[one]}=None" for one in p["state"] if one in _HANDED)
    methods = [f"def __init__(self, n, transform, args=None{handed}):\n{_in(*init)}"]
    methods += [state.method for state in _states(p) if state.method]
    if source == "iterable":
        share = "range(info.id if info else 0, self.n, info.num_workers if info else 1)"
        methods += [f"def __iter__(self):\n    info = get_worker_info()\n    yield from map(self.sample, {share})"]
        methods += [f"def sample(self, i):\n{_in(*item)}"]
    else:
        methods += ["def __len__(self):\n    return self.n", f"def __getitem__(self, i):\n{_in(*item)}"]
    if p["fetch"] == "items":
        methods += ["def __getitems__(self, indices):\n    return [self[i] for i in reversed(indices)][::-1]"]
    if "class" in p["state"]:
        methods.insert(0, "level = 0")
    of = "IterableDataset" if source == "iterable" else "Dataset"
    return f"class Data({of}):\n{indent((chr(10) * 2).join(methods), '    ')}"


def _stage(p: Parts, number: int) -> str:
    """Return the expression of a stage, in the loop."""
    half = len(stages_of(p)) // 2
    if p["call"] == "function":
        return f"stage_{number}"
    if p["call"] == "two":
        return f"transform[{int(number >= half)}].transforms[{number - half * (number >= half)}]"
    if p["call"] == "nested":
        return f"transform.transforms[{int(number >= half)}].transforms[{number - half * (number >= half)}]"
    if p["call"] == "sequential" and _are_modules(p):
        return f"transform[{number}]"
    return f"transform.transforms[{number}]"


def _edits(p: Parts) -> list[str]:
    found = [state.edit for state in _states(p) if state.edit]
    for name in p["curriculum"]:
        needs, edit = CURRICULUM[name]
        found.append(edit.format(stage=_stage(p, stages_of(p).index(needs))) if needs else edit)
    return found


def _loader(p: Parts, dataset: str, order: str, generator: bool = False) -> str:
    """Return the expression that makes a loader; ``order`` are the words that say in which order."""
    sized = not order.startswith("batch_")
    collate = "Transformed(transform)" if p["call"] == "collate" else _COLLATES.get(str(p["collate"]), "")
    words = {
        "batch_size=4": sized,
        order: order,
        f"num_workers={p['workers']}": p["workers"] != "0",
        "persistent_workers=True": p["lasting"],
        f"multiprocessing_context='{p['context']}'": p["context"],
        f"prefetch_factor={p['prefetch']}": p["prefetch"],
        "worker_init_fn=seed_worker": p["init"] == "seeded",
        "worker_init_fn=note_on_dataset": p["init"] == "dataset",
        "drop_last=True": p["last"] == "drop" and sized,
        "generator=generator": generator,
        f"collate_fn={collate}": collate,
    }
    return f"{p['loader']}({', '.join([dataset, *(word for word, holds in words.items() if holds)])})"


def _making(p: Parts) -> tuple[list[str], list[str]]:
    """Return the lines that make the datasets, and those that make the loaders."""
    beside, order = p["beside"], _SAMPLERS[str(p["sampler"])]
    handed = "".join(f", {_HANDED[one]}={_HANDED[one]}" for one in p["state"] if one in _HANDED)
    data = [f"data = Data(N, transform, args{handed})"]
    data += ["data.n = N - 6"] if "grow" in p["curriculum"] else []
    data += ["dataset = Wrapped(data, transform)" if p["call"] == "wrapped" else "dataset = data"]
    over = "train" if beside in ("splits", "three") else "dataset"
    data += [_SPLIT] if over == "train" else []
    loaders = [f"loader = {_loader(p, over, order.replace('dataset', over), p['generator'] == 'own')}"]
    if beside in ("splits", "three", "validation"):
        loaders.append(f"val_loader = {_loader(p, 'dataset' if beside == 'validation' else 'val', '')}")
    if beside in ("samplers", "after", "three"):
        other = "sampler=SubsetRandomSampler(list(range(1, 12, 2)))" if p["source"] != "iterable" else ""
        loaders.append(f"other = {_loader(p, over, 'batch_size=None' if p['sampler'] == 'unbatched' else other)}")
    return data, loaders


def _body(p: Parts) -> str:
    data, loaders = _making(p)
    edits = _edits(p) if p["edits"] == "between" else []
    lines = ["torch.manual_seed(3)", "random.seed(4)", "np.random.seed(5)", "torch.set_num_threads(1)"]
    lines += ["args = argparse.Namespace(epoch=0)", *(state.before for state in _states(p))]
    lines += [] if p["call"] == "function" else ["transform = make_transform()"]
    lines += data
    lines += [f"sampler = {_MADE_SAMPLERS[str(p['sampler'])]}"] if p["sampler"] in _MADE_SAMPLERS else []
    lines += ["generator = torch.Generator().manual_seed(11)"] if p["generator"] == "own" else []
    lines += loaders if not p["rebuilt"] or p["loop"] == "peek" else []
    lines += ["model = torch.nn.Linear(48, 1)", "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"]
    lines += [_steps(p), {"kept": "kept = []", "endless": "batches = None"}.get(str(p["loop"]), "")]
    lines += ["saw('peek', next(iter(loader)))"] if p["loop"] == "peek" else []
    epoch = [*_patch(p), *edits, *(loaders if p["rebuilt"] else []), *_loop(p)]
    epoch += (
        ["for batch in other:\n    saw('other', batch)\n    step_on(batch)"]
        if p["beside"] in ("after", "three")
        else []
    )
    epoch += ["evaluate()"] if p["beside"] in ("splits", "three") else []
    if p["loop"] == "resume":
        epoch.append(_RESUME + _in(*data, *(loaders if not p["rebuilt"] else [])))
    lines.append(f"for epoch in range(EPOCHS):\n{_in(*epoch)}")
    lines += ["for batch in kept:\n    saw('kept', batch)"] if p["loop"] == "kept" else []
    lines += [f"saw('patched', {_PATCHES[str(p['patched'])]}.__name__)"] if p["loop"] == "patch" else []
    return "\n".join(filter(None, [*lines, "saw('weights', model.weight)"]))


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
    patched = f"""
        if epoch == 1:
            original = {target}

            def patched(*given, **named):
                called()
                return original(*given, **named)

            {target} = patched"""
    return [dedent(patched).strip()]


def _steps(p: Parts) -> str:
    """Return the functions that a loop does its steps with."""
    loss = [
        "batch = batch['samples']" if p["collate"] in ("object", "closure") else "",
        "batch = default_collate(batch)" if p["collate"] == "lists" else "",
        f"x, y = {_SAMPLES[str(p['sample'])][1]}",
        "x = x[0]" if p["call"] == "views" else "",
        "x, y = x.reshape(-1, *x.shape[-3:]), torch.as_tensor(y, dtype=torch.float32).reshape(-1)",
        "y = y.repeat_interleave(max(1, len(x) // len(y)))",
        "x.mul_(0.5)" if p["loop"] == "inplace" else "",
        "x = torch.nn.functional.adaptive_avg_pool2d(x.float(), 4).flatten(1)",
        "return ((model(x).squeeze(1) - y) ** 2).mean()",
    ]
    often = "if len(steps) % 2:\n    return" if p["loop"] == "accumulate" else ""
    step = ["loss = loss_of(batch)", "loss.backward()", "saw('loss', loss.item())", "steps.append(0)", often]
    found = f"steps = []\n\ndef loss_of(batch):\n{_in(*loss)}\n\ndef step_on(batch):\n"
    found += _in(*step, "optimizer.step()", "optimizer.zero_grad()") + "\n"
    if p["beside"] in ("splits", "three", "validation"):
        found += "\ndef evaluate():\n    with torch.no_grad():\n        for batch in val_loader:\n"
        found += "            saw('val', batch, loss_of(batch).item())\n"
    return found


def _loop(p: Parts) -> list[str]:
    """Return the lines of one epoch over the first loader."""
    loop, both = p["loop"], p["beside"] in ("samplers", "three")
    both = both and loop in ("plain", "accumulate", "kept", "inplace")
    edits = _edits(p) if p["edits"] == "inside" else []
    work = _in(
        "batch, extra = batch" if both else "",
        "saw('batch', str(epoch), str(step), batch)",
        "step_on(batch)",
        "kept.append(batch)" if loop == "kept" else "",
        f"if step == 1:\n{_in(*edits)}" if edits else "",
        "if step == 1:\n    evaluate()" if p["beside"] == "validation" else "",
        "saw('extra', extra)\nstep_on(extra)" if both else "",
        "if step == 1 and epoch < 2:\n    break" if loop == "break" else "",
        "if epoch == 1 and step == 1:\n    raise KeyError('stopped')" if loop in ("finally", "caught") else "",
    )
    each = f"for step, batch in enumerate({'zip(loader, other)' if both else 'loader'}):\n{work}"
    caught = "except ValueError as error:\n    saw('failed', str(error).splitlines()[-1])"
    if loop == "skip":
        drawn = f"try:\n    batch = next(batches)\nexcept StopIteration:\n    break\n{caught}\n    continue"
        return ["batches, step = iter(loader), -1", f"while True:\n    step += 1\n{_in(drawn)}\n{work}"]
    if loop == "next":
        times = "4" if p["source"] == "iterable" else "len(loader)"
        return ["batches = iter(loader)", f"for step in range({times}):\n    batch = next(batches)\n{work}"]
    if loop == "lookahead":
        ahead = "batch, ahead, step = ahead, next(batches, None), step + 1"
        begin = "batches, step = iter(loader), -1\nahead = next(batches, None)"
        return [begin, f"while ahead is not None:\n    {ahead}\n{work}"]
    if loop == "endless":
        drawn = "try:\n    batch = next(batches)\nexcept (TypeError, StopIteration):\n    batches = iter(loader)\n"
        return [f"for step in range(5):\n{_in(drawn + '    batch = next(batches)')}\n{work}"]
    if loop == "deleted":
        return [f"batches = iter(loader)\nfor step in range(2):\n    batch = next(batches)\n{work}\ndel batches, batch"]
    if loop == "amp":
        return [f"with torch.autocast('cpu', dtype=torch.bfloat16):\n{_in(each)}"]
    if loop == "caught":
        return [f"try:\n{_in(each)}\nexcept KeyError:\n    saw('caught')"]
    if loop == "twice":
        return [f"for step, (batch, again) in enumerate(zip(loader, loader)):\n    saw('again', again)\n{work}"]
    if loop == "finally":
        return [f"try:\n{_in(each)}\nfinally:\n    saw('finally')"]
    return [f"try:\n{_in(each)}\n{caught}"] if loop == "try" else [each]


def _last(p: Parts) -> str:
    return f"finish(calls={p['loop'] not in OPEN_ENDED})" + ("\nsys.exit(3)" if p["loop"] == "exit" else "")
