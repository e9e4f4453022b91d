"""Define the dataclasses of a session: windows, rungs, the loader, the work inside a worker, the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Why the transform chain has no rungs of its own yet; see :attr:`Inside.unsplit`.
NOT_YET = "they were not taken apart yet"

#: Round of a :class:`Stretch` outside the windows, whose rounds count from 0.
UNTOUCHED = -1

#: Share of a step above which waiting means that the workers' output limits the loop, not queued batches.
_WAITS = 0.1
#: Shortest and longest time, and largest number of steps, that can have been measured.
_SHORTEST, _LONGEST, _MOST_STEPS = 1e-9, 1e9, 10**12
#: Most processes of a distributed job.
_MOST_RANKS = 1 << 16


def _check_timed(what: str, steps: int, seconds: float) -> None:
    if not (0 < steps <= _MOST_STEPS and _SHORTEST <= seconds <= _LONGEST):
        raise ValueError(f"{what} of {steps} steps in {seconds:g} s")


@dataclass
class Window:
    """One timed stretch of the training loop under one rung.

    ``steps`` counts batches drawn from the loader; ``optimizer_steps`` counts the optimizer steps in the same stretch
    (fewer under gradient accumulation). ``seconds`` is wall time with the device synchronised at both ends.
    ``evidence`` holds the other figures of the window; see :mod:`pipediag.measure.evidence` for the keys.
    """

    rung: str
    round: int
    steps: int
    seconds: float
    optimizer_steps: int = 0
    attempt: int = 1  # number of the pass over the script
    evidence: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_timed("a window", self.steps, self.seconds)

    @property
    def ms_per_step(self) -> float:
        return 1000.0 * self.seconds / self.steps

    @property
    def ms_per_batch(self) -> float:
        """Milliseconds per batch made in the window if the loop waits for batches, else :attr:`ms_per_step`.

        Batches made are the steps plus the growth of the queue; per batch, the time varies less.
        """
        waits = self.evidence.get("wait_ms", 0.0) > _WAITS * self.ms_per_step
        made = self.steps + self.evidence.get("stock", 0.0)
        return 1000.0 * self.seconds / made if waits and made > 0 else self.ms_per_step


@dataclass
class Observed:
    """Consecutive steps of the unmodified training loop, with nothing cached: at most one round of the workers.

    ``seconds`` is the time of the ``steps``, ``waited`` the part of it in which the loop waited for batches. On a
    device with a clock of its own both are device times, and ``waited`` is the device's idle time. ``worker_ms`` is a
    worker's time for one of these batches, 0 if unknown. The first batch of an epoch is excluded; see :class:`Startup`.
    """

    steps: int
    seconds: float
    waited: float
    worker_ms: float = 0.0
    attempt: int = 1

    def __post_init__(self) -> None:
        _check_timed("an observation", self.steps, self.seconds)


@dataclass
class Rung:
    """Availability of a rung on this loader, and if it is not available, why and what would help.

    ``exists`` is false if the pipeline has no such stage: no transfer on the CPU, no hand-off without workers.
    """

    name: str
    available: bool = True
    why_not: str = ""
    exists: bool = True


@dataclass
class Startup:
    """One start of an epoch's data: seconds from ``iter()`` to the first batch.

    ``launch`` is the time until all worker processes were started. ``ready`` is the time until the last worker had
    imported its modules and run its init function; the rest of ``seconds`` is the first batch. ``renewed`` is true if
    the workers of the previous epoch were kept; if not, ``shutdown`` is the time to end them.
    """

    seconds: float
    attempt: int = 1
    launch: float = 0.0
    ready: float = 0.0
    renewed: bool = False
    shutdown: float = 0.0


@dataclass
class Place:
    """A named piece of the user's code; ``where`` is ``file:line``."""

    name: str
    where: str = ""


