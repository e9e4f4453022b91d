"""Ask NVIDIA's management library about GPUs, if ``nvidia-ml-py`` is installed."""

from __future__ import annotations

from typing import Any


class Gpu:
    """One device, as the library knows it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, uuid: str) -> Gpu | None:
        """Return the GPU with this UUID (as torch gives it, without the ``GPU-`` prefix), or None without NVML."""
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
        except Exception:  # no library, no driver, no such device: evidence is optional
            return None

    @classmethod
    def used_by(cls, pid: int) -> list[Gpu]:
        """Return the GPUs on which a process computes; empty if NVML is missing or does not tell."""
        try:
            import pynvml

            pynvml.nvmlInit()
            every = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [
                cls(pynvml, one)
                for one in every
                if any(user.pid == pid for user in pynvml.nvmlDeviceGetComputeRunningProcesses(one))
            ]
        except Exception:
            return []

    @property
    def name(self) -> str:
        try:
            return str(self._nvml.nvmlDeviceGetName(self._handle))
        except Exception:
            return "GPU"

    def utilization(self) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100.0
        except Exception:
            return None
