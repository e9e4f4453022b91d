"""The executor on an imagined device: order, limits, errors, endings."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipediag.errors import UsageError
from pipediag.streams import executor as executing
from pipediag.streams.executor import Executor
from pipediag.streams.handover import Ready
from pipediag.streams.stage import Stage

from . import imagined as imaginary
from .endings import assert_nothing_left, threads, within_patience

CUDA = torch.device("cuda", 0)
AHEAD = pytest.mark.parametrize("ahead", [True, False], ids=["thread", "inline"])

pytestmark = pytest.mark.usefixtures("imagined")


class Feed:
    """Hands over what its source yields. The batch ``"copy"`` raises an error when it is copied.

    Attributes:
        fetched: number of batches requested from the source, for each epoch so far.
        waiting: number of launched batches that the device has not finished, at each launch.
    """

    def __init__(self, source: Callable[[], Iterable[Any]], ahead: bool, single: bool = False) -> None:
        self.device = CUDA
        self.ahead = ahead
        self.single = single
        self.source = source
        self.fetched: list[int] = []
        self.waiting: list[int] = []
        self._stream = imaginary.Stream()
        self._launched: list[imaginary.Event] = []

    def begin(self) -> Iterator[Any]:
        self.fetched.append(0)
        return self._counted(len(self.fetched) - 1)

    def _counted(self, epoch: int) -> Iterator[Any]:
        for sent in self.source():
            self.fetched[epoch] += 1
            yield sent

    def tune(self) -> None:
        """There is nothing to tune."""

    def bring(self, sent: Any) -> Any:
        if sent == "copy":
            raise CopyFailed(sent)
        self._stream.work()
        event = self._stream.record_event()
        self._launched.append(event)
        self.waiting.append(sum(not launched.query() for launched in self._launched))
        return Ready(sent, event)


class CopyFailed(Exception):
    pass


class WorkFailed(Exception):
    pass


def plus(number: int) -> Stage:
    return Stage(lambda batch: batch + number, CUDA, graph=False)


def noisy(device: imaginary.Device) -> Stage:
    def draw(batch: Any) -> Any:
        device.draws += 1
        return batch + 1

    return Stage(draw, CUDA, graph=False)


def numbers(count: int) -> Callable[[], Iterable[Any]]:
    return lambda: range(count)


# ---- order and limits


@AHEAD
@pytest.mark.parametrize("draws", [False, True], ids=["", "drawing"])
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("stages", [0, 1, 2, 3, 5])
def test_every_batch_comes_through_all_stages_in_order(
    imagined: imaginary.Device, stages: int, depth: int, draws: bool, ahead: bool
) -> None:
    works = [noisy(imagined) if draws else plus(1) for _ in range(stages)]
    executor = Executor(Feed(numbers(40), ahead), works, depth)
    for _ in range(2):
        assert within_patience(lambda: list(executor.flow())) == [number + stages for number in range(40)]


@AHEAD
@pytest.mark.parametrize("depth", [1, 2, 3, 8])
def test_a_host_that_does_not_wait_runs_ahead_by_no_more_than_the_depth(depth: int, ahead: bool) -> None:
    feed = Feed(numbers(200), ahead)
    assert within_patience(lambda: list(Executor(feed, (), depth).flow())) == list(range(200))
    assert max(feed.waiting) <= depth + 1
    if ahead:
        assert max(feed.waiting) == depth + 1


@AHEAD
def test_a_loop_that_changes_streams_is_waited_for_on_the_stream_of_each_batch(
    imagined: imaginary.Device, ahead: bool
) -> None:
    feed = Feed(numbers(60), ahead)
    streams = [imaginary.Stream() for _ in range(3)]

    def loop() -> None:
        flow = Executor(feed, (), 2).flow()
        for step in range(60):
            with imagined.stream(streams[step % 3]):
                assert next(flow) == step

    within_patience(loop)
    assert max(feed.waiting) <= 3


class Workers:
    """A loader's iterator as torch makes it: three batches in its queue, and one that arrived before its turn."""

    _task_info = {7: (0,), 8: (1, "early")}  # noqa: RUF012
    _data_queue = SimpleNamespace(qsize=lambda: 3)

    def __iter__(self) -> Workers:
        return self

    def __next__(self) -> int:
        return 0


