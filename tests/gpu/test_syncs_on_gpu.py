"""The audit of synchronising calls on a real GPU: each kind of call is found, by name and line, and nothing else."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pipediag.measure import syncs
from pipediag.session import SyncCall
from pipediag.usercode.places import short

SIZE = 512
STEPS = 3
#: Clock cycles of the device: some 25 ms of an H200.
LONG = 50_000_000


class Things:
    """What a training step has at hand."""

    def __init__(self) -> None:
        self.x = torch.rand(SIZE, SIZE, device="cuda")
        self.mask = self.x > 0.5
        self.chosen = self.x[self.mask]
        self.loss = self.x.sum()
        self.one = torch.ones((), dtype=torch.long, device="cuda")
        self.pageable = torch.rand(SIZE, SIZE)
        self.pinned = torch.rand(SIZE, SIZE).pin_memory()
        self.on_host = torch.arange(8)
        self.stream = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        self.event.record()


@pytest.fixture
def things() -> Things:
    return Things()


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    yield
    assert torch.cuda.get_sync_debug_mode() == 0
    assert "item" not in vars(Tensor)


def line_of(function: Callable[..., Any], mark: str = "here") -> tuple[str, str]:
    """``file:line`` and text of the line of a function that ends in a comment."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [i for i, line in enumerate(lines) if line.rstrip().endswith(f"  # {mark}")]
    return f"{short(__file__)}:{first + number}", lines[number].strip()


def in_steps(action: Callable[[], Any]) -> list[SyncCall]:
    with syncs.watch() as seen:
        for _ in range(STEPS):
            action()
            seen.step()
    return seen.report()


# One call each.


def item(t: Things) -> Any:
    return t.loss.item()  # here


def to_list(t: Things) -> Any:
    return t.x[0].tolist()  # here


def to_float(t: Things) -> Any:
    return float(t.loss)  # here


def to_int(t: Things) -> Any:
    return int(t.one)  # here


def to_bool(t: Things) -> Any:
    return bool(t.loss)  # here


def branching(t: Things) -> Any:
    if t.loss > 3:  # here
        return 1
    return 2


def as_an_index(t: Things) -> Any:
    return "abc"[t.one]  # here


def cpu(t: Things) -> Any:
    return t.x.cpu()  # here


def to_cpu(t: Things) -> Any:
    return t.x.to("cpu")  # here


def equal(t: Things) -> Any:
    return torch.equal(t.x, t.x + 1)  # here


def all_close(t: Things) -> Any:
    return t.x.allclose(t.x + 1)  # here


def blocking_of_pageable(t: Things) -> Any:
    return t.pageable.to("cuda")  # here


def blocking_of_pinned(t: Things) -> Any:
    return t.pinned.cuda()  # here


def blocking_into(t: Things) -> Any:
    return t.x.copy_(t.pinned)  # here


def unawares_by_to(t: Things) -> Any:
    return t.pageable.to("cuda", non_blocking=True)  # here


def unawares_by_cuda(t: Things) -> Any:
    return t.pageable.cuda(non_blocking=True)  # here


def unawares_into(t: Things) -> Any:
    return t.x.copy_(t.pageable, non_blocking=True)  # here


def unawares_from(t: Things) -> Any:
    return t.pageable.copy_(t.x, non_blocking=True)  # here


def unawares_of_pinned(t: Things) -> Any:
    return t.pinned[:, ::2].to("cuda", non_blocking=True)  # here


def boolean_indexing(t: Things) -> Any:
    return t.x[t.mask]  # here


def boolean_assignment(t: Things) -> Any:
    t.x[t.mask] = t.chosen  # here
    return t.x


def indexing_from_the_host(t: Things) -> Any:
    return t.x[t.on_host]  # here


def nonzero(t: Things) -> Any:
    return t.mask.nonzero()  # here


def nonzero_function(t: Things) -> Any:
    return torch.nonzero(t.mask)  # here


def masked_select(t: Things) -> Any:
    return t.x.masked_select(t.mask)  # here


def unique(t: Things) -> Any:
    return torch.unique(t.x[0])  # here


def tensor(t: Things) -> Any:
    return torch.tensor([1.0, 2.0], device="cuda")  # here


def as_tensor(t: Things) -> Any:
    return torch.as_tensor([1.0, 2.0], device="cuda")  # here


def synchronize(t: Things) -> Any:
    torch.cuda.synchronize()  # here


def synchronize_accelerator(t: Things) -> Any:
    torch.accelerator.synchronize()  # here


def synchronize_stream(t: Things) -> Any:
    t.stream.synchronize()  # here


def synchronize_event(t: Things) -> Any:
    t.event.synchronize()  # here


def printing(t: Things) -> Any:
    print(t.x)  # here


def formatting(t: Things) -> Any:
    return f"{t.loss:.3f}"  # here


