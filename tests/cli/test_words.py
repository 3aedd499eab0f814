"""What is said, and with which exit code, when something is mistyped, done twice, or of no use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeasedTask, LeaseLost, Queue, TaskNotFound
from fsqueue.filesystem import Mount
from tests.cli.conftest import Run, Spawn
from tests.cli.terminal import Terminal
from tests.conftest import QueueFactory
from tests.support import insert_in_file
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

# -- create, purge, delete ---------------------------------------------------------------------------------


def test_create_exist_ok_warns_of_settings_that_are_not_taken(fsqueue_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    fsqueue_cli("create", path, "--lease", "5m", "--max-attempts", 3)
    for same in ([], ["--lease", 300], ["--lease", "5m", "--max-attempts", 3]):
        assert fsqueue_cli("create", path, "--exist-ok", *same).stderr == ""
    said = fsqueue_cli("create", path, "--exist-ok", "--lease", "1h", "--max-attempts", "none", "--no-history").stderr
    assert said == (
        f"warning: {path} was there already, and keeps its settings: lease_s is 300, not 3600, "
        "max_attempts is 3, not none, keep_history is True, not False.\n"
    )
    assert Queue(path).settings.lease_s == 300


def test_create_purge_and_delete_have_json(fsqueue_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "q"
    made = json.loads(fsqueue_cli("create", path, "--shards", 4, "--json").stdout)
    assert (made["queue"], made["created"], made["settings"]["shards"]) == (str(path), True, 4)
    assert json.loads(fsqueue_cli("create", path, "--exist-ok", "--json").stdout)["created"] is False
    fsqueue_cli("insert", path, input="1\n2\n")
    fsqueue_cli("lease", path)
    counts = {"inserted": 2, "waiting": 1, "delayed": 0, "leased": 1, "completed": 0, "dead": 0}
    gone = json.loads(fsqueue_cli("purge", path, "--yes", "--json").stdout)
    assert gone == {"queue": str(path), "purged": True, **counts}
    gone = json.loads(fsqueue_cli("delete", path, "--yes", "--json", "--foreground").stdout)
    assert gone == {"queue": str(path), "deleted": True, **dict.fromkeys(counts, 0), "left": {}}


def test_create_in_memory_says_what_is_lost(fsqueue_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsqueue.filesystem.mountadvice.mount_of", lambda path: Mount("ext4", "/", "rw"))
    assert fsqueue_cli("create", tmp_path / "on-disk").stderr == ""
    monkeypatch.setattr("fsqueue.filesystem.mountadvice.mount_of", lambda path: Mount("tmpfs", "/dev/shm", "rw"))
    [said] = fsqueue_cli("create", tmp_path / "q").stderr.splitlines()
    assert "when the host restarts, the queue and all that is in it are lost" in said
    assert fsqueue_cli("create", tmp_path / "q", "--exist-ok").stderr == "", "its owner was told"


@pytest.mark.parametrize("command", [["status", "q"], ["create", "new"], ["run", "./q", "--", "true"]])
def test_a_working_directory_that_was_removed_gets_a_sentence(tmp_path: Path, command: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone}; rmdir {gone}; exec {sys.executable} -m fsqueue_cli {' '.join(command)}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fsqueue: The working directory has been removed, so the relative path ")
    assert len(done.stderr.splitlines()) == 1


# -- tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0, 2])
def test_completing_twice_says_so(fsqueue_cli: Run, queue: Queue, others: int) -> None:
    """Whether the batch has finished with it or not."""
    queue.insert_many(range(1 + others))
    token = fsqueue_cli("lease", queue.path, "--tokens").stdout.strip()
    task_id = token.partition("@")[0]
    fsqueue_cli("complete", queue.path, token)
    said = f"fsqueue: {task_id}: You have completed {task_id} already, with this lease. That counts"
    for again in ([], ["--result", "7"]):
        result = fsqueue_cli("complete", queue.path, token, *again, code=0)
        assert result.stderr == f"{said}, and nothing is left to do.\n"
    answer = json.loads(fsqueue_cli("complete", queue.path, token, "--json", code=0).stdout)
    assert answer == {"completed": [], "lost": [], "already": [task_id]}
    for verb, did in (("renew", "renewed"), ("release", "released"), ("fail", "failed"), ("bury", "buried")):
        reason = ["--reason", "x"] if verb in ("fail", "bury") else []
        assert fsqueue_cli(verb, queue.path, token, *reason, code=4).stderr == f"{said}; it is not {did}.\n"


@pytest.mark.parametrize("result", [[], ["--result", "7"]])
def test_two_processes_that_complete_at_once_both_succeed(
    fsqueue_cli: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, result: list[str]
) -> None:
    """Between the look at the leases and the completion, somebody else completes one task and another is taken over."""
    queue.insert_many(range(3), batch_tasks=1)
    tasks = queue.lease(3)
    attach = Queue.attach

    def attaching(looking: Queue, token: str) -> LeasedTask:
        task = attach(looking, token)
        if token == tasks[2].token:
            queue.complete(tasks[0])
            tasks[1].release()
        return task

    monkeypatch.setattr(Queue, "attach", attaching)
    tokens = [task.token for task in tasks]
    answer = fsqueue_cli("complete", queue.path, *tokens, *result, "--json", code=4)
    assert json.loads(answer.stdout) == {
        "completed": [tasks[2].id], "lost": [tasks[1].id], "already": [tasks[0].id], "lost_tokens": [tasks[1].token],
    }  # fmt: skip
    assert "given back" in answer.stderr
    monkeypatch.undo()
    assert "That counts" in fsqueue_cli("complete", queue.path, *tokens[::2], code=0).stderr


def test_a_task_that_another_has_completed_is_not_said_to_be_ours(fsqueue_cli: Run, queue: Queue) -> None:
    insert_in_file(queue, 1)
    first = queue.lease()[0]
    queue.release_all()
    queue.lease()[0].complete()
    said = fsqueue_cli("complete", queue.path, first.token, code=4).stderr
    assert "already" not in said
    assert "Its lease holds no longer (completed)" in said


def test_completing_twice_in_python(queue: Queue) -> None:
    insert_in_file(queue, 1)
    [task] = queue.lease()
    task.complete()
    with pytest.raises(LeaseLost, match=r"You have completed .* already") as caught:
        task.complete()
    assert caught.value.tasks == [task.id]
    with pytest.raises(LeaseLost, match=r"The lease of .* holds no longer"):
        task.fail("after all")


UNKNOWN = f"{'0' * 32}.7"


@pytest.mark.parametrize(
    "command",
    [["complete", f"{UNKNOWN}@{'0' * 16}"], ["renew", f"{UNKNOWN}@{'0' * 16}"], ["release", f"{UNKNOWN}@{'0' * 16}"],
     ["fail", f"{UNKNOWN}@{'0' * 16}", "--reason", "x"], ["bury", f"{UNKNOWN}@{'0' * 16}", "--reason", "x"],
     ["cancel", UNKNOWN, "--yes"], ["dead", "retry", UNKNOWN], ["dead", "purge", UNKNOWN, "--yes"], ["show", UNKNOWN]],
    ids=lambda command: " ".join(word for word in command[:2] if word.isalpha()),
)  # fmt: skip
def test_an_unknown_task_has_an_exit_code_of_its_own_and_the_others_are_dealt_with(
    fsqueue_cli: Run, queue_factory: QueueFactory, command: list[str]
) -> None:
    queue = queue_factory(keep_history=False)
    queue.insert_many(range(3), batch_tasks=1)
    leased, dead = queue.lease(2)
    [waiting] = queue.peek()
    dead.bury("x")
    words = command[:2] if command[0] == "dead" else command[:1]
    rest = command[len(words) + 1 :]
    known = leased.token if "@" in command[1] else waiting.id if command[0] == "cancel" else dead.id
    both = [known] if command[0] != "show" else []
    unknown = command[len(words)]
    result = fsqueue_cli(*words, queue.path, *both, unknown, *rest, code=13)
    [said] = result.stderr.splitlines()
    assert UNKNOWN in said
    assert re.search(r"neither the queue nor its history has this task|is not in", said)
    if both and "@" not in command[1]:
        assert result.stdout == "1\n"
        more = json.loads(fsqueue_cli(*words, queue.path, UNKNOWN, *rest, "--json", code=13).stdout)
        assert more.pop("unknown") == [UNKNOWN]
        assert more.pop("queue", str(queue.path)) == str(queue.path)
        assert list(more.values()) == [0]


def test_tasks_in_another_state_are_not_unknown(fsqueue_cli: Run, mixed: Queue) -> None:
    """Cancelling what is leased, completed, dead; retrying what waits, or was retried: 0 is printed."""
    ids = {state: next(mixed.tasks(state)).id for state in ("waiting", "delayed", "leased", "completed", "dead")}
    for state in ("leased", "completed", "dead"):
        assert fsqueue_cli("cancel", mixed.path, ids[state], "--yes").stdout == "0\n"
    for state in ("waiting", "delayed", "leased", "completed"):
        assert fsqueue_cli("dead", "retry", mixed.path, ids[state]).stdout == "0\n"
    assert fsqueue_cli("dead", "retry", mixed.path, ids["dead"]).stdout == "1\n"
    assert fsqueue_cli("dead", "retry", mixed.path, ids["dead"]).stdout == "0\n"
    mixed.insert("alone")
    [alone] = [task.id for task in mixed.tasks("waiting") if task.payload == "alone"]
    assert fsqueue_cli("cancel", mixed.path, alone, alone, "--yes").stdout == "1\n"
    assert fsqueue_cli("cancel", mixed.path, alone, "--yes").stdout == "0\n"


def test_many_unknown_tasks_are_named_and_then_counted(fsqueue_cli: Run, queue: Queue) -> None:
    ids = [f"{'0' * 32}.{number}" for number in range(25)]
    said = fsqueue_cli("cancel", queue.path, *ids, "--yes", code=13).stderr.splitlines()
    assert len(said) == 21
    assert said[-1] == "fsqueue: unknown ids not shown: 5"


@pytest.mark.parametrize("keep_history", [True, False])
def test_show_of_a_retried_letter_names_the_new_id(
    fsqueue_cli: Run, queue_factory: QueueFactory, keep_history: bool
) -> None:
    queue = queue_factory(keep_history=keep_history)
    queue.insert_many(range(4), batch_tasks=1)
    old = {task.payload: task.id for task in queue.tasks()}
    for task in queue.lease(4):
        task.bury("no")
    assert queue.retry_dead([old[1], old[3]]) == 2
    assert queue.purge_dead([old[2]]) == 1
    new = {task.payload: task.id for task in queue.tasks()}
    for payload in (1, 3):
        if keep_history:
            assert f"retried as    {new[payload]}\n" in fsqueue_cli("show", queue.path, old[payload]).stdout
            shown = json.loads(fsqueue_cli("show", queue.path, old[payload], "--json").stdout)
            assert (shown["settled"], shown["retried_as"]) == ("retried", new[payload])
            assert f"retry of      {old[payload]}\n" in fsqueue_cli("show", queue.path, new[payload]).stdout
        else:
            said = fsqueue_cli("show", queue.path, old[payload], code=13).stderr
            assert said == (
                f"fsqueue: The task {old[payload]} has ended, and was retried: its new id is {new[payload]}.\n"
            )
    purged = fsqueue_cli("show", queue.path, old[2], code=0 if keep_history else 13)
    assert "purged" in purged.output
    assert "settled" not in json.loads(fsqueue_cli("show", queue.path, old[0], "--json").stdout)
    if not keep_history:
        with pytest.raises(TaskNotFound, match=new[1]):
            queue.task(old[1])


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        ([], "Drop all dead letters of {path} for good?"),
        (["--where", "error~x"], "Drop all dead letters of {path} that meet the conditions for good?"),
        (["{id}", "{id}"], "Drop the 1 named dead letter of {path} for good?"),
        (
            ["{id}", "--where", "error~x"],
            "Drop those of the 1 named dead letter of {path} that meet the conditions for good?",
        ),
    ],
)
def test_dead_purge_asks_for_what_it_does(
    fsqueue_cli: Run, mixed: Queue, monkeypatch: pytest.MonkeyPatch, arguments: list[str], question: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("fsqueue_cli.targets.confirm", lambda said, yes: asked.append(said))
    [letter] = mixed.dead()
    fsqueue_cli("dead", "purge", mixed.path, *[word.format(id=letter.id) for word in arguments])
    assert asked == [question.format(path=mixed.path)]
    assert len(list(mixed.dead())) == (1 if "error~x" in arguments else 0), "named, but does not meet the condition"


def test_delayed_tasks_are_listed_with_the_time_until_which_they_wait(fsqueue_cli: Run, mixed: Queue) -> None:
    from fsqueue_cli.common import moment

    [task] = mixed.tasks("delayed")
    heading, line = fsqueue_cli("ls", mixed.path, "--state", "delayed").stdout.splitlines()
    assert "UNTIL" in heading
    assert f"  {moment(task.available_at)}  " in line
    assert f"  until {moment(task.available_at)}" in fsqueue_cli("ls", mixed.path).stdout
    assert "until" not in fsqueue_cli("ls", mixed.path, "--state", "waiting").stdout


# -- streams, signals, terminals ----------------------------------------------------------------------------


def test_with_standard_output_closed_nothing_is_leased(queue: Queue) -> None:
    queue.insert(1)
    command = f"exec {sys.executable} -m fsqueue_cli lease {queue.path}"
    done = subprocess.run(f"{command} >&-", shell=True, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "Nothing was leased" in done.stderr
    done = subprocess.run(f"{command} 1</dev/null", shell=True, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1  # it cannot be written to
    assert "Traceback" not in done.stderr
    assert queue.status().waiting == 1
    assert next(queue.tasks()).attempt == 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls", "--help"], ["completion", "bash"]])
def test_a_full_disk_behind_the_help_exits_with_7(spawn: Spawn, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        process = spawn(*arguments, stdout=full)
        [said] = process.communicate(timeout=PATIENCE_S)[1].splitlines()
    assert "No space left on device" in said
    assert process.returncode == 7


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupting())
from fsqueue_cli.entry import main
sys.argv[0] = "fsqueue"
main()
"""


