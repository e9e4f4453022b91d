"""Find the line of the user's code that stands for a training loop, also if a library runs the loop."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.utils.data import ConcatDataset, Dataset

from ..frames import is_installed, is_ours, is_torchs, is_users
from .attributes import attribute
from .constructions import constructions, parsed
from .holders import Holder, NotCertain, holders, only_assignment, scope_of
from .places import short

#: Maximum depth of datasets inside datasets.
_DEPTH = 8
#: Methods and functions that only pass on the items of what they iterate.
_ITERATES = ("__iter__", "__next__", "<genexpr>")
#: Keyword arguments that hand the training data over to a library.
_DATA = re.compile(r"train_?(data|ds|set|loader)\w*|training_?(data|set)\w*|data(set|loader|module)?s?|loader")


def loop_line(loader: Any) -> str:
    """Return the user's line whose code iterates ``loader`` now.

    If a library's trainer iterates it, the user's line would only be the call of that trainer. It is then the line that
    makes the loader, or its dataset, or hands it over; "" if none is certain.
    """
    frame: FrameType | None = inspect.currentframe()
    between = None  # the library's function that the user's code has called
    in_library = False
    while frame is not None and not is_users(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        if is_installed(file) and not is_torchs(file) and not is_ours(file):
            code = frame.f_code
            in_library = in_library or not (code.co_name in _ITERATES or code.co_flags & inspect.CO_GENERATOR)
            between = frame
        frame = frame.f_back
    if frame is not None and not in_library:
        return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
    made = next(filter(None, map(_statement_of, (loader, *datasets_in(loader.dataset)))), "")
    handed = _data_argument(between) if between is not None and not made else ""
    return made or handed or _construction(loader)


def dataset_line(dataset: Any) -> str:
    """Return the user's line that makes a dataset, the innermost one if it has others inside, or "" if none is certain.

    The user's code must be running, as it is while its loop waits for a batch.
    """
    inside = [*datasets_in(dataset)][::-1]
    return next(filter(None, map(_statement_of, inside)), "") or _construction(inside[0])


def _construction(obj: Any) -> str:
    name = type(obj).__name__
    return constructions([name])[name]


def datasets_in(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets inside, as in a Subset, outermost first."""
    for _ in range(_DEPTH):
        yield dataset
        below = attribute(dataset, "dataset", None)
        if isinstance(dataset, ConcatDataset) and len({id(type(part)) for part in dataset.datasets}) == 1:
            below = dataset.datasets[0]
        if not isinstance(below, Dataset):
            return
        dataset = below


def _statements_of(obj: Any) -> Iterator[tuple[Holder, ast.Assign | ast.AnnAssign]]:
    """Yield each name in the running user code that only one statement gives the object to, with that statement."""
    for holder in holders(obj):
        try:
            yield holder, only_assignment(scope_of(parsed(holder.file), holder), holder)
        except (NotCertain, RecursionError):  # a file may be nested deep
            continue


def _statement_of(obj: Any) -> str:
    """Return the line of the first such statement, or ""."""
    return next((f"{short(holder.file)}:{made.lineno}" for holder, made in _statements_of(obj)), "")


def _data_argument(frame: FrameType) -> str:
    """Return the line of the argument that hands the data to the object whose method runs in ``frame``, or ""."""
    first = next(iter(frame.f_code.co_varnames[: frame.f_code.co_argcount]), "")
    trainer = frame.f_locals.get(first)
    for holder, made in _statements_of(trainer) if trainer is not None else ():
        for keyword in made.value.keywords if isinstance(made.value, ast.Call) else ():
            if keyword.arg and _DATA.fullmatch(keyword.arg):
                return f"{short(holder.file)}:{keyword.value.lineno}"
    return ""
