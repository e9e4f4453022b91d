"""The recipes' probe with one phase more: ``profile`` trains plainly while py-spy samples the loop and its workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.recipes import probe

#: Samples of each process a second. They slow the phase down, so nothing is timed in it.
RATE = 100


class Profiled(probe.Probe):
    sampler: subprocess.Popen[bytes] | None = None

    def _enter(self) -> None:
        super()._enter()
        if self.phase == "profile":
            program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"
            order = [program, "record", "--pid", str(os.getpid()), "--subprocesses", "--idle", "--full-filenames"]
            order += ["--rate", str(RATE), "--format", "raw", "--duration", str(int(self.seconds) + 2)]
            self.sampler = subprocess.Popen(
                [*order, "--output", str(self.out.with_name("profile.txt"))],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _finish(self) -> None:
        if self.sampler is not None:  # it has begun when the loop had settled, or before
            self.sampler.wait()
            self.sampler = None
        super()._finish()


def main() -> Any:
    probe.main(Profiled)


if __name__ == "__main__":
    main()
