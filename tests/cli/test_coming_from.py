"""Pages for readers who come from other programs: each of our lines in their tables is typed, and does what it says.

docs/from-parallel.md has a test of its own (tests/cli/test_map.py). What the pages show beside the tables is typed by
tests/cli/test_pages.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from tests.pages import Typed, text_of

pytestmark = pytest.mark.once

SBATCH = "#!/bin/sh\ncat >submitted\necho 4711\n"
"""A stand-in that keeps the script."""


def rows(page: str, theirs: str) -> list[tuple[str, str]]:
    """Return the rows of the table of a page whose first column has that heading."""
    table = text_of(page).partition(f"| {theirs} | fsqueue |\n|---|---|\n")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(.*?)` \| `(.*?)` \|$", table, re.MULTILINE)
    assert len(found) == table.count("\n") + 1
    return [(one.replace("\\|", "|"), ours.replace("\\|", "|")) for one, ours in found]


def states(path: Path) -> dict[str, int]:
    status = Queue(path).status()
    return {name: getattr(status, name) for name in ("waiting", "completed", "dead", "inserted")}


# -- commands ---------------------------------------------------------------------------------------------

JOB_ARRAYS = rows("docs/from-job-arrays.md", "job array")
HYPERQUEUE = rows("docs/from-hyperqueue.md", "HyperQueue")
AFTER: dict[str, Callable[[Path], bool]] = {
    "fsqueue slurm Q ": lambda home: "fsqueue" in (home / "submitted").read_text(),
    "fsqueue run Q ": lambda home: states(home / "Q")["completed"] == 3,
    "fsqueue insert Q --lines more.txt": lambda home: states(home / "Q")["inserted"] == 6,
    "fsqueue cancel Q": lambda home: states(home / "Q")["waiting"] == 2,
    "fsqueue purge Q": lambda home: states(home / "Q")["inserted"] == 0,
    "fsqueue pause Q": lambda home: Queue(home / "Q").paused is not None,
    "fsqueue set Q max_leased": lambda home: Queue(home / "Q").settings.max_leased == 50,
    "fsqueue wait Q && ./assemble": lambda home: (home / "assembled").exists(),
    "fsqueue results Q usage.csv": lambda home: "peak_memory_bytes" in (home / "usage.csv").read_text(),
    "fsqueue insert Q tasks.jsonl": lambda home: states(home / "Q")["inserted"] == 6,
    "fsqueue insert Q --lines inputs.txt": lambda home: states(home / "Q")["inserted"] == 6,
    "seq 1 100": lambda home: states(home / "Q")["inserted"] == 103,
}
"""What holds after commands that begin so."""


@pytest.mark.parametrize(("theirs", "ours"), [*JOB_ARRAYS, *HYPERQUEUE])
def test_a_command_does_what_the_other_one_does(tmp_path: Path, theirs: str, ours: str) -> None:
    typed = Typed(tmp_path, "from", {}, {})
    typed.file("process", '#!/bin/sh\n[ -n "$1" ]\n')
    typed.file("assemble", "#!/bin/sh\ntouch assembled\n")
    typed.file("bin/sbatch", SBATCH)
    typed.file("inputs.txt", "a.txt\nb.txt\nc.txt\n")
    typed.file("more.txt", "d.txt\ne.txt\nf.txt\n")
    typed.file("tasks.jsonl", '{"tile": 1}\n{"tile": 2}\n{"tile": 3}\n')
    queue = Queue.create(tmp_path / "Q")
    queue.insert_many(["a.txt", "b.txt", "c.txt"])
    if re.search("wait|completed|results|watch", ours):
        queue.complete(queue.lease(3))
    if re.search("dead|retry", ours):
        queue.lease()[0].bury("no such file")
    if "resume" in ours:
        queue.pause()
    printed = typed._shell(f"{ours}\n", ":", theirs)
    for begin, holds in AFTER.items():
        if ours.startswith(begin):
            assert holds(tmp_path), printed
    if "dead list" in ours:
        assert "no such file" in printed
    if "retry" in ours:
        assert states(tmp_path / "Q")["dead"] == 0
    if "resume" in ours:
        assert Queue(tmp_path / "Q").paused is None
    if "ls Q" in ours:
        assert "completed" in printed


SNAKEMAKE = rows("docs/from-snakemake.md", "Snakemake")


@pytest.mark.parametrize(("theirs", "ours"), SNAKEMAKE)
def test_a_command_does_what_snakemake_s_does(tmp_path: Path, theirs: str, ours: str) -> None:
    typed = Typed(tmp_path, "from-snakemake", {}, {})
    typed.file("count", "#!/bin/sh\n")
    typed.file("bin/sbatch", SBATCH)
    queue = Group.create(tmp_path / "flow")["count"]
    queue.insert_many(["a", "b"])
    if "completed" in ours or "results" in ours:
        queue.complete(queue.lease(2))
    printed = typed._shell(f"{ours}\n", ":", theirs)
    match ours.split():
        case [_, "run", *options] if "--dry-run" not in options:
            assert queue.status().completed == 2, printed
        case [_, "run", *_]:
            assert (queue.status().waiting, printed.count("./count")) == (2, 2), printed
        case [_, "slurm", *_]:
            assert "flow/count -- ./count" in (tmp_path / "submitted").read_text()
        case [_, "set", _, change]:
            settings = typed._shell("fsqueue set flow/count\n", ":", theirs)
            assert re.search(rf"^{change.replace('=', ' +')}\b", settings, re.MULTILINE), settings
        case [_, "retry", *_]:
            assert queue.status().waiting == 2
        case [_, "results", *_]:
            assert (tmp_path / "counts.csv").read_text().count("completed") == 2


# -- Redis ------------------------------------------------------------------------------------------------

REDIS_CALLS = rows("docs/from-redis.md", "Redis")
REDIS_COMMANDS = rows("docs/from-redis.md", "Redis's command line")


@pytest.mark.parametrize(("theirs", "ours"), REDIS_CALLS)
def test_a_call_does_what_redis_s_does(tmp_path: Path, theirs: str, ours: str) -> None:
    queue = Queue.create(tmp_path / "tiles", max_attempts=3)
    is_first = ("rpush" in theirs and "dead" not in theirs) or "zadd" in theirs or "set(" in theirs
    if not is_first or "results" in theirs:
        queue.insert_many([{"tile": 1}, {"tile": 2}])
    names: dict[str, Any] = {"q": queue}
    if "task." in ours or "leased" in ours:
        [names["task"]] = queue.lease()
    returned = eval(ours, names)
    status = queue.status()
    match ours:
        case "q.lease()" | "q.lease(wait_s=60)":
            assert [task.payload for task in returned] == [{"tile": 1}]
        case "q.peek(10)":
            assert [info.payload for info in returned] == [{"tile": 1}, {"tile": 2}]
        case "q.status().waiting" | "q.status().leased":
            assert returned == {"waiting": 2, "leased": 1}[ours.rpartition(".")[2]]
        case "q.purge()":
            assert status.inserted == 0
        case _ if ours.startswith("q.insert"):
            assert (status.inserted, status.delayed) == (9 if "range" in ours else 1, int("delay" in ours))
        case _:
            ends = {"complete": "completed", "bury": "dead", "release": "waiting"}[ours[5:].partition("(")[0]]
            assert getattr(status, ends) == (2 if ends == "waiting" else 1)


@pytest.mark.parametrize(("theirs", "ours"), REDIS_COMMANDS)
def test_a_command_does_what_redis_s_does(tmp_path: Path, theirs: str, ours: str) -> None:
    typed = Typed(tmp_path, "from-redis", {}, {})
    typed.file("names.txt", "a\nb\n")
    queue = Queue.create(tmp_path / "tiles")
    queue.insert_many([{"tile": 1}, {"tile": 2}])
    [task] = queue.lease()
    printed = typed._shell(f"{ours}\n", ":", theirs)
    match ours.split()[1]:
        case "insert":
            assert queue.status().inserted == 4 if "lines" in ours else 3
        case "purge":
            assert queue.status().inserted == 0
        case "status":
            assert re.match(r"waiting +1\n", printed), printed
        case "ls":
            assert (task.id in printed) == ("leased" in ours or "--limit" in ours), printed


# -- Celery -----------------------------------------------------------------------------------------------

CALLS = rows("docs/from-celery.md", "Celery")
COMMANDS = rows("docs/from-celery.md", "Celery's command line")
WORK = """
import fsqueue

