"""Check the transfer to the device and what the loop does with the data there."""

from __future__ import annotations

from ...session import Leaf, SyncCall
from ..recommend.view import batch_text, bytes_text
from ..sentences import counted, number, percent, percent_of
from ..thresholds import GATE
from ..whatif import what_if
from .item import FAILED, OPEN, PASSED, Check, Result, Unmeasurable, at_most, share_of_step

_COPYING = frozenset({"overlap-copies", "pin-memory"})
_LIGHTER = frozenset({"uint8", "pack", "low-precision"})


def transfer(check: Check) -> Result:
    """Check what copying costs the loop, and report whether it is pinned and asynchronous."""
    check.needs_a_device()
    check.needs("baseline", "device", "host")
    share, base = share_of_step(check.ladder, "host", "device"), number(check.ladder.ms("baseline").value)
    figures = f"{percent_of('', share)} of {base} ms; {_how(check)}"
    otherwise = "nothing until the loader keeps up: the copies wait for its batches"
    return at_most(share, GATE, figures, check.advice(_COPYING), otherwise)


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
    """Check for calls that wait for the device in every step."""
    found = check.session.syncs
    if check.device == "cpu":
        raise Unmeasurable("training runs on the CPU: there is no device to wait for")
    if found is None:
        raise Unmeasurable(check.lacking("host") or "time ran out before steps were watched")
    if found.unwatched:
        raise Unmeasurable(found.unwatched)
    seen = f"{found.steps} steps watched"
    if not found.calls:
        return Result(PASSED, f"none in {seen}")
    count = counted(len(found.calls), "call")
    return Result(FAILED, f"{count} of the loop; {seen}", [], [_call(call) for call in found.calls])


def _call(call: SyncCall) -> str:
    often = "once a step" if call.per_step == 1 else f"{number(call.per_step)} times a step"
    took = f", {number(call.ms_per_step)} ms" if call.ms_per_step is not None else ""
    return f"{call.call} at {call.where} ({often}{took}): {call.help}"


def light(check: Check) -> Result:
    """Check whether copying fewer bytes per batch would gain anything."""
    check.needs_a_device()
    leaves = check.session.batch.leaves if check.session.batch is not None else []
    if not leaves:
        raise Unmeasurable("the contents of a batch were not inspected")
    if what_if(check.ladder) is None:
        raise Unmeasurable(check.lacking("baseline", "device") or OPEN)
    figures = f"a batch has {bytes_text(sum(leaf.nbytes for leaf in leaves))} in {counted(len(leaves), 'tensor')}"
    advice = check.advice(_LIGHTER)
    if advice:
        return Result(FAILED, f"{figures}; {'; '.join(one.evidence[0] for one in advice)}", advice)
    return Result(PASSED, f"{figures}; fewer would gain less than {percent(GATE)} of a step")


def unread(check: Check) -> Result:
    """Check for tensors that are copied to the device but not read there."""
    check.needs_a_device()
    batch = check.session.batch
    if batch is not None and batch.unwatched:
        raise Unmeasurable(batch.unwatched)
    copied = [leaf for leaf in batch.leaves if leaf.copied] if batch is not None else []
    known = [leaf for leaf in copied if leaf.read is not None]
    if not known:
        raise Unmeasurable("no watched step showed whether the tensors are read")
    advice = check.advice({"unread"})
    if advice:
        return Result(FAILED, advice[0].evidence[0], advice)
    read = [leaf for leaf in known if leaf.read]
    figures = f"{len(read)} of {len(copied)} copied tensors were seen to be read"
    return Result(PASSED, figures + _for_nothing([leaf for leaf in known if not leaf.read]))


def _for_nothing(idle: list[Leaf]) -> str:
    if not idle:
        return ""
    return f"; leaving {batch_text(idle)} on the host would gain less than {percent(GATE)} of a step"
