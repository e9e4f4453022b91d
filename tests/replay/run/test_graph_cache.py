"""Replays with the same launches for every batch are captured, and give the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

from pipediag.remedy.loader import OffloadedLoader
from pipediag.replay.pack.packed_batch import Packed
from pipediag.replay.plan import Plan
from pipediag.replay.record.scouting import find
from pipediag.replay.run.capture import beside_others
from pipediag.replay.run.graphs import kind_of
from pipediag.replay.worker import PackingSide
from pipediag.streams.to_device import ToDevice

from ...devices import GPU
from ...remedy.sameness import Images, check_same, loader, seen

UNIFORM = v2.Compose(
    [v2.ToDtype(torch.float32), v2.RandomCrop(24), v2.Resize(32), v2.RandomRotation(30.0), v2.GaussianBlur(5)]
)
AT_RANDOM = v2.Compose([v2.RandomCrop(24), v2.RandomApply([v2.GaussianBlur(5)]), v2.RandomVerticalFlip()])


def plan_for(chain: Any, fuse: bool = False) -> Plan:
    return find(Images(chain), default_collate, range(4), Plan(fuse=fuse))


def keys(chain: Any, batches: int = 6) -> set[Any]:
    dataset = Images(chain, length=100)
    side = PackingSide(dataset, default_collate, plan_for(chain))
    found = set()
    for number in range(batches):
        sent = side.samples(range(8 * number, 8 * number + 8))
        assert isinstance(sent, Packed)
        found.add(kind_of(sent))
    return found


def test_batches_with_the_same_launches_have_one_key() -> None:
    assert len(keys(UNIFORM)) == 1


def test_batches_whose_samples_skip_steps_have_several() -> None:
    torch.manual_seed(0)
    assert len(keys(AT_RANDOM)) > 1


def repeats(offloaded: OffloadedLoader) -> int:
    assert isinstance(offloaded.feed, ToDevice)
    return len(offloaded.feed._repeats._graphs)


DEVICE = torch.device("cuda", 0)


class TestOnGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("fuse", [False, True], ids=["eager", "fused"])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_captured_replays_give_the_same(self, workers: int, fuse: bool) -> None:
        def made() -> DataLoader[Any]:
            return loader(Images(UNIFORM, length=126), num_workers=workers)  # with a short last batch

        offloaded = OffloadedLoader(made(), plan_for(UNIFORM, fuse), DEVICE)
        check_same(seen(offloaded, 3), seen(made(), 3), DEVICE, None)
        assert offloaded.unrecorded == 0, offloaded.why
        assert repeats(offloaded) == 1

    def test_replays_that_differ_are_not_captured(self) -> None:
        offloaded = OffloadedLoader(loader(Images(AT_RANDOM, length=64), num_workers=2), plan_for(AT_RANDOM), DEVICE)
        check_same(seen(offloaded, 1), seen(loader(Images(AT_RANDOM, length=64), num_workers=2), 1), DEVICE, None)
        assert repeats(offloaded) == 0

    def test_the_loops_random_numbers_are_not_disturbed_by_a_capture(self) -> None:
        def drawn(batches: Any) -> list[torch.Tensor]:
            torch.manual_seed(5)
            return [torch.rand(8, device=DEVICE) for _ in batches]

        plan = plan_for(UNIFORM)
        offloaded = OffloadedLoader(loader(Images(UNIFORM, length=120), num_workers=2), plan, DEVICE)
        mine = drawn(offloaded)
        assert repeats(offloaded) == 1
        assert torch.equal(torch.stack(mine), torch.stack(drawn(range(30))))


# ---- captures of the loop's own


class _Begun:
    """Stand-in for a CUDA graph: keeps what its capture began with."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **others: Any) -> None:
        self.begun = pool, capture_error_mode, others


def test_the_loops_captures_go_on_beside_threads_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Begun)
    native, graph = _Begun.capture_begin, _Begun()
    with beside_others(), beside_others():
        graph.capture_begin("pool")
        assert graph.begun == ("pool", "thread_local", {})
        graph.capture_begin(capture_error_mode="relaxed", later="option")
        assert graph.begun == (None, "relaxed", {"later": "option"})
    assert _Begun.capture_begin is native
