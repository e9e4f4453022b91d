"""Start the child, and end it with every process it has started."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from ..errors import EXIT_BY_SIGNAL, PipediagError
from ..lifeline import prctl

#: The file that a fresh interpreter runs for a user's script.
ENTRY = str(Path(__file__).with_name("entry.py"))
_PR_SET_CHILD_SUBREAPER = 36
#: torch's process that removes the files of the sharing strategy "file_system" (Linux keeps 15 letters of its name).
#: Maximum seconds that it takes: it waits for two after the last process that shares.
_REMOVES_FILES, _REMOVING = "torch_shm_manag", 4.0


def become_runner(arguments: Sequence[str], flags: Sequence[str]) -> NoReturn:
    """Replace this process by a fresh interpreter: signals, terminal and exit code are then the script's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*interpreter(flags), "runner", *arguments])


def interpreter(flags: Sequence[str]) -> list[str]:
    """Return the command that starts an interpreter for a user's script, with this one's flags and ``flags``."""
    own = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *own, *flags, ENTRY]


@contextmanager
def no_orphans() -> Iterator[None]:
    """End every process started within the context that still runs at its end, including orphans.

    Raises:
        PipediagError: the system does not show its processes.
    """
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children, so that they can be found
    try:
        before = {p.pid for p in psutil.Process().children(recursive=True)}
    except psutil.Error:
        raise PipediagError("this system shows no processes: mount /proc, or leave pipediag out") from None
    # A parent, such as a supervisor, may have ignored SIGCHLD: the system would keep no exit codes of children.
    with (
        _handled(signal.SIGCHLD, signal.SIG_DFL, if_ignored=True),
        _handled(signal.SIGTERM, _as_interrupt),
        _handled(signal.SIGHUP, _as_interrupt),
    ):
        try:
            yield
        finally:
            _end([p for p in psutil.Process().children(recursive=True) if p.pid not in before])


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, and on SIGHUP as after a lost connection: treated as Ctrl-C, so that a report is made."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


def signal_of(interrupt: KeyboardInterrupt) -> int:
    return interrupt.signum if isinstance(interrupt, Terminated) else signal.SIGINT


@contextmanager
def _handled(
    number: signal.Signals,
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
    if_ignored: bool = False,
) -> Iterator[None]:
    """Handle a signal in this way within the context, if it is ignored (as under ``nohup``) or if it is not."""
    if (signal.getsignal(number) is signal.SIG_IGN) != if_ignored:
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before or signal.SIG_DFL)


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise :class:`Terminated`; discard output to a terminal that was closed: the report still goes to its files."""
    for stream in (1, 2) if signum == signal.SIGHUP else ():
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)
    raise Terminated(signum)


def end_child(child: subprocess.Popen[bytes], patience: float) -> None:
    """Ask the child to end, then kill it, with all it has started."""
    try:
        tree = psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        tree = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            try:
                child.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
    _end(tree)


def wait_quietly(child: subprocess.Popen[bytes], seconds: float, meanwhile: Callable[[float], None]) -> bool:
    """Wait for the child to end; return whether it has. Further interrupts are ignored.

    ``meanwhile`` is called repeatedly, with the seconds that it may take.
    """
    until = time.monotonic() + seconds
    over = False
    while not over and time.monotonic() < until:
        over = child.poll() is not None  # first, so that all it has sent is read after its end
        try:
            meanwhile(0.0 if over else 0.05)
        except KeyboardInterrupt:
            pass
    return child.poll() is not None


def _end(processes: list[psutil.Process]) -> None:
    # Helpers such as the resource tracker end by themselves shortly after their parent.
    _, alive = psutil.wait_procs(processes, timeout=0.5)
    removing = [process for process in alive if _removes_files(process)]
    _kill([process for process in alive if process not in removing])
    _, alive = psutil.wait_procs(removing, timeout=_REMOVING)
    _kill(alive)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=2)


def _removes_files(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        return str(process.name()).startswith(_REMOVES_FILES)
    return False


def exit_code_of(child: subprocess.Popen[bytes]) -> int:
    """Return the child's exit code as a shell does: 128 plus the signal's number if a signal ended it."""
    code = child.returncode
    return code if code >= 0 else EXIT_BY_SIGNAL - code
