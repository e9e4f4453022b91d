"""Parallel branches give the same bits as in sequence, and the tests can tell if they do not.

The numbers are small and whole, so that sums are exact in any order. On the GPU, long waits stand wherever one stream
might run ahead of another, and garbage overwrites all memory that the allocator frees.
"""

from __future__ import annotations

import functools
import itertools
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pipediag.streams import branches as module
from pipediag.streams.branches import fork_join

from .imagined import Device, Stream

Fork = Callable[[Sequence[Callable[[Any], Any]], Any], list[Any]]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])

#: Clock cycles of the device: about 25 ms on an H200, far longer than the host takes to launch a test's kernels.
LONG = 50_000_000
#: Elements of a tensor of 4 MiB: large ones share no block of the allocator with anything else.
MANY = 1 << 20
GARBAGE = -77.0


def in_sequence(branches: Sequence[Callable[[Any], Any]], x: Any) -> list[Any]:
    return [branch(x) for branch in branches]


def wait_long() -> None:
    """Hold up the current stream."""
    torch.cuda._sleep(LONG)


class Late(torch.autograd.Function):
    """The identity, after a long wait, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.is_cuda:
            wait_long()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if grad.is_cuda:
            wait_long()
        return grad.clone()


class Lately(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        late: Tensor = Late.apply(x)
        return late


def whole(*shape: int) -> Tensor:
    """Random whole numbers from -2 to 2."""
    return torch.randint(-2, 3, shape).float()


def with_whole_weights(net: nn.Module) -> nn.Module:
    for parameter in net.parameters():
        parameter.data = whole(*parameter.shape)
    return net


class Branches(nn.Module):
    """A stem, followed by branches of very different length."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(16, 24), nn.ReLU())
        self.branches = nn.ModuleList(
            [
                nn.Sequential(Lately(), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)),
                nn.Linear(24, 8),
                nn.Sequential(nn.Linear(24, 12), Lately(), nn.ReLU(), nn.Linear(12, 8), Lately()),
            ]
        )
        with_whole_weights(self)

    def forward(self, x: Tensor, fork: Fork) -> Tensor:
        features = Late.apply(self.stem(x))
        first, second, third = fork(self.branches, features)
        return torch.cat([first + second, second - third, first], dim=1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Pair(NamedTuple):
    image: Tensor
    label: Tensor


@pytest.mark.parametrize("device", ["cpu", CUDA])
class TestResults:
    def test_in_the_order_of_the_branches(self, device: str) -> None:
        x = torch.ones(3, device=device)
        made = fork_join([lambda x: x + 1, lambda x: x + 2, lambda x: x + 3], x)
        assert [one.tolist() for one in made] == [[2.0] * 3, [3.0] * 3, [4.0] * 3]

    def test_batch_of_any_structure_and_results_of_any(self, device: str) -> None:
        batch = {"pair": Pair(torch.ones(2, device=device), torch.zeros(2, device=device)), "name": "a"}

        def one(x: Any) -> Any:
            return {"sum": x["pair"].image + x["pair"].label, "name": x["name"]}

        def other(x: Any) -> Any:
            return Pair(x["pair"].image * 2, x["pair"].label * 2), 7

        first, (pair, number) = fork_join([one, other], batch)
        assert (first["sum"].tolist(), first["name"], number) == ([1.0, 1.0], "a", 7)
        assert type(pair) is Pair and pair.image.tolist() == [2.0, 2.0]

    def test_each_branch_gets_the_same_batch(self, device: str) -> None:
        x = torch.ones(3, device=device)
        assert all(one is x for one in fork_join([lambda x: x, lambda x: x], x))

    def test_sparse_tensors(self, device: str) -> None:
        dense = torch.eye(3, device=device)
        given = [dense.to_sparse(), dense.to_sparse_csr()]
        made = fork_join([lambda x: [one * 2 for one in x], lambda x: [one * 3 for one in x]], given)
        assert [[one.to_dense().sum().item() for one in pair] for pair in made] == [[6.0, 6.0], [9.0, 9.0]]

    def test_no_branch_and_one_branch(self, device: str) -> None:
        x = torch.ones(3, device=device)
        assert fork_join([], x) == []
        (made,) = fork_join([lambda x: x + 1], x)
        assert made.tolist() == [2.0] * 3

    def test_branches_of_a_module(self, device: str) -> None:
        branches = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3)]).to(device)
        made = fork_join(branches, torch.zeros(1, 2, device=device))
        assert [torch.equal(one, b.bias.expand(1, 3)) for one, b in zip(made, branches, strict=True)] == [True, True]

    def test_error_of_a_branch_is_raised_unchanged(self, device: str) -> None:
        called = []

        def failing(x: Tensor) -> Tensor:
            called.append("failing")
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine") as raised:
            fork_join(
                [lambda x: called.append("first"), failing, lambda x: called.append("last")], torch.ones(1).to(device)
            )
        assert called == ["first", "failing"]
        assert raised.value.__cause__ is None and raised.value.__context__ is None
        assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "failing"
        assert fork_join([lambda x: x + 1, lambda x: x + 2], torch.ones(1).to(device))[1].item() == 3.0

    @pytest.mark.parametrize("grad", [True, False])
    def test_grad_mode_is_the_callers(self, device: str, grad: bool) -> None:
        x = torch.ones(3, device=device, requires_grad=True)
        with torch.set_grad_enabled(grad):
            made = fork_join([lambda x: x * 2, lambda x: x * 3], x)
        assert [one.requires_grad for one in made] == [grad, grad]


