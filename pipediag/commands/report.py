"""Implement ``pipediag report``: show a saved session again, or convert it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import report as reports
from ..errors import EXIT_OK
from .measuring import show


def report(session: str, outputs: Sequence[str], price: float | None = None) -> int:
    """Write the report of a saved session to the ``outputs``, or show it if there are none; return the exit code.

    ``price`` is what an hour of training costs, in any currency.

    Raises:
        SessionFileError: the file holds no session, or a report cannot be written.
    """
    diagnosis = reports.read(session, price)
    for path in outputs:
        reports.write(diagnosis, path)
    if not outputs:
        show(reports.render_for(diagnosis, sys.stdout))
    return EXIT_OK
