"""Branches of a model that do not depend on each other, side by side on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.cuda import Stream

from .handover import Ready, hand_over, tensors

Branch = Callable[[Any], Any]

#: For each stream that branches were ever called from, the streams that they run on.
_side_streams: dict[Stream, list[Stream]] = {}
_lock = threading.Lock()


def fork_join(branches: Iterable[Branch], x: Any) -> list[Any]:
    """Call every branch with ``x``, each on a CUDA stream of its own; what they give, in the order of the branches.

        left, right = fork_join([self.left, self.right], x)

    The caller needs to know nothing of streams: the branches find ``x`` as it is on the stream that is current at the
    call, and the results can be used on that stream at once. The host waits for nothing. It pays where a branch alone
    does not fill the GPU. With one branch, or without a CUDA tensor in ``x``, the branches simply run in turn.

    Grad mode, autocast and random numbers are as in turn; so is everything else, as long as no branch changes ``x``
    or other things that another branch reads. Under autocast each branch casts the weights that it uses for itself,
    since what was cast on one stream is not ready on another. Calls may be nested, and may be captured in a CUDA graph.

    In the backward pass autograd runs each operation on the stream of its forward operation, so the branches are side
    by side there as well, and waits where gradients pass from one stream to another. Like any other operation,
    ``backward()`` is over, and the gradients are ready, for the stream that is current when it is called: use them on
    that stream, or have another one wait for it. Hooks on tensors of a branch run on the stream of the branch.
    (PyTorch's notes on CUDA semantics, "Stream semantics of backward passes".) Where branches share a parameter, or
    ``x`` itself is a leaf that requires a gradient, their streams wait for each other at it, of which torch 2.10 and
    later warn once.

    Args:
        branches: callables of one argument, such as modules; work of one must not depend on that of another.
        x: a batch of any structure. Tensors are found in containers, dataclasses, and objects with a ``.to`` method,
            here and in what the branches give; others would not be kept from being freed too early. What else a branch
            reads has to live on, as parameters do: an activation belongs into ``x``.

    Raises:
        BaseException: whatever a branch raised, as it was. The branches after it are not called, and the stream of the
            caller waits for those before it.
    """
    branches = list(branches)
    device = next((tensor.device for tensor in tensors(x)), None)
    if device is None or len(branches) < 2:
        return [branch(x) for branch in branches]
    caller = torch.cuda.current_stream(device)
    sides = _sides_of(caller, len(branches))
    forked = Ready(x, caller.record_event())
    made: list[Any] = []
    try:
        for branch, side in zip(branches, sides, strict=True):
            made.append(_on(side, branch, forked))
    except BaseException:
        with suppress(RuntimeError):  # an error of CUDA's that the branch has raised comes again wherever one waits
            for side in sides[: len(made) + 1]:
                caller.wait_stream(side)
        raise
    return [hand_over(Ready(result, side.record_event()), caller) for result, side in zip(made, sides, strict=True)]


def _on(side: Stream, branch: Branch, forked: Ready) -> Any:
    """The branch's result, made on a side stream."""
    current = torch.cuda.current_device()
    casts = torch.is_autocast_enabled("cuda")
    with torch.cuda.stream(side), torch.cuda.device(current):  # a stream brings its device with it
        if casts:
            torch.clear_autocast_cache()  # weights cast on another stream may not be ready yet
        try:
            return branch(hand_over(forked, side))
        finally:
            if casts:
                torch.clear_autocast_cache()


def _sides_of(caller: Stream, number: int) -> list[Stream]:
    """The side streams of a caller's stream: made once, and the same for the same branch at every call.

    They belong to the caller's stream, so that nested calls get others, and that what is captured in a graph in one
    thread is not mixed with what another thread launches.
    """
    with _lock:
        sides = _side_streams.setdefault(caller, [])
        while len(sides) < number:
            sides.append(Stream(caller.device))
        return sides[:number]
