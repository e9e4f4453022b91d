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

    ``cpu_ms``, ``queue_ms``, ``waits_ms`` and ``other_ms`` sum to the step: on a CPU (which includes waiting for a
    device in a busy loop, as CUDA does), ready to run without a core, blocked in ``next()``, and blocked elsewhere: for
    the device, for a lock that another thread holds, for a file. ``next_cpu_ms`` is the part of ``cpu_ms`` in
    ``next()``.

    ``threads_cpu_ms`` is the CPU time of the process's other threads together, ``threads_queue_ms`` the longest time
    that one of them was ready to run without a core. ``steal`` is the number of cores that a virtual machine's host
    took away.

    Two figures are seconds that were cut out of the window: ``left_out_s`` are those of a step in which the training
    slept, or was stopped; ``stopped_s`` those in which the process is known to have been stopped in ``next()``.
    """

    cpu_ms: float = 0.0
    queue_ms: float = 0.0
    waits_ms: float = 0.0
    other_ms: float = 0.0
    next_cpu_ms: float = 0.0
    threads_cpu_ms: float = 0.0
    threads_queue_ms: float = 0.0
    steal: float = 0.0
    left_out_s: float = 0.0
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
    """One timed stretch of the training loop under one rung.

    ``steps`` counts batches drawn from the loader; ``optimizer_steps`` counts the optimizer steps in the same stretch
    (fewer under gradient accumulation), or backward passes if no optimizer of torch's stepped. ``seconds`` is wall time
    with the device synchronised at both ends.
    ``evidence`` holds the other figures of the window; see :mod:`pipediag.measure.evidence` for the keys.
    ``account`` is None if the kernel keeps no counters, or if another thread than the training's draws the batches.
    """

    rung: str
    round: int
    steps: int
    seconds: float
    optimizer_steps: int = 0
    attempt: int = 1  # number of the pass over the script
    evidence: dict[str, float] = field(default_factory=dict)
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

    ``seconds`` is the time of the ``steps``, ``waited`` the part of it in which the loop waited for batches. On a
    device with a clock of its own both are device times, and ``waited`` is the device's idle time. ``worker_ms`` is a
    worker's time for one of these batches, 0 if unknown. The first batch of an epoch is excluded; see :class:`Startup`.
    ``evidence`` holds other figures, with the keys of a window's.
    """

    steps: int
    seconds: float
    waited: float
    worker_ms: float = 0.0
    attempt: int = 1
    evidence: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_timed("an observation", self.steps, self.seconds)


@dataclass
class Watched:
    """How a training that already ran was watched: from outside, without timing a step of it.

    ``looks`` is the number of moments at which the loop's thread was seen in ``seconds``, ``shares`` what it did then:
    ``data``, ``start`` (of a loader), ``trains``, ``other``. ``steps_by`` says how its steps were counted. If it is
    empty they could not be, and a step of this session stands for a second. ``ended`` is true if the process ended
    meanwhile, ``folder`` is where it runs, empty if that is the folder of this measurement.
    """

    pid: int
    seconds: float
    looks: int
    shares: dict[str, float] = field(default_factory=dict)
    steps_by: str = ""
    ended: bool = False
    folder: str = ""


@dataclass
class Startup:
    """One start of an epoch's data: seconds from ``iter()`` to the first batch.

    ``launch`` is the time until all worker processes were started. ``ready`` is the time until the last worker had
    imported its modules and run its init function; the rest of ``seconds`` is the first batch. ``renewed`` is true if
    the workers of the previous epoch were kept; if not, ``shutdown`` is the time to end them. ``sampler`` is the part
    of ``seconds`` in which the sampler chose the first batches, in the loop's thread.
    """

    seconds: float
    attempt: int = 1
    launch: float = 0.0
    ready: float = 0.0
    renewed: bool = False
    shutdown: float = 0.0
    sampler: float = 0.0


@dataclass
class OtherStart:
    """Another loader that was started between two steps of the training loop, as for a validation within an epoch.

    ``where`` is the line that iterates it, ``step`` the number of training batches before it in its pass. ``seconds``
    is how long the loop's own thread spent in its ``iter()`` and ``next()`` until the next training batch, ``kept`` the
    part of it that workers kept from the last time would not take: launching them and ending them.
    """

    where: str
    step: int
    seconds: float
    kept: float = 0.0
    num_workers: int = 0
    persistent_workers: bool = False
    attempt: int = 1


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
