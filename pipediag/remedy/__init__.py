"""Run the workers' image transforms on the device, with the same random draws and the same pixels.

It may import ``streams``, ``memo``, ``replay`` and what is below. Begin with :mod:`.loader`, which is
``pipediag.offload``; :mod:`.remedied_run` keeps a whole training under it, :mod:`.finding` and :mod:`.spotcheck` watch
its batches. :mod:`.saved_plan` is a plan's file, :mod:`.handoff` the remedy that moves nothing, :mod:`.edit` the diff.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from ..replay.certify.certifying import Certificate
    from ..replay.ops.op import NotRecordable
    from ..replay.run.per_sample import PerSample
    from .loader import OffloadedLoader, certificate, offload

__all__ = ["Certificate", "NotRecordable", "OffloadedLoader", "PerSample", "certificate", "offload"]

_WHERE = {
    "Certificate": "..replay.certify.certifying",
    "NotRecordable": "..replay.ops.op",
    "OffloadedLoader": ".loader",
    "PerSample": "..replay.run.per_sample",
    "certificate": ".loader",
    "offload": ".loader",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_WHERE[name], __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torchvision":
            raise
        raise UsageError('moving transforms needs torchvision: pip install "pipediag[vision]"') from error
    value = getattr(module, name)
    globals()[name] = value
    return value
