"""``analyze --apply``: the transforms of an unmodified script are moved, and whether that pays is measured.

If it does, ``run`` carries the plan out, and refuses it where it does not fit.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis.trials.remedy import FEWEST

from .sandbox import PIPEDIAG, SCRIPTS, Analysis, Results, Sandbox, analyses, line_of, slow, some_slow
from .test_run import SHORT, natively, run

pytest.importorskip("torchvision")

SCRIPT = "remediable.py"
MOVED = ["RandomHorizontalFlip", "ToDtype", "dim"]
#: 4 ms a sample in the workers, or 4 ms a batch where all of it is done at once: nothing can hide that.
CASES: dict[str, list[str]] = {
    "workers": [],
    "in-process": ["--workers", "0", "--ms", "2"],
    "short-epochs": ["--batches", "6"],
    "persistent": ["--batches", "20", "--persistent"],
    "leaves-early": ["--leave-after", "30"],
    "numpy": ["--chain", "numpy"],
    "host-memory": ["--wants", "host-memory"],
    "neutral": ["--chain", "quick", "--step-ms", "12"],
}
PAYING = ["workers", "in-process", "short-epochs", "persistent", "leaves-early"]
SLOW = sorted(CASES.keys() - {"workers"})


results = analyses(
    {name: (arguments, {"crashes": name == "host-memory"}) for name, arguments in CASES.items()},
    SLOW,
    script=SCRIPT,
    budget=6,  # of which starting the workers again may take half
    rungs="baseline",
    options=("--apply", "--apply-budget", "24", "--plan", "plan.json"),
)


def remedy(done: Analysis) -> dict[str, Any]:
    found = done.json["remedy"]
    assert isinstance(found, dict), done.stderr
    return found


@pytest.mark.parametrize("case", some_slow(PAYING, SLOW))
def test_what_pays_is_kept(results: Results, case: str) -> None:
    done = results[case]
    told = remedy(done)
    assert [place["name"] for place in told["moved"]] == MOVED
    assert told["applied"] and told["reverted"] is None and told["why_not"] is None, told
    assert told["measured_speedup"]["low"] > 1.2
    assert told["certificate"]["passed"] and told["certificate"]["draws_equal"]
    assert {one["largest"] for one in told["certificate"]["apart"]} == {0.0}
    assert told["device"] == "cpu" and told["memory_bytes"] is None
    assert "it pays: " in done.stdout and "+import pipediag" in done.stdout
    assert not done.others


def test_the_rung_stands_beside_the_ladder(results: Results) -> None:
    done = results["workers"]
    assert done.rung("remedied")["windows"] >= FEWEST
    assert 1.3 * done.ms("remedied") < done.ms("baseline")
    rounds = {w["round"] for w in done.json["session"]["windows"] if w["rung"] == "remedied"}
    plain = {w["round"]: w for w in done.json["session"]["windows"] if w["rung"] == "baseline"}
    assert len(rounds & plain.keys()) >= FEWEST, "each has a baseline of its own round"
    assert {piece["rung"] for piece in done.json["waterfall"]} <= {"baseline", ""}
    order = [w["rung"] for w in done.json["session"]["windows"] if w["round"] in rounds]
    firsts = {order[at] for at in range(0, len(order) - 1, 2)}
    assert firsts == {"baseline", "remedied"}, "neither always comes first"


def test_places_are_those_of_the_script(results: Results) -> None:
    told = remedy(results["workers"])
    assert told["moved"][2]["where"].endswith(f"{SCRIPT}:{line_of(SCRIPT, 'def dim')}")


@pytest.mark.slow
def test_the_printed_change_is_two_lines_and_runs(results: Results, sandbox: Sandbox) -> None:
    diff = remedy(results["workers"])["how"]["diff"]
    changed = [line for line in diff.splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["+import pipediag", '+loader = pipediag.offload(loader, "cpu")']
    patched = apply_diff(diff, SCRIPTS / SCRIPT, sandbox.folder)
    arguments = ["--batches", "4", "--epochs", "2", "--losses"]
    ran = sandbox.run(sys.executable, str(patched), *arguments)
    native = sandbox.run(sys.executable, str(SCRIPTS / SCRIPT), *arguments)
    assert (ran.code, native.code) == (0, 0), ran.stderr
    assert ran.stdout == native.stdout and len(ran.stdout.splitlines()) == 8


def apply_diff(diff: str, file: Path, folder: Path) -> Path:
    """A copy of the file in ``folder``, patched as a user would."""
    copy = folder / file.name
    shutil.copy(file, copy)
    subprocess.run(["patch", str(copy)], input=diff, text=True, check=True, capture_output=True)
    return copy


def test_a_plan_is_written_where_it_pays(results: Results) -> None:
    done = results["workers"]
    assert f"pipediag run --plan plan.json {SCRIPTS / SCRIPT}" in " ".join(done.stdout.split())
    assert done.json["session"]["remedy"]["plan_file"] == "plan.json"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["neutral", "numpy", "host-memory"])
def test_no_plan_and_no_change_where_it_does_not(results: Results, case: str) -> None:
    done = results[case]
    assert "plan.json was not written" in done.said[-1]
    assert not remedy(done)["applied"]
    assert "import pipediag" not in done.stdout and "pipediag run" not in done.stdout


@pytest.mark.slow
def test_what_does_not_pay_is_reverted(results: Results) -> None:
    told = remedy(results["neutral"])
    assert told["reverted"] and [place["name"] for place in told["moved"]] == MOVED[:2]
    assert told["measured_speedup"]["low"] < 1.02
    assert "reverted: " in results["neutral"].stdout


@pytest.mark.slow
def test_where_nothing_moves_the_reasons_are_told(results: Results) -> None:
    done = results["numpy"]
    told = remedy(done)
    assert told["moved"] == [] and "numpy" in told["why_not"]
    assert "remedied" not in done.measured
    assert "nothing was moved: ThroughNumpy" in done.stdout


@pytest.mark.slow
def test_a_loop_that_needs_the_workers_memory_goes_without(results: Results) -> None:
    done = results["host-memory"]
    told = remedy(done)
    assert "this loop wants its batches" in told["reverted"] and "on these batches" in told["reverted"]
    assert done.code == 0 and done.passes == 1
    assert done.json["script"]["exit_code"] == 0


@pytest.mark.slow
def test_why_no_jpeg_is_decoded(sandbox: Sandbox) -> None:
    options = ("--apply", "--apply-budget", "8", "--approximate")
    done = sandbox.analyze(SCRIPT, budget=2, rungs="baseline", options=options)
    assert done.json["decoded"]["why_not"] == "the device cpu has no JPEG engine"
    assert not done.json["decoded"]["applied"] and done.json["remedy"]["moved"]
    assert "JPEGs are decoded in the workers: the device cpu has no JPEG engine" in " ".join(done.stdout.split())
    assert "pipediag: testing on samples what can move to the device, with JPEGs decoded there too" in done.said


@pytest.mark.parametrize("option", [("--plan", "plan.json"), ("--approximate",)])
def test_a_plan_and_decoding_need_apply(sandbox: Sandbox, option: tuple[str, ...]) -> None:
    done = sandbox.analyze(SCRIPT, options=option, code=2)
    assert "--apply" in done.said[-1]


@pytest.fixture(scope="module")
def plan(results: Results) -> Path:
    return results["workers"].cwd / "plan.json"


class TestPlan:
    def test_it_says_what_is_decoded_where(self, sandbox: Sandbox, plan: Path) -> None:
        ran = sandbox.run(*PIPEDIAG, "run", "--plan", str(plan), "--approximate", str(SCRIPTS / SCRIPT))
        assert ran.code == 2 and "leave out --approximate" in ran.said[-1]

    @pytest.mark.slow
    def test_a_plan_that_decodes_is_refused_where_nothing_can(self, sandbox: Sandbox, plan: Path) -> None:
        held = {**json.loads(plan.read_text()), "decodes": True}
        decoding = sandbox.folder / "decoding.json"
        decoding.write_text(json.dumps(held))
        ran = run(sandbox, SCRIPT, *SHORT, plan=decoding)
        assert ran.code == 2 and "decodes JPEGs on the cpu, which fails now: the device cpu" in ran.said[-1], ran.stderr

    def test_holds_what_was_measured(self, plan: Path) -> None:
        held = json.loads(plan.read_text())
        assert held["script"] == SCRIPT and held["dataset"] == "__main__.Images" and held["batch_size"] == 16
        assert held["where"].endswith(f"{SCRIPT}:{line_of(SCRIPT, 'for images, labels in loader')}")
        assert [name for name, _ in held["moved"]] == ["RandomHorizontalFlip", "ToDtype", "dim"]
        assert held["speedup"]["low"] > 1.2 and {"pipediag", "torch", "torchvision"} <= held["versions"].keys()

    @pytest.mark.slow
    def test_is_carried_out(self, sandbox: Sandbox, plan: Path) -> None:
        """With other arguments than it was made with, except the one that a moved transform reads."""
        arguments = SHORT[: SHORT.index("--ms")]
        native = natively(sandbox, SCRIPT, *arguments)
        ran = run(sandbox, SCRIPT, *arguments, plan=plan)
        assert ran.code == 0 and ran.stdout == native.stdout
        before, moved = ran.said
        assert before.endswith("will move once its first batches are compared")
        assert "dim" in moved and "not measured" not in moved

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("order", "gradients"),
        [
            ("other, loader, other, loader", "loader is not other"),
            ("loader, other, loader", "loader is not other"),
            ("loader, other, loader", "True"),
        ],
        ids=["first", "later", "with-gradients"],
    )
    def test_a_loader_that_evaluates_is_left_alone(
        self, sandbox: Sandbox, plan: Path, order: str, gradients: str
    ) -> None:
        """It has the training loader's dataset class, batch size and line, but other transforms, as timm's has."""
        source = (SCRIPTS / SCRIPT).read_text()
        for before, after in {
            "lr=0.01)": "lr=0.01); other = DataLoader(Images(v2.Compose(chain[:2])), batch_size=16, num_workers=2)",
            "for _epoch in range(args.epochs):": f"for loader in ({order}):",
            "    seen = 0": f"    seen = 0; torch.set_grad_enabled({gradients})",
            "loss.backward()": "loss.backward() if loss.requires_grad else None",
            "optimizer.step()": "loader is other or optimizer.step()",
        }.items():
            assert source.count(before) == 1
            source = source.replace(before, after)
        copy = sandbox.folder / SCRIPT
        copy.write_text(source)
        arguments = SHORT[: SHORT.index("--ms")]
        named = sandbox.folder / "named.json"  # the loop's line iterates both loaders
        named.write_text(json.dumps({**json.loads(plan.read_text()), "order": int(order.startswith("other"))}))
        native, ran = natively(sandbox, copy, *arguments), run(sandbox, copy, *arguments, plan=named)
        assert (native.code, ran.code) == (0, 0), ran.stderr
        assert ran.stdout == native.stdout and len(ran.stdout.splitlines()) == 4 * (1 + order.count(","))
        moved = [line for line in ran.said if "moved from the loader" in line and "nothing was" not in line]
        assert len(moved) == 1 and "dim" in moved[0]
        assert len(ran.said) == 2, "that it will move, and that it has moved"

    @pytest.mark.parametrize(
        ("before", "after", "why"),
        [
            ("return image * 0.5", "return image * 0.5 + 0.0", "dim is not what it was"),
            *slow(
                ("RandomHorizontalFlip()", "RandomHorizontalFlip(0.6)", "RandomHorizontalFlip is not what it was"),
                ("*LINKS[args.chain]]", "]", "of this loader moves RandomHorizontalFlip, ToDtype;"),
                ("batch_size=16", "batch_size=8", "the plan was made for another loader"),
                ("class Images", "class Pictures", "the plan was made for another loader"),
                ("\nfor _epoch", "\n\nfor _epoch", "the plan was made for another loader"),
            ),
        ],
        ids=["code", "parameter", "chain", "batch-size", "dataset", "place"],
    )
    def test_is_refused_for_a_changed_script(
        self, sandbox: Sandbox, plan: Path, before: str, after: str, why: str
    ) -> None:
        source = (SCRIPTS / SCRIPT).read_text()
        assert source.count(before) == 1
        changed = source.replace(before, after).replace(
            "Images(v2", "Pictures(v2" if "Pictures" in after else "Images(v2"
        )
        changed = changed.replace("(16, 3, 12, 12)", "(len(labels), 3, 12, 12)").replace("(16,)", "labels.shape")
        copy = sandbox.folder / SCRIPT
        copy.write_text(changed)
        ran = run(sandbox, copy, *SHORT, plan=plan)
        assert ran.code == 2 and why in ran.said[-1] and "analyze --apply --plan" in ran.said[-1], ran.stderr
        assert not ran.others
        assert len(ran.stdout.splitlines()) <= 1, "it does not go on without being asked"

    def test_is_refused_for_another_script_before_that_starts(self, sandbox: Sandbox, plan: Path) -> None:
        ran = run(sandbox, "leaves_a_mark.py", plan=plan)
        assert ran.code == 2 and f"made for {SCRIPT}, not for leaves_a_mark.py" in ran.said[0]
        assert not (sandbox.cwd / "ran.txt").exists()

    def test_is_refused_with_other_versions(self, sandbox: Sandbox, plan: Path) -> None:
        held = json.loads(plan.read_text())
        held["versions"]["torchvision"] = "0.1"
        other = sandbox.folder / "other.json"
        other.write_text(json.dumps(held))
        ran = run(sandbox, SCRIPT, *SHORT, plan=other)
        assert ran.code == 2 and "torchvision 0.1" in ran.said[0] and ran.stdout == ""

    @pytest.mark.slow
    def test_a_script_that_swallows_everything_is_refused_again(self, sandbox: Sandbox, plan: Path) -> None:
        copy = sandbox.folder / SCRIPT
        source = (SCRIPTS / SCRIPT).read_text().replace("return image * 0.5", "return image * 0.6")
        insist = (
            "def insist(loader):\n    try:\n        yield from loader\n    except:\n        yield from loader\n\n\n"
        )
        copy.write_text(source.replace("in loader:", "in insist(loader):").replace("def dim(", insist + "def dim("))
        held = json.loads(plan.read_text())
        lines = copy.read_text().splitlines()
        held["where"] = f"{SCRIPT}:{1 + next(i for i, line in enumerate(lines) if 'yield from' in line)}"
        other = sandbox.folder / "other.json"
        other.write_text(json.dumps(held))
        ran = run(sandbox, copy, *SHORT, plan=other)
        assert ran.code == 2 and ran.stdout == "" and "dim is not what it was" in ran.said[-1]
