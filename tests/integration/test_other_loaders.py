"""Batches that torch's DataLoader does not give: a script's own iterables, webdataset, torchdata's stateful loader."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .sandbox import PIPEDIAG, SCRIPTS, Analysis, Results, Sandbox, analyses, line_of, slow

STATEFUL = "stateful_loader.py"
PLACE = f"{STATEFUL}:{line_of(STATEFUL, '# the training loop')}"
SAVES = "StatefulDataLoader saves its place in the epoch, which would be wrong under the remedy; use torch's DataLoader"
#: Each form of the loop, and what gives it its batches.
FORMS = {"counted": "batches()", "drawn": "batches()", "of-a-class": "Stream", "of-a-loader": "Doubled"}


results = analyses(
    {form: (["own_loop.py", form], {}) for form in FORMS}, [*FORMS][1:], budget=6, rungs="device,sample,baseline"
)


@pytest.mark.parametrize("form", ["counted", *slow("drawn", "of-a-class", "of-a-loader")])
def test_the_loop_is_measured(results: Results, form: str) -> None:
    done = results[form]
    assert done.bottleneck == "load"
    assert done.ms("baseline") > 30 > 2 * done.ms("device")
    loader = done.json["loader"]
    assert loader["plain_iterable"] and loader["dataset"] == FORMS[form]
    assert done.json["verdict"]["culprit"]["where"].endswith(f":{line_of('own_loop.py', 'time.sleep(0.03)')}")
    assert "no DataLoader" in done.stdout and "instead of 0" not in done.stdout


def test_webdatasets_transform_that_takes_the_time_is_named_with_its_line(analyze: Callable[..., Analysis]) -> None:
    """It is given to a stage of a pipeline, not to an attribute of the dataset."""
    pytest.importorskip("webdataset")
    script = "webdataset_stages.py"
    done = analyze(script, budget=8, rungs="device,sample,baseline")
    links = {link["name"]: link for link in done.json["session"]["inside"]["links"]}
    assert {"Planted", "Cheap"} <= set(links)
    planted = links["Planted"]
    assert planted["where"].endswith(f"{script}:{line_of(script, 'class Planted')}")
    assert planted["cost"]["wall_ms"] > 19
    assert all(link["cost"]["wall_ms"] < 10 for name, link in links.items() if name != "Planted")
    assert done.json["verdict"]["culprit"]["name"] == "Planted", done.json["verdict"]


@pytest.mark.parametrize("workers", [[], ["--workers", "2"], ["--workers", "2", "--persistent"]], ids=len)
def test_torchdatas_loader_is_measured_and_its_state_can_be_taken(
    analyze: Callable[..., Analysis], workers: list[str]
) -> None:
    """The script takes its loader's state at every step."""
    pytest.importorskip("torchdata.stateful_dataloader")
    done = analyze(STATEFUL, *workers, rungs="device,sample,baseline", budget=10)
    loader = done.json["loader"]
    assert loader["where"].endswith(PLACE) and loader["length"] == 8
    assert done.measured >= {"device", "baseline"}
    assert done.bottleneck != "compute"


def test_run_leaves_torchdatas_loader_alone_and_says_why(sandbox: Sandbox) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    ran = sandbox.run(*PIPEDIAG, "run", str(SCRIPTS / STATEFUL), "--epochs", "2", "--resume")
    assert (ran.code, ran.stdout) == (0, "5 batches left of the epoch\n")
    (said,) = ran.said
    assert "nothing was moved" in said and said.endswith(SAVES)
