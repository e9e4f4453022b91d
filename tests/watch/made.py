"""Make stacks of a training as py-spy gives them."""

from __future__ import annotations

from pipediag.watch.sampling import Frame, LocalFrame, Stack
from pipediag.watch.sources import library

PACKAGES = "/env/lib/python3.9/site-packages"
DATA = f"{PACKAGES}/torch/utils/data"
SCRIPT = "/home/me/train.py"


def frame(name: str, file: str, line: int = 1) -> Frame:
    return Frame(name, file, line)


MAIN = (frame("<module>", SCRIPT, 90), frame("main", SCRIPT, 40))
NEXT = frame("_BaseDataLoaderIter.__next__", f"{DATA}/dataloader.py", 700)
POLL = (
    frame("Queue.get", "/usr/lib/python3.9/multiprocessing/queues.py", 113),
    frame("wait", "/usr/lib/python3.9/multiprocessing/connection.py", 947),
)
IN_NEXT: Stack = (*MAIN, NEXT, frame("_MultiProcessingDataLoaderIter._next_data", f"{DATA}/dataloader.py", 1500), *POLL)
IN_ITER: Stack = (*MAIN, frame("DataLoader.__iter__", f"{DATA}/dataloader.py", 500))
CALL = frame("Module._wrapped_call_impl", f"{PACKAGES}/torch/nn/modules/module.py", 1700)
BACKWARD_CALL = frame("Tensor.backward", f"{PACKAGES}/torch/_tensor.py", 500)
STEP_CALL = frame("SGD.step", f"{PACKAGES}/torch/optim/sgd.py", 100)
FETCH = frame("_MapDatasetFetcher.fetch", f"{DATA}/_utils/fetch.py", 54)
EACH = frame("<listcomp>", f"{DATA}/_utils/fetch.py", 54)
IN_WORKER = (
    *MAIN,
    NEXT,
    frame("BaseProcess.run", "/usr/lib/python3.9/multiprocessing/process.py", 108),
    frame("_worker_loop", f"{DATA}/_utils/worker.py", 340),
)


def at(line: int, *inner: Frame) -> Stack:
    """Return a stack of the loop at a line of ``main``."""
    return (MAIN[0], MAIN[1]._replace(line=line), *inner)


def local(stack: Stack, **numbers: int) -> list[LocalFrame]:
    """Return a single look at a stack, with numbers in the frame of ``main``."""
    return [LocalFrame(one, numbers if one.name == "main" else {}) for one in stack]


class Texts:
    """Source of which only some lines are known, and the names of generators."""

    def __init__(self, lines: dict[tuple[str, int], str] | None = None, generators: tuple[str, ...] = ()) -> None:
        self.lines, self.generators = lines or {}, generators

    def text(self, one: Frame) -> str:
        return self.lines.get((one.file, one.line), "")

    def where(self, one: Frame) -> str:
        return f"{library(one.file)}:{one.line}"

    def is_generator(self, one: Frame) -> bool:
        return one.name in self.generators
