"""The answer in parts, for the screen and the page."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipediag.analysis import diagnose_session
from pipediag.analysis.compare import Comparison, compare
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

from ..golden import agrees
from ..made import FLAT, blocks, but, climbing, cut, inside, make, then_tried, waits


def told(summary: Summary) -> list[str]:
    """Return all of a summary as lines of a book."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{round(value, 6):.4g}"
        if is_dataclass(value) or isinstance(value, tuple):
            parts = value if isinstance(value, tuple) else [getattr(value, one.name) for one in fields(value)]
            return " | ".join(filter(None, map(text, parts)))
        return str(value)

    lines = []
    for name, value in ((one.name, getattr(summary, one.name)) for one in fields(summary)):
        values = value if isinstance(value, (list, tuple)) else [value] if value else []
        lines += [f"    {name}: {text(one)}" for one in values]
    return lines


def without_optimizer(ladder: dict[str, float]) -> Session:
    session = make(ladder)
    for window in session.windows:
        window.optimizer_steps = 0
    return session


def slow_loop(waited: float = 100.0) -> dict[str, float]:
    return {"device": 50.0, "host": 50.0, "worker": 50.0, "baseline": 50.0 + waited}


def of_workers(*costs: float, load: float = 1.0, waited: float = 100.0, noise: float = 0.01) -> Session:
    """A loop that waits ``waited`` of ``50 + waited`` ms for workers, which spend their time as given."""
    seen = waits(waited, worker_ms=4 * (50 + waited), collate_ms=0.0)
    return make(slow_loop(waited), noise=noise, evidence=seen, inside=inside(*costs, load=load))


def of_lines(*lines: HotLine, collate_ms: float = 0.0, costs: tuple[float, ...] = (), **facts: Any) -> Session:
    seen = waits(100.0, worker_ms=600.0, collate_ms=collate_ms)
    session = make(slow_loop(), evidence=seen, inside=inside(*costs, load=4.0))
    return but(session, inside__lines=[*lines], **facts)


def with_line(function: str, share: float = 0.7, origin: str = "aug") -> Session:
    """A line in code that a transform calls, or of its own, or of another one."""
    found = inside(0.5, 7.5)
    found.links = [replace(link, origin=origin) for link in found.links]
    found.lines = [HotLine("ops.py:7", "np.sort(x)", share, "np.sort", function, "transform")]
    return make(cut(climbing(raw=32.0), (2.0, 30.0), 1), inside=found, noise=0.001)


def uncertain_copy() -> Session:
    """Copying costs more than the workers' one certain transform, as far as can be told."""
    ladder = {"device": 50.0, "host": 70.0, "worker": 70.0, "baseline": 100.0}
    session = make(ladder, rounds=3, noise=0.001, evidence=waits(30.0, worker_ms=400.0, collate_ms=0.0))
    session.inside = inside(5.0, 1.0, load=4.0)
    for window in session.windows_of("host"):
        window.seconds *= (1.0, 0.6, 1.4)[window.round]
    return session


def contended(**more: Any) -> Session:
    return make(slow_loop(40.0), evidence=waits(0.5, 0.4, worker_ms=200.0), **more)


def loading_at(place: Place, *argv: str) -> Session:
    return but(make(climbing(warm=50.0)), loader__dataset_code=place, script__argv=[*argv])


def remedied(gain: float, rung: str = REMEDIED, **remedy: Any) -> Session:
    return then_tried(make(climbing(raw=50.0), noise=0.0), rung, gain, 6, 1.0, Remedy(device="cuda", **remedy))


def warned(*codes: str, text: str = "it is {}") -> Session:
    session = make(FLAT)
    for code in codes:
        session.warn(code, text.format(code))
    return session


def compared(before: Session, after: Session) -> Comparison:
    return compare(diagnose_session(before), diagnose_session(after))


def of_code(ms: float, workers: int) -> Session:
    seen = {"worker_ms": 32 * (ms + 2), "worker_cpu": 1.0, "worker_queued": 0.0}
    return make(climbing(raw=8 * ms), evidence=waits(8 * ms, **seen), inside=inside(ms), workers=workers)


