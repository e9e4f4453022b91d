"""Compare single recorded calls with the replay of their ops: equal ones are replayed together.

The replay of one call takes a few milliseconds, most of it to launch it, and a batch with ten views of each picture has
thousands of calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..pack.packing import pack_ops
from ..plan import Plan
from ..run.replay import replay_on
from .differences import Compared
from .samples import Step

#: Maximum bytes of images that wait for their replay.
_WAITING = 1 << 26


class Done(NamedTuple):
    """A call that was made on the CPU: its argument ``image``, whose pixels are ``given``, and those of its result.

    ``compared`` collects its differences.
    """

    step: Step
    image: Any
    given: Tensor
    made: Tensor
    compared: Compared


class Calls:
    """Makes the calls of recorded samples on the CPU, and compares each with its ops on the device.

    All comparisons are entered after :meth:`finish`.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan = plan
        self._device = device
        self._waiting: dict[Any, list[Done]] = defaultdict(list)
        self._nbytes = 0

    def on_cpu(self, step: Step, image: Any) -> Any:
        return step.call(image) if step.call is not None else self._plan.own[step.own].fn(image)  # type: ignore[index]

    def on_device(self, step: Step, image: Tensor) -> Tensor:
        """Run one call on the device, through torchvision itself or the user's own code."""
        device = self._device
        if step.call is None:
            return self._plan.moved[step.own].apply(image.to(device)[None])[0]  # type: ignore[index]
        args, kwargs = tree_map_only(Tensor, lambda value: value.to(device), (step.call.args, step.call.kwargs))
        own: Tensor = step.call._replace(args=args, kwargs=kwargs)(image.to(device))
        return own

    def compare(self, done: Done) -> None:
        """Compare the ops of a call with it, perhaps later."""
        alike = tuple((op.kind, op.shape) for op in done.step.ops)
        self._waiting[done.step.name, alike, done.given.shape, done.given.dtype].append(done)
        self._nbytes += done.given.nbytes + done.made.nbytes
        if self._nbytes > _WAITING:
            self.finish()

    def finish(self) -> None:
        """Compare the calls that wait."""
        for group in self._waiting.values():
            for done, replayed in zip(group, self._replayed(group), strict=True):
                self._enter(done, replayed)
        self._waiting.clear()
        self._nbytes = 0

    def _enter(self, done: Done, replayed: Tensor) -> None:
        want = done.made
        replayed = replayed.reshape(want.shape) if replayed.numel() == want.numel() else replayed
        if not done.compared.ours.add(replayed, want) and isinstance(done.image, Tensor):
            done.compared.theirs.add(self.on_device(done.step, done.image), want)

    def _replayed(self, group: Sequence[Done]) -> Iterator[Tensor]:
        """Yield the results of the calls' ops on the device. They are empty if it has no such kernel, which fails the
        comparison."""
        first = group[0].given
        tracks = [(done.step.ops, (0,) * len(done.step.ops)) for done in group]
        packed = pack_ops(tracks, tuple(first.shape), first.dtype, self._plan.fuse)
        images = torch.stack([done.given for done in group]).to(self._device)
        try:
            yield from replay_on(packed, images, self._plan.moved).cpu()
        except (RuntimeError, TypeError, ValueError):
            yield from [first[:0]] * len(group)
