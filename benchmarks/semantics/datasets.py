"""The text of a script's dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import indent

from .calls import CONVERSIONS, PICTURE_CALLS, TENSOR_CALLS, Call
from .parts import CODE, FILES, HEAVY, STREAMS
from .stages import Parts, block, kind_of
from .states import STATES, State

#: How a dataset holds its samples, and how it makes one of them.
_SOURCES = {
    "tensor": ("self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())", "x = self.pixels[i]"),
    "array": ("self.arrays = list(pixels(n))", "x = Image.fromarray(self.arrays[i])"),
    "list": ("self.rows = (pixels(n).transpose(0, 3, 1, 2) / 255).tolist()", "x = torch.tensor(self.rows[i])"),
    "drawn": ("", "x = torch.from_numpy(np.random.default_rng(i).random((3, 12, 14), dtype=np.float32))"),
    "double": ("", "x = torch.from_numpy(np.random.default_rng(i).random((3, 12, 14)))"),
    "pictures": ("self.pictures = [Image.fromarray(one) for one in pixels(n)]", "x = self.pictures[i]"),
    "memmap": (
        "np.save('pixels.npy', pixels(n))\nself.pixels = np.load('pixels.npy', mmap_mode='r')",
        "x = Image.fromarray(self.pixels[i])",
    ),
    "handle": (
        "pixels(n).tofile('pixels.bin')\nself.handle = None",
        "if self.handle is None:\n    self.handle = open('pixels.bin', 'rb')\n"
        "self.handle.seek(504 * i)\nx = Image.frombytes('RGB', (14, 12), self.handle.read(504))",
    ),
    "iterable": ("self.pixels = torch.from_numpy(pixels(n).transpose(0, 3, 1, 2).copy())", "x = self.pixels[i] / 255"),
    "stream": ("self.arrays = list(pixels(n))", "x = Image.fromarray(self.arrays[i])"),
}
_OPENS = {
    "open": "x = Image.open(self.paths[i]).convert('RGB')",
    "with": "with open(self.paths[i], 'rb') as file:\n    x = Image.open(file)\n    x = x.convert('RGB')",
    "bytes": "with open(self.paths[i], 'rb') as file:\n    x = Image.open(io.BytesIO(file.read())).convert('RGB')",
    "helper": "x = helper.load(self.paths[i])",
    "imported": "x = load(self.paths[i])",
    "torchvision": "x = torchvision.io.read_image(self.paths[i])",
    "decoded": "x = torchvision.io.decode_image(torchvision.io.read_file(self.paths[i]))",
    "cached": "x = opened(self.paths[i])",
    "draft": "x = Image.open(self.paths[i])\nx.draft('RGB', (7, 6))\nx = x.convert('RGB').resize((14, 12))",
    "resized": "x = Image.open(self.paths[i])\nx = x.convert('RGB').resize((14, 12), box=(1, 1, 12, 11))",
}
_OPENS_ARRAYS = {
    "open": "x = torch.from_numpy(np.load(self.paths[i])['x'])",
    "helper": "x = torch.from_numpy(helper.load(self.paths[i]))",
    "imported": "x = torch.from_numpy(load(self.paths[i]))",
}
#: How a dataset applies its transform, and the line of ``__init__`` that it needs.
_CALLS = {
    "views": "x = [self.transform(x), self.transform(x)]",
    "stacked": "x = torch.stack([self.transform(x), self.transform(x)])",
    "joint": "x, y = self.transform(x, y)",
    "two": "x = self.second(self.first(x))",
    "item": "x = make_transform()(x)",
    "boxes": (
        "box = tv_tensors.BoundingBoxes([[1, 2, 7, 9]], format='XYXY', canvas_size=(12, 14))\n"
        "x, box = self.transform(x, box)\ny = y + int(box.sum())"
    ),
    "mask": (
        "mask = tv_tensors.Mask(torch.full((12, 14), i % 3, dtype=torch.uint8))\n"
        "x, mask = self.transform(x, mask)\nx = [x, mask]"
    ),
    "collate": "",
    "wrapped": "",
    "threaded": "with ThreadPoolExecutor(1) as pool:\n    x = pool.submit(self.transform, x).result()",
    "branch": "x = self.transform(x) if i % 3 else self.other(x)",
    "remembered": "if i not in self.made:\n    self.made[i] = self.transform(x)\nx = self.made[i]",
    "retried": "try:\n    x = self.transform(x)\nexcept Exception:\n    x = torch.zeros(3, 12, 14)",
}
_NEEDS = {
    "two": "self.first, self.second = transform",
    "branch": "self.other = make_transform()",
    "remembered": "self.made = {}",
}
#: What a dataset does before the transform, and after it with the tensor.
BEFORE = {
    "seeded": "random.seed(i)\ntorch.manual_seed(i)",
    "logged": "logging.getLogger('data').debug('sample %s', i)",
    "timed": "self.began = time.perf_counter()",
    "restored": "state = random.getstate()\nrandom.seed(i)",
    "adjusted": "adjusted(self.transform, i)",
    "overwritten": "given = x",
}
#: In which context it makes the sample.
WITHIN = {"inferred": "torch.inference_mode()", "followed": "Followed() as followed"}
AFTER = {
    "adjusted": "y = y + self.transform.sample",
    "restored": "random.setstate(state)",
    "asserted": "assert x.dim() >= 3 and x.shape[-1] > 2 and isinstance(x, torch.Tensor), x.shape",
    "summed": "y = y + int(x.sum() * 3) % 3",
    "cloned": "x = x.clone()",
    "doubled": "x = x.double()",
    "halved": "x = x.half()",
    "sliced": "x = x[..., 1:, :-1]",
    "overwritten": "if i >= 10:\n    overwrite(given)",
    "followed": "y = y + followed.calls % 3",
}
#: The form of a sample.
_SAMPLES = {
    "pair": "x, y",
    "dict": "{'x': x, 'y': y}",
    "named": "Sample(x, y)",
    "indexed": "x, y, i",
    "string": "x, float(y), f'sample {i}'",
    "numpy": "x, np.float32([y, i])",
    "nested": "{'in': (x, [y, i]), 'out': {'name': b'n'}}",
    "alone": "x",
}
#: Calls that make a sample of several frames.
_OF_FRAMES = ("frames", "stacks", "clip", "video")
#: Names by which the loop hands its objects to the dataset.
HANDED = {"config": "cfg", "value": "value", "closure": "reads", "shared": "level"}


def states_of(p: Parts) -> list[State]:
    return [STATES[name] for name in p["state"]]


def dataset_of(p: Parts) -> str:
    """Return the definition of the dataset's class."""
    of = "IterableDataset" if p["source"] in STREAMS else "Dataset"
    methods = ["level = 0"] if "class" in p["state"] else []
    methods += [_init(p), *(state.method for state in states_of(p) if state.method)]
    if p["source"] in STREAMS:
        share = "range(info.id if info else 0, self.n, info.num_workers if info else 1)"
        samples = {
            "shuffled": "shuffled(map(self.sample, share))",
            "pulled": "Pulled(map(self.sample, share))",
            "endless": "map(self.sample, cycle(share))",
            "checked": "checked(map(self.sample, share))",
            "batched": "batched(map(self.sample, share), default_collate)",
        }.get(str(p["flow"]), "map(self.sample, share)")
        given = "return" if p["flow"] == "pulled" else "yield from"
        lines = ["info = get_worker_info()", f"share = {share}", f"{given} {samples}"]
        methods += [f"def __iter__(self):\n{block(*lines)}"]
        methods += [f"def sample(self, i):\n{block(*_item(p))}"]
    else:
        methods += ["def __len__(self):\n    return self.n", f"def __getitem__(self, i):\n{block(*_item(p))}"]
    if p["fetch"] == "items":
        methods += ["def __getitems__(self, indices):\n    return [self[i] for i in reversed(indices)][::-1]"]
    return f"class Data({of}):\n{indent((chr(10) * 2).join(methods), '    ')}"


