"""What all verbs of one open queue share: where it is, its settings, its clock, its open logs."""

from __future__ import annotations

import errno
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import orjson

from fsqueue.clock import Clock, Entropy
from fsqueue.cluster.identity import describe, worker_of_this_process
from fsqueue.errors import FULL, FsqueueError, LockTimeout, NotAQueue, QueueNotFound, from_os_error
from fsqueue.filesystem import Filesystem, mount_of, mountadvice, taken
from fsqueue.format.layout import (
    COUNTERS,
    SETTINGS_FILE,
    Layout,
    QueueState,
    is_passing,
    read_queue_state,
    settings_file,
)
from fsqueue.format.names import Batch, Day, Generation, counters, probe, trashed
from fsqueue.storage import jsonl
from fsqueue.storage.logs import Log

T = TypeVar("T")

FRESH_S = 1.0
"""How old what was read of `queue.jsonl` may be before an append."""
MAKER_WAIT_S = 2.0
"""How long the first who puts something into a generation waits for the lock of `queue.jsonl`."""
BUSY_S, BUSY_WAIT_S = 10.0, 0.02
"""How long a shared file counts as stuck after a vain wait, and how long it is waited for meanwhile."""
BELL_BYTES = 16
"""What the doorbell holds."""
PROBES = 3
"""So often, at most, the clock is measured at a time."""

OPEN_LOGS_MAX = 128
"""How many logs a process keeps open."""


class QueueClosed(QueueNotFound):
    """The queue is marked as deleted, but its directory is still in place: whoever meets it may move it away."""


