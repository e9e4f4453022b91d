"""Time what the lockstep costs a step as ranks grow: the ranks are processes without torch that wait for each other.

python -m benchmarks.ranks.scale                    # 2, 10, 30 and 100 ranks; about a minute
python -m benchmarks.ranks.scale --ranks 2 300

Every rank is a process of this machine. A step is a barrier: each rank tells rank 0 that it has come, and rank 0 lets
all go on. It is timed without the lockstep, with a grant for each step (as between windows), and with a grant for a
whole window.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipediag.clock import SystemClock
from pipediag.ladder.ranks.lockstep import EPOCH, Follower, Leader, Stopped, Superseded
from pipediag.ladder.ranks.shared_store import FollowersStore, LeadersStore

from ..common import RESULTS, save

STEPS, WINDOW = 300, 30
#: Seconds that all ranks have to join.
PATIENCE = 60.0


class Barrier:
    """Lets all ranks go on once the last one has come."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._come = os.pipe()
        self._go = multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)  # of odd and of even steps
        self._steps = 0

    def comes(self) -> None:
        """Come to the barrier, as another rank than rank 0."""
        os.write(self._come[1], b"x")
        self._steps += 1
        self._go[self._steps % 2].acquire()

    def leads(self) -> None:
        left = self._others
        while left:
            left -= len(os.read(self._come[0], left))
        self._steps += 1
        for _ in range(self._others):
            self._go[self._steps % 2].release()


def follow(rank: int, ranks: int, address: tuple[str, int], secret: bytes, barrier: Barrier) -> None:
    """Be another rank: first without the lockstep, then in it until rank 0 ends it."""
    for _ in range(STEPS):
        barrier.comes()
    clock = SystemClock()
    store = FollowersStore(socket.create_connection(address, PATIENCE), secret)
    while not store.has(EPOCH):
        time.sleep(0.005)
    follower = Follower(store, rank, ranks, clock)
    position, seconds = 0, []
    while True:
        began = time.process_time()
        try:
            follower.comes_to(0, position)
        except Superseded:
            continue
        except Stopped:
            follower.leave(json.dumps(statistics.median(seconds[1:STEPS])))
            return
        seconds.append(time.process_time() - began)
        position += 1
        barrier.comes()


class Counted(LeadersStore):
    """Rank 0's store, which counts what it sends."""

    messages = 0

    def _send(self, to: Any, entries: Any) -> None:
        to, entries = [*to], [*entries]
        self.messages += len(to) * len(entries)
        super()._send(to, entries)


def timed(steps: int, body: Callable[[int], None]) -> float:
    """Return the milliseconds of the median step."""
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        body(step)
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds)


def measure(ranks: int) -> dict[str, Any]:
    """Run a job of so many ranks and return what its steps take."""
    secret, barrier = os.urandom(32), Barrier(ranks - 1)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    address = listener.getsockname()
    store = Counted(listener, secret)
    fork = multiprocessing.get_context("fork")
    others = [
        fork.Process(target=follow, args=(rank, ranks, address, secret, barrier), daemon=True)
        for rank in range(1, ranks)
    ]
    for other in others:
        other.start()
    alone = timed(STEPS, lambda step: barrier.leads())
    leader = Leader(store, ranks, SystemClock())
    began = time.perf_counter()
    leader.comes_to(0, 0)
    while not leader.all_joined():
        if time.perf_counter() - began > PATIENCE:
            raise RuntimeError("not all ranks have joined")
    joined = time.perf_counter() - began
    barrier.leads()
    granting: list[float] = []

    def step(position: int) -> None:
        began = time.process_time()
        leader.comes_to(0, position)
        granting.append(time.process_time() - began)
        barrier.leads()

    before = store.messages
    single = timed(STEPS, lambda number: step(1 + number))
    messages = (store.messages - before) / STEPS
    cpu = 1000 * statistics.median(granting)
    leader.do("device", window=STEPS)
    leader.reserve(STEPS, WINDOW)
    before = store.messages
    window = timed(STEPS, lambda number: step(1 + STEPS + number))
    in_window = (store.messages - before) / STEPS
    followers = leader.stop()
    for other in others:
        other.join(PATIENCE)
    store.close()
    return {
        "ranks": ranks,
        "joining_s": round(joined, 3),
        "barrier_ms": round(alone, 3),
        "step_ms": round(single, 3),
        "window_step_ms": round(window, 3),
        "rank_0_cpu_ms": round(cpu, 3),
        "other_cpu_ms": round(1000 * statistics.median(map(float, followers.values())), 3),
        "messages": round(messages, 2),
        "window_messages": round(in_window, 2),
        "descriptors": ranks + 1,
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    heads = [
        *("ranks", "messages a step", "in a window", "CPU time of a grant: rank 0", "another rank"),
        *("a step without lockstep", "with a grant each", "in a window", "all joined"),
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{'--:|' * len(heads)}"]
    for row in rows:
        times = [row[name] for name in ("rank_0_cpu_ms", "other_cpu_ms", "barrier_ms", "step_ms", "window_step_ms")]
        cells = [f"{row['ranks']}", f"{row['messages']:g}", f"{row['window_messages']:g}"]
        cells += [*(f"{ms:.2f} ms" for ms in times), f"{row['joining_s']:.2f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks.scale", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 10, 30, 100])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = [measure(ranks) for ranks in args.ranks]
    save("ranks-scale", {"steps": STEPS, "window": WINDOW, "rows": rows}, args.out)
    print(markdown(rows))


if __name__ == "__main__":
    main()
