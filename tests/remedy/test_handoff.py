"""The hand-off alone: which loaders it is for, and that its batches are the loader's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pipediag.remedy import offload
from pipediag.remedy.handoff import why_not

from ..devices import on_imagined_device

SCRIPT = Path(__file__).parents[1] / "streams" / "scripts" / "handed_over.py"


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """Results for each loader on an imagined device."""
    return on_imagined_device(SCRIPT, timeout=300)


def test_batches_are_the_loaders_own(found: dict[str, dict[str, Any]]) -> None:
    """Containers, dtypes, strides and values are equal in every epoch, and accesses to memory are in order."""
    able = {name: told for name, told in found.items() if "same" in told}
    assert {name: told for name, told in able.items() if told != {"why": "", "same": True, "ledger": []}} == {}
    assert len(able) == 12


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no workers", "the loader has no workers"),
        ("no tensors", "its batches hold no tensors"),
        ("objects that move themselves", "its batches hold Graph objects, which move themselves"),
        ("batches that differ each time", "handed over, batch would be of type tuple, not list"),
        ("a dataset that fails", "failed with ZeroDivisionError: ZeroDivisionError: division by zero"),
    ],
)
def test_reasons_against_it(found: dict[str, dict[str, Any]], case: str, why: str) -> None:
    assert why in found[case]["why"] and "\n" not in found[case]["why"]


def test_it_is_for_a_gpu() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4, num_workers=1)
    assert why_not(loader, torch.device("cpu")) == "it is for a GPU, and the loop trains on cpu"


def test_no_transform_is_tried() -> None:
    class Unmovable(TensorDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            raise AssertionError("a sample was made")

    handed = offload(DataLoader(Unmovable(torch.arange(8))), "cpu", transforms=False)
    assert not handed.plan.pieces and handed.certificate is None
