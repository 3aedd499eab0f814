"""set, pause, resume, and what other commands say of a paused queue."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fsqueue import Group, Queue
from tests.cli.conftest import Run, Spawn
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


def test_set_changes_settings_and_shows_them(fsqueue_cli: Run, queue: Queue) -> None:
    said = fsqueue_cli("set", queue.path, "max_attempts=3", "lease_s=1h", "backoff=10s,30m").stdout
    assert "max_attempts     3\nlease_s          3600\nbackoff_s        10,1800\n" in said
    assert "shards           64  (fixed)\n" in said
    settings = Queue(queue.path).settings
    assert (settings.max_attempts, settings.lease_s, settings.backoff_s) == (3, 3600, (10, 1800))
    assert fsqueue_cli("set", queue.path).stdout == said
    assert "max_attempts     none\n" in fsqueue_cli("set", queue.path, "max-attempts=none", "lease=90").stdout
    assert "keep_payloads    all\n" in fsqueue_cli("set", queue.path, "keep_payloads=all").stdout
    assert "keep_payloads    100\n" in fsqueue_cli("set", queue.path, "keep-payloads=100").stdout
    assert json.loads(fsqueue_cli("set", queue.path, "--json").stdout)["settings"]["max_attempts"] is None


def test_set_shows_the_settings_of_a_group_and_changes_none(fsqueue_cli: Run, tmp_path: Path) -> None:
    fsqueue_cli("create", "--group", tmp_path / "g", "--lease", "5m")
    assert "lease_s          300  (fixed)\n" in fsqueue_cli("set", tmp_path / "g").stdout
    found = json.loads(fsqueue_cli("set", tmp_path / "g", "--json").stdout)
    assert (found["group"], found["settings"]["lease_s"]) == (str(tmp_path / "g"), 300)
    said = fsqueue_cli("set", tmp_path / "g", "lease=7m", code=2).stderr
    assert f"Nothing was changed. Name one of its queues: fsqueue set {tmp_path / 'g'}/NAME" in said
    assert Group(tmp_path / "g").settings.lease_s == 300


def test_set_changes_the_limits_of_a_group_and_says_where_they_hold_up(fsqueue_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "g"
    fsqueue_cli("create", "--group", path)
    for name in "ab":
        fsqueue_cli("insert", f"{path}/{name}", "--task", "{}")
    said = fsqueue_cli("set", path, "max_leased=1", "limit.licence=4", "rate=50/s").stdout
    assert "max_leased       1\n" in said
    assert "limit.licence    4\n" in said
    assert "lease_s          600  (fixed)\n" in said
    assert fsqueue_cli("set", path).stdout == said
    assert "max_leased       none\n" in fsqueue_cli("set", f"{path}/a").stdout, "the queue's own"
    assert "limited" not in fsqueue_cli("status", path).stdout
    [held] = Group(path)["a"].lease()
    line = f"max_leased=1 limit.licence=4 rate=50/s over all queues of the group {path}"
    assert f"limited     {line}: tasks may wait for a place" in fsqueue_cli("status", path).stdout
    assert line in fsqueue_cli("lease", f"{path}/b", code=3).stderr
    assert line in fsqueue_cli("wait", f"{path}/b", "--timeout", "0.1", code=124).stderr
    held.complete()
    fsqueue_cli("run", path, "--", "true")
    assert Group(path).status().status.completed == 2
    refused = fsqueue_cli("set", path, "limit.a=1", "limit.b=1", "limit.c=1", code=2).stderr
    assert "At most 3 fields of payloads may have a limit of a group" in refused
    assert "max_leased       none\n" in fsqueue_cli("set", path, "max_leased=none", "limit.licence=none").stdout


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ("shards=2", "shards is fixed when a queue is created"),
        ("colour=red", "no setting 'colour'"),
        ("max_attempts", "Write NAME=VALUE"),
        ("lease=1h lease-s=2h", "lease_s is given twice"),
        ("max_attempts=0", "from 1"),
        ("max_attempts=many", "or 'none'"),
        ("lease_s=soon", "no duration"),
        ("backoff=5", "Write FIRST,MOST"),
        ("keep_payloads=some", "or 'all'"),
        ("keep_payloads=9999999999", "keep_payloads must be"),
        ("backoff=5,1", "backoff_s must be"),
    ],
)
def test_what_cannot_be_set_is_said(fsqueue_cli: Run, queue: Queue, assignment: str, why: str) -> None:
    before = (queue.path / "queue.jsonl").read_bytes()
    assert why in fsqueue_cli("set", queue.path, *assignment.split(), code=2).stderr
    assert (queue.path / "queue.jsonl").read_bytes() == before


def test_a_pause_is_shown_wherever_one_looks(fsqueue_cli: Run, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.insert(1)
    since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d by \S+ on \S+: the server is down"
    assert re.fullmatch(
        rf"{queue.path} is paused {since}\n", fsqueue_cli("pause", queue.path, "--reason", "the server is down").stdout
    )
    assert re.search(rf"is paused already {since}", fsqueue_cli("pause", queue.path, "--reason", "other").stderr)
    assert re.search(rf"^paused      {since}$", fsqueue_cli("status", queue.path).stdout, re.MULTILINE)
    assert re.search(rf"^paused      {since}$", fsqueue_cli("status", queue.path, "--fast").stdout, re.MULTILINE)
    shown = json.loads(fsqueue_cli("status", queue.path, "--json").stdout)["paused"]
    assert shown["reason"] == "the server is down"
    waited = fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124)
    assert re.search(rf"is paused {since}", caplog.text)  # to standard error, where no handler of pytest is in the way
    assert re.search(rf", paused {since}", waited.stdout)
    assert re.search(rf"is paused {since}", fsqueue_cli("lease", queue.path, code=3).stderr)
    assert fsqueue_cli("resume", queue.path).stdout == f"{queue.path} is resumed\n"
    assert "was not paused" in fsqueue_cli("resume", queue.path).stderr
    assert json.loads(fsqueue_cli("status", queue.path, "--json").stdout)["paused"] is None


def test_pause_and_resume_tell_programs_whether_they_changed_anything(fsqueue_cli: Run, queue: Queue) -> None:
    said = [
        json.loads(fsqueue_cli(*words, queue.path, "--json").stdout)
        for words in (("pause", "--reason", "first"), ("pause", "--reason", "second"), ("resume",), ("resume",))
    ]
    assert [one["changed"] for one in said] == [True, False, True, False]
    assert [one["paused"] and one["paused"]["reason"] for one in said] == ["first", "first", None, None]


def test_a_worker_waits_while_its_queue_is_paused_and_goes_on(spawn: Spawn, fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(3))
    queue.pause("maintenance")
    process = spawn("run", queue.path, "--log-json", "--", "true")
    assert process.stderr is not None
    paused = json.loads(process.stderr.readline())
    assert (paused["event"], "is paused since" in paused["text"]) == ("pause", True)
    assert queue.status().waiting == 3
    fsqueue_cli("resume", queue.path)
    until(lambda: queue.status().drained, "the worker to go on")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in err.splitlines()].count("pause") == 1  # that it goes on


def test_a_worker_says_once_that_it_waits_for_a_place_and_goes_on(spawn: Spawn, fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    queue.change_settings(max_leased=1)
    [held] = queue.lease()
    process = spawn("run", queue.path, "--log-json", "--", "true")
    assert process.stderr is not None
    told = json.loads(process.stderr.readline())
    assert told["event"] == "limit"
    assert f"{queue.path} are leased as its limits allow (max_leased=1)" in told["text"]
    assert queue.status().waiting == 3
    held.complete()
    until(lambda: queue.status().drained, "the worker to go on")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "limit" not in [json.loads(line)["event"] for line in err.splitlines()]


def test_a_limit_that_is_reached_is_shown_wherever_one_looks(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    queue.change_settings(max_leased=1)
    assert "limited" not in fsqueue_cli("status", queue.path).stdout
    [held] = queue.lease()
    line = r"^limited     max_leased=1 allows no more leased tasks at a time: 3 wait for a place$"
    for options in ((), ("--fast",)):
        shown = fsqueue_cli("status", queue.path, *options).stdout
        assert re.search(line, shown, re.MULTILINE)
        assert "no workers" not in shown
    waited = fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124)
    assert "max_leased=1 allows no more leased tasks at a time: 3 wait" in waited.stderr
    assert "leased 1 of at most 1" in waited.stdout
    assert "max_leased=1" in fsqueue_cli("lease", queue.path, code=3).stderr
    held.complete()
    assert "limited" not in fsqueue_cli("status", queue.path).stdout


def test_a_rate_is_set_and_shown_wherever_one_looks(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    assert "rate             3/h\n" in fsqueue_cli("set", queue.path, "rate=3.0/h").stdout
    assert "limited" not in fsqueue_cli("status", queue.path).stdout, "no worker is there, and the rate allows one"
    assert len(queue.lease(4)) == 1
    line = "rate=3/h allows no more leases now: 3 wait"
    for options in ((), ("--fast",)):
        assert f"limited     {line}\n" in fsqueue_cli("status", queue.path, *options).stdout
    assert json.loads(fsqueue_cli("status", queue.path, "--json").stdout)["lease_rate"] == "3/h"
    assert f"{queue.path}: {line}" in fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124).stderr
    assert "it is not time for the next task" in fsqueue_cli("lease", queue.path, code=3).stderr
    refused = fsqueue_cli("set", queue.path, "rate=fast", code=2).stderr
    assert "rate must be a number of leases per second, minute or hour, as '5/s'" in refused
    assert "rate             none\n" in fsqueue_cli("set", queue.path, "rate=none").stdout
    assert len(fsqueue_cli("lease", queue.path, "-n", "4").stdout.splitlines()) == 3


def test_a_worker_waits_until_it_is_time_and_says_so_once(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(6))
    queue.change_settings(rate="4/s")
    done = fsqueue_cli("run", queue.path, "-j", "3", "--", "true")
    assert done.stderr.count(f"lease tasks of {queue.path} as its limits allow (rate=4/s)") == 1
    assert queue.status().completed == 6


def test_limits_by_fields_are_named_where_tasks_wait(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([{"host": 1}] * 3)
    queue.change_settings(limit={"host": 1})
    [held] = queue.lease()
    line = "limit.host=1: tasks of one value may wait while as many of them are leased"
    assert f"limited     {line}" in fsqueue_cli("status", queue.path).stdout
    assert f"{queue.path}: {line}" in fsqueue_cli("wait", queue.path, "--timeout", "0.1", code=124).stderr
    held.complete()
    for name in "abc":
        queue.change_settings(limit={name: 1})
    refused = fsqueue_cli("set", queue.path, "limit.x=1", code=2)
    assert "limit.FIELD=none" in refused.stderr
