"""Run the command line as ``python -m pipediag``."""

import sys
from os.path import abspath, dirname

if __name__ == "__main__":
    # Python has put the working folder first: the user's html.py there is not for pipediag.
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != dirname(dirname(abspath(__file__))):
        del sys.path[0]
    from pipediag.cli import main

    main()
