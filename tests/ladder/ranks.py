"""Simulated ranks of a job: they take turns, wait for each other in each step, and share a store and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Store:
    """A store that all ranks of this process share; once ``gone``, it fails as if rank 0's process had ended."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.gone = False

    def set(self, key: str, value: str) -> None:
        self._reach()
        self.entries[key] = value

    def get(self, key: str) -> str:
        return self.entries[key]

    def has(self, key: str) -> bool:
        self._reach()
        return key in self.entries

    def wait(self, seconds: float, clock: Any) -> None:
        clock.sleep(seconds)

    def close(self) -> None:
        self.gone = True

    def _reach(self) -> None:
        if self.gone:
            raise ConnectionError("rank 0 is gone")


class Hung(Exception):
    """Error: all remaining ranks wait for each other."""


class Job:
    """Ranks as threads of which one runs at a time, so that every run is the same.

    It is also their clock: a rank that sleeps lets the others run, and time passes only while all of them sleep. Of the
    ranks that may run, the first in ``order`` does. If ``missed``, the others also wait for ranks that have ended.
    """

    def __init__(self, order: Sequence[int], missed: bool = True) -> None:
        self.seconds = 0.0
        self._missed = missed
        self._living = len(order)
        self.waited = dict.fromkeys(order, 0.0)  # total seconds asleep
        self._order = order
        self._wakes: dict[int, float] = {}
        self._arrived: list[int] = []
        self._turns = {rank: threading.Semaphore(0) for rank in order}
        self._done = threading.Semaphore(0)
        self._running = -1
        self._error: BaseException | None = None

    def run(self, ranks: Sequence[Callable[[], None]]) -> None:
        """Let each rank run to its end.

        Raises:
            Hung: they wait for each other forever.
        """
        threads = [threading.Thread(target=self._live, args=(number, ranks[number])) for number in self._order]
        self._wakes = dict.fromkeys(self._order, 0.0)
        for thread in threads:
            thread.start()
        while self._wakes or self._arrived:
            if not self._wakes:
                self._error = self._error or Hung(f"ranks {self._arrived} wait for the others")
                self._wakes, self._arrived = dict.fromkeys(self._arrived, self.seconds), []
            self.seconds = max(self.seconds, min(self._wakes.values()))
            self._running = next(rank for rank in self._order if self._wakes.get(rank, 1e9) <= self.seconds)
            del self._wakes[self._running]
            self._turns[self._running].release()
            self._done.acquire()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _live(self, number: int, body: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            body()
        except BaseException as error:
            self._error = self._error or error
        if not self._missed:
            self._living -= 1
            self._meet()
        self._done.release()

    def _park(self) -> None:
        rank = self._running
        self._done.release()
        self._turns[rank].acquire()
        if isinstance(self._error, Hung):
            raise self._error

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self._wakes[self._running] = self.seconds + seconds
        self.waited[self._running] += seconds
        self._park()

    def all_reduce(self) -> None:
        """Wait until every rank is here."""
        self._arrived.append(self._running)
        self._meet()
        self._park()

    def _meet(self) -> None:
        if len(self._arrived) == self._living:
            self._wakes |= dict.fromkeys(self._arrived, self.seconds)
            self._arrived = []
