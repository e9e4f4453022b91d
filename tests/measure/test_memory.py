"""The limits of the process's memory, read from recorded files of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipediag.measure.machine import group_folders, limit_of, limits

V2 = "0::/user.slice/job.scope\n"
V1 = "9:name=systemd:/\n5:cpuacct,cpu:/elsewhere\n4:memory:/docker/3b89\n0::/\n"
NESTED = "0::/../other\n"
#: Recorded in a container with version 1, and in one with version 2.
STAT_V1 = (
    "cache 200704\ninactive_file 40960\nhierarchical_memory_limit 9223372036854771712\ntotal_inactive_file 81920\n"
)
STAT_V2 = "anon 500\nfile 700\ninactive_file 300\nactive_file 400\n"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (V2, [".", "memory", "user.slice/job.scope", "user.slice"]),
        (V1, [".", "memory", "memory/docker/3b89", "memory/docker"]),
        ("0::/\n", [".", "memory"]),
        ("", [".", "memory"]),
    ],
)
def test_folders_of_groups_that_limit_memory(groups: str, expected: list[str]) -> None:
    assert group_folders(groups, Path("/cg")) == [Path("/cg") / folder for folder in expected]


def test_a_group_outside_the_containers_own_is_harmless(tmp_path: Path) -> None:
    assert all(folder.is_relative_to(tmp_path) for folder in group_folders(NESTED, tmp_path))


@pytest.mark.parametrize(
    ("limit", "used", "stat", "expected"),
    [
        ("max\n", "900\n", STAT_V2, None),
        ("1000\n", "900\n", STAT_V2, (1000, 400)),
        ("1000000\n", "900000\n", STAT_V1, (1_000_000, 181_920)),
        ("1000\n", "1200\n", "", (1000, 0)),
    ],
)
def test_free_bytes_of_a_group(limit: str, used: str, stat: str, expected: tuple[int, int] | None) -> None:
    assert limit_of(limit, used, stat) == expected


def test_all_groups_up_to_the_root_count(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(V2)
    for folder, limit in (("user.slice", "5000"), ("user.slice/job.scope", "max")):
        (root / folder).mkdir(parents=True)
        (root / folder / "memory.max").write_text(limit)
        (root / folder / "memory.current").write_text("1000")
        (root / folder / "memory.stat").write_text(STAT_V2)
    assert list(limits(root, own))[1:] == [(5000, 4300)]
    assert len(list(limits(root, tmp_path / "none"))) == 1
