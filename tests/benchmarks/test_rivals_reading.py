"""What other tools' answers are taken to mean, on short outputs that they really wrote."""

from __future__ import annotations

import pytest

from benchmarks.rivals.reading import STARVED, Marks, Reading, mark, read_gpuprof, read_pipediag, read_traceml

#: ``final_summary.json`` of traceml-ai 0.5.0, cut down: the built-in demo with the edit, and without.
TRACEML_INPUT = {
    "schema_version": 1.9,
    "primary_diagnosis": {
        "kind": "INPUT_BOUND",
        "status": "INPUT-BOUND",
        "severity": "crit",
        "section": "step_time",
        "summary": "Input wait is 82.4% of the typical CPU Step Time.",
        "action": "Increase workers, prefetch, or storage throughput.",
    },
    "step_time": {
        "issues": [{"kind": "INPUT_BOUND", "summary": "Input wait is 82.4% of the typical CPU Step Time."}],
    },
}
TRACEML_UNMODIFIED = {
    "schema_version": 1.9,
    "primary_diagnosis": {
        "kind": "INSUFFICIENT_STEP_TIME_DATA",
        "status": "INSUFFICIENT STEP-TIME DATA",
        "severity": "info",
        "section": "step_time",
        "summary": "Not enough completed step-time samples were available for a stable performance diagnosis.",
        "action": "Run for more steps or ensure step timing is recorded.",
    },
    "step_time": {"issues": [{"kind": "NO_DATA"}]},
}
TRACEML_COMPUTE = {
    "primary_diagnosis": {
        "kind": "COMPUTE_BOUND",
        "status": "COMPUTE-BOUND",
        "severity": "info",
        "summary": "Compute-bound; forward is the largest phase.",
    },
    "step_time": {"issues": [{"kind": "COMPUTE_BOUND"}]},
}
#: ``gpuprof insights --json`` of gpuprof 0.7.1, cut down: the built-in demo, without a GPU.
GPUPROF_DEMO = {
    "summary": {"run_id": 1, "name": "demo", "gpu": "MockGPU", "n_steps": 301},
    "insights": [
        {"severity": "high", "title": "645% of step time waiting on the loader (inter-step gap)"},
        {"severity": "low", "title": "First step 16 ms vs steady-state 2 ms — warmup / JIT compile"},
        {"severity": "low", "title": "Step-time p99/p50 = 3.8× — high tail latency"},
        {
            "severity": "high",
            "title": "Dataloader stall + CPU pegged (82% avg across 2 cores) — workers are CPU-bound",
        },
        {"severity": "low", "title": "Estimated cost: $0.02 (0 min · $12.29/h)"},
    ],
}
GPUPROF_STALL = {
    "summary": {"n_steps": 340},
    "insights": [
        {"severity": "high", "title": "97% of step time waiting on the loader (inter-step gap)"},
        {"severity": "medium", "title": "Prefetch queue starved on 27% of steps (p95 wait 100 ms)"},
        {"severity": "low", "title": "Estimated cost: $0.05 (0 min · $12.29/h)"},
    ],
}
GPUPROF_TAIL = {
    "summary": {"n_steps": 203},
    "insights": [
        {"severity": "low", "title": "Step-time p99/p50 = 2.2× — high tail latency"},
        {"severity": "low", "title": "Estimated cost: $0.05 (0 min · $12.29/h)"},
    ],
}
PIPEDIAG = {
    "verdict": {
        "bottleneck": "transform",
        "culprit": {"name": "RandomMask", "where": "train.py:32"},
        "starved": {"value": 0.901496, "low": 0.881161, "high": 0.918351},
    },
}


def test_traceml_names_the_input_and_no_stage() -> None:
    words = "INPUT-BOUND (CRITICAL): Input wait is 82.4% of the typical CPU Step Time."
    assert read_traceml(TRACEML_INPUT) == Reading(words, STARVED)


def test_traceml_without_steps_answers_nothing() -> None:
    reading = read_traceml(TRACEML_UNMODIFIED)
    assert reading.words.startswith("INSUFFICIENT STEP-TIME DATA: Not enough completed")
    assert reading.classes == ()
    assert mark(reading, ["transform"], [10]) == Marks("silent", "silent", "silent")


def test_traceml_names_compute() -> None:
    assert read_traceml(TRACEML_COMPUTE).classes == ("none",)


