"""Prove on the user's own samples that a replay gives the same pixels as the CPU.

Each sample was made twice from one random state, with pixels and recorded (:mod:`pipediag.replay.certify.samples`).
The recording must cover every change to the sample. Each call's ops are compared with the call itself on the CPU, and
the whole batch with the batch of real samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchvision.transforms import functional as older

from ...session import Elsewhere, Pictured
from ...session.remedies import DECODING, elsewhere
from ...usercode.objects import leaves
from ...usercode.randomness import moved
from ..decode.decoding import both_ways
from ..ops.exactness import ONE_LEVEL, UNBOUNDED, Input, deviations
from ..pack.packing import pack_ops
from ..plan import Certified, Plan
from ..run.replay import replay, replay_on
from .differences import INTEGER_SHARE, Compared, Difference, as_in_a_worker, equal
from .pictures import Pictures
from .samples import History, Real, Recorded, Step, images, tensor_made, tensor_of

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

    def on_device(self, step: Step, image: Tensor) -> Tensor:
        """Run one call on the device, through torchvision itself."""
        device = self._device
        args, kwargs = tree_map_only(Tensor, lambda value: value.to(device), (step.call.args, step.call.kwargs))
        own: Tensor = step.call._replace(args=args, kwargs=kwargs)(image.to(device))
        return own

    def compare(self, done: Done) -> None:
        """Compare the ops of a call with it, perhaps later."""
        alike = tuple((op.kind, op.shape) for op in done.step.ops)
        self._waiting[done.step.call.name, alike, done.given.shape, done.given.dtype].append(done)
        self._nbytes += done.given.nbytes + done.made.nbytes
        if self._nbytes > _WAITING:
            self.finish()

    def finish(self) -> None:
        """Compare the calls that wait."""
        for group in self._waiting.values():
            for done, replayed in zip(group, self._replayed(group), strict=True):
                want = done.made
                replayed = replayed.reshape(want.shape) if replayed.numel() == want.numel() else replayed
                if not done.compared.ours.add(replayed, want) and isinstance(done.image, Tensor):
                    done.compared.theirs.add(self.on_device(done.step, done.image), want)
        self._waiting.clear()
        self._nbytes = 0

    def _replayed(self, group: Sequence[Done]) -> Iterator[Tensor]:
        """Yield the results of the calls' ops on the device. They are empty if it has no such kernel, which fails the
        comparison."""
        first = group[0].given
        tracks = [(done.step.ops, (0,) * len(done.step.ops)) for done in group]
        packed = pack_ops(tracks, tuple(first.shape), first.dtype, self._plan.fuse)
        images = torch.stack([done.given for done in group]).to(self._device)
        try:
            yield from replay_on(packed, images).cpu()
        except (RuntimeError, TypeError, ValueError):
            yield from [first[:0]] * len(group)


#: Limit on an integer op's error of one level once later ops have amplified it, as a fraction of the range.
_GROWN = 4 / 255
#: Fraction of the pixels by which two measurements of torchvision's own difference between devices may disagree.
_SAMPLING = 1e-4


@dataclass(frozen=True)
class Verdict:
    """Result for one function, or for whole batches, over all samples that took it."""

    name: str
    samples: int  # number of samples
    difference: Difference  # between the replay and the CPU
    #: The difference between torchvision's own results on the CPU and on the device, measured if the replay's exceeds
    #: the tolerance: a replay that differs no more than torchvision itself passes.
    torchvision: Difference | None = None
    #: True if an integer op of the batches differed within its tolerance, which later ops may amplify.
    rounded: bool = False

    @property
    def passed(self) -> bool:
        ours, theirs = self.difference, self.torchvision
        if ours.within or (self.rounded and ours.largest <= _GROWN and ours.off <= INTEGER_SHARE):
            return True
        return theirs is not None and ours.largest <= theirs.largest and ours.off <= theirs.off + _SAMPLING

    @property
    def sentence(self) -> str:
        d = self.difference
        unit = "of the range" if d.floating else "levels"
        measured = "equal" if d.equal else f"largest {d.largest:.2g} {unit}, {100 * d.off:.3g} % off"
        theirs = "" if self.torchvision is None else f"; torchvision itself: {self.torchvision.largest:.2g}"
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name} ({self.samples} samples): {measured}{theirs}"


@dataclass(frozen=True)
class Certificate:
    """Comparison of one loader's moved transforms on one device with the CPU."""

    ops: tuple[Verdict, ...]  # one verdict for each replayed function
    whole: tuple[Verdict, ...]  # one verdict for each dtype in the batches
    faithful: bool  # True if the recorded calls, run on the CPU, give exactly the real samples
    draws_equal: bool  # True if the random generators end in the same state both ways
    samples: int  # number of samples made both ways
    #: Number of these samples that could not be recorded. In training the workers make them with pixels.
    unrecorded: int
    why: str  # one reason for that
    device: str  # its name
    certified: Certified = field(default_factory=Certified)  # the same, in the names by which workers know it
    #: The moved transforms that are not exact by construction (:mod:`.ops.exactness`), or that chance skipped in all
    #: samples, and how far their pixels may be off on other samples.
    elsewhere: tuple[Elsewhere, ...] = ()
    pictured: tuple[Pictured, ...] = ()  # a few samples that are images, the most different first

    @property
    def failed(self) -> frozenset[str]:
        """Names of the functions whose replay is too far off."""
        return frozenset(verdict.name for verdict in self.ops if not verdict.passed)

    @property
    def passed(self) -> bool:
        compared = self.samples > self.unrecorded
        return compared and self.faithful and self.draws_equal and self._within

    @property
    def _within(self) -> bool:
        return all(verdict.passed for verdict in (*self.ops, *self.whole))

    @property
    def pixels(self) -> str:
        """How equal the pixels are, in words: "equal" if all samples were and all functions are exact."""
        compared = self.samples - self.unrecorded
        all_equal = all(verdict.difference.equal for verdict in (*self.ops, *self.whole))
        if all_equal and compared and not self.elsewhere:
            return "equal"
        measured = "equal" if all_equal else "within the tolerances" if self._within else "too far off"
        return "; ".join(filter(None, [f"{measured} on {compared} samples", elsewhere(self.elsewhere)]))

    def __str__(self) -> str:
        lines = [verdict.sentence for verdict in (*self.ops, *self.whole)]
        lines.append(f"     the pixels are {self.pixels}")
        if not self.faithful:
            lines.append("FAIL the samples were changed by something that was not recorded")
        draws = "ok   the random generators end where they would have" if self.draws_equal else "FAIL the draws differ"
        lines.append(f"{draws} ({self.samples} samples, {self.device})")
        if self.unrecorded:
            lines.append(f"{self.unrecorded} of the samples could not be recorded: {self.why}")
        return "\n".join(lines)


