"""Copy a script's sources and apply the catalogue's patches to the copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ..recipes import running
from ..recipes.catalogue import Place
from .kinds import Edit, Patch, Script

#: The variable in which the shim finds the arguments to give to every loader.
LOADER = "PUBLIC_LOADER"
_HERE = Path(__file__).resolve().parent
#: Changes of arguments that a script expects as ``key=value`` are made in place.
_JOINED = "="


def copy(script: Script, sources: Path, target: Path, more: Iterable[Patch] = ()) -> None:
    """Make ``target`` a patched copy of the script's sources.

    Raises ValueError if the text that a patch replaces is not there as often as it says.
    """
    origin = sources / script.repository
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in script.source.files:
        if (origin / name).is_dir():
            shutil.copytree(origin / name, target / name, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin / name, target / name)
    for patch in (*script.patches, *more):
        apply(patch, target)


def apply(patch: Patch, folder: Path) -> None:
    path = folder / patch.file
    if not patch.old:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as out:
            out.write(patch.new)
        return
    text = path.read_text()
    count = text.count(patch.old)
    if count == 0 or patch.times not in (0, count):
        raise ValueError(f"{patch.file} has {patch.old!r} {count} times, not {patch.times}")
    path.write_text(text.replace(patch.old, patch.new))


def place(script: Script, data: Path, workers: int, edited: bool = False) -> Place:
    """Return the script's folders: the patched copy of its sources, and its working folder."""
    name = f"{script.name}-edited" if edited else script.name
    home = data.resolve()
    return Place(home, home / "sources" / name, home / "work" / name, False, workers)


def command(script: Script, at: Place, edit: Edit | None = None) -> list[str]:
    """Return the script and its arguments, with those that the edit changes."""
    order = running.command(script, at)
    for name, value in (edit.options if edit else {}).items():
        order = _changed(order, name, value)
    return order


def _changed(order: list[str], name: str, value: str) -> list[str]:
    for number, word in enumerate(order):
        if word == name:
            return [*order[: number + 1], value, *order[number + 2 :]]
        if word.startswith(name + _JOINED):
            return [*order[:number], name + _JOINED + value, *order[number + 1 :]]
    return [*order, name, value]


def environment(script: Script, at: Place, **more: str) -> dict[str, str]:
    """Return the environment of a run: the recipes', with this benchmark's shim and small models on the path."""
    env = running.environment(script, at, **more)
    env["PYTHONPATH"] = f"{_HERE / 'shim'}:{env['PYTHONPATH']}"
    return env
