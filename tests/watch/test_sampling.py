from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipediag.errors import PipediagError
from pipediag.watch import sampling
from pipediag.watch.sampling import Frame, Thread, how_to_permit, parsed


def test_a_recording() -> None:
    frames = [
        {"name": "thread (7): MainThread", "file": "", "line": 0},
        {"name": "main", "file": "train.py", "line": 3},
        {"name": "thread data", "file": "<string>", "line": None},
    ]
    profiles = [
        {"name": 'Thread 8 "Thread-1 (fill)"', "samples": [[0, 1], [0, 1, 2], []]},
        {"name": "Thread 5", "samples": [[0, 1]]},
    ]
    main = Frame("main", "train.py", 3)
    assert parsed({"shared": {"frames": frames}, "profiles": profiles}, 5) == [
        Thread(5, 8, "Thread-1 (fill)", [(main,), (main, Frame("thread data", "<string>", 0)), ()]),
        Thread(5, 5, "", [(main,)]),
    ]


def place(root: Path, scope: str = "", docker: bool = False, pid: int = 5) -> Path:
    """Make the files of a machine that say what forbids to read process ``pid``."""
    (root / "proc" / str(pid)).mkdir(parents=True)
    if scope:
        (root / "proc/sys/kernel/yama").mkdir(parents=True)
        (root / "proc/sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    if docker:
        (root / ".dockerenv").touch()
    return root


def test_what_permits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "--cap-add SYS_PTRACE" in how_to_permit(5, place(tmp_path / "docker", docker=True))
    assert "sysctl kernel.yama.ptrace_scope=0" in how_to_permit(5, place(tmp_path / "yama", "1"))
    assert "forbids it to everybody" in how_to_permit(5, place(tmp_path / "locked", "3"))
    assert how_to_permit(5, place(tmp_path / "plain", "0")) == "use sudo"
    other = place(tmp_path / "other", "1")
    monkeypatch.setattr(os, "geteuid", lambda: (other / "proc/5").stat().st_uid + 1)
    assert "it belongs to user" in how_to_permit(5, other)
    monkeypatch.undo()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert 'add: ["SYS_PTRACE"]' in how_to_permit(5, place(tmp_path / "pod", docker=True))


def test_py_spys_refusal_becomes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "how_to_permit", lambda pid: "use sudo")
    own = os.getpid()
    assert sampling._reason("Permission Denied: Try running again with elevated permissions", own) == (
        f"process {own} may not be read by this user: use sudo"
    )
    assert sampling._reason("Error: a\nReason: b\n", own) == f"process {own} cannot be read by py-spy (Reason: b)"
    assert sampling._reason("", 999999999) == "process 999999999 has ended"


def test_threads_of_a_container_have_other_numbers_inside(tmp_path: Path) -> None:
    for tid, inside in ((70, "70\t1"), (71, "71\t9")):
        (tmp_path / f"70/task/{tid}").mkdir(parents=True)
        (tmp_path / f"70/task/{tid}/status").write_text(f"Name:\tpython\nNSpid:\t{inside}\n")
    assert sampling.numbers_outside(70, tmp_path) == {1: 70, 9: 71}
    assert sampling.numbers_outside(os.getpid()) == {}
    assert sampling.numbers_outside(5, tmp_path) == {}


#: What py-spy 0.4 says of a process that runs, now and then.
CHANGED = """Error: Failed to get stack traces
Caused by:
    0: Failed to call get_stack_trace for thread 7
    1: Failed to copy PyCodeObject
    2: Bad address (os error 14)
Stack backtrace:
   0: main
"""


class Spy:
    """py-spy, which fails some times with these words and then sees no thread."""

    def __init__(self, failures: int, words: str) -> None:
        self.failures, self.words, self.started = failures, words, 0

    def __call__(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        self.started += 1
        code = f"sys.exit({self.words!r})" if self.started <= self.failures else "print([])"
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; {code}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


class TestSingleLooks:
    def test_again_if_memory_changed_while_it_was_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sampling, "_started", spy := Spy(2, CHANGED))
        assert sampling.local_numbers(os.getpid()) == {}
        assert spy.started == 3

    def test_not_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sampling, "_started", Spy(99, CHANGED))
        with pytest.raises(PipediagError, match=r"cannot be read by py-spy \(2: Bad address \(os error 14\)\)"):
            sampling.local_numbers(os.getpid())

    def test_not_where_it_is_forbidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sampling, "_started", spy := Spy(99, "Permission denied"))
        with pytest.raises(PipediagError, match="may not be read"):
            sampling.local_numbers(os.getpid())
        assert spy.started == 1
