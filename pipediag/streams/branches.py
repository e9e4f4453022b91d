"""Run independent branches of a model in parallel on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.cuda import Stream

from .handover import Ready, hand_over, tensors

Branch = Callable[[Any], Any]

#: For each stream from which branches were called, the streams that they run on.
_side_streams: dict[Stream, list[Stream]] = {}
_lock = threading.Lock()


def fork_join(branches: Iterable[Branch], x: Any) -> list[Any]:
    """Call every branch with ``x``, each on its own CUDA stream, and return their results in order.

        left, right = fork_join([self.left, self.right], x)

    The caller does not handle streams: the branches see ``x`` as it is on the stream that is current at the call, and
    the results can be used on that stream at once. The host does not wait. This pays if a single branch does not fill
    the GPU. With one branch, or without a CUDA tensor in ``x``, the branches run in sequence.

    Grad mode, autocast and random numbers are the same as in sequence. So is everything else, provided that no branch
    changes ``x`` or other data that another branch reads. Under autocast each branch casts its weights itself, since a
    weight cast on one stream is not ready on another. Calls may be nested, and may be captured in a CUDA graph.

    In the backward pass, autograd runs each operation on the stream of its forward operation, so the branches also run
    in parallel there; it synchronizes where gradients pass between streams. As for any other operation, ``backward()``
    is complete, and the gradients are ready, for the stream that is current when it is called: use them on that stream,
    or make another stream wait for it. Hooks on tensors of a branch run on the stream of the branch. (PyTorch's notes
    on CUDA semantics, "Stream semantics of backward passes".) If branches share a parameter, or ``x`` itself is a leaf
    that requires a gradient, their streams wait for each other at it; torch 2.10 and later warn about this once.

    Args:
        branches: callables of one argument, such as modules; the work of one must not depend on that of another.
        x: a batch of any structure. Tensors are found in containers, dataclasses, and objects with a ``.to`` method,
            both here and in the branches' results; other tensors could be freed too early. Anything else a branch reads
            must stay alive, as parameters do; pass activations in ``x``.

    Raises:
        BaseException: any error of a branch, unchanged. The branches after it are not called, and the caller's stream
            waits for those before it.
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
        with suppress(RuntimeError):  # a CUDA error of the branch is raised again by every wait
            for side in sides[: len(made) + 1]:
                caller.wait_stream(side)
        raise
    return [hand_over(Ready(result, side.record_event()), caller) for result, side in zip(made, sides, strict=True)]


def _on(side: Stream, branch: Branch, forked: Ready) -> Any:
    """Return the branch's result, made on a side stream."""
    current = torch.cuda.current_device()
    casts = torch.is_autocast_enabled("cuda")
    with torch.cuda.stream(side), torch.cuda.device(current):  # entering a stream also sets its device
        if casts:
            torch.clear_autocast_cache()  # weights cast on another stream may not be ready yet
        try:
            return branch(hand_over(forked, side))
        finally:
            if casts:
                torch.clear_autocast_cache()


def _sides_of(caller: Stream, number: int) -> list[Stream]:
    """Return the side streams of a caller's stream: created once, and the same for the same branch at every call.

    They belong to the caller's stream, so that nested calls get different ones, and a graph capture in one thread is
    not mixed with launches of another thread.
    """
    with _lock:
        sides = _side_streams.setdefault(caller, [])
        while len(sides) < number:
            sides.append(Stream(caller.device))
        return sides[:number]
