"""Check the transfer to the device and what the loop does with the data there."""

from __future__ import annotations

from ...session import Leaf, SyncCall
from ..recommend.view import batch_text, bytes_text, s
from ..sentences import counted, number, percent, span
from ..thresholds import GATE
from ..whatif import what_if
from .item import FAILED, OPEN, PASSED, UNMEASURABLE, Check, Item, against, share_of_step

_COPYING = frozenset({"overlap-copies", "pin-memory"})
_LIGHTER = frozenset({"uint8", "pack", "low-precision"})
_NO_TRANSFER = "training runs on the CPU: there is no transfer"


def transfer(check: Check) -> Item:
    """Check what copying costs the loop, and report whether it is pinned and asynchronous."""
    title = f"copies to the device cost at most {percent(GATE)} of a step"
    why = _NO_TRANSFER if check.device == "cpu" else check.lacking("baseline", "device", "host")
    if why:
        return Item("transfer", title, UNMEASURABLE, why)
    share, base = share_of_step(check.ladder, "host", "device"), number(check.ladder.ms("baseline").value)
    told = f"{percent(max(0.0, share.value))} ({span(share)}) of {base} ms; {_how(check)}"
    status = against(share, GATE)
    if status == FAILED:
        advice = check.advice(_COPYING)
        todo = [] if advice else ["nothing, until the loader keeps up: the copies wait for its batches"]
        return Item("transfer", title, status, told, advice, todo)
    return Item("transfer", title, status, told if status == PASSED else f"{told}; {OPEN}")


def _how(check: Check) -> str:
    """Return how the loop copies, as a clause."""
    batch = check.session.batch
    if batch is None or batch.unwatched or all(leaf.copied is None for leaf in batch.leaves):
        why = batch.unwatched if batch is not None else ""
        return f"how they are made was not seen{f': {why}' if why else ''}"
    copied = [leaf for leaf in batch.leaves if leaf.copied]
    waited = [leaf for leaf in copied if not leaf.non_blocking]
    if not copied:
        return "no tensor of a batch was seen to be copied as it is"
    if not waited:
        return "they come from pinned memory, and nothing waits for them"
    return f"the loop waits for {batch_text(waited)}"


def syncs(check: Check) -> Item:
    """Check for calls that wait for the device in every step."""
    title = "no call waits for the device in every step"
    found = check.session.syncs
    if check.device == "cpu":
        return Item("syncs", title, UNMEASURABLE, "training runs on the CPU: there is no device to wait for")
    if found is None:
        return Item("syncs", title, UNMEASURABLE, check.lacking("host") or "the time was up before steps were watched")
    if found.unwatched:
        return Item("syncs", title, UNMEASURABLE, found.unwatched)
    seen = f"{found.steps} steps watched"
    if not found.calls:
        return Item("syncs", title, PASSED, f"none in {seen}")
    count = counted(len(found.calls), "call")
    return Item("syncs", title, FAILED, f"{count} of the loop; {seen}", [], [_call(call) for call in found.calls])


def _call(call: SyncCall) -> str:
    often = "once a step" if call.per_step == 1 else f"{number(call.per_step)} times a step"
    took = f", {number(call.ms_per_step)} ms" if call.ms_per_step is not None else ""
    return f"{call.call} at {call.where} ({often}{took}): {call.help}"


def light(check: Check) -> Item:
    """Check whether batches could cross the bus in fewer bytes, with a gain."""
    title = "batches cross the bus in few enough bytes"
    leaves = check.session.batch.leaves if check.session.batch is not None else []
    why = _NO_TRANSFER if check.device == "cpu" else "" if leaves else "what is in a batch was not looked at"
    if not why and what_if(check.ladder) is None:
        why = check.lacking("baseline", "device") or OPEN
    if why:
        return Item("bytes", title, UNMEASURABLE, why)
    nbytes = bytes_text(sum(leaf.nbytes for leaf in leaves))
    told = f"a batch has {nbytes} in {counted(len(leaves), 'tensor')}"
    advice = check.advice(_LIGHTER)
    if advice:
        told += f"; {'; '.join(one.evidence[0] for one in advice)}"
        return Item("bytes", title, FAILED, told, advice)
    return Item("bytes", title, PASSED, f"{told}; fewer would gain less than {percent(GATE)} of a step")


def unread(check: Check) -> Item:
    """Check for tensors that are copied to the device but not read there."""
    title = "what is copied to the device is read there"
    batch = check.session.batch
    copied = [leaf for leaf in batch.leaves if leaf.copied] if batch is not None else []
    idle = [leaf for leaf in copied if leaf.read is False]
    known = [leaf for leaf in copied if leaf.read is not None]
    why = _NO_TRANSFER if check.device == "cpu" else ""
    if not why and batch is not None and batch.unwatched:
        why = batch.unwatched
    if not why and not known:
        why = "no step was watched in which that could be seen"
    if why:
        return Item("unread", title, UNMEASURABLE, why)
    advice = check.advice({"unread"})
    if advice:
        return Item("unread", title, FAILED, advice[0].evidence[0], advice)
    told = f"seen to be read: {len(known) - len(idle)} of {len(copied)}"
    return Item("unread", title, PASSED, told + _for_nothing(idle))


def _for_nothing(idle: list[Leaf]) -> str:
    if not idle:
        return ""
    return f"; {batch_text(idle)} need{s(idle)} not be copied, which would gain less than {percent(GATE)} of a step"
