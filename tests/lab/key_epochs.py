"""Unique keys on NFS, while key epochs begin and end: what runs in the guest of scripts/lab/nfs."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from fsqueue import Queue
from fsqueue.upkeep import key_files
from tests.concurrency.processes import PATIENCE_S, Child, Count, at_a_random_moment
from tests.lab.nfs import SERVER, at, explained
from tests.waiting import until

KEYS = [f"key-{number}" for number in range(12)]
EPOCH_AGE_S = 2
"""Mounts in the lab keep a listing for a second at most."""
KILLS, EPOCHS, INSERTED = 6, 3, 100
"""Minimum numbers of upkeeps that were killed, of epochs that have begun, and of inserted tasks: then it ends."""


def insert(path: Path, over: Path, inserted: Count, seed: int) -> int:
    """Insert tasks with few keys until there is a file; how many were new."""
    dice, new = random.Random(seed), 0
    with Queue(path) as queue:
        while not over.exists():
            is_new = queue.insert("x", key=dice.choice(KEYS)).inserted
            inserted.add(is_new)
            new += is_new
    return new


def work(path: Path, over: Path) -> int:
    """Complete tasks until there is a file; how many. Of two leased tasks none have one key."""
    done = 0
    with Queue(path) as queue:
        while not over.exists():
            tasks = queue.lease(4, lease_s=600)
            keys = [task.key for task in tasks]
            assert len(keys) == len(set(keys)), keys
            for task in tasks:
                task.complete()
            done += len(tasks)
    return done


def keep_house(path: Path, over: Path, turns: Count) -> int:
    """Run gc until there is a file, with files and epochs that count as old at once; how many files of keys went."""
    removed = 0
    with (
        mock.patch.multiple(key_files, KEY_AGE_S=-1, FREE_MIN=1, EPOCH_AGE_S=EPOCH_AGE_S),
        Queue(path) as queue,
    ):
        while not over.exists():
            removed += queue.gc().keys_removed
            turns.add()
    return removed


def play(seed: int) -> dict[str, int]:
    """Insert and work at two clients, and begin and end key epochs at both, some of whose upkeeps are killed."""
    name, dice = f"epochs-{seed}", random.Random(seed)
    Queue.create(at(1, name), shards=2).close()
    over, inserted, turns = Path("/tmp") / name, Count(), Count()
    killed, removed = 0, 0
    with ExitStack() as stack, explained(name):

        def hire(action: object, *arguments: object) -> Child:
            child = Child(action, *arguments)  # type: ignore[arg-type]
            stack.callback(child.close)
            return child

        inserters = [hire(insert, at(client, name), over, inserted, seed + client) for client in (1, 2)]
        workers = [hire(work, at(client, name), over) for client in (1, 2)]
        keepers = {client: hire(keep_house, at(client, name), over, turns) for client in (1, 2)}
        for _ in range(KILLS):
            before = int(turns)
            until(lambda before=before: int(turns) > before + 1, "an upkeep to end", PATIENCE_S)
            at_a_random_moment(dice, 1.0)
            client = dice.choice((1, 2))
            assert keepers[client].running, keepers[client].report()
            keepers[client].kill()
            killed += 1
            keepers[client] = hire(keep_house, at(client, name), over, turns)
        truth = Queue(SERVER / name)
        until(lambda: epochs_of(truth) >= EPOCHS, f"{EPOCHS} epochs", PATIENCE_S)
        until(lambda: int(inserted) >= INSERTED, f"{INSERTED} tasks", PATIENCE_S)
        over.touch()
        new = sum(child.result() for child in inserters)
        done = sum(child.result() for child in workers)
        removed = sum(child.result() for child in keepers.values())
        keys = Counter(info.key for info in truth.tasks() if info.state not in ("completed", "cancelled", "dead"))
        assert all(count == 1 for count in keys.values()), keys
        status = truth.status()
        assert status.inserted == new == done + status.waiting, (status, new, done)
        found = [finding for finding in truth.fsck() if "key" in finding.kind]
        assert not found, found
    return {"inserted": new, "completed": done, "killed": killed, "removed": removed, "epochs": epochs_of(truth)}


def epochs_of(queue: Queue) -> int:
    """Which epoch it is in."""
    queue.store.refresh(now=True)
    return queue.store.queue_state.key_epochs.present
