"""Run scripts in processes forked from this one, which holds torch and pipediag already, or by the real command line.

This process has one thread and no user code. Each run is a process group of its own, in a folder with the script, its
helper module and the recorder.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

#: Before torch is imported: the cores are for processes.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy  # noqa: F401
import torch
import torch._dynamo  # which the first optimizer imports
import torchvision.transforms.v2  # noqa: F401

from pipediag.host import rerouting, runner
from pipediag.host.script import Target, run
from pipediag.lifeline import end_with
from pipediag.remedy import spotcheck
from pipediag.remedy.summary import saved_plan
from pipediag.replay.fingerprint import digest
from pipediag.streams.to_device import ToDevice
from pipediag.usercode.links import links_of
from pipediag.usercode.transform_slots import find_slots

from .record import OFFLOADS

_HERE = Path(__file__).parent
#: What a forked run does instead of a fresh interpreter: returns the exit code.
Main = Callable[[], int]
#: Lets the remedy move transforms in a training on the CPU, unmeasured, for tests. "0" in the environment forbids it.
_MOVES = "PIPEDIAG_TEST_MOVES_ON_CPU"
#: Of every run. Without a GPU, which the scripts do not use: it would slow down those that ask for pinned memory.
_ENVIRONMENT = {
    _MOVES: os.environ.get(_MOVES, "1"),
    "PYTHONPATH": str(_HERE.parents[1]),
    "CUDA_VISIBLE_DEVICES": "",
}
#: Number of samples that are compared before anything moves.
_FIRST = 8
#: How a helper module is edited between two runs.
_EDITS = (("FLIP_LEFT_RIGHT", "FLIP_TOP_BOTTOM"), ('["x"]', '["x"] * 0.5'), ("LEVEL = 1", "LEVEL = 2"))

#: Before each line that a thread's error writes.
_THREAD = "thread: "
#: The line of a traceback that names the error; not that of a warning, which another process may write after it.
_ERROR = re.compile(r"[A-Za-z_][\w.]*(: |$)")


@dataclass
class Ran:
    """How a run ended: exit code (None if it hung), lines, what pipediag said, and the line that names its error."""

    code: int | None
    lines: list[str]
    said: list[str]
    error: str
    seconds: float


@dataclass(eq=False)
class Job:
    """One run: in which folder, and how. ``command`` starts a fresh interpreter; else ``main`` runs in a fork.

    ``patience`` are the seconds after which it hangs, on a machine with a core for each process; on a busier one, more.
    """

    folder: Path
    main: Main | None
    command: Sequence[str] | None = None
    patience: float = 60.0
    began: float = 0.0
    pid: int = 0
    ran: Ran | None = field(default=None, repr=False)


#: The runs of one script, one after the other: sent the result of a job, it yields the next one.
Runs = Iterator[Job]


def plainly() -> int:
    run(Target("train.py"))
    return 0


def offloading() -> int:
    """Run the script with the loaders that it gives to ``pipediag.offload``."""
    os.environ[OFFLOADS] = "1"
    return _counting(plainly)


def _counting(main: Main) -> int:
    """Run ``main``, and say how many batches were recorded, and of how many plain code's calls were."""
    counts = {"recorded": 0, "of plain code": 0, "with pixels": 0}
    arrive = ToDevice.arrive

    def counted(self: Any, sent: Any) -> Any:
        before = self.recorded, self.unrecorded
        made = arrive(self, sent)
        counts["recorded"] += self.recorded - before[0]
        counts["of plain code"] += self.recorded - before[0] if self._plan.begins else 0
        counts["with pixels"] += self.unrecorded - before[1]
        return made

    ToDevice.arrive = counted  # type: ignore[method-assign]
    try:
        return main()
    finally:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"pipediag: batches: {told}", file=sys.stderr)


def remedied(plan: str = runner.NO_PLAN, folder: str = runner.NO_PLAN) -> Main:
    """Return what ``pipediag run`` does, with this plan and this folder for samples, but sooner: scripts are short."""

    def main() -> int:
        spotcheck.FIRST = _FIRST
        return runner.main([plan, folder, "train.py"])

    return lambda: _counting(main)


def planning(folder: str = runner.NO_PLAN) -> Main:
    """Return what :func:`remedied` does without a plan, and writes the plan of what it does with the first loader.

    Nothing is measured, as an analysis does before it writes a plan. A script that edits its transforms gets no plan:
    one that was made later is refused at the first batch.
    """

    def main() -> int:
        original = rerouting.Rerouting._say_moved
        began: list[Any] = []

        def say(self: Any, site: Any, run: Any, device: Any, transforms: bool) -> None:
            original(self, site, run, device, transforms)
            offloaded = run.offloaded
            links = [link for slot in find_slots(offloaded.loader.dataset) for link in links_of(slot.get())]
            now = site, [digest(link, named_only=True) for link in links]
            began.extend([] if began else [now])
            proven = offloaded.certificate is not None if offloaded.plan.moves else not transforms or site.kept
            if proven and not offloaded.finds and began == [now] and not os.path.exists("plan.json"):
                plan = saved_plan(offloaded, None if site.kept is None else offloaded.loader)
                where, order = site.place
                plan = replace(plan, script="train.py", dataset=site.dataset, where=where, order=order)
                Path("plan.json").write_text(json.dumps(plan.to_dict()))

        rerouting.Rerouting._say_moved = say  # type: ignore[method-assign]
        return remedied(folder=folder)()

    return main


