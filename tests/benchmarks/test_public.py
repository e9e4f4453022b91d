"""How the public scripts are ported, where their time goes by a profile, and how pipediag's answers are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.public import advice, catalogue, lines, porting, table, truth
from benchmarks.public.asking import where
from benchmarks.public.kinds import Edit, Patch, Script
from benchmarks.recipes.catalogue import Place, Source

Json = dict[str, Any]
FETCH = "_worker_loop (/lib/torch/utils/data/_utils/worker.py:300);fetch (/lib/torch/utils/data/_utils/fetch.py:52)"


def script(*patches: Patch, edits: tuple[Edit, ...] = ()) -> Script:
    source = Source("owner/name", "0" * 40, ("train.py", "parts"))
    return Script("made", source, "train.py", lambda at: ["-b", "8", "--workers=2"], (), patches=patches, edits=edits)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    origin = tmp_path / "sources" / "owner" / "name"
    (origin / "parts").mkdir(parents=True)
    (origin / "train.py").write_text("workers = 4\n")
    (origin / "parts" / "model.py").write_text("size = 512\nother = 512\n")
    (origin / "unread.py").write_text("\n")
    return tmp_path / "sources"


def test_a_copy_has_the_listed_files_with_their_patches(sources: Path, tmp_path: Path) -> None:
    ported = script(
        Patch("train.py", "workers = 4", "workers = 2"),
        Patch("parts/model.py", "512", "8", 2),
        Patch("parts/model.py", "", "last = 1\n"),
        Patch("made/new.py", "", "new = 1\n"),
    )
    porting.copy(ported, sources, tmp_path / "copy", [Patch("train.py", "workers = 2", "workers = 0")])
    read = {str(path.relative_to(tmp_path / "copy")): path.read_text() for path in (tmp_path / "copy").rglob("*.py")}
    assert read == {
        "train.py": "workers = 0\n",
        "parts/model.py": "size = 8\nother = 8\nlast = 1\n",
        "made/new.py": "new = 1\n",
    }
    assert (sources / "owner/name/train.py").read_text() == "workers = 4\n"


@pytest.mark.parametrize("patch", [Patch("train.py", "absent", "x"), Patch("parts/model.py", "512", "8")])
def test_a_patch_that_does_not_fit_is_an_error(sources: Path, tmp_path: Path, patch: Patch) -> None:
    with pytest.raises(ValueError, match="times"):
        porting.copy(script(patch), sources, tmp_path / "copy")


def test_an_edit_changes_arguments() -> None:
    at = Place(Path("/data"), Path("/copy"), Path("/here"), False, 2)
    assert porting.command(script(), at) == ["/copy/train.py", "-b", "8", "--workers=2"]
    edit = Edit("", options={"-b": "16", "--workers": "0", "--new": "1"})
    assert porting.command(script(), at, edit) == ["/copy/train.py", "-b", "16", "--workers=0", "--new", "1"]


def test_the_first_advice_with_an_edit_is_chosen() -> None:
    edits = (Edit(r"num_workers=(\d+)", (Patch("train.py", "workers = 4", "workers = {0}"),), {"-j": "{0}"}),)
    given = [{"id": "rewrite", "title": "Make it cheaper"}, {"id": "num-workers", "title": "Set num_workers=16"}]
    found = advice.chosen(script(edits=edits), given)
    assert found is not None
    assert found[0] is given[1]
    assert (found[1].patches[0].new, found[1].options) == ("workers = 16", {"-j": "16"})
    assert advice.chosen(script(edits=edits), given[:1]) is None
    common = advice.chosen(script(), [{"id": "prefetch-factor", "title": "Set prefetch_factor=4"}])
    assert common is not None
    assert common[1].said == "prefetch_factor=4"


def test_lines_of_a_profile(tmp_path: Path) -> None:
    repository = tmp_path / "copy"
    repository.mkdir()
    own = repository / "data.py"
    own.write_text("class Images:\n    def __getitem__(self, index):\n        return resize(index)\n")
    library = tmp_path / "library.py"
    library.write_text(
        "class Compose:\n    def __call__(self):\n        pass\n\n\nclass Crop:\n    def forward(self):\n        pass\n"
    )
    item, wrapped = f"__getitem__ ({own}:3)", f"__call__ ({library}:3)"
    text = "\n".join(
        [
            f"{FETCH};{item};{wrapped};forward ({library}:8);resize (/lib/PIL/Image.py:9) 6",
            f"{FETCH};{item} 2",
            f"{FETCH};{wrapped};forward ({library}:8) 1",
            f"{FETCH};default_collate (/lib/torch/utils/data/_utils/collate.py:400) 1",
            "main (train.py:3);get (/lib/queues.py:103) 90",
        ]
    )
    found = lines.of_profile(text, repository)
    assert found["making"] == 10
    assert found["lines"] == [
        {"line": "data.py:3 Images.__getitem__", "calls": "Crop.forward", "share": 0.6},
        {"line": "data.py:3 Images.__getitem__", "calls": "", "share": 0.2},
        {"line": "library", "calls": "Crop.forward", "share": 0.1},
        {"line": "collating", "calls": "default_collate", "share": 0.1},
    ]


def phases(*steps: tuple[str, float], waited: float = 0.5) -> Json:
    named = {}
    for name, ms in steps:
        is_plain = name.startswith("plain")
        named[name] = {"rate": 1000.0 / ms, "seconds": 10.0, "waited": waited * 10 * is_plain, "foreign": 0.0}
    return {"phases": named}


def test_truth_compares_neighbours() -> None:
    found = phases(("plain", 100.0), ("host", 40.0), ("profile", 500.0), ("plain:2", 200.0), ("host:2", 120.0))
    found.update(loader="a", length=10, startups=[["a", 1.0], ["b", 100.0]])
    concluded = truth.concluded(found)
    assert concluded["shares"] == [0.6, 0.4]
    assert (concluded["share"], concluded["waits"], concluded["plain_ms"]) == (0.5, 0.5, 150.0)
    assert concluded["startup"] == pytest.approx(1.0 / 2.5)
    assert not concluded["steady"]
    near = phases(("plain", 100.0), ("host", 40.0), ("plain:2", 100.0), ("host:2", 45.0))
    assert truth.concluded(near)["steady"]
    assert truth.concluded(phases(("plain", 100.0))) == {}
    assert truth.phases(True, 2) == ["plain", "host", "profile", "plain:2", "host:2"]


def row(shares: list[float], bottleneck: str, low: float = 0.0, high: float = 0.0, **more: Any) -> Json:
    starved = {"value": (low + high) / 2, "low": low, "high": high}
    verdict = {"bottleneck": bottleneck, "level": "proven", "starved": starved}
    return {"name": "made", "kind": "", "truth": {"shares": shares, **more}, "analyse": {"verdict": verdict}}


@pytest.mark.parametrize(
    ("shares", "bottleneck", "interval", "expected"),
    [
        ([0.5, 0.6], "transform", (0.55, 0.62), "yes"),
        ([0.5, 0.6], "transform", (0.64, 0.7), "yes"),
        ([0.5, 0.6], "transform", (0.8, 0.9), "no: off by 20%"),
        ([0.5, 0.6], "none", (0.0, 0.05), "no"),
        ([0.04, 0.12], "none", (0.0, 0.05), "yes"),
        ([0.01, 0.02], "contention", (0.4, 0.5), "no"),
        ([0.01, 0.02], "inconclusive", (0.0, 0.5), "open"),
        ([], "none", (0.0, 0.0), "no truth"),
    ],
)
def test_verdicts_are_judged(
    shares: list[float], bottleneck: str, interval: tuple[float, float], expected: str
) -> None:
    assert table.right(row(shares, bottleneck, *interval)) == expected


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("Crop 9 ms 60 % train.py:30", "yes"),
        ("loading 9 ms 60 % src/data.py:3", "yes"),
        ("loading 9 ms 60 % train.py:3", "no"),
        ("other 1 ms 2 % data.py:9", "no"),
        ("collating 4 ms 30 %", "yes"),
    ],
)
def test_lines_are_judged(shown: str, expected: str) -> None:
    profile = {
        "lines": [
            {"line": "src/data.py:3 Images.__getitem__", "calls": "Crop.forward", "share": 0.6},
            {"line": "collating", "calls": "default_collate", "share": 0.3},
            {"line": "src/data.py:9 Images.__getitem__", "calls": "", "share": 0.1},
        ]
    }
    made = row([0.5], "transform", 0.5, 0.5, profile=profile)
    made["analyse"]["where"] = [shown]
    assert table.line_right(made) == expected
    assert "1 scripts; verdict right: yes 1" in table.markdown([made])


def test_where_of_a_screen() -> None:
    screen = [
        "TITLE",
        "WHERE, ms of each step",
        "  Crop   17.9 ms  57 %  ████▍  train.py:26",
        "WHAT TO DO",
        "  1. Crop",
    ]
    assert where(screen) == ["Crop 17.9 ms 57 % train.py:26"]
    assert where(["TITLE"]) == []


def test_the_catalogue_is_new_and_whole() -> None:
    from benchmarks.recipes.catalogue import RECIPES

    scripts = catalogue.SCRIPTS
    assert len({one.name for one in scripts}) == len(scripts) >= 20
    assert not {(one.repository, one.script) for one in scripts} & {(one.repository, one.script) for one in RECIPES}
    for one in scripts:
        assert len(one.source.commit) == 40
        assert one.kind
        for patch in one.patches:
            assert (
                any(patch.file == name or patch.file.startswith(f"{name}/") for name in one.source.files)
                or not patch.old
            )
