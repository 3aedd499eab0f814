"""Commands: what they are given, how their end is told to the queue, leases kept and lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, QueueNotFound, StorageError, StorageFull, Worker
from fsqueue.protocol.waiting import IdlePoller
from fsqueue.worker import settling
from tests.levels import each_once
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import Failing, Renewals, drained, in_background, python, time_out, until_there

Make = Callable[..., Worker]


@pytest.fixture
def runner(told: list[str]) -> Make:
    def make(queue: Queue, *argv: str, **options: Any) -> Worker:
        return Worker(queue, command=argv, tell=lambda event: event.text and told.append(event.text), **options)

    return make


# -- what a command is given


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("payload", "argument", "expected"),
    [
        ("a 'b' $c", "{}", "a 'b' $c"),
        ({"x": 1}, "{}", '{"x":1}'),
        ({"x": 1}, "<{x}{x}>", "<11>"),
        ({"x": "s p"}, "{x}", "s p"),
        ({"x": {"y": None}}, "{x}", '{"y":null}'),
        ({"x": 1}, "{{x}} {{y}} {{}}", "{x} {y} {}"),
        ({"x": 1}, "${y} ${PATH}", "${y} ${PATH}"),
        ({"x": 1}, '{"a":{x}}', '{"a":1}'),
        ({"x": 1}, "{ }} {{", "{ }} {{"),
        ({"x": 1}, "{x..y} {x,} {-x} { y}", "{x..y} {x,} {-x} { y}"),
        ({"x": "{y}", "y": 2}, "{x}", "{y}"),
        ({"": 5}, "{}", '{"":5}'),
        ({"print $1": 5}, "{print $2}", "{print $2}"),
        ({"print $1": 5, "1..3": 6, " x": 8}, "{{print $1}} ${1..3} {x,y}", "{{print $1}} ${1..3} {x,y}"),
        ({"x": 1, "HOME": 2}, "${HOME} ${x}", "${HOME} ${x}"),
        ({"x-y": 1, "x.z": 2}, "{x-y} {x.z} {{x-y}} {{x.z}} ${x-z} ${x-y}", "1 2 {x-y} {x.z} ${x-z} ${x-y}"),
        ("{}", "{}", "{}"),
        ([1, 2], "{{0}}", "{0}"),
        (None, "{}", "null"),
        (True, "{}", "true"),
        ("ä€😀", "{}", "ä€😀"),
        ("", "{}", ""),
        (b"\xff\x01", "{}", os.fsdecode(b"\xff\x01")),
    ],
)
def test_substitution(queue: Queue, runner: Make, tmp_path: Path, payload: Any, argument: str, expected: str) -> None:
    queue.insert(payload)
    code = f"import os, sys; open({str(tmp_path / 'out')!r}, 'wb').write(os.fsencode(sys.argv[1]))"
    assert runner(queue, *python(code), argument).run() == drained(completed=1)
    assert os.fsdecode((tmp_path / "out").read_bytes()) == expected


@pytest.mark.parametrize(
    ("payload", "there"),
    [
        ({"tile": 1, "zoom": 2}, " Its fields are tile, zoom. No task"),
        ({}, " It has no fields. No task"),
        ({str(n): n for n in range(10, 40)}, "28, 29 and 10 more. No task"),
        ("text", "it is a text, and no object"),
        (None, "it is null, and no object"),
        (b"bytes", "it is bytes, and no object"),
    ],
)
def test_a_field_that_the_first_task_lacks_is_refused(queue: Queue, runner: Make, payload: Any, there: str) -> None:
    queue.insert(payload)
    with pytest.raises(InvalidArgument, match=r"has no field 'tyle' for \{tyle\}") as refused:
        runner(queue, "echo", "{}", "a{tyle}b").run()
    assert there in str(refused.value)
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]
    [task] = queue.tasks()
    assert [move.op for move in queue.history(task.id)] == ["insert"], "nothing was leased"


@pytest.mark.parametrize("field", ["tile-id", "tile.id", "a-b.c"])
def test_a_field_with_hyphens_or_dots_is_refused_like_any_other(queue: Queue, runner: Make, field: str) -> None:
    queue.insert({"tile_id": 1, "tile": {"id": 1}})
    with pytest.raises(InvalidArgument, match=rf"has no field '{field}' for \{{{field}\}} \(write {{{{{field}}}}}"):
        runner(queue, "echo", f"a{{{field}}}b").run()
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


def test_a_field_is_missed_in_any_of_several_queues(queue_factory: QueueFactory) -> None:
    queues = [queue_factory("first"), queue_factory("second")]
    for queue, field in zip(queues, ("x", "y"), strict=True):
        queue.insert({field: 1})
    with pytest.raises(InvalidArgument, match="has no field 'x'"):
        Worker(queues, command=["echo", "{x}"]).run()
    assert [queue.status().waiting for queue in queues] == [1, 1]


def test_a_task_that_lacks_a_field_fails_among_others(queue_factory: QueueFactory, runner: Make) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many([{"x": 1}, {"y": 2}, {"x": 3}], batch_tasks=3)
    assert runner(queue, "echo", "{x}").run() == drained(completed=2, failed=1)
    [letter] = queue.dead()
    assert letter.payload == {"y": 2}
    assert letter.reason.startswith("the payload has no field 'x' for {x} (write {{x}} for the text {x})")


def test_a_payload_that_is_no_longer_there_is_not_looked_at(queue: Queue, runner: Make) -> None:
    assert runner(queue, "echo", "{x}").run() == drained()


@pytest.mark.parametrize("word", ["echo {}", "nosuch {x} y", "./render {x}", "sh -c 'echo {}'"])
def test_a_command_that_is_one_word_is_refused(queue: Queue, runner: Make, word: str) -> None:
    queue.insert({"x": 1})
    with pytest.raises(InvalidArgument, match="is one word, and no program has that name"):
        runner(queue, word).run()
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


def test_programs_whose_names_have_blanks_run(queue: Queue, runner: Make, tmp_path: Path) -> None:
    (tmp_path / "my tools").mkdir()
    program = tmp_path / "my tools" / "a b"
    program.symlink_to("/bin/true")
    queue.insert({"name": "a b"})
    assert runner(queue, str(program)).run() == drained(completed=1)
    queue.insert({"name": "a b"})
    assert runner(queue, f"{tmp_path}/my tools/{{name}}").run() == drained(completed=1)


def test_standard_input_and_environment(queue: Queue, runner: Make, tmp_path: Path) -> None:
    payload = {"name": "x", "n": [1, 2]}
    task_id = queue.insert(payload).id
    code = (
        f"import json, os, sys; json.dump([sys.stdin.read(), dict(os.environ)], open({str(tmp_path / 'out')!r}, 'w'))"
    )
    runner(queue, *python(code)).run()
    stdin, environment = json.loads((tmp_path / "out").read_text())
    assert (json.loads(stdin), stdin[-1]) == (payload, "\n")
    assert json.loads(environment["FSQUEUE_PAYLOAD"]) == payload
    assert environment["FSQUEUE_TASK_ID"] == task_id
    assert environment["FSQUEUE_ATTEMPT"] == "1"
    assert environment["FSQUEUE_QUEUE"] == str(queue.path)
    assert environment["FSQUEUE_TOKEN"].startswith(task_id + "@")


def test_a_large_payload_comes_on_standard_input_only(
    queue: Queue, runner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSQUEUE_PAYLOAD", "of somebody else")
    queue.insert({"big": "x" * 5_000_000, "small": "s"})
    code = (
        "import json, os, sys\n"
        "assert len(json.load(sys.stdin)['big']) == 5000000 and 'FSQUEUE_PAYLOAD' not in os.environ"
    )
    assert runner(queue, *python(code), "{small}", stdin=True).run() == drained(completed=1)


READ = "import sys; print(repr(sys.stdin.read()))"
PAYLOAD = """'{"f":"q1.mp4"}\\n'"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("words", "options", "expected"),
    [
        ([], {}, PAYLOAD),
        (["{#}", "{{f}}", "${f}", "{print $1}"], {}, PAYLOAD),
        (["{}"], {}, "''"),
        (["-i", "in/{f}"], {}, "''"),
        (["{f/.}.png"], {}, "''"),
        (["{f:>20}", "{#}"], {}, "''"),
        (["{f}"], {"stdin": True}, PAYLOAD),
        ([], {"stdin": True}, PAYLOAD),
    ],
)
def test_a_payload_in_the_arguments_stays_off_standard_input(
    queue: Queue, words: list[str], options: dict[str, Any], expected: str
) -> None:
    queue.insert({"f": "q1.mp4"})
    command = [*python(READ), *words]
    assert Worker(queue, command=command, result_from_stdout=True, **options).run() == drained(completed=1)
    assert [task.result.strip() for task in queue.tasks("completed")] == [expected]


