"""Names of running lines: what they call, which item they take, and the function that they belong to."""

from __future__ import annotations

import dis
import functools
import importlib
import json
import sys
import zlib
from typing import Any

import numpy
import pytest
import torch
from PIL import ImageFile

from pipediag.usercode.lines import (
    Line,
    begin_of_line,
    begins,
    called,
    compiled_function,
    described_line,
    function_of,
    line_at,
)
from pipediag.usercode.places import short

HERE = short(__file__)


@pytest.mark.parametrize(
    "expression, name",
    [
        ('image = Image.open(path).convert("RGB")', "Image.open(...).convert"),
        ('np.load(self.path)["x"]', "np.load"),
        ("self.readers[f(i)].read(n)", "self.readers[...].read"),
        ("(a + b).sum()", "sum"),
        ("np.abs(np.fft.rfft(frames, axis=1))", "np.abs"),
        ("(a + b) * c", ""),
        ("self.base[i]", ""),
        ("", ""),
        ("f((", ""),
    ],
)
def test_called(expression: str, name: str) -> None:
    assert called(expression) == name


class Stops(Exception):
    """Stop at the line that is to be named."""


class Sample:
    def __getitem__(self, index: int) -> Any:
        raise Stops

    def stop(self, *_: Any) -> Any:
        raise Stops

    def calls(self) -> Any:
        return str(1) + self.stop(str(2))

    def takes_an_item(self) -> Any:
        return str(1), self[0]

    def over_two_lines(self) -> Any:
        return self.stop(
            1,
        )

    def in_a_lambda(self) -> Any:
        return (lambda: self.stop())()

    def in_two_lambdas(self) -> Any:
        return (lambda: (lambda: self.stop())())()

    def a_variable(self) -> Any:
        return [f() for f in (self.stop,)]

    def __matmul__(self, other: Any) -> Any:
        raise Stops

    def an_operator(self) -> Any:
        return str(abs(1)), self @ str(1)

    def an_operator_of_much(self) -> Any:
        return str(self @ max("as long as a name", "can be on a line of the screen"))

    def neither(self) -> Any:
        raise Stops


def running(run: Any) -> Line:
    """Return the line of this file at which ``run`` stops, other than that of :meth:`Sample.stop`."""
    try:
        run()
    except Stops as error:
        traceback, found = error.__traceback__, []
        while traceback is not None:
            found.append((traceback.tb_frame.f_code, traceback.tb_lasti))
            traceback = traceback.tb_next
        code, instruction = [one for one in found if one[0].co_name not in ("stop", "__getitem__", "__matmul__")][-1]
        return line_at(code, instruction)
    raise AssertionError("it does not stop")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no columns")
@pytest.mark.parametrize(
    "method, name",
    [
        ("calls", "self.stop"),
        ("takes_an_item", "self[0]"),
        ("over_two_lines", "self.stop"),
        ("an_operator", "self @ str(1)"),
        ("an_operator_of_much", "self @ max(...)"),
        ("neither", "raise Stops"),
        ("a_variable", "return [f() for f in (self.stop,)]"),
    ],
)
def test_what_runs_on_a_line(method: str, name: str) -> None:
    line = running(getattr(Sample(), method))
    assert (line.calls, line.function) == (name, f"Sample.{method}")
    assert line.where == f"{HERE}:{getattr(Sample, method).__code__.co_firstlineno + 1}"
    assert line.text.startswith(("return", "raise"))


def test_a_lambda_belongs_to_the_function_around_it() -> None:
    assert running(Sample().in_a_lambda).function in ("Sample.in_a_lambda", "a lambda")
    assert running(Sample().in_two_lambdas).function in ("Sample.in_two_lambdas", "a lambda")
    assert running(eval("lambda: Sample().stop()", globals())).function == "a lambda"


def test_code_without_source() -> None:
    code = compile("first = 1\nsecond = first.real", "<nowhere>", "exec")
    line = line_at(code, 0)
    assert (line.text, line.calls) == ("", "")


def words(text: str) -> list[int]:
    found = []
    for word in text.split():
        for size in range(len(word)):
            if size > 3:
                break
        else:
            found.append(1)
    return found


