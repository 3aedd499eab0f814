"""Nothing that others wrote drives the terminal: every command is fed escapes in every field, in processes of its own.

A new command has to be fed, too: `test_every_command_is_fed` fails until it stands in FED.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from fsqueue_cli.main import COMMANDS, cli

from fsqueue import Queue
from tests.cli.terminal import Terminal
from tests.filequeues import Files
from tests.support import base_of, log_files, needs_root, open_to_all

pytestmark = pytest.mark.once

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\x7f\x85\r\n\t\b\u202e\u2066\u061c\u2028PWNED"
"""A title, a cleared screen, colours in eight bits, lines of its own, text that runs backwards."""
EVIL_NAME = EVIL.replace("/", "") + "\udc9b31m"
"""The same as a file name, with a byte that is no text."""
SAYS = re.compile("PWNED")
DRIVES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What no command prints: everything here but newlines."""
USER = 64_003

DRIVER = r"""
import importlib, json, os, signal, sys, tempfile, types
import filelock  # before it becomes another user, who may not read all of this Python
from unittest import mock
from fsqueue_cli.entry import main
from fsqueue_cli.main import COMMANDS
for module, _ in COMMANDS.values():
    importlib.import_module("fsqueue_cli." + module)
import base64, difflib, logging, shlex, traceback, tqdm
import fsqueue.doctor, fsqueue.views.stuck_locks, fsqueue.functions, fsqueue.worker
from fsqueue.doctor.probes import ProbeResult
from fsqueue.filesystem.processes import Holder
EVIL = json.loads(sys.stdin.readline())

def lock(path):
    holders = [Holder(1, EVIL, EVIL)]
    return fsqueue.views.stuck_locks.StuckLock("batch " + EVIL, path, 0.0, {"host": EVIL, "pid": EVIL}, holders)

def join(path, **_):
    report = fsqueue.doctor.examine(path)
    report.path = report.host = report.partner = EVIL
    report.findings = [ProbeResult(EVIL, "warning", EVIL, EVIL)]
    report.stuck = [lock(EVIL)]
    _["waiting"]()
    _["progress"](EVIL)
    return report

def spark():
    fake = types.ModuleType("fsqueue.spark")
    said = {"commit": EVIL, "rows": 1, "batches": 1, "bytes": 1, "repeated": False, "out": EVIL, "attempts": {EVIL: 1},
            "states": {EVIL: 1}, "counts": {EVIL: 1}, "is_sound": False,
            "findings": [{"kind": EVIL, "path": EVIL, "note": EVIL, "queue": EVIL}]}
    made = types.SimpleNamespace(**said, as_dict=lambda: {"a": 1, EVIL: 2})
    fake.seed = fake.audit = fake.report = fake.drain = lambda *a, **k: made
    fake.requeue = lambda *a, **k: 1
    sys.modules["fsqueue.spark"] = fake
    sys.modules["fsqueue_cli.spark"].session = lambda *a: mock.MagicMock()

def answer(one):
    out, err, into = tempfile.TemporaryFile(), tempfile.TemporaryFile(), tempfile.TemporaryFile()
    into.write(one["input"].encode("utf-8", "surrogateescape"))
    into.seek(0)
    pid = os.fork()
    if not pid:
        code = 99
        try:
            signal.alarm(one["alarm"])
            for number, file in enumerate((into, out, err)):
                os.dup2(file.fileno(), number)
            os.chdir(os.fsencode(one["cwd"]))
            os.environ.update(one["env"])
            if one["user"]:
                os.setgroups([]); os.setgid(one["user"]); os.setuid(one["user"])
            fsqueue.Queue.stuck = lambda self: [lock(self.store.path)]
            sys.modules["fsqueue_cli.doctor"].join = join
            spark()
            sys.argv = ["fsqueue", *one["arguments"]]
            sys.path.insert(0, os.getcwd())
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for file in (out, err):
        file.seek(0)
    return [status, *(base64.b64encode(file.read()).decode() for file in (out, err))]

for line in iter(sys.stdin.readline, ""):
    print(json.dumps([answer(one) for one in json.loads(line)]), flush=True)
"""
"""Runs command lines, each in a process of its own: no log handler of pytest's is in the way. It has imported all."""


