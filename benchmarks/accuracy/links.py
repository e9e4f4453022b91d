"""Write the transforms of the scripts: the links of a chain, one with a planted cost, and the object that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from .cases import Case, Plant

#: Home-made links: a name, and its expression of ``image``. All are cheap and keep shape and type.
ON_TENSORS = (
    ("FlipAtRandom", "image.flip(-1) if torch.rand(()) < 0.5 else image"),
    ("AddNoise", "image + 0.01 * torch.randn_like(image)"),
    ("Rescale", "image * 0.5"),
    ("Center", "image - image.mean()"),
    ("Roll", "image.roll(1, -1)"),
    ("Clamp", "image.clamp(-1, 1)"),
    ("Fade", "image * torch.rand(())"),
    ("Shift", "image + 0.1"),
)
ON_PICTURES = (
    ("Mirror", "image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)"),
    ("Sharpen", "image.filter(ImageFilter.SHARPEN)"),
    ("Rotate", "image.rotate(90)"),
    ("ToTensor", "torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)"),
)
#: Links from torchvision, around a planted one.
LIBRARY = (
    "RandomHorizontalFlip()",
    "Normalize([0.5] * 3, [0.25] * 3)",
    "RandomVerticalFlip()",
    "RandomErasing()",
    "RandomCrop(32, padding=2)",
)
CHAINS = {"tv1": "T.Compose([\n{}\n])", "tv2": "v2.Compose([\n{}\n])", "sequential": "nn.Sequential(\n{}\n)"}
#: A home-made chain, for links with one argument or two.
OWN = '''
class Chain:
    """Apply one transform after another."""

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, {names}):
        for step in self.steps:
            {names} = step({names})
        return {names}
'''


def link_names(case: Case) -> list[str]:
    """Return the names that a report may give to each link of the case's chain."""
    if case.chain == "method":
        return ["Images.augment" if case.dataset != "iterable" else "Stream.augment"]
    names = [_call(case, number).split("(")[0].split(".")[-1] for number in range(_length(case))]
    return [_snake(name) for name in names] if case.chain == "list" else names


def definitions(case: Case, costs: Mapping[int, str]) -> str:
    """Return the classes or functions of the home-made links; ``costs`` gives the planted lines."""
    if case.chain in ("none", "method"):
        return ""
    blocks = [
        _define(case, number, costs.get(number, ""))
        for number in range(_length(case))
        if not _from_library(case, number)
    ]
    if case.chain == "own":
        blocks.append(OWN.format(names=_argument(case)))
    return "\n".join(blocks)


def construction(case: Case, omitted: frozenset[int]) -> str:
    """Return the expression that builds the chain, without the links in ``omitted``."""
    calls = [_call(case, number) for number in range(_length(case)) if number not in omitted]
    if case.chain == "list":
        return "[" + ", ".join(_snake(call.removesuffix("()")) for call in calls) + "]"
    lines = indent(",\n".join(calls) + ",", "    ")
    return CHAINS.get(case.chain, "Chain([\n{}\n])").format(lines)


def real_link(plant: Plant) -> bool:
    """Return whether the plant is a link of its own, which is left out together with the plant."""
    return plant.kind in ("blur", "resize")


def _length(case: Case) -> int:
    return len(ON_PICTURES) if case.data in ("pil", "pair") else case.links


def _planted(case: Case, number: int) -> Plant | None:
    return next((p for p in case.plants if p.stage in ("transform", "contention") and p.link == number), None)


def _from_library(case: Case, number: int) -> bool:
    plant = _planted(case, number)
    return case.chain in ("tv1", "tv2") and (plant is None or plant.kind == "blur")


def _call(case: Case, number: int) -> str:
    """Return the link as the script writes it."""
    plant = _planted(case, number)
    if _from_library(case, number):
        call = "GaussianBlur(23)" if plant else LIBRARY[number % len(LIBRARY)]
        return f"{'v2' if case.chain == 'tv2' else 'T'}.{call}"
    if plant is not None and plant.kind == "resize":
        return "Zoom()"
    pool = ON_PICTURES if case.data in ("pil", "pair") else ON_TENSORS
    return f"{pool[number % len(pool)][0]}()"


def _define(case: Case, number: int, cost: str) -> str:
    plant = _planted(case, number)
    pool = ON_PICTURES if case.data in ("pil", "pair") else ON_TENSORS
    name, result = pool[number % len(pool)]
    if plant is not None and plant.kind == "resize":
        name, result = "Zoom", "image.resize((1024, 1024), Image.Resampling.BICUBIC).resize(image.size)"
    body = [cost] if cost else []
    if case.data == "dict":
        body += ['image = sample["image"]', f'return {{**sample, "image": {result}}}']
    elif case.data == "pair":
        both = f"{result}, mask" if name == "ToTensor" else f"{result}, {result.replace('image', 'mask')}"
        body.append(f"return {both}")
    else:
        body.append(f"return {result}")
    if case.chain == "list":
        return f"\ndef {_snake(name)}({_argument(case)}):\n" + indent("\n".join(body), "    ") + "\n"
    module = case.chain in ("tv2", "sequential")
    lines = [f"def {'forward' if module else '__call__'}(self, {_argument(case)}):", *(f"    {line}" for line in body)]
    return f"\nclass {name}{'(nn.Module)' if module else ''}:\n" + indent("\n".join(lines), "    ") + "\n"


def _argument(case: Case) -> str:
    return {"dict": "sample", "pair": "image, mask"}.get(case.data, "image")


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
