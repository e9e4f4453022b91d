"""Every access to the memory of a device is in order, whatever the timing: a ledger shows it, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..devices import on_imagined_device

SCRIPT = Path(__file__).with_name("scripts") / "ordered.py"


@pytest.fixture(scope="module", params=["--few", pytest.param("--all", marks=pytest.mark.slow)])
def found(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """The ledger's findings for each loop."""
    return on_imagined_device(SCRIPT, request.param, timeout=600)


def test_every_access_is_in_order(found: dict[str, list[str]]) -> None:
    findings = {name: sentences[:3] for name, sentences in found.items() if sentences and "wrong" not in name}
    assert findings == {}
    assert len(found) >= 14


def test_every_mistake_is_found(found: dict[str, list[str]]) -> None:
    wrong = {name: sentences for name, sentences in found.items() if "wrong" in name}
    assert [name for name, sentences in wrong.items() if not sentences] == []
    for name in ("wrong: unawaited", "wrong: handed over without waiting"):
        assert any("reads what is being written" in sentence for sentence in wrong[name]), name
    for name in ("wrong: as published", "wrong: unrecorded", "wrong: handed over without telling the allocator"):
        assert any("dies in use" in sentence for sentence in wrong[name]), name
