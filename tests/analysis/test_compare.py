"""Two runs compared: what changed, how certain that is, and when runs do not compare."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.compare import Comparison, RungChange, StageChange, compare
from pipediag.analysis.summary import summarise
from pipediag.report import RENDERERS, write
from pipediag.session import RUNGS, Session, Window

from ..conftest import Main
from ..made import DOCUMENTS, FLAT, climbing, cut, inside, make, waits, without

BEFORE, AFTER = climbing(raw=30.0), climbing(raw=10.0)


def held(before: Session, after: Session) -> Comparison:
    return compare(diagnose_session(before), diagnose_session(after))


def runs(before: Mapping[str, float] = BEFORE, after: Mapping[str, float] = AFTER, **more: Any) -> Comparison:
    return held(make(before, **more), make(after, seed=2, **more))


def rung(comparison: Comparison, name: str) -> RungChange:
    return next(one for one in comparison.rungs if one.rung == name)


def stage(comparison: Comparison, name: str) -> StageChange:
    return next(one for one in comparison.stages if one.stage == name)


class TestBetweenSteps:
    """Workers that start anew in every epoch of 20 batches take 2 s for that; workers that are kept do not."""

    BEFORE = make(climbing(raw=30.0), length=20, startups=[2.5, 2.0, 2.0, 2.0])
    AFTER = make(climbing(raw=30.0), length=20, startups=[2.5], persistent=True, seed=2)

    def test_the_loop_is_faster_without_them(self) -> None:
        found = held(self.BEFORE, self.AFTER)
        assert found.loop is not None and found.loop.speedup is not None
        assert found.loop.speedup.value == pytest.approx(181 / 81, rel=0.02)
        assert found.answer == "faster"
        assert not rung(found, "baseline").significant  # the steps themselves are as fast as before

    def test_its_rates_are_those_of_the_two_reports(self) -> None:
        sides = diagnose_session(self.BEFORE), diagnose_session(self.AFTER)
        rates = [summarise(side).rates[0].steps_per_s for side in sides]
        summary = summarise(compare(*sides))
        assert [rate.steps_per_s for rate in summary.rates] == pytest.approx(rates)
        assert summary.rates[0].note.endswith("100 ms between two steps")
        assert "between" not in summary.rates[1].note

    def test_a_side_that_was_not_measured(self) -> None:
        found = held(self.BEFORE, Session())
        assert found.loop is None or found.loop.speedup is None
        assert found.answer == ""


class TestRungs:
    def test_what_got_faster(self) -> None:
        one = rung(runs(), "baseline")
        assert one.speedup.value == pytest.approx(81 / 61, rel=0.01)
        assert 1.1 < one.speedup.low < one.speedup.high < 1.6
        assert one.significant
        assert one.before is not None and one.after is not None
        assert one.before.value == pytest.approx(1000 / 81, rel=0.01)

    @pytest.mark.parametrize("name", ["device", "host", "worker", "sample"])
    def test_what_did_not(self, name: str) -> None:
        assert not rung(runs(), name).significant

    def test_less_than_two_analyses_differ(self) -> None:
        one = rung(runs(FLAT, {name: ms * 1.08 for name, ms in FLAT.items()}, noise=0.0), "baseline")
        assert one.speedup is not None and one.speedup.low < 1 / 1.08 < 1 < one.speedup.high
        assert not one.significant

    def test_noise(self) -> None:
        assert not rung(runs(noise=0.3, rounds=3), "baseline").significant

    def test_a_window_each_is_not_enough(self) -> None:
        """However large the difference: nothing shows how windows of these loops differ."""
        one, two = (rung(runs(BEFORE, climbing(raw=2.0), rounds=rounds, noise=0.0), "baseline") for rounds in (1, 2))
        assert one.speedup is not None and one.speedup.low > 1
        assert (one.significant, two.significant) == (False, True)

    def test_a_loop_that_waits_is_off_by_more(self) -> None:
        """Its speed is that of the host, which differs from run to run."""
        one, other = (
            rung(runs(after=climbing(raw=10.0), evidence=seen), "baseline") for seen in (waits(1.0), waits(75.0))
        )
        assert (one.significant, other.significant) == (True, False)

    def test_so_is_training_on_the_cpu(self) -> None:
        assert not rung(runs(device="cpu", noise=0.0), "baseline").significant

    def test_no_certainty_beside_other_processes(self) -> None:
        """On a busy machine the same loop is as fast as the others let it be."""
        seen = {"baseline": {"cores_busy": 9.0, "cores_used": 4.0}}
        comparison = held(make(BEFORE, evidence=seen), make(AFTER))
        assert not any(one.significant for one in comparison.rungs)
        (warning,) = comparison.warnings
        assert (warning.code, warning.message) == ("other-load", "other processes used the cores during the run before")

    def test_measured_on_one_side(self) -> None:
        one = rung(runs(without(BEFORE, "host"), AFTER), "host")
        assert (one.before, one.speedup, one.significant) == (None, None, False)
        assert one.after is not None

    def test_in_ladder_order_controls_last(self) -> None:
        chain = {"noise": 0.0, "inside": inside(5.0, 5.0)}
        both = held(make({**BEFORE, "supply": 30.0}), make(cut(AFTER, (5.0, 5.0)), **chain))  # type: ignore[arg-type]
        assert [one.rung for one in both.rungs] == [*RUNGS[:4], "transform:1", *RUNGS[4:], "supply"]


class TestOfTheLoop:
    """The training process's own time for a step."""

    def test_the_model(self) -> None:
        slower = {name: ms + 20.0 for name, ms in AFTER.items()}
        found = runs(AFTER, slower)
        assert [(one.stage, one.per) for one in found.changed] == [("compute", "step")]
        one = stage(found, "compute")
        assert (one.before.value, one.after.value) == (pytest.approx(50, rel=0.01), pytest.approx(70, rel=0.01))

    def test_transfer_and_hand_off(self) -> None:
        found = runs(climbing(host=2.0, worker=3.0), climbing(host=12.0, worker=20.0))
        assert [one.stage for one in found.changed] == ["transfer", "ipc"]

    def test_the_attribution_is_no_stage(self) -> None:
        """The workers are late now, so their time costs the step something. That is no change of the model's step."""
        found = runs(climbing(), climbing(raw=90.0), evidence=waits(60.0, 0.0))
        assert [one.stage for one in found.stages] == ["compute", "transfer", "ipc"]
        assert not found.changed

    def test_a_window_of_a_cached_rung_is_not_enough(self) -> None:
        slower = make({name: ms + 20.0 for name, ms in AFTER.items()})
        assert [one.stage for one in held(make(AFTER), slower).changed] == ["compute"]
        slower.windows = [one for one in slower.windows if one.rung != "device" or not one.round]
        assert not held(make(AFTER), slower).changed

    def test_a_rung_of_one_side(self) -> None:
        one = stage(runs(without(BEFORE, "host"), AFTER), "transfer")
        assert (one.before, one.change, one.significant) == (None, None, False)

    def test_not_fed_from_a_cache(self) -> None:
        assert runs({"baseline": 80.0}, {"baseline": 60.0}).stages == []


