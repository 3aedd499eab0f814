"""A queue and its copy (`cp -a`) in one group, on the command line: both have one id, and the same ids of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue import Group
from tests.cli.conftest import Run
from tests.groups.test_copies import N, copied, is_each_in_its_own

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def test_the_command_line_ends_and_each_result_is_in_its_own_queue(group: Group, fsqueue_cli: Run) -> None:
    group["a"].insert_many(range(N))
    copied(group["a"].path)
    script = 'printf \'["%s",%s]\' "${FSQUEUE_QUEUE##*/}" "$1" >"$FSQUEUE_RESULT"'
    fsqueue_cli(
        "run", group.path, "-j", "2", "--prefetch", "8", "--idle-timeout", "20", "--", "sh", "-c", script, "sh", "{}"
    )
    is_each_in_its_own([group["a"], group["a.bak"]])
    fsqueue_cli("wait", group.path)


def test_a_token_without_a_queue_is_looked_for_in_the_copy_too(group: Group, fsqueue_cli: Run) -> None:
    """A copy that was made before the lease has the task, and not the lease. It may be listed first."""
    group["a"].insert_many(range(2))
    copied(group["a"].path)
    for name in ("a", "a.bak"):
        [task] = group[name].lease()
        fsqueue_cli("update", group.path, "--complete", task.token)
        assert group[name].status().completed == 1


def test_a_token_that_a_queue_and_its_copy_have_is_refused_by_name(group: Group, fsqueue_cli: Run) -> None:
    group["a"].insert("x")
    [task] = group["a"].lease()
    copied(group["a"].path)
    said = fsqueue_cli("update", group.path, "--complete", task.token, code=2).stderr
    assert "have the same id: one is a copy of the other" in said
    assert f"{group.path}/a " in said
    assert f"{group.path}/a.bak" in said
    assert [group[name].status().leased for name in ("a", "a.bak")] == [1, 1]
    fsqueue_cli("update", group.path, "--complete", f"a={task.token}")
    assert [group[name].status().completed for name in ("a", "a.bak")] == [1, 0]
