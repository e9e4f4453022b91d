"""Share keys and values between rank 0 of a job and the other ranks.

What rank 0 sets reaches each other rank, and one that joins later gets it all. What another rank sets reaches rank 0.
Each rank reads its own copy, so that no rank waits for another one's answer. No thread serves the store: a rank takes
in what has arrived whenever it uses the store.
"""

from __future__ import annotations

import resource
import select
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from ...clock import Clock
from .connection import Connection, is_cut

#: Maximum number of connections that have not proven to be of the job.
_MOST_UNPROVEN = 64
#: Part of the descriptors that this process may open which connections may take.
_SHARE = 0.5


class Store(Protocol):
    """Keys and values; reading or setting them raises ConnectionError once rank 0 is gone."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> str: ...
    def has(self, key: str) -> bool: ...
    def wait(self, seconds: float, clock: Clock) -> None:
        """Wait until something arrives from rank 0, at most ``seconds``."""

    def close(self) -> None: ...


class LeadersStore:
    """Rank 0's store. A rank whose connection breaks is no longer sent anything.

    Args:
        cut: called when the kernel gives up a rank's connection, because its host does not answer.
    """

    def __init__(self, listener: socket.socket, secret: bytes, cut: Callable[[], None] = lambda: None) -> None:
        self._listener, self._secret, self._cut = listener, secret, cut
        listener.listen(1024)
        listener.setblocking(False)
        self._own: dict[str, str] = {}
        self._of_others: dict[str, str] = {}
        #: Those of the other ranks, and of strangers who have proven nothing yet; the oldest comes first.
        self.connections: list[Connection] = []
        self.closed = False
        self._served: set[Connection] = set()  # those that have been sent what was set before
        self._ready = selectors.DefaultSelector()
        self._ready.register(listener, selectors.EVENT_READ)

    def set(self, key: str, value: str) -> None:
        self._take_in()
        self._own[key] = value
        self._send([*self._served], [(key, value)])

    def get(self, key: str) -> str:
        return self._of_others[key]

    def has(self, key: str) -> bool:
        self._take_in()
        return key in self._of_others

    def wait(self, seconds: float, clock: Clock) -> None:
        clock.sleep(seconds)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for connection in [*self.connections]:
            self._drop(connection)
        self._ready.close()
        self._listener.close()

    def _take_in(self) -> None:
        for ready, _ in self._ready.select(0):
            if isinstance(ready.fileobj, Connection):
                self._hear(ready.fileobj)
            else:
                self._accept()

    def _hear(self, connection: Connection) -> None:
        try:
            for frame in connection.received():
                self._of_others.update([_entry(frame)])
        except OSError as error:
            self._drop(connection, error)
            return
        if connection.proven and connection not in self._served:
            self._served.add(connection)
            self._send([connection], self._own.items())

    def _accept(self) -> None:
        with suppress(OSError):  # whoever came has left again
            connected, _ = self._listener.accept()
            if len(self.connections) >= _SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
                connected.close()
                return
            connection = Connection(connected, self._secret, leads=True)
            self.connections.append(connection)
            self._ready.register(connection, selectors.EVENT_READ)
        strangers = [one for one in self.connections if not one.proven]
        for silent in strangers[:-_MOST_UNPROVEN]:
            self._drop(silent)

    def _send(self, to: Iterable[Connection], entries: Iterable[tuple[str, str]]) -> None:
        frames = [_frame(*entry) for entry in entries]
        for connection in to:
            try:
                for frame in frames:
                    connection.send(frame)
            except OSError as error:
                self._drop(connection, error)

    def _drop(self, connection: Connection, error: OSError | None = None) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        self._served.discard(connection)
        self._ready.unregister(connection)
        connection.close()
        if connection.proven and is_cut(error):
            self._cut()


class FollowersStore:
    """Another rank's store; for ``cut`` and ``connections`` see :class:`LeadersStore`.

    Raises:
        OSError: rank 0 cannot be reached.
    """

    def __init__(self, connected: socket.socket, secret: bytes, cut: Callable[[], None] = lambda: None) -> None:
        self._connection, self._cut = Connection(connected, secret, leads=False), cut
        self.connections = [self._connection]
        self._connection.send(_frame("", ""))  # proves that this rank is of the job
        self._entries: dict[str, str] = {}
        self.closed = False

    def set(self, key: str, value: str) -> None:
        self._take_in()
        self._reach()
        try:
            self._connection.send(_frame(key, value))
        except OSError as error:
            self._lose(error)
            self._reach()

    def get(self, key: str) -> str:
        return self._entries[key]

    def has(self, key: str) -> bool:
        self._take_in()
        if key in self._entries:
            return True
        self._reach()
        return False

    def wait(self, seconds: float, clock: Clock) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.poll(1000 * seconds)

    def close(self) -> None:
        self.closed, self.connections = True, []
        self._connection.close()

    def _take_in(self) -> None:
        if self.closed:
            return
        try:
            for frame in self._connection.received():
                self._entries.update([_entry(frame)])
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.close()
        if is_cut(error):
            self._cut()

    def _reach(self) -> None:
        if self.closed:
            raise ConnectionError("rank 0 is gone")


def _frame(key: str, value: str) -> bytes:
    return f"{key}\n{value}".encode("utf-8", "surrogatepass")


def _entry(frame: bytes) -> tuple[str, str]:
    key, _, value = frame.decode("utf-8", "surrogatepass").partition("\n")
    return key, value
