"""``pipediag run``: the training is the plain one, under the remedy. Its plans are tested where they are made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .sandbox import PATIENCE, PIPEDIAG, REPO, SCRIPTS, Ran, Sandbox, line_of

pytest.importorskip("torchvision")

REMEDIABLE, WHOLE = "remediable.py", "whole_training.py"
EARLY = """
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
iter(DataLoader(FakeData(16, (3, 8, 8), 2, ToTensor()), batch_size=2)).next()
"""
SHORT = ["--batches", "4", "--epochs", "2", "--losses", "--ms", "0.1"]


def run(sandbox: Sandbox, script: Path | str, *args: str, plan: Path | None = None, cwd: Path | None = None) -> Ran:
    chosen = ["--plan", str(plan)] if plan is not None else []
    return sandbox.run(*PIPEDIAG, "run", *chosen, str(SCRIPTS / script), *args, cwd=cwd)


def natively(sandbox: Sandbox, script: Path | str, *args: str, cwd: Path | None = None) -> Ran:
    return sandbox.run(sys.executable, str(SCRIPTS / script), *args, cwd=cwd)


class TestAsNatively:
    @pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "2"])
    def test_a_whole_training_prints_the_same(self, sandbox: Sandbox, workers: str) -> None:
        """Losses, the sampler's order in every epoch, validation, and what the script sees of how it was started."""
        (sandbox.folder / "native").mkdir()
        options = ("--workers", workers, "--epochs", "4")  # the first ones are compared
        native = natively(sandbox, WHOLE, *options, cwd=sandbox.folder / "native")
        ran = run(sandbox, WHOLE, *options)
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert ran.stdout == native.stdout and len(native.stdout.splitlines()) == 22
        assert not ran.others and len(ran.said) == 1
        assert "RandomHorizontalFlip, ToDtype, Normalize" in ran.said[0]
        assert f":{line_of(WHOLE, 'for images, labels in loader')} to cpu: " in ran.said[0]
        checkpoints = [folder / "checkpoint.pt" for folder in (sandbox.cwd, sandbox.folder / "native")]
        assert checkpoints[0].read_bytes() == checkpoints[1].read_bytes()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "arguments",
        [["--workers", "2"], ["--workers", "2", "--persistent"], ["--leave-after", "3"], ["--chain", "numpy"]],
        ids=["workers", "persistent", "leaves-early", "nothing-moves"],
    )
    def test_losses(self, sandbox: Sandbox, arguments: list[str]) -> None:
        native = natively(sandbox, REMEDIABLE, *SHORT, *arguments)
        ran = run(sandbox, REMEDIABLE, *SHORT, *arguments)
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert ran.stdout == native.stdout and "." in native.stdout
        moved = "to cpu: RandomHorizontalFlip, ToDtype, dim; the pixels are equal on" in ran.said[0]
        assert moved == ("numpy" not in arguments) and len(ran.said) == 1 and not ran.others

    @pytest.mark.parametrize(
        ("kind", "moved"),
        [
            ("shards", "RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize; the pixels are equal"),
            pytest.param(
                "endless", "CenterCrop, RandomHorizontalFlip, ToTensor; the pixels are equal", marks=pytest.mark.slow
            ),
            pytest.param("plain-code", "", marks=pytest.mark.slow),
        ],
    )
    def test_losses_of_a_stream(self, sandbox: Sandbox, kind: str, moved: str) -> None:
        native, ran = natively(sandbox, "streams.py", kind), run(sandbox, "streams.py", kind)
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert ran.stdout == native.stdout and len(native.stdout.splitlines()) == 41
        said = f"to cpu: {moved}" if moved else "cannot be made again, and its transform augment ("
        assert said in ran.said[0] and len(ran.said) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("example", "arguments", "exact"),
        [
            ("imagefolder.py", ["--images", "40", "--data", "pictures", "--size", "32"], True),
            ("augmentations.py", ["--size", "16"], False),
            ("caching_article.py", ["--raw-size", "96", "--size", "32"], False),
        ],
    )
    def test_losses_of_the_examples(self, sandbox: Sandbox, example: str, arguments: list[str], exact: bool) -> None:
        command = [str(REPO / "examples" / example), *arguments, "--steps", "39", "--warmup", "1"]
        native = natively(sandbox, "losses_of.py", *command)
        ran = run(sandbox, "losses_of.py", *command)
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert "; the pixels are " in ran.said[0] and len(ran.said) == 1
        theirs, ours = (
            [float(line.split()[1]) for line in one.stdout.splitlines() if line.startswith("loss")]
            for one in (native, ran)
        )
        assert len(theirs) == 40
        assert ours == theirs if exact else ours == pytest.approx(theirs, rel=1e-4)

    def test_a_module(self, sandbox: Sandbox) -> None:
        ran = sandbox.run(*PIPEDIAG, "run", "-m", "no.such.module")
        assert ran.code == 2 and "no.such.module" in ran.said[-1] and not ran.others

    def test_no_such_script(self, sandbox: Sandbox) -> None:
        ran = run(sandbox, "there_is_none.py")
        assert ran.code == 2 and "there_is_none.py" in ran.said[0] and not ran.others


