"""Sample the Python stacks of running processes with py-spy, which reads their memory and does not stop them.

py-spy samples at random intervals, so a loop of a regular rhythm is not seen at the same point each time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import PipediagError, UsageError

#: CPU seconds that a sample of one process takes, measured with py-spy 0.4.3 on trainings of 3 and 8 processes.
SECONDS_A_SAMPLE = 0.0005
#: Seconds for which the end of a recording is waited for.
_PATIENCE = 10.0
#: How py-spy names a thread.
_NAMED = re.compile(r'Thread (\d+)(?: "(.*)")?$')
#: What py-spy says where memory changed while it was read, and number of looks until one must succeed.
_CHANGED, _TRIES = re.compile(r"Failed to (get stack trace|copy)|Bad address"), 5
#: The beginning of what py-spy puts in front of a thread's frames.
_HEAD = "thread "


class Frame(NamedTuple):
    """One call on a stack: the function's name (with its class from Python 3.11 on), the file, the running line."""

    name: str
    file: str
    line: int


#: The calls that a thread is in, outermost first.
Stack = tuple[Frame, ...]


class Thread(NamedTuple):
    """The stacks of one thread in the order in which they were seen."""

    pid: int
    tid: int
    name: str
    stacks: list[Stack]


class Recording:
    """py-spy at work for whole seconds, which begin when it is ready; :meth:`threads` waits for its end."""

    def __init__(self, pid: int, seconds: int, rate: float) -> None:
        handle, self._file = tempfile.mkstemp(suffix=".json", prefix="pipediag-watch-")
        os.close(handle)
        options = ["--nonblocking", "--idle", "--threads", "--full-filenames", "-f", "speedscope", "-o", self._file]
        pace = ["-r", str(max(1, round(rate))), "-d", str(seconds)]
        self.pid = pid
        self._process = _started(["record", "-p", str(pid), *options, *pace])

    def threads(self) -> list[Thread]:
        """Return what was seen; nothing if the process ended at once, or py-spy does not end."""
        try:
            self._process.communicate(timeout=_PATIENCE)
            found = parsed(json.loads(Path(self._file).read_bytes()), self.pid)
        except (subprocess.TimeoutExpired, ValueError):
            found = []
        finally:
            self._process.kill()
            self._process.wait()
            os.unlink(self._file)
        outside = numbers_outside(self.pid)
        return [one._replace(tid=outside.get(one.tid, one.tid)) for one in found]

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the recording now; what was seen until now stays."""
        if self.runs:
            self._process.send_signal(signal.SIGINT)


def parsed(speedscope: dict[str, Any], pid: int) -> list[Thread]:
    """Return the threads of a recording of ``pid`` in speedscope's format."""
    frames = [Frame(one["name"], one["file"] or "", one["line"] or 0) for one in speedscope["shared"]["frames"]]
    threads = []
    for profile in speedscope["profiles"]:
        if (found := _NAMED.match(profile["name"])) is None:
            continue
        stacks = []
        for sample in profile["samples"]:
            stack = [frames[index] for index in sample]
            while stack and not stack[0].file and stack[0].name.startswith(_HEAD):
                del stack[0]
            stacks.append(tuple(stack))
        threads.append(Thread(pid, int(found[1]), found[2] or "", stacks))
    return threads


class LocalFrame(NamedTuple):
    """A frame of a single look, with the whole numbers among its local variables."""

    frame: Frame
    numbers: dict[str, int]


def local_numbers(pid: int) -> dict[int, list[LocalFrame]]:
    """Return each thread's frames, outermost first, by the system's number of the thread. Other values are not kept.

    Raises:
        PipediagError: the process cannot be read; the message says why.
    """
    for left in reversed(range(_TRIES)):
        process = _started(["dump", "--json", "--locals", "--nonblocking", "--full-filenames", "-p", str(pid)])
        out, error = process.communicate()
        if not process.returncode:
            break
        told = error.decode(errors="replace")
        if not left or not _CHANGED.search(told) or not os.path.exists(f"/proc/{pid}"):
            raise PipediagError(_reason(told, pid))
    found: dict[int, list[LocalFrame]] = {}
    outside = numbers_outside(pid)
    for thread in json.loads(out):
        frames = []
        for one in reversed(thread["frames"]):
            values = {local["name"]: local["repr"] or "" for local in one["locals"] or []}
            numbers = {name: int(text) for name, text in values.items() if text.isdecimal() and len(text) < 16}
            frames.append(LocalFrame(Frame(one["name"], one["filename"], one["line"]), numbers))
        found[outside.get(thread["os_thread_id"], thread["os_thread_id"])] = frames
    return found


def numbers_outside(pid: int, proc: Path = Path("/proc")) -> dict[int, int]:
    """Return this side's numbers of the threads of a process in a container by the container's, which py-spy tells."""
    numbers = {}
    try:
        for task in (proc / str(pid) / "task").iterdir():
            inside = next(line for line in (task / "status").read_text().splitlines() if line.startswith("NSpid:"))
            if len(inside.split()) < 3:  # it is in no container
                return {}
            numbers[int(inside.split()[-1])] = int(task.name)
    except (OSError, StopIteration):  # it has ended
        pass
    return numbers


def _started(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    program = beside if os.path.exists(beside) else shutil.which("py-spy")
    if program is None:
        raise UsageError("watch reads stacks with py-spy, which is missing: pip install 'pipediag[watch]'")
    return subprocess.Popen(
        [program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is pipediag's
        env={**os.environ, "RUST_LOG": "off", "RUST_BACKTRACE": "0", "NO_COLOR": "1"},
    )


def _reason(error: str, pid: int) -> str:
    """Return in one line why a process cannot be read, and what to do."""
    if not os.path.exists(f"/proc/{pid}"):
        return f"process {pid} has ended"
    lowered = error.lower()
    if "permission" in lowered or "not permitted" in lowered:
        return f"process {pid} may not be read by this user: {how_to_permit(pid)}"
    if "python version" in lowered or ("python" in lowered and "find" in lowered):
        return f"process {pid} is no Python process, or one that py-spy cannot read"
    last = error.partition("Stack backtrace:")[0].strip().splitlines()[-1:] or ["no reason given"]
    return f"process {pid} cannot be read by py-spy ({last[0].strip()})"


def how_to_permit(pid: int, root: Path = Path("/")) -> str:
    """Return what lets this user read a process's memory, as far as the system shows what forbids it."""
    try:
        owner = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        owner = os.geteuid()
    if owner != os.geteuid() and os.geteuid():
        return f"it belongs to user {owner}; run pipediag as that user, or with sudo"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return 'in Kubernetes, give the container securityContext: capabilities: add: ["SYS_PTRACE"]'
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "in Docker, start the container with --cap-add SYS_PTRACE, or watch from the host with sudo"
    try:
        scope = (root / "proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        scope = "0"
    if scope in ("1", "2"):
        return f"ptrace_scope is {scope}; use sudo, or run: sudo sysctl kernel.yama.ptrace_scope=0"
    if scope == "3":
        return "ptrace_scope is 3, which forbids it to everybody until the machine is started again with another value"
    return "use sudo"
