"""Unique keys on NFS, while key epochs begin and end: what runs in the guest of scripts/lab/nfs."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from fsqueue import Queue
from fsqueue.upkeep import key_files
from tests.concurrency.processes import Child
from tests.lab.nfs import SERVER, at

KEYS = [f"key-{number}" for number in range(12)]
PLAY_S = 20.0
EPOCH_AGE_S = 2
"""Mounts in the lab keep a listing for a second at most."""


def insert(path: Path, until: float, seed: int) -> int:
    """Insert tasks with few keys until a time; how many were new."""
    dice, new = random.Random(seed), 0
    with Queue(path) as queue:
        while time.time() < until:
            new += queue.insert("x", key=dice.choice(KEYS)).inserted
    return new


def work(path: Path, until: float) -> int:
    """Complete tasks until a time; how many. Of two leased tasks none have one key."""
    done = 0
    with Queue(path) as queue:
        while time.time() < until:
            tasks = queue.lease(4, lease_s=60)
            keys = [task.key for task in tasks]
            assert len(keys) == len(set(keys)), keys
            for task in tasks:
                task.complete()
            done += len(tasks)
    return done


def keep_house(path: Path, until: float) -> int:
    """Run gc until a time, with files and epochs that count as old at once; how many files of keys went."""
    removed = 0
    with (
        mock.patch.multiple(key_files, KEY_AGE_S=-1, FREE_MIN=1, EPOCH_AGE_S=EPOCH_AGE_S),
        Queue(path) as queue,
    ):
        while time.time() < until:
            removed += queue.gc().keys_removed
    return removed


def play(seed: int) -> dict[str, int]:
    """Insert and work at two clients, and begin and end key epochs at both, some of whose upkeeps are killed."""
    name, dice = f"epochs-{seed}", random.Random(seed)
    Queue.create(at(1, name), shards=2).close()
    until, killed, removed = time.time() + PLAY_S, 0, 0
    with ExitStack() as stack:

        def hire(action: object, *arguments: object) -> Child:
            child = Child(action, *arguments)  # type: ignore[arg-type]
            stack.callback(child.close)
            return child

        inserters = [hire(insert, at(client, name), until, seed + client) for client in (1, 2)]
        workers = [hire(work, at(client, name), until) for client in (1, 2)]
        keepers = {client: hire(keep_house, at(client, name), until) for client in (1, 2)}
        while time.time() < until - 3:
            time.sleep(0.5 + dice.random())
            client = dice.choice((1, 2))
            if keepers[client].running:
                keepers[client].kill()
                killed += 1
            keepers[client] = hire(keep_house, at(client, name), until)
        new = sum(child.result() for child in inserters)
        done = sum(child.result() for child in workers)
        removed = sum(child.result() for child in keepers.values())
    truth = Queue(SERVER / name)
    keys = Counter(info.key for info in truth.tasks() if info.state not in ("completed", "cancelled", "dead"))
    assert all(count == 1 for count in keys.values()), keys
    status = truth.status()
    assert status.inserted == new == done + status.waiting, (status, new, done)
    found = [finding for finding in truth.fsck() if "key" in finding.kind]
    assert not found, found
    epoch = truth.store.queue_state.key_epochs.present
    return {"inserted": new, "completed": done, "killed": killed, "removed": removed, "epochs": epoch}
