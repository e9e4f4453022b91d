"""Rules for the transfer to the device: how batches are copied, and which bytes are unnecessary."""

from __future__ import annotations

from dataclasses import replace

from ...session import HANDED_OVER, Leaf
from ..diagnosis import Recommendation
from ..numbers.intervals import Interval
from ..numbers.paired_windows import LEAST
from ..trials.remedy import outcome
from ..whatif import Change
from ..words import counted, number, percent
from .tried import RISKS, found_best, predicted_only
from .view import ALL, View, batch_text, bytes_text, leaf_text

#: Numbers of tensors and of bytes of a batch up to which packing it otherwise saves nothing.
_FEW, _SMALL = 4, 1 << 16
#: Low-precision dtypes for a model, with at most half the bytes of float32, and their sizes in bytes.
_LOW = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = ("int64", "int32", "int16", "uint16", "uint32", "uint64")
#: Number of values that fit into a byte.
_BYTE = 256
#: Padding to the batch's longest sample is the first change if at least this share of a tensor lies beyond that.
_NEEDLESS = 0.02


def overlap(view: View) -> Recommendation | None:
    """Recommend copying on a separate stream beside the step; with the measured speedup if the hand-off was tried."""
    transfer, tried = view.whatif.transfer, outcome(view.session, HANDED_OVER)
    measured = tried.speedup if tried is not None else None
    if view.on_cpu or transfer is None or transfer.low <= 0 or (measured is not None and measured.high < LEAST):
        return None
    evidence = [_cost(view, transfer)]
    if view.batch.copy_ms is not None:
        evidence.append(f"copying one batch takes {number(view.batch.copy_ms)} ms by itself")
    return view.made(
        "overlap-copies",
        "Copy the next batch while the step runs",
        "transfer",
        # Kernels that use all of the device's memory bandwidth and the copy slow each other.
        Change(loop=Interval(transfer.value, transfer.low / 2, transfer.high)),
        evidence,
        f'loader = pipediag.offload(loader, "{view.device}"{", transforms=False" if measured else ""}): copies batches '
        "ahead of the loop, on a stream of its own",
        "a few more batches take device memory",
        measured,
    )


def pin_memory(view: View) -> Recommendation | None:
    """Recommend pinned memory or asynchronous copies, for copies that are pageable or that the loop waits for."""
    transfer, leaves, batch = view.whatif.transfer, view.batch.leaves, view.batch
    if view.on_cpu or transfer is None or transfer.low <= 0:
        return None
    pageable = not view.loader.pin_memory and not (leaves and all(leaf.pinned for leaf in leaves))
    waited = [leaf for leaf in leaves if leaf.copied and leaf.non_blocking is False]
    if (not pageable and not waited) or (pageable and found_best(view, "pin-memory")):
        return None
    evidence = [f"{_cost(view, transfer)}; pin_memory={view.loader.pin_memory}"]
    saved, timed = transfer, False
    if pageable and batch.copy_ms and batch.pinned_copy_ms is not None:
        timed = True
        faster = max(0.0, 1 - batch.pinned_copy_ms / batch.copy_ms)
        # An asynchronous copy may overlap the step completely.
        saved = Interval(faster * transfer.value, faster * transfer.low, transfer.high)
        evidence.append(
            f"copying one batch takes {number(batch.copy_ms)} ms as the loader gives it, and "
            f"{number(batch.pinned_copy_ms)} ms from pinned memory"
        )
    else:
        evidence.append(ALL)
    if waited:
        evidence.append(f"the loop waits for the copies of {batch_text(waited)}")
    if pageable:  # the trial does not change the loop's own copies
        evidence += predicted_only(view, "pin-memory")
    where = "tensor.pin_memory() where a batch is made" if view.loader.plain_iterable else ""
    pinned = f"{where or f'pin_memory=True {view.in_the_loader}'} and " if pageable else ""
    return view.made(
        "pin-memory",
        "Copy from pinned memory, without waiting" if pageable else "Copy without waiting",
        "transfer",
        Change(loop=saved),
        evidence,
        f'{pinned}.to("{view.device}", non_blocking=True) in the loop',
        RISKS["pin-memory"],
        at_most=not timed,
    )


