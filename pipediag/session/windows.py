"""Define what is timed on the training loop: windows under a rung, the unmodified loop, starts of loaders."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Round of a :class:`Stretch` before the first window; windows count from 0.
UNTOUCHED = -1
#: Largest number of steps, and shortest and longest time in seconds, that can have been measured.
MOST_STEPS = 10**12
_SHORTEST, _LONGEST = 1e-9, 1e9
#: Share of a step above which waiting means that the workers' output limits the loop, not queued batches.
_WAITS = 0.1


def check_timed(what: str, steps: int, seconds: float) -> None:
    """Raise a ValueError unless ``steps`` can have taken ``seconds``."""
    if not (0 < steps <= MOST_STEPS and _SHORTEST <= seconds <= _LONGEST):
        raise ValueError(f"{what} of {steps} steps in {seconds:g} s")


@dataclass
class Account:
    """What the thread that trains did in a step of a window: milliseconds per step, averages over the window.

    The first four sum to the step.
    """

    cpu_ms: float = 0.0  # on a CPU, which includes waiting for a device in a busy loop, as CUDA does
    queue_ms: float = 0.0  # ready to run without a core
    waits_ms: float = 0.0  # blocked in ``next()``
    other_ms: float = 0.0  # blocked elsewhere: for the device, for a lock that another thread holds, for a file
    next_cpu_ms: float = 0.0  # the part of ``cpu_ms`` in ``next()``
    threads_cpu_ms: float = 0.0  # CPU time of the process's other threads together
    threads_queue_ms: float = 0.0  # the longest time that one of them was ready to run without a core
    steal: float = 0.0  # number of cores that a virtual machine's host took away
    #: Seconds that were cut out of the window: of a step in which the training slept, or was stopped.
    left_out_s: float = 0.0
    #: Seconds that were cut out of it as the process is known to have been stopped in ``next()``.
    stopped_s: float = 0.0

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0:
            raise ValueError("an account with negative time")

    @property
    def queued_ms(self) -> float:
        """Milliseconds per step that full cores add at most: a step waits for its own thread or for one beside it."""
        return self.queue_ms + self.threads_queue_ms


@dataclass
class Window:
    """One timed stretch of the training loop under one rung."""

    rung: str
    round: int
    steps: int  # batches drawn from the loader
    seconds: float  # wall time with the device synchronised at both ends
    #: In the same stretch: fewer under gradient accumulation. Backward passes if no optimizer of torch's stepped.
    optimizer_steps: int = 0
    attempt: int = 1  # number of the pass over the script
    #: The other figures of the window; see :mod:`pipediag.measure.evidence` for the keys.
    evidence: dict[str, float] = field(default_factory=dict)
    #: None if the kernel keeps no counters, or if another thread than the training's draws the batches.
    account: Account | None = None

    def __post_init__(self) -> None:
        check_timed("a window", self.steps, self.seconds)

    @property
    def ms_per_step(self) -> float:
        return 1000.0 * self.seconds / self.steps

    @property
    def ms_per_batch(self) -> float:
        """Milliseconds per batch made in the window if the loop waits for batches, else :attr:`ms_per_step`.

        Batches made are the steps plus the growth of the queue; per batch, the time varies less.
        """
        made = self.steps + self.evidence.get("stock", 0.0)
        return 1000.0 * self.seconds / made if self.waits and made > 0 else self.ms_per_step

    @property
    def waits(self) -> bool:
        """True if the loop waits for batches, not only now and then."""
        return self.evidence.get("wait_ms", 0.0) > _WAITS * self.ms_per_step


@dataclass
class Observed:
    """Consecutive steps of the unmodified training loop, with nothing cached: at most one round of the workers.

    The first batch of an epoch is excluded; see :class:`Startup`. On a device with a clock of its own times are the
    device's, and it waits while it is idle.
    """

    steps: int
    seconds: float
    waited: float  # seconds of these in which the loop waited for batches
    worker_ms: float = 0.0  # a worker's time for one of these batches, 0 if unknown
    attempt: int = 1
    evidence: dict[str, float] = field(default_factory=dict)  # other figures, with the keys of a window's

    def __post_init__(self) -> None:
        check_timed("an observation", self.steps, self.seconds)


@dataclass
class Watched:
    """How a training that already ran was watched: from outside, without timing a step of it."""

    pid: int
    seconds: float
    looks: int  # number of moments at which the loop's thread was seen
    #: What it did then: ``data``, ``start`` (of a loader), ``trains``, ``other``.
    shares: dict[str, float] = field(default_factory=dict)
    #: How its steps were counted. If empty they could not be, and a step of this session stands for a second.
    steps_by: str = ""
    ended: bool = False  # true if the process ended meanwhile
    folder: str = ""  # where it runs; empty if that is the folder of this measurement


@dataclass
class Startup:
    """One start of an epoch's data: seconds from ``iter()`` to the first batch."""

    seconds: float
    attempt: int = 1
    launch: float = 0.0  # until all worker processes were started
    #: Until the last worker had imported its modules and run its init function; the rest of all is the first batch.
    ready: float = 0.0
    renewed: bool = False  # true if the workers of the previous epoch were kept
    shutdown: float = 0.0  # seconds besides, for ending the workers of the previous epoch if they were not kept
    sampler: float = 0.0  # the part of ``seconds`` in which the sampler chose the first batches, in the loop's thread


@dataclass
class OtherStart:
    """Another loader that was started between two steps of the training loop, as for a validation within an epoch."""

    where: str  # the line that iterates it
    step: int  # number of training batches before it in its pass
    seconds: float  # in which the loop's own thread was in its ``iter()`` and ``next()`` until the next training batch
    kept: float = 0.0  # the part that workers kept from the last time would not take: launching them and ending them
    num_workers: int = 0
    persistent_workers: bool = False
    attempt: int = 1


@dataclass
class Stretch:
    """Consecutive steps as they happened under one rung, with the batches that workers delivered meanwhile.

    All times are seconds after :attr:`.Session.began`. The first lists have one entry per step, those from ``worker``
    on one per batch. Long windows are cut short, and not all windows have a stretch: a session holds a limited number
    of steps.
    """

    rung: str
    round: int = 0  # that of the window, :data:`UNTOUCHED` for steps of the loop as it is before the first window
    attempt: int = 1
    asked: list[float] = field(default_factory=list)  # when the loop asked for its batch
    got: list[float] = field(default_factory=list)  # when it had it
    #: How many batches lay ready when it asked; 0 if its batches come from a cache or are not queued.
    ready: list[int] = field(default_factory=list)
    ended: float = 0.0  # of the last step; the others last until the next one is asked for
    worker: list[int] = field(default_factory=list)  # its number; -1 for the training process itself
    made_from: list[float] = field(default_factory=list)  # when it began the batch
    made_until: list[float] = field(default_factory=list)  # when it finished the batch
    collate_ms: list[float] = field(default_factory=list)  # milliseconds in the collate function
