"""Define what happens inside a worker: the cost of a sample by transform and line, and slow samples."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Why the transform chain has no rungs of its own yet; see :attr:`Inside.unsplit`.
NOT_YET = "they were not taken apart yet"


@dataclass
class Cost:
    """A worker's time for one piece of work, in milliseconds per sample: averages over the probed samples."""

    wall_ms: float = 0.0  # without waiting for a core, as far as the system counts that (Linux)
    cpu_ms: float = 0.0


@dataclass
class Part:
    """A transform that a wrapper such as ``RandomApply`` runs, not necessarily for every sample; see :class:`Link`."""

    name: str
    where: str = ""
    origin: str = ""
    library: bool = False
    cost: Cost = field(default_factory=Cost)


@dataclass
class Link:
    """One transform of the chain, in the order in which a sample passes through it."""

    name: str
    where: str = ""
    cost: Cost = field(default_factory=Cost)
    whole: str = ""  # why a link that holds other callables was not split further
    origin: str = ""  # the module that defines it
    given: str = ""  # its input: ``picture`` (Pillow's), ``tensor``, ``array``, or the name of another type
    bytes_in: float = 0.0  # size of the input, an average over the probed calls
    bytes_out: float = 0.0  # the same of the output
    library: bool = False  # True if ``where`` is a library's file, relative to its package
    parts: list[Part] = field(default_factory=list)  # which callables it ran, if they take nearly all of its time


@dataclass
class HotLine:
    """A line of code and its share of the time to make a sample: a user's line, or a library's if ``library``."""

    where: str  # of very many lines, those that take little come together, and this is empty
    text: str
    share: float
    name: str = ""  # what the line calls
    function: str = ""  # what it belongs to
    #: ``load`` for what the dataset's code runs outside the transforms, and ``transform`` inside; "" in sessions of
    #: older versions. That of the user's collate function is ``collate``: shares are then of the time to collate.
    stage: str = ""
    library: bool = False
    #: The libraries' functions that were seen to run below it, the outer ones first, with the share of the time in
    #: which each ran: in it ``PIL.ImageFile.ImageFile.load`` is inside ``PIL.Image.Image.convert``.
    calls: dict[str, float] = field(default_factory=dict)
    #: The transforms that ran the line, with the share of the time in which each did, as far as they are known by name.
    transforms: dict[str, float] = field(default_factory=dict)


@dataclass
class Files:
    """Files opened for reading while samples are made."""

    opened: float = 0.0  # their average number per sample
    nbytes: float = 0.0  # the average size of a file
    endings: dict[str, int] = field(default_factory=dict)  # total number of files for the most frequent endings


@dataclass
class Inside:
    """A worker's work for one sample, timed there: CPU-side costs, whereas the ladder gives costs to training."""

    samples: int = 0
    whole: Cost = field(default_factory=Cost)  # the dataset's code with its transforms
    load: Cost = field(default_factory=Cost)  # the same without them
    between: Cost = field(default_factory=Cost)  # the code that applies the chain
    links: list[Link] = field(default_factory=list)
    lines: list[HotLine] = field(default_factory=list)
    sizes: list[list[float]] = field(default_factory=list)  # each probed sample's bytes with its milliseconds
    looks: int = 0  # number of moments from which ``lines`` are known
    threads: dict[str, int] = field(default_factory=dict)  # number that each library would use in a worker
    unsplit: str = ""  # why the chain has no rungs of its own; empty if it can
    files: Files | None = None  # None if not examined
    #: True if samples made twice were equal without a draw from a process-wide generator; None if not tried.
    same_twice: bool | None = None

    @property
    def timed(self) -> bool:
        """True if the time of at least one sample is known."""
        return self.samples > 0 and self.whole.wall_ms > 0


@dataclass
class Alternative:
    """Another way to do what a transform does, tried in a worker on inputs of its own."""

    name: str  # the transform's, as readers know it (:func:`.chain.grains`), or ``load``
    where: str  # the transform's; empty for loading
    key: str  # names the way; see :mod:`pipediag.analysis.recommend.cheaper`
    inputs: int
    ms: float  # the transform's, for one input
    ms_instead: float  # the other way's, with the same random draws
    #: Mean difference between their pixels in levels of 8 bits; None if they cannot be compared pixel by pixel.
    difference: float | None = None


@dataclass
class Slow:
    """A slow sample: its index and its milliseconds."""

    index: str
    ms: float


@dataclass
class Tail:
    """Distribution of the time to make a sample under the baseline, and the slowest indices.

    Of very many ``samples`` only a random subset is counted, the one that gives the percentiles.
    """

    samples: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest: list[Slow] = field(default_factory=list)
    #: ``counts[k]`` samples took between ``edges_ms[k]`` and ``edges_ms[k + 1]``; empty in sessions of older versions.
    edges_ms: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass
class SlowBatches:
    """Batches of the loop as it is that took their worker far longer than most, also those made between two windows.

    The first batch of each worker does not count.
    """

    batches: int = 0  # all of them
    #: By how much each slow one exceeds the median of all; empty if there are so many that every window meets some.
    longer_ms: list[float] = field(default_factory=list)
