"""Rules for the step itself."""

from __future__ import annotations

from ..diagnosis import Recommendation
from ..intervals import Interval
from ..sentences import number, percent
from ..whatif import Change
from .view import HALVED, View, listed, s

#: Part of the time in which a kernel runs, from which on the device counts as busy.
_BUSY = 0.9


def frozen_prefix(view: View) -> Recommendation | None:
    """A part of the forward that learns nothing, run a batch ahead."""
    prefix, compute = view.session.prefix, view.whatif.compute
    if prefix is None or prefix.why_not or not 0 < prefix.least <= prefix.most:
        return None

    def saved(times: float) -> float:
        return compute * (1 - 1 / times)

    middle = prefix.measured or (prefix.least + prefix.most) / 2
    names = prefix.modules
    told = f"{number(prefix.least)} to {number(prefix.most)} times as fast"
    return view.made(
        "frozen-prefix",
        f"Run {listed(names)} a batch ahead, on a stream of its own",
        "compute",
        Change(compute=Interval(saved(middle), saved(min(prefix.least, middle)), saved(max(prefix.most, middle)))),
        [
            f"{listed(names)} take{s(names)} {number(prefix.ms)} ms of a step fed from the device, the rest "
            f"{number(prefix.rest_ms)} ms, and need{s(names)} nothing of what the loop learns",
            f"run a batch ahead, such steps become {told}"
            + (f", measured {number(prefix.measured)} times" if prefix.measured else ""),
        ],
        prefix.how or "the frozen modules as a stage of a StagePipeline, the trained ones in the loop",
        "where either part fills the device by itself nothing is gained; one more batch lies in its memory",
    )


def compute(view: View) -> Recommendation | None:
    """What to look at next where the input pipeline costs next to nothing."""
    model = view.whatif
    if view.verdict.bottleneck != "none" or not view.ladder.has("device"):
        return None
    seen = view.ladder.evidence("device")
    busy = None if view.on_cpu else seen.get("gpu_utilization")
    evidence = [f"a step takes {number(model.compute)} ms with batches that lie on the device"]
    if busy is not None:
        evidence.append(f"a kernel runs {percent(busy)} of that time")
    if busy is not None and busy < _BUSY:
        idle = model.compute * (1 - busy)
        return view.made(
            "model",
            "Keep the device busy: it waits for the training process",
            "compute",
            Change(compute=Interval(idle / 2, 0.0, idle)),
            [*evidence, f"the device idles {number(idle)} ms of each step; {HALVED}"],
            "torch.compile or CUDA graphs launch a step's kernels together, a fused optimizer launches fewer; .item() "
            "and printing the loss make the process wait for the device",
            "compiled steps have to be made anew for every new shape",
        )
    if view.batch.autocast == "":
        evidence.append("no operation was seen to run under autocast")
    evidence.append("what a cheaper step would gain cannot be told from the input pipeline's side: no prediction")
    options = "autocast to bfloat16, channels_last, a larger batch, torch.compile"
    profile = view.session.profile
    heavy = profile.modules[0] if profile is not None and profile.modules else None
    first = "pipediag analyze --profile trace.json shows what its steps consist of; begin with what takes most"
    if heavy is not None:
        evidence.append(f"{heavy.name} takes {number(heavy.ms)} ms of a recorded step, its backward pass included")
        first = f"begin with {heavy.name}"
    return view.made(
        "model",
        "Look at the model's own step next",
        "compute",
        None,
        evidence,
        first + ("" if view.on_cpu else f": {options}"),
        "lower precision may change how the training converges",
    )
