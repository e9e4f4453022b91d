"""Faults that a training can be given: each has a name, and comes once the training has reached the given moment."""

import atexit
import builtins
import faulthandler
import gc
import itertools
import json
import mmap
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

#: Wakes up far later than any test waits.
FOREVER = 1000


def say(text):
    print(text, file=sys.stderr, flush=True)


def say_as(pid, text):
    """Say it on another process's standard error: a trial's own goes nowhere."""
    try:
        with open(f"/proc/{pid}/fd/2", "w") as errors:
            print(text, file=errors)
    except OSError:  # not on this system
        say(text)


def started_command():
    """Return the process that was started as ``pipediag``: an ancestor, or this one where a script runs within it."""
    up = [process.pid for process in psutil.Process().parents() if _is_pipediag(process.cmdline())]
    return up[-1] if up else os.getpid()


def _is_pipediag(command):
    """``run`` replaces itself by the process that runs the script."""
    return command[1:3] == ["-m", "pipediag"] or any(one.endswith("host/entry.py") for one in command)


class Planted:
    """One fault at one moment. Processes that are forked later share whether it has come."""

    def __init__(self, kind, moment):
        self.kind, self.moment = kind, moment
        self.main = os.getpid()
        self.command = started_command()
        self._armed = mmap.mmap(-1, 1)
        self._armed[0] = kind in IN_DATASET and moment == "first-batch"  # else the first batch would be made by then
        self._said = False
        self._rung, self._settles = "", False
        self._watched = False

    @contextmanager
    def held_back(self):
        """Let no fault come within the context."""
        armed, self._armed[0] = self._armed[0], 0
        yield
        self._armed[0] = armed

    def over(self):
        """Let the fault come no more, in no process."""
        self.moment, self._armed[0] = "", 0

    def at(self, moment):
        """Come to a moment in the process that trains."""
        if moment == self.moment and not self._armed[0]:
            self._armed[0] = 1
            if self.kind not in IN_DATASET:
                self._come()

    def step(self, number):
        """Begin a step of the training."""
        if number == 0:
            self.at("first-batch")
        if number > 5:
            self.at("training")
        self._watch()
        if self._rung not in ("", "device", "raw", "baseline"):
            self.at("trial")
        elif self._settles:
            self.at("settling")
        elif self._rung:
            self.at("window" if self._rung == "baseline" else self._rung)

    def sample(self):
        """Make a sample, in whichever process."""
        if self.moment == "certification":
            if self._certifies() and (self.kind in IN_DATASET or not self._armed[0]):
                self._armed[0] = 1
                return self._come()
        elif self.kind in IN_DATASET and self._armed[0]:
            return self._come()
        return None

    def _come(self):
        if not self._said:
            say_as(self.command, f"planted: {self.kind} at {self.moment}")
            self._said = True
        return KINDS[self.kind](self)

    def _certifies(self):
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        return worker is not None and worker.num_workers == 1  # the loaders of the scripts have two, or none

    def _watch(self):
        """Learn which rung is on, once there is a ladder."""
        windows = sys.modules.get("pipediag.ladder.windows")
        if windows is None or self._watched:
            return
        self._watched = True
        native = windows.Settler.settle

        def settle(settler, rung):
            self._rung, self._settles = rung, True
            trouble = yield from native(settler, rung)
            self._settles = False
            return trouble

        native_window = windows.Windows.opened

        def opened(ladder, rung, *args):
            self._rung, self._settles = rung, False  # a rank that follows another does not settle
            return native_window(ladder, rung, *args)

        windows.Settler.settle, windows.Windows.opened = settle, opened


# What ends the process that comes to the moment


def raises(planted):
    raise LookupError("the planted error")


@dataclass(frozen=True)
class FrozenError(Exception):
    words: str


def raises_a_frozen_error(planted):
    raise FrozenError("the planted error")


def runs_out_of_memory(planted):
    raise MemoryError("the planted shortage")


def recurses(planted):
    recurses(planted)


def is_interrupted(planted):
    raise KeyboardInterrupt


