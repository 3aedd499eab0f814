"""Mend what fsck finds: each under the lock of what it touches, by a revalidating open, and harmless to repeat.

Nothing that a user might need is removed: it goes into the queue's quarantine, a directory for each
run, under the path that it had. Leftovers of crashes are upkeep's matter; here is what only damage brings.
"""

from __future__ import annotations

import errno
import os
import time

from fsqueue.clock import Clock, Entropy
from fsqueue.cluster.identity import describe
from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, names, sparse, task_file
from fsqueue.format.layout import quarantine_of
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.priority import LAST, Rank, rank_of
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState
from fsqueue.format.wording import counted
from fsqueue.fsck.recount import Recount
from fsqueue.interruptions import suppress
from fsqueue.protocol import finishing, transitions
from fsqueue.storage import history, published, record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import LinesInLog
from fsqueue.storage.queue_file import state_in
from fsqueue.storage.store import Store

WAIT_S = 2.0
"""Seconds to wait for a lock; what stays busy is left for the next time."""
GRACE_S = 1.0
"""Seconds to wait before a second look at what one may not lock, or at what its maker has not locked yet."""
LOOK_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of the system for a user who may look, but not lock."""
TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""What the system says when something else has the name in quarantine: a directory from which files were moved."""
OPEN = (AVAILABLE, LEASED)
"""The states of tasks without an outcome."""
UNREADABLE = "unreadable: its line in the task file is damaged or missing"


class StillHeld(Exception):
    """A worker has the tasks leased: it has their payloads, and may complete them. A repair leaves them alone."""


class Quarantine:
    """Where things go that are in the way: `.quarantine/RUN/`, then the path that they had in the queue or group."""

    def __init__(self, fs: Filesystem, path: str, clock: Clock, entropy: Entropy) -> None:
        self.fs, self.path, self.entropy = fs, path, entropy
        self.root = quarantine_of(path)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(clock.now_ms() / 1000))
        self.place = f"{self.root}/{stamp}-{entropy.hex16()[:8]}"

    def _target(self, path: str) -> str:
        target = f"{self.place}/{path.removeprefix(self.path + '/')}"
        try:
            self.fs.make_directory(os.path.dirname(target))
        except NotADirectoryError:
            if not self._make_way():
                raise
            self.fs.make_directory(os.path.dirname(target))
        return target

    def _make_way(self) -> bool:
        """Move into quarantine what is in the quarantine's own place; False if that is a directory, or nothing.

        A link is moved, not followed. A crash in between leaves it under a name that fsck knows as a stray.
        """
        fs, place = self.fs, self.root
        aside = f"{place}-{self.entropy.hex16()}"
        if fs.is_directory(place) or not fs.rename(place, aside):
            return False
        fs.make_directory(self.place)
        return fs.rename(aside, f"{self.place}/{os.path.basename(place)}")

    def move(self, path: str) -> bool:
        """Move a file, a link or a tree there; False if it is gone."""
        if path == self.root:
            return self._make_way()
        target = self._target(path)
        try:
            return self.fs.rename(path, target)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
            return self.fs.rename(path, f"{target}-{self.entropy.hex16()}")

    def keep(self, path: str, data: bytes) -> None:
        """Keep a synced copy of the file at `path`."""
        target = self._target(path)
        try:
            fd = self.fs.create(target)
        except FileExistsError:  # a repair is tried several times
            fd = self.fs.create(f"{target}-{self.entropy.hex16()}")
        with self.fs.closing(fd):
            self.fs.write_all(fd, data)
            self.fs.fsync(fd)