def test_a_program_that_takes_keys_from_standard_input_is_not_ended_by_a_payload(queue: Queue, tmp_path: Path) -> None:
    """As ffmpeg does: it reads keys unless standard input is at its end, `q` ends it, and its exit status is 0."""
    program = tmp_path / "converter"
    program.write_text(
        '#!/bin/sh\nwhile key=$(head -c 1) && [ "$key" ]; do [ "$key" != q ] || exit 0; done\necho "$1" >>out\n'
    )
    program.chmod(0o755)
    queue.insert_many(["q1.mp4", "a/q.mp4"], batch_tasks=2)
    out = tmp_path / "out"
    assert Worker(
        queue, command=["sh", "-c", 'cd "$1" && ./converter "$2"', "sh", str(tmp_path), "{}"]
    ).run() == drained(completed=2)
    assert sorted(out.read_text().split()) == ["a/q.mp4", "q1.mp4"]


def test_an_empty_standard_input_is_no_file(queue: Queue, runner: Make) -> None:
    """Programs such as ripgrep search standard input if it is a file, and else the working directory."""
    queue.insert("x")
    assert runner(queue, "sh", "-c", "[ -c /dev/stdin ]", "sh", "{}").run() == drained(completed=1)


def test_functions_take_no_standard_input(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="is for commands"):
        Worker(queue, "json:dumps", stdin=True)


