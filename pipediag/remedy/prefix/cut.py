"""Where a forward can be cut: which calls of modules depend on the batch and on frozen weights alone.

Pure: works on what :mod:`.trace` recorded of one forward, without torch. Memory is known by number (a "key"), one for
each storage, so that views, ``detach()`` and writes in place are seen for what they are.

The prefix runs the model's own code ahead of the loop: it *takes* the frozen calls, *enters* calls that have some of
them inside, and *skips* the others, whose results zeros stand in for. The loop then runs the same code with the taken
calls answered. So what lies between the calls runs twice for each batch, and once of it ahead of time: whatever must
not ends the prefix.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

#: A part that moves less than this share of the forward's memory traffic is not worth being run ahead.
WORTH = 0.01


@dataclass(frozen=True)
class Op:
    """One operation on tensors, or something else that was noticed at this point.

    Attributes:
        reads, writes, makes: keys of the memory that was read, changed in place, and allocated.
        draws: it drew random numbers.
        leaks: values that it read went to Python.
        halts: why it must happen neither twice nor early, as a sentence; empty where it may.
        traffic: bytes read and written.
    """

    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    makes: frozenset[int] = frozenset()
    draws: bool = False
    leaks: bool = False
    halts: str = ""
    traffic: int = 0


@dataclass(frozen=True)
class Call:
    """One call of a module: the operations from ``begin`` up to ``end`` of the trace.

    Attributes:
        name: of the module.
        parent: number of the call around it; -1 for none.
        takes, gives: keys of the tensors in its arguments and in its result.
        renews: those of ``gives`` that zeros would stand in for: all but tensors that it was given.
        fixed: why nothing can stand in for its result, as a sentence; empty where zeros can.
        trained: a parameter in the module that requires grad; empty if there is none.
        owns: whether the module has parameters or buffers.
        training: whether the module is in train mode.
        ungraded: whether gradients were switched off.
        hooked: whether the module has hooks, which run around the call.
    """

    name: str
    parent: int
    begin: int
    end: int
    takes: frozenset[int] = frozenset()
    gives: frozenset[int] = frozenset()
    renews: frozenset[int] = frozenset()
    fixed: str = ""
    trained: str = ""
    owns: bool = True
    training: bool = False
    ungraded: bool = False
    hooked: bool = False


@dataclass(frozen=True)
class Trace:
    """What one forward did.

    Attributes:
        ops: in order.
        calls: in the order in which they began.
        batch, result: keys of the tensors in the batch and in what the forward returned.
        lost: keys that no frozen call may read, with what they are: "head.weight, which requires grad".
        weights: names of memory that was there before the forward.
    """

    ops: Sequence[Op]
    calls: Sequence[Call]
    batch: frozenset[int] = frozenset()
    result: frozenset[int] = frozenset()
    lost: Mapping[int, str] = field(default_factory=dict)
    weights: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The calls directly inside a call, or inside none (-1)."""
        found: dict[int, list[int]] = {number: [] for number in range(-1, len(self.calls))}
        for number, call in enumerate(self.calls):
            found[call.parent].append(number)
        return found

    @cached_property
    def made(self) -> frozenset[int]:
        """All that the forward allocated."""
        return _united(op.makes for op in self.ops)

    @cached_property
    def changed(self) -> frozenset[int]:
        """What was there before the forward, the batch aside, and is written to by it."""
        return _united(op.writes for op in self.ops) - self.made - self.batch

    @cached_property
    def last_use(self) -> dict[int, int]:
        """The last operation that touches a key; one beyond the last where it is returned."""
        last = {key: number for number, op in enumerate(self.ops) for key in op.reads | op.writes}
        return {**last, **dict.fromkeys(self.result, len(self.ops))}

    def within(self, call: Call) -> Sequence[Op]:
        return self.ops[call.begin : call.end]

    def around(self, number: int) -> Iterable[int]:
        """A call and those around it, innermost first."""
        while number >= 0:
            yield number
            number = self.calls[number].parent

    def inside(self, number: int) -> Iterable[int]:
        """The calls inside a call, at whatever depth."""
        for child in self.children[number]:
            yield child
            yield from self.inside(child)

    def innermost(self, at: int, inside: int) -> int:
        """The call, inside another or that itself, that an operation belongs to."""
        for child in self.children[inside]:
            if self.calls[child].begin <= at < self.calls[child].end:
                return self.innermost(at, child)
        return inside


class Action(enum.Enum):
    """What the prefix does at a call."""

    TAKE = "take"
    ENTER = "enter"
    SKIP = "skip"


class Step(NamedTuple):
    """A call as the prefix meets it. ``needed`` says that the loop needs the result of a taken call."""

    call: int
    action: Action
    needed: bool = False


