"""Find the trainings that run on this machine: processes with torch that have a GPU or loader workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from ..analysis.words import counted
from ..errors import PipediagError
from ..host.script import PythonCommand, is_named_python
from ..measure.machine import Gpu
from ..session.private import masked

#: Variables in which launchers tell a process its rank and the number of ranks, and what tells one job from another.
_RANK, _WORLD = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
#: Digits that no number of ranks has.
_DIGITS = 10
#: Words of a command that helps others: it makes no batches.
_HELPS = ("resource_tracker", "semaphore_tracker", "compile_worker")
#: Words of the commands that start multiprocessing's processes. A process that is forked has its parent's command.
_FORKS, _SPAWNS = "multiprocessing.forkserver import main", "multiprocessing.spawn import spawn_main"


@dataclass(frozen=True)
class Training:
    """One process that trains."""

    pid: int
    #: The script and its arguments, or ``-m``, the module and its arguments; of a rank, those of its launcher.
    argv: tuple[str, ...] = ()
    folder: str = ""  # its working directory; "" if unknown
    gpus: tuple[Gpu, ...] = ()  # those that NVML says it computes on
    on_gpu: bool = False  # true if it has opened any
    rank: int | None = None  # its number in a job; None for a process that is no rank
    world_size: int = 1
    job: tuple[str, ...] = field(default=(), repr=False)  # the same for all ranks of one

    @property
    def workers(self) -> list[int]:
        """The processes below this one at present that may make its batches: multiprocessing has started them."""
        return [pid for parent, pid in _below(self.pid) if _is_worker(pid, parent)]

    @property
    def child(self) -> int | None:
        """A process below this one that may train in its place: it has workers of its own, or a GPU; None if none."""
        return next((pid for pid in self.workers if _has_gpu(pid) or Training(pid).workers), None)

    @classmethod
    def of(cls, pid: int) -> Training:
        """Return what the system says of a process; what it does not tell is empty.

        Raises:
            PipediagError: there is no such process.
        """
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise PipediagError(f"there is no process {pid}") from None
        given, folder = _environment(process), ""
        with suppress(psutil.Error, OSError):
            folder = process.cwd()
        rank, world = _number(given, _RANK), _number(given, _WORLD)
        argv, launcher = _argv(process), _argv(process.parent()) if rank is not None else ()
        launches = any(word in launcher for word in argv[:2] if word != "-m")
        job = tuple(given.get(name, "") for name in _JOB) if rank is not None else (str(pid),)
        gpus = tuple(Gpu.used_by(pid))
        return cls(
            pid, launcher if launches else argv, folder, gpus, bool(gpus) or _has_gpu(pid), rank, world or 1, job
        )


def jobs_of(pid: int | None) -> list[list[Training]]:
    """Return the job of a process or launcher, or without one all of this user's; root's are those of all users.

    Raises:
        PipediagError: there is none.
    """
    if pid is not None:
        one = Training.of(pid)
        return [_in_order([Training.of(child) for _, child in _below(pid) if _is_rank(child)] or [one])]
    own, parents = os.geteuid(), dict[int, int]()
    for process in psutil.process_iter(["ppid", "uids"]):
        uids = process.info["uids"]
        if process.pid != os.getpid() and own in (0, uids and uids.effective) and _has_torch(process.pid):
            parents[process.pid] = process.info["ppid"]
    ranks = {one for one in parents if _is_rank(one)}
    launchers = {parents[rank] for rank in ranks}
    jobs: dict[tuple[str, ...], list[Training]] = {}
    for number in parents.keys() - launchers:
        parent = parents[number]
        if number in ranks or parent not in parents.keys() - launchers or not _is_worker(number, parent):
            with suppress(PipediagError):  # it has ended
                found = Training.of(number)
                if found.on_gpu or any(map(_has_torch, found.workers)):
                    jobs.setdefault(found.job, []).append(found)
    if not jobs:
        raise PipediagError("no training of this user has a GPU or loader workers; name one: pipediag watch PID")
    return [_in_order(job) for job in jobs.values()]


def described(job: Sequence[Training]) -> str:
    """Return a job in one line, its process number first."""
    first, words = job[0], " ".join(masked(job[0].argv))
    parts = [f"{first.pid}", words if len(words) <= 80 else f"...{words[-77:]}"]
    parts += [f"{len(job)} ranks"] * (len(job) > 1)
    parts += [counted(len(first.workers), "worker")] * bool(first.workers)
    return ", ".join([*parts, *["on a GPU"] * first.on_gpu])


def _in_order(job: list[Training]) -> list[Training]:
    return sorted(job, key=lambda one: one.rank or 0)


def _is_rank(pid: int) -> bool:
    """Return whether a launcher has started a process; workers inherit a rank's variables."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        parent = process.parent()
        before = _number(_environment(parent), _RANK) if parent is not None else None
        return before is None and _number(_environment(process), _RANK) is not None
    return False


def _environment(process: psutil.Process) -> dict[str, str]:
    with suppress(psutil.Error, OSError):
        return process.environ()
    return {}


def _number(given: dict[str, str], names: Sequence[str]) -> int | None:
    """Return the first variable that is a number of ranks; the process may have been given anything."""
    numbers = (text for name in names if (text := given.get(name, "")).isdecimal())
    return next((int(text) for text in numbers if len(text) < _DIGITS), None)


def _below(pid: int) -> list[tuple[int, int]]:
    """Return the processes below another one, each after its parent. Linux may list them, else psutil reads all."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        lists = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        with suppress(psutil.Error):
            return [(one.ppid(), one.pid) for one in psutil.Process(pid).children(recursive=True)]
        return []
    found = [int(child) for text in lists for child in text.split()]
    return [*((pid, child) for child in found), *(pair for child in found for pair in _below(child))]


def _is_worker(pid: int, parent: int) -> bool:
    """Return whether multiprocessing has started a process, and not to help others, as its server of forks does.

    A program that a training runs, such as another script of its own, makes none of its batches.
    """
    command, of_parent = _command(pid), _command(parent)
    if any(map(command.count, _HELPS)) or (_FORKS in command and _FORKS not in of_parent):
        return False
    return command == of_parent or _FORKS in command or _SPAWNS in command


@cache
def _command(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def _argv(process: psutil.Process | None) -> tuple[str, ...]:
    """Return the script or module that a process runs, with its arguments; all words if it is no Python."""
    words: list[str] = []
    with suppress(psutil.Error):
        words = process.cmdline() if process is not None else []
    found = PythonCommand.of(words) if words and is_named_python(words[0]) else None
    return found.target if found is not None else tuple(words)


def _has_torch(pid: int) -> bool:
    """Return whether a process has torch's library in its memory; False if that may not be read."""
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        return any("libtorch" in line for line in maps)
    return False


def _has_gpu(pid: int) -> bool:
    """Return whether a process has opened a GPU of NVIDIA's or AMD's."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target == "/dev/kfd" or target.removeprefix("/dev/nvidia").isdecimal():
                    return True
    return False
