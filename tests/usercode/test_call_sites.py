"""Calls at a line of the user's pass through a function, whatever is called, and as before afterwards."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipediag.patches import LIVE
from pipediag.usercode.call_sites import CallSites, NoCalls

Load = Callable[[str], ModuleType]
_NUMBERS = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Write a module into the working directory and import it."""
    monkeypatch.chdir(tmp_path)

    def loaded(source: str) -> ModuleType:
        name = f"user_{next(_NUMBERS)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


def passed(module: ModuleType, mark: str, run: Callable[[], Any], around: bool = False) -> tuple[Any, list[str]]:
    """Return what ``run`` returns, and the names of the calls that passed at the line with ``mark``."""
    path = Path(str(module.__file__))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if mark in text)
    names: list[str] = []

    def through(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        names.append(getattr(fn, "__name__", type(fn).__name__))
        return fn(*args, **kwargs)

    sites = CallSites(f"{path.name}:{line}{'()' if around else ''}", through)
    with sites.installed():
        found = run()
    seen = [*names]
    assert run() == found and names == seen and LIVE == [], "it is as before"
    return found, seen


WHAT_IS_CALLED = {
    "an alias": ("from math import floor as f\ndef g(x):\n    return f(x)  # here", ["floor"]),
    "a method of a compiled object": ("def g(x):\n    return str(x).upper()  # here", ["str", "upper"]),
    "a local function": ("def g(x):\n    def h(y): return y\n    return h(x)  # here", ["h"]),
    "a class": ("class A:\n    def __new__(cls, x): return x\ndef g(x):\n    return A(x)  # here", ["A"]),
    "arithmetic": ("def g(x):\n    return (x + 1) * 2 ** x  # here", ["add", "pow", "mul"]),
    "an item": ("def g(x):\n    y = [1, 2, 3, 4]\n    return y[x], y[1:], y[::2], (x, y)[0]  # here", 4 * ["getitem"]),
    "items of arrays": (
        "import numpy as np\ny = np.arange(24).reshape(4, 6)\ndef g(x):\n"
        "    return y[1:, ..., x].tolist(), y[y[0, 0], None].sum()  # here",
        ["getitem", "tolist", "getitem", "getitem", "sum"],
    ),
    "a stored item": ("def g(x):\n    y = [1]\n    y[0] = abs(x)  # here\n    return y", ["abs"]),
    "a comparison": ("def g(x):\n    return (x > 0) == (0 < x < 2)  # here", ["gt", "eq"]),
    "in place": ("def g(x):\n    y = [x]\n    z = y\n    y += [1]  # here\n    return y, z is y", ["iadd"]),
    "in place of an item": ("def g(x):\n    y = [x]\n    y[0] += abs(x)  # here\n    return y", ["abs"]),
    "a mask": ("def g(x):\n    return x & 3 | 4 ^ x  # here", ["and_", "xor", "or_"]),
    "constants": ("def g(x):\n    return abs(x - 2 * 3)  # here", ["sub", "abs"]),
    "a comprehension": ("def g(x):\n    return [abs(i) for i in (x, -x)]  # here", ["abs", "abs"]),
    "a lambda": ("def g(x):\n    return (lambda y: abs(y))(x)  # here", ["<lambda>", "abs"]),
    "unpacked arguments": ("def g(x):\n    return max(*[x, 1], key=lambda y: -y)  # here", ["max"]),
    "a mangled name": (
        "class A:\n    def __h(self, x): return x\n    def g(self, x):\n        return self.__h(x)  # here\ng = A().g",
        ["__h"],
    ),
    "a closure": ("def f(k):\n    def g(x):\n        return pow(x, k)  # here\n    return g\ng = f(3)", ["pow"]),
    "a decorated function": (
        "import functools\n@functools.lru_cache\ndef h(x):\n    return abs(x)  # here\ndef g(x):\n    h.cache_clear()\n"
        "    return h(x)",
        ["abs"],
    ),
    "super": (
        "class A:\n    def g(self, x): return x\nclass B(A):\n    def g(self, x):\n"
        "        return super().g(x)  # here\ng = B().g",
        ["g"],
    ),
    "names of the frame": ("def g(x):\n    return len(locals()) + abs(x)  # here", ["len", "abs", "add"]),
    "several lines": ("def g(x):\n    return max(  # here\n        abs(x),\n        1,\n    )", ["max"]),
    "a future import": (
        "from __future__ import annotations\ndef g(x: Undefined = 1) -> Undefined:\n    return abs(x)  # here",
        ["abs"],
    ),
}


@pytest.mark.parametrize("what", WHAT_IS_CALLED)
def test_what_is_called(load: Load, what: str) -> None:
    source, names = WHAT_IS_CALLED[what]
    module = load(source)
    found, seen = passed(module, "# here", lambda: module.g(-3))
    assert (found, seen) == (module.g(-3), names)


def test_several_closures_of_one_function(load: Load) -> None:
    module = load("def f(k):\n    def g(x):\n        return pow(x, k)  # here\n    return g\nboth = f(2), f(3)")
    assert passed(module, "# here", lambda: [g(2) for g in module.both]) == ([4, 8], ["pow", "pow"])


def test_what_is_defined_meanwhile_goes_on_afterwards(load: Load) -> None:
    """A function that the changed code has made outlives the change."""
    module = load("def f():\n    return lambda x: abs(x)  # here")
    sites = CallSites(f"{module.__name__}.py:2", lambda fn, /, *args: 10 * fn(*args))
    with sites.installed():
        made = module.f()
    assert (made(-2), module.f()(-2)) == (20, 2)


def test_undone_after_an_error(load: Load) -> None:
    module = load("def g(x):\n    return 1 / int(x)  # here")
    code = module.g.__code__
    sites = CallSites(f"{module.__name__}.py:2", lambda fn, /, *args: fn(*args))
    with pytest.raises(ZeroDivisionError), sites.installed():
        module.g(0)
    assert module.g.__code__ is code and LIVE == []


def test_code_that_somebody_else_has_put_there_since_stays(load: Load) -> None:
    module = load("def g(x):\n    return abs(x)  # here")
    with CallSites(f"{module.__name__}.py:2", lambda fn, /, *args: fn(*args)).installed():
        module.g.__code__ = (lambda x: "theirs").__code__
    assert module.g(1) == "theirs"


@pytest.mark.parametrize(
    "source, why",
    [
        ("def g(x):\n    return x  # here", "calls nothing"),
        ("def g(x):\n    return locals()  # here", "calls nothing"),
        ("y = abs(-1)  # here", "not found"),
    ],
)
def test_nothing_to_pass(load: Load, source: str, why: str) -> None:
    module = load(source)
    with pytest.raises(NoCalls, match=why):
        passed(module, "# here", lambda: None)


def test_a_file_that_was_changed_since(load: Load) -> None:
    module = load("def g(x):\n    return abs(x)  # here")
    path = Path(str(module.__file__))
    path.write_text("def g(x):\n    return abs(x) + 1  # here")
    with pytest.raises(NoCalls, match="not that of its file"):
        passed(module, "# here", lambda: None)
    for other in ("def g(x:", f"def g(x={'+'.join(['1'] * 900)}):"):
        path.write_text(f"{other}\n    return abs(x)  # here")
        linecache.clearcache()
        with pytest.raises(NoCalls, match="cannot be compiled"):
            passed(module, "# here", lambda: None)


def test_says_nothing_about_the_text_that_it_compiles(load: Load) -> None:
    module = load("def g(x):\n    return abs(x)  # here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert passed(module, "# here", lambda: module.g(-1)) == (1, ["abs"])


AROUND = {
    "arguments": "def h(a, b=2, *, c=3):\n    d = a + b\n    return d * c  # here\n"
    "def g(x):\n    return h(x), h(1, 1, c=x)",
    "a method": "class A:\n    def h(self, x):\n        return x, self  # here\na = A()\ndef g(x):\n    return a.h(x)",
    "super": "class B:\n    def h(self, x): return x\nclass A(B):\n    def h(self, x):\n"
    "        return super().h(x) + 1  # here\ndef g(x):\n    return A().h(x)",
    "a class method": "class A:\n    @classmethod\n    def h(cls, x):\n        return cls, x  # here\ng = A.h",
    "a closure": "def f(k):\n    def h(x):\n        return x + k  # here\n    return h\ng = f(3)",
    "a comprehension": "def h(x):\n    return [y for y in (x, 1)\n        if y]  # here\ndef g(x):\n    return h(x)",
    "decorated": "import functools\n@functools.cache\ndef h(x):\n    return x  # here\ndef g(x):\n    h.cache_clear()\n"
    "    return h(x)",
}


@pytest.mark.parametrize("what", AROUND)
def test_the_function_around_a_line(load: Load, what: str) -> None:
    module = load(AROUND[what])
    found, seen = passed(module, "# here", lambda: module.g(-3), around=True)
    assert found == module.g(-3) and {*seen} == {"h"}


def test_a_generator_is_left_alone(load: Load) -> None:
    module = load("def g(x):\n    yield x  # here")
    with pytest.raises(NoCalls, match="a generator"):
        passed(module, "# here", lambda: None, around=True)
