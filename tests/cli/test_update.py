"""fsqueue update: several queues of a group in one step; and `run --then`, `show` over stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group
from tests.cli.conftest import Run

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


@pytest.fixture
def place(group: Group, place_of: Callable[[Path], str]) -> str:
    """The group's path, or its address."""
    return place_of(group.path)


def leased(group: Group, payload: Any = 1) -> str:
    group["first"].insert(payload)
    return group["first"].lease()[0].token


def waiting(group: Group, name: str = "next") -> list[Any]:
    return [info.payload for info in group[name].tasks()]


def test_a_task_is_completed_and_others_are_inserted(group: Group, place: str, fsqueue_cli: Run) -> None:
    token = leased(group)
    said = fsqueue_cli(
        "update", place, "--complete", f"first={token}", "--result", "5", "--insert", 'next={"a": "b=c"}',
        "--insert", "next=2", "--json",
    )  # fmt: skip
    done = json.loads(said.stdout)["done"]
    assert [one["op"] for one in done] == ["complete", "insert", "insert"]
    assert [one["id"] for one in done] == [token.partition("@")[0], *(info.id for info in group["next"].tasks())]
    assert waiting(group) == [{"a": "b=c"}, 2]
    assert [one.result for one in group["first"].results()] == [5]


def test_the_queue_of_a_token_is_found_or_comes_from_the_path(group: Group, place: str, fsqueue_cli: Run) -> None:
    fsqueue_cli("update", place, "--complete", leased(group))
    fsqueue_cli("update", f"{place}/first", "--complete", leased(group), "--insert", "next=1")
    assert (group["first"].status().completed, waiting(group)) == (2, [1])


def test_a_token_without_a_queue_whose_task_is_gone_says_what_to_do(group: Group, place: str, fsqueue_cli: Run) -> None:
    token = leased(group)
    group["first"].purge()
    said = fsqueue_cli("update", place, "--complete", token, code=6).stderr
    assert "No queue of the group has this task to do. Name its queue to learn what became of the task: QUEUE=" in said


def test_each_verb(group: Group, place: str, fsqueue_cli: Run) -> None:
    renewed, released, failed, buried = (leased(group, number) for number in range(4))
    fsqueue_cli(
        "update", f"{place}/first", "--renew", renewed, "--lease", "1h", "--release", released, "--fail", failed,
        "--bury", buried, "--reason", "why", "--delay", "1m",
    )  # fmt: skip
    found = {info.payload: info for info in (*group["first"].tasks(), *group["first"].tasks("dead"))}
    assert [found[number].state for number in range(4)] == ["leased", "delayed", "delayed", "dead"]
    assert (found[2].error, found[3].error) == ("why", "why")


def test_lines_of_standard_input_are_one_update(group: Group, place: str, fsqueue_cli: Run) -> None:
    token = leased(group)
    lines = [
        {"insert": {"queue": "next", "payload": [1], "priority": 3, "delay_s": 60}},
        {"complete": {"queue": "first", "token": token, "result": {"n": 1}}},
    ]
    fsqueue_cli("update", place, input="\n\n".join(map(json.dumps, lines)))
    (info,) = group["next"].tasks()
    assert (info.payload, info.priority, info.state) == ([1], 3, "delayed")


def test_a_lost_lease_is_a_conflict_and_nothing_is_done(group: Group, place: str, fsqueue_cli: Run) -> None:
    token = leased(group)
    fsqueue_cli("complete", f"{place}/first", token)
    said = fsqueue_cli("update", place, "--complete", f"first={token}", "--insert", "next=1", "--json", code=6)
    conflict = json.loads(said.stdout)["conflict"]
    (lost,) = conflict.pop("missing")
    assert conflict == {"changed": [], "owned": [], "depends": [], "busy": []}
    assert (lost["op"], lost["queue"], lost["id"]) == ("complete", "first", token.partition("@")[0])
    assert "nothing was done" in said.stderr
    assert waiting(group) == []


