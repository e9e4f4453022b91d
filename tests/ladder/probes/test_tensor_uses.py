"""What a loop does with the tensors of its batches, on torch's ``meta`` device, which computes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pipediag.ladder.caches import BatchCache
from pipediag.ladder.probes import tensor_uses as uses
from pipediag.ladder.probes.batchfacts import describe_leaves
from pipediag.ladder.probes.tensor_uses import WATCHED, Uses, watch_uses, why_unwatched
from pipediag.session import BatchFacts, Leaf

DEVICE = torch.device("meta")


class LoopSide:
    """A loop that gets batches and does one thing with each."""

    def __init__(self, batch: list[Any]) -> None:
        self.device = SimpleNamespace(torch_device=DEVICE)
        self._cache = BatchCache([batch])

    def cache(self, rung: str) -> BatchCache:
        return self._cache

    def hand(self, batch: Any) -> Iterator[Any]:
        yield batch
        return True


def watched(loop: Callable[..., Any], *batch: Any, drain: Callable[[], Any] = lambda: None) -> BatchFacts:
    """Return what is observed while ``loop`` is called with the tensors of every batch."""
    facts = BatchFacts(describe_leaves([list(batch)]))
    handed = 0
    for one in watch_uses(LoopSide(list(batch)), facts):  # type: ignore[arg-type]
        loop(*one)
        handed += 1
    assert handed == WATCHED or facts.unwatched
    assert _get_current_dispatch_mode() is None
    return facts


def leaf(loop: Callable[..., Any], *batch: Any) -> Leaf:
    return watched(loop, *(batch or (torch.rand(4, 6),))).leaves[0]


class TestCopies:
    @pytest.mark.parametrize(
        ("use", "expected"),
        [
            (lambda x: x.to(DEVICE) + 1, (True, "float32", False, True)),
            (lambda x: x.to(DEVICE, non_blocking=True) + 1, (True, "float32", False, True)),  # of pageable memory
            (lambda x: x.to(DEVICE, torch.bfloat16) + 1, (True, "bfloat16", False, True)),
            (lambda x: (x / 2).to(DEVICE) + 1, (False, None, None, None)),  # computed on the host, it is another one
        ],
    )
    def test_to_the_device(self, use: Callable[[Tensor], Tensor], expected: tuple[Any, ...]) -> None:
        one = leaf(use)
        assert (one.copied, one.arrives, one.non_blocking, one.read) == expected

    @pytest.mark.parametrize(
        "copy",
        [
            lambda x: x.to(DEVICE),
            lambda x: torch.empty(4, 6, device=DEVICE).copy_(x),
            lambda x: x.detach().to(DEVICE),
            lambda x: x[1:].to(DEVICE),
        ],
        ids=["to", "into a buffer", "of a detached one", "of a part"],
    )
    def test_ways_to_copy(self, copy: Callable[[Tensor], Tensor]) -> None:
        assert leaf(lambda x: copy(x) * 2).copied

    def test_pinned_and_without_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uses, "is_pinned", lambda tensor: True)
        assert leaf(lambda x: x.to(DEVICE, non_blocking=True) + 1).non_blocking
        assert not leaf(lambda x: x.to(DEVICE) + 1).non_blocking
        into = torch.empty(4, 6, device=DEVICE)
        assert leaf(lambda x: into.copy_(x, non_blocking=True) + 1).non_blocking

    def test_not_always(self) -> None:
        calls: list[int] = []

        def loop(x: Tensor) -> None:
            calls.append(1)
            if len(calls) % 2:
                x.to(DEVICE)

        assert leaf(loop).copied is False


class TestReads:
    @pytest.mark.parametrize(
        "use",
        [
            lambda x: x + 1,
            lambda x: x.view(-1)[3:].sum(),
            lambda x: x.mul_(2),
            lambda x: torch.stack([x, x]),
            lambda x: x.clone(),
            lambda x: nn.functional.linear(x, torch.ones(2, 6, device=DEVICE)),
        ],
        ids=["arithmetic", "by a view", "in place", "stacked", "cloned", "by a module"],
    )
    def test_read(self, use: Callable[[Tensor], Any]) -> None:
        assert leaf(lambda x: use(x.to(DEVICE))).read is True

    def test_in_the_backward_pass(self) -> None:
        """On a device it runs in a thread of its own."""
        weight = torch.ones(4, 6, device=DEVICE, requires_grad=True)
        assert leaf(lambda x: (weight * x.to(DEVICE)).sum().backward()).read is True

    def test_a_step_later(self) -> None:
        """A loop that copies ahead reads each batch when it already has the next one."""
        before: list[Tensor] = []

        def loop(x: Tensor) -> None:
            before.append(x.to(DEVICE))
            if len(before) > 1:
                before.pop(0).add(1)

        assert leaf(loop).read is True

    @pytest.mark.parametrize(
        "use",
        [lambda x: None, lambda x: x.shape, lambda x: x.view(-1).detach(), lambda x: x.is_contiguous()],
        ids=["nothing", "its shape", "another look", "its layout"],
    )
    def test_never(self, use: Callable[[Tensor], Any]) -> None:
        def loop(x: Tensor) -> None:
            use(x.to(DEVICE))

        assert leaf(loop).read is False

    def test_a_kept_copy_or_part_may_still_be_read(self) -> None:
        kept: list[Tensor] = []
        assert leaf(lambda x: kept.append(x.to(DEVICE))).read is None
        assert leaf(lambda x: kept.append(x.to(DEVICE)[0])).read is None

    def test_each_tensor_separately(self) -> None:
        found = watched(lambda x, y: (x.to(DEVICE) + 1, y.to(DEVICE)), torch.rand(4, 6), torch.rand(3))
        assert [(one.path, one.read) for one in found.leaves] == [("[0]", True), ("[1]", False)]


class TestTurnedInto:
    def test_before_anything_else(self) -> None:
        assert leaf(lambda x: x.to(DEVICE).bfloat16() * 2).turned_into == "bfloat16"

    def test_by_each_reader(self) -> None:
        def loop(x: Tensor) -> None:
            there = x.to(DEVICE)
            there.half()
            there.view(-1).half()

        assert leaf(loop).turned_into == "float16"

    @pytest.mark.parametrize(
        "use",
        [lambda x: x + 1, lambda x: (x.half(), x + 1), lambda x: (x.half(), x.bfloat16())],
        ids=["read as it is", "also", "into different ones"],
    )
    def test_not(self, use: Callable[[Tensor], Any]) -> None:
        assert leaf(lambda x: use(x.to(DEVICE))).turned_into is None

    def test_under_autocast(self) -> None:
        """On the CPU, since ``meta`` has none."""
        seen, unseen = Uses(torch.device("cpu")), Uses(torch.device("cpu"))
        model = nn.Linear(6, 6)
        with seen.watching(), torch.autocast("cpu", torch.bfloat16):
            model(torch.rand(4, 6))
        with unseen.watching():
            model(torch.rand(4, 6))
        assert (seen.autocast, unseen.autocast) == ("bfloat16", "")


class TestHarmless:
    def test_the_loop_computes_the_same(self) -> None:
        found: list[float] = []
        x = torch.arange(6.0)
        watched(lambda x: found.append(float((x * 2).sum())), x)
        assert found == [30.0] * WATCHED

    def test_batches_are_copies(self) -> None:
        kept = torch.zeros(3)
        watched(lambda x: x.add_(1), kept)
        assert kept.tolist() == [0.0] * 3

    def test_errors_reach_the_loop(self) -> None:
        def loop(x: Tensor) -> None:
            x.to(DEVICE) @ torch.ones(5, 5, device=DEVICE)

        with pytest.raises(RuntimeError, match="must have same reduction dim"):
            watched(loop, torch.rand(4, 6))

    def test_an_operation_that_cannot_be_followed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loop continues, and nothing is described."""

        def fails(*args: Any) -> None:
            raise ValueError("an odd tensor")

        monkeypatch.setattr(Uses, "_note", fails)
        results: list[Any] = []
        facts = watched(lambda x: results.append(x + 1), torch.zeros(2))
        assert len(results) == WATCHED
        assert "an odd tensor" in facts.unwatched
        assert (facts.leaves[0].copied, facts.autocast) == (None, None)

    def test_tensors_without_their_own_memory(self) -> None:
        facts = watched(lambda x, y: x.to(DEVICE) + 1, torch.rand(4), torch.eye(3).to_sparse())
        assert facts.leaves[0].read is True
        assert facts.leaves[1].copied is None

    def test_ended_in_another_thread(self) -> None:
        """Modes belong to threads: ending a mode in another thread must not remove that thread's modes."""
        uses = Uses(DEVICE)
        watching = uses.watching()
        watching.__enter__()
        other = threading.Thread(target=watching.__exit__, args=(None, None, None))
        other.start()
        other.join()
        assert _get_current_dispatch_mode() is uses
        uses.follow([torch.ones(3)])
        torch.ones(3).to(DEVICE)
        uses.__exit__(None, None, None)
        assert uses.trouble == ""

    def test_the_loops_own_modes(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        def loop(x: Tensor) -> None:
            with FlopCounterMode(display=False) as counter:
                x.to(DEVICE) @ torch.ones(6, 2, device=DEVICE)
            assert counter.get_total_flops() > 0

        assert leaf(loop).read is True


class TestCompiled:
    def test_compiled_code_is_not_watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch._dynamo.utils as dynamo

        monkeypatch.setitem(dynamo.counters, "stats", {"unique_graphs": 2})
        assert "compiled" in why_unwatched()
        facts = watched(lambda x: x + 1, torch.ones(2))
        assert facts.unwatched == why_unwatched()
        assert facts.leaves[0].copied is None

    def test_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch._dynamo.utils as dynamo

        monkeypatch.setitem(dynamo.counters, "stats", {})
        assert why_unwatched() == ""
