"""Does the word hold where the truth is exact? Whole analyses of invented loops, on a clock that only their work moves.

python -m benchmarks.word.simulated                    # 40 loops of each kind; some minutes
python -m benchmarks.word.simulated --loops 200 --seed 7 --kinds stalls uneven
python -m benchmarks.word.simulated --save             # and write results/word-simulated-cpu.json

The loops have no workers, so no process is started and each sample takes what its kind says. Everything else is as in
an analysis: the ladder, its schedule, the account of a step, the verdict. An answer that is called certain is wrong if
its interval lies more than three points outside the truth, or if it says "none" of a cost of more than 8 %.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from tabulate import tabulate
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pipediag import clock as clocks
from pipediag.analysis import diagnose_session
from pipediag.analysis.diagnosis import Diagnosis
from pipediag.analysis.stopping import next_round
from pipediag.errors import AnalysisOver
from pipediag.ladder.measurement import Measurement
from pipediag.measure.account import Counters, Times
from pipediag.measure.evidence import Evidence
from pipediag.measure.schedule import Plan
from pipediag.session import Session

from .. import common

RUNGS = ["device", "host", "sample", "raw", "baseline", "longer"]
BATCH, BUDGET, CORES = 4, 120.0, 2.0
#: Points outside the truth that an interval may lie, and the cost in percent above which "none" is wrong.
_OUTSIDE, _NONE = 3.0, 8.0


@dataclass
class World:
    """A machine: its clock, the thread that trains, and other processes that slow its work down.

    ``slower`` returns how many times as long work takes now.
    """

    seconds: float = 100.0
    cpu: float = 0.0
    queue: float = 0.0
    busy: float = 0.0  # core seconds of all processes
    cores: float = CORES
    slower: Callable[[float], float] = lambda now: 1.0

    def now(self) -> float:
        self.seconds += 1e-7  # two events are never at the same time
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def work(self, seconds: float) -> None:
        times = self.slower(self.seconds)
        self.cpu += seconds
        self.queue += seconds * (times - 1)
        self.seconds += seconds * times
        self.busy += seconds * times * min(self.cores, times)

    def counted(self) -> tuple[float, float, float]:
        """Return the core seconds of all processes, of the one that trains, and of those of the loop."""
        return self.busy, self.cpu, self.cpu

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let pipediag read this machine's clocks and counters."""
        machine = self

        def begin(evidence: Any, *_: Any) -> None:
            evidence.began = machine.now(), *machine.counted()

        def finish(evidence: Any, steps: int) -> dict[str, float]:
            ended = machine.now(), *machine.counted()
            seconds, busy, own, used = (b - a for a, b in zip(evidence.began, ended, strict=True))
            took = max(1e-9, seconds)
            figures = {"process_cpu": own / took, "cores_used": used / took}
            return {**figures, "cores_busy": min(machine.cores, max(used, busy) / took)}

        clock: dict[str, Callable[[], float]] = dict.fromkeys(("perf_counter", "monotonic"), self.now)
        clock |= dict.fromkeys(("thread_time", "process_time"), lambda: machine.cpu)
        with ExitStack() as undo:
            for name, function in clock.items():
                undo.enter_context(patch.object(clocks.time, name, function))
            undo.enter_context(patch.object(Counters, "here", lambda _: Times(machine.cpu, machine.queue)))
            undo.enter_context(patch.object(Counters, "others", lambda _: {}))
            undo.enter_context(patch.object(Counters, "steal", lambda _: 0.0))
            undo.enter_context(patch.object(Evidence, "__init__", begin))
            undo.enter_context(patch.object(Evidence, "finish", finish))
            yield


@dataclass
class Loop:
    """An invented training loop: seconds of its steps and of its samples, by their number.

    Attributes:
        truth: the least and the largest share of its time that its data costs, in percent.
        epoch: samples of an epoch.
    """

    FAULTS: ClassVar = ("certain and wrong",)

    kind: str
    step: Callable[[int], float]
    sample: Callable[[int], float]
    truth: tuple[float, float]
    note: str
    epoch: int = 4000
    world: World = field(default_factory=World)

    def analysed(self) -> Diagnosis:
        world, session = self.world, Session(environment={"cores": CORES, "cpus": int(CORES)}, device={"type": "cpu"})
        loader = DataLoader(_Data(self), BATCH, shuffle=True)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        with world.installed():
            measurement = Measurement(Plan(budget=BUDGET, rungs=RUNGS), session, lambda *_: None, next_round, world)
            steps = 0
            try:
                with measurement.installed():
                    while True:
                        for batch in loader:
                            model(batch).sum().backward()
                            optimizer.step()
                            world.work(self.step(steps))
                            steps += 1
            except AnalysisOver:
                return diagnose_session(session)

    def wrong(self, diagnosis: Diagnosis) -> bool:
        """Return whether a certain answer is wrong."""
        verdict, (least, most) = diagnosis.verdict, self.truth
        if not verdict.certain or verdict.starved is None:
            return False
        low, high = 100 * verdict.starved.low, 100 * verdict.starved.high
        missed = high < least - _OUTSIDE or low > most + _OUTSIDE
        return missed or (verdict.bottleneck == "none" and least > _NONE)

    def faults(self, diagnosis: Diagnosis) -> dict[str, str]:
        """Return what is wrong of an answer, by the names of :attr:`FAULTS`."""
        return {self.FAULTS[0]: said(diagnosis)} if self.wrong(diagnosis) else {}


