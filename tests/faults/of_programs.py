"""Faults of programs that use pipediag: around a loop, ahead of it, and in place of its samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .fault import AS_ANYBODY, GIVEN, PROGRAMS, TRAINS, Fault, pipediag
from .files import at, denied_folder

# Programs

#: As a plain loader says it: a worker may die between sending a batch and sending the memory that it lies in.
_OF_DEAD_WORKER = "ended: (RuntimeError|EOFError|FileNotFoundError|Connection.*Error)"


def program(command: str, kind: str, moment: str, says: str, *more: str, code: int = 0) -> Fault:
    argv = (sys.executable, PROGRAMS, command, f"--fault={kind}", f"--at={moment}", *more)
    return Fault(kind, command, moment or "training", argv, code, says)


def rows() -> Iterator[Fault]:
    """Every fault of this kind."""
    raised = [
        ("raises", "ended: LookupError: the planted error"),
        ("memory-error", "ended: MemoryError: the planted shortage"),
        ("frozen-error", "ended: FrozenError: the planted error"),
        ("exit-3", "ended: SystemExit: 3"),
    ]
    # diagnose
    for moment in ("first-batch", "settling", "window", "device"):
        yield program("diagnose", "raises", moment, raised[0][1])
    for kind, says in raised[1:]:
        yield program("diagnose", kind, "window", says)
    yield program("diagnose", "interrupted", "first-batch", "ended: KeyboardInterrupt")
    yield program("diagnose", "interrupted", "window", "diagnosed: interrupted")
    yield program("diagnose", "forks", "window", "diagnosed: ")
    for kind, says in (
        ("dataset-raises", "ended: LookupError"),
        ("dataset-none", "ended: TypeError"),
        ("worker-killed", _OF_DEAD_WORKER),
        ("worker-os-exit", "ended: RuntimeError"),
    ):
        for moment in ("first-batch", "window"):
            yield program("diagnose", kind, moment, says)
    for kind, code in (("os-exit", 5), ("SIGTERM", -15)):
        yield program("diagnose", kind, "window", "", code=code)
    yield program("diagnose", "raises", "training", "LookupError: the planted error", "--uncaught", code=1)
    # What works ahead of a loop
    for command in ("offload", "StagePipeline", "cache"):
        for moment in ("first-batch", "training", "second-epoch"):
            yield program(command, "raises", moment, raised[0][1])
        yield program(command, "exit-3", "training", raised[-1][1])
        yield program(command, "interrupted", "training", "ended: KeyboardInterrupt")
        for kind in ("early-break", "iterator-dropped", "loader-dropped", "two-iterators", "kept-to-the-end"):
            yield program(command, kind, "", "batches: ")
        yield program(command, "forks", "training", "batches: ")
        yield program(command, "dataset-raises", "training", "ended: LookupError")
        yield program(command, "worker-killed", "training", _OF_DEAD_WORKER)
        yield program(command, "killed", "training", "", code=-9)
    yield program("offload", "dataset-raises", "certification", "batches: 40")
    yield program("offload", "worker-killed", "certification", "batches: 40")
    for moment in ("first-stage", "stage"):
        yield program("StagePipeline", "raises", moment, raised[0][1])
    yield program("cache", "cache-removed", "second-epoch", "batches: 40")
    yield program("cache", "cache-damaged", "second-epoch", "batches: 40")
    for wrong, says in {
        "diagnose-number": "UsageError: diagnose.. needs a DataLoader or an iterable of batches, not int",
        "diagnose-no-function": "UsageError: diagnose.. needs a function of a batch, not int",
        "diagnose-nan": "UsageError: budget",
        "diagnose-text": "UsageError: budget",
        "diagnose-empty": "NothingMeasured: no step was seen: the loader is empty",
        "offload-list": "UsageError: offload.. takes a torch DataLoader, not list",
        "offload-device": "UsageError: there is no CUDA device|UsageError|device",
        "pipeline-stage": "UsageError: a stage is a callable that takes a batch, not int",
        "pipeline-depth": "UsageError: depth",
        "pipeline-statistics": "UsageError: .*train mode",
        "cache-list": "UsageError: cache.. takes a torch DataLoader, not list",
        "cache-nbytes": "UsageError: nbytes",
        "cache-file": "UsageError: results cannot be kept in",
        "cache-proc": "UsageError: results cannot be kept in /proc/none",
    }.items():
        command = {"pipeline": "StagePipeline"}.get(name := wrong.partition("-")[0], name)
        argv = (sys.executable, PROGRAMS, command, f"--wrong={wrong}")
        yield Fault(f"argument {wrong.partition('-')[2]}", command, "start", argv, 1, says)
    for kind, lays, within, says in (
        ("cache folder of somebody else", denied_folder, AS_ANYBODY, "results cannot be kept|moved"),
        ("cache folder is a file", at("model.pt"), (), "results cannot be kept|moved"),
    ):
        argv = pipediag("run", "--cache-dir", GIVEN, TRAINS, "--vision", "--steps=20")
        yield Fault(kind, "run", "start", argv, 0, says, lays=lays, within=within)