@pytest.mark.parametrize(("ahead", "ready"), [(True, 2 + 4), (False, 4)], ids=["thread", "inline"])
def test_batches_that_are_ready_are_counted(monkeypatch: pytest.MonkeyPatch, ahead: bool, ready: int) -> None:
    """With a depth of two, three batches are launched; the loop has one of them."""
    feed = Feed(numbers(0), ahead)
    monkeypatch.setattr(feed, "begin", Workers)
    flow: Any = Executor(feed, (), 2).flow()
    assert next(flow) == 0
    within_patience(lambda: wait_until(lambda: flow.ready == ready))
    flow.close()


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(1e-3)


@AHEAD
@pytest.mark.parametrize(("megabytes", "ready"), [(5, 1), (9, 2), (100, 8)])
def test_ready_batches_take_a_quarter_of_the_free_memory(
    imagined: imaginary.Device, megabytes: int, ready: int, ahead: bool
) -> None:
    batch = torch.zeros(1 << 20, dtype=torch.uint8)
    feed = Feed(lambda: [batch] * 60, ahead)
    imagined.free = megabytes << 20
    assert within_patience(lambda: len(list(Executor(feed, (), 8).flow()))) == 60
    assert max(feed.waiting[10:]) <= ready + 1
    if ahead:
        assert max(feed.waiting[10:]) == ready + 1


@AHEAD
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_short_memory_and_stages_that_draw_do_not_wait_for_each_other(
    imagined: imaginary.Device, stages: int, ahead: bool
) -> None:
    imagined.free = 0
    executor = Executor(Feed(numbers(30), ahead), [noisy(imagined) for _ in range(stages)], stages + 1)
    assert within_patience(lambda: list(executor.flow())) == [number + stages for number in range(30)]


@pytest.mark.parametrize("draws", [False, True], ids=["", "drawing"])
def test_a_loader_without_workers_is_asked_for_a_batch_when_the_loop_asks(
    imagined: imaginary.Device, draws: bool
) -> None:
    feed = Feed(numbers(10), ahead=False)
    fetched = []
    for _ in Executor(feed, [noisy(imagined) if draws else plus(1)] * 2, 3).flow():
        fetched.append(feed.fetched[0])
    assert fetched == list(range(1, 11))


def test_a_stage_that_draws_keeps_the_order_of_draws(imagined: imaginary.Device) -> None:
    """The order of its draws and the loop's is the same at any speed of the loader."""
    orders: list[list[str]] = []
    for _ in range(5):
        order: list[str] = []
        gate = threading.Semaphore(0)

        def source(gate: threading.Semaphore = gate) -> Iterator[int]:
            for number in range(12):
                gate.acquire()
                yield number

        def draw(batch: Any, order: list[str] = order) -> Any:
            imagined.draws += 1
            order.append(f"stage {batch}")
            return batch

        def loop(order: list[str] = order, gate: threading.Semaphore = gate, draw: Any = draw) -> None:
            gate.release(1 + len(orders))  # the number of batches when the loop begins
            flow = Executor(Feed(source, ahead=True), [Stage(draw, CUDA, graph=False)], 2).flow()
            threading.Thread(target=lambda: gate.release(12)).start()
            for batch in flow:
                order.append(f"loop {batch}")

        within_patience(loop)
        orders.append(order)
    assert all(order[3:] == orders[0][3:] for order in orders)
    assert orders[0].index("stage 7") < orders[0].index("loop 6")


@AHEAD
def test_several_epochs_at_once(ahead: bool) -> None:
    executor = Executor(Feed(numbers(20), ahead), [plus(1)], 2)
    pairs = within_patience(lambda: list(zip(executor.flow(), executor.flow(), strict=True)))
    assert pairs == [(number, number) for number in range(1, 21)]


def test_a_loader_with_one_iterator_for_all_epochs_gives_it_to_the_latest() -> None:
    executor = Executor(Feed(numbers(20), ahead=True, single=True), (), 3)

    def loop() -> Any:
        first = executor.flow()
        begun = [next(first), next(first)]
        return begun, list(executor.flow()), list(first)

    assert within_patience(loop) == ([0, 1], list(range(20)), [])


