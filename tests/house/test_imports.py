"""What importing costs: `import fsqueue` stays small, `fsqueue --help` quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = {"fsqueue", "orjson", "filelock"}

STARTUP_RATIO_MAX = 2.5
"""`fsqueue --help` against `python -c 'import click'`."""


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement brings into a fresh interpreter, the standard library's left out."""
    program = f"""
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted({{name.split(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names)))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(finished.stdout))


def test_import_fsqueue_pulls_in_orjson_and_filelock_alone() -> None:
    # typing_extensions may come with filelock, by its own choice
    assert loaded_by("import fsqueue") - {"typing_extensions"} <= ALLOWED


def test_a_queue_at_work_pulls_in_nothing_more(tmp_path: Path) -> None:
    work = f"""
from fsqueue import Queue
with Queue.create({str(tmp_path / "queue")!r}) as queue:
    queue.insert("a")
    for task in queue.poll(until="drained"):
        task.complete()
    queue.status()
"""
    assert loaded_by(work) - {"typing_extensions"} <= ALLOWED


def test_the_first_sleep_of_an_idle_worker_pulls_in_inotify_alone(tmp_path: Path) -> None:
    work = f"""
from fsqueue import Queue
with Queue.create({str(tmp_path / "queue")!r}) as queue:
    queue.lease(wait_s=0.01)
"""
    assert loaded_by(work) - {"typing_extensions"} <= ALLOWED | {"inotify_simple"}


def computed_s(*command: str) -> float:
    """Return for how long a command has computed. However long it waits for a processor, that does not count."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_starts_quickly() -> None:
    """The best of several runs of each, taken in turns: other load slows both, and can only add."""
    fsqueue = str(Path(sys.executable).with_name("fsqueue"))
    best_click = best_help = float("inf")
    for _ in range(4):  # up to four rounds: noise can only spoil a round, not pass one
        for _ in range(5):
            best_click = min(best_click, computed_s(sys.executable, "-c", "import click"))
            best_help = min(best_help, computed_s(fsqueue, "--help"))
        if best_help < STARTUP_RATIO_MAX * best_click:
            return
    pytest.fail(f"fsqueue --help computes for {best_help * 1000:.0f} ms, import click {best_click * 1000:.0f} ms")