def _init(p: Parts) -> str:
    source = str(p["source"])
    made = f"self.paths = files('{source}')" if source in FILES else _SOURCES[source][0]
    made = f"self.paths = files('{HEAVY}') * 10" if p["load"] == "heavy" else made
    lines = ["self.n, self.args = n, args", "self.labels = [i % 3 for i in range(n)]", "alive.add(self)"]
    lines += [] if p["call"] in CODE else ["self.transform = transform"]
    lines += [call.init for call in calls_of(p) if call.init]
    lines += [made, *(state.init for state in states_of(p)), _NEEDS.get(str(p["call"]), "")]
    handed = "".join(f", {HANDED[one]}=None" for one in p["state"] if one in HANDED)
    return f"def __init__(self, n, transform, args=None{handed}):\n{block(*lines)}"


def calls_of(p: Parts) -> list[Call]:
    """Return the calls of plain code in the dataset."""
    return [*(PICTURE_CALLS[name] for name in p["picture_calls"]), *(TENSOR_CALLS[name] for name in p["tensor_calls"])]


def _item(p: Parts) -> list[str]:
    """Return the lines that make one sample."""
    source, habit, call = str(p["source"]), str(p["habit"]), str(p["call"])
    opens = _OPENS_ARRAYS if source == "npz" else _OPENS
    opened = opens[str(p["opened"])] if source in FILES else _SOURCES[source][1]
    several = call in _OF_FRAMES
    if several:
        opened = re.sub(r"\bi\b", "j", opened)
        opened = f"frames = []\nfor j in (i, (i + 1) % self.n):\n{block(opened)}\n    frames.append(x)"
    shifts = {"moved": "moved", "brightened": "brightened_by", "multiplied": "multiplied_by"}
    shift = [f"{shifts[str(p['shift'])]}(x, {state.reads})" for state in states_of(p)]
    shift = [_change(one, several and p["where"] == "before") for one in shift]
    made = _calls(p) if call in CODE else [_CALLS.get(call, "x = self.transform(x)")]
    if habit == "calls":
        made = [*_changes(PICTURE_CALLS, p["picture_calls"]), *made, *_changes(TENSOR_CALLS, p["tensor_calls"])]
    if habit in WITHIN:
        habit = habit if any(made) else ""
        made = [f"with {WITHIN[habit]}:\n{block(*made)}"] if habit else made
    change = [BEFORE.get(habit, ""), *made, AFTER.get(habit, "")]
    return [
        "called()",
        "if i == 5:\n    raise ValueError(f'corrupt {i}')" if p["error"] else "",
        opened,
        "y = self.labels[i]",
        *([*shift, *change] if p["where"] == "before" else [*change, *shift]),
        f"return {_SAMPLES[str(p['sample'])]}",
    ]


def _calls(p: Parts) -> list[str]:
    """Return the lines of plain code that change an image, or frames, and make a tensor of it."""
    call, kind = str(p["call"]), kind_of(p)
    several = call in _OF_FRAMES
    lines = _changes(PICTURE_CALLS, p["picture_calls"], several)
    if call == "raw":
        return [*lines, *_changes(TENSOR_CALLS, p["tensor_calls"])]
    if kind in CONVERSIONS:
        lines += _changes({"": Call("", CONVERSIONS[kind][str(p["convert"])])}, ("",), several)
    joined = {"clip": "x = torch.stack(frames)", "video": "x = tv_tensors.Video(torch.stack(frames))"}.get(call, "")
    lines += [joined, *_changes(TENSOR_CALLS, p["tensor_calls"], several and not joined)]
    return [*lines, {"frames": "x = frames", "stacks": "x = torch.stack(frames)"}.get(call, "")]


def _changes(table: dict[str, Call], names: Iterable[str], several: bool = False) -> list[str]:
    return [line for name in names for line in (table[name].draws, _change(table[name].change, several))]


def _change(expression: str, several: bool) -> str:
    return f"frames = [{expression} for x in frames]" if several else f"x = {expression}"
