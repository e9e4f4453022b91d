"""Which threads make what a thread waits for: found by its queue, or by its pool of threads."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipediag.ladder.probes.hotlines import HotLines
from pipediag.session import HotLine

WORKS, ENDS = threading.Lock(), threading.Lock()  # locks have no frames of their own
WORKS.acquire()


def makes(sample: Callable[[], Any]) -> Any:
    """Stand for the function of pipediag's that calls the dataset's code."""
    return sample()


def slow() -> int:
    WORKS.release()
    with ENDS:  # as long as the test holds it
        return 1


class Reader:
    """Fill a queue in a thread, perhaps from a pool of threads."""

    def __init__(self, pool: ThreadPoolExecutor | None = None) -> None:
        self.filled: queue.Queue[int] = queue.Queue()
        self.pool = pool
        threading.Thread(target=self.fill).start()

    def fill(self) -> None:
        self.filled.put(self.pool.submit(slow).result() if self.pool is not None else slow())

    def sample(self) -> int:
        return self.filled.get()


def of_a_queue(pool: ThreadPoolExecutor) -> Callable[[], Any]:
    return Reader().sample


def of_a_pool(pool: ThreadPoolExecutor) -> Callable[[], Any]:
    return lambda: [*pool.map(lambda _: slow(), range(1))]


def of_a_queue_filled_from_a_pool(pool: ThreadPoolExecutor) -> Callable[[], Any]:
    return Reader(pool).sample


def of_a_queue_of_nobody(pool: ThreadPoolExecutor) -> Callable[[], Any]:
    Reader()
    filled = queue.Queue[int]()
    threading.Timer(0.5, lambda: filled.put(1)).start()
    return lambda: filled.get()


def settled(thread: int) -> bool:
    """Return whether a thread waits for a queue or a task, and so does who fills the queue unless it works."""
    names = {
        key: [one.f_code.co_name for one, _ in traceback.walk_stack(frame)]
        for key, frame in sys._current_frames().items()
    }
    waiting = {key for key, called in names.items() if called[0] == "wait" and {"get", "result"} & {*called}}
    return thread in waiting and all(key in waiting or "slow" in names[key] for key in names if "fill" in names[key])


def looked_at(sample: Callable[[], Any]) -> HotLine:
    lines, thread = HotLines([makes.__code__]), threading.Thread(target=lambda: makes(sample))
    thread.start()
    assert WORKS.acquire(timeout=10) and thread.ident is not None
    until = time.monotonic() + 10
    while not settled(thread.ident) and time.monotonic() < until:
        time.sleep(0.001)
    lines.look(thread.ident, 1.0)
    ENDS.release()
    thread.join()
    (line,) = lines.figures([])
    return line


@pytest.mark.parametrize("made", [of_a_queue, of_a_pool, of_a_queue_filled_from_a_pool])
def test_the_line_that_works_in_another_thread(made: Callable[..., Any]) -> None:
    ENDS.acquire()
    with ThreadPoolExecutor(1) as pool:
        assert looked_at(made(pool)).function == "slow"


def test_threads_that_work_for_others_are_left_out() -> None:
    ENDS.acquire()
    with ThreadPoolExecutor(1) as pool:
        assert looked_at(of_a_queue_of_nobody(pool)).function == "of_a_queue_of_nobody"
