"""Faults of what a command inherits, of time, of objects whose protocols raise, and of restarts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from .fault import (
    COMPLETE,
    GIVEN,
    LADDER,
    MEASURED,
    NOTHING,
    OPTIONS,
    REPORT,
    TRAINS,
    Fault,
    pipediag,
    planted,
    shell,
    trained,
)
from .files import session, text


def rows() -> Iterator[Fault]:
    """Every fault of this kind."""
    for part in (_inherited, _clocks, _protocols, _restarts):
        yield from part()


# What a process inherits


def _python(line: str) -> tuple[str, ...]:
    """Run a line of Python, and then the command in the same process."""
    return (sys.executable, "-c", f"import os, signal, sys; {line}; os.execvp(sys.argv[1], sys.argv[1:])")


def _mounted(line: str) -> tuple[str, ...]:
    return ("unshare", "-m", *shell(f'{line} && "$@"'))


def _scratch(folder: str) -> tuple[str, ...]:
    """A folder for temporary files inside the usual one."""
    return shell(f'd=$TMPDIR/{folder}; mkdir "$d"; TMPDIR=$d "$@"; c=$?; rmdir "$d"; exit $c')


_CGROUP = "mount -t tmpfs none /sys/fs/cgroup"
_BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
_IGNORED = "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 10, 12, 13, 14, 15, 17, 20, 21, 22)]"
#: How each state is made. Those of the second part are tried on a training too: they may matter while it is measured.
_STATES: dict[str, tuple[str, ...]] = {
    "umask-0": shell('umask 0; "$@"'),
    "nohup": ("nohup",),
    "one-core": ("taskset", "-c", "0"),
    "interrupt-ignored": _python("signal.signal(signal.SIGINT, signal.SIG_IGN)"),
    "broken-pipes-kill": _python("signal.signal(signal.SIGPIPE, signal.SIG_DFL)"),
    "open-files-64": shell('ulimit -n 64; "$@"'),
    "no-locked-memory": shell('ulimit -l 0; "$@"'),
    "no-queued-signals": ("prlimit", "--sigpending=0"),
    "memory-2-GB": ("prlimit", "--as=2000000000"),
    "no-hostname": ("unshare", "-u", *shell('hostname "a b"; "$@"')),
    "no-home": ("env", "-u", "HOME"),
    "home-missing": ("env", "HOME=/nonexistent"),
    "home-relative": ("env", "HOME=no/home"),
    "no-path": ("env", "-u", "PATH"),
    "scratch-missing": ("env", "TMPDIR=/nonexistent"),
    "scratch-relative": ("env", "TMPDIR=results"),
    "scratch-is-a-file": ("env", "TMPDIR=/etc/passwd"),
    "scratch-with-spaces": _scratch("'a b'"),
    "unknown-locale": ("env", "LANG=xx_YY.none", "LC_ALL=xx_YY.none"),
    "ascii-output": ("env", "PYTHONIOENCODING=ascii"),
    "latin-1-output": ("env", "PYTHONIOENCODING=latin-1:replace"),
    "safe-path": ("env", "PYTHONSAFEPATH=1"),
    "no-bytecode-folder": ("env", "PYTHONPYCACHEPREFIX=/nonexistent"),
    "short-numbers": ("env", "PYTHONINTMAXSTRDIGITS=640"),
    "no-columns": ("env", "COLUMNS=0", "LINES=0"),
    "one-column": ("env", "COLUMNS=1"),
    "columns-are-text": ("env", "COLUMNS=wide"),
    "large-variables": _python("os.environ.update({f'V{n}': 'x' * 120000 for n in range(12)})"),
    "many-variables": _python("os.environ.update({f'V{n}': '' for n in range(20000)})"),
    "variable-of-bytes": _python("os.environb[b'V\\xff'] = b'\\x80'"),
    "rank-is-text": ("env", "RANK=first", "WORLD_SIZE=many"),
    "rank-negative": ("env", "RANK=-1", "WORLD_SIZE=0"),
    "job-of-nobody": ("env", "WORLD_SIZE=2", "MASTER_ADDR=nowhere.invalid", "MASTER_PORT=1"),
    "scheduler-is-text": ("env", "SLURM_PROCID=first", "SLURM_LOCALID=", "SLURM_NTASKS=x"),
    "library-to-preload-missing": ("env", "LD_PRELOAD=/nonexistent.so"),
    "children-of-a-shell": shell('sleep 1 & (sleep 0.1; exit 3) & exec "$@"'),
    "many-descriptors": _python("[os.dup2(0, n, inheritable=True) for n in range(3, 600)]"),
    "no-privileges": ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
    "sparse-shared-memory": _mounted("mount -t tmpfs -o size=4k none /dev/shm"),
    "long-scratch": _scratch("d" * 120),
    "memory-is-traced": ("env", "PYTHONTRACEMALLOC=3"),
    "no-sys": _mounted("mount -t tmpfs none /sys"),
}
_STATES_OF_TRAININGS: dict[str, tuple[str, ...]] = {
    "umask-777": shell('umask 777; "$@"'),
    "signals-blocked": _python(_BLOCKED),
    "signals-ignored": _python(_IGNORED),
    "nice-19": ("nice", "-n", "19"),
    "small-stack": shell('ulimit -s 512; "$@"'),
    "own-processes": ("unshare", "-pf", "--mount-proc"),
    "no-network": ("unshare", "-n"),
    "nobody-in-its-namespace": ("unshare", "-U"),
    "years-since-the-start": ("unshare", "-T", "--monotonic", "300000000"),
    "plain-locale": ("env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"),
    "warnings-are-errors": ("env", "PYTHONWARNINGS=error"),
    "nonblocking-output": _python("[os.set_blocking(n, False) for n in (1, 2)]"),
    "no-asserts": ("env", "PYTHONOPTIMIZE=2"),
    "development-mode": ("env", "PYTHONDEVMODE=1"),
    "debug-allocator": ("env", "PYTHONMALLOC=debug"),
    "startup-file": ("env", "PYTHONSTARTUP=/nonexistent", "PYTHONNOUSERSITE=1"),
    "half-a-core": _mounted(f"{_CGROUP} && echo 50000 100000 >/sys/fs/cgroup/cpu.max"),
    "odd-quota": _mounted(f"{_CGROUP} && echo many 0 >/sys/fs/cgroup/cpu.max"),
    "little-memory": _mounted(
        f"{_CGROUP} && cd /sys/fs/cgroup && echo 500000000 >memory.max && echo 450000000 >memory.current"
        " && echo inactive_file 1000 >memory.stat && cd - >/dev/null"
    ),
    "timers": _python("signal.signal(14, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)"),
}


def _exits(folder: Path) -> str:
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    return "exits.py"


def _inherited() -> Iterator[Fault]:
    for kind, within in {**_STATES, **_STATES_OF_TRAININGS}.items():
        html = pipediag("report", GIVEN, "-o", "results/report.html")
        yield Fault(f"inherited {kind}", "report", "start", html, 0, "", lays=text(session), within=within)
        for command, says in (("analyze", "exit code 3"), ("run", "")):
            argv = pipediag(*OPTIONS[command][:4], GIVEN)
            yield Fault(f"inherited {kind}", command, "start", argv, 3, says, lays=_exits, within=within)
    for kind, within in _STATES_OF_TRAININGS.items():
        row = Fault(f"inherited {kind}", "analyze", "training", trained("analyze"), 0, "", COMPLETE, within=within)
        yield row
    yield Fault(
        "inherited no-processes", "analyze", "start", pipediag("analyze", GIVEN), 1, "mount /proc", lays=_exits,
        within=_mounted("mount -t tmpfs none /proc"), alone=True,
    )  # fmt: skip


# Time


def _clocks() -> Iterator[Fault]:
    yield _timed("analyze", "frozen", "import", COMPLETE)
    for kind in ("frozen", "backwards", "set", "slowed", "sleepless", "ticks"):
        for moment in ("first-batch", "window"):
            yield _timed("analyze", kind, moment, COMPLETE)
        yield _timed("run", kind, "training", NOTHING, "--steps=40")
    for kind in ("stopped", "command-stopped", "all-stopped", "dataset-stopped"):
        for moment in ("first-batch", "window"):
            yield _timed("analyze", kind, moment, MEASURED)
    for kind in ("stopped", "dataset-stopped"):
        yield _timed("run", kind, "training", NOTHING, "--steps=40")


def _timed(command: str, kind: str, moment: str, keeps: str, *more: str) -> Fault:
    row = planted(command, kind, moment, 0, "", keeps, *more)
    return replace(row, kind=f"clock {kind}")


# Objects whose protocols raise

_ALL = ("__getattr__", "__eq__", "__bool__", "__repr__", "__class__", "__dict__", "__iter__", "any attribute")
_PROTOCOLS = {
    "Scale": (*_ALL, "__len__", "__hash__", "__reduce_ex__", "__setattr__", "__module__"),
    "Images": ("__getattr__", "__eq__", "__bool__", "__repr__", "__dict__", "any attribute", "meta.__bool__"),
    "Batch": ("__getattr__", "__eq__", "__bool__", "__len__", "nbytes", "any attribute"),
    "Order": ("__getattr__", "__eq__", "__class__"),
    "Model": ("__bool__", "__len__", "__repr__"),
    "Loader": ("__bool__", "__repr__", "__eq__"),
}
#: Protocols of a class's own class, which matter where types are compared, hashed or asked for, and which classes have
#: them besides _OF_CLASSES. Torch itself asks for the hash of a dataset's class and of a batch's, and compares a
#: dataset's.
_OF_CLASSES = ("Scale", "Order", "Model", "Loader", "Sample")
_META = {
    "__hash__": (),
    "__eq__": ("Batch",),
    "odd __eq__": ("Batch",),
    **dict.fromkeys(
        ("odd __bool__", "__instancecheck__", "odd __instancecheck__", "__subclasscheck__", "__len__", "__dir__"),
        ("Batch", "Images"),
    ),
}


def _protocols() -> Iterator[Fault]:
    for part, protocols in _PROTOCOLS.items():
        for protocol in protocols:
            odd = f"--odd={part}:{protocol}"
            kind = f"protocol {protocol.replace(' ', '-')}"
            yield Fault(kind, "analyze", part, trained("analyze", odd), 0, "", COMPLETE)
            if part in ("Scale", "Images"):
                yield Fault(kind, "run", part, trained("run", odd, "--steps=40"), 0, "trained to its end")
    for protocol, parts in _META.items():
        odd = f"--odd={','.join((*_OF_CLASSES, *parts))}:meta.{protocol}"
        kind = f"protocol {protocol.replace(' ', '-')}"
        yield Fault(kind, "analyze", "classes", trained("analyze", odd), 0, "", COMPLETE)
        applied = trained("analyze --apply", odd, options=("--apply-budget", "10"))
        yield Fault(kind, "analyze --apply", "classes", applied, 0, "", COMPLETE)
        yield Fault(kind, "run", "classes", trained("run", odd, "--steps=40"), 0, "trained to its end")


# Restarts


def _restarts() -> Iterator[Fault]:
    for row in (
        planted("analyze", "raises", "window", 0, "", MEASURED, "--tries=2"),
        planted("run", "raises", "training", 0, "trained to its end", NOTHING, "--tries=2", "--steps=40"),
        planted("run", "execs", "import", 0, "moved from", NOTHING, "--steps=40"),
        planted("analyze", "calls", "import", 0, "", COMPLETE),
        planted("run", "calls", "import", 0, "moved from", NOTHING, "--steps=40"),
    ):
        yield replace(row, kind=f"restart {row.kind}")
    for moment, budget in (("import", "6"), ("first-batch", "25")):  # which goes on while the script starts again
        row = planted("analyze", "execs", moment, 0, "", COMPLETE)
        argv = tuple(budget if before == "--budget" else one for before, one in pairwise(("", *row.argv)))
        yield replace(row, kind="restart execs", argv=argv)
    job = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2", TRAINS)
    for rank in ("0", "1"):
        for kind in ("raises", "killed"):
            more = (f"--rank={rank}", "--starts=1", f"--fault={kind}", "--at=import")
            argv = pipediag("analyze", "--budget", "15", "--no-knobs", *LADDER, "-o", REPORT, *job, *more)
            yield Fault(f"restart {kind}", "analyze of two ranks", f"import, rank {rank}", argv, 0, "", COMPLETE)
