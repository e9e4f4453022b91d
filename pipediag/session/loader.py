"""Define the analysed script, its training loader, its settings, and the settings tried in their place."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Place:
    """A named piece of code; ``where`` is ``file:line``.

    ``library`` is True if that is a library's file, relative to its package; ``made`` is then the user's line that
    constructs the object, if it is certain.
    """

    name: str
    where: str = ""
    library: bool = False
    made: str = ""


@dataclass
class Loader:
    """The script's training loader, with its original settings.

    ``where`` is the line of the user's loop; if a library runs the loop, the line that makes the loader or its dataset,
    or, if the library makes both, the call of it.
    ``iterated`` is the user's line that runs at that moment, in the latter case the call of the library; a saved plan
    knows the loader by it and by ``order``, its number among the loaders that are iterated there.

    ``left_after`` is the number of batches after which the loop leaves an epoch early, None if it was not seen to.

    ``plain_iterable`` is true if the loop draws finished batches from an iterable that is no DataLoader; ``dataset`` is
    then its name.

    ``nests`` is true if its dataset draws from another loader with workers, which no worker process may start.

    ``uncached`` says why ``run`` keeps nothing of what it reads, as far as that is known before it tries.
    """

    dataset: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    start_method: str = ""
    iterable: bool = False
    length: int | None = None  # batches in an epoch, or None if the loader does not know
    left_after: int | None = None
    where: str = ""
    iterated: str = ""
    order: int = 0
    batch_bytes: int = 0
    dataset_code: Place | None = None
    transform: Place | None = None
    collate: Place | None = None
    sampler: Place | None = None
    uncached: str = ""
    nests: bool = False
    plain_iterable: bool = False

    @property
    def epoch(self) -> int | None:
        """Number of batches that the loop takes in an epoch; None if that is not known."""
        return self.left_after or self.length


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
class Script:
    """The analysed command; ``argv`` is empty if the loop ran in this process.

    ``options`` are those of pipediag that measure the same again.

    ``error`` is the exception that ended the script, in one line; empty if none did. ``overwrote`` lists those files of
    ``wrote`` that existed before the analysis and were not just appended to.
    """

    argv: list[str] = field(default_factory=list)
    passes: int = 0
    exit_code: int | None = None
    error: str = ""
    wrote: list[str] = field(default_factory=list)
    overwrote: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)

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