def each_command() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (((name, inner), command.commands[inner]) for inner in command.commands)
        else:
            yield (name,), command


TREE = dict(each_command())
Words = list[str]

FED: dict[tuple[str, ...], list[Words]] = {
    ("create",): [["Q"], ["Q/new"], ["made"], ["made", "--durability", EVIL]],
    ("insert",): [
        ["Q", "FILE"], ["Q", "FILE", "--skip-bad"], ["Q", "FILE", "--lines"], ["Q"], ["Q", "missing", "FILE"],
        ["Q", "--commit", EVIL],
        ["Q", "--commit", "once", "GOOD"], ["Q", "--commit", "done", "GOOD"], ["Q", "GOOD", "--batch-tasks", "1"],
    ],
    ("run",): [
        ["Q", "--max-tasks", "9", "--idle-timeout", "0.1", "--call", "evil:boom"],
        ["Q", "--max-tasks", "9", "--idle-timeout", "0.1", "--call", "evil:boom", "--log-json"],
        ["Q", "--max-tasks", "2", "--idle-timeout", "0.1", "--call", "evil:boom", "--stop-after-failures", "1"],
        ["Q", "--max-tasks", "2", "--idle-timeout", "0.1", "--call", "evil:boom", "--exclude-after", "1"],
        ["Q", "--max-tasks", "2", "--idle-timeout", "0.1", "--call", EVIL], ["Q", "--load", EVIL], ["Q", "--", EVIL],
        ["Q", "--max-tasks", "1", "--idle-timeout", "0.1", "--keep-output", "FILE", "--", "true", "{}"],
        ["Q", "--max-tasks", "1", "--idle-timeout", "0.1", "--", EVIL + "{}"],
    ],
    ("status",): [["Q"], ["Q", "--fast"], ["."], ["Q", "--watch", "--interval", "0.1"], ["Q", "--watch", "--json"]],
    ("wait",): [["Q", "--timeout", "0.01"], [".", "--timeout", "0.01"]],
    ("workers",): [["Q"], ["Q", "--release-dead"], ["Q", "--admit", EVIL], ["Q", "--admit", "EVILNODE"]],
    ("slurm",): [["Q", "-J", EVIL, "--print", "--", "true", EVIL], ["Q", "--", "true"], ["Q", "--", EVIL]],
    **{
        (name,): [["Q", "FILE"], ["Q", EVIL], ["Q", "--stop"], ["Q", "FILE", "--print"]]
        for name in ("pbs", "lsf", "sge")
    },
    ("ls",): [["Q"], *(["Q", "--state", state] for state in ("leased", "completed", "dead", "delayed", "cancelled"))],
    ("show",): [["Q", "WAITING"], ["Q", "LEASED"], ["Q", "COMPLETED"], ["Q", "DEAD"], ["Q", "FAILED"], ["Q", "BYTES"]],
    ("results",): [
        ["Q"], ["Q", "--dead"], ["Q", "--newest", "9"], ["Q", "--where", EVIL], ["Q", f"{EVIL}.csv"], ["Q", EVIL],
    ],
    ("retry",): [
        ["Q", "--completed", "--all"], ["Q", "--completed", "--where", EVIL],
        ["Q", "--state", "completed", EVIL], ["Q", "--state", "completed", "COMPLETED"],
    ],
    ("dead", "list"): [["Q"], ["Q", "--each"], ["Q", "--where", EVIL], ["Q", "--where", f"error~{EVIL}("]],
    ("dead", "retry"): [["Q"], ["Q", EVIL], ["Q", "DEAD"], ["Q", "-"]],
    ("dead", "purge"): [["Q"], ["Q", "--yes"], ["Q", "DEAD", "--yes"]],
    ("import",): [
        ["Q", "--from-filequeue", "FILEQUEUE"], ["Q", "--from-filequeue", "FILEQUEUE", "--skip-bad"],
        ["Q", "--from-filequeue", EVIL], ["Q", "--from-filequeue", "FILEQUEUE", "--skip-bad", "--commit", EVIL],
        ["Q", EVIL], ["Q", "-", "--commit", EVIL],
    ],
    ("export",): [["Q"], ["Q", "--state", "leased", "--state", "dead"], ["Q", "--where", EVIL], ["Q", "--match", EVIL]],
    ("cp",): [["Q", "Q"], ["Q", EVIL], [EVIL, "Q"], ["Q", "Q", "--commit", EVIL], ["Q", "Q", "--where", EVIL]],
    ("mv",): [["Q", "Q"], ["Q", EVIL], [EVIL, "Q"], ["Q", "Q", "--where", EVIL]],
    ("lease",): [["Q", "-n", "9"], ["Q", "--tokens"], ["Q", "--worker", EVIL]],
    ("complete",): [["Q", "TOKEN"], ["Q", "LOST"], ["Q", "-"], ["Q", "TOKEN", "--result", EVIL]],
    ("renew",): [["Q", "TOKEN"], ["Q", "LOST"]],
    ("release",): [["Q", "TOKEN"], ["Q", "LOST"]],
    ("fail",): [["Q", "TOKEN", "--reason", EVIL], ["Q", "LOST", "--reason", EVIL]],
    ("bury",): [["Q", "TOKEN", "--reason", EVIL], ["Q", "LOST", "--reason", EVIL]],
    ("release-all",): [["Q"], ["Q", "--yes", "--host", EVIL], ["Q", "--yes", "--worker", EVIL], ["Q", "--yes"]],
    ("cancel",): [["Q", "WAITING"], ["Q", "WAITING", "--yes"], ["Q", EVIL, "--yes"]],
    ("change",): [
        ["Q", "WAITING", "--priority", EVIL], ["Q", EVIL, "--delay", "0"], ["Q", "LEASED", "--no-priority"],
        ["Q", "DEAD", "--delay", "1"], ["Q", "--where", EVIL, "--at", EVIL], ["Q", "WAITING", "--at", EVIL],
    ],
    ("set",): [["Q", f"lease_s={EVIL}"], ["Q", f"{EVIL}=1"], ["Q", EVIL], ["Q"]],
    ("pause",): [["Q", "--reason", EVIL], ["Q"]],
    ("resume",): [["Q"], ["Q"]],
    ("purge",): [["Q"], ["Q", "--yes"]],
    ("delete",): [["Q"], ["Q", "--yes", "--foreground"]],
    ("gc",): [["Q"], ["Q", "--touch"], ["Q", "--history-days", "0"], ["--trash", "Q"], ["--trash", "."]],
    ("doctor",): [["Q"], ["Q/new"], ["Q", "--join"]],
    ("fsck",): [["Q"], ["Q", "--repair"]],
    ("bench",): [["Q", "--tasks", "1", "--duration", "0.01"]],
    ("simulate",): [["--pops=50", "--lag=10"], ["--lag=10", "--figures"]],
    ("completion",): [["bash"]],
    ("help",): [["run"]],
    ("map",): [["--", "true", ":::", EVIL], ["Q", "--", "true", ":::", EVIL], [EVIL, "--", "true", EVIL],
               ["--dry-run", "--", "echo", ":::", EVIL], ["--", EVIL, ":::", EVIL], ["--", "echo", "::::", EVIL]],
    ("serve",): [["Q", "--listen", EVIL], ["FILE", "--listen", "nowhere"]],
    ("barrier",): [
        ["G"], ["G", "--of", EVIL, "--then", f"{EVIL}={EVIL}"], ["G", "--of", EVIL, "--then", "q=1"],
        ["G", "--match", EVIL, "--then", "q=1"], ["G", "--cancel", EVIL],
    ],
    ("update",): [["Q"], ["Q", "--insert", f"{EVIL}={EVIL}"], ["Q", "--complete", "TOKEN", "--insert", "q=1"]],
    ("spark", "seed"): [["Q", EVIL]],
    ("spark", "audit"): [["Q"]],
    ("spark", "report"): [["Q", EVIL]],
    ("spark", "drain"): [["Q", EVIL, "--sql", EVIL], ["Q", EVIL, "--function", EVIL]],
    ("spark", "requeue"): [["Q", "--sql", EVIL], ["Q", "--sql", EVIL, "--yes"]],
}  # fmt: skip
"""For each command what else it is given than nonsense. Words in capitals stand for something in the queue."""


