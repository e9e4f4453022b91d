"""Check the transfer to the device and what the loop does with the data there."""

from __future__ import annotations

from dataclasses import replace

from ...session import SyncCall
from ..forecast.whatif import Change, what_if
from ..recommend.view import batch_text, bytes_text
from ..sentences import counted, number, percent, percent_of
from .item import FAILED, OPEN, PASSED, Check, DoesNotApply, NotMeasured, Result, at_most, share_of_step

_COPYING = frozenset({"overlap-copies", "pin-memory"})
_LIGHTER = frozenset({"uint8", "pack", "low-precision"})


def transfer(check: Check) -> Result:
    """Check what copying costs the loop, and report whether it is pinned and asynchronous.

    Copies that the loop makes while it waits for the loader anyway pass: without them it would be no faster.
    """
    check.needs_a_device()
    check.needs("baseline", "device", "host")
    share, base = share_of_step(check.ladder, "host", "device"), check.ladder.ms("baseline").value
    figures = f"{percent_of('', share)} of {number(base)} ms; {_how(check)}"
    if check.input_is_cheap:
        return Result(PASSED, figures)
    model = what_if(check.ladder)
    if model is not None and share.low > check.bound:
        gain = model.faster(Change(loop=share.times(model.base)))
        if gain.high < 1 / (1 - check.bound):
            return Result(PASSED, f"{figures}; without them the loop would be {number(gain.value)}x as fast")
    otherwise = "load the next batch to the device while a step runs"
    return at_most(share, check.bound, figures, check.advice(_COPYING), otherwise)


def _how(check: Check) -> str:
    """Return how the loop copies, as a clause."""
    batch = check.session.batch
    if batch is None or batch.unwatched or all(leaf.copied is None for leaf in batch.leaves):
        why = batch.unwatched if batch is not None else ""
        return f"how the loop copies was not observed{f': {why}' if why else ''}"
    copied = [leaf for leaf in batch.leaves if leaf.copied]
    waited = [leaf for leaf in copied if not leaf.non_blocking]
    if not copied:
        return "no tensor of a batch was copied unchanged"
    if not waited:
        return "from pinned memory, without waiting"
    return f"the loop waits for the copy of {batch_text(waited)}"


def syncs(check: Check) -> Result:
    """Check for calls that wait for the device in every step.

    Without them a step becomes shorter by at most the time spent in them, and by the time in which the device idles.
    """
    found = check.session.syncs
    if check.device == "cpu":
        raise DoesNotApply("training runs on the CPU: there is no device to wait for")
    if found is None:
        check.needs("host")
        raise NotMeasured("time ran out before steps were watched")
    if found.unwatched:
        raise NotMeasured(found.unwatched)
    seen = f"{found.steps} steps watched"
    if not found.calls:
        return Result(PASSED, f"none in {seen}")
    figures, todo = f"{counted(len(found.calls), 'call')} of the loop; {seen}", list(map(_call, found.calls))
    known = [call.ms_per_step for call in found.calls if call.ms_per_step is not None]
    step = check.ladder.ms("baseline").value if check.ladder.has("baseline") else None
    if step is not None and len(known) == len(found.calls) and sum(known) <= check.bound * step:
        return Result(PASSED, f"{figures}; they take {number(sum(known))} of {number(step)} ms")
    busy = check.ladder.evidence("device").get("gpu_utilization", 0.0)
    if busy >= 1 - check.bound:
        return Result(PASSED, f"{figures}; fed from a cache the device works {percent(busy)} of the time")
    if len(known) < len(found.calls) and sum(known) <= check.bound * (step or 0.0):
        return Result(OPEN, f"{figures}; how long they take is not known", [], todo)
    return Result(FAILED, figures, [], todo)


def _call(call: SyncCall) -> str:
    often = "once a step" if call.per_step == 1 else f"{number(call.per_step)} times a step"
    took = f", {number(call.ms_per_step)} ms" if call.ms_per_step is not None else ""
    return f"{call.call} at {call.where} ({often}{took}): {call.help}"


def light(check: Check) -> Result:
    """Check whether copying fewer bytes per batch would gain anything."""
    check.needs_a_device()
    leaves = check.session.batch.leaves if check.session.batch is not None else []
    if not leaves:
        raise NotMeasured("the contents of a batch were not inspected")
    if what_if(check.ladder) is None:
        check.needs("baseline", "device")
    figures = f"a batch has {bytes_text(sum(leaf.nbytes for leaf in leaves))} in {counted(len(leaves), 'tensor')}"
    found = check.judged(figures, _LIGHTER)
    if found.status == FAILED:
        return replace(found, figures=f"{figures}; {'; '.join(one.evidence[0] for one in found.advice)}")
    return replace(found, figures=f"{found.figures}; fewer would gain less than {percent(check.bound)} of a step")


def unread(check: Check) -> Result:
    """Check for tensors that are copied to the device but not read there."""
    check.needs_a_device()
    batch = check.session.batch
    if batch is not None and batch.unwatched:
        raise NotMeasured(batch.unwatched)
    leaves = batch.leaves if batch is not None else []
    copied = [leaf for leaf in leaves if leaf.copied]
    known = [leaf for leaf in copied if leaf.read is not None]
    if leaves and all(leaf.copied is False for leaf in leaves):
        raise DoesNotApply("no tensor of a batch is copied to the device unchanged")
    if not known:
        raise NotMeasured("no watched step showed whether the tensors are read")
    read = [leaf for leaf in known if leaf.read]
    figures = f"{len(read)} of {len(copied)} copied tensors were seen to be read"
    found = check.judged(figures, {"unread"})
    if found.status == FAILED:
        return replace(found, figures=found.advice[0].evidence[0])
    idle = [leaf for leaf in known if not leaf.read]
    if not idle:
        return found
    little = f"leaving {batch_text(idle)} on the host would gain less than {percent(check.bound)} of a step"
    return replace(found, figures=f"{figures}; {little}")
