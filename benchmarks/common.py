"""Share code between the benchmarks: run pipediag on a script, and save results with their circumstances."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def analyze(options: list[str], command: list[str]) -> dict[str, Any]:
    """Return the JSON report of ``pipediag analyze OPTIONS COMMAND``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = [sys.executable, "-m", "pipediag", "analyze", *options, "-o", str(report), *command]
        subprocess.run(arguments, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return dict(json.loads(report.read_text()))


def circumstances() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def own_mib() -> float:
    """Return the memory of this process that it shares with no other."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def shared_memory() -> list[str]:
    """Return the names of torch's blocks of shared memory on this machine."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith("torch_"))


def save(name: str, result: dict[str, Any], folder: Path) -> Path:
    """Write ``{circumstances, **result}``; the file's name contains the device."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = circumstances()
    path = _path(name, facts, folder)
    path.write_text(json.dumps({**facts, **result}, indent=1) + "\n")
    return path


def load(name: str, folder: Path) -> dict[str, Any]:
    """Return an earlier result of this device; empty if there is none."""
    path = _path(name, circumstances(), folder)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def kept_rows(earlier: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return the rows of an earlier result from the same circumstances and ``more``; the date may differ."""
    facts = {**circumstances(), **more}
    same = all(earlier.get(key) == value for key, value in facts.items() if key != "date")
    return list(earlier.get("rows", [])) if same else []


def _path(name: str, facts: dict[str, Any], folder: Path) -> Path:
    device = str(facts["device"]).lower().replace("nvidia", "").strip().replace(" ", "-")
    return folder / f"{name}-{device}.json"
