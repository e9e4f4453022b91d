"""Provide an interpreter with the other tools: a given one, or one in an environment of the benchmark."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from pathlib import Path

#: gpuprof's quickstart also installs a server, which only a browser needs, and ``pynvml``, which traceml-ai brings
#: already.
PINS = ("traceml-ai==0.5.0", "gpuprof[host]==0.7.1")
DISTRIBUTIONS = ("traceml-ai", "gpuprof")


def interpreter(folder: Path | None, wheels: Path | None) -> str:
    """Return the Python of the environment in ``folder``, creating it if necessary.

    The environment also sees the packages of the interpreter that runs the benchmark. All tools therefore run with the
    same torch, and little is installed. With ``wheels`` nothing comes from the network.
    """
    folder = (folder or _cache()).absolute()
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists() and complete.read_text().split() == list(PINS):
        return str(python)
    print(f"installing {', '.join(PINS)} into {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    own = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip())
    (own / "tested_with.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    source = ["--no-index", "--find-links", str(wheels.absolute())] if wheels else []
    subprocess.run([str(python), "-m", "pip", "install", "-qq", *source, *PINS], check=True)
    complete.write_text("\n".join(PINS) + "\n")
    return str(python)


def versions(python: str) -> dict[str, str]:
    """Return the installed version of each distribution, without missing tools."""
    code = (
        "import importlib.metadata as m, json\nfound = {}\n"
        f"for name in {DISTRIBUTIONS!r}:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "pipediag-benchmarks" / f"rivals-{sys.version_info[0]}.{sys.version_info[1]}"
