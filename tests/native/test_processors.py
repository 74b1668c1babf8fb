"""How many processors a process may use, in trees of control groups as containers see them."""

from __future__ import annotations

import os

import pytest
from delian.core.common import processors


@pytest.fixture(autouse=True)
def eight(monkeypatch):
    """Eight processors, whatever this machine has."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.fixture
def tree(tmp_path):
    """Writes a tree; gives the processors that are counted in it."""

    def counted(own, files):
        for name, text in {"proc/self/cgroup": own, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return processors.cores(tmp_path)

    return counted


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),  # rounded up
        ("1000 100000", 1),  # at least one
        ("6400000 100000", 8),  # more than there are
        ("max 100000", 8),
    ],
)
def test_a_containers_quota_counts_where_it_is_the_smaller(tree, limit, count):
    assert tree("0::/\n", {"sys/fs/cgroup/cpu.max": f"{limit}\n"}) == count


def test_the_smallest_quota_on_the_way_to_the_root_counts(tree):
    slices = "sys/fs/cgroup/system.slice"
    files = {
        f"{slices}/delian.service/cpu.max": "500000 100000\n",
        f"{slices}/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/other/cpu.max": "100000 100000\n",
    }
    assert tree("0::/system.slice/delian.service\n", files) == 3


@pytest.mark.parametrize("top", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_of_the_older_groups_the_quota_is_two_files(tree, top):
    own = "7:memory:/box\n4:cpu,cpuacct:/box\n0::/\n"
    folder = f"sys/fs/cgroup/{top}/box"
    files = {f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert tree(own, files) == 3
    assert tree(own, {f"{folder}/cpu.cfs_quota_us": "-1\n"}) == 8


def test_a_container_whose_group_is_the_mounted_root_finds_its_quota_there(tree):
    folder = "sys/fs/cgroup/cpu"
    files = {f"{folder}/cpu.cfs_quota_us": "200000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert tree("4:cpu,cpuacct:/docker/0123abcd\n", files) == 2
    assert tree("0::/../elsewhere\n", {"sys/fs/cgroup/cpu.max": "400000 100000"}) == 4


@pytest.mark.parametrize(
    "limit", ["", "100000", "100000 0", "-5 100000", "nan nan", "1e5 1e5", "9" * 5000 + " 1", "\0"]
)
def test_what_is_no_limit_is_none(tree, limit):
    assert tree("0::/\n", {"sys/fs/cgroup/cpu.max": limit}) == 8


@pytest.mark.parametrize("own", ["", "0\n", "::::\n", "0::" + "/a" * 10_000, "4:cpu:\0\n", "\xff"])
def test_a_listing_of_groups_that_makes_no_sense_is_no_limit(tree, own):
    assert tree(own, {}) == 8


def test_without_control_groups_all_processors_count(tmp_path):
    assert processors.cores(tmp_path) == 8
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)  # cannot be read
    assert processors.cores(tmp_path) == 8
