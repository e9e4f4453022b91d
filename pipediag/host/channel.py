"""Send events from the child to the parent: one JSON object per line, over a separate pipe."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

Event = tuple[str, dict[str, Any]]


class Sender:
    """The child's end of the pipe. Events that cannot be delivered are dropped.

    A script may close every descriptor and reuse the number for a file of its own.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)
        self._pid = os.getpid()
        self._identity = _identity(fd)

    def send(self, kind: str, data: dict[str, Any]) -> None:
        forked = os.getpid() != self._pid  # a worker holds a copy
        if forked or _identity(self._fd) != self._identity:
            return
        line = json.dumps([kind, data], default=str).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            pass


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        facts = os.fstat(fd)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


class Receiver:
    """The parent's end of the pipe. An incomplete line is kept until the rest arrives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._rest = b""

    def events(self) -> Iterator[Event]:
        """Yield every event that has arrived completely."""
        while True:
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                kind, data = json.loads(line)
                yield kind, data

    def close(self) -> None:
        os.close(self.fd)
