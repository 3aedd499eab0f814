"""Groups of queues on the command line."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Group, GroupQueue, Queue, Status
from tests.cli.conftest import Run, Spawn
from tests.gateways import gateways
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path, fsqueue_cli: Run) -> Group:
    fsqueue_cli("create", "--group", tmp_path / "g", "--lease", "5m", "--shards", 2, "--durability", "none")
    return Group(tmp_path / "g")


def test_a_group_is_created_once_with_the_settings_of_its_queues(fsqueue_cli: Run, group: Group) -> None:
    assert (group.settings.lease_s, group.settings.shards) == (300, 2)
    said = fsqueue_cli("create", "--group", group.path, code=1).stderr
    assert f"There is a group of queues at {group.path} already." in said
    assert "Use it as it is (--exist-ok)" in said
    assert "exist_ok" not in said, "the words of Python"
    again = fsqueue_cli("create", "--group", group.path, "--exist-ok", "--json").stdout
    assert json.loads(again)["created"] is False
    fsqueue_cli("create", "--group", group.path, "--exist-ok", "--lease", "7m", code=2)
    fsqueue_cli("create", "--group", group.path, "--lease", "0", code=2)
    assert sorted(os.listdir(group.path)) == [".bells", ".group.jsonl"]


def test_a_queue_comes_into_being_below_a_group_and_nowhere_else(
    fsqueue_cli: Run, group: Group, tmp_path: Path
) -> None:
    assert fsqueue_cli("insert", f"{group.path}/google.com#fetch", "--task", '{"page": 1}').stdout == "1\n"
    assert fsqueue_cli("insert", f"fq://{group.path}/a/b", input="1\n2\n").stdout == "2\n"
    assert fsqueue_cli("insert", group.path / "once", "--commit", "c", input="1\n").stdout == "1\n"
    assert [queue.name for queue in group.queues()] == ["a/b", "google.com#fetch", "once"]
    fsqueue_cli("insert", tmp_path / "typo" / "fetch", "--task", "1", code=5)
    fsqueue_cli("insert", group.path, "--task", "1", code=5)
    fsqueue_cli("insert", group.path / "google.com%23fetch", "--task", "1", code=2)
    fsqueue_cli("insert", group.path / ("x" * 256), "--task", "1", code=2)
    fsqueue_cli("create", group.path / "new", code=2)
    assert os.listdir(tmp_path) == ["g"]
    assert len(group.matching(".*").directories()) == 3


def test_status_shows_what_the_files_of_a_group_take(fsqueue_cli: Run, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "crawl", shards=1, durability="none")
    for name in ("a/b", "c"):
        group[name].insert(1)
    group["c"].insert(2)
    with group.update() as update:
        update.complete(group["c"].lease()[0])
        update.insert("a/b", 3)
    lines = fsqueue_cli("status", group.path, "--usage").stdout.splitlines()
    heads = [line.split() for line in lines if "DIRECTORIES" in line]
    assert heads == [["crawl", "FILES", "DIRECTORIES", "BYTES"]], "one table, and not one for each queue"
    assert ["updates", "1", "1"] in [line.split()[:3] for line in lines]
    *queues, whole = map(json.loads, fsqueue_cli("status", group.path, "--usage", "--json").stdout.splitlines())
    assert whole["group"] == str(group.path)
    assert whole["usage"]["all"]["files"] == group.usage()["all"].files
    assert all(one["usage"]["all"]["files"] for one in queues)
    assert sum(one["usage"]["logs"]["files"] for one in queues) == whole["usage"]["logs"]["files"]
    heads = fsqueue_cli("status", group.path, "--match", "c", "--usage").stdout
    assert "updates" not in heads


def test_every_command_takes_a_queue_that_never_was(fsqueue_cli: Run, group: Group) -> None:
    path = group.path / "never"
    for command in (
        ["status"], ["status", "--json", "--usage", "--priorities"], ["wait"], ["ls"], ["results"], ["gc"], ["fsck"],
        ["dead", "list"], ["dead", "purge", "--yes"], ["release-all", "--yes"], ["purge", "--yes"],
    ):  # fmt: skip
        place = 2 if command[0] == "dead" else 1
        fsqueue_cli(*command[:place], path, *command[place:])
    fsqueue_cli("run", path, "--", "true")
    fsqueue_cli("lease", path, code=3)
    fsqueue_cli("show", path, "0" * 32 + ".0", code=13)
    for command in (["pause"], ["resume"], ["set", "lease_s=5"], ["delete", "--yes"], ["workers"]):
        said = fsqueue_cli(command[0], path, *command[1:], code=5)
        assert "There is no queue 'never'" in said.stderr
    assert sorted(os.listdir(group.path)) == [".bells", ".group.jsonl"]


def test_leases_of_a_queue_of_a_group(fsqueue_cli: Run, group: Group) -> None:
    path = f"{group.path}/a#b"
    fsqueue_cli("insert", path, input="1\n2\n")
    tokens = [json.loads(line)["token"] for line in fsqueue_cli("lease", path, "-n", 2, "--json").stdout.splitlines()]
    fsqueue_cli("complete", path, tokens[0])
    fsqueue_cli("bury", path, tokens[1], "--reason", "broken")
    assert group["a#b"].status() == Status(completed=1, dead=1)
    assert "broken" in fsqueue_cli("dead", "list", path).stdout
    fsqueue_cli("set", path, "max_attempts=2")
    assert group["a#b"].settings.max_attempts == 2
    fsqueue_cli("wait", path, code=9)


def test_lease_waits_for_the_queue_itself(spawn: Spawn, group: Group) -> None:
    leasing = spawn("lease", group.path / "late", "--wait", "60", "--json")
    group["late"].insert("task")
    said, _ = leasing.communicate(timeout=PATIENCE_S)
    assert json.loads(said)["payload"] == "task"


def test_ls_lists_the_queues_with_tasks(fsqueue_cli: Run, group: Group) -> None:
    group["a#fetch"].insert_many(range(3))
    group["b#fetch"].insert(1)
    group["c#parse"].insert(1)
    group["done"].insert(1)
    group["done"].lease()[0].complete()
    lines = fsqueue_cli("ls", group.path).stdout.splitlines()
    assert [line.split() for line in lines] == [["3", "a#fetch"], ["1", "b#fetch"], ["1", "c#parse"]]
    found = fsqueue_cli("ls", group.path, "--match", ".*#fetch", "--min", 2, "--json").stdout
    assert json.loads(found) == {
        "name": "a#fetch", "queue": f"{group.path}/a#fetch", "remaining": 3, "paused": None
    }  # fmt: skip
    assert fsqueue_cli("ls", group.path, "--min", 0, "--limit", 3).stdout.split() == ["a#fetch", "b#fetch", "c#parse"]
    assert fsqueue_cli("ls", group.path, "--min", 0).stdout.split()[-1] == "done"
    none = fsqueue_cli("ls", group.path, "--match", "fetch")
    assert "has no queue whose whole name matches fetch with 1 unfinished task or more; --min 0" in none.stderr
    for wrong in (["--match", "("], ["--min", "-1"]):
        fsqueue_cli("ls", group.path, *wrong, code=2)
    fsqueue_cli("ls", group.path / "done", "--match", "x", code=2)


def test_status_of_a_group_hides_what_had_no_task(fsqueue_cli: Run, group: Group) -> None:
    group["a#fetch"].insert_many(range(3))
    group["b#parse"].insert(1)
    group["empty"].commit("c")
    table = fsqueue_cli("status", group.path).stdout
    assert "a#fetch" in table
    assert "all" in table
    assert "empty" not in table
    one = json.loads(fsqueue_cli("status", group.path, "--match", ".*fetch", "--json").stdout)
    assert (one["queue"], one["waiting"]) == (f"{group.path}/a#fetch", 3)
    none = fsqueue_cli("status", group.path, "--match", "fetch").stdout
    assert none == "no queue here with a name that matches fetch has had a task\n", "there are others"
    fsqueue_cli("status", group.path / "b#parse", "--match", "x", code=2)


def test_status_of_a_group_counts_queues_whose_names_are_no_paths(fsqueue_cli: Run, group: Group) -> None:
    names = ["..", ".", "a//b", "/etc", "t/", "x/../y", "http://a.org/b"]
    for name in names:
        group[name].insert(1)
    lines = map(json.loads, fsqueue_cli("status", group.path, "--json").stdout.splitlines())
    assert {line["queue"]: line["waiting"] for line in lines} == {f"{group.path}/{name}": 1 for name in names}
    assert fsqueue_cli("insert", f"{group.path}/http://a.org/b", "--lines", input="1\n").stdout == "1\n"
    assert group["http://a.org/b"].status().waiting == 2


def test_a_pattern_takes_a_queue_with_a_line_break_in_its_name(fsqueue_cli: Run, group: Group) -> None:
    group["two\nlines"].insert({"page": 1})
    fsqueue_cli("wait", group.path, "--match", ".*", "--timeout", 0, code=124)
    fsqueue_cli("run", group.path, "--match", "two.*", "--", "true")
    assert group["two\nlines"].status().completed == 1
    assert "1 of 1" in fsqueue_cli("wait", group.path, "--match", ".*").output


def test_run_takes_queues_by_a_pattern(fsqueue_cli: Run, group: Group) -> None:
    group["a#fetch"].insert({"page": 1})
    group["b#fetch"].insert({"page": 2})
    group["b#parse"].insert({"page": 3})
    ran = fsqueue_cli("run", group.path, "--match", ".*#fetch", "--json", "--", "test", "{page}", "-lt", "3").stdout
    assert json.loads(ran)["completed"] == 2
    assert group.status(".*parse").status == Status(waiting=1)
    fsqueue_cli("run", f"{group.path}/b#parse", group.path, "--", "true")
    assert group.wait() == Status(completed=3)
    fsqueue_cli("run", group.path, "--match", "(", "--", "true", code=2)


def test_a_command_of_a_worker_can_use_the_path_that_it_is_given(fsqueue_cli: Run, group: Group) -> None:
    group["a#b"].insert(1)
    fsqueue_cli("run", group.path, "--result-stdout", "--", "sh", "-c", 'printf \'"%s"\' "$FSQUEUE_QUEUE"')
    [result] = group["a#b"].results()
    assert result.result == f"{group.path}/a#b"
    assert json.loads(fsqueue_cli("status", result.result, "--json").stdout)["completed"] == 1


def test_a_worker_finds_a_queue_that_comes_later(spawn: Spawn, group: Group) -> None:
    running = spawn("run", group.path, "--forever", "--max-tasks", 2, "--", "true")
    group["one"].insert(1)
    until(lambda: group.status().status.completed, "the first")
    group["two"].insert(2)
    assert running.wait(timeout=PATIENCE_S) == 0
    assert group.status().status == Status(completed=2)


def test_a_later_stage_ends_when_the_earlier_one_is_drained(spawn: Spawn, fsqueue_cli: Run, group: Group) -> None:
    group["fetch"].insert(1)
    [task] = group["fetch"].lease()
    later = spawn("run", group.path / "parse", "--upstream", "fetch", "--json", "--", "true")
    group["parse"].insert(2)
    until(lambda: group["parse"].status().completed, "the task of the later stage")
    task.complete()
    assert json.loads(later.communicate(timeout=PATIENCE_S)[0])["completed"] == 1
    fsqueue_cli("run", group.path / "parse", "--upstream", "x" * 256, "--", "true", code=2)


def test_an_earlier_stage_that_is_not_there_is_named_once(fsqueue_cli: Run, group: Group) -> None:
    group["fetch"].insert(1)
    group["parse"].insert(2)
    group["parse"].lease()[0].complete()
    said = fsqueue_cli("run", group.path / "fetch", "--upstream", "fecth", "--upstream", "parse", "--", "true").stderr
    assert said.count("names no queue that is there") == 1
    assert "--upstream fecth names no queue that is there. The group has fetch, parse. It counts as drained" in said
    assert "no queue that is there" in fsqueue_cli("run", group.path, "--upstream", "x", "--", "true").stderr


def test_a_worker_says_that_no_queue_of_the_group_matches(fsqueue_cli: Run, spawn: Spawn, group: Group) -> None:
    assert "The group has no queue yet." in fsqueue_cli("run", group.path, "--match", "x", "--", "true").stderr
    for number in range(11):
        group[f"q{number:02}"].insert(number)
    said = fsqueue_cli("run", group.path, "--match", "q", "--", "true").stderr
    assert f"{group.path} has no queue whose whole name matches q. The group has q00, q01," in said
    assert f"q09, and more: 'fsqueue ls --min 0 {group.path}' lists them. Queues that come later are taken, too" in said
    assert "no queue" not in fsqueue_cli("run", group.path, "--match", "q0.", "--json", "--", "true").stderr
    later = spawn("run", group.path, "--match", "later", "--forever", "--log-json", "--", "true")
    assert later.stderr is not None
    assert "no queue whose whole name matches later" in json.loads(later.stderr.readline())["text"]
    group["later"].insert(1)
    until(lambda: group["later"].status().completed, "the queue that comes later")
    later.terminate()
    later.communicate()


def test_a_queue_that_is_not_there_is_named(fsqueue_cli: Run, group: Group) -> None:
    """A name with a typo is an empty queue: `wait` would let a script go on as if all were done."""
    group["fetch"].insert(1)
    told = "fecth names no queue that is there. The group has fetch. It counts as drained"
    assert f"hint: {group.path}/{told}" in fsqueue_cli("wait", group.path / "fecth").stderr
    assert f"hint: {group.path}/{told}" in fsqueue_cli("run", group.path / "fecth", "--", "true").stderr
    unmatched = f"{group.path} has no queue whose whole name matches x. The group has fetch."
    assert unmatched in fsqueue_cli("wait", group.path, "--match", "x").stderr
    twice = fsqueue_cli("run", group.path / "x", "--upstream", "x", "--", "true").stderr
    assert twice.count("names no queue that is there") == 1
    later = ("run", group.path / "parse", "--upstream", "fetch", "--idle-timeout", "0.1", "--", "true")
    assert "no queue that is there" not in fsqueue_cli(*later).stderr, "the earlier stage makes it"
    fsqueue_cli("run", group.path / "fetch", "--", "true")
    assert "hint" not in fsqueue_cli("wait", group.path / "fetch").stderr


def test_dead_letters_of_a_group_are_told_with_a_command_that_finds_them(fsqueue_cli: Run, group: Group) -> None:
    group["a b"].insert("false")
    group["c"].insert("true")
    said = fsqueue_cli("run", group.path, "--match", "a .*", "--max-attempts", "1", "--", "{}", code=9).stderr
    words = _to_type(said, "1 dead letter in the group's queues. To see in which: ")
    assert words == ["status", str(group.path), "--match", "a .*"]
    assert "1 dead" in fsqueue_cli(*words).output


def test_a_command_to_type_names_a_path_with_blanks_as_a_shell_needs_it(fsqueue_cli: Run, tmp_path: Path) -> None:
    """Typed as it was told, `rm -r a b` would remove two other directories."""
    path = tmp_path / "a b"
    assert str(path) not in fsqueue_cli("status", path, code=5).stderr.partition("Else check the path")[2]
    (tmp_path / "other").touch()  # else it may be a mount point without its filesystem
    to_create = _to_type(fsqueue_cli("status", path, code=5).stderr, "or create it: ")
    assert to_create == _to_type(fsqueue_cli("insert", path, "--task", "1", code=5).stderr, "or create it: ")
    fsqueue_cli(*to_create)
    assert Queue(path).status() == Status()
    fsqueue_cli("delete", path, "--yes", "--foreground")
    fsqueue_cli(*_to_type(fsqueue_cli("update", path, "--insert", "q=1", code=5).stderr, "or create it: "))
    fsqueue_cli("insert", path / "c d", "--task", "1")
    to_list = _to_type(fsqueue_cli("insert", path, "--task", "1", code=5).stderr, "To list them: ")
    assert "c d" in fsqueue_cli(*to_list).output
    removing = fsqueue_cli("delete", path, code=2).stderr
    assert shlex.split(removing.partition(" any more: ")[2]) == ["rm", "-r", str(path)]
    assert f"set '{path}/NAME' NAME=VALUE" in fsqueue_cli("set", path, "lease_s=3", code=2).stderr
    assert f"insert '{path}/NAME'." in fsqueue_cli("create", path / "e", code=2).stderr
    assert f"name: '{path}/c d'" in fsqueue_cli("insert", path / "c%20d", "--task", "1", code=2).stderr


def _to_type(said: str, before: str) -> list[str]:
    """Return the words that a shell makes of the command which a message tells to type, without `fsqueue`."""
    [line] = [line for line in said.splitlines() if before in line]
    program, *words = shlex.split(line.partition(before)[2])
    assert program == "fsqueue"
    return words


def test_one_queue_at_most_is_the_next_one(fsqueue_cli: Run, group: Group) -> None:
    group["fetch"].insert(1)
    said = fsqueue_cli("run", group.path / "fetch", "--then", "a", "--then", "b", "--", "echo", "1", code=2).stderr
    assert "--then takes one queue, not 2" in said
    assert group["fetch"].status().waiting == 1


def test_a_path_into_the_group_is_no_name_of_a_queue(
    fsqueue_cli: Run, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one: names may have slashes. The task would be in a queue that no worker asks."""
    group["fetch"].insert(1)
    monkeypatch.chdir(tmp_path)
    for path, *command in (
        ("g/next", "run", "g/fetch", "--then", "g/next", "--", "echo", "1"),
        ("./g//next", "run", "g", "--then", "./g//next", "--", "echo", "1"),
        ("g/next", "run", "g/fetch", "--upstream", "g/next", "--", "true"),
        (f"{group.path}/next", "update", "g", "--insert", f"{group.path}/next=1"),
        (f"fq://{group.path}/next", "update", "g", "--cancel", f"fq://{group.path}/next=1@2"),
        (f"../{tmp_path.name}/g/next", "delete", "g", "--queue", f"../{tmp_path.name}/g/next", "--yes"),
    ):
        said = fsqueue_cli(*command, code=2).stderr
        assert f"'{path}' is a path. Nothing was done. Name the queue as it is called in the group: next" in said
    assert "is called in the group: a/b" in fsqueue_cli("update", "g", "--insert", f"{group.path}/a/b=1", code=2).stderr
    for path in ("./g", str(group.path), "g/"):
        assert "is the group. Nothing" in fsqueue_cli("update", "g", "--insert", f"{path}=1", code=2).stderr
    monkeypatch.chdir(group.path)
    assert "in the group: b" in fsqueue_cli("update", ".", "--insert", "./b=1", code=2).stderr
    assert [queue.name for queue in group.queues(tasks_min=0)] == ["fetch"]


