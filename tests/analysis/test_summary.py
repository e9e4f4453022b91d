"""The answer in parts, for the screen and the page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.compare import compare
from pipediag.analysis.diagnosis import Recommendation
from pipediag.analysis.numbers.intervals import exactly
from pipediag.analysis.summary import Summary, summarise
from pipediag.analysis.summary.parts import file, short, shortened, shorter_paths
from pipediag.report import screen
from pipediag.session import (
    DECODED,
    LOADED_ONCE,
    REMEDIED,
    HotLine,
    Keeping,
    Place,
    Proof,
    Remedy,
    Session,
    Startup,
)
from pipediag.session.remedies import Elsewhere

from ..made import FLAT, blocks, climbing, cut, inside, make, then_tried, waits


def told(session: Session) -> Summary:
    return summarise(diagnose_session(session))


class TestAnswer:
    def test_starved(self) -> None:
        found = told(make(climbing(raw=50.0), noise=0.01))
        assert found.headline == "Data costs your training 51 % of every step"
        assert (found.figures, found.tone) == ("", "bad")
        assert found.certainty == "44 to 57 %, certain"

    def test_not_starved(self) -> None:
        found = told(make(FLAT))
        assert (found.headline, found.tone) == ("Your training loses no time to data", "good")
        assert found.figures == "0 % of every step"
        assert found.causes == []

    def test_not_starved_though_few_windows_were_compared(self) -> None:
        """The loop hardly waits, but by one window of each rung data may cost more than 5 %."""
        found = told(make(climbing(raw=1.4), rounds=1, noise=0.0, evidence=waits(1.0, 0.0)))
        assert found.headline == "Your training loses no time to data"
        assert found.certainty.endswith("%, not certain, but it waits for less than 5 %")

    def test_open(self) -> None:
        found = told(make(climbing(raw=3.0), rounds=1))
        assert found.headline == "It is open whether data costs time"
        assert found.figures == "7 % of every step" and found.certainty.endswith(" %, measured once only")
        assert found.tone == "doubtful"
        assert found.causes == []
        assert "A longer budget narrows the interval" in found.nothing_to_gain

    def test_nothing_seen(self) -> None:
        found = told(Session())
        assert found.headline.startswith("Too little was seen")
        assert (found.figures, found.rates, found.causes) == ("", [], [])

    def test_only_observed(self) -> None:
        found = told(make({}, observed=blocks(3, 100.0, 50.0)))
        assert found.certainty.endswith("seen in 12 steps")
        assert [(rate.name, rate.note) for rate in found.rates] == [("now", ""), ("possible", "estimated")]
        assert found.rates[1].steps_per_s == pytest.approx(20.0)

    def test_an_epochs_start_is_a_cost_of_data(self) -> None:
        """100 steps of 100 ms without waiting after a start of 10 s: half of the time."""
        found = told(make(FLAT, length=100, startups=[Startup(10.0, launch=1.0, ready=9.0)] * 2, noise=0.0))
        assert found.headline == "Data costs your training 50 % of every step"
        assert [(cause.name, round(cause.ms), round(cause.share, 2)) for cause in found.causes] == [
            ("starting the workers", 100, 0.5)
        ]
        assert found.rates[0].steps_per_s == pytest.approx(5.0)

    def test_an_interval_that_rounds_to_its_value_is_left_out(self) -> None:
        found = told(make(FLAT, noise=0.0))
        assert (found.figures, found.certainty) == ("0 % of every step", "certain")

    def test_contention(self) -> None:
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 90.0}
        found = told(make(ladder, evidence=waits(0.5, 0.4, worker_ms=200.0)))
        assert (found.headline, found.figures) == ("Workers slow your training down", "44 % of every step")
        assert found.causes[0].name == "workers taking CPU time"

    def test_contention_names_the_workers_work(self) -> None:
        """With its place, unless that has a line of its own: less of this work takes less CPU time."""
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 90.0}
        seen = waits(0.5, 0.4, worker_ms=200.0)
        (cause, *_) = told(make(ladder, evidence=seen, inside=inside(5.0, 1.0, load=4.0))).causes
        assert cause.name == "workers taking CPU time"
        assert cause.note == "their work: A 50 % (aug.py:10), loading 40 % (data.py:5)"

    @pytest.mark.parametrize(
        "ladder, headline",
        [
            (climbing(raw=50.0), "Data costs your evaluation 51 % of every step"),
            (FLAT, "Your evaluation loses no time to data"),
        ],
    )
    def test_a_loop_in_which_no_optimizer_steps(self, ladder: dict[str, float], headline: str) -> None:
        session = make(ladder)
        for window in session.windows:
            window.optimizer_steps = 0
        found = diagnose_session(session)
        assert summarise(found).headline == headline
        assert "training" not in found.verdict.sentence


class TestWhere:
    def test_the_stages_that_certainly_cost_time(self) -> None:
        ladder = climbing(host=10.0, raw=40.0)
        found = told(make(ladder, noise=0.001))
        assert [cause.name for cause in found.causes] == ["transforms", "copying to the device"]
        assert sum(cause.share for cause in found.causes) == pytest.approx(0.5, abs=0.03)
        assert [one.name for one in found.rest] == ["4 other stages together", "the model's own step"]
        assert found.rest[-1].ms == pytest.approx(50.0, abs=0.5)

    def test_the_verdicts_stage_is_first_though_another_is_larger(self) -> None:
        """The loop waits for its workers, and their transforms take most of their time."""
        seen = waits(40.0, worker_ms=160.0, collate_ms=0.0)
        session = make(climbing(host=45.0, raw=40.0), noise=0.001, evidence=seen, inside=inside(4.0, load=1.0))
        found = told(session)
        assert [cause.name for cause in found.causes][:2] == ["A", "copying to the device"]
        assert found.causes[0].ms < found.causes[1].ms

    def test_transforms_by_name_and_line(self) -> None:
        costs = (2.0, 30.0)
        session = make(cut(climbing(raw=sum(costs)), costs, 1), inside=inside(0.5, 7.5), noise=0.001)
        (cause,) = told(session).causes
        assert (cause.name, cause.where) == ("B", "aug.py:20")

    def test_the_line_inside_a_transform(self) -> None:
        """In code that the transform calls; its own lines need no second place, nor do lines of others."""
        costs, line = (2.0, 30.0), HotLine("ops.py:7", "np.sort(x)", 0.7, "np.sort", "smooth", "transform")
        notes = []
        for function, share, origin in (
            *(("smooth", 0.7, "aug"), ("B.__call__", 0.7, "aug"), ("A.__call__", 0.7, "aug"), ("smooth", 0.2, "aug")),
            ("Data.__getitem__", 0.7, "library.transforms"),
        ):
            found = inside(0.5, 7.5)
            found.links = [replace(link, origin=origin) for link in found.links]
            found.lines = [replace(line, function=function, share=share)]
            session = make(cut(climbing(raw=sum(costs)), costs, 1), inside=found, noise=0.001)
            notes += [cause.note for cause in told(session).causes]
        assert notes == ["most of it: np.sort, ops.py:7", "", "", "", ""]

    def of_workers(self, *costs: float, load: float = 1.0, waited: float = 100.0, noise: float = 0.01) -> Summary:
        """A loop that waits ``waited`` of ``50 + waited`` ms for workers, which spend their time as given."""
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 50.0 + waited}
        seen = waits(waited, worker_ms=4 * (50 + waited), collate_ms=0.0)
        return told(make(ladder, noise=noise, evidence=seen, inside=inside(*costs, load=load)))

    def test_many_small_transforms_are_one_line(self) -> None:
        found = self.of_workers(*[1.0] * 19, 1.2, load=0.8)
        (line,) = found.causes
        assert (line.name, round(line.ms)) == ("20 transforms together", 96)
        assert (line.where, line.note) == ("", "most: T 5.71 ms, aug.py:200")
        assert [one.name for one in found.rest] == ["loading", "the model's own step"]

    def test_the_other_transforms_have_a_line_if_they_cost_more_than_one(self) -> None:
        found = self.of_workers(1.1, *[1.0] * 5, 8.0, 4.0, load=0.2)
        assert [line.name for line in found.causes] == ["G", "6 other transforms together", "H"]
        assert found.causes[1].note == "most: A 6.01 ms, aug.py:10"

    def test_loading_by_line(self) -> None:
        lines = [
            HotLine("data.py:7", "image = imread(path)", 0.6, "imread", "Photos.__getitem__", "load"),
            HotLine("cv2/io.py:9", "return read(path)", 0.2, "read", "imread", "load", library=True),
            *(HotLine(f"data.py:{n}", "", 0.02, f"f{n}", "Photos.__getitem__", "load") for n in (20, 21)),
        ]
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 150.0}
        session = make(ladder, evidence=waits(100.0, worker_ms=600.0, collate_ms=0.0), inside=inside(1.0, load=4.0))
        session.inside.lines = lines
        session.loader.dataset_code.made = "train.py:30"
        found = told(session)
        assert [(line.name, line.where) for line in found.causes] == [
            ("imread", "data.py:7"),
            ("A", "aug.py:10"),
            ("read", "train.py:30, cv2/io.py:9"),
        ]
        assert found.rest[0].name == "other lines of Photos.__getitem__"
        verdict = diagnose_session(session).verdict
        assert (verdict.bottleneck, verdict.culprit) == ("load", Place("imread", "data.py:7"))
        assert "Of loading, imread (data.py:7) costs" in verdict.sentence

    def test_collating_by_line(self) -> None:
        """The user's collate function spends most of its time in a function that it calls."""
        lines = [
            HotLine("data.py:7", "ids = split(text)", 0.7, "split", "tokens", "collate"),
            HotLine("data.py:9", "torch.stack(ids)", 0.3, "torch.stack", "pad", "collate"),
            HotLine("data.py:20", "self.texts[i]", 1.0, "self.texts[i]", "Texts.__getitem__", "load"),
        ]
        ladder = {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 150.0}
        session = make(ladder, evidence=waits(100.0, worker_ms=600.0, collate_ms=500.0), inside=inside(load=4.0))
        session.inside.lines = lines
        found, verdict = told(session), diagnose_session(session).verdict
        assert [(line.name, line.where) for line in found.causes[:2]] == [
            ("split", "data.py:7"),
            ("torch.stack", "data.py:9"),
        ]
        assert (verdict.bottleneck, verdict.culprit) == ("collate", Place("split", "data.py:7"))
        assert "Of collating, split (data.py:7) costs" in verdict.sentence

    def test_the_rest_is_told_by_kind(self) -> None:
        found = self.of_workers(0.3, 0.3, 17.0, load=2.4)
        assert [line.name for line in found.causes] == ["C", "loading"]
        assert [one.name for one in found.rest] == ["2 other transforms together", "the model's own step"]

    def test_an_uncertain_kind_that_is_larger_than_a_line_has_its_interval(self) -> None:
        """Copying costs more than the workers' one certain transform, as far as can be told."""
        ladder = {"device": 50.0, "host": 70.0, "worker": 70.0, "baseline": 100.0}
        session = make(ladder, rounds=3, noise=0.001, evidence=waits(30.0, worker_ms=400.0, collate_ms=0.0))
        session.inside = inside(5.0, 1.0, load=4.0)
        for window in session.windows_of("host"):
            window.seconds *= (1.0, 0.6, 1.4)[window.round]
        found = told(session)
        copy = next(line for line in found.causes if line.name == "copying to the device")
        assert copy.note.startswith("0 to ")

    @given(
        st.lists(st.floats(0.0, 20.0), max_size=30),
        st.floats(0.0, 20.0),
        st.floats(1.0, 500.0),
        st.sampled_from([0.0, 0.02, 0.2]),
    )
    def test_no_nameless_part_is_larger_than_a_line(
        self, costs: list[float], load: float, waited: float, noise: float
    ) -> None:
        found = self.of_workers(*costs, load=load, waited=waited, noise=noise)
        smallest = min((line.ms for line in found.causes), default=math.inf)
        assert all(one.ms <= smallest for one in found.rest if "together" in one.name)
        if found.causes:
            step = 1000.0 / found.rates[0].steps_per_s
            assert sum(one.ms for one in (*found.causes, *found.rest)) == pytest.approx(step, rel=0.01)

    def test_a_place_in_a_library_has_the_users_line_that_makes_it_if_known(self) -> None:
        session = make(climbing(warm=50.0))
        library = "torchvision/datasets/folder.py:236"
        session.loader.dataset_code = Place("ImageFolder.__getitem__", library, library=True)
        assert told(session).causes[0].where == library
        session.loader.dataset_code.made = "train.py:4"
        assert told(session).causes[0].where == f"train.py:4, {library}"

    def test_a_place_in_a_library_of_an_older_session(self) -> None:
        session = make(climbing(warm=50.0))
        library = "/x/lib/python3/site-packages/torchvision/datasets/folder.py:236"
        session.loader.dataset_code = Place("ImageFolder.__getitem__", library)
        assert told(session).causes[0].where == "torchvision/datasets/folder.py:236"

    def test_code_of_torchs_is_where_the_loader_is_iterated(self) -> None:
        session = make(climbing(sample=50.0))
        session.loader.collate = Place("torch's default_collate")
        assert told(session).causes[0].where == "train.py:10"

    def test_a_script_in_a_package_is_no_library(self) -> None:
        session = make(climbing(warm=50.0))
        session.script.argv = ["/home/me/.venv/lib/site-packages/demo/train.py"]
        session.loader.dataset_code = Place("Images.__getitem__", "demo/train.py:60", library=True)
        assert told(session).causes[0].where == "train.py:60"

    def test_a_script_that_is_installed_is_no_library(self) -> None:
        session = make(climbing(warm=50.0))
        session.script.argv = ["/home/me/.venv/lib/site-packages/demo/train.py"]
        session.loader.dataset_code = Place("Images.__getitem__", ".venv/lib/site-packages/demo/train.py:60")
        assert told(session).causes[0].where == "train.py:60"

    @pytest.mark.parametrize(
        "where, shown",
        [
            ("aug.py:3", "aug.py:3"),
            ("/home/me/project/data/aug.py:3", "data/aug.py:3"),
            ("/elsewhere/lib/aug.py:3", "lib/aug.py:3"),
            ("project/data/aug.py:3", "data/aug.py:3"),
            ("me/project/aug.py:3", "aug.py:3"),
            ("elsewhere/aug.py:3", "elsewhere/aug.py:3"),
            ("/venv/lib/python3.11/site-packages/timm/data/auto_augment.py:3", "timm/data/auto_augment.py:3"),
            ("../venv/lib/site-packages/cv2.py:3", "cv2.py:3"),
            ("/usr/lib/python3/dist-packages/lib/a/b/c.py:3", "lib/a/b/c.py:3"),
        ],
    )
    def test_places_relative_to_the_script(self, where: str, shown: str) -> None:
        session = Session()
        session.script.argv = ["/home/me/project/train.py"]
        assert short(session, where) == shown