class Repair:
    """The repairs of one run."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.quarantine = Quarantine(store.fs, store.path, store.clock, store.entropy)
        self._recount = Recount(store)

    def generation(self, path: str) -> None:
        """Move the directory of a generation that does not exist aside, while no process can begin that one."""
        with self.store.locked_existing(self.store.layout.settings_file, WAIT_S) as file:
            if path.rpartition("/")[2] != state_in(self.store.fs, file.fd, self.store.path).directory:
                self.quarantine.move(path)

    # -- lines ----------------------------------------------------------------------------------

    def void_line(self, path: str, offset: int, length: int) -> None:
        """Mark the line that ends at an offset as void, if a line ends there."""
        fs = self.store.fs
        with self.store.locked_existing(path, WAIT_S, one_name=True) as file:
            if fs.pread(file.fd, 2, offset + length - 1) == b"}\n":
                fs.pwrite(file.fd, b"~", offset + length - 1)
                fs.fsync(file.fd)

    # -- batches --------------------------------------------------------------------------------

    def bury_unreadable(self, batch: Batch) -> None:
        """Make letters of tasks whose lines cannot be read; the file is kept. StillHeld, if a worker holds some."""
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            if not transitions.open_untouched(locked):
                finishing.retire(locked)
                return
            if locked.replay_state.inserts is not None:
                return  # its tasks are in the log: what cannot be read there is no task
            replay_state, log.lines = locked.replay_state, None  # what was read before the damage is of no use here
            lines = locked.read_lines()
            assert not isinstance(lines, LinesInLog)
            at = record_times.next_at(locked)
            bad = unreadable(lines or [], replay_state.count, replay_state.payloads)
            lost = [index for index in bad if replay_state.is_free(index, at)]
            if lines is not None and log.name is not None and lost:
                path = log.layout.task_file(log.name)
                self.quarantine.keep(path, published.content_of(store, path))
                locked.append_record("bury", at, tasks=movements.to_ranges(lost), reason=UNREADABLE)
                finishing.write_letters(locked, lost)
            _check_held(replay_state, bad, at)
            if not replay_state.remaining:
                finishing.try_finish(locked)

    def check_held(self, batch: Batch) -> None:
        """Raise StillHeld if a worker holds tasks of a batch."""
        with LockedBatch(self.store, batch, WAIT_S) as locked:
            replay_state = locked.replay_state
            _check_held(replay_state, list(range(replay_state.count)), record_times.next_at(locked))

    def right_time(self, batch: Batch) -> None:
        """Correct the time of a batch's log by this host's clock, or of a file that no worker has leased from."""
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            if locked.replay_state.opened:
                record_times.correct_time(locked, certain=True)
                return
            for name in published.names_of(store, log.layout, batch):
                if record_times.is_of_the_future(store, name):
                    ahead = names.birth_ms(batch) - store.clock.now_ms()
                    log.name = name
                    locked.rename_task_file(name.at(max(0, name.available_at - ahead)))

    def restate(self, batch: Batch) -> None:
        """Append a checkpoint that restates all records of a batch's log."""
        with self._batch(batch) as locked:
            locked.log.recall(again=True)
            locked.log.append_checkpoint()

    def right_count(self, batch: Batch, count: int) -> None:
        """Give the file a name that tells how many tasks there are."""
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            for name in published.names_of(store, log.layout, batch):
                if count not in (name.count, name.inserted):
                    target = name._replace(count=count) if name.inserted is None else name.sealed(count)
                    if locked.replay_state.opened:
                        at = record_times.next_at(locked)
                        locked.append_move(at, name, target)
                    log.name = name
                    locked.rename_task_file(target)

    def promise_more(self, batch: Batch) -> None:
        """Give the file a name that promises its most urgent task."""
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            name = locked.find_task_file()
            if name is None:
                return
            path = log.layout.task_file(name)
            lines = task_file.split_lines(published.content_of(store, path)) if name.inserted is None else []
            rank = urgency_of(lines, locked.replay_state)
            if rank < name.rank:
                target = name.ranked(rank)
                if locked.replay_state.opened:
                    locked.append_move(record_times.next_at(locked), name, target)
                locked.rename_task_file(target)

    def one_name(self, batch: Batch) -> None:
        """Keep that of several files of a batch in which most tasks can be read.

        Of equal ones it is the one that the log speaks of last, or else the earliest.
        """
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            there = {name: log.layout.task_file(name) for name in published.names_of(store, log.layout, batch)}
            last = next((text for text in reversed(locked.replay_state.names) if text in map(str, there)), None)
            lost = {
                name: (self._lost(locked, name, path), str(name) != last, str(name)) for name, path in there.items()
            }
            kept = min(lost, key=lost.__getitem__, default=None)
            for name, path in there.items():
                if name != kept:
                    self.quarantine.move(path)
            log.name, log.lines = kept, None

    def _lost(self, locked: LockedBatch, name: TaskFileName, path: str) -> int:
        """Return how many tasks could not be executed if the batch had no other task file than the one at `path`."""
        if name.inserted is not None:
            return 0  # its tasks are in the log
        try:
            lines = task_file.split_lines(published.content_of(self.store, path))
        except FileNotFoundError:
            lines = []
        replay_state = locked.replay_state
        lost = unreadable(lines, replay_state.count or name.count, replay_state.payloads)
        return sum(not replay_state.opened or replay_state.state[index] in OPEN for index in lost)

    def send_back(self, batch: Batch) -> None:
        """Move what came back of a finished batch into quarantine: its task files, and its log if that came, too.

        The history has every outcome, and the counters have been told. So the log ends, also for a worker that began
        anew.
        """
        store = self.store
        with self._batch(batch) as locked:
            log = locked.log
            replay_state = locked.replay_state
            if not history.finished(store, log.layout.shard(batch), {batch}) or (
                replay_state.opened and not replay_state.remaining
            ):
                return
            if replay_state.opened:
                self.quarantine.keep(log.path, sparse.content_of(store.fs.read_pieces(log.path)))
            for name in published.names_of(store, log.layout, batch):
                self.quarantine.move(log.layout.task_file(name))
            finishing.retire(locked)

    def end_orphan(self, batch: Batch) -> None:
        """End a log that has no batch. What is in it is kept in quarantine: its first line may have been damaged."""
        store = self.store
        with LockedBatch(store, batch, WAIT_S) as locked:
            if not locked.replay_state.opened and not published.names_of(store, locked.log.layout, batch):
                content = sparse.content_of(store.fs.read_pieces(locked.log.path))
                if content:
                    self.quarantine.keep(locked.log.path, content)
                finishing.retire(locked)

    def recount(self, batch: Batch) -> None:
        """Write the bytes that a finished batch lacks in the counters."""
        self._recount.put_back(batch)

    def file_to_its_shard(self, path: str, name: TaskFileName) -> None:
        """Move a task file from another shard's directory to its place, or aside if its batch has finished.

        If its batch has a file there, the one in which most tasks can be read stays.
        """
        store, shard = self.store, self.store.layout.shard(name.batch)
        with self._batch(name.batch) as locked:
            log = locked.log
            replay_state, target = locked.replay_state, log.layout.task_file(name)
            others = published.names_of(store, log.layout, name.batch)
            is_done = replay_state.opened and not replay_state.remaining
            if is_done or history.finished(store, shard, {name.batch}):
                self.quarantine.move(path)
                if not replay_state.opened and not others:
                    finishing.retire(locked)
                return
            lost = self._lost(locked, name, path)
            if any(self._lost(locked, other, log.layout.task_file(other)) <= lost for other in others):
                self.quarantine.move(path)
                return
            if name in others:  # the renaming replaces it
                self.quarantine.keep(target, published.content_of(store, target))
            store.fs.make_directory(os.path.dirname(target))
            store.fs.rename(path, target)
            for other in others:
                if other != name:
                    self.quarantine.move(log.layout.task_file(other))
            log.name, log.lines = name, None
            store.doorbell.ring()

    def log_to_its_shard(self, path: str, uuid: Batch) -> None:
        """Move a movement log to its shard."""
        store, target = self.store, self.store.layout.log(uuid)
        with store.locked_existing(path, WAIT_S) as file:
            store.fs.make_directory(os.path.dirname(target))
            try:
                if history.finished(store, store.layout.shard(uuid), {uuid}):
                    raise FileExistsError
                if not store.fs.same_file(file.fd, target):
                    self._end_untouched(uuid)
                store.fs.link(path, target)
                store.fs.unlink(path)
            except FileExistsError:
                if store.fs.same_file(file.fd, target):
                    store.fs.unlink(path)  # a repair died after its link; a log with two names is not written to
                else:
                    self.quarantine.move(path)

    def _end_untouched(self, batch: Batch) -> None:
        """Retire an empty log: a process made it that did not find the batch's own."""
        with suppress(FileNotFoundError), LockedBatch(self.store, batch, WAIT_S) as locked:
            if not locked.replay_state.opened and not self.store.fs.fstat(locked.log.fd).st_size:
                finishing.retire(locked)

    def _batch(self, batch: Batch) -> LockedBatch:
        """Return the batch's log, locked; made if it is untouched. FileNotFoundError if it ended just now: repeat."""
        return LockedBatch(self.store, batch, WAIT_S, create=True)


