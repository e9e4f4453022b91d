"""Find out which rank of a distributed job this process is, without importing torch before the script does."""

from __future__ import annotations

import os
import sys
from typing import Any

#: Environment variables in which launchers and schedulers pass a process its rank.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
#: Variables for a process's number on its host, and for the number of all processes.
LOCAL_VARIABLES = (
    ("LOCAL_RANK", "WORLD_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALRANKID", "PMI_SIZE"),
)


def own_rank() -> int | None:
    """Return this process's rank, or None if it is not known to be one of several."""
    group = _process_group()
    if group is not None:
        return int(group.get_rank()) if group.get_world_size() > 1 else None
    if not _in_environment("WORLD_SIZE", 1) > 1:
        return None
    # Lightning names only the local rank; on the first host it is the rank.
    local = _in_environment("LOCAL_RANK", -1) if _in_environment("NODE_RANK", 0) == 0 else -1
    rank = _in_environment("RANK", local)
    return rank if rank >= 0 else None


def local_rank() -> int | None:
    """Return this process's number on its host, or None if it was not started as one of several processes."""
    variable = local_variable()
    return _in_environment(variable, -1) if variable else None


def local_variable() -> str:
    """Return the environment variable that holds this process's number on its host, or ""."""
    for number, count in LOCAL_VARIABLES:
        if _in_environment(count, 1) > 1 and _in_environment(number, -1) >= 0:
            return number
    return ""


def in_a_job() -> bool:
    """Return whether this process trains together with others, as far as this is known yet."""
    group = _process_group()
    size = group.get_world_size() if group is not None else _in_environment("WORLD_SIZE", 1)
    return bool(size > 1)


def _process_group() -> Any:
    """Return ``torch.distributed`` if its process group exists, otherwise None."""
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None


def _in_environment(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise
