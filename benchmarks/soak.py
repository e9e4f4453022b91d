"""Train for minutes under ``pipediag run`` through corrupt files and killed workers, beside the plain script.

    python -m benchmarks.soak                       # 20 minutes under run, after 2 minutes of the plain script
    python -m benchmarks.soak --minutes 2

``soak_script.py`` says which faults come when. Compared are, epoch by epoch as far as the plain script came: what ended
it, and all losses; where a worker is killed, those before, since how many batches come after it is left to chance. The
memory is that of the third epoch and of the last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .common import ENVIRONMENT, RESULTS, save
from .decode import write_photos
from .soak_script import KILLED_AT, kills

SCRIPT = Path(__file__).with_name("soak_script.py")


def trained(folder: Path, out: Path, minutes: float, options: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Return the script's rows, and what it and pipediag wrote to standard error."""
    command = [sys.executable, *options, str(SCRIPT), str(folder), str(out), str(minutes)]
    ran = subprocess.run(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, timeout=60 * minutes + 180)
    if ran.returncode:
        raise SystemExit(f"exit code {ran.returncode}\n{ran.stderr[-3000:]}")
    return [json.loads(line) for line in out.read_text().splitlines()], ran.stderr


def certain(row: dict[str, Any]) -> list[float]:
    """Return the losses of an epoch before its worker is killed, or all of them."""
    return list(row["losses"])[: KILLED_AT + 1 if kills(row["epoch"]) else None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--plain-minutes", type=float, default=2)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "photos"
        folder.mkdir()
        write_photos(folder, args.photos)
        for number in range(3):
            (folder / f"class{number:02}" / "corrupt.jpg").write_bytes(b"\xff\xd8\xff no picture")
        plain, _ = trained(folder, Path(name) / "plain", args.plain_minutes, [])
        ours, said = trained(folder, Path(name) / "ours", args.minutes, ["-m", "pipediag", "run"])
        lines = dict.fromkeys(line for line in said.splitlines() if line.startswith("pipediag: "))
    both = list(zip(plain, ours, strict=False))
    flat = {key: (ours[2][key], ours[-1][key]) for key in ours[0] if key.endswith(("_mib", "files", "memory"))}
    result = {
        "minutes": args.minutes,
        "epochs": len(ours),
        "ended": {row["ended"]: sum(r["ended"] == row["ended"] for r in ours) for row in ours},
        "epochs_compared": len(both),
        "ended_as_plain": sum(a["ended"] == b["ended"] for a, b in both),
        "losses_compared": sum(len(certain(a)) for a, _ in both),
        "losses_equal": all(certain(a) == certain(b) for a, b in both),
        "third_and_last_epoch": flat,
        "said": list(lines),
    }
    result = json.loads(json.dumps(result).replace(str(folder), "PHOTOS"))
    print(json.dumps(result, indent=1))
    print(f"written {save('soak', result, args.out)}")


if __name__ == "__main__":
    main()