def test_every_command_is_fed() -> None:
    assert FED.keys() == TREE.keys(), "feed each new command escapes: see FED"


ENDLESS = {"--forever", "--watch", "--join"}
ENDED: dict[tuple[str, ...], Words] = {
    ("serve",): ["--listen", "unix:missing/socket"],
    ("wait",): ["--timeout", "0.01"],
}
"""What ends a command at once that would go on for ever."""


def lines_for(name: tuple[str, ...]) -> list[Words]:
    """All command lines for a command: what FED says, with --json too; every option with escapes; other nonsense."""
    command = TREE[name]
    options = [option for option in command.params if isinstance(option, click.Option)]
    found, ended = list(FED[name]), ENDED.get(name, [])
    if any("--json" in option.opts for option in options):
        found += [[words[0], "--json", *words[1:]] for words in FED[name]]
    for option in options:
        if not option.is_flag:
            found.append(["Q", *ended, option.opts[-1], EVIL])
        elif option.opts[-1] not in ENDLESS:
            found.append(["missing", option.opts[-1]])
    return [*found, ["missing"], ["FILE"], ["Q", EVIL, EVIL, EVIL, *ended], [f"--{EVIL}"], [EVIL], ["Q/queue.jsonl"]]


class Driver:
    """The process that runs command lines. A test gives it those of one command, and reads what they said."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=pipe, stdout=pipe, text=True)
        self._write(EVIL)

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(value), file=self._process.stdin, flush=True)

    def run(self, given: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
        self._write(given)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said, f"the driver has ended with {self._process.wait()}"
        return [(code, out, err) for code, out, err in json.loads(said)]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


class Hostile:
    """A directory of another's making: a queue in which every field that somebody can write holds escapes."""

    def __init__(self, place: Path, driver: Driver) -> None:
        self.place, self.driver = place, driver
        self.name = f"q{EVIL_NAME}"
        queue = Queue.create(place / self.name, shards=1, durability="none", max_attempts=3)
        queue.insert(EVIL, delay_s=3600)
        queue.insert_many([{EVIL: EVIL}, EVIL, [EVIL], "fails", "dies", "done"], batch_tasks=1)
        queue.insert(EVIL.encode())
        queue.commit("done").publish([queue.commit("done").stage(["committed"])])
        worker = Queue(queue.path)
        held = {str(task.payload): task for task in worker.lease(99)}
        held["fails"].fail(EVIL)
        held["dies"].bury(f"{EVIL}\n{EVIL}")
        held["done"].complete({EVIL: EVIL})
        foreign = held[str([EVIL])]
        for free in ({EVIL: EVIL}, EVIL.encode(), "committed"):
            held[str(free)].release()
        self.words = {
            "WAITING": held[str({EVIL: EVIL})].id,
            "BYTES": held[str(EVIL.encode())].id,
            "FAILED": held["fails"].id,
            "DEAD": held["dies"].id,
            "COMPLETED": held["done"].id,
            "LEASED": foreign.id,
            "TOKEN": held[EVIL].token,
            "LOST": foreign.token,
            "FILE": f"file{EVIL_NAME}",
            "EVILNODE": EVIL,
            "FILEQUEUE": "filequeue",
        }
        self._records(worker, foreign.batch, foreign.lease)
        self._files(queue)
        queue.close()
        worker.close()

    def _records(self, queue: Queue, batch: str, lease: str) -> None:
        """What only a program of somebody's own writes."""
        [log] = [path for path in log_files(queue) if path.stem == batch]
        at = queue.store.clock.now_ms()
        who = {"host": EVIL, "name": EVIL, "pid": EVIL, "slurm_job": EVIL, "slurm_node": EVIL, EVIL: EVIL}
        records = [
            {"op": "release", "at": at, "lease": lease, "tasks": [[0, 1]], "available_at": 0, "reason": EVIL},
            {"op": "lease", "at": at, "lease": EVIL, "tasks": [[0, 1]], "until": at + 10**7, "worker": who},
            {"op": EVIL, "at": at},
        ]
        with log.open("ab") as file:
            file.writelines(orjson.dumps(record) + b"\n" for record in records)
            file.write(EVIL.replace("\n", "").encode() + b"\n")
        store = queue.store
        letter = {"op": "dead", "id": EVIL, "at": at, "reason": EVIL, "worker": who, "payload": EVIL, "attempt": EVIL}
        with open(store.layout.dead("00"), "ab") as file:
            file.write(orjson.dumps(letter) + b"\n")
        node = {"op": "failed", "at": at, "node": EVIL, "after": 1, "reason": EVIL}
        path = Path(store.layout.node(EVIL))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(orjson.dumps(node) + b"\n")

    def _files(self, queue: Queue) -> None:
        base = base_of(queue)
        for directory in (queue.path, base, base / "queue/00", base / "movements/00", base / "history", self.place):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"x{EVIL_NAME}").touch()
        for directory in (queue.path / ".trash", queue.path / ".quarantine", base / "staging", base / "commits"):
            inner = directory / f".gone-{EVIL_NAME}"
            inner.mkdir(parents=True, exist_ok=True)
            (inner / f"x{EVIL_NAME}").touch()
        (base / "queue/00" / f"link{EVIL_NAME}").symlink_to(EVIL_NAME)
        (base / "queue/00" / f"0000000000000-{'0' * 32}-1.jsonl").mkdir()
        (self.place / f"file{EVIL_NAME}").write_text(f"{json.dumps(EVIL)}\n{EVIL}\n1")
        (self.place / "good").write_text("1\n")
        (self.place / "evil.py").write_text(f"def boom(payload):\n    raise ValueError({EVIL!r})\n")
        taken_over = Files(self.place / "filequeue")
        taken_over.add(EVIL)
        taken_over.add(text=EVIL)
        (taken_over.home / "queue" / f"x{EVIL_NAME}").touch()
        (self.place / "bin").mkdir()
        sbatch = self.place / "bin/sbatch"
        sbatch.write_text(f"#!{sys.executable}\nprint({EVIL!r})\nraise SystemExit(1)\n")
        sbatch.chmod(0o755)

    def run(self, lines: list[Words], copies: Path, user: int = 0) -> list[tuple[Words, int, bytes, bytes]]:
        """Each command line in a copy of its own: exit code, what it said on standard output and standard error."""
        given = []
        for number, line in enumerate(lines):
            copy = shutil.copytree(self.place, copies / f"{number}{EVIL}", symlinks=True)
            name = self.name
            if line[0] == "run":  # what its children are told is Unicode
                name = f"q{EVIL}"
                os.rename(copy / self.name, copy / name)
            if user:
                for place, directories, files in os.walk(copy):
                    for one in (*directories, *files):
                        if "PWNED" not in one or one == name:
                            os.chown(f"{place}/{one}", user, user, follow_symlinks=False)
            given.append(
                {
                    "arguments": [self._word(word).replace(self.name, name) for word in line],
                    "cwd": str(copy),
                    "input": f"{json.dumps(EVIL)}\n{EVIL}\n",
                    "alarm": 3 if "--watch" in line else 60,
                    "env": {"PATH": f"{copy}/bin:{os.environ['PATH']}", "FSQUEUE_TRACEBACK": "1" if number % 2 else ""},
                    "user": user,
                }
            )
        return [
            (line, code, base64.b64decode(out), base64.b64decode(err))
            for line, (code, out, err) in zip(lines, self.driver.run(given), strict=True)
        ]

    def _word(self, word: str) -> str:
        if word == "Q" or word.startswith("Q/"):
            return self.name + word[1:]
        return self.words.get(word, "good" if word == "GOOD" else f"missing{EVIL_NAME}" if word == "missing" else word)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, driver: Driver) -> Hostile:
    return Hostile(tmp_path_factory.mktemp("hostile"), driver)