def test_a_task_that_waits_is_changed_if_it_is_as_it_was_printed(group: Group, place: str, fsqueue_cli: Run) -> None:
    group["first"].insert_many(["stays", "goes", "taken"])
    printed = [json.loads(line) for line in fsqueue_cli("ls", f"{place}/first", "--json").stdout.splitlines()]
    found = {one["payload"]: one for one in printed}
    name = {payload: f"{one['id']}@{one['version']}" for payload, one in found.items()}
    assert {one["queue"] for one in printed} == {f"{place}/first"}
    replaced = {"id": found["stays"]["id"], "version": found["stays"]["version"], "payload": "new"}
    fsqueue_cli("update", f"{place}/first", input=json.dumps({"replace": replaced}))
    done = json.loads(fsqueue_cli("update", place, "--cancel", name["goes"], "--json").stdout)["done"]
    assert done == [{"op": "cancel", "id": found["goes"]["id"]}]
    taken = next(task for task in group["first"].lease(2) if task.payload == "taken")
    said = fsqueue_cli(
        "update", f"{place}/first", *(word for one in name.values() for word in ("--cancel", one)), "--json",
        "--insert", "next=1", code=6,
    )  # fmt: skip
    lists = {kind: [one["id"] for one in told] for kind, told in json.loads(said.stdout)["conflict"].items()}
    leased = [found["stays"]["id"], taken.id]
    assert lists == {"missing": [found["goes"]["id"]], "changed": [], "owned": leased, "depends": [], "busy": []}
    fsqueue_cli("update", place, "--cancel", f"first={taken.token}")
    assert [info.payload for info in group["first"].tasks()] == ["new"]
    assert waiting(group) == []


def test_a_lease_that_was_taken_over_or_given_back_is_owned(group: Group, place: str, fsqueue_cli: Run) -> None:
    token = now = leased(group)
    fsqueue_cli("release", f"{place}/first", token)
    for reason in ("given back", "taken over by"):
        said = fsqueue_cli("update", place, "--complete", f"first={token}", "--json", code=6)
        conflict = json.loads(said.stdout)["conflict"]
        (one,) = conflict.pop("owned")
        assert one["reason"].startswith(reason)
        assert not any(conflict.values())
        now = group["first"].lease()[0].token if reason == "given back" else now
    fsqueue_cli("update", place, "--complete", f"first={now}", "--insert", "next=1")
    said = fsqueue_cli("update", place, "--complete", f"first={now}", "--insert", "next=1", code=6)
    assert "an earlier update, or 'fsqueue complete', has succeeded with this lease" in said.stderr
    assert waiting(group) == [1]


def test_an_update_depends_on_tasks_that_it_does_not_change(group: Group, place: str, fsqueue_cli: Run) -> None:
    held, own = leased(group, "held"), leased(group, "own")
    group["conf"].insert_many(["seen"], batch_tasks=1)
    (info,) = group["conf"].tasks()
    seen = f"{info.id}@{info.version}"
    done = fsqueue_cli(
        "update", place, "--depends", f"first={held}", "--depends", f"conf={seen}", "--complete", f"first={own}",
        "--json",
    )  # fmt: skip
    assert [one["op"] for one in json.loads(done.stdout)["done"]] == ["complete", "depends", "depends"]
    line = json.dumps({"depends": {"id": info.id, "version": info.version, "queue": "conf"}})
    fsqueue_cli("update", place, input=f'{line}\n{{"insert": {{"queue": "next", "payload": 1}}}}')
    fsqueue_cli("release", f"{place}/first", held)
    group["conf"].lease()
    said = fsqueue_cli("update", place, input=f'{line}\n{{"insert": {{"queue": "next", "payload": 2}}}}', code=6)
    assert f"depends: depends conf {info.id}: has the version" in said.stderr
    said = fsqueue_cli("update", place, "--depends", f"first={held}", "--insert", "next=3", "--json", code=6)
    lists = json.loads(said.stdout)["conflict"]
    assert [one["id"] for one in lists["depends"]] == [held.partition("@")[0]]
    assert waiting(group) == [1]