@pytest.mark.parametrize("payload", ["x" * 3_000_000, "nul\0inside"])
def test_a_payload_that_cannot_be_an_argument_fails_its_task(queue: Queue, runner: Make, payload: str) -> None:
    queue.insert_many([payload, "good"])
    done = runner(queue, "true", "{}")
    thread, reports = in_background(done)
    until(
        lambda: queue.status().completed == 1 and queue.status().delayed + queue.status().leased == 1,
        "one success and one failure",
    )
    done.stop()
    thread.join()
    assert reports[0].failed >= 1
    [task] = queue.tasks()
    assert "leave it out of the arguments, and the command has it on standard input (with --stdin" in (task.error or "")


def test_a_large_unread_standard_input_is_no_problem(queue: Queue, runner: Make) -> None:
    queue.insert("x" * 1_000_000)
    assert runner(queue, "true").run() == drained(completed=1)


# -- how it ends


def reasons(queue: Queue) -> list[str]:
    return [letter.reason for letter in queue.dead()]


@pytest.fixture
def once(queue_factory: QueueFactory) -> Queue:
    """A queue whose tasks have one attempt."""
    queue = queue_factory(max_attempts=1, lease_s=60)
    queue.insert("payload")
    return queue


def test_exit_status_and_the_tail_of_standard_error_are_the_reason(runner: Make, once: Queue) -> None:
    code = "import sys; sys.stderr.write('x' * 9000 + '\\nValueError: bad\\n'); sys.exit(3)"
    assert runner(once, *python(code)).run() == drained(failed=1)
    [reason] = reasons(once)
    headline, _, tail = reason.partition("\n")
    assert headline == "exit status 3: ValueError: bad"
    assert tail == "x" * (4096 - len("\nValueError: bad\n")) + "\nValueError: bad"


