"""Start a recipe's script with its folder, environment and command, and end everything it started."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .catalogue import Place, Recipe

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent


def place(recipe: Recipe, data: Path, sources: Path, gpu: bool, workers: int) -> Place:
    work = data.resolve() / "work" / recipe.name
    return Place(data.resolve(), (sources / recipe.repository).resolve(), work, gpu, workers)


def why_not(recipe: Recipe, at: Place) -> str:
    """Return why the recipe cannot run here; empty if it can."""
    where = "gpu" if at.gpu else "cpu"
    if where not in recipe.where:
        return f"not for {where}: {recipe.note}"
    if not (at.repository / recipe.script).exists():
        return f"no sources at {at.repository}; --fetch brings them"
    unwritten = [kind for kind in recipe.data if (at.data / f".{kind}.failed").exists()]
    if unwritten:
        return f"its data could not be written: {', '.join(unwritten)}"
    absent = missing(recipe)
    return f"needs {', '.join(absent)}" if absent else ""


def missing(recipe: Recipe) -> list[str]:
    """Return the packages that the recipe needs and that are not installed."""
    return [name for name in recipe.needs if importlib.util.find_spec(name) is None]


def ready(recipe: Recipe, at: Place) -> None:
    """Return an empty working folder with the links that the script expects."""
    shutil.rmtree(at.work, ignore_errors=True)
    (at.work / "results").mkdir(parents=True)
    linked = {at.work / name: target for name, target in recipe.links.items()}
    linked.update({at.repository / name: target for name, target in recipe.source_links.items()})
    for link, target in linked.items():
        if link.is_symlink():
            link.unlink()
        link.symlink_to(at.data / target)


def command(recipe: Recipe, at: Place) -> list[str]:
    return [str(at.repository / recipe.script), *recipe.arguments(at)]


def cwd(recipe: Recipe, at: Place) -> Path:
    return at.repository / recipe.cwd if recipe.cwd else at.work


def environment(recipe: Recipe, at: Place, **more: str) -> dict[str, str]:
    given = {key: value.format(data=at.data, repository=at.repository) for key, value in recipe.environment.items()}
    folders = [str(_HERE / "offline"), given.pop("PYTHONPATH", ""), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    quiet = {"PYTHONUNBUFFERED": "1", "TQDM_MININTERVAL": "5", "WANDB_MODE": "disabled"}
    if not at.gpu:
        quiet["OMP_NUM_THREADS"] = "1"  # on two cores, a step on two threads stalls while a worker runs
    return {**os.environ, **quiet, **given, "PYTHONPATH": os.pathsep.join(filter(None, folders)), **more}


@dataclass
class Ran:
    """The end of a child: ``code`` is None if it was stopped at its limit; ``lines`` are its last output."""

    code: int | None
    seconds: float
    lines: list[str] = field(default_factory=list)


def run(
    arguments: list[str],
    folder: Path,
    env: dict[str, str],
    limit: float,
    heard: Callable[[float, str], None] = lambda when, line: None,
) -> Ran:
    """Run a child in its own process group to its end or to ``limit``; then end what is left of the group.

    ``heard`` gets each line that it writes, with the seconds since its start. Its output is one stream.
    """
    master, terminal = os.openpty()  # one script asks for the terminal's size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    late = threading.Event()
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def expired() -> None:
        late.set()
        _end(child.pid)

    timer = threading.Timer(limit, expired)
    timer.start()
    lines: list[str] = []
    try:
        assert child.stdout is not None
        reader = threading.Thread(target=_read, args=(child.stdout, lines, began, heard), daemon=True)
        reader.start()
        code: int | None = child.wait()
        reader.join(2.0)
    finally:
        timer.cancel()
        _end(child.pid)
        os.close(master)
        os.close(terminal)
    return Ran(None if late.is_set() else code, time.monotonic() - began, lines[-15:])


def _read(stream: object, lines: list[str], began: float, heard: Callable[[float, str], None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        lines.append(line.rstrip()[:300])
        heard(time.monotonic() - began, line.rstrip())
        del lines[:-200]


def _end(leader: int) -> None:
    """Kill a child, its group, and whatever below it has left the group."""
    for process in [leader, *_below(leader)]:
        for kill in (os.killpg, os.kill):
            try:
                kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


def _below(leader: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, left = [], [leader]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
