"""Carry out one row of the table, and look at all that it must leave and may not leave."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipediag.session.codec import read_json

from .fault import COMPLETE, EARLIER, GIVEN, MEASURED, NOTHING, PARTS, PLAN, REPORT, TRACE, Fault
from .leaks import PIPEDIAG, Leaks

#: Seconds until a command must have ended; far more than any needs.
PATIENCE = 120.0
#: What Python says of a hook or destructor that raised, and how a traceback shows our own code.
_BAD = re.compile(r"Exception ignored|Exception in thread|Bad file descriptor|/pipediag/(?!host/entry)[a-z_/]+\.py")
#: In a program's own traceback our code has its place.
_BAD_IN_A_PROGRAM = re.compile(r"Exception ignored|Exception in thread")
_PLANTED = "planted: "
_ESCAPE = "\x1b"
#: Written by commands as they were asked to, or by the planted script.
_EXPECTED = {REPORT, PLAN, TRACE, "results/report.html", "results/again.html"}
_EARLIER = '{"earlier": true}'


def carry_out(fault: Fault, leaks: Leaks) -> None:
    """Run the row's command with its fault, and check everything that the table and the page promise."""
    cwd = leaks.cwd
    (cwd / "results").mkdir()
    (cwd / "model.pt").write_bytes(os.urandom(1000))
    (cwd / "data").mkdir()
    (cwd / "data" / "train.csv").write_text("1,2,3\n")
    if fault.keeps == EARLIER:
        (cwd / REPORT).write_text(_EARLIER)
    given = fault.lays(cwd) if fault.lays is not None else ""
    before = _contents(cwd)
    argv = [given if one == GIVEN else one for one in fault.argv]
    process = leaks.start(*_possible(fault.within), *argv)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        leaks.end()
        out, err = process.communicate()
        pytest.fail(f"it did not end:\n{out}\n{err}")
    told = f"{out}\n{err}"
    left = leaks.left(folders=not _was_killed(fault, process.returncode))
    assert left == {}, f"it left {left}:\n{told}"
    assert process.returncode == fault.code, f"exit code {process.returncode}, not {fault.code}:\n{told}"
    if _is_planted(fault):
        assert _PLANTED in told, f"the fault did not come:\n{told}"
    lines = [" ".join(line.split()) for line in [*told.splitlines(), told]]
    assert any(re.search(fault.says, line) for line in lines), f"it does not say {fault.says!r}:\n{told}"
    if fault.alone:
        assert re.fullmatch(r"pipediag: .*\n", err), f"not one line of its own:\n{told}"
    bad = (_BAD if fault.argv[:3] == PIPEDIAG else _BAD_IN_A_PROGRAM).search(err)
    assert bad is None, f"it says {bad[0]!r}:\n{told}"
    assert _ESCAPE not in told, f"an escape sequence:\n{told!r}"
    for line in told.splitlines():
        if line.startswith("left: "):
            assert line == "left: nothing", told
        if line.startswith("on disk:"):
            assert not re.search(r"\.pipediag-|\.tmp", line), told
    _check_kept(fault, cwd, told)
    after = _contents(cwd)
    assert {path: after.get(path) for path in before if path != REPORT} == {
        path: held for path, held in before.items() if path != REPORT
    }, "a file of the user's has changed"
    new = after.keys() - before.keys() - _EXPECTED
    assert not new, "files that nobody asked for"


def _possible(within: tuple[str, ...]) -> tuple[str, ...]:
    if within[:1] == ("unshare",):
        user = within[1]
        if shutil.which("unshare") is None or subprocess.run(["unshare", user, "true"], capture_output=True).returncode:
            pytest.skip("this system lets nobody mount a disk of his own")
    elif within and shutil.which(within[0]) is None:
        pytest.skip(f"this system has no {within[0]}")
    return within


def _was_killed(fault: Fault, code: int) -> bool:
    """True if a process of pipediag's own was killed with no moment to clean up: that of a program, too."""
    return code in (-9, -11, -15) or (code > 0 and fault.kind in ("os-exit", "few-files"))


def _is_planted(fault: Fault) -> bool:
    """True if a script is to tell of its fault: not one of the ways to use a loader, which have no moment."""
    return any(one.startswith("--at=") and one != "--at=" for one in fault.argv)


def _contents(folder: Path) -> dict[str, str]:
    """All files below a folder with what they hold, or what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith("samples/"):  # of a cache: large, and not the user's
            continue
        if path.is_symlink() or not path.is_file():
            if not path.is_dir():
                found[name] = "special"
            continue
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _check_kept(fault: Fault, cwd: Path, told: str) -> None:
    path = cwd / REPORT
    match fault.keeps:
        case k if k == NOTHING:
            assert not path.is_file(), f"a report was written\n{told}"
        case k if k == EARLIER:
            assert path.read_text() == _EARLIER, "the earlier report was not kept"
        case k if k == PARTS:
            rows = json.loads(path.read_text())["runs"]
            assert len(rows) == 2, rows
        case _:
            assert path.is_file(), f"no report was written\n{told}"
            data = read_json(str(path))
            assert isinstance(data, dict), told
            if fault.command == "sweep":
                assert data["runs"], told
                return
            session = data["session"]
            assert session["windows"] or session["observed"], told
            if fault.keeps == COMPLETE:
                assert session["ended"] in ("settled", "budget", "script-ended"), session["ended"]
            else:
                assert fault.keeps == MEASURED
