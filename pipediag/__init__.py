"""pipediag finds where GPU starvation originates in a PyTorch input pipeline.

Importing this package is cheap: torch is imported when something is measured, not before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("pipediag runs on Linux and macOS only: on Windows, install it under WSL 2")

from ._version import __version__
from .marker import stage

if TYPE_CHECKING:
    from .diagnosing import Diagnosis, diagnose
    from .memo.loader import cache
    from .memo.pure import pure
    from .monitoring import monitor
    from .remedy import offload
    from .session import Session
    from .streams.branches import fork_join
    from .streams.pipeline import StagePipeline

__all__ = [
    "Diagnosis",
    "Session",
    "StagePipeline",
    "__version__",
    "cache",
    "diagnose",
    "fork_join",
    "monitor",
    "offload",
    "pure",
    "stage",
]

_WHERE = {
    "diagnose": ".diagnosing",
    "Diagnosis": ".diagnosing",
    "Session": ".session",
    "offload": ".remedy",
    "cache": ".memo.loader",
    "monitor": ".monitoring",
    "pure": ".memo.pure",
    "StagePipeline": ".streams.pipeline",
    "fork_join": ".streams.branches",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_WHERE[name], __name__), name)
    globals()[name] = value
    return value
