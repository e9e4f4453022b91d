"""Take chains of torchvision and torch apart into their links, and call them one after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from torch.nn import Sequential
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from .attributes import attribute

Link = Callable[..., Any]
_COMPOSES = ("torchvision.transforms.transforms", "torchvision.transforms.v2._container")
#: The methods of which one calls the links.
_CALLS = ("__call__", "forward")
#: Hooks of all modules. Only newer versions of torch have a function that says whether there are any.
HOOKS_OF_ALL = (_global_backward_pre_hooks, _global_backward_hooks, _global_forward_pre_hooks, _global_forward_hooks)


def links_of(transform: Any) -> list[Link]:
    """Return the links of a chain of torchvision or torch, with nested chains flattened; else the transform itself."""
    if is_compose(transform):
        return [link for part in transform.transforms for link in links_of(part)]
    if _is_sequential(transform):  # takes modules only, so a chain of anything in it stays whole
        return [link for part in transform for link in (links_of(part) if type(part) is Sequential else [part])]
    return [transform]


def chains_in(transform: Any) -> Iterator[Callable[[], Collection[Link]]]:
    """Yield, for the chain and each one nested in it, a function that returns its parts as they are then."""
    if is_compose(transform):
        yield partial(getattr, transform, "transforms")
    elif _is_sequential(transform):
        yield transform._modules.values
    else:
        return
    for part in transform.transforms if is_compose(transform) else transform:
        yield from chains_in(part)


def is_compose(transform: Any) -> bool:
    """Return whether it is a ``Compose`` of torchvision, or of a class of the user's that calls its links alike."""
    kinds = type(transform).__mro__
    named = (kind for kind in kinds if attribute(kind, "__name__") == "Compose")
    own = next((kind for kind in named if attribute(kind, "__module__") in _COMPOSES), None)
    if own is None or not is_called_plainly(transform):
        return False
    return all(attribute(type(transform), name) is getattr(own, name, None) for name in _CALLS)


def is_called_plainly(link: Link) -> bool:
    """Return whether a call of the link runs nothing else: no hook of its own or of all modules, no ``forward`` that
    replaces its class's."""
    own = getattr(link, "__dict__", {})
    hooked = own.get("_forward_hooks") or own.get("_forward_pre_hooks") or "forward" in own
    return not hooked and not any(HOOKS_OF_ALL)


def _is_sequential(transform: Any) -> bool:
    return type(transform) is Sequential and is_called_plainly(transform)


def run(links: Sequence[Link], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Call links in sequence as torchvision's chains do, and return the arguments for the next link."""
    for one in links:
        args = passed_on(one(*args), len(args) > 1)
    return args


def passed_on(result: Any, several: bool) -> tuple[Any, ...]:
    """Return a link's result as the next link's arguments: those of several arguments are passed on as several."""
    return result if several else (result,)