@dataclass
class Truth:
    """A script: milliseconds of a worker for a sample by stage, and of the training process for a step."""

    load: float = 4.0
    links: tuple[float, ...] = (2.0, 3.0, 1.0)
    collate: float = 0.5
    compute: float = 50.0
    workers: int = 4
    device: str = "cuda"

    def analysed(self, draw: random.Random, rounds: int = 4, busy: float = 1 / 3) -> Session:
        """An analysis as recorded ones scatter: the host by 15 %, shares by up to 4 points, windows by 6 %.

        The second transform runs on half of the samples. A share ``busy`` of the runs is beside other processes, for
        which their workers wait for a core.
        """
        host = math.exp(draw.gauss(0, 0.15))
        links = [ms * host * (1 + draw.gauss(0, 0.08)) for ms in self.links]
        links[1] *= sum(draw.random() < 0.5 for _ in range(128)) / 64
        load, collate = (ms * host * (1 + draw.gauss(0, 0.08)) for ms in (self.load, self.collate))
        of_host = host if self.device == "cpu" else math.exp(draw.gauss(0, 0.01))
        others = draw.uniform(2.0, 10.0) if draw.random() < busy else draw.uniform(0.0, 1.0)
        own, queued = self.compute * of_host, others / 20
        sample = host * (self.load + sum(self.links) + self.collate)
        found = make(climbing(), rounds=0, workers=self.workers, device=self.device)
        found.inside = inside(*links, load=load, samples=128)
        for link in found.inside.links:
            link.cost.wall_ms *= 1 + draw.random()  # a busy machine
        for round_ in range(rounds):
            for rung, ms in [*list(climbing().items())[:3], ("baseline", 51.0)]:
                took = 32 * sample * math.exp(draw.gauss(0, 0.06)) / (1 - queued)
                noise = 0.07 if self.device == "cpu" else 0.01
                ready = (ms - 50 + own) * math.exp(draw.gauss(0, noise))
                step = max(ready, took / self.workers) if rung == "baseline" else ready
                seen = {"wait_ms": step - ready, "worker_ms": took, "worker_cpu": 1 - queued, "worker_queued": queued}
                seen |= {"collate_ms": 32 * collate / (1 - queued), "cores_used": 4.0, "cores_busy": 4.0 + others}
                found.windows.append(Window(rung, round_, 10, step / 100, 10, evidence=seen))
        return found


