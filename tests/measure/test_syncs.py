"""Which synchronizing calls a log reports, how often they happen, and in which order."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pipediag import frames
from pipediag.errors import UsageError
from pipediag.measure import known_syncs, syncs
from pipediag.measure.syncs import SyncLog
from pipediag.session import SyncCall
from pipediag.usercode.places import short

from ..clock import Clock

READ = ("item()", "train.py:10", "total += loss.item()", "Keep it there.")
COPY = ("to()", "train.py:5", "x = x.to(device)", "Pin it.")


def log_of(*steps: list[tuple[tuple[str, str, str, str], float | None]]) -> SyncLog:
    """A log of steps, each a list of calls and the seconds they took."""
    log = SyncLog()
    for calls in steps:
        for call, seconds in calls:
            log.note(*call, seconds)
        log.step()
    return log


def test_one_call_in_every_step() -> None:
    log = log_of([(READ, 0.25)], [(READ, 0.5)])
    assert log.steps == 2
    assert log.report() == [SyncCall("item()", "train.py:10", "total += loss.item()", 1.0, 375.0, "Keep it there.")]


def at(where: str, call: str = "item()") -> tuple[str, str, str, str]:
    return call, where, "", ""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[], []], []),
        ([[(READ, 0.25), (READ, 0.25)], [(READ, 0.5)]], [("item()", "train.py:10", 1.5, 500.0)]),
        # One unknown duration makes the sum unknown.
        ([[(READ, 0.25)], [(READ, None)]], [("item()", "train.py:10", 1.0, None)]),
        # The costliest first; what is unknown last, the most frequent of it first; else in the order of places.
        (
            [[(at("t:7"), 0.0), (at("t:1"), None), (READ, 0.25), (at("t:9"), None), (at("t:9"), None), (COPY, 0.5)]],
            [
                ("to()", "train.py:5", 1.0, 500.0),
                ("item()", "train.py:10", 1.0, 250.0),
                ("item()", "t:7", 1.0, 0.0),
                ("item()", "t:9", 2.0, None),
                ("item()", "t:1", 1.0, None),
            ],
        ),
        ([[(at("t:2"), 0.25), (at("t:02"), 0.25)]], [("item()", "t:02", 1.0, 250.0), ("item()", "t:2", 1.0, 250.0)]),
        # The same call at two lines, and two calls at one line.
        (
            [[(at("t:1"), 0.25), (at("t:2"), 0.5), (at("t:1", "cpu()"), 0.125)]],
            [("item()", "t:2", 1.0, 500.0), ("item()", "t:1", 1.0, 250.0), ("cpu()", "t:1", 1.0, 125.0)],
        ),
    ],
)
def test_reports(steps: list[Any], expected: list[Any]) -> None:
    found = log_of(*steps).report()
    assert [(sync.call, sync.where, sync.per_step, sync.ms_per_step) for sync in found] == expected


class TestLeast:
    """Occasional calls are left out, however costly or frequent they are in their step."""

    STEPS = ([(READ, 1.0), (READ, 1.0), (READ, 1.0), (READ, 1.0)], [(COPY, 0.125)], [(COPY, 0.125)], [(COPY, 0.125)])

    @pytest.mark.parametrize(("share", "calls"), [({}, ["to()"]), ({"least": 0.75}, ["to()"]), ({"least": 0.76}, [])])
    def test_half_of_the_steps_by_default(self, share: dict[str, float], calls: list[str]) -> None:
        assert [one.call for one in log_of(*self.STEPS).report(**share)] == calls

    def test_a_share_of_zero_reports_everything(self) -> None:
        found = log_of(*self.STEPS).report(least=0)
        assert [(s.call, s.per_step, s.ms_per_step) for s in found] == [("item()", 1.0, 1000.0), ("to()", 0.75, 93.75)]


def test_calls_after_the_last_step_do_not_count() -> None:
    log = log_of([(READ, 0.25)])
    log.note(*READ, 0.25)
    log.note(*COPY, 0.25)
    (sync,) = log.report(least=0)
    assert (sync.call, sync.per_step, sync.ms_per_step) == ("item()", 1.0, 250.0)
    log.step()
    assert [(s.call, s.per_step) for s in log.report()] == [("item()", 1.0), ("to()", 0.5)]


def test_no_report_without_a_step() -> None:
    log = SyncLog()
    log.note(*READ, 0.25)
    with pytest.raises(UsageError, match=r"call step\(\)"):
        log.report()


HERE = Path(__file__)

#: Simulated torch functions that synchronize; ``warn`` reports it.
LIBRARY = """
import warnings