def _cost(view: View, transfer: Interval) -> str:
    """Return the cost of copying to the loop, as a sentence."""
    base = number(view.whatif.base)
    return f"batches from host memory instead of the device cost {number(transfer.value)} ms of a {base} ms step"


def unread(view: View) -> Recommendation | None:
    """Recommend not copying tensors that nothing on the device reads."""
    found = [leaf for leaf in view.batch.leaves if leaf.copied and leaf.read is False]
    if not found:
        return None
    return _lighter(
        view,
        "unread",
        f"Leave {batch_text(found)} on the host",
        sum(leaf.nbytes for leaf in found),
        [f"{leaf_text(leaf)} is copied to the device and freed without any operation on it" for leaf in found],
        "drop the copy in the training loop, or leave it out of the batch if the host does not need it either",
        "a read by a kernel that is not called through torch's operations would go unnoticed",
    )


def as_bytes(view: View) -> Recommendation | None:
    """Recommend uint8 for floats with no more distinct values than a byte."""
    found = [leaf for leaf in _sent(view) if leaf.dtype in _FLOATS and leaf.levels is not None and not _packed(leaf)]
    if not found:
        return None
    return _lighter(
        view,
        "uint8",
        f"Send {batch_text(found)} as uint8, and convert to float on the device",
        sum(leaf.nbytes * (1 - 1 / leaf.itemsize) for leaf in found),
        [f"{leaf_text(leaf)} holds {_values(leaf)}" for leaf in found],
        "leave ToTensor or ToDtype and what follows it out of the dataset's transforms and do the same to the batch on "
        f'the device, x.to("{view.device}").float().div(255); pipediag.offload does it without a change',
        "the values were counted on a part of some batches; others may hold more",
    )


def _values(leaf: Leaf) -> str:
    if leaf.whole_numbers:
        return f"whole numbers from {leaf.low:g} to {leaf.high:g}"
    if leaf.bytes_over_255:
        return "bytes divided by 255"
    return f"{leaf.levels} different values{' in a channel' if len(leaf.shape) == 4 else ''} (normalised bytes)"


def low_precision(view: View) -> Recommendation | None:
    """Recommend casting floats in the workers to the smaller dtype that the device first converts them to."""
    found = [
        leaf
        for leaf in _sent(view)
        if leaf.turned_into in _LOW
        and leaf.dtype in _FLOATS
        and leaf.arrives == leaf.dtype
        and _LOW[leaf.turned_into] < leaf.itemsize
        and leaf.levels is None
    ]
    if not found:
        return None
    target = str(found[0].turned_into)
    under = f", under autocast to {view.batch.autocast}" if view.batch.autocast else ""
    return _lighter(
        view,
        "low-precision",
        f"Cast {batch_text(found)} to {target} in the workers",
        sum(leaf.nbytes * (1 - _LOW[str(leaf.turned_into)] / leaf.itemsize) for leaf in found),
        [
            f"{leaf_text(leaf)} is converted to {leaf.turned_into} by the operations that read it on the device{under}"
            for leaf in found
        ],
        f"x.to(torch.{target}) at the end of the dataset's transforms, or in the collate function",
        "the cast takes the workers some CPU time; arithmetic on the batch before the model would lose digits",
    )


def pack(view: View) -> Recommendation | None:
    """Recommend fewer bytes for small integers, one-hot vectors and masks of single bits."""
    packed = [(leaf, *better) for leaf in _sent(view) if (better := _packed(leaf)) is not None]
    if not packed:
        return None
    leaves = [leaf for leaf, _, _, _ in packed]
    return _lighter(
        view,
        "pack",
        f"Send {batch_text(leaves)} in fewer bytes",
        sum(leaf.nbytes * (1 - kept) for leaf, kept, _, _ in packed),
        [f"{leaf_text(leaf)} holds {held}" for leaf, _, held, _ in packed],
        "; ".join(f"batch{leaf.path} as {instead}" for leaf, _, _, instead in packed),
        "the values were looked at on some batches only; unpacking is one more operation on the device",
    )


