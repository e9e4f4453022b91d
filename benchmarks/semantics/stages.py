"""The text of a script's transform: its stages, what composes them, and how a loop names one of them."""

from __future__ import annotations

from textwrap import indent

from .parts import BYTES, CODE, PIL, RESIZING, TENSORS

#: What was chosen, by the name of the choice: an option, or several.
Parts = dict[str, str | tuple[str, ...]]


def block(*lines: str) -> str:
    """Return lines, indented, without empty ones."""
    return indent("\n".join(filter(None, lines)), "    ")


def kind_of(parts: Parts) -> str:
    """Return what the source gives: a picture (pil), a tensor of bytes (u8) or of floats (f32)."""
    source = parts["source"]
    if source in ("array", "pictures", "handle", "memmap", "stream"):
        return "pil"
    if source in ("png", "jpeg", "gifs"):
        return "u8" if parts["opened"] in BYTES else "pil"
    return "u8" if source == "tensor" else "f32"


def stages_of(parts: Parts) -> list[str]:
    """Return the expressions of the transform's stages."""
    kind = kind_of(parts)
    pictures = [PIL[name] for name in parts["pil"]]
    if kind == "pil" and RESIZING & {*parts["pil"]}:
        pictures.append("T.Resize((9, 10))")
    return [*pictures, *_conversion(parts, kind), *(TENSORS[name] for name in parts["ten"])]


def _conversion(parts: Parts, kind: str) -> list[str]:
    """Return the stages that make a tensor of floats, or of bytes."""
    v2, convert = parts["library"] == "v2", str(parts["convert"])
    floats = ["T.ToDtype(torch.float32, scale=True)"]
    if kind == "f32":
        return []
    if kind == "u8":
        if convert == "bytes":
            return []
        changed = floats if convert == "image" and v2 else ["T.ConvertImageDtype(torch.float32)"]
        return ["ToFloat()"] if convert == "numpy" else changed
    return {
        "tensor": ["T.ToImage()", *floats] if v2 else ["T.ToTensor()"],
        "pil": ["T.PILToTensor()", "T.ConvertImageDtype(torch.float32)"],
        "numpy": ["ToArray()"],
        "strided": ["ToArray(strided=True)"],
        "bytes": ["T.PILToTensor()"],
        "image": ["T.ToImage()", *floats, "T.ToPureTensor()"] if v2 else ["T.ToTensor()"],
    }[convert]


def transform_of(p: Parts) -> str:
    """Return the definition of the function that makes the transform, or of the function that is the transform."""
    stages = stages_of(p)
    if p["call"] in CODE:
        return ""
    if p["call"] == "function":
        made = [f"stage_{n} = {stage}" for n, stage in enumerate(stages)]
        steps = [f"x = stage_{n}(x)" for n in range(len(stages))]
        return "\n".join([*made, "", "", f"def transform(x):\n{block(*steps, 'return x')}"])
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


def stage_in_loop(p: Parts, number: int) -> str:
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


def _composed(stages: list[str]) -> str:
    # Version 2 refuses an empty list.
    return f"T.Compose([{', '.join(stages)}])" if stages else "Chain([])"


def _are_modules(p: Parts) -> bool:
    stages = stages_of(p)
    return p["library"] == "v2" and bool(stages) and all(stage.startswith("T.") for stage in stages)
