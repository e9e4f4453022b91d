"""What other threads run is read in one piece: no thread is harmed, whatever garbage there is."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipediag.ladder.probes import stacks
from pipediag.ladder.probes.stacks import running, stack_of, variables

#: A thread that calls and returns all the time, and another one that looks and has destructors to run.
HARMED = """
import gc, sys, threading, time
from pipediag.ladder.probes import stacks
from pipediag.ladder.probes.stacks import running, stack_of, variables

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        time.sleep(0)

def deep(n):
    return deep(n - 1) if n else sum(range(3))

def user():
    global turns
    while not done:
        deep(30)
        [*(deep(5) for _ in range(3))]
        turns += 1

done, turns = False, 0
sys.setswitchinterval(1e-6)
gc.set_threshold(5)
thread = threading.Thread(target=user, daemon=True)
thread.start()
end, looks = time.monotonic() + 2, 0
while time.monotonic() < end:
    for _ in range(4):
        Cycle()
    looks += bool(stack_of(thread.ident))
    if not looks % 50:
        variables(running()[thread.ident].frames)
assert gc.isenabled() and looks > 100
before = turns
time.sleep(0.2)
assert turns > before, "the thread stands still"
done = True
thread.join(10)
assert not thread.is_alive()
"""


@contextmanager
def waiting(called: Callable[[threading.Event, threading.Event], Any]) -> Iterator[int]:
    there, goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=called, args=(there, goes_on))
    thread.start()
    try:
        assert there.wait(10)
        yield thread.ident or 0
    finally:
        goes_on.set()
        thread.join(10)


def inner(there: threading.Event, goes_on: threading.Event) -> None:
    number = 7
    there.set()
    goes_on.wait(number * 10)


def outer(there: threading.Event, goes_on: threading.Event) -> None:
    inner(there, goes_on)


def sees_its_variables(there: threading.Event, goes_on: threading.Event) -> None:
    assert "there" in locals()
    inner(there, goes_on)


def test_a_stack_begins_with_the_innermost_frame() -> None:
    with waiting(outer) as thread:
        codes = [code for code, _, _ in stack_of(thread)]
        assert codes.index(inner.__code__) + 1 == codes.index(outer.__code__)
        code, instruction, scope = stack_of(thread)[codes.index(inner.__code__)]
        assert 0 <= instruction < len(code.co_code) and scope is globals()
        assert [code for code, _, _ in stack_of(thread, 2)] == codes[:2]


def test_a_thread_that_has_ended_has_no_stack() -> None:
    with waiting(outer) as thread:
        pass
    assert stack_of(thread) == []


def test_all_threads_but_the_calling_one() -> None:
    with waiting(outer) as one, waiting(inner) as other:
        found = running()
    assert {one, other} <= {*found} and threading.get_ident() not in found
    for thread, called in ((one, outer), (other, inner)):
        assert called.__code__ in [frame.f_code for frame in found[thread].frames]
        assert [frame.f_code for frame in found[thread].frames] == [code for code, _, _ in found[thread].places]


def test_variables_of_functions() -> None:
    with waiting(outer) as thread:
        frames = [frame for frame in running()[thread].frames if frame.f_code is inner.__code__]
        (seen,) = variables(frames)
        assert seen["number"] == 7


def test_variables_that_code_may_have_in_a_dictionary_are_left_alone() -> None:
    with waiting(sees_its_variables) as thread:
        frames = [frame for frame in running()[thread].frames if frame.f_code.co_filename == __file__]
        assert sees_its_variables.__code__ in [frame.f_code for frame in frames]
        assert len(variables(frames)) == len(frames) - 1


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_afterwards_as_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with waiting(outer) as thread:
            stack_of(thread)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_nothing_is_read_without_the_interpreters_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_has_lock", lambda: False)
    with waiting(outer) as thread:
        assert stack_of(thread) == [] and running() == {}


def test_no_thread_is_harmed() -> None:
    """With frames that are asked for one by one, CPython 3.11 crashes here, or the thread never goes on."""
    ran = subprocess.run([sys.executable, "-c", HARMED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
