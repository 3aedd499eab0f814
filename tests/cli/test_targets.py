"""What each command takes in place of a queue: docs/targets.md has a table of it, and each line of it is tried here.

A new command must take its place in that table, or a test fails.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click
import pytest
from fsqueue_cli.main import cli

import fsqueue
from fsqueue import Group, Queue
from tests.cli.conftest import Run, Spawn
from tests.filequeues import Files
from tests.gateways import gateways
from tests.house.source import TOP
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

NO_QUEUE = {"create", "map", "completion", "help", "serve", "simulate", "doctor", "bench", "slurm", "pbs", "lsf", "sge"}
"""What makes a queue, takes none, or takes one place and says itself which.

docs/serve.md, doctor.md, slurm.md and schedulers.md say it.
"""


def commands() -> Iterator[str]:
    """Yield the name of each command but those on Spark, which take what docs/spark.md says."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from (f"{name} {below}" for below in command.commands if name != "spark")
        else:
            yield name


class Takes(NamedTuple):
    """A line of the page's table: whether a command takes these."""

    group: bool
    several: bool
    address: bool


def table() -> dict[str, Takes]:
    """Return what the page says of each command."""
    page = (TOP / "docs" / "targets.md").read_text(encoding="utf-8").partition("## What a command takes")[2]
    found: dict[str, Takes] = {}
    for line in page.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            assert all(cell == "yes" or cell.startswith("no: ") for cell in cells[1:]), line
            for name in re.findall(r"`([^`]+)`", cells[0]):
                assert name not in found
                found[name] = Takes(*(cell == "yes" for cell in cells[1:]))
    return found


TABLE = table()


def test_every_command_says_what_it_takes() -> None:
    assert set(TABLE) == set(commands()) - NO_QUEUE


ARGUMENTS = {
    "bury": "{token} --reason x", "cancel": "{id} -y", "complete": "{token}", "dead purge": "-y", "delete": "-y",
    "change": "{id} --delay 0", "fail": "{token} --reason x", "insert": "--task 1",
    "import": "--from-filequeue {old}", "purge": "-y", "release": "{token}", "release-all": "-y",
    "renew": "{token}", "retry": "--completed --all", "run": "--max-tasks 1 --idle-timeout 0.01 -- true",
    "show": "{id}", "update": "--insert a=1", "wait": "--timeout 0", "cp": "{dst}", "mv": "{dst}",
}  # fmt: skip
"""What else each command is given."""
REFUSED = {2, fsqueue.QueueNotFound.exit_code, fsqueue.TaskNotFound.exit_code}
"""A second queue in place of a task may be taken for a key, which no task has."""
NEEDS_MATCH = {"delete"}
"""These do nothing to a whole group: with `--match '.*'` they do."""
OF_TASKS = {"show", "cancel", "change", "complete", "renew", "release", "fail", "bury"}
ONE_DOCUMENT = {"gc", "run", "lease", "update", "insert", "import", "cp", "mv", *OF_TASKS}
"""Their output is no line for each queue."""


class Home(NamedTuple):
    """Two queues, a group with the queues a and b, and its gateway. Each queue has tasks in every state."""

    path: Path
    url: str
    given: dict[Path, dict[str, str]]


@contextmanager
def at_home(tmp_path: Path) -> Iterator[Home]:
    group = Group.create(tmp_path / "g", shards=1, durability="none", max_attempts=1)
    queues = [Queue.create(tmp_path / name, shards=1, durability="none", max_attempts=1) for name in ("q", "q2")]
    given = {}
    Files(tmp_path / "old").add()
    dst = str(Queue.create(tmp_path / "dst", shards=1, durability="none").path)
    for queue in (*queues, group["a"], group["b"]):
        queue.insert_many([1, 2, 3, 4])
        completed, dead, leased = queue.lease(3)
        completed.complete(1)
        dead.bury("x")
        given[queue.path] = {"id": queue.peek()[0].id, "token": leased.token, "old": str(tmp_path / "old"), "dst": dst}
    with gateways(tmp_path) as serve:
        yield Home(tmp_path, serve(group.path), given)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with at_home(tmp_path) as made:
        yield made


def call(run: Run, home: Home, command: str, *queues: Any, of: Path, more: str = "") -> Any:
    """Call a command with queues, and with arguments that suit the queue `of`."""
    rest = ARGUMENTS.get(command, "").format_map(home.given[of]).split()
    as_json = [] if command in ("run", "lease") else ["--json"]
    before, after = (rest, []) if "--" not in rest else (rest[: rest.index("--")], rest[rest.index("--") :])
    return run(*command.split(), *queues, *more.split(), *before, *as_json, *after, code=None)


