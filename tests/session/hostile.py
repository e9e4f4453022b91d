"""A session with something in every field, ways to damage its file, and everything done with a file that loads."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from pipediag.analysis import Diagnosis, diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.summary import summarise
from pipediag.analysis.sweep import Run, Sweep
from pipediag.report import OF_A_DIAGNOSIS, RENDERERS, read, screen
from pipediag.session import (
    DECODED,
    HANDED_OVER,
    LOADED_ONCE,
    REMEDIED,
    Apart,
    BatchStep,
    Edit,
    Elsewhere,
    Files,
    HotLine,
    Keeping,
    Kept,
    Knobs,
    LoaderSettings,
    Padding,
    Pictured,
    Place,
    Prefix,
    Profile,
    Proof,
    Remedy,
    Rung,
    Session,
    Share,
    Slow,
    Startup,
    Stretch,
    SyncCall,
    Syncs,
    Tail,
    Warning_,
    Window,
    settings_rung,
)

from ..made import blocks, climbing, cut, inside, job, leaf, make, waits

#: What a damaged file may hold in place of anything else.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 10**17, -(10**17), 10**30, 0.0, 0.5, -0.5, 1e-300, 5e-324, 1e300, 1.7e308,
    -1.7e308, float("nan"), float("inf"), "", "x", "\ud800", "\x1b[2J", "a" * 500, "baseline", "device", "transform:0",
    "transform:1", "transform:99", "transform:" + "9" * 5000, "settings:0", "settings:1", "settings:99", "remedied",
    "cuda", [], [[]], [0], [-1, 0.5], ["x"], {}, {"x": 1}, {"value": 1},
)  # fmt: skip


def full_session() -> Session:
    """A session with something in every field."""
    found = inside(8.0, 3.0, 1.0, files=Files(1.0, 1e5, {".jpg": 30}), sizes=[[1e5, 3.0], [2e5, 5.0], [3e5, 9.0]])
    found.lines = [HotLine("aug.py:11", "x = y", 0.5)]
    found.threads = {"torch": 4}
    ladder = cut(climbing(host=2.0, worker=3.0, raw=25.0, warm=20.0, baseline=5.0), (15.0, 8.0, 2.0))
    more = {"worker_ms": 412.0, "worker_cpu": 0.7, "collate_ms": 3.0, "cores_used": 4.0, "cores_busy": 4.5}
    session = make(
        {**ladder, "supply": 100.0},
        startups=[0.5, Startup(0.7, 1, 0.1, 0.3, True, 0.1)],
        evidence=waits(40.0, 2.0, process_cpu=0.9, disk_read_mb=2.0, stock=-1.0, **more),
        environment={"python": "3.11", "cores": 16, "cpus": 16, "affinity": 16, "cgroup_quota": None},
        inside=found,
        leaves=[leaf(padding=Padding(0.0, 0.3, 0.1), low=-1.0, high=1.0, levels=200), leaf("[1]", "int64", itemsize=8)],
        observed=blocks(6, 100.0, 40.0, 300.0),
    )
    session.device["name"] = "H"
    session.caches = {"held_bytes": 1 << 20, "device": 4, "host": 4, "shared": 4, "why": "memory"}
    session.batch.copy_ms, session.batch.pinned_copy_ms, session.batch.device_copy_ms = 3.0, 1.0, 0.1
    session.tail = Tail(100, 3.0, 90.0, [Slow("7", 120.0)], [1.0, 2.0, 4.0], [60, 40])
    stretch = Stretch("baseline", 1, 1, [1.0, 2.0], [1.5, 2.2], [0, 1], 3.0, [0, 1], [0.1, 0.2], [1.4, 2.1], [3.0, 3.1])
    session.stretches = [stretch]
    session.batch_steps = [BatchStep(100, [9.0, 9.1]), BatchStep(200, [19.0, 19.1]), BatchStep(300, [29.0, 29.1])]
    session.syncs = Syncs(4, [SyncCall("item", "train.py:12", "loss.item()", 1.0, 0.5, "log less")])
    session.prefix = Prefix(["encoder"], 10.0, 40.0, "train.py:9", "model")
    session.profile = Profile("t.json", 3, 50.0, 45.0, *([[Share("mm", 2.0, 9.0)]] * 3))
    session.knobs = Knobs([LoaderSettings(4, 2, True, 0.5), LoaderSettings(8, 2, False, 0.9)])
    moved, kept = [Place("B", "aug.py:20")], [Kept("A", "it is random")]
    apart = [Apart("float32", 8, 0.1, 0.2, False, True), Apart("B", 8, 1.0, 0.0, True, False)]
    proof = Proof(True, 32, 1, "why", True, apart, [Elsewhere("B", "how")], [Pictured("aa", "bb", "cc", 3.0)])
    for number, rung in enumerate((REMEDIED, DECODED, LOADED_ONCE, HANDED_OVER)):
        keeping = Keeping("decoded pictures", 1 << 30, 1 << 29) if rung == LOADED_ONCE else None
        plan = {"dataset": "D", "batch_size": 32}
        remedy = Remedy("cuda:0", moved, kept, "", proof, keeping, 1 << 20, Edit("--- a\n+++ b\n"), plan, "plan.json")
        setattr(session, ("remedy", "decoded", "loaded_once", "handoff")[number], remedy)
    for rung in (REMEDIED, DECODED, LOADED_ONCE, HANDED_OVER, settings_rung(1), settings_rung(2)):
        session.rungs[rung] = Rung(rung)
        for round_ in range(100, 108):
            seconds = 0.6 + 0.01 * (round_ % 3)
            session.windows += [Window("baseline", round_, 10, 1.0, 10), Window(rung, round_, 10, seconds, 10)]
    session.script.wrote, session.script.error = ["checkpoint.pt"], "ValueError: no"
    others = job(4)
    session.ranks, session.rank_trials, session.of_rank = others.ranks, others.rank_trials, 2
    session.ranks[1].numa_node, session.ranks[1].storage, session.ranks[1].ended = 0, "nfs", "ValueError: no"
    session.warnings = [Warning_("hung", "it hung", "budget")]
    session.ended = "settled"
    return copy.deepcopy(session)  # each fact once more: a file shares none


def damaged(data: Any, draw: random.Random, times: int) -> Any:
    """The plain data with so many values deleted, repeated, or replaced by something odd."""
    data = copy.deepcopy(data)
    for _ in range(times):
        places = list(_places(data))
        if not places:
            break
        holder, key = places[draw.randrange(len(places))]
        match draw.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 1:
                holder[str(draw.choice(ODD))[:30]] = holder[key]
            case 2 if isinstance(holder[key], (list, dict)):
                holder[key].clear()
            case 3 | 4 | 5 if isinstance(holder[key], (int, float)):
                holder[key] = holder[key] * draw.choice((-1, 0, 1e-200, 1e200, 10**6, 0.001))
            case _:
                holder[key] = copy.deepcopy(draw.choice(ODD))
    return data


def _places(data: Any) -> Any:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def file_of(data: Any, path: Path) -> str:
    path.write_text(json.dumps(data))
    return str(path)


def use(path: str, before: Diagnosis) -> None:
    """Read a session's file, and write every report about it in every format.

    Raises:
        SessionFileError: the file holds no session.
    """
    diagnosis = read(path, price=2.0)
    run = Run((("--x", "1"),), ["train.py"], diagnosis, 0, "")
    subjects = (
        diagnosis,
        audit(diagnosis, 0.05),
        compare(before, diagnosis),
        compare(diagnosis, before),
        Sweep("train.py", 1, [run]),
    )
    for subject in subjects:
        assert screen.write(summarise(subject))
        for ending, render in RENDERERS.items():
            if ending in OF_A_DIAGNOSIS and (subject is not diagnosis or not diagnosis.session.stretches):
                continue
            written = render(subject)
            assert written if isinstance(written, bytes) else written.encode()


def valid() -> Diagnosis:
    return diagnose_session(full_session(), 2.0)
