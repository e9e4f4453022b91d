"""Sandboxes for real scripts, and proof that nothing is left behind by any ending."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .sandbox import Analysis, Sandbox, wait_for_none


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """The test's own; whatever it started is gone afterwards, or the test fails."""
    sandbox = Sandbox(tmp_path)
    yield sandbox
    sandbox.end()


@pytest.fixture
def analyze(sandbox: Sandbox) -> Callable[..., Analysis]:
    return sandbox.analyze


@pytest.fixture(scope="module")
def slow_too(request: pytest.FixtureRequest) -> bool:
    """Whether the module's slow tests run too. If not, the cases that only they take need no analysis."""
    return any(item.path == request.path and item.get_closest_marker("slow") for item in request.session.items)


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Future[Analysis]]]:
    """Begins analyses two at a time, each in a sandbox of its own: importing torch is most of what a short one does.

    For families of scripts whose sleeps are all that matters. What an analysis raises, ``result()`` raises.
    """
    pool = ThreadPoolExecutor(2)

    def analyze(folder: Path, *args: Any, **kwargs: Any) -> Analysis:
        sandbox = Sandbox(folder)
        try:
            return sandbox.analyze(*args, **kwargs)
        finally:
            sandbox.end()

    def begin(*args: Any, **kwargs: Any) -> Future[Analysis]:
        # The folder is made here: pytest's factory is not meant to be asked from two threads.
        return pool.submit(analyze, tmp_path_factory.mktemp("sandbox"), *args, **kwargs)

    yield begin
    pool.shutdown(cancel_futures=True)


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    """No thread or worker is left by what the test did in process."""
    yield
    threads = wait_for_none(lambda: [t.name for t in threading.enumerate() if t.name.startswith("pipediag")])
    assert not threads, f"threads left: {threads}"
    assert multiprocessing.active_children() == []
