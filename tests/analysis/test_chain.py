"""The transform chain and the lines of loading: what stands by itself, and how its parts are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis.numbers.chain import (
    Grain,
    dominant,
    grains,
    heaviest,
    joined,
    merged,
    parts_of_sample,
    why_unsplit,
)
from pipediag.analysis.numbers.hot_lines import averaged, does, hottest, is_python, named, of_stage, short, within
from pipediag.session import NOT_YET, Cost, HotLine, Inside, Link, Part, Place, Session

from ..made import inside


class TestWhyUnsplit:
    @pytest.mark.parametrize(
        "found",
        [None, Inside(), Inside(unsplit="because"), inside(10.0), inside(10.0, unsplit="because"), inside(10.0, 20.0)],
        ids=["not looked", "nothing", "no links", "one link", "one link all the same", "a chain"],
    )
    def test_no_reason(self, found: Inside | None) -> None:
        assert why_unsplit(Session(inside=found)) == ""

    def test_as_the_worker_says(self) -> None:
        assert why_unsplit(Session(inside=inside(10.0, 20.0, unsplit="because"))) == "because"

    @pytest.mark.parametrize("between, costly", [(0.05, False), (7.0, False), (8.0, True), (40.0, True)])
    def test_the_code_between_the_links(self, between: float, costly: bool) -> None:
        why = why_unsplit(Session(inside=inside(10.0, 20.0, between=between)))
        assert why == (f"the code that applies the transforms takes {between:.2g} ms a sample itself" if costly else "")

    @pytest.mark.parametrize("between, costly", [(0.09, False), (0.2, True)])
    def test_quick_links(self, between: float, costly: bool) -> None:
        assert bool(why_unsplit(Session(inside=inside(0.01, 0.02, between=between)))) is costly


class TestMerged:
    def test_the_figures_of_the_one_that_looked(self) -> None:
        looked, other = inside(10.0, 20.0), Inside(links=[Link("A", "aug.py:10"), Link("B", "aug.py:20")])
        assert merged([other, looked, other]) == looked
        assert looked.unsplit == ""

    @pytest.mark.parametrize(
        "other",
        [
            Inside(),
            Inside(links=[Link("A", "aug.py:10")]),
            Inside(links=[Link("B", "aug.py:20"), Link("A", "aug.py:10")]),
        ],
        ids=["none", "shorter", "other order"],
    )
    def test_different_chains(self, other: Inside) -> None:
        assert merged([inside(10.0, 20.0), other]).unsplit == "the workers found different chains of transforms"

    def test_a_worker_that_has_not_taken_its_chain_apart_does_not_contradict(self) -> None:
        looked, other = inside(10.0, 20.0), Inside(unsplit=NOT_YET)
        assert merged([looked, other]) == looked

    def test_all_that_have_taken_it_apart_are_compared(self) -> None:
        """This includes chains without rungs and workers without a timed sample."""
        looked, chain = inside(10.0, 20.0), [Link("A", "aug.py:10"), Link("B", "aug.py:20")]
        apart = "the workers found different chains of transforms"
        assert merged([looked, Inside(links=chain, unsplit="samples differ")]).unsplit == apart
        assert merged([looked, inside(10.0, 20.0, 5.0)]).unsplit == apart
        assert merged([looked, Inside(links=chain)]).unsplit == ""
        assert merged([looked, inside(30.0, 5.0)]).unsplit == ""

    def test_what_has_not_taken_it_apart_is_not_compared_whatever_it_saw(self) -> None:
        looked, early = inside(10.0, 20.0, samples=40), inside(10.0, samples=8, unsplit=NOT_YET)
        assert merged([looked, early]) == merged([early, looked]) == looked

    def test_nobody_has_taken_it_apart(self) -> None:
        early = [Inside(samples=samples, unsplit=NOT_YET) for samples in (2, 8)]
        assert (merged(early).unsplit, merged(early).samples) == (NOT_YET, 10)

    def test_costs_are_averages_over_the_samples_of_all(self) -> None:
        found = merged([inside(10.0, 20.0, samples=30), inside(40.0, 20.0, samples=10)])
        assert found.samples == 40
        assert [link.cost.wall_ms for link in found.links] == [17.5, 20.0]
        assert (found.whole.wall_ms, found.load.wall_ms) == (39.5, 2.0)

    def test_the_closest_reason_stays(self) -> None:
        assert merged([inside(10.0, 20.0, unsplit="because"), Inside()]).unsplit == "because"

    def test_of_nothing(self) -> None:
        with pytest.raises(ValueError):
            merged([])

    def test_parts_are_averages_too_though_a_worker_saw_none_of_their_calls(self) -> None:
        wholes = inside(10.0, samples=30), inside(10.0, samples=10)
        blur, noise = Part("Blur", "aug.py:1", "lib", True), Part("Noise")
        wholes[0].links[0].parts = [replace(blur, cost=Cost(4.0, 4.0))]
        wholes[1].links[0].parts = [replace(blur, cost=Cost(8.0, 8.0)), replace(noise, cost=Cost(2.0, 2.0))]
        assert merged([*wholes]).links[0].parts == [
            replace(blur, cost=Cost(5.0, 5.0)),
            replace(noise, cost=Cost(0.5, 0.5)),
        ]


class TestGrains:
    def test_calls_of_one_transform_at_one_place_are_one(self) -> None:
        links = [Link(name, where, Cost(2.0, 1.0)) for name, where in [("A", "x:1"), ("B", "x:2"), ("A", "x:1")]]
        assert grains(links) == [Grain("A", "x:1", Cost(4.0, 2.0)), Grain("B", "x:2", Cost(2.0, 1.0))]

    @pytest.mark.parametrize(
        "other", [Link("A", "x:2"), Link("B", "x:1"), Link("A", "x:1", origin="lib")], ids=["place", "name", "origin"]
    )
    def test_others_stay_apart(self, other: Link) -> None:
        assert len(grains([Link("A", "x:1"), other])) == 2

    def test_one_without_a_line_is_merged_by_name(self) -> None:
        assert len(grains([Link("A"), Link("A")])) == 1

    def test_a_wrapper_gives_way_to_what_it_runs(self) -> None:
        """Its own code counts for them; a transform that also runs outside of it is one with that."""
        parts = [
            Part("Blur", "x:2", "lib", cost=Cost(6.0, 6.0)),
            Part("Jitter", "x:3", "lib", cost=Cost(3.0, 3.0)),
        ]
        links = [Link("RandomApply", "x:1", Cost(12.0, 12.0), parts=parts), Link("Jitter", "x:3", Cost(1.0), "", "lib")]
        blur, jitter = grains(links)
        assert blur == Grain("Blur", "x:2", Cost(8.0, 8.0), "RandomApply")
        assert jitter == Grain("Jitter", "x:3", Cost(5.0, 4.0))
        assert [one.in_full for one in grains(links[:1])] == ["Blur in RandomApply", "Jitter in RandomApply"]

    @pytest.mark.parametrize("part", [Part("Blur", "lib/blur.py:90", library=True), Part("Blur")])
    @pytest.mark.parametrize("where", ["x:1", ""])
    def test_a_part_without_a_line_of_the_users_is_at_its_wrappers(self, part: Part, where: str) -> None:
        part = replace(part, cost=Cost(1.0, 1.0))
        assert grains([Link("RandomApply", where, parts=[part])])[0].where == (where or part.where)

    def test_a_part_in_a_librarys_wrapper_is_at_its_own_line_in_the_library(self) -> None:
        part = Part("Mosaic", "lib/augment.py:435", library=True, cost=Cost(1.0, 1.0))
        wrapper = Link("Compose", "lib/augment.py:124", library=True)
        assert grains([replace(wrapper, parts=[part])])[0].where == "lib/augment.py:435"
        nameless = replace(wrapper, parts=[replace(part, where="")])
        assert grains([nameless])[0].where == "lib/augment.py:124"

    def test_parts_that_took_no_time_do_not_replace_it(self) -> None:
        assert grains([Link("RandomApply", "x:1", parts=[Part("Blur")])]) == [Grain("RandomApply", "x:1", Cost())]

    def test_parts_of_a_sample(self) -> None:
        found = inside(2.0, 3.0, 2.0, load=3.0)
        found.links[2] = replace(found.links[0])
        told = parts_of_sample(found, lambda cost: cost.wall_ms)
        assert told == [("A", 0.4), ("load", 0.3), ("B", 0.3)]


class TestNames:
    def test_joined(self) -> None:
        assert joined(inside(1.0, 2.0, 3.0).links) == Place("A, B, C", "aug.py:10")
        assert joined(2 * inside(1.0, 2.0).links) == Place("A, B", "aug.py:10")
        assert joined([]) is None

    @pytest.mark.parametrize(
        "costs, name",
        [
            ((5.0,), "A"),
            ((0.0,), "A"),
            ((1.0, 9.0), "B"),
            ((9.0, 1.0, 1.0), "A"),
            ((4.0, 6.0), None),
            ((0.0, 0.0), None),
        ],
    )
    def test_dominant(self, costs: tuple[float, ...], name: str | None) -> None:
        place = dominant(inside(*costs).links)
        assert (place and place.name) == name

    def test_dominant_of_nothing(self) -> None:
        assert dominant([]) is None

    def test_heaviest(self) -> None:
        found = inside(3.0, 12.0, load=5.0)
        assert heaviest(found) == (Place("B", "aug.py:20"), 0.6)

    def test_heaviest_of_several_views(self) -> None:
        """All calls of A together take more than C."""
        found = inside(4.0, 9.0, 4.0, 3.0)
        found.links[0] = replace(found.links[2])
        assert heaviest(found) == (Place("B", "aug.py:20"), 9 / 22)
        found.links[3] = replace(found.links[2])
        assert heaviest(found) == (Place("C", "aug.py:30"), 12 / 22)

    @pytest.mark.parametrize("found", [None, Inside(), Inside(whole=Cost(5.0)), inside(1.0, load=-1.0)])
    def test_heaviest_of_nothing(self, found: Inside | None) -> None:
        assert heaviest(found) is None


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

    def test_few_looks_name_no_line(self) -> None:
        seen = [Inside(lines=[HotLine("data.py:1", "x", 1.0)], looks=looks) for looks in (3, 4)]
        assert averaged(seen) == []
        assert len(averaged([*seen, Inside(lines=[HotLine("data.py:1", "x", 1.0)], looks=1)])) == 1


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
            ("rows[k, 1:]", {"torch.tensor": 0.6}, "torch.tensor"),
            ("rows[k, 1:]", {"torch.tensor": 0.3}, "rows[k, 1:]"),
            ("self.frame.iloc[i]", {"pandas.core.indexing.iloc.__getitem__": 0.9}, "self.frame.iloc[i]"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr.resample": 0.6}, "librosa.load > soxr.resample"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr.resample": 0.4}, "librosa.load"),
            ("librosa.load", {"librosa.core.audio.load": 0.9, "soxr._process": 0.9}, "librosa.load"),
            ("for row in rows", {"csv.reader": 0.9}, "csv.reader"),
            ("next", {"csv.DictReader.__next__": 0.9}, "next > csv.DictReader"),
            ("F.resize", {"torchvision.functional.resize": 0.9, "PIL.Image.Image.resize": 0.9}, "F.resize"),
            ("x = a + b", {}, "x = a + b"),
            (
                "x = tf(image)",
                {
                    "torchvision.transforms.transforms.Compose.__call__": 0.9,
                    "torch.nn.modules.module.Module._call_impl": 0.9,
                    "torchvision.transforms.transforms.GaussianBlur.forward": 0.8,
                    "torch.conv2d": 0.8,
                },
                "GaussianBlur",
            ),
            ("self.tf", {"torchvision.transforms.v2._misc.GaussianBlur.transform": 0.8}, "self.tf > GaussianBlur"),
            (
                "x = tf(y)",
                {"torchvision.transforms.transforms.Compose.__call__": 0.8, "PIL.Image.resize": 0.3},
                "x = tf(y)",
            ),
        ],
    )
    def test_named(self, text: str, calls: dict[str, float], name: str) -> None:
        source = f"{text}:" if text.startswith("for ") else text if " = " in text else f"x = {text}(y)"
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

    def test_a_librarys_own_line_by_its_function(self) -> None:
        text = "return tuple(tensor[index] for tensor in self.tensors)"
        one = HotLine("torch/utils/data/dataset.py:206", text, 0.9, f"{text[:37]}...", "TensorDataset.__getitem__")
        assert named(replace(one, library=True)) == "TensorDataset.__getitem__"
        assert named(one) == one.name

    @pytest.mark.parametrize(
        "name, python",
        [
            ("table.get", True),
            ("sum", True),
            ("rows[i]", True),
            ("ids.index", True),
            ("np.sort", False),
            ("a @ b", False),
        ],
    )
    def test_lines_that_only_run_python(self, name: str, python: bool) -> None:
        assert is_python(HotLine("data.py:1", f"x = {name}(y)", 0.9, name, "f")) == python

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


@pytest.mark.parametrize(
    ("share", "transforms", "transform", "found"),
    [
        (0.7, {}, "B", True),
        # It takes far longer than the transform: another one runs it, too.
        (0.7, {}, "A", False),
        # What was seen to run it decides.
        (0.7, {"B": 0.7}, "B", True),
        (0.7, {"B": 0.7}, "A", False),
        (0.7, {"B": 0.65, "A": 0.05}, "A", True),
        # A transform does something else, too.
        (0.2, {}, "B", False),
    ],
)
def test_the_line_in_which_a_transform_spends_its_time(
    share: float, transforms: dict[str, float], transform: str, found: bool
) -> None:
    shared = HotLine("ops.py:7", "np.sort(x)", share, "np.sort", "smooth", "transform", transforms=transforms)
    seen = inside(0.5, 7.5, load=2.0, lines=[shared])
    part = {"A": 0.05, "B": 0.75}[transform]
    assert (within(seen, transform, {"A", "B"} - {transform}, part) is not None) == found
