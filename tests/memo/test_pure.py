"""Functions that the user has marked: known by code and arguments, results new each time."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import pipediag
from pipediag.memo.keys import code_of
from pipediag.memo.memo import Memo

made: list[Any] = []


@pipediag.pure
def parsed(path: Any, *more: Any, **options: Any) -> Any:
    made.append(path)
    return {"values": np.array([float(word) for word in Path(path).read_text().split()]), "more": len(more)}


@pipediag.pure
def doubled(values: Any) -> Any:
    made.append(values)
    return values * 2


@pipediag.pure
def noisy(path: Any) -> float:
    made.append(path)
    return random.random()


@pipediag.pure
def of_another_kind(number: int) -> Any:
    made.append(number)
    return {number}


@pytest.fixture(autouse=True)
def none_made() -> None:
    made.clear()


@pytest.fixture
def numbers(folder: Path) -> Path:
    (folder / "a.txt").write_text("1 2 3")
    return folder / "a.txt"


def test_without_a_cache_it_is_called(numbers: Path) -> None:
    assert parsed(numbers)["values"].tolist() == parsed(numbers)["values"].tolist() == [1, 2, 3]
    assert len(made) == 2 and parsed.__name__ == "parsed"


def test_called_once_and_new_each_time(numbers: Path, memo: Memo) -> None:
    with memo.installed():
        for _ in range(3):
            found = parsed(numbers)
            assert found["values"].tolist() == [1, 2, 3]
            found["values"][:] = 0
    assert len(made) == 1


def test_by_the_files_state_and_the_arguments(numbers: Path, memo: Memo) -> None:
    with memo.installed():
        parsed(str(numbers)), parsed(str(numbers), 1), parsed(str(numbers), 1.0), parsed(str(numbers), True)
        parsed(str(numbers), option="a"), parsed(str(numbers), option=b"a")
        assert len(made) == 6
        parsed(str(numbers), 1.0), parsed(str(numbers), option="a")
        assert len(made) == 6
        numbers.write_text("4 5 6")
        assert parsed(str(numbers))["values"].tolist() == [4, 5, 6] and len(made) == 7


def test_arrays_and_tensors_are_known_by_content(memo: Memo) -> None:
    array, tensor = np.arange(5), torch.arange(5)
    with memo.installed():
        for _ in range(2):
            assert doubled(array).tolist() == doubled(tensor).tolist() == [0, 2, 4, 6, 8]
            assert doubled(array.astype(np.int32)).dtype == np.int32
        assert len(made) == 3
        array[0] = tensor[0] = 7
        assert doubled(array).tolist() == doubled(tensor).tolist() == [14, 2, 4, 6, 8]
    assert len(made) == 5


class Odd(int):
    pass


class Named(str):
    pass


@pytest.mark.parametrize(
    "argument", [Odd(3), Named("a"), np.arange(6)[::2], torch.ones(2, requires_grad=True)], ids=repr
)
def test_other_arguments_are_not_remembered(memo: Memo, argument: Any) -> None:
    with memo.installed():
        doubled(argument), doubled(argument)
    assert len(made) == 2


def test_a_folder_is_not_remembered(folder: Path, memo: Memo) -> None:
    with memo.installed():
        for _ in range(2):
            with pytest.raises(IsADirectoryError):
                parsed(folder)
    assert len(made) == 2


def test_results_that_cannot_come_back_equal(memo: Memo) -> None:
    with memo.installed():
        assert of_another_kind(3) == of_another_kind(3) == {3}
    assert len(made) == 2


def test_one_that_draws_is_called_each_time(numbers: Path, memo: Memo) -> None:
    random.seed(0)
    plain = [noisy(numbers) for _ in range(3)]
    random.seed(0)
    with memo.installed(), pytest.warns(UserWarning, match="noisy draws random numbers"):
        assert [noisy(numbers) for _ in range(3)] == plain
    assert len(made) == 6


@pipediag.pure
def warning(number: int) -> int:
    made.append(number)
    warnings.warn("an odd number", stacklevel=2)
    return number


def test_one_that_warns_warns_each_time(memo: Memo) -> None:
    with memo.installed(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warning(3), warning(3)
        warnings.warn("mine", stacklevel=1)
    assert len(made) == 2 and [str(one.message) for one in seen] == ["an odd number"] * 2 + ["mine"]
    assert seen[2].filename == __file__


def test_calls_inside_it_are_not_kept_too(folder: Path, memo: Memo) -> None:
    np.save(folder / "a.npy", np.arange(4))

    @pipediag.pure
    def through_numpy(path: Path) -> Any:
        return np.load(path) + 1

    with memo.installed():
        for _ in range(2):
            assert through_numpy(folder / "a.npy").tolist() == [1, 2, 3, 4]
    assert memo.arena.entries == 1


def module(text: str, **names: Any) -> ModuleType:
    made = ModuleType("written")
    made.__file__ = "written.py"
    vars(made).update(names)
    exec(compile(text, "written.py", "exec"), vars(made))
    return made


@pytest.mark.parametrize(
    ("edited", "same"),
    [
        ("def load(path):\n    return helper.part(path) + SCALE", True),
        ("def load(path):\n    return helper.part(path) - SCALE", False),
        ("def load(path, more=1):\n    return helper.part(path) + SCALE", False),
        ("def load(path):\n    def inner():\n        return 1\n    return helper.part(path) + SCALE", False),
    ],
)
def test_its_code_counts(edited: str, same: bool) -> None:
    helper = module("def part(path):\n    return 1")
    text = "def load(path):\n    return helper.part(path) + SCALE"
    one, other = (module(code, helper=helper, SCALE=1).load for code in (text, edited))
    assert (code_of(one) == code_of(other)) is same


def test_the_code_of_its_helpers_counts() -> None:
    """Also if a module of the user's is imported, not the function."""
    text = "def load(path):\n    return helper.part(path) + part(path) + SCALE"
    parts = [module(f"def part(path):\n    return {number}") for number in (1, 2)]
    digests = {
        code_of(module(text, helper=helper, part=part.part, SCALE=scale).load)
        for helper in parts
        for part in parts
        for scale in (1, 2)
    }
    assert len(digests) == 8


def test_marking_imports_no_torch() -> None:
    code = "import pipediag, sys; pipediag.pure(len); print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
