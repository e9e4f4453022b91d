"""torchdata's StatefulDataLoader, which makes its iterators itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Analysis, Sandbox, line_of

pytest.importorskip("torchdata.stateful_dataloader")

SCRIPT = "stateful_loader.py"
PLACE = f"{SCRIPT}:{line_of(SCRIPT, '# the training loop')}"
SAVES = "StatefulDataLoader saves its place in the epoch, which would be wrong under the remedy; use torch's DataLoader"


@pytest.mark.parametrize("workers", [[], ["--workers", "2"], ["--workers", "2", "--persistent"]], ids=len)
def test_it_is_measured_and_its_state_can_be_taken(analyze: Callable[..., Analysis], workers: list[str]) -> None:
    """The script takes its loader's state at every step."""
    done = analyze(SCRIPT, *workers, rungs="device,sample,baseline", budget=10)
    loader = done.json["loader"]
    assert loader["where"].endswith(PLACE) and loader["length"] == 8
    assert done.measured >= {"device", "baseline"}
    assert done.bottleneck != "compute"


def test_run_leaves_it_alone_and_says_why(sandbox: Sandbox) -> None:
    ran = sandbox.run(*PIPEDIAG, "run", str(SCRIPTS / SCRIPT), "--epochs", "2", "--resume")
    assert (ran.code, ran.stdout) == (0, "5 batches left of the epoch\n")
    (said,) = ran.said
    assert "nothing was moved" in said and said.endswith(SAVES)
