"""What another user plants in the place of a group's files: each command and verb says so, or does without it.

The group lies in a directory of a project, in which the other user may write. Nothing is raced here: what is planted is
there before the commands begin.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsqueue_cli.main import cli

from fsqueue import FsqueueError, Group, Worker
from fsqueue.groups.numbers import NewNumber
from tests.adversary.arena import ADVERSARY, ENDS, PATIENCE_S, VICTIM, become, interpreter
from tests.adversary.arena import GROUP as MEMBERS
from tests.concurrency.processes import Child
from tests.prepared import DAY_MS, FILE, ByHand
from tests.support import needs_root, open_to_all

pytestmark = [pytest.mark.thorough, needs_root]

UUID = "0123456789abcdef" * 2
NAMES = (
    ".group.jsonl", "queue.jsonl", f"{FILE}.jsonl", f"{UUID}.jsonl", "000000000000", "doorbell", "first/queue.jsonl",
)  # fmt: skip
"""What lies in the canary: names that are looked for in a group."""
PLACES = (
    ".group.jsonl", ".updates", f".updates/{FILE}.jsonl", f".updates/{UUID}.jsonl", ".numbers", ".numbers/000000000000",
    ".quarantine", "first", "first/queue.jsonl", "then", "never", f".fsqueue-deleted-{UUID[:16]}-{UUID[16:]}",
)  # fmt: skip
COMMANDS = (
    "ls {group}", "ls {group} --min 0", "ls {group} --match .* --json", "ls {group}/first", "status {group}",
    "status {group} --match first --usage", "status {group}/then", "set {group}", "workers {group}/first",
    "show {group}/first {task}", "wait {group} --timeout 0.01", "fsck {group}", "results {group}/first",
    "lease {group}/then", "lease {group}/never",
    "update {group} --insert never=1 --insert then=2", "update {group} --insert then=1",
    "update {group} --complete {token}",
    "insert {group}/never --task 3", "insert {group}/first --task 4",
    "run {group} --match .* --max-runtime 1 --idle-timeout 0.1 -- true",
    "create --group {group} --exist-ok", "gc {group}", "gc {group}/first", "fsck {group} --repair", "gc {group}",
    "delete {group} --queue never --yes --wait", "delete {group}/then --yes --wait",
    "delete {group} --queue first --yes",
)  # fmt: skip
KINDS = (
    "a link to a directory", "a link to a file", "a link to nothing", "a pipe", "a directory", "a file", "no access",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import now what commands import when they need it: the victim may not be able to read it."""
    update = ByHand(tmp_path_factory.mktemp("imported") / "group")
    update.prepare()
    use(str(update.group.path), update.task.token, update.task.id)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The canary: only the victim may enter it, and nobody at all may change it."""
    open_to_all(tmp_path)
    home = tmp_path / "home"
    for name in NAMES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"precious {name}\n")
    for path in (*home.rglob("*"), home):
        os.chown(path, VICTIM, VICTIM)
        os.utime(path, (1e9, 1e9))
    home.chmod(0o700)
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of the members, in which each may write."""
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, VICTIM, MEMBERS)
    project.chmod(0o2775)
    return project


def snapshot(home: Path) -> dict[str, Any]:
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (home, *home.rglob("*"))
    }


def live(uid: int, act: Callable[..., Any], *args: Any) -> Any:
    """Do something as another user, in a process of its own."""

    def as_user() -> Any:
        become(uid)
        sys.executable = interpreter() or sys.executable
        return act(*args)

    child = Child(as_user)
    try:
        return child.result()
    finally:
        child.close()


@contextmanager
def limited() -> Iterator[None]:
    """Raise in the block if it waits."""
    before = signal.signal(signal.SIGALRM, _tell)
    signal.alarm(int(PATIENCE_S))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _tell(number: int, frame: object) -> None:
    raise AssertionError(f"this waits for {PATIENCE_S:g} s")


