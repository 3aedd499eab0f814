"""Where the adversary meets a victim: a project of their group, the victim's home beside it, and real commands.

The home is the canary. It is full of names that the commands look for, so that whatever is led there finds something to
remove, to move, to append to or to overwrite.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fsqueue import Queue
from tests.adversary.acts import OLD, Adversary, Tree
from tests.concurrency.processes import Child
from tests.house.source import TOP
from tests.support import open_to_all
from tests.waiting import until

GROUP, VICTIM, ADVERSARY = 64_020, 64_021, 64_022
PATIENCE_S = 60.0
"""No command takes so long: one that does hangs."""
RUN_S = 2.0
"""How long a worker runs, at most, of itself."""
SHARDS, TASKS = 2, 24
COPIED = ("orjson", "click", "filelock", "tqdm")
"""What fsqueue requires, for an interpreter that every user may start."""
COMMANDS = ("gc", "fsck", "delete", "doctor", "run", "purge")
ENDS = {*range(15), 124}
"""Exit codes that commands document."""
LAUNCHER = (
    "import os, sys; from fsqueue_cli import entry; os.write({fd}, b'!'); os.close({fd}); "
    "sys.argv[0] = 'fsqueue'; entry.main()"
)
"""What a command is started with: it says when it begins, so that the adversary does not spend itself before."""


def interpreter() -> str | None:
    """Return an interpreter of this version that every user may start; None if there is none."""
    version = "{}.{}".format(*sys.version_info)
    for path in (os.path.realpath(sys.executable), f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        try:
            subprocess.run([path, "-c", ""], check=True, user=VICTIM, group=GROUP, extra_groups=[], cwd="/", env={})
            return path
        except (OSError, subprocess.SubprocessError):
            continue
    return None


def become(uid: int) -> None:
    """Be another user, in the group."""
    os.setgroups([])
    os.setgid(GROUP)
    os.setuid(uid)
    os.umask(0o002)


@dataclass
class Round:
    """What a command did beside the adversary."""

    command: list[str]
    code: int | None
    said: str
    acts: list[str]
    broken: list[str] = field(default_factory=list)


class Arena:
    """The directories, the users, and rounds between them."""

    def __init__(self, base: Path, seed: str) -> None:
        self.base, self.seed = base, seed
        base.mkdir(parents=True, exist_ok=True)
        self.home, self.project, self.scratch = base / "home", base / "project", base / "scratch"
        self.queue, self.out = self.project / "q", self.project / "out"
        self.python = interpreter()
        self.rounds = 0
        self.ends: Counter[int | None] = Counter()
        """How often commands ended with each exit code: those that were stopped early show less."""
        open_to_all(base)
        self._make_site()
        self._make_home()
        self.before = self.snapshot()

    def _make_site(self) -> None:
        """Copy this tree and what it requires to where every user may read it."""
        site = self.base / "site"
        shutil.copytree(TOP / "fsqueue", site / "fsqueue", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(TOP / "cli", site / "fsqueue_cli", ignore=shutil.ignore_patterns("__pycache__"))
        for name in COPIED:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            if spec.submodule_search_locations:
                shutil.copytree(spec.submodule_search_locations[0], site / name)
            else:
                shutil.copy(str(spec.origin), site)

    def _make_home(self) -> None:
        """Make what nobody but its owner may enter, and nobody at all may change."""
        uuid, day = "0123456789abcdef" * 2, "2001-01-01"
        attempt = f"{uuid}-name"
        for name in (
            ".secretrc", "Thesis/chapter1", "Documents/letters/1", "d0001", "queue", "lfs",
            f"tasks/00/1000000000000-{uuid}-3.jsonl", f"tasks/01/1000000000000-{uuid}-3.jsonl",
            f"movements/00/{uuid}.jsonl", f"movements/01/{uuid}.jsonl", f"staging/{uuid}.jsonl",
            f"staging/{attempt}/{uuid}",
            f"staging/1000000000000-{uuid}-3.jsonl", "dead/00.jsonl", "dead/01.jsonl", "completions/0",
            f"history/{day}/00.jsonl", f"nodes/{uuid}.jsonl", "commits/name.json", f"commits/pending/{uuid}.json",
            ".trash/Documents/thesis", ".trash/.lock", f".trash-{uuid[:16]}/file", ".quarantine/x/file", "doorbell",
            f".fsqueue-deleted-{uuid[:16]}-{uuid[16:]}/queue.txt", f"1-{uuid[:16]}/dead/00.jsonl",
            f".fsqueue-doctor/join/{uuid[:16]}.here", f".fsqueue-doctor/{uuid[:16]}/threads/ledger",
            f".fsqueue-doctor/join/{uuid[:16]}.place/ledger", f".fsqueue-doctor-{uuid[:16]}/threads/ledger",
            "threads/prize-0", "join/ledger", f".new-{uuid[:16]}", f"{uuid}.0.1", f"{uuid}.1",
        ):  # fmt: skip
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"precious {name}\n")
        for path in (*self.home.rglob("*"), self.home):
            os.chown(path, VICTIM, VICTIM)
            os.utime(path, OLD)
        self.home.chmod(0o700)

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Return everything about the canary that somebody could change."""
        found: dict[str, tuple[object, ...]] = {}
        for path in (self.home, *self.home.rglob("*")):
            stat = path.lstat()
            what: tuple[object, ...] = (stat.st_mode, stat.st_uid, stat.st_gid)
            if path.is_file():
                what += (stat.st_size, stat.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            found[str(path.relative_to(self.base))] = what
        return found

    def canary(self) -> Tree:
        """Return what the adversary knows of the canary: names."""
        places = [self.home, *(path for path in self.home.rglob("*") if path.is_dir())]
        return {str(place): sorted((inner.name, inner.is_dir()) for inner in place.iterdir()) for place in places}

    # -- a round ----------------------------------------------------------------------------------------

    def play(self, command: str) -> Round:
        """Run a command beside the adversary, and look what is broken."""
        self.rounds += 1
        seed = f"{self.seed}:{command}:{self.rounds}"
        self._clean()
        Child(self._prepare, command, seed).result()
        log = os.memfd_create("acts")
        begun, begin = os.pipe()
        likely = [str(path) for path in self.likely(command)]
        adversary = Child(self._live, seed, likely, log, begun)
        try:
            until(lambda: os.pread(log, 1, 0) or not adversary.running, "the adversary to be ready")
            assert os.pread(log, 1, 0), adversary.report()
            found = self._run(self.arguments(command, seed), begin)
        finally:
            adversary.close()
            os.close(begin)
            os.close(begun)
        self.ends[found.code] += 1
        found.acts = os.pread(log, 1 << 20, 0).decode("utf-8", "replace").splitlines()
        os.close(log)
        if adversary.report():
            found.broken.append(f"the adversary itself failed: {adversary.report()}")
        after = self.snapshot()
        changed = sorted(path for path in self.before.keys() | after.keys() if self.before.get(path) != after.get(path))
        if changed:
            found.broken.append(f"changed, outside of the queue: {', '.join(changed[:20])}")
            shutil.rmtree(self.home)
            self._make_home()
            self.before = self.snapshot()
        return found

    def likely(self, command: str) -> list[Path]:
        """Return directories in which a command removes, moves or writes."""
        [*generations] = self.queue.glob("[0-9]*-*")
        inner = [
            generation / part
            for generation in generations
            for part in ("", "movements/00", "tasks/00", "staging", "dead")
        ]
        return {
            "gc": [self.queue / ".trash", self.queue / ".fsqueue-doctor/join", *inner, self.queue],
            "fsck": [self.queue / ".quarantine", *inner, self.queue],
            "delete": [self.project / ".trash", self.queue / ".trash", self.queue],
            "doctor": [self.scratch / ".fsqueue-doctor/join", self.project / ".fsqueue-doctor/join"],
            "run": [self.out, *inner],
            "purge": [self.queue / ".trash", *inner, self.queue],
        }[command]

    def arguments(self, command: str, seed: str) -> list[str]:
        """Return what is typed."""
        queue = str(self.queue)
        return {
            "gc": ["gc", queue],
            "fsck": ["fsck", "--repair", queue],
            "delete": ["delete", queue, "--yes", "--foreground"],
            "doctor": ["doctor", str(self.scratch if self.rounds % 2 else self.project)],
            "run": [
                "run", queue, "--keep-output", str(self.out), "--max-runtime", f"{RUN_S:g}", "--idle-timeout", "1",
                "--", "sh", "-c", "echo out; echo err >&2",
            ],
            "purge": ["purge", queue, "--yes"],
        }[command]  # fmt: skip

    def _clean(self) -> None:
        for place in (self.project, self.scratch):
            until(partial(_is_removed, place), f"{place} to be removed")
            place.mkdir()
        os.chown(self.project, VICTIM, GROUP)
        self.project.chmod(0o2775)
        self.scratch.chmod(0o1777)

    def _prepare(self, command: str, seed: str) -> None:
        """As the victim: make a queue in which there is something to do for the command."""
        become(VICTIM)
        queue = Queue.create(self.queue, shards=SHARDS, durability="none")
        if command in ("gc", "purge", "delete"):
            queue.insert_many(range(40), batch_tasks=1)
            queue.purge()  # what it leaves in the trash
        queue.insert_many(range(TASKS), batch_tasks=2)
        for task in queue.lease(3):
            task.bury("no")
        queue.complete(queue.lease(4))
        if command == "run":
            self.out.mkdir()
            # Whoever can list the queue knows the ids of tasks, and so the names of outputs.
            ids = sorted(f"{task.id}.{attempt}" for task in queue.tasks() for attempt in (1, 2))
            (self.project / "ids").write_text("\n".join(ids))

    def _live(self, seed: str, likely: list[str], log: int, begun: int) -> None:
        def say(text: str) -> None:
            os.write(log, f"{text}\n".encode("utf-8", "surrogateescape"))

        def begin() -> None:
            select.select([begun], [], [])

        become(ADVERSARY)
        adversary = Adversary(seed, [str(self.project), str(self.scratch)], self.canary_known, likely, say)
        ids = self.project / "ids"
        if ids.exists():
            self._plant_outputs(adversary, ids.read_text().split())
        adversary.live(lambda: say("ready"), begin)

    def _plant_outputs(self, adversary: Adversary, ids: list[str]) -> None:
        """Put links, pipes and directories where outputs would be kept."""
        for name in ids:
            for ending in ("", ".out", ".err"):
                what, path = adversary.rng.random(), f"{self.out}/{name}{ending}"
                with suppress(OSError):
                    if what < 0.3:
                        os.symlink(f"{self.home}/.secretrc", path)
                    elif what < 0.4:
                        os.symlink(f"{self.home}/new-{name}", path)
                    elif what < 0.5:
                        os.mkfifo(path)
                    elif what < 0.55:
                        os.mkdir(path)

    def _run(self, arguments: list[str], begin: int) -> Round:
        assert self.python is not None
        command = [self.python, "-c", LAUNCHER.format(fd=begin), *arguments]
        environment = {
            "HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(self.base / "site"),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        process = subprocess.Popen(
            command, user=VICTIM, group=GROUP, extra_groups=[], umask=0o002, cwd="/", env=environment,
            pass_fds=(begin,), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="backslashreplace", start_new_session=True,
        )  # fmt: skip
        found = Round(arguments, None, "", [])
        try:
            said, complained = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where it stands
            said, complained = self._end(process)
            found.broken.append(f"it hung for {PATIENCE_S:g} s")
        found.broken += self._wait_for_what_it_left()
        found.code, found.said = process.returncode, f"{said[-2000:]}\n{complained[-6000:]}"
        if found.code not in ENDS and not found.broken:
            found.broken.append(f"it ended with {found.code}")
        found.broken += [f"it said {word!r}" for word in ("internal error", "Traceback") if word in said + complained]
        return found

    def _wait_for_what_it_left(self) -> list[str]:
        """Wait for processes that a command leaves in the background, to reap; [] if they end in time."""
        left: list[str] = []

        def are_gone() -> bool:
            left[:] = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_victims(pid)]
            return not left

        try:
            until(are_gone, "the processes that it left behind", PATIENCE_S)
        except AssertionError:
            for pid in left:
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            return [f"{len(left)} of the processes that it left behind hung for {PATIENCE_S:g} s"]
        return []

    def _end(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        try:
            return process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()

    @property
    def canary_known(self) -> Tree:
        """What the adversary knows: it was told before it became one."""
        if not hasattr(self, "_known"):
            self._known: Tree = self.canary()
        return self._known


def _is_removed(place: Path) -> bool:
    return not subprocess.run(["rm", "-rf", str(place)], stderr=subprocess.DEVNULL, check=False).returncode


def _is_victims(pid: str) -> bool:
    """Tell whether a process is the victim's, and alive."""
    try:
        return (
            os.stat(f"/proc/{pid}").st_uid == VICTIM and Path(f"/proc/{pid}/stat").read_text().split(") ")[-1][0] != "Z"
        )
    except OSError:
        return False


def duel(arena: Arena, command: str, seconds: float, told: Callable[[str], object] = lambda text: None) -> list[str]:
    """Play rounds for so many seconds, at least one; what was broken, with all that is needed to look into it."""
    assert arena.canary_known
    begin, broken = time.monotonic(), []
    while not arena.rounds or time.monotonic() - begin < seconds:
        found = arena.play(command)
        told(f"{command} {arena.rounds}: {found.code}")
        if found.broken:
            broken.append(
                f"round {arena.rounds} of seed {arena.seed}: fsqueue {' '.join(found.command)}\n"
                + "".join(f"  {what}\n" for what in found.broken)
                + f"  the last of {len(found.acts)} acts:\n"
                + "".join(f"    {act}\n" for act in found.acts[-15:])
                + f"  it said:\n{found.said}"
            )
            told(broken[-1])
    return broken
