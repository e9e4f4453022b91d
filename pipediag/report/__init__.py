"""Write and read reports: each kind of subject becomes one document, and the file's ending chooses its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from ..analysis import Diagnosis, diagnose_session
from ..analysis.audit import Audit
from ..analysis.compare import Comparison
from ..analysis.sweep import Sweep
from ..errors import SessionFileError, UsageError
from ..session import Session
from ..session.files import read_json
from . import audit, comparison, diagnosis, markdown, sweep, text
from .document import Block, filled

Subject = Diagnosis | Comparison | Audit | Sweep


def blocks(subject: Subject) -> list[Block]:
    """Return the document about ``subject``."""
    if isinstance(subject, Diagnosis):
        return filled(diagnosis.blocks(subject))
    if isinstance(subject, Comparison):
        return filled(comparison.blocks(subject))
    return filled(audit.blocks(subject) if isinstance(subject, Audit) else sweep.blocks(subject))


def written_by(writer: Callable[[Iterable[Block]], str]) -> Callable[[Subject], str]:
    """Return the function that renders a subject by the writer of a document's blocks."""
    return lambda subject: writer(blocks(subject))


def _render_json(subject: Subject) -> str:
    """Return the data of ``subject``, not its document."""
    return json.dumps(subject.to_dict(), indent=1, allow_nan=False) + "\n"


#: The formats: the ending of a file's name, and the function that renders a subject.
RENDERERS: dict[str, Callable[[Subject], str]] = {
    ".json": _render_json,
    ".md": written_by(markdown.write),
    ".txt": written_by(text.write),
}


def render_for(subject: Subject, stream: TextIO) -> str:
    """Return plain text in a form that the stream can show."""
    return text.write_for(blocks(subject), stream)


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
    rendered = RENDERERS[Path(path).suffix](subject)
    try:
        Path(path).write_text(rendered, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise SessionFileError(f"{path} could not be written ({error.strerror}); the report is above") from None


def read(path: str, price: float | None = None) -> Diagnosis:
    """Return the diagnosis of a saved session, recomputed from its windows.

    ``price`` is what an hour of training costs, in any currency.

    Raises:
        SessionFileError: the file is missing, unreadable, or not a session.
    """
    data = read_json(path)
    if not isinstance(data, dict) or not isinstance(data.get("session"), dict):
        raise SessionFileError(f"{path}: not a pipediag session; write one with: pipediag analyze -o x.json SCRIPT")
    try:
        session = Session.from_dict({**data["session"], "schema_version": data.get("schema_version")})
    except SessionFileError as error:
        raise SessionFileError(f"{path}: {error}") from None
    return diagnose_session(session, price)
