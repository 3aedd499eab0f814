"""A program of a user that calls every public verb: type checkers must have nothing to say against it. Never run."""
# pyright: strict

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsqueue
from fsqueue import Bury, LeasedTask, LeaseLost, Queue, Retry, Task, doctor


def render(tile: int) -> None:
    print(tile)


def handle(payload: dict[str, Any], task: LeasedTask) -> int:
    if task.attempt > 3:
        raise Bury("three times are enough")
    if "tile" not in payload:
        raise Retry(5)
    return len(payload)


@fsqueue.task
def double(number: int) -> int:
    return 2 * number


def make(path: Path, durability: fsqueue.Durability) -> Queue:
    queue = Queue.create(path, shards=16, backoff_s=[1, 60], durability=durability, exist_ok=True)
    settings: fsqueue.Settings = queue.settings
    assert settings.backoff_s[0] <= settings.backoff_s[1]
    assert settings.durability == durability
    assert queue == Queue(path, worker="me")
    assert queue.generation >= 1
    both: list[fsqueue.LeasedTask] = fsqueue.lease([queue], 2, lease_s=60, wait_s=1.5, up_to="m")
    assert not queue.has_priorities or queue.lease(2, up_to=5, order="random") or both
    return queue


def insert(queue: Queue) -> list[str]:
    first: fsqueue.TaskRef = queue.insert({"tile": 1}, delay_s=5, strict=True)
    second = queue.insert(Task(b"bytes", available_at=1.8e9))
    count: int = queue.insert_many(({"tile": n} for n in range(10)), batch_tasks=5, total=10, commit="seed")
    assert count in (0, 10)
    changed: int = queue.insert_many([{"tile": 3, "zoom": 2}], new_by="tile", refs=False)
    refs: list[fsqueue.TaskRef] = queue.insert_many(iter([1, 2]), delay_s=5, total=2, refs=True)
    assert len(refs) == 2
    assert changed in (0, 1)
    assert first.inserted
    commit: fsqueue.Commit = queue.commit("more")
    part: fsqueue.CommitPart = commit.stage(["a", "b"], strict=True)
    report: fsqueue.CommitReport = commit.publish([part], overwrite=False)
    found: fsqueue.CommitReport | None = commit.publish(part) if report.repeated else commit.committed()
    same = queue.commit(commit.name, attempt=part.attempt)
    assert found is not None
    assert same.forget() or same.discard()
    return [first.id, str(second)]


def work(queue: Queue) -> int:
    done = 0
    for task in queue.poll(lease_s=60, prefetch=2, until="drained", errors="record", stop_after_failures=10):
        with task:
            render(task.payload["tile"])
            task.renew(60)
            done += 1
    loop: fsqueue.Poll = queue.poll(until="forever", errors="raise")
    with loop:
        with next(loop) as task:
            task.complete({"done": done})
        loop.close()
    return done


async def work_async(queue: Queue) -> None:
    loop: fsqueue.AsyncPoll = queue.poll_async(until="drained")
    async with loop:
        async for task in loop:
            async with task:
                await asyncio.sleep(task.payload["seconds"])
    await loop.aclose()


def verbs(queue: Queue) -> None:
    task, *others = queue.lease(5, lease_s=30, wait_s=1, strict=False)
    held = queue.attach(task.token)
    assert queue.attach(task.token, verify=False).id == held.id
    others += queue.lease(holder={"host": "node7", "name": "me", "pid": 5})
    others += queue.lease_by_id([task.id], lease_s=30)
    known: dict[str, fsqueue.Result] = queue.results_of([task.id, queue.insert(7)])
    assert known[task.id].state == "leased"
    found: fsqueue.TaskInfo = queue.find_by_key("a key")
    print(found.key)
    for ref in fsqueue.as_completed([queue.insert(8)], timeout_s=60):
        now: fsqueue.State = ref.state()
        is_mine: bool = ref.cancel()
        print(now, is_mine, ref.result(timeout_s=0))
    shared: list[list[fsqueue.LeasedTask]] = queue.lease_for([(1, {"host": "node7"}), (2, {"host": "node8"})])
    others += [task for tasks in shared for task in tasks]
    until: float = held.lease_until
    assert until
    assert held.id
    assert held.version >= 0
    assert held.queue == queue
    try:
        queue.renew(task, 60)
        queue.renew(others)
        queue.complete(others, results={one.id: one.attempt for one in others})
        queue.complete(task)
        queue.release(task, delay_s=1)
        queue.release([task])
        task.fail("no luck", delay_s=5)
        task.release(1)
        task.bury("hopeless")
        task.complete()
    except LeaseLost as lost:
        print(lost.tasks, lost.reason)
    print(queue.cancel(task.id) + queue.cancel([task.id]))
    changed: fsqueue.ChangeReport = queue.change([task.id], priority="a", delay_s=5)
    print(changed.changed + changed.leased, queue.change(task.id, no_priority=True, available_at=1e9).as_dict())
    print(queue.release_all() + queue.release_all(worker="me", offline=True) + queue.release_all(slurm_job="5"))


