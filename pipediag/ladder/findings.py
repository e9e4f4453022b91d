"""Send findings from outside the windows: startups, the inside of the dataset's code, slow samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from ..analysis.chain import merged
from ..session import Startup
from .worker_reports import WorkerReports


class Found(Protocol):
    """The holder of findings: a feed, or the track of its loader."""

    startups: list[Startup]
    reports: WorkerReports


class Findings:
    """The sender of findings: sends each one when it appears and when it changes."""

    def __init__(self, feed: Found, send: Callable[[str, dict[str, Any]], None], attempt: int, known: bool) -> None:
        self._feed = feed
        self._send = send
        self._attempt = attempt
        self._inside_known = known
        self._startups = 0
        self._revision_sent = 0
        self._timed = 0

    def send_new(self) -> None:
        for startup in self._feed.startups[self._startups :]:
            self._send("startup", {**asdict(startup), "attempt": self._attempt})
        self._startups = len(self._feed.startups)
        insides = self._feed.reports.insides
        if self._feed.reports.revision > self._revision_sent and not self._inside_known:
            self._revision_sent = self._feed.reports.revision
            self._send("inside", asdict(merged(list(insides.values()))))
        reports = self._feed.reports
        if reports.samples > self._timed and (tail := reports.tail) is not None:
            self._timed = reports.samples
            self._send("tail", asdict(tail))
