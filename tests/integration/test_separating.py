"""Telling loading from transforming, wherever a data set keeps its transforms.

The script sleeps 2 ms to load a sample and 5 ms to transform it, four samples a batch: 8 ms and 20 ms a step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .sandbox import Analysis, Results, analyses, line_of, some_slow

Analyze = Callable[..., Analysis]
FORMS = [
    "wrapped", "compose", "getitems", "joint", "keywords",
    "collate-function", "collate-object", "marker", "whole-batches",
]  # fmt: skip


INSEPARABLE = ["inline", "changed"]
#: Two workers on two cores share them with the loop, so making a batch takes 24 ms there, and 12 ms without workers.
ITERABLE = {
    "plain": [],
    "length": ["--length"],
    "workers": ["--workers", "2", "--slower", "4"],
    "workers-length-persistent": ["--workers", "2", "--slower", "4", "--length", "--persistent"],
}
SLOW = sorted({*FORMS, *INSEPARABLE, *ITERABLE} - {"compose"})


results = analyses(
    {form: (["separable.py", form], {"rungs": "raw,baseline", "budget": 5}) for form in FORMS}
    | {form: (["separable.py", form], {"rungs": "device,raw,warm,baseline"}) for form in INSEPARABLE}
    | {name: (["iterable.py", *more], {"rungs": "device,sample,raw,warm,baseline"}) for name, more in ITERABLE.items()},
    SLOW,
    budget=4,
)


@pytest.mark.parametrize("form", some_slow(FORMS, SLOW))
def test_transforms_are_found(results: Results, form: str) -> None:
    done = results[form]
    assert done.rung("raw")["available"], done.rung("raw")["why_not"]
    # The transforms, all of them, once (20 ms); and nothing of the loading (10 ms). A busy machine slows both rungs.
    assert 20 <= done.ms("raw") < 0.9 * done.ms("baseline"), done.stdout
    assert done.ms("baseline") > 28


@pytest.mark.slow
@pytest.mark.parametrize("form", INSEPARABLE)
def test_what_cannot_be_told_apart_is_said_with_the_way_out(results: Results, form: str) -> None:
    done = results[form]
    raw = done.rung("raw")
    assert not raw["available"] and raw["windows"] == 0 and raw["ms_per_step"] is None
    assert raw["why_not"].startswith("not separable: ") and "pipediag.stage(" in raw["why_not"]
    assert "pipediag.stage(" in done.stdout.replace("\n    ", " ")
    # There is no rung of its own for the transforms; what was timed in the workers may still name one.
    assert done.bottleneck in ("load", "transform"), done.stdout
    assert {"device", "warm", "baseline"} <= done.measured


@pytest.mark.slow
@pytest.mark.parametrize("kind", ITERABLE)
def test_iterable_datasets(results: Results, kind: str) -> None:
    done = results[kind]
    for name in ("raw", "warm"):
        assert not done.rung(name)["available"]
        assert done.rung(name)["why_not"].startswith("not separable: an iterable dataset")
    assert done.measured == {"device", "sample", "baseline"}
    assert done.json["loader"]["iterable"] is True
    assert done.json["loader"]["length"] == (40 if "--length" in ITERABLE[kind] else None)
    assert done.ms("sample") < done.ms("baseline")


@pytest.mark.slow
def test_two_views_in_workers(analyze: Analyze) -> None:
    """Four times as slow: a batch takes 32 ms to load and 80 ms to transform, and there are two workers.

    A rung may have a single window, and share the cores with whatever else runs on the machine.
    """
    arguments = ("two-views", "--workers", "2", "--slower", "4")
    done = analyze("separable.py", *arguments, rungs="sample,raw,baseline", budget=5)
    assert done.ms("sample") < 16 < 38 < done.ms("raw") < 48
    assert done.ms("baseline") > 52


@pytest.mark.slow
def test_lambdas_in_forked_workers(analyze: Analyze) -> None:
    done = analyze("lambdas.py", rungs="device,worker,sample,raw,baseline", budget=10)
    assert done.measured >= {"device", "worker", "sample", "raw", "baseline"}
    assert done.bottleneck == "transform"
    culprit = done.json["verdict"]["culprit"]
    assert "lambda" in culprit["name"]
    assert culprit["where"].endswith(f"lambdas.py:{line_of('lambdas.py', 'dataset = Data(')}")