CROP = [Place("Crop")]
LIBRARY = "torchvision/datasets/folder.py:236"
INSTALLED = "/home/me/.venv/lib/site-packages/demo/train.py"
SLOW, FAST = (make(climbing(raw=ms), noise=0.001) for ms in (90.0, 10.0))
ONCE_SLOW, ONCE_FAST = (make(climbing(raw=ms), rounds=1, noise=0.0) for ms in (40.0, 20.0))
#: Subjects by what is expected of their summary; golden/summary.txt holds all of it.
SUMMARIES: dict[str, Session | Comparison] = {
    "starved": make(climbing(raw=50.0), noise=0.01),
    "not starved": make(FLAT),
    "few windows were compared, but the loop hardly waits": make(
        climbing(raw=1.4), rounds=1, noise=0.0, evidence=waits(1.0, 0.0)
    ),
    "open": make(climbing(raw=3.0), rounds=1),
    "nothing seen": Session(),
    "only observed": make({}, observed=blocks(3, 100.0, 50.0)),
    "an epoch's start is a cost of data: 100 steps of 100 ms after 10 s": make(
        FLAT, length=100, startups=[Startup(10.0, launch=1.0, ready=9.0)] * 2, noise=0.0
    ),
    "an interval that rounds to its value is left out": make(FLAT, noise=0.0),
    "contention": contended(),
    "contention names the workers' work, as less of it takes less CPU time": contended(
        inside=inside(5.0, 1.0, load=4.0)
    ),
    "no optimizer steps, and data costs": without_optimizer(climbing(raw=50.0)),
    "no optimizer steps, and it costs nothing": without_optimizer(FLAT),
    # Where the time goes.
    "the stages that certainly cost time": make(climbing(host=10.0, raw=40.0), noise=0.001),
    "the verdict's stage is first though another is larger: the loop waits for its workers": make(
        climbing(host=45.0, raw=40.0), noise=0.001, evidence=waits(40.0, worker_ms=160.0, collate_ms=0.0),
        inside=inside(4.0, load=1.0),
    ),
    "transforms by name and line": make(cut(climbing(raw=32.0), (2.0, 30.0), 1), inside=inside(0.5, 7.5), noise=0.001),
    "a line in code that a transform calls": with_line("smooth"),
    "its own lines need no second place": with_line("B.__call__"),
    "nor do lines of others": with_line("A.__call__"),
    "nor small ones": with_line("smooth", 0.2),
    "nor the loading in a library's transform": with_line("Data.__getitem__", origin="library.transforms"),
    "many small transforms are one line": of_workers(*[1.0] * 19, 1.2, load=0.8),
    "the other transforms have a line if they cost more than one": of_workers(1.1, *[1.0] * 5, 8.0, 4.0, load=0.2),
    "the rest is told by kind": of_workers(0.3, 0.3, 17.0, load=2.4),
    "loading by line": of_lines(
        HotLine("data.py:7", "image = imread(path)", 0.6, "imread", "Photos.__getitem__", "load"),
        HotLine("cv2/io.py:9", "return read(path)", 0.2, "read", "imread", "load", library=True),
        *(HotLine(f"data.py:{n}", "", 0.02, f"f{n}", "Photos.__getitem__", "load") for n in (20, 21)),
        costs=(1.0,), loader__dataset_code__made="train.py:30",
    ),
    "collating by line: the function spends most of its time in one that it calls": of_lines(
        HotLine("data.py:7", "ids = split(text)", 0.7, "split", "tokens", "collate"),
        HotLine("data.py:9", "torch.stack(ids)", 0.3, "torch.stack", "pad", "collate"),
        HotLine("data.py:20", "self.texts[i]", 1.0, "self.texts[i]", "Texts.__getitem__", "load"),
        collate_ms=500.0,
    ),
    "an uncertain kind that is larger than a line has its interval": uncertain_copy(),
    # Places.
    "a place in a library": loading_at(Place("ImageFolder.__getitem__", LIBRARY, library=True), "train.py"),
    "with the user's line that makes it": loading_at(
        Place("ImageFolder.__getitem__", LIBRARY, library=True, made="train.py:4"), "train.py"
    ),
    "in an older session": loading_at(
        Place("ImageFolder.__getitem__", f"/x/lib/python3/site-packages/{LIBRARY}"), "train.py"
    ),
    "code of torch's is where the loader is iterated": but(
        make(climbing(sample=50.0)), loader__collate=Place("torch's default_collate")
    ),
    "a script in a package is no library": loading_at(
        Place("Images.__getitem__", "demo/train.py:60", library=True), INSTALLED
    ),
    "nor is one that is installed": loading_at(
        Place("Images.__getitem__", ".venv/lib/site-packages/demo/train.py:60"), INSTALLED
    ),
    # What to do.
    "what was measured comes first; two datasets have the same chain": remedied(
        2.0, moved=[Place("Crop"), Place("Flip"), Place("Crop")], proof=Proof(True, 64, elsewhere=[])
    ),
    "decoding that may differ is named and not called equal": remedied(
        2.0, DECODED, moved=CROP, proof=Proof(True, 64, elsewhere=[Elsewhere("JPEG decoding", "by one level")])
    ),
    "pixels that are not proven equal are not called so": remedied(
        2.0, moved=CROP, proof=Proof(True, 64, elsewhere=[Elsewhere("Crop", "by one level")])
    ),
    "samples kept": remedied(3.0, LOADED_ONCE, keeping=Keeping("kept", 10, 100), plan_file="plan.json"),
    "what does not pay is not offered": remedied(1.0, moved=CROP),
    "a damaged file whose remedy moved nothing": remedied(2.0),
    "at most three": make(climbing(host=20.0, raw=60.0)),
    "changes that gain little are not named but mentioned": make(
        FLAT, startups=[Startup(0.1, ready=0.05)] * 3, length=10, noise=0.0
    ),
    # What to be careful about.
    "files and runs": but(make(FLAT), script__passes=4, script__wrote=["a.pt", "b.pt", "c.pt", "d.pt"]),
    "files that had been there come first": but(
        make(FLAT), script__wrote=["last.pt", "new.pt"], script__overwrote=["last.pt"]
    ),
    "the most important warnings first": warned("one", "writes-in-place", "hung", "script-failed"),
    "that measuring failed": warned("unmeasurable"),
    # The command to type next, with all that the user gave.
    "after a change the same is measured again": but(
        make(climbing(raw=30.0)), script__argv=["train.py", "--lr", "0 1"],
        script__options=["--budget", "60", "--loader", "2"],
    ),
    "an open answer gets twice the time": but(
        make(climbing(raw=3.0), rounds=1), script__argv=["-m", "train"],
        script__options=["--budget", "60", "--workdir", "out"],
    ),
    "a loop in a program has none": but(make(climbing(raw=30.0)), script__argv=[]),
    "a loop that keeps up has none": but(
        make({**climbing(), "supply": 49.0}, rounds=4), script__argv=["train.py"]
    ),
    # Two runs.
    "faster, if not certainly": compared(make(climbing(raw=50.0)), make(FLAT)),
    "certainly faster": compared(SLOW, FAST),
    "certainly slower": compared(FAST, SLOW),
    "maybe faster": compared(ONCE_SLOW, ONCE_FAST),
    "maybe slower": compared(ONCE_FAST, ONCE_SLOW),
    "what belongs to the code, not the milliseconds of a step that follow from it": compared(
        of_code(3.1, 4), of_code(9.8, 4)
    ),
    "the same without workers": compared(of_code(3.1, 0), of_code(9.8, 0)),
    "a changed model": compared(make(FLAT), make({name: ms + 50.0 for name, ms in FLAT.items()})),
}  # fmt: skip


