"""Whether a part of the loop's model learns nothing, and could run a batch ahead: looked for outside timed windows.

A few steps of the loop's are watched, and the modules that it calls are run beside it; they, and everything that
the loop draws or computes, are as if nothing had been looked at.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ..errors import PipediagError
from ..session import Prefix
from ..usercode import tree
from .caches import BatchCache
from .loop_side import LoopSide
from .tensor_uses import why_unwatched

#: Steps that are watched, and times that it is tried, where an epoch ends in the middle.
_WATCHED, _TRIES = 2, 3


def frozen_prefix(
    loop_side: LoopSide, cache: BatchCache, device: torch.device, step_ms: float, seconds: float
) -> Generator[Any, None, Prefix | None]:
    """The frozen prefix of the loop's step, tried where that takes no more than about ``seconds``.

    None where no parameter is frozen or none is trained. Whatever goes wrong, there is no prefix, and the reason.
    """
    try:
        modules = yield from _outermost(loop_side, cache)
        parameters = [weight for module in modules for weight in module.parameters()]
        if all(one.requires_grad for one in parameters) or not any(one.requires_grad for one in parameters):
            return None
        found: Prefix = yield from _look(loop_side, cache, device, modules, step_ms, seconds)
    except PipediagError as error:
        return _none(str(error))
    except Exception as error:  # the loop goes on, whatever its model does when it is run beside it
        return _none(f"trying failed ({type(error).__name__}: {error})")
    return found


def _none(why: str) -> Prefix:
    return Prefix([], 0.0, 0.0, 0.0, 0.0, why_not=why)


def _look(
    loop_side: LoopSide,
    cache: BatchCache,
    device: torch.device,
    modules: list[nn.Module],
    step_ms: float,
    seconds: float,
) -> Generator[Any, None, Prefix]:
    from ..remedy.prefix.calls import Step
    from ..remedy.prefix.trying import Candidate, NotTried, seconds_needed, why_untried

    why_not = why_unwatched() or why_untried(modules)
    if not why_not and seconds_needed(step_ms, False) > seconds:
        why_not = f"steps of {step_ms / 1000:.2g} s are too long to be tried beside the loop"
    if why_not:
        return _none(why_not)
    step = Step(modules, device)
    for _ in range(_TRIES):
        whole, orders = True, []
        for _ in range(_WATCHED):
            batch = tree.clone(cache.next())
            back = yield from _handed(loop_side, cache, batch, step)
            whole = whole and back
            orders.append([call.module for call in step.calls])
        if whole or step.trouble:
            break
    if step.trouble:
        return _none(step.trouble)
    if not step.calls:
        return _none("the model runs in another thread than the one that asks for batches")
    if not whole or orders[0] != orders[-1]:
        return _none("the loop calls other modules from step to step")
    try:
        candidate = Candidate(step, device)
        for _ in range(_WATCHED):  # a teacher that follows its student shows by being changed
            yield from loop_side.hand(cache.next())
        return candidate.tried(step_ms, compared=seconds_needed(step_ms, True) <= seconds)
    except NotTried as reason:
        return _none(str(reason))


def _handed(loop_side: LoopSide, cache: BatchCache, batch: Any, step: Any) -> Generator[Any, None, bool]:
    """Let the loop have ``batch`` under watch; whether it came back for more in the same epoch."""
    if loop_side.epochs.complete:  # what the loop does between two epochs is no part of a step
        yield from loop_side.hand(cache.next())
    with step.watched(batch):
        back = yield from loop_side.hand(batch)
    return back


def _outermost(loop_side: LoopSide, cache: BatchCache) -> Generator[Any, None, list[nn.Module]]:
    """The modules called in one step that are in no other of them, in the order of their calls."""
    called: dict[int, nn.Module] = {}
    with _noting(called):
        yield from loop_side.hand(cache.next())
    inside = {id(part) for module in called.values() for part in module.modules() if part is not module}
    return [module for module in called.values() if id(module) not in inside]


@contextmanager
def _noting(called: dict[int, nn.Module]) -> Iterator[None]:
    def note(module: nn.Module, args: Any) -> None:
        called.setdefault(id(module), module)

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
