from __future__ import annotations

import pytest

from pipediag.watch import stacks
from pipediag.watch.sampling import Stack, Thread
from pipediag.watch.stacks import COLLATES, DATA, IDLE, LOADS, OTHER, START, TRAINS, Moment

from .made import (
    BACKWARD_CALL,
    CALL,
    EACH,
    FETCH,
    IN_ITER,
    IN_NEXT,
    IN_WORKER,
    MAIN,
    NEXT,
    PACKAGES,
    POLL,
    SCRIPT,
    STEP_CALL,
    Texts,
    at,
    frame,
)
from .made import DATA as TORCH_DATA

IMPORT = frame("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241)
IN_INIT = frame("SGD.__init__", f"{PACKAGES}/torch/optim/sgd.py", 65)
QUEUE_GET = frame("Queue.get", "/usr/lib/python3.9/queue.py", 171)
MINE = frame("batches", SCRIPT, 12)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (IN_NEXT, Moment(DATA, 2, True)),
        (IN_ITER, Moment(START, 2)),
        ((*MAIN, NEXT, FETCH, EACH, frame("Mine.__getitem__", SCRIPT, 7)), Moment(DATA, 2)),
        ((*MAIN, CALL, frame("Net.forward", SCRIPT, 60)), Moment(TRAINS, 2)),
        ((*MAIN, BACKWARD_CALL), Moment(TRAINS, 2)),
        ((*MAIN, frame("log", SCRIPT, 80)), Moment(OTHER)),
        (MAIN, Moment(OTHER)),
        # What runs while a library is imported, and what makes models, is no step; a module of the user's may train.
        ((*MAIN, IMPORT, frame("<module>", f"{PACKAGES}/torch/optim/__init__.py", 9)), Moment(OTHER)),
        ((*MAIN, IMPORT, frame("<module>", f"{PACKAGES}/torchvision/transforms/v2/__init__.py", 9)), Moment(OTHER)),
        ((*MAIN, IMPORT, frame("<module>", SCRIPT, 2), CALL), Moment(TRAINS, 4)),
        ((*MAIN, IN_INIT, frame("inner", f"{PACKAGES}/torch/_dynamo/utils.py", 3)), Moment(OTHER)),
        ((*MAIN, frame("Net.__init__", SCRIPT, 8), IN_INIT), Moment(OTHER)),
        ((*MAIN, frame("xavier_", f"{PACKAGES}/torch/nn/init.py", 8)), Moment(OTHER)),
        ((*MAIN, frame("to", f"{PACKAGES}/torch/nn/modules/module.py", 8)), Moment(OTHER)),
        ((*MAIN, CALL, IMPORT, frame("<module>", f"{PACKAGES}/torch/nn/x.py", 9)), Moment(TRAINS, 2)),
        ((*MAIN, QUEUE_GET), Moment(DATA, 2, True)),
        ((*MAIN, MINE), Moment(DATA, 2)),
        ((*MAIN, MINE, QUEUE_GET), Moment(DATA, 2, True)),
        ((*MAIN, frame("Ahead.__next__", SCRIPT, 20)), Moment(DATA, 2)),
        # A model's forward pass above a generator is training, a generator above a model is data.
        ((*MAIN, CALL, MINE), Moment(TRAINS, 2)),
        ((*MAIN, MINE, CALL), Moment(DATA, 2)),
        # The generator behind a context manager is none that gives batches.
        ((*MAIN, frame("__enter__", "/usr/lib/python3.9/contextlib.py", 119), MINE), Moment(OTHER)),
        # A trainer's own copy to the device is no waiting for data.
        (
            (
                *MAIN,
                NEXT._replace(name="__iter__", file=f"{PACKAGES}/accelerate/data_loader.py"),
                frame("send_to_device", "x.py"),
            ),
            Moment(OTHER),
        ),
    ],
)
def test_what_the_loop_does_is_decided_by_the_outermost_known_call(stack: Stack, expected: Moment) -> None:
    assert stacks.of_loop(stack, set(), Texts(generators=("batches",))) == expected


