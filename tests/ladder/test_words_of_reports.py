"""The words of the screen: the instrument's own names are not on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.summary import summarise
from pipediag.analysis.sweep import Run, Sweep
from pipediag.ladder.caches import WRITES_IN_PLACE
from pipediag.ladder.settling import NOTHING_TO_MOVE
from pipediag.ladder.windows import TOO_LARGE
from pipediag.report import Subject, screen
from pipediag.session import (
    CONTROLS,
    DECODED,
    HANDED_OVER,
    LOADED_ONCE,
    REMEDIED,
    REMEDIES,
    RUNGS,
    Keeping,
    Place,
    Remedy,
    Session,
    Startup,
    Window,
    received,
)

from ..made import FLAT, blocks, climbing, inside, job, make, torchvisions, views, waits, without
from ..report.test_reports import SESSIONS

NOT_ON_A_SCREEN = re.compile(
    r"\b(rungs?|ladders?|warm|raw|supply|supplies|remedy|remedies|remedied|certificates?|loaded-once|knobs?|intervened"
    r"|ipc)\b",
    re.IGNORECASE,
)
#: A ladder in which one stage costs a lot, for each stage; with workers' times and without.
COSTLY = {rung: climbing(**{rung: 60.0}) for rung in RUNGS[1:]}
CONTENTION = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 90.0}


def tried(rung: str, gain: float, **fields: Any) -> Session:
    """A session in which one remedy was tried."""
    session = make(climbing(raw=60.0), noise=0.0)
    remedy = Remedy(device="cuda", moved=[Place("Crop", "aug.py:1")], **fields)
    setattr(session, REMEDIES[rung], remedy)
    for round_ in range(10, 16):
        session.windows += [Window("baseline", round_, 10, 1.0, 10), Window(rung, round_, 10, 1.0 / gain, 10)]
    return session


def warned() -> Session:
    session = make(without(climbing(raw=60.0), "sample"), workers=8, environment={"cores": 4})
    session.script.passes, session.script.wrote = 3, ["model.pt"]
    for rung in ("raw", "supply", REMEDIED):
        session.warn("script-failed", f"the loop failed on {received(rung)}: ValueError: no")
    return session


def sessions() -> Iterator[Session]:
    for made in SESSIONS.values():
        yield made()
    for ladder in (*COSTLY.values(), CONTENTION, FLAT):
        for device in ("cuda", "cpu"):
            yield make(ladder, device=device)
            yield make(ladder, device=device, workers=0)
            yield make(ladder, rounds=1, noise=0.1, evidence=waits(30.0, 2.0, worker_ms=300.0), inside=inside(3.0, 2.0))
        chain = views(torchvisions(inside(0.2, 0.3), "ColorJitter", "Normalize", given="picture"), 10)
        seen = waits(40.0, 1.0, worker_ms=400.0, worker_cpu=0.9, worker_blocked=0.1, cores_busy=15.9, cores_used=9.0)
        yield make({**ladder, "supply": 20.0}, evidence=seen, inside=chain, environment={"cores": 16})
    yield make({}, observed=blocks(3, 100.0, 50.0))
    yield make(FLAT, length=20, startups=[Startup(9.0, launch=1.0, ready=8.0)] * 2)
    yield Session()
    yield warned()
    yield job(2)
    for rung in (REMEDIED, DECODED, LOADED_ONCE, HANDED_OVER):
        keeping = Keeping("kept", 10, 100) if rung == LOADED_ONCE else None
        for gain in (0.8, 1.0, 2.0):
            yield tried(rung, gain, keeping=keeping)
        yield tried(rung, 1.0, why_not="nothing can move")
    for rung in (*RUNGS[1:-1], *CONTROLS):
        for why in (NOTHING_TO_MOVE, TOO_LARGE, ""):
            yield make(without(climbing(raw=60.0), rung), unavailable={rung: why} if why else {})


def subjects() -> Iterator[Subject]:
    found = [*map(diagnose_session, sessions())]
    for diagnosis in found:
        yield diagnosis
        yield audit(diagnosis)
        yield compare(found[0], diagnosis)
    runs = [Run((("--batch", str(n)),), ["train.py"], diagnosis) for n, diagnosis in enumerate(found)]
    yield Sweep("train.py", len(runs), runs)


def test_the_instruments_names_are_not_on_a_screen() -> None:
    """However many lines it has; the screens of all subjects together have hundreds of different lines."""
    lines = set[str]()
    for subject in subjects():
        lines |= {*screen.write(summarise(subject), width=100, max_lines=None).splitlines()}
    assert len(lines) > 500
    assert sorted(line for line in lines if NOT_ON_A_SCREEN.search(line)) == []


@pytest.mark.parametrize("rung", [*RUNGS, *CONTROLS, *REMEDIES, "transform:1", "transform:3", "settings:2"])
def test_what_the_loop_receives_is_told_without_them(rung: str) -> None:
    assert not NOT_ON_A_SCREEN.search(received(rung))


def test_messages_about_what_cannot_be_measured() -> None:
    told = [NOTHING_TO_MOVE, TOO_LARGE, WRITES_IN_PLACE["message"]]
    assert not [text for text in told if NOT_ON_A_SCREEN.search(text)]