def check(line: Words, code: int, out: bytes, err: bytes) -> None:
    for said in (out, err):
        found = DRIVES.search(said.decode())
        assert found is None, (line, found, said)
    text = out + err
    assert b"internal error" not in text, (line, text)
    assert code >= 0 or "--watch" in line, (line, code, text)
    if "--json" in line:
        for said in out.splitlines():
            json.loads(said)


def holds(value: Any) -> bool:
    """Whether a text stands somewhere in JSON as it was written."""
    if isinstance(value, dict):
        return any(holds(key) or holds(item) for key, item in value.items())
    return any(map(holds, value)) if isinstance(value, list) else isinstance(value, str) and EVIL in value


@pytest.mark.slow
@pytest.mark.parametrize("name", FED, ids=" ".join)
def test_no_field_drives_the_terminal(hostile: Hostile, tmp_path: Path, name: tuple[str, ...]) -> None:
    done = hostile.run([[*name, *line] for line in lines_for(name)], tmp_path)
    for line, code, out, err in done:
        check(line, code, out, err)
    said = b"".join(out + err for _, _, out, err in done)
    assert SAYS.search(said.decode()), "the feed did not get through: it would prove nothing"


SHOWING = [("ls",), ("show",), ("dead", "list"), ("status",), ("workers",), ("lease",), ("fsck",), ("doctor",)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWING, ids=" ".join)
def test_what_is_escaped_in_json_is_the_same_value(hostile: Hostile, tmp_path: Path, name: tuple[str, ...]) -> None:
    asked = [[*name, *line, *(["--json"] if name != ("lease",) else [])] for line in FED[name]]
    asked = [line for line in asked if "--watch" not in line and "--tokens" not in line]
    done = hostile.run(asked, tmp_path)
    assert any(holds(json.loads(said)) for _, _, out, _ in done for said in out.splitlines()), done


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("name", [("gc",), ("fsck",), ("purge",), ("delete",), ("lease",), ("run",)], ids=" ".join)
def test_names_of_what_another_planted_do_not_either(tmp_path: Path, driver: Driver, name: tuple[str, ...]) -> None:
    """What cannot be removed or touched, because it is another's, is logged by its name."""
    open_to_all(tmp_path)
    (tmp_path / "original").mkdir()
    fed = [line for line in FED[name] if not {"--call", "--load"} & {*line}]  # this Python may be in root's home
    lines = [[*name, *line] for line in fed]
    done = Hostile(tmp_path / "original", driver).run(lines, tmp_path, USER)
    for line, code, out, err in done:
        check(line, code, out, err)
    said = b"".join(out + err for _, _, out, err in done).decode()
    if name == ("gc",):
        assert re.search(r"could not set the times.*\\x1b.*PWNED|\\x1b.*PWNED.*(could not be reaped|still there)", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["status", "Q", "--watch"], ["status", ".", "--watch"], ["wait", "Q", "--timeout", "2"], ["doctor", "Q"],
     ["purge", "Q"]],
    ids=["status", "several", "wait", "doctor", "purge"],
)  # fmt: skip
def test_on_a_terminal(hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    copy = shutil.copytree(hostile.place, tmp_path / f"copy{EVIL_NAME}", symlinks=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    words = [hostile._word(word) for word in arguments]
    terminal = Terminal(*map(os.fsdecode, words), columns=150, rows=40)
    try:
        terminal.read(lambda text: "PWNED" in text or "Fit" in text or "y/N" in text)
        assert "PWNED" in terminal.text or arguments[0] == "wait"
        if arguments[0] == "purge":
            os.write(terminal.main, b"n\n")  # an answer comes through whenever it is given, a signal only once it waits
        terminal.end(None if arguments[0] in ("purge", "doctor", "wait") else 2)
        assert terminal.strange == []
        assert not re.search("[\u202e\u2066\u061c\u2028]", terminal.raw.decode())
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "iso8859-1"])
def test_json_is_json_in_any_encoding(hostile: Hostile, encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "ls", hostile.place / hostile.name, "--json"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    assert any(holds(json.loads(line)) for line in done.stdout.splitlines())


@pytest.mark.parametrize("threads", [False, True], ids=["a command", "a function in this process"])
def test_what_commands_print_themselves_stays_as_it_is(queue: Queue, tmp_path: Path, threads: bool) -> None:
    queue.insert(1)
    (tmp_path / "mine.py").write_text("def say(payload):\n    print('\\x1b[31mred\\x1b[0m', flush=True)\n")
    what = ["--call", "mine:say", "--threads", "1"] if threads else ["--", "printf", r"\033[31mred\033[0m\n"]
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "run", queue.path, *what], capture_output=True, cwd=tmp_path, check=True
    )
    assert b"\x1b[31mred\x1b[0m\n" in done.stdout