class OnDevice(Tensor):
    """A tensor in host memory that claims to be on a GPU."""

    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda:0"))

    def record_stream(self, stream: Any) -> None:
        """Do nothing: the order of all accesses is checked in ``scripts/ordered.py``."""


@pytest.fixture
def there(imagined: Device, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """A tensor on an imagined device."""
    monkeypatch.setattr(module, "Stream", Stream)
    monkeypatch.setattr(module, "_side_streams", {})
    return torch.zeros(1).as_subclass(OnDevice)


def test_error_of_the_device_is_not_hidden_by_that_of_waiting(there: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("CUDA error, once more")

    def failing(x: Any) -> Any:
        monkeypatch.setattr(Stream, "wait_stream", broken)
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match=r"CUDA error$"):
        fork_join([failing, failing], there)


def test_calls_have_streams_of_their_own_also_inside_others(there: Tensor) -> None:
    streams: list[Any] = []

    def leaf(x: Any) -> Any:
        streams.append(torch.cuda.current_stream())
        return x

    for _ in range(2):
        fork_join([lambda x: fork_join([leaf, leaf], x), leaf], there)
    assert streams[:3] == streams[3:] and len({*streams, torch.cuda.current_stream()}) == 4


# On a GPU: scenarios in each of which one thing may go wrong. Each returns whether all values were right.


#: Values that no earlier scenario has left in memory, neither unchanged nor doubled.
values = (float(value) for value in itertools.count(1001, 2))


def fill_with_garbage(*streams: torch.cuda.Stream) -> None:
    """Overwrite all memory of these streams that the allocator believes to be free, without waiting for anything.

    The allocator gets memory from CUDA for five such tensors at a time.
    """
    for stream in streams:
        with torch.cuda.stream(stream):
            kept = [torch.full((MANY,), GARBAGE, device="cuda") for _ in range(8)]
            del kept


class Times:
    """A branch that multiplies, and notes the streams that it ran on."""

    def __init__(self, factor: float, late: bool = False) -> None:
        self.factor, self.late = factor, late
        self.streams: list[torch.cuda.Stream] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.streams.append(torch.cuda.current_stream())
        if self.late:
            wait_long()
        return x * self.factor


def made_ready(value: float) -> Tensor:
    x = torch.full((MANY,), value, device="cuda")
    torch.cuda.synchronize()
    return x


def are(made: Sequence[Tensor], *expected: float) -> bool:
    torch.cuda.synchronize()
    return [bool((one == value).all()) for one, value in zip(made, expected, strict=True)] == [True] * len(expected)


def with_memory(fork: Fork, branches: Sequence[Callable[[Any], Any]]) -> None:
    """Give every stream the memory for exactly one run: getting more may wait for the device, and hide a fault."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    fork(branches, made_ready(GARBAGE))
    torch.cuda.synchronize()


def batch_is_late(fork: Fork) -> bool:
    value, branches = next(values), [Times(1), Times(2)]
    with_memory(fork, branches)
    x = made_ready(GARBAGE)
    wait_long()
    x.fill_(value)
    return are(fork(branches, x), value, 2 * value)


def branches_are_late(fork: Fork) -> bool:
    value, branches = next(values), [Times(1, late=True), Times(2, late=True)]
    with_memory(fork, branches)
    made = fork(branches, made_ready(value))
    return are([one + 1 for one in made], value + 1, 2 * value + 1)


def caller_is_late(fork: Fork) -> bool:
    """The results are dropped before the caller's stream has read them."""
    value, branches = next(values), [Times(1), Times(2)]
    with_memory(fork, branches)
    made = fork(branches, made_ready(value))
    wait_long()
    read = [one + 1 for one in made]
    del made
    fill_with_garbage(*(branch.streams[-1] for branch in branches))
    return are(read, value + 1, 2 * value + 1)


class Square(torch.autograd.Function):
    """Reads its input in the backward pass, late."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        wait_long()
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class GarbageInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        fill_with_garbage(torch.cuda.current_stream())
        return grad.clone()


def batch_is_dropped(fork: Fork) -> bool:
    """Only the branches hold the batch, for the backward pass, and drop it before they have read it.

    Autograd runs the latest work first: the branches, then the work that overwrites the memory of the caller's stream,
    before any gradient has returned from the branches.
    """
    value, branches = next(values), [Square.apply, Square.apply]
    with_memory(fork, branches)
    base = made_ready(value).requires_grad_()
    x = base * 2
    other = GarbageInBackward.apply(base)
    loss = torch.stack(fork(branches, x)).sum() + other.sum()
    del x, other
    torch.cuda.synchronize()
    loss.backward()
    assert base.grad is not None
    return are([base.grad], 2 * 2 * (2 * 2 * value) + 1)


def weights_are_cast(fork: Fork) -> bool:
    """Under autocast the branches share a weight, and the first of them casts it late."""
    shared = nn.Linear(256, 256, bias=False, device="cuda")
    shared.weight.data.zero_()
    x = torch.ones(64, 256, device="cuda")

    def late(x: Tensor) -> Tensor:
        wait_long()
        made: Tensor = shared(x)
        return made

    def run(fork: Fork) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            return fork([late, shared], x)

    run(fork)  # with other weights, which leaves the memory for the casts, with useless values in it
    torch.cuda.synchronize()
    shared.weight.data.random_(-2, 3)
    expected = run(in_sequence)
    torch.cuda.synchronize()
    made = run(fork)
    torch.cuda.synchronize()
    return all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


SCENARIOS = [batch_is_late, branches_are_late, caller_is_late, batch_is_dropped, weights_are_cast]


@functools.cache
def two_streams() -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(), torch.cuda.Stream()]


def published(branches: Sequence[Callable[[Any], Any]], x: Any) -> list[Any]:
    """The published version: no branch waits for its input, and the allocator is told nothing."""
    made = []
    for branch, stream in zip(branches, two_streams(), strict=True):
        with torch.cuda.stream(stream):
            made.append(branch(x))
    for stream in two_streams():
        torch.cuda.current_stream().wait_stream(stream)
    return made


def never_joined(branches: Sequence[Callable[[Any], Any]], x: Any) -> list[Any]:
    made = []
    for branch, stream in zip(branches, two_streams(), strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            made.append(branch(x))
    return made


@pytest.fixture(scope="module")
def warm() -> None:
    """Run all kernels once: loading one may wait for the device, and hide a fault."""
    for scenario in SCENARIOS:
        assert scenario(in_sequence)
        for fork in (published, fork_join):
            scenario(fork)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("warm")
class TestScenarios:
    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_values_are_right(self, scenario: Callable[[Fork], bool]) -> None:
        assert [scenario(fork_join) for _ in range(3)] == [True] * 3

    #: Not ``batch_is_dropped``: in newer torch versions autograd itself waits where a gradient changes streams.
    @pytest.mark.parametrize("scenario", [batch_is_late, caller_is_late, weights_are_cast])
    def test_published_version_is_caught(self, scenario: Callable[[Fork], bool]) -> None:
        assert not scenario(published)

    def test_version_that_never_joins_is_caught(self) -> None:
        assert not branches_are_late(never_joined)


def run(net: Branches, x: Tensor, fork: Fork) -> list[Tensor]:
    """Return the output, and the gradients of the input and of all parameters."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    out = net(x, fork)
    out.sum().backward()
    grads = [x.grad, *(parameter.grad for parameter in net.parameters())]
    return [out.detach().clone(), *(grad.clone() for grad in grads if grad is not None)]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_gradients_on_the_cpu() -> None:
    net, x = Branches(), whole(6, 16)
    made = run(net, x, fork_join)
    assert len(made) == 2 + len(list(net.parameters()))
    assert same(made, run(net, x, in_sequence))


@pytest.mark.gpu
@needs_gpu
class TestTraining:
    def churn(self) -> None:
        """Overwrite all free memory of the branches' streams and of the caller's with garbage."""
        caller = torch.cuda.current_stream()
        for stream in [caller, *module._sides_of(caller, 3)]:
            with torch.cuda.stream(stream):
                for size in (64, 512, 4096, MANY):
                    kept = [torch.full((size,), GARBAGE, device="cuda") for _ in range(8)]
                    del kept

    def test_outputs_and_gradients(self) -> None:
        net = Branches().cuda()
        for _ in range(4):
            x = whole(64, 16).cuda()
            expected = run(net, x, in_sequence)
            made = run(net, x, fork_join)
            self.churn()
            assert same(made, expected)

    def test_gradient_of_a_leaf(self) -> None:
        branches = [nn.Sequential(Lately(), with_whole_weights(nn.Linear(16, 8))).cuda() for _ in range(3)]
        grads = []
        for fork in (in_sequence, fork_join):
            x = torch.ones(4, 16, device="cuda", requires_grad=True)
            torch.stack(fork(branches, x)).sum().backward()
            assert x.grad is not None
            grads.append(x.grad + 0)
        assert torch.equal(*grads)

    def test_without_gradients(self) -> None:
        net, x = Branches().cuda(), whole(64, 16).cuda()
        with torch.no_grad():
            expected = net(x, in_sequence)
            for _ in range(3):
                made = net(x, fork_join)
                self.churn()
                assert torch.equal(made, expected)

    def test_under_autocast(self) -> None:
        net, x = Branches().cuda(), whole(64, 16).cuda()

        def cast(fork: Fork) -> list[Tensor]:
            net.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                out = net(x, fork)
            out.float().sum().backward()
            return [out.detach().clone(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

        expected = cast(in_sequence)
        assert expected[0].dtype == torch.bfloat16
        for _ in range(3):
            assert same(cast(fork_join), expected)

    def test_convolutions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "enabled", False)  # its algorithms may divide, which rounds
        branches = [
            nn.Sequential(Lately(), nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)),
            nn.Sequential(nn.Conv2d(3, 4, 5, padding=2), Lately(), nn.MaxPool2d(3, 1, 1)),
        ]
        branches = [with_whole_weights(branch).cuda() for branch in branches]
        x, made = whole(2, 3, 8, 8).cuda(), []
        for fork in (in_sequence, fork_join):
            out = torch.cat(fork(branches, x))
            grads = torch.autograd.grad(out.sum(), [p for branch in branches for p in branch.parameters()])
            made.append([out.detach(), *grads])
        assert same(*made)

    def test_random_numbers_are_drawn_as_in_sequence(self) -> None:
        branches = [nn.Dropout(0.5), nn.Sequential(Lately(), nn.Dropout(0.3))]
        made = []
        for fork in (in_sequence, fork_join):
            torch.cuda.manual_seed(7)
            made.append([*fork(branches, torch.ones(1000, device="cuda")), torch.rand(3, device="cuda")])
        assert same(*made)

    def test_nested(self) -> None:
        streams = []

        def leaf(factor: float) -> Callable[[Tensor], Tensor]:
            def run(x: Tensor) -> Tensor:
                streams.append(torch.cuda.current_stream())
                return Lately()(x) * factor

            return run

        def nested(x: Tensor) -> Tensor:
            return sum(fork_join([leaf(1), leaf(10)], x * 2))

        x = made_ready(GARBAGE)
        for _ in range(2):
            wait_long()
            x.fill_(3.0)
            assert are(fork_join([nested, leaf(100), nested], x), 66.0, 300.0, 66.0)
        assert streams[:5] == streams[5:]  # the same at every call

    def test_threads_with_streams_of_their_own(self) -> None:
        results: dict[int, bool] = {}

        def work(number: int) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.full((MANY,), GARBAGE, device="cuda")
                wait_long()
                x.fill_(number)
                made = [one + 1 for _ in range(5) for one in fork_join([Times(1), Times(2, late=True)], x)]
                torch.cuda.current_stream().synchronize()
            values = [number + 1.0, 2 * number + 1.0] * 5
            results[number] = [bool((m == v).all()) for m, v in zip(made, values, strict=True)] == [True] * 10

        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {1: True, 2: True, 3: True}

    def test_launches_before_an_error_are_waited_for(self) -> None:
        targets = [made_ready(GARBAGE), made_ready(GARBAGE)]

        def late(x: Tensor) -> None:
            wait_long()
            targets[0].copy_(x)

        def failing(x: Tensor) -> None:
            wait_long()
            targets[1].copy_(x)
            raise ValueError

        caller = torch.cuda.current_stream()
        with pytest.raises(ValueError):
            fork_join([late, failing], made_ready(3.0))
        assert torch.cuda.current_stream() == caller
        assert are([target + 1 for target in targets], 4.0, 4.0)

    def test_captured_in_a_graph(self) -> None:
        net = Branches().cuda()
        fixed = whole(64, 16).cuda()
        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                net(fixed, fork_join)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = net(fixed, fork_join)
            for _ in range(3):
                x = whole(64, 16).cuda()
                fixed.copy_(x)
                graph.replay()
                assert torch.equal(out, net(x, in_sequence))

    def test_captured_with_its_backward_pass(self) -> None:
        net = Branches().cuda()
        fixed = whole(64, 16).cuda()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net.zero_grad()
                net(fixed, fork_join).sum().backward()
        torch.cuda.current_stream().wait_stream(side)
        net.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(fixed, fork_join).sum().backward()
        captured = [p.grad for p in net.parameters() if p.grad is not None]
        x = whole(64, 16).cuda()
        fixed.copy_(x)
        graph.replay()
        made = [grad.clone() for grad in captured]
        assert len(made) == len(list(net.parameters()))
        assert same(made, run(net, x, in_sequence)[2:])