@pytest.mark.slow
class TestEndings:
    def test_exit_code(self, sandbox: Sandbox) -> None:
        assert run(sandbox, WHOLE, "--epochs", "1", "--ending", "exit").code == 3

    @pytest.mark.parametrize("ending", ["raise", "dataset"])
    def test_traceback_is_pythons(self, sandbox: Sandbox, ending: str) -> None:
        native = natively(sandbox, WHOLE, "--epochs", "1", "--ending", ending)
        ran = run(sandbox, WHOLE, "--epochs", "1", "--ending", ending)
        assert (native.code, ran.code) == (1, 1) and native.others
        assert ran.others == native.others and ran.stdout == native.stdout

    def test_a_failure_that_the_remedy_may_have_to_do_with_is_told(self, sandbox: Sandbox) -> None:
        ran = run(sandbox, REMEDIABLE, *SHORT, "--wants", "host-memory")
        assert ran.code == 1 and "this loop wants" in ran.others[-1]
        assert "gave it batches on the device" in ran.said[-1] and "--apply" in ran.said[-1]

    def test_a_failure_before_the_first_batch_is_the_scripts_alone(self, sandbox: Sandbox) -> None:
        script = sandbox.cwd / "early.py"
        script.write_text(EARLY)
        ran = run(sandbox, script)
        assert ran.code == 1 and ran.others[-1].startswith("AttributeError")
        assert not ran.said

    def test_usage_errors_of_the_scripts_own(self, sandbox: Sandbox) -> None:
        native, ran = natively(sandbox, WHOLE, "--epochs"), run(sandbox, WHOLE, "--epochs")
        assert (ran.code, ran.stderr) == (native.code, native.stderr) == (2, native.stderr)

    def test_ctrl_c(self, sandbox: Sandbox) -> None:
        native = _interrupted(sandbox.start(sys.executable, str(SCRIPTS / WHOLE), "--ending", "wait"))
        ran = _interrupted(sandbox.start(*PIPEDIAG, "run", str(SCRIPTS / WHOLE), "--ending", "wait"))
        # Functions that torch runs at exit can make Python forget the interrupt: it then exits with 1.
        assert ran.code in (native.code, -signal.SIGINT) and native.code != 0
        assert ran.others == native.others and ran.others[-1] == "KeyboardInterrupt"

    def test_why_no_jpeg_is_decoded_on_the_device(self, sandbox: Sandbox) -> None:
        ran = sandbox.run(*PIPEDIAG, "run", "--approximate", str(SCRIPTS / REMEDIABLE), *SHORT)
        assert ran.code == 0, ran.stderr
        assert "to cpu: RandomHorizontalFlip" in ran.said[0]
        assert ran.said[1:] == ["pipediag: JPEGs are decoded in the workers: the device cpu has no JPEG engine"]

    def test_a_script_without_loaders(self, sandbox: Sandbox) -> None:
        ran = run(sandbox, "no_loader.py")
        assert (ran.code, ran.others) == (0, [])
        assert ran.said == ["pipediag: nothing was moved: the script iterated no torch DataLoader in its own process"]


class TestPlainCode:
    """What plain code calls moves too, also by a plan that was made elsewhere."""

    def test_with_a_plan(self, sandbox: Sandbox) -> None:
        plan = sandbox.folder / "plan.json"
        native = natively(sandbox, "plain_code.py", "--plan", str(plan))
        (sandbox.cwd / "plain_code.py").write_text((SCRIPTS / "plain_code.py").read_text())
        ran = sandbox.run(*PIPEDIAG, "run", "--plan", str(plan), "plain_code.py")
        assert (native.code, ran.code) == (0, 0), native.stderr + ran.stderr
        assert ran.stdout == native.stdout and len(native.stdout.splitlines()) == 48
        assert "to cpu: resize (plain_code.py:" in ran.said[0] and "the pixels are equal" in ran.said[0]

    @pytest.mark.slow
    def test_without_a_plan(self, sandbox: Sandbox) -> None:
        native, ran = natively(sandbox, "plain_code.py"), run(sandbox, "plain_code.py")
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert ran.stdout == native.stdout
        assert "crop (" in ran.said[0] and "the pixels are equal" in ran.said[0]

    @pytest.mark.slow
    def test_a_call_that_has_changed(self, sandbox: Sandbox) -> None:
        plan = sandbox.folder / "plan.json"
        assert natively(sandbox, "plain_code.py", "--plan", str(plan)).code == 0
        changed = (SCRIPTS / "plain_code.py").read_text().replace("[20, 20]", "[22, 20]")
        (sandbox.cwd / "plain_code.py").write_text(changed)
        ran = sandbox.run(*PIPEDIAG, "run", "--plan", str(plan), "plain_code.py")
        assert ran.code == 2
        assert "resize (plain_code.py:" in ran.said[-1] and "is not what it was when the plan was made" in ran.said[-1]


def _interrupted(process: subprocess.Popen[str]) -> Ran:
    began = time.monotonic()
    assert process.stdout is not None
    while "epoch 1" not in (line := process.stdout.readline()):
        assert line, "it ended"
    for _ in range(4):  # to the end of the epoch, where it waits
        process.stdout.readline()
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    return Ran(process.returncode, out, err, time.monotonic() - began)