class TestWhatToDo:
    def remedied(self, gain: float, **fields: Any) -> Session:
        rung = fields.pop("rung", REMEDIED)
        return then_tried(make(climbing(raw=50.0), noise=0.0), rung, gain, 6, 1.0, Remedy(device="cuda", **fields))

    def test_what_was_measured_comes_first(self) -> None:
        moved = [Place("Crop"), Place("Flip"), Place("Crop")]  # the same chain of two datasets
        session = self.remedied(2.0, moved=moved, proof=Proof(True, 64, elsewhere=[]))
        action = told(session).actions[0]
        assert action.title == "Move Crop and Flip to the device"
        assert action.gain == "2x measured, pixels equal"
        assert action.lines == () and told(session).next == "next: pipediag run train.py"

    def test_decoding_that_may_differ_is_named_and_not_called_equal(self) -> None:
        proof = Proof(True, 64, elsewhere=[Elsewhere("JPEG decoding", "by one level")])
        action = told(self.remedied(2.0, rung=DECODED, moved=[Place("Crop")], proof=proof)).actions[0]
        assert action.title == "Decode JPEGs on the device, move Crop there"
        assert action.gain == "2x measured"
        assert action.lines[0] == "pixels equal on 64 samples; JPEG decoding may differ by one level elsewhere"

    def test_pixels_that_are_not_proven_equal_are_not_called_so(self) -> None:
        session = self.remedied(2.0, moved=[Place("Crop")], proof=Proof(True, 64))
        session.remedy.proof.elsewhere = [Elsewhere("Crop", "by one level")]  # type: ignore[union-attr]
        assert told(session).actions[0].gain == "2x measured"

    def test_samples_kept(self) -> None:
        session = self.remedied(3.0, rung=LOADED_ONCE, keeping=Keeping("kept", 10, 100), plan_file="plan.json")
        action = told(session).actions[0]
        assert (action.title, action.gain) == ("Keep samples in memory after the first epoch", "3x measured")
        assert action.lines == () and told(session).next == "next: pipediag run --plan plan.json train.py"

    def test_what_does_not_pay_is_not_offered(self) -> None:
        session = self.remedied(1.0, moved=[Place("Crop")])
        assert not any("Move" in action.title and "measured" in action.gain for action in told(session).actions)

    def test_a_file_whose_remedy_moved_nothing(self) -> None:
        """Nothing that was measured looks like this, but a damaged file may."""
        assert told(self.remedied(2.0)).actions[0].title == "Move transforms to the device"

    def test_why_nothing_was_kept(self) -> None:
        session = self.remedied(1.0, moved=[Place("Crop")])
        why = "--apply kept nothing: the loop is not faster by enough to matter"
        assert told(session).tried == why
        assert why in " ".join(screen.write(told(session)).split())
        assert told(self.remedied(2.0, moved=[Place("Crop")])).tried == ""

    def test_changes_that_are_too_small_to_be_named(self) -> None:
        diagnosis = diagnose_session(make(climbing(raw=50.0), noise=0.0))
        diagnosis.recommendations = [Recommendation("id", "Less", "load", exactly(1.03), None, [], "", "")] * 2
        diagnosis.nothing_to_gain = ""
        summary = summarise(diagnosis)
        assert summary.actions == []
        assert summary.nothing_to_gain == "No change alone gains more than 5 %; the report has 2 smaller ones."

    def test_at_most_three(self) -> None:
        assert len(told(make(climbing(host=20.0, raw=60.0))).actions) <= 3

    def test_the_scripts_own_arguments_are_shortened(self) -> None:
        session = Session()
        session.script.argv = ["/home/me/train.py", "--epochs", "3"]
        assert shortened(session, "pipediag run /home/me/train.py --epochs 3") == "pipediag run train.py ..."
        assert shortened(session, "pipediag demo") == "pipediag demo"


