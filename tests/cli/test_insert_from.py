"""insert --from: what a command prints is inserted if it ends with exit code 0, and else nothing is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fsqueue_cli import insert_input
from fsqueue_cli.insert_input import Input

import fsqueue
from fsqueue import Queue
from tests.cli.conftest import Run, Spawn
from tests.cli.test_insert_commit import payloads, staged
from tests.support import base_of
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.fixture(params=[False, True], ids=["terminal", "none"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a terminal and without one: the command is in another process group."""
    monkeypatch.setattr(insert_input, "_has_terminal", lambda: not request.param)


@pytest.mark.usefixtures("either")
def test_what_a_command_prints_is_inserted_once(fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "runs"
    command = ("insert", place, "--commit", "a", "--from", "--", "sh", "-c", f"echo x >>'{mark}'; seq 3")
    assert fsqueue_cli(*command).stdout == "3\n"
    again = fsqueue_cli(*command)
    assert again.stdout == "0\n"
    assert "a was committed on" in again.stderr
    assert payloads(queue) == [1, 2, 3]
    assert mark.read_text() == "x\n", "a command whose output was inserted is not run again"


FAILING = {
    "seq 3; exit 3": (3, "sh ended with exit code 3"),
    "exit 3": (3, "sh ended with exit code 3"),
    "seq 3; kill -9 $$": (137, "sh was killed by SIGKILL"),
    "seq 3; kill -15 $$": (143, "sh was killed by SIGTERM"),
    "seq 3; exit 137": (137, "sh ended with exit code 137"),
    "seq 3; printf '{\"half'; exit 1": (1, "sh ended with exit code 1"),
    "seq 3; exec 1>&-; exit 4": (4, "sh ended with exit code 4"),
}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("script", FAILING)
@pytest.mark.parametrize("as_json", [False, True])
def test_of_a_command_that_fails_nothing_is_inserted_and_the_name_stays_free(
    fsqueue_cli: Run, queue: Queue, place: str, script: str, as_json: bool
) -> None:
    command = ("insert", place, "--commit", "a", *["--json"][: 1 * as_json], "--from", "--", "sh", "-c")
    result = fsqueue_cli(*command, script, code=1)
    code, said = FAILING[script]
    if as_json:
        outcome = json.loads(result.stdout)
        assert (outcome["inserted"], outcome["committed"], outcome["producer_exit"]) == (0, None, code)
    else:
        assert result.stdout == "0\n"
    assert f"fsqueue: {said}\n" in result.stderr
    assert "nothing was inserted as a: the name is free, and the command may be repeated" in result.stderr
    assert (queue.status().inserted, staged(queue)) == (0, [])
    assert queue.commit("a").committed() is None
    fsqueue_cli(*command, "seq 4")
    assert payloads(queue) == [1, 2, 3, 4]


def test_nothing_is_published_before_the_command_has_ended(
    spawn: Spawn, queue: Queue, place: str, tmp_path: Path
) -> None:
    """It has printed all, and closed its output, and may still fail."""
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"seq 3; exec 1>&-; read code <'{go}'; exit $code"
    for code, inserted in ((5, 0), (0, 3)):
        child = spawn("insert", place, "--commit", "a", "--from", "--", "sh", "-c", script)
        with go.open("w") as pipe:  # opens when the shell does, which is after its output was closed
            until(lambda: ":" in place or any("jsonl" in name for name in staged(queue)), "the staged tasks")
            assert child.poll() is None
            assert (queue.status().inserted, queue.commit("a").committed()) == (0, None)
            pipe.write(f"{code}\n")
        assert child.communicate(timeout=PATIENCE_S)[0] == f"{inserted}\n"
        assert child.returncode == (1 if code else 0)


@pytest.mark.parametrize(
    ("options", "script", "found"),
    [
        (["--lines"], "echo a", ["a"]),
        (["-0"], "printf 'a\\0b\\nc\\0'", ["a", "b\nc"]),
        (["--tsv", "--text", "n"], "printf 'n\\n007\\n'", [{"n": "007"}]),
        (["--skip-bad"], "printf 'x\\n1\\n'", [1]),
    ],
)
def test_the_output_is_read_as_other_input_is(
    fsqueue_cli: Run, queue: Queue, place: str, options: list[str], script: str, found: list[object]
) -> None:
    code = 1 if "--skip-bad" in options else 0
    fsqueue_cli("insert", place, *options, "--commit", "a", "--from", "--", "sh", "-c", script, code=code)
    assert payloads(queue) == found


@pytest.mark.usefixtures("either")
def test_a_bad_line_ends_the_command_and_is_named(fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ >'{pid}'; seq 2; echo bad; exec sleep 1000"
    result = fsqueue_cli("insert", place, "--commit", "a", "--from", "--", "sh", "-c", script, code=2)
    assert "the output of sh, line 3 is not JSON" in result.stderr
    assert "nothing was inserted as a" in result.stderr
    assert (queue.status().inserted, staged(queue)) == (0, [])
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_the_other_streams_are_those_of_the_caller(spawn: Spawn, queue: Queue, place: str) -> None:
    command = ("insert", place, "--commit", "a", "--from", "--", "sh", "-c", "cat; echo told >&2")
    child = spawn(*command, stdin=subprocess.PIPE)
    assert child.communicate("1\n2\n", timeout=PATIENCE_S) == ("2\n", "told\n")
    assert payloads(queue) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("deaf", [False, True])
def test_a_signal_ends_the_command_with_all_that_it_started(
    spawn: Spawn, queue: Queue, tmp_path: Path, number: signal.Signals, deaf: bool
) -> None:
    pids = tmp_path / "pids"
    ignore = "trap '' INT TERM HUP; " if deaf else ""
    script = f"{ignore}seq 2; sleep 1000 & echo $! >'{pids}'; echo $$ >>'{pids}'; wait"
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # under nohup it is ignored, and stays so
        "from fsqueue_cli import insert_input as p; p.GRACE_S = 0.1; from fsqueue_cli.entry import main"
    )
    arguments = ["insert", str(queue.path), "--commit", "a", "--from", "--", "sh", "-c", script]
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}; main()", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: child.poll() is not None or (pids.exists() and pids.read_text().count("\n") == 2), "the command")
    until(lambda: child.poll() is not None or (base_of(queue) / "staging").exists(), "the staging directory")
    child.send_signal(number)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (128 + number, "0\n"), err
    assert "interrupted: nothing was inserted as a; repeat the command" in err
    assert (queue.status().inserted, staged(queue)) == (0, [])
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid), "the end of all its processes")  # type: ignore[misc]