def warn():
    warnings.warn("called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:156.)")

def item(tensor):
    clock.seconds += 0.25
    warn()
    warn()
    return native(tensor)

def set_mode(mode):
    modes.append(mode)
    if mode:
        warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all operations")

class GradScaler:
    def step(self, tensor):
        return self._maybe_step(tensor)

    def _maybe_step(self, tensor):
        return sum(one.item() for one in [tensor])

def decorated(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

@decorated
def clip(tensor):
    warn()
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Simulate torch with a device: ``item()`` takes 0.25 s and warns twice."""
    clock, modes, available = Clock(100.0), [0], [True]
    names = {"native": Tensor.item, "clock": clock, "modes": modes, "available": available}
    names["__name__"] = "torch.stand_in"
    exec(compile(LIBRARY, str(Path(torch.__file__).with_name("stand_in.py")), "exec"), names)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available[0])
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", names["set_mode"])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(Tensor, "item", names["item"], raising=False)
    return types.SimpleNamespace(**names)


@pytest.fixture(autouse=True)
def nothing_left_installed() -> Iterator[None]:
    """Fail a test that leaves a hook behind."""

    def installed() -> list[Any]:
        watched = [vars(owner).get(name) for owner, name, _ in known_syncs.suspects()]
        return [*watched, *warnings.filters, warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings]

    before = installed()
    with warnings.catch_warnings():
        yield
    assert list(map(id, installed())) == list(map(id, before))


def line_of(text: str) -> str:
    """Return ``file:line`` and text of the one line in this file that ends in this comment."""
    lines = HERE.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {text}")]
    return f"{short(str(HERE))}:{number}"


def in_three_steps(action: Callable[[], Any], clock: Clock | None = None) -> list[SyncCall]:
    with syncs.watch(clock) as seen:
        for _ in range(3):
            action()
            seen.step()
    return seen.report()


def test_a_call_with_its_line_and_duration(library: Any) -> None:
    loss = torch.tensor(3.0)

    def train() -> None:
        assert loss.item() == 3.0  # read

    (sync,) = in_three_steps(train, library.clock)
    assert (sync.call, sync.where, sync.line) == ("item()", line_of("read"), "assert loss.item() == 3.0  # read")
    assert (sync.per_step, sync.ms_per_step) == (1.0, 250.0)
    assert "every N steps" in sync.help


def test_a_call_that_does_not_synchronize_is_not_logged(library: Any) -> None:
    """Reading a tensor in host memory uses the same functions."""
    ready = torch.tensor([1.0, 2.0])

    def train() -> None:
        assert (float(ready[0]), ready.tolist(), bool(ready[1] > 1)) == (1.0, [1.0, 2.0], True)
        assert torch.equal(ready.to(torch.float64).cpu(), ready[ready > 0])

    assert in_three_steps(train) == []


def test_printing_is_one_call(library: Any) -> None:
    """Although it reads element by element."""
    losses = torch.tensor([1.0, 2.0])

    def train() -> None:
        assert str(losses) == "tensor([1., 2.])"
        assert f"{losses[0]:.1f}" == "1.0"

    found = in_three_steps(train)
    assert [(sync.call, sync.per_step) for sync in found] == [("printing a tensor", 1.0)] * 2


def test_a_torch_function_is_named_with_the_call_inside_it(library: Any) -> None:
    scaler, found = library.GradScaler(), torch.tensor(0.0)

    def train() -> None:
        scaler.step(found)  # scaler

    (sync,) = in_three_steps(train, library.clock)
    inside = "GradScaler.step" if sys.version_info >= (3, 11) else "step"
    assert (sync.call, sync.where, sync.ms_per_step) == (f"item() in {inside}()", line_of("scaler"), 250.0)
    assert sys.version_info < (3, 11) or "fused=True" in sync.help


def test_a_torch_function_that_is_not_wrapped(library: Any) -> None:
    def train() -> None:
        library.clip(torch.ones(2))  # clip

    (sync,) = in_three_steps(train)
    assert (sync.call, sync.where, sync.per_step, sync.ms_per_step) == ("clip()", line_of("clip"), 1.0, None)


def test_a_library_between_torch_and_the_user(library: Any) -> None:
    """The user's line counts, however deep below it a library synchronizes."""
    trainer = in_file("/usr/lib/python3/site-packages/trainer/loop.py", "trainer.loop", "def log(loss): loss.item()")

    def train() -> None:
        trainer["log"](torch.tensor(1.0))  # trainer

    assert [(s.call, s.where) for s in in_three_steps(train)] == [("item() in log()", line_of("trainer"))]


def test_a_loop_that_belongs_to_a_library(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncs, "is_users", lambda file: False)
    where = "/usr/lib/python3/site-packages/trainer/loop.py"
    trainer = in_file(where, "trainer.loop", "def fit(scaler, tensor):\n    scaler.step(tensor)")
    (sync,) = in_three_steps(lambda: trainer["fit"](library.GradScaler(), torch.tensor(1.0)))
    assert sync.where == "trainer/loop.py:2"
    assert sync.call.endswith("step()")


def test_calls_of_pipediag_are_not_logged(library: Any) -> None:
    ours = in_file(str(Path(frames.__file__).with_name("some.py")), "pipediag.some", "def some(loss): loss.item()")
    assert in_three_steps(lambda: ours["some"](torch.tensor(1.0))) == []


def in_file(file: str, name: str, code: str) -> dict[str, Any]:
    """Return the globals of a module of that name, as if it came from that file."""
    names: dict[str, Any] = {"__name__": name}
    exec(compile(code, file, "exec"), names)
    return names


def test_waiting_counts_without_a_warning(library: Any) -> None:
    def train() -> None:
        torch.cuda.synchronize()  # wait

    (sync,) = in_three_steps(train)
    assert (sync.call, sync.where, sync.per_step) == ("torch.cuda.synchronize()", line_of("wait"), 1.0)


def test_an_error_of_a_call_is_passed_on(library: Any) -> None:
    with syncs.watch() as seen:
        with pytest.raises(RuntimeError, match="cannot be converted"):
            torch.ones(2).item()
        torch.tensor(1.0).item()
        seen.step()
    assert [sync.per_step for sync in seen.report()] == [1.0]


def test_everything_is_undone_when_the_loop_raises(library: Any) -> None:
    with pytest.raises(ZeroDivisionError), syncs.watch():
        assert isinstance(vars(Tensor)["item"], syncs._Watched)
        _ = 1 / 0
    assert library.modes == [0, 1, 0]


def test_other_threads_are_left_alone(library: Any) -> None:
    """Their warnings are neither shown nor logged."""

    def elsewhere() -> None:
        torch.tensor(1.0).item()
        library.warn()

    def train() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    with recorded() as shown:
        assert in_three_steps(train) == []
    assert shown == []


def test_a_wrapped_function_that_was_kept_is_harmless_later(library: Any) -> None:
    with syncs.watch() as seen:
        kept = torch.cuda.synchronize
        seen.step()
    kept()
    seen.step()
    assert seen.report(least=0) == []


def test_nothing_is_installed_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with syncs.watch() as seen:
        assert "item" not in vars(Tensor)
        torch.tensor(1.0).item()
        seen.step()
    assert seen.report(least=0) == []


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Return the texts of the warnings that a program would show."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
        texts += [str(one.message) for one in caught]


class TestWarnings:
    """The program's own warnings are shown as usual, torch's about the mode never."""

    def test_only_the_programs_own_warnings_are_shown(self, library: Any) -> None:
        def train() -> None:
            torch.tensor(1.0).item()
            library.warn()
            warnings.warn("mine", stacklevel=1)

        with recorded() as shown:
            assert len(in_three_steps(train)) == 2
        assert shown == ["mine", "mine", "mine"]

    def test_filters_that_the_program_sets_in_the_loop(self, library: Any) -> None:
        def train() -> None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("error")
                assert torch.tensor(1.0).item() == 1.0
                with pytest.raises(UserWarning, match="mine"):
                    warnings.warn("mine", stacklevel=1)
                warnings.resetwarnings()
                warnings.filterwarnings("always")
                assert torch.tensor(1.0).item() == 1.0
                warnings.warn("mine", stacklevel=1)
            assert [str(one.message) for one in caught] == ["mine"]

        found = in_three_steps(train)
        assert [(sync.call, sync.per_step) for sync in found] == [("item()", 1.0), ("item()", 1.0)]

    def test_filters_that_the_program_adds_stay(self, library: Any) -> None:
        with syncs.watch():
            warnings.filterwarnings("ignore", message="some text")
        added = warnings.filters[0]
        assert (added[0], added[1].pattern) == ("ignore", "some text")

    def test_logged_although_it_was_shown_before(self, library: Any) -> None:
        """Python remembers which warnings it has shown, once for each line."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            library.warn()
            library.warn()
            assert len(in_three_steps(lambda: library.warn())) == 1
        assert len(caught) == 1

    def test_a_program_that_enabled_the_warnings_sees_them(self, library: Any) -> None:
        library.modes.append(1)
        with recorded() as shown:
            found = in_three_steps(lambda: library.warn())
        assert [sync.per_step for sync in found] == [1.0]
        assert [text[:30] for text in shown] == ["called a synchronizing CUDA op"] * 3
        assert library.modes[-1] == 1

    def test_a_program_that_raises_them_as_errors_still_does(self, library: Any) -> None:
        library.modes.append(2)
        with syncs.watch():
            assert library.modes[-1] == 2
        assert library.modes == [0, 2, 2]


class TestStandIns:
    """The wrappers behave like torch's own functions."""

    def test_a_key_in_a_table_of_handlers(self, library: Any) -> None:
        before = {Tensor.to: "to", torch.tensor: "tensor"}
        with syncs.watch():
            assert (before[Tensor.to], before[torch.tensor]) == ("to", "tensor")
            during = {Tensor.to: "to"}
            assert Tensor.to != Tensor.cpu
        assert during[Tensor.to] == "to"

    def test_a_subclass_that_recognizes_its_functions(self, library: Any) -> None:
        """It gets functions that it recognizes, and no more than without wrappers."""
        known = {Tensor.to: "to", Tensor.__getitem__: "[]", Tensor.cpu: "cpu"}
        given = []

        class Listing(Tensor):
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                given.append(known[func])
                return super().__torch_function__(func, types, args, kwargs or {})

        listing = torch.ones(2).as_subclass(Listing)
        with syncs.watch():
            listing.to(torch.float64)[1:].cpu()
        assert given == ["to", "[]", "cpu"]

    def test_a_pickled_wrapper_becomes_the_original(self, library: Any) -> None:
        native = torch.as_tensor
        with syncs.watch():
            assert pickle.loads(pickle.dumps(native)) == native
            sent = pickle.dumps(torch.as_tensor)
        assert pickle.loads(sent) is native

    def test_names_and_docstrings_are_the_originals(self, library: Any) -> None:
        with syncs.watch():
            assert torch.tensor.__name__ == "tensor"
            assert "Constructs a tensor" in torch.tensor.__doc__

    def test_compiled_code_is_not_compiled_again(self, library: Any) -> None:
        from torch._dynamo.testing import CompileCounter

        counter = CompileCounter()

        def some(x: Tensor) -> Tensor:
            return x.to(torch.float64)[1:].cpu() + torch.zeros(2).copy_(x[1:])

        compiled = torch.compile(some, backend=counter, fullgraph=True)
        x = torch.arange(3.0)
        library.available[0] = False  # the compiler asks for a device, too
        expected = compiled(x)
        library.available[0] = True
        with syncs.watch():
            library.available[0] = False
            assert torch.equal(compiled(x), expected)
            assert counter.frame_count == 1
            fresh = torch.compile(lambda x: some(x) + torch.tensor(1.0), backend=counter, fullgraph=True)
            assert torch.equal(fresh(x), expected + 1)
        assert torch.equal(compiled(x), expected)
        assert counter.frame_count == 2


class OnGpu(Tensor):
    """A tensor in host memory that claims to be on a GPU."""

    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda"))


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnGpu)


