"""status, --watch and wait: on terminals of several sizes, in files, as JSON; of one queue and of several."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsqueue_cli import status_text
from fsqueue_cli.common import size
from fsqueue_cli.status_screen import screen
from fsqueue_cli.status_text import Look
from fsqueue_cli.watching import as_json
from rich.cells import cell_len
from rich.console import Console
from rich.live_render import LiveRender

import fsqueue
from fsqueue import Activity, Failure, Group, Held, MostUsed, NotAQueue, Pause, Queue, Rate, Status, StorageError
from fsqueue.filesystem import Filesystem
from fsqueue.views.inspection import DrainCheck
from fsqueue.views.rates import StatusRates
from tests.cli.conftest import Run, Spawn
from tests.cli.terminal import Terminal
from tests.conftest import QueueFactory
from tests.waiting import PATIENCE_S, until

Terminals = Callable[..., Terminal]
HOSTILE = "no \x1b[2J\x1b]0;title\x07 tile \u202e 日本語 " + "x" * 300


@pytest.fixture
def terminal() -> Iterator[Terminals]:
    """`terminal("status", q, columns=80, rows=24)`: a command on a terminal of its own."""
    opened: list[Terminal] = []

    def start(*arguments: Any, **options: Any) -> Terminal:
        opened.append(Terminal(*arguments, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


# -- figures for Prometheus --------------------------------------------------------------------


def test_a_file_for_prometheus_is_replaced_whole(fsqueue_cli: Run, mixed: Queue, tmp_path: Path) -> None:
    file = tmp_path / "q.prom"
    file.write_text("before")
    file.chmod(0o640)
    assert fsqueue_cli("status", mixed.path, "--prometheus", file).stdout == ""
    labels = f'queue="{mixed.path.name}",root="{mixed.path.parent}"'
    assert f'fsqueue_tasks{{{labels},state="waiting"}} 5.0\n' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.glob("*.prom*")] == ["q.prom"]
    fsqueue_cli("status", mixed.path, "--prometheus", mixed.path / "q.prom", code=2)
    fsqueue_cli("status", mixed.path, "--prometheus", tmp_path / "no/q.prom", code=1)
    fsqueue_cli("status", mixed.path, "--prometheus", file, "--json", code=2)


def test_a_queue_that_cannot_be_read_is_counted_and_the_others_are_there(
    fsqueue_cli: Run, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    good, bad, file = queue_factory(), queue_factory("bad"), tmp_path / "q.prom"
    (bad.path / "queue.jsonl").write_text("{}\n")
    fsqueue_cli("status", good.path, bad.path, "--prometheus", file, code=5)
    assert "fsqueue_unreadable_queues 1.0\n" in file.read_text()
    assert f'queue="{good.path.name}"' in file.read_text()


# -- status -----------------------------------------------------------------------------------


def test_status(fsqueue_cli: Run, mixed: Queue) -> None:
    lines = fsqueue_cli("status", mixed.path).stdout.splitlines()
    assert dict(line.split() for line in lines[:6]) == {
        "waiting": "5", "delayed": "1", "leased": "2", "completed": "3", "dead": "1", "inserted": "12",
    }  # fmt: skip
    assert "  1 dead  broken 17" in "\n".join(lines)
    assert "workers     1 holds tasks" in lines
    assert lines[-1].endswith(" and 1 more") or lines[-2].startswith("  ")
    assert "\x1b" not in "".join(lines)


def test_status_as_json(fsqueue_cli: Run, mixed: Queue) -> None:
    found = json.loads(fsqueue_cli("status", mixed.path, "--json").stdout)
    assert mixed.status().as_dict().items() <= found.items()
    assert found["stuck"] == []
    assert found["queue"] == str(mixed.path)
    assert found["activity"]["failures"][0]["reason"] == "broken 17"
    assert sum(held["tasks"] for held in found["activity"]["oldest"]) == 2
    assert found["activity"]["share"] == 1
    assert found["activity"]["workers"] == 1


def test_a_fast_status_reads_names_only(fsqueue_cli: Run, mixed: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Queue, "activity")
    fast = json.loads(fsqueue_cli("status", mixed.path, "--json", "--fast").stdout)
    assert mixed.status(exact=False).as_dict().items() <= fast.items()
    assert fast["stuck"] == []
    assert len(fsqueue_cli("status", mixed.path, "--fast").stdout.splitlines()) == 6


def test_a_window_can_be_given(fsqueue_cli: Run, mixed: Queue) -> None:

    def inserted() -> Any:  # nothing is known of it in the queue's first second
        return json.loads(fsqueue_cli("status", mixed.path, "--json", "--window", "1000").stdout)["activity"][
            "inserted"
        ]

    assert until(inserted, "a rate")["over_s"] == 1000
    fsqueue_cli("status", mixed.path, "--window", "0.1", code=2)


# -- several queues ---------------------------------------------------------------------------


@pytest.fixture
def group(queue_factory: QueueFactory, tmp_path: Path) -> Path:
    """Queues a, b and 'c d' in a directory, with 1, 2 and 3 tasks; and something else."""
    for number, name in enumerate(("a", "b", "c%20d"), 1):
        queue_factory(f"group/{name}").insert_many(range(number))
    (tmp_path / "group" / "notes").mkdir()
    return tmp_path / "group"


def test_the_status_of_a_directory_of_queues(fsqueue_cli: Run, group: Path) -> None:
    Queue(group / "b").lease()[0].bury("no luck")
    rows = [line.rsplit(maxsplit=5) for line in fsqueue_cli("status", group).stdout.splitlines()]
    assert rows[:5] == [
        ["QUEUE", "WAITING", "DELAYED", "LEASED", "COMPLETED", "DEAD"],
        ["a", "1", "0", "0", "0", "0"],
        ["b", "1", "0", "0", "0", "1"],
        ["c d", "3", "0", "0", "0", "0"],
        ["all", "5", "0", "0", "0", "1"],
    ]
    assert "no luck" in fsqueue_cli("status", group).stdout
    found = [json.loads(line) for line in fsqueue_cli("status", group, "--json").stdout.splitlines()]
    assert [(Path(one["queue"]).name, one["waiting"]) for one in found] == [("a", 1), ("b", 1), ("c%20d", 3)]
    both = fsqueue_cli("status", group / "a", group / "b", "--json").stdout.splitlines()
    assert [json.loads(line)["inserted"] for line in both] == [1, 2]


def test_a_queue_that_two_paths_name_is_counted_once(fsqueue_cli: Run, group: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(group / "b")
    (tmp_path / "all").symlink_to(group)
    crawl = Group.create(tmp_path / "crawl", durability="none")
    crawl["fetch"].insert_many(range(4))
    (tmp_path / "same").symlink_to(crawl.path)
    for names, first, count in (
        ((group / "b", tmp_path / "link"), f"{group}/b", 2),
        ((tmp_path / "link", group / "a" / ".." / "b"), f"{tmp_path}/link", 2),
        ((tmp_path / "all", group / "b"), f"{tmp_path}/all/b", 6),
        ((tmp_path / "same", f"{crawl.path}/fetch"), f"{tmp_path}/same/fetch", 4),
    ):
        said = fsqueue_cli("status", *names, "--json")
        found = [json.loads(line) for line in said.stdout.splitlines()]
        assert sum(one["inserted"] for one in found) == count
        assert first in [one["queue"] for one in found]
        assert re.fullmatch(rf"fsqueue: \S+ is {first} by another name, and counts once\n", said.stderr)
    assert "another name" not in fsqueue_cli("status", group / "b", group / "a" / ".." / "b").stderr


def test_programs_get_one_path_of_a_queue_however_it_is_typed(
    fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = Group.create(tmp_path / "crawl", durability="none")
    crawl["fetch"].insert_many(range(4))
    crawl["fetch"].complete(crawl["fetch"].lease(4))
    monkeypatch.chdir(tmp_path)
    for typed in ("crawl/fetch", "./crawl//fetch", "crawl/../crawl/fetch", f"fq://{crawl.path}/fetch"):
        for command in ("status", "wait"):
            [line] = fsqueue_cli(command, typed, "--json").stdout.splitlines()
            assert json.loads(line)["queue"] == f"{crawl.path}/fetch", (command, typed)


def test_a_damaged_queue_in_a_directory_hides_no_other(fsqueue_cli: Run, group: Path) -> None:
    (group / "b" / "queue.jsonl").write_text("nonsense\n")
    result = fsqueue_cli("status", group, code=5)
    assert [line.split()[0] for line in result.stdout.splitlines()[:4]] == ["QUEUE", "a", "c", "all"]
    assert "damaged" in result.stderr
    (group / "a" / "queue.jsonl").write_text("nonsense\n")
    lines = fsqueue_cli("status", group, code=5).stderr.splitlines()
    assert sorted(line.split("/")[-1].split()[0] for line in lines) == ["a", "b"], "each is told"


def test_a_damaged_queue_in_a_directory_does_not_keep_others_from_being_waited_for(
    fsqueue_cli: Run, group: Path
) -> None:
    (group / "b" / "queue.jsonl").write_text("nonsense\n")
    result = fsqueue_cli("wait", group, "--timeout", "0.1", code=5)
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["a", "c d"]
    assert result.stderr.count("or damaged") == 1
    for name in ("a", "c%20d"):
        Queue(group / name).complete(Queue(group / name).lease(9))
    result = fsqueue_cli("wait", group, "--json", code=5)
    assert [json.loads(line).get("completed") for line in result.stdout.splitlines()] == [1, 3, None]
    for name in ("a", "c%20d"):
        (group / name / "queue.jsonl").write_text("nonsense\n")
    assert fsqueue_cli("wait", group, code=5).stderr.count("or damaged") == 3


def test_a_directory_that_cannot_be_looked_into_hides_no_queue(
    fsqueue_cli: Run, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Filesystem._open

    def dead_mount(fs: Filesystem, path: str, flags: int) -> int:
        if path.startswith(f"{group}/b"):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)
        return opened(fs, path, flags)

    monkeypatch.setattr(Filesystem, "_open", dead_mount)
    result = fsqueue_cli("status", group, code=1)
    assert [line.split()[0] for line in result.stdout.splitlines()[:4]] == ["QUEUE", "a", "c", "all"]
    assert f"{group}/b" in result.stderr
    result = fsqueue_cli("wait", group, "--timeout", "0.1", code=1)
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["a", "c d"]


def test_a_directory_without_queues(fsqueue_cli: Run, tmp_path: Path) -> None:
    assert "no queue at" in fsqueue_cli("status", tmp_path, code=5).stderr
    fsqueue_cli("wait", tmp_path, code=5)
    fsqueue_cli("status", code=2)


def test_waiting_for_all_queues_of_a_directory(fsqueue_cli: Run, group: Path) -> None:
    result = fsqueue_cli("wait", group, "--timeout", "0.1", code=124)
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["a", "b", "c d"]
    for name in ("a", "b", "c%20d"):
        for task in Queue(group / name).lease(9):
            task.complete()
    found = [json.loads(line) for line in fsqueue_cli("wait", group, "--json").stdout.splitlines()]
    assert [one["completed"] for one in found] == [1, 2, 3]
    Queue(group / "b").insert("x")
    Queue(group / "b").lease()[0].bury("no")
    fsqueue_cli("wait", group, code=9)


# -- watch, where there is no terminal --------------------------------------------------------


@pytest.mark.once
def test_watch_ends_when_drained(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(4))
    process = spawn("status", queue.path, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    looks: list[dict[str, Any]] = []

    def shows(of: Callable[[dict[str, Any]], object], what: str) -> None:
        until(lambda: looks.append(json.loads(process.stdout.readline())) or of(looks[-1]), what)

    for number, task in enumerate(queue.lease(4)):
        shows(lambda look: look["completed"] == number, "the last completion")  # noqa: B023 - called at once
        task.complete()
        if number == 2:
            shows(lambda look: look["rate"] and look["left_s"], "a rate, and the time left")
    looks += map(json.loads, process.stdout)
    assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, "")
    assert looks[-1]["completed"] == 4
    assert any(look["rate"] and look["left_s"] for look in looks)
    assert all(look["activity"]["share"] == 1 for look in looks)


@pytest.mark.once
def test_watch_prints_lines_where_there_is_no_terminal(fsqueue_cli: Run, queue: Queue, group: Path) -> None:
    queue.insert(1)
    queue.lease()[0].complete()
    assert fsqueue_cli("status", queue.path, "--watch").stdout == "completed 1 of 1 (100.0%), waiting 0, leased 0\n"
    for name in ("a", "b", "c%20d"):
        Queue(group / name).complete(Queue(group / name).lease(9))
    lines = fsqueue_cli("status", group, "--watch").stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["a", "b", "c d"]


@pytest.mark.once
def test_watch_of_a_queue_that_is_deleted_says_so(spawn: Spawn, queue: Queue) -> None:
    queue.insert(1)
    process = spawn("status", queue.path, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    queue.delete()
    assert process.wait(PATIENCE_S) == 5
    assert process.stderr is not None
    assert "no queue at" in process.stderr.read() or "deleted" in process.stderr.read()


@pytest.mark.once
def test_watch_goes_on_after_a_purge(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(5))
    queue.complete(queue.lease(2))
    process = spawn("status", queue.path, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["completed"] == 2
    queue.purge()
    looks = [json.loads(line) for line in process.stdout]
    assert looks[-1]["inserted"] == 0
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.once
def test_watch_outlives_a_filesystem_that_fails_for_a_while(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Status(waiting=2), StorageError("The filesystem failed."), Status(completed=2)]

    def status(self: Queue, exact: bool = True) -> Status:
        answer = answers.pop(0)
        if isinstance(answer, StorageError):
            raise answer
        return answer

    monkeypatch.setattr(Queue, "status", status)
    lines = fsqueue_cli("status", queue.path, "--watch", "--interval", "0").stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "completed 0 of 2 (0.0%)", "The filesystem failed.", "completed 2 of 2 (100.0%)",
    ]  # fmt: skip
    answers[:] = [StorageError("The filesystem failed.")]
    fsqueue_cli("status", queue.path, "--watch", code=1)


@pytest.mark.once
def test_watch_spends_a_fifth_of_its_time_looking(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that takes 3 s is followed by a pause of 12 s, a quick one by the interval."""
    looks = [(3.0, Status(waiting=2)), (0.125, Status(waiting=1)), (0.0, Status(completed=2))]
    now, slept = [0.0], list[float]()

    def status(self: Queue, exact: bool = True) -> Status:
        took_s, found = looks.pop(0)
        now[0] += took_s
        return found

    monkeypatch.setattr(Queue, "status", status)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=slept.append)
    monkeypatch.setattr("fsqueue_cli.watching.time", clock)
    fsqueue_cli("status", queue.path, "--watch", "--interval", "1")
    assert slept == [12.0, 1.0]


