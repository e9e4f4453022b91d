"""Two runs compared: what changed, how certain that is, and when runs do not compare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.compare import Comparison, RungChange, StageChange, compare
from pipediag.report import RENDERERS, write
from pipediag.session import RUNGS, Session

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


class TestRungs:
    def test_what_got_faster(self) -> None:
        one = rung(runs(), "baseline")
        assert one.speedup is not None
        assert one.speedup.value == pytest.approx(81 / 61, rel=0.01)
        assert 1.2 < one.speedup.low < one.speedup.high < 1.5
        assert one.significant
        assert one.before is not None and one.after is not None
        assert one.before.value == pytest.approx(1000 / 81, rel=0.01)

    @pytest.mark.parametrize("name", ["device", "host", "worker", "sample"])
    def test_what_did_not(self, name: str) -> None:
        assert not rung(runs(), name).significant

    def test_less_than_the_instrument_tells(self) -> None:
        one = rung(runs(FLAT, {name: ms * 1.008 for name, ms in FLAT.items()}, noise=0.0), "baseline")
        assert one.speedup is not None and one.speedup.high < 1
        assert not one.significant

    def test_noise(self) -> None:
        assert not rung(runs(noise=0.3, rounds=3), "baseline").significant

    @pytest.mark.parametrize("cost, significant", [(27.0, False), (10.0, True)])
    def test_one_window(self, cost: float, significant: bool) -> None:
        """Its error is the known difference between such windows."""
        one, many = (rung(runs(BEFORE, climbing(raw=cost), rounds=rounds), "baseline") for rounds in (1, 5))
        assert one.significant is significant
        assert many.significant
        assert one.speedup is not None and many.speedup is not None
        assert one.speedup.low < many.speedup.low < many.speedup.high < one.speedup.high

    def test_one_window_of_a_loop_that_waits_is_off_by_more(self) -> None:
        one = rung(runs(rounds=1, evidence=waits(75.0), after=climbing(raw=15.0)), "baseline")
        assert one.speedup is not None
        assert not one.significant

    def test_measured_on_one_side(self) -> None:
        one = rung(runs(without(BEFORE, "host"), AFTER), "host")
        assert (one.before, one.speedup, one.significant) == (None, None, False)
        assert one.after is not None

    def test_in_ladder_order_controls_last(self) -> None:
        chain = {"noise": 0.0, "inside": inside(5.0, 5.0)}
        both = held(make({**BEFORE, "supply": 30.0}), make(cut(AFTER, (5.0, 5.0)), **chain))  # type: ignore[arg-type]
        assert [one.rung for one in both.rungs] == [*RUNGS[:4], "transform:1", *RUNGS[4:], "supply"]


class TestStages:
    def test_what_got_cheaper(self) -> None:
        one = stage(runs(), "transform")
        assert one.change is not None
        assert one.change.value == pytest.approx(-20.0, abs=0.5)
        assert one.significant

    @pytest.mark.parametrize("name", ["compute", "transfer", "load", "storage"])
    def test_what_did_not(self, name: str) -> None:
        assert not stage(runs(), name).significant

    def test_links_are_one_stage(self) -> None:
        costs = ((20.0, 10.0), (5.0, 5.0))
        sessions = [make(cut(climbing(raw=sum(c)), c), inside=inside(*c)) for c in costs]
        one = stage(held(*sessions), "transform")
        assert one.change is not None
        assert one.change.value == pytest.approx(-20.0, abs=1.0)

    def test_measured_together_with_another(self) -> None:
        """Without the rung between them, loading and transforms are one piece, which the other side does not have."""
        one = stage(runs(without(BEFORE, "raw"), AFTER), "load")
        assert (one.change, one.significant, one.alone) == (None, False, False)
        assert one.before is not None and one.after is not None

    def test_a_stage_of_one_side(self) -> None:
        one = stage(runs(without(BEFORE, "raw"), AFTER), "transform")
        assert (one.before, one.change, one.alone) == (None, None, True)


class TestSentence:
    def test_faster(self) -> None:
        assert runs(noise=0.0).sentence == "The loop is faster: +33 % steps a second."

    def test_slower(self) -> None:
        assert runs(AFTER, BEFORE, noise=0.0).sentence == "The loop is slower: -25 % steps a second."

    def test_neither(self) -> None:
        assert runs(BEFORE, BEFORE).sentence.startswith(
            "The loop is neither faster nor slower, as far as can be told: "
        )

    def test_one_window(self) -> None:
        assert runs(rounds=1, noise=0.0).sentence == "The loop is faster: +33 % steps a second (+23 to +44)."

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
        assert (warning.code, warning.message) == ("partial", "the run before is PARTIAL")

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
        for part in ("supply", "baseline", "storage", "the loop is faster: ", "NVIDIA L4"):
            assert part.lower() in text.lower()

    def test_text(self) -> None:
        text = RENDERERS[".txt"](runs(noise=0.0))
        assert "\nbottleneck: transforms -> transforms\n" in text
        lines = [" ".join(line.split()) for line in text.splitlines()]
        assert "baseline 12.3 16.4 1.33x significant" in lines
        assert "device 20 20 1x not significant" in lines
        assert "transforms 30 10 -20 -20.8 .. -19.2 significant" in lines

    def test_sides_that_do_not_match(self) -> None:
        text = RENDERERS[".txt"](runs(without(BEFORE, "raw"), AFTER))
        assert "not measured on both sides" in text
        assert "with other stages on one side" in text

    def test_json(self) -> None:
        data = json.loads(RENDERERS[".json"](runs(noise=0.0)), parse_constant=pytest.fail)
        assert data["verdict"] == {"before": "transform", "after": "transform"}
        baseline = next(one for one in data["rungs"] if one["rung"] == "baseline")
        assert baseline["speedup"]["value"] == pytest.approx(81 / 61)
        assert baseline["significant"] is True
        assert {one["stage"] for one in data["stages"]} >= {"compute", "transform", "storage"}

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
        assert main("compare", *files, "-o", target) == (0, "", "")
        assert "the loop is faster" in target.read_text().lower()

    @pytest.mark.parametrize("percent, code", [(20, 3), (30, 0)])
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
