"""Where an interpreter begins that runs a user's script: started by file path, not imported.

Usage: ``python entry.py child PLAN_FILE FD SCRIPT [ARGS]...`` measures the script (:mod:`pipediag.host.child`),
``python entry.py runner PLAN_FILE|- SCRIPT [ARGS]...`` runs it with its remedy (:mod:`pipediag.host.runner`); in the
place of SCRIPT ``-m MODULE`` does as for Python itself.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python has put this folder first; the script's own folder takes its place before the script runs. The package
    # must stay importable for spawned workers, but behind everything of the user's.
    _root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, _root)
    else:
        sys.path[0] = _root
    from importlib import import_module

    _role = import_module(f"pipediag.host.{sys.argv[1]}")
    if _root not in sys.path[1:]:
        sys.path.append(_root)
    sys.exit(_role.main(sys.argv[2:]))