class _Data(Dataset[Any]):
    def __init__(self, loop: Loop) -> None:
        self.loop, self.made = loop, 0

    def __len__(self) -> int:
        return self.loop.epoch

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        self.loop.world.work(self.loop.sample(self.made))
        return torch.full((3,), float(index))


def invented(kind: str, seed: int) -> Loop:
    """Return a loop of a kind of :data:`KINDS`, the same one for the same seed."""
    draw = random.Random(f"{kind} {seed}")
    step, share = draw.choice([0.01, 0.02, 0.05]), draw.choice([0.0, 0.01, 0.08, 0.3, 0.6])
    sample = step * share / (1 - share) / BATCH
    loop = Loop(
        kind,
        lambda number: step * draw.gauss(1, 0.04),
        lambda number: max(0.0, sample * draw.gauss(1, 0.08)),
        (0.0, 0.0),
        f"{1000 * step:g} ms, {share:.0%}",
        draw.choice([400, 4000]),
    )
    steps, samples = step, sample
    if kind == "checkpoints":  # every so many steps, a long one
        every, part = draw.choice([20, 50, 100, 200]), draw.choice([0.1, 0.25, 0.5])
        long = step * every * part / (1 - part)
        plain = loop.step
        loop.step = lambda number: plain(number) + long * (number % every == every - 1)
        steps, loop.note = step + long / every, f"{loop.note}, {part:.0%} every {every}"
    elif kind == "stalls":  # every so many batches, a long one, as where a shard is opened
        every, part = draw.choice([20, 50, 100, 200]), draw.choice([0.08, 0.15, 0.3, 0.5])
        long = (step + BATCH * sample) * every * part / (1 - part)
        each = loop.sample
        loop.sample = lambda number: each(number) + long * (number % (every * BATCH) == 0)
        samples, loop.note = sample + long / every / BATCH, f"{loop.note}, {part:.0%} every {every}"
    elif kind == "rare":  # some samples are far longer
        chance, part = draw.choice([1 / 50, 1 / 200, 1 / 1000]), draw.choice([0.1, 0.3, 0.5])
        long = (step + BATCH * sample) * part / (1 - part) / BATCH / chance
        each = loop.sample
        loop.sample = lambda number: each(number) + long * (draw.random() < chance)
        samples, loop.note = sample + long * chance, f"{loop.note}, {part:.0%} in one of {1 / chance:g}"
    elif kind == "uneven":  # steps of lengths that vary at random
        spread = draw.choice([0.3, 0.6, 1.0])
        loop.step = lambda number: step * math.exp(draw.gauss(0, spread) - spread * spread / 2)
        loop.note = f"{loop.note}, spread {spread:g}"
    elif kind == "load":  # other processes use the cores, from time to time
        times, until = draw.choice([1.3, 2.0, 3.0]), [0.0, 1.0]

        def slower(now: float) -> float:
            if now > until[0]:
                until[:] = now + draw.uniform(1, 8), times if until[1] == 1.0 else 1.0
            return until[1]

        loop.world.slower = slower
        loop.note = f"{loop.note}, at times {times:g} times as long"
    truth = 100 * BATCH * samples / (BATCH * samples + steps)
    loop.truth = (truth, truth)
    return loop


KINDS = ("steady", "load", "checkpoints", "uneven", "rare", "stalls")


def main(
    told: str | None = __doc__,
    name: str = "word-simulated",
    kinds: Sequence[str] = KINDS,
    invent: Callable[[str, int], Any] = invented,
) -> None:
    """Analyse loops that ``invent`` returns for a kind and a number, and print how many certain answers are wrong."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=40, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=kinds)
    parser.add_argument("--save", action="store_true", help="write the table into the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for kind in args.kinds:
        row = dict[str, Any](kind=kind, loops=args.loops, certain=0)
        for number in range(1000 * args.seed, 1000 * args.seed + args.loops):
            loop = invent(kind, number)
            diagnosis = loop.analysed()
            row["certain"] += diagnosis.verdict.certain
            found = loop.faults(diagnosis)
            row |= {fault: row.get(fault, 0) + (fault in found) for fault in loop.FAULTS}
            for what in found.values():
                print(f"{kind} {number} ({loop.note}): {what}; truth {loop.truth[0]:.0f} %", flush=True)
        rows.append(row)
    print(tabulate(rows, "keys"))
    if args.save:
        print(common.save(name, {"budget": BUDGET, "seed": args.seed, "kinds": rows}, common.RESULTS))


def said(diagnosis: Diagnosis) -> str:
    verdict = diagnosis.verdict
    assert verdict.starved is not None
    low, high = 100 * verdict.starved.low, 100 * verdict.starved.high
    return f"{verdict.bottleneck}, {100 * verdict.starved.value:.0f} % ({low:.0f} to {high:.0f})"


if __name__ == "__main__":
    main()