def test_changes_that_gain_little_are_not_named_but_mentioned() -> None:
    found = told(make(FLAT, startups=[Startup(0.1, ready=0.05)] * 3, length=10, noise=0.0))
    assert (found.causes[0].name, found.actions) == ("starting the workers", [])
    assert found.nothing_to_gain == "No change alone gains more than 5 %; the report has 1 smaller one."


class TestCareful:
    def test_files_and_runs(self) -> None:
        session = make(FLAT)
        session.script.passes, session.script.wrote = 4, ["a.pt", "b.pt", "c.pt", "d.pt"]
        assert told(session).careful == ["the script ran 4 times and wrote a.pt, b.pt and 2 more"]

    def test_files_that_had_been_there_come_first(self) -> None:
        session = make(FLAT)
        session.script.wrote, session.script.overwrote = ["last.pt", "new.pt"], ["last.pt"]
        assert told(session).careful == ["the script ran once and overwrote last.pt and wrote new.pt"]

    def test_nothing_to_say_of_one_run_that_wrote_nothing(self) -> None:
        assert told(make(FLAT)).careful == []

    def test_the_most_important_warnings_first(self) -> None:
        session = make(FLAT)
        for code in ("one", "writes-in-place", "hung", "script-failed"):
            session.warn(code, f"it is {code}")
        found = told(session)
        assert found.careful == ["it is script-failed", "it is hung"]
        assert found.notes == 2

    def test_long_paths(self) -> None:
        assert file("out/model.pt") == "out/model.pt"
        assert file("a/very/long/path/that/does/not/fit/anywhere/model.pt") == ".../anywhere/model.pt"
        assert file("a_name_of_more_than_forty_letters_alone.pth") == "a_name_of_more_than_forty_letters_alone.pth"
        assert file("/tmp/out/model.pt") == "out/model.pt"
        longest = file(f"/checkpoints/{'x' * 100}/model.pt")
        assert longest.startswith("...xxx") and longest.endswith("xx/model.pt") and len(longest) == 63

    def test_places_of_libraries(self) -> None:
        text = "store the samples with ToTensor (/env/site-packages/torchvision/transforms.py:107) applied"
        found = shorter_paths(make(FLAT), text)
        assert found == "store the samples with ToTensor (torchvision/transforms.py:107) applied"

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("it ended at /home/me/project/train.py:7 (OSError)", "it ended at project/train.py:7 (OSError)"),
            ("hung in '/home/me/lib/site-packages/torch/utils/data.py'", "hung in 'torch/utils/data.py'"),
            ("it wrote /home/me/runs/events", "it wrote runs/events"),
            ("128 MiB of /dev/shm are free; see https://pytorch.org/docs/stable/data.html", ""),
            ("n/a, 1/s, and/or", ""),
        ],
    )  # fmt: skip
    def test_no_absolute_path_is_shown(self, text: str, shown: str) -> None:
        session = make(FLAT)
        session.warn("hung", text)
        assert told(session).careful == [shown or text]