class Store:
    """An open queue, before any verb. Safe to share between threads; a forked child starts over.

    QueueNotFound or NotAQueue if there is no queue at `path`; nothing is created. UnsafeFilesystem if this host has it
    mounted in a way that is known to be unfit, unless the queue allows that.
    """

    def __init__(
        self,
        path: str,
        worker: str | None = None,
        *,
        fs: Filesystem | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.path = path
        self.mount = mount = mount_of(path)
        self.fs = fs or Filesystem(path, shared=mount.shared, lists_by_time=mount.lists_by_time)
        self.clock = clock or Clock()
        self.entropy = entropy or Entropy()
        self.worker_name = worker
        self.mutex = taken.Mutex()
        self.logs: OrderedDict[str, Log] = OrderedDict()
        self.settings_read = -1e9
        self._size_read = -1
        self._size_now: Callable[[], int] = lambda: -2  # nothing was read yet
        self._busy_until: dict[str, float] = {}
        self.shards_made: set[str] = set()
        """Shard directories that are known to be there, and durable."""
        self.sound_counters: dict[str, tuple[int, float]] = {}
        """Up to where the completion counters, by path, were seen to have no NUL, and since when."""
        self.retried: dict[str, Any] = {}
        """What `retried` has read of files of dead letters, by their paths."""
        self._durable_generation = 1
        self._durable: set[str] = set()
        """Directories whose names are known to be durable."""
        self.queue_state: QueueState
        self.layout: Layout
        self._load()
        if not self.queue_state.allows_unsafe:
            mountadvice.refuse_unfit(mount, path)
        self.settings = self.queue_state.settings
        self._logs_generation = self.queue_state.generation
        self.sync_inserts = self.settings.durability != "none" or self.fs.shared
        self.sync_movements = self.settings.durability == "strict" or self.fs.shared
        self._identify()
        if self.fs.shared:
            self.compare_clock()
        _stores.add(self)

    def _identify(self) -> None:
        self._be(worker_of_this_process(self.worker_name))

    def lease_for_others(self) -> None:
        """Lease for the holders of the tokens from now on: that this process has ended proves nothing about them."""
        self._be({key: value for key, value in self.worker.items() if key != "process"})

    def _be(self, worker: dict[str, Any]) -> None:
        self.worker = worker
        self.worker_json = orjson.dumps(self.worker).decode()
        self.counter_number = counters(COUNTERS)[hash_of(self.worker_json) % COUNTERS]

    # -- the queue state ------------------------------------------------------------------------

    def _load(self) -> bool:
        """Read `queue.jsonl` anew; True if the generation is another one than before."""
        try:
            content, size_now = self._read_settings()
        except FileNotFoundError:
            # Of a queue that was open, what is left is what its reaper has not removed yet, under a name that an NFS
            # client remembers.
            opened = hasattr(self, "queue_state")
            if opened and not self.fs.is_in_place():
                raise self._moved() from None
            found = [] if opened else self.fs.names(self.path)
            if SETTINGS_FILE not in found and not all(map(is_passing, found)):  # else it was created a moment ago
                raise NotAQueue(f"{self.path} is a directory without a queue in it. Check the path.") from None
            raise QueueNotFound(
                f"There is no queue at {self.path}. Check the path, or create it: fsqueue create {self.path}"
            ) from None
        except NotADirectoryError:
            raise NotAQueue(f"{self.path} is a file (or lies below one), not a queue's directory. Check it.") from None
        queue_state = read_queue_state(content, self.path)
        if not self.fs.is_in_place():  # on a full disk a queue is deleted without the mark that says so
            raise self._moved()
        if queue_state.closed:
            raise QueueClosed(f"The queue {self.path} has been deleted.")
        old: QueueState | None = getattr(self, "queue_state", None)
        if old is not None and old.id != queue_state.id:
            raise QueueNotFound(
                f"The queue {self.path} was deleted, and another created in its place: open it again with Queue(path)."
            )
        if old is None or old.generation != queue_state.generation:
            self.layout = Layout(self.path, queue_state.directory, queue_state.settings.shards)
        self.queue_state = queue_state  # after its layout: interrupted in between, the next reading does both again
        self.settings_read = self.clock.monotonic()
        self._size_read, self._size_now = len(content), size_now
        return old is not None and old.generation != queue_state.generation

    def _read_settings(self) -> tuple[bytes, Callable[[], int]]:
        """Return what `queue.jsonl` holds, and a function that tells what size it has from now on."""
        fs, path = self.fs, settings_file(self.path)
        if fs.shared:
            return fs.read(path), lambda: fs.size_on_server(path)
        fd = fs.look(path)
        try:
            content = fs.read_from(fd, 0)
        except BaseException:
            fs.close(fd)
            raise
        return content, fs.watch(path, fd)

    def _moved(self) -> QueueNotFound:
        """Return the error for a queue whose directory is not at its path any more."""
        return QueueNotFound(
            f"The queue {self.path} was deleted (perhaps with another created in its place), or its directory was "
            "moved. What this call had still to do was not done. If there is a queue at that path, open it again with "
            "Queue(path)."
        )

    def is_fresh(self) -> bool:
        """Return whether `queue.jsonl` was read within the last second."""
        return self.clock.monotonic() - self.settings_read <= FRESH_S

    def is_unchanged(self) -> bool:
        """Return whether the queue is neither purged nor deleted since `queue.jsonl` was read. Truth.

        It was read within the last second, and nobody has appended to it since: a purge and a deletion begin so. One
        system call on a local disk, one request to a file server.
        """
        try:
            # On the hot path: `is_fresh`, without a frame of its own.
            return self.clock.monotonic() - self.settings_read <= FRESH_S and self._size_now() == self._size_read
        except OSError:
            return False  # it is gone, perhaps: reading it tells

    def verify(self) -> bool:
        """Read `queue.jsonl` anew if it has changed. True, and errors, as `refresh`."""
        return not self.is_unchanged() and self.refresh(now=True)

    def refresh(self, now: bool = False) -> bool:
        """Read `queue.jsonl` unless it was read within the last second. `verify` asks whether it has changed.

        Return True if a new generation has begun; then all logs are closed. QueueNotFound if the queue is gone.
        """
        if not now and self.is_fresh():
            return False
        with self.mutex:
            moved = self._load()
        if self.fs.shared:
            self.compare_clock()
        generation = self.queue_state.generation
        if self._logs_generation != generation:  # also if what found it out was interrupted
            self.retried.clear()
            self.close_logs()
            self._logs_generation = generation
        return moved

    def explain(self, error: OSError, doing: str) -> FsqueueError:
        """Return what an error of the system means to the user. What is missing may be the whole queue."""
        if isinstance(error, FileNotFoundError):
            try:
                self.refresh(now=True)
            except FsqueueError as gone:
                return gone
            except OSError:
                pass
        return from_os_error(error, doing)

    @contextmanager
    def locked(self, path: str, wait_s: float = jsonl.LOCK_TIMEOUT_S, durable: bool = False) -> Iterator[int]:
        """Open a file shared with others for appending, and lock it. LockTimeout if it stays busy.

        `durable`: what is synced to it must outlive a power loss, and so must its name.
        One that stayed busy just now is not waited for again soon: its holder is stopped.
        """
        clock = self.clock
        recently = clock.monotonic() < self._busy_until.get(path, 0.0)
        try:
            with jsonl.locked(
                self.fs, clock, self.entropy, path, min(wait_s, BUSY_WAIT_S) if recently else wait_s
            ) as fd:
                if durable:
                    self.secure(fd, path)
                yield fd
        except LockTimeout:
            self._busy_until[path] = clock.monotonic() + BUSY_S
            raise

    def secure(self, fd: int, path: str) -> None:
        """Make the name of an open file durable, and those of its directories, unless the file has content already.

        Whichever process writes the first byte has done this before. On a shared mount names are durable at once.
        """
        if self.fs.shared or self.fs.fstat(fd).st_size:
            return
        self.sync_names(os.path.dirname(path))

    def secure_generation(self) -> None:
        """Make the line durable that began the present generation. Call it before tasks are reported inserted.

        The process that wrote the line may have died before it synced it. A power loss would then bring the generation
        before back, and lose the tasks.
        """
        if self.fs.shared or not self.sync_inserts or self.queue_state.generation == self._durable_generation:
            return
        fd = self.fs.look(self.layout.settings_file)
        try:
            self.fs.fsync(fd)
        finally:
            self.fs.close(fd)
        self._durable_generation = self.queue_state.generation

    def sync_names(self, directory: str) -> None:
        """Make the names in a directory durable, and once its own and those above it, up to the queue's.

        The queue itself may have been created a moment ago, and its creator not have come so far yet.
        """
        self.fs.sync_directory(directory)
        while directory not in self._durable:
            above = os.path.dirname(directory)
            try:
                self.fs.sync_directory(above)
            except PermissionError:
                if directory != self.path:
                    raise
                # the directory that holds the queue is another's matter
            self._durable.add(directory)
            if directory == self.path:
                return
            directory = above

    def held(self, path: str, wait_s: float) -> AbstractContextManager[int]:
        """Open an existing file for writing in place, and lock it. FileNotFoundError if it is gone; LockTimeout."""
        return jsonl.held(self.fs, self.clock, self.entropy, path, wait_s)

    def make_generation(self) -> None:
        """Make the directory of the generation, when an inserter finds it missing.

        This holds the lock under which a queue is purged or deleted. So a generation that has ended does not come back,
        and a late inserter leaves nothing in a queue that was created at the same path.
        """
        path = self.layout.settings_file
        try:
            with self.held(path, MAKER_WAIT_S) as fd:
                self._make_generation(fd)
        except LockTimeout:  # the lock's holder is stopped; as long as it is, no other process ends this generation
            fd = self.fs.look(path)
            try:
                self._make_generation(fd)
            finally:
                self.fs.close(fd)

    def _make_generation(self, fd: int) -> None:
        """Make the directory of the generation, if the open `queue.jsonl` still names this generation."""
        if read_queue_state(self.fs.read_from(fd, 0), self.path) == self.queue_state:
            self.fs.make_directory(self.layout.base)

    def making_generation(self, action: Callable[[], T]) -> T:
        """Do `action`. If a file or directory is missing, make the generation's directory, and do `action` again."""
        try:
            return action()
        except FileNotFoundError:
            self.make_generation()
            return action()

    def discard(self, holder: str, tree: Generation | Day) -> bool:
        """Rename a tree in `holder` into the queue's trash, whatever its size. Return False if it is gone already.

        The tree goes beside the trash if the disk has no room for a trash, something else is in the trash's place, or
        another member of the group does not let this user write there.
        """
        path, trash, name = f"{holder}/{tree}", self.layout.trash, trashed(tree, self.entropy.hex16())
        try:
            self.fs.make_directory(trash)
            return self.fs.rename(path, f"{trash}/{name}")
        except OSError as error:
            if error.errno not in (*FULL, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM):
                raise
            return self.fs.rename(path, f"{trash}-{name}")

    def compare_clock(self) -> None:
        """Measure the file server's clock again, if the last time was long ago. Lustre stamps with the client's clock.

        Repeat a vague measurement: how long the server took to answer bounds its error.
        """
        if not self.clock.is_stale() or self.mount.kind == "lustre":
            return
        for _ in range(PROBES):
            path = f"{self.layout.staging}/{probe(self.entropy.hex16())}"
            try:
                self.making_generation(lambda: self.fs.compare_clock(self.clock, path))  # noqa: B023 - called at once
            except (OSError, FsqueueError):
                self._compare_clock_by_touch()
                return
            if not self.clock.is_vague():
                return

    def _compare_clock_by_touch(self) -> None:
        """Measure the server's clock where no probe can be made, as on a full disk, by touching `queue.jsonl`."""
        clock, path = self.clock, self.layout.settings_file
        before = clock.ticks_ms()
        try:
            self.fs.touch(path)
            clock.learn(self.fs.stat(path).st_mtime_ns / 1e6, before, clock.ticks_ms())
        except (OSError, FsqueueError):
            pass  # a queue that one may only read: the local clock will do

    def notify(self) -> None:
        """Notify idle workers that there may be tasks. This is a hint: a lost notification does no harm."""
        try:
            self.fs.overwrite(self.layout.doorbell, self.entropy.bytes16())
        except OSError:
            pass

    def read_notification(self) -> bytes:
        """Return what the doorbell says now; b"" if there is none.

        This takes three system calls, since idle workers do nothing else.
        """
        try:
            fd = self.fs.look(self.layout.doorbell)
        except OSError:
            return b""
        try:
            return self.fs.pread(fd, BELL_BYTES, 0)
        except OSError:
            return b""
        finally:
            self.fs.close(fd)

    # -- open logs ---------------------------------------------------------------------------------

    def log(self, batch: Batch, create: bool = False) -> Log:
        """Return the open log of a batch, opened anew (revalidating) if need be. FileNotFoundError if there is none."""
        with self.mutex:
            log = self.logs.get(batch)
            if log is not None and not log.closed:
                self.logs.move_to_end(batch)
                return log
        layout = self.layout
        path = layout.log(batch)
        fd = self.fs.open_append(path) if create else self.fs.look(path, os.O_RDWR | os.O_APPEND)
        try:
            jsonl.must_have_one_name(self.fs, fd, path)
            if create and self.sync_movements:
                self.secure(fd, path)
        except BaseException:
            self.fs.close(fd)
            raise
        log = Log(self.fs, layout, batch, fd, self.sync_movements)
        old: list[Log] = []
        with self.mutex:
            other = self.logs.get(batch)
            if other is not None and not other.closed:  # another thread was faster
                old, log = [log], other
            else:
                self.logs[batch] = log
                while len(self.logs) > OPEN_LOGS_MAX:
                    old.append(self.logs.popitem(last=False)[1])
        self._close(old)
        return log

    def _close(self, logs: list[Log]) -> None:
        """Close logs, once other threads have left their critical sections."""
        for log in logs:
            if log.enter():
                log.discard()
                log.leave()

    def drop(self, log: Log) -> None:
        """Close a log and forget it. Its mutex is held."""
        with self.mutex:
            if self.logs.get(log.batch) is log:
                del self.logs[log.batch]
        log.discard()

    def lock(self, log: Log, wait_s: float) -> bool:
        """Lock a log's file, waiting up to `wait_s`; its mutex is held. False if it stayed busy."""
        if self.fs.try_lock(log.fd):
            return True
        return wait_s > 0 and self.fs.lock(log.fd, self.clock, self.entropy, wait_s)

    def busy(self, log: Log) -> LockTimeout:
        """Return the error for a log whose lock stayed busy. The log is to be dropped: it was read without the lock."""
        log.catch_up()
        holder = max(log.replay_state.leases.values(), key=lambda lease: lease.at, default=None)
        who = f" The log last saw {describe(holder.worker)}." if holder is not None else ""
        return LockTimeout(
            f"The lock of batch {log.batch} in {self.path} stayed busy for {jsonl.LOCK_TIMEOUT_S:g} s: "
            f"its holder is stopped or cut off.{who} Nothing was done in it; repeat the call."
        )

    def close(self) -> None:
        """Close everything that is open; what is leased stays leased. The next use proves the queue's id anew."""
        with taken.Scope():
            self.close_logs()
            self.settings_read = -1e9
            self._size_now = lambda: -2
        self.fs.close_root()

    def close_logs(self) -> None:
        """Close everything that is open; what is leased stays leased."""
        with self.mutex:
            logs = list(self.logs.values())
            self.logs.clear()
        self._close(logs)

    def _after_fork(self) -> None:
        """After a fork, in the child: close inherited descriptors without unlocking them, and take a new identity."""
        for log in self.logs.values():
            log.after_fork()
        self.logs.clear()
        self.mutex = taken.Mutex()
        self.fs.after_fork()
        self.entropy.forget()
        self._identify()


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def hash_of(text: str) -> int:
    """Return a stable hash of a text: crc32."""
    import zlib

    return zlib.crc32(text.encode())
