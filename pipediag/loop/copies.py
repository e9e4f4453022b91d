"""A second loader like the user's, to be iterated beside it: nothing that the script does with its own is disturbed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

#: What a loader asks for the next indices.
_BATCHES, _SAMPLES = "batch_sampler", "sampler"


def plain_twin(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader that shares everything with ``loader`` but its iterator.

    It is one of torch's own class: a subclass may have an ``__iter__`` that goes round on an iterator of its own,
    which is where the twin stands in.
    """
    twin: DataLoader[Any] = object.__new__(DataLoader)
    twin.__dict__.update(loader.__dict__, _iterator=None)
    return twin


def detached_twin(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same, with copies of the samplers and generators: drawing from it changes nothing for ``loader``."""
    copies: dict[int, Any] = {}
    twin = plain_twin(loader)
    for name in (_BATCHES, _SAMPLES, "generator"):
        twin.__dict__[name] = _copied(twin.__dict__[name], copies)
    return twin


def with_own_generators(twin: DataLoader[Any]) -> DataLoader[Any]:
    """The detached twin, given generators where it and torch's samplers have none and so would draw from torch's own.

    A sampler of the user's own that draws from the process-wide generators goes on doing so.
    """
    for holder in (twin, *_samplers(twin.__dict__[_BATCHES]), *_samplers(twin.__dict__[_SAMPLES])):
        if vars(holder).get("generator", holder) is None:
            vars(holder)["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    return twin


def _samplers(sampler: Any) -> Iterator[Sampler[Any]]:
    """The sampler and those inside it."""
    if isinstance(sampler, Sampler):
        yield sampler
        for part in vars(sampler).values():
            yield from _samplers(part)


def wrap_sampler(twin: DataLoader[Any], wrap: Callable[[Any], Any]) -> Any:
    """Put ``wrap(sampler)`` in the place of what the twin draws its indices from; returns it."""
    name = _SAMPLES if twin.batch_sampler is None else _BATCHES
    wrapped = twin.__dict__[name] = wrap(twin.__dict__[name])
    return wrapped


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """A generator where it stands, or a sampler with copies of its generators and of the samplers inside it."""
    if not isinstance(value, (Sampler, torch.Generator)):
        return value
    if id(value) not in copies:
        copies[id(value)] = _copied_generator(value) if isinstance(value, torch.Generator) else copy.copy(value)
        if isinstance(value, Sampler):
            for name, part in vars(value).items():
                copies[id(value)].__dict__[name] = _copied(part, copies)
    return copies[id(value)]


def _copied_generator(generator: torch.Generator) -> torch.Generator:
    twin = torch.Generator(generator.device)
    twin.set_state(generator.get_state())
    return twin