def exits(planted):
    sys.exit(3)


def exits_with_words(planted):
    sys.exit("the planted farewell")


def exits_at_once(planted):
    os._exit(5)


def exits_at_once_without_error(planted):
    """As jobs do whose libraries would hang at their end."""
    os._exit(0)


def aborts(planted):
    os.abort()


def has_a_segmentation_fault(planted):
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed(planted):
    os.kill(os.getpid(), signal.SIGKILL)


def has_a_bus_error(planted):
    os.kill(os.getpid(), signal.SIGBUS)


def asks_a_question(planted):
    input("the planted question")


# Signals to the command


def sends(number):
    def send(planted):
        os.kill(planted.command, number)

    return send


def interrupts(planted):
    """As a terminal does: torchrun's ranks do not belong to it."""
    os.killpg(os.getpgid(planted.command), signal.SIGINT)


class Freed:
    """Interrupts the command, and is interrupted where no exception gets out."""

    def __init__(self, planted):
        self.planted = planted

    def __del__(self):
        interrupts(self.planted)
        time.sleep(2)


def interrupts_twice(planted):
    # This process may not live to send the second one.
    group = os.getpgid(planted.command)
    subprocess.Popen(["sh", "-c", f"trap '' INT; kill -INT -{group}; sleep 0.3; kill -INT -{group}"])


# What a script may do without ending


def changes_folder(planted):
    os.chdir("/")


def removes_folder(planted):
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")


def closes_descriptors(planted):
    os.closerange(3, 1024)


def closes_streams(planted):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    os.closerange(0, 3)


def has_no_streams(planted):
    sys.stdout = sys.stderr = None


def handles_signals(planted):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def clears_the_environment(planted):
    os.environ.clear()


def forks(planted):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def forks_and_exits(planted):
    if os.fork():
        os._exit(0)
    time.sleep(FOREVER)


def becomes_a_daemon(planted):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(FOREVER)
    os.wait()


def leaves_a_process(planted):
    subprocess.Popen(["sleep", str(FOREVER)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def limits_its_files(planted):
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))


def swaps_the_hook(planted):
    sys.excepthook = None
    raise LookupError("the planted error")


def deletes_the_hook(planted):
    del sys.excepthook
    raise LookupError("the planted error")


def breaks_the_hook(planted):
    sys.excepthook = lambda kind, error, tb: error.no_such_attribute
    raise LookupError("the planted error")


def hangs(planted):
    time.sleep(FOREVER)


def removes_the_results(planted):
    """The folder into which the report is to be written."""
    shutil.rmtree("results")


def fills_the_results(planted):
    """A folder where the report is to be written."""
    os.makedirs("results/report.json/held")


def removes_scratch(planted):
    """The temporary files of the command."""
    import glob
    import tempfile

    for folder in glob.glob(os.path.join(tempfile.gettempdir(), "pipediag-*")):
        shutil.rmtree(folder)


def removes_the_cache(planted):
    shutil.rmtree("samples")


def damages_the_cache(planted):
    for name in os.listdir("samples"):
        with open(os.path.join("samples", name), "r+b") as file:
            file.seek(1 << 13)
            file.write(os.urandom(1 << 14))


# Time that stops or jumps, and restarts


def stops(planted):
    """As Ctrl-Z and fg do, but for this process alone."""
    _stop(os.getpid())


def stops_the_command(planted):
    _stop(planted.command)


def stops_all(planted):
    _stop(-os.getpgid(planted.command))


