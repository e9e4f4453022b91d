"""Loaders as scripts build and drive them: which one trains, and that all their promises hold."""

from __future__ import annotations

from typing import Any

import pytest

from .sandbox import Results, analyses, line_of, some_slow

QUICK = "device,baseline"
#: Seconds for a verdict that is due in less, on a machine that may stand still for some of them.
PATIENT = 15
IN_WORKERS = "worker,sample,warm,baseline"

CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "validation": (["validation.py"], {"rungs": QUICK, "budget": PATIENT}),
    "two": (["two_loaders.py"], {"rungs": QUICK}),
    "two-second": (["two_loaders.py"], {"rungs": QUICK, "options": ["--loader", "2"]}),
    "number-seven": (
        ["loops.py", "onecycle", "--epochs", "3"],
        {"rungs": QUICK, "options": ["--loader", "7"], "code": 1},
    ),
    "infinite": (["loops.py", "infinite"], {"rungs": "device,worker,sample,baseline"}),
    "short-first-epoch": (["loops.py", "short_first_epoch"], {"rungs": QUICK, "budget": PATIENT}),
    "while-next": (["loops.py", "while_next"], {"rungs": QUICK, "budget": PATIENT}),
    "prefetch-thread": (["loops.py", "draws_ahead"], {"rungs": QUICK, "budget": PATIENT}),
    "spawn": (["start_method.py", "--method", "spawn"], {"rungs": "worker,sample,raw,baseline", "budget": 7}),
    "forkserver": (["start_method.py", "--method", "forkserver"], {"rungs": "worker,sample,raw,baseline", "budget": 7}),
    "inference": (["inference.py"], {"rungs": QUICK, "budget": PATIENT}),
    "exact-steps": (["loops.py", "onecycle"], {"rungs": "device,sample,baseline"}),
    "exact-steps-workers": (["loops.py", "onecycle", "--workers", "2"], {"rungs": "device,sample,baseline"}),
    "few-exact-steps": (["loops.py", "onecycle", "--epochs", "3"], {"rungs": QUICK, "budget": 60}),
    "contract": (["worker_contract.py"], {"rungs": IN_WORKERS, "budget": 12}),
    "contract-distributed": (
        ["worker_contract.py", "--persistent", "--sampler", "distributed"],
        {"rungs": IN_WORKERS, "budget": 4},
    ),
    "contract-in-process": (["worker_contract.py", "--workers", "0"], {"budget": 5}),
}
QUICK_CASES = ["two", "number-seven", "contract"]
SLOW = sorted(CASES.keys() - {*QUICK_CASES})


results = analyses(CASES, SLOW)


@pytest.mark.slow
def test_the_training_loader_is_chosen_among_validation(results: Results) -> None:
    done = results["validation"]
    loader = done.json["loader"]
    assert (loader["dataset"], loader["batch_size"]) == ("TrainData", 8)
    assert loader["where"].endswith(f"validation.py:{line_of('validation.py', '# the training loop')}")
    assert done.measured == {"device", "baseline"}
    assert done.ms("baseline") > 20 and done.bottleneck == "load"


@pytest.mark.parametrize(
    ("case", "dataset", "batch_size"),
    [("two", "Labelled", 2), pytest.param("two-second", "Unlabelled", 6, marks=pytest.mark.slow)],
)
def test_two_loaders(results: Results, case: str, dataset: str, batch_size: int) -> None:
    done = results[case]
    assert (done.json["loader"]["dataset"], done.json["loader"]["batch_size"]) == (dataset, batch_size)
    assert done.measured == {"device", "baseline"}
    # The loaders sleep 10 and 6 ms a batch; feeding one of them from a cache takes away its part only.
    assert 5 < done.ms("device") < done.ms("baseline") - 3
    assert "other-loaders" in done.warned


def test_a_loader_number_that_does_not_exist(results: Results) -> None:
    done = results["number-seven"]
    assert "--loader 7" in done.said[-1] and not done.others
    assert done.report is None


@pytest.mark.slow
def test_infinite_loader_with_persistent_workers(results: Results) -> None:
    done = results["infinite"]
    loader = done.json["loader"]
    assert (loader["dataset"], loader["num_workers"], loader["persistent_workers"]) == ("Data", 2, True)
    assert done.measured == {"device", "worker", "sample", "baseline"}
    assert done.ms("sample") < done.ms("baseline") / 2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["while-next", "short-first-epoch"])
def test_a_loop_that_does_not_go_from_epoch_to_epoch(results: Results, case: str) -> None:
    done = results[case]
    assert done.measured == {"device", "baseline"}
    assert done.passes == 1 and done.bottleneck == "load"


@pytest.mark.slow
def test_a_thread_that_draws_ahead_of_the_loop(results: Results) -> None:
    """It always waits for the workers, 40 ms a batch, while the loop is busy for 30 ms of them."""
    done = results["prefetch-thread"]
    assert done.measured == {"device", "baseline"} and not done.others
    assert done.bottleneck == "load"
    assert 0.05 < done.json["verdict"]["starved"]["value"] < 0.6
    assert done.seconds < PATIENT + 30


@pytest.mark.parametrize("method", some_slow(["spawn", "forkserver"], SLOW))
def test_workers_by_other_start_methods(results: Results, method: str) -> None:
    done = results[method]
    assert done.json["loader"]["start_method"] == method
    assert done.measured == {"worker", "sample", "raw", "baseline"}
    assert done.ms("sample") < 20 and done.ms("raw") > 30
    assert "resource_tracker" not in done.stderr and not done.others


@pytest.mark.slow
def test_inference_without_an_optimizer(results: Results) -> None:
    done = results["inference"]
    assert done.measured == {"device", "baseline"}
    assert done.bottleneck == "load" and "YOUR EVALUATION" in done.stdout
    assert done.ms("device") < 5 < 18 < done.ms("baseline")


@pytest.mark.parametrize("case", some_slow(["exact-steps", "exact-steps-workers"], SLOW))
def test_schedulers_with_an_exact_number_of_steps(results: Results, case: str) -> None:
    """Epochs of 6 batches: the loop sees exactly 6 of them under every rung, or OneCycleLR raises."""
    done = results[case]
    assert done.measured == {"device", "sample", "baseline"}
    assert done.json["loader"]["length"] == 6


@pytest.mark.slow
def test_the_end_of_a_script_with_exact_steps_is_no_error(results: Results) -> None:
    """Three epochs a pass: every pass ends by itself, its last assertions included."""
    done = results["few-exact-steps"]
    assert done.passes > 1 and done.measured == {"device", "baseline"}
    assert not done.others


@pytest.mark.parametrize("case", some_slow(["contract", "contract-distributed"], SLOW))
def test_what_dataloader_promises_holds(results: Results, case: str) -> None:
    """``generator``, ``set_epoch``, ``worker_init_fn``, ``get_worker_info().dataset``: the script asserts them."""
    done = results[case]
    assert done.measured == {"worker", "sample", "warm", "baseline"}
    assert done.ms("sample") < done.ms("baseline")
    assert done.passes == 1 and not done.others


@pytest.mark.slow
def test_the_same_without_workers(results: Results) -> None:
    """All rungs and controls; what makes no sense without workers is said not to exist."""
    done = results["contract-in-process"]
    assert done.measured == {"device", "sample", "warm", "baseline", "supply"}
    assert not done.rung("worker")["available"] and "num_workers=0" in done.rung("worker")["why_not"]
    assert not done.rung("host")["available"]
    assert done.rung("raw")["why_not"].startswith("not separable: ")
    assert done.passes == 1 and not done.others
