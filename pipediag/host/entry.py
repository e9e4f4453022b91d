"""Start the interpreter for a user's script; this file is run by path, not imported.

Usage: ``python entry.py child ORDER FD SCRIPT [ARGS]...`` measures the script (:mod:`pipediag.host.child`), ``python
entry.py member STARTER ORDER SCRIPT [ARGS]...`` one that the process STARTER began (:mod:`pipediag.host.member`),
``python entry.py runner PLAN_FILE|- FOLDER|- SCRIPT [ARGS]...`` runs it with its remedy (:mod:`pipediag.host.runner`);
``-m MODULE`` can replace SCRIPT as in Python itself.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python has put this folder first; the script's own folder replaces it before the script runs. The package must
    # stay importable for spawned workers, but after everything of the user's.
    _root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, _root)
    else:
        sys.path[0] = _root
    import signal
    from importlib import import_module

    try:
        _role = import_module(f"pipediag.host.{sys.argv[1]}")
    except KeyboardInterrupt:  # the script has not begun: there is no place of the user's to show
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    if _root not in sys.path[1:]:
        sys.path.append(_root)
    sys.exit(_role.main(sys.argv[2:]))
