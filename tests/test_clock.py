"""Measuring code has clocks that no script replaces."""

from __future__ import annotations

import ast
import sys
import time
from pathlib import Path

import pytest

from pipediag.clock import SystemClock
from pipediag.clock import time as own

PACKAGE = Path(__file__).resolve().parents[1] / "pipediag"
#: Modules that run where the script does, or in its workers.
IN_THE_SCRIPT = [
    *(path for name in ("usercode", "measure", "loop", "memo", "replay", "streams", "remedy", "ladder")
      for path in sorted((PACKAGE / name).rglob("*.py"))),
    *(PACKAGE / f"{name}.py" for name in ("diagnosing", "monitoring", "host/child", "host/member", "host/runner")),
    *(PACKAGE / f"host/{name}.py" for name in ("exceptions", "hooks", "own_loops", "rerouting")),
]  # fmt: skip
CLOCKS = ("time", "monotonic", "perf_counter", "thread_time", "process_time", "sleep")


def test_system_clock_does_not_go_back() -> None:
    clock = SystemClock()
    times = [clock.now() for _ in range(5)]
    assert times == sorted(times)


def test_the_clock_goes_on_in_a_script_that_froze_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tools do that replace the functions wherever a module has them."""
    native = {id(getattr(time, name)): name for name in CLOCKS}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in native:
                monkeypatch.setattr(module, name, lambda *args: 5.0)
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0.001)
    assert clock.now() > before and time.perf_counter() == 5.0
    assert all(getattr(own, name) is not getattr(time, name) for name in CLOCKS)


@pytest.mark.parametrize("path", IN_THE_SCRIPT, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_reads_the_scripts_clock(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert "time" not in [alias.name for alias in node.names], f"line {node.lineno}: use pipediag.clock"
        if isinstance(node, ast.ImportFrom):
            assert node.module != "time" or node.level, f"line {node.lineno}: use pipediag.clock"
