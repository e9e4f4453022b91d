"""Sessions made up from a table of milliseconds per step, for the tests of everything that reads a session."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pipediag.session import CONTROLS, RUNGS, Loader, Place, Rung, Script, Session, Startup, Window

#: A ladder on which every stage costs next to nothing.
FLAT = dict.fromkeys(RUNGS, 100.0)


def climbing(**costs: float) -> dict[str, float]:
    """A whole ladder from 50 ms of compute on; ``costs`` are milliseconds by rung, 0.2 where none is given."""
    ladder, ms = {}, 50.0
    for rung in RUNGS:
        ms += costs.get(rung, 0.0 if rung == "device" else 0.2)
        ladder[rung] = ms
    return ladder


def make(
    ladder: Mapping[str, float],
    *,
    rounds: int = 5,
    noise: float = 0.002,
    seed: int = 1,
    workers: int = 4,
    length: int | None = 1000,
    persistent: bool = False,
    startups: Sequence[float] = (),
    absent: Sequence[str] = (),
    unavailable: Mapping[str, str] | None = None,
    evidence: Mapping[str, Mapping[str, float]] | None = None,
    environment: Mapping[str, Any] | None = None,
    device: str = "cuda",
) -> Session:
    """A session in which each rung of ``ladder`` has one window a round, ``noise`` being the relative deviation.

    ``absent`` rungs have no place in the pipeline at all; ``unavailable`` ones could not be measured.
    """
    draw = random.Random(seed)
    session = Session(
        tool_version="0.0.0",
        script=Script(["train.py"], passes=1, exit_code=0),
        environment=dict(environment or {"cores": 16}),
        device={"type": device},
        loader=Loader(
            dataset="Photos",
            batch_size=32,
            num_workers=workers,
            persistent_workers=persistent,
            length=length,
            where="train.py:10",
            dataset_code=Place("Photos.__getitem__", "data.py:5"),
            transform=Place("Compose(Crop, Flip)", "data.py:40"),
            collate=Place("pad", "data.py:60"),
        ),
        startups=[Startup(seconds) for seconds in startups],
    )
    for round_ in range(rounds):
        for rung, ms in ladder.items():
            seconds = 10 * ms * max(0.1, 1 + draw.gauss(0, noise)) / 1000
            seen = dict((evidence or {}).get(rung, {}))
            session.windows.append(Window(rung, round_, 10, seconds, 10, evidence=seen))
    for rung in (*RUNGS, *CONTROLS):
        why = (unavailable or {}).get(rung, "")
        if rung in absent:
            session.rungs[rung] = Rung(rung, False, "no such stage", exists=False)
        elif why:
            session.rungs[rung] = Rung(rung, False, why)
        elif rung in ladder:
            session.rungs[rung] = Rung(rung)
    return session


def without(ladder: Mapping[str, float], *rungs: str) -> dict[str, float]:
    return {name: ms for name, ms in ladder.items() if name not in rungs}