def test_a_hint_that_cannot_be_had_does_not_keep_a_status_back(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert(1)
    queue.lease()
    for error in (OSError(errno.EIO, os.strerror(errno.EIO)), StorageError("The filesystem failed.")):

        def failing(store: object, asks_slurm: bool = True, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("fsqueue.views.lease_holders.held_by_dead", failing)
        assert "leased" in fsqueue_cli("status", queue.path).stdout
        fsqueue_cli("wait", queue.path, "--timeout", "0", code=124)


def test_a_queue_that_is_named_twice_is_counted_once(fsqueue_cli: Run, group: Path) -> None:
    assert len(fsqueue_cli("status", group, group / "a", "--json").stdout.splitlines()) == 3
    assert len(fsqueue_cli("wait", group / "a", group / "a", "--timeout", "0", code=124).stdout.splitlines()) == 1


@pytest.mark.once
def test_queues_of_a_directory_come_and_go_while_they_are_watched(spawn: Spawn, group: Path) -> None:
    process = spawn("status", group, "--watch", "--interval", "0.1", "--json")
    assert process.stdout is not None
    assert [Path(json.loads(process.stdout.readline())["queue"]).name for _ in range(3)] == ["a", "b", "c%20d"]
    Queue(group / "a").delete()
    Queue.create(group / "e").insert("x")
    seen: list[str] = []
    while "e" not in seen:
        seen.append(Path(json.loads(process.stdout.readline())["queue"]).name)
    for name in ("b", "c%20d", "e"):
        Queue(group / name).complete(Queue(group / name).lease(9))
    last = [json.loads(line) for line in process.stdout]
    assert [Path(look["queue"]).name for look in last[-3:]] == ["b", "c%20d", "e"]
    assert process.wait(PATIENCE_S) == 0


# -- watch, on terminals ----------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 5), (132, 50), (1, 1)])
def test_a_screen_keeps_to_its_size(terminal: Terminals, mixed: Queue, columns: int, rows: int) -> None:
    for task in mixed.lease(2):
        task.bury(HOSTILE)
    watched = terminal("status", mixed.path, "--watch", "--interval", "0.1", columns=columns, rows=rows)
    parts = ["━━", "slowest leased", r"2 dead  no \x1b[2J\x1b]0;title\x07 tile \u202e 日本語 xx"]
    drawn = parts if columns >= 80 else []
    screen = watched.read(
        lambda text: watched.raw.count(b"\r") > 5 * rows and all(part in text for part in drawn)  # not a half-drawn one
    )
    assert all(part in screen for part in drawn), screen
    assert watched.broken == watched.scrolled == 0
    assert watched.strange == []
    mixed.release_all()
    for task in mixed.lease(9):
        task.complete()
    mixed.cancel([info.id for info in mixed.tasks()])
    code, last = watched.end()
    assert code == 0
    assert watched.strange == []
    if columns >= 80:
        assert "completed" in last


@pytest.mark.once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_the_terminal_as_it_was(terminal: Terminals, mixed: Queue, number: int) -> None:
    watched = terminal("status", mixed.path, "--watch", "--interval", "60")
    watched.read(lambda text: "slowest leased" in text)
    code, last = watched.end(number)
    assert code in (130, -signal.SIGTERM)
    assert "waiting" in last
    if number == signal.SIGINT:
        assert last.endswith("\nfsqueue: interrupted")
    assert watched.strange == []
    assert watched.settings_are_as_before()


@pytest.mark.once
def test_a_terminal_that_changes_its_size_is_drawn_anew(terminal: Terminals, mixed: Queue) -> None:
    watched = terminal("status", mixed.path, "--watch", "--interval", "0.1", columns=132, rows=40)
    watched.read(lambda text: "slowest leased" in text)
    watched.resize(60, 15)
    watched.clear()
    watched.read(lambda text: "\x1b[H" in watched.raw.decode())
    watched.clear()
    watched.read(lambda text: "waiting" in text)
    assert watched.broken == watched.scrolled == 0
    assert watched.strange == []


@pytest.mark.once
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(terminal: Terminals, mixed: Queue, encoding: str) -> None:
    mixed.lease()[0].bury("日本語 ü")
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    watched = terminal("status", mixed.path, "--watch", "--interval", "0.1", encoding=encoding, env=env)
    parts = ["slowest leased", r"\u65e5\u672c\u8a9e " + (r"\xfc" if encoding == "ascii" else "ü"), "---"]
    screen = watched.read(lambda text: all(part in text for part in parts))
    assert all(part in screen for part in parts), screen
    assert watched.raw.isascii() or encoding == "latin-1"
    assert watched.broken == 0


@pytest.mark.once
def test_on_a_dumb_terminal_there_are_lines(terminal: Terminals, mixed: Queue) -> None:
    watched = terminal("status", mixed.path, "--watch", "--interval", "0.1", env={"TERM": "dumb"})
    watched.read(lambda text: text.count("completed 3 of 12") > 3)
    assert b"\x1b" not in watched.raw


@pytest.mark.once
def test_several_queues_on_a_terminal(terminal: Terminals, group: Path) -> None:
    watched = terminal("status", group, "--watch", "--interval", "0.1")
    text = watched.read(lambda text: "all " in text)
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["a", "b", "c", "all"]
    assert text.splitlines()[0].startswith("3 queues")


@pytest.mark.once
def test_waiting_says_its_last_line_once_on_a_terminal(terminal: Terminals, queue: Queue) -> None:
    queue.insert(1)
    [task] = queue.lease(1)
    waiting = terminal("wait", queue.path)
    waiting.read(lambda text: "completed 0 of 1" in text)
    queue.complete([task])
    code, text = waiting.end()
    assert (code, text) == (0, "completed 1 of 1 (100.0%), waiting 0, leased 0")
    assert waiting.strange == []


@pytest.mark.once
def test_dead_letters_are_red_unless_the_user_wants_no_colours(terminal: Terminals, queue: Queue) -> None:
    queue.insert(1)
    shown = terminal("status", queue.path)
    shown.end()
    assert not shown.coloured
    [task] = queue.lease(1)
    task.bury("broken")
    for env, is_red in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)):
        shown = terminal("status", queue.path, env=env)
        code, text = shown.end()
        assert code == 0
        assert "dead                     1" in text
        assert shown.coloured == is_red
        assert shown.strange == []


