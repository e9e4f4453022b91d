"""Importing pipediag is cheap: modules that need no torch do not load it, nor do their tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pipediag

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LIGHT = (
    "pipediag",
    "pipediag.session",
    "pipediag.analysis",
    "pipediag.report",
    "pipediag.cli",
    "pipediag.commands.analyze",
    "pipediag.commands.sweep",
    "pipediag.measure.schedule",
    "pipediag.measure.window",
    "pipediag.clock",
    "pipediag.host.passes",
)
#: Packages whose tests load no torch.
TESTED_LIGHT = ("session", "analysis", "report", "host", "benchmarks")
TELL = "print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)))"


def heavy_after(code: str) -> str:
    """Which of the heavy packages a fresh interpreter has loaded after ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\n{TELL}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.splitlines()[-1]


@pytest.mark.parametrize("module", LIGHT)
def test_light_module(module: str) -> None:
    assert heavy_after(f"import {module}") == "[]"


REPORT = str(TESTS / "report/golden/report.json")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["analyze", "--help"], ["report", REPORT], ["compare", REPORT, REPORT]]
)
def test_light_command(arguments: list[str]) -> None:
    begin = f"from pipediag.cli import main\nsys.argv = {['pipediag', *arguments]!r}"
    code = f"{begin}\ntry: main()\nexcept SystemExit: pass"
    assert heavy_after(code) == "[]"


def test_tests_of_light_packages_import_no_torch() -> None:
    names = [
        f"tests.{package}.{file.stem}" for package in TESTED_LIGHT for file in sorted((TESTS / package).glob("*.py"))
    ]
    code = f"import importlib\nfor name in {['tests.conftest', *names]!r}: importlib.import_module(name)"
    assert heavy_after(code) == "[]"


def test_names_of_the_package_resolve_lazily() -> None:
    names = "(pipediag.Session.__name__, pipediag.Diagnosis.__name__)"
    assert heavy_after(f"import pipediag\nassert {names} == ('Session', 'Diagnosis')") == "[]"


def test_no_module_hides_a_name_of_the_package() -> None:
    """Importing a submodule sets an attribute of the package, which must not hide a public name."""
    modules = {path.stem for path in Path(pipediag.__file__).parent.iterdir()}
    assert not modules & {*pipediag.__all__}


def test_unknown_name_of_the_package() -> None:
    import pipediag

    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = pipediag.nonsense


def test_windows_gets_one_clear_line() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys; sys.platform = 'win32'; import pipediag"], capture_output=True, text=True
    )
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1] == (
        "ImportError: pipediag runs on Linux and macOS only: on Windows, install it under WSL 2"
    )
