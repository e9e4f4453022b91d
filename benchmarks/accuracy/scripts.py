"""Write a case as an ordinary script, without some of its plants, or with its own timing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import dedent, indent

from . import gpu_scripts, links, timing
from .cases import Case, Plant

#: Length of an endless epoch, in samples.
MANY = 200_000
IMPORTS = {
    "import io": r"\bio\.",
    "import random": r"\brandom\.random",
    "import time": r"\btime\.",
    "import numpy as np": r"\bnp\.",
    "import torch": r"\btorch\.",
    "import torchvision.transforms as T": r"\bT\.",
    "from PIL import Image": r"\bImage\.(?!Filter)",
    "from concurrent.futures import ThreadPoolExecutor": r"\bThreadPoolExecutor\(",
    "from PIL import ImageFilter": r"\bImageFilter\.",
    "from torch import nn": r"\bnn\.",
    "from torchvision.transforms import v2": r"\bv2\.",
}
FROM_DATA = (
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "Subset",
    "default_collate",
    "get_worker_info",
)

BURN = '''
def burn(seconds):
    """Keep a core busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))
'''

#: Two Python threads can do this in parallel: a product releases the interpreter's lock.
MULTIPLY = '''
def multiply(seconds):
    """Keep a core busy with products of matrices."""
    until = time.thread_time() + seconds
    factor = torch.rand(256, 256) / 256
    while time.thread_time() < until:
        factor = factor @ factor
