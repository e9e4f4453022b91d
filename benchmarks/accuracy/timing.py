"""Make scripts time themselves: marks in a training loop, and the lines that replace them in the timed form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .cases import Case

BEFORE_LOOP = "#@ before the loop"
BEFORE_EPOCH = "#@ before an epoch"
AFTER_NEXT = "#@ after next()"
AFTER_STEP = "#@ after a step"
#: Minimum seconds of a stretch, or the minimum steps of one with fewer seconds.
SECONDS, STEPS, AT_LEAST = 4.0, 30, 1.5


@dataclass(frozen=True)
class Timed:
    """The output of a timed script: milliseconds per step, and how much of that it waited in ``next()``."""

    ms: float
    waited_ms: float
    steps: int


def strip(body: str) -> str:
    """Return the script without marks."""
    return re.sub(r"^ *#@ .*\n", "", body, flags=re.MULTILINE)


def insert(case: Case, body: str) -> str:
    """Return the script with its timing: whole epochs if they are short, else a stretch after a warm-up."""
    left = ["left = time.perf_counter()"]
    if case.epoch:
        before_epoch = [*_clock(case, "epoch == 1", "epoch > 1"), *left]
        after_step = ["steps += 1", *left]
    else:
        warmup = 4 + 4 * case.workers
        # Workers that started together deliver in bursts: only whole rounds of them are counted.
        whole = f"steps > {warmup} and (steps - {warmup}) % {max(1, case.workers)} == 0"
        before_epoch = []
        after_step = ["steps += 1", *_clock(case, f"steps == {warmup}", whole), *left]
    blocks = {
        BEFORE_LOOP: ["import json, sys", "steps, first, started, waited = 0, 0, 0.0, 0.0", *left],
        BEFORE_EPOCH: before_epoch,
        AFTER_NEXT: ["waited += time.perf_counter() - left"],
        AFTER_STEP: after_step,
    }
    for mark, lines in blocks.items():
        body = _fill(body, mark, lines)
    return body


def _clock(case: Case, begins: str, may_end: str) -> list[str]:
    synchronize = ["torch.cuda.synchronize()"] if case.gpu else []
    return [
        f"if {begins}:",
        *(f"    {line}" for line in synchronize),
        "    first, started, waited = steps, time.perf_counter(), 0.0",
        f"elif {may_end}:",
        "    elapsed = time.perf_counter() - started",
        f"    if elapsed > {SECONDS} or (elapsed > {AT_LEAST} and steps - first >= {STEPS}):",
        *(f"        {line}" for line in synchronize),
        "        scale = 1000 / (steps - first)",
        "        elapsed = time.perf_counter() - started",
        '        print(json.dumps({"ms": elapsed * scale, "waited_ms": waited * scale, "steps": steps - first}))',
        "        sys.exit()",
    ]


def _fill(body: str, mark: str, block: list[str]) -> str:
    def lines(found: re.Match[str]) -> str:
        return "".join(f"{found.group(1)}{line}\n" for line in block)

    return re.sub(rf"^( *){re.escape(mark)}\n", lines, body, flags=re.MULTILINE)


def read(output: str) -> Timed:
    """Return the figures that the timed script printed last."""
    return Timed(**json.loads(output.strip().splitlines()[-1]))
