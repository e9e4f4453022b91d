"""What was measured, as plain dataclasses, and its JSON form.

This is the one contract between measuring and everything else: the host, the ladder and the clocks write a
:class:`Session`; analysis and reports only read it. Pure Python: importing this module loads no torch.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import SessionFileError

SCHEMA_VERSION = 1

#: The ladder, fastest rung first. Each rung adds one stage of the input pipeline to the rung before it. Between
#: ``sample`` and ``raw`` stand the cuts of the transform chain, ``transform:k``, as far as they are measured.
RUNGS = ("device", "host", "worker", "sample", "raw", "warm", "baseline")
#: Measured beside the ladder.
CONTROLS = ("supply",)
#: The loop under the remedy, measured against a baseline of its own rounds once the ladder is known. So are the
#: ``settings:k``, the loop on loaders like its own with other settings.
REMEDIED = "remedied"

#: The stage whose cost to training appears when a rung is compared with the rung before it.
STAGE_OF_RUNG = {
    "device": "compute",
    "host": "transfer",
    "worker": "ipc",
    "sample": "collate",
    "raw": "transform",
    "warm": "load",
    "baseline": "storage",
}

#: What the training loop receives under each rung, for people.
RUNG_MEANING = {
    "device": "batches cached on the training device",
    "host": "batches cached in host memory",
    "worker": "a cached batch, sent again by the workers",
    "sample": "cached processed samples, collated anew",
    "raw": "cached raw samples, transformed anew",
    "warm": "the whole dataset code, on a few items whose files are in the page cache",
    "baseline": "the loader as it is",
    "supply": "the loader alone, without the training step",
}

#: Why the chain of transforms has no rungs of its own yet; see :attr:`Inside.unsplit`.
NOT_YET = "they were not taken apart yet"

#: The part of a step that a loop waits which lives on what its workers make, not on what lies ready.
_WAITS = 0.1

_CUT, _SETTINGS = "transform:", "settings:"
_T = TypeVar("_T")


def cut_rung(links: int) -> str:
    """The rung whose samples have their first ``links`` transforms behind them."""
    return f"{_CUT}{links}"


def cut_of(rung: str) -> int | None:
    """How many transforms lie behind the samples of a rung ``transform:k``; None for every other rung."""
    return _number(rung, _CUT)


def settings_rung(number: int) -> str:
    """The rung on which the loop is fed by a loader with other settings: those tried as the ``number``-th, from 1."""
    return f"{_SETTINGS}{number}"


def settings_of(rung: str) -> int | None:
    """Which settings a rung ``settings:k`` is under, from 1; None for every other rung."""
    return _number(rung, _SETTINGS)


def fed_apart(rung: str) -> bool:
    """Whether the loop is fed under this rung by another loader than the script's, beside the ladder."""
    return rung == REMEDIED or settings_of(rung) is not None


def _number(rung: str, prefix: str) -> int | None:
    return int(rung[len(prefix) :]) if rung.startswith(prefix) and rung[len(prefix) :].isdecimal() else None


@dataclass
class Window:
    """One timed stretch of the training loop under one rung.

    ``steps`` counts batches drawn from the loader; ``optimizer_steps`` the optimizer steps seen meanwhile
    (fewer under gradient accumulation). ``seconds`` is wall time with the device synchronised at both ends.
    ``evidence`` holds what was seen beside the clock; see :mod:`pipediag.measure.evidence` for the keys.
    """

    rung: str
    round: int
    steps: int
    seconds: float
    optimizer_steps: int = 0
    attempt: int = 1  # which pass of the script
    evidence: dict[str, float] = field(default_factory=dict)
    blocks: list[float] = field(default_factory=list)  # milliseconds a step, one round of the workers after another

    def __post_init__(self) -> None:
        if not (self.steps > 0 and self.seconds > 0):
            raise ValueError(f"a window of {self.steps} steps in {self.seconds} s")

    @property
    def ms_per_step(self) -> float:
        return 1000.0 * self.seconds / self.steps

    @property
    def ms_per_batch(self) -> float:
        """Milliseconds for each batch made meanwhile: the same, but steadier, where the loop waits for them."""
        waits = self.evidence.get("wait_ms", 0.0) > _WAITS * self.ms_per_step
        made = self.steps + self.evidence.get("stock", 0.0)
        return 1000.0 * self.seconds / made if waits and made > 0 else self.ms_per_step


