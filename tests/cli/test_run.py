"""run, as users start it: real processes, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.cli.conftest import Run, Spawn, catches
from tests.conftest import QueueFactory
from tests.levels import how_many
from tests.waiting import PATIENCE_S, until
from tests.worker.support import shell_until, until_there

pytestmark = pytest.mark.once


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


def test_runs_a_command_a_task_until_drained(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many([{"name": "a b", "n": 1}, "plain", 3])
    process = spawn("run", queue.path, "-j", 2, "--", "echo", "<{}>", "{{name}}", "{print $1}")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert sorted(out.splitlines()) == [
        "<3> {name} {print $1}",
        "<plain> {name} {print $1}",
        '<{"name":"a b","n":1}> {name} {print $1}',
    ]
    assert (process.returncode, err) == (0, "fsqueue: 3 completed\n")
    assert queue.status().completed == 3


def test_dead_letters_exit_with_9_and_keep_the_reason(spawn: Spawn, queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=2, backoff_s=(0, 0))
    queue.insert_many([0, 1])
    process = spawn("run", queue.path, "--json", "--", "sh", "-c", 'echo trouble >&2; exit "$1"', "sh", "{}")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 9
    counts = {
        "completed": 1,
        "failed": 2,
        "buried": 1,
        "released": 0,
        "moved": 0,
        "lost": 0,
        "unsettled": 0,
        "unkept": 0,
        "unwritten": False,
    }
    assert json.loads(out) == counts | {"buried_attempts": 2, "spent": 0, "signal": None, "ended": "drained", "dead": 1}
    assert err == "trouble\n" * 3  # forwarded as it came
    assert [letter.reason for letter in queue.dead()] == ["exit status 1: trouble\ntrouble"]


def test_a_task_whose_attempts_are_used_up_is_given_up_with_9_and_its_own_reason(spawn: Spawn, queue: Queue) -> None:
    queue.change_settings(backoff_s=(0, 0))
    queue.insert(1)
    [task] = queue.lease()
    task.fail("exit status 3: my own reason\nmy own reason")
    queue.change_settings(max_attempts=1)
    process = spawn("run", queue.path, "--", "true")
    _, err = process.communicate(timeout=PATIENCE_S)
    failed, summary, hint = err.splitlines()
    assert "exit status 3: my own reason (out of attempts" in failed
    assert (process.returncode, summary) == (9, "fsqueue: 1 given up without another attempt")
    assert hint.startswith("fsqueue: 1 dead letter in the queue")
    [letter] = queue.dead()
    assert letter.reason.splitlines()[1:] == ["my own reason"]


def test_one_command_answers_for_many_tasks(spawn: Spawn, queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(5))
    code = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    task = json.loads(line)\n"
        "    n = task['payload']\n"
        "    print(json.dumps({'id': task['id']} | ({'error': 'odd'} if n == 3 else {'result': 2 * n})), flush=True)"
    )
    options = ("--tasks-per-command", 5, "--result-stdout", "--json")
    process = spawn("run", queue.path, *options, "--", sys.executable, "-c", code)
    out, err = process.communicate(timeout=PATIENCE_S)
    *answers, summary = out.splitlines()
    assert {json.loads(answer)["id"] for answer in answers} == {one.id for one in queue.results()}
    assert process.returncode == 9
    assert err.splitlines() == [
        f"fsqueue: hint: if a command fails, all its tasks become dead letters: {queue.path} gives a task up after "
        f"1 attempt. To have each tried again, alone: fsqueue set {queue.path} max_attempts=2"
    ]
    report = json.loads(summary)
    assert (report["completed"], report["buried"], report["ended"]) == (4, 1, "drained")
    assert {one.payload: one.result for one in queue.results() if one.state == "completed"} == {0: 0, 1: 2, 2: 4, 4: 8}
    assert [(letter.payload, letter.reason) for letter in queue.dead()] == [(3, "odd")]


def test_a_command_for_many_tasks_that_allows_one_attempt_is_hinted_at(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    options = ("run", queue.path, "--dry-run", "--tasks-per-command")
    assert fsqueue_cli(*options, 2, "--", "cat").stderr == ""
    assert (
        "--max-attempts 1 lets none be tried again" in fsqueue_cli(*options, 2, "--max-attempts", 1, "--", "cat").stderr
    )
    assert fsqueue_cli(*options, 1, "--max-attempts", 1, "--", "cat").stderr == ""


def test_a_placeholder_in_a_command_for_many_tasks_is_refused(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    for command in (["echo", "{}"], ["sh", "-c", "echo {}"]):
        for verb in ("run", "slurm"):
            refused = fsqueue_cli(verb, queue.path, "--tasks-per-command", 5, "--", *command, code=2)
            assert "{} stands for one task" in refused.stderr
    assert queue.status().waiting == 1


@pytest.mark.parametrize("output", ["group", "line", "ungrouped"])
def test_output_that_finds_no_room_is_said_and_exits_with_7(spawn: Spawn, queue: Queue, output: str) -> None:
    queue.insert_many(range(3))
    with open("/dev/full", "w") as full:
        process = spawn("run", queue.path, "--output", output, "--", "echo", "{}", stdout=full)
        _, err = process.communicate(timeout=PATIENCE_S)
    lost, summary = err.splitlines()
    assert "could not be written to standard output or standard error, and is lost: [Errno 28]" in lost
    assert (process.returncode, summary) == (7, "fsqueue: 3 completed, output was lost: no room")
    assert queue.status().completed == 3


def test_a_reader_of_the_output_that_goes_away_is_no_trouble(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(3))
    process = spawn("run", queue.path, "--", "seq", "100000")
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.stdout.close()
    process.wait(PATIENCE_S)
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (0, "fsqueue: 3 completed\n")


def test_dead_letters_of_earlier_runs_are_told_and_fail_no_run(spawn: Spawn, queue_factory: QueueFactory) -> None:
    """As elements of an array that begin after a task was given up."""
    queue = queue_factory(max_attempts=1)
    queue.insert_many(["false", "true"])
    [first] = queue.lease(1)
    first.fail("earlier")
    process = spawn("run", queue.path, "--", "{}")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "1 completed" in err
    assert "1 dead letter in the queue" in err


def test_dead_letters_are_told_of_the_queue_that_has_them(spawn: Spawn, queue_factory: QueueFactory) -> None:
    one, other = queue_factory("one"), queue_factory("other", max_attempts=1)
    one.insert("true")
    other.insert("false")
    _, err = spawn("run", one.path, other.path, "--", "{}").communicate(timeout=PATIENCE_S)
    assert [line for line in err.splitlines() if "dead letter" in line] == [
        f"fsqueue: 1 dead letter in the queue. To see why: fsqueue dead list {other.path}"
    ]


@pytest.mark.parametrize(("attempts", "verb"), [(5, "bury"), (1, "fail")])
def test_a_task_that_its_command_gives_up_by_token_is_the_run_s_own(
    spawn: Spawn, queue_factory: QueueFactory, attempts: int, verb: str
) -> None:
    queue = queue_factory(max_attempts=attempts)
    queue.insert(1)
    command = f'{sys.executable} -m fsqueue_cli {verb} "$FSQUEUE_QUEUE" "$FSQUEUE_TOKEN" --reason hopeless'
    process = spawn("run", queue.path, "--json", "--", "sh", "-c", command)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["buried"], json.loads(out)["failed"]) == (9, 1, 1)


def test_as_many_at_a_time_as_the_job_has_processors(spawn: Spawn, queue: Queue) -> None:
    """One at a time, since the job has one processor, whatever the machine has: no two commands at once."""
    queue.insert_many(range(6))
    command = f'mkdir "$0.d" || exit 1; {sys.executable} -c pass; rmdir "$0.d"'
    job = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_END_TIME": "x"}
    words = ["run", queue.path, "-j", "auto", "--", "sh", "-c", command, queue.path]
    assert spawn(*words, env=os.environ | job).wait(timeout=PATIENCE_S) == 0
    assert [task.attempt for task in queue.tasks("completed")] == [1] * 6
    said = spawn("run", queue.path, "-j", "many", "--", "true").communicate(timeout=PATIENCE_S)[1]
    assert "'many' is neither a number from 1 on nor 'auto'" in said


def test_jobs_run_side_by_side(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    """Four commands that each wait for all four."""
    queue.insert_many(range(4))
    command = f"touch {tmp_path}/seen{{:d}}; {shell_until(f'[ $(ls {tmp_path} | grep -c seen) = 4 ]')}"
    assert spawn("run", queue.path, "-j", 4, "--", "sh", "-c", command).wait(timeout=PATIENCE_S) == 0


def test_a_command_that_does_not_exist_exits_with_2_and_burns_nothing(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert(1)
    assert "was not found" in fsqueue_cli("run", queue.path, "--", "no-such-command", "{}", code=2).stderr
    fsqueue_cli("run", queue.path, "--", str(queue.path), code=2)
    fsqueue_cli("run", queue.path, "--", "", code=2)
    fsqueue_cli("run", queue.path, code=2)
    fsqueue_cli("run", queue.path, "-j", "0", "--", "true", code=2)
    fsqueue_cli("run", queue.path, "--task-timeout", "0", "--", "true", code=2)
    fsqueue_cli("run", queue.path, "--lease", "0", "--", "true", code=2)
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


def test_a_file_that_cannot_be_executed_exits_with_2_and_burns_nothing(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF no program")
    script.chmod(0o755)
    queue.insert(1)
    assert "could not be executed" in fsqueue_cli("run", queue.path, "--", script, code=2).stderr
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 140)],  # LSF's at the limit
)
def test_stopped_by_a_signal_it_puts_back_what_it_holds(
    spawn: Spawn, queue: Queue, tmp_path: Path, number: int, code: int
) -> None:
    queue.insert_many(range(5))
    process = spawn("run", queue.path, "-j", 2, "--grace", "0.5", "--", "sh", "-c", f"touch {tmp_path}/$$; sleep 1000")
    until(lambda: len(pids(tmp_path)) == 2, "the begin of two commands")
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert "2 tasks at work may go on for 0.5 s" in err
    assert "2 released" in err
    assert not any(map(is_alive, pids(tmp_path)))
    assert all((task.state, task.attempt) == ("waiting", 0) for task in queue.tasks())
    assert queue.status().waiting == 5


@pytest.mark.parametrize("is_empty", [True, False])
def test_stopped_while_idle(spawn: Spawn, queue: Queue, is_empty: bool) -> None:
    """It does not say that there was nothing to do: it does not know what it would have found."""
    if not is_empty:
        queue.insert("later", delay_s=1000)
    process = spawn("run", queue.path, "--forever", "--", "true")
    until(lambda: catches(process.pid, signal.SIGTERM), "the handler of SIGTERM")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE_S)[1] == "fsqueue: no task was begun\n"
    assert process.returncode == 130


def test_commands_that_ignore_sigterm_are_killed_after_the_grace(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    queue.insert(1)
    command = f"trap '' TERM; touch {tmp_path}/$$; while :; do sleep 600; done"
    process = spawn("run", queue.path, "--grace", "0.5", "--", "sh", "-c", command)
    until(lambda: pids(tmp_path), "the begin of a command")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 143
    assert not any(map(is_alive, pids(tmp_path)))
    assert queue.status().waiting == 1


def test_a_second_signal_kills_at_once(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    queue.insert(1)
    command = f"trap '' TERM; touch {tmp_path}/$$; while :; do sleep 600; done"
    process = spawn("run", queue.path, "--grace", "1000", "--", "sh", "-c", command)
    until(lambda: pids(tmp_path), "the begin of a command")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "a second signal puts them back now" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE_S) == 130
    assert not any(map(is_alive, pids(tmp_path)))
    assert queue.status().waiting == 1


def test_ctrl_c_at_the_terminal_reaches_the_runner_only(queue: Queue, tmp_path: Path) -> None:
    """The command gets its SIGTERM from the worker, and no SIGINT from the terminal: it can end in order."""
    import pty
    import sys

    queue.insert(1)
    pid, terminal = pty.fork()
    if pid == 0:
        command = f"trap ': >{tmp_path}/int' INT; trap ': >{tmp_path}/term; exit' TERM; touch {tmp_path}/$$"
        command += "; while :; do sleep 600; done"
        arguments = ["run", str(queue.path), "--grace", "2", "--", "sh", "-c", command]
        os.execv(sys.executable, [sys.executable, "-m", "fsqueue_cli", *arguments])
    until(lambda: pids(tmp_path), "the begin of a command")
    os.write(terminal, b"\x03")
    written = b""
    while chunk := _read(terminal):
        written += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    os.close(terminal)
    assert (tmp_path / "term").exists()
    assert not (tmp_path / "int").exists()
    assert queue.status().waiting == 1  # although the command ended with 0: it was told to


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_of_a_killed_runner_the_tasks_come_back(spawn: Spawn, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(lease_s=2)
    queue.insert_many(range(6))
    command = f"echo {{:d}} >> {tmp_path}/started; {until_there(tmp_path / 'go')}; echo {{:d}} >> {tmp_path}/ended"
    first = spawn("run", queue.path, "-j", 2, "--", "sh", "-c", command)
    until(lambda: (tmp_path / "started").exists(), "the begin of a command")
    first.kill()
    (tmp_path / "go").touch()
    second = spawn("run", queue.path, "-j", 2, "--", "sh", "-c", command)
    assert second.wait(timeout=PATIENCE_S) == 0
    assert queue.status().completed == 6
    assert set((tmp_path / "ended").read_text().split()) == {"0", "1", "2", "3", "4", "5"}


def test_a_runner_whose_standard_error_is_gone_goes_on(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(3))
    process = spawn("run", queue.path, "--", "sh", "-c", "echo lots >&2")
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    assert process.wait(timeout=PATIENCE_S) == 0
    assert queue.status().completed == 3


def test_a_runner_whose_standard_error_is_stuck_completes_its_task(spawn: Spawn, queue: Queue) -> None:
    """Nobody reads what the command prints, which is more than a pipe holds; the worker keeps it, and goes on."""
    queue.insert(1)
    process = spawn("run", queue.path, "--", "sh", "-c", "head -c 300000 /dev/zero >&2", stderr=subprocess.PIPE)
    until(lambda: queue.status().completed, "a completed task")
    assert process.poll() is None, "it has yet to pass on what was printed"
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert queue.status().completed == 1


def test_many_runners_share_a_queue(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(100))
    command = f"echo {{:d}} >> {tmp_path}/done"
    runners = [spawn("run", queue.path, "-j", 2, "--", "sh", "-c", command) for _ in range(3)]
    assert [runner.wait(timeout=PATIENCE_S) for runner in runners] == [0, 0, 0]
    assert sorted(map(int, (tmp_path / "done").read_text().split())) == list(range(100))


def test_a_deleted_queue_ends_the_run_with_5(spawn: Spawn, queue: Queue) -> None:
    process = spawn("run", queue.path, "--forever", "--", "true")
    until(lambda: catches(process.pid, signal.SIGTERM), "the handler of SIGTERM")
    queue.delete(foreground=True)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert len(err.splitlines()) == 1


# -- what the options do


def test_calls_a_function_of_several_queues(spawn: Spawn, queue_factory: QueueFactory) -> None:
    queues = [queue_factory(name) for name in ("a", "b")]
    for queue in queues:
        queue.insert_many(range(3))
    process = spawn("run", *(queue.path for queue in queues), "--call", "tests.worker.tasks:double", "-j", 2)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "fsqueue: 6 completed\n")
    assert sorted(task.result["double"] for task in queues[0].tasks("completed")) == [0, 2, 4]


@pytest.mark.parametrize("how", [["--load", "tiles"], ["--call", "tiles:render_one"]])
def test_modules_in_the_working_directory_are_found(queue: Queue, tmp_path: Path, how: list[str]) -> None:
    """By the installed command, too, which Python starts without that directory in its path."""
    (tmp_path / "tiles.py").write_text(
        "import fsqueue\n@fsqueue.task\ndef render(n):\n    return n + 1\n"
        "def render_one(payload):\n    return render(*payload['args'])\n"
    )
    queue.insert({"call": "tiles:render", "args": [1]})
    command = [sys.executable, "-P", "-m", "fsqueue_cli", "run", str(queue.path), *how]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "fsqueue: 1 completed\n")
    assert [task.result for task in queue.tasks("completed")] == [2]


def test_a_function_that_is_not_found_exits_with_2(spawn: Spawn, queue: Queue) -> None:
    queue.insert(1)
    process = spawn("run", queue.path, "--call", "no_such_module:f")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert err == (
        "fsqueue: This Python finds no module 'no_such_module'. Name it as in an import, without .py; install it, be "
        "in its directory, or put that on PYTHONPATH.\n"
    )
    assert queue.status().waiting == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "why"),
    [("def f(:", "SyntaxError: invalid syntax (typed.py, line 1)"), ("f = 1", "typed:f is no function, but int"),
     ("import nosuch", "No module named 'nosuch' ("), ("f = {}['k']", "KeyError: 'k' ("), ("", "no function 'f'")],
)  # fmt: skip
def test_a_function_that_cannot_be_had_is_told_in_a_sentence(queue: Queue, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "typed.py").write_text(text)
    queue.insert(1)
    command = [sys.executable, "-m", "fsqueue_cli", "run", str(queue.path), "--call", "typed:f"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert why in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "\\n" not in ran.stderr
    assert queue.status().waiting == 1


def test_a_typo_in_a_placeholder_completes_nothing(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many([{"tile": n} for n in range(3)])
    process = spawn("run", queue.path, "--", "echo", "{tyle}")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "has no field 'tyle' for {tyle} (write {{tyle}} for the text {tyle}). Its fields are tile." in err
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)] * 3


def test_a_column_with_a_blank_in_its_name_is_named_in_quotes(
    fsqueue_cli: Run, spawn: Spawn, queue: Queue, tmp_path: Path
) -> None:
    """In plain braces it reached the command as text, and the tasks were completed."""
    (tmp_path / "t.csv").write_text("tile no,x\n7,1\n8,2\n")
    fsqueue_cli("insert", queue.path, "--csv", tmp_path / "t.csv")
    for words in (["{tile no}"], ["{tile", "no}"]):
        process = spawn("run", queue.path, "--", "echo", *words)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out, err.count("\n")) == (2, "", 1)
        assert """write '{"tile no"}' for its value""" in err
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)] * 2
    out, _ = spawn("run", queue.path, "--", "echo", '{"tile no"}').communicate(timeout=PATIENCE_S)
    assert sorted(out.split()) == ["7", "8"]


def test_a_quoted_command_line_buries_nothing(spawn: Spawn, queue: Queue) -> None:
    queue.insert(1)
    for word in ("echo {}", "echo 1"):
        process = spawn("run", queue.path, "--", word)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err.count("\n")) == (2, 1)
        assert f"Leave the quotes away, so that each argument is a word of its own: -- {word}" in err
    _, err = spawn("run", queue.path, "--", "wc -c {} > {}.count").communicate(timeout=PATIENCE_S)
    assert err.endswith("""-- sh -c 'wc -c "$1" > "$1".count' sh {}\n""")
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


@pytest.mark.parametrize(
    "arguments",
    [[], ["--call", "a:b", "--", "true"], ["--call", "a:b", "--load", "c"], ["--call", "a"],
     ["--threads", "2", "--", "true"],
     ["--max-tasks", "0", "--", "true"], ["--on-lease-lost", "shrug", "--", "true"]],
)  # fmt: skip
def test_contradictions_are_usage_errors(fsqueue_cli: Run, queue: Queue, arguments: list[str]) -> None:
    fsqueue_cli("run", queue.path, *arguments, code=2)


def test_no_queue_is_a_usage_error(fsqueue_cli: Run) -> None:
    fsqueue_cli("run", "--", "true", code=2)


def test_a_typo_in_a_command_does_not_bury_everything(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(500))
    process = spawn("run", queue.path, "-j", 2, "--stop-after-failures", 3, "--", "sh", "-c", "no-such-tool {:d}")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 11
    assert "attempts in a row have failed, the last one: exit status 127" in err
    assert sum(task.attempt for task in queue.tasks()) <= 4


def test_a_node_that_is_excluded_exits_with_12(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many(range(50))
    process = spawn("run", queue.path, "--exclude-after", 2, "--", "false")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 12
    assert queue.status().waiting > 30


@pytest.mark.parametrize(("code", "state", "attempt"), [(75, "delayed", 0), (65, "dead", 1), (64, "delayed", 1)])
def test_sysexits(spawn: Spawn, queue: Queue, code: int, state: str, attempt: int) -> None:
    task_id = queue.insert(1).id
    process = spawn("run", queue.path, "--sysexits", "--max-tasks", 1, "--", "sh", "-c", f"echo why; exit {code}")
    process.communicate(timeout=PATIENCE_S)
    task, last = queue.task(task_id), queue.history(task_id)[-1]
    # By the record, not by the clock: a delay of a second is over soon.
    is_delayed = last.available_at is not None and last.available_at > last.at
    assert ("delayed" if is_delayed else task.state, task.attempt) == (state, attempt)
    assert state != "dead" or task.error == "exit status 65: why\nwhy"


@pytest.mark.parametrize(
    ("options", "command", "result"),
    [
        ([], "echo '{\"a\": 1}' > $FSQUEUE_RESULT", {"a": 1}),
        ([], "echo plain > $FSQUEUE_RESULT; echo noise", "plain"),
        ([], "true", None),
        (["--result-stdout"], "echo '[1, 2]'", [1, 2]),
        (["--result-stdout"], "echo two; echo lines", "two\nlines"),
        (["--result-stdout"], "true", None),
    ],
)
def test_results_of_commands(spawn: Spawn, queue: Queue, options: list[str], command: str, result: object) -> None:
    queue.insert(1)
    assert spawn("run", queue.path, *options, "--", "sh", "-c", command).wait(timeout=PATIENCE_S) == 0
    assert [task.result for task in queue.tasks("completed")] == [result]


def test_a_result_that_is_too_large_fails_the_task(spawn: Spawn, queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert(1)
    process = spawn("run", queue.path, "--", "sh", "-c", "head -c 70000 /dev/zero > $FSQUEUE_RESULT")
    assert process.wait(timeout=PATIENCE_S) == 9
    [letter] = queue.dead()
    assert "more than 65,536 bytes" in letter.reason


def test_all_output_is_kept_a_file_an_attempt(spawn: Spawn, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(backoff_s=(0, 0))
    task_id = queue.insert(1).id
    command = "echo out; echo err >&2; head -c 100000 /dev/zero; test $FSQUEUE_ATTEMPT = 2"
    process = spawn("run", queue.path, "--keep-output", tmp_path / "kept", "--", "sh", "-c", command)
    process.communicate(timeout=PATIENCE_S)
    for attempt in (1, 2):
        kept = (tmp_path / "kept" / f"{task_id}.{attempt}").read_bytes()
        assert sorted(kept.replace(b"\0", b"").split()) == [b"err", b"out"]
        assert kept.count(b"\0") == 100_000


def test_a_job_that_is_all_but_over_says_so_and_not_that_there_is_nothing_to_do(
    spawn: Spawn, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PBS_JOBID", "4711.server")
    monkeypatch.setenv("PBS_WALLTIME", "10")
    queue.insert(1)
    process = spawn("run", queue.path, "--", "true")
    expected = "fsqueue: no time is left: nothing more is begun\nfsqueue: no task was begun\n"
    assert process.communicate(timeout=PATIENCE_S)[1] == expected
    assert queue.status().waiting == 1


def test_max_runtime_and_idle_timeout_are_no_failures(spawn: Spawn, queue: Queue) -> None:
    queue.insert_many([1] * 5)
    process = spawn("run", queue.path, "--json", "--max-runtime", 1, "--grace", "0.2", "--", "sleep", "1000")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["ended"]) == (0, "max-runtime")

    def are_done() -> bool:  # where all stands still for longer than that, it ends earlier
        process = spawn("run", queue.path, "--json", "--forever", "--idle-timeout", "0.3", "--", "true")
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, json.loads(out)["ended"]) == (0, "idle")
        return queue.status().completed == 5

    until(are_done, "a run that takes the tasks")


def test_the_log_in_json(spawn: Spawn, queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    task_id = queue.insert(1).id
    process = spawn("run", queue.path, "--log-json", "--", "false")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (9, "")
    failed, end = map(json.loads, err.splitlines())
    assert (failed["event"], failed["task"], failed["attempt"]) == ("failed", task_id, 1)
    assert failed["reason"] == "exit status 1"
    assert (end["event"], end["failed"], end["dead"]) == ("end", 1, 1)


def test_sigusr1_stops_it_and_lets_finish(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(5))
    process = spawn("run", queue.path, "--", "sh", "-c", f"touch {tmp_path}/$$; {until_there(tmp_path / 'go')}")
    until(lambda: pids(tmp_path), "the begin of a command")
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    (tmp_path / "go").touch()
    assert process.wait(timeout=PATIENCE_S) == 128 + signal.SIGUSR1
    assert queue.status().as_dict() | {"inserted": 5} == queue.status().as_dict()
    assert (queue.status().completed, queue.status().waiting) == (1, 4)


@pytest.mark.slow
def test_runners_that_are_killed_lose_nothing(spawn: Spawn, queue_factory: QueueFactory, tmp_path: Path) -> None:
    """With tasks leased ahead, results not yet told, and children at work."""
    queue = queue_factory(lease_s=1)
    log, count = tmp_path / "log", how_many(500, 3000)
    queue.insert_many({"log": str(log), "n": n} for n in range(count))
    arguments = ["run", queue.path, "-j", 2, "--call", "tests.worker.tasks:note"]
    for _ in range(3):
        lines = log.read_text().count("\n") if log.exists() else 0
        process = spawn(*arguments)
        until(
            lambda lines=lines: (log.exists() and log.read_text().count("\n") > lines) or queue.status().drained,
            "another task to be executed",
        )
        process.kill()
        process.wait()
    assert spawn(*arguments).wait(timeout=PATIENCE_S) == 0
    assert queue.status().completed == count
    assert {int(line.split()[0]) for line in log.read_text().splitlines()} == set(range(count))


# -- hints


@pytest.mark.parametrize("how", ["text", "json"])
def test_a_payload_in_a_script_is_refused_with_what_to_type(
    spawn: Spawn, queue: Queue, tmp_path: Path, how: str
) -> None:
    payload = f"; touch {tmp_path}/executed"
    options = ["--log-json"] if how == "json" else []
    queue.insert({"name": payload})
    process = spawn("run", queue.path, *options, "--", "sh", "-c", "echo {name}")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(" -- sh -c 'echo \"$1\"' sh {name}\n")
    assert "--allow-in-script" in err
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]
    assert not (tmp_path / "executed").exists()
    out, err = spawn("run", queue.path, "--", "sh", "-c", 'echo "$1"', "sh", "{name}").communicate(timeout=PATIENCE_S)
    assert (out, err) == (f"{payload}\n", "fsqueue: 1 completed\n")
    assert not (tmp_path / "executed").exists()
    queue.insert({"name": payload})
    allowed = spawn("run", queue.path, "--allow-in-script", "--", "sh", "-c", "echo {name}")
    assert allowed.communicate(timeout=PATIENCE_S) == ("\n", "fsqueue: 1 completed\n")
    assert (tmp_path / "executed").exists()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("word", "named"),
    [("{1}", "{{1}}"), ("{tile!r}", "{{tile!r}}"), ("{tile:5q}", "{{tile:5q}}"), ("{tile:04d}", "takes numbers")],
)
def test_braces_that_mean_nothing_touch_no_task(spawn: Spawn, queue: Queue, word: str, named: str) -> None:
    queue.insert({"tile": "text"})
    process = spawn("run", queue.path, "--", "echo", word)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert named in err
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]


def test_payloads_that_begin_with_a_dash_are_arguments_like_others(spawn: Spawn, queue: Queue) -> None:
    queue.insert("-n")
    out, _ = spawn("run", queue.path, "--", "printf", "%s\n", "--", "{}").communicate(timeout=PATIENCE_S)
    assert "-n" in out


# -- kept output and results, as users ask for them


def test_what_is_not_kept_is_in_the_summary(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    task_id = queue.insert(1).id
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in range(1, 100):
        (kept / (f"{task_id}.1" if number == 1 else f"{task_id}.1-{number}")).touch()
    process = spawn("run", queue.path, "--keep-output", kept, "--", "echo", "x")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert len(err.splitlines()) == 2
    assert err.endswith("fsqueue: 1 completed, the output of 1 not kept, or not all of it\n")


@pytest.mark.parametrize("options", [["--keep-output", "file/below"], ["--result-dir", "none"]])
def test_directories_that_cannot_be_used_exit_with_2_and_burn_nothing(
    fsqueue_cli: Run, queue: Queue, tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "file").touch()
    queue.insert(1)
    said = fsqueue_cli("run", queue.path, options[0], tmp_path / options[1], "--", "true", code=2).stderr
    assert "cannot be kept" in said or "can be kept" in said
    assert len(said.splitlines()) == 1
    [task] = queue.tasks()
    assert (task.state, task.attempt) == ("waiting", 0)


def test_a_pipe_in_the_place_of_kept_output_hangs_nothing(spawn: Spawn, queue: Queue, tmp_path: Path) -> None:
    ids = [queue.insert(number).id for number in range(3)]
    kept = tmp_path / "kept"
    kept.mkdir()
    os.mkfifo(kept / f"{ids[0]}.1")
    command = ["sh", "-c", 'echo "$1"; head -c 3000000 /dev/zero', "sh", "{}"]
    process = spawn("run", queue.path, "--keep-output", kept, "--", *command, stdout=subprocess.DEVNULL)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "fsqueue: 3 completed\n")
    assert sorted(path.stat().st_size for path in kept.iterdir() if path.is_file()) == [3_000_002] * 3


# -- what the end of a run says ---------------------------------------------------------------------------------------


def test_the_end_counts_tasks_and_not_attempts(fsqueue_cli: Run, queue_factory: QueueFactory) -> None:
    queue = queue_factory(backoff_s=(0, 0))
    queue.insert_many(["true"] * 28 + ["false"] * 2)
    done = fsqueue_cli("run", queue.path, "--max-attempts", "5", "--", "sh", "-c", '"$1"', "sh", "{}", code=9)
    assert "fsqueue: 28 completed, 2 given up after 10 failed attempts" in done.stderr.splitlines()


def test_attempts_that_failed_before_a_success_are_told_as_such(fsqueue_cli: Run, queue: Queue, tmp_path: Path) -> None:
    queue.change_settings(backoff_s=(0, 0))
    queue.insert_many(range(2))
    script = f'[ "$1" = 0 ] || {{ [ -e {tmp_path}/tried ] && exit 0; touch {tmp_path}/tried; exit 1; }}'
    done = fsqueue_cli("run", queue.path, "--", "sh", "-c", script, "sh", "{}")
    assert done.stderr.splitlines()[-1] == "fsqueue: 2 completed, 1 failed attempt"


def test_more_attempts_than_the_queue_allows_are_a_hint(fsqueue_cli: Run, queue: Queue) -> None:
    said = fsqueue_cli("run", queue.path, "--max-attempts", "8", "--", "true").stderr
    assert f"after 5 attempts, not 8. To allow them: fsqueue set {queue.path} max_attempts=8" in said
    for attempts in ("5", "none"):
        assert "hint" not in fsqueue_cli("run", queue.path, "--max-attempts", attempts, "--", "true").stderr