WRONG = {
    "": "no operation",
    "{": "line 1, is not JSON",
    "[]": "is no operation",
    '{"insert": {}, "complete": {}}': "is no operation",
    '{"drop": {}}': "'drop', which is none of insert, complete",
    '{"insert": {"queue": "a"}}': "lacks the field 'payload'",
    '{"insert": {"queue": "a", "payload": 1, "key": 5}}': "has the field 'key'",
    '{"insert": {"queue": "a", "payload": 1, "kee": "k"}}': "has the field 'kee'",
    '{"insert": {"queue": "a", "payload": 1}}\n{"release": {"token": "x", "delay_s": "1"}}': "line 2, has the field",
    '{"cancel": {"id": "x"}}': 'needs the field "token", or "id" and "version"',
    '{"replace": {"id": "x", "token": "x", "payload": 1}}': 'needs the field "token", or "id" and "version"',
    '{"fail": {"token": "x"}}': "lacks the field 'error'",
    '{"complete": {"token": ""}}': "'' is not a token",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_lines_are_refused_before_anything_is_done(group: Group, place: str, fsqueue_cli: Run, text: str) -> None:
    assert WRONG[text] in fsqueue_cli("update", place, input=text, code=2).stderr


def test_wrong_options_are_refused(group: Group, place: str, fsqueue_cli: Run, tmp_path: Path) -> None:
    for arguments, why in (
        (["--insert", "next"], "QUEUE=JSON, as in --insert extract="),
        (["--insert", "next=x"], "is not JSON"),
        (["--insert", "next=1", "--result", "1"], "--result needs --complete"),
        (["--complete", "nothing"], "is not a token"),
        (["--complete", "first="], "is not a token"),
        (["--depends", "first=5"], "nor ID@VERSION"),
        (["--fail", "x", "--insert", "next=1"], "--reason"),
    ):
        assert why in fsqueue_cli("update", place, *arguments, code=2).stderr
    fsqueue_cli("create", tmp_path / "queue")
    assert "no group" in fsqueue_cli("update", tmp_path / "queue", "--insert", "a=1", code=2).stderr
    absent = fsqueue_cli("update", tmp_path / "absent", "--insert", "a=1", code=5).stderr
    assert f"fsqueue create --group {tmp_path / 'absent'}" in absent
    assert not (tmp_path / "absent").exists()
    assert not group["next"].exists()


def test_show_follows_a_task_over_stages(group: Group, fsqueue_cli: Run) -> None:
    group["fetch"].insert("page")
    fsqueue_cli("run", f"{group.path}/fetch", "--then", "parse", "--", "echo", "1")
    fsqueue_cli("run", f"{group.path}/parse", "--then", "store", "--", "seq", "2")
    (middle,) = group["parse"].tasks("completed")
    shown = json.loads(fsqueue_cli("show", f"{group.path}/parse", middle.id, "--json").stdout)["lineage"]
    assert [(one["queue"], one["op"], one["steps"]) for one in shown["ancestors"]] == [("fetch", "complete", -1)]
    assert [(one["queue"], one["op"], one["steps"]) for one in shown["successors"]] == [("store", "insert", 1)] * 2
    assert shown["is_whole"]
    last = shown["successors"][-1]["id"]
    text = fsqueue_cli("show", f"{group.path}/store", last).stdout
    assert text.index(shown["ancestors"][0]["id"]) < text.index(middle.id), "the earliest stage comes first"
    first = Group(group.path).lineage("fetch", shown["ancestors"][0]["id"])
    assert [one.steps for one in first.successors] == [1, 2, 2]


def test_where_the_decision_file_is_gone_only_that_is_said(group: Group, fsqueue_cli: Run) -> None:
    group["fetch"].insert("page")
    fsqueue_cli("run", f"{group.path}/fetch", "--then", "parse", "--", "echo", "1")
    for file in (group.path / ".updates").iterdir():
        file.unlink()
    (info,) = group["parse"].tasks()
    found = group.lineage("parse", info.id)
    assert (found.ancestors, found.is_whole) == ([], False)
    assert "There may be more" in fsqueue_cli("show", f"{group.path}/parse", info.id).stdout