@fsqueue.task(queue="tiles")
def render(tile, zoom=1):
    return {"pixels": 256 * zoom}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module of functions, which is also importable, and its queues."""
    (tmp_path / "work.py").write_text(WORK)
    for name in ("tiles", "other"):
        Queue.create(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("work", None)


@pytest.mark.parametrize(("theirs", "ours"), CALLS)
def test_a_call_does_what_celery_s_does(home: Path, theirs: str, ours: str) -> None:
    queue = Queue(home / "tiles")
    render = importlib.import_module("work").render
    names: dict[str, Any] = {"q": queue, "render": render}
    if "ref" in ours:
        names["ref"] = render.delay(7)
    if "result" in ours:
        [task] = queue.lease()
        task.complete({"pixels": 256})
    returned = eval(ours, names)
    inserted = {"delay(": 1, "insert(": 1, "insert_many(": 9}
    for word, count in inserted.items():
        if word in ours:
            assert queue.status().inserted + Queue(home / "other").status().inserted == count
    if "other" in ours:
        assert Queue(home / "other").status().waiting == 1
    if "delay_s" in ours:
        assert queue.status().delayed == 1
    if ours == "render(7)" or "result" in ours:
        assert returned == {"pixels": 256}
    if "state" in ours:
        assert returned == "waiting"
    if "cancel" in ours or "purge" in ours:
        assert queue.status().waiting == 0


@pytest.mark.parametrize(("theirs", "ours"), COMMANDS)
def test_a_command_does_what_celery_s_does(home: Path, theirs: str, ours: str) -> None:
    typed = Typed(home, "from-celery", {}, {})
    queue = Queue(home / "tiles")
    queue.insert({"call": "work:render", "args": [7]})
    printed = typed._shell(f"{ours}\n", ":", theirs)
    if "run" in ours:
        assert queue.status().completed == 1, printed
    if "purge" in ours:
        assert queue.status().inserted == 0
    if "pause" in ours:
        assert Queue(home / "tiles").paused is not None
