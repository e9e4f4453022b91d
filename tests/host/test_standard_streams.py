"""Standard streams that are closed, full or unread do not disturb pipediag or the script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
HEAD = "import os, sys\nfrom pipediag.host.standard_streams import *\n"


def ran(code: str, redirected: str) -> tuple[int, str]:
    """Exit code and standard error of a program under a shell's redirection."""
    command = f'"{sys.executable}" -c "$CODE" {redirected}'
    environment = {**os.environ, "CODE": HEAD + code, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], env=environment, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_opened(closed: str) -> None:
    """Otherwise the next file opened would get its number, and what the script prints."""
    code = """
open_closed()
assert open(__file__ if '__file__' in globals() else os.devnull).fileno() > 2
print('out', flush=True); print('err', file=sys.stderr, flush=True)
assert all(os.get_inheritable(number) for number in range(3))
"""
    assert ran(code, closed)[0] == 0


@pytest.mark.parametrize(
    ("redirected", "printed"), [(">/dev/full", "No space left"), ("| sleep 0", "Broken pipe"), (">/dev/null", "None")]
)
def test_put_returns_the_error_and_the_end_is_silent(redirected: str, printed: str) -> None:
    code = """
import time
time.sleep(0.3)
error = put('x' * 100000, sys.stdout)
print('more', flush=True)
print(error, file=sys.stderr)
"""
    found, err = ran(code, redirected)
    assert found == 0 and printed in err and err.count("\n") == 1


@pytest.mark.parametrize("flags", ["", "-u"])
@pytest.mark.parametrize("redirected", [">/dev/full", "| sleep 0", "2>&1 | sleep 0"])
def test_a_script_prints_on(redirected: str, flags: str) -> None:
    code = """
import time
before = sys.stdout.encoding, sys.stdout.errors, sys.stdout.name, sys.stdout.mode, sys.stdout.line_buffering
keep_printing()
assert before == (sys.stdout.encoding, sys.stdout.errors, sys.stdout.name, sys.stdout.mode, sys.stdout.line_buffering)
assert sys.stdout is sys.__stdout__ and sys.stdout.fileno() == 1 and not sys.stdout.isatty()
time.sleep(0.3)
for number in range(3):
    print('x' * 10000, flush=True)
    print('y', file=sys.stderr)
sys.exit(5)
"""
    found, err = ran(code, redirected)
    assert found == 5 and err in ("y\n" * 3, "")


@pytest.mark.parametrize(
    ("redirected", "code", "told"), [("| true", 1, ""), (">/dev/full", 1, "No space left"), (">&- 2>&-", 0, "")]
)
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help(redirected: str, code: int, told: str, option: str) -> None:
    found, err = ran(f"from pipediag.cli import main\nsys.argv = ['pipediag', '{option}']\nmain()", redirected)
    assert found == code and told in err and err.count("\n") == bool(told)


def test_what_a_script_prints_arrives(tmp_path: Path) -> None:
    code = "keep_printing()\nprint('é1'); sys.stdout.buffer.write(b'2\\n'); os.system('echo 3')"
    found, err = ran(code, f"> {tmp_path}/x")
    assert (found, err) == (0, "")
    assert sorted((tmp_path / "x").read_text("utf-8").split()) == ["2", "3", "é1"]


@pytest.mark.parametrize(
    ("closes", "left"),
    [
        ("os.close(2)", ""),
        ("os.close(2); held = os.open('held', os.O_CREAT | os.O_RDWR)", ""),
        ("sys.stderr.close()", ""),
        ("sys.stderr = None", ""),
        ("sys.stderr = type('Odd', (), {'flush': print})()", ""),
        ("os.dup2(os.open('held', os.O_CREAT | os.O_RDWR), 2)", "told"),
        ("sys.stderr = open('held', 'w')", "told"),
        ("import builtins; builtins.print = None; sys.stderr = open('held', 'w')", "told"),
    ],
)
def test_a_line_to_standard_error_that_the_script_has_changed(tmp_path: Path, closes: str, left: str) -> None:
    """It is written where the script wants it, and into no other file that has got the number."""
    code = f"os.chdir({str(tmp_path)!r})\n{closes}\ntell('told')\nflush()"
    assert ran(code, ">/dev/null")[0] == 0
    held = tmp_path / "held"
    assert (held.read_text().strip() if held.exists() else "") == left


def test_output_beside() -> None:
    code = """
with output_beside():
    print('a', flush=True); os.system('echo b')
print('c')
"""
    found, err = ran(code, ">/dev/null")
    assert (found, err) == (0, "a\nb\n")
    assert ran(code, "2>&-")[0] == 0
