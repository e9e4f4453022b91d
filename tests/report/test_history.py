"""The last analyses are kept for this user alone, found by the folder and the script, and bounded in number."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pipediag.analysis import diagnose_session
from pipediag.report import history, read
from pipediag.session import Edit, Place, Proof, Remedy, Session, Window

from ..conftest import Analyzed, Main
from ..made import climbing, make


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a working folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache" / "pipediag"


def made(*argv: str, raw: float = 30.0) -> Session:
    session = make(climbing(raw=raw))
    session.script.argv = [*argv]
    return session


def keep(*argv: str) -> None:
    history.keep(diagnose_session(made(*argv)))


def test_nobody_else_can_read_them(cache: Path) -> None:
    keep("train.py")
    (file,) = cache.iterdir()
    assert [stat.S_IMODE(one.stat().st_mode) for one in (cache, file)] == [0o700, 0o600]
    cache.chmod(0o755)
    keep("train.py")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_kept_one_is_read_back_to_the_same(cache: Path) -> None:
    session = made("train.py", "--epochs", "3")
    history.keep(diagnose_session(session))
    path = history.last()
    assert path is not None and read(path).session == session and history.when(path)


def test_they_belong_to_the_folder_in_which_they_were_started(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep("train.py")
    first = history.last()
    elsewhere = Path("other")
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert history.last() is None
    keep("train.py")
    monkeypatch.chdir("..")
    assert history.last() == first is not None


def test_only_the_last_ones_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    (cache).mkdir(parents=True)
    (cache / "mine.json").touch()
    for number in range(5):
        keep(f"{number}.py")
    left = sorted(cache.glob("2*.json"))
    assert [history.argv_of(str(path)) for path in left] == [["2.py"], ["3.py"], ["4.py"]]
    assert (cache / "mine.json").exists()


def test_two_of_one_script_are_found_past_others(cache: Path) -> None:
    for argv in (["train.py"], ["-m", "train"], ["train.py", "--epochs", "3"], ["-m", "other"], ["train.py", "-x"]):
        keep(*argv)
    pair = history.last_two()
    assert pair is not None
    assert [history.argv_of(path) for path in pair] == [["train.py", "--epochs", "3"], ["train.py", "-x"]]
    keep("-m", "third")
    assert history.last_two() is None
    keep("-m", "other", "-x")
    pair = history.last_two()
    assert pair is not None and history.argv_of(pair[0]) == ["-m", "other"]


@pytest.mark.parametrize("planted", ["link", "file", "home"])
def test_nothing_of_others_is_followed(cache: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir()
    if planted == "link":
        (cache.parent / "target").mkdir()
        cache.symlink_to(cache.parent / "target")
    elif planted == "file":
        cache.touch()
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(cache.parent).st_uid + 1)
    with pytest.raises(OSError):
        keep("train.py")
    assert history.last() is None and history.written_by(["train.py"]) == []
    assert not (cache.parent / "target").exists() or not [*(cache.parent / "target").iterdir()]


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch, main: Main, script: Path, analyzed: Analyzed) -> None:
    """The result is shown all the same."""
    analyzed(made("train.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    code, out, err = main("analyze", script)
    assert code == 0 and out.startswith("DATA COSTS") and "pipediag report -v" not in out
    assert "was not kept (" in err and "-o FILE.json saves it" in err and err.count("\n") == 1


def test_files_that_a_script_wrote(cache: Path) -> None:
    session = made("train.py")
    session.script.wrote = ["model.pt"]
    history.keep(diagnose_session(session))
    keep("other.py")
    assert history.written_by(["train.py", "--epochs", "9"]) == ["model.pt"]
    assert history.written_by(["other.py"]) == history.written_by(["third.py"]) == []
    for path in cache.iterdir():
        path.write_text("{")
    assert history.written_by(["train.py"]) == []


class TestCommands:
    def test_report_shows_the_last_analysis(
        self, cache: Path, main: Main, script: Path, analyzed: Analyzed, tmp_path: Path
    ) -> None:
        analyzed(made(str(script)))
        shown = main("analyze", script)[1]
        assert "pipediag report -v shows it all" in shown
        following = "after a change: pipediag analyze {} && pipediag compare\n"
        assert shown.replace("\\\n", "").endswith(following.format(script))
        code, out, err = main("report")
        assert code == 0 and out.splitlines()[:8] == shown.splitlines()[:8]
        assert err.startswith("pipediag: analysis of ") and err.endswith(f": {script}\n")
        assert main("report", "-q")[2] == ""
        assert main("report", "-o", tmp_path / "page.html")[0] == 0
        assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")

    def test_compare_takes_the_last_two(self, cache: Path, main: Main, script: Path, analyzed: Analyzed) -> None:
        assert main("compare")[0] == 2
        analyzed(made(str(script), raw=60.0))
        main("analyze", script)
        code, _, err = main("compare")
        assert code == 2 and "run pipediag analyze before and after a change" in err
        analyzed(made(str(script)))
        main("analyze", script)
        code, out, err = main("compare")
        assert code == 0 and out.startswith("THE LOOP IS FASTER") and err.count("analysis of ") == 2

    def test_compare_of_a_file_with_the_last(self, cache: Path, main: Main, script: Path, analyzed: Analyzed) -> None:
        analyzed(made(str(script), raw=60.0))
        main("analyze", "--no-save", "-o", "before.json", script)
        assert history.last() is None
        analyzed(made(str(script)))
        main("analyze", script)
        assert main("compare", "before.json")[1].startswith("THE LOOP IS FASTER")

    @pytest.mark.parametrize("command, kept", [("analyze", 1), ("audit", 1), ("sweep --vary=a=1,2", 0)])
    def test_what_is_kept(
        self, cache: Path, main: Main, script: Path, analyzed: Analyzed, command: str, kept: int
    ) -> None:
        analyzed(made(str(script)))
        main(*command.split(), script)
        assert len([*cache.glob("*.json")]) == kept

    def test_redacted_stays_redacted(self, cache: Path, main: Main, script: Path, analyzed: Analyzed) -> None:
        analyzed(made(str(script), "--name", "confidential"))
        main("analyze", "--redact", script)
        assert "confidential" not in next(cache.iterdir()).read_text()

    def test_diff_without_a_remedy(self, cache: Path, main: Main, script: Path, analyzed: Analyzed) -> None:
        analyzed(made(str(script)))
        main("analyze", script)
        code, out, err = main("report", "-q", "--diff")
        assert (code, out) == (2, "") and "no change to print: no remedy was tried" in err

    def test_diff_is_what_patch_takes(self, cache: Path, main: Main, script: Path, analyzed: Analyzed) -> None:
        session = made(str(script))
        diff = (
            "--- train.py\n+++ train.py\n@@ -1,2 +1,3 @@\n \t\f# \x1b[2J\r\n loader = 1\n"
            "+loader = pipediag.offload(loader, device)\n"
        )
        session.remedy = Remedy(device="cuda:0", moved=[Place("Crop")], proof=Proof(True, 64), edit=Edit(diff=diff))
        for round_ in range(10, 16):
            session.windows += [Window("baseline", round_, 10, 1.0, 10), Window("remedied", round_, 10, 0.5, 10)]
        analyzed(session)
        main("analyze", script)
        assert main("report", "-q", "--diff")[:2] == (0, diff.replace("\x1b", "\\x1b"))
