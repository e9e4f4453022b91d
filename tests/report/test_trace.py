"""The trace of a diagnosis, read back by a strict reader of the format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis import diagnose_session
from pipediag.errors import SessionFileError
from pipediag.report import trace
from pipediag.session import UNTOUCHED, Knobs, LoaderSettings, Profile, Session, Stretch

from ..made import climbing, make
from .chrome_trace import Process, Slice, read


def stretch(rung: str, since: float, steps: int = 4, *, round_: int = 0, attempt: int = 1, workers: int = 2) -> Stretch:
    """Steps of 100 ms, of which the loop waits 60; making a batch takes a worker ``workers`` steps."""
    found = Stretch(rung, round_, attempt, ended=since + 0.1 * steps)
    for number in range(steps):
        asked = since + 0.1 * number
        found.asked.append(asked)
        found.got.append(asked + 0.06)
        found.ready.append(number % 2)
        found.worker.append(number % workers)
        found.made_from.append(asked + 0.06 - 0.1 * workers)
        found.made_until.append(asked + 0.06)
        found.collate_ms.append(5.0)
    return found


def alone(rung: str, since: float, steps: int = 4) -> Stretch:
    """The same without workers: the training process makes each batch while the loop waits."""
    found = stretch(rung, since, steps, workers=1)
    found.ready, found.worker = [0] * steps, [-1] * steps
    found.made_from = [asked + 0.001 for asked in found.asked]
    return found


def cached(rung: str, since: float, steps: int = 4) -> Stretch:
    """The same fed from a cache: no worker delivers a batch, and none is ready."""
    found = stretch(rung, since, steps)
    found.ready = [0] * steps
    found.worker, found.made_from, found.made_until, found.collate_ms = [], [], [], []
    return found


def session_of(*stretches: Stretch) -> Session:
    session = make(climbing(raw=30.0))
    session.stretches = list(stretches)
    return session


def written(session: Session) -> dict[str, Process]:
    return read(trace.write(diagnose_session(session)))


def the_pass(*stretches: Stretch) -> Process:
    (process,) = written(session_of(*stretches)).values()
    return process


def names(slices: list[Slice]) -> list[str]:
    return [one.name for one in slices]


class TestPass:
    def test_the_rungs(self) -> None:
        process = the_pass(stretch("baseline", 1.0, 5, round_=UNTOUCHED), cached("device", 3.0, 4))
        baseline, device = process.tracks["rung"]
        assert (baseline.name, baseline.since, baseline.until) == ("baseline", 1_000_000, 1_500_000)
        assert (baseline.args["steps/s"], baseline.args["steps"], baseline.args["round"]) == (10.0, 5, 0)
        assert (device.name, device.args["round"]) == ("device", 1)
        assert device.args["the loop receives"] == "batches cached on the training device"

    def test_the_loop(self) -> None:
        process = the_pass(stretch("baseline", 1.0, 3, round_=1))
        slices = process.tracks["training loop"]
        assert names(slices) == ["wait", "step"] * 3
        assert [one.until - one.since for one in slices] == [60_000, 40_000] * 3
        assert all(one.args == {"rung": "baseline", "round": 2} for one in slices)

    def test_waits_and_steps_without_length_are_left_out(self) -> None:
        fast, idle = cached("device", 1.0, 3), cached("supply", 2.0, 3)
        fast.got = fast.asked
        idle.got = [*idle.asked[1:], idle.ended]
        assert names(the_pass(fast).tracks["training loop"]) == ["step"] * 3
        assert names(the_pass(idle).tracks["training loop"]) == ["wait"] * 3

    def test_the_workers(self) -> None:
        process = the_pass(stretch("baseline", 1.0, 6), stretch("raw", 2.0, 2))
        assert [*process.tracks] == ["rung", "training loop", "worker 0", "worker 1"]
        batches = process.tracks["worker 1"]
        assert names(batches) == ["batch"] * 4
        assert [one.args["rung"] for one in batches] == ["baseline"] * 3 + ["raw"]
        for batch in batches:
            (collate,) = batch.inner
            assert (collate.name, collate.until - collate.since, collate.until) == ("collate", 5_000, batch.until)

    def test_workers_of_other_loaders_have_tracks_of_their_own(self) -> None:
        process = the_pass(stretch("baseline", 1.0), stretch("settings:1", 2.0, workers=1))
        assert [*process.tracks][2:] == ["worker 0", "worker 1", "worker 0 of settings:1"]

    def test_settings_are_said(self) -> None:
        session = session_of(stretch("settings:1", 1.0), stretch("settings:2", 2.0))
        session.knobs = Knobs([LoaderSettings(8, 4)])
        (process,) = written(session).values()
        assert [one.args.get("settings") for one in process.tracks["rung"]] == [
            "num_workers=8, prefetch_factor=4",
            None,
        ]

    def test_without_workers(self) -> None:
        process = the_pass(alone("baseline", 1.0, 3))
        assert [*process.tracks] == ["rung", "training loop"]
        assert process.counters == {}
        for wait in process.tracks["training loop"][::2]:
            (batch,) = wait.inner
            assert (batch.name, batch.since, batch.until) == ("batch", wait.since + 1_000, wait.until)
            assert names(batch.inner) == ["collate"]

    def test_batches_ready(self) -> None:
        process = the_pass(stretch("baseline", 1.0, 3), cached("device", 2.0))
        assert process.counters == {"batches ready": [(1_000_000, 0), (1_100_000, 1), (1_200_000, 0)]}

    def test_passes_are_apart(self) -> None:
        session = session_of(
            stretch("baseline", 5.0, attempt=2), stretch("baseline", 1.0), stretch("raw", 6.0, attempt=2)
        )
        processes = written(session)
        assert [*processes] == ["train.py", "train.py, pass 2"]
        assert names(processes["train.py, pass 2"].tracks["rung"]) == ["baseline", "raw"]

    def test_a_worker_makes_one_batch_after_the_other(self) -> None:
        """A viewer cannot show slices that overlap: the later one begins where the earlier one ends."""
        odd = stretch("baseline", 1.0, workers=1)
        odd.made_from = [1.0, 1.05, 1.1, 2.0]
        odd.made_until = [1.2, 1.1, 1.3, 1.5]
        odd.collate_ms = [500.0, 1.0, 0.0, 1.0]
        batches = the_pass(odd).tracks["worker 0"]
        assert [(one.since, one.until) for one in batches] == [(1_000_000, 1_200_000), (1_200_000, 1_300_000)]
        assert [len(one.inner) for one in batches] == [1, 0]


class TestFile:
    def test_the_same_bytes(self) -> None:
        session = session_of(stretch("baseline", 1.0), cached("device", 2.0))
        data = trace.write(diagnose_session(session))
        again = Session.from_dict(json.loads(json.dumps(session.to_dict())))
        assert trace.write(diagnose_session(again)) == data
        assert data[4:8] == bytes(4), "no time of writing is in it"

    @pytest.mark.parametrize("name", ['a "b" \\ c', "zu\u0308ge \U0001f682", "line\nbreak", "\udcff"])
    def test_names_of_any_kind(self, name: str) -> None:
        session = session_of(stretch("baseline", 1.0))
        session.script.argv = [name]
        assert [*written(session)] == [name]

    @pytest.mark.parametrize("stretches", [[], [Stretch("baseline")]])
    def test_a_session_of_windows_alone(self, stretches: list[Stretch]) -> None:
        """Their times are not known, and a trace must not invent them."""
        with pytest.raises(SessionFileError, match="holds no single steps"):
            trace.write(diagnose_session(session_of(*stretches)))


def kernel(name: str, ts: Any, dur: Any, *, cat: str = "kernel", stream: int = 7, device: int = 0) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": {}}


class TestProfile:
    NAME = "device 0: 5 steps profiled on cached batches, appended behind the rungs"

    def session(self, file: Path) -> Session:
        session = session_of(stretch("baseline", 1.0, 10))
        session.profile = Profile(trace=str(file), steps=5)
        return session

    @pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
    def test_copies_and_kernels(self, tmp_path: Path, name: str) -> None:
        events = [
            kernel("sgemm<float>", 5_000_100.5, 50.25),
            kernel("Memcpy HtoD", 5_000_000.0, 200, cat="gpu_memcpy", stream=20),
            kernel("after it", 5_000_150.2, 10),
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5_000_000, "dur": 100},
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        ]
        data = json.dumps({"traceEvents": events}).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        device = written(self.session(tmp_path / name))[self.NAME]
        (copy,), kernels = device.tracks["stream 20"], device.tracks["stream 7"]
        assert (copy.name, copy.since, copy.until) == ("Memcpy HtoD", 2_100_000, 2_100_200)
        assert [(one.name, one.since) for one in kernels] == [("sgemm<float>", 2_100_100), ("after it", 2_100_151)]

    def test_devices_are_apart(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.json"
        file.write_text(json.dumps({"traceEvents": [kernel("a", 0, 1), kernel("b", 0.5, 1, device=1)]}))
        assert [*written(self.session(file))] == ["train.py", self.NAME, self.NAME.replace("0", "1", 1)]

    @pytest.mark.parametrize(
        "text",
        [
            None,
            "",
            "[]",
            '{"traceEvents": 3}',
            '{"traceEvents": [3, {}, {"ph": "X", "cat": "kernel", "ts": "1", "dur": 2}]}',
            '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 2}]}',
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}',
        ],
    )
    def test_a_file_without_work_of_a_device(self, tmp_path: Path, text: str | None) -> None:
        file = tmp_path / "trace.json"
        if text is not None:
            file.write_text(text)
        assert [*written(self.session(file))] == ["train.py"]

    def test_no_trace_was_written(self, tmp_path: Path) -> None:
        session = self.session(tmp_path)
        session.profile = Profile(why_not="it was not measured")
        assert [*written(session)] == ["train.py"]
