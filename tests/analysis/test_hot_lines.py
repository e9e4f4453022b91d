"""Loading by line: which lines stand by themselves, and what the others are called."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipediag.analysis.numbers.hot_lines import averaged, does, hottest, named, of_stage, short
from pipediag.session import HotLine, Inside


def line(number: int, share: float, function: str = "Data.__getitem__", stage: str = "load") -> HotLine:
    return HotLine(f"data.py:{number}", f"line {number}", share, f"call{number}", function, stage)


def rest(share: float, stage: str = "load") -> HotLine:
    return HotLine("", "", share, stage=stage)


def loading(*lines: HotLine) -> list[tuple[str, str, float]]:
    return [(one.name, one.where, round(one.share, 4)) for one in of_stage(Inside(lines=list(lines)), "load")]


class TestOfLoading:
    def test_lines_that_take_enough_stand_by_themselves(self) -> None:
        found = loading(line(1, 0.6), line(2, 0.3), line(9, 0.1, stage="transform"))
        assert found == [("call1", "data.py:1", 0.6), ("call2", "data.py:2", 0.3)]

    def test_the_others_come_together_at_the_hottest(self) -> None:
        found = loading(line(1, 0.6), line(2, 0.03, "f"), line(3, 0.04, "g"), line(4, 0.02, "h"), rest(0.01))
        assert found[1:] == [("other lines of loading", "data.py:3", 0.1)]

    def test_a_function_of_many_lines_is_named(self) -> None:
        """A loop in Python spreads over its lines."""
        found = loading(*(line(n, 0.09, "parse") for n in range(1, 11)), line(20, 0.1, "Data.read"))
        assert found == [("call20", "data.py:20", 0.1), ("parse", "data.py:1", 0.9)]

    def test_the_other_lines_of_a_function_with_one_that_stands_by_itself(self) -> None:
        found = loading(line(1, 0.5, "parse"), line(2, 0.08, "parse"), line(3, 0.07, "parse"))
        assert found == [("call1", "data.py:1", 0.5), ("other lines of parse", "data.py:2", 0.15)]

    def test_one_other_line_keeps_its_name(self) -> None:
        assert loading(line(1, 0.9), line(2, 0.04)) == [("call1", "data.py:1", 0.9), ("call2", "data.py:2", 0.04)]

    @pytest.mark.parametrize("lines", [[], [line(1, 0.03), line(2, 0.02)], [line(1, 0.9, stage="transform")]])
    def test_nothing_to_name(self, lines: list[HotLine]) -> None:
        assert loading(*lines) == []

    @given(st.lists(st.tuples(st.floats(0.001, 1.0), st.sampled_from("fgh")), min_size=1, max_size=12))
    @settings(max_examples=50)
    def test_no_nameless_part_is_larger_than_a_line(self, drawn: list[tuple[float, str]]) -> None:
        total = sum(share for share, _ in drawn)
        lines = [line(n, share / total, function) for n, (share, function) in enumerate(drawn)]
        found = of_stage(Inside(lines=lines), "load")
        assert sum(one.share for one in found) == pytest.approx(1.0)
        *named, last = found
        assert last.name != "other lines of loading" or last.share <= min(one.share for one in named)


class TestAveraged:
    def test_by_the_number_of_looks(self) -> None:
        found = averaged(
            [Inside(lines=[line(1, 1.0)], looks=30), Inside(lines=[line(1, 0.2), line(2, 0.8)], looks=10), Inside()]
        )
        assert [(one.where, one.share) for one in found] == [("data.py:1", 0.8), ("data.py:2", 0.2)]

    def test_one_line_inside_and_outside_of_transforms(self) -> None:
        found = averaged([Inside(lines=[line(1, 0.7), line(1, 0.3, stage="transform")], looks=10)])
        assert [(one.stage, one.share) for one in found] == [("load", 0.7), ("transform", 0.3)]

    def test_what_lines_call_is_averaged_too(self) -> None:
        one, other = line(1, 1.0), line(1, 0.5)
        one.calls, other.calls = {"a.f": 0.8}, {"a.f": 0.4, "b.g": 0.2}
        (found,) = averaged([Inside(lines=[one], looks=10), Inside(lines=[other], looks=30)])
        assert (found.share, found.calls) == (0.625, {"a.f": 0.5, "b.g": 0.15})
        assert (one.calls, other.calls) == ({"a.f": 0.8}, {"a.f": 0.4, "b.g": 0.2})

    def test_nothing_was_looked_at(self) -> None:
        assert averaged([Inside(), Inside()]) == []


class TestCalls:
    """A line is named by what does its work, as far as its own text does not say so."""

    @pytest.mark.parametrize(
        "text, calls, name",
        [
            ("sf.read", {"soundfile.read": 0.9}, "sf.read"),
            (
                "super(...).__getitem__",
                {"torchaudio.load": 0.9, "soundfile.SoundFile.read": 0.8},
                "soundfile.SoundFile.read",
            ),
            ("self.dataset[i]", {"torchaudio.data.X.__getitem__": 0.9, "soundfile.read": 0.8}, "soundfile.read"),
            ("self.frame.iloc[i]", {"pandas.core.indexing.iloc.__getitem__": 0.9}, "self.frame.iloc[i]"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr.resample": 0.6}, "librosa.load > soxr.resample"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr.resample": 0.4}, "librosa.load"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr._process": 0.9}, "librosa.load"),
            ("F.resize", {"torchvision.functional.resize": 0.9, "PIL.Image.Image.resize": 0.9}, "F.resize"),
            ("x = a + b", {}, "x = a + b"),
        ],
    )
    def test_named(self, text: str, calls: dict[str, float], name: str) -> None:
        source = text if " = " in text else f"x = {text}(y)"
        assert named(HotLine("data.py:1", source, 0.9, text, calls=calls)) == name

    @pytest.mark.parametrize(
        ("text", "calls", "name"),
        [
            ("subprocess.run", ["subprocess.Popen.communicate", "selectors.PollSelector.select"], "subprocess.run"),
            ("self.queue.get", ["queue.Queue.get", "threading.Condition.wait"], "self.queue.get"),
            ("list", ["concurrent.futures.Future.result", "threading.Condition.wait"], "list"),
        ],
    )
    def test_what_only_waits_is_no_name(self, text: str, calls: list[str], name: str) -> None:
        assert named(HotLine("data.py:1", f"x = {text}(y)", 0.9, text, calls=dict.fromkeys(calls, 0.9))) == name

    def test_on_the_screens_lines(self) -> None:
        one = HotLine(
            "data.py:1", "", 0.9, "self.data[i]", "D.get", "load", calls={"a.b.get": 0.9, "soundfile.read": 0.8}
        )
        assert loading(one) == [("soundfile.read", "data.py:1", 0.9)]

    def test_what_a_line_does(self) -> None:
        one = HotLine("data.py:1", "", 0.9, calls={"PIL.Image.Image.convert": 0.8, "PIL.ImageFile.ImageFile.load": 0.7})
        assert does(one, lambda name: name.endswith(".load")) == 0.7
        assert does(one, lambda name: name.startswith("cv2.")) == 0.0

    @pytest.mark.parametrize(
        "function, told",
        [
            ("soundfile.read", "soundfile.read"),
            ("soundfile", "soundfile"),
            ("PIL.ImageFile.ImageFile.load", "PIL.ImageFile.load"),
            ("scipy.ndimage._filters.gaussian_filter", "scipy.gaussian_filter"),
        ],
    )
    def test_short(self, function: str, told: str) -> None:
        assert short(function) == told

    def test_lines_of_collating_are_no_samples(self) -> None:
        inside = Inside(lines=[line(1, 0.9, stage="collate"), line(2, 1.0)])
        assert [one.where for one in hottest(inside)] == ["data.py:2"]
        assert [one.where for one in of_stage(inside, "collate")] == ["data.py:1"]


def test_the_hottest() -> None:
    lines = [line(1, 0.5), line(2, 0.3, stage="transform"), rest(0.1), line(3, 0.04)]
    assert [one.where for one in hottest(Inside(lines=lines))] == ["data.py:1", "data.py:2"]
    assert [one.where for one in hottest(Inside(lines=lines), "transform")] == ["data.py:2"]
    assert hottest(None) == []
