"""Access the training device through torch's device-agnostic calls."""

from __future__ import annotations

from typing import Any

import torch

from ..clock import time
from .machine import Gpu

#: Ticks of the delay that measures the clock: about a millisecond.
_TICKS = 2_000_000


class Device:
    """A ``torch.device`` of any kind with its synchronization and facts; on the CPU there is nothing to wait for."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self.is_cpu = device.type == "cpu"
        self._ticks = 0.0  # per second, of the clock of ``torch.cuda._sleep``; 0 before the first delay
        self._module = None if self.is_cpu else torch.get_device_module(device)

    def synchronize(self) -> None:
        if self._module is not None:
            self._module.synchronize(self.torch_device)

    def delay(self, seconds: float) -> None:
        """Let the device idle for ``seconds`` before the work that is queued next; on the CPU, the host waits."""
        if self.torch_device.type == "cuda":
            if not self._ticks:
                begins = self.event()
                torch.cuda._sleep(_TICKS)
                ends = self.event()
                assert begins is not None and ends is not None
                self.synchronize()
                self._ticks = 1000 * _TICKS / float(begins.elapsed_time(ends))
            torch.cuda._sleep(int(seconds * self._ticks))
        else:
            time.sleep(seconds)

    def event(self) -> Any | None:
        """Return a timing event recorded on the current stream, or None on the CPU."""
        make = getattr(self._module, "Event", None)
        if make is None:
            return None
        event = make(enable_timing=True)
        event.record()
        return event

    def forget_peak(self) -> None:
        """Restart the peak of :meth:`peak_bytes`."""
        reset = getattr(self._module, "reset_peak_memory_stats", None)
        if reset is not None:
            reset(self.torch_device)

    def peak_bytes(self) -> int | None:
        """Return the peak of bytes that torch has allocated on the device, or None if it does not count them."""
        peak = getattr(self._module, "max_memory_allocated", None)
        return int(peak(self.torch_device)) if peak is not None else None

    def gpu(self) -> Gpu | None:
        """Return the device's NVML handle, or None if it is no NVIDIA GPU or NVML is missing."""
        if self.torch_device.type != "cuda":
            return None
        uuid = getattr(torch.cuda.get_device_properties(self.torch_device), "uuid", None)
        return Gpu.open(str(uuid)) if uuid is not None else None

    def facts(self) -> dict[str, Any]:
        device = self.torch_device
        facts: dict[str, Any] = {"type": device.type, "index": device.index}
        name = getattr(self._module, "get_device_name", None)
        if name is not None:
            facts["name"] = name(device)
        return facts


def default_device() -> torch.device:
    """Return the accelerator if there is one, else the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator if accelerator is not None else torch.device("cpu")
