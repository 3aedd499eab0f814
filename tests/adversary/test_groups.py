"""What another user plants in the place of a group's files: each command and verb says so, or does without it.

The group lies in a directory of a project, in which the other user may write. What is planted is there before the
commands begin, or comes and goes all the time.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsqueue_cli.main import cli

from fsqueue import FsqueueError, Group, NotAQueue, Worker
from fsqueue.groups.task_numbers import NewNumber
from tests.adversary.acts import exchange
from tests.adversary.arena import ADVERSARY, ENDS, PATIENCE_S, VICTIM, become, interpreter
from tests.adversary.arena import GROUP as MEMBERS
from tests.concurrency.processes import Child
from tests.prepared import DAY_MS, FILE, ByHand
from tests.support import needs_root, open_to_all
from tests.waiting import until

pytestmark = [pytest.mark.thorough, needs_root]

UUID = "0123456789abcdef" * 2
NAMES = (
    ".group.jsonl", ".bells", "queue.jsonl", f"{FILE}.jsonl", f"{UUID}.jsonl", "000000000000", "doorbell",
    "first/queue.jsonl",
)  # fmt: skip
"""What lies in the canary: names that are looked for in a group."""
PLACES = (
    ".group.jsonl", ".bells", ".updates", f".updates/{FILE}.jsonl", f".updates/{UUID}.jsonl", ".numbers",
    ".numbers/000000000000", ".quarantine", "first", "first/queue.jsonl", "then", "never",
    f".fsqueue-deleted-{UUID[:16]}-{UUID[16:]}",
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
    "delete {group} --queue never --yes --foreground", "delete {group}/then --yes --foreground",
    "delete {group} --queue first --yes",
)  # fmt: skip
IN_A_RACE = (
    "ls {group} --min 0", "update {group} --insert then=1 --insert never=2", "gc {group}", "status {group}",
    "update {group} --insert then=3", "gc {group}/then", "insert {group}/then --task 4", "results {group}/then",
    "fsck {group} --repair", "delete {group}/then --yes --foreground", "insert {group}/then --task 5", "gc {group}",
    "update {group} --insert then=6 --insert third=7", "delete {group} --queue then --yes --foreground",
)  # fmt: skip
BY_A_LINK = (
    "create --group {group}", "create --group {group} --exist-ok", "ls {group}", "ls {group}/first", "status {group}",
    "insert {group}/first --task 1", "update {group} --insert first=1 --insert then=2", "fsck {group} --repair",
    "gc {group}", "delete {group} --queue first --yes --foreground", "delete {group}/first --yes --foreground",
    "delete {group} --yes --foreground", "create {group}",
)  # fmt: skip
BESIDE_A_PLANTED_FILE = (
    "create --group {group} --exist-ok", "create --group {group}", "ls {group}", "status {group}", "gc {group}",
    "insert {group}/first --task 1", "update {group} --insert first=1",
    "delete {group} --queue first --yes --foreground",
)  # fmt: skip
ROUNDS = 4
"""How often they are typed beside the other user, who goes on all the time."""
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
    child = Child(as_user, uid, act, *args)
    try:
        return child.result()
    finally:
        child.close()


def as_user(uid: int, act: Callable[..., Any], *args: Any) -> Any:
    become(uid)
    sys.executable = interpreter() or sys.executable
    return act(*args)


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
    wrong = typed(COMMANDS, group, token=f"first={token}", task=task)
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


def typed(lines: tuple[str, ...], group: str, **words: object) -> list[str]:
    """Type commands, with words in the place of their names. Return what was wrong."""
    wrong = []
    for line in lines:
        command = [word.format(group=group, **words) for word in line.split()]
        with limited():
            result = CliRunner().invoke(cli, command, input="", prog_name="fsqueue")
        said = result.output
        is_raised = result.exception is not None and not isinstance(result.exception, SystemExit)
        if is_raised or result.exit_code not in ENDS or "Traceback" in said or "internal error" in said:
            wrong.append(f"{' '.join(command)}: {result.exit_code} {said[-1500:]} {result.exception!r}")
        elif result.exit_code and not said.strip() and command[0] not in ("lease", "wait", "run"):
            wrong.append(f"{' '.join(command)}: {result.exit_code}, and not a word")
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
    yield lambda: group.delete("then", foreground=True)


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


@pytest.mark.parametrize("user", [VICTIM, 0], ids=["member", "root"])
@pytest.mark.parametrize("target", ["home", "home/staging", "home/queue.jsonl", "absent"])
def test_a_link_in_the_place_of_a_group_s_directory_makes_nothing_where_it_leads(
    home: Path, project: Path, target: str, user: int
) -> None:
    (home / "staging").mkdir()
    before = snapshot(home)
    live(ADVERSARY, os.symlink, str(home.parent / target), str(project / "group"))
    assert live(user, typed, BY_A_LINK, str(project / "group")) == []
    assert snapshot(home) == before
    assert not (home.parent / "absent").exists()
    assert os.listdir(project) == ["group"]


@pytest.mark.parametrize("user", [VICTIM, 0], ids=["member", "root"])
@pytest.mark.parametrize("mode", [0o2775, 0o1777])
@pytest.mark.parametrize("kind", [*KINDS[:6], "a file of a group"])
def test_no_group_is_made_beside_what_another_user_has_put_in_the_place_of_its_file(
    home: Path, project: Path, kind: str, mode: int, user: int
) -> None:
    """In a directory of members the file of a group is a member's: that makes one."""
    before, group = snapshot(home), project / "group"
    live(VICTIM, prepare, str(project / "other"))
    live(VICTIM, group.mkdir)
    group.chmod(mode)
    if kind == "a file of a group":
        live(ADVERSARY, shutil.copy, str(project / "other" / ".group.jsonl"), str(group))
    else:
        live(ADVERSARY, plant, group / ".group.jsonl", kind, home)
    assert live(user, typed, BESIDE_A_PLANTED_FILE, str(group)) == []
    assert snapshot(home) == before
    is_members = kind == "a file of a group" and mode == 0o2775
    assert is_members or {".group.jsonl"} <= {*os.listdir(group)} <= {".bells", ".group.jsonl"}
    assert live(user, made, str(group)) == is_members


