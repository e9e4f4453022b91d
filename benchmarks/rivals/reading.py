"""Translate each tool's answer into this project's classes: pure functions of the files that the tools write.

A reading is the set of verdict classes that an answer leaves open. A tool that only says "input" is right about the
cause and says nothing about the stage. The mappings favour the tool as much as possible.

traceml-ai (``step_time`` findings of ``final_summary.json``, all of them, not only the leading one):

    INPUT_BOUND                      any stage: its documentation sends the reader to workers, transforms, collation
                                     and storage alike
    H2D_BOUND                        transfer
    RESIDUAL_HEAVY                   none, transfer or contention: the step is slow, input wait is not why, and it
                                     advises to look for "CPU stalls" and "unobserved transfers"
    COMPUTE_BOUND, BALANCED          none
    NO_DATA, WARMUP, INCOMPLETE_DATA no answer

gpuprof (titles of ``gpuprof insights --json``):

    ...% of step time waiting on the loader,
    Prefetch queue starved           any stage
    Dataloader stall + CPU pegged    transform or load: "move augmentations to GPU", "pre-decoded samples"
    Dataloader stall + disk hot,
    Cold-cache pattern,
    Cache thrashing                  storage
    PCIe RX peaked                   transfer; not without a GPU, where gpuprof invents its readings
    none of these                    none, if it saw any steps

pipediag: the verdict's stage; ``inconclusive`` is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The verdict classes of a starved training process.
STARVED = ("transfer", "ipc", "collate", "transform", "load", "storage", "startup", "contention")
NONE = ("none",)

#: The file name of every case's script.
SCRIPT = "train.py"
RIGHT, WRONG, SILENT = "right", "wrong", "silent"

_TRACEML = {
    "INPUT_BOUND": STARVED,
    "H2D_BOUND": ("transfer",),
    "RESIDUAL_HEAVY": ("none", "transfer", "contention"),
    "COMPUTE_BOUND": NONE,
    "BALANCED": NONE,
}
_GPUPROF = (
    (r"of step time waiting on the loader", STARVED),
    (r"^Prefetch queue starved", STARVED),
    (r"^Dataloader stall \+ CPU pegged", ("transform", "load")),
    (r"^Dataloader stall \+ disk hot", ("storage",)),
    (r"^Cold-cache pattern", ("storage",)),
    (r"^Cache thrashing", ("storage",)),
    (r"^PCIe RX peaked", ("transfer",)),
)


@dataclass(frozen=True)
class Reading:
    """An answer of a tool.

    Attributes:
        words: The tool's own words, shortened.
        classes: The verdict classes that it leaves open; none if it gave no answer.
        code: The pieces of the script it names, as ``file:line``.
        tells_stages: True if its verdicts distinguish stages, so that "none" is also an answer about the stage.
    """

    words: str
    classes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    tells_stages: bool = False


@dataclass(frozen=True)
class Marks:
    cause: str
    stage: str
    code: str


def read_traceml(summary: Mapping[str, Any]) -> Reading:
    """Return the answer in a ``final_summary.json``."""
    primary = summary.get("primary_diagnosis") or {}
    words = str(primary.get("status", ""))
    if primary.get("severity") in ("warn", "crit"):
        words += " (" + {"warn": "WARNING", "crit": "CRITICAL"}[primary["severity"]] + ")"
    if primary.get("summary"):
        words += f": {primary['summary']}"
    issues = (summary.get("step_time") or {}).get("issues") or []
    # Secondary findings count as well: they may be more specific.
    return Reading(words, _narrowest([_TRACEML.get(str(issue.get("kind")), ()) for issue in issues]))


def read_gpuprof(report: Mapping[str, Any], gpu: bool) -> Reading:
    """Return the answer of ``gpuprof insights --json``."""
    titles = [str(insight["title"]) for insight in report.get("insights", ())]
    found = []
    for title in titles:
        for pattern, classes in _GPUPROF:
            if re.search(pattern, title) and (gpu or classes != ("transfer",)):
                found.append((title, classes))
    steps = int((report.get("summary") or {}).get("n_steps") or 0)
    if found:
        return Reading("; ".join(title for title, _ in found), _narrowest([classes for _, classes in found]))
    others = [title for title in titles if not title.startswith("Estimated cost")]
    words = "; ".join(others) or ("no insight but the cost" if steps else "no steps seen")
    return Reading(words, NONE if steps else ())


def read_pipediag(report: Mapping[str, Any]) -> Reading:
    """Return the answer in a JSON report of pipediag."""
    verdict = report.get("verdict") or {}
    stage = str(verdict.get("bottleneck", ""))
    culprit = verdict.get("culprit") or {}
    place = str(culprit.get("where") or "")
    words = stage
    starved = (verdict.get("starved") or {}).get("value")
    if starved is not None:
        words += f", waits {100 * starved:.0f} % of a step"
    if culprit.get("name"):
        words += f": {culprit['name']}" + (f" {place}" if place else "")
    classes = (stage,) if stage in (*STARVED, *NONE) else ()
    return Reading(words, classes, (place,) if place else (), tells_stages=True)


def mark(reading: Reading, right: Sequence[str], lines: Sequence[int], library: str = "") -> Marks:
    """Mark an answer about a case.

    Args:
        reading: What the tool says.
        right: The verdict classes that are right about the case.
        lines: The script's lines with the planted code; empty if there is no code to name.
        library: The package of the planted code; its own file is then a right place too.
    """
    code = SILENT
    if lines and reading.code:
        places = {f"{SCRIPT}:{line}" for line in lines}
        code = RIGHT if any(p in places or (library and library in p) for p in reading.code) else WRONG
    if not reading.classes:
        return Marks(SILENT, SILENT, code)
    hit = bool(set(reading.classes) & set(right))
    starved = "none" not in right
    level = hit or ("none" not in reading.classes) == starved
    cause = RIGHT if level else WRONG
    if reading.classes == STARVED:  # the level alone: no stage was named
        return Marks(cause, SILENT, code)
    if hit:
        return Marks(cause, RIGHT, code)
    # "Not the input" names no stage, unless the tool could have named one.
    return Marks(cause, WRONG if reading.tells_stages or "none" not in reading.classes else SILENT, code)


def _narrowest(answers: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Combine several findings into the classes that they leave open.

    A finding about the input outweighs one that includes "none", and a stage outweighs the input as a whole.
    """
    about_input = [classes for classes in answers if classes and "none" not in classes]
    if about_input:
        stages = tuple(stage for stage in STARVED if any(stage in c for c in about_input if c != STARVED))
        return stages or STARVED
    others = [classes for classes in answers if classes]
    return max(others, key=len) if others else ()