def test_two_epochs_never_ask_one_iterator_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the iterator is needed again, closing waits for a batch even beyond its patience."""
    monkeypatch.setattr(executing, "_PATIENCE", 0.01)
    asking: list[int] = []
    most = [0]
    gate = threading.Event()

    class Shared:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            asking.append(1)
            most[0] = max(most[0], len(asking))
            gate.wait()
            asking.pop()
            return 7

    shared = Shared()
    feed = Feed(numbers(0), ahead=True, single=True)
    feed.begin = lambda: iter(shared)  # type: ignore[method-assign]
    executor = Executor(feed, (), 2)

    def loop() -> Any:
        first = executor.flow()
        threading.Timer(0.3, gate.set).start()
        return first, next(executor.flow())

    assert within_patience(loop)[1] == 7
    assert most == [1]


# ---- errors


def failing(after: int, error: type[BaseException]) -> Callable[[], Iterator[Any]]:
    def source() -> Iterator[Any]:
        yield from range(after)
        raise error("fetched")

    return source


def until_error(flow: Iterator[Any]) -> tuple[list[Any], BaseException | None]:
    got: list[Any] = []
    try:
        for batch in flow:
            got.append(batch)
    except BaseException as error:
        return got, error
    return got, None


@AHEAD
@pytest.mark.parametrize("after", [0, 1, 7])
@pytest.mark.parametrize("stages", [0, 2])
@pytest.mark.parametrize("error", [WorkFailed, SystemExit])
def test_an_error_of_the_loader_comes_after_the_batches_before_it(
    error: type[BaseException], stages: int, after: int, ahead: bool
) -> None:
    executor = Executor(Feed(failing(after, error), ahead), [plus(1)] * stages, 3)
    got, raised = within_patience(lambda: until_error(executor.flow()))
    assert type(raised) is error and raised.args == ("fetched",)
    if error is WorkFailed:  # others are raised at once
        assert got == [number + stages for number in range(after)]


@AHEAD
@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_error_on_the_way_to_the_device_comes_after_the_batches_before_it(after: int, ahead: bool) -> None:
    executor = Executor(Feed(lambda: [*range(after), "copy", 99], ahead), [plus(1)], 3)
    flow = executor.flow()
    got, raised = within_patience(lambda: until_error(flow))
    assert got == list(range(1, after + 1))
    assert isinstance(raised, CopyFailed)
    assert within_patience(lambda: list(flow)) == [100], "a loop that skips an error loses one batch"


@AHEAD
@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_error_of_a_stage_comes_at_its_batch_as_it_is(at: int, ahead: bool) -> None:
    def work_of_the_users(batch: int) -> int:
        if batch == at:
            raise WorkFailed(batch)
        return batch

    executor = Executor(Feed(numbers(20), ahead), [Stage(work_of_the_users, CUDA, False), plus(1)], 3)
    got, raised = within_patience(lambda: until_error(executor.flow()))
    assert got == list(range(1, at + 1))
    assert isinstance(raised, WorkFailed) and raised.args == (at,)
    names = []
    trace = raised.__traceback__
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "work_of_the_users"


@AHEAD
def test_a_stage_whose_own_iterator_is_exhausted_does_not_end_the_epoch_silently(ahead: bool) -> None:
    others = iter(range(3))
    executor = Executor(Feed(numbers(10), ahead), [Stage(lambda batch: batch + next(others), CUDA, False)], 2)
    got, raised = within_patience(lambda: until_error(executor.flow()))
    assert got == [0, 2, 4]
    assert isinstance(raised, RuntimeError)  # as from a generator


@AHEAD
def test_a_new_epoch_after_an_error(ahead: bool) -> None:
    sources = iter([failing(3, WorkFailed), numbers(6)])
    executor = Executor(Feed(lambda: next(sources)(), ahead), [plus(1)], 3)
    got, raised = within_patience(lambda: until_error(executor.flow()))
    assert got == [1, 2, 3] and isinstance(raised, WorkFailed)
    assert within_patience(lambda: list(executor.flow())) == [1, 2, 3, 4, 5, 6]


@AHEAD
def test_an_error_of_the_device_comes_out(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    """From then on every wait fails, also when the epoch is closed."""

    class DeviceLost(RuntimeError):
        pass

    def lost(event: Any) -> None:
        raise DeviceLost

    monkeypatch.setattr(imaginary.Event, "synchronize", lost)
    executor = Executor(Feed(numbers(20), ahead), (), 1)

    def loop() -> BaseException | None:
        try:
            list(executor.flow())
        except BaseException as error:
            return error
        return None

    assert isinstance(within_patience(loop), DeviceLost)


# ---- endings


class Watched:
    """A loader's iterator that weak references can watch."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