def test_what_is_summarised() -> None:
    lines = []
    for name, subject in SUMMARIES.items():
        diagnosis = diagnose_session(subject) if isinstance(subject, Session) else subject
        lines += [name, *told(summarise(diagnosis)), ""]
    agrees(Path(__file__).parent / "golden" / "summary.txt", "\n".join(lines))


def test_an_evaluation_is_not_called_training() -> None:
    assert "training" not in diagnose_session(SUMMARIES["no optimizer steps, and data costs"]).verdict.sentence


@pytest.mark.parametrize(
    ("name", "stage", "culprit"),
    [
        ("loading by line", "load", Place("imread", "data.py:7")),
        ("collating by line: the function spends most of its time in one that it calls", "collate",
         Place("split", "data.py:7")),
    ],
)  # fmt: skip
def test_a_line_is_the_verdicts_culprit(name: str, stage: str, culprit: Place) -> None:
    verdict = diagnose_session(SUMMARIES[name]).verdict
    assert (verdict.bottleneck, verdict.culprit) == (stage, culprit)
    assert f", {culprit.name} ({culprit.where}) costs" in verdict.sentence


def test_why_nothing_was_kept_is_on_the_screen() -> None:
    why = "--apply kept nothing: the loop is not faster by enough to matter"
    found = summarise(diagnose_session(SUMMARIES["what does not pay is not offered"]))
    assert found.tried == why and why in " ".join(screen.write(found).split())