class Pinned(Tensor):
    def is_pinned(self, *args: Any) -> bool:
        return True


def found(name: str, args: tuple[Any, ...], result: Any, warned: bool = False, **kwargs: Any) -> str | None:
    """Return the name and advice for a call of a tensor's method."""
    suspect = next(suspect for owner, known, suspect in known_syncs.suspects() if (owner, known) == (Tensor, name))
    description = suspect.found(args, kwargs, result, warned)
    return description[0] if description else None


class TestCopies:
    """Copies that torch warns about block; whether others do depends on the memory and the tensor's layout."""

    def test_from_pageable_memory(self) -> None:
        host = torch.ones(4, 4)
        unawares = "to(non_blocking=True) of pageable memory"
        assert found("to", (host, "cuda"), on_gpu(host)) == unawares
        assert found("to", (host, "cuda"), on_gpu(host), warned=True) == "to()"
        assert found("cuda", (host,), on_gpu(host)) == unawares.replace("to(", "cuda(")
        assert found("copy_", (on_gpu(host), host), on_gpu(host)) == unawares.replace("to(", "copy_(")
        assert found("copy_", (on_gpu(host),), on_gpu(host), non_blocking=True, src=host) is not None

    def test_from_pinned_memory(self) -> None:
        host = torch.ones(4, 4).as_subclass(Pinned)
        assert found("to", (host, "cuda"), on_gpu(torch.ones(4, 4))) is None
        assert found("to", (host, "cuda"), on_gpu(torch.ones(4, 4).double())) is None  # converted on the device
        assert found("to", (host, "cuda"), on_gpu(torch.ones(4, 4)), warned=True) == "to()"

    def test_pinned_memory_that_is_not_copied_copied_unchanged(self) -> None:
        """Torch first makes a contiguous copy of it, which is not pinned."""
        host = torch.ones(4, 6).as_subclass(Pinned)
        gaps, turned = host[:, ::2], host.t()
        assert found("to", (gaps, "cuda"), on_gpu(torch.ones(4, 3))) is not None
        assert found("to", (turned, "cuda"), on_gpu(torch.ones(4, 6).t())) is None
        assert found("to", (turned, "cuda"), on_gpu(torch.ones(6, 4))) is not None
        assert found("to", (turned, "cuda"), on_gpu(torch.ones(4, 6).double().t())) is not None
        assert found("copy_", (on_gpu(torch.ones(2, 4, 6)), host), on_gpu(torch.ones(2, 4, 6))) is not None

    def test_to_the_host(self) -> None:
        device, host = on_gpu(torch.ones(4)), torch.ones(4)
        assert found("to", (device, "cpu"), host.as_subclass(Pinned)) is None  # torch pins the target itself
        assert found("to", (device, "cpu"), host, warned=True) == "to()"
        assert found("copy_", (host, device), host) == "copy_(non_blocking=True) of pageable memory"
        pinned = host.as_subclass(Pinned)
        assert found("copy_", (pinned, device), pinned) is None

    def test_copies_on_one_side(self) -> None:
        host = torch.ones(4)
        assert found("to", (host, torch.float64), host.double()) is None
        assert found("to", (on_gpu(host), torch.float64), on_gpu(host.double())) is None
        assert found("to", (host[:0], "cuda"), on_gpu(host[:0])) is None
        assert found("to", (host, "cuda"), "what a subclass of the user's makes of it") is None

    def test_advice_depends_on_the_direction(self) -> None:
        device, host = on_gpu(torch.ones(4)), torch.ones(4)
        to = next(suspect for _, name, suspect in known_syncs.suspects() if name == "to")
        up, down = to.found((host, "cuda"), {}, device, True), to.found((device, "cpu"), {}, host, True)
        assert up is not None and "pin_memory=True in the loader" in up[1]
        assert down is not None and "fetch it every N steps" in down[1]


