"""Updates in the labs: by two NFS clients at once, and under power cuts. Each group here is a pipeline of queues."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import FsqueueError, Group, GroupQueues, Queue, Status, Task, Then, UpdateConflict, Worker
from fsqueue.format import decisions
from fsqueue.protocol import finishing
from fsqueue.storage import logs
from tests.concurrency.books import Diary, check_sound
from tests.concurrency.processes import PATIENCE_S, Child, Count, at_a_random_moment, children, wait_all_stopped
from tests.concurrency.trapped import trapped_group
from tests.lab import evidence
from tests.lab.nfs import FSQUEUE, SERVER, Point, StopAt, at, calls_of, lab, restart_server, run_on
from tests.support import base_of, leftovers
from tests.waiting import until

STAGES = ("fetch", "parse", "store")
SITES = 7
"""Keys that all tasks of the first stage insert, into a queue that nobody works off."""
KILLS = 8
LEASE_S = 4.0
CUT_CALLS = 20
"""Number of handler calls at the other client after which a client that was cut off is connected again."""
CUT_PATIENCE_S = 300.0
"""How long these may take. It is less than a call into the guest may take: what the processes do is told, then."""
DECISIONS = f"/{decisions.DIRECTORY}/"

# -- power cuts ---------------------------------------------------------------------------------------------

CUT_TASKS = 300


def new_pipeline(path: Path, durability: str, batch_tasks: int) -> None:
    """Make a pipeline with tasks in its first stage, all of which a power cut cannot take."""
    group = Group.create(path, shards=2, durability=durability, lease_s=LEASE_S, max_attempts=None, backoff_s=(0, 0))
    group["fetch"].insert_many(range(CUT_TASKS), batch_tasks=batch_tasks)


def pass_on(path: Path, diary: Diary, dice: random.Random) -> None:
    """Complete tasks of two stages, some at a time, in updates that insert them into the next stages."""
    group, queues = Group(path), Group(path).matching("fetch|parse")
    while True:
        tasks = queues.lease(dice.choice([1, 1, 2, 5]), lease_s=30, wait_s=0.2)
        moved = [(task.queue.name, task.payload) for task in tasks]
        update = group.update()
        for task, (stage, payload) in zip(tasks, moved, strict=True):
            update.complete(task)
            for queue, inserted in next_of(stage, payload):
                update.insert(queue, inserted)
            if stage == "fetch":
                update.insert("index", payload)
        update.apply()
        for stage, payload in moved:
            diary.note("done", stage, payload)


def check_after_cut(path: Path, lines: list[list[str]]) -> dict[str, int]:
    """What an update changed in several queues is there as a whole or not at all; what was reported is there.

    A task is in the first stage, or in the second one, or in `store`. It is in `index` unless it is in the first stage.
    """
    group, there = Group(path), dict[str, Counter[Any]]()
    for stage in ("fetch", "parse"):
        queue = group[stage]
        queue.release_all()
        there[stage] = Counter()

        def is_drained(queue: Queue = queue, found: Counter[Any] = there[stage]) -> bool:
            tasks = queue.lease(1000, wait_s=1)
            found.update(task.payload for task in tasks)
            if tasks:
                queue.complete(tasks)
            return queue.status().drained

        until(is_drained, f"{queue.path} to be drained", PATIENCE_S)
    for stage in ("store", "index"):
        there[stage] = Counter(info.payload for info in group[stage].tasks())
    everywhere = there["fetch"] + there["parse"] + there["store"]
    assert everywhere == Counter(range(CUT_TASKS)), f"not once: {_differing(everywhere, Counter(range(CUT_TASKS)))}"
    gone_on = there["parse"] + there["store"]
    assert there["index"] == gone_on, f"half an update: {_differing(there['index'], gone_on)}"
    told = {stage: {int(line[2]) for line in lines if line[:2] == ["done", stage]} for stage in ("fetch", "parse")}
    assert not told["fetch"] & set(there["fetch"]), "reported, and undone"
    assert told["parse"] <= set(there["store"]), "reported, and undone"
    keys = Counter(info.key for info in group["sites"].tasks())
    assert set(keys) == {f"site-{payload % SITES}" for payload in gone_on}, keys
    assert all(count == 1 for count in keys.values()), keys
    check_clean(group, "counter-bytes", "counter-surplus")  # see docs/guarantees.md
    return {"inserted": CUT_TASKS, "done": len(told["fetch"]) + len(told["parse"]), "there": len(gone_on)}


def _differing(found: Counter[Any], wanted: Counter[Any]) -> list[tuple[Any, int, int]]:
    return [(one, found[one], wanted[one]) for one in sorted({*found, *wanted}) if found[one] != wanted[one]][:9]


# -- the books of both --------------------------------------------------------------------------------------


def until_updates_are_old(queue: Queue) -> None:
    """Wait until others may give up each update that has records in a queue: the process that began it was killed.

    Before that its batch must not be finished. An insert that is prepared in it is no task yet: a queue may be drained.
    """
    store = queue.store
    prepared = [
        update
        for path in (base_of(queue) / "movements").glob("*/*")
        for update in logs.read_present(store.fs, str(path)).prepared.values()
    ]
    old_ms = max((update.at + update.patience_ms for update in prepared), default=0) + store.clock.margin_ms
    until(lambda: store.clock.now_ms() >= old_ms, f"the updates of killed processes in {queue.path} to be old")


def check_clean(group: Group, *more: str) -> None:
    """After one pass of upkeep, once what killed processes have left is old, no update is undecided, nothing is left of
    queues that were worked off, and fsck finds nothing but what a kill or a power cut may leave.
    """
    queues = [*group.queues(tasks_min=0)]
    undecided = [info for queue in queues for info in queue.tasks() if info.update is not None]
    assert not undecided, undecided
    with mock.patch.object(finishing, "LINGER_MS", 0):  # else open batches end some seconds after the last insert
        for queue in queues:
            until_updates_are_old(queue)
            queue.gc()
    for queue in queues:
        check_sound(queue, *more)  # a kill may tear a line of the history, or repeat one
        left = [path for path in leftovers(queue) if not path.startswith("staging/")]
        assert left == [] or not queue.status().drained, (queue.name, left)
    assert list(group.fsck()) == []


def new_group(name: str, tasks: int) -> None:
    """Make a pipeline at client 1, with tasks in its first stage."""
    group = Group.create(at(1, name), shards=2, lease_s=LEASE_S, max_attempts=None, backoff_s=(0, 0))
    group["fetch"].insert_many(range(tasks), batch_tasks=20)


def stages(path: Path) -> GroupQueues:
    """Return the queues of a pipeline that are worked off."""
    return Group(path).matching("|".join(STAGES))


def explained(name: str) -> AbstractContextManager[None]:
    """Add what the processes, the server, and the queues say to the message of a failure."""

    def more() -> str:
        told = [evidence.of_queue(SERVER / name / stage) for stage in (*STAGES[1:], "sites")]
        files = [f"{file.name}: {file.read_bytes()[-2000:]!r}" for file in (SERVER / f"{name}{DECISIONS}").glob("*")]
        return "\n".join([*told, "== decision files", *files, "== the server", lab("state")])

    return evidence.explained(SERVER / name / STAGES[0], None, more)


# -- workers ------------------------------------------------------------------------------------------------


def next_of(stage: str, payload: int) -> list[tuple[str, Any]]:
    """Return what a task of a stage inserts: a fetched one into two other queues, one of them with a key."""
    if stage == "fetch":
        return [("parse", payload), ("sites", Task(payload, key=f"site-{payload % SITES}"))]
    return [("store", payload)] if stage == "parse" else []


def work(path: Path, calls: Count) -> str:
    """Work on all stages until they are drained."""

    def handler(payload: Any, task: Any) -> Any:
        calls.add()
        return Then(payload, next_of(Path(task.queue).name, payload))

    return Worker(stages(path), handler, threads=2, prefetch=2).run().ended


def update_by_hand(path: Path, calls: Count) -> str:
    """Do the same by updates of this process, each of which completes up to three tasks of all stages."""
    group, queues, lease_s = Group(path), stages(path), LEASE_S
    while not queues.is_drained():
        tasks = queues.lease(3, lease_s=lease_s, wait_s=0.5)
        if not tasks:
            continue
        update = group.update()
        for task in tasks:
            calls.add()
            update.complete(task, task.payload)
            for queue, inserted in next_of(task.queue.name, task.payload):
                update.insert(queue, inserted)
        try:
            update.apply()
        except UpdateConflict:  # a lease was lost, or others were in the way: the tasks come again
            lease_s *= 2  # on a busy machine an update may take longer than a lease
    return "drained"


# -- the books ----------------------------------------------------------------------------------------------


def check(name: str, tasks: int) -> None:
    """Each task went through all stages and was completed once in each; each key is there once; nothing is left over.

    It asks the server's disk, and then each client, which must say the same.
    """
    group = Group(SERVER / name)
    for stage in STAGES:
        queue = group[stage]
        assert queue.status() == Status(completed=tasks), (stage, queue.status())
        results = Counter(one.result for one in queue.results())
        assert results == Counter(range(tasks)), f"{stage}: {results - Counter(range(tasks))} too often"
    keys = Counter(info.key for info in group["sites"].tasks())
    assert keys == Counter(f"site-{number}" for number in range(min(SITES, tasks))), keys
    check_clean(group)
    truth = {queue.name: str(queue.status()) for queue in group.queues(tasks_min=0)}
    for client in (1, 2):
        mine = Group(at(client, name))  # whose news may be seconds old
        until(
            lambda mine=mine: {queue: str(mine[queue].status()) for queue in truth} == truth,
            f"client {client} to see {truth}",
        )


# -- pipelines ----------------------------------------------------------------------------------------------


def play(seed: int, tasks: int, kills: int = KILLS, fault: str = "") -> dict[str, int]:
    """Workers at two clients work on all stages and are killed and replaced. In the middle, the server restarts
    (`fault` "restart"), or client 1 is cut off until the other one has done much of the work (`fault` "cut").
    """
    name, dice, calls = f"pipeline-{seed}-{tasks}-{fault}", random.Random(seed), Count()
    new_group(name, tasks)
    killed, hired = 0, 0

    def hire(client: int) -> tuple[int, Child]:
        nonlocal hired
        hired += 1
        return client, Child(work if hired % 4 else update_by_hand, at(client, name), calls)

    with ExitStack() as stack, explained(name):
        crew = [hire(client) for client in (1, 2, 1, 2)]
        stack.callback(lambda: [worker.close() for _, worker in crew])
        moments = sorted(dice.sample(range(tasks * 2), kills))
        for number, moment in enumerate(moments):
            until(lambda moment=moment: int(calls) > moment, f"call number {moment} of a handler", PATIENCE_S)
            if fault and number == kills // 2:
                meet(fault, name, calls, [worker for client, worker in crew if client != 1])
            at_a_random_moment(dice, 0.1)
            client, victim = crew.pop(dice.randrange(len(crew)))
            killed += victim.running
            victim.close()
            crew.append(hire(client))
        for _, worker in crew:
            assert worker.result() == "drained"
        check(name, tasks)
    return {"killed": killed, "tasks": tasks, "calls": int(calls)}


def meet(fault: str, name: str, calls: Count, others: list[Child]) -> None:
    """Let the server restart, or client 1 be cut off for as long as the server waits for it, and some calls more by
    `others`, at the other client.
    """
    if fault == "restart":
        restart_server(name)
        return

    def others_went_on() -> bool:
        for worker in others:
            if not worker.running:
                worker.result()  # its traceback, if an error has ended it
        return int(calls) > before + CUT_CALLS

    lab("cut", 1)
    before = int(calls)
    try:  # client 1 may have logs locked until the server's lease is over
        until(others_went_on, "the other client to go on", CUT_PATIENCE_S)
    finally:
        lab("join", 1)


def play_with_commands(tasks: int) -> dict[str, int]:
    """`fsqueue run --then` at both clients, as a user would; one of three workers of the first stage is killed."""
    name, calls = "commands", Path("/tmp/commands")
    new_group(name, tasks)
    calls.mkdir()
    run = [FSQUEUE, "run", "-j", 2, "--lease", LEASE_S, "--json"]
    script = 'echo "$1" >>"$0" && echo "$1"'

    def worker(client: int, stage: str, number: int, *options: str) -> Any:
        return run_on(
            client,
            *run,
            at(client, name) / stage,
            *options,
            "--",
            "sh",
            "-c",
            script,
            calls / f"{stage}-{number}",
            "{}",
        )

    with explained(name):
        runners = [worker(client, "fetch", client, "--then", "parse") for client in (1, 2)]
        runners += [
            worker(2, "parse", 1, "--upstream", "fetch", "--then", "store"),
            worker(1, "store", 1, "--upstream", "parse", "--upstream", "fetch"),
        ]
        try:
            until(lambda: (calls / "fetch-1").exists(), "the worker at client 1 to work", PATIENCE_S)
            os.killpg(runners[0].pid, signal.SIGKILL)
            runners.append(worker(1, "fetch", 3, "--then", "parse"))
            for runner in runners[1:]:
                assert runner.wait(PATIENCE_S) == 0
        finally:
            for runner in runners:
                if runner.poll() is None:
                    os.killpg(runner.pid, signal.SIGKILL)
                runner.wait()
                assert runner.stdout is not None
                runner.stdout.close()
        group = Group(SERVER / name)
        for stage in STAGES:
            assert group[stage].status() == Status(completed=tasks), (stage, group[stage].status())
            payloads = Counter(info.payload for info in group[stage].tasks("completed"))
            assert payloads == Counter(range(tasks)), (stage, payloads)
            check_sound(group[stage])
        executed = sum(len(file.read_text().split()) for file in calls.iterdir())
    return {"executed": executed}


# -- a client that is cut off ------------------------------------------------------------------------------------

POINTS = {
    "prepared in one log": Point("update", "write", "/movements/", done=True),
    "prepared, and not decided": Point("update", "try_lock", DECISIONS),
    "decided, and not synced": Point("update", "fsync", DECISIONS),
    "decided and synced, and its file locked": Point("update", "unlock", DECISIONS),
    "decided, and no outcome in the logs": Point("update", "unlock", DECISIONS, done=True),
}
"""Where a process at client 1 is stopped before its client is cut off."""
TASKS = 6


def stopped_at(point: Point, path: Path) -> str:
    """Complete a task and insert into the next stage, at the client that is cut off; what it was told in the end."""
    trap = StopAt(point)
    with trapped_group(path, trap, shared=True) as group:
        with group.update() as first:  # makes the decision file
            first.insert("sites", Task(0, key="site-0"))
        [task] = group["fetch"].lease(lease_s=LEASE_S)
        update = group.update()
        update.complete(task, task.payload)
        for queue, inserted in next_of("fetch", task.payload):
            update.insert(queue, inserted)
        trap.armed = True
        try:
            update.apply()
        except FsqueueError as error:
            assert not trap.armed, "it never came to that point"
            return f"{type(error).__name__}: {error}"
    assert not trap.armed, "it never came to that point"
    return "done"


def work_off(path: Path) -> None:
    """Work on all stages at the other client, until they are drained and all leases have ended."""
    calls = Count()

    def is_over() -> bool:
        return update_by_hand(path, calls) == "drained" and stages(path).is_drained()

    until(is_over, f"{path} to be drained", PATIENCE_S)


def cut(points: list[str]) -> dict[str, dict[str, Any]]:
    """At each point a process is stopped, with a group of its own; then its client is cut off, and the other client
    does the work; then the client comes back, and the processes go on.
    """
    names = {what: f"update-cut-{number}" for number, what in enumerate(POINTS) if what in points}
    found: dict[str, dict[str, Any]] = {what: {} for what in points}
    for name in names.values():
        new_group(name, TASKS)
    with ExitStack() as stack:
        stopped = {
            what: stack.enter_context(children((stopped_at, POINTS[what], at(1, name))))[0]
            for what, name in names.items()
        }
        wait_all_stopped(stopped)
        lab("cut", 1)
        try:
            others = [stack.enter_context(children((work_off, at(2, name))))[0] for name in names.values()]
            for child in others:
                child.result()
        finally:
            lab("join", 1)
        for what, name in names.items():
            found[what]["meanwhile"] = Group(SERVER / name)["fetch"].status().completed
        for child in stopped.values():
            child.signal(signal.SIGCONT)
        for what, child in stopped.items():
            found[what]["told"] = child.result()
    for what, name in names.items():
        try:
            with explained(name):
                work_off(at(2, name))
                check(name, TASKS)
        except (AssertionError, FsqueueError) as error:
            found[what]["wrong"] = f"{type(error).__name__}: {error}"
    return found


# -- calls --------------------------------------------------------------------------------------------------

UPDATES = 100
QUEUES = 10


def calls_per_update() -> dict[str, dict[str, float]]:
    """Count the calls to the server of a lease, of a completion, and of updates, each of one task; by kind, and `all`.

    What it takes to make queues, open batches and the decision file does not count.
    """
    group = Group.create(at(1, "calls-of-updates"))
    queue, own = group["from"], group["own"]
    queue.insert_many(range(4 * UPDATES), batch_tasks=1000)
    tasks = [queue.lease(lease_s=600)[0] for _ in range(10)]
    found: dict[str, dict[str, float]] = {}

    def lease() -> None:
        tasks.extend(queue.lease(lease_s=600)[0] for _ in range(UPDATES))

    def complete() -> None:
        for _ in range(UPDATES):
            tasks.pop().complete()

    def update(targets: list[str]) -> Callable[[], None]:
        def act() -> None:
            for _ in range(UPDATES):
                with group.update() as update:
                    update.complete(tasks.pop())
                    for target in targets:
                        update.insert(target, 0)

        return act

    def own_log() -> None:
        for _ in range(UPDATES):
            task = own_tasks.pop()
            with group.update() as update:
                update.complete(task)
                update.insert("own", 0)

    names = [f"to-{number}" for number in range(QUEUES - 1)]
    for first in ([names[0]], names):
        with group.update() as update_:
            update_.complete(tasks.pop())
            for target in first:
                update_.insert(target, 0)
    for number in range(UPDATES + 1):
        own.insert(number)
    own_tasks = own.lease(UPDATES, lease_s=600)
    found["lease"] = calls_of(UPDATES, lease)
    found["complete"] = calls_of(UPDATES, complete)
    lease()
    found["update of one log"] = calls_of(UPDATES, own_log)
    found["update of two queues"] = calls_of(UPDATES, update(names[:1]))
    lease()
    found["update of ten queues"] = calls_of(UPDATES, update(names))
    return found