def test_a_comparison() -> None:
    found = summarise(compare(diagnose_session(make(climbing(raw=50.0))), diagnose_session(make(FLAT))))
    assert found.headline == "The loop is as fast as before, as far as can be told"
    slow, fast = (diagnose_session(make(climbing(raw=ms), noise=0.001)) for ms in (90.0, 10.0))
    found = summarise(compare(slow, fast))
    assert (found.headline, found.tone) == ("The loop is faster", "good")
    assert found.certainty.endswith(", certain")
    assert [rate.name for rate in found.rates] == ["before", "after"]
    assert summarise(compare(fast, slow)).headline == "The loop is slower"


def test_a_comparison_that_is_not_certain_gives_its_interval() -> None:
    before, after = (diagnose_session(make(climbing(raw=ms), rounds=1, noise=0.0)) for ms in (40.0, 20.0))
    found = summarise(compare(before, after))
    assert (found.headline, found.figures, found.certainty) == ("Maybe faster", "1.28x", "1.07 to 1.54, not certain")
    assert summarise(compare(after, before)).headline == "Maybe slower"


@pytest.mark.parametrize("workers, who", [(4, "a worker takes"), (0, "the training process takes")])
def test_a_comparison_names_what_belongs_to_the_code(workers: int, who: str) -> None:
    """Not the milliseconds of a step that it costs: those follow from what limits the loop."""
    sides = []
    for ms in (3.1, 9.8):
        seen = {"worker_ms": 32 * (ms + 2), "worker_cpu": 1.0, "worker_queued": 0.0}
        ladder = climbing(raw=8 * ms)
        session = make(ladder, evidence=waits(8 * ms, **seen), inside=inside(ms), workers=workers)
        sides.append(diagnose_session(session))
    found = summarise(compare(*sides))
    assert found.findings_title == "Stages that certainly changed"
    assert found.findings == [("A (aug.py:10)", f"{who} 3.1 -> 9.8 ms a sample, 3.16x")]
    assert [rate.note for rate in found.rates] == ["waits 24.8 of 75.8 ms", "waits 78.4 of 129 ms"]