#: Loops that wait for their workers, that do not, and that train on the CPU.
SCRIPTS = {"input": Truth(), "model": Truth(compute=150.0), "cpu": Truth(compute=40.0, device="cpu")}


def drawn(before: Truth, after: Truth, draws: int = 200, **more: Any) -> list[Comparison]:
    """Comparisons of analyses, each of which is in two of them."""
    draw, count = random.Random(7), draws // 2
    first, second = (
        [diagnose_session(script.analysed(draw, **more)) for _ in range(count + extra)]
        for script, extra in ((before, 1), (after, 0))
    )
    return [compare(first[n + k], second[n]) for n in range(count) for k in (0, 1)]


class TestTwoAnalyses:
    """Sessions with planted noise, of one script and of a changed one."""

    @pytest.mark.parametrize(
        ("name", "busy"),
        [
            pytest.param(name, busy, marks=[] if (name, busy) == ("input", 1 / 3) else pytest.mark.slow)
            for name in SCRIPTS
            for busy in (0.0, 1 / 3)
        ],
    )
    def test_of_one_script_certainly_differ_in_nothing(self, name: str, busy: float) -> None:
        found = drawn(SCRIPTS[name], SCRIPTS[name], busy=busy)
        wrong = [one for one in found if one.changed or one.answer in ("faster", "slower")]
        assert len(wrong) <= 0.03 * len(found), [(one.answer, [c.stage for c in one.changed]) for one in wrong]

    @pytest.mark.parametrize("factor", [3.0, pytest.param(1 / 3, marks=pytest.mark.slow)])
    @pytest.mark.parametrize(
        "name", ["input", *(pytest.param(name, marks=pytest.mark.slow) for name in ("model", "cpu"))]
    )
    def test_a_changed_transform_is_found_and_nothing_else(self, name: str, factor: float) -> None:
        few = replace(SCRIPTS[name], links=(2.0, 3.0, 1.0))
        many = replace(few, links=(2.0, 9.0, 1.0))
        found = drawn(few, many, 100) if factor > 1 else drawn(many, few, 100)
        named = [[one.name for one in comparison.changed] for comparison in found]
        assert named.count(["B"]) >= 0.97 * len(found), [one for one in named if one != ["B"]]

    @pytest.mark.slow
    def test_a_changed_model_is_found_and_nothing_else(self) -> None:
        found = drawn(Truth(compute=100.0), Truth(compute=150.0), 100, busy=0.0)
        assert sum([one.stage for one in c.changed] == ["compute"] for c in found) >= 0.97 * len(found)

    def test_no_certainty_from_one_window(self) -> None:
        found = drawn(Truth(compute=20.0), Truth(compute=200.0, links=(20.0, 3.0, 1.0)), 20, rounds=1)
        assert not any(one.changed or one.answer in ("faster", "slower") for one in found)