def outputs(queue: Queue, place: Path, *command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "run", queue.path, "--", *command],
        capture_output=True,
        text=True,
        cwd=place,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_payload_is_one_argument_and_no_script(queue: Queue, tmp_path: Path) -> None:
    """What docs/sharing.md advises, and what it warns of."""
    evil = "$(touch planted); touch planted #'\""
    queue.insert({"f": evil})
    assert outputs(queue, tmp_path, "printf", "%s\n", "{f}") == [evil]
    queue.insert({"f": evil})
    assert outputs(queue, tmp_path, "sh", "-c", 'printf "%s\\n" "$1"', "sh", "{f}") == [evil]
    queue.insert({"f": "-n"})
    assert outputs(queue, tmp_path, "grep", "-c", "x", "--", "{f}") == []  # no such file; as an option it would count
    queue.insert("-n")
    assert outputs(queue, tmp_path, "sh", "-c", 'printf "%s\\n" "$1"', "sh", "./{}") == ["./-n"]
    assert not (tmp_path / "planted").exists()
    queue.insert({"f": evil})
    outputs(queue, tmp_path, "sh", "-c", 'eval "echo $1"', "sh", "{f}")  # no program can know of this
    assert (tmp_path / "planted").exists()


@needs_root
def test_who_sees_a_payload_on_the_host(queue: Queue, tmp_path: Path) -> None:
    """An argument: everybody. The environment: the same user, and root."""
    queue.insert("the-secret")
    look = (
        "import os, subprocess, sys\n"
        "pid = os.getppid()\n"
        "os.setgroups([]); os.setgid(64009); os.setuid(64003)\n"
        "for name in ('cmdline', 'environ'):\n"
        "    try: print(name, b'the-secret' in open(f'/proc/{pid}/{name}', 'rb').read())\n"
        "    except PermissionError: print(name, 'refused')\n"
    )
    (tmp_path / "look.py").write_text(look)
    words = ("sh", "-c", f'{sys.executable} look.py; test -n "$FSQUEUE_PAYLOAD"', "sh", "{}")
    assert outputs(queue, tmp_path, *words) == ["cmdline True", "environ refused"]
