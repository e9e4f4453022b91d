"""Send events from the hosted processes to the parent: one JSON object per line.

The child has a pipe. Processes that it starts for training connect to a Unix socket instead: a launcher may close
descriptors, or start them from another process.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..session.codec import dumps, loads

Event = tuple[str, dict[str, Any]]


class Sender:
    """A hosted process's end of the pipe or socket. Events that cannot be delivered are dropped.

    A script may close every descriptor and reuse the number for a file of its own. Then the socket ``members`` serves.
    """

    def __init__(self, fd: int, members: str = "") -> None:
        self._members = members
        self._pid = os.getpid()
        self._take(fd)
        # The parent notices the end of this process only if no worker holds a copy.
        os.register_at_fork(after_in_child=self.close)

    def _take(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd, self._identity = fd, _identity(fd)

    def send(self, kind: str, data: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        with suppress(Exception):  # whatever the script has replaced: it may be opening a file in this moment
            if not self._is_open() and self._members:
                self._take(_connection(self._members))
                self._write("member", {"pid": self._pid, "rank": None})
            if self._is_open():
                self._write(kind, data)

    def _write(self, kind: str, data: dict[str, Any]) -> None:
        line = dumps([kind, data]).encode() + b"\n"
        while line:
            line = line[os.write(self._fd, line) :]

    def close(self) -> None:
        self._members = ""
        if self._is_open():
            os.close(self._fd)
            self._fd = -1

    def _is_open(self) -> bool:
        return self._fd >= 0 and _identity(self._fd) == self._identity


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        facts = os.fstat(fd)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


class Receiver:
    """The parent's end of a pipe or connection. An incomplete line is kept until the rest arrives."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.gone = False  # True once the other end is closed and everything was read
        os.set_blocking(fd, False)
        self._rest = b""

    def events(self) -> Iterator[Event]:
        """Yield every event that has arrived completely; leave out what is none.

        A signal's handler, or another thread, may send an event while a long one is half written.
        """
        while not self.gone:
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.gone = True
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                try:
                    kind, data = loads(line.decode())
                except (TypeError, ValueError):
                    continue
                if isinstance(kind, str) and isinstance(data, dict):
                    yield kind, data

    def close(self) -> None:
        os.close(self.fd)


class Listener:
    """The parent's end of the socket at ``path``."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        with _short(path) as name:
            self._socket.bind(name)
        self._socket.listen(1024)
        self._socket.setblocking(False)
        self.fd = self._socket.fileno()

    def accepted(self) -> Iterator[Receiver]:
        while True:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            yield Receiver(connection.detach())

    def close(self) -> None:
        self._socket.close()
        with suppress(FileNotFoundError):  # the script may have removed its folder
            os.unlink(self._path)


def connected(path: str) -> Sender:
    """Return a sender to the parent that listens at ``path``; if none does, events go nowhere."""
    return Sender(_connection(path), path)


def _connection(path: str) -> int:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return os.open(os.devnull, os.O_WRONLY)
    return connection.detach()


def wait_for_any(fds: Sequence[int], seconds: float) -> None:
    """Wait until one of the descriptors can be read, at most ``seconds``."""
    poll = select.poll()  # select() takes no descriptor above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(1000 * seconds)


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Provide a name of the socket that fits into an address, which takes about a hundred bytes."""
    if len(os.fsencode(path)) < 100 or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
