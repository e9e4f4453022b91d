"""pipediag finds where GPU starvation originates in a PyTorch input pipeline.

Importing this package is cheap: torch is imported when something is measured, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .marker import stage

if TYPE_CHECKING:
    from .analysis import Diagnosis
    from .diagnose import diagnose
    from .remedy import offload
    from .session import Session

__all__ = ["Diagnosis", "Session", "__version__", "diagnose", "offload", "stage"]

_WHERE = {"diagnose": ".diagnose", "Diagnosis": ".analysis", "Session": ".session", "offload": ".remedy"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_WHERE[name], __name__), name)
    globals()[name] = value  # `pipediag.diagnose` is the function, also after its module has been imported
    return value
