"""The machine's cores, quota and NUMA nodes, read from made files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipediag.measure import machine
from pipediag.measure.machine import (
    _listed,
    cgroup_quota,
    cores,
    cpus,
    environment,
    group_folders,
    limit_of,
    limits,
    numa_node,
)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPUs that the process may use; tests add to them."""
    cpus: set[int] = set()
    monkeypatch.setattr(machine, "allowed_cpus", lambda: cpus)
    return cpus


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("0-1,4-5\n", {0, 1, 4, 5}),
        ("\n", set()),
        ("unknown", set()),
    ],
)
def test_a_list_of_cpus(tmp_path: Path, text: str, numbers: set[int]) -> None:
    file = tmp_path / "cpulist"
    file.write_text(text)
    assert _listed(file) == numbers


def test_no_list_of_cpus(tmp_path: Path) -> None:
    assert _listed(tmp_path / "cpulist") == set()


class TestNode:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A machine with two nodes of four CPUs each, and a node with only memory."""
        for node, listed in (("node0", "0-1,4-5"), ("node1", "2-3,6-7"), ("node10", "")):
            (tmp_path / node).mkdir()
            (tmp_path / node / "cpulist").write_text(f"{listed}\n")
        (tmp_path / "online").write_text("0-1,10\n")
        return tmp_path

    @pytest.mark.parametrize(("own", "node"), [({2, 7}, 1), ({0, 1, 4, 5}, 0), ({0, 2}, None), (set(), None)])
    def test_the_node_that_holds_all_cpus(self, root: Path, allowed: set[int], own: set[int], node: int | None) -> None:
        allowed |= own
        assert numa_node(root) == node

    def test_a_machine_without_the_files(self, tmp_path: Path, allowed: set[int]) -> None:
        allowed.add(0)
        assert numa_node(tmp_path) is None


def test_cores(allowed: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimum of all limits counts."""
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 6)
    monkeypatch.setattr(machine, "cgroup_quota", lambda: None)
    assert (cpus(), cores()) == (6, 6)
    allowed |= {0, 1, 2}
    assert cores() == 3
    monkeypatch.setattr(machine, "cgroup_quota", lambda: 2.5)
    assert cores() == 2.5
    assert environment()["cores"] == 2.5
    monkeypatch.setattr(machine, "cgroup_quota", lambda: 32.0)
    assert cores() == 3


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([5], "5"), ([0, 1, 2, 3, 8], "0-3,8"), ([9, 7, 8, 1], "1,7-9")]
)
def test_affinity(monkeypatch: pytest.MonkeyPatch, numbers: list[int], text: str) -> None:
    monkeypatch.setattr(machine, "allowed_cpus", lambda: {*numbers})
    assert machine.affinity() == text


#: Content of a process's own list of control groups, of version 2 and version 1.
V2 = "0::/user.slice/job.scope\n"
V1 = "9:name=systemd:/\n5:cpuacct,cpu:/elsewhere\n4:memory:/docker/3b89\n0::/\n"


def period(quota: str, folder: str = "cpu") -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("", {"cpu.max": "150000 100000\n"}, 1.5),
        ("", {"cpu.max": "max 100000\n"}, None),
        ("", period("400000"), 4.0),
        ("", period("50000"), 0.5),
        ("", period("-1"), None),
        ("", {"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        # What is no quota.
        *(("", {"cpu.max": text}, None) for text in ("", "max", "many 100000", "100000 0", "0 100000", "1 2 3")),
        ("", {}, None),
        # All groups up to the root count.
        (V2, {"user.slice/cpu.max": "300000 100000", "user.slice/job.scope/cpu.max": "max 100000"}, 3.0),
        (V2, {"user.slice/cpu.max": "300000 100000", "user.slice/job.scope/cpu.max": "50000 100000"}, 0.5),
        (V1, period("250000", "cpu/elsewhere"), 2.5),
        (V1, {"elsewhere/cpu.max": "100000 100000"}, None),
    ],
)
def test_quota(tmp_path: Path, groups: str, files: dict[str, str], quota: float | None) -> None:
    (tmp_path / "own").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path, tmp_path / "own") == quota


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
def test_folders_of_groups_that_limit_memory(tmp_path: Path, groups: str, expected: list[str]) -> None:
    (tmp_path / "own").write_text(groups)
    found = group_folders(tmp_path / "own", Path("/cg"), "memory")
    assert found == [Path("/cg") / folder for folder in expected]


def test_a_group_outside_the_containers_own_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/../other\n")
    assert all(folder.is_relative_to(tmp_path) for folder in group_folders(tmp_path / "own", tmp_path, "memory"))


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