def test_on_a_terminal_a_signal_ends_the_command_itself(queue: Queue, tmp_path: Path) -> None:
    """It is in the group of its caller, which gets no signal from fsqueue."""
    program = "from fsqueue_cli import insert_input as p, entry; p._has_terminal = lambda: True"
    arguments = ["insert", str(queue.path), "--commit", "a", "--from", "--", "sh", "-c"]
    pid = tmp_path / "pid"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{program}; entry.main()", *arguments, f"seq 2; echo $$ >'{pid}'; exec sleep 1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: child.poll() is not None or (pid.exists() and pid.read_text().endswith("\n")), "the command")
    number = int(pid.read_text())
    assert os.getpgid(number) == child.pid
    until(lambda: child.poll() is not None or (base_of(queue) / "staging").exists(), "the staging directory")
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=PATIENCE_S)[0] == "0\n"
    assert child.returncode == 128 + signal.SIGTERM
    until(lambda: not Path(f"/proc/{number}").exists() or is_zombie(number), "the end of the command")
    assert (queue.status().inserted, staged(queue)) == (0, [])


def is_zombie(pid: int) -> bool:
    """Tell whether a process has ended, and only waits to be reaped (by whatever is process 1 here)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_the_end_of_the_terminal_counts_unless_it_is_ignored(handler: signal.Handlers) -> None:
    """As under nohup. A second signal ends what the first one has waited for."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        source = Input(1000)
        with source.interruptible(also=(signal.SIGHUP,)):
            os.kill(os.getpid(), signal.SIGHUP)
            assert source.signal == (None if handler is signal.SIG_IGN else signal.SIGHUP)
            source.signal = signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert source.signal == signal.SIGINT
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_after_the_last_step_changes_nothing_of_what_is_said(
    fsqueue_cli: Run, queue: Queue, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is published: it is not "interrupted: nothing was inserted"."""
    real = fsqueue.Commit.publish

    def publish(self: fsqueue.Commit, *args: object, **options: object) -> object:
        report = real(self, *args, **options)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGTERM)
        return report

    monkeypatch.setattr(fsqueue.Commit, "publish", publish)
    result = fsqueue_cli("insert", place, "--commit", "a", input="1\n2\n")
    assert (result.stdout, result.stderr) == ("2\n", "")


def test_a_command_that_is_not_there(fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    for command, says in (
        (["no-such-command"], "The command 'no-such-command' was not found"),
        ([tmp_path], "was not found, or is not executable"),
        ([script], f"The command '{script}' could not be started: No such file"),
        (["seq 3"], "Leave the quotes away"),
        ([], "--from needs a command after '--'"),
    ):
        result = fsqueue_cli("insert", place, "--commit", "a", "--from", "--", *command, code=2)
        assert says in result.stderr
        assert result.stdout == ""
    assert (queue.status().inserted, queue.commit("a").committed()) == (0, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "--", "seq", "3"], "--from needs --commit NAME"),
        (["--commit", "a", "file", "--from", "--", "seq", "3"], "leave file out, or --from"),
        (["--commit", "a", "--from", "seq", "3"], "--from needs a command after '--'"),
        (["--commit", "a", "--key", "k", "--from", "--", "seq"], "Leave --key or --commit out"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    fsqueue_cli: Run, queue: Queue, place: str, arguments: list[str], says: str
) -> None:
    result = fsqueue_cli("insert", place, *arguments, code=2)
    assert says in result.stderr
    assert queue.status().inserted == 0


def test_without_it_dashes_end_the_options_as_elsewhere(
    fsqueue_cli: Run, queue: Queue, place: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks").write_text("1\n")
    assert fsqueue_cli("insert", place, "--", tmp_path / "tasks").stdout == "1\n"


def test_a_name_that_is_used_up_by_no_tasks(fsqueue_cli: Run, queue: Queue, place: str) -> None:
    command = ("insert", place, "--commit", "a", "--from", "--", "sh", "-c")
    for script, code, says in (
        ("true", 0, "the name a is used up by a commit of no tasks"),
        ("true", 0, "with 0 tasks: nothing was added"),
        ("seq 3", 2, "so the name is used up. The tasks of this input were not inserted"),
        ("seq 3; exit 7", 1, "sh ended with exit code 7\nfsqueue: nothing was inserted as a\n"),
    ):
        result = fsqueue_cli(*command, script, code=code)
        assert result.stdout == "0\n"
        assert says in result.stderr
    assert queue.status().inserted == 0


KILLED = """
import os, signal, sys
import fsqueue
def publish(self, parts):
    os.kill(os.getpid(), signal.SIGKILL)
fsqueue.Commit.publish = publish
from fsqueue_cli.entry import main
main()
"""


def test_killed_after_the_command_has_ended_nothing_is_seen_and_the_name_is_free(
    fsqueue_cli: Run, queue: Queue
) -> None:
    arguments = ["insert", str(queue.path), "--commit", "a", "--from", "--", "seq", "3"]
    child = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True)
    assert child.returncode == -signal.SIGKILL
    assert (queue.status().inserted, queue.commit("a").committed()) == (0, None)
    assert fsqueue_cli(*arguments).stdout == "3\n"
