"""The table of faults. Each row is a test, ``kind-command-moment``; :mod:`.carried_out` carries it out."""

from __future__ import annotations

from . import of_files, of_processes, of_programs, of_scripts, of_surroundings
from .fault import Fault

_PARTS = (of_scripts, of_files, of_programs, of_surroundings, of_processes)
FAULTS: tuple[Fault, ...] = tuple(row for part in _PARTS for row in part.rows())