@pytest.mark.once
def test_waiting_shows_progress_on_a_terminal(terminal: Terminals, queue: Queue) -> None:
    queue.insert(1)
    waiting = terminal("wait", queue.path, "--timeout", "0.5")
    code, text = waiting.end()
    assert code == 124
    assert text.splitlines()[0] == "completed 0 of 1 (0.0%), waiting 1, leased 0"
    assert waiting.strange == []


# -- drawing ----------------------------------------------------------------------------------

ACTIVITY = Activity(
    1000.0, Rate(0, 1 / 60, 60), Rate(103.2, 4.1, 60), Rate(101.9, 3.9, 60), Rate(102, 3.9, 60), 58.2, 1.0, 6100, 0.5,
    [Held("0" * 32 + ".12", 3, 300.0, 1400.0, 2, {"host": HOSTILE, "pid": [], "slurm_job": 991})] * 7,
    [Failure(HOSTILE, 12, 3)] * 7, False,
)  # fmt: skip


def drawn(looks: Sequence[Look], columns: int, rows: int, encoding: str = "utf-8") -> list[str]:
    """Return a screen as lines, without the blanks at their ends."""
    file = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
    console = Console(width=columns, height=rows, file=file, color_system=None, force_terminal=True)
    console.print(LiveRender(screen(console, looks), vertical_overflow="crop"), end="")
    file.flush()
    return [line.rstrip() for line in file.buffer.getvalue().decode(encoding).split("\n")]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1", "cp932"])
