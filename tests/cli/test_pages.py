"""README.md and the pages of docs/, typed as they stand there: tests/pages.py says how.

Those on Spark, Slurm and NFS are left out. `docs/hpc.md` and the pages that go on from it are typed on a real Slurm, by
tests/lab/test_hpc_guide.py, and the scripts for other schedulers are run by tests/cluster/test_schedulers.py.
README's section *Install* is typed by tests/house/test_packaging.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from fsqueue_cli.main import cli

import fsqueue
import fsqueue.compat.taskqueue  # a page names it
import fsqueue.pickled  # a page names it
from fsqueue import Queue
from fsqueue.doctor import examination
from fsqueue.filesystem import Mount
from fsqueue.format import replay
from fsqueue.functions import parts_of
from fsqueue.storage.nodes import NodeFailures
from tests.cli import running_slurm
from tests.cli.conftest import Run, Spawn
from tests.filequeues import Files
from tests.gateways import gateways
from tests.house.source import TOP
from tests.pages import Block, Typed, blocks, is_shown, prose, text_of
from tests.support import needs_root
from tests.waiting import until

TUTORIALS = sorted(f"docs/tutorials/{path.name}" for path in (TOP / "docs/tutorials").glob("*.md"))
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (TOP / "docs").glob("*.md")), *TUTORIALS]

Hook = Callable[[Typed, Block], None]


class Plan(NamedTuple):
    """How a page is typed."""

    instead: Mapping[str, str] = {}
    """What is typed in place of what the page has: paths, and fewer tasks."""
    files: Mapping[str, str] = {}
    names: Mapping[str, Any] = {}
    """What its Python has been given by the reader."""
    before: Hook = lambda typed, block: None
    """What has happened before a block is typed."""
    before_each: Mapping[str, str] = {}
    """What the shell runs before each command, by section."""
    elsewhere: Mapping[str, str] = {}
    """What is not typed here, by its section or its first line, and where it is."""


RENDER = '#!/bin/sh\n[ "$1" != --tile ] || shift\necho "$1" >>rendered\n'
SBATCH = '#!/bin/bash\nwhile [ $# -gt 0 ]; do [ "$1" != --wrap ] || bash -c "$2" >&2 || exit; shift; done\necho 4711\n'
"""A stand-in that does at once what it is told to wrap."""
SETFACL = f"""#!{sys.executable}
import os, struct, sys
assert sys.argv[1:3] == ["-d", "-m"] and sys.argv[3] == "g::rwx,m::rwx"
entries = [(0x01, 7), (0x04, 7), (0x10, 7), (0x20, 0)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, mode, 0xFFFFFFFF) for tag, mode in entries)
os.setxattr(sys.argv[4], "system.posix_acl_default", acl)
"""
JQ = f"""#!{sys.executable}
import json, sys
assert sys.argv[1:] == ["-r", ".name"]
print(json.load(sys.stdin)["name"])
"""
TILES = [{"tile": n, "zoom": 2} for n in range(5)]


SOLVE = """#!/bin/sh
[ $1 -le 20 ] || flock --shared ${0%/*}/held true
[ $(($1 % 10)) -ne 7 ] || exit 137
echo "{}" >$FSQUEUE_RESULT
"""
"""Half of the runs last until the page goes on; a tenth has too little memory."""


def some_done(typed: Typed, block: Block) -> None:
    """docs/status.md looks at a queue that is worked off."""
    if not (typed.home / "scratch/tiles").exists():
        queue = Queue.create(typed.home / "scratch/tiles")
        queue.insert_many(range(20))
        queue.complete(queue.lease(20))


def a_fresh_place(typed: Typed, block: Block) -> None:
    """docs/sharing.md: its second block is typed instead of the first. `Q` in its text is a queue."""
    shutil.rmtree(typed.home / "scratch/geo", ignore_errors=True)
    (typed.home / "in").write_text("{}")
    Queue.create(typed.home / "Q", exist_ok=True)


def a_table(typed: Typed, block: Block) -> None:
    """docs/tables.md inserts a directory of Parquet files."""
    import pyarrow as pa
    from pyarrow import parquet

    (typed.home / "tiles.parquet").mkdir(exist_ok=True)
    parquet.write_table(pa.table({"tile": [1, 2]}), typed.home / "tiles.parquet/part-00000.parquet")


def a_queue_and_a_group(typed: Typed, block: Block) -> None:
    """docs/metrics.md writes figures of both."""
    Queue.create(typed.home / "scratch/tiles", exist_ok=True).insert(1)
    fsqueue.Group.create(typed.home / "scratch/crawl")["fetch"].insert(1)


def a_crawl(typed: Typed, block: Block) -> None:
    """docs/targets.md pauses queues of a group, and empties two of them."""
    if not (typed.home / "scratch/crawl").exists():
        group = fsqueue.Group.create(typed.home / "scratch/crawl")
        for name in ("google.com#fetch", "parse", "store"):
            group[name].insert(1)


def a_group(typed: Typed, block: Block) -> None:
    """docs/updates.md: `group` in its text."""
    if "group" not in typed.names:
        typed.names["group"] = fsqueue.Group.create(typed.home / "scratch/crawl")
        typed.names["group"]["fetch"].insert("http://a.org")


def a_filequeue(typed: Typed, block: Block) -> None:
    """docs/from-task-queue.md takes one over that has three tasks left."""
    if block.section.startswith("The tasks that a FileQueue") and not (typed.home / "old").exists():
        files = Files(typed.home / "old")
        for n in range(3):
            files.add([["downsampling", "downsample"], [[n, n, n]], {"mip": 2}, -1])


def a_slurm(typed: Typed, block: Block) -> None:
    """Have jobs executed here that a page submits."""
    for name, text in running_slurm.commands(f"{typed.home}/jobs").items():
        if not (typed.home / name).exists():
            typed.file(name, text)


def a_slurm_that_runs(typed: Typed, block: Block) -> None:
    """docs/weeks.md submits jobs, which are executed here."""
    a_slurm(typed, block)
    if "held" not in typed.names:
        typed.names["held"] = os.open(typed.home / "held", os.O_CREAT | os.O_RDWR)
        fcntl.flock(typed.names["held"], fcntl.LOCK_EX)
    if block.code.startswith("fsqueue resume"):
        os.close(typed.names["held"])


def tasks_for_the_cheat_sheet(typed: Typed, block: Block) -> None:
    """docs/cheat-sheet.md submits jobs for tasks that wait, looks at a drained queue, cancels and moves."""
    if block.section in ("On a cluster", "Again, or not", "Elsewhere"):
        Queue(typed.home / "Q").insert_many([{"tile": 7}, {"tile": 8}])
    if block.section == "Look":
        queue = Queue(typed.home / "Q")
        queue.complete(queue.lease(100))


TILES_PY = "import fsqueue\n\n\n@fsqueue.task\ndef render(tile, zoom=1):\n    return {'pixels': 256 * zoom}\n"
"""As in docs/functions.md."""
A_LETTER = "fsqueue ls {} --state dead --limit 1 --json | grep -om1 '01[0-9a-f]\\{{30\\}}\\.[0-9]*'"
"""Prints the id of a dead letter of a queue, as a reader copies one."""
COMING = {"inputs.txt": "a.txt\nb.txt\n", "process": "#!/bin/sh\n", "bin/sbatch": SBATCH}

PLANS = {
    "README.md": Plan(
        instead={"seq 1 1000": "seq 1 20", "1_000_000": "1_000", "completed=1000000": "completed=1000"},
        files={
            "render": RENDER,
            "bin/sbatch": SBATCH,
            "tasks.jsonl": "".join(f"{json.dumps(tile)}\n" for tile in TILES),
            "list-tiles": "#!/bin/sh\ncat tasks.jsonl\n",
            "sweep.csv": "alpha,steps\n0.5,100\n",
            "data/a b.tif": "",
            "tiles/work.py": "def render(payload):\n    assert payload['zoom'] == 2\n",
            "fetch": '#!/bin/sh\n[ "$1" = 1 ]\n',
        },
        names={"render": lambda tile: None, "tasks": TILES},
        before_each={"Workers": "fsqueue insert /scratch/me/tiles tasks.jsonl"},
        elsewhere={
            "scripts/demo     # installs": "tests/demo, and CI",
            "Install": "tests/house/test_packaging.py",
        },
    ),
    "docs/commands.md": Plan(
        files={
            "photos/a b.tif": "",
            "in/a.txt": "text",
            "small/.there": "",
            "bin/jq": JQ,
            "bin/convert": '#!/bin/sh\n[ "$2 $3" = "-resize 50%" ] && cp "$1" "$4"\n',
            "render": '#!/bin/sh\n[ "$1 $3" = "--tile --out" ] && echo "$2" >"$4"\n',
        },
    ),
    "docs/cheat-sheet.md": Plan(
        instead={
            "Q TASK": "Q $(fsqueue ls Q --state completed --limit 1 --json | grep -om1 '01[0-9a-f]\\{30\\}\\.[0-9]*')",
            "fsqueue run Q -j 2 --gpus": "CUDA_VISIBLE_DEVICES=0,1 fsqueue run Q -j 2 --gpus",
        },
        files={
            "process": "#!/bin/sh\n",
            "fetch": '#!/bin/sh\necho "$1"\n',
            "a.txt": "1\n",
            "b c.txt": "2\n",
            "in/a.txt": "text\n",
            "sweep.csv": "input,tile\nin/a.txt,1\n",
            "tasks.jsonl": '{"tile": 7, "input": "in/a.txt"}\n{"tile": 8, "input": "in/b.txt"}\n',
            "tiles.py": "def render(payload):\n    return payload\n",
            "bin/sbatch": SBATCH,
        },
        before=tasks_for_the_cheat_sheet,
        before_each={"Work": "fsqueue insert Q tasks.jsonl"},
    ),
    "docs/from-parallel.md": Plan(files={"a.log": "one\n", "b c.log": "two\n", "a.txt": "a", "b.txt": "b"}),
    "docs/from-job-arrays.md": Plan(files=COMING),
    "docs/from-hyperqueue.md": Plan(files=COMING),
    "docs/from-snakemake.md": Plan(
        files={"samples.txt": "a\nb\n", "raw/a.txt": "one two three\n", "raw/b.txt": "one\n"}
    ),
    "docs/functions.md": Plan(instead={"1_000_000": "1_000"}),
    "docs/order.md": Plan(
        instead={"wait_s=60": "wait_s=0.1", "wait_s=30": "wait_s=0.1"},
    ),
    "docs/executor.md": Plan(files={"tiles.py": TILES_PY}, before=a_slurm),
    "docs/joblib.md": Plan(
        elsewhere={
            "fsqueue run /scratch/me/fits --load": "tests/executor/test_science.py",
            "import fsqueue.compat.joblib": "tests/executor/test_science.py",
            "scipy.optimize": "tests/executor/test_science.py",
            "Who can have what run": "another host",
        },
    ),
    "docs/failures.md": Plan(instead={"Q TASK": f"Q $({A_LETTER.format('Q')})"}),
    "docs/keys.md": Plan(files={"scans.jsonl": '{"scan": 7}\n{"scan": "7"}\n{}\n'}),
    "docs/package.md": Plan(instead={"seq 1 1000": "seq 1 20", "range(1000)": "range(20)"}, names={"render": int}),
    "docs/status.md": Plan(
        files={"assemble": "#!/bin/sh\n", "assemble.sh": "", "bin/sbatch": SBATCH}, before=some_done
    ),
    "docs/metrics.md": Plan(
        instead={"/var/lib/node_exporter": "."},
        before=a_queue_and_a_group,
        elsewhere={"scrape_configs:": "Prometheus' own file"},
    ),
    "docs/tables.md": Plan(before=a_table),
    "docs/sharing.md": Plan(
        instead={"-g geo": "-g 54321", "-R geo": "-R 54321", "/scratch/geo": "/scratch/me/geo"},
        files={
            "process": '#!/bin/sh\n[ "$1" != in ] || exec cat "$1"\nread name && [ "$name" = x ]\n',
            "bin/setfacl": SETFACL,
            "bin/jq": JQ,
            "task.jsonl": '{"name": "x", "input": "in", "output": "out"}\n',
        },
        before=a_fresh_place,
        before_each={"Commands and payloads of others": "fsqueue insert Q task.jsonl"},
    ),
    "docs/doctor.md": Plan(elsewhere={"Two hosts": "below", "$ fsqueue doctor": "below"}),
    "docs/tutorials/first.md": Plan(instead={"first TASK": f"first $({A_LETTER.format('first')})"}),
    "docs/tutorials/images.md": Plan(
        instead={"range(300)": "range(40)", "prints 300": "prints 40", "prints 12": "prints 2"}
    ),
    "docs/tutorials/sweep.md": Plan(instead={"range(2000)": "range(200)", "prints 2000": "prints 200"}),
    "docs/serve.md": Plan(
        files={"bin/ssh": "#!/bin/sh\n", "bin/curl": "#!/bin/sh\n"},
        elsewhere={
            "fsqueue serve /scratch/me/crawl": "tests/cli/test_serve.py",
            "In Python": "tests/client/test_remote_queue.py",
            "Workers": "tests/service/test_worker.py",
            "Commands at an address": "below",
        },
    ),
    "docs/proxy.md": Plan(elsewhere={"Behind a proxy": "tests/service/test_page_in_browser.py"}),  # with one of its own
    "docs/from-task-queue.md": Plan(before=a_filequeue),
    "docs/taskstore.md": Plan(
        elsewhere={
            "fsqueue serve": "tests/cli/test_serve.py",
            "store :=": "tests/service/go_client.py",
            "By hand": "tests/cli/test_taskstore.py",
        },
    ),
    "docs/weeks.md": Plan(
        files={
            "solve": SOLVE,
            "solver.py": "def solve(run):\n    return {}\n",
            "project/.there": "",
        },
        instead={"/project/me": "project"},
        before=a_slurm_that_runs,
    ),
    "docs/format.md": Plan(elsewhere={"QUEUE/": "below"}),
    "docs/format-groups.md": Plan(elsewhere={"GROUP/": "tests/groups"}),
    "docs/groups.md": Plan(
        files={"fetch": '#!/bin/sh\n[ "$1" = 1 ]\n'},
        instead={'"crawler:parse"': '"json:dumps"'},
        names={"fsqueue": fsqueue, "fetch": lambda payload: "a page"},
        elsewhere={"fsqueue insert /scratch/me/crawl/fetch": "tests/cli/test_groups.py"},
    ),
    "docs/barriers.md": Plan(
        files={"fetch": "#!/bin/sh\necho '{\"page\": '$1'}'\n", "parse": '#!/bin/sh\n[ "$1" = 1 ]\n'},
        names={"fsqueue": fsqueue},
    ),
    "docs/targets.md": Plan(before=a_crawl),
    "docs/updates.md": Plan(names={"fsqueue": fsqueue}, before=a_group),
    "docs/several-servers.md": Plan(
        files={"render": "#!/bin/sh\n", "scratch1/.there": "", "scratch2/.there": ""},
        instead={
            '"crawler:parse"': '"json:dumps"',
            "/scratch1/me": "scratch1",
            "/scratch2/me": "scratch2",
            "seq 1 500": "seq 1 5",
            "seq 501 1000": "seq 501 505",
        },
    ),
}
ON_SLURM = ("hpc", "where", "slurm", "resubmit", "dead-nodes", "after", "command-results", "purged-scratch")
ON_SPARK = ("spark", "spark-write", "spark-read", "spark-jobs", "spark-cost")
NOT_TYPED = {
    **{f"docs/{page}.md": "tests/lab/test_hpc_guide.py" for page in ON_SLURM},
    "docs/schedulers.md": "tests/cluster/test_schedulers.py",
    "docs/http.md": "tests/service/test_asking.py",
    "docs/tutorials/spark.md": "tests/spark/test_tutorial.py",
    **{f"docs/{page}.md": "examples are those of tests/spark" for page in ON_SPARK},
}


def typed_page(page: str, home: Path) -> Typed:
    plan = PLANS.get(page, Plan())
    (home / "scratch").mkdir()
    typed = Typed(home, page, {**plan.instead, "/scratch/me": f"{home}/scratch"}, plan.names)
    for name, content in plan.files.items():
        typed.file(name, content)
    for block in blocks(text_of(page)):
        first = block.code.splitlines()[0]
        if any(block.section == where or first.startswith(where) for where in plan.elsewhere):
            continue
        assert block.language in ("sh", "python", "json", "text"), f"{page}, line {block.line}: {block.language!r}"
        plan.before(typed, block)
        typed.type(block, plan.before_each.get(block.section, ":"))
    return typed


@needs_root
@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_TYPED])
def test_a_page_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FSQUEUE_PICKLE_KEY", str(tmp_path / "pickle.key"))  # docs/joblib.md makes one
    typed = typed_page(page, tmp_path)
    if page == "README.md":
        rendered = [int(line) for line in (tmp_path / "rendered").read_text().split()]
        assert sorted(rendered) == sorted(tile["tile"] for tile in TILES * 4)
        factored = [int(line.partition(":")[0]) for line in (tmp_path / "factors").read_text().splitlines()]
        assert sorted(factored) == [*range(1, 21)]
        assert Queue(tmp_path / "scratch/tiles").status().dead == 0
    if page in ("docs/weeks.md", "docs/executor.md"):
        until(lambda: running_slurm.have_ended(tmp_path / "jobs"), "the end of all jobs")
    if page == "docs/functions.md":
        queue = Queue(tmp_path / "scratch/tiles")
        assert (queue.status().completed, queue.status().delayed) == (1_003, 0)
        results = [task.result for task in queue.tasks("completed")]
        assert results.count({"tile": 7, "pixels": 256}) == 1
        assert results.count({"tile": 7, "pixels": 512}) == 1
        [call] = [block.code for block in blocks(text_of(page)) if block.language == "json"]
        assert parts_of(json.loads(call)) == ("tiles:render", [7], {"zoom": 2.0})
        [resized] = Queue(tmp_path / "scratch/images").tasks("completed")
        assert resized.result == {"pixels": 640}
    if page == "docs/commands.md":
        assert (tmp_path / "small/a b.jpg").exists()
        assert (tmp_path / "0002.png").read_text() == "2\n"
        assert (tmp_path / "in/a.count").read_text() == "4 in/a.txt\n"
        assert Queue(tmp_path / "Q").status().completed == 7 + 2 * 1000
        assert [(tmp_path / name).read_text() for name in ("name.txt", "x.txt")] == ["x\n", "x\n"]
    if page == "docs/sharing.md":
        assert (tmp_path / "out").read_text() == "{}"
        assert Queue(tmp_path / "Q").status().completed == 2
    assert typed.printed is not None or not re.search("^```(sh|python)", text_of(page), re.MULTILINE)


WRONG = {
    "a command fails": "```sh\nfalse\n```\n",
    "it exits otherwise": "```sh\ntrue   # 9: it is broken\n```\n",
    "it prints something else": "```sh\necho 1   # prints 0: it was there\n```\n",
    "a later line is missing": "```sh\necho one\n```\n```text\none\ntwo\n```\n",
    "lines come in another order": "```sh\nprintf 'b\\na\\n'\n```\n```text\na\nb\n```\n",
    "a number is another": "```sh\necho 5 tasks\n```\n```text\n6 tasks\n```\n",
    "Python prints something else": "```python\nprint(1)   # 2\n```\n",
    "Python fails": "```python\nimport fsqueue\nfsqueue.no_such_name\n```\n",
}


def type_all(text: str, home: Path) -> str | None:
    typed = Typed(home, "page.md", {}, {})
    for block in blocks(text):
        typed.type(block)
    return typed.printed


@pytest.mark.parametrize("what", WRONG)
def test_a_page_that_is_wrong_is_noticed(what: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, AttributeError)):
        type_all(WRONG[what], tmp_path)


def test_a_page_that_is_right_is_typed(tmp_path: Path) -> None:
    page = """
```sh
cat >document <<'END'      # two lines
echo 01a204947dce7144a226ecfb4c20b8d5.0
END
sh document                # prints 0123456789abcdef0123456789abcdef.7: an id
echo "on $(cat document \\
    | wc -l) line"; a='#'    # prints on 1 line
test $a = '#' && exit_with() { return $1; }; exit_with 9      # 9: as it should
```
```text
on … line
```
```python
a = 1
print(a,
      2)            # 1 2
```
"""
    assert type_all(page, tmp_path) == "1 2\n"


# -- what is typed in another way -----------------------------------------------------------------------


def test_commands_at_an_address(tmp_path: Path) -> None:
    """docs/serve.md shows them with the address of a gateway, which runs here on a socket."""
    [block] = [block for block in blocks(text_of("docs/serve.md")) if block.section == "Commands at an address"]
    group = fsqueue.Group.create(tmp_path / "crawl")
    with gateways(tmp_path) as serve:
        typed = Typed(tmp_path, "docs/serve.md", {"http://localhost:8750": serve(group.path)}, {})
        typed.file("pages.jsonl", "".join(f"{json.dumps({'page': n})}\n" for n in range(3)))
        typed.file("list-pages", "#!/bin/sh\nprintf '%s\\n' '{\"page\": 3}' '{\"page\": 4}'\n")
        typed.type(block)
    assert {name: (one.waiting, one.completed) for name, one in group.status().queues.items()} == {
        "fetch": (4, 1),
        "parse": (1, 0),
    }


def console(page: str, section: str) -> list[tuple[str, str]]:
    """Return what a terminal shows in that section: each command and what follows it."""
    [block] = [block for block in blocks(text_of(page)) if block.language == "" and block.section == section]
    parts = re.split(r"^(?:\w+)?\$ +(.*)\n", block.code, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def test_the_doctor_on_an_unfit_mount(fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/doctor.md shows a mount that few have; here the system says that it is that one."""
    [(command, shown)] = console("docs/doctor.md", "")
    mount = Mount("nfs4", "/scratch", "rw,vers=4.2,hard,local_lock=all", "srv:/scratch")
    monkeypatch.setattr(examination, "mount_of", lambda path: mount)
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    words = command.replace("/scratch/me", str(tmp_path)).split()[1:]
    output = fsqueue_cli(*words, code=8).stdout
    assert is_shown(shown, output.replace(str(tmp_path), "/scratch/me")), output


@pytest.mark.usefixtures("tmp_path")
def test_the_doctor_asks_for_a_second_host(spawn: Spawn, tmp_path: Path) -> None:
    (command, shown), (elsewhere, nothing) = console("docs/doctor.md", "Two hosts")
    assert (elsewhere, nothing) == (command, "")
    waiting = spawn(*command.replace("/scratch/me", str(tmp_path)).split()[1:])
    assert waiting.stderr is not None
    said = "".join(waiting.stderr.readline() for _ in shown.splitlines())
    assert is_shown(shown, said.replace(str(tmp_path), "/scratch/me")), said


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with most of what a queue can hold."""
    for name, value in {"JOB_ID": "7", "CLUSTER_NAME": "lab", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    queue = Queue.create(tmp_path / "q", max_attempts=1)
    queue.insert_many(range(3))
    queue.insert_many([b"bytes", *range(9)], commit="seed")
    queue.commit("other").stage(range(3))
    queue = Queue(queue.path, worker="me")
    first, second, *others = queue.lease(6)
    first.complete({"pixels": 3})
    second.release()
    queue.complete(others)
    queue.renew(queue.lease(2, lease_s=5))
    queue.lease()[0].fail("no")
    queue.lease()[0].bury("never")
    queue.retry_dead()
    queue.cancel([next(queue.tasks("waiting")).id])
    NodeFailures(queue.store, 3).failed("no")
    return queue


def test_the_directory_is_as_the_format_draws_it(used: Queue) -> None:
    """Every file and directory of a queue that has been used stands in the picture in docs/format.md."""
    [picture] = [block.code for block in blocks(text_of("docs/format.md")) if block.code.startswith("QUEUE/")]
    drawn, above = {""}, [""] * 9
    for line in picture.splitlines()[1:]:
        if found := re.match(r"([│├└─ ]+)(\S+)", line):
            depth = len(found[1]) // 4
            above[depth] = f"{above[depth - 1]}{found[2]}"
            drawn |= {"/".join(above[depth].split("/")[:n]) + "/" for n in range(1, above[depth].count("/") + 1)}
            drawn.add(above[depth])
    digits = "[0-9a-f]{32}"
    words = {"N-ID": "1-[0-9a-f]{16}", "SHARD": "[0-9a-f]{2}", "NN": "0[0-9a-f]", "YYYY-MM-DD": r"\d{4}-\d\d-\d\d"}
    words |= {"TASKFILE": rf"\d{{13}}-{digits}-\d+\+?\.jsonl", "NAME": r"\w+"}
    words |= dict.fromkeys(("UUID", "DIGEST", "ID", "ATTEMPT"), digits)
    patterns = []
    for name in drawn:
        parts = re.split(r"(" + "|".join(sorted(words, key=len, reverse=True)) + ")", name)
        patterns.append("".join(words.get(part, re.escape(part)) for part in parts))
    patterns.append(rf"{words['N-ID']}/staging/{digits}-\w+/.*")  # "what is staged for a commit, and `lock`"
    made = [f"{path.relative_to(used.path)}{'/' if path.is_dir() else ''}" for path in used.path.rglob("*")]
    assert len(made) > 10
    for name in made:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_the_format_names_every_field_that_is_written(used: Queue) -> None:
    page = text_of("docs/format.md")
    fields: set[str] = set()
    for path in used.path.rglob("*.json*"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            for part in (record, *record.get("parts", []), record.get("worker", {}), record.get("settings", {})):
                fields |= part.keys()
    assert {"op", "at", "until", "worker", "slurm_job", "several", "attempt", "payload", "b64", "staged"} <= fields
    assert [name for name in sorted(fields) if f"`{name}`" not in page and f'"{name}"' not in page] == []


def test_the_format_tells_of_every_operation() -> None:
    table = text_of("docs/format.md").partition("| op | fields |")[2].partition("\n\n")[0]
    told = {op for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for op in re.findall(r"`(\w+)`", row)}
    assert told == replay._HANDLERS.keys() | {"checkpoint", "commit", "abort", "depends"}


# -- what pages name in passing -------------------------------------------------------------------------


def known(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands by name, those of groups with the group's, and the group after them."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from ((f"{name} {inner}", one) for inner, one in known(command))
            if command is not None:
                yield name, command


OPTIONS = {name: {word for one in command.params for word in one.opts} | {"--help"} for name, command in known(cli)}
"""The options of each command."""
OF_JOBS = OPTIONS["run"] | {"--array", "--time", "--partition", "-c"}
"""What `fsqueue slurm` hands on: to the workers, and to sbatch."""
SCRIPTS = [path for path in (TOP / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".py")]
OF_SCRIPTS = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_that_a_page_names_exist(page: str) -> None:
    every = set().union(*OPTIONS.values())
    spans = re.findall(r"`([^`\n]+)`", prose(text_of(page)))
    for span in (part for whole in spans for part in whole.split(" && ")):
        if span.startswith(("set -", "cp -a", "cp -r ")):  # the shell's, and the system's
            continue
        words = re.split(r" (?:--|\|) ", span)[0].removeprefix("fsqueue ").split()
        command = next((name for name in OPTIONS if words[: len(name.split())] == name.split()), None)
        if span.startswith("fsqueue ") and not re.match(r"fsqueue( -|\.|$)", span):
            assert command or words[0] in ("dead", "spark"), span
        if command or words[0].startswith("--"):
            for word in words:
                option = word.partition("=")[0]
                if re.match(r"-{1,2}[a-z]", word) and (command or f'"{option}"' not in OF_SCRIPTS):
                    known_here = (OPTIONS[command] if command else every) | (OF_JOBS if command == "slurm" else set())
                    assert option in known_here, span


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/spark")])
def test_python_names_that_a_page_names_exist(page: str) -> None:
    roots = {"fsqueue": fsqueue, "Queue": Queue, "q": Queue, "Worker": fsqueue.Worker, "task": fsqueue.LeasedTask}
    for root, names in re.findall(r"`(\w+)\.([\w.]+?)(?:\(.*?)?`", prose(text_of(page))):
        if root in roots and not names.endswith((".py", ".md")):
            there: Any = roots[root]
            for name in names.split("."):
                assert hasattr(there, name), f"{root}.{names}"
                there = getattr(there, name)


def test_the_readme_s_loop_survives_failing_tasks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Queue.create(tmp_path / "tiles", max_attempts=1)
    rendered: list[int] = []

    def render(tile: int) -> None:
        if tile % 400 == 7:
            raise ValueError(f"tile {tile} has no data")
        rendered.append(tile)

    [loop, _] = [block for block in blocks(text_of("README.md")) if block.language == "python"]
    instead = {"/scratch/me": str(tmp_path), "1_000_000": "1_000", "completed=1000000, dead=0": "completed=997, dead=3"}
    Typed(tmp_path, "README.md", instead, {"render": render}).type(loop)
    assert len(rendered) == 997
    reasons = sorted(letter.reason for letter in Queue(tmp_path / "tiles").dead())
    assert reasons == [f"ValueError: tile {tile} has no data" for tile in (407, 7, 807)]
    assert len(caplog.records) == 3