class TestOfTheWorkers:
    """A worker's own time for a sample."""

    def session(self, *links: float, load: float = 2.0, queued: float = 0.0, workers: int = 4, **more: Any) -> Session:
        sample = sum(links) + load
        seen = {"worker_ms": 32 * sample / (1 - queued), "worker_cpu": 1 - queued, "worker_queued": queued}
        chain = inside(*links, load=load)
        return make(climbing(raw=8 * sample), evidence=waits(8 * sample, **seen), inside=chain, workers=workers, **more)

    def changed(self, before: Session, after: Session) -> list[str]:
        return [one.name or one.stage for one in held(before, after).changed]

    def test_milliseconds_of_a_sample(self) -> None:
        found = held(self.session(3.0, 2.0), self.session(9.0, 2.0))
        one = stage(found, "transform")
        assert (one.name, one.where, one.per, one.significant) == ("A", "aug.py:10", "sample", True)
        assert (one.before.value, one.after.value) == (pytest.approx(3.0), pytest.approx(9.0))
        assert [c.name for c in found.changed] == ["A"]
        assert [c.stage for c in found.of_the_workers] == ["load", "transform", "transform", "collate", "sample"]

    def test_waiting_for_a_core_is_no_work(self) -> None:
        """The machine was busy in one of the runs: its workers took three times as long, but worked as much."""
        found = held(self.session(3.0, 2.0), self.session(3.0, 2.0, queued=2 / 3))
        assert not found.changed
        one = stage(found, "sample")
        assert one.after.value == pytest.approx(one.before.value, rel=1e-3)

    def test_without_that_counter_nothing_is_certain(self) -> None:
        sessions = self.session(3.0, 2.0), self.session(12.0, 2.0)
        assert self.changed(*sessions) == ["A"]
        for window in sessions[1].windows:
            window.evidence.pop("worker_queued", None)
        assert self.changed(*sessions) == []

    def test_all_of_a_sample(self) -> None:
        """Every stage takes three times as long: none can be named, but together they changed."""
        assert self.changed(self.session(3.0, 2.0, load=2.0), self.session(9.0, 6.0, load=6.0)) == ["sample"]

    def test_all_of_a_sample_with_other_workers_says_nothing(self) -> None:
        """More of them share caches and cores, so that the same code takes each of them longer."""
        more = self.session(9.0, 6.0, load=6.0, workers=8)
        assert self.changed(self.session(3.0, 2.0, load=2.0), more) == []

    def test_a_slower_host_changes_no_stage(self) -> None:
        assert self.changed(self.session(3.0, 2.0), self.session(4.2, 2.8, load=2.8)) == []

    def test_lines_that_moved(self) -> None:
        before, after = self.session(3.0, 2.0), self.session(3.0, 2.0)
        for link in after.inside.links:
            link.where = f"aug.py:{int(link.where[7:]) + 5}"
        assert not self.changed(before, after)
        assert [one.where for one in held(before, after).stages if one.name] == ["aug.py:15", "aug.py:25"]

    def test_a_new_transform(self) -> None:
        found = held(self.session(3.0, 2.0), self.session(3.0, 2.0, 6.0))
        assert [(one.name, one.before and one.before.value) for one in found.changed] == [("C", 0.0)]
        assert self.changed(self.session(3.0, 2.0, 6.0), self.session(3.0, 2.0)) == ["C"]

    def test_transforms_that_one_run_did_not_take_apart(self) -> None:
        whole = self.session(5.0)
        whole.inside.unsplit, whole.inside.links[0].name = "the samples differ", "Compose"
        found = held(whole, self.session(3.0, 2.0))
        assert not found.changed
        one = stage(found, "transform")
        assert (one.name, one.before and one.before.value, one.after and one.after.value) == (
            "", pytest.approx(5.0), pytest.approx(5.0)
        )  # fmt: skip

    def test_transforms_that_one_run_did_not_find(self) -> None:
        """They are part of loading there, so that only the whole compares."""
        none = self.session(load=7.0)
        none.inside.unsplit = "no transform was found"
        found = held(none, self.session(3.0, 2.0))
        assert [(one.stage, one.significant) for one in found.of_the_workers] == [("sample", False)]

    def test_views_are_one_transform(self) -> None:
        twice = self.session(3.0, 2.0, 3.0)
        twice.inside.links[2].name, twice.inside.links[2].where = "A", "aug.py:12"
        assert [one.name for one in held(twice, twice).stages if one.name] == ["A", "B"]

    def test_blocked_time_belongs_to_the_stage_that_blocks(self) -> None:
        """Loading sleeps: of the 6 ms of a sample, 2 are CPU time of the transform."""
        before, after = self.session(2.0, load=4.0), self.session(2.0, load=16.0)
        for session, sleeps in ((before, 4.0), (after, 16.0)):
            session.inside.load.cpu_ms, session.inside.whole.cpu_ms = 0.0, 2.0
            for window in session.windows_of("baseline"):
                window.evidence["worker_cpu"] = 2.0 / (2.0 + sleeps)
        found = held(before, after)
        assert [(one.stage, one.after and round(one.after.value, 3)) for one in found.changed] == [("load", 16.0)]
        one = stage(found, "transform")
        assert one.after is not None and one.after.value == pytest.approx(2.0, rel=1e-3)

    def test_unknown(self) -> None:
        before, after = self.session(3.0), self.session(3.0)
        before.loader.batch_size = None
        assert held(before, after).of_the_workers == []
        after.inside = None
        assert [one.stage for one in held(after, after).of_the_workers] == ["sample"]
        assert [one.stage for one in held(after, self.session(3.0)).of_the_workers] == ["sample"]


