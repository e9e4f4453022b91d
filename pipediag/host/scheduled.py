"""Measure a job whose scheduler starts pipediag in front of every rank, as ``srun`` does, in one analysis a host.

The pipediag of a host's first rank leads: it measures as usual and reports the host's ranks. The others follow: each
runs the script whenever the leader does, as a member of that pass (see :mod:`.member`), and reports nothing. They find
the leader by a file in the temporary folder, whose name is derived from what the ranks of a job have in common. The
leader holds a lock on the file until it ends, and writes into it which pass has begun.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from typing import Any

from ..errors import EXIT_BY_SIGNAL, UsageError
from ..measure.own_rank import local_rank, local_variable
from ..session.codec import opened_own
from .folders import locked
from .processes import end_child, exit_code_of, interpreter, no_orphans, signal_of, wait_quietly
from .script import Target
from .supervision import FAREWELL

#: Variables that the ranks of one job have in common, and no other job on the host at the same time.
_OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE")
#: Seconds that a follower waits for the leader's first pass, and that its script may outlast the leader's pass.
_PATIENCE, _AFTERMATH = 10.0, 10.0
#: Seconds between two checks of the leader's file.
_POLL = 0.05
#: Attempts to lock the file, which others lock briefly to check it.
_TRIES = 40


def follows() -> bool:
    """Return whether another pipediag on this host leads the analysis."""
    return bool(local_rank())


class _Announcement:
    """The leader's file, locked for as long as this process lives."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = opened_own(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        self._passes = 0
        for _ in range(_TRIES):
            if locked(self._fd):
                break
            time.sleep(_POLL / 2)
        else:
            raise UsageError(f"another pipediag leads this job already: it holds {path}")
        os.ftruncate(self._fd, 0)
        atexit.register(os.unlink, path)

    def begin(self, order: str, target: Target, folder: str | None) -> None:
        """Let the followers run the target as members of the pass with this order."""
        self._passes += 1
        facts = {"pass": self._passes, "order": order, "argv": target.argv, "flags": target.flags, "folder": folder}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(facts).encode(), 0)


_announcement: _Announcement | None = None


def announce(order: str, target: Target, folder: str | None) -> None:
    """Tell the other ranks of a scheduler's job on this host that a pass begins; do nothing outside such a job.

    Raises:
        UsageError: another process leads the job.
    """
    global _announcement
    if local_rank() is None:
        return
    _announcement = _announcement or _Announcement(_path())
    _announcement.begin(order, target, folder)


def follow() -> int:
    """Run the script in each of the leader's passes, until the leader ends; return the last exit code.

    Raises:
        UsageError: there is no leader.
    """
    path, until = _path(), time.monotonic() + _PATIENCE
    last, code = 0, 0
    with no_orphans():
        while True:
            begun = _begun(path)
            if begun is None and last:
                return code
            if begun is None and time.monotonic() > until:
                raise UsageError(
                    f"no pipediag leads this job on this host: for {_PATIENCE:g} s no process held {path}; start every "
                    "rank with the same command and the same temporary folder, or, if this is no rank of a job, unset "
                    + local_variable()
                )
            if begun and begun["pass"] > last:
                last = begun["pass"]
                code = _run(begun, path)
            else:
                time.sleep(_POLL)


def _run(begun: dict[str, Any], path: str) -> int:
    """Run the script as a member of a pass; return its exit code."""
    command = [*interpreter(begun["flags"]), "member", str(os.getpid()), begun["order"], *begun["argv"]]
    member, alone = subprocess.Popen(command, cwd=begun["folder"]), 0.0
    try:
        while member.poll() is None:
            time.sleep(2 * _POLL)
            alone = 0.0 if _begun(path) == begun else alone or time.monotonic()
            if alone and time.monotonic() - alone > _AFTERMATH:
                end_child(member, 1.0)
    except KeyboardInterrupt as interrupt:
        member.send_signal(signal.SIGINT)
        if not wait_quietly(member, FAREWELL, time.sleep):
            end_child(member, 1.0)
        return EXIT_BY_SIGNAL + signal_of(interrupt)
    return exit_code_of(member)


def _begun(path: str) -> dict[str, Any] | None:
    """Return the leader's latest pass: empty before its first one, None if there is no leader.

    Raises:
        UsageError: the file is another user's, or no regular file.
    """
    try:
        fd = opened_own(path, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except OSError:
        return None
    try:
        if locked(fd, fcntl.LOCK_SH):
            return None
        return dict(json.loads(os.pread(fd, 1 << 20, 0)))
    except ValueError:  # it is being written
        return {}
    finally:
        os.close(fd)


def _path() -> str:
    job = "\0".join([str(os.geteuid()), *(os.environ.get(name, "") for name in _OF_JOB)])
    return os.path.join(tempfile.gettempdir(), f"pipediag-job-{hashlib.sha256(job.encode()).hexdigest()[:16]}")
