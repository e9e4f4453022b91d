"""Read the defaults of options from ``[tool.pipediag]`` in a ``pyproject.toml``.

The file may lie in a folder that others can write to, or in a project of somebody else's. So it must belong to this
user, may name only files inside its project, and the user is told that it was used.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError

#: Options whose files are written.
_WRITTEN = ("outputs", "plan", "profile")
#: Characters of a file that are read.
_MOST_CHARACTERS = 1 << 20


def defaults(
    cli: click.Group, folder: Path, used: str = "", say: Callable[[str], None] = lambda text: None
) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command by parameter, from the nearest table in ``folder`` or a folder above it.

    A line says which table the command ``used`` takes defaults from, and which file is another user's.

    The keys of the table are option names, for all commands that have the option. A table named after a command holds
    that command's own.

    Raises:
        UsageError: a key is no option, or its value does not fit.
    """
    for file in (one / "pyproject.toml" for one in (folder, *folder.parents)):
        table = _table(file, say)
        if table is None:
            continue
        try:
            found = _by_command(cli, table)
            for name, values in found.items():
                _check_inside(_options(cli.commands[name]).values(), values, file.parent)
        except (UsageError, ValueError) as error:  # a number may be too long to be shown
            raise UsageError(f"{file}: {error}") from None
        if found.get(used):
            keys = [key for key, option in _options(cli.commands[used]).items() if option.name in found[used]]
            say(f"defaults from {file}: {', '.join(sorted(keys))}")
        return found
    return {}


def _table(file: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the table of pipediag, or None if the file has none, cannot be read, or is another user's."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as opened:
            facts = os.fstat(opened.fileno())
            text = opened.read(_MOST_CHARACTERS) if stat.S_ISREG(facts.st_mode) else ""
    except (OSError, ValueError):
        return None
    if "pipediag" not in text:
        return None
    if facts.st_uid not in (0, os.geteuid()):
        say(f"{file} is not read: it belongs to another user")
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            return None
    try:
        tools = tomllib.loads(text).get("tool")
    except (ValueError, RecursionError) as error:  # a number may be too long, and lists too deep
        raise UsageError(f"{file}: not TOML ({error})") from None
    table = tools.get("pipediag") if isinstance(tools, dict) else None
    if not isinstance(table, dict | None):
        raise UsageError(f"{file}: tool.pipediag is no table; begin one with [tool.pipediag]")
    return table


def _check_inside(options: Iterable[click.Option], values: Mapping[str, Any], project: Path) -> None:
    """Check that the files that would be written lie in the project.

    Raises:
        UsageError: one does not.
    """
    for option in options:
        if option.name in _WRITTEN and option.name in values:
            named = values[option.name]
            for path in [named] if isinstance(named, str) else named:
                if path != "-" and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(project)):
                    raise UsageError(f"{option.name} = {path!r}: outside the project; give it on the command line")


def _by_command(cli: click.Group, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    options = {name: _options(command) for name, command in cli.commands.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in options}
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in found:
                raise UsageError(f"[tool.pipediag.{key}]: no such command; known: {', '.join(sorted(found))}")
            continue
        having = {name: option for name, known in options.items() if (option := known.get(_name(key)))}
        if not having:
            raise UsageError(f"[tool.pipediag]: no command has the option {key}")
        for name, option in having.items():
            found[name][str(option.name)] = _fitting(option, key, value)
    for name, known in options.items():  # the command's own table wins
        for key, value in table.get(name, {}).items():
            option = known.get(_name(key))
            if option is None:
                raise UsageError(f"[tool.pipediag.{name}]: no option {key}; known: {', '.join(sorted(known))}")
            found[name][str(option.name)] = _fitting(option, key, value)
    return found


def _name(key: str) -> str:
    return key.replace("_", "-")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their long names, without dashes."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {name[2:]: option for option in options for name in option.opts if name.startswith("--")}


def _fitting(option: click.Option, key: str, value: Any) -> Any:
    """Return the value of a key.

    Raises:
        UsageError: the option does not take it.
    """
    if option.multiple:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(one, str) and _may_be_typed(one) for one in values):
            raise UsageError(f"{key} = {value!r}: a list of texts is needed")
        return values
    types: tuple[type, ...]
    if option.is_flag:
        types, needed = (bool,), "true or false"
    elif isinstance(option.type, click.types.IntRange):
        types, needed = (int,), "a whole number"
    elif isinstance(option.type, click.types.FloatRange):
        types, needed = (int, float), "a number"
    else:
        types, needed = (str,), "a text"
    if type(value) not in types or not _may_be_typed(value):
        raise UsageError(f"{key} = {value!r}: {needed} is needed")
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as error:
        raise UsageError(f"{key} = {value!r}: {error.message}") from None
    return value


def _may_be_typed(value: Any) -> bool:
    """Return whether a value can stand on a command line, whose words have no null characters."""
    return "\0" not in str(value)
