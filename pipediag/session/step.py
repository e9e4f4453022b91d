"""Define the facts of a training step: its batch, its frozen modules, its profile, its synchronising calls."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Padding:
    """A constant that fills samples of a batch up to a common size, on one side."""

    value: float
    share: float  # the part of the tensor that is padding
    beyond_longest: float = 0.0  # the part that lies beyond every sample


@dataclass
class Leaf:
    """One tensor of a batch, as seen on a few of the cached batches. None means not known.

    The fields from ``copied`` on say what the training loop did with it in single watched steps.
    """

    path: str  # leads to it in the batch
    shape: list[int] = field(default_factory=list)  # in the first batch
    dtype: str = ""
    itemsize: int = 1
    nbytes: int = 0  # in the first batch
    pinned: bool = False
    low: float | None = None
    high: float | None = None
    whole_numbers: bool = False
    bytes_over_255: bool = False  # true if every value is a whole number divided by 255
    #: Number of distinct values (per channel if there are few channels); None if a byte cannot hold that many.
    levels: int | None = None
    one_hot: int | None = None  # number of one-hot encoded classes
    padding: Padding | None = None
    copied: bool | None = None  # to the device
    non_blocking: bool | None = None  # whether the copy was asynchronous: ``non_blocking`` and from pinned memory
    arrives: str | None = None  # its dtype on the device
    turned_into: str | None = None  # the dtype to which every reader there first converted it
    read: bool | None = None  # whether anything read it there


@dataclass
class BatchFacts:
    """The contents of a batch, and how the training loop uses it.

    The times are milliseconds to copy one batch, with the device synchronised at both ends.
    """

    leaves: list[Leaf] = field(default_factory=list)
    copy_ms: float | None = None  # to the device as the loader gives it
    pinned_copy_ms: float | None = None  # to the device from pinned memory
    device_copy_ms: float | None = None  # from device to device
    autocast: str | None = None  # the autocast dtype in the model, empty if autocast was off
    unwatched: str = ""  # why no step was watched


@dataclass
class BatchStep:
    """Milliseconds of single steps on one cached batch, the device synchronised around each, and the batch's bytes."""

    nbytes: int
    ms: list[float]


@dataclass
class Prefix:
    """The frozen modules that a step begins with: nothing trained runs before them, and they learn nothing."""

    modules: list[str]
    ms: float  # of their forward passes in a step fed from the device
    rest_ms: float  # the rest of that step
    where: str = ""  # ``file:line`` at which the loop calls the first of them, or calls ``around``
    around: str = ""  # the model that contains it
    why_not: str = ""  # why they cannot run a batch ahead or, if ``modules`` is empty, why nothing is known


@dataclass
class Share:
    """An operator, kernel or module and its share of a step."""

    name: str
    calls: float
    ms: float  # device time


@dataclass
class Profile:
    """Steps on device-cached batches, as torch's profiler recorded them. The lists hold the heaviest entries."""

    trace: str = ""  # the file for a trace viewer
    steps: int = 0
    #: The step that shares refer to: the ladder's measurement, or the recorded step on the CPU, where recording slows
    #: the operators themselves.
    step_ms: float = 0.0
    busy_ms: float = 0.0  # device time of all operators in a step
    operators: list[Share] = field(default_factory=list)
    kernels: list[Share] = field(default_factory=list)
    modules: list[Share] = field(default_factory=list)  # with their backward passes
    why_not: str = ""  # why there is no trace


@dataclass
class SyncCall:
    """A call of the training loop that makes the host wait for the device; see :mod:`pipediag.measure.syncs`."""

    call: str
    where: str = ""
    line: str = ""
    per_step: float = 1.0  # number of calls
    ms_per_step: float | None = None  # the host's time in them; None if it was not measured
    help: str = ""  # what to do instead


@dataclass
class Syncs:
    """Calls that synchronise in (nearly) every watched step."""

    steps: int = 0  # that were watched
    calls: list[SyncCall] = field(default_factory=list)
    unwatched: str = ""  # why no step was watched