@dataclass
class Observed:
    """Consecutive steps of the training loop as it is, with nothing cached: one round of the workers, or less.

    ``seconds`` is what the ``steps`` took, ``waited`` the part of it in which the loop waited for batches. On a device
    with a clock of its own both are times of the device, and ``waited`` is how long the device had nothing to do.
    ``worker_ms`` is what a worker took for one of these batches, 0 if unknown. The first batch of an epoch is not in
    it; see :class:`Startup`.
    """

    steps: int
    seconds: float
    waited: float
    worker_ms: float = 0.0
    attempt: int = 1

    def __post_init__(self) -> None:
        if not (self.steps > 0 and self.seconds > 0):
            raise ValueError(f"an observation of {self.steps} steps in {self.seconds} s")


@dataclass
class Rung:
    """Whether a rung can be measured on this loader, and if not, why not and what would help.

    ``exists`` is false where the pipeline has no such stage at all: no transfer on the CPU, no hand-off without
    workers.
    """

    name: str
    available: bool = True
    why_not: str = ""
    exists: bool = True


@dataclass
class Startup:
    """One beginning of the loader's data: seconds from ``iter()`` to the first batch.

    ``launch`` of them went by until the workers' processes had been started, ``ready`` until the last of them had
    imported its modules and run its init function; the rest is the first batch. ``renewed`` is true where the
    workers of the epoch before went on; ``shutdown`` is how long it took to end them where they did not.
    """

    seconds: float
    attempt: int = 1
    launch: float = 0.0
    ready: float = 0.0
    renewed: bool = False
    shutdown: float = 0.0


@dataclass
class Place:
    """A named piece of the user's code: ``where`` is ``file:line``."""

    name: str
    where: str = ""


