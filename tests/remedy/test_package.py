"""Importing the remedy is cheap; without torchvision it says what to do, and a script trains as it does without it."""

from __future__ import annotations

import subprocess
import sys
from threading import Event

import pytest
import torch
from torch.utils.data import DataLoader

from pipediag.host import runner


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_importing_the_package_imports_neither_torch_nor_torchvision() -> None:
    program = "import sys, pipediag, pipediag.remedy; print(sorted({'torch', 'torchvision'} & set(sys.modules)))"
    assert run(program).stdout == "[]\n"


def test_without_torchvision_it_says_what_to_do() -> None:
    ended = run("import sys; sys.modules['torchvision'] = None; import pipediag; pipediag.offload")
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        'pipediag.errors.UsageError: moving transforms needs torchvision: pip install "pipediag[vision]"\n'
    )


def test_the_script_trains_plainly_if_anything_of_ours_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pipediag.host.rerouting", None)
    found = Event()
    with runner._remedied([runner.NO_PLAN, runner.NO_PLAN], found):
        batches = [batch for _ in range(2) for batch in DataLoader(torch.arange(4), batch_size=2)]
    assert [batch.tolist() for batch in batches] == 2 * [[0, 1], [2, 3]] and found.is_set()
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("pipediag: nothing is moved, the script trains plainly: ModuleNotFoundError: ")
