"""Write and read reports: pure functions of a diagnosis, chosen by the file's ending."""

from __future__ import annotations

import json
from pathlib import Path

from ..analysis import Diagnosis, diagnose_session
from ..errors import SessionFileError, UsageError
from ..session import Session
from .formats import RENDERERS, Subject

__all__ = ["RENDERERS", "check_output", "check_writable", "read", "write"]


def check_output(path: str) -> None:
    """Check, before measuring, that a report can be written to ``path``.

    Raises:
        UsageError: no report has this ending, or the file cannot be written.
    """
    file = Path(path)
    if file.suffix not in RENDERERS:
        raise UsageError(f"-o {path}: the ending chooses the format, one of {', '.join(RENDERERS)}")
    check_writable("-o", path)


def check_writable(option: str, path: str) -> None:
    """Check, before measuring, that the file of ``option`` can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    file = Path(path)
    existed = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path}: cannot be written ({error.strerror})") from None


def write(subject: Subject, path: str) -> None:
    """Write the report in the format of the file's ending. A sweep may be incomplete.

    Raises:
        SessionFileError: the file cannot be written.
    """
    text = RENDERERS[Path(path).suffix](subject)
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SessionFileError(f"{path} could not be written ({error.strerror}); the report is above") from None


def read(path: str) -> Diagnosis:
    """Return the diagnosis of a saved session, recomputed from its windows.

    Raises:
        SessionFileError: the file is missing, unreadable, or not a session.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SessionFileError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise SessionFileError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("session"), dict):
        raise SessionFileError(f"{path}: not a pipediag session; write one with: pipediag analyze -o x.json SCRIPT")
    try:
        return diagnose_session(Session.from_dict({**data["session"], "schema_version": data.get("schema_version")}))
    except SessionFileError as error:
        raise SessionFileError(f"{path}: {error}") from None