def interrupted(module: str, *arguments: Any, handler: str = "default_int_handler") -> tuple[int, str]:
    """Exit code and standard error of a command that gets SIGINT as it begins to import a module."""
    code = INTERRUPTED.format(module=module, handler=handler)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "module", ["click", "fsqueue_cli.main", "fsqueue_cli.printing", "fsqueue_cli.watching", "fsqueue", "orjson",
               "fsqueue.views.stuck_locks"],
)  # fmt: skip
def test_ctrl_c_while_it_is_being_loaded_ends_it_with_130(queue: Queue, module: str) -> None:
    code, said = interrupted(module, "status", queue.path)
    assert code == 130
    assert said in ("", "fsqueue: interrupted\n")


def test_an_ignored_ctrl_c_stays_ignored(queue: Queue) -> None:
    """As under nohup, or in a shell's background."""
    assert interrupted("fsqueue_cli.watching", "status", queue.path, handler="SIG_IGN") == (0, "")


AT_ONCE = "import fsqueue_cli.insert_source as i; i.PROGRESS_AFTER_S = 0; from fsqueue_cli.entry import main; main()"


@pytest.mark.parametrize(("term", "draws"), [("", False), ("dumb", False), ("xterm", True)])
def test_without_a_terminal_s_name_nothing_is_drawn(queue: Queue, tmp_path: Path, term: str, draws: bool) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 3000)
    for program, arguments in (
        (("-c", AT_ONCE), ("insert", queue.path, lines)),
        (("-m", "fsqueue_cli"), ("wait", queue.path, "--timeout", "0.2")),
    ):
        terminal = Terminal(*arguments, program=program, env={"TERM": term})
        try:
            terminal.end()
            drawn = terminal.raw.replace(b"\r\n", b"\n")
        finally:
            terminal.close()
        assert (b"\r" in drawn) == draws, (arguments, drawn)
        assert b"\x1b" not in drawn or draws