def test_a_comparison_names_a_changed_model() -> None:
    before, after = (diagnose_session(make({name: ms + more for name, ms in FLAT.items()})) for more in (0.0, 50.0))
    found = summarise(compare(before, after))
    assert found.findings == [("the model's own step", "the training process takes 99.9 -> 150 ms a step, 1.5x")]


class TestNext:
    """The last line is the command to type next, with all that the user gave."""

    def test_after_a_change_the_same_is_measured_again(self) -> None:
        session = make(climbing(raw=30.0))
        session.script.argv, session.script.options = ["train.py", "--lr", "0 1"], ["--budget", "60", "--loader", "2"]
        expected = "pipediag analyze --budget 60 --loader 2 train.py --lr '0 1' && pipediag compare"
        assert told(session).next == f"after a change: {expected}"

    def test_an_open_answer_gets_twice_the_time(self) -> None:
        session = make(climbing(raw=3.0), rounds=1)
        session.script.argv, session.script.options = ["-m", "train"], ["--budget", "60", "--workdir", "out"]
        assert diagnose_session(session).verdict.bottleneck == "inconclusive"
        assert told(session).next == "next, for an answer: pipediag analyze --budget 120 --workdir out -m train"

    def test_a_loop_in_a_program_has_none(self) -> None:
        session = make(climbing(raw=30.0))
        session.script.argv = []
        assert told(session).next == ""

    def test_a_loop_that_keeps_up_has_none(self) -> None:
        session = make({**climbing(), "supply": 49.0}, rounds=4)
        session.script.argv = ["train.py"]
        found = told(session)
        assert found.tone == "good" and (found.next == "") == (not found.actions)
