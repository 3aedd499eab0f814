"""What importing costs: `import fsqueue` stays small, commands start at once. Modules are counted, not milliseconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fsqueue

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
    assert loaded_by("from fsqueue import Queue") - {"typing_extensions"} <= ALLOWED


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


COMMAND = """
import sys
sys.argv[1:] = {}
from fsqueue_cli.entry import main
try:
    main()
except SystemExit:
    pass
"""
SLOW = {
    "asyncio", "concurrent.futures.thread", "email", "http", "jinja2", "multiprocessing", "rich", "shutil", "ssl",
    "subprocess", "tempfile", "urllib.request",
}  # fmt: skip
"""Modules that take long, and that only some programs need."""
RARE = (
    "fsqueue.administration", "fsqueue.asyncpoll", "fsqueue.client", "fsqueue.cluster.slurm", "fsqueue.doctor",
    "fsqueue.fsck", "fsqueue.service", "fsqueue.spark", "fsqueue.upkeep", "fsqueue.webpages", "fsqueue.worker",
)  # fmt: skip
"""What a person asks for now and then, and what stands above a queue."""
UNASKED = ("fsqueue.groups", "fsqueue.verbs", "fsqueue.views.activity", "fsqueue.views.task_results")


def modules_of(program: str) -> set[str]:
    """Return the modules that a program has loaded at its end, those of the tests' start included."""
    program += "\nimport json, sys\nprint()\nprint(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(finished.stdout.splitlines()[-1]))


def of_fsqueue(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "fsqueue"}


def below(modules: set[str], packages: tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if name.startswith(packages))


def test_import_fsqueue_and_the_version_load_no_queue() -> None:
    """A public name is loaded when it is first asked for."""
    for program in ("import fsqueue", COMMAND.format(["--version"])):
        found = modules_of(program)
        assert of_fsqueue(found) == {"fsqueue", "fsqueue.forks", "fsqueue.weak_table"}
        assert found & (SLOW | {"dataclasses", "orjson", "socket"}) == set()


def test_a_queue_loads_what_inserts_and_leases_take() -> None:
    found = modules_of("from fsqueue import Queue")
    assert found & SLOW == set()
    assert below(found, RARE + UNASKED) == []
    assert len(of_fsqueue(found)) <= 113


def test_status_loads_no_more_than_it_shows(tmp_path: Path) -> None:
    fsqueue.Queue.create(tmp_path / "queue").insert("a")
    found = modules_of(COMMAND.format(["status", str(tmp_path / "queue")]))
    assert found & SLOW == set()
    assert below(found, RARE) == []
    assert len(of_fsqueue(found)) <= 131


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