def prepare(folder: Path, text: str, data: Path, edited: bool = False) -> Path:
    """Fill a fresh folder with all that a script needs; ``edited`` edits its helper module."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text)
    shutil.copy(_HERE / "record.py", folder)
    shutil.copy(_HERE / "helper.py", folder)
    (folder / "data").symlink_to(data)
    if edited:
        edit(folder)
    return folder


def edit(folder: Path) -> None:
    """Edit the helper module, as a user does between two runs."""
    helper = folder / "helper.py"
    text = helper.read_text()
    for before, after in _EDITS:
        text = text.replace(before, after)
    helper.write_text(text)


def scheduled(scripts: Iterator[Any], jobs: int) -> Iterator[Any]:
    """Run the scripts, ``jobs`` runs at a time; yield what each of these generators of jobs returns in the end."""
    gc.freeze()  # a collection in a fork would else copy every page of torch's objects
    active: list[tuple[Any, Job]] = []
    waiting = iter(scripts)
    try:
        while True:
            while len(active) < jobs and (runs := next(waiting, None)) is not None:
                active.append((runs, _begun(next(runs))))
            if not active:
                return
            time.sleep(0.01)
            for runs, job in list(active):
                if _is_running(job):
                    continue
                active.remove((runs, job))
                try:
                    active.append((runs, _begun(runs.send(job.ran))))
                except StopIteration as over:
                    yield over.value
    finally:
        for _, job in active:
            _end(job)


def _begun(job: Job) -> Job:
    job.began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    if job.command is not None:
        with open(job.folder / "stdout", "wb") as out, open(job.folder / "stderr", "wb") as err:
            job.pid = subprocess.Popen(job.command, cwd=job.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       start_new_session=True, env={**os.environ, **_ENVIRONMENT}).pid  # fmt: skip
        return job
    job.pid = os.fork()
    if job.pid == 0:
        _become(job)
    return job


def _become(job: Job) -> NoReturn:
    """Be the run's process: like a fresh interpreter in the folder, up to its end."""
    code = 1
    try:
        os.setsid()
        end_with(os.getppid())
        os.chdir(job.folder)
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(_ENVIRONMENT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
        threading.excepthook = _say_of_thread
        torch.set_num_threads(1)
        sys.path.insert(0, "")  # the script's folder replaces it
        code = _code_of(job.main)
        threading._shutdown()  # type: ignore[attr-defined]
        util._exit_function()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(main: Main | None) -> int:
    try:
        return main() if main is not None else 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1


def _say_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Write what ended a thread with each line marked: it is not what the script ends by."""
    lines = "".join(traceback.format_exception(ended.exc_type, ended.exc_value, ended.exc_traceback)).splitlines()
    sys.stderr.write("".join(f"{_THREAD}{line}\n" for line in lines))


def _is_running(job: Job) -> bool:
    """Return whether a run goes on. One that hangs is ended; what it left is read."""
    pid, status, _ = os.wait4(job.pid, os.WNOHANG)
    seconds = time.monotonic() - job.began
    if not pid and seconds < job.patience * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)):
        return True
    code = os.waitstatus_to_exitcode(status) if pid else None
    if pid:
        _end(job, waits=False)  # workers that outlive it
    else:
        os.killpg(job.pid, signal.SIGUSR1)
        time.sleep(1)  # until all of its processes have written their stacks
        _end(job)
    out, err = (_read(job.folder / name) for name in ("stdout", "stderr"))
    said = [line for line in err if line.startswith("pipediag")]
    job.ran = Ran(code, out, said, error_in(err) if code else "", seconds)
    return False


def error_in(lines: list[str]) -> str:
    """Return the line of what a run wrote to stderr that names the error it ended by, or nothing."""
    others = [line for line in _without_ignored(lines) if not line.startswith(("pipediag", _THREAD))]
    raised = any(line.startswith("Traceback") for line in others)
    return next((line for line in reversed(others) if _ERROR.match(line)), "") if raised else ""


def _without_ignored(lines: list[str]) -> Iterator[str]:
    """Yield the lines without exceptions that Python ignored, such as those of iterators in forked workers."""
    ignored = False
    for line in lines:
        begins = line.startswith("Exception ignored")
        if not (begins or ignored):
            yield line
        ignored = begins or (ignored and line.startswith(("Traceback", " ")))


def _end(job: Job, waits: bool = True) -> None:
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left of it
        pass
    if waits:
        os.waitpid(job.pid, 0)


def _read(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
