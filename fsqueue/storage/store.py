"""Hold the state that all verbs of one open queue share: its path, its settings, its clock, its open logs."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

import orjson

from fsqueue import forks
from fsqueue.clock import Clock, Entropy, LatestMeasurement, duration_ms
from fsqueue.cluster.identity import worker_of_this_process
from fsqueue.errors import FULL, FsqueueError, LockTimeout, QueueNotFound, from_os_error
from fsqueue.filesystem import Filesystem, is_gone, mount_of, mountadvice, resolved_name, resources
from fsqueue.filesystem.processes import boot_id
from fsqueue.format import names, task_file
from fsqueue.format.layout import COUNTERS, Layout, Pause, QueueLimits, QueueState
from fsqueue.format.names import Day, Generation, KeyEpoch, QueueDirectory, counters, probe, trashed
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import journals, listening
from fsqueue.storage.journals import J, Journal
from fsqueue.storage.listening import Doorbell
from fsqueue.storage.open_logs import DurableNames, OpenLogs
from fsqueue.storage.queue_file import QueueFile, state_in

T = TypeVar("T")

MAKER_WAIT_S = 2.0
"""Seconds that the first process to put a file into a generation waits for the lock of `queue.jsonl`."""
BUSY_S, BUSY_WAIT_S = 10.0, 0.02
"""Seconds for which a file counts as stuck after a wait without success, and seconds to wait for it meanwhile."""
PROBES = 3
"""Maximum number of measurements of the clock at a time."""


def domain_of(fs: Filesystem) -> str:
    """Return the domain, as in `Store.domain`, of the queues on a filesystem."""
    return task_file.SHARED if fs.shared else boot_id()


class QueueHolder(Protocol):
    """An open group, which holds queues, and opens them."""

    def open_root(self, fs: Filesystem) -> None:
        """Open the directory of a queue, which must not be done by its path."""

    def refuse_foreign(self, state: QueueState, path: str) -> None:
        """Raise NotAQueue unless this is a queue of the group: nothing is written into any other one."""

    def measurement_for(self, fs: Filesystem) -> LatestMeasurement:
        """Return the latest measurement of the clock of the file server that has a queue's open directory."""

    def doorbell(self, fs: Filesystem, path: str, entropy: Entropy) -> Doorbell:
        """Return the doorbell of a queue whose directory is open. `path` is that of the doorbell."""