@pytest.mark.parametrize("queues", [1, 2, 30])
def test_nothing_is_wider_or_longer_than_the_screen(encoding: str, queues: int) -> None:
    status = Status(612_000, 0, 96, 387_500, 12)
    looks = [Look(f"q{number}", f"/s/{number}", status, ACTIVITY) for number in range(queues)]
    looks[-1:] = [Look(HOSTILE, HOSTILE, Status(10**12, 10**12, 10**12, 10**12, 10**12))] if queues > 1 else looks[-1:]
    looks[1:2] = [Look("bad", "/s/bad", Status(), error=NotAQueue(HOSTILE))]
    for columns in (1, 2, 10, 19, 49, 50, 69, 70, 79, 200):
        for rows in (1, 2, 5, 9, 10, 12, 24, 60):
            lines = drawn(looks, columns, rows, encoding)
            assert 1 <= len(lines) <= rows
            assert all(cell_len(line) <= columns for line in lines)
            assert not any("\x1b" in line or "\u202e" in line for line in lines)


def test_queues_with_work_and_those_that_fail_are_shown_before_drained_ones() -> None:
    """By their names; the others are counted, and are in the sum."""
    drained, busy = Status(completed=10), Status(waiting=1, completed=10)
    looks = [Look(f"q{number:02}", "/s", drained) for number in range(20)]
    looks[7], looks[19] = Look("q07", "/s", busy), Look("q19", "/s", busy)
    looks[18] = Look("q18", "/s", Status(), error=NotAQueue("no queue"))
    for rows, names in ((14, "q00 q01 q07 q18 q19"), (12, "q07 q18 q19"), (13, "q00 q07 q18 q19")):
        lines = drawn(looks, 100, rows)
        shown = [line.split()[0].rstrip(":") for line in lines if line.startswith("q")]
        assert sorted(shown) == names.split(), rows
        assert lines[0].startswith("20 queues")
        assert f"and {20 - len(shown)} more" in lines
        [whole] = [line.split() for line in lines if line.split()[:1] == ["all"]]
        assert whole[-4:] == ["99.0%", "2", "0", "0"]


