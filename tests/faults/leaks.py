"""See what a command leaves behind: processes, shared memory, temporary files, and descriptors of this process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
import uuid
from functools import cache, partial
from pathlib import Path

import psutil

REPO = Path(__file__).resolve().parents[2]
PIPEDIAG = (sys.executable, "-m", "pipediag")
#: Seconds that the processes of a killed command have to notice it.
GRACE = 8.0
_MARK = "PIPEDIAG_FAULTS_MARK"
_SHARED_MEMORY, _DESCRIPTORS = Path("/dev/shm"), Path("/proc/self/fd")
#: Shared memory of torch's and Python's, as against that of others on this machine.
_SHARED = ("torch_", "sem.", "psm_")
#: Folders of multiprocessing's and torch's own, which any killed training leaves.
_NATIVE = ("pymp-", "torchinductor_", "torchelastic_")


#: Runs a command with a folder of its own in place of the machine's shared memory, which other programs use too.
_WITH_OWN_MEMORY = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"')


@cache
def _may_mount() -> bool:
    """Return whether this user may mount; who may not shares the memory of all."""
    try:
        command = ("unshare", "-m", "mount", "--bind", "/dev/shm", "/dev/shm")
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:  # not on this system
        return False


def _as_in_a_terminal(terminal: int | None) -> None:
    """Make ``terminal`` the controlling one, and hear hang-ups, also if these tests run under ``nohup``."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


class Leaks:
    """Starts commands whose processes and temporary files can be told from all others, and finds what they leave."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.temporary = temporary
        self.cwd = folder / "cwd"
        self.cwd.mkdir()
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[str]] = []
        self._memory = _SHARED_MEMORY
        if _may_mount():
            self._memory = _SHARED_MEMORY / temporary.name
            self._memory.mkdir()
        self._shared = _names(self._memory)
        self._descriptors = _names(_DESCRIPTORS)

    def start(self, *command: str, terminal: int | None = None) -> subprocess.Popen[str]:
        """Begin a command in a session of its own; ``terminal`` is its controlling one, otherwise there are pipes."""
        environment = {
            **os.environ,
            _MARK: self._mark,
            "PYTHONPATH": str(REPO),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PIPEDIAG_TEST_MOVES_ON_CPU": "1",
            "TMPDIR": str(self.temporary),
        }
        if self._memory != _SHARED_MEMORY:
            command = (*_WITH_OWN_MEMORY, str(self._memory), *command)
        process = subprocess.Popen(
            command,
            cwd=self.cwd,
            env=environment,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
            start_new_session=True,
            preexec_fn=partial(_as_in_a_terminal, terminal),
        )
        self._started.append(process)
        return process

    def processes(self) -> list[psutil.Process]:
        """The processes of the commands that still run; one that has ended, but was not waited for, does not."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def left(self, folders: bool = True) -> dict[str, object]:
        """What is left once it had time to vanish, by kind; ``folders``: whether temporary files count."""
        until = time.monotonic() + GRACE
        while (found := self._found(folders)) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _found(self, folders: bool) -> dict[str, object]:
        temporary = [name for name in _names(self.temporary) if folders and not name.startswith(_NATIVE)]
        found: dict[str, object] = {
            "processes": [(p.pid, _command(p)) for p in self.processes()],
            "shared memory": {name for name in _names(self._memory) - self._shared if name.startswith(_SHARED)},
            "temporary": temporary,
            "descriptors": _names(_DESCRIPTORS) - self._descriptors,
        }
        return {kind: left for kind, left in found.items() if left}

    def end(self) -> None:
        """End whatever still runs, so that the next test does not suffer."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                pass
        for started in self._started:
            started.communicate()
        if self._memory != _SHARED_MEMORY:
            shutil.rmtree(self._memory, ignore_errors=True)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:  # not on this system
        return set()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