@dataclass(frozen=True)
class Cut:
    """Where to cut.

    Attributes:
        steps: what the prefix does, call by call, up to the last that it takes; empty where nothing is worth taking.
        reason: what ended the prefix, as a sentence.
        blocked: what keeps frozen modules out of it, as sentences.
        draws: whether random numbers are drawn between the calls.
        leaks: whether values go to Python on the way.
    """

    steps: tuple[Step, ...]
    reason: str
    blocked: tuple[str, ...]
    draws: bool = False
    leaks: bool = False


def cut(trace: Trace) -> Cut:
    """The cut that takes the most, by memory traffic, without making any difference."""
    skipped: set[int] = set()
    best = sweep = _Sweep(trace, skipped).run()
    while (hindrance := sweep.hindrance()) is not None:
        skipped.add(hindrance)
        sweep = _Sweep(trace, skipped).run()
        if sweep.worth() > best.worth():
            best = sweep
    return best.cut()


class _Lost(NamedTuple):
    """Why memory holds nothing that the prefix could read, and whether it is a frozen module's fault."""

    what: str
    curable: bool = False


class _Cause(enum.Enum):
    TRAINED = enum.auto()
    NEEDS = enum.auto()  # what is computed from trained weights, or by a call that is not taken
    OWN = enum.auto()  # what the call itself does


class _Refusal(NamedTuple):
    """Why a call is not taken, as a sentence; ``mode`` names the part whose train mode is to blame."""

    call: int
    cause: _Cause
    text: str
    curable: bool = False
    mode: str = ""


