"""The recipes' probe, with what others did to the machine meanwhile, and one phase more.

``profile`` trains plainly while py-spy samples the loop and its workers. Each other phase also says how many cores
other programs used, and how many steps a second it made including the ends of its epochs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.public.load import Foreign
from benchmarks.recipes import probe

#: Samples of each process a second. They slow the phase down, so nothing is timed in it.
RATE = 100


class Profiled(probe.Probe):
    sampler: subprocess.Popen[bytes] | None = None

    def _enter(self) -> None:
        super()._enter()
        self.foreign, self.times = Foreign(), [time.perf_counter()]
        if self.phase == "profile":
            program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
            order = [program, "record", "--pid", str(os.getpid()), "--subprocesses", "--idle", "--full-filenames"]
            order += ["--rate", str(RATE), "--format", "raw", "--duration", str(int(self.seconds) + 2)]
            self.sampler = subprocess.Popen(
                [*order, "--output", str(self.out.with_name("profile.txt"))],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def stepped(self, optimizer: Any) -> None:
        if self.optimizer in (None, id(optimizer)):
            self.times.append(time.perf_counter())
        super().stepped(optimizer)

    def _finish(self) -> None:
        if self.sampler is not None:
            self.sampler.wait()
            self.sampler = None
        whole = self.times[-self.steps - 1 :] if self.steps else self.times
        more = {"foreign": round(self.foreign.cores(), 3)}
        if len(whole) > 1:
            more["whole_rate"] = (len(whole) - 1) / (whole[-1] - whole[0])
        self.result.setdefault("more", {})[self.phase] = more
        super()._finish()


if __name__ == "__main__":
    probe.main(Profiled)