class WatchedFeed(Feed):
    def __init__(self, source: Callable[[], Iterable[Any]], ahead: bool) -> None:
        super().__init__(source, ahead)
        self.iterators: list[weakref.ref[Watched]] = []

    def begin(self) -> Iterator[Any]:
        iterator = Watched(super().begin())
        self.iterators.append(weakref.ref(iterator))
        return iterator


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Dropped objects must be freed at once: garbage may be collected late, or in a forked worker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@AHEAD
@pytest.mark.parametrize("consumed", [0, 1, 5, 20])
@pytest.mark.usefixtures("uncollected")
def test_an_epoch_that_is_dropped_lets_the_loader_go(consumed: int, ahead: bool) -> None:
    feed = WatchedFeed(numbers(20), ahead)

    def loop() -> None:
        flow = Executor(feed, [plus(1)], 2).flow()
        for _ in range(consumed):
            next(flow)

    within_patience(loop)
    assert threads() == []
    assert [iterator() for iterator in feed.iterators] == [None]


@AHEAD
@pytest.mark.parametrize("where", ["loader", "copy", "stage"])
@pytest.mark.usefixtures("uncollected")
def test_an_epoch_that_failed_lets_the_loader_go(where: str, ahead: bool) -> None:
    def fail(batch: Any) -> Any:
        if where == "stage" and batch == 3:
            raise WorkFailed(where)
        return batch

    source = failing(3, WorkFailed) if where == "loader" else lambda: [0, 1, 2, "copy" if where == "copy" else 3]
    feed = WatchedFeed(source, ahead)

    def loop() -> None:
        try:
            for _ in Executor(feed, [Stage(fail, CUDA, False)], 2).flow():
                pass
        except (WorkFailed, CopyFailed):
            pass

    within_patience(loop)
    assert threads() == []
    assert [iterator() for iterator in feed.iterators] == [None]


@AHEAD
def test_ctrl_c_in_the_loop_ends_everything(ahead: bool) -> None:
    def loop() -> None:
        for batch in Executor(Feed(numbers(20), ahead), [plus(1)], 2).flow():
            if batch == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        within_patience(loop)
    assert_nothing_left()


@AHEAD
@pytest.mark.parametrize("consumed", [3, 20])
def test_an_iterable_of_the_users_is_not_closed(consumed: int, ahead: bool) -> None:
    """A reader that is its own iterator, and could be closed: the next epoch reads on."""

    class Reader(Watched):
        closed = False

        def close(self) -> None:
            self.closed = True

    reader = Reader(range(20))
    feed = Feed(numbers(0), ahead)
    feed.begin = lambda: reader  # type: ignore[method-assign]
    executor = Executor(feed, (), 2)

    def loop() -> None:
        flow = executor.flow()
        for _ in range(consumed):
            next(flow)

    within_patience(loop)
    assert_nothing_left()
    assert not reader.closed


def test_an_empty_loader() -> None:
    for ahead in (True, False):
        assert within_patience(lambda ahead=ahead: list(Executor(Feed(numbers(0), ahead), [plus(1)], 2).flow())) == []  # type: ignore[misc]


# ---- stages


@AHEAD
def test_a_stage_with_a_module_in_train_mode_is_refused(ahead: bool) -> None:
    stage = Stage(torch.nn.BatchNorm1d(3), CUDA, graph=False)
    executor = Executor(Feed(lambda: [torch.ones(4, 3)] * 3, ahead), [stage], 2)
    got, raised = within_patience(lambda: until_error(executor.flow()))
    assert got == [] and isinstance(raised, UsageError)
    assert "BatchNorm1d" in str(raised) and ".eval()" in str(raised)