@dataclass
class Cost:
    """What one piece of work takes in a worker, in milliseconds for each sample: averages over the probed samples."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0


@dataclass
class Link:
    """One transform of the chain, in the order in which a sample passes through it.

    ``whole`` says why a link that holds other callables was not split further. ``origin`` is the module that defines
    it, ``given`` what it gets: ``picture`` (Pillow's), ``tensor``, ``array``, or the name of another type.
    ``bytes_in`` and ``bytes_out`` are the data that goes in and comes out, averages over the probed calls.
    """

    name: str
    where: str = ""
    cost: Cost = field(default_factory=Cost)
    whole: str = ""
    origin: str = ""
    given: str = ""
    bytes_in: float = 0.0
    bytes_out: float = 0.0


@dataclass
class HotLine:
    """A line of the user's code, or a library's function, and its share of the time to make a sample."""

    where: str
    text: str
    share: float


@dataclass
class Files:
    """Files that were opened for reading while samples were made: averages for each of them.

    ``opened`` counts them, ``nbytes`` is the size of one of them, ``endings`` says how many there were by the end of
    their names.
    """

    opened: float = 0.0
    nbytes: float = 0.0
    endings: dict[str, int] = field(default_factory=dict)


@dataclass
class Inside:
    """What a worker does to make one sample, timed there: the cost to the CPU, where the ladder shows that to training.

    ``whole`` is the dataset's code with its transforms, ``load`` that without them, ``between`` what the code that
    holds the chain together takes by itself. ``sizes`` pairs the probed samples' bytes with the milliseconds each
    took. ``threads`` counts the threads that libraries would use in a worker.
    """

    samples: int = 0
    whole: Cost = field(default_factory=Cost)
    load: Cost = field(default_factory=Cost)
    between: Cost = field(default_factory=Cost)
    links: list[Link] = field(default_factory=list)
    lines: list[HotLine] = field(default_factory=list)
    sizes: list[list[float]] = field(default_factory=list)
    threads: dict[str, int] = field(default_factory=dict)
    unsplit: str = ""  # why the chain has no rungs of its own
    files: Files | None = None  # None where that was not looked at


@dataclass
class Slow:
    """A sample that took long: its index and the milliseconds."""

    index: str
    ms: float


@dataclass
class Tail:
    """How the time to make a sample is spread under the baseline, and which indices take longest."""

    samples: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest: list[Slow] = field(default_factory=list)


@dataclass
class BatchStep:
    """Milliseconds of single steps on one cached batch, the device synchronised around each, and the batch's bytes."""

    nbytes: int
    ms: list[float]


@dataclass
class Padding:
    """A constant that fills samples of a batch up to a common size, on one side.

    ``share`` is the part of the tensor that it fills, ``beyond_longest`` the part that no sample of the batch reaches.
    """

    value: float
    share: float
    beyond_longest: float = 0.0


@dataclass
class Leaf:
    """One tensor of a batch, as seen on a few of the batches that were cached.

    What is None was not found out. ``path`` leads to it in the batch, ``shape`` and ``nbytes`` are the first batch's.
    ``levels`` counts the distinct values (of each channel, where there are few channels), None where they are more
    than a byte can tell apart. ``bytes_over_255`` says that every value is a whole number divided by 255, ``one_hot``
    how many classes stand as zeros and a one each.

    The rest is what the training loop did with it in single watched steps: whether it was copied to the device, by a
    copy that lets the loop go on (``non_blocking`` and from pinned memory), in what type it arrived there
    (``arrives``), the type that everything which read it there turned it into first (``turned_into``), and whether
    anything read it at all.
    """

    path: str
    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    itemsize: int = 1
    nbytes: int = 0
    pinned: bool = False
    low: float | None = None
    high: float | None = None
    whole_numbers: bool = False
    bytes_over_255: bool = False
    levels: int | None = None
    one_hot: int | None = None
    padding: Padding | None = None
    copied: bool | None = None
    non_blocking: bool | None = None
    arrives: str | None = None
    turned_into: str | None = None
    read: bool | None = None


@dataclass
class BatchFacts:
    """What is in a batch, and what became of it.

    The times are milliseconds to copy one batch, the device synchronised at both ends: to the device as the loader
    gives it, to the device from pinned memory, and from the device to the device. ``autocast`` is the type that
    autocast was set to in the model, empty where it was off; ``unwatched`` says why no step was watched.
    """

    leaves: list[Leaf] = field(default_factory=list)
    copy_ms: float | None = None
    pinned_copy_ms: float | None = None
    device_copy_ms: float | None = None
    autocast: str | None = None
    unwatched: str = ""


@dataclass
class Prefix:
    """The frozen modules that a step begins with: nothing trained runs before them, and they learn nothing.

    ``ms`` is what their forward passes take of a step fed from the device, ``rest_ms`` the rest of it. ``where`` is the
    ``file:line`` at which the loop calls the first of them, or ``around``, the model that calls it. ``why_not`` says
    why they cannot run a batch ahead, or, without ``modules``, why it is not known whether there are any.
    """

    modules: list[str]
    ms: float
    rest_ms: float
    where: str = ""
    around: str = ""
    why_not: str = ""


@dataclass
class Share:
    """An operator, kernel or module, and what it takes of a step: calls, and milliseconds of the device's time."""

    name: str
    calls: float
    ms: float


@dataclass
class Profile:
    """What ``steps`` steps on batches that lie on the device consist of, as torch's profiler recorded them.

    ``step_ms`` is what shares are parts of: the step as the ladder measured it; on the CPU, where recording slows the
    operators themselves, the recorded one. ``busy_ms`` is what all operators take of the device's time in a step. The
    lists hold the heaviest; a module's time includes its backward pass. ``trace`` is the file for a trace viewer;
    ``why_not`` says why there is none.
    """

    trace: str = ""
    steps: int = 0
    step_ms: float = 0.0
    busy_ms: float = 0.0
    operators: list[Share] = field(default_factory=list)
    kernels: list[Share] = field(default_factory=list)
    modules: list[Share] = field(default_factory=list)
    why_not: str = ""


@dataclass
class SyncCall:
    """A call of the training loop that makes the host wait for the device; see :mod:`pipediag.measure.synclog`.

    ``per_step`` is how often it happens in a step, ``ms_per_step`` what the host spends in it, None where that was not
    seen. ``help`` says what to do instead.
    """

    call: str
    where: str = ""
    line: str = ""
    per_step: float = 1.0
    ms_per_step: float | None = None
    help: str = ""


@dataclass
class Syncs:
    """Calls that synchronise in (nearly) every one of the ``steps`` watched. ``unwatched`` says why none was."""

    steps: int = 0
    calls: list[SyncCall] = field(default_factory=list)
    unwatched: str = ""


@dataclass
class Loader:
    """The training loader, as it was found."""

    dataset: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str = ""
    iterable: bool = False
    length: int | None = None  # batches in an epoch, when the loader knows
    where: str = ""
    batch_bytes: int = 0
    dataset_code: Place | None = None
    transform: Place | None = None
    collate: Place | None = None


@dataclass
class LoaderSettings:
    """How a loader is set.

    ``startup`` is how many seconds it took from ``iter()`` to the first batch, where it was tried.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    startup: float | None = None

    @property
    def written(self) -> str:
        """As keyword arguments of the loader."""
        parts = [f"num_workers={self.num_workers}"]
        if self.num_workers:
            parts.append(f"prefetch_factor={self.prefetch_factor}")
        return ", ".join([*parts, "pin_memory=True"] if self.pin_memory else parts)


@dataclass
class Knobs:
    """Other settings of the loader that the running loop was tried with.

    Windows of the rung ``settings:k`` are under ``tried[k - 1]``; what came of them follows from the windows.
    ``why_not`` says why nothing was tried.
    """

    tried: list[LoaderSettings] = field(default_factory=list)
    why_not: str = ""


@dataclass
class Kept:
    """A transform that stays in the workers, and why; without a name, why more cannot be moved."""

    name: str
    why: str = ""


@dataclass
class Apart:
    """How far results under the remedy are from the CPU's: of one function, or of whole batches of one dtype.

    ``largest`` is a share of the results' range, or levels where they are integers (``levels``); None where they
    cannot be compared at all. ``off`` is the share of elements beyond the tolerance (integers: that differ).
    """

    name: str
    samples: int = 0
    largest: float | None = 0.0
    off: float = 0.0
    levels: bool = False
    passed: bool = True


@dataclass
class Proof:
    """The certificate in short: ``unrecorded`` of the ``samples`` could not be recorded, for the reason ``why``."""

    passed: bool = False
    samples: int = 0
    unrecorded: int = 0
    why: str = ""
    draws_equal: bool = True
    apart: list[Apart] = field(default_factory=list)


@dataclass
class Edit:
    """How to keep the remedy: a unified diff of the script, or why there is none that is certainly right."""

    diff: str = ""
    why_not: str = ""


@dataclass
class Remedy:
    """What was tried on the training loader with ``--apply``; whether it pays follows from the windows.

    ``why_not`` says why nothing could be tried. ``memory_bytes`` is what the loop takes more of the device's memory
    at its peak. ``plan`` is what ``pipediag run --plan`` needs, see :mod:`pipediag.remedy.saved`; ``plan_file`` is
    where it was written to.
    """

    device: str = ""
    moved: list[Place] = field(default_factory=list)
    stayed: list[Kept] = field(default_factory=list)
    why_not: str = ""
    proof: Proof | None = None
    memory_bytes: int | None = None
    edit: Edit = field(default_factory=Edit)
    plan: dict[str, Any] = field(default_factory=dict)
    plan_file: str = ""


@dataclass
class Script:
    """The command that was analysed; empty ``argv`` when the loop ran in this process.

    ``error`` is the last line of what it raised, where it ended by that.
    """

    argv: list[str] = field(default_factory=list)
    passes: int = 0
    exit_code: int | None = None
    error: str = ""
    wrote: list[str] = field(default_factory=list)


@dataclass
class Warning_:
    """Something worth knowing about the measurement: what was seen, and what helps."""

    code: str
    message: str
    help: str = ""


@dataclass
class Session:
    """Everything one analysis measured, before any judgement."""

    tool_version: str = ""
    script: Script = field(default_factory=Script)
    environment: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    loader: Loader | None = None
    rungs: dict[str, Rung] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    warnings: list[Warning_] = field(default_factory=list)
    caches: dict[str, Any] = field(default_factory=dict)
    inside: Inside | None = None
    tail: Tail | None = None
    batch_steps: list[BatchStep] = field(default_factory=list)
    batch: BatchFacts | None = None
    syncs: Syncs | None = None
    prefix: Prefix | None = None
    profile: Profile | None = None
    knobs: Knobs | None = None
    remedy: Remedy | None = None
    ended: str = ""  # settled, budget, interrupted, script-ended, script-failed
    schema_version: int = SCHEMA_VERSION

    @property
    def anything_seen(self) -> bool:
        """Whether a step of the training loop was timed, under a rung or as it is."""
        return bool(self.windows or self.observed)

    def windows_of(self, rung: str) -> list[Window]:
        return [w for w in self.windows if w.rung == rung]

    def measured(self) -> list[str]:
        """Names of the ladder's rungs that have at least one window, fastest rung first."""
        seen = {w.rung for w in self.windows}
        return [name for name in ordered(seen) if name not in CONTROLS and not fed_apart(name)]

    @property
    def links(self) -> list[Link]:
        """The transform chain, as far as it is known."""
        return self.inside.links if self.inside else []

    def warn(self, code: str, message: str, help: str = "") -> None:
        """Add a warning once: a later one with the same code and message is dropped."""
        if not any(w.code == code and w.message == message for w in self.warnings):
            self.warnings.append(Warning_(code, message, help))

    def apply(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take in one event of the measurement. Unknown kinds are ignored, so that versions may differ."""
        if kind in _ENTRIES:
            name, cls = _ENTRIES[kind]
            getattr(self, name).append(_build(cls, data))
        elif kind in _PARTS:
            setattr(self, kind, _build(_PARTS[kind], data))
        elif kind in _FACTS:
            getattr(self, kind).update(data)
        elif kind == "rung":
            self.rungs[data["name"]] = _build(Rung, data)
        elif kind == "warning":
            self.warn(data["code"], data["message"], data.get("help", ""))
        elif kind == "wrote" and data["path"] not in self.script.wrote:
            self.script.wrote.append(data["path"])

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Session:
        """Rebuild a session from its JSON form.

        Raises:
            SessionFileError: the data is no session, or was written by a newer pipediag.
        """
        version = data.get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise SessionFileError("the session was written by a newer pipediag; update this one")
        try:
            if "windows" not in data or "rungs" not in data:
                raise TypeError("it holds no windows")
            return _build(cls, data)
        except (TypeError, ValueError) as error:
            raise SessionFileError(
                f"not a pipediag session ({error}); write one with: pipediag analyze -o session.json SCRIPT"
            ) from None


#: Events that add an entry to a list of the session's, that are a part of it, and that complete one of its tables.
_ENTRIES: dict[str, tuple[str, type]] = {
    "window": ("windows", Window),
    "observed": ("observed", Observed),
    "startup": ("startups", Startup),
    "batch-step": ("batch_steps", BatchStep),
}
_PARTS: dict[str, type] = {
    "loader": Loader,
    "inside": Inside,
    "tail": Tail,
    "knobs": Knobs,
    "remedy": Remedy,
    "batch": BatchFacts,
    "syncs": Syncs,
    "prefix": Prefix,
    "profile": Profile,
}
_FACTS = frozenset({"environment", "device", "caches"})


def _build(cls: type[_T], data: Any) -> _T:
    """Make a dataclass of plain data. Unknown keys are left out, so that versions may differ; wrong types are not.

    Raises:
        TypeError, ValueError: the data does not fit the class.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"{cls.__name__} is not an object")
    hints = typing.get_type_hints(cls)
    fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {name: _fit(hints[name], value, name) for name, value in data.items() if name in fields}
    return cls(**known)


def _fit(hint: Any, value: Any, name: str) -> Any:
    """The value as its annotation wants it."""
    arguments = typing.get_args(hint)
    kind = typing.get_origin(hint) or hint
    if kind is Any:
        return value
    if kind in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _fit(arguments[0], value, name)
    if dataclasses.is_dataclass(kind):
        return _build(kind, value)  # type: ignore[arg-type]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {value!r:.40}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{name} is not finite")
    if kind is list:
        return [_fit(arguments[0], item, name) for item in value]
    if kind is dict:
        return {key: _fit(arguments[1], item, name) for key, item in value.items()}
    return value


def ordered(names: Iterable[str]) -> list[str]:
    """Rung names in ladder order, then controls, then what stands beside the ladder."""
    rank = {name: i for i, name in enumerate(RUNGS + CONTROLS)}

    def place(name: str) -> tuple[int, int]:
        links = cut_of(name)
        if links is not None:
            return rank["sample"], 1_000_000 - links
        return rank.get(name, len(rank)), settings_of(name) or 0

    return sorted(names, key=place)
