"""Which line of the user's code stands for a loop: its own, or the one that gives a library its data."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, Subset

from pipediag.frames import is_installed, is_ours
from pipediag.usercode import constructions, loops
from pipediag.usercode.loops import datasets_in

from ..things import Items

#: A trainer and a progress bar of libraries, that say where the loop over a loader is.
LIBRARY = """
from torch.utils.data import DataLoader, Subset
from pipediag.usercode.loops import dataset_line, loop_line

class Trainer:
    def __init__(self, model=None, train_dataset=None, eval_dataset=None):
        self.data = train_dataset

    def train(self):
        return self.run(DataLoader(self.data))

    def fit(self, model, loader=None, module=None):
        return self.run(loader or module.train_dataloader())

    def run(self, loader):
        return self.inner(loader)

    def inner(self, loader):
        return loop_line(loader)

class Bar:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield loop_line(self.loader)

def passed_on(loader):
    yield from Bar(loader)
"""

Run = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script of the user's beside the libraries, and returns what it has found."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "a_trainer.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "a_trainer", raising=False)

    def load(source: str) -> str:
        file = tmp_path / "train.py"
        file.write_text("from a_trainer import *\nfrom tests.things import Items\n" + textwrap.dedent(source))
        monkeypatch.setattr(constructions, "_users_files", lambda: [str(file)])
        spec = importlib.util.spec_from_file_location("a_users_script", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "a_users_script", module)
        spec.loader.exec_module(module)
        found: str = module.found
        return found

    return load


class TestTheUsersOwnLoop:
    def test_is_where_it_runs(self, run: Run) -> None:
        script = """
            loader = DataLoader(Items())
            found = loop_line(loader)
        """
        assert run(script) == "train.py:5"

    @pytest.mark.parametrize("bar", ["Bar(loader)", "passed_on(loader)", "(one for one in Bar(loader))"])
    def test_also_if_a_library_passes_the_batches_on(self, run: Run, bar: str) -> None:
        script = f"""
            loader = DataLoader(Items())
            for found in {bar}:
                break
        """
        assert run(script) == "train.py:5"


class TestALibrarysLoop:
    def test_the_line_that_makes_the_loader(self, run: Run) -> None:
        script = """
            def main():
                loader = DataLoader(
                    Items(),
                )
                trainer = Trainer()
                return trainer.fit(None, loader)
            found = main()
        """
        assert run(script) == "train.py:5"

    def test_else_the_line_that_makes_the_dataset(self, run: Run) -> None:
        script = """
            dataset = Items()
            trainer = Trainer(train_dataset=dataset)
            found = trainer.train()
        """
        assert run(script) == "train.py:4"

    def test_else_the_argument_that_hands_it_over(self, run: Run) -> None:
        script = """
            parts = {"train": Items(), "test": Items()}
            trainer = Trainer(
                eval_dataset=parts["test"],
                train_dataset=parts["train"],
            )
            found = trainer.train()
        """
        assert run(script) == "train.py:7"

    def test_else_the_only_construction_of_a_loader(self, run: Run) -> None:
        script = """
            class Module:
                def train_dataloader(self):
                    return DataLoader(Items())
            found = Trainer().fit(None, module=Module())
        """
        assert run(script) == "train.py:6"

    @pytest.mark.parametrize(
        "line",
        [
            pytest.param("dataset = Items()", id="made twice"),
            pytest.param("for dataset in [Items()]: pass", id="made in a loop"),
            pytest.param(f"total = {'+'.join(['1'] * 1500)}", id="a script that is nested deep"),
            pytest.param("import os; os.remove(__file__)", id="a script that is gone"),
        ],
    )
    def test_none_if_it_is_not_certain(self, run: Run, line: str) -> None:
        script = f"""
            dataset = Items()
            {line}
            found = Trainer(None, dataset).train()
        """
        assert run(script) == ""


class TestDatasets:
    def test_inside(self) -> None:
        inner = Items()
        both = ConcatDataset([inner, Items()])
        outer = Subset(both, [0])
        assert list(datasets_in(outer)) == [outer, both, inner]
        mixed = ConcatDataset([inner, outer])
        assert list(datasets_in(mixed)) == [mixed]

    def test_the_innermost_is_the_one_that_loads(self, run: Run) -> None:
        script = """
            every = Items()
            some = Subset(every, [0])
            found = dataset_line(some)
        """
        assert run(script) == "train.py:4"

    def test_one_that_has_no_name_is_where_its_class_is_called(self, run: Run) -> None:
        assert run("found = dataset_line(Subset(Items(), [0]))") == "train.py:3"


def test_pipediag_as_an_installed_package_is_no_library_that_runs_the_loop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own frames lie between the loop and the loader."""
    monkeypatch.setattr(loops, "is_installed", lambda file: is_ours(file) or is_installed(file))
    script = """
        loader = DataLoader(Items())
        for _ in [loader]:
            found = loop_line(loader)
    """
    assert run(script) == "train.py:6"