def test_what_a_screen_says() -> None:
    lines = drawn([Look("q", "/s/q", Status(612_000, 0, 96, 387_500, 12), ACTIVITY)], 100, 24)
    assert "per second  leased 103 ± 4.1, completed 102 ± 3.9 over 1 min, sampled (50%)" in lines
    assert "time left   1 h 40 min (1 h 32 min to 1 h 50 min)" in lines
    assert "a lease     58.2 s on average, of 6,100 completed tasks" in lines
    assert "failures by reason (of the latest dead letters)" in lines


def test_what_was_used_most_is_told_with_its_task() -> None:
    found = replace(ACTIVITY, most_used=MostUsed(1200, 2_147_483_648, "b.7", 754.0, "c.1"))
    lines = drawn([Look("q", "/s/q", Status(612_000, 0, 96, 387_500, 12), found)], 100, 24)
    assert "most memory 2.1 GB, b.7, of 1,200 measured attempts" in lines
    assert "most CPU    13 min, c.1" in lines


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456_789, "123 MB"), (1.5e12, "1.5 TB")]
)
def test_sizes_are_short(count: float, text: str) -> None:
    assert size(int(count)) == text


def test_each_rate_is_told_with_the_time_that_it_is_an_average_over() -> None:
    found = replace(ACTIVITY, inserted=Rate(106 / 3600, 0.02, 3600), leased=Rate(5.9, 0.5, 18),
                    completed=Rate(5.8, 0.4, 18), share=1.0, holders=frozenset({b"a"}))  # fmt: skip
    lines = status_text.details(Look("q", "/q", Status(waiting=3, leased=1), found), 24)
    assert lines[0] == "workers     1 holds tasks"
    assert lines[1] == "per second  inserted 0.029 over 1 h; leased 5.9 ± 0.5, completed 5.8 ± 0.4 over 18 s"


