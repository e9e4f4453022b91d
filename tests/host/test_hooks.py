"""Hooks in the script's process: import hooks that undo themselves, and a record of written files."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipediag.host import hooks
from pipediag.host.hooks import (
    Writes,
    before_ray_trains,
    on_backward,
    on_first_iteration,
    on_optimizer_step,
    when_imported,
)
from pipediag.loop import iterators
from pipediag.loop.iterators import IteratorHook

MODULE = "pipediag_fake_package.dataloader"
SOURCE = """
EXECUTED = __spec__.loader
class DataLoader:
    def _get_iterator(self):
        return "native"
class Wrapping(DataLoader):
    calls = 0
    def _get_iterator(self):
        Wrapping.calls += 1
        return "wrapped " + super()._get_iterator()
"""


OPTIMIZER = """
HOOKS = []
class Handle:
    def __init__(self, hook):
        self.hook = hook
    def remove(self):
        HOOKS.remove(self.hook)
def register_optimizer_step_post_hook(hook):
    HOOKS.append(hook)
    return Handle(hook)
def step():
    for hook in HOOKS:
        hook("optimizer", (), {})
"""


RAY = """
class Trainer:
    def fit(self):
        return "trained"
class TorchTrainer(Trainer):
    pass
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package of one module that stands for torch's data loader, importable and not imported yet."""
    folder = tmp_path / "pipediag_fake_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "dataloader.py").write_text(SOURCE)
    (folder / "optimizer.py").write_text(OPTIMIZER)
    (folder / "ray.py").write_text(RAY)
    (folder / "other.py").touch()
    (folder / "broken.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (hooks, iterators):
        monkeypatch.setattr(module, "DATALOADER", MODULE)
    monkeypatch.setattr(hooks, "_OPTIMIZER", "pipediag_fake_package.optimizer")
    monkeypatch.setattr(hooks, "_RAY", (("pipediag_fake_package.ray", "Trainer"), ("pipediag_fake_package.no", "No")))
    yield
    for name in [name for name in sys.modules if name.startswith("pipediag_fake_package")]:
        del sys.modules[name]


def imported(name: str = MODULE) -> Any:
    return importlib.import_module(name)


def test_training_under_ray_is_noticed_before_it_begins() -> None:
    begun: list[str] = []
    with before_ray_trains(lambda: begun.append("begins")):
        trainer = imported("pipediag_fake_package.ray").TorchTrainer()
        assert not begun
        assert trainer.fit() == "trained" and begun == ["begins"]
    assert trainer.fit() == "trained" and begun == ["begins"]


class TestWhenImported:
    def test_acts_right_after_the_first_import(self) -> None:
        seen: list[types.ModuleType] = []
        with when_imported(MODULE, seen.append):
            imported("pipediag_fake_package.other")
            assert seen == []
            module = imported()
            assert seen == [module]
            assert module.DataLoader()._get_iterator() == "native"
            imported()
            assert seen == [module]

    def test_acts_now_on_what_is_imported_already(self) -> None:
        module, seen = imported(), []
        finders = list(sys.meta_path)
        with when_imported(MODULE, seen.append):
            assert seen == [module]
            assert sys.meta_path == finders

    def test_is_undone(self) -> None:
        finders, seen = list(sys.meta_path), []
        with pytest.raises(KeyError), when_imported(MODULE, seen.append):
            assert len(sys.meta_path) == len(finders) + 1
            raise KeyError
        assert sys.meta_path == finders
        imported()
        assert seen == []

    def test_the_modules_own_loader_is_put_back(self) -> None:
        expected = type(importlib.util.find_spec(MODULE).loader)  # type: ignore[union-attr]
        with when_imported(MODULE, lambda module: None):
            module = imported()
        assert type(module.__spec__.loader) is expected
        assert module.__loader__ is module.__spec__.loader
        assert module.EXECUTED is module.__spec__.loader
        assert module.__spec__.loader.get_source(MODULE) == SOURCE
        assert importlib.reload(module).DataLoader

    def test_a_module_that_fails_fails_as_ever(self) -> None:
        seen: list[types.ModuleType] = []
        name = "pipediag_fake_package.broken"
        with when_imported(name, seen.append), pytest.raises(RuntimeError, match="broken"):
            imported(name)
        assert seen == []
        assert name not in sys.modules

    def test_a_module_that_does_not_exist(self) -> None:
        with when_imported("pipediag_fake_package.nowhere", lambda module: None), pytest.raises(ModuleNotFoundError):
            imported("pipediag_fake_package.nowhere")

    def test_a_spec_that_is_only_looked_at_is_whole(self) -> None:
        """Tools that look for a module without importing it (inspect, pkgutil, runpy) ask its loader for the source."""
        with when_imported(MODULE, lambda module: None):
            spec = importlib.util.find_spec(MODULE)
            assert spec is not None
            assert spec.loader is not None
            assert spec.loader.get_source(MODULE) == SOURCE  # type: ignore[attr-defined]


class TestOnFirstIteration:
    def test_begins_once_with_the_first_loader(self) -> None:
        begun: list[str] = []
        with on_first_iteration(lambda: begun.append("now")):
            module = imported()
            native = module.DataLoader.__dict__["_get_iterator"]
            assert begun == []
            loader = module.DataLoader()
            assert [loader._get_iterator(), loader._get_iterator()] == ["native", "native"]
            assert begun == ["now"]
            assert module.DataLoader.__dict__["_get_iterator"] is not native
        assert begun == ["now"]

    def test_begin_may_hook_the_class_itself(self) -> None:
        module = imported()
        native = module.DataLoader._get_iterator

        def begin() -> IteratorHook:
            assert module.DataLoader._get_iterator is native
            return IteratorHook(lambda loader, native: f"hooked {native(loader)}")

        with on_first_iteration(begin):
            assert module.DataLoader()._get_iterator() == "hooked native"
        assert module.DataLoader()._get_iterator() == "native"

    def test_what_the_script_has_wrapped_around_it_is_called_once(self) -> None:
        module = imported()
        native = module.DataLoader._get_iterator
        hook = IteratorHook(lambda loader, native: native(loader))

        def begin() -> IteratorHook:
            below = module.DataLoader._get_iterator
            module.DataLoader._get_iterator = lambda self: hook.iterator(self, below)
            return hook

        with on_first_iteration(begin):
            inner = module.DataLoader._get_iterator
            module.DataLoader._get_iterator = lambda self: f"users {inner(self)}"
            loader = module.DataLoader()
            assert [loader._get_iterator(), loader._get_iterator()] == ["users native", "users native"]
        module.DataLoader._get_iterator = native

    @pytest.mark.parametrize("by_function", [False, True])
    def test_a_script_that_puts_its_own_in_the_place_of_the_class(
        self, monkeypatch: pytest.MonkeyPatch, by_function: bool
    ) -> None:
        """Modules that are imported to measure find torch's class, and the script its own afterwards."""
        module, seen = imported(), []
        native = module.DataLoader
        with on_first_iteration(lambda: seen.append(module.DataLoader)):
            own: Any = (lambda: native()) if by_function else type("Own", (native,), {})
            module.DataLoader = own
            monkeypatch.setattr(iterators, "torchs_loader", lambda: native)  # the stand-in is no generic class
            assert own()._get_iterator() == "native"
            assert seen == [native] and module.DataLoader is own

    def test_is_undone_when_begin_fails(self) -> None:
        module = imported()
        native = module.DataLoader._get_iterator

        def begin() -> None:
            raise RuntimeError("cannot begin")

        with pytest.raises(RuntimeError), on_first_iteration(begin):
            module.DataLoader()._get_iterator()
        assert module.DataLoader._get_iterator is native

    @pytest.mark.parametrize("before", [False, True])
    def test_nothing_iterated_nothing_done(self, before: bool) -> None:
        native = imported().DataLoader._get_iterator if before else None
        with on_first_iteration(lambda: None):
            assert not before or imported().DataLoader._get_iterator is not native
        assert imported().DataLoader()._get_iterator() == "native"
        assert not before or imported().DataLoader._get_iterator is native

    def test_a_subclass_with_an_iterator_of_its_own_runs_it_once(self) -> None:
        module = imported()
        with on_first_iteration(lambda: None):
            assert module.Wrapping()._get_iterator() == "wrapped native"
        assert module.Wrapping.calls == 1


def writes_told_to(told: list[str]) -> Writes:
    return Writes(lambda path, overwrote: told.append(path), began=0.0)


def told_of(*paths: str) -> list[str]:
    told: list[str] = []
    writes = writes_told_to(told)
    for path in paths:
        writes.note(path)
    return told


class TestWrites:
    @pytest.mark.parametrize(
        ("told", "paths"),
        [
            (
                True,
                ["out/model.pt", "/home/me/run/log.txt", "results.csv", "/mnt/proc_data/x.bin", "events.tfevents.1"],
            ),
            # A folder that is merely called like a system one.
            (True, ["/home/me/dev/project/model.pt", "/srv/sys/run/x.pt", "/data/proc/train.csv"]),
            (False, ["/dev/null", "/dev/shm/torch_1", "/proc/self/oom_adj", "/sys/fs/x", "a.pyc", "/tmp/pymp-abc/x"]),
            (False, ["/x/__pycache__/a.cpython-311.pyc.1", "/tmp/torchinductor_me/x.py", "data/cache/builder.lock"]),
            (False, ["/home/me/.cache/huggingface/x", "/home/me/.triton/cache/x"]),
        ],
    )
    def test_results_are_told_of_once_and_no_other_files(self, told: bool, paths: list[str]) -> None:
        assert told_of(*paths, *paths) == (paths if told else [])

    def test_not_from_a_forked_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str] = []
        writes = writes_told_to(told)
        monkeypatch.setattr("os.getpid", lambda: -1)
        writes.note("a")
        assert told == []

    @pytest.mark.parametrize(
        "event, args, expected",
        [
            ("open", ("a", "w", 0o1 | 0o100), ["a"]),
            ("open", ("a", "r+", 0o2), ["a"]),
            ("os.rename", ("a", "b", -1, -1), ["b"]),
            ("open", ("a", "r", 0), []),
            ("open", (3, "w", 0o1), []),
            ("open", (b"a", "w", 0o1), []),
            ("open", ("a", "r", None), []),
            ("import", ("a", "b", "c"), []),
        ],
    )
    def test_audit_events(self, event: str, args: tuple[Any, ...], expected: list[str]) -> None:
        told: list[str] = []
        writes_told_to(told)._audit(event, args)
        assert told == expected

    def test_what_was_there_before_is_overwritten(self, tmp_path: Path) -> None:
        older, newer, missing = (tmp_path / name for name in ("older.pt", "newer.pt", "missing.pt"))
        for path, time in ((older, 100.0), (newer, 300.0)):
            path.touch()
            os.utime(path, (time, time))
        told: list[tuple[str, bool]] = []
        writes = Writes(lambda path, overwrote: told.append((Path(path).name, overwrote)), began=200.0)
        for path in (older, newer, missing):
            writes._audit("open", (str(path), "w", os.O_WRONLY | os.O_TRUNC))
        assert told == [("older.pt", True), ("newer.pt", False), ("missing.pt", False)]

    def test_what_is_appended_to_is_not_overwritten(self, tmp_path: Path) -> None:
        log = tmp_path / "train.log"
        log.touch()
        told: list[bool] = []
        writes = Writes(lambda path, overwrote: told.append(overwrote), began=log.stat().st_mtime + 1)
        writes._audit("open", (str(log), "a", os.O_WRONLY | os.O_APPEND))
        assert told == [False]