@dataclass
class Cost:
    """A worker's time for one piece of work, in milliseconds per sample: averages over the probed samples."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0


@dataclass
class Link:
    """One transform of the chain, in the order in which a sample passes through it.

    ``whole`` says why a link that holds other callables was not split further. ``origin`` is the module that defines
    it, ``given`` its input: ``picture`` (Pillow's), ``tensor``, ``array``, or the name of another type. ``bytes_in``
    and ``bytes_out`` are the sizes of input and output, averages over the probed calls.
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
    """A line of the user's code, or a library function, and its share of the time to make a sample."""

    where: str
    text: str
    share: float


@dataclass
class Files:
    """Files opened for reading while samples are made.

    ``opened`` is their average number per sample, ``nbytes`` the average size of a file, ``endings`` the total number
    of files for the most frequent file name endings.
    """

    opened: float = 0.0
    nbytes: float = 0.0
    endings: dict[str, int] = field(default_factory=dict)


@dataclass
class Inside:
    """A worker's work for one sample, timed in the worker: CPU-side costs, whereas the ladder gives costs to training.

    ``whole`` is the dataset's code with its transforms, ``load`` the same without them, ``between`` the code that
    applies the chain. ``sizes`` pairs each probed sample's bytes with its milliseconds. ``threads`` is the number of
    threads that each library would use in a worker.
    """

    samples: int = 0
    whole: Cost = field(default_factory=Cost)
    load: Cost = field(default_factory=Cost)
    between: Cost = field(default_factory=Cost)
    links: list[Link] = field(default_factory=list)
    lines: list[HotLine] = field(default_factory=list)
    sizes: list[list[float]] = field(default_factory=list)
    threads: dict[str, int] = field(default_factory=dict)
    unsplit: str = ""  # why the chain has no rungs of its own; empty if it can
    files: Files | None = None  # None if not examined


@dataclass
class Slow:
    """A slow sample: its index and its milliseconds."""

    index: str
    ms: float


@dataclass
class Tail:
    """Distribution of the time to make a sample under the baseline, and the slowest indices.

    ``counts[k]`` samples took between ``edges_ms[k]`` and ``edges_ms[k + 1]`` milliseconds; both are empty in sessions
    of older versions. Of very many ``samples`` only a random subset is counted, the one that gives the percentiles.
    """

    samples: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest: list[Slow] = field(default_factory=list)
    edges_ms: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass
class Stretch:
    """Consecutive steps as they happened under one rung, with the batches that workers delivered meanwhile.

    All times are seconds after :attr:`.Session.began`. ``asked``, ``got`` and ``ready`` have one entry per step: when
    the loop asked for its batch, when it had it, and how many batches lay ready when it asked (0 if its batches come
    from a cache or are not queued). A step lasts until the next one is asked for, the last until ``ended``. ``worker``,
    ``made_from``, ``made_until`` and ``collate_ms`` have one entry per batch: the worker's number (-1 for the training
    process itself), when it began and finished the batch, and the milliseconds in the collate function.

    ``round`` is that of the window, :data:`UNTOUCHED` for steps of the loop as it is before the first window. Long
    windows are cut short, and not all windows have a stretch: a session holds a limited number of steps.
    """

    rung: str
    round: int = 0
    attempt: int = 1
    asked: list[float] = field(default_factory=list)
    got: list[float] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    ended: float = 0.0
    worker: list[int] = field(default_factory=list)
    made_from: list[float] = field(default_factory=list)
    made_until: list[float] = field(default_factory=list)
    collate_ms: list[float] = field(default_factory=list)


@dataclass
class BatchStep:
    """Milliseconds of single steps on one cached batch, the device synchronised around each, and the batch's bytes."""

    nbytes: int
    ms: list[float]


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
    """A call of the training loop that makes the host wait for the device; see :mod:`pipediag.measure.synclog`.

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


@dataclass
class Loader:
    """The script's training loader, with its original settings."""

    dataset: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str = ""
    iterable: bool = False
    length: int | None = None  # batches in an epoch, or None if the loader does not know
    where: str = ""
    batch_bytes: int = 0
    dataset_code: Place | None = None
    transform: Place | None = None
    collate: Place | None = None


@dataclass
class LoaderSettings:
    """Settings of a loader.

    ``startup`` is the time in seconds from ``iter()`` to the first batch, or None if the settings were not tried.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    startup: float | None = None

    @property
    def written(self) -> str:
        """The settings as keyword arguments of the loader."""
        parts = [f"num_workers={self.num_workers}"]
        if self.num_workers:
            parts.append(f"prefetch_factor={self.prefetch_factor}")
        return ", ".join([*parts, "pin_memory=True"] if self.pin_memory else parts)


@dataclass
class Knobs:
    """Other loader settings that were tried on the running loop.

    Windows of the rung ``settings:k`` belong to ``tried[k - 1]``; the results follow from the windows. ``why_not`` says
    why nothing was tried.
    """

    tried: list[LoaderSettings] = field(default_factory=list)
    why_not: str = ""


@dataclass
class Kept:
    """A transform that stays in the workers, and why. Without a name: why no more transforms can move."""

    name: str
    why: str = ""


@dataclass
class Apart:
    """Difference between results under the remedy and on the CPU: of one function, or of whole batches of one dtype.

    ``largest`` is a share of the results' range, or a number of levels for integers (``levels`` is true), or None if
    they cannot be compared. ``off`` is the share of elements beyond the tolerance (for integers: that differ).
    """

    name: str
    samples: int = 0
    largest: float | None = 0.0
    off: float = 0.0
    levels: bool = False
    passed: bool = True


@dataclass(frozen=True)
class Elsewhere:
    """A moved transform that is not exact by construction, and how far its pixels may be from the CPU's on samples that
    were not compared."""

    name: str
    how: str


@dataclass
class Pictured:
    """One sample as the CPU and the device made it, and their difference: small PNGs in base64.

    ``largest`` is the largest difference in levels of 255; the picture of the difference is scaled up to be seen.
    """

    cpu: str
    device: str
    difference: str
    largest: float = 0.0


@dataclass
class Proof:
    """Summary of the certificate; ``unrecorded`` of the ``samples`` could not be recorded, for the reason ``why``.

    ``elsewhere`` is empty if everything that moved is exact by construction, and None in files that do not say.
    """

    passed: bool = False
    samples: int = 0
    unrecorded: int = 0
    why: str = ""
    draws_equal: bool = True
    apart: list[Apart] = field(default_factory=list)
    elsewhere: list[Elsewhere] | None = None
    pictured: list[Pictured] = field(default_factory=list)


@dataclass
class Edit:
    """A unified diff of the script that keeps the remedy, or the reason why no certainly correct diff exists."""

    diff: str = ""
    why_not: str = ""


@dataclass
class Keeping:
    """A cache of samples: ``what`` it keeps, in words, the bytes for all samples, and those that are free for them."""

    what: str = ""
    nbytes: int = 0
    free: int = 0

    @property
    def fits(self) -> float:
        """The share of the samples that fits."""
        return min(1.0, self.free / self.nbytes) if self.nbytes else 1.0


@dataclass
class Remedy:
    """A change that ``--apply`` tried on the training loader; its gain follows from the windows.

    It moves transforms, makes the deterministic part of each sample once (``keeping``), does both, or is the hand-off
    alone (:attr:`.Session.handoff`). ``proof`` is None if nothing moves. ``why_not`` says why nothing could be tried.
    ``memory_bytes`` is the increase of the loop's peak device memory. ``plan`` is the input of
    ``pipediag run --plan``, see :mod:`pipediag.remedy.saved`; ``plan_file`` is the file it was written to.
    """

    device: str = ""
    moved: list[Place] = field(default_factory=list)
    stayed: list[Kept] = field(default_factory=list)
    why_not: str = ""
    proof: Proof | None = None
    keeping: Keeping | None = None
    memory_bytes: int | None = None
    edit: Edit = field(default_factory=Edit)
    plan: dict[str, Any] = field(default_factory=dict)
    plan_file: str = ""


@dataclass
class Rank:
    """One process of a distributed job: where it runs, and what its input does.

    ``cores`` are those the process may use, of the host's ``cpus``; ``affinity`` are their numbers as Linux writes them
    (``0-15,32-47``), empty if unknown. ``numa_node`` is the one that holds them all, or None. ``storage`` names
    the file system of the data as far as it is known. ``step_ms``, ``wait_ms`` and ``worker_ms`` describe the unchanged
    loop: milliseconds per step, the part of it in which this rank waits for its own loader, and a worker's time per
    batch; None if they were not measured. ``shares`` are the parts of a worker's time by stage. ``ended`` says how the
    rank ended if it ended before the others.
    """

    rank: int
    world_size: int
    host: str = ""
    local_rank: int | None = None
    device: str = ""
    cpus: int = 0
    cores: float = 0.0
    affinity: str = ""
    numa_node: int | None = None
    storage: str = ""
    where: str = ""
    workers: int = 0
    step_ms: float | None = None
    wait_ms: float | None = None
    worker_ms: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    ended: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size <= _MOST_RANKS:
            raise ValueError(f"rank {self.rank} of {self.world_size}")
        counts = (self.cpus, self.cores, self.workers, self.local_rank or 0)
        times = (self.step_ms, self.wait_ms, self.worker_ms)
        if not all(0 <= one <= _MOST_STEPS for one in (*counts, *(ms for ms in times if ms is not None))):
            raise ValueError(f"a figure of rank {self.rank}")
        if not all(0 <= share <= 1 for share in self.shares.values()):
            raise ValueError(f"a share of rank {self.rank}")


@dataclass
class RankTrial:
    """One timed stretch of a distributed job in which some ranks were treated differently from the others.

    Ranks in ``fed`` got batches from a cache on their device, the others trained unchanged. Each step of the ranks in
    ``delayed`` was made longer by ``delay_ms``.
    """

    fed: list[int]
    delayed: list[int]
    delay_ms: float
    round: int
    steps: int
    seconds: float
    attempt: int = 1

    def __post_init__(self) -> None:
        _check_timed("a trial of ranks", self.steps, self.seconds)
        for ranks in (self.fed, self.delayed):
            if len({*ranks}) < len(ranks) or not all(0 <= rank < _MOST_RANKS for rank in ranks):
                raise ValueError("a trial of ranks that no job has")
        if not 0 <= self.delay_ms <= _MOST_STEPS:
            raise ValueError(f"a delay of {self.delay_ms:g} ms")


@dataclass
class Script:
    """The analysed command; ``argv`` is empty if the loop ran in this process.

    ``error`` is the exception that ended the script in one line, if one did. ``overwrote`` lists those files of
    ``wrote`` that were there before the analysis and were not just appended to.
    """

    argv: list[str] = field(default_factory=list)
    passes: int = 0
    exit_code: int | None = None
    error: str = ""
    wrote: list[str] = field(default_factory=list)
    overwrote: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The command line, or what there is in its place."""
        return " ".join(self.argv) or "a loop in this process"


@dataclass
class Warning_:
    """A warning about the measurement: what was seen, and what helps."""

    code: str
    message: str
    help: str = ""