def test_a_jump_without_a_line_belongs_to_its_loop() -> None:
    """A thread that runs Python code is often looked at when it jumps back to the beginning of a loop."""
    first, code = words.__code__.co_firstlineno, words.__code__
    jumps = [one.offset for one in dis.get_instructions(code) if one.opname.startswith("JUMP")]
    found = {line_at(code, jump).where for jump in jumps}
    assert found and found <= {f"{HERE}:{first + line}" for line in (2, 3, 4, 5, 7)}


def pieces(text: str) -> list[str]:
    found = []
    while text:
        found.append(text[:3])
        text = text[3:]
    return found


def test_a_loop_is_not_named_by_the_lines_in_it() -> None:
    """A jump back to its condition covers the whole statement."""
    lines = [line_at(pieces.__code__, one.offset) for one in dis.get_instructions(pieces)]
    assert {line.calls for line in lines if line.text.startswith("while ")} == {"while text"}


def compares(end: int) -> None:
    start = 0
    while end > start:
        end -= 1


def test_a_jump_back_is_not_named_by_the_comparison_before_it() -> None:
    """All that the loop does shows there."""
    of_jump = [one.offset for one in dis.get_instructions(compares) if one.opname != "LOAD_CONST"]
    jump = max(n for n in of_jump if line_at(compares.__code__, n).text.startswith("while "))
    compared = max(n for n in of_jump if n < jump and "COMPARE" in dis.opname[compares.__code__.co_code[n]])
    assert {line_at(compares.__code__, n).calls for n in (compared, jump)} == {"while end > start"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there is no such instruction")
def test_where_a_function_begins() -> None:
    code = words.__code__
    assert [one.opname for one in dis.get_instructions(code) if begins(code, one.offset)] == ["RESUME"]
    assert not begins(code, -1)


def test_the_beginning_of_a_line_names_nothing_that_it_calls() -> None:
    code = Sample.over_two_lines.__code__
    (last,) = (one.offset for one in dis.get_instructions(code) if one.opname in ("CALL", "CALL_METHOD"))
    assert line_at(code, begin_of_line(code, last)).calls == "return self.stop("
    assert line_at(code, last).where == line_at(code, begin_of_line(code, last)).where


def test_functions_of_libraries_by_their_full_names() -> None:
    kind = "ImageFile." if sys.version_info >= (3, 11) else ""
    assert function_of(ImageFile.ImageFile.load.__code__) == f"PIL.ImageFile.{kind}load"
    assert function_of(json.load.__code__) == "json.load"
    assert function_of(torch.stft.__code__) == "torch.functional.stft"
    assert function_of(importlib.import_module.__globals__["_bootstrap"]._gcd_import.__code__) == ""


@pytest.mark.parametrize(
    "name, found",
    [
        ("z.crc32", "zlib.crc32"),
        ("crc", "zlib.crc32"),
        ("zlib.crc32", "zlib.crc32"),  # imported in a function
        ("np.array", "numpy.array"),
        ("np.add", "numpy.add"),
        ("packed", "zlib.compress"),
        ("loads", ""),
        ("own", ""),  # its __call__ has a frame
        ("json.loads", ""),  # it has a frame
        ("sum", ""),
        ("self.read", ""),
        ("np.nothing", ""),
        ("Image.open(...).convert", ""),
        ("", ""),
    ],
)
def test_compiled_functions(name: str, found: str) -> None:
    class Own:
        def __call__(self) -> None:
            pass

    scope = {"z": zlib, "crc": zlib.crc32, "np": numpy, "json": json, "self": object(), "sum": sum, "own": Own()}
    scope |= {"packed": functools.partial(zlib.compress, level=1), "loads": functools.partial(json.loads)}
    assert compiled_function(name, scope) == found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('image = Image.open(path).convert("RGB")', "Image.open(...).convert"),
        ("for name in sorted(names):", "for name in sorted(names)"),
        ("if len(rows) > 3:", "if len(rows) > 3"),
        ("y += x * 2", "y += x * 2"),
        ("y = x / max(1, n)", "y = x / max(1, n)"),
        ("", ""),
    ],
)
def test_a_line_of_which_only_the_text_is_known(text: str, name: str) -> None:
    assert described_line(text, "load", "data.py:3") == Line("data.py:3", text, name, "load")
