"""If anything of ours cannot be imported, the script trains plainly."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader

from pipediag.host import runner


def test_what_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As without torchvision."""
    monkeypatch.setitem(sys.modules, "pipediag.host.rerouting", None)
    with runner._remedied([runner.NO_PLAN, runner.NO_PLAN]) as found:
        batches = [batch for _ in range(2) for batch in DataLoader(torch.arange(4), batch_size=2)]
    assert [batch.tolist() for batch in batches] == 2 * [[0, 1], [2, 3]] and found.is_set()
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith("pipediag: nothing is moved, the script trains plainly: ModuleNotFoundError: ")