class TestSentence:
    def test_faster(self) -> None:
        assert runs(noise=0.0).sentence == "The loop is faster: +33 % steps a second (+17 to +51)."

    def test_slower(self) -> None:
        assert runs(AFTER, BEFORE, noise=0.0).sentence == "The loop is slower: -25 % steps a second (-34 to -15)."

    def test_neither(self) -> None:
        assert runs(BEFORE, BEFORE).sentence.startswith("The loop is as fast as before, as far as can be told: ")

    def test_one_window(self) -> None:
        assert runs(rounds=1, noise=0.0).sentence == "The loop is maybe faster: +33 % steps a second (+11 to +59)."

    def test_no_baseline(self) -> None:
        assert "one of them has no baseline" in runs(without(BEFORE, "baseline")).sentence
        assert "one of them has no baseline" in held(Session(), Session()).sentence


class TestComparable:
    def codes(self, **changed: Any) -> list[str]:
        before, after = make(BEFORE), make(AFTER)
        assert after.loader is not None
        after.device.update(changed.pop("device", {}))
        after.environment.update(changed.pop("environment", {}))
        after.script.argv = changed.pop("argv", after.script.argv)
        for name, value in changed.items():
            setattr(after.loader, name, value)
        return [warning.code for warning in held(before, after).warnings]

    def test_like_with_like(self) -> None:
        assert self.codes(num_workers=8) == []

    @pytest.mark.parametrize(
        "changed, code",
        [
            ({"device": {"name": "NVIDIA L4"}}, "other-device"),
            ({"environment": {"cores": 4}}, "other-cores"),
            ({"batch_size": 64}, "other-batch-size"),
            ({"dataset": "Videos"}, "other-dataset"),
            ({"argv": ["other.py"]}, "other-script"),
        ],
    )
    def test_not(self, changed: dict[str, Any], code: str) -> None:
        assert self.codes(**changed) == [code]

    def test_what_is_not_known_is_not_different(self) -> None:
        assert self.codes(batch_size=None) == []

    def test_partial(self) -> None:
        before = make(BEFORE)
        before.windows = [window for window in before.windows if window.rung != "raw"]
        (warning,) = held(before, make(AFTER)).warnings
        assert (warning.code, warning.message) == ("partial", "not all stages were measured in the run before")

    def test_settings(self) -> None:
        before, after = make(BEFORE, workers=4), make(AFTER, workers=8)
        before.script.argv, after.script.argv = ["train.py"], ["train.py", "--workers", "8"]
        assert held(before, after).settings == [("num_workers", 4, 8), ("arguments", "", "--workers 8")]

    def test_settings_of_a_loader_that_is_not_known(self) -> None:
        assert held(Session(), make(AFTER)).settings == []


