"""A script's uncaught exception is shown under ``pipediag run`` as Python shows it, whatever the script's hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RAISES = """
def fail():
    raise LookupError("the planted error")

try:
    fail()
except LookupError as error:
    raise ValueError("from it") from error
"""
HOOKS = {
    "own": "sys.excepthook = lambda kind, error, tb: print(kind.__name__, tb.tb_frame.f_code.co_name, file=sys.stderr)",
    "none": "sys.excepthook = None",
    "missing": "del sys.excepthook",
    "fails": "def hook(kind, error, tb):\n    error.no_such_attribute\nsys.excepthook = hook",
    "exits": "sys.excepthook = lambda kind, error, tb: sys.exit(7)",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_as_python_shows_it(tmp_path: Path, hook: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{HOOKS[hook]}\n{RAISES}")
    plain, ours = (
        subprocess.run([sys.executable, *words, str(script)], capture_output=True, text=True, timeout=60)
        for words in ((), ("-m", "pipediag", "run"))
    )
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)
    assert plain.returncode
