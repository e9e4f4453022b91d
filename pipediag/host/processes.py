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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

from ..errors import EXIT_BY_SIGNAL
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
    """End every process started within the context that still runs at its end, including orphans."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children, so that they can be found
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with _exit_codes_kept(), _interrupting(signal.SIGTERM), _interrupting(signal.SIGHUP):
        try:
            yield
        finally:
            _end([p for p in psutil.Process().children(recursive=True) if p.pid not in before])


def _exit_codes_kept() -> AbstractContextManager[None]:
    """Let the system keep the exit codes of children: not so if a parent, such as a supervisor, ignored SIGCHLD."""
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    return _handled(signal.SIGCHLD, signal.SIG_DFL) if ignored else nullcontext()


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, and on SIGHUP as after a lost connection: treated as Ctrl-C, so that a report is made."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """Return the number of the signal that interrupted this process."""
    return interrupt.signum if isinstance(interrupt, Terminated) else signal.SIGINT


def _interrupting(number: signal.Signals) -> AbstractContextManager[None]:
    """Raise :class:`Terminated` on the signal within the context, unless it is ignored as under ``nohup``."""
    ignored = signal.getsignal(number) is signal.SIG_IGN
    return nullcontext() if ignored else _handled(number, _as_interrupt)


@contextmanager
def _handled(
    number: signal.Signals, handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """Handle a signal in this way within the context."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before or signal.SIG_DFL)


def _as_interrupt(signum: int, frame: FrameType | None) -> None:
    if signum == signal.SIGHUP:
        _leave_lost_terminal()
    raise Terminated(signum)


def _leave_lost_terminal() -> None:
    """Discard output to a terminal that was closed: the report is still written to its files."""
    for stream in (1, 2):
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)


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

    Args:
        meanwhile: called repeatedly, with the seconds that it may take.
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
    removing = [process for process in alive if _name(process).startswith(_REMOVES_FILES)]
    _kill([process for process in alive if process not in removing])
    _, alive = psutil.wait_procs(removing, timeout=_REMOVING)
    _kill(alive)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(processes, timeout=2)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:  # it has ended
        return ""


def exit_code_of(child: subprocess.Popen[bytes]) -> int:
    """Return the child's exit code as a shell does: 128 plus the signal's number if a signal ended it."""
    code = child.returncode
    return code if code >= 0 else EXIT_BY_SIGNAL - code
