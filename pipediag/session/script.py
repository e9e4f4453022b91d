"""Define the analysed script and the warnings about its measurement."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Script:
    """The analysed command; ``argv`` is empty if the loop ran in this process.

    ``error`` is the exception that ended the script, in one line; empty if none did. ``overwrote`` lists those files of
    ``wrote`` that existed before the analysis and were not just appended to.
    """

    argv: list[str] = field(default_factory=list)
    passes: int = 0
    exit_code: int | None = None
    error: str = ""
    wrote: list[str] = field(default_factory=list)
    overwrote: list[str] = field(default_factory=list)

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
