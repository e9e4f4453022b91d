"""Results that are compared with the workers' are made with one thread, as theirs are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import pipediag
from pipediag.replay.certify import certifying
from pipediag.replay.certify.differences import as_in_a_worker

v2 = pytest.importorskip("torchvision.transforms.v2")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_until_it_ends() -> None:
    with as_in_a_worker():
        assert torch.get_num_threads() == 1
        with as_in_a_worker():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_an_error_restores_the_threads() -> None:
    with pytest.raises(KeyError), as_in_a_worker():
        raise KeyError
    assert torch.get_num_threads() == 3


def brighter(image: Tensor) -> Tensor:
    return image + 0.25


class Images(Dataset[Tensor]):
    def __init__(self) -> None:
        self.transform = v2.Compose([v2.ToDtype(torch.float32, scale=True), brighter, v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        image: Tensor = self.transform(torch.full((3, 4, 5), 10 * index, dtype=torch.uint8))
        return image


def test_comparisons_run_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def watched(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def called(*args: Any) -> Any:
            seen.append((name, torch.get_num_threads()))
            return original(*args)

        monkeypatch.setattr(owner, name, called)

    watched(certifying.Calls, "compare")
    watched(certifying, "replay")
    offloaded = pipediag.offload(DataLoader(Images(), batch_size=4, num_workers=1), "cpu")
    assert [len(piece.moves) for piece in offloaded.plan.pieces] == [3], offloaded.plan
    assert set(seen) == {("compare", 1), ("replay", 1)} and torch.get_num_threads() == 3
