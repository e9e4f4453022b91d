"""List the cases: the examples at the sizes of their articles, and planted cases, each a small set of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..common import ROOT

EXAMPLES_FOLDER = ROOT / "examples"
PLANTED_SCRIPT = Path(__file__).with_name("planted.py")


@dataclass(frozen=True)
class Case:
    """A script with its arguments, and the length of its measurement.

    Attributes:
        name: its name in the results.
        script: the file.
        arguments: the script's own.
        workers: number of the training loader's workers; a window holds whole rounds of them.
        budget, apply_budget: seconds of ``pipediag analyze``.
        seconds: minimum length of a window; a few rounds of the workers fit into it.
    """

    name: str
    script: Path
    arguments: tuple[str, ...]
    workers: int
    budget: float = 20.0
    apply_budget: float = 15.0
    seconds: float = 1.0

    @property
    def part(self) -> str:
        return "planted" if self.script == PLANTED_SCRIPT else "examples"


def _planted(name: str, arguments: str, workers: int = 8) -> Case:
    return Case(name, PLANTED_SCRIPT, (*arguments.split(), "--workers", str(workers)), workers)


def _example(name: str, script: str, arguments: str, workers: int, **times: float) -> Case:
    times = {"budget": 60.0, "apply_budget": 40.0, "seconds": 1.5, **times}
    given = (*arguments.split(), "--workers", str(workers), "--steps", "1000000")
    return Case(name, EXAMPLES_FOLDER / script, given, workers, **times)


EXAMPLES = (
    _example("augmentations-32", "augmentations.py", "--article --batch-size 32", 8),
    _example("augmentations-128", "augmentations.py", "--article --batch-size 128", 8, seconds=2.0),
    _example(
        "imagefolder",
        "imagefolder.py",
        "--model resnet50 --amp --channels-last --batch-size 256 --size 224 --images 6400 --repeats 200 --warmup 10",
        15,
        seconds=2.5,
        budget=120.0,
        apply_budget=80.0,
    ),
    # A quarter of the article's batch, which takes a worker 4 s; each change of rung waits for several batches.
    _example(
        "caching-article",
        "caching_article.py",
        "--article --batch-size 64 --samples 100000",
        4,
        budget=90.0,
        apply_budget=60.0,
        seconds=2.0,
    ),
    _example("frozen-encoder", "frozen_encoder.py", "--article", 8),
)

#: The GPU waits for data in most of these; the names of the others say so.
PLANTED = (
    _planted("usual", "--pin"),
    _planted("usual-pageable", ""),
    _planted("usual-2-workers", "--pin", 2),
    _planted("usual-in-process", "--pin --batch-size 16", 0),
    _planted("usual-batch-4", "--pin --batch-size 4"),
    _planted("usual-batch-256", "--pin --batch-size 256"),
    _planted("usual-not-starved", "--pin --batch-size 16 --width 128 --depth 6"),
    _planted("heavy", "--pin --chain heavy"),
    _planted("heavy-in-process", "--chain heavy --batch-size 8", 0),
    _planted("heavy-device-busy", "--pin --chain heavy --width 64 --depth 6"),
    _planted("exact", "--pin --chain exact"),
    _planted("exact-pictures", "--pin --source picture --chain pictures-crop"),
    _planted("fixed", "--pin --chain fixed"),
    _planted("randaugment", "--pin --chain randaugment"),
    _planted("blur-float", "--pin --chain blur-float --side 224"),
    _planted("masks", "--pin --source mask --chain usual"),
    _planted("jpeg-pictures", "--pin --source jpeg --chain pictures"),
    _planted("jpeg-to-image", "--pin --source jpeg --chain to-image"),
    _planted("jpeg-decoding", "--pin --source jpeg --chain pictures-crop --side 640 --images 64", 4),
    _planted("gamma-proven", "--pin --chain gamma"),
    _planted("per-call", "--pin --chain per-call --side 224"),
    _planted("numpy-last", "--pin --chain numpy-last"),
    _planted("numpy-first", "--pin --chain numpy-first"),
    _planted("own-draws", "--pin --chain jittered"),
    _planted("lambda", "--pin --chain lambda"),
    _planted("floats", "--source float --chain flips --side 224"),
    _planted("bytes-not-starved", "--pin --chain flips --side 224 --batch-size 32 --width 128 --depth 6"),
    _planted("hand-off", "--extra-kb 600 --batch-size 32"),
    _planted("storage", "--pin --storage-ms 5"),
    _planted("slow-collate", "--pin --collate slow"),
    _planted("mixup-collate", "--pin --collate mixup"),
    _planted("iterable", "--pin --kind iterable"),
    _planted("wants-numpy", "--pin --how numpy"),
    _planted("own-stream", "--pin --stream"),
    _planted("validation", "--pin --chain heavy --validate-every 40"),
    _planted("short-epochs", "--pin --chain heavy --samples 2560 --persistent"),
    _planted("batch-sampler", "--pin --chain heavy --sampler bands"),
    _planted("dict-batches", "--pin --chain heavy --batch dict"),
)

_BY_PART = {"examples": EXAMPLES, "planted": PLANTED}
#: Sizes for a CPU of two cores; they come after the case's own and override them.
_QUICK_PLANTED = "--images 16 --size 32 --batch-size 8 --width 4 --depth 1 --device cpu"
_QUICK_EXAMPLES: Mapping[str, str] = {
    "augmentations.py": "--device cpu",
    "imagefolder.py": "--images 64 --batch-size 8 --device cpu",
    "caching_article.py": "--raw-size 128 --device cpu",
    "frozen_encoder.py": "--device cpu",
}


def named(part: str, names: list[str]) -> list[Case]:
    """Return the cases of a part: those named, or all of them.

    Raises:
        KeyError: no part has a case of that name. Names of other parts' cases are ignored.
    """
    known = {case.name for cases in _BY_PART.values() for case in cases}
    for name in names:
        if name not in known:
            raise KeyError(name)
    return [case for case in _BY_PART[part] if not names or case.name in names]


def quick(case: Case) -> Case:
    """Return a version small enough to try on two cores; its speeds mean nothing."""
    workers = min(2, case.workers)
    if case.part == "planted":
        whole = {"flips", "blur-float", "per-call"} & {*case.arguments}  # none of their links changes the size
        sizes = [*_QUICK_PLANTED.split(), "--side", "32" if whole else "48"]
    else:
        sizes = ["--steps", "1000000", *_QUICK_EXAMPLES[case.script.name].split()]
    own = [word for word in case.arguments if word not in ("--stream", "--pin")] if case.part == "planted" else []
    arguments = (*own, *sizes, "--workers", str(workers))
    return replace(case, arguments=arguments, workers=workers, budget=4.0, apply_budget=3.0, seconds=0.3)
