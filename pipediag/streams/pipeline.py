"""Run stages between a loader and the loop, each on its own stream, while the loop trains on earlier batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..errors import UsageError, at_least
from ..loop.iterators import foreign_method
from ..usercode.attributes import attribute
from .executor import Executor, LoaderOnDevice
from .feed import Copied, Feed
from .graph import Work
from .stage import Stage


class StagePipeline(LoaderOnDevice):
    """Loader whose batches have passed through ``stages`` on the device when the loop gets them.

        for features, labels in StagePipeline(loader, [encode], "cuda"):
            ...

    While the loop trains on batch n, batch n+1 is in the last stage and batch n+2 in the one before. The first stage
    gets its batch on ``device``; a stage that also copies it there does no harm. The loop gets separate tensors, ready
    on the stream that is current when it asks, so it does not handle streams.

    A stage that always launches the same kernels is captured in a CUDA graph, after three batches and a check that the
    graph gives the same results; otherwise it runs without a graph, and :attr:`notes` gives the reason. On the CPU the
    stages run in sequence.

    Args:
        loader: a ``DataLoader``, the result of :func:`pipediag.offload` for one, or any iterable of batches.
        stages: callables that take a batch and return one, of any structure. They run with the loop's grad mode and
            autocast.
        device: where they run.
        depth: number of batches that may be ready in addition to the one that the loop has, by default the number of
            stages plus one; fewer if memory is short.
        graphs: whether stages may be captured.

    Raises:
        UsageError: a stage is not callable or ``depth`` is not a positive whole number; or, from the iterator, a stage
            is not frozen: a module in it is in train mode and uses dropout or batch statistics, its weights change
            while the loop runs, or its result requires a gradient.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        stages: Sequence[Work],
        device: torch.device | str = "cuda",
        *,
        depth: int | None = None,
        graphs: bool = True,
    ) -> None:
        for work in stages:
            if not callable(work):
                raise UsageError(f"a stage is a callable that takes a batch, not {type(work).__name__}")
        if depth is not None:
            depth = at_least(1, "depth, the number of batches that may be ready,", depth)
        self.loader = loader
        self.device = placed(device)
        feed = feed_of(loader, self.device)
        if feed.device != self.device:
            raise UsageError(f"the loader gives its batches on {feed.device}, the stages are to run on {self.device}")
        self._stages = [Stage(work, self.device, graphs) for work in stages]
        self._executor = Executor(feed, self._stages, depth or len(stages) + 1)

    @property
    def notes(self) -> list[str]:
        """One sentence per stage: whether it is captured, and if not, why."""
        return [f"{stage.name}: {stage.note}" for stage in self._stages]


def feed_of(loader: Any, device: torch.device) -> Feed:
    """Return the loader's own feed, if it has one; otherwise the fastest feed for its batches."""
    own: Feed | None = attribute(loader, "__dict__", {}).get("feed")  # not that of a loader inside it
    if own is not None:
        return own
    from_workers = isinstance(loader, DataLoader) and loader.num_workers > 0 and device.type == "cuda"
    # Else other code gets the batches in the form in which they are sent.
    packs = from_workers and not foreign_method(loader, around=True)
    if packs and importlib.util.find_spec("torchvision") is not None:
        from ..replay.plan import Plan
        from .to_device import ToDevice

        return ToDevice(loader, Plan(), device)
    return Copied(loader, device)


def placed(device: torch.device | str) -> torch.device:
    """Return the device with its index.

    Raises:
        UsageError: there is no CUDA device here.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UsageError("there is no CUDA device here: give device='cpu', or run it where there is one")
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
