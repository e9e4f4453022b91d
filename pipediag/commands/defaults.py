"""Read the defaults of options from ``[tool.pipediag]`` in a ``pyproject.toml``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError


def defaults(cli: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults for each command by the names of its parameters, from ``folder`` or the next one above it.

    The keys of the table are names of options, for all commands that have them; a table named like a command holds its
    own.

    Raises:
        UsageError: a key is no option, or its value does not fit.
    """
    for file in (one / "pyproject.toml" for one in (folder, *folder.parents)):
        table = _table(file)
        if table is not None:
            try:
                return _by_command(cli, table)
            except UsageError as error:
                raise UsageError(f"{file}: {error}") from None
    return {}


def _table(file: Path) -> dict[str, Any] | None:
    """Return the table of pipediag, or None if the file has none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    if "pipediag" not in text:
        return None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            return None
    try:
        table = tomllib.loads(text).get("tool", {}).get("pipediag")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not TOML ({error})") from None
    return table if isinstance(table, dict) else None


def _by_command(cli: click.Group, table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {} for name in cli.commands}
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in found:
                raise UsageError(f"[tool.pipediag.{key}]: no such command; known: {', '.join(sorted(found))}")
            continue
        having = {name: option for name in found if (option := _options(cli.commands[name]).get(_name(key)))}
        if not having:
            raise UsageError(f"[tool.pipediag]: no command has the option {key}")
        for name, option in having.items():
            found[name][str(option.name)] = _fitting(option, key, value)
    for command, inner in found.items():  # the command's own table wins
        for key, value in table.get(command, {}).items():
            known = _options(cli.commands[command])
            if _name(key) not in known:
                raise UsageError(f"[tool.pipediag.{command}]: no option {key}; known: {', '.join(sorted(known))}")
            option = known[_name(key)]
            inner[str(option.name)] = _fitting(option, key, value)
    return found


def _name(key: str) -> str:
    return key.replace("_", "-")


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their long names, without dashes."""

    def named() -> Iterator[tuple[str, click.Option]]:
        for option in command.params:
            if isinstance(option, click.Option):
                yield from ((name[2:], option) for name in option.opts if name.startswith("--"))

    return dict(named())


def _fitting(option: click.Option, key: str, value: Any) -> Any:
    """Return the value of a key.

    Raises:
        UsageError: it is none that the option takes.
    """
    if option.multiple:
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise UsageError(f"{key} = {value!r}: a list of texts is needed")
        return values
    number = isinstance(option.type, (click.types.FloatRange, click.types.IntRange))
    needed = "true or false" if option.is_flag else "a number" if number else "a text"
    if {bool: "true or false", int: "a number", float: "a number", str: "a text"}.get(type(value)) != needed:
        raise UsageError(f"{key} = {value!r}: {needed} is needed")
    try:
        option.type.convert(value, option, None)
    except click.BadParameter as error:
        raise UsageError(f"{key} = {value!r}: {error.message}") from None
    return value
