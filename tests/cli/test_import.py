"""import: a FileQueue's tasks are taken over once, whatever dies, and whatever else lies in its directory."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from fsqueue_cli.filequeue import FileQueue, FileQueueChanged, FileQueueListing
from fsqueue_cli.importing import Takeover

import fsqueue
from fsqueue import Group, Queue
from fsqueue.clock import Clock
from fsqueue.compat.taskqueue import TaskQueue
from tests.cli.conftest import Run, Spawn
from tests.compat import tiles
from tests.filequeues import CALL, FAR_S, Files
from tests.gateways import gateways
from tests.support import crashes
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "old")


@pytest.fixture
def q(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", shards=2)


def calls(queue: Any) -> Counter[str]:
    """Return the unfinished tasks of a queue, as JSON, with how often each is there."""
    return Counter(json.dumps(task.payload, sort_keys=True) for task in queue.tasks())


def numbered(files: Files, count: int) -> Counter[str]:
    """Insert tasks that differ, and return what a queue has of them in the end."""
    for n in range(count):
        files.add([["tests.compat.tiles", "note"], [n], {"out": "did"}, -1])
    wanted = ({"call": "tests.compat.tiles:note", "args": [n], "kwargs": {"out": "did"}} for n in range(count))
    return Counter(json.dumps(one, sort_keys=True) for one in wanted)


# -- what is taken over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("logs", ["movement", "movements"])
def test_functions_classes_and_delays(fsqueue_cli: Run, tmp_path: Path, q: Queue, logs: str) -> None:
    files = Files(tmp_path / "old", logs)
    files.add()
    files.add({"class": "Copy", "name": "a", "sizes": [1, 2]}, at=1_700_000_000)  # a lease that ended
    later = files.add({"class": "Copy", "name": "b"}, at=FAR_S)  # inserted with a delay
    files.add([["__mp_main__", "f"], [], {}, -1], at="12.5")
    (files.home / "insertions").write_text("9")
    (files.home / "completions").write_bytes(b"\0" * 5)
    before = files.seen()
    done = fsqueue_cli("import", "--from-filequeue", f"fq://{files.home}", q.path, "--json")
    assert json.loads(done.stdout) == {
        "inserted": 4, "tasks": 4, "delayed": 1, "skipped": 0, "duplicates": 0, "repeated": False,
        "commit": f"filequeue-{(files.home / 'queue').stat().st_ino}", "filequeue": str(files.home),
        "counters": {"inserted": 9, "completed": 5},
    }  # fmt: skip
    assert files.seen() == before
    assert calls(q) == Counter(
        json.dumps(one, sort_keys=True)
        for one in (
            {"call": "tests.compat.tiles:note", "args": [7], "kwargs": {"out": "did"}},
            {"call": "Copy", "kwargs": {"name": "a", "sizes": [1, 2]}},
            {"call": "Copy", "kwargs": {"name": "b"}},
            {"call": "__main__:f"},
        )
    )
    [delayed] = q.tasks("delayed")
    assert delayed.available_at == FAR_S
    assert delayed.payload["kwargs"] == {"name": "b"}
    assert later in str(before)
    assert list(q.fsck()) == []


def test_the_layer_for_its_programs_executes_what_was_taken_over(
    fsqueue_cli: Run, files: Files, q: Queue, tmp_path: Path
) -> None:
    out = str(tmp_path)
    files.add([[tiles.__name__, "render"], [[3, 0]], {"out": out}, -1])
    files.add({"class": "Copy", "name": "a", "sizes": [1, 2], "out": out})
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "2\n"
    assert TaskQueue(f"fq://{q.path}").poll(stop_fn=lambda executed: executed == 2) == 2
    assert ((tmp_path / "3-0").exists(), (tmp_path / "A").exists()) == (True, True)


def test_an_empty_one_uses_no_name_up(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "0\n"
    files.add()
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "1\n"


@pytest.mark.parametrize("kind", ["gateway", "group"])
def test_into_a_gateway_s_queue_and_one_of_a_group(fsqueue_cli: Run, files: Files, tmp_path: Path, kind: str) -> None:
    wanted = numbered(files, 30)
    group = Group.create(tmp_path / "group")
    with gateways(tmp_path) as serve:
        into = f"{group.path}/tiles" if kind == "group" else f"{serve(group.path)}/tiles"
        done = fsqueue_cli("import", "--from-filequeue", files.home, into, "--json")
        assert json.loads(done.stdout)["inserted"] == 30
        again = fsqueue_cli("import", "--from-filequeue", files.home, into)
        assert again.stdout == "0\n"
        assert "was taken over on" in again.stderr
    assert calls(group["tiles"]) == wanted


# -- once -------------------------------------------------------------------------------------------------------


def test_repeated_in_any_state_of_the_queue_it_adds_nothing(
    fsqueue_cli: Run, files: Files, q: Queue, tmp_path: Path
) -> None:
    numbered(files, 5)
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "5\n"
    q.complete(q.lease(3))
    q.lease()[0].bury("no")
    q.cancel([task.id for task in q.tasks("waiting")])
    (tmp_path / "link").symlink_to(files.home)
    for path in (files.home, tmp_path / "link", f"{files.home}/../old"):
        done = fsqueue_cli("import", "--from-filequeue", path, q.path)
        assert (done.stdout, "with 5 tasks: nothing was added" in done.stderr) == ("0\n", True)
    (files.home).rename(tmp_path / "moved")
    assert fsqueue_cli("import", "--from-filequeue", tmp_path / "moved", q.path).stdout == "0\n"
    assert q.status() == fsqueue.Status(completed=3, dead=1)


@pytest.mark.parametrize("change", ["added", "removed", "exchanged"])
def test_one_that_has_changed_since_is_refused(fsqueue_cli: Run, files: Files, q: Queue, change: str) -> None:
    numbered(files, 4)
    fsqueue_cli("import", "--from-filequeue", files.home, q.path)
    if change != "added":
        next((files.home / "queue").iterdir()).unlink()
    if change != "removed":
        files.add()
    refused = fsqueue_cli("import", "--from-filequeue", files.home, q.path, code=1)
    assert refused.stdout == ""
    assert "Since then it has changed" in refused.stderr
    assert q.status().inserted == 4
    named = fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--commit", "second")
    assert int(named.stdout) == len(list((files.home / "queue").iterdir()))


def test_one_that_was_emptied_since_has_nothing_to_add(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    files.add()
    fsqueue_cli("import", "--from-filequeue", files.home, q.path)
    next((files.home / "queue").iterdir()).unlink()
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "0\n"


def test_a_purge_forgets_it(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    files.add()
    fsqueue_cli("import", "--from-filequeue", files.home, q.path)
    q.purge()
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout == "1\n"


def take_over(queue: Queue, files: Files) -> int:
    with FileQueue(str(files.home)) as source:
        takeover = Takeover(source, queue, source.identity(), take_leased=False, skip_bad=False)
        return takeover.run(source.look()).inserted


def test_a_death_at_any_step(files: Files, tmp_path: Path) -> None:
    """docs/decisions/0063-import.md has the table of what is left."""
    wanted = numbered(files, 7)
    before = files.seen()
    left: set[tuple[int, bool]] = set()
    for where, queue in crashes(
        lambda number: Queue.create(tmp_path / f"q{number}", shards=2, batch_tasks_max=3),
        lambda queue: take_over(queue, files),
        Clock(),
    ):
        there = queue.status().inserted
        assert there in (0, 7), where
        marked = any("filequeue-set" in str(path) for path in queue.path.rglob("commits/*"))
        left.add((there, marked))
        assert take_over(Queue(queue.path), files) == 7 - there, where
        assert take_over(Queue(queue.path), files) == 0, where
        assert calls(queue) == wanted, where
        assert list(queue.fsck()) == [], where
    assert left == {(0, False), (0, True), (7, True)}
    assert files.seen() == before


MOMENTS = {
    "at once": "*",
    "marked": "commits/filequeue-set*",
    "staged": "staging/*/*.jsonl",
    "decided": "commits/*-[0-9]*",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_that_is_killed(files: Files, q: Queue, spawn: Spawn, fsqueue_cli: Run, moment: str) -> None:
    wanted = numbered(files, 2000)
    for _ in range(2):
        going = spawn("import", "--from-filequeue", files.home, q.path)
        until(lambda going=going: going.poll() is not None or any(q.path.rglob(MOMENTS[moment])), moment)
        going.send_signal(signal.SIGKILL)
        going.wait(PATIENCE_S)
        assert q.status().inserted in (0, 2000)
    there = q.status().inserted
    assert int(fsqueue_cli("import", "--from-filequeue", files.home, q.path).stdout) == 2000 - there
    assert calls(q) == wanted


def test_four_at_once(files: Files, q: Queue, spawn: Spawn) -> None:
    wanted = numbered(files, 500)
    commands = [spawn("import", "--from-filequeue", files.home, q.path) for _ in range(4)]
    printed = [int(one.communicate(timeout=PATIENCE_S)[0]) for one in commands]
    assert sorted(printed) == [0, 0, 0, 500]
    assert [one.returncode for one in commands] == [0] * 4
    assert calls(q) == wanted


def test_workers_execute_each_task_once_while_the_command_is_killed_and_repeated(
    files: Files, q: Queue, spawn: Spawn, tmp_path: Path
) -> None:
    for n in range(60):
        files.add([[tiles.__name__, "note"], [n], {"out": str(tmp_path / "did")}, -1])
    q.insert({"call": "none:none"}, delay_s=3600)  # so that the worker goes on
    worker = spawn("run", q.path, "--load", tiles.__name__, cwd=Path(__file__).parents[2])
    for _ in range(4):
        killed = spawn("import", "--from-filequeue", files.home, q.path)
        until(lambda killed=killed: killed.poll() is not None or any(q.path.rglob("commits/*")), "it has begun")
        killed.kill()
        killed.wait(PATIENCE_S)
    last = spawn("import", "--from-filequeue", files.home, q.path)
    assert last.wait(PATIENCE_S) == 0
    until(lambda: q.status().completed == 60, "all is done")
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=PATIENCE_S)
    assert sorted(map(int, (tmp_path / "did").read_text().split())) == list(range(60))


# -- leases -----------------------------------------------------------------------------------------------------


def test_while_leases_are_alive_it_refuses_and_says_which(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    one, other = files.add(), files.add({"class": "Copy", "name": "a"})
    files.add()
    files.lease(one, FAR_S)
    files.lease(other, FAR_S + 60)
    refused = fsqueue_cli("import", "--from-filequeue", files.home, q.path, code=1)
    assert f"2 leases of {files.home} are alive: {one} (tests.compat.tiles:note) until 2096-10-02" in refused.stderr
    assert f"{other} (Copy) until" in refused.stderr
    assert q.status().inserted == 0
    (files.logs / one).write_text("")  # as a program leaves it that was killed while it renewed
    (files.logs / other).unlink()
    assert "2 leases" in fsqueue_cli("import", "--from-filequeue", files.home, q.path, code=1).stderr
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--take-leased").stdout == "3\n"
    assert q.status() == fsqueue.Status(waiting=3)


def test_wait_waits_for_leases(fsqueue_cli: Run, files: Files, q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    released, completed = files.add(), files.add()
    files.lease(released, FAR_S)
    files.lease(completed, FAR_S)
    looks: list[int] = []

    def sleep(seconds: float) -> None:
        """Let the programs of the FileQueue do something."""
        looks.append(q.status().inserted)
        if len(looks) == 1:
            files.lease(released, 1_700_000_000)
        else:
            [path] = (files.home / "queue").glob(f"*{completed}.json")
            path.unlink()

    monkeypatch.setattr("fsqueue_cli.importing.time.sleep", sleep)
    assert fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--wait", "1h").stdout == "1\n"
    assert (looks, q.status()) == ([0, 0], fsqueue.Status(waiting=1))


def test_the_wait_for_leases_has_an_end(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    files.lease(files.add(), FAR_S)
    assert "1 lease of" in fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--wait", "0.1", code=1).stderr


class Watched(FileQueue):
    """A FileQueue in which something happens after it was read."""

    def __init__(self, files: Files, happens: str) -> None:
        super().__init__(str(files.home))
        self._files, self._happens, self._looks = files, happens, 0

    def look(self) -> FileQueueListing:
        """FileQueueListing, and let it happen before the second look."""
        self._looks += 1
        if self._looks == 2:
            match self._happens:
                case "lease":
                    self._files.lease(str(UUID(int=1)), FAR_S)
                case "insert":
                    self._files.add()
                case "delete":
                    next((self._files.home / "queue").iterdir()).unlink()
        return super().look()


@pytest.mark.parametrize("happens", ["lease", "insert", "delete", "nothing"])
def test_a_program_that_works_on_it_meanwhile_is_noticed(files: Files, q: Queue, happens: str) -> None:
    numbered(files, 3)
    with Watched(files, happens) as source:
        takeover = Takeover(source, q, source.identity(), take_leased=False, skip_bad=False)
        look = source.look()
        if happens == "nothing":
            assert takeover.run(look).inserted == 3
            return
        with pytest.raises(FileQueueChanged, match="Nothing was inserted"):
            takeover.run(look)
    assert q.status().inserted == 0


def test_a_task_that_is_gone_when_it_is_read_is_noticed(files: Files, q: Queue) -> None:
    numbered(files, 3)
    with FileQueue(str(files.home)) as source:
        look = source.look()
        next((files.home / "queue").iterdir()).unlink()
        with pytest.raises(FileQueueChanged):
            Takeover(source, q, source.identity(), take_leased=False, skip_bad=True).run(look)
    assert q.status().inserted == 0


# -- what is no task --------------------------------------------------------------------------------------------


class Bad(NamedTuple):
    """What lies in a FileQueue and is no task, and what is said of it."""

    name: str
    content: str | None
    said: str


ID = "00000000-0000-4000-8000-000000000001"
BAD = {
    "a stray": Bad(".nfs0001", "", "is not named as a task"),
    "a backup": Bad(f"0--{ID}.json~", "{}", "is not named as a task"),
    "a hostile name": Bad("0--\x1b[31m\n.json", "{}", "is not named as a task"),
    "a name that is no UTF-8": Bad("0--\udcff.json", "{}", "is not named as a task"),
    "a name that leads out": Bad("0--..", "{}", "is not named as a task"),
    "a time beyond all": Bad(f"99999999999--{ID}.json", "{}", "is not named as a task"),
    "an empty file": Bad(f"0--{ID}.json", "", "is empty"),
    "half a file": Bad(f"0--{ID}.json", '{"payload": [["m", "f', "is not JSON"),
    "NaN": Bad(f"0--{ID}.json", '{"payload": [["m", "f"], [NaN], {}, -1]}', "is not JSON"),
    "a long integer": Bad(f"0--{ID}.json", '{"payload": [["m", "f"], [123456789012345678901], {}, -1]}', "64 bits"),
    "deep nesting": Bad(f"0--{ID}.json", f'{{"payload": [["m", "f"], {"[" * 300}{"]" * 300}, {{}}, -1]}}', "nests"),
    "no object": Bad(f"0--{ID}.json", "[]", "has no payload"),
    "another payload": Bad(f"0--{ID}.json", '{"payload": 7}', "neither a function's call nor an object"),
    "no function": Bad(f"0--{ID}.json", '{"payload": [["m"], [], {}, -1]}', "neither a function's call"),
    "no class": Bad(f"0--{ID}.json", '{"payload": {"class": 7}}', "names no class"),
    "a large one": Bad(f"0--{ID}.json", json.dumps({"payload": [["m", "f"], ["x" * 3000], {}, -1]}), "larger than"),
    "a huge one": Bad(f"0--{ID}.json", "x" * 10_000, "larger than"),
    "a link": Bad(f"0--{ID}.json", "-> secret", "is a symbolic link"),
    "a pipe": Bad(f"0--{ID}.json", "|", "is no regular file"),
    "a directory": Bad(f"0--{ID}.json", None, "is no regular file"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_task_is_named_and_nothing_is_inserted(
    fsqueue_cli: Run, files: Files, tmp_path: Path, what: str
) -> None:
    q = Queue.create(tmp_path / "q", task_bytes_max=2048)
    numbered(files, 0)
    files.count = 5
    files.add()
    name, content, said = BAD[what]
    path = os.fsencode(files.home / "queue" / name)
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"payload": CALL}))
    if content is None:
        os.mkdir(path)
    elif content == "|":
        os.mkfifo(path)
    elif content == "-> secret":
        os.symlink(secret, path)
    else:
        with open(path, "w") as file:
            file.write(content)
    before = files.seen() if "UTF-8" not in what else []
    refused = fsqueue_cli("import", "--from-filequeue", files.home, q.path, code=1)
    assert refused.stdout == ""
    assert said in refused.stderr
    assert "1 file in" in refused.stderr
    assert "\x1b" not in refused.stderr
    assert q.status().inserted == 0
    for _ in range(2):
        skipped = fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--skip-bad", code=None)
        assert skipped.stdout in ("1\n", "0\n")
        is_of_a_task = name == f"0--{ID}.json"
        assert skipped.exit_code == (1 if is_of_a_task or skipped.stdout == "1\n" else 0)
    assert calls(q) == Counter(
        [json.dumps({"args": [7], "call": "tests.compat.tiles:note", "kwargs": {"out": "did"}}, sort_keys=True)]
    )
    assert not before or files.seen() == before


def test_a_task_with_two_names_is_taken_once(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    task = files.add()
    [path] = (files.home / "queue").iterdir()
    os.link(path, path.with_name(f"5--{task}.json"))
    done = json.loads(fsqueue_cli("import", "--from-filequeue", files.home, q.path, "--json").stdout)
    assert (done["inserted"], done["duplicates"]) == (1, 1)


def test_many_bad_files_are_counted(fsqueue_cli: Run, files: Files, q: Queue) -> None:
    for _ in range(50):
        files.add(text="")
    refused = fsqueue_cli("import", "--from-filequeue", files.home, q.path, code=1)
    assert "30 more files are no tasks" in refused.stderr
    assert "50 files in" in refused.stderr


def test_what_is_no_filequeue_is_refused(fsqueue_cli: Run, files: Files, q: Queue, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/queue").symlink_to(files.home / "queue")
    (tmp_path / "file").write_text("")
    for path, said in {
        "nowhere": "Nothing is at",
        "linked": "symbolic link",
        "file": "is no FileQueue",
        "q": "a queue of fsqueue already",
    }.items():
        refused = fsqueue_cli("import", "--from-filequeue", tmp_path / path, q.path, code=5)
        assert said in refused.stderr
    fsqueue_cli("import", "--from-filequeue", files.home, tmp_path / "missing", code=5)
    assert not (tmp_path / "missing").exists()
    assert "one of both" in fsqueue_cli("import", q.path, code=2).stderr