def _check_held(replay_state: ReplayState, tasks: list[int], at: int) -> None:
    held = [index for index in tasks if replay_state.state[index] == LEASED and not replay_state.is_free(index, at)]
    if held:
        last = max(held, key=replay_state.since.__getitem__)
        until = time.strftime("%FT%TZ", time.gmtime(replay_state.since[last] / 1000))
        holder = replay_state.holder[last]
        who = describe(holder.worker if holder is not None else None)
        tasks_held = counted(len(held), "task")
        raise StillHeld(f"leases on {tasks_held} hold until {until}, the last by {who}; check again then")


def urgency_of(lines: list[bytes], replay_state: ReplayState) -> Rank:
    """Return the rank of the most urgent task of a batch that has no outcome: of those in its file's lines, if its
    tasks are there, or of those in its log.
    """
    state = replay_state.state if replay_state.opened else None
    known = {**replay_state.priorities, **replay_state.changed}
    ranks = [rank_of(known[index]) for index in known if replay_state.state[index] in OPEN]
    for index, line in enumerate(lines):
        if index in known or b'"priority"' not in line:
            continue
        if state is None or (index < len(state) and state[index] in OPEN):
            with suppress(ValueError):
                ranks.append(rank_of(task_file.decode_task(line).get("priority")))
    return min(ranks, default=LAST)


def unreadable(lines: list[bytes], count: int, payloads: dict[int, object]) -> list[int]:
    """Return the tasks among `count` whose lines are missing or damaged, and were not replaced since."""
    return [
        index for index in range(count) if index not in payloads and not (index < len(lines) and _decodes(lines[index]))
    ]


def _decodes(line: bytes) -> bool:
    try:
        task_file.decode_task(line)
        return True
    except ValueError:
        return False
