"""Read a profile of py-spy: which lines of the script's code the workers, or a loop without workers, spend time on."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")
#: A process makes a batch while this function of torch runs, or waits for one in the training process.
_MAKING = "torch/utils/data/_utils/fetch.py"
#: Code that only calls the next transform; the answer is what it calls.
_THROUGH = (
    *("Compose", "BaseCompose", "OneOf", "Sequential", "Module.", "RandomApply", "Lambda", "Dataset", "Subset"),
    *("BasicTransform", "DualTransform", "ImageOnlyTransform", "MapTransform", "Transform.", "ConcatDataset"),
    *("apply_transform", "_apply_transform", "execute_compose", "LazyTransform", "CacheDataset", "_hook_"),
)


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int

    @property
    def called(self) -> str:
        """The function's name, with its class in front."""
        return _named(self.file, self.line) or self.function


@lru_cache(maxsize=4096)
def _named(file: str, line: int) -> str:
    spans = _spans(file)
    inside = [span for span in spans if span[0] <= line <= span[1]]
    return max(inside, key=lambda span: span[0])[2] if inside else ""


@lru_cache(maxsize=512)
def _spans(file: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                if not isinstance(child, ast.ClassDef):
                    found.append((child.lineno, child.end_lineno or child.lineno, name))
                walk(child, name)
            else:
                walk(child, outer)

    walk(tree, "")
    return tuple(found)


def stacks(text: str) -> list[tuple[list[Frame], int]]:
    """Return the sampled stacks, outermost frame first, with their counts."""
    found = []
    for row in text.splitlines():
        body, _, count = row.rpartition(" ")
        if not count.isdigit():
            continue
        matches = [_FRAME.match(part) for part in body.split(";")]
        frames = [Frame(m["function"], os.path.normpath(m["file"]), int(m["line"])) for m in matches if m]
        found.append((frames, int(count)))
    return found


def of_profile(text: str, repository: Path, most: int = 8) -> dict[str, object]:
    """Return where batches are made: the share of each line of the repository, and what it calls.

    ``making`` counts the samples in which a batch was made. Each of ``lines`` is ``{line, calls, share}``: the
    innermost line below torch's fetcher that lies in ``repository`` (without the folder's path), and the first function
    of a library that it calls and that is no mere container. Lines outside the repository stand alone.
    """
    counted: Counter[tuple[str, str]] = Counter()
    making = 0
    for frames, count in stacks(text):
        where = [number for number, frame in enumerate(frames) if frame.file.endswith(_MAKING)]
        if not where:
            continue
        making += count
        below = frames[where[-1] + 1 :]
        counted[_key(below, frames[where[-1]], repository)] += count
    rows = [
        {"line": line, "calls": calls, "share": round(count / making, 3)}
        for (line, calls), count in counted.most_common(most)
    ]
    return {"making": making, "lines": rows}


def _key(below: list[Frame], fetcher: Frame, repository: Path) -> tuple[str, str]:
    root = str(repository) + "/"
    own = [number for number, frame in enumerate(below) if frame.file.startswith(root)]
    rest = below[own[-1] + 1 :] if own else below
    calls = next((frame.called for frame in rest if not frame.called.startswith(_THROUGH)), "")
    if own:
        frame = below[own[-1]]
        return f"{frame.file.removeprefix(root)}:{frame.line} {frame.called}", calls
    return "collating" if not below or "collate.py" in below[0].file else "library", calls or fetcher.called