class TestRendered:
    @pytest.mark.parametrize("ending", DOCUMENTS)
    def test_everything_is_told(self, ending: str) -> None:
        comparison = runs({**without(BEFORE, "raw"), "supply": 9.0}, AFTER, workers=4)
        comparison.after.session.device["name"] = "NVIDIA L4"
        text = RENDERERS[ending](compare(comparison.before, comparison.after))
        assert "bottleneck" in text or ending == ".json"
        own = "compute" if ending == ".json" else "the model's own step"
        for part in ("supply", "baseline", own, "the loop is faster: ", "NVIDIA L4"):
            assert part.lower() in text.lower()

    def test_json(self) -> None:
        data = json.loads(RENDERERS[".json"](runs(noise=0.0)), parse_constant=pytest.fail)
        assert data["verdict"] == {"before": "transform", "after": "transform"}
        baseline = next(one for one in data["rungs"] if one["rung"] == "baseline")
        assert baseline["speedup"]["value"] == pytest.approx(81 / 61)
        assert baseline["significant"] is True
        assert {one["stage"] for one in data["stages"]} == {"compute", "transfer", "ipc"}

    @settings(max_examples=30)
    @given(*[st.dictionaries(st.sampled_from((*RUNGS, "supply")), st.floats(0.1, 500))] * 2, st.integers(1, 4))
    def test_of_anything(self, before: dict[str, float], after: dict[str, float], rounds: int) -> None:
        comparison = runs(before, after, rounds=rounds, noise=0.05)
        for ending in DOCUMENTS:
            assert RENDERERS[ending](comparison)
        assert all(one.speedup is not None for one in comparison.rungs if one.significant)


class TestCommand:
    @pytest.fixture
    def files(self, tmp_path: Path) -> tuple[Path, Path]:
        paths = tmp_path / "before.json", tmp_path / "after.json"
        for path, ladder in zip(paths, (BEFORE, AFTER), strict=True):
            write(diagnose_session(make(ladder, noise=0.0)), str(path))
        return paths

    def test_shown(self, main: Main, files: tuple[Path, Path]) -> None:
        code, out, err = main("compare", "-v", *files)
        assert (code, err) == (0, "")
        assert "THE LOOP IS FASTER: 1.33x" in out

    @pytest.mark.parametrize("ending", DOCUMENTS)
    def test_written(self, main: Main, files: tuple[Path, Path], tmp_path: Path, ending: str) -> None:
        target = tmp_path / f"x{ending}"
        assert main("compare", *files, "-o", target) == (0, "", f"pipediag: wrote {target}\n")
        assert "the loop is faster" in target.read_text().lower()

    @pytest.mark.parametrize("percent, code", [(10, 3), (20, 0)])
    def test_a_gate(self, main: Main, files: tuple[Path, Path], percent: int, code: int) -> None:
        """With the files exchanged, the loop makes 25 % fewer steps."""
        before, after = files
        left, _, err = main("compare", "--fail-over", percent, after, before)
        assert left == code
        assert ("fewer steps/s than before" in err) is (code == 3)

    def test_a_gate_is_not_crossed_by_getting_faster(self, main: Main, files: tuple[Path, Path]) -> None:
        assert main("compare", "--fail-over", 0, *files)[0] == 0

    def test_no_such_file(self, main: Main, files: tuple[Path, Path]) -> None:
        code, _, err = main("compare", files[0], files[0].with_name("missing.json"))
        assert code == 2
        assert "missing.json: cannot be read" in err

    def test_a_bad_ending_is_noticed_first(self, main: Main, files: tuple[Path, Path]) -> None:
        assert main("compare", *files, "-o", "x.pdf")[0] == 2