def is_done(result: Any) -> bool:
    if result.exit_code in REFUSED:
        assert len(result.stderr.splitlines()) >= 1
        return False
    assert result.exit_code in (0, 9, 124), result.output
    return True


def named_in(result: Any) -> list[str]:
    return [json.loads(line)["queue"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("command", sorted(TABLE))
def test_a_command_takes_what_the_page_says(fsqueue_cli: Run, home: Home, command: str) -> None:
    q, q2, g, a, b = (home.path / name for name in ("q", "q2", "g", "g/a", "g/b"))
    if command not in ("update", "barrier"):  # they are for groups
        assert is_done(call(fsqueue_cli, home, command, q, of=q))
    takes = TABLE[command]
    result = call(fsqueue_cli, home, command, f"{home.url}/" if command == "barrier" else f"{home.url}/a", of=a)
    assert is_done(result) == takes.address, result.output
    if takes.address and command not in ONE_DOCUMENT and result.stdout:
        assert set(named_in(result)) == {f"{home.url}/a"}
    result = call(fsqueue_cli, home, command, g, "--match", "b", of=b)
    assert is_done(result) == takes.group, result.output
    if takes.group and command not in ONE_DOCUMENT and result.stdout and command != "wait":
        assert set(named_in(result)) == {str(b)}, "a alone is as it was"
    result = call(fsqueue_cli, home, command, g, of=a, more="--match .*" if command in NEEDS_MATCH else "")
    if command not in (
        "set",
        "update",
        "barrier",
        "fsck",
    ):  # what these do, they do not do with queues
        assert is_done(result) == takes.group, result.output
    if command == "delete":
        Queue.create(q, shards=1)
    result = call(fsqueue_cli, home, command, q, q2, of=q2)
    assert is_done(result) == takes.several, result.output
    if takes.several and command not in ONE_DOCUMENT:
        assert set(named_in(result)) <= {str(q), str(q2)}
        assert str(q2) in named_in(result)


@pytest.mark.parametrize("command", sorted(name for name, takes in TABLE.items() if takes.several))
def test_a_queue_that_two_paths_name_is_handled_once(fsqueue_cli: Run, home: Home, command: str) -> None:
    """Also one of a group, and a queue of a gateway whose address is typed in two ways."""
    q, g, a, same = (home.path / name for name in ("q", "g", "g/a", "same"))
    (home.path / "link").symlink_to(q)
    same.symlink_to(g)
    result = call(fsqueue_cli, home, command, q, home.path / "link", of=q)
    assert is_done(result), result.output
    assert f"fsqueue: {home.path}/link is {q} by another name, and counts once\n" in result.stderr
    if command not in ONE_DOCUMENT:
        assert set(named_in(result)) == {str(q)}
    for first, second in ((a, f"{same}/a"), (f"{home.url}/b", f"{home.url}/%62")):
        result = call(fsqueue_cli, home, command, first, second, of=a)
        assert is_done(result), result.output
        assert "counts once" in result.stderr or first != a
        if command not in ONE_DOCUMENT:
            assert set(named_in(result)) == {str(first)}


def test_a_group_that_two_paths_name_is_listed_once_and_each_of_its_queues_is_handled_once(
    fsqueue_cli: Run, home: Home
) -> None:
    g, same = home.path / "g", home.path / "same"
    same.symlink_to(g)
    for command in ("ls", "pause"):
        result = fsqueue_cli(command, g, same, f"{same}/a", "--json")
        expected = [f"{g}/a", f"{g}/b"] + [f"{same}/a"] * 2 * (command == "ls")  # its two tasks
        assert named_in(result) == expected
    said = fsqueue_cli("ls", g, same).stderr
    assert said == f"fsqueue: {same} is {g} by another name, and counts once\n"
    with Group(g) as group:
        for number in range(20):
            group[f"q{number:02}"].insert(1)
    said = fsqueue_cli("pause", g, same).stderr
    assert said.count("by another name, and counts once\n") == 10
    assert "fsqueue: 12 more are named twice, and count once\n" in said


def test_a_worker_takes_a_group_once_that_is_named_twice_and_a_queue_of_it(fsqueue_cli: Run, places: Places) -> None:
    names = [f"{places.place}/", quoted_in(places.place, "a#fetch")]
    if not places.place.startswith("http"):
        (places.group.path.parent / "same").symlink_to(places.group.path)
        names.append(str(places.group.path.parent / "same"))
    result = fsqueue_cli("run", *names, "--json", "--", "true")
    assert json.loads(result.stdout)["completed"] == 6
    assert result.stderr.count("counts once") == len(names) - 2


@pytest.mark.parametrize("command", ["wait", "status"])
def test_match_is_refused_for_the_address_of_one_queue(fsqueue_cli: Run, home: Home, command: str) -> None:
    said = fsqueue_cli(command, f"{home.url}/a", "--match", "b", code=2).stderr
    assert f"--match is for the queues of a group, and {home.url}/a is one queue. Nothing was done." in said


ONLY_FILES = {
    "gc": "a gateway cleans up by itself, and finds other leftovers",
    "workers": "the gateway's host does not ask Slurm, and cannot see whether a worker of a lease lives",
    "run": "durations, and the history does not get the time and memory of the commands",
}
"""What these print for an address may differ from what they print for a path."""
VARIES = (
    (r"[0-9a-f]{32}\.[0-9]+(@[0-9a-f]{16})?", "ID"), (r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", "AT"),
    (r'"rate":.*?,"activity":.*?,"paused"', '"paused"'), (r'"lineage":\{[^}]*\},', ""), (r"[0-9]+\.[0-9]+", "TIME"),
    (r"lease [0-9a-f]{16}|\"lease\":\"[0-9a-f]{16}\"", "LEASE"),
    (r"version *(\": *)?[0-9]+|\"version\":[0-9]+", "VERSION"),
    (r"filequeue-[0-9]+|cp-[0-9a-f]{32}", "COMMIT"), (r'"filequeue":"[^"]*"', '"filequeue":"OLD"'),
)  # fmt: skip
"""What differs between two calls of one command: ids, leases, times, and rates; and of what tasks a task came, which a
gateway does not tell."""


def told(result: Any, place: str) -> tuple[int, str, str]:
    """Return what a command has ended with and printed, without what differs between two calls."""
    texts = []
    for text in (result.stdout, result.stderr):
        text = text.replace(place, "PLACE")
        for pattern, word in VARIES:
            text = re.sub(pattern, word, text)
        texts.append(text)
    return result.exit_code, *texts


@pytest.mark.parametrize("form", ["text", "--json"])
@pytest.mark.parametrize(
    "command", sorted(name for name, takes in TABLE.items() if takes.address and name not in {*ONLY_FILES, "barrier"})
)
def test_a_command_tells_the_same_of_a_queue_and_of_its_address(
    fsqueue_cli: Run, tmp_path: Path, command: str, form: str
) -> None:
    found = []
    for by_address in (False, True):
        (tmp_path / str(by_address)).mkdir()
        with at_home(tmp_path / str(by_address)) as home:
            a = home.path / "g/a"
            place = home.url if by_address else str(home.path / "g")
            rest = ARGUMENTS.get(command, "").format_map(home.given[a]).split()
            as_json = ["--tokens" if command == "lease" else "--json"][: form == "--json"]
            rest += ["--fast"] if command == "status" else []  # rates, as text, depend on time
            found.append(told(fsqueue_cli(*command.split(), f"{place}/a", *rest, *as_json, code=None), place))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "typed",
    ["status --fast", "status --fast --match b", "status --match none", "status --fast --priorities",
     "wait --timeout 0", "wait --timeout 0 --match b", "wait --timeout 0 --match none", "set", "ls", "set lease=5"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["text", "--json"])
def test_a_command_tells_the_same_of_a_group_and_of_its_address(
    fsqueue_cli: Run, home: Home, typed: str, form: str
) -> None:
    command, *options = typed.split()
    group = home.path / "g"
    options += [form] if form == "--json" else []
    by_path = told(fsqueue_cli(command, group, *options, code=None), str(group))
    by_address = told(fsqueue_cli(command, f"{home.url}/", *options, code=None), home.url)
    assert [text.replace("PLACE/ ", "PLACE ").replace('PLACE/"', 'PLACE"') for text in by_address[1:]] == [*by_path[1:]]
    assert by_address[0] == by_path[0]


def test_wait_and_watch_end_when_a_gateways_queues_are_drained(fsqueue_cli: Run, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    for name in ("a", "b"):
        group[name].insert(1)
        group[name].lease()[0].complete()
    with gateways(tmp_path) as serve:
        url = serve(group.path)
        usage = [
            json.loads(fsqueue_cli("status", place, "--usage", "--json").stdout.splitlines()[-1])["usage"]
            for place in (group.path, f"{url}/")
        ]
        assert usage[0] == usage[1]
        for queues in ([f"{url}/a"], [f"{url}/"], [group.path]):
            assert "completed 1 of 1" in fsqueue_cli("status", *queues, "--watch").stdout
            assert "(100.0%), waiting 0" in fsqueue_cli("wait", *queues).stdout
        assert "hint" in fsqueue_cli("wait", f"{url}/none").stderr
        group["a"].insert(2)
        group["a"].lease()[0].bury("x")
        fsqueue_cli("wait", f"{url}/a", code=9)
        fsqueue_cli("status", f"{url}/a", "--prometheus", tmp_path / "all.prom")
        assert 'queue="a"' in (tmp_path / "all.prom").read_text()


@pytest.mark.parametrize(
    "input", [b"1\n2\n", b"", b"1\n{\n3\n", b'{"k":"a"}\n{"k":"a"}\n{"k":"b"}\n', b"1\n" + b"9" * 3_000 + b"\n2\n"]
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--skip-bad"], ["--key", "k"], ["--delay", "60"]])
def test_insert_tells_the_same_of_a_queue_and_of_its_address(
    fsqueue_cli: Run, tmp_path: Path, input: bytes, options: list[str]
) -> None:
    group = Group.create(tmp_path / "g", shards=1, durability="none", task_bytes_max=1_000)
    with gateways(tmp_path) as serve:
        url = serve(group.path)
        by_path = told(fsqueue_cli("insert", group.path / "a", *options, input=input, code=None), str(group.path))
        by_address = told(fsqueue_cli("insert", f"{url}/a2", *options, input=input, code=None), url)
        assert by_address == tuple(
            text.replace("PLACE/a", "PLACE/a2") if type(text) is str else text for text in by_path
        )
        assert group["a"].status() == group["a2"].status()
        assert "is an address" in fsqueue_cli("insert", f"{url}/a", "--batch-tasks", 1, input=b"1\n", code=2).stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("more", "body_s"), [([], 5), (["--commit", "seed"], 1), (["--commit", "seed", "--from", "--"], 1)]
)
def test_insert_at_an_address_waits_for_a_slow_input_as_long_as_it_takes(
    spawn: Spawn, tmp_path: Path, more: list[str], body_s: int
) -> None:
    """A gateway ends a request whose body pauses for longer than `body_s`."""
    queue = Queue.create(tmp_path / "q", shards=1, durability="none")
    script = f"for i in 1 2; do sleep {body_s * 2}; echo $i; done"
    with gateways(tmp_path) as serve:
        url = serve(queue.path, body_s=body_s)
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as slow:
            inserted = spawn("insert", url, *more, *["sh", "-c", script] * ("--from" in more), stdin=slow.stdout)
            told = inserted.communicate(timeout=PATIENCE_S)
    assert (inserted.returncode, *told) == (0, "2\n", "")
    assert sorted(task.payload for task in queue.tasks()) == [1, 2]


@pytest.mark.parametrize("form", ["text", "--json"])
@pytest.mark.parametrize("verb", ["complete", "renew"])
def test_lost_leases_are_told_by_an_address_as_by_a_path(
    fsqueue_cli: Run, tmp_path: Path, verb: str, form: str
) -> None:
    """Completed by this lease, by another one, cancelled, dead, released, never leased, and unknown."""
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    found = []
    with gateways(tmp_path) as serve:
        url = serve(group.path)
        for name, place in (("local", str(group.path)), ("remote", url)):
            queue = group[name]
            queue.insert_many(range(5))
            first, second, third, fourth, fifth = queue.lease(5)
            for task in (first, second):
                task.complete()
            third.bury("x")
            fourth.release(3600)
            fifth.release(3600)
            queue.cancel(fifth.id)
            queue.insert(1)
            [waiting] = queue.peek()
            other = "0" * 16
            tokens = [first.token, f"{second.id}@{other}", third.token, fourth.token, fifth.token,
                      f"{waiting.id}@{other}", f"{'0' * 32}.7@{other}"]  # fmt: skip
            options = [form] if form == "--json" else []
            for each in ([first.token], tokens, tokens[-1:]):
                said = fsqueue_cli(verb, f"{place}/{name}", *each, *options, code=None)
                text = (said.exit_code, said.stdout, said.stderr)
                for position, token in enumerate(tokens):
                    for word, told_as in ((token, f"TOKEN{position}"), (token.partition("@")[0], f"T{position}")):
                        text = (text[0], *(part.replace(word, told_as) for part in text[1:]))
                found.append(text)
    assert found[:3] == found[3:]
    assert [code for code, *_ in found[:3]] == [0 if verb == "complete" else 4, 4, 13]


SEVERAL = sorted(name for name, takes in TABLE.items() if takes.several)


@pytest.mark.parametrize("command", [name for name in SEVERAL if name not in ("run", "wait", "status")])
def test_where_one_of_several_queues_fails_the_others_are_done(fsqueue_cli: Run, home: Home, command: str) -> None:
    q, q2, none = home.path / "q", home.path / "q2", home.path / "none"
    result = call(fsqueue_cli, home, command, q, none, q2, of=q)
    assert result.exit_code == fsqueue.QueueNotFound.exit_code, result.output
    assert str(none) in result.stderr
    if command not in ONE_DOCUMENT:
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        assert [one["queue"] for one in lines if set(one) == {"queue", "error"}] == [str(none)]
        assert {str(q), str(q2)} <= {one["queue"] for one in lines}


@pytest.mark.parametrize("mixed", ["paths", "addresses", "addresses of two gateways", "a path and an address"])
def test_wait_for_several_waits_until_all_are_drained(fsqueue_cli: Run, tmp_path: Path, mixed: str) -> None:
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    for name in "ab":
        group[name].insert(1)
    with gateways(tmp_path) as serve:
        first, second = {
            "paths": lambda: (str(group.path), str(group.path)),
            "addresses": lambda: (serve(group.path),) * 2,
            "addresses of two gateways": lambda: (serve(group.path), serve(group.path)),
            "a path and an address": lambda: (str(group.path), serve(group.path)),
        }[mixed]()
        places = [f"{first}/a", f"{second}/b"]
        group["a"].complete(group["a"].lease())
        lines = fsqueue_cli("wait", *places, "--timeout", 0, "--json", code=124).stdout.splitlines()
        assert [(one["queue"], one["waiting"]) for one in map(json.loads, lines)] == [(places[0], 0), (places[1], 1)]
        group["b"].lease()[0].bury("x")
        lines = fsqueue_cli("wait", *places, "--json", code=9).stdout.splitlines()
        assert [(one["queue"], one["dead"]) for one in map(json.loads, lines)] == [(places[0], 0), (places[1], 1)]
        said = fsqueue_cli("status", *places, "--watch").stdout
        assert said.count("waiting 0") == 2
        absent = f"{first}/never"
        assert f"hint: {absent} names no queue" in fsqueue_cli("wait", absent, *places, code=9).stderr


# -- commands that change queues ------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> Group:
    made = Group.create(tmp_path / "crawl", shards=1, durability="none")
    for name in ("a#fetch", "b#fetch", "c#parse"):
        made[name].insert_many([1, 2])
    return made


def test_pause_and_resume_name_each_queue(fsqueue_cli: Run, group: Group) -> None:
    said = fsqueue_cli("pause", group.path, "--match", ".*fetch", "--reason", "full").stdout.splitlines()
    assert [line.partition(" is paused")[0] for line in said] == [f"{group.path}/{name}#fetch" for name in "ab"]
    assert [group[name].paused is not None for name in ("a#fetch", "b#fetch", "c#parse")] == [True, True, False]
    told = [json.loads(line) for line in fsqueue_cli("resume", group.path, "--json").stdout.splitlines()]
    assert [(Path(one["queue"]).name, one["changed"]) for one in told] == [
        ("a#fetch", True), ("b#fetch", True), ("c#parse", False),
    ]  # fmt: skip
    again = fsqueue_cli("resume", group.path / "a#fetch")
    assert (again.stdout, again.stderr) == ("", f"fsqueue: {group.path}/a#fetch was not paused\n")


def test_a_pattern_that_nothing_matches_gets_a_hint_and_no_question(fsqueue_cli: Run, group: Group) -> None:
    for command in (["purge"], ["pause"], ["delete"], ["release-all"], ["gc"]):
        said = fsqueue_cli(*command, group.path, "--match", "fetch").stderr
        assert "has no queue whose whole name matches fetch. The group has a#fetch, b#fetch, c#parse." in said
    assert len([*group.queues()]) == 3


def test_purge_and_delete_of_a_group_say_it_for_each_queue(fsqueue_cli: Run, group: Group) -> None:
    said = fsqueue_cli("purge", group.path, "--match", ".*fetch", "--yes").stdout.splitlines()
    assert said == [
        f"{group.path}/{name}#fetch: dropped 2 unfinished tasks, 0 of them leased, and 0 dead letters" for name in "ab"
    ]
    assert [queue.name for queue in group.queues()] == ["c#parse"]
    assert "--match" in fsqueue_cli("delete", group.path, "--yes", code=2).stderr
    said = fsqueue_cli("delete", group.path, "--match", ".*fetch", "--yes", "--foreground").stdout.splitlines()
    assert [line.partition(": deleted, with 0 unf")[0] for line in said] == [
        f"{group.path}/{name}#fetch" for name in "ab"
    ]
    assert [queue.name for queue in group.queues(tasks_min=0)] == ["c#parse"]


def test_release_all_of_a_group_prints_a_sum(fsqueue_cli: Run, group: Group) -> None:
    for name in ("a#fetch", "c#parse"):
        group[name].lease(2)
    said = fsqueue_cli("release-all", group.path, "--yes").stdout.splitlines()
    assert said == [f"{group.path}/a#fetch: released 2", f"{group.path}/c#parse: released 2", "released 4 in 3 queues"]


def test_a_queue_named_twice_is_one(fsqueue_cli: Run, group: Group) -> None:
    group["a#fetch"].lease(2)
    told = fsqueue_cli("release-all", group.path / "a#fetch", group.path, "--match", ".*", "--yes", code=2)
    assert "--match is for the queues of a group" in told.stderr
    lines = fsqueue_cli("release-all", group.path / "a#fetch", group.path, "--yes", "--json").stdout.splitlines()
    assert [json.loads(line)["released"] for line in lines] == [2, 0, 0]


def test_what_needs_the_files_refuses_an_address(fsqueue_cli: Run, home: Home) -> None:
    for command in (
        ["release-all", "-y", "--offline"], ["gc", "--touch"], ["delete", "-y", "--foreground"],
        ["pause", "--match", "a"],
    ):  # fmt: skip
        said = fsqueue_cli(command[0], f"{home.url}/a", *command[1:], code=2).stderr
        assert home.url in said
    assert Group(home.path / "g")["a"].exists()


def test_a_queue_of_a_group_on_a_gateway_is_deleted_by_its_name(fsqueue_cli: Run, home: Home) -> None:
    fsqueue_cli("delete", f"{home.url}/", "--queue", "a", "-y")
    assert [queue.name for queue in Group(home.path / "g").queues(tasks_min=0)] == ["b"]


# -- workers ---------------------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """A group by its path, or by its gateway's address; and a queue elsewhere."""

    group: Group
    place: str
    other: str

    def end(self, name: str) -> None:
        """Complete what is in a queue."""
        self.group[name].complete(self.group[name].lease(9))


@pytest.fixture(params=["path", "address"])
def places(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Places]:
    group = Group.create(tmp_path / "crawl", shards=1, durability="none", max_attempts=1)
    for name in ("a#fetch", "b#fetch", "c#parse"):
        group[name].insert_many([1, 2])
    other = Queue.create(tmp_path / "other", shards=1, durability="none")
    with gateways(tmp_path) as serve:
        if request.param == "path":
            yield Places(group, str(group.path), str(other.path))
        else:
            yield Places(group, serve(group.path), serve(other.path))


def quoted_in(place: str, name: str) -> str:
    return f"{place}/{quote(name, safe='')}" if place.startswith("http") else f"{place}/{name}"


def test_a_worker_takes_queues_of_a_group_also_those_that_come_later(fsqueue_cli: Run, places: Places) -> None:
    """The command that does the task 1 of a#fetch makes a queue, whose task the same worker does then."""
    later = [sys.executable, "-c", f"""
import os, sys, fsqueue
open("{places.group.path}.log", "a").write(os.environ["FSQUEUE_QUEUE"] + "\\n")
if os.environ["FSQUEUE_QUEUE"].rpartition("/")[2].startswith("a"):
    fsqueue.Group("{places.group.path}")["d#fetch"].insert(3, key="once")
"""]  # fmt: skip
    place = f"{places.place}/"
    report = json.loads(fsqueue_cli("run", place, "--match", ".*#fetch", "--json", "--", *later).stdout)
    assert report["ended"] == "drained"
    assert {name: places.group[name].status().completed for name in ("a#fetch", "b#fetch", "c#parse", "d#fetch")} == {
        "a#fetch": 2, "b#fetch": 2, "c#parse": 0, "d#fetch": report["completed"] - 4,
    }  # fmt: skip
    assert report["completed"] in (5, 6), "by key, one after the other"
    names = Path(f"{places.group.path}.log").read_text().splitlines()
    assert set(names) == {quoted_in(places.place, name) for name in ("a#fetch", "b#fetch", "d#fetch")}
    fsqueue_cli("run", place, "--", "true")
    assert places.group.is_drained()


def test_a_worker_takes_several_queues_and_names_the_letters_of_each(fsqueue_cli: Run, places: Places) -> None:
    several = [quoted_in(places.place, name) for name in ("a#fetch", "c#parse")]
    said = fsqueue_cli("run", *several, "-j", 2, "--", "sh", "-c", '[ "$FSQUEUE_PAYLOAD" = 2 ]', code=9).stderr
    assert [places.group[name].status().dead for name in ("a#fetch", "b#fetch", "c#parse")] == [1, 0, 1]
    for one in several:
        assert f"1 dead letter in the queue. To see why: fsqueue dead list {shlex.quote(one)}" in said
    said = fsqueue_cli("run", f"{places.place}/", "--match", "b.*", "--", "false", code=9).stderr
    assert f"2 dead letters in the group's queues. To see in which: fsqueue status {places.place}" in said
    said = fsqueue_cli("run", quoted_in(places.place, "a#fetch"), "--max-attempts", 4, "--", "true").stderr
    assert "max_attempts=4" in said


def test_a_pattern_that_no_queue_meets_and_a_queue_that_is_not_there_are_hinted_at(
    fsqueue_cli: Run, places: Places
) -> None:
    said = fsqueue_cli("run", f"{places.place}/", "--match", "fetch", "--", "true").stderr
    assert "has no queue whose whole name matches fetch. The group has a#fetch, b#fetch, c#parse." in said
    several = quoted_in(places.place, "a#fetch"), quoted_in(places.place, "a#fetsch")
    assert f"hint: {several[1]} names no queue that is there." in fsqueue_cli("run", *several, "--", "true").stderr


def test_a_worker_of_a_later_stage_ends_when_the_earlier_ones_are_drained_too(fsqueue_cli: Run, places: Places) -> None:
    command = ["run", quoted_in(places.place, "c#parse"), "--upstream", "a#fetch", "--upstream", "b#fetch"]
    places.end("a#fetch")
    places.group["b#fetch"].lease()
    rest = ["--idle-timeout", 3, "--json", "--", "true"]
    assert json.loads(fsqueue_cli(*command, *rest).stdout)["ended"] == "idle"
    places.end("b#fetch")
    assert json.loads(fsqueue_cli(*command, *rest).stdout)["ended"] == "idle", "one task is leased"
    places.group["b#fetch"].release_all()
    places.end("b#fetch")
    assert json.loads(fsqueue_cli(*command, "--json", "--", "true").stdout)["ended"] == "drained"
    said = fsqueue_cli(*command, "--upstream", "c#fetsch", "--", "true").stderr
    assert "hint: --upstream c#fetsch names no queue that is there." in said
    by_place = fsqueue_cli("run", places.other, "--upstream", quoted_in(places.place, "c#parse"), "--", "true")
    assert by_place.exit_code == 0


def test_what_a_worker_cannot_take_together_is_refused(fsqueue_cli: Run, home: Home) -> None:
    for given, why in (
        ([f"{home.url}/a", home.path / "q"], "are not all of one gateway"),
        ([f"{home.url}/a", "--match", "a"], "--match is for the queues of a group"),
        ([home.path / "g/a", "--upstream", f"{home.url}/b"], "Name both by their addresses"),
    ):
        assert why in fsqueue_cli("run", *given, "--", "true", code=2).stderr
    assert [Group(home.path / "g")[name].status().waiting for name in "ab"] == [1, 1]


# -- dead letters and workers ---------------------------------------------------------------------------------------


def test_dead_letters_of_a_group_are_grouped_together(fsqueue_cli: Run, group: Group) -> None:
    for name in ("a#fetch", "b#fetch"):
        [task] = group[name].lease()
        task.bury("timeout after 17 s")
    said = fsqueue_cli("dead", "list", group.path, "--match", ".*")
    head, first, second = said.stdout.splitlines()
    assert head.split()[:2] == ["2", "timeout"]
    assert (first.split()[0], second.split()[0]) == ("a#fetch", "b#fetch")
    assert f"fsqueue dead retry {group.path} --match '.*'" in said.stderr
    assert "a#fetch" in fsqueue_cli("dead", "list", group.path, "--each").stdout
    lines = fsqueue_cli("dead", "retry", group.path, "--where", "error~timeout").stdout.splitlines()
    assert lines == [f"{group.path}/a#fetch: retried 1", f"{group.path}/b#fetch: retried 1", "retried 2 in 3 queues"]
    assert "3 queues" in fsqueue_cli("dead", "list", group.path).stderr


def test_a_mistyped_id_is_no_queue_and_drops_nothing(fsqueue_cli: Run, home: Home) -> None:
    """Taken for a second queue, it would have the command drop all dead letters of the first."""
    q, q2 = Queue(home.path / "q"), home.path / "q2"
    for command in (["dead", "purge", "-y"], ["dead", "retry"]):
        for wrong in ("0193f0c2", "q2", "0193f0c2a4b97c31a2d5e8f001234567"):
            said = fsqueue_cli(*command[:2], q.path, wrong, *command[2:], code=2).stderr
            assert f"./{wrong}" in said
        [letter] = q.dead()
        said = fsqueue_cli(*command[:2], q.path, q2, letter.id, *command[2:], code=2).stderr
        assert "TASKs are of one queue" in said
    assert [one.id for one in q.dead()] == [letter.id]
    assert fsqueue_cli("dead", "purge", q.path, letter.id, "-y").stdout == "1\n"


def test_an_id_that_a_gateways_queue_does_not_know_is_named(fsqueue_cli: Run, home: Home) -> None:
    unknown = "0" * 32 + ".7"
    result = fsqueue_cli("dead", "retry", f"{home.url}/a", unknown, code=fsqueue.TaskNotFound.exit_code)
    assert unknown in result.stderr


def test_workers_of_several_queues_have_a_column_for_their_queue(fsqueue_cli: Run, group: Group, home: Home) -> None:
    heading, *rows = fsqueue_cli("workers", group.path, home.path / "q", home.path / "q2").stdout.splitlines()
    assert heading.split()[:2] == ["QUEUE", "WORKER"]
    assert [row.split()[0] for row in rows] == ["q", "q2"]
    through = [json.loads(line) for line in fsqueue_cli("workers", f"{home.url}/", "--json").stdout.splitlines()]
    assert [(one["queue"], len(one["workers"])) for one in through] == [(f"{home.url}/a", 1), (f"{home.url}/b", 1)]
    assert "is an address" in fsqueue_cli("workers", f"{home.url}/a", "--release-dead", code=2).stderr


# -- results --------------------------------------------------------------------------------------------------------


def test_results_of_a_group_have_the_queue_of_each(fsqueue_cli: Run, home: Home, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in fsqueue_cli("results", home.path / "g", "--json").stdout.splitlines()]
    assert [(Path(one["queue"]).name, one["state"]) for one in lines] == [
        ("a", "completed"), ("a", "dead"), ("b", "completed"), ("b", "dead"),
    ]  # fmt: skip
    for place, of in ((home.path / "g", home.path / "g"), (f"{home.url}/", f"{home.url}")):
        for ending in ("csv", "jsonl", "parquet"):
            file = tmp_path / f"all.{ending}"
            said = fsqueue_cli("results", place, "--where", "state=completed", file, "--json")
            assert json.loads(said.stdout)["rows"] == 2
            assert [str(one) for one in column(file, "queue")] == [f"{of}/a", f"{of}/b"]
    fsqueue_cli("results", home.path / "q", tmp_path / "one.csv")
    assert "queue" not in (tmp_path / "one.csv").read_text().splitlines()[0].split(",")


def column(file: Path, name: str) -> list[Any]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_table(file).column(name).to_pylist())
    if file.suffix == ".csv":
        import csv

        with file.open() as lines:
            return [row[name] for row in csv.DictReader(lines)]
    return [json.loads(line)[name] for line in file.read_text().splitlines()]


def test_a_payload_with_a_field_called_queue_keeps_it(fsqueue_cli: Run, group: Group, tmp_path: Path) -> None:
    group["d"].insert({"queue": "mine"})
    group["d"].lease()[0].complete()
    file = tmp_path / "all.csv"
    fsqueue_cli("results", group.path, file)
    assert (column(file, "payload.queue"), column(file, "queue")) == (["mine"], [f"{group.path}/d"])


def test_retry_of_completed_tasks_of_a_group(fsqueue_cli: Run, home: Home) -> None:
    said = fsqueue_cli("retry", home.path / "g", "--completed", "--where", "result=1").stdout.splitlines()
    assert said[-1] == "retried 2 in 2 queues"
    assert Group(home.path / "g").status().status.completed == 2
    again = fsqueue_cli("retry", home.path / "g", "--completed", "--all")
    assert again.stdout == "retried 0 in 2 queues\n"
    assert again.stderr.count("retried before") == 2


# -- ls -------------------------------------------------------------------------------------------------------------


def test_ls_of_a_group_marks_paused_queues(fsqueue_cli: Run, home: Home) -> None:
    fsqueue_cli("pause", home.path / "g/b", "--reason", "disk full")
    for place in (home.path / "g", f"{home.url}/"):
        first, second = fsqueue_cli("ls", place).stdout.splitlines()
        assert (first, "b  (paused since " in second, "disk full" in second) == (f"{2:>12}  a", True, True)
        told = [json.loads(line) for line in fsqueue_cli("ls", place, "--json").stdout.splitlines()]
        assert [one["paused"] and one["paused"]["reason"] for one in told] == [None, "disk full"]
    assert fsqueue_cli("ls", f"{home.url}/", "--min", 0).stdout.split() == ["a", "b"]


def test_ls_lists_tasks_of_several_queues(fsqueue_cli: Run, home: Home) -> None:
    heading, *rows = fsqueue_cli("ls", home.path / "g", "--state", "leased").stdout.splitlines()
    assert heading.split()[:2] == ["QUEUE", "TASK"]
    assert [row.split()[0] for row in rows] == ["a", "b"]
    lines = fsqueue_cli("ls", home.path / "q", f"{home.url}/a", "--json").stdout.splitlines()
    assert [json.loads(line)["queue"] for line in lines] == [str(home.path / "q")] * 2 + [f"{home.url}/a"] * 2
    assert (
        len(fsqueue_cli("ls", home.path / "g", "--where", "payload>1", "--limit", 3, "--json").stdout.split("\n")) == 4
    )
    assert "--min" in fsqueue_cli("ls", home.path / "g", "--state", "dead", "--min", 2, code=2).stderr