def test_rates_of_nothing_and_the_time_left_without_workers_are_not_shown() -> None:
    nothing = Rate(0.0, 1 / 60, 60)
    idle = Activity(0, nothing, nothing, nothing, nothing, None, None, 0, 1.0, is_worked=False, holders=frozenset())
    status = Status(waiting=50)
    [line] = status_text.details(Look("q", "/q", status, idle), 24)
    assert line.startswith("no workers  50 tasks wait, and no worker is there.")
    left_alone = replace(idle, finished=Rate(2.0, 0.1, 60), completed=Rate(2.0, 0.1, 60))
    text = "\n".join(drawn([Look(name, "/q", status, left_alone) for name in "ab"], 100, 24))
    assert "left   " not in text
    assert status_text.progress_line(Look("q", "/q", status, left_alone)).endswith(
        "waiting 50, leased 0, no worker, 2.0/s"
    )
    assert status_text.progress_line(Look("q", "/q", status, idle)).endswith("waiting 50, leased 0, no worker")
    row = drawn([Look(name, "/q", status, idle) for name in "ab"], 100, 24)[2]
    assert row.split()[-4:] == ["0.0%", "50", "0", "0"], "neither a rate nor a time left"


def test_no_time_is_left_where_nothing_moves() -> None:
    work = Activity(0, None, None, None, Rate(1, 0.1, 60), None, None, 0, 1.0)
    status = Status(waiting=50, leased=2)
    moving = Look("a", "/a", status, work)
    assert moving.left is not None
    paused = moving._replace(paused=Pause(0.0, "", {}))
    for halted in (paused, moving._replace(activity=replace(work, is_worked=False))):
        assert halted.left is None
        assert status_text.total([moving, halted]).left is None
        drained = halted._replace(status=Status(completed=50))
        assert status_text.total([moving, drained]).left is not None, "nothing of it is waited for"
    assert not any("left" in line for line in status_text.details(paused, 24, "±"))


