"""Hold all measurements of one analysis as plain dataclasses, and convert them to and from JSON.

This is the only interface between measuring and the rest: the host, the ladder and the clocks write a :class:`Session`;
analysis and reports only read it. It imports ``errors`` alone, and no torch. Begin with :class:`Session`, the table of
rungs (``rungs``) and the table of events (``events``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._version import __version__
from ..errors import SessionFileError
from .codec import SCHEMA_VERSION, build, check_entries, check_version
from .events import KINDS, read
from .loader import Knobs, Loader, LoaderSettings, Place, Script, Warning_
from .ranks import Rank, RankTrial
from .remedies import Apart, Edit, Elsewhere, Keeping, Kept, Pictured, Proof, Remedy
from .rungs import (
    CACHED,
    CONTROLS,
    DECODED,
    FEWER_THREADS,
    HANDED_OVER,
    LADDER,
    LOADED_ONCE,
    LONGER,
    MOST_OF_A_LINE,
    PLAIN,
    REMEDIED,
    REMEDIES,
    RUNG_MEANING,
    RUNGS,
    STAGE_OF_RUNG,
    Rung,
    cut_of,
    cut_rung,
    fed_apart,
    is_found_later,
    is_of_ladder,
    is_rung,
    left_out,
    line_left_out,
    made_under,
    ordered,
    received,
    settings_of,
    settings_rung,
    without_rung,
    workers_make,
)
from .step import BatchFacts, BatchStep, Leaf, Padding, Prefix, Profile, Share, SyncCall, Syncs
from .windows import UNTOUCHED, Account, Observed, OtherStart, Startup, Stretch, Watched, Window
from .worker import NOT_YET, Alternative, Cost, Files, HotLine, Inside, Link, Part, Slow, SlowBatches, Tail

#: Types of the entries that analysis and reports use, in dictionaries that may hold others too.
_ENTRIES: dict[str, dict[str, Any]] = {
    "environment": {
        **dict.fromkeys(("cores", "cpus", "affinity", "cgroup_quota", "memory_gib"), float | None),
        "threads": dict[str, int],
        "fewer_threads": int,
    },
    "device": {"type": str, "name": str | None},
    "caches": dict.fromkeys(("held_bytes", "device", "host", "shared"), float),
}


@dataclass
class Session:
    """All measurements of one analysis, before any judgement."""

    tool_version: str = ""
    script: Script = field(default_factory=Script)
    environment: dict[str, Any] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    loader: Loader | None = None
    began: float = 0.0  # time.perf_counter() when the measurement began; all processes of a machine share it
    rungs: dict[str, Rung] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    other_starts: list[OtherStart] = field(default_factory=list)
    warnings: list[Warning_] = field(default_factory=list)
    caches: dict[str, Any] = field(default_factory=dict)
    inside: Inside | None = None
    alternatives: list[Alternative] = field(default_factory=list)
    tail: Tail | None = None
    slow_batches: SlowBatches | None = None
    stretches: list[Stretch] = field(default_factory=list)
    batch_steps: list[BatchStep] = field(default_factory=list)
    batch: BatchFacts | None = None
    syncs: Syncs | None = None
    prefix: Prefix | None = None
    profile: Profile | None = None
    knobs: Knobs | None = None
    remedy: Remedy | None = None
    decoded: Remedy | None = None  # like remedy, with JPEGs decoded on the device too; only if that is allowed
    loaded_once: Remedy | None = None  # samples are kept before their first random transform
    handoff: Remedy | None = None  # the hand-off alone; tried if none of these applies
    ranks: list[Rank] = field(default_factory=list)  # of a distributed job; in a rank's own process, only that rank
    rank_trials: list[RankTrial] = field(default_factory=list)
    of_rank: int | None = None  # of a distributed job: the rank to which windows and loader belong
    watched: Watched | None = None  # if a running training was seen from outside
    ended: str = ""  # settled, budget, interrupted, script-ended, script-failed
    schema_version: int = SCHEMA_VERSION

    @property
    def anything_seen(self) -> bool:
        """True if a step of the training loop was timed, under a rung or without intervention."""
        return bool(self.windows or self.observed)

    def windows_of(self, rung: str) -> list[Window]:
        return [w for w in self.windows if w.rung == rung]

    def measured(self) -> list[str]:
        """Return the ladder's rungs that have at least one window, fastest rung first."""
        seen = {w.rung for w in self.windows}
        return [name for name in ordered(seen) if is_of_ladder(name)]

    @property
    def evaluates(self) -> bool:
        """True if the loop does not train: windows were measured, and no optimizer stepped in any of them."""
        return bool(self.windows) and not any(window.optimizer_steps for window in self.windows)

    @property
    def links(self) -> list[Link]:
        """The known links of the transform chain."""
        return self.inside.links if self.inside else []

    @property
    def workers(self) -> int:
        """Number of the loader's workers; 0 if the loader is unknown."""
        return self.loader.num_workers if self.loader else 0

    @property
    def batch_bytes(self) -> int:
        """Bytes of the tensors of a batch; 0 if unknown."""
        return self.loader.batch_bytes if self.loader else 0

    @property
    def cores(self) -> float | None:
        """Number of cores that the script may use; None if unknown."""
        return self.environment.get("cores") or None

    @property
    def device_type(self) -> str:
        """The device's name in code, ``cpu`` if unknown."""
        return str(self.device.get("type", "cpu"))

    @property
    def counts_steps(self) -> bool:
        """False if a watched loop's steps could not be counted: a step of this session is then a second."""
        return self.watched is None or bool(self.watched.steps_by)

    @property
    def steps_seen(self) -> int:
        """Number of steps seen without intervention, or if there are none, under any rung."""
        return sum(one.steps for one in self.observed) or sum(window.steps for window in self.windows)

    def warn(self, code: str, message: str, help: str = "") -> None:
        """Add a warning, unless one with the same code and message exists."""
        if not any(w.code == code and w.message == message for w in self.warnings):
            self.warnings.append(Warning_(code, message, help))

    def warned(self, code: str) -> bool:
        return any(one.code == code for one in self.warnings)

    def apply(self, kind: str, data: Mapping[str, Any]) -> None:
        """Apply one event of the measurement. Ignore unknown kinds, so that versions may differ."""
        if kind in KINDS and KINDS[kind].enter is not None:
            self.enter(kind, read(kind, data))

    def enter(self, kind: str, event: Any) -> None:
        """Enter an event that :func:`.events.read` returned; ignore kinds that a session does not hold."""
        enter = KINDS[kind].enter if kind in KINDS else None
        if enter is not None:
            enter(self, event)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Session:
        """Rebuild a session from its JSON form.

        Raises:
            SessionFileError: the data is not a session, or a newer pipediag wrote it.
        """
        try:
            check_version(data.get("schema_version"))
            if "windows" not in data or "rungs" not in data:
                raise TypeError("it holds no windows")
            session = build(cls, {name: value for name, value in data.items() if name != "schema_version"})
            session._check()
            return session
        except (TypeError, ValueError) as error:
            raise SessionFileError(
                f"not a pipediag session ({error}); write one with: pipediag analyze -o session.json SCRIPT"
            ) from None

    def _check(self) -> None:
        """Check that the facts of a file agree with each other; drop rungs that only another version knows.

        Raises:
            TypeError, ValueError: no measurement can have produced them.
        """
        unknown = {name for name in (*self.rungs, *(window.rung for window in self.windows)) if not is_rung(name)}
        if unknown and self.tool_version == __version__:
            raise ValueError(f"{min(unknown)!r:.40} is not a rung")
        self.windows = [window for window in self.windows if window.rung not in unknown]
        self.rungs = {name: rung for name, rung in self.rungs.items() if name not in unknown}
        for name, rung in self.rungs.items():
            if name != rung.name:
                raise ValueError(f"the rung {name!r:.40} is called {rung.name!r:.40}")
        tried = len(self.knobs.tried) if self.knobs is not None else 0
        for name in (*self.rungs, *(window.rung for window in self.windows)):
            if (settings_of(name) or 0) > tried:
                raise ValueError(f"no settings were tried as {name}")
        if len({rank.rank for rank in self.ranks}) < len(self.ranks):
            raise ValueError("a rank is listed twice")
        if self.of_rank is not None and all(rank.rank != self.of_rank for rank in self.ranks):
            raise ValueError(f"there is no rank {self.of_rank}")
        sizes = {rank.world_size for rank in self.ranks}
        if len(sizes) > 1:
            raise ValueError(f"ranks of jobs of {min(sizes)} and of {max(sizes)} processes")
        if sizes and any(rank >= min(sizes) for trial in self.rank_trials for rank in (*trial.fed, *trial.delayed)):
            raise ValueError("a trial of ranks outside the job")
        for name, kinds in _ENTRIES.items():
            check_entries(getattr(self, name), kinds, name)
