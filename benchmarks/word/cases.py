"""List the scripts: what each is about, what may be named as its bottleneck, and how its cost is removed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().with_name("scripts")


@dataclass(frozen=True)
class Case:
    """One script of known truth.

    Attributes:
        name: Of the script in ``scripts/``.
        why: Why the stages are right.
        stages: The bottlenecks that are right where the loop certainly starves; none for a script that does not starve
            on a quiet machine. If it starves beside busy processes nevertheless, no stage is asked for, because the
            processes delay whatever stage they meet. ``contention`` is right in addition wherever the native turns show
            it (:func:`.score.stages`).
        code: The class or function that causes the cost; empty if no code does, or several pieces do.
        free: Pairs of texts: the script with the first replaced by the second is without its cost.
        whole_epochs: True if the starts of epochs are the cost, so that only whole epochs can be timed.
        gpu: True if the script also runs on a GPU machine, with sizes of its own.
    """

    name: str
    why: str
    stages: tuple[str, ...] = ()
    code: str = ""
    free: tuple[tuple[str, str], ...] = ()
    whole_epochs: bool = False
    gpu: bool = False

    @property
    def source(self) -> str:
        return (SCRIPTS / f"{self.name}.py").read_text(encoding="utf-8")

    @property
    def freed(self) -> str:
        """The script without its cost.

        Raises:
            ValueError: a text to replace is not in the script exactly once.
        """
        text = self.source
        for old, new in self.free:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}.py has {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        return text

    @property
    def lines(self) -> frozenset[int]:
        """The lines of the script where the costly code is defined, or is called or built."""
        found: set[int] = set()
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == self.code:
                found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
            if isinstance(node, ast.Call) and self.code == getattr(node.func, "id", None):
                found.add(node.lineno)
        return frozenset(found)

    def arguments(self, device: str) -> list[str]:
        return ["--device", "cuda", "--workers", "8"] if device == "cuda" else []


CASES = (
    # The loop does not starve.
    Case("own_step", "samples are rows of a tensor in memory; collating and sending 0.4 MB is all", gpu=True),
    Case("threads_step", "the workers take a few milliseconds of CPU time a batch; the step takes two cores"),
    Case("numpy_chain", "five cheap numpy operations a sample, done while the step runs", gpu=True),
    Case("tabular", "the loop itself makes a batch of 128 short rows, in some 3 % of its step"),
    Case(
        "audio_collate",
        "a batch of spectra takes a worker 5 ms, in its collate function; the step takes ten times that",
    ),
    Case("frozen_encoder", "four workers flip and normalise small tensors for a step as slow as inference", gpu=True),
    # It does.
    Case(
        "slow_transform",
        "a loop in plain Python in one transform takes a core several times as long as the step",
        stages=("transform",),
        code="Speckle",
        free=(("SPOTS = 4000", "SPOTS = 0"),),
    ),
    Case(
        "jitter_folder",
        "jitter of whole pictures is most of the workers' time, decoding them a good part; both are in one chain of "
        "calls, and either may lead",
        stages=("transform", "load"),
        gpu=True,
    ),
    Case(
        "jpeg_decode",
        "decoding 0.8 megapixels takes over 90 % of a sample; the files are in the page cache, so storage is wrong",
        stages=("load",),
        code="Photographs",
        free=(('Image.open(self.names[index % len(self.names)]).convert("RGB")', 'Image.new("RGB", SIZE)'),),
        gpu=True,
    ),
    Case(
        "slow_collate",
        "samples are slices of a list; the collate function makes lists in plain Python",
        stages=("collate",),
        code="windows",
        free=(
            ("WORDS, WINDOW = 5000, 5", "WORDS, WINDOW, MADE = 5000, 5, []"),
            ("    around, words = [], []\n", "    if MADE:\n        return MADE[0]\n    around, words = [], []\n"),
            (
                "    return torch.tensor(around), torch.tensor(words)",
                "    MADE.append((torch.tensor(around), torch.tensor(words)))\n    return MADE[0]",
            ),
        ),
    ),
    Case(
        "handoff",
        "a batch is 120 tensors, each a file of shared memory that the training process opens and maps; samples are "
        "slices, and collating is a transposition of lists",
        stages=("ipc",),
        free=(("[[*tensors] for tensors", "[torch.stack(tensors) for tensors"),),
    ),
    Case(
        "remote",
        "the workers sleep in `fetch`, as for a remote storage; every read is as slow as the first, so load is "
        "as right as storage",
        stages=("load", "storage"),
        code="Remote",
        free=(("LATENCY = 0.008", "LATENCY = 0.0"),),
    ),
    Case(
        "paced_reads",
        "the loop itself sleeps in `fetch`, 32 times a batch; its step is slower after that than on kept batches",
        stages=("load", "storage"),
        code="Paced",
        free=(("LATENCY = 0.0006", "LATENCY = 0.0"),),
    ),
    Case(
        "own_arrays",
        "the loop itself makes the arrays, mostly random numbers, in a fifth of its step; beside a busy process "
        "stacking takes most of it, 250 ms instead of 1.2: its two threads wait for each other, and one has no core",
        stages=("load", "collate"),
        code="Fields",
        free=(("ROUNDS = 1", "ROUNDS = 0"),),
    ),
    Case(
        "short_epochs",
        "the workers of each epoch of ten batches first read a table; with workers that persist nothing is lost",
        stages=("startup",),
        free=(("num_workers=args.workers)", "num_workers=args.workers, persistent_workers=True)"),),
        whole_epochs=True,
    ),
    Case(
        "busy_workers",
        "the workers keep their queues full, so the loop does not wait, but their threads take the step's cores; it is "
        "the work of the transform that takes them, so that is right too",
        stages=("contention", "transform"),
        free=(("ROUNDS = 3", "ROUNDS = 0"),),
    ),
    Case(
        "ten_views",
        "ten chains of crops and colours a sample take a core far longer than the step; pictures are in memory",
        stages=("transform",),
        free=(
            (
                "        return [*(self.large(picture) for _ in range(2)), *(self.small(picture) for _ in range(8))]",
                "        if not hasattr(self, 'made'):\n"
                "            self.made = [*(self.large(picture) for _ in range(2)), "
                "*(self.small(picture) for _ in range(8))]\n"
                "        return self.made",
            ),
        ),
        gpu=True,
    ),
)
KNOWN = {case.name: case for case in CASES}
