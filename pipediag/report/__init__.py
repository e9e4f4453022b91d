"""Write and read reports: each kind of subject becomes one document, and the file's ending chooses its format.

It may import ``analysis``, ``session`` and ``errors``. Begin with :data:`RENDERERS`: ``diagnosis`` and ``several_runs``
say in the blocks of ``document`` what there is to say, ``text`` and ``markdown`` write them, ``page`` draws them.
``screen`` shows the summary alone, ``trace`` the timeline; ``progress`` follows a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TextIO

from ..analysis import Diagnosis, diagnose_session
from ..analysis.audit import Audit
from ..analysis.compare import Comparison
from ..analysis.summary import summarise
from ..analysis.sweep import Sweep
from ..errors import PipediagError, SessionFileError, UsageError
from ..session import Session
from ..session.codec import read_json
from . import diagnosis, markdown, several_runs, text
from .document import Block, filled
from .files import check_writable, write_whole
from .terminal import all_printable, look_of, shown_by

Subject = Diagnosis | Comparison | Audit | Sweep
#: Renders a subject as text or as the bytes of a file.
Renderer = Callable[[Subject], str | bytes]

#: Stands for standard output, as JSON, instead of a file.
STANDARD_OUTPUT = "-"


def blocks(subject: Subject) -> list[Block]:
    """Return the document about ``subject``, without control characters."""
    if isinstance(subject, Diagnosis):
        found = diagnosis.blocks(subject)
    elif isinstance(subject, Comparison):
        found = several_runs.comparison_blocks(subject)
    else:
        found = diagnosis.audit_blocks(subject) if isinstance(subject, Audit) else several_runs.sweep_blocks(subject)
    return all_printable(filled(found))


def written_by(writer: Callable[[Iterable[Block]], str]) -> Renderer:
    """Return a renderer that gives the blocks of a subject's document to ``writer``."""
    return lambda subject: writer(blocks(subject))


def _written_by_module(name: str) -> Renderer:
    """Return a renderer that imports a module of this package when it is used, and calls its ``write``."""

    def render(subject: Subject) -> str | bytes:
        written: str | bytes = import_module(f".{name}", __name__).write(subject)
        return written

    return render


def render_json(subject: Subject) -> str:
    """Return the data of ``subject``, not its document."""
    return json.dumps(subject.to_dict(), indent=1, allow_nan=False) + "\n"


#: The formats: the ending of a file's name, and the function that renders a subject.
RENDERERS: dict[str, Renderer] = {
    ".json": render_json,
    ".md": written_by(markdown.write),
    ".txt": written_by(text.write),
    ".html": _written_by_module("page"),
    ".json.gz": _written_by_module("trace"),
}
#: The formats of a diagnosis only.
OF_A_DIAGNOSIS = (".json.gz",)


def screen_for(subject: Subject, stream: TextIO, verbosity: int = 0, kept: bool = False) -> str:
    """Return what ``stream`` shows: one screen, or only the answer or the whole text if ``verbosity`` is negative or
    positive. A ``kept`` one can be seen in other forms later."""
    look = look_of(stream)
    if verbosity > 0:
        shown = text.write(blocks(subject), look.colour, look.fancy)
    else:
        from . import screen  # imports rich

        summary = all_printable(summarise(subject))
        if verbosity == 0:
            more = screen.MORE_KEPT if kept else screen.MORE
            shown = screen.write(summary, width=look.width, colour=look.colour, fancy=look.fancy, more=more)
        else:
            figures = f": {summary.figures}" if summary.figures else ""
            shown = summary.headline + figures + (f" ({summary.certainty})" if summary.certainty else "") + "\n"
    return shown_by(shown, stream)


def ending_of(path: str) -> str:
    """Return the longest ending of a file's name that chooses a format, or ""."""
    name = Path(path).name
    return max((one for one in RENDERERS if name.endswith(one) and name != one), key=len, default="")


def check_output(path: str, of_a_diagnosis: bool = True) -> None:
    """Check, before measuring, that a report can be written to ``path``; "-" is standard output.

    Raises:
        UsageError: no report has this ending, or the file cannot be written.
    """
    if path == STANDARD_OUTPUT:
        return
    ending = ending_of(path)
    if not ending:
        raise UsageError(f"-o {path}: the ending chooses the format, one of {', '.join(RENDERERS)}")
    if ending in OF_A_DIAGNOSIS and not of_a_diagnosis:
        raise UsageError(f"-o {path}: {ending} holds the timeline of one run: use analyze, demo or report")
    check_writable("-o", path)


def write(subject: Subject, path: str) -> None:
    """Write the report in the format of the file's ending. A sweep may be incomplete.

    Raises:
        SessionFileError: the file cannot be written. An earlier one is still there.
    """
    try:
        rendered = RENDERERS[ending_of(path)](subject)
        data = rendered.encode("utf-8", "backslashreplace") if isinstance(rendered, str) else rendered
        write_whole(path, data)
    except OSError as error:
        raise SessionFileError(f"{path} could not be written ({error.strerror})") from None
    except PipediagError as error:
        raise SessionFileError(f"{path} could not be written: {error}") from None
    except Exception as error:  # what was measured goes into the other files
        raise SessionFileError(f"{path} could not be written ({type(error).__name__}: {error})") from error


def read(path: str, price: float | None = None) -> Diagnosis:
    """Return the diagnosis of a saved session, recomputed from its windows.

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
