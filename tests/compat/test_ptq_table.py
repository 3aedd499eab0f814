"""docs/from-task-queue.md: each command in the table beside ptq's is typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import fsqueue
from fsqueue.compat.taskqueue import TaskQueue
from tests.compat import tiles
from tests.pages import text_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

ROWS = dict(
    re.findall(r"^\| `((?:ptq|rm) [^`]*)` \| (?:none: )?`([^`]*)`", text_of("docs/from-task-queue.md"), re.MULTILINE)
)


class After(NamedTuple):
    """What a command leaves of a queue of which a task is done, one leased, and one waits; None: no queue."""

    status: fsqueue.Status | None
    printed: str


LEFT = fsqueue.Status(waiting=1, leased=1, completed=1)
AFTER = {
    "ptq status fq://Q": After(LEFT, r"waiting +1\b"),
    "ptq --version": After(LEFT, "fsqueue"),
    "ptq license": After(LEFT, ""),
    "ptq cp fq://OLD fq://Q": After(fsqueue.Status(waiting=2, leased=1, completed=1), "1"),
    "ptq mv fq://OLD fq://Q": After(fsqueue.Status(waiting=2, leased=1, completed=1), "1"),
    "ptq release fq://Q": After(fsqueue.Status(waiting=2, completed=1), "1"),
    "ptq purge fq://Q": After(fsqueue.Status(), ""),
    "ptq rezero fq://Q": After(fsqueue.Status(), ""),
    "rm -r Q": After(None, ""),
}


def test_each_command_of_the_table_is_typed_below() -> None:
    assert ROWS.keys() == AFTER.keys()


@pytest.mark.parametrize("theirs", AFTER)
def test_a_command_does_what_ptq_s_does(tmp_path: Path, theirs: str) -> None:
    tq = TaskQueue(f"fq://{tmp_path}/Q", progress=False)
    tq.insert(partial(tiles.note, n, out=os.devnull) for n in range(3))
    tq.poll(stop_fn=lambda executed: executed == 1)
    tq.lease(600)
    task = "00000000-0000-4000-8000-000000000001"
    stored = {"payload": [[tiles.__name__, "note"], [3], {"out": os.devnull}, -1], "queueName": "OLD", "id": task}
    (tmp_path / "OLD/queue").mkdir(parents=True)
    (tmp_path / "OLD/movement").mkdir()
    (tmp_path / f"OLD/queue/0--{task}.json").write_text(json.dumps(stored))
    (tmp_path / f"OLD/movement/{task}").write_text(f"0--{task}.json\n")
    (tmp_path / "LICENSE").write_text("")
    command = f"cat {ROWS[theirs]}" if theirs == "ptq license" else ROWS[theirs]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(AFTER[theirs].printed, done.stdout), done.stdout
    if AFTER[theirs].status is None:
        assert not (tmp_path / "Q").exists()
    else:
        assert fsqueue.Queue(tmp_path / "Q").status() == AFTER[theirs].status
