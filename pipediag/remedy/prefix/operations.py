"""What a dispatched operation is given, and what it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

#: Arguments that batch normalisation writes into, although torch's schemas do not say so, and those that tell whether.
_STATISTICS, _LEARNS = ("running_mean", "running_var"), ("training", "train", "use_input_stats")


def operands(obj: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results of operations."""
    if isinstance(obj, Tensor):
        yield obj
    elif isinstance(obj, (tuple, list)):
        for item in obj:
            yield from operands(item)
    elif isinstance(obj, dict):
        yield from operands(list(obj.values()))


def written_by(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation of this schema changes in place; none where it has no schema."""
    if schema is None:
        return
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    learns = all(given.get(name, True) for name in _LEARNS)
    for argument in schema.arguments:
        alias = argument.alias_info
        if (alias is not None and alias.is_write) or (learns and argument.name in _STATISTICS):
            yield from operands(given.get(argument.name))