@given(
    st.lists(st.floats(0.0, 20.0), max_size=30),
    st.floats(0.0, 20.0),
    st.floats(1.0, 500.0),
    st.sampled_from([0.0, 0.02, 0.2]),
)
def test_no_nameless_part_is_larger_than_a_line(costs: list[float], load: float, waited: float, noise: float) -> None:
    found = summarise(diagnose_session(of_workers(*costs, load=load, waited=waited, noise=noise)))
    smallest = min((line.ms for line in found.causes), default=math.inf)
    assert all(one.ms <= smallest for one in found.rest if "together" in one.name)
    if found.causes:
        step = 1000.0 / found.rates[0].steps_per_s
        assert sum(one.ms for one in (*found.causes, *found.rest)) == pytest.approx(step, rel=0.01)


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
def test_places_relative_to_the_script(where: str, shown: str) -> None:
    session = Session()
    session.script.argv = ["/home/me/project/train.py"]
    assert short(session, where) == shown


def test_changes_that_are_too_small_to_be_named() -> None:
    diagnosis = diagnose_session(make(climbing(raw=50.0), noise=0.0))
    diagnosis.recommendations = [Recommendation("id", "Less", "load", exactly(1.03), None, [], "", "")] * 2
    diagnosis.nothing_to_gain = ""
    summary = summarise(diagnosis)
    assert summary.actions == []
    assert summary.nothing_to_gain == "No change alone gains more than 5 %; the report has 2 smaller ones."


def test_the_scripts_own_arguments_are_shortened() -> None:
    session = Session()
    session.script.argv = ["/home/me/train.py", "--epochs", "3"]
    assert shortened(session, "pipediag run /home/me/train.py --epochs 3") == "pipediag run train.py ..."
    assert shortened(session, "pipediag demo") == "pipediag demo"


def test_long_paths() -> None:
    assert file("out/model.pt") == "out/model.pt"
    assert file("a/very/long/path/that/does/not/fit/anywhere/model.pt") == ".../anywhere/model.pt"
    assert file("a_name_of_more_than_forty_letters_alone.pth") == "a_name_of_more_than_forty_letters_alone.pth"
    assert file("/tmp/out/model.pt") == "out/model.pt"
    longest = file(f"/checkpoints/{'x' * 100}/model.pt")
    assert longest.startswith("...xxx") and longest.endswith("xx/model.pt") and len(longest) == 63


def test_places_of_libraries() -> None:
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
def test_no_absolute_path_is_shown(text: str, shown: str) -> None:
    found = summarise(diagnose_session(warned("hung", text=text)))
    assert found.careful == [shown or text]
