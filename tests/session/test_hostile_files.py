"""Files from untrusted sources: a session is reported or refused in one line, within bounds of time and memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipediag import __version__
from pipediag.analysis import Diagnosis
from pipediag.errors import EXIT_USAGE, SessionFileError, UsageError
from pipediag.session.codec import DEEPEST, MOST_BYTES, MOST_VALUES, read_json

from .hostile import damaged, file_of, full_session, use, valid

#: Bounds for any file, and what an interpreter with pipediag's analysis and reports takes before it reads one.
SECONDS, MEGABYTES = 2.0, 200


@pytest.fixture(scope="module")
def before() -> Diagnosis:
    return valid()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "x.json"


def test_the_whole_session_is_read_again(path: Path, before: Diagnosis) -> None:
    use(file_of(before.to_dict(), path), before)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_damaged_session_is_reported_or_refused(
    path: Path, before: Diagnosis, draw: random.Random, times: int
) -> None:
    data = {"schema_version": 1, "session": full_session().to_dict()}
    try:
        use(file_of(damaged(data, draw, times), path), before)
    except SessionFileError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_damaged_plan_is_checked_or_refused(path: Path, draw: random.Random, times: int) -> None:
    from pipediag.remedy import saved_plan

    plan = saved_plan.SavedPlan("D", 32, "cuda", (("Blur", "0123"),), script="train.py", versions=saved_plan.versions())
    try:
        read = saved_plan.read(file_of(damaged(plan.to_dict(), draw, times), path))
        read.check("train.py")
        read.names("D", 32, "train.py:3", 0)
        read.check_device("cuda")
        read.check_moved([("Blur", "0123")])
    except UsageError as refused:
        assert "\n" not in str(refused) and len(str(refused)) < 2000


def nested(depth: int) -> str:
    return '{"schema_version": 1, "session": ' + "[" * depth + "]" * depth + "}"


def filled(windows: int) -> str:
    window = {"rung": "baseline", "round": 0, "steps": 1, "seconds": 1.0}
    return json.dumps({"session": {"rungs": {}, "windows": [window] * windows}})


def session(**values: Any) -> str:
    return json.dumps({"schema_version": 1, "session": {**full_session().to_dict(), **values}})


def ranked(*numbers: int, size: int = 0, **values: Any) -> str:
    """A session of ranks with these numbers, and with ``values`` in each."""
    size = size or max(numbers) + 1
    return session(ranks=[{"rank": n, "world_size": size, **values} for n in numbers], rank_trials=[], of_rank=None)


def trial(**values: Any) -> str:
    """A session with one trial of its ranks."""
    tried = {"fed": [0], "delayed": [], "delay_ms": 0.0, "round": 0, "steps": 1, "seconds": 1.0, **values}
    return session(rank_trials=[tried])


#: About as many ranks as a file may hold.
RANKS = 25_000
WINDOW = {"round": 0, "steps": 1, "seconds": 1.0}
TEXTS: dict[str, Callable[[], str | bytes]] = {
    "empty": str,
    "binary": lambda: os.urandom(1 << 16),
    "nested-10000": lambda: nested(10_000),
    "nested-beyond-the-bound": lambda: nested(DEEPEST + 1),
    "too-large": lambda: " " * (MOST_BYTES + 1),
    "too-many-values": lambda: "[" + "{}," * MOST_VALUES + "{}]",
    "as-many-objects-as-may-be": lambda: '{"session": [' + "{}," * (MOST_VALUES // 2 - 9) + "{}]}",
    "as-many-characters-as-may-be": lambda: '{"session": "\U0001f600' + "a" * (MOST_BYTES - 99) + '"}',
    "as-many-windows-as-may-be": lambda: filled(MOST_VALUES // 5 - 9),
    "not-a-number": lambda: '{"session": {"windows": [NaN]}}',
    "a-number-of-a-million-digits": lambda: '{"session": ' + "9" * 1_000_000 + "}",
    "an-unknown-rung": lambda: session(tool_version=__version__, windows=[{"rung": "wheel", **WINDOW}]),
    "untried-settings": lambda: session(windows=[{"rung": "settings:9", **WINDOW}]),
    "another-schema": lambda: json.dumps({"schema_version": 0, "session": full_session().to_dict()}),
    "a-rank-twice": lambda: ranked(0, 1, 1, 2),
    "a-negative-rank": lambda: ranked(0, -1, size=2),
    "a-rank-beyond-the-job": lambda: ranked(0, 2, size=2),
    "negative-workers": lambda: ranked(0, 1, workers=-1),
    "negative-waiting": lambda: ranked(0, 1, wait_ms=-1.0),
    "a-share-above-one": lambda: ranked(0, 1, shares={"load": 1.5}),
    "a-rank-of-no-job": lambda: session(of_rank=99),
    "ranks-of-two-jobs": lambda: session(
        ranks=[{"rank": 0, "world_size": 4}, {"rank": 1, "world_size": 2}], rank_trials=[], of_rank=None
    ),
    "a-job-too-large": lambda: ranked(0, 1, size=1 << 17),
    "too-many-ranks": lambda: ranked(*range(100_000)),
    "as-many-ranks-as-may-be": lambda: ranked(*range(RANKS), workers=3, worker_ms=80.0, cores=2.0, cpus=2),
    "a-trial-of-a-rank-twice": lambda: trial(fed=[1, 1]),
    "a-trial-of-no-rank": lambda: trial(delayed=[7]),
    "a-trial-of-a-negative-rank": lambda: trial(fed=[-1]),
    "a-negative-delay": lambda: trial(delay_ms=-1.0),
    "a-trial-of-no-steps": lambda: trial(steps=0),
    "a-schema-of-text": lambda: json.dumps({"schema_version": "1", "session": full_session().to_dict()}),
}

#: Those that are reported.
WITHIN_BOUNDS = ("as-many-windows-as-may-be", "as-many-ranks-as-may-be")

#: Those that are large, read in a process each; one of each kind is quick.
LARGE = [name for name in TEXTS if name.startswith(("too-", "as-many-", "nested-10", "a-number-", "a-job-"))]
QUICK = ("too-many-values", "as-many-windows-as-may-be")

_IN_BOUNDS = """
import json, sys, time
from pathlib import Path
from pipediag.commands import report
from pipediag.commands.results import Results
from pipediag.errors import PipediagError
import pipediag.report
for path in sys.argv[1:]:
    began, code, said = time.process_time(), 0, ""
    try:
        report.report(path, Results())
    except PipediagError as error:
        code, said = error.exit_code, str(error)
    seconds, status = time.process_time() - began, Path("/proc/self/status")
    memory = status.read_text().partition("VmHWM:")[2].split()[0] if status.exists() else 0
    print(json.dumps([code, said, seconds, int(memory) / 1024]), file=sys.stderr)