'''


@dataclass(frozen=True)
class Site:
    """The planted code in a script: the names that a report may give it, and the lines where it is defined or built."""

    names: tuple[str, ...]
    lines: frozenset[int]


def write(case: Case, plants: Iterable[Plant] | None = None, *, timed: bool = False, cached: bool = False) -> str:
    """Return the text of the case's script.

    Args:
        case: What to write.
        plants: The plants to keep; all if None.
        timed: True for a script that times itself, prints the time per step as JSON, and exits.
        cached: True for a loop on a few batches made beforehand instead of its loader.
    """
    kept = case.planted if plants is None else tuple(plants)
    body = gpu_scripts.write(case, kept, cached) if case.gpu else _Writer(case, kept, cached).body()
    return _finish(case, timing.insert(case, body) if timed else timing.strip(body))


def site(case: Case, plant: Plant, source: str) -> Site | None:
    """Return where the plant is in a script's text, or None if the stage has no user code."""
    if plant.stage == "transform":
        name = gpu_scripts.LINK if case.gpu else links.link_names(case)[plant.link]
        return _site(source, name, references=True)
    if plant.stage in ("load", "storage"):
        method = "Stream.__iter__" if case.dataset == "iterable" else "Images.__getitem__"
        return _site(source, method, *(["Images.fetch"] if plant.stage == "storage" else []))
    if plant.stage == "collate":
        return _site(source, "Gather" if case.collate == "object" else "gather")
    return None


class _Writer:
    """A builder of one script."""

    def __init__(self, case: Case, kept: tuple[Plant, ...], cached: bool) -> None:
        self.case = case
        self.kept = kept
        self.cached = cached
        self.pictures = case.data in ("pil", "pair")
        self.ipc = self._kind("ipc")
        self.side = {"blur": 96, "pad": 48}.get(case.plants[0].kind if case.plants else "", 32)

    def body(self) -> str:
        parts = [
            BURN,
            MULTIPLY if self.case.step == "two-threads" else "",
            links.definitions(self.case, self._costs_of_links()),
            self._stream() if self.case.dataset == "iterable" else self._images(),
            self._wrapper() if self.case.dataset == "wrapper" else "",
            self._collate(),
            self._init(),
            self._main(),
        ]
        return "\n".join(part for part in parts if part)

    # The plants

    def _plant(self, stage: str) -> Plant | None:
        return next((p for p in self.kept if p.stage == stage), None)

    def _kind(self, stage: str) -> str:
        """Return the kind of a stage's plant in the case, kept or not."""
        return next((p.kind for p in self.case.plants if p.stage == stage), "")

    def _cost(self, plant: Plant, calls: int | None = None) -> str:
        """Return the line with the plant's cost, if a batch takes ``calls`` of it."""
        if plant.kind not in ("sleep", "burn"):
            return ""
        calls = self.case.batch if calls is None else calls
        seconds = self.case.work_ms(plant) / 1000 / calls
        return f"{'burn' if plant.kind == 'burn' else 'time.sleep'}({seconds:.5f})"

    def _costs_of_links(self) -> dict[int, str]:
        costs = {p.link: self._cost(p) for p in self.kept if p.stage == "transform"}
        return costs | {p.link: self._noise("link") for p in self.kept if p.stage == "contention"}

    def _noise(self, where: str) -> str:
        """Return the line with which the workers take cores from the training process, if it belongs there."""
        plant = self._plant("contention")
        if plant is None or plant.kind != where:
            return ""
        return f"burn({self.case.work_ms(plant) / 1000 / self.case.batch:.5f})"

    # The dataset

    def _images(self) -> str:
        case = self.case
        own = case.dataset != "wrapper" and case.chain != "none"
        attribute = "transforms" if case.chain == "list" else "transform"
        method = case.chain == "method"
        lines = [
            f"def __init__(self, length{f', {attribute}' if own and not method else ''}):",
            "    self.length = length",
        ]
        if own:
            lines.append(f"    self.{attribute} = {'self.augment' if method else attribute}")
        lines += [f"    {line}" for line in self._contents()]
        lines += ["", "def __len__(self):", "    return self.length", ""]
        if method:
            lines += [*self._method(), ""]
        if self._kind("storage"):
            lines += [*self._fetch(), ""]
        lines += ["def __getitem__(self, index):", *(f"    {line}" for line in self._item("return", own))]
        return "\nclass Images(Dataset):\n" + indent("\n".join(lines), "    ") + "\n"

    def _stream(self) -> str:
        case = self.case
        own = case.chain != "none"
        method = case.chain == "method"
        lines = [
            f"def __init__(self, length{', transform' if own and not method else ''}):",
            "    self.length = length",
        ]
        if own:
            lines.append(f"    self.transform = {'self.augment' if method else 'transform'}")
        lines += [f"    {line}" for line in self._contents()]
        lines += ["", *([*self._method(), ""] if method else []), "def __iter__(self):"]
        lines += ["    info = get_worker_info()", "    first, step = (info.id, info.num_workers) if info else (0, 1)"]
        lines += ["    for index in range(first, self.length, step):"]
        lines += [f"        {line}" for line in self._item("yield", own)]
        return "\nclass Stream(IterableDataset):\n" + indent("\n".join(lines), "    ") + "\n"

    def _method(self) -> list[str]:
        cost = self._costs_of_links().get(0, "")
        return ["def augment(self, image):", *([f"    {cost}"] if cost else []), "    return image.flip(-1) * 0.5"]

    def _fetch(self) -> list[str]:
        """Return a reader with a local cache: the first read of an item goes over the network."""
        plant = self._plant("storage")
        slow = [f"        {self._cost(plant)}"] if plant else []
        return [
            "def fetch(self, index):",
            "    if index not in self.local:",
            *slow,
            "        self.local[index] = self.images[index % len(self.images)]",
            "    return self.local[index]",
        ]

    def _contents(self) -> list[str]:
        if self._plant("load") is not None and self._kind("load") == "jpeg":
            return ["self.files = [jpeg() for _ in range(16)]"]
        lines = [f"self.images = torch.rand(32, 3, {self.side}, {self.side})"]
        if self.pictures:
            lines = ["self.images = np.random.randint(0, 256, (32, 32, 32, 3), dtype=np.uint8)"]
        if self._kind("storage"):
            lines.append("self.local = {}")
        if self.ipc == "objects":
            boxes = '[[{"box": (random.random(), 0.5), "id": i} for i in range(1500)] for _ in range(32)]'
            lines.append(f"self.boxes = {boxes if self._plant('ipc') else 'torch.rand(32, 1500, 3)'}")
        if self._kind("startup") == "first":
            lines.append("self.table = None")
        return lines

    def _item(self, give: str, own: bool) -> list[str]:
        case = self.case
        load, startup = self._plant("load"), self._plant("startup")
        lines: list[str] = []
        if startup is not None and startup.kind == "first":
            seconds = startup.size * case.step_ms * case.epoch / 1000
            lines += ["if self.table is None:", f"    time.sleep({seconds:.3f})", "    self.table = list(range(10))"]
        if self._noise("load"):
            lines.append(self._noise("load"))
        if load is not None and self._cost(load):
            lines.append(self._cost(load))
        lines += [f"image = {self._image(load)}", "label = index % 10"]
        if case.data == "pair":
            lines.append("mask = image.copy()")
        argument, result = "image", "image, label"
        if case.data == "dict":
            lines.append('sample = {"image": image, "label": label}')
            argument = result = "sample"
        if case.data == "pair":
            argument, result = "image, mask", "image, mask, label"
        if own and case.chain == "list":
            lines += ["for transform in self.transforms:", f"    {argument} = transform({argument})"]
        elif own:
            lines.append(f"{argument} = self.transform({argument})")
        if self.ipc == "objects":
            result += ", self.boxes[index % len(self.boxes)]"
        return [*lines, f"{give} {result}"]

    def _image(self, load: Plant | None) -> str:
        if load is not None and load.kind == "jpeg":
            return "Image.open(io.BytesIO(self.files[index % len(self.files)])).resize((32, 32))"
        if load is not None and load.kind == "numpy":
            return "torch.from_numpy(np.random.normal(size=(3, 256, 256))[:, :32, :32]).float()"
        if self._kind("storage"):
            return "self.fetch(index).clone()"
        if self.pictures:
            return "Image.fromarray(self.images[index % len(self.images)])"
        return "self.images[index % len(self.images)].clone()"

    def _wrapper(self) -> str:
        given = "sample" if self.case.data == "dict" else "image, label"
        made = "self.transform(sample)" if self.case.data == "dict" else "self.transform(image), label"
        return dedent(f"""
            class Augmented(Dataset):
                def __init__(self, dataset, transform):
                    self.dataset = dataset
                    self.transform = transform

                def __len__(self):
                    return len(self.dataset)

                def __getitem__(self, index):
                    {given} = self.dataset[index]
                    return {made}
            """)

    # Batches

    def _collate(self) -> str:
        plant = self._plant("collate")
        name, helpers = "", ""
        body: list[str] = []
        if self._kind("collate"):
            name = "gather"
            if plant is not None and self._cost(plant):
                body.append(self._cost(plant, calls=1))
            if plant is not None and plant.kind == "pad":
                body.append("samples = [(torch.tensor(image.tolist()), label) for image, label in samples]")
        if self.case.data == "pair":
            name = name or "keep_masks"
            body += [
                "images, masks, labels = zip(*samples)",
                "return torch.stack(images), list(masks), torch.tensor(labels)",
            ]
        elif self.ipc:
            name, helpers = "pack", self._packed()
            body += self._packing()
        elif name:
            body.append("return default_collate(samples)")
        if not name:
            return ""
        if self.case.collate == "object":
            lines = ["def __call__(self, samples):", *(f"    {line}" for line in body)]
            return "\nclass Gather:\n" + indent("\n".join(lines), "    ") + "\n"
        return f"{helpers}\ndef {name}(samples):\n" + indent("\n".join(body), "    ") + "\n"

    def _packed(self) -> str:
        if self.ipc not in ("sleep", "burn"):
            return ""
        plant = self._plant("ipc")
        unpack = self._cost(plant, calls=1) if plant else ""
        lines = ["def __init__(self, images, labels):", "    self.images = images", "    self.labels = labels"]
        if unpack:
            lines += ["", "def __setstate__(self, state):", f"    {unpack}", "    self.__dict__.update(state)"]
        return "\nclass Packed:\n" + indent("\n".join(lines), "    ") + "\n"

    def _packing(self) -> list[str]:
        planted = self._plant("ipc") is not None
        if self.ipc == "tensors":
            made = "[strip.clone() for strip in strips]" if planted else "torch.stack(strips)"
            split = "strips = [strip for image, _ in samples for strip in image.split(4, dim=1)]"
            return [split, f"return {made}, torch.tensor([label for _, label in samples])"]
        if self.ipc == "objects":
            made = "list(boxes)" if planted else "torch.stack(boxes)"
            return [
                "images, labels, boxes = zip(*samples)",
                f"return torch.stack(images), torch.tensor(labels), {made}",
            ]
        return ["return Packed(*default_collate(samples))"]

    # The workers, and the program

    def _init(self) -> str:
        case = self.case
        startup = next((p for p in case.plants if p.stage == "startup"), None)
        text = ""
        if self._kind("load") == "jpeg" and self._plant("load") is not None:
            text += dedent('''
                def jpeg():
                    """A picture in a file's bytes."""
                    file = io.BytesIO()
                    Image.fromarray(np.random.randint(0, 256, (512, 512, 3), dtype=np.uint8)).save(file, "JPEG")
                    return file.getvalue()
                ''')
        if startup is not None and startup.kind.startswith("init"):
            call = "burn" if startup.kind == "init-burn" else "time.sleep"
            seconds = startup.size * case.step_ms * case.epoch / 1000
            text += f"\ndef open_tables(worker):\n    {call}({seconds:.3f})\n"
        return text

    def _main(self) -> str:
        main = [*self._setup(), *self._loop()]
        if self.case.start == "fork":
            return "\n" + "\n".join(main) + "\n"
        return "\ndef main():\n" + indent("\n".join(main), "    ") + '\n\n\nif __name__ == "__main__":\n    main()\n'

    def _setup(self) -> list[str]:
        case = self.case
        lines = ["torch.manual_seed(0)"]
        argument = ""
        if case.chain not in ("none", "method"):
            omitted = {p.link for p in case.plants if links.real_link(p) and p not in self.kept}
            lines.append(f"transform = {links.construction(case, frozenset(omitted))}")
            argument = ", transform"
        lines += self._dataset(argument)
        options = [f"batch_size={case.batch}"]
        if case.dataset != "iterable":
            options.append("shuffle=True")
        options += self._options()
        lines.append(f"loader = DataLoader(dataset, {', '.join(options)})")
        if self.cached:
            lines.append("loader = [batch for _, batch in zip(range(8), loader)] * 100_000")
            lines += [f"loader = loader[:{case.epoch}]"] if case.epoch else []
        lines.append(f"model = nn.Sequential(nn.Flatten(), nn.Linear({3 * self.side**2}, 10))")
        lines.append("optimizer = torch.optim.SGD(model.parameters(), lr=0.01)")
        if case.step == "two-threads":
            lines.append("pool = ThreadPoolExecutor(2)")
        return lines

    def _dataset(self, argument: str) -> list[str]:
        case = self.case
        length = case.epoch * case.batch or MANY
        if case.dataset == "subset":
            return [f"dataset = Subset(Images({2 * length}{argument}), range(0, {2 * length}, 2))"]
        if case.dataset == "concat":
            half = f"Images({length // 2}{argument})"
            return [f"dataset = ConcatDataset([{half}, {half}])"]
        if case.dataset == "wrapper":
            return [f"dataset = Augmented(Images({length}){argument})"]
        return [f"dataset = {'Stream' if case.dataset == 'iterable' else 'Images'}({length}{argument})"]

    def _options(self) -> list[str]:
        case = self.case
        options = [f"num_workers={case.workers}"] if case.workers else []
        startup = next((p for p in case.plants if p.stage == "startup"), None)
        if self._kind("collate"):
            options.append(f"collate_fn={'Gather()' if case.collate == 'object' else 'gather'}")
        elif self.ipc:
            options.append("collate_fn=pack")
        elif case.data == "pair":
            options.append("collate_fn=keep_masks")
        if startup is not None and startup.kind.startswith("init"):
            options.append("worker_init_fn=open_tables")
        # The remedy for a startup is to keep the workers, so the form without the plant keeps them.
        if case.persistent or (startup is not None and startup not in self.kept):
            options.append("persistent_workers=True")
        if case.start != "fork":
            options.append(f'multiprocessing_context="{case.start}"')
        return options

    def _loop(self) -> list[str]:
        case = self.case
        head, unpack = "images, labels", []
        if case.data == "dict":
            head, unpack = "sample", ['images, labels = sample["image"], sample["label"]']
        elif case.data == "pair":
            head = "images, masks, labels"
        elif self.ipc == "tensors":
            head, unpack = "strips, labels", ["images = torch.stack(tuple(strips)).view(len(labels), -1)"]
        elif self.ipc == "objects":
            head = "images, labels, boxes"
        elif self.ipc:
            head, unpack = "batch", ["images, labels = batch.images, batch.labels"]
        seconds = case.step_ms / 1000
        step = {
            "sleep": [f"time.sleep({seconds:.4f})  # as long as a device would take, the CPU being free"],
            "burn": [f"burn({seconds:.4f})"],
            "two-threads": [f"list(pool.map(multiply, [{seconds:.4f}] * 2))"],
        }[case.step]
        body = [
            timing.AFTER_NEXT,
            *unpack,
            "loss = nn.functional.cross_entropy(model(images), labels)",
            "optimizer.zero_grad()",
            "loss.backward()",
            "optimizer.step()",
            *step,
            timing.AFTER_STEP,
        ]
        lines = [timing.BEFORE_LOOP, "for epoch in range(100_000):", f"    {timing.BEFORE_EPOCH}"]
        return [*lines, f"    for {head} in loader:", *(f"        {line}" for line in body)]


def _finish(case: Case, body: str) -> str:
    """Add the imports, and two blank lines between top-level definitions."""
    if "burn(" not in body.replace(BURN, ""):
        body = body.replace(BURN, "")
    found = [line for line, pattern in IMPORTS.items() if re.search(pattern, body)]
    data = [name for name in FROM_DATA if re.search(rf"\b{name}\b", body)]
    found.append(f"from torch.utils.data import {', '.join(data)}")
    body = re.sub(r"\n+(?=(class |def |if __name__|torch\.manual_seed))", "\n\n\n", body)
    return '"""Train a small classifier on pictures."""\n\n' + "\n".join(found) + "\n\n\n" + body.strip() + "\n"


def _site(source: str, *names: str, references: bool = False) -> Site:
    """Return the lines of the definitions with these qualified names, and those that mention the first of them."""
    tree = ast.parse(source)
    lines: set[int] = set()
    for outer in tree.body:
        if isinstance(outer, (ast.ClassDef, ast.FunctionDef)):
            named: dict[str, ast.ClassDef | ast.FunctionDef] = {outer.name: outer}
            for inner in outer.body:
                if isinstance(inner, ast.FunctionDef):
                    named[f"{outer.name}.{inner.name}"] = inner
            for found in (named[name] for name in names if name in named):
                lines |= set(range(found.lineno, (found.end_lineno or found.lineno) + 1))
    last = names[0].split(".")[-1]
    for node in ast.walk(tree) if references else ():
        if (isinstance(node, ast.Name) and node.id == last) or (isinstance(node, ast.Attribute) and node.attr == last):
            lines.add(node.lineno)
    return Site(tuple(dict.fromkeys((names[0], last) if references else names)), frozenset(lines))