def test_death_by_signal_is_a_failure(runner: Make, once: Queue) -> None:
    assert runner(once, "sh", "-c", "kill -9 $$").run() == drained(failed=1)
    assert reasons(once) == ["killed by SIGKILL"]


def test_a_timeout_ends_the_command_and_all_it_started(runner: Make, once: Queue, tmp_path: Path) -> None:
    command = f"sleep 1000 & echo $! > {tmp_path}/pid; trap '' TERM; touch {tmp_path}/ready; wait; wait; sleep 1000"
    worker = runner(once, "sh", "-c", command, task_timeout_s=1000, grace_s=0.5)
    thread, reports = in_background(worker)
    until(lambda: (tmp_path / "ready").exists(), "the begin of the command")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert reports == [drained(failed=1)]
    assert reasons(once) == ["timed out after 1000 s"]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize("status", [0, 1])
def test_a_process_that_a_command_leaves_behind_holds_nothing_up(
    runner: Make, once: Queue, tmp_path: Path, status: int
) -> None:
    """If the command succeeds, it stays; if it fails, it ends before the task is tried again."""
    command = f"sleep 600 & echo $! >{tmp_path}/pid; echo started >&2; exit {status}"
    assert runner(once, "sh", "-c", command).run() == (drained(failed=1) if status else drained(completed=1))
    pid = int((tmp_path / "pid").read_text())
    if status:
        assert not Path(f"/proc/{pid}").exists()
        assert reasons(once) == ["exit status 1: started\nstarted"]
    else:
        os.kill(pid, signal.SIGKILL)  # it was still there


