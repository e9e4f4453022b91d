"""Hook into the script's process without importing anything before the script does.

A script may set ``OMP_NUM_THREADS`` and the like before its first ``import torch``, which must not come earlier. So
each hook waits until the script itself imports the module that it needs, and then replaces one function or registers
one hook there. The measurement is set up when the first loader is iterated.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

from ..loop.iterators import DATALOADER, IteratorHook, get_iterator_replaced, torchs_loader, torchs_loader_named
from ..patches import hooked, replaced, when_imported

_OPTIMIZER, _AUTOGRAD = "torch.optim.optimizer", "torch.autograd"
#: Ray's trainers of both versions: module and class, whose ``fit()`` lets the nodes' own servers start the ranks.
_RAY = (("ray.train.v2.api.data_parallel_trainer", "DataParallelTrainer"), ("ray.train.base_trainer", "BaseTrainer"))


@contextmanager
def on_first_iteration(
    begin: Callable[[], IteratorHook | None], may_begin: Callable[[Any], bool] = lambda loader: True
) -> Iterator[None]:
    """Call ``begin`` when a DataLoader is iterated for the first time; ``begin`` may then hook the class itself.

    It returns the hook, if any, which then makes this first iterator: code of the script's that has wrapped the class's
    method has been called. Iterations of loaders for which ``may_begin`` returns False do not count, nor do those in a
    forked process.
    """
    process = os.getpid()

    def trampoline(maker: Any) -> Callable[[Any], Any]:
        native = maker._get_iterator

        def get_iterator(self: Any) -> Any:
            if os.getpid() != process or not may_begin(self):
                return native(self)
            patch.close()
            with torchs_loader_named():
                hook = begin()
            return native(self) if hook is None else hook.iterator(self, native)

        return get_iterator

    with patched(DATALOADER, lambda module: get_iterator_replaced(torchs_loader(), trampoline)) as patch:
        yield


@contextmanager
def on_optimizer_step(stepped: Callable[[], None], elsewhere: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call ``stepped`` after every step of an optimizer in this process, and ``elsewhere`` once in each forked one."""
    process = os.getpid()
    known = {process}

    def note(*_: object) -> None:
        if os.getpid() == process:
            stepped()
        elif os.getpid() not in known:
            known.add(os.getpid())
            elsewhere()

    with patched(_OPTIMIZER, lambda module: hooked(module.register_optimizer_step_post_hook(note))):
        yield


@contextmanager
def on_backward(passed: Callable[[], None]) -> Iterator[None]:
    """Call ``passed`` after every backward pass in this process: not every optimizer is one of torch's."""
    process, over = os.getpid(), False

    def noted(module: ModuleType) -> AbstractContextManager[None]:
        native = module.backward

        @wraps(native)
        def backward(*args: Any, **kwargs: Any) -> Any:
            result = native(*args, **kwargs)
            if not over and os.getpid() == process:
                passed()
            return result

        return replaced(module, "backward", backward)

    with patched(_AUTOGRAD, noted):
        try:
            yield
        finally:
            over = True  # a script may have imported the function itself


@contextmanager
def before_ray_trains(begins: Callable[[], None]) -> Iterator[None]:
    """Call ``begins`` before Ray starts processes that train: no process of this script is their parent."""

    def noted(class_name: str, module: ModuleType) -> AbstractContextManager[None]:
        trainer = getattr(module, class_name)
        native = trainer.fit

        @wraps(native)
        def fit(*args: Any, **kwargs: Any) -> Any:
            begins()
            return native(*args, **kwargs)

        return replaced(trainer, "fit", fit)

    with ExitStack() as stack:
        for name, trainer in _RAY:
            stack.enter_context(patched(name, partial(noted, trainer)))
        yield


@contextmanager
def patched(name: str, patch: Callable[[ModuleType], AbstractContextManager[None]]) -> Iterator[ExitStack]:
    """Enter ``patch(module)`` once the module is imported; leave it with this context, or by closing the stack."""
    with ExitStack() as stack, when_imported(name, lambda module: stack.enter_context(patch(module))):
        yield stack


#: Beginnings and parts of the paths of files that are not results of the script.
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_UNINTERESTING = (
    "__pycache__",
    ".pyc",
    ".lock",
    "torchinductor",
    "/.cache/",
    "/.triton/",
    "pymp-",
    "/pytorch-errorfile-",
    "/torchelastic_",
)
_WRITING = os.O_WRONLY | os.O_RDWR


class Writes:
    """Record the files that the script writes.

    ``report`` gets each path once, and whether it overwrites a file that was last changed before the time ``began``.
    """

    def __init__(self, report: Callable[[str, bool], None], began: float) -> None:
        self._report, self._began = report, began
        self._seen: set[str] = set()
        self._pid = os.getpid()

    def listen(self) -> None:
        """Start recording, until this process ends: Python's audit hooks cannot be removed."""
        sys.addaudithook(self._audit)

    @contextmanager
    def torch_saves(self) -> Iterator[None]:
        """Record the files of ``torch.save`` too, which opens them outside Python, without an audit event."""
        import torch

        save = torch.save

        def noting(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, (str, os.PathLike)):
                self.note(os.fspath(f))
            save(obj, f, *args, **kwargs)

        with replaced(torch, "save", noting):
            yield

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and args[2] & _WRITING:
            self.note(args[0], appends=bool(args[2] & os.O_APPEND))
        elif event == "os.rename" and isinstance(args[1], str):  # such as of a finished file to its place
            self.note(args[1])

    def note(self, path: str, appends: bool = False) -> None:
        """Record a file that is about to be written."""
        if os.getpid() != self._pid or path in self._seen:
            return
        if path.startswith(_SYSTEM) or any(part in path for part in _UNINTERESTING):
            return
        self._seen.add(path)
        self._report(path, not appends and self._is_older(path))

    def _is_older(self, path: str) -> bool:
        try:
            facts = os.stat(path)
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_mtime < self._began
