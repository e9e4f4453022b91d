"""Files that anybody may have written in place of a session or a plan, and places where nothing can be written.

Each function lays one into a folder and returns the path by which a command is given it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipediag import __version__
from pipediag.remedy.saved_plan import SavedPlan, versions
from pipediag.session.codec import DEEPEST, MOST_BYTES, MOST_VALUES

from ..session.hostile import full_session

Lay = Callable[[Path], str]

#: A user that no test runs as.
_OTHERS = 65533


def text(content: str | bytes | Callable[[], str]) -> Lay:
    """A file with this content."""

    def lay(folder: Path) -> str:
        held = content() if callable(content) else content
        (folder / "given.json").write_bytes(held if isinstance(held, bytes) else held.encode())
        return "given.json"

    return lay


def at(path: str) -> Lay:
    """Something that is there already, or is not there at all."""
    return lambda folder: path


def fifo(folder: Path) -> str:
    os.mkfifo(folder / "fifo")
    return "fifo"


def directory(folder: Path) -> str:
    (folder / "folder.json").mkdir()
    return "folder.json"


def loop(folder: Path) -> str:
    (folder / "loop.json").symlink_to("loop.json")
    return "loop.json"


def sparse(folder: Path) -> str:
    with (folder / "sparse.json").open("wb") as file:
        file.truncate(MOST_BYTES << 4)
    return "sparse.json"


def denied(folder: Path) -> str:
    """A file of somebody else's; to be used with :data:`.fault.AS_ANYBODY`."""
    (folder / "denied.json").write_text(session())
    _keep_from_us(folder / "denied.json", 0o000)
    return "denied.json"


def denied_folder(folder: Path) -> str:
    """A folder of somebody else's; to be used with :data:`.fault.AS_ANYBODY`."""
    (folder / "denied").mkdir()
    _keep_from_us(folder / "denied", 0o500)
    return "denied/report.json"


def _keep_from_us(path: Path, mode: int) -> None:
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, _OTHERS, _OTHERS)


def session(**values: Any) -> str:
    """A whole session, with some of its values replaced."""
    return json.dumps({"schema_version": 1, "session": {**full_session().to_dict(), **values}})


def plan(**values: Any) -> str:
    """A plan for the planted script, with some of its values replaced."""
    whole = SavedPlan(
        "__main__.Images", 8, "cpu", (("Blur", "0123"),), script="trains.py", where="trains.py:1", versions=versions()
    )
    return json.dumps({**whole.to_dict(), **values})


_WINDOW = {"round": 0, "steps": 1, "seconds": 1.0}
#: What is neither a session nor a plan, with what is said of it.
BAD: dict[str, tuple[Lay, str]] = {
    "empty": (text(""), "not JSON"),
    "binary": (text(bytes(range(256)) * 99), "not JSON"),
    "truncated": (text(lambda: session()[:5000]), "not JSON"),
    "other-encoding": (text(session().encode("utf-16")), "not JSON"),
    "nested": (text("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2)), "nested too deep"),
    "nested-100000": (text("[" * 100_000), "nested too deep|not JSON|more than"),
    "huge": (text(" " * (MOST_BYTES + 1)), "larger than 16 MB"),
    "sparse": (sparse, "larger than 16 MB"),
    "many-values": (text("[" + "{}," * MOST_VALUES + "{}]"), f"more than {MOST_VALUES} values"),
    "endless": (at("/dev/zero"), "not a regular file"),
    "fifo": (fifo, "not a regular file"),
    "directory": (directory, "cannot be read"),
    "missing": (at("missing.json"), "cannot be read .No such file"),
    "symlink-loop": (loop, "cannot be read .Too many levels"),
    "not-a-number": (text('{"session": {"windows": [NaN]}}'), "NaN is no number"),
    "long-number": (text('{"session": ' + "9" * 100_000 + "}"), "too large"),
    "list": (text("[1, 2]"), "pipediag"),
    "number": (text("3"), "pipediag"),
    "null": (text("null"), "pipediag"),
}
#: What is no session, although it is JSON.
BAD_SESSIONS: dict[str, tuple[Lay, str]] = {
    **BAD,
    "other-schema": (text(json.dumps({"schema_version": 0, "session": {}})), "schema|version|older|newer"),
    "newer-schema": (text(lambda: json.dumps({"schema_version": 99, "session": {}})), "newer|version"),
    "unknown-rung": (text(lambda: session(tool_version=__version__, windows=[{"rung": "wheel", **_WINDOW}])), "wheel"),
    "untried-settings": (text(lambda: session(windows=[{"rung": "settings:9", **_WINDOW}])), "settings:9|damaged"),
    "wrong-types": (text(lambda: session(windows={"rung": 3})), "windows"),
    "a-plan": (text(lambda: plan()), "session"),
}
#: What is no plan, or none for the planted script.
BAD_PLANS: dict[str, tuple[Lay, str]] = {
    **BAD,
    "a-session": (text(lambda: session()), "no plan of pipediag's"),
    "newer-schema": (text(lambda: plan(pipediag_plan=99)), "newer pipediag"),
    "wrong-types": (text(lambda: plan(moved=3)), "damaged"),
    "other-script": (text(lambda: plan(script="other.py")), "made for other.py"),
    "other-versions": (text(lambda: plan(versions={**versions(), "torch": "1.0"})), "made with torch 1.0"),
    "no-versions": (text(lambda: plan(versions={})), "no version of"),
    "other-loader": (text(lambda: plan(dataset="\x1b[2JElsewhere")), "made for another loader"),
}