class _Sweep:
    """Goes through a trace in order and takes what can be taken; the calls in ``skipped`` are not entered."""

    def __init__(self, trace: Trace, skipped: Iterable[int]) -> None:
        self._trace = trace
        self._skipped = frozenset(skipped)
        self._lost = {key: _Lost(what) for key, what in trace.lost.items()}
        self._crossing: set[int] = set()  # made by taken calls
        self._seen: set[int] = set()  # read outside of taken calls so far
        self._steps: list[Step] = []
        self._between: list[int] = []  # operations outside of calls, as far as they are run by the prefix
        self._refused: list[_Refusal] = []
        self._halt = ""
        self._reached = 0  # the operation that it is at
        self._halts: list[tuple[str, int, int]] = []  # all of them, with where they are and what they bar
        self._entered: list[int] = []  # the calls around the halt

    def run(self) -> _Sweep:
        if not self._walk(-1, 0, len(self._trace.ops)):
            self._halts.append((self._halt, self._reached, len(self._trace.ops)))
        return self

    # ---- going through

    def _walk(self, inside: int, begin: int, end: int) -> bool:
        """Whether the end was reached."""
        for child in self._trace.children[inside]:
            call = self._trace.calls[child]
            if not (self._pass(begin, call.begin) and self._meet(child)):
                return False
            begin = call.end
        return self._pass(begin, end)

    def _meet(self, number: int) -> bool:
        if number in self._skipped:
            return self._skip(number)
        refusal = self._refusal(number)
        if refusal is None:
            self._take(number)
            return True
        self._refused.append(refusal)
        if self._trace.children[number]:
            before = len(self._steps), len(self._between), list(self._entered)
            taken = self._count()
            self._steps.append(Step(number, Action.ENTER))
            self._entered.append(number)
            through = self._walk(number, self._trace.calls[number].begin, self._trace.calls[number].end)
            if self._count() > taken:
                if through:
                    self._entered.remove(number)
                return through
            if not through:
                self._halts.append((self._halt, self._reached, self._trace.calls[number].end))
            self._forget(*before)
        return self._skip(number, refusal)

    def _take(self, number: int) -> None:
        self._steps.append(Step(number, Action.TAKE))
        self._crossing |= _united(op.makes for op in self._trace.within(self._trace.calls[number]))

    def _skip(self, number: int, refusal: _Refusal | None = None) -> bool:
        call = self._trace.calls[number]
        ops = self._trace.within(call)
        made = _united(op.makes for op in ops)
        if call.fixed:
            self._halt = call.fixed
        elif any(key not in made and key not in self._lost for key in call.renews):
            self._halt = f"{call.name} hands on a part of what it was given"
        self._reached = call.begin
        if self._halt:
            return False
        self._steps.append(Step(number, Action.SKIP))
        lost = _Lost(f"what {call.name} makes", refusal is not None and refusal.curable)
        for op in ops:
            self._lost.update((key, lost) for key in op.makes if key not in self._trace.lost)
            self._lost.update((key, lost) for key in op.writes if key not in self._lost)
            self._seen |= op.reads
        return True

    def _pass(self, begin: int, end: int) -> bool:
        """Run what lies between two calls; False where that must not be."""
        for at in range(begin, end):
            op = self._trace.ops[at]
            lost = self._first_lost(op.reads)
            self._halt, self._reached = self._halting(op, lost), at
            if self._halt:
                return False
            if op.draws:
                lost = _Lost("random numbers, which are drawn anew for each batch")
            if lost is not None:
                self._lost.update((key, lost) for key in op.makes | op.writes if key not in self._lost)
            self._seen |= op.reads
            self._between.append(at)
        return True

    # ---- judging

    def _halting(self, op: Op, lost: _Lost | None) -> str:
        if op.halts:
            return op.halts
        if op.leaks and lost is not None:
            return f"Python looks at {lost.what}"
        for key in op.writes:
            if key in self._crossing or key not in self._trace.made:
                return f"the forward writes in place into {self._named(key)}"
        return ""

    def _refusal(self, number: int) -> _Refusal | None:
        trace, call = self._trace, self._trace.calls[number]
        if call.trained and call.ungraded:
            how = f"call {call.name}.requires_grad_(False) if it is not trained"
            text = f"{call.name} runs without gradients, but {call.trained} requires grad: {how}"
            return _Refusal(number, _Cause.TRAINED, text)
        if call.trained:
            return _Refusal(number, _Cause.TRAINED, f"{call.name} is trained: {call.trained} requires grad")
        used = (keys for op in trace.within(call) for keys in (op.reads, op.writes))
        lost = next((lost for keys in (call.takes, *used) if (lost := self._first_lost(keys)) is not None), None)
        if lost is not None and not lost.curable:
            return self._needs(number, lost)
        made: set[int] = set()
        for at, op in enumerate(trace.within(call), call.begin):
            made |= op.makes
            does = self._does(op, made)
            if does:
                return self._own(number, trace.innermost(at, number), does)
        if lost is not None:
            return self._needs(number, lost)
        hooked = (one for one in trace.inside(number) if trace.calls[one].hooked)
        for one in hooked:
            return self._own(number, one, "has hooks, which have to run with the loop")
        if any(key not in call.gives and trace.last_use.get(key, -1) >= call.end for key in made):
            return self._own(number, number, "hands out tensors by other ways than its result")
        return None

    def _own(self, number: int, doer: int, does: str) -> _Refusal:
        """Because of what a call inside does. Train mode is usually a slip, where the rest of a part is frozen."""
        name = self._trace.calls[doer].name
        part = self._frozen_part(doer) if self._trace.calls[doer].training else ""
        text = f"{name} is in train mode and {does}: call {part}.eval()" if part else f"{name} {does}"
        return _Refusal(number, _Cause.OWN, text, True, part)

    def _needs(self, number: int, lost: _Lost) -> _Refusal:
        text = f"{self._trace.calls[number].name} needs {lost.what}"
        return _Refusal(number, _Cause.NEEDS, text, lost.curable)

    def _does(self, op: Op, made: set[int]) -> str:
        """What an operation inside a call does that must not happen early."""
        if op.halts:
            return f"cannot run early: {op.halts}"
        if op.draws:
            return "draws random numbers"
        for key in op.writes - made:
            if key not in self._crossing:
                return f"changes {self._named(key)}"
            if key in self._seen:
                return "writes in place into a tensor that was used before"
        for key in op.reads & self._trace.changed:
            return f"reads {self._named(key)}, which the forward changes"
        return ""

    def _frozen_part(self, number: int) -> str:
        """The largest part around a call that has weights, none of them trained."""
        calls = [self._trace.calls[one] for one in self._trace.around(number)]
        return next((call.name for call in reversed(calls) if call.owns and not call.trained), "")

    def _first_lost(self, keys: Iterable[int]) -> _Lost | None:
        return next((self._lost[key] for key in sorted(keys) if key in self._lost), None)

    def _named(self, key: int) -> str:
        if key in self._trace.batch:
            return "the batch"
        return self._trace.weights.get(key, "a tensor made before")

    def _forget(self, steps: int, between: int, entered: list[int]) -> None:
        """A call was entered in vain. What was noted of memory is what skipping it will note, too."""
        del self._steps[steps:], self._between[between:]
        self._entered = entered
        self._halt = ""

    def _count(self) -> int:
        return sum(step.action is Action.TAKE for step in self._steps)

    # ---- the outcome

    def hindrance(self) -> int | None:
        """The innermost call around the halt that could have been skipped instead of entered."""
        if not self._halt:
            return None
        around = (call for call in reversed(self._entered) if not self._trace.calls[call].fixed)
        return next(around, None)

    def worth(self) -> int:
        return sum(self._traffic(step) for step in self._steps)

    def cut(self) -> Cut:
        steps = self._trimmed()
        blocked = self._blocked()
        if not steps:
            return Cut((), self._why_none(blocked), blocked)
        calls, ops = self._trace.calls, self._trace.ops
        stop = calls[steps[-1].call].end
        taken = [calls[step.call] for step in steps if step.action is Action.TAKE]
        run = [ops[at] for at in self._between if at < stop]
        after = (refusal.text for refusal in self._refused if calls[refusal.call].begin >= stop)
        return Cut(
            self._with_needs(steps),
            next(after, self._halt or "the forward ends there"),
            blocked,
            any(op.draws for op in run),
            any(op.leaks for op in [*run, *(op for call in taken for op in self._trace.within(call))]),
        )

    def _trimmed(self) -> list[Step]:
        """Without an end that is worth less than the skipping it takes to get there."""
        steps = list(self._steps)
        enough = max(1, WORTH * sum(op.traffic for op in self._trace.ops))
        while any(step.action is Action.SKIP for step in steps):
            skip = max(number for number, step in enumerate(steps) if step.action is Action.SKIP)
            if sum(self._traffic(step) for step in steps[skip:]) >= enough:
                break
            del steps[skip:]
        while steps and steps[-1].action is not Action.TAKE:
            steps.pop()
        return steps if sum(self._traffic(step) for step in steps) >= enough else []

    def _traffic(self, step: Step) -> int:
        if step.action is not Action.TAKE:
            return 0
        return sum(op.traffic for op in self._trace.within(self._trace.calls[step.call]))

    def _with_needs(self, steps: list[Step]) -> tuple[Step, ...]:
        """The steps, with which results are used by anything but other taken calls."""
        taken = {step.call for step in steps if step.action is Action.TAKE}
        inside = {at for one in taken for at in range(self._trace.calls[one].begin, self._trace.calls[one].end)}
        used = set(self._trace.result)
        for at, op in enumerate(self._trace.ops):
            if at not in inside:
                used |= op.reads | op.writes
        for number, call in enumerate(self._trace.calls):
            if taken.isdisjoint(self._trace.around(number)):
                used |= call.takes
        return tuple(step._replace(needed=not used.isdisjoint(self._trace.calls[step.call].gives)) for step in steps)

    def _blocked(self) -> tuple[str, ...]:
        """One sentence for each thing that can be done about it."""
        told = [one for one in self._refused if self._worth_telling(one) and not self._taken_apart(one.call)]
        needs = list(dict.fromkeys(one.text for one in told if one.cause is _Cause.NEEDS))
        others = [one for one in told if one.cause is not _Cause.NEEDS]
        texts = tuple({one.mode or one.text: one.text for one in reversed(others)}.values())[::-1]
        if needs:
            texts = (*texts, needs[0] + (f"; so it is with {len(needs) - 1} more" if needs[1:] else ""))
        for halt, at, end in self._halts:
            missed = [call.name for call in self._frozen_parts() if at < call.begin < end]
            if missed:
                texts = (*texts, f"{', '.join(dict.fromkeys(missed))} cannot be reached: {halt}")
        return texts

    def _frozen_parts(self) -> Iterable[Call]:
        """The calls of modules with weights of which none is trained, and that are in no other such call."""
        for call in self._trace.calls:
            around = [self._trace.calls[one] for one in self._trace.around(call.parent)]
            if call.owns and not call.trained and all(one.trained for one in around):
                yield call

    def _taken_apart(self, number: int) -> bool:
        """Whether everything that is called in a call is taken piece by piece."""
        taken = {step.call for step in self._steps if step.action is Action.TAKE}
        innermost = [one for one in self._trace.inside(number) if not self._trace.children[one]]
        return bool(innermost) and all(not taken.isdisjoint(self._trace.around(one)) for one in innermost)

    def _worth_telling(self, refusal: _Refusal) -> bool:
        """Whether it says what keeps a frozen part out; not what merely follows from that."""
        calls = self._trace.calls
        call = calls[refusal.call]
        if refusal.cause is _Cause.TRAINED:
            graded = any(one.name == call.name and not one.ungraded for one in calls)
            outermost = call.parent < 0 or not (calls[call.parent].ungraded and calls[call.parent].trained)
            return call.ungraded and outermost and not graded
        if refusal.cause is _Cause.NEEDS:
            within = any(not calls[one].trained for one in self._trace.around(call.parent))
            return call.owns and not refusal.curable and not within
        return bool(self._frozen_part(refusal.call))

    def _why_none(self, blocked: tuple[str, ...]) -> str:
        if self._count() and not blocked:
            names = ", ".join(self._trace.calls[step.call].name for step in self._steps if step.action is Action.TAKE)
            return f"what needs no gradient does too little: {names}"
        told = [*blocked, *(refusal.text for refusal in self._refused), self._halt]
        return told[0] or "no module is called"


def _united(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