class TestOnBackward:
    def passes(self) -> None:
        import torch

        torch.ones(1, requires_grad=True).sum().backward()
        torch.autograd.backward([torch.ones(1, requires_grad=True).sum()])

    def test_every_pass_until_the_end(self) -> None:
        """Then not even one by a function that the script has imported meanwhile."""
        import torch

        passes: list[int] = []
        native = torch.autograd.backward
        with on_backward(lambda: passes.append(1)):
            from torch.autograd import backward

            self.passes()
        self.passes()
        backward([torch.ones(1, requires_grad=True).sum()])
        assert len(passes) == 2 and torch.autograd.backward is native

    def test_not_in_a_forked_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        passes: list[int] = []
        with on_backward(lambda: passes.append(1)):
            monkeypatch.setattr(hooks.os, "getpid", lambda: -1)
            self.passes()
        assert passes == []


class TestOnOptimizerStep:
    def test_from_the_first_import_to_the_end(self) -> None:
        steps: list[int] = []
        with on_optimizer_step(lambda: steps.append(1)):
            optimizer = imported("pipediag_fake_package.optimizer")
            optimizer.step()
            optimizer.step()
        assert len(steps) == 2 and optimizer.HOOKS == []

    def test_once_in_each_forked_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        elsewhere: list[int] = []
        steps: list[int] = []
        process = os.getpid()
        with on_optimizer_step(lambda: steps.append(1), lambda: elsewhere.append(os.getpid())):
            optimizer = imported("pipediag_fake_package.optimizer")
            for pid in (process, 1, 1, process, 2, 1):
                monkeypatch.setattr(hooks.os, "getpid", lambda pid=pid: pid)
                optimizer.step()
        assert elsewhere == [1, 2] and len(steps) == 2

    def test_an_error_of_the_callback_reaches_the_loop_and_the_hook_is_removed(self) -> None:
        def fail() -> None:
            raise KeyError("over")

        with pytest.raises(KeyError), on_optimizer_step(fail):
            optimizer = imported("pipediag_fake_package.optimizer")
            optimizer.step()
        assert optimizer.HOOKS == []
