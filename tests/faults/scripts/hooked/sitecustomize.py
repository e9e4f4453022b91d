"""Send the command a signal when it opens a file, or imports a module, whose name contains some text.

``PIPEDIAG_FAULTS_WHEN`` is ``SIGNAL:EVENT:TEXT``, with an audit event of Python's. Child interpreters are left alone.
"""

import os
import signal
import sys

_NUMBER, _EVENT, _TEXT = os.environ["PIPEDIAG_FAULTS_WHEN"].split(":")
_come = []


def _look(event, arguments):
    if event == _EVENT and not _come and _TEXT in str(arguments[0]):
        _come.append(event)
        os.write(2, f"planted: {_NUMBER} at {event} of {_TEXT}\n".encode())
        os.kill(os.getpid(), signal.Signals[_NUMBER])


if sys.orig_argv[1:3] == ["-m", "pipediag"]:
    sys.addaudithook(_look)
