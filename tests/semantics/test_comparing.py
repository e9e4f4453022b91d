"""What a comparison of two runs says first."""

from __future__ import annotations

import pytest

pytest.importorskip("torchvision")

from benchmarks.semantics.running import Ran, error_in
from benchmarks.semantics.ways import difference

LINES = ["step Tensor(torch.float32 (4, 3) (3, 1) 0123) 0x1p0", "calls 16", "alive 0"]


def ran(lines: list[str] = LINES, code: int | None = 0, error: str = "") -> Ran:
    return Ran(code, lines, [], error, 1.0)


def test_equal_runs() -> None:
    assert difference(ran(), ran()) == ""
    assert difference(ran(code=1, error="KeyError: 'a'"), ran(code=1, error="KeyError: 'a'")) == ""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ran([LINES[0], "calls 32", LINES[2]]), "line 2: calls … '32' instead of '16'"),
        (ran(LINES[:2], 1, "KeyError: 'a'"), "line 3: the end instead of 'alive 0' (KeyError: 'a')"),
        (ran(code=3, error="gone"), "exit code 3 instead of 0 (gone)"),
        (ran(LINES[:1], -9), "SIGKILL ends it after step Tensor(torch.float32 (4, 3) (3, 1) 0123) 0x1p0"),
        (ran(LINES[:1], None), "it hangs after step Tensor(torch.float32 (4, 3) (3, 1) 0123) 0x1p0"),
    ],
)
def test_the_first_difference(other: Ran, said: str) -> None:
    assert difference(ran(), other) == said


def test_errors_are_compared_without_addresses() -> None:
    first, second = (ran(code=1, error=f"ValueError: at 0x{address}") for address in ("1f", "2e"))
    assert difference(first, second) == ""
    assert "instead of" in difference(first, ran(code=1, error="ValueError: elsewhere"))


def test_lines_that_are_not_compared() -> None:
    assert difference(ran(), ran([LINES[0], "calls 32", LINES[2]]), ["calls"]) == ""


def test_pixels_that_may_be_off_are_compared_by_their_mean_and_some_values() -> None:
    plain, near = (
        "x Tensor(torch.float32 (4,) (1,) 0123456789 ~0.5000;0.1,0.9,0.2,0.8) 0x1p0",
        "x Tensor(torch.float32 (4,) (1,) 0a23456789 ~0.5010;0.1,0.9,0.3,0.801) 0x1.01p0",
    )
    said = ["pipediag: moved from the loader at train.py:3 to cpu: Turn; the pixels are within the tolerances"]
    exact, inexact = (Ran(0, [near], words, "", 1.0) for words in ([], said))
    assert difference(ran([plain]), exact) != "" == difference(ran([plain]), inexact)
    for before, after in (("~0.5010", "~0.5510"), ("0.1,0.9", "0.9,0.9"), ("(1,)", "(2,)")):
        assert difference(ran([plain]), Ran(0, [near.replace(before, after)], said, "", 1.0))


TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: corrupt 5", ""]


@pytest.mark.parametrize(
    "after",
    [
        [],
        ["/site/v2.py:12: UserWarning: The function is deprecated.", "  warnings.warn("],
        ["thread: Traceback (most recent call last):", "thread: RuntimeError: worker exited"],
        ["Exception ignored in: <function _Iterator.__del__>", *TRACEBACK[:2], "AssertionError: gone"],
        ["pipediag: nothing was moved"],
    ],
)
def test_the_error_is_what_the_script_ends_by_and_not_what_is_written_after_it(after: list[str]) -> None:
    assert error_in([*TRACEBACK, *after]) == "ValueError: corrupt 5"


def test_a_warning_alone_is_no_error() -> None:
    assert error_in(["/site/v2.py:12: UserWarning: The function is deprecated.", "  warnings.warn("]) == ""
