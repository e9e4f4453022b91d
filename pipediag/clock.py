"""The clocks of measuring code: the system's, also if the script replaces functions of ``time``, and one for tests."""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import time as time
else:
    # A module of our own: tools that freeze or speed up a script's clock replace the functions in every module.
    time = module_from_spec(find_spec("time"))
    time.__spec__.loader.exec_module(time)


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since an arbitrary, fixed moment; never decreases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