def test_of_several_queues_those_that_are_paused_are_told() -> None:
    pause = Pause(0.0, "the server is down", {})
    looks = [Look(name, f"/{name}", Status(waiting=1), paused=pause if name in "bc" else None) for name in "abc"]
    whole = status_text.total(looks)
    assert "2 of 3 queues paused" in status_text.progress_line(whole)
    assert "queues paused" not in status_text.progress_line(status_text.total(looks[:1]))
    assert [line.split()[:3] for line in status_text.paused(whole)] == [["paused", name, "since"] for name in "bc"]
    assert [line.split()[:2] for line in status_text.paused(looks[1])] == [["paused", "since"]]


def test_how_much_of_the_leases_was_work_is_told_where_tasks_were_leased_ahead() -> None:
    look = Look("q", "/q", Status(waiting=5, leased=1), ACTIVITY)
    for work_s, more in ((None, ""), (58.0, ""), (10.0, " (10 s of it at work)")):
        lines = status_text.details(look._replace(activity=replace(ACTIVITY, work_s=work_s)), 24)
        assert f"a lease     58.2 s on average{more}, of 6,100 completed tasks" in lines


def test_what_programs_are_told_of_rates_and_the_time_left() -> None:
    look = Look("q", "/s/q", Status(612_000, 0, 96, 387_500, 12), ACTIVITY)
    told, left = as_json(look), look.left
    assert left is not None
    assert (told["rate"], told["left_s"]) == (102, left.likely_s)
    assert (told["left_least_s"], told["left_most_s"]) == (left.least_s, left.most_s)
    times = ("left_s", "left_least_s", "left_most_s")
    halted = as_json(look._replace(paused=Pause(1.0, "why", {})))
    assert [halted[name] for name in (*times, "rate")] == [None, None, None, 102]
    assert halted["paused"] == {"since": 1.0, "reason": "why", "by": {}}
    unknown = as_json(look._replace(activity=None))
    assert [unknown[name] for name in (*times, "rate", "activity", "paused")] == [None] * 6
    failed = as_json(look._replace(error=StorageError("The filesystem failed.")))
    assert (failed.keys(), failed["error"]) == ({"queue", "at", "error"}, "The filesystem failed.")


def test_several_queues_are_done_when_the_last_is() -> None:
    slow = Activity(0, None, None, None, Rate(1, 0.1, 60), None, None, 0, 1.0)
    fast = Activity(0, None, None, None, Rate(100, 1, 60), None, None, 0, 1.0)
    looks = [Look("a", "/a", Status(waiting=50), slow), Look("b", "/b", Status(waiting=50), fast)]
    left = status_text.total(looks).left
    assert left is not None
    assert left == looks[0].left
    looks.append(Look("c", "/c", Status(waiting=1)))
    pooled = status_text.total(looks).left
    assert pooled is not None
    assert pooled.likely_s == pytest.approx(1.0)
    assert status_text.total([]).left is None


def test_rates_from_one_status_after_another() -> None:
    now = [100.0]
    pace = StatusRates(lambda: now[0], time.time)
    assert pace.add(Status(waiting=100)).finished is None
    now[0] += 10
    found = pace.add(Status(waiting=80, completed=18, dead=2))
    assert found.finished == Rate(2.0, 2.0, 10.0)
    assert found.completed == Rate(1.8, 1.8, 10.0)
    look = Look("q", "/q", Status(waiting=80, completed=18, dead=2), found)
    assert status_text.progress_line(look) == (
        "completed 18 of 100 (18.0%), waiting 80, leased 0, dead 2, 2.0/s, 40 s left (11.3 s or more)"
    )
    now[0] += 10
    found = pace.add(Status(waiting=60, completed=38, dead=2))
    assert found.finished == Rate(2.0, 0.0, 20.0)
    now[0] += 10
    assert pace.add(Status(waiting=5)).finished is None  # purged
    for _ in range(100):
        now[0] += 10
        found = pace.add(Status(waiting=5))
    assert found.finished is not None
    assert (found.finished.per_s, found.left(5)) == (0.0, None)


