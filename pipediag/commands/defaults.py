"""Read the defaults of options from ``[tool.pipediag]`` in a ``pyproject.toml``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError


def defaults(cli: click.Group, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the defaults of each command by parameter, from the nearest table in ``folder`` or a folder above it.

    The keys of the table are option names, for all commands that have the option. A table named after a command holds
    that command's own.

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
    """Return the table of pipediag, or None if the file has none or cannot be read."""
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
