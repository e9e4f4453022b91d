"""Let the processes of one job on one node share a file in memory: the ranks that ``torchrun`` has started.

The first of them makes a file without a name in any folder (``memfd_create``). The others find it among the open files
of the processes that have the same parent, so it vanishes with the last process that uses it, however that ends.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

#: Environment variables that torchrun sets in each process of a job.
_SIZE, _JOB = "LOCAL_WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
#: Seconds to wait while another rank looks for the file or makes it, and between two attempts.
_PATIENCE, _PAUSE = 10.0, 0.01


def are_several(environment: Mapping[str, str]) -> bool:
    """Return whether the process with this environment is one of several ranks on the machine."""
    size = environment.get(_SIZE, "")
    return size.isdigit() and int(size) > 1


def name_for(key: str, environment: Mapping[str, str]) -> str:
    """Return the name of the file that the ranks of this job share for ``key``; "" if there is only one rank."""
    if not are_several(environment):
        return ""
    job = [environment.get(name, "") for name in _JOB]
    return "pipediag-" + hashlib.sha256("\0".join([key, str(os.getppid()), *job]).encode()).hexdigest()


def opened(name: str) -> int | None:
    """Open another rank's file called ``name``, and return its descriptor; None if no rank has it."""
    try:
        ranks = [child.pid for child in psutil.Process(os.getppid()).children()]
    except psutil.Error:
        return None
    for pid in ranks:
        try:
            for file in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(file).startswith(f"/memfd:{name}"):
                    return os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # the process or the file has gone, or belongs to another user
            continue
    return None


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the ranks' lock on the file called ``name``; it is released if the process dies.

    Raises:
        TimeoutError: another rank has held it for too long.
    """
    end = time.monotonic() + _PATIENCE
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind(f"\0{name}")  # in no folder; only one process can have the name
                break
            except OSError:
                if time.monotonic() > end:
                    raise TimeoutError(f"no answer from the other ranks for {_PATIENCE:.0f} s") from None
                time.sleep(_PAUSE)
        yield