# -- wait -------------------------------------------------------------------------------------


def test_wait_waits_once_for_what_two_paths_name(
    fsqueue_cli: Run, group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a group that two paths name, and for a queue that is in a group that is named."""
    (tmp_path / "link").symlink_to(group / "b")
    (tmp_path / "all").symlink_to(group)
    crawl = Group.create(tmp_path / "crawl", durability="none")
    crawl["fetch"].insert_many(range(4))
    (tmp_path / "same").symlink_to(crawl.path)
    waited_for, real = list[int](), fsqueue.wait

    def wait(sources: list[Any], *given: Any) -> list[Status]:
        waited_for.append(len(sources))
        return real(sources, *given)

    monkeypatch.setattr(fsqueue, "wait", wait)
    for names, first, paths, count in (
        ((group / "b", tmp_path / "link"), f"{group}/b", {f"{group}/b"}, 2),
        (
            (tmp_path / "all", group / "b"),
            f"{tmp_path}/all/b",
            {f"{tmp_path}/all/{name}" for name in ("a", "b", "c%20d")},
            6,
        ),
        ((tmp_path / "same", crawl.path, crawl.path / "fetch"), f"{tmp_path}/same", {f"{tmp_path}/same"}, 4),
        ((crawl.path / "fetch", crawl.path), None, {f"{crawl.path}"}, 4),
    ):
        said = fsqueue_cli("wait", *names, "--timeout", "0", "--json", code=124)
        found = [json.loads(line) for line in said.stdout.splitlines()]
        assert {one["queue"] for one in found} == paths
        assert waited_for.pop() == len(found) == len(paths)
        assert sum(one["inserted"] for one in found) == count
        word = rf"fsqueue: \S+ is {first} by another name, and counts once\n" if first is not None else ""
        assert re.fullmatch(word, said.stderr)


def test_wait_says_whether_it_ended_well(fsqueue_cli: Run, queue: Queue) -> None:
    assert fsqueue_cli("wait", queue.path).stdout == "completed 0 of 0, waiting 0, leased 0\n"
    queue.insert_many(range(2))
    result = fsqueue_cli("wait", queue.path, "--timeout", "0.2", "--json", code=124)
    assert json.loads(result.stdout)["waiting"] == 2
    one, two = queue.lease(2)
    two.bury("no")
    fsqueue_cli("wait", queue.path, "--timeout", "0", code=124)
    one.complete()
    fsqueue_cli("wait", queue.path, code=9)
    queue.purge_dead()
    fsqueue_cli("wait", queue.path, code=0)


@pytest.mark.parametrize(("end", "code", "says"), [("purge", 1, "purged or overwritten"), ("delete", 5, "queue at")])
def test_what_was_purged_or_deleted_is_not_done(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, end: str, code: int, says: str
) -> None:
    queue.insert_many(range(2))
    other, real, looks = Queue(queue.path), DrainCheck.__call__, []

    def check(self: DrainCheck) -> bool:
        looks.append(self)
        if len(looks) == 2:  # it waits
            getattr(other, end)()
        return real(self)

    monkeypatch.setattr(DrainCheck, "__call__", check)
    result = fsqueue_cli("wait", queue.path, "--timeout", "60", code=code)
    assert says in result.stderr
    assert result.stdout == ""


@pytest.mark.once
def test_wait_tells_of_a_pause(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    queue.pause("maintenance")
    said = fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124).stderr
    assert "maintenance. To go on: fsqueue resume" in said
    [task] = queue.tasks()
    queue.cancel(task.id)
    assert "resume" not in fsqueue_cli("wait", queue.path).stderr, "nothing is waited for"


def test_wait_ends_soon_after_the_last_task(fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next look, and it looks often at first."""
    queue.insert(1)
    [task] = queue.lease()
    real, answers = DrainCheck.__call__, []

    def check(self: DrainCheck) -> bool:
        if len(answers) == 2:
            task.complete()
        answers.append(real(self))
        return answers[-1]

    monkeypatch.setattr(DrainCheck, "__call__", check)
    fsqueue_cli("wait", queue.path)
    assert answers == [False, False, True]


@pytest.mark.once
def test_no_time_left_is_told_while_all_that_is_left_is_delayed() -> None:
    found = Activity(0.0, None, None, Rate(5.0, 0.1, 60.0), Rate(5.0, 0.1, 60.0), None, None, 0, 1.0)
    retries = Look("q", "/q", Status(delayed=2, completed=98), found)
    assert status_text.progress_line(retries) == "completed 98 of 100 (98.0%), waiting 2 (all delayed), leased 0, 5.0/s"
    assert not any(line.startswith("time left") for line in status_text.details(retries, 10))
