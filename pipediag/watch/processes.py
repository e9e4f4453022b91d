"""Find the trainings that run on this machine: processes with torch that hold a GPU or have loader workers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import psutil

from ..analysis.words import counted
from ..errors import PipediagError, UsageError
from ..host.script import PythonCommand, is_named_python
from ..measure.evidence import Gpu
from ..session.private import masked

#: Variables in which launchers tell a process its place in a job.
_RANK, _WORLD = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")


@dataclass(frozen=True)
class Training:
    """One process that trains. ``workers`` are its children that run Python with torch, ``gpus`` those it uses."""

    pid: int
    command: tuple[str, ...]
    folder: str
    workers: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    on_gpu: bool = False
    environment: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, pid: int) -> Training:
        """Return what the system says of a process; what it does not tell is empty.

        Raises:
            PipediagError: there is no such process.
        """
        try:
            process = psutil.Process(pid)
            command = tuple(process.cmdline())
        except psutil.NoSuchProcess:
            raise PipediagError(f"there is no process {pid}") from None
        except psutil.AccessDenied:
            command = ()
        folder, environment = "", dict[str, str]()
        with suppress(psutil.Error, OSError):
            folder = process.cwd()
        with suppress(psutil.Error, OSError):
            environment = process.environ()
        return cls(pid, command, folder, workers_of(pid), tuple(Gpu.used_by(pid)), _has_gpu(pid), environment)

    @property
    def rank(self) -> int | None:
        return self._number(_RANK)

    @property
    def world_size(self) -> int:
        return max(1, self._number(_WORLD) or 1)

    @property
    def job(self) -> tuple[str, ...]:
        """What the ranks of one job have in common; its own number for a process that is no rank."""
        if self.rank is None or self.world_size < 2:
            return (str(self.pid),)
        return tuple(self.environment.get(name, "") for name in _JOB)

    def _number(self, names: Iterable[str]) -> int | None:
        texts = (self.environment.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal()), None)

    @cached_property
    def argv(self) -> list[str]:
        """The script and its arguments, or ``-m``, the module and its arguments; all words if it is no script."""
        found = PythonCommand.of(self.command) if self.command and is_named_python(self.command[0]) else None
        return [*(found.target if found is not None else self.command)]


def workers_of(pid: int) -> tuple[int, ...]:
    """Return the Python processes with torch below a process: its loader workers, or the ranks of a launcher."""
    with suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
        return tuple(one.pid for one in below if not _serves(one) and _has_torch(one.pid))
    return ()


def _serves(process: psutil.Process) -> bool:
    """Return whether a process only starts or cleans up for others."""
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return "resource_tracker" in words or "semaphore_tracker" in words or "forkserver import main" in words
    return True


def trainings() -> list[Training]:
    """Return this user's trainings on this machine; root's are those of all users."""
    own, found = os.geteuid(), []
    with_torch = {}
    for process in psutil.process_iter(["pid", "ppid", "uids"]):
        uids = process.info["uids"]
        ours = process.pid != os.getpid() and (own == 0 or (uids is not None and uids.effective == own))
        if ours and _has_torch(process.pid):
            with_torch[process.pid] = process.info["ppid"]
    launched = {pid for pid in with_torch if _is_rank(pid)}
    for pid, parent in with_torch.items():
        is_worker = parent in with_torch and pid not in launched
        if is_worker and not _launches(parent, launched, with_torch):
            continue
        with suppress(PipediagError):
            one = Training.of(pid)
            if (one.workers or one.on_gpu) and not _launches(pid, launched, with_torch):
                found.append(one)
    return found


def _launches(pid: int, ranks: set[int], parents: dict[int, int]) -> bool:
    """Return whether a process is the launcher of ranks: it is no rank itself."""
    return pid not in ranks and any(parents[rank] == pid for rank in ranks)


def _is_rank(pid: int) -> bool:
    with suppress(psutil.Error, OSError):
        given = psutil.Process(pid).environ()
        return any(name in given for name in _RANK) and _is_new(pid)
    return False


def _is_new(pid: int) -> bool:
    """Return whether a process was started by a launcher, and is no worker that inherited a rank's variables."""
    with suppress(psutil.Error, OSError):
        parent = psutil.Process(pid).parent()
        given = parent.environ() if parent is not None else {}
        return not any(name in given for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))
    return True


def ranks_of(pid: int) -> list[Training]:
    """Return a training, or the ranks that a launcher has started, in the order of their ranks.

    Raises:
        PipediagError: there is no such process.
    """
    one = Training.of(pid)
    if one.rank is None or not _is_new(pid):
        below = [Training.of(child) for child in one.workers if _is_rank(child)]
        if below:
            return sorted(below, key=lambda rank: rank.rank or 0)
    return [one]


def jobs(found: Iterable[Training]) -> list[list[Training]]:
    """Return trainings with the ranks of one job together, in the order of their ranks."""
    groups: dict[tuple[str, ...], list[Training]] = {}
    for one in found:
        groups.setdefault(one.job, []).append(one)
    return [sorted(group, key=lambda one: one.rank or 0) for group in groups.values()]


def jobs_of(pid: int | None) -> list[list[Training]]:
    """Return the job of a process, or without one all of this user's jobs.

    Raises:
        PipediagError: there is none.
    """
    if pid is not None:
        return [ranks_of(pid)]
    found = jobs(trainings())
    if not found:
        raise UsageError(
            "no training of this user holds a GPU or has loader workers; name its process: pipediag watch PID"
        )
    return found


def described(job: list[Training]) -> str:
    first = job[0]
    parts = [f"{first.pid}", " ".join(masked(first.argv))[:80]]
    parts += [f"{len(job)} ranks"] * (len(job) > 1)
    parts += [counted(len(first.workers), "worker")] * bool(first.workers)
    parts += ["on the GPU"] * first.on_gpu
    return ", ".join(parts)


def _has_torch(pid: int) -> bool:
    """Return whether a process has torch's library in its memory; False if that may not be read."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            return any("libtorch" in line for line in maps)
    except OSError:
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