def _stop(pid):
    line = f"kill -STOP -- {pid}; sleep 3; kill -CONT -- {pid}"
    subprocess.Popen(["sh", "-c", line], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


def freezes_the_clocks(planted):
    """As libraries for tests do."""
    for name in _CLOCKS:
        setattr(time, name, lambda: 1.7e9)
        setattr(time, f"{name}_ns", lambda: 17 * 10**17)


def turns_the_clocks_back(planted):
    ticks = itertools.count()
    for name in _CLOCKS[:3]:
        setattr(time, name, lambda: 1e9 - next(ticks))


def sets_the_clock(planted):
    native, jumps = time.time, itertools.cycle((3600.0, -3600.0, 0.0))
    time.time = lambda: native() + next(jumps)


def never_sleeps(planted):
    time.sleep = lambda seconds: None


def is_interrupted_often(planted):
    """As a profiler or a watchdog does: the signal's handler runs between and within system calls."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)


def starts_itself_again(planted):
    """As scripts do that set variables which only a new process reads."""
    arguments = [one for one in sys.argv if not one.startswith("--fault")]
    os.execv(sys.executable, [sys.executable, *arguments])


def calls_itself_again(planted):
    """The same in a process of its own, with the same arguments."""
    if os.environ.setdefault("CALLED_BY", own := str(os.getpid())) == own:
        sys.exit(subprocess.call([sys.executable, *sys.argv]))


# What a script may replace, take hold of, or change about itself


def traces_calls(planted):
    """As debuggers and coverage tools do."""

    def traced(frame, event, argument):
        return traced

    threading.settrace(traced)
    sys.settrace(traced)


def profiles_calls(planted):
    sys.setprofile(lambda frame, event, argument: None)


def writes_stacks(planted):
    faulthandler.enable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(0.5, repeat=True, file=nowhere)
    atexit.register(faulthandler.cancel_dump_traceback_later)


def traces_memory(planted):
    tracemalloc.start()


def slows_the_clocks(planted):
    """As tools do that let tests of timeouts run faster, or a simulation slower."""
    for name in _CLOCKS[:3]:
        setattr(time, name, slowed(getattr(time, name)))


def slowed(native):
    began = native()
    return lambda: began + (native() - began) / 10


def replaces_json(planted):
    json.dumps = lambda *args, **kwargs: b"{}"
    json.loads = lambda *args, **kwargs: {}


def forbids_compiling(planted):
    """As sandboxes do; a hook cannot be removed."""

    def hook(event, arguments):
        if event in ("compile", "exec"):
            raise RuntimeError("the planted prohibition")

    sys.addaudithook(hook)


def replaces_print(planted):
    """As distributed jobs do, so that one rank alone prints."""
    builtins.print = lambda *args, native=print, force=False, **named: native(*args, **named) if force else None


def replaces_open(planted):
    builtins.open = lambda file, mode="r", *rest, native=open, **named: native(file, mode, *rest, **named)


def forbids_the_network(planted):
    """As plugins of pytest do; torch passes tensors through sockets in the file system."""

    class Forbidden(socket.socket):
        def __new__(cls, family=-1, *args, **kwargs):
            if family != socket.AF_UNIX:
                raise RuntimeError("the planted prohibition")
            return super().__new__(cls, family, *args, **kwargs)

    socket.socket = Forbidden


def replaces_threads(planted):
    class Counted(threading.Thread):
        def start(self):
            super().start()

    threading.Thread = Counted


def replaces_the_loader(planted):
    import torch

    class Faster(torch.utils.data.DataLoader):
        pass

    torch.utils.data.DataLoader = Faster


def has_other_streams(planted):
    """Without a descriptor or an encoding, as in notebooks and loggers."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, Other(getattr(sys, name)))


class Other:
    def __init__(self, stream):
        self.write, self.flush = stream.write, stream.flush


def closes_errors(planted):
    os.close(2)


def closes_input(planted):
    os.close(0)


def reaps_children(planted):
    def reap(number, frame):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, reap)


def spawns_workers(planted):
    multiprocessing.set_start_method("spawn", force=True)


def collects_no_garbage(planted):
    gc.disable()
    gc.freeze()


def limits_itself(planted):
    import resource

    for limit, most in (("NOFILE", 128), ("CORE", 0), ("CPU", 3000), ("AS", 8 << 30), ("STACK", 1 << 20)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))


def removes_itself(planted):
    os.remove(sys.argv[0])


def removes_its_folder(planted):
    shutil.rmtree(os.path.dirname(sys.argv[0]))