class Store:
    """An open queue, before any verb. Safe to share between threads; a forked child starts over.

    QueueNotFound or NotAQueue if there is no queue at `path`; nothing is created. UnsafeFilesystem if this host has it
    mounted in a way that is known to be unfit, unless the queue allows that. `holder`: the group in which it is opened.
    """

    def __init__(
        self,
        path: str,
        worker: str | None = None,
        *,
        fs: Filesystem | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        holder: QueueHolder | None = None,
    ) -> None:
        self.path = path
        self.mount = mount = mount_of(path)
        self.fs = fs or Filesystem(path, shared=mount.shared, lists_by_time=mount.lists_by_time)
        if holder is not None:
            holder.open_root(self.fs)
        self.clock = clock or Clock()
        self._measurement = LatestMeasurement() if holder is None else holder.measurement_for(self.fs)
        self.entropy = entropy or Entropy()
        self.worker_name = worker
        self.mutex = resources.Mutex()
        self.queue_file = QueueFile(path, self.fs, self.clock, None if holder is None else holder.refuse_foreign)
        self.queue_file.read()
        if not self.queue_state.allows_unsafe:
            mountadvice.refuse_unfit(mount, path)
        self._take_settings()
        self.noted_pause: Pause | None = None
        """The pause that the user was told of: see `waiting.pause_news`."""
        self.full: QueueLimits | None = None
        """The limits that allowed no more leases at the last look; None: it had room, or there are none. A hint."""
        self.noted_full: QueueLimits | None = None
        """The limits of which the user was told that they allow no more: see `waiting.limit_news`."""
        durability = self.settings.durability
        self.sync_inserts = durability != "none" or self.fs.shared
        self.sync_movements = durability == "strict" or self.fs.shared
        self.names = DurableNames(self.fs, path)
        self.logs = OpenLogs(self.fs, self.queue_file, self.names, self.sync_movements, self.clock)
        make_doorbell = Doorbell if holder is None else holder.doorbell
        self.doorbell = make_doorbell(self.fs, self.layout.doorbell, self.entropy)
        self.read_counters: dict[str, tuple[int, int, float]] = {}
        """Up to where each completion counter, by path, was read, the marks before that, and since when this stands."""
        self.retried: dict[str, Any] = {}
        """Findings of `retrying` in files of dead letters, by the files' paths."""
        self.group: Any = None
        """The open group that the queue lies in, once `decisions` has asked for it."""
        self._directory: QueueDirectory | None = None
        """The name of the queue's directory in its group, once it was asked for."""
        self._busy_until: dict[str, float] = {}
        self._durable_lines = (1, False)
        """The generation whose line in `queue.jsonl` is known to be on disk, and whether those of the format and of the
        order are, too.
        """
        self._logs_generation = self.queue_state.generation
        self.domain = domain_of(self.fs)
        """Domain whose inserts this process may add to an open batch. On a local disk a power loss may have taken
        records that were not synced, and that others had acted upon: so only those of the same boot. "" if that is not
        known."""
        self._leases_for_others = False
        self._identify()
        if self.fs.shared:
            self.compare_clock()
        forks.register(self, Store.after_fork)

    def _identify(self) -> None:
        worker = worker_of_this_process(self.worker_name)
        if self._leases_for_others:
            worker.pop("process", None)
        self._be(worker)

    def _be(self, worker: dict[str, Any]) -> None:
        self.worker = worker
        self.counter_number = counters(COUNTERS)[hash_of(orjson.dumps(worker).decode()) % COUNTERS]

    def lease_for_others(self) -> None:
        """Lease for the holders of the tokens from now on: that this process has ended proves nothing about them."""
        self._leases_for_others = True
        self._identify()

    # -- the queue state ------------------------------------------------------------------------

    @property
    def queue_state(self) -> QueueState:
        """Return the content of `queue.jsonl` as it was last read."""
        return self.queue_file.state

    @property
    def directory_in_group(self) -> QueueDirectory | None:
        """Return the name of the queue's directory in its group; None for one that was not made in a group.

        The queue may have been opened through a link of another name. A hint: `decisions.group_of` proves it.
        """
        if self.queue_state.group is None:
            return None
        if self._directory is None:
            self._directory = names.listed_queue_directory(resolved_name(self.path))
        return self._directory

    def forget_directory(self) -> None:
        """Have the next look at `directory_in_group` resolve links anew."""
        self._directory = None

    @property
    def name_in_group(self) -> str | None:
        """Return the queue's name in its group; None for one that was not made in a group."""
        directory = self.directory_in_group
        return names.parse_queue_directory(directory) if directory is not None else None

    def lies_at(self, group: Any, directory: QueueDirectory) -> bool:
        """Return whether this is the queue of an open group that has this directory. A hint, as `directory_in_group`.

        False if the queue may be another one, which has to be opened.
        """
        return self.path == group.path_of(directory) or (self.group is group and self.directory_in_group == directory)

    @property
    def layout(self) -> Layout:
        """Return the layout of the present generation."""
        return self.queue_file.layout

    def verify(self) -> bool:
        """Read `queue.jsonl` again if it has changed. True, and errors, as `refresh`."""
        return not self.queue_file.is_unchanged() and self.refresh(now=True)

    def verify_place(self) -> bool:
        """Read `queue.jsonl` again if it has changed, or if the queue's directory is not in its place. See `verify`."""
        return not (self.queue_file.is_unchanged() and self.fs.is_in_place()) and self.refresh(now=True)

    def _take_settings(self) -> None:
        """Take over the settings as last read. Those that are read at each lease are plain attributes."""
        self.settings = settings = self.queue_state.settings
        self.lease_ms = duration_ms(settings.lease_s, "lease_s")

    def refresh(self, now: bool = False) -> bool:
        """Read `queue.jsonl` unless it was read within the last second. `verify` asks whether it has changed.

        Return True if a new generation has begun. QueueNotFound if the queue is gone. In both cases close all logs.
        """
        if not now and self.queue_file.is_fresh():
            return False
        try:
            with self.mutex:
                before = self.queue_state.generation
                self.queue_file.read()
                moved = self.queue_state.generation != before
                self._take_settings()
        except QueueNotFound:
            self.logs.close()
            raise
        if self.fs.shared:
            self.compare_clock()
        generation = self.queue_state.generation
        if self._logs_generation != generation:  # also if what found it out was interrupted
            self.retried.clear()
            self.logs.close()
            self._logs_generation = generation
        return moved

    def explain(self, error: OSError | FsqueueError, doing: str, then: str = "") -> FsqueueError:
        """Return the error of this package that tells the user what an error of the system means. What is missing may
        be the whole queue.

        `then`: sentences for the end: what is done, and how to go on.
        """
        if isinstance(error, FsqueueError):
            if then and not isinstance(error, QueueNotFound):
                error.args = (f"{error} {then}", *error.args[1:])
            return error
        if is_gone(error):
            try:
                self.refresh(now=True)
            except FsqueueError as gone:
                return gone
            except OSError as other:
                let_out(other)
        return from_os_error(error, doing, then)

    def locked(
        self, path: str, wait_s: float = journals.LOCK_TIMEOUT_S, durable: bool = False, openings_max: int = 0
    ) -> AbstractContextManager[Journal]:
        """Open a file for appending, and lock it: see `locked_as`."""
        return self.locked_as(Journal, path, wait_s, durable, openings_max)

    @contextmanager
    def locked_as(
        self, kind: Callable[[Filesystem, str, int], J], path: str, wait_s: float, durable: bool, openings_max: int
    ) -> Iterator[J]:
        """Open a file shared with others for appending, making it if need be, and lock it: see `journals.locked`.

        `durable`: what is synced to it must outlive a power loss, and so must its name.
        One that stayed busy just now is not waited for again soon: its holder is stopped.
        """
        clock = self.clock
        recently = clock.monotonic() < self._busy_until.get(path, 0.0)
        wait_s = min(wait_s, BUSY_WAIT_S) if recently else wait_s
        try:
            with journals.locked(
                kind, self.fs, clock, self.entropy, path, wait_s, journals.MADE, openings_max
            ) as journal:
                if durable:
                    self.names.secure(journal.fd, path)
                yield journal
        except LockTimeout:
            self._busy_until[path] = clock.monotonic() + BUSY_S
            raise

    def secure_generation(self) -> None:
        """Make the lines durable that began the present generation, and that say that tasks have priorities.

        Call it before tasks are reported inserted. The process that wrote such a line may have died before it synced
        it. A power loss would then bring the generation before back, and lose the tasks. Or workers would not know that
        they must compare priorities.
        """
        state = self.queue_state
        needed = (state.generation, state.is_ordered)
        if self.fs.shared or not self.sync_inserts or needed == self._durable_lines:
            return
        with self.fs.closing(self.fs.look(self.layout.settings_file)) as fd:
            self.fs.fsync(fd)
        self._durable_lines = needed

    def locked_existing(self, path: str, wait_s: float, one_name: bool = False) -> AbstractContextManager[Journal]:
        """Open an existing file for writing in place, and lock it: see `journals.locked`."""
        flags = journals.IN_PLACE
        return journals.locked(Journal, self.fs, self.clock, self.entropy, path, wait_s, flags, one_name=one_name)

    def make_generation(self) -> None:
        """Make the directory of the generation, when an inserter finds it missing.

        This holds the lock under which a queue is purged or deleted. So a generation that has ended does not come back,
        and a late inserter leaves nothing in a queue that was created at the same path.
        """
        path = self.layout.settings_file
        try:
            with self.locked_existing(path, MAKER_WAIT_S) as file:
                self._make_generation(file.fd)
        except LockTimeout:  # the lock's holder is stopped; as long as it is, no other process ends this generation
            with self.fs.closing(self.fs.look(path)) as fd:
                self._make_generation(fd)

    def _make_generation(self, fd: int) -> None:
        """Make the directory of the generation, if the open `queue.jsonl` still names this generation."""
        if state_in(self.fs, fd, self.path) == self.queue_state:
            self.fs.make_directory_for_owner(self.layout.base)

    def making_generation(self, action: Callable[[], T]) -> T:
        """Call `action`. If a file or directory is missing, make the generation's directory, and call it again."""
        try:
            return action()
        except FileNotFoundError:
            self.make_generation()
            return action()

    def discard(self, holder: str, tree: Generation | Day | KeyEpoch) -> bool:
        """Rename a tree in `holder` into the queue's trash, whatever its size. Return False if it is gone already.

        The tree goes beside the trash in three cases: the disk has no room for a trash; something else is in its
        place; this user may not write in a trash that another member of the group has made.
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

        What another queue of the group has measured is enough. Repeat a vague measurement: how long the server took to
        answer bounds its error.
        """
        if not self.clock.is_stale() or self.mount.kind == "lustre" or self._measurement.tell(self.clock):
            return
        for _ in range(PROBES):
            path = f"{self.layout.staging}/{probe(self.entropy.hex16())}"
            try:
                self.making_generation(lambda: self.fs.compare_clock(self.clock, path))  # noqa: B023 - called at once
            except (OSError, FsqueueError) as error:
                let_out(error)
                self._compare_clock_by_touch()
                return
            if not self.clock.is_vague():
                self._measurement.note(self.clock)
                return

    def _compare_clock_by_touch(self) -> None:
        """Measure the server's clock where no probe can be made, as on a full disk, by touching `queue.jsonl`."""
        clock, path = self.clock, self.layout.settings_file
        before = clock.ticks_ms()
        with suppress(OSError, FsqueueError):  # a queue that one may only read: the local clock will do
            self.fs.touch(path)
            clock.learn(self.fs.stat(path).st_mtime_ns / 1e6, before, clock.ticks_ms())

    def close(self) -> None:
        """Close everything that is open; what is leased stays leased. The next use proves the queue's id anew."""
        with resources.Scope():
            self.logs.close()
            self.queue_file.forget()
        self.group = None
        for listener in listening.idle_over(self.doorbell):
            listening.close_idle(listener)
        self.fs.close_root()

    def after_fork(self) -> None:
        """Take a new identity in a forked child."""
        self._identify()


def hash_of(text: str) -> int:
    """Return a stable hash of a text: crc32."""
    return zlib.crc32(text.encode())
