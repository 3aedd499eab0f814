"""Scenarios on NFS: what runs in the guest of scripts/lab/nfs. Any process that works below /cN is at client N.

`/export` is the server's own disk: what is found there is the truth, without anybody's cache in between.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import FsqueueError, Group, GroupNotFound, LeaseLost, Queue, QueueNotFound
from fsqueue.filesystem import Filesystem
from fsqueue.storage import listening
from tests import copied
from tests.concurrency.books import Diary
from tests.concurrency.clocks import SharedClock
from tests.concurrency.processes import (
    PATIENCE_S,
    Child,
    Count,
    at_a_random_moment,
    children,
    in_the_kernel,
    wait_all_stopped,
)
from tests.concurrency.rounds import (
    Plan,
    check,
    heeding_interrupts,
    interrupt,
    prepare,
    produce,
    stop_for_a_while,
    work,
)
from tests.concurrency.trapped import Trapped
from tests.lab import evidence
from tests.lab.evidence import of_queue
from tests.waiting import until

SERVER = Path("/export")
FSQUEUE = str(Path(sys.executable).with_name("fsqueue"))
REMOVALS = 60
"""How often a directory is removed for each question. One removal in twenty falls into the tick of its making."""


def at(client: int, name: str) -> Path:
    """A path as a client sees it."""
    return Path(f"/c{client}") / name


def lab(*arguments: object) -> str:
    """Ask the lab for something: see scripts/lab/nfs."""
    return subprocess.run(["lab-nfs", *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def run_on(client: int, *command: object) -> subprocess.Popen[str]:
    """Start a command on a client's host."""
    return subprocess.Popen(
        ["lab-nfs", "client", str(client), *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def explained(name: str, notes: Path | None = None) -> AbstractContextManager[None]:
    """Adds what the processes, the server, its clients and a queue say to the message of a failure."""

    def more() -> str:
        seen = [of_queue(at(client, name), f"as client {client} sees it") for client in (1, 2)]
        return "\n".join([*seen, "== the server", lab("state")])

    return evidence.explained(SERVER / name, notes, more)


def restart_server(name: str) -> None:
    """Stop the server until a process at each client waits for it, beside those that work, and start it again."""
    lab("stop")
    with children(*((at(client, f"{name}-waits").touch,) for client in (1, 2))) as waiting:
        try:
            until(
                lambda: all(in_the_kernel(child.pid)[:1] == "D" for child in waiting),
                "a process at each client to wait for the server",
            )
        finally:
            lab("start")
        for child in waiting:
            child.result()


def complete_all(queue: Queue, diary: Diary) -> None:
    """Complete all there is and all that comes back."""

    def is_drained() -> bool:
        for task in queue.lease(50, lease_s=60, wait_s=5):
            diary.note("try", task.id, task.payload)
            task.complete()
            diary.note("done", task.id, task.payload)
        return queue.status().drained

    until(is_drained, f"{queue.path} to be drained", PATIENCE_S)


def settle(name: str, notes: Path, cut_short: int = 0) -> dict[str, int]:
    """Drain what is left, compare what both clients say, and check the books on the server's disk."""
    with explained(name, notes):
        with Diary(notes / "rest") as diary:
            complete_all(Queue(at(2, name)), diary)
        found, truth = check(Queue(SERVER / name), notes, cut_short), str(Queue(SERVER / name).status())
        for client in (1, 2):
            mine = Queue(at(client, name))  # whose news may be seconds old
            until(lambda mine=mine: str(mine.status()) == truth, f"client {client} to see {truth}")
        return found


# -- drains ---------------------------------------------------------------------------------------------


def play(seed: int, batch_tasks_max: int, kills: int, restart: bool = False) -> dict[str, int]:
    """Two clients fill and drain a queue, and their processes are killed; with `restart`, so is the server, once."""
    name, dice = f"play-{seed}-{batch_tasks_max}-{restart}", random.Random(seed)
    plan = replace(
        Plan.of(seed, batch_tasks_max),
        tasks=20 * kills if batch_tasks_max > 1 else 150,
        lease_s=1.5,
        kills=kills,
        durability="default",
        shards=8,
        style="mixed",
    )
    notes = Path("/tmp") / name
    prepare(at(1, name), notes, plan)
    (SERVER / "over").touch()  # workers end when they find the queue drained
    number = 100

    def hire(client: int) -> Child:
        nonlocal number
        number += 1
        return Child(work, at(client, name), notes / f"w{number}", plan, number)

    killed = stopped = cut_short = 0
    with (
        heeding_interrupts(),
        children(*((produce, at(client, name), notes / f"p{client}", plan, client) for client in (1, 2))) as producers,
        ExitStack() as hired,
        explained(name, notes),
    ):
        crew = [(client, hire(client)) for client in (1, 2, 1, 2)]
        hired.callback(lambda: [worker.close() for _, worker in crew])
        for number_of_fault, fault in enumerate(plan.faults(dice)):
            at_a_random_moment(dice, dice.choice([0.01, 0.05, 0.1]))
            if restart and number_of_fault == 3:  # most of the work is still to be done
                restart_server(name)
            client, victim = dice.choice(crew)
            if fault == "stop":
                stopped += stop_for_a_while([victim], dice)
            elif fault == "interrupt":
                interrupt(victim)
            elif victim.running:
                victim.kill()
                killed += 1
                victim.close()
                crew.remove((client, victim))
                crew.append((client, hire(client)))
            seen = Queue(at(1 + number_of_fault % 2, name)).status()
            assert seen.inserted >= plan.tasks, seen
        victim = producers[0]
        if dice.random() < 0.5 and victim.kill() == -signal.SIGKILL:
            cut_short += 1
        else:
            victim.result()
        producers[1].result()
        interrupted = sum(worker.result() for _, worker in crew)
    found = settle(name, notes, cut_short + killed)  # probes of the clock, too, are left in the staging directory
    return {"rounds": 1, "killed": killed, "stopped": stopped, "interrupted": interrupted, **found}


def drain_with_commands(seed: int) -> dict[str, int]:
    """`fsqueue run` on both clients, as a user would; half-way one of four is killed with SIGKILL, one gets Ctrl-C."""
    name = f"run-{seed}"
    output = Path("/tmp") / name
    output.mkdir()
    count = 60
    Queue.create(at(1, name), shards=4).insert_many([{"n": n} for n in range(count)], batch_tasks=7)
    command = [FSQUEUE, "run", "-j", 3, "--lease", 2, "--json"]
    script = 'printf "%s\\n" {n:d} >>"$0"'
    runners = [
        run_on(client, *command, at(client, name), "--", "sh", "-c", script, output / str(number))
        for number, client in enumerate((1, 2, 1, 2))
    ]
    try:
        until(lambda: sum(path.stat().st_size > 0 for path in output.iterdir()) >= 2, "two workers to work", PATIENCE_S)
        os.killpg(runners[0].pid, signal.SIGKILL)
        os.killpg(runners[1].pid, signal.SIGINT)
        for runner, codes in zip(runners[1:], ((0, 128 + signal.SIGINT), (0,), (0,)), strict=True):
            assert runner.wait(5 * PATIENCE_S) in codes, f"fsqueue run ended with {runner.returncode}"
    finally:
        for runner in runners:
            if runner.poll() is None:
                os.killpg(runner.pid, signal.SIGKILL)
                runner.wait()
            assert runner.stdout is not None
            runner.stdout.close()
    done = Counter(int(line) for path in output.iterdir() for line in path.read_text().split())
    assert set(done) == set(range(count)), f"never executed: {set(range(count)) - set(done)}"
    status = Queue(SERVER / name).status()
    assert (status.completed, status.inserted) == (count, count), status
    hosts = {info.worker["host"] for info in Queue(SERVER / name).tasks("completed") if info.worker}
    return {"executed": sum(done.values()), "hosts": len(hosts)}


# -- leases ---------------------------------------------------------------------------------------------


def lease_of_a_killed_worker() -> dict[str, Any]:
    """A worker at one client is killed; the other client gets its task when the lease ends, and not before."""
    queue = Queue.create(at(1, "killed"))
    queue.insert("payload")
    lease_s = 2.0

    def lease_and_die() -> None:
        Queue(at(1, "killed")).lease(lease_s=lease_s)
        os.kill(os.getpid(), signal.SIGKILL)

    with children((lease_and_die,)) as [child]:
        assert child.wait() == -signal.SIGKILL
    [task] = until(Queue(at(2, "killed")).lease, "the other client to get the task", PATIENCE_S)
    task.complete()
    first, second = [move for move in queue.history(task.id) if move.op == "lease"]
    return {"too_early": second.at < first.at + lease_s, "attempt": task.attempt, **queue.status().as_dict()}


def lease_taken_over() -> dict[str, Any]:
    """A worker outlives its lease while another client takes the task: nothing it does counts any more."""
    mine, other = Queue.create(at(1, "outlived"), lease_s=0.3), Queue(at(2, "outlived"))
    mine.insert("payload")
    [task] = mine.lease()
    [again] = other.lease(wait_s=60, lease_s=600)
    refused = []
    for act in (task.complete, task.renew, task.release, lambda: task.fail("late"), lambda: task.bury("late")):
        try:
            act()
        except LeaseLost as error:
            refused.append(error.reason)
    again.complete()
    return {"same": task.id == again.id, "refused": refused, **mine.status().as_dict()}


def first_seen_late() -> dict[str, Any]:
    """A client that has looked for what was not there sees it as soon as the other client has made it."""
    queue, other = Queue.create(at(1, "first")), Queue(at(2, "first"))
    before = [len(other.lease()), len(list(other.dead())), other.status().as_dict()["inserted"]]
    queue.insert("payload")
    [task] = other.lease()
    mine = list(queue.dead())
    task.bury("no good")
    return {"before": before, "mine": len(mine), "dead": len(list(queue.dead())), "status": queue.status().dead}


def group_seen_late() -> dict[str, Any]:
    """A client that has looked for a group in vain sees it, and its queues, as soon as the other has made them."""
    try:
        before = repr(Group(at(2, "seen/late/group")))
    except GroupNotFound as error:
        before = type(error).__name__
    mine = Group.create(at(1, "seen/late/group"))
    other = Group(at(2, "seen/late/group"))
    mine["fetch"].insert("payload")
    drained = other.is_drained()
    got = [task.payload for task in other.lease()]
    mine["parse"].insert("next")
    return {"before": before, "drained": drained, "got": got, "then": [task.payload for task in other["parse"].lease()]}


def finished_beside_one_that_waits(client: int) -> dict[str, int]:
    """A process at client 1 does one of two tasks of each of 20 batches, and waits for more. A process at `client` does
    the others, and finishes the batches. If it is at client 1, that renames what is unlinked while it is open.
    """
    name, batches = f"beside-one-that-waits-{client}", 20
    ready, taken, over = (SERVER / f"{name}-{what}" for what in ("ready", "taken", "over"))
    queue = Queue.create(at(client, name), batch_tasks_max=2)
    queue.insert_many(range(2 * batches), batch_tasks=2)

    def do_one_of_each_and_wait() -> int:
        with Queue(at(1, name)) as mine:
            held = mine.lease(2 * batches, lease_s=600)
            first = list({task.batch: task for task in held}.values())
            mine.release([task for task in held if task not in first])
            mine.complete(first)
            ready.touch()
            until(taken.exists, "the other one to lease", 60)
            while not over.exists():
                mine.lease(wait_s=1)
            return len(first)

    def open_logs(pid: int) -> list[str]:
        links = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # it was closed just now
                links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        return [link for link in links if "/movements/" in link]

    def renamed() -> list[Path]:
        return [*(SERVER / name).rglob(".nfs*")]

    with children((do_one_of_each_and_wait,)) as (waiting,):
        try:
            until(ready.exists, "the first one to have done its part", 60)
            others = queue.lease(2 * batches)
            taken.touch()
            found = {"open": len(open_logs(waiting.pid))}
            queue.complete(others)
            found |= {"renamed": len(renamed()), "others": len(others)}
            until(lambda: not renamed() and not open_logs(waiting.pid), "all logs to be closed", 60)
        finally:
            over.touch()
        return found | {"first": waiting.result()}


def seen_beside_one_who_stands_still() -> dict[str, Any]:
    """A worker has a log open and stands still; what the other client appends is seen at his client all the same."""
    name = "beside"
    queue, other, ready = Queue.create(at(1, name)), Queue(at(2, name)), Path("/tmp") / name
    queue.insert_many(range(10), batch_tasks=10)

    def lease_and_stand_still() -> None:
        Queue(at(1, name)).lease(3, lease_s=600)
        ready.touch()
        signal.pause()

    with children((lease_and_stand_still,)) as [child]:
        until(ready.exists, "the first one to have leased")
        before = queue.status().as_dict()  # the log is in this client's cache now
        tasks = other.lease(5, lease_s=600)
        other.complete(tasks[:4])
        tasks[4].bury("no good")
        after, moves = queue.status().as_dict(), [move.op for move in queue.history(tasks[0].id)]
        child.kill()
    return {"before": before, "after": after, "truth": Queue(SERVER / name).status().as_dict(), "moves": moves}


def asked_of_a_directory_that_is_gone() -> dict[str, list[str]]:
    """One client has looked into a directory, the other empties and removes it: what the first is told of it then.

    Many times: if both happens within one tick of the server's clock, the directory above seems not to have changed.
    """

    def told(action: Callable[[Filesystem], object], name: str) -> str:
        here, there = (at(client, f"gone-{name}") for client in (1, 2))
        for directory in ("from", "to"):
            (here / directory).mkdir(parents=True)
        (here / "from/x").touch()
        fs = Filesystem(str(here), shared=True)
        fs.names(f"{here}/from")
        os.rename(there / "from/x", there / "to/x")
        os.rmdir(there / "from")
        try:
            return repr(action(fs))
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def inside(path: str) -> Callable[[Filesystem], str]:
        return lambda fs: f"{fs.root}/{path}"

    old, new = inside("from/x"), inside("to/y")
    asked: dict[str, Callable[[Filesystem], object]] = {
        "rename": lambda fs: fs.rename(old(fs), new(fs)),
        "link": lambda fs: fs.link(inside("to/x")(fs), inside("from/y")(fs)),
        "unlink": lambda fs: fs.unlink(old(fs)),
        "names": lambda fs: fs.names(inside("from")(fs)),
        "create": lambda fs: fs.create(old(fs)),
        "look": lambda fs: fs.look(old(fs)),
        "make": lambda fs: fs.make_directory(inside("from/new")(fs)),
        "remove": lambda fs: fs.remove_directory(inside("from")(fs)),
        "sync": lambda fs: fs.sync_directory(inside("from")(fs)),
    }
    return {
        name: sorted({told(action, f"{name}-{turn}") for turn in range(REMOVALS)}) for name, action in asked.items()
    }


def copies_seen() -> dict[str, Any]:
    """Which hosts call a queue a copy: the server, and both clients. Each opens it anew."""

    def seen(name: str) -> list[bool]:
        found = []
        for path in (SERVER / name, at(1, name), at(2, name)):
            with Queue(path) as queue:
                found.append(queue.is_copy())
        return found

    def generation(name: str) -> object:
        with Queue(SERVER / name) as queue:
            place = queue.store.queue_state.place
        return place is not None and place.generation is not None

    found: dict[str, Any] = {}
    Queue.create(at(1, "by-client")).close()
    Queue.create(SERVER / "by-server").close()
    for name in ("by-client", "by-server"):
        found[name] = [generation(name), seen(name)]
        os.rename(at(2, name), at(2, f"{name}-moved"))
        found[f"{name} moved"] = seen(f"{name}-moved")
        copied.run("cp", "-a", at(1, f"{name}-moved"), at(1, f"{name}-copy"))
        found[f"{name} copied"] = seen(f"{name}-copy")
        with Queue(at(2, f"{name}-copy")) as queue:
            queue.accept_copy()
        found[f"{name} accepted"] = seen(f"{name}-copy")
        copied.restored(SERVER / f"{name}-moved")
        with Queue(SERVER / f"{name}-moved") as queue:
            found[f"{name} restored, seen by the server"] = queue.is_copy()
            place = queue.store.queue_state.place
            found[f"{name} got its number again"] = place is not None and place.number == queue.path.stat().st_ino
    return found


def one_waits_for_the_other() -> dict[str, Any]:
    """An idle worker at one client hears of what the other inserts."""
    queue, pauses = Queue.create(at(1, "bell")), Count()

    def pause(*arguments: Any) -> None:
        pauses.add()
        sleep(*arguments)

    sleep = listening.Listener.sleep

    def wait() -> Any:
        with mock.patch.object(listening.Listener, "sleep", pause):
            return [task.payload for task in Queue(at(2, "bell")).lease(wait_s=PATIENCE_S)]

    with children((wait,)) as [child]:
        until(lambda: int(pauses) > 2, "the other client to be idle")
        queue.insert("ring")
        return {"got": child.result()}


def purged_and_deleted_elsewhere() -> dict[str, Any]:
    """One client inserts all the time, the other purges: what was inserted after the purge is there."""
    clock = SharedClock()
    Queue.create(at(1, "purged"))
    queue = Queue(at(1, "purged"), clock=clock)
    notes, purges = Path("/tmp/purged"), Count()

    def insert() -> None:
        mine = Queue(at(1, "purged"))
        with Diary(notes) as diary:
            for number in itertools.count():
                purges_before = int(purges)
                try:
                    mine.insert(number)
                except QueueNotFound:
                    return
                diary.note(purges_before, number)

    def lines() -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    other = Queue(at(2, "purged"))
    with children((insert,)) as [child]:
        until(lambda: len(lines()) >= 30, "inserts", PATIENCE_S)
        [held, *_] = queue.lease(5)
        other.purge()
        purges.add()
        lost = False
        clock.advance(1.2)  # a second's news may be old
        try:
            held.complete()
        except LeaseLost:
            lost = True
        have = len(lines())
        until(lambda: len(lines()) >= have + 30, "inserts after the purge", PATIENCE_S)
        child.kill()
    after = {int(number) for purges_before, number in map(str.split, lines()) if int(purges_before)}
    found = {info.payload for info in Queue(SERVER / "purged").tasks()}
    other.delete()
    try:
        queue.insert("late")
        gone = False
    except QueueNotFound:
        gone = True
    return {"missing": sorted(after - found), "after": len(after), "lease_lost": lost, "gone": gone}


# -- a client cut off -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Where a process at client 1 is stopped before its client is cut off: in `verb`, at the first `step` on a path
    with `part` in it, before it is done or (`done`) after.
    """

    verb: str
    step: str
    part: str
    done: bool = False


POINTS = {
    "holding a lease": Point("hold", "", ""),
    "locked, nothing done": Point("complete", "try_lock", "/movements/", done=True),
    "completing, before the append": Point("complete", "write", "/movements/"),
    "completing, appended and not synced": Point("complete", "fsync", "/movements/"),
    "completing, synced": Point("complete", "fsync", "/movements/", done=True),
    "completing, before unlocking": Point("complete", "unlock", "/movements/"),
    "leasing, before the append": Point("lease", "write", "/movements/"),
    "leasing, before the renaming": Point("lease_all", "rename", "/queue/"),
    "releasing, before the renaming": Point("release_all", "rename", "/queue/"),
    "renewing, before the append": Point("renew", "write", "/movements/"),
    "failing, before the append": Point("fail", "write", "/movements/"),
    "finishing, before the task file goes": Point("complete_all", "unlink", "/queue/"),
    "counting, before the bytes": Point("complete_all", "write", "/completions/"),
    "counting, bytes not synced": Point("complete_all", "fsync", "/completions/"),
    "keeping the history": Point("complete_all", "write", "/history/"),
    "saying farewell": Point("complete_all", "unlink", "/movements/"),
    "burying, before the letter": Point("bury", "write", "/dead/"),
    "inserting, not synced": Point("insert", "fsync", "/staging/"),
    "inserting, before the renaming": Point("insert", "rename", "/staging/"),
    "inserting, before the directory is synced": Point("insert", "rename", "/staging/", done=True),
    "inserting, before the append": Point("insert", "write", "/movements/"),
    "inserting, appended and not synced": Point("insert", "fsync", "/movements/"),
    "inserting, before unlocking": Point("insert", "unlock", "/movements/"),
}
TASKS = 6
LEASE_S = 3.0


class StopAt:
    """A trap that stops the process at a point, once, when armed."""

    def __init__(self, point: Point) -> None:
        self.point, self.armed = point, False

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        here = self.armed and step == self.point.step and self.point.part in self.path(args[0])
        if here and not self.point.done:
            self.stop()
        result = call(*args)
        if here and self.point.done and result is not False:
            self.stop()
        return result

    @staticmethod
    def path(of: int | str) -> str:
        return os.readlink(f"/proc/self/fd/{of}") if isinstance(of, int) else of

    def stop(self) -> None:
        self.armed = False
        os.kill(os.getpid(), signal.SIGSTOP)


def stopped_at(point: Point, path: Path, notes: Path) -> str:
    """A process at the client that is cut off; what it was told in the end."""
    trap = StopAt(point)
    queue = Queue(path, filesystem=Trapped(str(path), trap, shared=True))
    diary = Diary(notes)
    number = TASKS if point.verb.endswith("_all") or point.verb == "hold" else 1
    tasks = [] if point.verb.startswith("lease") else queue.lease(number, lease_s=LEASE_S)
    trap.armed = True
    if point.verb == "hold":
        trap.stop()
    try:
        if point.verb in ("complete", "hold"):
            diary.note("try", tasks[0].id, tasks[0].payload)
            tasks[0].complete()
            diary.note("done", tasks[0].id, tasks[0].payload)
        elif point.verb == "complete_all":
            for task in tasks:
                diary.note("try", task.id, task.payload)
            queue.complete(tasks)
            for task in tasks:
                diary.note("done", task.id, task.payload)
        elif point.verb in ("lease", "lease_all"):
            for task in queue.lease(number, lease_s=LEASE_S):
                diary.note("try", task.id, task.payload)
                task.complete()
                diary.note("done", task.id, task.payload)
        elif point.verb == "release_all":
            queue.release(tasks)
        elif point.verb == "renew":
            tasks[0].renew(60)
        elif point.verb == "fail":
            tasks[0].fail("stopped")
        elif point.verb == "bury":
            tasks[0].bury("stopped")
        elif point.verb == "insert":
            diary.note("will", "late")
            queue.insert("late")
            diary.note("inserted", "late")
        assert not trap.armed, "it never came to that point"
    except FsqueueError as error:
        return type(error).__name__
    return "done"


def take_over(path: Path, notes: Path) -> None:
    """A process at the other client: complete all, and clear away what the one cut off left."""
    queue = Queue(path)
    with Diary(notes) as diary:
        complete_all(queue, diary)
    queue.gc()


def cut(points: list[str]) -> dict[str, dict[str, Any]]:
    """At each point a process is stopped, with a queue of its own; then its client is cut off, and the other client
    does the work; then the client comes back, and the processes go on.
    """
    names = {what: f"cut-{number}" for number, what in enumerate(points)}
    payloads = [f"t.{number}" for number in range(TASKS)]
    diaries = {}
    for what, name in names.items():
        diaries[what] = Path("/tmp") / name
        diaries[what].mkdir()
        Queue.create(at(1, name), shards=2).insert_many(payloads, batch_tasks=TASKS)
        with Diary(diaries[what] / "before") as diary:
            for payload in payloads:
                diary.note("inserted", payload)
    found: dict[str, dict[str, Any]] = {what: {} for what in points}
    with ExitStack() as stack:
        stopped = {
            what: stack.enter_context(children((stopped_at, POINTS[what], at(1, name), diaries[what] / "cut")))[0]
            for what, name in names.items()
        }
        wait_all_stopped(stopped)
        lab("cut", 1)
        try:
            others = {
                what: stack.enter_context(children((take_over, at(2, name), diaries[what] / "other")))[0]
                for what, name in names.items()
            }
            for child in others.values():
                child.result()
        finally:
            lab("join", 1)
        for child in stopped.values():
            child.signal(signal.SIGCONT)
        for what, child in stopped.items():
            found[what]["told"] = child.result()
    for what, name in names.items():
        try:
            found[what] |= settle(name, diaries[what], cut_short=1)
        except (AssertionError, FsqueueError) as error:
            found[what]["wrong"] = f"{type(error).__name__}: {error}"
    return found


COMMANDS = {
    "status": ["status", "{}"], "wait": ["wait", "{}"], "insert": ["insert", "{}", "--lines", "/dev/null"],
    "run": ["run", "{}", "--", "true"], "lease": ["lease", "{}"],
}  # fmt: skip
"""Commands that meet a server which does not answer."""


def silent() -> dict[str, Any]:
    """Commands of a client that is cut off: what each says; most get Ctrl-C then, one goes on afterwards."""
    path = at(1, "silent")
    Queue.create(path).insert_many(range(5))

    def begin(words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [FSQUEUE, *(word.format(path) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def line_of(process: subprocess.Popen[str]) -> str:
        assert process.stderr is not None
        ready, _, _ = select.select([process.stderr], [], [], PATIENCE_S)
        return process.stderr.readline() if ready else "(nothing)"

    found: dict[str, Any] = {}
    with ExitStack() as stack:
        lab("cut", 1)
        try:
            processes = {name: stack.enter_context(begin(words)) for name, words in COMMANDS.items()}
            patient = stack.enter_context(begin(COMMANDS["status"]))
            stack.callback(lambda: [process.kill() for process in (*processes.values(), patient)])
            for name, process in processes.items():
                found[name] = {"said": line_of(process)}
            found["patient"] = {"said": line_of(patient)}
            for process in processes.values():
                process.send_signal(signal.SIGINT)
            for name, process in processes.items():
                found[name] |= {"code": process.wait(PATIENCE_S), "rest": process.communicate()[1]}
        finally:
            lab("join", 1)
        stdout, rest = patient.communicate(timeout=PATIENCE_S)
        found["patient"] |= {"code": patient.returncode, "stdout": stdout, "rest": rest}
    found["left"] = Queue(SERVER / "silent").status().as_dict()
    return found


# -- calls ----------------------------------------------------------------------------------------------


def calls_of(units: float, act: Callable[[], object], client: int = 1) -> dict[str, float]:
    """Count the calls of a client to the server, by kind and `all`, for each of `units` tasks, queues or seconds."""

    def calls() -> Counter[str]:
        return Counter({line.split()[0]: int(line.split()[1]) for line in lab("calls", client).splitlines()})

    before = calls()
    act()
    made = calls() - before
    return {"all": sum(made.values()) / units} | {kind: n / units for kind, n in made.items()}


def calls_per_task() -> dict[str, dict[str, float]]:
    """How many calls to the server one client needs for a task, from batches of 1,000; by kind, and `all`."""
    queue = Queue.create(at(1, "calls"))
    found: dict[str, dict[str, float]] = {}

    def measure(what: str, tasks: int, act: Callable[[], object]) -> None:
        found[what] = calls_of(tasks, act)

    def singly() -> None:
        for _ in range(1000):
            [task] = queue.lease()
            task.complete()

    def in_the_loop() -> None:
        for number, task in enumerate(queue.poll(), 1):
            task.complete()
            if number == 1000:
                return

    def by_hundreds() -> None:
        for _ in range(50):
            queue.complete(queue.lease(100))

    measure("insert", 10_000, lambda: queue.insert_many(({"n": n} for n in range(10_000)), batch_tasks=1000))
    measure("single", 1000, singly)
    measure("loop", 1000, in_the_loop)
    measure("hundreds", 5000, by_hundreds)
    return found
