"""Does the word hold where the truth is exact, for loops with workers? See :mod:`.simulated`, and :mod:`.machine`.

python -m benchmarks.word.simulated_workers            # 40 loops of each kind
python -m benchmarks.word.simulated_workers --loops 200 --seed 7 --kinds even epochs
python -m benchmarks.word.simulated_workers --save     # and write results/word-simulated-workers-cpu.json

The truth comes from the same machine without pipediag: the loop as it is, the loop with batches at once, and the loop
without a stage or with more workers.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from pipediag.analysis import diagnose_session
from pipediag.analysis.amortised import with_amortised
from pipediag.analysis.diagnosis import Diagnosis
from pipediag.analysis.numbers.intervals import Interval
from pipediag.analysis.stopping import next_round
from pipediag.analysis.thresholds import GATE
from pipediag.errors import AnalysisOver
from pipediag.ladder.measurement import Measurement
from pipediag.measure.schedule import Plan
from pipediag.session import Session

from .machine import Machine
from .simulated import BATCH, BUDGET, main, said

#: Points outside the truth that an interval may lie, the cost in percent above which "none" is wrong, and the factor by
#: which a predicted gain may be off.
OUTSIDE, NONE, OFF = 3.0, 8.0, 1.2

#: Steps and seconds after which the pace of a loop is known.
_STEPS, _SECONDS = 3000, 400.0
#: Stages of a worker, which a loop can be without.
STAGES = ("load", "transform", "collate", "ipc")


@dataclass
class Loop:
    """An invented training loop with workers. Functions give seconds, of a step or a sample by its number.

    Attributes:
        step: of the training process on a core, and ``device`` while it waits for a device.
        load, first, second: of the dataset's code for a sample, and of its two transforms.
        disk: of the dataset's code for a sample, without a core.
        collate: of a batch.
        handing: of the training process to get a batch.
        starting: of a worker before it begins.
        foreign: returns how many other processes want a core at a time, and until when.
    """

    FAULTS: ClassVar = ("share", "stage", "stage's gain", "workers' gain")

    kind: str
    note: str
    seed: int
    workers: int
    prefetch: int
    in_order: bool
    cores: float
    epoch: int  # batches
    step: Callable[[int, random.Random], float]
    device: Callable[[int, random.Random], float]
    load: Callable[[int, random.Random], float]
    disk: Callable[[int, random.Random], float]
    first: float
    second: float
    collate: float
    handing: float = 0.0
    starting: float = 0.05
    persistent: bool = True
    foreign: Callable[[], Callable[[float], tuple[float, float]]] | None = None
    known: dict[Any, float] = field(default_factory=dict)

    def machine(self) -> Machine:
        machine = Machine(self.cores, self.foreign() if self.foreign else None)
        context = machine.context
        context.starting, context.launching, context.handing = self.starting, 0.002, self.handing
        return machine

    def loader(self, machine: Machine, workers: int, without: str = "") -> DataLoader[Any]:
        data = _Data(self, machine, without)
        return DataLoader(
            data,
            BATCH,
            shuffle=True,
            num_workers=workers,
            prefetch_factor=self.prefetch,
            in_order=self.in_order,
            persistent_workers=self.persistent,
            multiprocessing_context=machine.context,
            collate_fn=_Collate(self, machine, without),
            generator=torch.Generator().manual_seed(self.seed),
        )

    def train(self, machine: Machine, number: int, draw: random.Random) -> None:
        machine.work(self.step(number, draw))
        if device := self.device(number, draw):
            machine.sleep(device)

    def analysed(self) -> Diagnosis:
        machine, draw = self.machine(), random.Random(self.seed)
        session = Session(environment={"cores": self.cores, "cpus": int(self.cores)}, device={"type": "cpu"})
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        with machine.installed():
            measurement = Measurement(Plan(budget=BUDGET), session, lambda *_: None, next_round, machine)
            number = 0
            try:
                with measurement.installed():
                    loader = self.loader(machine, self.workers)
                    while True:
                        for batch in loader:
                            model(batch).sum().backward()
                            optimizer.step()
                            self.train(machine, number, draw)
                            number += 1
            except AnalysisOver:
                pass
        return diagnose_session(session)

    def pace(self, workers: int | None = None, without: str = "") -> float:
        """Return the seconds of a step without pipediag, the starts of epochs included."""
        key = workers, without
        if key not in self.known:
            machine, draw = self.machine(), random.Random(self.seed + 1)
            if without == "ipc":
                machine.context.handing = 0.0
            with machine.installed():
                batches: Any = range(1000)
                if without != "data":
                    batches = self.loader(machine, workers or self.workers, without)
                self.known[key] = self._trained(machine, batches, draw)
                del batches  # its workers end while the machine runs
        return self.known[key]

    def _trained(self, machine: Machine, batches: Any, draw: random.Random) -> float:
        """Return the seconds of a step, after the first epoch."""
        began, steps = 0.0, 0
        while not began or (steps < _STEPS and machine.now() - began < _SECONDS):
            for number, _ in enumerate(batches, steps):
                self.train(machine, number, draw)
            if began:
                steps += len(batches)
            else:
                began = machine.now()
        return (machine.now() - began) / steps

    @cached_property
    def truth(self) -> tuple[float, float]:
        """The least and the largest share of the time that data costs, in percent: they are the same."""
        share = 100 * (1 - self.pace(without="data") / self.pace())
        return share, share

    def faults(self, diagnosis: Diagnosis) -> dict[str, str]:
        """Return what is wrong of an answer that is called certain, by the names of :attr:`FAULTS`."""
        verdict, claim = diagnosis.verdict, claimed(diagnosis)
        if not verdict.certain or claim is None:
            return {}
        found = {}
        truth = self.truth[0]
        missed = not claim.low - OUTSIDE <= truth <= claim.high + OUTSIDE
        if missed or (verdict.bottleneck == "none" and truth > NONE):
            found["share"] = said(diagnosis)
        if verdict.bottleneck == "none":
            return found
        saved = {stage: 100 * (1 - 1 / self.gain(without=stage)) for stage in STAGES}
        if verdict.bottleneck in saved and saved[verdict.bottleneck] < max(saved.values()) - OUTSIDE:
            found["stage"] = f"{verdict.bottleneck}: " + ", ".join(f"{n} {x:.0f} %" for n, x in saved.items())
        off = []
        for piece in diagnosis.waterfall:
            names = {*piece.links} & {"_First", "_Second"} or {piece.stage}
            without = names.pop() if len(names) == 1 else "transform"
            if piece.without is None or piece.share < GATE or without not in (*STAGES, "_First", "_Second"):
                continue
            promised = piece.without.steps_per_s * diagnosis.ladder.ms("baseline").value / 1000
            if abs(math.log(promised / self.gain(without=without))) > math.log(OFF):
                off.append(f"without {without} {promised:.2f}, truly {self.gain(without=without):.2f}")
        if off:
            found["stage's gain"] = "; ".join(off)
        for one in diagnosis.recommendations:
            number = re.match(r"num_workers=(\d+)", one.title)
            if number and one.predicted is not None:
                truly = self.gain(workers=int(number[1]))
                if abs(math.log(one.predicted.value / truly)) > math.log(OFF):
                    low, high = one.predicted.low, one.predicted.high
                    found["workers' gain"] = (
                        f"{one.title}: {one.predicted.value:.2f} ({low:.2f} to {high:.2f}), {truly:.2f}"
                    )
        return found

    def gain(self, **change: Any) -> float:
        return self.pace() / self.pace(**change)


class _Data(Dataset[Any]):
    def __init__(self, loop: Loop, machine: Machine, without: str) -> None:
        self._loop, self._machine, self._without, self._made = loop, machine, without, itertools.count(1)
        self._draw = random.Random(loop.seed + 2)
        self.first = _First(machine, loop.first if without not in ("_First", "transform") else 0.0)
        self.second = _Second(machine, loop.second if without not in ("_Second", "transform") else 0.0)

    def __len__(self) -> int:
        return self._loop.epoch * BATCH

    def __getitem__(self, index: int) -> Any:
        sample = self._read(index)
        return self.second(self.first(sample))

    def _read(self, index: int) -> Any:
        made, machine, loop = next(self._made), self._machine, self._loop
        if self._without != "load":
            machine.work(loop.load(made, self._draw))
            if seconds := loop.disk(made, self._draw):
                machine.sleep(seconds)
        return torch.full((3,), float(index))


class _Transform:
    def __init__(self, machine: Machine, seconds: float) -> None:
        self._machine, self._seconds = machine, seconds

    def __call__(self, sample: Any) -> Any:
        self._machine.work(self._seconds)
        return sample + 1


class _First(_Transform):
    pass


class _Second(_Transform):
    pass


class _Collate:
    def __init__(self, loop: Loop, machine: Machine, without: str) -> None:
        self._machine, self._seconds = machine, loop.collate if without != "collate" else 0.0

    def __call__(self, samples: Any) -> Any:
        self._machine.work(self._seconds)
        return torch.stack(samples)


def invented(kind: str, seed: int) -> Loop:
    """Return a loop of a kind of :data:`KINDS`, the same one for the same seed."""
    draw = random.Random(f"{kind} {seed}")
    workers, prefetch = draw.choice([1, 2, 3, 4, 6, 8, 12, 16]), draw.choice([1, 2, 2, 2, 4, 8])
    step, late = draw.choice([0.01, 0.02, 0.05, 0.1]), draw.choice([0.1, 0.5, 0.85, 0.95, 1.05, 1.2, 1.6, 3.0])
    on_device, on_disk, spread = draw.choice([0.0, 0.0, 0.7]), draw.random() < 0.4, draw.choice([0.05, 0.05, 0.4])
    weights = [draw.random() ** 2 + 0.01 for _ in range(4)]
    loading, first, second, collating = (late * step * workers * weight / sum(weights) for weight in weights)

    def varied(seconds: float, by: float) -> Callable[[int, random.Random], float]:
        if not seconds:
            return lambda number, draw: 0.0
        return lambda number, draw: seconds * math.exp(draw.gauss(0, by) - by * by / 2)

    loop = Loop(
        kind,
        f"{workers} workers, {1000 * step:g} ms, supply {late:g} of it",
        seed,
        workers,
        prefetch,
        draw.random() < 0.8,
        float(workers + 4),
        1000,
        varied((1 - on_device) * step, 0.04),
        varied(on_device * step, 0.01),
        varied(0.0 if on_disk else loading / BATCH, spread),
        varied(loading / BATCH if on_disk else 0.0, spread),
        first / BATCH,
        second / BATCH,
        collating,
    )
    plain, load = loop.step, loop.load
    if kind == "crowded":  # fewer cores than the processes want
        loop.cores = float(max(1, round((workers + 1) * draw.choice([0.25, 0.5, 0.8]))))
        loop.note += f", {loop.cores:g} cores"
    elif kind == "load":  # other processes come and go
        loop.cores, wanted = float(draw.choice([workers + 1, workers + 4])), draw.choice([0.3, 0.7, 1.5])
        loop.foreign = lambda: _coming(draw.getstate(), wanted * loop.cores)
        loop.note += f", {loop.cores:g} cores, at times {wanted:g} as many wanted by others"
    elif kind == "uneven":  # steps of lengths that vary at random
        by = draw.choice([0.3, 0.6])
        loop.step, loop.note = varied((1 - on_device) * step, by), f"{loop.note}, spread {by:g}"
    elif kind == "checkpoints":  # every so many steps, a long one
        every, part = draw.choice([20, 50, 100, 200]), draw.choice([0.1, 0.25, 0.5])
        long = step * every * part / (1 - part)
        loop.step = lambda number, draw: plain(number, draw) + long * (number % every == every - 1)
        loop.note += f", {part:.0%} every {every}"
    elif kind in ("rare", "stalls"):  # some samples take far longer, by chance or every so many batches
        every, part = draw.choice([10, 20, 50, 100, 200]) * BATCH, draw.choice([0.1, 0.3, 0.5])
        long = step * max(1.0, late) * every / BATCH * part / (1 - part) * draw.choice([1, workers])
        if kind == "rare":
            loop.load = lambda number, draw: load(number, draw) + long * (draw.random() < 1 / every)
        else:
            loop.load = lambda number, draw: load(number, draw) + long * (number % every == 0)
        loop.note += f", {long:.2g} s in one of {every} samples"
    elif kind == "warming":  # the first samples take longer
        times, until = draw.choice([2, 5]), draw.choice([20, 60]) * BATCH
        loop.load = lambda number, draw: load(number, draw) * (times if number < until else 1)
        loop.note += f", {until} samples {times} times as long"
    elif kind == "handing":  # taking a batch costs the training process time
        loop.handing = step * draw.choice([0.02, 0.05, 0.1, 0.3])
        loop.note += f", {1000 * loop.handing:.2g} ms to take it"
    elif kind == "epochs":  # short ones, whose start counts
        loop.epoch, loop.persistent = draw.choice([8, 20, 60, 200]), draw.random() < 0.3
        loop.starting = draw.choice([0.02, 0.2, 1.0, 3.0])
        loop.note += f", epochs of {loop.epoch}, start {loop.starting:g} s" + ", kept" * loop.persistent
    return loop


def _coming(state: Any, wanted: float) -> Callable[[float], tuple[float, float]]:
    draw, there = random.Random(), [False]
    draw.setstate(state)

    def load(now: float) -> tuple[float, float]:
        there[0] = not there[0]
        return wanted * there[0], now + draw.uniform(1, 8)

    return load


KINDS = (
    "even", "crowded", "load", "uneven", "handing", "warming", "epochs", "checkpoints", "rare", "stalls",
)  # fmt: skip


def claimed(diagnosis: Diagnosis) -> Interval | None:
    """Return the share of the time that data costs, in percent, the starts of epochs included."""
    starved = diagnosis.verdict.starved
    if starved is None:
        return None
    return with_amortised(starved, diagnosis.ladder.ms("baseline").value, diagnosis.between_steps).times(100)


if __name__ == "__main__":
    main(__doc__, "word-simulated-workers", KINDS, invented)
