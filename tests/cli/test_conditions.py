"""Conditions of `--where`: the same fields for tasks, results and dead letters, in all commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fsqueue_cli.conditions import FIELDS, all_of, condition

from fsqueue import DeadLetter, Group, Queue, Result, Task
from tests.cli.conftest import Run
from tests.cli.test_options import OPTIONS
from tests.cli.test_targets import TABLE
from tests.gateways import gateways

ID = f"{1:032x}.0"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("payload.name=x y", True),
        ("payload.name!=x y", False),
        ("payload.n=3", True),
        ("payload.n = 3", True),
        ("payload.n<3", False),
        ("payload.n<=3", True),
        ("payload.n>3", False),
        ("payload.deep.er>=1", False),
        ("payload.n>2.5", True),
        ("payload.name>1", False),
        ("payload.none=", True),
        ("payload.deep.er=true", True),
        ("payload.n.more=1", False),
        ("error~^Key", True),
        ("error!~^Key", False),
        ("host=node1", True),
        ("attempts>=5", True),
        ("finished_at<100", True),
        ('payload~"n":3', True),
        (f"id={ID}", True),
        ("payload.name~=x", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    payload = {"name": "x y", "n": 3, "deep": {"er": True}}
    letter = DeadLetter(ID, payload, "KeyError: 'x'\nmore", 99.5, 5, {"host": "node1", "pid": 7})
    meets = all_of((condition(text),))
    assert meets is not None
    assert meets(letter) is holds


def ids(listed: str) -> set[str]:
    return {json.loads(line)["id"] for line in listed.splitlines()}


def typed(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_means_the_same_of_tasks_results_and_dead_letters(fsqueue_cli: Run, mixed: Queue, field: str) -> None:
    """As `fsqueue results` shows it: what it prints can be typed."""
    for result in {result.state: result for result in mixed.results()}.values():
        of = result.as_dict()
        where = ("--where", f"{field}={typed(of[field])}", "--where", f"id={result.id}", "--json")
        commands = [("results",), ("ls", "--state", result.state)] + [("dead", "list")] * (result.state == "dead")
        for command in commands:
            assert ids(fsqueue_cli(*command, mixed.path, *where).stdout) == {result.id}, command
            other = ("--where", f"{field}!={typed(of[field])}", *where[2:])
            assert ids(fsqueue_cli(*command, mixed.path, *other).stdout) == set(), command


STATES = {
    "ls": "waiting",
    "cancel": "waiting",
    "change": "waiting",
    **dict.fromkeys(("export", "cp", "mv"), "waiting"),
    "results": "completed",
    "retry --completed": "completed",
}
"""In which state the task is that a command is about; all others are about dead letters."""
CONDITIONAL = [name for name, option in OPTIONS if "--where" in option.opts]
PLACES = [
    (command, place)
    for command in (*CONDITIONAL, "retry --completed")
    for place, is_taken in zip(("queue", *TABLE["ls"]._fields), (True, *TABLE[command.split(" --")[0]]), strict=True)
    if is_taken
]
"""Each command that has conditions, with all that docs/targets.md says it takes in place of a queue."""


class Home(NamedTuple):
    """A group with a gateway; each of its queues has a task in each of three states, with a key and a priority."""

    given: dict[str, list[str]]
    """What to type for a queue of the group, the group, several of its queues, and the queue's address."""
    of_state: dict[str, Result]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    group = Group.create(tmp_path / "g", shards=1, durability="none", max_attempts=1)
    of_state: dict[str, Result] = {}
    for name in ("b", "a"):
        queue = group[name]
        queue.insert_many([Task({"n": n}, key=f"k{n}", priority=n) for n in range(3)])
        completed, dead = queue.lease(2, holder={"host": "node1", "name": "ann"})
        completed.complete({"loss": 0.5})
        dead.bury("timeout")
        of_state = {one.state: one for one in (*queue.results(), queue.peek()[0].as_result())}
    with gateways(tmp_path) as serve:
        a, b = (str(queue.path) for queue in (group["a"], group["b"]))
        given = {"queue": [a], "group": [str(group.path)], "several": [b, a], "address": [f"{serve(group.path)}/a"]}
        yield Home(given, of_state)


@pytest.mark.parametrize(("command", "place"), PLACES)
def test_each_field_chooses_in_each_command_and_place(fsqueue_cli: Run, home: Home, command: str, place: str) -> None:
    one = home.of_state[STATES.get(command, "dead")]
    of = one.as_dict()
    yes = ["--yes"] * any(name == command.split(" --")[0] and "--yes" in option.opts for name, option in OPTIONS)

    def taken(*conditions: str) -> int:
        name, *options = command.split(" --")
        where = [word for condition in conditions for word in ("--where", condition)]
        more = [f"--{option}" for option in options]
        if command == "change":
            more = ["--priority", "7"]
        if command in ("cp", "mv"):
            more = [f"{home.given['group'][0]}/dst"]
        result = fsqueue_cli(*name.split(), *home.given[place], *more, *where, *yes, "--json", code=None)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        if command == "change":
            assert result.exit_code == (0 if lines[0]["changed"] else 3)
            return len(lines[0]["changed"])
        assert result.exit_code == (3 if command == "mv" and not lines[0]["moved"] else 0)
        counts = ("cancelled", "retried", "purged", "inserted", "moved")
        return sum(next((line[did] for did in counts if did in line), 1) for line in lines)

    for field in FIELDS:
        assert taken(f"id={one.id}", f"{field}!={typed(of[field])}") == 0, field
    assert taken(*(f"{field}={typed(of[field])}" for field in FIELDS)) == 1


def test_ls_chooses_unfinished_tasks(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([{"n": n} for n in range(5)])
    [task] = queue.lease()
    listed = fsqueue_cli("ls", queue.path, "--where", f"started_at<{task.lease_until}", "--json").stdout
    assert ids(listed) == {task.id}, "only a leased one has been started"
    assert ids(fsqueue_cli("ls", queue.path, "--where", "state=waiting", "--json", "--limit", "2").stdout) < {
        info.id for info in queue.tasks("waiting")
    }
    nothing = fsqueue_cli("ls", queue.path, "--where", "payload.n>9")
    assert (nothing.stdout, nothing.stderr) == ("", f"{queue.path} has no unfinished tasks that meet the conditions\n")


def test_cancel_takes_what_no_worker_holds_and_meets_the_conditions(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([{"n": n} for n in range(8)], batch_tasks=1)
    held = {task.payload["n"] for task in queue.lease(2)}
    waiting = {task.payload["n"]: task.id for task in queue.tasks("waiting")}
    (first, id_of_first), (_, id_of_second), *_ = waiting.items()
    named = f"{id_of_first}\n{id_of_second}\n"
    one = ("cancel", queue.path, "-", "--where", f"payload.n={first}")
    assert fsqueue_cli(*one, "--yes", input=named).stdout == "1\n"
    rest = ("cancel", queue.path, "--where", "payload.n>=0")
    assert "add --yes" in fsqueue_cli(*rest, code=2).stderr
    assert fsqueue_cli(*rest, "--yes").stdout == "5\n"
    assert {task.payload["n"] for task in queue.tasks()} == held
    assert fsqueue_cli(*rest).stdout == "0\n", "where nothing is destroyed, nothing is asked"
    assert "purge" in fsqueue_cli("cancel", queue.path, code=2).stderr


def test_results_have_all_fields() -> None:
    assert Result._fields == FIELDS
    assert {"payload", "key", "priority"} < set(FIELDS), "all that a task is inserted with"
