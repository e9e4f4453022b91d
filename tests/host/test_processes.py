"""Signals that end an analysis as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from pipediag.host.processes import Terminated, exit_code_of, no_orphans


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_they_interrupt(number: signal.Signals) -> None:
    under_these_tests = signal.signal(number, signal.SIG_DFL)  # nohup may have changed it
    try:
        with pytest.raises(Terminated) as interrupt, no_orphans():
            os.kill(os.getpid(), number)
            time.sleep(1)
        assert interrupt.value.signum == number and signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, under_these_tests)


def test_what_nohup_ignores_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with no_orphans():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_childs_exit_code_is_known_though_a_supervisor_ignores_it() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with no_orphans():
            child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"])
            child.wait()
        assert exit_code_of(child) == 3 and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)
