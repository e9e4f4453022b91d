"""Copy the user's loader for separate iteration, without disturbing the original."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from ..errors import UsageError
from ..usercode.attributes import has_attribute, is_a
from .iterators import foreign_method, maker_of

#: Attributes from which a loader draws its indices.
_BATCHES, _SAMPLES = "batch_sampler", "sampler"


def plain_twin(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader that shares everything with ``loader`` except its iterator.

    It has torch's own class: a subclass may have an ``__iter__`` over an iterator of its own, which would bypass the
    twin.
    """
    twin: DataLoader[Any] = object.__new__(DataLoader)
    twin.__dict__.update(loader.__dict__, _iterator=None)
    return twin


def require_no_state(loader: Any) -> None:
    """Raise UsageError if the loader saves its place in the epoch, such as torchdata's ``StatefulDataLoader``.

    Its iterators keep the place, and the iterator of a loader that replaces it would not.
    """
    if maker_of(loader) is not DataLoader and has_attribute(loader, "state_dict"):
        raise UsageError(
            f"{type(loader).__name__} saves its place in the epoch, which would be wrong under the remedy; "
            "use torch's DataLoader"
        )


def require_torchs_batches(loader: Any) -> None:
    """Raise UsageError if an iterator in place of the loader's may give other batches: its own is not torch's."""
    require_no_state(loader)
    if part := foreign_method(loader):
        raise UsageError(f"the batches come through {part}, which is not torch's own code")


def detached_twin(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a plain twin with copied samplers and generators: iterating it changes nothing for ``loader``."""
    copies: dict[int, Any] = {}
    twin = plain_twin(loader)
    for name in (_BATCHES, _SAMPLES, "generator"):
        twin.__dict__[name] = _copied(twin.__dict__[name], copies)
    return twin


def with_settings(loader: DataLoader[Any], **settings: Any) -> DataLoader[Any]:
    """Return a copy of a loader with other settings. It makes an iterator of its own."""
    twin = copy.copy(loader)
    twin.__dict__.update(settings, _iterator=None)  # a loader refuses assignments once it is made
    return twin


def with_own_generators(twin: DataLoader[Any]) -> DataLoader[Any]:
    """Give a detached twin its own generators wherever it would draw from torch's global one; return the twin.

    This covers the twin and torch's samplers. A user-defined sampler that draws from the process-wide generators
    continues to do so.
    """
    for holder in (twin, *_samplers(twin.__dict__[_BATCHES]), *_samplers(twin.__dict__[_SAMPLES])):
        if vars(holder).get("generator", holder) is None:
            vars(holder)["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    return twin


def _samplers(sampler: Any) -> Iterator[Sampler[Any]]:
    if is_a(sampler, Sampler):
        yield sampler
        for part in [*vars(sampler).values()]:
            yield from _samplers(part)


def wrap_sampler(twin: DataLoader[Any], wrap: Callable[[Any], Any]) -> Any:
    """Replace the sampler that the twin draws its indices from with ``wrap(sampler)``; return it."""
    name = _SAMPLES if twin.batch_sampler is None else _BATCHES
    wrapped = twin.__dict__[name] = wrap(twin.__dict__[name])
    return wrapped


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copied generator, a sampler copied with its generators and inner samplers, or any other value itself."""
    if not is_a(value, (Sampler, torch.Generator)):
        return value
    if id(value) not in copies:
        if is_a(value, torch.Generator):
            copies[id(value)] = torch.Generator(value.device)
            copies[id(value)].set_state(value.get_state())
        else:
            copies[id(value)] = copy.copy(value)
            for name, part in [*vars(value).items()]:
                copies[id(value)].__dict__[name] = _copied(part, copies)
    return copies[id(value)]