@pytest.mark.parametrize(("term", "is_screen"), [(None, False), ("", False), ("dumb", False), ("xterm", True)])
def test_only_a_terminal_that_has_a_name_is_drawn_on(
    monkeypatch: pytest.MonkeyPatch, term: str | None, is_screen: bool
) -> None:
    """For all that draws: nothing else asks whether a stream is a terminal, but for what is read."""
    from fsqueue_cli import printing

    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert printing.is_screen(sys.stderr) == is_screen
    others = {
        (path.name, line.strip())
        for path in Path(printing.__file__).parent.glob("*.py")
        for line in path.read_text().splitlines()
        if "isatty()" in line and "stdin" not in line
    }
    assert {name for name, _ in others} == {"printing.py"}, others


# -- paths that are no text ----------------------------------------------------------------------------------


def test_paths_that_are_not_utf_8_work_with_json(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(directory)
    path = directory + b"/q"
    code = """
import json, os, sys
from click.testing import CliRunner
from fsqueue_cli.main import cli
directory, path = sys.argv[1:]

def run(*arguments, code=0, **more):
    result = CliRunner().invoke(cli, [*arguments, "--json"], prog_name="fsqueue", **more)
    assert result.exit_code == code, (arguments, result.output, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]

def named(found, key="queue"):
    assert [one[key] for one in found] == [path.encode("utf-8", "backslashreplace").decode()], found

named(run("create", path))
run("insert", path, input="1\\n2\\n3\\n")
run("insert", path, "--commit", "x", input="4\\n")
named(run("status", path)); named(run("status", directory)); named(run("wait", directory, "--timeout", "0", code=124))
[task] = CliRunner().invoke(cli, ["lease", path]).stdout.splitlines()
run("renew", path, json.loads(task)["token"]); run("bury", path, json.loads(task)["token"], "--reason", "x")
for command in (["workers"], ["ls"], ["gc"], ["fsck"], ["dead", "list"], ["dead", "retry"], ["release-all", "--yes"]):
    words = command[:2] if command[0] == "dead" else command[:1]
    run(*words, path, *command[len(words):])
run("show", path, json.loads(task)["id"])
run("run", path, "--", "true")
run("gc", "--trash", directory)
named(run("doctor", path), "path")
named(run("purge", path, "--yes")); named(run("delete", path, "--yes", "--foreground"))
"""
    done = subprocess.run([sys.executable, "-c", code, directory, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