UNAWARES = "(non_blocking=True) of pageable memory"
CALLS = {
    item: "item()",
    to_list: "tolist()",
    to_float: "float()",
    to_int: "int()",
    to_bool: "bool()",
    branching: "bool()",
    as_an_index: "use as an index",
    cpu: "cpu()",
    to_cpu: "to()",
    equal: "equal()",
    all_close: "allclose()",
    blocking_of_pageable: "to()",
    blocking_of_pinned: "cuda()",
    blocking_into: "copy_()",
    unawares_by_to: f"to{UNAWARES}",
    unawares_by_cuda: f"cuda{UNAWARES}",
    unawares_into: f"copy_{UNAWARES}",
    unawares_from: f"copy_{UNAWARES}",
    unawares_of_pinned: f"to{UNAWARES}",
    boolean_indexing: "indexing",
    boolean_assignment: "boolean assignment by index",
    indexing_from_the_host: "indexing",
    nonzero: "nonzero()",
    nonzero_function: "nonzero()",
    masked_select: "masked_select()",
    unique: "unique()",
    tensor: "torch.tensor()",
    as_tensor: "torch.as_tensor()",
    synchronize: "torch.cuda.synchronize()",
    synchronize_accelerator: "torch.accelerator.synchronize()",
    synchronize_stream: "Stream.synchronize()",
    synchronize_event: "Event.synchronize()",
    printing: "printing a tensor",
    formatting: "printing a tensor",
}


@pytest.mark.parametrize("action", CALLS, ids=lambda action: action.__name__)
def test_call_is_found_with_its_line(action: Callable[[Things], Any], things: Things) -> None:
    (sync,) = in_steps(lambda: action(things))
    assert sync.call == CALLS[action]
    assert (sync.where, sync.line) == line_of(action)
    assert sync.per_step == 1.0
    if action in (boolean_indexing, indexing_from_the_host):  # seen by torch's warning alone
        assert sync.ms_per_step is None
    else:
        assert sync.ms_per_step is not None and sync.ms_per_step > 0
    assert sync.help


def test_values_are_the_same() -> None:
    def run(action: Callable[[Things], Any]) -> Any:
        torch.manual_seed(0)
        return action(Things())

    alone = [run(action) for action in CALLS]
    with syncs.watch():
        watched = [run(action) for action in CALLS]
    for one, other in zip(alone, watched, strict=True):
        assert type(one) is type(other)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def test_clean_loop_has_no_finding() -> None:
    dataset = TensorDataset(torch.rand(640, 64), torch.randint(10, (640,)))
    loader = DataLoader(dataset, batch_size=64, num_workers=1, pin_memory=True)
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    total = torch.zeros((), device="cuda")
    with syncs.watch() as seen:
        for x, y in loader:
            x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
            seen.step()
    assert seen.steps == 10
    assert seen.report() == []


def test_now_and_then_is_no_finding(things: Things) -> None:
    with syncs.watch() as seen:
        for step in range(10):
            if step % 5 == 4:
                things.loss.item()
            seen.step()
    assert seen.report() == []
    assert [(sync.call, sync.per_step) for sync in seen.report(least=0)] == [("item()", 0.2)]


def test_transposed_pinned_memory_is_copied_copied_unchanged(things: Things) -> None:
    assert in_steps(lambda: things.pinned.t().to("cuda", non_blocking=True)) == []


def test_scaler_is_named_with_the_users_line() -> None:
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.rand(64, 64, device="cuda")

    def train() -> None:
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)  # here
        scaler.update()
        optimizer.zero_grad()

    (sync,) = in_steps(train)
    assert "GradScaler.step()" in sync.call or sync.call.endswith(" step()")  # Python 3.10 has short names alone
    assert sync.call.startswith("item() in ")
    assert (sync.where, sync.per_step) == (line_of(train)[0], 1.0)


def test_what_the_backward_pass_waits_for_counts_for_its_line(things: Things) -> None:
    weight = torch.rand(SIZE, SIZE, device="cuda", requires_grad=True)

    def train() -> None:
        loss = weight[things.mask].sum()  # forward
        loss.backward()  # backward

    found = {sync.where: sync for sync in in_steps(train)}
    assert set(found) == {line_of(train, "forward")[0], line_of(train, "backward")[0]}
    backward = found[line_of(train, "backward")[0]]
    assert backward.call.endswith("backward()") and backward.per_step >= 1.0
    assert backward.ms_per_step is None
    assert "backward pass" in backward.help


def test_the_call_that_waits_for_the_device_comes_first(things: Things) -> None:
    def train() -> None:
        things.loss.item()
        torch.cuda._sleep(LONG)
        things.one.item()  # here
        things.x.cpu()

    found = in_steps(train)
    assert len(found) == 3
    assert found[0].where == line_of(train)[0]
    assert found[0].ms_per_step is not None and found[0].ms_per_step > 10


def test_other_threads_and_the_programs_warnings_are_left_alone(things: Things) -> None:
    def train() -> None:
        thread = threading.Thread(target=lambda: things.loss.item())
        thread.start()
        thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            things.loss.item()
        warnings.warn("mine", stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = in_steps(train)
    assert [(sync.call, sync.per_step) for sync in found] == [("item()", 1.0)]
    assert [str(warning.message) for warning in caught] == ["mine"] * STEPS


def test_mode_of_the_program_is_put_back(things: Things) -> None:
    try:
        for mode in (1, 2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.cuda.set_sync_debug_mode(mode)
            with syncs.watch() as seen:
                seen.step()
            assert torch.cuda.get_sync_debug_mode() == mode
    finally:
        torch.cuda.set_sync_debug_mode(0)
