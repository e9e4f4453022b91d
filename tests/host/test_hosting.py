"""Ranks of a job and launchers are hosted; all other commands are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pipediag.host.hosting import Hosted, hosted_command, hosting_members, hosting_relaunched, names_a_rank
from pipediag.host.processes import ENTRY

ROLE = ["member", "order.json"]
HOSTED = [ENTRY, *ROLE]
PYTHON = sys.executable


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)


def hosted(*command: str, is_rank: bool = True) -> list[str] | None:
    return hosted_command(command, os.environ, is_rank, ROLE)


@pytest.mark.parametrize(
    ("before", "after", "is_rank"),
    [
        ([PYTHON, "-u"], ["train.py", "--lr", "1"], True),
        ([PYTHON], ["-m", "pkg.train"], True),
        (["numactl", "-N", "0", PYTHON], ["train.py"], True),  # a rank on its own cores
        ([PYTHON], ["-m", "torch.distributed.run", "train.py"], False),
    ],
)
def test_ranks_and_launchers_keep_their_flags_and_arguments(before: list[str], after: list[str], is_rank: bool) -> None:
    assert hosted(*before, *after, is_rank=is_rank) == [*before, *HOSTED, *after]


def test_a_launcher_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "torchrun"
    script.write_text(f"#!{PYTHON}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert hosted("torchrun", "train.py", is_rank=False) == [PYTHON, *HOSTED, str(script), "train.py"]
    script.write_text("#!/bin/sh\n")
    assert hosted("torchrun", "train.py", is_rank=False) is None


@pytest.mark.parametrize(
    ("command", "is_rank"),
    [
        ([PYTHON, "helper.py"], False),
        ([PYTHON, "-m", "tensorboard"], False),
        ([PYTHON, "-c", "pass"], True),
        (["git", "status"], True),
        (["/nowhere/python", "train.py"], True),
        ([PYTHON, *HOSTED, "train.py"], True),
        ("python train.py", True),
        (["python", ["train.py"]], True),
        ([], True),
        (None, True),
    ],
)
def test_what_is_left_alone(command: Any, is_rank: bool) -> None:
    assert hosted_command(command, os.environ, is_rank, ROLE) is None


def test_this_script_with_the_same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins again, and trains there; with other arguments it may do anything."""

    def is_hosted(*command: str) -> bool:
        return hosted(PYTHON, *command, is_rank=False) is not None

    monkeypatch.setattr(sys, "argv", ["train.py", "x"])
    assert is_hosted(os.path.abspath("train.py"), "x")
    assert not is_hosted("train.py", "x", "--evaluate") and not is_hosted("other.py", "x")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pkg.__main__", None))
    assert is_hosted("-m", "pkg", "x")
    assert not is_hosted("-m", "pkg") and not is_hosted("-m", "other", "x")


def test_another_rank_than_this_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_a_rank({"LOCAL_RANK": "1"})
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert names_a_rank({"LOCAL_RANK": "1"}) and not names_a_rank({"LOCAL_RANK": "0"}) and not names_a_rank({})


class TestPopen:
    SHOW = "import sys, os; print(sys.argv[1:], os.environ.get('RANK'), os.getcwd(), sys.flags.dont_write_bytecode)"

    def test_all_other_arguments_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stand-in for the entry shows what the interpreter is given."""
        stand_in = tmp_path / "stand_in.py"
        stand_in.write_text(self.SHOW)
        monkeypatch.setattr("pipediag.host.hosting.ENTRY", str(stand_in))
        native, counted = subprocess.Popen.__init__, []
        environment = {**os.environ, "RANK": "1"}
        with hosting_relaunched(ROLE, lambda: counted.append(1), pytest.fail):
            for named in (False, True):
                command = [PYTHON, "-B", "train.py", "x"]
                first: Any = {"args": command} if named else command
                keywords: Any = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "text": True}
                process = subprocess.Popen(**first, **keywords) if named else subprocess.Popen(first, -1, **keywords)
                told = f"['member', 'order.json', 'train.py', 'x'] 1 {os.path.realpath(tmp_path)} 1\n"
                assert process.communicate()[0] == told
        assert len(counted) == 2 and subprocess.Popen.__init__ is native

    def test_a_rank_that_cannot_be_hosted_is_told_of(self) -> None:
        missed: list[str] = []
        with hosting_relaunched(ROLE, pytest.fail, missed.append):
            subprocess.run(f"{PYTHON} -c pass", shell=True, check=True, env={**os.environ, "RANK": "1"})
            subprocess.run("true", shell=True, check=True, env={**os.environ, "RANK": "1"})
        assert missed == [f"{PYTHON} -c pass"]


def trains_a_step(loss: Any) -> None:
    loss.backward()


def predicts(loss: Any) -> None:
    return loss


class TestSubmitted:
    """What ``concurrent.futures`` runs in a process, seen by what its queue would be given."""

    def submitted(self, monkeypatch: pytest.MonkeyPatch, function: Any) -> Any:
        given: list[Any] = []
        monkeypatch.setattr(ProcessPoolExecutor, "submit", lambda self, fn, *args, **kwargs: given.append((fn, args)))
        native = ProcessPoolExecutor.submit
        with hosting_members(ROLE, pytest.fail):
            ProcessPoolExecutor.__new__(ProcessPoolExecutor).submit(function, 3)
        assert ProcessPoolExecutor.submit is native
        ((fn, args),) = given
        assert args == (3,)
        return fn

    def test_what_trains_is_hosted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pipediag.host.hosting.is_users", lambda file: file == __file__)
        assert isinstance(self.submitted(monkeypatch, trains_a_step), Hosted)

    def test_other_work_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pipediag.host.hosting.is_users", lambda file: file == __file__)
        assert self.submitted(monkeypatch, predicts) is predicts


def test_a_script_that_starts_itself_again_stays_hosted(tmp_path: Path) -> None:
    """By its path or by its name, with its own variables; another program replaces the process as it is."""
    (tmp_path / "stand_in.py").write_text("import sys, os; print(sys.argv[1:], os.environ.get('AGAIN'))")
    line = (
        "import os, sys; from pipediag.host import hosting\n"
        "hosting.ENTRY = 'stand_in.py'\n"
        "with hosting.hosting_members(['member', '1', 'order.json'], print):\n"
        "    {}"
    )
    calls = {
        "os.execv(sys.executable, [sys.executable, 'train.py', 'x'])": "train.py', 'x'] None",
        "os.execlp(sys.executable, 'python', 'train.py')": "train.py'] None",
        "os.execve(sys.executable, [sys.executable, '-m', 'train'], {**os.environ, 'AGAIN': '1'})": "-m', 'train'] 1",
        "os.execv('/bin/echo', ['echo', 'train.py'])": "train.py",
    }
    for call, told in calls.items():
        ran = subprocess.run(
            [PYTHON, "-c", line.format(call)], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        ours = f"['member', '{os.getpid()}', 'order.json', '" if "echo" not in call else ""
        assert ran.stdout == f"{ours}{told}\n", call
