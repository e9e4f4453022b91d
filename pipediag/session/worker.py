"""Define what happens inside a worker: the cost of a sample by transform and line, and slow samples."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Why the transform chain has no rungs of its own yet; see :attr:`Inside.unsplit`.
NOT_YET = "they were not taken apart yet"


@dataclass
class Cost:
    """A worker's time for one piece of work, in milliseconds per sample: averages over the probed samples.

    ``wall_ms`` is without waiting for a core, as far as the system counts that (Linux).
    """

    wall_ms: float = 0.0
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
    """One transform of the chain, in the order in which a sample passes through it.

    ``whole`` says why a link that holds other callables was not split further, ``parts`` which of them it ran if they
    take nearly all of its time. ``origin`` is the module that defines it, ``given`` its input: ``picture`` (Pillow's),
    ``tensor``, ``array``, or the name of another type. ``bytes_in`` and ``bytes_out`` are the sizes of input and
    output, averages over the probed calls. ``library`` is True if ``where`` is a library's file, relative to its
    package.
    """

    name: str
    where: str = ""
    cost: Cost = field(default_factory=Cost)
    whole: str = ""
    origin: str = ""
    given: str = ""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    library: bool = False
    parts: list[Part] = field(default_factory=list)


@dataclass
class HotLine:
    """A line of code and its share of the time to make a sample: a user's line, or a library's if ``library``.

    ``name`` is what the line calls, ``function`` what it belongs to. ``calls`` are the libraries' functions that were
    seen to run below it, the outer ones first, with the share of the time in which each ran: in it
    ``PIL.ImageFile.ImageFile.load`` is inside ``PIL.Image.Image.convert``. ``stage`` is ``load`` for what the dataset's
    code runs outside the transforms, and ``transform`` inside; "" in sessions of older versions. That of the user's
    collate function is ``collate``: shares are then of the time to collate. ``transforms`` are the transforms that ran
    the line, with the share of the time in which each did, as far as they are known by name. Of very many lines, those
    that take little come together, with an empty ``where``.
    """

    where: str
    text: str
    share: float
    name: str = ""
    function: str = ""
    stage: str = ""
    library: bool = False
    calls: dict[str, float] = field(default_factory=dict)
    transforms: dict[str, float] = field(default_factory=dict)


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
    applies the chain. ``sizes`` pairs each probed sample's bytes with its milliseconds. ``looks`` is the number
    of moments from which ``lines`` are known, ``threads`` the number of threads that each library would use in a
    worker. ``same_twice`` is True if samples made twice were equal without a draw from a process-wide generator.
    """

    samples: int = 0
    whole: Cost = field(default_factory=Cost)
    load: Cost = field(default_factory=Cost)
    between: Cost = field(default_factory=Cost)
    links: list[Link] = field(default_factory=list)
    lines: list[HotLine] = field(default_factory=list)
    sizes: list[list[float]] = field(default_factory=list)
    looks: int = 0
    threads: dict[str, int] = field(default_factory=dict)
    unsplit: str = ""  # why the chain has no rungs of its own; empty if it can
    files: Files | None = None  # None if not examined
    same_twice: bool | None = None  # None if not tried

    @property
    def timed(self) -> bool:
        """True if the time of at least one sample is known."""
        return self.samples > 0 and self.whole.wall_ms > 0


@dataclass
class Alternative:
    """Another way to do what a transform does, tried in a worker on inputs of its own.

    ``name`` and ``where`` are the transform's, as readers know it (:func:`.chain.grains`), or ``load``
    and empty for loading. ``key`` names the way; see :mod:`pipediag.analysis.recommend.cheaper`. ``ms`` and
    ``ms_instead`` are milliseconds for one input, the transform's and the other way's, with the same random draws.
    ``difference`` is the mean difference between their pixels in levels of 8 bits; None if the results cannot be
    compared pixel by pixel.
    """

    name: str
    where: str
    key: str
    inputs: int
    ms: float
    ms_instead: float
    difference: float | None = None


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
class SlowBatches:
    """Batches of the loop as it is that took their worker far longer than most, also those made between two windows.

    ``longer_ms`` is by how much each of the slow ones exceeds the median of all ``batches``. It is empty if there are
    so many that every window meets some. The first batch of each worker does not count.
    """

    batches: int = 0
    longer_ms: list[float] = field(default_factory=list)
