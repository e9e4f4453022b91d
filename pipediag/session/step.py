"""Define the facts of a training step: its batch, its frozen modules, its profile, its synchronising calls."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Padding:
    """A constant that fills samples of a batch up to a common size, on one side.

    ``share`` is the part of the tensor that is padding, ``beyond_longest`` the part that lies beyond every sample.
    """

    value: float
    share: float
    beyond_longest: float = 0.0


@dataclass
class Leaf:
    """One tensor of a batch, as seen on a few of the cached batches. None means not known.

    ``path`` leads to it in the batch; ``shape`` and ``nbytes`` are those of the first batch. ``levels`` is the number
    of distinct values (per channel if there are few channels), or None if a byte cannot hold that many.
    ``bytes_over_255`` is true if every value is a whole number divided by 255; ``one_hot`` is the number of one-hot
    encoded classes.

    The other fields say what the training loop did with it in single watched steps: whether it was copied to the
    device, whether the copy was asynchronous (``non_blocking`` and from pinned memory), its dtype on the device
    (``arrives``), the dtype to which every reader there first converted it (``turned_into``), and whether anything read
    it.
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
    """The contents of a batch, and how the training loop uses it.

    The times are milliseconds to copy one batch, with the device synchronised at both ends: to the device as the loader
    gives it, to the device from pinned memory, and from device to device. ``autocast`` is the autocast dtype in the
    model, empty if autocast was off; ``unwatched`` says why no step was watched.
    """

    leaves: list[Leaf] = field(default_factory=list)
    copy_ms: float | None = None
    pinned_copy_ms: float | None = None
    device_copy_ms: float | None = None
    autocast: str | None = None
    unwatched: str = ""


@dataclass
class BatchStep:
    """Milliseconds of single steps on one cached batch, the device synchronised around each, and the batch's bytes."""

    nbytes: int
    ms: list[float]


@dataclass
class Prefix:
    """The frozen modules that a step begins with: nothing trained runs before them, and they learn nothing.

    ``ms`` is the time of their forward passes in a step fed from the device, ``rest_ms`` the rest of that step.
    ``where`` is the ``file:line`` at which the loop calls the first of them, or calls ``around``, the model that
    contains it. ``why_not`` says why they cannot run a batch ahead or, if ``modules`` is empty, why nothing is known.
    """

    modules: list[str]
    ms: float
    rest_ms: float
    where: str = ""
    around: str = ""
    why_not: str = ""


@dataclass
class Share:
    """An operator, kernel or module and its share of a step: number of calls, and milliseconds of device time."""

    name: str
    calls: float
    ms: float


@dataclass
class Profile:
    """The contents of ``steps`` steps on device-cached batches, as torch's profiler recorded them.

    ``step_ms`` is the step that shares refer to: the ladder's measurement, or the recorded step on the CPU, where
    recording slows the operators themselves. ``busy_ms`` is the device time of all operators in a step. The lists hold
    the heaviest entries; a module's time includes its backward pass. ``trace`` is the file for a trace viewer;
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
    """A call of the training loop that makes the host wait for the device; see :mod:`pipediag.measure.syncs`.

    ``per_step`` is the number of calls per step, ``ms_per_step`` the host's time in them, or None if it was not
    measured. ``help`` says what to do instead.
    """

    call: str
    where: str = ""
    line: str = ""
    per_step: float = 1.0
    ms_per_step: float | None = None
    help: str = ""


@dataclass
class Syncs:
    """Calls that synchronise in (nearly) every watched step, of ``steps``; ``unwatched`` says why none was watched."""

    steps: int = 0
    calls: list[SyncCall] = field(default_factory=list)
    unwatched: str = ""