def _packed(leaf: Leaf) -> tuple[float, str, str] | None:
    """Return the share of a tensor's bytes that suffices, its contents, and what to send instead; None if all."""
    if leaf.low is None or leaf.high is None or not leaf.whole_numbers:
        return None
    if leaf.one_hot and leaf.one_hot <= _BYTE:
        held = f"one-hot vectors of {leaf.one_hot} classes"
        return 1 / (leaf.one_hot * leaf.itemsize), held, "the classes' numbers, and one_hot() on the device"
    if (leaf.low, leaf.high) == (0.0, 1.0):
        return (
            1 / (8 * leaf.itemsize),
            "zeros and ones",
            "bits, eight in a byte (numpy.packbits), unpacked on the device",
        )
    if leaf.dtype in _INTEGERS and leaf.low >= 0 and leaf.high < _BYTE:
        return (
            1 / leaf.itemsize,
            f"whole numbers from {leaf.low:g} to {leaf.high:g}",
            "uint8, and .long() on the device",
        )
    return None


def padding(view: View) -> Recommendation | None:
    """Recommend less padding for samples that are filled up to a common size."""
    found = [(leaf, leaf.padding) for leaf in view.batch.leaves if leaf.padding is not None]
    if not found:
        return None
    filled = sum(leaf.nbytes * padding.share for leaf, padding in found) / sum(
        leaf.nbytes for leaf in view.batch.leaves
    )
    lighter = view.whatif.lighter(filled)
    most = max(padding.share for _, padding in found)
    needless = max(padding.beyond_longest for _, padding in found) >= _NEEDLESS
    where = f" ({view.loader.collate.where})" if view.loader.collate and view.loader.collate.where else ""
    evidence = [
        f"{percent(padding.share)} of {leaf_text(leaf)} is padding with {padding.value:g}, "
        f"{percent(padding.beyond_longest)} beyond the longest sample of the batch"
        for leaf, padding in found
    ]
    return view.made(
        "padding",
        "Pad to the longest sample of the batch only" if needless else "Batch samples of similar size",
        "transfer",
        # The model may work on the padding as long as on the rest, or not at all.
        replace(lighter, compute=Interval(0.0, 0.0, most * view.whatif.compute)),
        [*evidence, "the upper end is for a model whose step shrinks in proportion"],
        f"pad in the collate function{where}, to the longest sample of the batch; or use a sampler that sorts by size "
        "within large chunks; or join samples end to end, with their offsets",
        "varying shapes make torch.compile and cudnn.benchmark start over; sorted samples are less random",
    )


def handoff(view: View) -> Recommendation | None:
    """Recommend smaller or fewer tensors for batches that are costly to hand from a worker to the training process."""
    cost, leaves = view.whatif.handoff, view.batch.leaves
    if cost is None or cost.low <= 0 or not view.whatif.workers:
        return None
    evidence = [
        f"handing over a batch that a worker has ready costs {number(cost.value)} ms of a "
        f"{number(view.whatif.base)} ms step: {ALL}"
    ]
    title, how, risk = (
        "Hand over batches in fewer and smaller pieces",
        "one tensor in place of lists of tensors or objects, bytes in place of floats, larger batches of small samples",
        "the device has to unpack what was packed",
    )
    if leaves:
        nbytes = sum(leaf.nbytes for leaf in leaves)
        evidence.append(f"a batch holds {counted(len(leaves), 'tensor')}, {bytes_text(nbytes)} in all")
        if len(leaves) <= _FEW and nbytes <= _SMALL:
            title, how = (
                "Hand over fewer, larger batches",
                "a larger batch_size: each batch costs the same, however small",
            )
            risk = "the model trains in fewer steps"
    return view.made("hand-off", title, "ipc", Change(loop=cost), evidence, how, risk, at_most=True)


def _sent(view: View) -> list[Leaf]:
    """Return the tensors that are copied to the device and needed there, or for which either is unknown."""
    return [leaf for leaf in view.batch.leaves if leaf.copied is not False and leaf.read is not False]


def _lighter(
    view: View, id: str, title: str, saved: float, evidence: list[str], how: str, risk: str
) -> Recommendation | None:
    """Return a recommendation that removes ``saved`` bytes from every batch."""
    nbytes = sum(leaf.nbytes for leaf in view.batch.leaves)
    if view.on_cpu or nbytes <= 0:
        return None
    told = f"{bytes_text(saved)} of a batch's {bytes_text(nbytes)} need not be copied"
    return view.made(id, title, "transfer", view.whatif.lighter(saved / nbytes), [*evidence, told], how, risk)
