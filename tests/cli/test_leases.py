"""The verbs for scripts: tokens in, tokens out."""

from __future__ import annotations

import json
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from fsqueue_cli import leases

from fsqueue import Queue, Status, Task
from fsqueue.clock import ManualClock
from tests.cli.conftest import Run, Spawn, catches
from tests.conftest import QueueFactory
from tests.support import put_ranked
from tests.waiting import PATIENCE_S, until


def leased(run: Run, queue: Queue, *options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("lease", queue.path, *options).stdout.splitlines()]


def test_lease_prints_tasks_and_the_others_take_their_tokens(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([{"n": number} for number in range(5)])
    tasks = leased(fsqueue_cli, queue, "-n", 5, "--lease", 300)
    assert sorted(task["payload"]["n"] for task in tasks) == [0, 1, 2, 3, 4]
    assert all(task["token"].startswith(task["id"] + "@") and task["attempt"] == 1 for task in tasks)
    moves = [queue.history(task["id"])[-1] for task in tasks]
    assert [move.until for move in moves] == pytest.approx([move.at + 300 for move in moves], abs=1)
    assert [task["lease_until"] for task in tasks] == pytest.approx([move.until for move in moves], abs=1)
    one, two, three, four, five = (task["token"] for task in tasks)
    assert fsqueue_cli("complete", queue.path, one, two).output == ""
    fsqueue_cli("release", queue.path, three, "--delay", "3600")
    fsqueue_cli("fail", queue.path, four, "--reason", "no luck", "--delay", "3600")
    fsqueue_cli("bury", queue.path, five, "--reason", "hopeless")
    assert queue.status().as_dict() == {
        "inserted": 5, "waiting": 0, "delayed": 2, "leased": 0, "completed": 2, "dead": 1
    }  # fmt: skip
    assert [letter.reason for letter in queue.dead()] == ["hopeless"]


def test_tokens_and_tasks_on_standard_input(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(4))
    as_json = fsqueue_cli("lease", queue.path, "-n", 2).stdout
    as_tokens = fsqueue_cli("lease", queue.path, "-n", 2, "--tokens").stdout
    result = fsqueue_cli("complete", queue.path, "-", "--json", input=as_json + "\n" + as_tokens)
    assert len(json.loads(result.stdout)["completed"]) == 4
    assert queue.status().completed == 4


@pytest.mark.parametrize("line", ["{", "{}", '{"token": 7}', "nonsense", "a.b@c", "[1]"])
def test_what_is_no_token_stops_everything_before_it_begins(fsqueue_cli: Run, queue: Queue, line: str) -> None:
    queue.insert(1)
    token = leased(fsqueue_cli, queue)[0]["token"]
    fsqueue_cli("complete", queue.path, "-", input=f"{token}\n{line}\n", code=2)
    assert queue.status().leased == 1


def test_standard_input_that_is_no_text_is_refused(fsqueue_cli: Run, queue: Queue) -> None:
    for command in ("complete", "renew", "release"):
        assert "not UTF-8" in fsqueue_cli(command, queue.path, "-", input=b"\x80", code=2).stderr


def test_nothing_available_exits_with_3(fsqueue_cli: Run, queue: Queue) -> None:
    result = fsqueue_cli("lease", queue.path, code=3)
    assert (result.stdout, result.stderr) == ("", "fsqueue: nothing is available\n")


def test_a_task_is_leased_by_its_id_and_what_is_left_out_is_told(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many(range(4))
    of = {info.payload: info.id for info in queue.tasks()}
    later = queue.insert("later", delay_s=1000).id
    [task] = leased(fsqueue_cli, queue, "--id", of[2], "--lease", 300)
    assert (task["id"], task["payload"]) == (of[2], 2)
    done = fsqueue_cli("lease", place, "--id", "-", "--tokens", input=f"{of[0]}\n{of[2]}\n{later}\n{'0' * 32}.7\n")
    [token] = done.stdout.split()
    assert token.startswith(f"{of[0]}@")
    assert f"{of[2]} (leased) is not leased: a worker holds it" in done.stderr
    assert f"{later} (delayed) is not leased: it waits for its time" in done.stderr
    assert f"{'0' * 32}.7: neither the queue nor its history has this task" in done.stderr
    fsqueue_cli("bury", place, token, "--reason", "no")
    assert "fsqueue dead retry" in fsqueue_cli("lease", place, "--id", of[0], code=3).stderr
    fsqueue_cli("complete", place, task["token"])
    assert "it has ended" in fsqueue_cli("lease", place, "--id", of[2], code=3).stderr
    assert fsqueue_cli("lease", place, "--id", f"{'0' * 32}.7", code=13).stdout == ""
    assert fsqueue_cli("lease", place, "--id", "-", code=3).stderr == "fsqueue: standard input names no task\n"
    queue.pause("maintenance")
    assert "is paused" in fsqueue_cli("lease", place, "--id", of[1], code=3).stderr
    assert queue.status() == Status(waiting=2, delayed=1, completed=1, dead=1)


@pytest.mark.batched
def test_a_task_is_leased_by_its_key(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many(range(3))
    kept = queue.insert("x", key="run-17")
    done = fsqueue_cli("lease", place, "--id", "run-17", "--id", kept.id, "--id", "run-18")
    assert json.loads(done.stdout)["id"] == kept.id
    assert done.stderr == "fsqueue: no unfinished task has the key 'run-18'\n"
    assert "a worker holds it" in fsqueue_cli("lease", place, "--id", "-", input="run-17\n", code=3).stderr
    assert "no unfinished task" in fsqueue_cli("lease", place, "--id", "run-18", code=13).stderr
    assert queue.status().leased == 1


@pytest.mark.parametrize("options", [("-n", 1), ("--wait", 0), ("--up-to", 5), ("--order", "priority")], ids=str)
def test_who_names_tasks_chooses_no_others(fsqueue_cli: Run, queue: Queue, options: tuple[Any, ...]) -> None:
    ref = queue.insert(1)
    assert "Leave one out" in fsqueue_cli("lease", queue.path, "--id", ref.id, *options, code=2).stderr
    assert queue.status().waiting == 1


def test_it_waits_as_long_as_it_was_told(fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = ManualClock(), []

    def lease(self: Queue, *arguments: Any, wait_s: float, **options: Any) -> list[Any]:
        waited.append(wait_s)
        clock.advance(wait_s)
        return []

    monkeypatch.setattr(Queue, "lease", lease)
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=clock.monotonic))
    fsqueue_cli("lease", queue.path, "--wait", "20.3", code=3)
    assert sum(waited) == pytest.approx(20.3)


@pytest.mark.parametrize(
    "verb", [["complete"], ["renew"], ["release"], ["fail", "--reason", "x"], ["bury", "--reason", "x"]]
)
def test_a_lost_lease_exits_with_4_and_the_others_are_dealt_with(
    fsqueue_cli: Run, queue: Queue, verb: list[str]
) -> None:
    queue.insert_many(range(3))
    tokens = [task["token"] for task in leased(fsqueue_cli, queue, "-n", 3)]
    fsqueue_cli("release", queue.path, tokens[1])
    result = fsqueue_cli(verb[0], queue.path, *tokens, *verb[1:], "--json", code=4)
    report = json.loads(result.stdout)
    assert report.pop("lost") == [tokens[1].partition("@")[0]]
    assert report.pop("lost_tokens") == [tokens[1]]
    until = report.pop("lease_until", None)
    assert until is None or (verb == ["renew"] and len(until) == 2)
    assert [len(done) for done in report.values()] == [2]
    assert tokens[1].partition("@")[0] in result.stderr


def test_of_two_leases_of_one_task_one_may_be_lost_and_the_other_done(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    [first] = leased(fsqueue_cli, queue)
    fsqueue_cli("release-all", queue.path, "--yes")
    [second] = leased(fsqueue_cli, queue)
    report = json.loads(fsqueue_cli("complete", queue.path, first["token"], second["token"], "--json", code=4).stdout)
    assert report == {"completed": [second["id"]], "lost": [first["id"]], "lost_tokens": [first["token"]]}


def test_a_finished_task_exits_with_4_unless_it_is_completed_again(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    token = leased(fsqueue_cli, queue)[0]["token"]
    fsqueue_cli("complete", queue.path, token)
    fsqueue_cli("renew", queue.path, token, code=4)
    fsqueue_cli("complete", queue.path, token, code=0)  # typed twice: it is as it should be


def test_renewing_extends_and_tells_until_when(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many([1, 2])
    tasks = leased(fsqueue_cli, queue, "--lease", 60, "-n", 2)
    tokens = [task["token"] for task in tasks]
    assert fsqueue_cli("renew", place, *tokens, "--lease", "5000").output == ""
    report = json.loads(fsqueue_cli("renew", place, *tokens, "--lease", "9000", "--json").stdout)
    assert report["renewed"] == [task["id"] for task in tasks]
    assert report["lease_until"] == [queue.task(task["id"]).lease_until for task in tasks]
    assert all(until - task["lease_until"] > 8000 for until, task in zip(report["lease_until"], tasks, strict=True))


def test_each_task_has_a_result_of_its_own(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many(range(5))
    held = queue.lease(5)
    lines = [{"token": task.token, "result": {"n": task.payload, "loss": float("nan")}} for task in held[:3]]
    given = "\n".join([*map(json.dumps, lines), json.dumps({"token": held[3].token})])
    refused = fsqueue_cli("complete", place, "-", "--result", "7", input=given, code=2).stderr
    assert "Nothing was done. Give all on standard input." in refused
    assert queue.status().leased == 5
    done = json.loads(fsqueue_cli("complete", place, "-", held[4].token, "--json", input=given).stdout)["completed"]
    assert sorted(done) == sorted(task.id for task in held)
    found = {one.id: one.result for one in queue.results()}
    assert [found[task.id] for task in held] == [*({"n": task.payload, "loss": "NaN"} for task in held[:3]), None, None]


def test_one_result_is_that_of_each_task(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    queue.insert_many(range(2))
    fsqueue_cli("complete", place, *(task.token for task in queue.lease(2)), "--result", "7")
    assert [one.result for one in queue.results()] == [7, 7]


def test_a_result_is_kept(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    task = leased(fsqueue_cli, queue)[0]
    for bad, why in (("{", "is not JSON"), ('{"n":18446744073709551617}', "64 bits"), ('{"a":1,"a":2}', "twice")):
        refused = fsqueue_cli("complete", queue.path, task["token"], "--result", bad, code=2)
        assert "--result " in refused.stderr
        assert why in refused.stderr
    fsqueue_cli("complete", queue.path, task["token"], "--result", '{"mean": 0.5, "loss": NaN}')
    assert queue.task(task["id"]).result == {"mean": 0.5, "loss": "NaN"}


@pytest.mark.parametrize(
    "options",
    [["-n", "0"], ["-n", "-1"], ["-n", "1.5"], ["--lease", "-1"], ["--lease", "0"], ["--lease", "nan"],
     ["--lease", "1e300"], ["--wait", "inf"], ["--wait", "soon"]],
)  # fmt: skip
def test_bad_numbers_are_usage_errors(fsqueue_cli: Run, queue: Queue, options: list[str]) -> None:
    queue.insert(1)
    fsqueue_cli("lease", queue.path, *options, code=2)
    assert queue.status().waiting == 1


def test_release_all_of_one_worker(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(6), batch_tasks=1)
    leased(fsqueue_cli, queue, "-n", 2, "--worker", "ann")
    leased(fsqueue_cli, queue, "-n", 3, "--worker", "bob")
    assert fsqueue_cli("release-all", queue.path, "--worker", "bob", "--yes").stdout == "3\n"
    assert fsqueue_cli("release-all", queue.path, "--host", "elsewhere", "--yes").stdout == "0\n"
    assert fsqueue_cli("release-all", queue.path, "--job", "1", "--yes").stdout == "0\n"
    done = json.loads(fsqueue_cli("release-all", queue.path, "--offline", "--yes", "--json").stdout)
    assert done == {"queue": str(queue.path), "released": 2}
    assert queue.status().waiting == 6


def test_release_all_of_a_job_of_slurm_its_array_or_an_element(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert_many(range(8), batch_tasks=1)
    for job, array, index in (("7", "", ""), ("501", "50", "1"), ("502", "50", "2"), ("503", "50", "3")):
        given = {"SLURM_JOB_ID": job, "SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": index}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        Queue(queue.path).lease(2)
    released = [
        fsqueue_cli("release-all", queue.path, "--job", job, "--yes").stdout for job in ("5", "7", "50_1", "50")
    ]
    assert released == ["0\n", "2\n", "2\n", "4\n"]


@pytest.mark.parametrize("option", ["--worker", "--host", "--job"])
def test_leases_of_an_empty_name_are_not_all_leases(fsqueue_cli: Run, queue: Queue, option: str) -> None:
    """A variable of the shell may not be set."""
    queue.insert(1)
    leased(fsqueue_cli, queue)
    result = fsqueue_cli("release-all", queue.path, option, "", "--yes", code=2)
    assert "must be text that is not empty" in result.stderr
    assert queue.status().leased == 1


def test_cancel_by_id(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(3))
    held = leased(fsqueue_cli, queue)[0]["id"]
    listed = fsqueue_cli("ls", queue.path, "--json", "--state", "waiting").stdout
    assert fsqueue_cli("cancel", queue.path, held, "-", "--yes", input=listed).stdout == "2\n"
    assert queue.status().inserted == 1
    fsqueue_cli("cancel", queue.path, "nonsense", "--yes", code=2)


def test_what_destroys_does_nothing_without_yes_if_nobody_can_answer(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    task_id = next(queue.tasks()).id
    for command in (["cancel", task_id], ["purge"], ["delete"], ["dead", "purge"]):
        at = command[:2] if command[0] == "dead" else command[:1]
        result = fsqueue_cli(*at, queue.path, *command[len(at) :], code=2, input="y\n")
        assert "--yes" in result.stderr
    assert queue.status().waiting == 1


@pytest.mark.once
def test_a_task_whose_line_cannot_be_written_is_put_back(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(5))
    with open("/dev/full", "w") as full:
        process = spawn("lease", queue.path, "-n", 3, stdout=full)
        assert "No space left on device" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 7
    assert queue.status().waiting == 5


@pytest.mark.once
def test_a_waiting_lease_can_be_interrupted(spawn: Spawn, queue: Queue) -> None:
    process = spawn("lease", queue.path, "--wait", 300)
    until(lambda: catches(process.pid, signal.SIGTERM), "the handler of SIGTERM")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143


@pytest.mark.once
def test_a_waiting_lease_gets_what_comes(spawn: Spawn, queue: Queue) -> None:
    process = spawn("lease", queue.path, "--wait", 60)
    until(lambda: catches(process.pid, signal.SIGTERM), "the handler of SIGTERM")
    queue.insert("here")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["payload"] == "here"


def test_bytes_are_printed_as_they_stand_in_the_file(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    """In every place they are told from an object that looks like them."""
    queue = queue_factory(max_attempts=1)
    for payload, key, text in ((b"\x00\xff", "b64", "2 bytes: AP8="), ({"b64": "AP8="}, "payload", '{"b64":"AP8="}')):
        shown = "AP8=" if key == "b64" else payload
        ref = queue.insert(payload)
        for command in (("ls",), ("show", ref.id)):
            found = json.loads(fsqueue_cli(command[0], queue.path, *command[1:], "--json").stdout)
            assert (found[key], len({"payload", "b64"} & found.keys())) == (shown, 1)
        assert fsqueue_cli("ls", queue.path).stdout.rstrip().endswith(f" {text}")
        [task] = leased(fsqueue_cli, queue)
        assert (task[key], len({"payload", "b64"} & task.keys())) == (shown, 1)
        queue.attach(task["token"]).bury("no")
        found = json.loads(fsqueue_cli("dead", "list", queue.path, "--json").stdout)
        assert (found[key], len({"payload", "b64"} & found.keys())) == (shown, 1)
        assert f" {text} " in fsqueue_cli("dead", "list", queue.path, "--each").stdout
        assert queue.purge_dead() == 1


@pytest.mark.once
def test_a_reader_of_tokens_that_goes_away_leaves_the_rest_available(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many({"text": "x" * 1000} for _ in range(1000))
    process = spawn("lease", queue.path, "-n", 1000, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert process.returncode == 141
    status = queue.status()
    assert status.leased < 300
    assert status.waiting + status.leased == 1000


def test_leasing_by_priority(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert("none")
    put_ranked(queue, [("nine", 9), ("five", 5), ("z", "z"), ("minus", -1)])
    fsqueue_cli("lease", queue.path, "--up-to", "-2", code=3)
    assert [(task["payload"], task["priority"]) for task in leased(fsqueue_cli, queue, "-n", 9, "--up-to", "5")] == [
        ("minus", -1), ("five", 5)
    ]  # fmt: skip
    assert sorted(task["payload"] for task in leased(fsqueue_cli, queue, "-n", 9, "--order", "random")) == [
        "nine", "none", "z"
    ]  # fmt: skip


@pytest.mark.once
def test_each_command_looks_at_all_shards_for_the_most_urgent(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory("spread", shards=64)
    queue.insert_many([Task(number, priority=number) for number in (*range(20, 60), *range(20))], batch_tasks=1)
    assert [task["payload"] for task in leased(fsqueue_cli, queue)] == [0]
    assert [task["payload"] for task in leased(fsqueue_cli, queue, "-n", 9)] == [*range(1, 10)]
    assert [task["payload"] for task in leased(fsqueue_cli, queue, "-n", 9, "--up-to", 12)] == [10, 11, 12]
    assert [task["payload"] for task in leased(fsqueue_cli, queue, "--wait", "1s")] == [13]


@pytest.mark.parametrize(
    ("given", "is_leased"), [("9", False), ('"9"', True), ("99", False), ("z", True), ('"z"', True), ("4x", False)]
)
def test_a_text_that_looks_like_a_number_is_quoted(fsqueue_cli: Run, queue: Queue, given: str, is_leased: bool) -> None:
    put_ranked(queue, [("text", "9")])
    fsqueue_cli("lease", queue.path, "--up-to", given, code=0 if is_leased else 3)


@pytest.mark.parametrize("given", ['"5', '"5"x', "9" * 25, "x" * 1025])
def test_what_is_no_priority_is_a_usage_error(fsqueue_cli: Run, queue: Queue, given: str) -> None:
    fsqueue_cli("lease", queue.path, "--up-to", given, code=2)


def test_the_empty_text_is_told_from_no_priority(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many([Task("empty", priority=""), "none"])
    rows = fsqueue_cli("ls", queue.path).stdout.splitlines()[1:]
    assert sorted(row.split()[5:] for row in rows) == [['""', "empty"], ["none"]]
    table = fsqueue_cli("status", queue.path, "--priorities").stdout.splitlines()[-2:]
    assert [row.split() for row in table] == [['""', '""', "1"], ["no", "priority", "1"]]
    assert [task["payload"] for task in leased(fsqueue_cli, queue, "-n", 9, "--up-to", '""')] == ["empty"]


def test_priorities_are_shown(fsqueue_cli: Run, queue: Queue) -> None:
    assert "PRIORITY" not in fsqueue_cli("ls", queue.path).stdout
    put_ranked(queue, [("text", "5"), ("five", 5), ("none", None)])
    rows = fsqueue_cli("ls", queue.path).stdout.splitlines()
    assert rows[0].split()[-2:] == ["PRIORITY", "PAYLOAD"]
    assert [row.split()[-2:] for row in rows[1:3]] == [['"5"', "text"], ["5", "five"]]
    assert "priority" in fsqueue_cli("show", queue.path, queue.peek()[0].id).stdout
    assert json.loads(fsqueue_cli("show", queue.path, queue.peek()[0].id, "--json").stdout)["priority"] == "5"