"""


def check_bounds(folder: Path, *names: str) -> None:
    """Report sessions in a process of its own: exit code, error, CPU seconds, megabytes at most (Linux)."""
    files = [folder / f"{name}.json" for name in names]
    for file, name in zip(files, names, strict=True):
        content = TEXTS[name]()
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    command = [sys.executable, "-c", _IN_BOUNDS, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for file, name, line in zip(files, names, done.stderr.splitlines(), strict=True):
        code, said, seconds, megabytes = json.loads(line)
        assert code == (0 if name in WITHIN_BOUNDS else EXIT_USAGE), name
        assert len(said.splitlines()) == bool(code) and said.startswith(str(file) * bool(code)), said
        assert seconds < SECONDS and megabytes < MEGABYTES, name


def test_bad_files_are_refused_in_a_line(tmp_path: Path) -> None:
    check_bounds(tmp_path, *(name for name in TEXTS if name not in LARGE))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in LARGE]
)
def test_a_large_file_takes_little_time_and_memory(tmp_path: Path, name: str) -> None:
    check_bounds(tmp_path, name)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(200 << 20)
    began = time.monotonic()
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "sparse", tmp_path / "none", "/dev/zero", "/dev/null"):
        with pytest.raises(SessionFileError):
            read_json(str(path))
    assert time.monotonic() - began < SECONDS


def test_what_can_be_no_text_is_replaced(tmp_path: Path) -> None:
    """A script may have had an argument that is no UTF-8."""
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"\udc80": ["a\udcff", 1.5, None]}))
    assert read_json(str(file)) == {"\\udc80": ["a\\udcff", 1.5, None]}
