"""pipediag finds where GPU starvation originates in a PyTorch input pipeline.

Importing this package is cheap: torch is imported when something is measured, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .marker import stage

if TYPE_CHECKING:
    from .diagnosing import Diagnosis, diagnose
    from .memo.loader import cache
    from .memo.pure import pure
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