def test_a_generator_that_trains_is_no_source_of_batches() -> None:
    epochs = frame("epochs", SCRIPT, 30)
    seen = [(*MAIN, epochs, BACKWARD_CALL), (*MAIN, epochs, NEXT, *POLL), (*MAIN, epochs, CALL)]
    wraps = stacks.wrappers(seen)
    assert (SCRIPT, "epochs") in wraps
    source = Texts(generators=("epochs",))
    assert [stacks.of_loop(stack, wraps, source).kind for stack in seen] == [TRAINS, DATA, TRAINS]


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        (POLL, IDLE),
        ((FETCH, EACH, frame("Mine.__getitem__", SCRIPT, 7)), LOADS),
        ((FETCH, frame("collate", f"{TORCH_DATA}/_utils/collate.py", 100)), COLLATES),
        ((FETCH._replace(line=57), frame("windows", SCRIPT, 30)), COLLATES),
    ],
)
def test_what_a_worker_does(below: Stack, expected: str) -> None:
    source = Texts({(FETCH.file, 57): "return self.collate_fn(data)"})
    assert stacks.of_worker((*IN_WORKER, *below), source).kind == expected


def test_the_loop_is_the_thread_that_trains() -> None:
    main = Thread(5, 5, "MainThread", [MAIN] * 9)
    trains = Thread(5, 6, "Thread-1", [(*MAIN, CALL)] + [IN_NEXT] * 3)
    worker = Thread(7, 7, "MainThread", [(*IN_WORKER, FETCH)])
    assert stacks.loop_thread([main, trains, worker], 5) is trains
    assert stacks.loop_thread([main, worker], 5) is main
    assert stacks.loop_thread([worker], 5) is None
    makes = trains._replace(stacks=[(*MAIN, IN_INIT, CALL)] * 3)
    assert stacks.loop_thread([main, makes], 5) is main


def test_the_loop_of_a_main_thread_that_only_waits_is_the_one_that_draws() -> None:
    """As in an event loop: a training that waits for its data all the time is not seen in a step."""
    select = frame("EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468)
    waits = Thread(5, 5, "MainThread", [(*MAIN, select)] * 9)
    works = Thread(5, 5, "MainThread", [(*MAIN, select)] * 9 + [MAIN])
    draws = Thread(5, 6, "asyncio_0", [IN_NEXT] * 3)
    idle = Thread(5, 7, "asyncio_1", [(select,)] * 9)
    assert stacks.loop_thread([waits, idle, draws], 5) is draws
    assert stacks.loop_thread([works, idle, draws], 5) is works
    assert stacks.loop_thread([waits, idle], 5) is waits


def test_lines_are_the_users_innermost_with_the_libraries_calls_below() -> None:
    item, opened = frame("Mine.__getitem__", SCRIPT, 7), frame("open", f"{PACKAGES}/PIL/Image.py", 3000)
    draw = frame("draw", SCRIPT, 20)
    source = Texts({(SCRIPT, 7): "image = Image.open(path)", (SCRIPT, 20): "y += x * 2"})
    made = [((item, opened), LOADS)] * 3 + [((item, draw), LOADS)]
    first, second = stacks.hot_lines(made, source)
    assert (first.where, first.name, first.share, first.calls) == (
        f"{SCRIPT}:7",
        "Image.open",
        0.75,
        {"PIL.Image.open": 0.75},
    )
    assert (second.where, second.name, second.function, second.library) == (f"{SCRIPT}:20", "y += x * 2", "draw", False)


def test_without_a_line_of_the_users_a_librarys_function_stands_for_the_work() -> None:
    folder = f"{PACKAGES}/torchvision"
    stack = (
        frame("ImageFolder.__getitem__", f"{folder}/datasets/folder.py", 245),
        frame("Compose.__call__", f"{folder}/transforms/transforms.py", 95),
        CALL,
        frame("ColorJitter.forward", f"{folder}/transforms/transforms.py", 1275),
        frame("adjust_hue", f"{folder}/transforms/functional.py", 900),
    )
    other = (*stack[:3], stack[3]._replace(line=1277))
    (line,) = stacks.hot_lines([(stack, LOADS)] * 3 + [(other, LOADS)], Texts())
    assert (line.function, line.library, line.share) == ("ColorJitter.forward", True, 1.0)
    assert line.where == "torchvision/transforms/transforms.py:1275"


def test_only_a_thread_that_works_on_data_produces() -> None:
    work = frame("fill", SCRIPT, 20)
    assert stacks.producing((work,))
    assert not stacks.producing((work, frame("Queue.put", "/usr/lib/python3.9/queue.py", 140)))
    assert not stacks.producing((frame("_pin_memory_loop", f"{PACKAGES}/other/pin.py", 20),))
    assert not stacks.producing((*IN_WORKER, FETCH))
    assert STEP_CALL.name == "SGD.step" and stacks.part_of_step(at(50, STEP_CALL)) == 3