def over_http(url: str) -> int:
    gateway = fsqueue.connect(url, token="secret", worker="me")
    queue: fsqueue.RemoteQueue = gateway["q"] if isinstance(gateway, fsqueue.RemoteGroup) else gateway
    for task in queue.poll(lease_s=60):
        with task:
            render(task.payload["tile"])
    return queue.wait(timeout_s=5).completed


def look(queue: Queue, state: fsqueue.State) -> Iterator[dict[str, Any]]:
    status: fsqueue.Status = queue.status(exact=False)
    remaining: int = status.remaining + status.as_dict()["waiting"]
    activity: fsqueue.Activity = queue.activity(60)
    rate: fsqueue.Rate | None = activity.completed
    left: fsqueue.TimeLeft | None = activity.left(remaining)
    held: list[fsqueue.Held] = activity.oldest
    failures: list[fsqueue.Failure] = activity.failures
    most_used: fsqueue.MostUsed | None = activity.most_used
    timeline: fsqueue.Timeline = queue.timeline(3600, 60)
    holders: list[fsqueue.LeaseHolder] = queue.workers(asks_slurm=False)
    assert most_used is None or most_used.cpu_s >= 0
    locks: list[fsqueue.StuckLock] = queue.stuck()
    taken: dict[str, fsqueue.Usage] = queue.usage()
    failing: list[fsqueue.FailingNode] = queue.failing_nodes()
    assert not any(queue.admit_node(one.node) for one in failing)
    urgencies: list[fsqueue.PriorityRange] = queue.waiting_by_priority(4, progress=lambda done, shards: None)
    assert taken["all"].files >= 2
    assert not urgencies
    print(rate, left, held, failures, locks, queue.is_drained(), queue.wait(timeout_s=5, poll=print))
    print(timeline.completed, [holder.node for holder in holders])
    infos: list[fsqueue.TaskInfo] = [*queue.peek(3), queue.task("id"), *queue.tasks("waiting"), *queue.tasks(state)]
    results: list[fsqueue.Result] = [*queue.results(), *queue.results(lambda result: result.attempts > 1, dead=True)]
    ids: list[str] = [id for columns in queue.result_columns(dead=False) for id in columns[0]]
    assert len(ids) >= 0
    for result in results:
        print(result.payload, result.result, result.took_s, result.as_dict()["error"])
    for info in infos:
        moves: list[fsqueue.Movement] = queue.history(info.id)
        if queue.result(info.id, timeout_s=60) is None:
            print(queue.result(queue.insert(1)))
        yield info.as_dict() | {"state": info.state, "moves": [move.as_dict() for move in moves]}
    print(fsqueue.wait([queue]), fsqueue.wait(fsqueue.queues("/scratch"), timeout_s=1))


def keep(queue: Queue) -> None:
    letters: list[fsqueue.DeadLetter] = list(queue.dead(where=lambda letter: letter.attempt > 1))
    print(queue.retry_dead([letter.id for letter in letters]), queue.retry_dead(letters[0].id))
    again: fsqueue.RetryReport = queue.retry_completed(where=lambda result: result.attempts > 1)
    print(again.retried, again.unkept_ids, queue.retry_completed([letter.id for letter in letters]).as_dict())
    print(queue.purge_dead(where=lambda letter: "typo" in letter.reason))
    settings: fsqueue.Settings = queue.change_settings(max_attempts=3)
    print(queue.change_settings(limit={"host": 4}).limit)
    was_running: bool = queue.pause("why")
    pause: fsqueue.Pause | None = queue.paused
    print(settings, was_running, pause, queue.resume())
    report: fsqueue.GcReport = queue.gc(touch=True, history_days=30)
    findings: list[fsqueue.Finding] = list(queue.fsck(repair=False, progress=lambda done, steps: None))
    print(report.as_dict(), [finding.as_dict() for finding in findings])
    is_copy: bool = queue.is_copy()
    is_accepted: bool = queue.accept_copy()
    print(is_copy, is_accepted)
    queue.purge()
    queue.delete(foreground=True)
    with queue:
        queue.close()


