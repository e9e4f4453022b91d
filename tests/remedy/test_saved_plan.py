"""Plan files: their contents, and every reason to refuse one before a script starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipediag.analysis.trials.remedy import FIRST_LOOK
from pipediag.errors import EXIT_USAGE, PlanRefused, SessionFileError
from pipediag.host.passes import Request
from pipediag.remedy import saved_plan
from pipediag.remedy.saved_plan import SavedPlan
from pipediag.session import HANDED_OVER, REMEDIED, Place, Remedy, Rung, Session, Window

from ..conftest import Main
from ..made import climbing, make

PLAN = SavedPlan(
    dataset="__main__.Photos",
    batch_size=32,
    device="cuda",
    moved=(("Blur", "0123456789abcdef"), ("Normalize", "fedcba9876543210")),
    script="train.py",
    where="train.py:10",
    versions=saved_plan.versions(),
    speedup={"value": 2.0, "low": 1.8, "high": 2.2},
)


def session(ratio: float = 2.0) -> Session:
    """A loop over Photos with batch 32, iterated at train.py:10, that a remedy makes ``ratio`` times as fast."""
    made = make(climbing(raw=30.0))
    made.remedy = Remedy(device="cuda:0", moved=[Place("Blur"), Place("Normalize")], plan=PLAN.to_dict())
    made.rungs[REMEDIED] = Rung(REMEDIED)
    for round_ in range(100, 100 + FIRST_LOOK):
        made.windows += [Window("baseline", round_, 10, 1.0), Window(REMEDIED, round_, 10, 1.0 / ratio)]
    return made


def save(made: Session, speedup: dict[str, float | None], path: Path) -> None:
    assert made.remedy is not None
    saved_plan.write(made, made.remedy, speedup, str(path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save(session(), PLAN.speedup, path)
    return path


def changed(file: Path, **values: Any) -> str:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return str(file)


def test_there_and_back(file: Path) -> None:
    assert saved_plan.read(str(file)) == PLAN


def test_unknown_keys_are_left_out(file: Path) -> None:
    assert saved_plan.read(changed(file, later=1)) == PLAN


def test_of_a_module(tmp_path: Path) -> None:
    made = session()
    made.script.argv = ["-m", "pkg.train", "--epochs", "3"]
    save(made, {}, tmp_path / "plan.json")
    plan = saved_plan.read(str(tmp_path / "plan.json"))
    assert plan.script == "pkg.train"
    plan.check("pkg.train")


def test_a_loop_of_a_library_is_known_by_its_call(tmp_path: Path) -> None:
    """Which is on the stack when a plan is carried out; the line that makes the dataset need not be."""
    made = session()
    assert made.loader is not None
    made.loader.where, made.loader.iterated, made.loader.order = "train.py:4", "train.py:10", 1
    save(made, {}, tmp_path / "plan.json")
    plan = saved_plan.read(str(tmp_path / "plan.json"))
    assert (plan.where, plan.order) == ("train.py:10", 1)


def test_into_nowhere(tmp_path: Path) -> None:
    with pytest.raises(SessionFileError, match="could not be written"):
        save(session(), {}, tmp_path / "no" / "plan.json")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"pipediag_plan": "1"}', '{"session": {}}', '{"pipediag_plan": 2}']
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(PlanRefused, match=r"x\.json: .*pipediag analyze --apply --plan"):
        saved_plan.read(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="cannot be read"):
        saved_plan.read(str(tmp_path / "none.json"))


def test_a_newer_one_is_refused(file: Path) -> None:
    with pytest.raises(PlanRefused, match="newer pipediag"):
        saved_plan.read(changed(file, pipediag_plan=saved_plan.VERSION + 1))


def test_an_older_one_is_refused(file: Path) -> None:
    with pytest.raises(
        PlanRefused, match=r"written by an older pipediag; make it again with: pipediag analyze --apply"
    ):
        saved_plan.read(changed(file, pipediag_plan=saved_plan.VERSION - 1))


class TestCheck:
    def test_the_same_script_from_anywhere(self) -> None:
        PLAN.check("train.py")
        PLAN.check("/elsewhere/train.py")

    def test_another_script(self) -> None:
        with pytest.raises(PlanRefused, match=r"made for train\.py, not for other\.py") as refused:
            PLAN.check("other.py")
        assert refused.value.exit_code == EXIT_USAGE

    @pytest.mark.parametrize("package", sorted(PLAN.versions))
    def test_other_versions(self, package: str) -> None:
        old = dataclasses.replace(PLAN, versions={**PLAN.versions, package: "0.0.1"})
        with pytest.raises(PlanRefused, match=rf"with {package} 0\.0\.1, here is "):
            old.check("train.py")

    def test_a_package_that_is_gone(self) -> None:
        old = dataclasses.replace(PLAN, versions={"vanished": "1.0"})
        with pytest.raises(PlanRefused, match=r"vanished 1\.0, here is none"):
            old.check("train.py")

    def test_another_device(self) -> None:
        PLAN.check_device("cuda")
        with pytest.raises(PlanRefused, match="training on cuda, this is on cpu"):
            PLAN.check_device("cpu")

    @pytest.mark.parametrize(
        ("dataset", "batch_size", "where", "named"),
        [
            ("__main__.Photos", 32, "/a/train.py:10", True),
            ("__main__.Pictures", 32, "train.py:10", False),
            ("__main__.Photos", 64, "train.py:10", False),
            ("__main__.Photos", 32, "train.py:11", False),
        ],
    )
    def test_the_loader(self, dataset: str, batch_size: int, where: str, named: bool) -> None:
        assert PLAN.names(dataset, batch_size, where, 0) is named
        assert not PLAN.names(dataset, batch_size, where, 1)
        told = str(PLAN.refusal(dataset, batch_size, where, 0))
        assert "(__main__.Photos, batch 32, iterated at train.py:10)" in told and f"batch {batch_size}" in told

    def test_the_hand_off_alone(self) -> None:
        alone = dataclasses.replace(PLAN, moved=())
        assert SavedPlan.from_dict(json.loads(json.dumps(alone.to_dict()))) == alone
        alone.check_moved([])
        alone.check_handoff("")
        with pytest.raises(PlanRefused, match="this loader cannot: its batches hold no tensors; make it again"):
            alone.check_handoff("its batches hold no tensors")

    def test_what_moves(self) -> None:
        PLAN.check_moved(PLAN.moved)
        with pytest.raises(PlanRefused, match="moves Blur, Normalize, of this loader moves Blur;"):
            PLAN.check_moved(PLAN.moved[:1])
        with pytest.raises(PlanRefused, match="of this loader moves nothing"):
            PLAN.check_moved([])
        with pytest.raises(PlanRefused, match="Normalize is not what it was"):
            PLAN.check_moved([PLAN.moved[0], ("Normalize", "0")])

    def test_calls_of_plain_code(self) -> None:
        lines = {10: "x = F.rotate(x, 3)", 12: "x = F.hflip(x)", 14: "x = F.adjust_hue(x, h)"}
        turned, flipped, coloured = (
            (name, "data.py", line, lines[line]) for name, line in (("rotate", 10), ("hflip", 12), ("adjust_hue", 14))
        )
        calls = dataclasses.replace(PLAN, moved=(), calls=(turned, flipped))
        assert SavedPlan.from_dict(json.loads(json.dumps(calls.to_dict()))) == calls

        def text(file: str, line: int) -> str | None:
            return lines.get(line)

        for now in ([turned, flipped], [flipped, turned], [turned], [flipped, coloured]):  # chance decides
            calls.check_calls(now, text)
        PLAN.check_calls([coloured], text)
        calls.check_calls([turned], lambda file, line: None)
        with pytest.raises(PlanRefused, match=r"moves rotate \(data.py:10\), .*, of this loader moves adjust_hue"):
            calls.check_calls([coloured], text)
        with pytest.raises(PlanRefused, match="of this loader moves nothing"):
            calls.check_calls([], text)
        lines[12] = "x = F.vflip(x)"
        with pytest.raises(PlanRefused, match=r"hflip \(data.py:12\) is not what it was"):
            calls.check_calls([turned], text)

    def test_what_decodes(self) -> None:
        decoding = dataclasses.replace(PLAN, decodes=True)
        decoding.check_moved(PLAN.moved)
        with pytest.raises(PlanRefused, match=r"JPEGs on the c\w+, which fails now: no engine; make"):
            decoding.check_moved(PLAN.moved, "no engine")
        assert SavedPlan.from_dict(decoding.to_dict()).decodes
        older = {name: value for name, value in decoding.to_dict().items() if name != "decodes"}
        assert not SavedPlan.from_dict(older).decodes


class TestCommands:
    def test_the_plan_of_what_pays_is_written(
        self, main: Main, tmp_path: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        requests = analyzed(session())
        path = tmp_path / "plan.json"
        code, out, err = main("analyze", "--apply", "--apply-budget", "7", "--plan", path, "train.py")
        assert (code, err) == (0, "") and requests[0].apply == 7.0
        assert f"pipediag run --plan {path} train.py" in " ".join(out.replace("\\\n", " ").split())
        assert saved_plan.read(str(path)).speedup["value"] == 2.0

    def test_the_plan_of_the_hand_off_is_written_where_only_that_pays(
        self, main: Main, tmp_path: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        made = session(0.5)
        made.handoff = Remedy(device="cuda:0", plan=dataclasses.replace(PLAN, moved=()).to_dict())
        for round_ in range(200, 200 + FIRST_LOOK):
            made.windows += [Window("baseline", round_, 10, 1.0), Window(HANDED_OVER, round_, 10, 0.5)]
        analyzed(made)
        path = tmp_path / "plan.json"
        code, out, err = main("analyze", "--apply", "--plan", path, "train.py")
        assert (code, err) == (0, "") and saved_plan.read(str(path)).moved == ()
        assert f"pipediag run --plan {path} train.py" in " ".join(out.replace("\\\n", " ").split())

    def test_of_what_does_not_pay_none_is_written(
        self, main: Main, tmp_path: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        analyzed(session(0.5))
        path = tmp_path / "plan.json"
        code, out, err = main("analyze", "--apply", "--plan", path, "train.py")
        assert code == 0 and "was not written: the loop is slower" in err and not path.exists()
        assert "pipediag run" not in out

    def test_without_apply_nothing_is_tried(self, main: Main, analyzed: Callable[[Session], list[Request]]) -> None:
        requests = analyzed(make(climbing()))
        assert main("analyze", "train.py")[0] == 0 and requests[0].apply == 0.0
        code, _, err = main("analyze", "--plan", "plan.json", "train.py")
        assert code == EXIT_USAGE and "--apply" in err and len(requests) == 1

    def test_nowhere_to_write_is_said_before_anything_is_measured(
        self, main: Main, tmp_path: Path, analyzed: Callable[[Session], list[Request]]
    ) -> None:
        requests = analyzed(session())
        code, _, err = main("analyze", "--apply", "--plan", tmp_path / "no" / "plan.json", "train.py")
        assert code == EXIT_USAGE and "--plan" in err and not requests

    @pytest.fixture
    def became(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The arguments with which ``run`` would replace the process."""
        calls: list[list[str]] = []

        def become(arguments: list[str], flags: tuple[str, ...]) -> None:
            assert flags == ()
            calls.append(arguments)
            raise SystemExit(0)

        monkeypatch.setattr("pipediag.commands.run.become_runner", become)
        return calls

    def test_run(self, main: Main, tmp_path: Path, file: Path, became: list[list[str]]) -> None:
        script = tmp_path / "train.py"
        script.touch()
        assert main("run", "--plan", file, script, "--epochs", "3", "--plan", "x")[0] == 0
        assert main("run", script)[0] == 0
        assert main("run", "-m", "json.tool", "-m")[0] == 0
        assert became == [
            [str(file), "-", str(script), "--epochs", "3", "--plan", "x"],
            ["-", "-", str(script)],
            ["-", "-", "-m", "json.tool", "-m"],
        ]

    def test_run_with_a_plan_that_does_not_fit(
        self, main: Main, tmp_path: Path, file: Path, became: list[list[str]]
    ) -> None:
        script = tmp_path / "other.py"
        script.touch()
        code, out, err = main("run", "--plan", file, script)
        assert (code, out, became) == (EXIT_USAGE, "", []) and err.startswith(
            "pipediag: the plan was made for train.py"
        )
        assert main("run", tmp_path / "none.py")[0] == EXIT_USAGE
