"""The article's two workloads train to the same bits with and without pipediag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..devices import GPU

pytestmark = GPU

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("scripts") / "equivalence.py"


def trained(workload: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), workload],
        env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_training(ways: dict[str, Any]) -> None:
    """Check that every loss and every weight is the same in all ways, and that training changed them."""
    results = {name: way for name, way in ways.items() if isinstance(way, list) and len(way) == 2}
    first = next(iter(results.values()))
    assert len(set(first[0])) == 50
    for name, (losses, weights) in results.items():
        assert losses == first[0], name
        assert weights == first[1], name
    assert len(results) >= 3


def test_a_decoder_on_a_frozen_encoder() -> None:
    """Batches are encoded in the loop, by a stage, and by a captured stage."""
    ways = trained("frozen_encoder")
    check_training(ways)
    (note,) = ways["captured stages: notes"]
    assert ": captured" in note


def test_a_classifier_after_the_articles_augmentations() -> None:
    """The same moved transforms run in sequence with the loop, ahead of it, and before a stage."""
    check_training(trained("augmentations"))


def test_a_classifier_after_exact_augmentations() -> None:
    """If the certificate says that no bit differs from the CPU's, the plain loader is one of the ways."""
    ways = trained("exact")
    assert ways["exact"] and "plain" in ways
    check_training(ways)
