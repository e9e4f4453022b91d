"""The table of faults. Each row is a test, ``kind-command-moment``; :mod:`.carried_out` carries it out."""

from __future__ import annotations

from . import of_files, of_programs, of_scripts, of_surroundings
from .fault import Fault

FAULTS: tuple[Fault, ...] = (*of_scripts.rows(), *of_files.rows(), *of_programs.rows(), *of_surroundings.rows())
