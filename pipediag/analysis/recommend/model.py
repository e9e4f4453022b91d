"""Rules for the model's own step."""

from __future__ import annotations

from ...session import Prefix
from ..diagnosis import Recommendation
from ..numbers.intervals import exactly
from ..whatif import Change
from ..words import few, number, percent
from .view import ALL, View, s

#: The device counts as busy if a kernel runs for at least this share of the time.
_BUSY = 0.9


def frozen_prefix(view: View) -> Recommendation | None:
    """Recommend running frozen modules at the start of a step a batch ahead; the longer of the two parts remains."""
    prefix, compute = view.session.prefix, view.whatif.compute
    if prefix is None or not prefix.modules or prefix.why_not or min(prefix.ms, prefix.rest_ms) <= 0:
        return None
    step = prefix.ms + prefix.rest_ms
    longer = max(prefix.ms, prefix.rest_ms)
    most = compute * (1 - longer / step)
    names = few(prefix.modules)
    return view.made(
        "frozen-prefix",
        f"Run {names} a batch ahead, on a second stream",
        "compute",
        Change(compute=exactly(most)),
        [
            f"the frozen part ({names}) takes {number(prefix.ms)} ms of a {number(step)} ms step: overlapped with the "
            f"rest, such steps become at most {number(step / longer)} times as fast (predicted, not measured)",
            f"with perfect overlap only the longer part remains: {ALL}; nothing is gained if either part alone fills "
            "the device",
        ],
        lines_to_paste(prefix, view.batch.autocast or ""),
        f"correct only if {names} need{s(prefix.modules)} nothing but the batch, no result of an earlier step; one "
        "more batch takes device memory",
        at_most=True,
    )


def lines_to_paste(prefix: Prefix, autocast: str) -> str:
    """Return code that runs the frozen modules in a stage, which passes on the batch with their results."""
    last, at = prefix.modules[-1], f" at {prefix.where}" if prefix.where else ""
    cast = f', torch.autocast("cuda", torch.{autocast})' if autocast else ""
    if prefix.around:
        made = f"...  # what {prefix.around} does up to {last}"
        then = f"what {prefix.around} does after {last}, on features"
    else:
        calls = ", ".join(f"{name}(...)" for name in prefix.modules)
        made = f"{f'({calls})' if len(prefix.modules) > 1 else calls}  # on the batch, as the loop calls it"
        then = "the loop as it is, with features in place of what it called"
    return (
        f"in place of the call{at}:\n"
        "def ahead(batch):\n"
        f"    with torch.no_grad(){cast}:\n"
        f"        return batch, {made}\n"
        "\n"
        'for batch, features in pipediag.StagePipeline(loader, [ahead], "cuda"):\n'
        f"    ...  # {then}"
    )


def compute(view: View) -> Recommendation | None:
    """Recommend what to examine next, if the input pipeline costs almost nothing."""
    model = view.whatif
    if view.verdict.bottleneck != "none" or not view.ladder.has("device"):
        return None
    seen = view.ladder.evidence("device")
    busy = None if view.on_cpu else seen.get("gpu_utilization")
    evidence = [f"a step takes {number(model.compute)} ms with cached batches"]
    if busy is not None:
        evidence.append(f"a kernel runs {percent(busy)} of that time")
    if busy is not None and busy < _BUSY:
        idle = model.compute * (1 - busy)
        return view.made(
            "model",
            "Keep the device busy: it waits for the training process",
            "compute",
            Change(compute=exactly(idle)),
            [*evidence, f"the device idles {number(idle)} ms of each step: {ALL}"],
            "torch.compile or CUDA graphs launch a step's kernels together, a fused optimizer launches fewer; .item() "
            "and printing the loss make the process wait for the device",
            "every new shape compiles the step again",
            at_most=True,
        )
    if view.batch.autocast == "":
        evidence.append("no operation was seen to run under autocast")
    evidence.append("no prediction: measuring the input pipeline does not show what a cheaper step would gain")
    options = "autocast to bfloat16, channels_last, a larger batch, torch.compile"
    profile = view.session.profile
    heavy = profile.modules[0] if profile is not None and profile.modules else None
    tool = "pipediag analyze --profile trace.json" if view.session.script.argv else "torch.profiler"
    first = f"{tool} shows what its steps consist of; begin with the largest part"
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
