"""Power cuts: what runs in the guest of scripts/lab/power. The disk is at /disk; diaries are elsewhere, and survive."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import LeaseLost, Queue, QueueNotFound
from fsqueue.protocol import finishing
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from tests.concurrency.books import Diary, accounts, base_of, check_sound, counted, diaries, leftovers
from tests.concurrency.processes import PATIENCE_S, Child, at_a_random_moment, children, what_they_do
from tests.lab import commits, updates
from tests.lab.evidence import explained
from tests.waiting import until, until_nothing_reaps

QUEUE = Path("/disk/q")
PIPELINE = Path("/disk/pipeline")
"""A group of queues."""
FSQUEUE = str(Path(sys.executable).with_name("fsqueue"))
GROUP = Path("/sys/fs/cgroup/work/cgroup.procs")
LEASE_S = 5
"""If the cut undoes a lease, but not the renaming after it, the file's name still promises the lease's end."""
KEYS = 60
"""So many keys are used: workers leave some of them taken."""
BULK = 40
"""Tasks of an insert in bulk; a batch has up to `batch_tasks_max` of them."""


def lab(verb: str, filesystem: str | None = None) -> None:
    """Ask the lab for something: see scripts/lab/power-inside. `filesystem`: of the disk, if not the guest's own."""
    environment = os.environ | ({} if filesystem is None else {"FS": filesystem})
    try:
        subprocess.run(["lab-power", verb], check=True, env=environment, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{error}\n{what_they_do()}") from error


def open_on_disk() -> dict[int, str]:
    """Return what this process has open on the disk, by descriptor: it keeps the disk busy."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own
            if (place := os.readlink(f"/proc/self/fd/{fd}")).startswith("/disk/"):
                found[fd] = place
    return found


class Life:
    """A process that the power is cut for: writes down what it is about to do, and what it was told is done."""

    def __init__(self, notes: Path, seed: int) -> None:
        GROUP.write_text(str(os.getpid()))
        self.diary = Diary(notes)
        self.dice = random.Random(seed)
        self.queue = Queue(QUEUE)
        self.name = notes.name


def insert(notes: Path, seed: int) -> None:
    """Insert, alone and in bulk."""
    life = Life(notes, seed)
    for step in range(100_000):
        size = 1 if life.dice.random() < 0.6 else BULK
        payloads = [f"{life.name}.{step}.{index}" for index in range(size)]
        for payload in payloads:
            life.diary.note("will", payload)
        if size == 1:
            life.queue.insert(payloads[0])
        else:
            life.queue.insert_many(payloads, batch_tasks=BULK)
        life.diary.note("inserted", *payloads)


def insert_singly(notes: Path, seed: int) -> None:
    """Insert one task after the other, now and then as a process does that was just started."""
    life = Life(notes, seed)
    for step in range(100_000):
        payload = f"{life.name}.{step}.0"
        life.diary.note("will", payload)
        life.queue.insert(payload)
        life.diary.note("inserted", payload)
        if life.dice.random() < 0.05:
            life.queue.close()
            life.queue = Queue(QUEUE)


def insert_with_keys(notes: Path, seed: int) -> None:
    """Insert one task after the other, most of them with one of a few keys, and some with a priority."""
    life = Life(notes, seed)
    for step in range(100_000):
        payload = f"{life.name}.{step}.0"
        key = None if life.dice.random() < 0.3 else f"k{life.dice.randrange(KEYS)}"
        life.diary.note("will", payload)
        ref = life.queue.insert(payload, key=key, priority=life.dice.choice([None, None, 1, 2, 3]))
        if ref.inserted:
            life.diary.note("inserted", payload)
            life.diary.note("new", ref.id, payload)
        else:
            life.diary.note("found", ref.id)
        if life.dice.random() < 0.05:
            life.queue.close()
            life.queue = Queue(QUEUE)


def work(notes: Path, seed: int) -> None:
    """Lease, and complete, renew, release, fail, bury or forget."""
    life = Life(notes, seed)
    note, dice = life.diary.note, life.dice
    while True:
        tasks = life.queue.lease(dice.choice([1, 1, 3, 20]), lease_s=dice.choice([0.2, LEASE_S]), wait_s=0.2)
        if len(tasks) > 1 and dice.random() < 0.5:
            for task in tasks:
                note("try", task.payload)
            try:
                life.queue.complete(tasks)
                note("done", *(task.payload for task in tasks))
            except LeaseLost:
                note("lost")
            continue
        for task in tasks:
            chance = dice.random()
            try:
                if chance < 0.05:
                    continue
                if chance < 0.12:
                    task.release()
                elif chance < 0.2:
                    task.fail("no luck", delay_s=0)
                elif chance < 0.25:
                    task.bury("no good")
                else:
                    if chance < 0.35:
                        task.renew(LEASE_S)
                    note("try", task.payload)
                    task.complete()
                    note("done", task.payload)
            except LeaseLost:
                note("lost")


def loop(notes: Path, seed: int) -> None:
    """The work loop."""
    life = Life(notes, seed)
    for task in life.queue.poll(lease_s=LEASE_S, until="forever"):
        life.diary.note("try", task.payload)
        task.complete()
        life.diary.note("done", task.payload)


def keep_house(notes: Path, seed: int) -> None:
    """Look, and clear away."""
    life = Life(notes, seed)
    while True:
        life.queue.status()
        life.queue.gc()
        at_a_random_moment(life.dice, 0.05)


def purge(notes: Path, seed: int) -> None:
    """Insert, and purge, and delete other queues."""
    life = Life(notes, seed)
    for step in range(100_000):
        payloads = [f"{life.name}.{step}.{index}" for index in range(life.dice.choice([1, 5]))]
        life.queue.insert_many(payloads)
        life.diary.note("inserted", *payloads)
        if life.dice.random() < 0.3:
            life.diary.note("will-purge")
            life.queue.purge()
            life.diary.note("purged")
        if life.dice.random() < 0.2:
            other = Queue.create(f"/disk/other-{step}")
            other.insert("x")
            life.diary.note("made", step)
            if life.dice.random() < 0.5:
                life.diary.note("will-delete", step)
                other.delete()
                life.diary.note("deleted", step)


def insert_by_command(notes: Path, seed: int) -> None:
    """`fsqueue insert`, again and again."""
    life = Life(notes, seed)
    life.queue.close()
    for step in range(100_000):
        payloads = [f"{life.name}.{step}.{index}" for index in range(BULK)]
        for payload in payloads:
            life.diary.note("will", payload)
        lines = "".join(f"{payload}\n" for payload in payloads)
        subprocess.run(
            [FSQUEUE, "insert", QUEUE, "--lines"], input=lines.encode(), check=True, stdout=subprocess.DEVNULL
        )
        life.diary.note("inserted", *payloads)


def run_by_command(notes: Path, seed: int) -> None:
    """`fsqueue run`, whose commands write down what they begin: what becomes of the tasks nobody is told."""
    GROUP.write_text(str(os.getpid()))
    script = 'echo "try $1" >>"$0"'
    os.execv(FSQUEUE, [FSQUEUE, "run", str(QUEUE), "--forever", "-j", "2", "--", "sh", "-c", script, str(notes), "{}"])


def commit(notes: Path, seed: int) -> None:
    """Commit under one name after the other."""
    life = Life(notes, seed)
    commits.keep_committing(life.queue, life.diary, life.name, life.dice)


def update(notes: Path, seed: int) -> None:
    """Pass tasks on from queue to queue of a group."""
    life = Life(notes, seed)
    life.queue.close()
    updates.pass_on(PIPELINE, life.diary, life.dice)


STYLES = {
    "inserting": (insert, insert),
    "singly": (insert_singly, insert_singly, work, work, keep_house),
    "keyed": (insert_with_keys, insert_with_keys, work, work, keep_house),
    "working": (work, work),
    "looping": (loop, loop),
    "everything": (insert, work, loop, keep_house),
    "purging": (purge,),
    "committing": (commit, commit, keep_house),
    "commands": (insert_by_command, run_by_command),
    "updating": (update, update, update),
}


def cut(seed: int, style: str, durability: str, batch_tasks_max: int, filesystem: str | None = None) -> dict[str, int]:
    """A power cut in the middle of work; what was found afterwards. AssertionError if anything is wrong."""
    dice = random.Random(seed)
    notes = Path("/tmp/diaries")
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    lab("disk", filesystem)
    try:
        with explained(QUEUE, notes):
            found = _cut(dice, notes, seed, style, durability, batch_tasks_max)
    except BaseException:
        for one in [one for one in gc.get_objects() if isinstance(one, (Queue, Store, GroupDirectory))]:
            if isinstance(one, GroupDirectory):  # the traceback keeps it
                one.fs.close_root()
            else:
                one.close()
        lab("remove")
        raise
    until_nothing_reaps()
    gc.collect()  # cycles
    left = open_on_disk()
    assert not left, f"open, though all queues and groups were let go of: {left}"
    lab("remove")
    return found


def _cut(
    dice: random.Random, notes: Path, seed: int, style: str, durability: str, batch_tasks_max: int
) -> dict[str, int]:
    is_single = style in ("singly", "keyed")
    if is_single:
        batch_tasks_max = dice.choice([32, 1024])  # of 32: so that batches are sealed, too
    queue = Queue.create(
        QUEUE,
        shards=4,
        durability=durability,
        batch_tasks_max=batch_tasks_max,
        max_attempts=None,
        backoff_s=(0, 0),
        lease_s=LEASE_S,
    )
    if style in ("working", "looping", "everything", "commands"):
        payloads = [f"first.0.{index}" for index in range(400 if batch_tasks_max > 1 else 60)]
        queue.insert_many(payloads, batch_tasks=dice.choice([7, 50]))
        with Diary(notes / "first") as diary:
            diary.note("inserted", *payloads)
    if is_single:
        queue.insert("first.0.0")  # the batch that all inserters begin with
        with Diary(notes / "first") as diary:
            diary.note("inserted", "first.0.0")
    queue.close()
    if style == "updating":
        with children((updates.new_pipeline, PIPELINE, durability, dice.choice([7, 50]))) as [maker]:
            maker.result()  # in a process of its own: an open group keeps its filesystem busy
    with children(
        *((life, notes / f"{number}", seed * 100 + number) for number, life in enumerate(STYLES[style]))
    ) as crew:
        ready_and_at_work(crew, notes)
        at_a_random_moment(dice, 2.5 if style == "commands" else 0.6)  # a command begins slowly
        lab("cut")
    lab("restore")
    if style == "purging":
        return check_purged(diaries(notes))
    if style == "committing":
        return commits.check_after_cut(Queue(QUEUE), diaries(notes))
    if style == "updating":
        return updates.check_after_cut(PIPELINE, diaries(notes))
    if style != "keyed":
        return check(diaries(notes), strict=durability == "strict")
    check_keys()
    found = check(diaries(notes), strict=durability == "strict")
    check_found(diaries(notes))
    return found


def ready_and_at_work(crew: list[Child], notes: Path) -> None:
    """Return when all have joined those that the power is cut for, and somebody has got something done.

    Who joined later would be frozen for good, or go on on a disk that keeps nothing.
    """

    def are_at_work() -> bool:
        assert all(child.running for child in crew), [child.report() for child in crew if not child.running]
        if {child.pid for child in crew} - set(map(int, GROUP.read_text().split())):
            return False
        return any(line[0] in ("inserted", "done") for line in diaries(notes) if line[1:2] != ["first.0.0"])

    until(are_at_work, "all to have joined, and somebody to get something done", PATIENCE_S)


def drain(queue: Queue) -> Counter[str]:
    """Complete all that is there; how often each payload was."""
    found: Counter[str] = Counter()

    def is_drained() -> bool:
        tasks = queue.lease(1000, wait_s=1)
        found.update(task.payload for task in tasks)
        queue.complete(tasks)
        return queue.status().drained

    until(is_drained, f"{queue.path} to be drained", PATIENCE_S)
    return found


def check_keys() -> None:
    """Of the tasks that live, no two have one key."""
    keys = Counter(info.key for info in Queue(QUEUE).tasks() if info.key is not None)
    assert all(count == 1 for count in keys.values()), f"keys of more than one living task: {keys.most_common(3)}"


def check_found(lines: list[list[str]]) -> None:
    """What an insert found has ended by now, since all was drained, or somebody was about to complete it.

    With durability "default" a cut may take the last lines of the history, and with them the ids of finished batches.
    """
    queue = Queue(QUEUE)
    known = {info.id for state in ("completed", "dead") for info in queue.tasks(state)}
    kept = {task_id.rpartition(".")[0] for task_id in known}
    payloads = {line[1]: line[2] for line in lines if line[0] == "new"}
    tried = {line[1] for line in lines if line[0] == "try"}
    for found in {line[1] for line in lines if line[0] == "found"} - known:
        is_over = payloads[found] in tried if found in payloads else found.rpartition(".")[0] not in kept
        assert is_over, f"an insert found {found}, {payloads.get(found)}: it is lost"


def in_flight(lines: list[list[str]]) -> set[str]:
    """What somebody was about to complete."""
    tried: set[str] = set()
    for line in lines:
        if line[0] == "try":
            tried.add(line[1])
        elif line[0] in ("done", "lost"):
            tried.difference_update(line[1:])
    return tried


def check(lines: list[list[str]], strict: bool) -> dict[str, int]:
    """What was reported inserted is there, or was done; what is there can be done, once; the counts are right."""
    inserted = {payload for line in lines if line[0] == "inserted" for payload in line[1:]}
    will = inserted | {line[1] for line in lines if line[0] == "will"}
    done = Counter(payload for line in lines if line[0] == "done" for payload in line[1:])
    assert all(count == 1 for count in done.values()), f"done twice before the cut: {done.most_common(3)}"
    open_calls = in_flight(lines)
    queue = Queue(QUEUE)
    before = queue.status()
    queue.release_all()
    again = drain(queue)
    after = queue.status()
    dead = Counter(letter.payload for letter in queue.dead())
    assert all(count == 1 for count in (again + dead).values()), f"there twice: {(again + dead).most_common(3)}"
    there = set(again) | set(dead)
    assert there <= will, f"nobody inserted {there - will}"
    lost = inserted - there - set(done) - open_calls
    assert not lost, f"lost: {sorted(lost)[:5]} and {len(lost)} in all"
    repeated = set(done) & there
    assert not (strict and repeated), f"reported completed, and there again: {sorted(repeated)[:5]}"
    assert after.completed == before.completed + len(again), f"{before}, then {len(again)} completed, then {after}"
    most = len(set(done) | open_calls | set(again))
    if strict:
        assert after.completed <= most, f"more counted than done: {after}"
        assert before.completed >= len(done), f"{len(done)} reported completed, but {before}"
    assert after.dead == len(dead)
    for call in {payload.rpartition(".")[0] for payload in will - inserted}:  # an insert that the cut met
        batch = {payload for payload in will if payload.rpartition(".")[0] == call}
        came = batch & (there | set(done) | open_calls)
        size = min(BULK, queue.settings.batch_tasks_max, len(batch))
        assert len(came) % size == 0, f"a torn insert: {len(came)} of {len(batch)} tasks, in batches of {size}"
    with mock.patch.object(finishing, "LINGER_MS", 0):  # batches that take inserts end, too
        queue.gc()
    assert queue.status() == after, "upkeep changed the counts"
    assert counted(queue) == after.completed, f"{counted(queue)} counted, but {after}\n{accounts(queue)}"
    holes = sum(path.read_bytes().count(0) for path in (base_of(queue) / "completions").glob("??"))
    over = [name for name in leftovers(queue) if not name.startswith("staging/")]
    assert not over, over
    # Else a cut may keep a counter's byte and lose the completion: fsck finds and mends that (docs/guarantees.md).
    check_sound(queue, *(() if strict else ("counter-bytes", "counter-surplus")))
    assert Queue(QUEUE).status().completed <= most, f"more counted than done: {Queue(QUEUE).status()}, was {after}"
    sizes = {"inserted": len(inserted), "done": len(done), "there": len(there), "repeated": len(repeated)}
    return {**sizes, "nulls": holes}


def check_purged(lines: list[list[str]]) -> dict[str, int]:
    """What was inserted since the last purge is there; what was purged or deleted is not."""
    kept: set[str] = set()
    gone: set[str] = set()
    perhaps: set[str] = set()
    made: dict[str, str] = {}
    for line in lines:
        if line[0] == "inserted":
            kept.update(line[1:])
        elif line[0] == "will-purge":
            kept, perhaps = set(), kept
        elif line[0] == "purged":
            gone, perhaps = gone | perhaps, set()
        elif line[0] in ("made", "will-delete", "deleted"):
            made[line[1]] = line[0]
    queue = Queue(QUEUE)
    found = set(drain(queue))
    assert kept <= found, f"lost: {kept - found}"
    assert not gone & found, f"purged, and there again: {gone & found}"
    assert not perhaps or perhaps <= found or not perhaps & found, "half a purge"
    queue.gc()
    check_sound(queue)
    for number, state in made.items():
        try:
            payloads = list(drain(Queue(f"/disk/other-{number}")))
        except QueueNotFound:
            assert state != "made", f"queue {number} is gone"
        else:
            assert state != "deleted", f"queue {number} was deleted, and is there again"
            assert payloads == ["x"]
    return {"inserted": len(kept), "there": len(found), "gone": len(gone)}


def cuts(seed: int, count: int, **how: Any) -> dict[str, int]:
    """Several cuts, one after the other; sums of what was found. The seed is in the message of a failure."""
    total: Counter[str] = Counter()
    for number in range(seed, seed + count):
        try:
            total.update(cut(number, **how))
        except Exception as error:
            raise AssertionError(f"seed {number}, {how}: {type(error).__name__}: {error}") from error
        total["cuts"] += 1
    return dict(total)
