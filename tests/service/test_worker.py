"""A worker on a gateway's queue: the same worker as on a queue of the filesystem."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fsqueue_cli.main import cli

import fsqueue
from fsqueue import Group, InvalidArgument, RemoteQueue, Worker
from fsqueue.client.remote_group import RemoteUpdate
from fsqueue.worker import feeding
from fsqueue.worker import sources as remote_watch
from tests.gateways import Serve
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture
def remote(group: Group, serve: Serve) -> RemoteQueue:
    """A queue of a gateway."""
    found = fsqueue.connect(f"{serve(group.path)}/q")
    assert isinstance(found, RemoteQueue)
    return found


def test_commands_are_run_until_the_queue_is_drained(group: Group, remote: RemoteQueue) -> None:
    queue = group["q"]
    queue.insert_many({"n": n} for n in range(6))
    queue.insert({"n": "x"})
    queue.change_settings(max_attempts=1)
    arguments = ["run", remote.url, "--worker", "me", "-j", "2", "--json", "--result-stdout", "--"]
    arguments += ["expr", "{n}", "+", "1"]
    ended = CliRunner().invoke(cli, arguments, prog_name="fsqueue")
    assert ended.exit_code == 9, ended.output
    assert json.loads(ended.stdout.splitlines()[-1])["completed"] == 6
    assert queue.status() == fsqueue.Status(completed=6, dead=1)
    completed = [result for result in queue.results() if result.state == "completed"]
    assert {(result.payload["n"], result.result) for result in completed} == {(n, n + 1) for n in range(6)}
    assert {result.worker for result in completed} == {"me"}


def test_leases_are_renewed_while_a_command_works(group: Group, remote: RemoteQueue, tmp_path: Path) -> None:
    """It ends when its lease has been renewed: by the history, which it reads itself."""
    queue = group["q"]
    queue.insert("a")
    script = tmp_path / "work"
    until_renewed = f'until grep -rqs \'"op":"renew"\' {queue.path}; do :; done'
    script.write_text(f"#!/bin/sh\n{until_renewed}\n")
    script.chmod(0o755)
    assert Worker(remote, command=[str(script)], lease_s=1.0).run().completed == 1
    assert "renew" in [move.op for move in queue.history(next(queue.results()).id)]


def test_a_worker_that_is_stopped_puts_back_what_it_holds(group: Group, remote: RemoteQueue) -> None:
    queue = group["q"]
    queue.insert_many(range(3))
    worker = Worker(remote, command=["sleep", "1000"], grace_s=0, prefetch=3)
    running = threading.Thread(target=worker.run)
    running.start()
    until(lambda: queue.status().leased, "a task to be leased")
    worker.stop()
    running.join()
    assert queue.status() == fsqueue.Status(waiting=3)


def test_an_idle_worker_waits_at_the_gateway_and_nowhere_else(
    group: Group, remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it slept beside that, a new task waited for it: up to 7.5 s."""
    slept: list[float] = []
    sleep, lease = feeding.Feeder._sleep, RemoteQueue.lease

    def noted(self: feeding.Feeder, seconds: float, deaf: bool) -> None:
        slept.append(seconds)
        sleep(self, 0.0, deaf)

    def counted(self: RemoteQueue, *args: Any, **how: Any) -> list[Any]:
        waited.append(how["wait_s"])
        return lease(self, *args, **how)

    waited: list[float] = []
    monkeypatch.setattr(remote_watch, "LOOK_S", 0.1)
    monkeypatch.setattr(feeding.Feeder, "_sleep", noted)
    monkeypatch.setattr(RemoteQueue, "lease", counted)
    worker = Worker(remote, abs, until="forever")
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: len(waited) > 5, "a worker that has looked for a while")
    worker.stop()
    thread.join()
    assert waited[:2] == [0, 0.1]
    assert len(slept) == 1, "after the first look, which waits for nothing"


def test_what_a_gateways_queue_cannot_do_is_a_sentence(group: Group, remote: RemoteQueue) -> None:
    with pytest.raises(InvalidArgument, match=r"a gateway has no call for that\. stop_after_failures"):
        Worker(remote, command=["true"], exclude_after=3)
    refused = run(remote.url, "--exclude-after", "3")
    assert refused.exit_code == 2
    assert "--stop-after-failures" in refused.stderr
    with pytest.raises(InvalidArgument, match="one queue of a gateway"):
        Worker([remote, group["q"]], command=["true"])


def follow_up(n: int) -> fsqueue.Then:
    """Ask for a next task."""
    return fsqueue.Then(inserts=[("next", n)])


def next_tasks(group: Group) -> list[Any]:
    """Return the payloads of the tasks that follow."""
    return sorted(info.payload for info in group["next"].tasks())


LONG_NAME = "n" * 200


def follow_up_at_length(n: int) -> fsqueue.Then:
    """Ask for tasks that an update may have, and whose queues' names make a request too long."""
    return fsqueue.Then(inserts=[(LONG_NAME, "x" * 5_400)] * 1_500)


