"""The kernel's counter of processes that it has killed for want of memory, wherever the control groups are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue.filesystem.processes import oom_kills

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"


def mount(root: str, point: Path, kind: str, options: str) -> str:
    return (
        f"31 24 0:28 {root} {str(point).replace(' ', chr(92) + '040')} rw,nosuid shared:9 - {kind} {kind} {options}\n"
    )


def counted(tmp_path: Path, groups: str, mounts: str) -> int | None:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts)
    return oom_kills(str(proc))


@pytest.mark.parametrize(
    ("root", "path", "at"),
    [
        ("/", "/slurm/job_7/step_0", "slurm/job_7/step_0"),
        ("/", "/", "."),
        ("/docker/ab", "/docker/ab", "."),  # a container that sees its group as the top
        ("/docker/ab", "/docker/ab/worker", "worker"),
        ("/docker/ab", "/docker/abc", "."),
        ("/", "/with blank", "with blank"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_counter_is_that_of_the_own_group(tmp_path: Path, version: int, root: str, path: str, at: str) -> None:
    place = tmp_path / "c g" / at
    place.mkdir(parents=True)
    if version == 2:
        (place / "memory.events").write_text(V2)
        groups, mounts = f"0::{path}\n", mount(root, tmp_path / "c g", "cgroup2", "rw,nsdelegate")
    else:
        (place / "memory.oom_control").write_text(V1)
        groups = f"5:cpu,cpuacct:/else\n4:hugetlb,memory:{path}\n0::/\n"
        mounts = mount("/", tmp_path, "cgroup", "rw,cpu,cpuacct") + mount(root, tmp_path / "c g", "cgroup", "rw,memory")
    assert counted(tmp_path, groups, mounts) == 3


@pytest.mark.parametrize("groups", ["", "garbage\n", "0::/gone\n", "4:cpu:/\n", "\udcff:\n"[1:]])
def test_without_a_counter_nothing_is_said(tmp_path: Path, groups: str) -> None:
    assert counted(tmp_path, groups, mount("/", tmp_path / "none", "cgroup2", "rw") + "short line\n - \n") is None


def test_of_another_mount_of_both_the_one_with_a_counter_counts(tmp_path: Path) -> None:
    """As systemd mounts them side by side: the new one has no memory controller."""
    (tmp_path / "unified").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text(V1)
    mounts = mount("/", tmp_path / "unified", "cgroup2", "rw") + mount("/", tmp_path / "memory", "cgroup", "rw,memory")
    assert counted(tmp_path, "4:memory:/\n0::/\n", mounts) == 3


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "oom_kill_disable 5\n"])
def test_a_counter_in_another_form_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert counted(tmp_path, "0::/\n", mount("/", tmp_path, "cgroup2", "rw")) is None