def test_failed_tasks_are_tried_again(runner: Make, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(backoff_s=(0.1, 0.2))
    queue.insert(1)
    command = f"echo $FSQUEUE_ATTEMPT >> {tmp_path}/attempts; [ $FSQUEUE_ATTEMPT = 3 ]"
    assert runner(queue, "sh", "-c", command).run() == drained(completed=1, failed=2)
    assert (tmp_path / "attempts").read_text().split() == ["1", "2", "3"]


def test_a_program_named_by_the_payload(runner: Make, queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(["true", "no-such-command", "false"])
    assert runner(queue, "{}").run() == drained(completed=1, failed=2)
    said = sorted(reason.partition("\n")[0] for reason in reasons(queue))
    assert said == ["exit status 1", "the command cannot be executed: No such file or directory: {}"]


def test_a_missing_command_is_refused_and_its_task_put_back(queue: Queue, runner: Make) -> None:
    queue.insert(1)
    with pytest.raises(InvalidArgument, match="no-such-command"):
        runner(queue, "no-such-command").run()
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


@pytest.mark.parametrize(
    "options",
    [{"processes": 0}, {"processes": True}, {"processes": 1.5}, {"task_timeout_s": 0}, {"task_timeout_s": float("nan")},
     {"task_timeout_s": "1"},
     {"lease_s": -1}, {"grace_s": -1}, {"until": "later"}],
)  # fmt: skip
def test_bad_arguments(queue: Queue, runner: Make, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        runner(queue, "true", **options)


def test_no_command_is_a_bad_argument(queue: Queue, runner: Make) -> None:
    with pytest.raises(InvalidArgument):
        runner(queue)


SETTLED = {
    "task.complete({'mean': 5})": (drained(completed=1), "completed"),
    "task.bury('hopeless')": (drained(failed=1), "dead"),
    "task.fail('again', delay_s=3600)": (drained(failed=1), "delayed"),
    "task.release(3600)": (drained(released=1), "delayed"),
}


@pytest.mark.usefixtures("renews_often")
@each_once(("verb", list(SETTLED)), ("then", ["sys.exit(0)", "sys.exit(1)", "open(os.environ['FIFO']).close()"]))
def test_a_command_may_settle_its_task_itself(
    runner: Make,
    queue_factory: QueueFactory,
    told: list[str],
    verb: str,
    then: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Also when it goes on for longer than it takes to renew the lease that is gone."""
    expected, state = SETTLED[verb]
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    os.mkfifo(tmp_path / "fifo")
    queue = queue_factory()
    task_id = queue.insert(1).id
    code = (
        "import os, sys, fsqueue\n"
        "task = fsqueue.Queue(os.environ['FSQUEUE_QUEUE']).attach(os.environ['FSQUEUE_TOKEN'])\n"
        f"{verb}\n{then}"
    )
    run = runner(queue, *python(code))
    thread, reports = in_background(run)
    until(lambda: queue.task(task_id).state == state, "what the command settles")
    if "FIFO" in then:
        [job] = run._loop._executor.at_work()
        until(lambda: job.settled, "the worker to find it when it renews")
        (tmp_path / "fifo").write_bytes(b"")
    if state == "delayed":
        until(lambda: not run._loop._executor.at_work(), "the end of the command")
        run.stop()
    thread.join()
    assert reports[0].completed + reports[0].failed + reports[0].released == 1
    assert [getattr(reports[0], name) for name in ("completed", "failed", "released", "lost")] == [
        expected.completed, expected.failed, expected.released, 0
    ]  # fmt: skip
    assert not any("lost" in line for line in told)


# -- leases


@pytest.mark.usefixtures("renews_often")
def test_leases_are_renewed_while_commands_run(
    runner: Make, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    renewals = Renewals(monkeypatch)
    queue = queue_factory()
    queue.insert_many(range(3))
    run = runner(queue, "sh", "-c", until_there(tmp_path / "go"), processes=3)
    thread, reports = in_background(run)
    until(lambda: len(run._loop._executor.at_work()) == 3, "three tasks at work")
    before = {task.id: task.lease_until or 0 for task in queue.tasks()}
    renewals.until_more(2)
    after = {task.id: task.lease_until or 0 for task in queue.tasks("leased")}
    assert after.keys() == before.keys()
    assert all(after[task] > before[task] for task in after)
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=3)]
    assert queue.status().completed == 3


@pytest.mark.usefixtures("renews_often")
def test_of_a_lost_lease_the_command_is_ended_and_the_result_dropped(
    runner: Make, queue_factory: QueueFactory, told: list[str], tmp_path: Path
) -> None:
    queue = queue_factory()
    queue.insert(1)
    run = runner(
        queue,
        "sh",
        "-c",
        f"trap 'touch {tmp_path}/ended; exit 0' TERM; touch {tmp_path}/began; while :; do sleep 600; done",
        grace_s=60,
        max_tasks=1,
    )
    thread, reports = in_background(run)
    until(lambda: (tmp_path / "began").exists(), "the begin of the command")
    queue.release_all()
    until(lambda: (tmp_path / "ended").exists(), "the end of the command")
    thread.join()
    assert reports[0].lost == 1
    assert reports[0].completed == 0
    assert any("was lost, its work is stopped" in line for line in told)
    assert queue.status().waiting == 1


def test_a_result_that_comes_too_late_is_dropped(runner: Make, queue: Queue, told: list[str], tmp_path: Path) -> None:
    queue.insert(1)
    run = runner(queue, "sh", "-c", until_there(tmp_path / "go"))
    thread, reports = in_background(run)
    until(lambda: queue.status().leased, "a leased task")
    queue.purge()
    (tmp_path / "go").touch()
    thread.join()
    assert reports == [drained(lost=1)]
    assert any("its result is dropped" in line for line in told)


# -- a filesystem that fails


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsqueue.worker.settling.RETRY_S", (0.05, 0.05))
    monkeypatch.setattr("fsqueue.worker.feeding.RETRY_S", (0.05, 0.05))
    monkeypatch.setattr("fsqueue.worker.loop.RETRY_S", (0.05, 0.05))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("error", [StorageError("The filesystem is away."), StorageFull("There is no room.")])
def test_completed_work_is_kept_while_reporting_fails(
    runner: Make, queue: Queue, told: list[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    queue.insert_many(range(2))
    failing = Failing(monkeypatch, settling, "_tell", [error] * 5)
    assert runner(queue, "true").run() == drained(completed=2)
    assert failing.calls in (6, 7)
    assert [line for line in told if "Trying again" in line]
    assert queue.status().completed == 2


@pytest.mark.usefixtures("quick")
def test_reporting_is_given_up_when_patience_is_over(
    runner: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert(1)
    Failing(monkeypatch, settling, "_tell", [StorageError("The filesystem is away.")] * 10_000)
    worker = runner(queue, "true", patience_s=1000)
    worker._loop._reporter._now = itertools.count(0.0, 100.0).__next__
    with pytest.raises(StorageError, match="away"):
        worker.run()


@pytest.mark.usefixtures("quick", "renews_often")
def test_renewing_is_tried_again(
    runner: Make, queue_factory: QueueFactory, told: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue = queue_factory()
    queue.insert(1)
    failing = Failing(monkeypatch, Queue, "renew", [StorageError("The filesystem is away.")] * 3)
    thread, reports = in_background(runner(queue, "sh", "-c", until_there(tmp_path / "go")))
    until(lambda: failing.calls > 3, "leases to be renewed")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]
    assert told == ["leases could not be renewed: The filesystem is away. Trying again."]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("failures", "completed"), [(3, 1), (10_000, 0)])
def test_leasing_is_tried_again_but_not_for_ever(
    runner: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch, failures: int, completed: int
) -> None:
    queue.insert(1)
    Failing(monkeypatch, IdlePoller, "look", [StorageError("The filesystem is away.")] * failures)
    if completed:
        assert runner(queue, "true").run() == drained(completed=1)
    else:
        worker = runner(queue, "true", patience_s=1000)
        worker._loop._feeder._now = itertools.count(0.0, 100.0).__next__
        with pytest.raises(StorageError, match="away"):
            worker.run()


def test_an_error_ends_the_run_after_what_runs_has_ended(runner: Make, queue: Queue, tmp_path: Path) -> None:
    queue.insert(1)
    run = runner(
        queue,
        "sh",
        "-c",
        f"touch {tmp_path}/began; {until_there(tmp_path / 'go')}; touch {tmp_path}/ended",
        processes=2,
    )
    errors: list[Exception] = []

    def target() -> None:
        try:
            run.run()
        except QueueNotFound as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    until(lambda: (tmp_path / "began").exists(), "the begin of a task")
    queue.delete(foreground=True)
    until(lambda: run._loop._error, "the worker to find that the queue is gone")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert (tmp_path / "ended").exists()


# -- the process around it


@pytest.mark.once
def test_signal_handlers_are_restored(queue: Queue, runner: Make) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    runner(queue, "true").run()
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    assert before == after


@pytest.mark.once
def test_an_inherited_disregard_of_sigchld_hides_no_failure(runner: Make, once: Queue) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert runner(once, "false").run() == drained(failed=1)
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.once
def test_nothing_leaks(runner: Make, queue: Queue) -> None:
    def descriptors() -> int:
        """Count those that connect this process to others. Of files a queue keeps some open, now more, now fewer."""
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(f"/proc/self/fd/{name}").startswith(("pipe:", "socket:", "anon_inode:[pidfd]"))
        return found

    def children() -> set[str]:
        """The processes that this one has started, zombies among them; those of other tests' fixtures, too."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == os.getpid():
                found.add(process.name)
        return found

    queue.insert_many(range(5))
    with subprocess.Popen(["sleep", "0"]) as zombie:
        until(lambda: str(zombie.pid) in children(), "the end of a child")
    others = children()
    runner(queue, "sh", "-c", "echo x >&2").run()
    before = descriptors(), threading.active_count()
    queue.insert_many(range(60))
    assert runner(queue, "sh", "-c", "echo x >&2", processes=4).run() == drained(completed=60)
    until(lambda: threading.active_count() <= before[1], "the end of the threads")
    until(lambda: descriptors() <= before[0], "the end of the descriptors")
    assert children() <= others