def test_a_task_is_given_up_at_once_if_no_request_holds_what_follows(group: Group, remote: RemoteQueue) -> None:
    """An update happens as a whole: it cannot be several requests. Each further attempt would end in the same way."""
    ref = group["q"].insert({"n": 1})
    report = Worker(remote, "tests.service.test_worker:follow_up_at_length").run()
    assert (report.buried, report.failed, report.completed) == (1, 1, 0)
    [letter] = group["q"].dead()
    assert (letter.id, letter.attempt) == (ref.id, 1)
    assert re.search("This update takes [0-9,]+ bytes as a request; a gateway takes up to 8,388,608", letter.reason)
    assert group[LONG_NAME].status() == fsqueue.Status()


@pytest.mark.parametrize("how", ["function", "command", "group"])
def test_what_follows_a_task_is_inserted_by_the_gateway(group: Group, remote: RemoteQueue, how: str) -> None:
    group["q"].insert_many({"n": n} for n in range(5))
    if how == "function":
        assert Worker(remote, "tests.service.test_worker:follow_up").run().completed == 5
    else:
        url = remote.url if how == "command" else f"{remote.gateway}/"
        match = [] if how == "command" else ["--match", "q"]
        arguments = ["run", url, *match, "--then", "next", "--", "echo", "{n}"]
        ended = CliRunner().invoke(cli, arguments, prog_name="fsqueue")
        assert ended.exit_code == 0, ended.output
    assert (group["q"].status().completed, next_tasks(group)) == (5, list(range(5)))


@pytest.mark.parametrize("has_happened", [True, False])
def test_what_follows_a_task_is_there_once_if_the_gateway_breaks_off(
    group: Group, remote: RemoteQueue, monkeypatch: pytest.MonkeyPatch, has_happened: bool
) -> None:
    """The worker asks again. If the update has happened, it is told that this lease has completed the task."""
    carry_out, broken = RemoteUpdate._carry_out, list[str]()

    def break_off(self: RemoteUpdate, timeout_s: float) -> Any:
        found = None if not (has_happened or broken) else carry_out(self, timeout_s)
        if not broken:
            broken.append("off")
            raise fsqueue.StorageError("The gateway has broken off.")
        return found

    monkeypatch.setattr(RemoteUpdate, "_carry_out", break_off)
    group["q"].insert_many({"n": n} for n in range(3))
    report = Worker(remote, "tests.service.test_worker:follow_up", prefetch=3).run()
    assert (report.completed, report.lost, broken) == (3, 0, ["off"])
    assert (group["q"].status().completed, next_tasks(group)) == (3, [0, 1, 2])


def test_nothing_follows_in_a_gateway_of_one_queue(group: Group, serve: Serve) -> None:
    group["q"].insert({"n": 1})
    group["q"].change_settings(max_attempts=1)
    alone = fsqueue.connect(serve(group.path / "q"))
    with pytest.raises(InvalidArgument, match="is no queue of a group"):
        Worker(alone, command=["true"], then="next")
    assert Worker(alone, "tests.service.test_worker:follow_up").run().buried == 1
    [letter] = group["q"].dead()
    assert "is no queue of a group" in letter.reason


def run(*arguments: str) -> Result:
    """Run 'fsqueue run' with these arguments."""
    return CliRunner().invoke(cli, ["run", *arguments, "--", "true"], prog_name="fsqueue")


def test_an_address_with_a_name_that_is_not_there_is_named_as_a_path_is(group: Group, serve: Serve) -> None:
    url = serve(group.path)
    told = "names no queue that is there. {} It counts as drained until a task is inserted into it."
    for where in (url, str(group.path)):
        empty = run(f"{where}/fecth")
        assert f"hint: {where}/fecth {told.format('The group has no queue yet.')}" in empty.stderr
        assert empty.exit_code == 0
    group["fetch"].insert(1)
    for where in (url, str(group.path)):
        assert f"hint: {where}/fecth {told.format('The group has fetch.')}" in run(f"{where}/fecth").stderr
    assert "hint" not in run(f"{url}/fetch").stderr
    for number in range(11):
        group[f"q{number:02}"].insert(number)
    said = run(f"{url}/fecth").stderr
    assert "The group has fetch, q00," in said
    assert "q08, and more: fsqueue.connect(URL).queues(tasks_min=0) lists them, in Python. It counts" in said


def test_a_gateway_of_one_queue_names_that(group: Group, serve: Serve) -> None:
    group["fetch"].insert(1)
    refused = run(f"{serve(group.path / 'fetch')}/fecth")
    assert refused.exit_code == 5
    assert "There is no queue 'fecth' here. This gateway serves 'fetch'." in refused.stderr


def test_a_pattern_beside_an_address_is_refused_for_what_it_is(group: Group, serve: Serve) -> None:
    url = f"{serve(group.path)}/none"
    refused = run(url, "--match", "x")
    assert refused.exit_code == 2
    assert f"--match is for the queues of a group, and {url} is one queue." in refused.stderr
