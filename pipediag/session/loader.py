"""Define the analysed script, its training loader, its settings, and the settings tried in their place."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Place:
    """A named piece of code."""

    name: str
    where: str = ""  # ``file:line``
    library: bool = False  # True if that is a library's file, relative to its package
    made: str = ""  # of a library's: the user's line that constructs the object, if it is certain


@dataclass
class Loader:
    """The script's training loader, with its original settings."""

    dataset: str = ""  # its name, or that of a plain iterable
    batch_size: int | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str = ""
    iterable: bool = False
    length: int | None = None  # batches in an epoch, or None if the loader does not know
    left_after: int | None = None  # batches after which the loop leaves an epoch early; None if it was not seen to
    #: The line of the user's loop; if a library runs the loop, the line that makes the loader or its dataset, or the
    #: call of the library if that makes both.
    where: str = ""
    #: The user's line that runs at that moment, in the latter case the call of the library; a saved plan knows the
    #: loader by it and by ``order``.
    iterated: str = ""
    order: int = 0  # its number among the loaders that are iterated there
    batch_bytes: int = 0
    dataset_code: Place | None = None
    transform: Place | None = None
    collate: Place | None = None
    sampler: Place | None = None
    uncached: str = ""  # why ``run`` keeps nothing of what it reads, as far as that is known before it tries
    nests: bool = False  # true if its dataset draws from another loader with workers, which no worker may start
    plain_iterable: bool = False  # true if the loop draws finished batches from an iterable that is no DataLoader

    @property
    def epoch(self) -> int | None:
        """Number of batches that the loop takes in an epoch; None if that is not known."""
        return self.left_after or self.length

    @property
    def dataset_lasts(self) -> bool:
        """True if what the dataset keeps is there in the next epoch: it is not lost with the workers."""
        return self.persistent_workers or not self.num_workers


@dataclass
class LoaderSettings:
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    startup: float | None = None  # seconds from ``iter()`` to the first batch; None if the settings were not tried

    @property
    def written(self) -> str:
        """The settings as keyword arguments of the loader."""
        parts = [f"num_workers={self.num_workers}"]
        if self.num_workers:
            parts.append(f"prefetch_factor={self.prefetch_factor}")
        return ", ".join([*parts, "pin_memory=True"] if self.pin_memory else parts)


@dataclass
class Knobs:
    """Other loader settings that were tried on the running loop; the results follow from the windows."""

    tried: list[LoaderSettings] = field(default_factory=list)  # windows of the rung ``settings:k`` are of ``[k - 1]``
    why_not: str = ""  # why nothing was tried


@dataclass
class Script:
    """The analysed command."""

    argv: list[str] = field(default_factory=list)  # empty if the loop ran in this process
    passes: int = 0
    exit_code: int | None = None
    error: str = ""  # the exception that ended the script, in one line
    wrote: list[str] = field(default_factory=list)
    #: Those of these files that existed before the analysis and were not just appended to.
    overwrote: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # those of pipediag that measure the same again

    @property
    def line(self) -> str:
        """The command line, for display."""
        return " ".join(self.argv) or "a loop in this process"


@dataclass
class Warning_:
    """A warning about the measurement: what was seen, and what helps."""

    code: str
    message: str
    help: str = ""
