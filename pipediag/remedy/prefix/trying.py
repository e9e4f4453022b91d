"""A frozen prefix of a step of the loop's: found in its calls, held against them, timed, and told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from ...errors import PipediagError
from ...session import Prefix
from .again import Again
from .calls import Seen, Step
from .gain import Costs, predict
from .split import NoPrefix, Split, find_prefix
from .timing import compare, measure

#: Windows and single runs of a measurement, and about how long a window is in seconds.
_ROUNDS, _SINGLES, _SECONDS = 3, 3, 0.1
_COMPARED, _COMPARED_SECONDS = 5, 0.15
#: Steps that finding, verifying and measuring take; and those that a comparison takes on top of it.
_STEPS, _STEPS_COMPARED = 40, 25
#: How :mod:`.trace` names a tensor that :class:`.calls.Step` has marked.
_MARKED = "the batch, which requires grad"
NO_STREAMS = "training runs on the CPU, where nothing runs beside the rest"


class NotTried(Exception):
    """There is no prefix, or none that can be tried; the message says why."""


class Candidate:
    """A prefix of the step that ``step`` has seen.

    Raises:
        NotTried: it has none.
    """

    def __init__(self, step: Step, device: torch.device) -> None:
        self._again = Again(step.calls, device)
        self._inputs = step.inputs
        if not self._again.calls:
            raise NotTried("no module is called with what comes from the batch alone")
        if not self._again.trained:
            raise NotTried("nothing in the modules that are called with the batch is trained")
        with self._again.undone():
            self._split = _found(self._again, self._inputs)
            self._split.verify(self._inputs)

    @property
    def names(self) -> tuple[str, ...]:
        return self._split.names

    def tried(self, step_ms: float, compared: bool) -> Prefix:
        """What it takes and could bring, timed beside the loop. Ask after some steps of the loop's.

        Args:
            step_ms: what a step of the loop's takes on batches that lie on the device. What it does beside the calls
                of modules and their backward pass is taken to stay as it is.
            compared: whether running it ahead is to be tried, too.

        Raises:
            NotTried: the loop changes the prefix.
        """
        changed = self._split.changed()
        if changed is not None:
            raise NotTried(f"{changed} changes while the loop trains")
        forward = self._again.step
        with self._again.undone():
            costs = measure(self._split, self._inputs, forward, rounds=_ROUNDS, seconds=_SECONDS, singles=_SINGLES)
            ratio = self._compared() if compared and costs.streams else None
        return self._told(costs, step_ms, ratio)

    def _compared(self) -> float | None:
        """How many times as fast the calls become when the prefix runs ahead; None where no stage can be made of it."""
        forward = self._again.step
        try:
            return compare(self._split, self._inputs, forward, rounds=_COMPARED, seconds=_COMPARED_SECONDS).value
        except (PipediagError, RuntimeError):
            return None

    def _told(self, costs: Costs, step_ms: float, ratio: float | None) -> Prefix:
        whole = in_the_loop(costs, step_ms)
        prediction = predict(whole)
        least, most = prediction.captured if self._split.capturable else prediction.as_is
        taken = max(0.0, whole.step - whole.rest)
        measured = None if ratio is None else whole.step / (whole.step - costs.step * (1 - 1 / ratio))
        return Prefix(
            modules=list(self.names),
            ms=taken,
            rest_ms=whole.step - taken,
            least=least,
            most=most,
            measured=measured,
            how=how(self.names, self._again.calls),
            why_not=_why_not(costs.streams, measured),
        )


def _why_not(streams: bool, measured: float | None) -> str:
    if not streams:
        return NO_STREAMS
    slower = measured is not None and measured <= 1.0
    return f"it was tried, and steps became {measured:.2f} times as fast" if slower else ""


def in_the_loop(costs: Costs, step_ms: float) -> Costs:
    """The costs of the calls of a step, and those of the whole step in which they are made."""
    beside = max(0.0, step_ms - costs.step)
    return replace(costs, step=costs.step + beside, rest=costs.rest + beside, rest_host=costs.rest_host + beside)


def how(names: Sequence[str], calls: Sequence[Seen]) -> str:
    """The lines to write: a stage that calls the frozen modules as the loop does, or a split of the one around them."""
    outer = {call.name: call.where for call in calls}
    if all(name in outer for name in names):
        *_, last = names
        called, where = ", ".join(names), f" ({outer[last]})" if outer[last] else ""
        return (
            f"def ahead(batch):  # what the loop does up to {called}{where}, under torch.no_grad()\n"
            f"    return ...  # what {last} gives, and what else of the batch the loop needs\n"
            'for ... in pipediag.StagePipeline(loader, [ahead], "cuda"):  # and leave those lines out of the loop'
        )
    around = (name for name in outer if any(one == name or one.startswith(f"{name}.") for one in names))
    root = next(around, names[0])
    where = f" at {outer[root]}" if outer.get(root) else ""
    return (
        f"def forward(batch): return {root}(...)  # as the loop calls it{where}\n"
        "split = find_prefix(forward, batch)  # from pipediag.remedy.prefix; with one batch, on the device\n"
        'for batch, features in pipediag.StagePipeline(loader, [split.stage], "cuda"):\n'
        f"    output = split.rest(batch, features)  # in place of {root}(...)"
    )


def seconds_needed(step_ms: float, compared: bool) -> float:
    """About how long trying takes, where a step takes ``step_ms``."""
    least = 2 * (_ROUNDS + 1) * _SECONDS
    more = (2 * _COMPARED * _COMPARED_SECONDS) if compared else 0.0
    steps = _STEPS + (_STEPS_COMPARED if compared else 0)
    return max(least + more, steps * step_ms / 1000)


def why_untried(modules: Sequence[nn.Module]) -> str:
    """Why these modules must not be run beside the loop; empty where they may."""
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        return "the loop trains on several processes, which would wait for each other"
    for root in modules:
        for part in root.modules():
            if any(not _torchs(hook) for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())):
                return f"{type(part).__name__} has a hook of the script's, which must not run more often than it does"
    return ""


def _torchs(hook: object) -> bool:
    return str(getattr(hook, "__module__", None) or type(hook).__module__).startswith("torch.")


def _found(again: Again, inputs: list[object]) -> Split:
    found = find_prefix(again.forward, inputs)
    if isinstance(found, NoPrefix):
        why = "; ".join(found.blocked) or found.reason
        raise NotTried(
            why.replace(_MARKED, "what is not made of the batch alone (but of weights, draws, or older steps)")
        )
    return found