def prepare(path: str) -> list[str]:
    """As the victim: make a group with an update that was left undecided two days ago, and with numbers."""
    update = ByHand(Path(path), ago_ms=2 * DAY_MS)
    update.prepare()
    update.says("nothing")
    update.group["then"].insert("seen")
    [seen] = [one for one in update.group["then"].tasks() if one.payload == "seen"]
    update.group.numbers.give([NewNumber(seen, 0)])
    with update.group.update() as real:
        real.insert("then", "x")
        real.insert("third", "y")
    return [update.task.token, update.task.id]


def plant(path: Path, kind: str, home: Path) -> None:
    """As the other user: put something in the place of a file or a directory, which goes aside."""
    if path.exists():
        path.rename(path.parent / f"aside-{path.name.strip('.')}")
    path.parent.mkdir(exist_ok=True)
    if kind == "a link to a directory":
        path.symlink_to(home)
    elif kind == "a link to a file":
        path.symlink_to(home / path.name if path.name in NAMES else home / "queue.jsonl")
    elif kind == "a link to nothing":
        path.symlink_to(home / "absent")
    elif kind == "a pipe":
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a file":
        path.write_text('{"op":"commit","at":0,"update":"0123456789abcdef","logs":[]}\nno line\n')
        path.chmod(0o666)
    else:
        path.write_text("hidden\n")
        path.chmod(0)


def use(group: str, token: str, task: str) -> list[str]:
    """As the victim: type each command, and call each verb. Return what was wrong."""
    wrong = []
    for typed in COMMANDS:
        command = [word.format(group=group, token=f"first={token}", task=task) for word in typed.split()]
        with limited():
            result = CliRunner().invoke(cli, command, input="", prog_name="fsqueue")
        said = result.output
        is_raised = result.exception is not None and not isinstance(result.exception, SystemExit)
        if is_raised or result.exit_code not in ENDS or "Traceback" in said or "internal error" in said:
            wrong.append(f"{' '.join(command)}: {result.exit_code} {said[-1500:]} {result.exception!r}")
        elif result.exit_code and not said.strip() and command[0] not in ("lease", "wait", "run"):
            wrong.append(f"{' '.join(command)}: {result.exit_code}, and not a word")
    try:
        opened = Group(group)
    except FsqueueError:
        return wrong
    for number, verb in enumerate(verbs(opened)):
        try:
            with limited():
                verb()
        except FsqueueError:
            pass
        except Exception as error:
            wrong.append(f"verb {number}: {error!r}")
    return wrong


def verbs(group: Group) -> Iterator[Callable[[], object]]:
    """Yield what a program does with a group."""
    yield lambda: group.status()
    yield lambda: [queue.status() for queue in group.queues(tasks_min=0)]
    yield lambda: group.is_drained()
    yield lambda: group.flows()
    yield lambda: group.usage()
    yield lambda: group.numbers.find([1, 2])
    yield lambda: group.numbers.named([1])
    yield lambda: group.numbers.give([NewNumber(task, 0) for task in group["then"].tasks()])
    yield lambda: [task.complete() for task in group.lease(3)]
    yield lambda: Worker(group.matching(".*"), command=("true",), max_tasks=2, idle_timeout_s=0.1).run()

    def update() -> None:
        with group.update() as one:
            for task in group.lease(1):
                one.complete(task)
            one.insert("never", 1)
            one.insert("first", 1, key="key")

    yield update
    yield lambda: [task.queue for task in group["first"].lease(1)]
    yield lambda: list(group.fsck(repair=True))
    yield lambda: [queue.gc() for queue in group.queues(tasks_min=0)]
    yield lambda: group.delete("then", wait=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_planted_in_a_group_leads_nowhere_and_stops_nothing(
    home: Path, project: Path, place: str, kind: str
) -> None:
    group, before = project / "group", snapshot(home)
    token, task = live(VICTIM, prepare, str(group))
    live(ADVERSARY, plant, group / place, kind, home)
    assert live(VICTIM, use, str(group), token, task) == []
    assert snapshot(home) == before