def rewrites_itself(planted):
    with open(sys.argv[0], "w") as file:
        file.write("raise SystemExit(7)\n")


def forgets_its_arguments(planted):
    sys.argv.clear()
    sys.path[:] = []


# What a dataset, a worker or a transform may do; the value is the sample's


def returns_nothing(planted):
    return "none"


def returns_text(planted):
    return "text"


def returns_other_sizes(planted):
    return "sizes"


KINDS = {
    "raises": raises,
    "frozen-error": raises_a_frozen_error,
    "memory-error": runs_out_of_memory,
    "recursion": recurses,
    "interrupted": is_interrupted,
    "exit-3": exits,
    "exit-words": exits_with_words,
    "os-exit": exits_at_once,
    "os-exit-0": exits_at_once_without_error,
    "abort": aborts,
    "segfault": has_a_segmentation_fault,
    "killed": is_killed,
    "bus-error": has_a_bus_error,
    "asks": asks_a_question,
    "SIGINT": interrupts,
    "SIGINT-freed": Freed,  # at once, since nobody keeps it
    "SIGINT-twice": interrupts_twice,
    "SIGTERM": sends(signal.SIGTERM),
    "SIGHUP": sends(signal.SIGHUP),
    "SIGKILL": sends(signal.SIGKILL),
    "changes-folder": changes_folder,
    "removes-folder": removes_folder,
    "closes-descriptors": closes_descriptors,
    "closes-streams": closes_streams,
    "no-streams": has_no_streams,
    "own-handlers": handles_signals,
    "clears-environment": clears_the_environment,
    "forks": forks,
    "forks-and-exits": forks_and_exits,
    "daemon": becomes_a_daemon,
    "leaves-process": leaves_a_process,
    "few-files": limits_its_files,
    "no-excepthook": swaps_the_hook,
    "lost-excepthook": deletes_the_hook,
    "failing-excepthook": breaks_the_hook,
    "hangs": hangs,
    "results-removed": removes_the_results,
    "results-in-the-way": fills_the_results,
    "scratch-removed": removes_scratch,
    "cache-removed": removes_the_cache,
    "cache-damaged": damages_the_cache,
    "stopped": stops,
    "command-stopped": stops_the_command,
    "all-stopped": stops_all,
    "frozen": freezes_the_clocks,
    "backwards": turns_the_clocks_back,
    "set": sets_the_clock,
    "sleepless": never_sleeps,
    "ticks": is_interrupted_often,
    "execs": starts_itself_again,
    "calls": calls_itself_again,
    "traces": traces_calls,
    "profiles": profiles_calls,
    "writes-stacks": writes_stacks,
    "traces-memory": traces_memory,
    "slowed": slows_the_clocks,
    "json": replaces_json,
    "print": replaces_print,
    "sandbox": forbids_compiling,
    "open": replaces_open,
    "sockets": forbids_the_network,
    "threads": replaces_threads,
    "loader": replaces_the_loader,
    "streams": has_other_streams,
    "closed-errors": closes_errors,
    "closed-input": closes_input,
    "children": reaps_children,
    "start-method": spawns_workers,
    "garbage": collects_no_garbage,
    "limits": limits_itself,
    "removed": removes_itself,
    "folder-removed": removes_its_folder,
    "rewritten": rewrites_itself,
    "arguments": forgets_its_arguments,
    "dataset-stopped": stops,
    "dataset-raises": raises,
    "dataset-frozen-error": raises_a_frozen_error,
    "dataset-memory-error": runs_out_of_memory,
    "dataset-none": returns_nothing,
    "dataset-text": returns_text,
    "dataset-sizes": returns_other_sizes,
    "dataset-hangs": hangs,
    "worker-killed": is_killed,
    "worker-bus-error": has_a_bus_error,
    "worker-exits": exits,
    "worker-os-exit": exits_at_once,
    "worker-interrupted": is_interrupted,
}
#: Faults that come where samples are made.
IN_DATASET = {kind for kind in KINDS if kind.startswith(("dataset", "worker"))}
