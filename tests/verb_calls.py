"""Every verb on a queue with tasks of every kind, and what must be true afterwards, whatever the verb reported."""

from __future__ import annotations

from collections.abc import Callable

from fsqueue import FsqueueError, LeaseLost, Queue
from tests.concurrency.books import check_drained, drain

Verb = Callable[[Queue, Queue], None]
"""A verb on a queue, and the object that the queue was set up with."""
LONG = "no luck " * 900
"""What does not fit into the rest of a file's last block."""


def insert_one(queue: Queue, first: Queue) -> None:
    queue.insert("new")


def insert_many(queue: Queue, first: Queue) -> None:
    queue.insert_many(["new 1", "new 2", "new 3"], batch_tasks=2)


def insert_once(queue: Queue, first: Queue) -> None:
    queue.insert_many(["new 1", "new 2", "new 3"], batch_tasks=2, commit="seed")


def lease_some(queue: Queue, first: Queue) -> None:
    queue.lease(3)


def complete_some(queue: Queue, first: Queue) -> None:
    queue.complete([queue.attach(token) for token in tokens_of(first)])


def complete_each(queue: Queue, first: Queue) -> None:
    for token in tokens_of(first):
        queue.attach(token).complete({"result": LONG})


def renew_some(queue: Queue, first: Queue) -> None:
    queue.renew([queue.attach(token) for token in tokens_of(first)], 40)


def release_some(queue: Queue, first: Queue) -> None:
    queue.release([queue.attach(token) for token in tokens_of(first)])


def fail_one(queue: Queue, first: Queue) -> None:
    queue.attach(tokens_of(first)[0]).fail(LONG, delay_s=0)


def bury_each(queue: Queue, first: Queue) -> None:
    for token in tokens_of(first):
        queue.attach(token).bury(LONG)


def release_all(queue: Queue, first: Queue) -> None:
    queue.release_all()


def cancel_waiting(queue: Queue, first: Queue) -> None:
    queue.cancel([info.id for info in queue.tasks("waiting") if info.payload == "waiting 0"])


def retry_dead(queue: Queue, first: Queue) -> None:
    queue.retry_dead()


def purge_dead(queue: Queue, first: Queue) -> None:
    queue.purge_dead()


def work_by_poll(queue: Queue, first: Queue) -> None:
    for done, task in enumerate(queue.poll(), 1):
        task.complete()
        if done == 5:
            break


def upkeep(queue: Queue, first: Queue) -> None:
    queue.gc(touch=True, history_days=0)


def check_and_repair(queue: Queue, first: Queue) -> None:
    list(queue.fsck(repair=True))


VERBS = [
    insert_one, insert_many, insert_once, lease_some, complete_some, complete_each, renew_some, release_some, fail_one,
    bury_each, release_all, cancel_waiting, retry_dead, purge_dead, work_by_poll, upkeep, check_and_repair,
]  # fmt: skip

NEED_FILES = (insert_one, insert_many, insert_once, lease_some, cancel_waiting, retry_dead, work_by_poll)
"""They make a file at least."""
NEED_BYTES = (*NEED_FILES, complete_each, fail_one, bury_each)
"""They write more than fits into the last blocks of the files there are."""

_tokens: dict[str, list[str]] = {}


def tokens_of(queue: Queue) -> list[str]:
    """The leases that were taken when the queue was set up."""
    return _tokens[str(queue.path)]


def set_up(queue: Queue) -> None:
    """Some tasks of every kind: 4 held, 5 waiting, 2 dead."""
    queue.insert_many([f"held {index}" for index in range(4)], batch_tasks=2)
    _tokens[str(queue.path)] = [task.token for task in queue.lease(4)]
    assert len(tokens_of(queue)) == 4
    queue.insert_many(["dead 0", "dead 1"], batch_tasks=2)
    for task in queue.lease(2):
        task.bury("from the beginning")
    queue.insert_many([f"waiting {index}" for index in range(5)], batch_tasks=3)
    assert queue.status().inserted == 11
    queue.close()


def payloads_of(queue: Queue) -> list[str]:
    """Every payload that is in the queue, once: made workable, taken out and completed. Dead ones are retried first."""
    queue.gc()
    queue.release_all()
    retried = queue.retry_dead()
    assert queue.status().dead == 0, retried
    return sorted(drain(queue))


def assert_nothing_lost(fresh: Queue, first: Queue, verb: Verb, error: FsqueueError | None, where: str) -> None:
    """Every task that must be there is there once, now that there is room, and can be worked off."""
    wanted = [f"held {index}" for index in range(4)] + ["dead 0", "dead 1"] + [f"waiting {index}" for index in range(5)]
    before = fresh.status()
    optional: set[str] = set()
    if verb is insert_one:
        (wanted.append if error is None else optional.add)("new")
    elif verb is insert_many:
        done = 3 if error is None else error.inserted
        assert done is not None
        wanted += [f"new {index + 1}" for index in range(done)]
    elif verb is insert_once:
        assert before.inserted == 14 if error is None else before.inserted in (11, 14), where
        assert fresh.insert_many(["new 1", "new 2", "new 3"], commit="seed") == 14 - before.inserted, where
        wanted += ["new 1", "new 2", "new 3"]
    elif verb is cancel_waiting:
        wanted.remove("waiting 0")
        optional |= {"waiting 0"} if error else set()
    elif verb is purge_dead:
        wanted = [payload for payload in wanted if not payload.startswith("dead")]
        optional |= {"dead 0", "dead 1"} if error else set()
    if verb in (complete_some, complete_each):
        optional |= {f"held {index}" for index in range(4)}
        wanted = [payload for payload in wanted if not payload.startswith("held")]
        if error is None:
            assert before.completed == 4, where
        # repeat it, as the error says: what was done already is no loss
        for token in tokens_of(first):
            try:
                fresh.attach(token).complete()
            except (LeaseLost, FsqueueError):
                pass
        assert fresh.status().completed == 4, where
        optional = set()
    completed = fresh.status().completed
    if verb is work_by_poll:
        optional = {payload for payload in wanted if payload.startswith("waiting")}
        wanted = [payload for payload in wanted if not payload.startswith("waiting")]
    found = payloads_of(fresh)
    assert len(found) == len(set(found)), f"{where}: doubled: {found}"
    assert set(wanted) <= set(found) <= set(wanted) | optional, f"{where}: {found}"
    if verb is work_by_poll:
        assert completed + len([p for p in found if p.startswith("waiting")]) >= 5, where
    ids, _ = check_drained(fresh, staged_leftovers=4 if verb is insert_once else 2)
    assert len(ids) == completed + len(found), where