def tell(event: fsqueue.Event) -> None:
    print(event.kind, event.text)


def run(queue: Queue) -> fsqueue.WorkerReport:
    print(double(4))
    print(fsqueue.Worker(queue, command=["./many"], tasks_per_command=100, result_from_stdout=True).run())
    worker = fsqueue.Worker([queue], handle, processes=2, until="drained", tell=tell)
    due_s: float = worker.next_due_s
    print(due_s)
    try:
        return worker.run()
    finally:
        worker.finish()
        worker.stop()


def pipeline(path: Path) -> fsqueue.WorkerReport:
    group = fsqueue.Group.create(path, worker="w", lease_s=60)
    first: fsqueue.GroupQueue = group["first"]
    first.insert({"page": 1})
    chosen: fsqueue.GroupQueues = group.matching("f.*")
    for task in chosen.poll(until="drained"):
        with task:
            group["second"].insert(task.payload)
    flows: list[fsqueue.Flow] = group.flows()
    print([f"{flow.source} to {flow.target}: {flow.updates}" for flow in flows])
    of_group: fsqueue.Settings = group.set_limits(max_leased=4, limit={"licence": 2}, rate="5/s")
    print(of_group.max_leased)
    barrier: fsqueue.Barrier = group.barrier(["first", group["second"]], then=("third", 1), on_failure="wait")
    several = group.barrier(group.matching("f.*"), then=[("third", fsqueue.Task(1, priority=2)), (group["fourth"], 2)])
    join: fsqueue.Barrier = group.join([group["first"].insert(1), group["first"].commit("x")], ("third", 1))
    for task in group["third"].lease():
        inputs: Iterator[fsqueue.Result] = task.inputs()
        print(join.is_join, [one.result for one in inputs], [*group["third"].inputs(task)])
    print(barrier.state, several.cancel(), group.barriers(), group.pass_barriers(at_once=True), barrier.as_dict())
    found: fsqueue.GroupStatus = group.status(".*", exact=False)
    print(found.status.waiting, found.queues, [queue.name for queue in group.queues("s.*", tasks_min=0)])
    print(fsqueue.wait([group, first]), group.wait(60), group.lease(2, wait_s=1), group.delete("first"))
    update: fsqueue.Update = group.update()
    update.insert("second", {"page": 2}, priority=1)
    update.depends(first.task("id"))
    try:
        print(update.apply(timeout_s=60), update.results)
    except fsqueue.UpdateConflict as error:
        found_wrong: list[fsqueue.Conflict] = error.missing + error.depends + error.busy
        print(found_wrong[0].reason)
    lineage: fsqueue.Lineage = group.lineage("first", "id")
    kin: list[fsqueue.Relative] = [*lineage.ancestors, *lineage.successors]
    print(kin[0].queue, kin[0].steps, lineage.as_dict(), fsqueue.Then(1, [("second", 2), ("second", fsqueue.Task(3))]))
    return fsqueue.Worker([group, chosen, first], handle).run()


def in_futures(queue: Queue) -> list[int]:
    with fsqueue.Executor(queue, workers=2) as executor:
        future = executor.submit(double, 1)
        ref: fsqueue.TaskRef | None = future.ref
        print(ref, future.running(), future.cancel(), future.exception(timeout=60), future.result(timeout=60))
        found: list[int] = list(executor.map(double, range(5), timeout=60, chunksize=2))
        print([future.result(timeout=60) for future in executor.submit_many(double, range(5), name="five")])
        executor.shutdown(wait=False, cancel_futures=True)
    with fsqueue.Executor(queue, workers=2, pickle=True, files="/scratch") as pickling:
        print(pickling.submit(lambda: {1}).result(timeout=60))
    return found


def examine(path: Path) -> str:
    report: fsqueue.Report = doctor.examine(path)
    return report.verdict


def explain(error: Exception) -> int:
    match error:
        case fsqueue.InvalidTask(index=index) if index is not None:
            return index
        case fsqueue.StorageFull() | fsqueue.LockTimeout() | fsqueue.QueueNotFound():
            return error.exit_code
        case _:
            return 1


if __name__ == "__main__":
    tiles = make(Path("/scratch/tiles"), "default")
    insert(tiles)
    asyncio.run(work_async(tiles))
    print(pipeline(Path("/scratch/crawl")))
    print(examine(tiles.path), work(tiles), list(look(tiles, "dead")), run(tiles).as_dict(), fsqueue.__version__)
    verbs(tiles)
    print(in_futures(tiles))
    keep(tiles)