def test_an_address_is_no_name_of_a_queue(fsqueue_cli: Run, group: Group, tmp_path: Path) -> None:
    """The tasks would be in a queue of that name, and no worker would ask for them."""
    group["fetch"].insert(1)
    with gateways(tmp_path) as serve:
        url = f"{serve(group.path)}/"
        for options in (("--then", f"{url}next"), ("--then-to", f"{url}next", "--on", "oom")):
            said = fsqueue_cli("run", f"{url}fetch", *options, "--", "echo", "1", code=2).stderr
            assert f"'{url}next' is an address. Nothing was done." in said
            assert "as it is called in the group: next" in said


def test_a_path_into_another_group_is_no_name_of_a_queue(
    fsqueue_cli: Run, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be one of the own group, and the other group's queue would get nothing."""
    group["fetch"].insert(1)
    other = Group.create(tmp_path / "far" / "h", shards=2)
    (tmp_path / "link").symlink_to(other.path)
    (tmp_path / "own").symlink_to(group.path)
    monkeypatch.chdir(tmp_path)
    for path in ("far/h/b", f"{other.path}/new", "link/a/b", "./far/h/b"):
        for command in (
            ("run", "g/fetch", "--then", path, "--", "echo", "1"),
            ("run", "g", "--upstream", path, "--", "true"),
            ("update", "g", "--insert", f"{path}=1"),
        ):
            said = fsqueue_cli(*command, code=2).stderr
            assert f"'{path}' leads into another group" in said
            assert "Nothing was done" in said
    assert "is called in the group: b" in fsqueue_cli("update", "g", "--insert", "own/b=1", code=2).stderr
    monkeypatch.chdir(other.path)
    fsqueue_cli("update", group.path, "--insert", "a/b=1")
    assert [queue.name for queue in group.queues(tasks_min=0)] == ["a/b", "fetch"]
    assert [*other.queues(tasks_min=0)] == []


def test_names_with_slashes_are_names(
    fsqueue_cli: Run, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["google.com/x#fetch", "https://a.org/g/../b", "/etc/passwd", "../h/a", "./b", "g", f"{group.path}2/a"]
    monkeypatch.chdir(tmp_path)
    fsqueue_cli("update", "g", *(word for name in names for word in ("--insert", f"{name}=1")))
    monkeypatch.chdir(group.path)
    fsqueue_cli("update", ".", "--insert", "x/y=1", "--insert", "fetch=1")
    fsqueue_cli("run", "fetch", "--then", "a/b", "--", "echo", "2")
    monkeypatch.chdir(tmp_path)
    assert {queue.name for queue in group.queues()} == {*names, "x/y", "a/b"}
    token = group["./b"].lease()[0].token
    fsqueue_cli("update", group.path, "--complete", f"./b={token}")


def test_wait_for_a_group(fsqueue_cli: Run, group: Group) -> None:
    group["a"].insert(1)
    group["b"].insert(1)
    assert fsqueue_cli("wait", group.path, "--timeout", "0.01", code=124).stdout
    [task] = group["a"].lease()
    task.bury("bad")
    fsqueue_cli("wait", group.path, "--match", "a", code=9)
    [task] = group["b"].lease()
    task.complete()
    said = json.loads(fsqueue_cli("wait", group.path, "--match", "b", "--json").stdout)
    assert (said["completed"], said["queue"]) == (1, str(group.path))


def test_delete_one_queue_of_a_group(fsqueue_cli: Run, group: Group) -> None:
    for name in ("a/b", "c"):
        group[name].insert(1)
    assert "--queue NAME" in fsqueue_cli("delete", group.path, "--yes", code=2).stderr
    deleted = json.loads(fsqueue_cli("delete", group.path, "--queue", "a/b", "--yes", "--json").stdout)
    assert (deleted["queue"], deleted["deleted"], deleted["waiting"]) == (f"{group.path}/a/b", True, 1)
    fsqueue_cli("delete", f"{group.path}/c", "--yes")
    fsqueue_cli("delete", group.path, "--queue", "c", "--yes", code=5)
    assert [*group.queues(tasks_min=0)] == []


def test_commands_that_go_over_all_queues(fsqueue_cli: Run, group: Group, tmp_path: Path) -> None:
    for name in "ab":
        group[name].insert(1)
    Queue.create(tmp_path / "stray")
    (tmp_path / "stray").rename(group.path / "stray")
    (Path(group["b"].store.layout.tasks) / "00").mkdir(exist_ok=True)
    (Path(group["b"].store.layout.tasks) / "00" / f"{0:013d}-{'0' * 32}-1.jsonl").write_text("")
    assert fsqueue_cli("fsck", group.path, code=10).stdout.startswith("b:\n")
    assert json.loads(fsqueue_cli("fsck", group.path, "--json", code=10).stdout)["queue"] == f"{group.path}/b"
    fsqueue_cli("fsck", group.path, "--repair")
    assert json.loads(fsqueue_cli("gc", group.path, "--json").stdout)["busy"] == 0
    assert "not made in this group" in fsqueue_cli("gc", group.path).stderr
    assert json.loads(fsqueue_cli("doctor", f"{group.path}/a", "--json").stdout)["verdict"]
    assert json.loads(fsqueue_cli("doctor", group.path, "--json").stdout)["verdict"]


@pytest.mark.parametrize(
    "command",
    [["show", "x"], ["lease"]],
)
def test_commands_for_one_queue_say_so(fsqueue_cli: Run, group: Group, command: list[str]) -> None:
    verb, *rest = command
    said = fsqueue_cli(*verb.split(), group.path, *rest, code=5).stderr
    assert f"Name one of its queues ({group.path}/NAME)" in said


def test_names_are_escaped_on_the_terminal(fsqueue_cli: Run, group: Group) -> None:
    group["\x1b[31mred\n"].insert(1)
    for command in (["ls"], ["ls", "--min", "0"], ["status"]):
        assert "\x1b" not in fsqueue_cli(command[0], group.path, *command[1:]).stdout
    assert isinstance(next(group.queues()), GroupQueue)


def test_a_link_in_the_place_of_the_groups_own_file_is_told_and_no_group_is_advised(
    fsqueue_cli: Run, group: Group, tmp_path: Path
) -> None:
    group["q"].insert(1)
    (group.path / ".group.jsonl").rename(tmp_path / "aside")
    (group.path / ".group.jsonl").symlink_to(tmp_path / "aside")
    for command in (
        ["status", group.path],
        ["wait", group.path, "--timeout", "1"],
        ["ls", group.path, "--match", "q"],
        ["run", group.path, "--match", "q", "--", "true"],
        ["delete", group.path, "--queue", "q", "--yes"],
    ):
        assert ".group.jsonl is no regular file" in fsqueue_cli(*command, code=5).output, command


def test_a_queue_that_was_moved_into_a_group_is_listed_by_its_name_alone(fsqueue_cli: Run, tmp_path: Path) -> None:
    Group.create(tmp_path / "g")["own"].insert(1)
    with Queue.create(tmp_path / "moved") as queue:
        queue.insert(2)
    (tmp_path / "moved").rename(tmp_path / "g" / "moved")
    listed = [fsqueue_cli("ls", tmp_path / "g", *more).stdout.split() for more in (["--min", "0"], [])]
    assert sorted(listed[0]) == ["moved", "own"]
    assert "moved" not in listed[1]
    assert "own" in listed[1]
    assert "was not made in this group" in fsqueue_cli("status", tmp_path / "g" / "moved", code=5).stderr


def moved_queue(home: Path) -> None:
    with Queue.create(home / "moved") as queue:
        queue.insert(2)
    (home / "moved").rename(home / "g" / "moved")


def moved_group(home: Path) -> None:
    Group.create(home / "moved")["inner"].insert(2)
    (home / "moved").rename(home / "g" / "moved")


@pytest.mark.parametrize(
    ("move", "text"), [(moved_queue, "was not made in this group"), (moved_group, "is a group of its own, and lies in")]
)
def test_what_was_moved_into_a_group_is_named_by_each_command_and_is_there_when_it_is_moved_out(
    fsqueue_cli: Run, caplog: pytest.LogCaptureFixture, tmp_path: Path, move: Callable[[Path], None], text: str
) -> None:
    place = tmp_path / "g"
    Group.create(place, shards=2)["own"].insert(1)
    move(tmp_path)

    def names_it(*command: str, code: int = 0) -> str:
        caplog.clear()
        done = fsqueue_cli(command[0], place, *command[1:], code=code)
        assert text in done.stderr + caplog.text, command
        return done.stdout

    names_it("status", code=5)
    names_it("run", "--", "true")
    names_it("wait")
    names_it("gc")
    assert "nothing else was found" in names_it("fsck")
    names_it("delete", "--match", "moved", "--yes")
    (place / "moved").rename(tmp_path / "out")
    assert json.loads(fsqueue_cli("status", tmp_path / "out", "--json").stdout)["waiting"] == 1
    caplog.clear()
    assert fsqueue_cli("wait", place).stderr + caplog.text == ""
