"""Implement ``pipediag report``: show a saved session again, or convert it."""

from __future__ import annotations

from .. import report as reports
from ..errors import EXIT_OK
from .results import Results


def report(session: str, results: Results, price: float | None = None) -> int:
    """Write the report of a saved session to the files of ``results``, or show it; return the exit code.

    ``price`` is what an hour of training costs, in any currency.

    Raises:
        SessionFileError: the file holds no session.
    """
    diagnosis = reports.read(session, price)
    results.convert(diagnosis)
    return results.code(EXIT_OK)