def made(path: str) -> bool:
    """Make a group at a path if there is none, and return whether that was possible."""
    try:
        Group.create(path, exist_ok=True)
    except NotAQueue:
        return False
    return True


def swap(path: Path, spare: Path, target: Path, swaps: int) -> None:
    """As the other user, until this is killed: exchange a directory for a link to another one, and back."""
    spare.symlink_to(target)
    while True:
        with suppress(OSError):  # the directory is gone for now
            exchange(str(path), str(spare))
            os.write(swaps, b"!")


def use_in_a_race(group: str) -> list[str]:
    """Type what changes a group most, again and again. Return what was wrong."""
    return [each for _ in range(ROUNDS) for each in typed(IN_A_RACE, group)]


@pytest.mark.parametrize("user", [VICTIM, 0], ids=["member", "root"])
@pytest.mark.parametrize("place", [".updates", "then"])
def test_a_directory_that_is_swapped_for_a_link_all_the_time_leads_nowhere_and_stops_nothing(
    tmp_path: Path, project: Path, place: str, user: int
) -> None:
    """The link leads to the like in another group, which nobody but the victim may enter."""
    vault = tmp_path / "vault"
    vault.mkdir(mode=0o700)
    os.chown(vault, VICTIM, VICTIM)
    group, other = project / "group", vault / "group"
    open_to_all(tmp_path)
    for each in (group, other):
        live(VICTIM, prepare, str(each))
    before = snapshot(vault)
    swaps = os.memfd_create("swaps")
    neighbour = Child(as_user, ADVERSARY, swap, group / place, project / "spare", other / place, swaps)
    try:
        until(lambda: os.fstat(swaps).st_size, "the first swap")
        count = os.fstat(swaps).st_size
        assert live(user, use_in_a_race, str(group)) == []
        assert neighbour.running, neighbour.report()
        assert os.fstat(swaps).st_size > count + ROUNDS * len(IN_A_RACE)
    finally:
        neighbour.close()
        os.close(swaps)
    assert snapshot(vault) == before