@pytest.mark.parametrize(
    ("kinds", "classes"),
    [
        (["RESIDUAL_HEAVY"], ("none", "transfer", "contention")),
        (["RESIDUAL_HEAVY", "INPUT_BOUND"], STARVED),
        (["INPUT_BOUND", "RESIDUAL_HEAVY"], STARVED),
        (["INPUT_BOUND", "H2D_BOUND"], ("transfer",)),
        (["INCOMPLETE_DATA"], ()),
        ([], ()),
    ],
)
def test_of_several_findings_the_narrowest_about_the_input_counts(kinds: list[str], classes: tuple[str, ...]) -> None:
    summary = {"primary_diagnosis": {}, "step_time": {"issues": [{"kind": kind} for kind in kinds]}}
    assert read_traceml(summary).classes == classes


def test_gpuprof_points_at_the_work_of_the_workers() -> None:
    reading = read_gpuprof(GPUPROF_DEMO, gpu=False)
    assert reading.classes == ("transform", "load")
    assert reading.words == (
        "645% of step time waiting on the loader (inter-step gap); "
        "Dataloader stall + CPU pegged (82% avg across 2 cores) — workers are CPU-bound"
    )


def test_gpuprof_names_the_loader_and_no_stage() -> None:
    assert read_gpuprof(GPUPROF_STALL, gpu=False).classes == STARVED


def test_gpuprof_without_a_finding_about_the_loader_means_none() -> None:
    reading = read_gpuprof(GPUPROF_TAIL, gpu=False)
    assert reading == Reading("Step-time p99/p50 = 2.2× — high tail latency", ("none",))


def test_gpuprof_without_steps_answers_nothing() -> None:
    assert read_gpuprof({"summary": {"n_steps": 0}, "insights": []}, gpu=False) == Reading("no steps seen")


@pytest.mark.parametrize(("gpu", "classes"), [(True, ("transfer",)), (False, ("none",))])
def test_gpuprof_bus_readings_are_invented_without_a_gpu(gpu: bool, classes: tuple[str, ...]) -> None:
    title = "PCIe RX peaked at 24.1 GB/s (bandwidth-bound territory)"
    report = {"summary": {"n_steps": 100}, "insights": [{"severity": "medium", "title": title}]}
    assert read_gpuprof(report, gpu).classes == classes


def test_pipediag_names_stage_and_code() -> None:
    reading = read_pipediag(PIPEDIAG)
    words = "transform, waits 90 % of a step: RandomMask train.py:32"
    assert reading == Reading(words, ("transform",), ("train.py:32",), tells_stages=True)


def test_pipediag_undecided_answers_nothing() -> None:
    assert read_pipediag({"verdict": {"bottleneck": "inconclusive", "culprit": None}}).classes == ()


@pytest.mark.parametrize(
    ("reading", "right", "marks"),
    [
        (Reading("", STARVED), ["storage"], Marks("right", "silent", "silent")),
        (Reading("", STARVED), ["none"], Marks("wrong", "silent", "silent")),
        (Reading("", ("none",)), ["none"], Marks("right", "right", "silent")),
        (Reading("", ("none",)), ["storage"], Marks("wrong", "silent", "silent")),
        (Reading("", ("none",), tells_stages=True), ["storage"], Marks("wrong", "wrong", "silent")),
        (Reading("", ("transform", "load")), ["load"], Marks("right", "right", "silent")),
        (Reading("", ("transform", "load")), ["collate"], Marks("right", "wrong", "silent")),
        (Reading("", ("transform", "load")), ["none"], Marks("wrong", "wrong", "silent")),
        (Reading("", ("none", "transfer", "contention")), ["contention"], Marks("right", "right", "silent")),
        (Reading("", ("none", "transfer", "contention")), ["load"], Marks("wrong", "silent", "silent")),
        (Reading("", ("load",), ("train.py:12",)), ["load"], Marks("right", "right", "right")),
        (Reading("", ("load",), ("train.py:14",)), ["load"], Marks("right", "right", "wrong")),
        (Reading("", ("load",), ("other.py:12",)), ["load"], Marks("right", "right", "wrong")),
    ],
)
def test_marks(reading: Reading, right: list[str], marks: Marks) -> None:
    assert mark(reading, right, [11, 12, 13]) == marks


def test_a_library_s_own_file_is_a_right_place_for_its_code() -> None:
    reading = Reading("", ("transform",), ("site-packages/torchvision/transforms/transforms.py:1800",))
    assert mark(reading, ["transform"], [11], "torchvision").code == "right"
    assert mark(reading, ["transform"], [11]).code == "wrong"


def test_code_that_nobody_is_to_name_is_not_marked() -> None:
    assert mark(Reading("", ("ipc",), ("train.py:12",)), ["ipc"], []).code == "silent"