@as_in_a_worker()
def certify(witnesses: Iterable[tuple[Real, Recorded]], plan: Plan, device: torch.device) -> Certificate:
    """Replay the recorded samples on ``device`` and compare them with the real ones."""
    comparison = _Comparison(plan, device)
    for real, recorded in witnesses:
        comparison.add(real, recorded)
    return comparison.certificate()


def _verdict(name: str, compared: Compared) -> Verdict:
    ours, theirs = compared.ours.difference, compared.theirs.difference
    if ours.within or not compared.theirs.samples:
        return Verdict(name, compared.ours.samples, ours)
    # Samples within our tolerance count as equal for torchvision.
    share = compared.theirs.samples / compared.ours.samples
    return Verdict(name, compared.ours.samples, ours, replace(theirs, off=theirs.off * share))


class _Comparison:
    """Comparison of all samples so far."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan = plan
        self._device = device
        self._calls = Calls(plan, device)
        self._ops: dict[str, Compared] = defaultdict(Compared)
        self._whole: dict[torch.dtype, Compared] = defaultdict(Compared)
        self._faithful = self._draws_equal = True
        self._samples = self._unrecorded = 0
        self._why = ""
        self._inexact: dict[Elsewhere, None] = {}  # an ordered set
        self._off: set[str] = set()  # the names of such ops
        self._skipped: set[str] = set()  # links that chance may skip
        self._taken: set[str] = set()  # links that some sample took
        self._pictures = Pictures()

    def add(self, real: Real, recorded: Recorded) -> None:
        self._samples += recorded.number
        self._draws_equal = self._draws_equal and moved(real.random_state, recorded.random_state) is None
        packed, device = recorded.packed, self._device
        if packed is None:
            self._unrecorded += recorded.number
            self._why = recorded.why
            return
        if packed.files is not None:
            for pixels, users in both_ways(packed.memory, packed.files, device):
                self._ops[DECODING].ours.add(pixels, users.cpu())
            self._inexact[Elsewhere(DECODING, ONE_LEVEL)] = None
        made = replay(packed.decoded_on_cpu(device), device)
        self._skipped |= recorded.by_chance
        agree = True
        for ours, reference in zip(_tensors(made), _tensors(real.batch), strict=True):
            agree = self._whole[reference.dtype].ours.add(ours, reference, form=True) and agree
            self._pictures.add(ours, reference)
        for history, image in images(recorded.samples, [real.batch] if recorded.of_batch else real.samples):
            want = tensor_made(history, self._by_op)
            self._faithful = self._faithful and equal(want, tensor_of(image))
            if not agree:
                self._whole[want.dtype].theirs.add(
                    tensor_made(history, lambda one: self._by_torchvision(one).cpu()), want
                )

    def certificate(self) -> Certificate:
        self._calls.finish()
        ops = tuple(_verdict(name, compared) for name, compared in self._ops.items())
        kernels = [verdict for verdict in ops if verdict.name != DECODING]  # whole batches are compared without it
        rounded = any(not v.difference.floating and not v.difference.equal and v.passed for v in kernels)
        whole = [_verdict(f"whole batches, {str(dtype)[6:]}", compared) for dtype, compared in self._whole.items()]
        never_taken = self._skipped - self._taken
        return Certificate(
            ops=ops,
            whole=tuple(replace(one, samples=self._samples - self._unrecorded, rounded=rounded) for one in whole),
            faithful=self._faithful,
            draws_equal=self._draws_equal,
            samples=self._samples,
            unrecorded=self._unrecorded,
            why=self._why,
            device=str(self._device),
            certified=Certified(frozenset(self._off), frozenset(never_taken)),
            elsewhere=tuple({**self._inexact, **{Elsewhere(name, UNBOUNDED): None for name in sorted(never_taken)}}),
            pictured=self._pictures.drawn(),
        )

    def _by_op(self, history: History) -> Tensor:
        """Run the calls one by one on the CPU, to compare each call's ops on the device with it, and note which links
        were taken and what is not exact by construction. Return the last CPU result."""
        image, pixels = history.source, tensor_of(history.source)
        for step in history.steps:
            self._taken.add(self._plan.link(step.call.site, step.call.name))
            result = step.call(image)
            made = tensor_of(result)
            if step.ops:
                given = Input(tuple(pixels.shape), pixels.dtype, _made_by(step, image))
                off = deviations(step.ops, given)
                self._off |= off.keys()
                self._inexact |= {Elsewhere(self._transform(step), how): None for how in off.values()}
                self._calls.compare(Done(step, image, pixels, made, self._ops[step.call.name]))
            image, pixels = result, made
        return pixels

    def _transform(self, step: Step) -> str:
        """Return the name of the user's transform that made a call, with that of the function if it differs."""
        called = step.call.name
        name = self._plan.link(step.call.site, called)
        return name if name == called or called.replace("_", "") in (name.lower(), name) else f"{name} ({called})"

    def _by_torchvision(self, history: History) -> Tensor:
        """Run all calls through torchvision itself, on the device from the first tensor on."""
        image = history.source
        for step in history.steps:
            image = self._calls.on_device(step, image) if isinstance(image, Tensor) else step.call(image)
        return tensor_of(image)


def _made_by(step: Step, image: Any) -> Literal["v2", "v1", "pillow"]:
    if not isinstance(image, Tensor):
        return "pillow"
    return "v1" if getattr(step.call.fn, "__module__", "") == older.__name__ else "v2"


def _tensors(batch: Any) -> Iterator[Tensor]:
    tensors = (leaf for leaf in leaves(batch) if isinstance(leaf, Tensor))
    return (one if one.layout == torch.strided else one.to_dense() for one in tensors)
