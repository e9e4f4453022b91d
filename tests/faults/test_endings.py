"""A script that ends badly by itself: each way is said in one sentence of its own, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .leaks import PIPEDIAG, Leaks

pytest.importorskip("torchvision")

SCRIPT = Path(__file__).parent / "scripts" / "ends.py"
ANALYZE = ("analyze", "--budget", "2", "--no-knobs", "--rungs", "device,baseline")


def line_of(text: str) -> str:
    """``file:line`` of the only line of the script that holds ``text``."""
    (number,) = [i for i, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    return f"{SCRIPT}:{number}"


def ended(leaks: Leaks, *command: str) -> tuple[int, str, list[str]]:
    """Run the command to its end: exit code, all output with its white space joined, and the lines of pipediag's."""
    process = leaks.start(*PIPEDIAG, *command)
    out, err = process.communicate(timeout=90)
    assert leaks.left() == {}
    assert "Exception ignored" not in err
    said = [line for line in err.splitlines() if line.startswith("pipediag: ")]
    return process.returncode, " ".join((out + err).split()), said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("raise", "2", "3"), 1, "failed in its 1st run: LookupError: sample 3 is damaged, before anything"),
        (("kill-parent", "2", "3"), 137, "it was killed by SIGKILL, as by the kernel if memory runs out"),
        pytest.param(
            ("kill-worker", "2", "3"),
            1,
            "a DataLoader worker was killed by SIGKILL, as by the kernel if memory runs out",
            marks=pytest.mark.slow,
        ),
        pytest.param(("empty", "2", "3"), 1, "gave no batch: its dataset is empty", marks=pytest.mark.slow),
        pytest.param(
            ("hang", "2", "60"), 0, f"waited at {line_of('# the loop')} for a batch: a DataLoader worker hangs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("hang", "0", "60"), 1, f"it was at {line_of('# here')}, in __getitem__", marks=pytest.mark.slow
        ),
    ],
)  # fmt: skip
def test_analyze(leaks: Leaks, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    returned, told, _ = ended(leaks, *ANALYZE, str(SCRIPT), *arguments)
    assert sentence in told and returned == code, told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("raise", "2", "3"), "the dataset itself raises LookupError: sample 3 is damaged (sample 3)"),
        (("raise", "0", "3"), "the dataset itself raises LookupError: sample 3 is damaged (sample 3)"),
        (("raise", "2", "400"), "back to the plain loader: LookupError: sample 400 is damaged"),
    ],
)
def test_run(leaks: Leaks, arguments: tuple[str, ...], sentence: str) -> None:
    code, told, said = ended(leaks, "run", str(SCRIPT), *arguments)
    assert code == 1 and sentence in said[-1], told
    assert f"LookupError: sample {arguments[2]} is damaged" in told.partition(said[-1])[2], "Python says it too"


def test_what_was_overwritten_is_said_before_the_verdict(leaks: Leaks) -> None:
    """As distinct from what was newly made, and where nothing was measured too."""
    script, old = leaks.cwd / "train.py", leaks.cwd / "model.pt"
    script.write_text(
        "import os\nopen('new.log', 'w').close()\nopen('tmp', 'w').close()\nos.replace('tmp', 'model.pt')\n"
    )
    old.touch()
    os.utime(old, (1e9, 1e9))
    code, _, said = ended(leaks, *ANALYZE, str(script))
    assert code == 1
    assert said[-1].endswith("; it wrote new.log; it overwrote model.pt, which had been there before")