class Reads:
    """What a read by an index looks like to a warning that torch gives in it."""

    def __getitem__(self, index: Any) -> Any:
        return known_syncs.reading_by_index(sys._getframe(1))


class TestIndexing:
    def test_a_mask_is_named(self) -> None:
        x, mask = torch.ones(4), torch.ones(4) > 0
        assert found("__setitem__", (x, mask, 0.0), None, warned=True) == "boolean assignment by index"
        assert found("__setitem__", (x, torch.tensor([1]), 0.0), None, warned=True) == "assignment by index"
        assert found("__setitem__", (x, mask, 0.0), None) is None

    def test_a_read_is_told_by_its_instruction(self) -> None:
        read = Reads()[3]
        assert read is not None and read[0] == "indexing"
        assert Reads().__getitem__(3) is None

    def test_lists_of_tensors_still_become_tensors(self) -> None:
        """``Tensor.__getitem__`` must not be wrapped. A process of its own: what it would break stays broken."""
        program = """
            import torch
            from pipediag.measure import known_syncs
            for owner, name, _ in list(known_syncs.suspects()):
                setattr(owner, name, lambda *args, call=getattr(owner, name), **kwargs: call(*args, **kwargs))
            torch.as_tensor([torch.tensor(0.5)])
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_suspect_exists_and_has_a_name_and_advice() -> None:
    for owner, name, suspect in known_syncs.suspects():
        assert callable(getattr(owner, name))
        assert suspect.call and suspect.help.endswith(".")
