"""Named commits as users hold them: many writers stage, one publishes, repeating is harmless.

`fsqueue.storage.commits` has the files and the order of writes (docs/design.md, section 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsqueue import forks
from fsqueue.arguments import payloads_of, unchanged, verb, whole
from fsqueue.errors import CommitLost, FsqueueError, InvalidArgument, InvalidTask, QueueNotFound
from fsqueue.filesystem import is_gone
from fsqueue.format import names
from fsqueue.format.layout import Layout
from fsqueue.format.models import CommitPart, CommitReport
from fsqueue.format.names import CommitName, Uuid
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import encoding, insert_errors, overwriting
from fsqueue.storage import commits, queue_changes
from fsqueue.storage.commits import Part, Record
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError, user_items


class Commit:
    """A commit under way: `queue.commit(name)`. It pickles, to be sent to the processes that stage parts of it.

    Everything published under a name appears together, once: a process that publishes the name again, now
    or in a year, gets a report of what was inserted, and adds nothing. A purge of the queue forgets its commits.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        attempt: str | None = None,
        why_gone: Callable[[QueueNotFound], FsqueueError] = lambda error: error,
    ) -> None:
        """`why_gone`: tells what to raise if the queue is not there any more."""
        self.store, self._why_gone = store, why_gone
        self.name = names.commit_name(name)
        self.attempt = (
            names.new_uuid(store.entropy, store.clock.now_ms()) if attempt is None else names.attempt_name(attempt)
        )
        """Names what this object and its copies stage. Other objects of the same commit have other attempts."""
        self.of = ""
        """What the record tells of the tasks that this object publishes (`Record.of`)."""

    def __reduce__(self) -> tuple[Callable[..., Commit], tuple[str, str | None, str, str]]:
        return _reopened, (self.store.path, self.store.worker_name, self.name, self.attempt)

    def __repr__(self) -> str:
        return f"Commit({self.store.path!r}, {self.name!r})"

    @verb("staging")
    def stage(
        self, tasks: Iterable[Any], *, batch_tasks: int | None = None, delay_s: float = 0, strict: bool = False
    ) -> CommitPart:
        """Write payloads or Tasks where no worker sees them, durably and in bounded memory. Any number, on any host.

        `batch_tasks`: tasks a file (default: as many as fit). `strict`: see `Queue.insert`. Delays count from now on.
        InvalidTask.part is what came before the bad task. What is never published is reaped a week after the commit's
        last part.
        """
        if batch_tasks is not None:
            whole("batch_tasks", batch_tasks)
        self.store.refresh()
        size = batch_tasks or self.store.settings.batch_tasks_max
        given, when = payloads_of(tasks, "stage"), encoding.default_when(delay_s)
        given = unchanged(given) if strict else given
        return self._stage(encoding.batches_of(encoding.TaskStream(given), self.store, when, size, None))

    @verb("staging")
    def stage_encoded(self, batches: Iterable[encoding.Encoded]) -> CommitPart:
        """Stage batches that the caller has encoded, as they are: the caller answers for them. Return their part."""
        self.store.refresh()
        return self._stage(user_items(batches))

    def _stage(self, batches: Iterable[encoding.Encoded | None]) -> CommitPart:
        stager = _Stager(self.store, self.name, self.attempt)
        try:
            return stager.stage(batches)
        except OSError as error:
            let_out(error)
            failure = self.store.explain(error, "staging", commits.NOTHING)
            if is_gone(error) and stager.is_overtaken:
                failure = stager.overtaken()
            insert_errors.note_none_inserted(failure)
            raise failure from error

    @verb("publishing a commit")
    def publish(self, parts: CommitPart | Iterable[CommitPart], *, overwrite: bool = False) -> CommitReport:
        """Insert what these parts hold, all of it at one instant; or report what was inserted under this name before.

        `overwrite`: at the same instant everything else in the queue is purged.

        Parts may come from copies of this object, and from others of the same name. The first to publish a name
        decides what it inserts. If this fails, nothing is visible, or everything is, or will be. Repeat the call
        until it reports. CommitLost: what was staged is gone (the queue was purged, or a week has passed).
        """
        store = self.store
        store.refresh(now=True)
        layout = store.layout
        parts = self._parts(parts)
        given = list(map(Part.of, parts))
        known = commits.find(store, layout, self.name)
        repeated, begun = known is not None, False
        if known is None:
            self._refuse_purged(parts)
            now = store.clock.now_ms()
            own = Record(names.new_uuid(store.entropy, now), self.name, now, tuple(given), self.of)
            try:
                known = overwriting.begin(store, own) if overwrite else commits.decide(store, layout, own)
            except OSError as error:
                let_out(error)
                failure = store.explain(error, commits.DOING, commits.NOTHING)
                insert_errors.note_none_inserted(failure)
                raise failure from error
            except FsqueueError as error:
                insert_errors.note_none_inserted(error)
                raise
            repeated = known.id != own.id
            begun = overwrite
        return self._conclude(layout, known, {part.attempt for part in given}, repeated, begun)

    @verb("looking for a commit")
    def committed(self) -> CommitReport | None:
        """Return what was inserted under this name, by whomever; None if nothing was decided yet."""
        store = self.store
        store.refresh(now=True)
        layout = store.layout
        known = commits.find(store, layout, self.name)
        return None if known is None else self._conclude(layout, known, set(), True)

    @verb("forgetting a commit")
    def forget(self) -> bool:
        """Forget that this name was committed, after applying it. Publishing it again inserts again.

        Call it only if no process publishes the name again. A stream of commits knows that of its last but one.
        Return False if there was nothing.
        """
        if self.committed() is None:
            return False
        store = self.store
        return store.fs.unlink(store.layout.record(self.name))

    @verb("discarding a commit")
    def discard(self) -> bool:
        """Remove what this object and its copies have staged. False, with nothing removed: it is being published.

        What was published stays, so this may be called whatever happened.
        """
        self.store.refresh(now=True)
        return commits.reap(self.store, self.store.layout, self.attempt, self.name)

    def _parts(self, parts: CommitPart | Iterable[CommitPart]) -> list[CommitPart]:
        given: list[CommitPart] = []
        if not isinstance(parts, (CommitPart, Iterable)):
            raise InvalidArgument(f"publish takes parts, as `stage` returns them, not {parts!r}. Nothing was done.")
        for part in [parts] if isinstance(parts, CommitPart) else user_items(parts):
            if not isinstance(part, CommitPart):
                raise InvalidArgument(f"publish takes parts, as `stage` returns them, not {part!r}.")
            if part.commit != self.name or part.queue != self.store.queue_state.id:
                raise InvalidArgument(f"{part!r} was staged for another commit or queue than {self!r}.")
            given.append(part)
        return list(dict.fromkeys(given))

    def _refuse_purged(self, given: list[CommitPart]) -> None:
        if any(part.generation != self.store.queue_state.generation for part in given):
            raise CommitLost(
                f"The queue {self.store.path} was purged since the tasks were staged for the commit {self.name}. "
                "Nothing of them is visible; stage them again, and publish that."
            )

    def _conclude(
        self, layout: Layout, record: Record, attempts: set[Uuid], repeated: bool, overwrote: bool = False
    ) -> CommitReport:
        """Do what is left to do of a decided commit, and report. An error says that it is decided.

        `overwrote`: the generation of `layout` was overwritten, by this commit unless `repeated`. CommitLost if the
        generation of the commit has ended meanwhile: what was decided in it is purged.
        """
        try:
            if overwrote:
                layout = self._begun(layout, repeated)
            return self._finish(layout, record, attempts, repeated)
        except CommitLost:
            raise
        except (OSError, FsqueueError) as error:
            let_out(error)
            if not isinstance(error, QueueNotFound) and self._has_ended(layout, record):
                raise self._purged() from error
            failure = self.store.explain(error, commits.DOING, commits.DECIDED)
            failure.inserted = failure.new = 0 if repeated else record.total("tasks")
            raise failure from error if isinstance(error, OSError) else error.__cause__

    def _has_ended(self, layout: Layout, record: Record) -> bool:
        """Return whether the generation in which a record was decided has ended, as far as that can be found out.

        After an error: what it says would otherwise be as old as the last look at `queue.jsonl`. QueueNotFound.
        """
        store = self.store
        try:
            store.refresh(now=True)
            if store.layout is layout:
                return False
            found = commits.find(store, store.layout, self.name)  # an overwriting is decided in the next generation
        except QueueNotFound:
            raise
        except (OSError, FsqueueError) as error:
            let_out(error)
            return False
        return found is None or found.id != record.id

    def _purged(self) -> CommitLost:
        return CommitLost(
            f"The queue {self.store.path} was purged while {self.name} was being published. Stage it again."
        )

    def _begun(self, layout: Layout, repeated: bool) -> Layout:
        """Return the layout of the generation that an overwriting has begun, and trash the one before it.

        If that fails now, `gc` does it.
        """
        self.store.refresh(now=True)
        if not repeated:
            try:
                self.store.discard(self.store.path, layout.directory)
            except OSError as error:
                let_out(error)
                commits.logger.warning("what was overwritten in %s is still there (%s)", self.store.path, error)
        return self.store.layout

    def _finish(self, layout: Layout, record: Record, attempts: set[Uuid], repeated: bool) -> CommitReport:
        """Apply what was decided, drop what was not, and report."""
        store = self.store
        store.refresh(now=True)  # if the tree was purged before the record was linked, this tells
        if store.layout is not layout:
            raise self._purged()
        commits.apply(store, layout, record)
        for attempt in attempts - record.attempts().keys():
            commits.drop(store, layout.attempt(attempt, self.name))
        tasks, files, size = map(record.total, ("tasks", "files", "bytes"))
        return CommitReport(self.name, tasks, files, size, record.at / 1000, repeated)


class _Stager:
    """Write one part to disk: files named in a row, in groups of bounded size."""

    def __init__(self, store: Store, name: CommitName, attempt: Uuid) -> None:
        self.store = store
        self.layout = store.layout
        self.name, self.attempt = name, attempt
        self.directory = self.layout.attempt(attempt, name)
        self.first = names.new_batch(store.entropy, store.clock.now_ms())
        self.files = self.tasks = self.bytes = 0
        self.opened: list[int] = []
        """Descriptors of files that are written and perhaps not synced: those of one group, or of two."""
        self.generation = store.queue_state.generation
        self._process = forks.depth

    @property
    def is_overtaken(self) -> bool:
        """Tell whether a purge of the queue has been seen since this began."""
        return self.store.layout is not self.layout

    def overtaken(self) -> CommitLost:
        """Return what to say then. The name is free: the purge has forgotten it."""
        return CommitLost(
            f"The queue {self.store.path} was purged while {self.name} was being staged. Nothing of it is visible, and "
            "the name is free: repeat the call, or the command, to insert it into the purged queue."
        )

    def stage(self, batches: Iterable[encoding.Encoded | None]) -> CommitPart:
        """Stage all tasks up to the end of the stream, or up to a bad one, and return their part.

        After any other error nothing is left of them.
        """
        store = self.store
        try:
            store.fs.close(store.making_generation(lambda: store.fs.open_append(f"{self.directory}/{commits.LOCK}")))
            broken = None
            try:
                for group in encoding.groups_of(batches):
                    self._write(group)
            except InvalidTask as error:
                broken = error
            part = self._finish_part()
        except BaseException:
            self._give_up()
            raise
        if broken is not None:
            broken.part = part
            raise broken
        return part

    def _write(self, group: list[encoding.Encoded]) -> None:
        """Write a group's files, then sync those of the group before: the system has written most by then."""
        store, fs, before = self.store, self.store.fs, len(self.opened)
        queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))
        for encoded in group:
            at = encoding.moment(store, encoded.when)
            name = names.TaskFileName(at, names.successor(self.first, self.files), encoded.tasks).ranked(encoded.rank)
            self.opened.append(fs.create(f"{self.directory}/{name}"))
            self.files += 1
            fs.write_all(self.opened[-1], encoded.content())
            if store.sync_inserts:
                fs.drop_cached(self.opened[-1])  # begins writing: a sync would otherwise wait for the journal
            self.tasks += encoded.tasks
            self.bytes += encoded.size
        self._sync(before)

    def _sync(self, count: int) -> None:
        """Sync and close the first `count` files that are still open."""
        done, self.opened = self.opened[:count], self.opened[count:]
        try:
            for fd in done if self.store.sync_inserts else ():
                self.store.fs.fsync(fd)
        finally:
            self._close(done)

    def _close(self, fds: list[int]) -> None:
        for fd in fds:
            self.store.fs.close(fd)

    def _finish_part(self) -> CommitPart:
        """Make files and names durable; CommitLost if the queue was purged meanwhile."""
        store, layout = self.store, self.layout
        self._sync(len(self.opened))
        if store.sync_inserts:
            store.fs.sync_directory(self.directory)
            store.names.sync(layout.staging)  # each time: the attempt's directory may have been removed and made again
        store.refresh(now=True)
        if self.is_overtaken:
            raise self.overtaken()
        sizes = self.files, self.tasks, self.bytes
        return CommitPart(self.name, self.attempt, self.first, *sizes, store.queue_state.id, self.generation)

    def _give_up(self) -> None:
        """Remove what was staged. What cannot be removed now is reaped with the attempt.

        A child that was forked meanwhile only closes what it has inherited: its parent goes on.
        """
        with suppress(OSError):
            self._close(self.opened)
        if self._process != forks.depth:
            return
        part = Part(self.attempt, self.first, self.files, self.tasks, self.bytes)
        with suppress(OSError, FsqueueError):
            for name in commits.staged(self.store, self.layout, self.attempt, self.name, [part]):
                self.store.fs.unlink(f"{self.directory}/{name}")


def must_be_as_many(known: CommitReport, tasks: int, of: str = "task") -> None:
    """Raise InvalidArgument if a commit was made of another number of tasks: these are others, and no repetition.

    `of`: what is counted, in the singular.
    """
    if known.tasks != tasks:
        raise _others(known, f"here {'is' if tasks == 1 else 'are'} {counted(tasks, of)}")


def must_be_none(known: CommitReport, has_any: bool) -> None:
    """Raise InvalidArgument if a commit was made of no tasks, and here are some."""
    if has_any and not known.tasks:
        raise _others(known, "here are 1 or more tasks")


def _others(known: CommitReport, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"The commit {known.name} was made before, with {counted(known.tasks, 'task')}, and {what}. So they are "
        "others, and were not inserted. Give them another name."
    )


def warn_of_none(report: CommitReport) -> None:
    """Log a warning if a commit was made of no tasks: its name is used up."""
    if not report.tasks and not report.repeated:
        commits.logger.warning(
            "the commit %s was made with no tasks. Its name is used up: other tasks need another name", report.name
        )


def insert_once(store: Store, tasks: Iterable[Any], name: str, delay_s: float, batch_tasks: int | None) -> int:
    """Insert all tasks under a name, or none of them; return how many are new.

    If the name was committed before, that is none, and the stream is not read. After an error either nothing is
    visible or everything is. Repeat the call to learn which.
    """
    commit, process = Commit(store, name), forks.depth
    try:
        if (known := commit.committed()) is not None:
            if not known.tasks:  # else the stream is not read
                must_be_none(known, any(True for _ in tasks))
            return 0
    except FsqueueError as error:
        insert_errors.note_none_inserted(error)
        raise
    try:
        part = commit.stage(tasks, batch_tasks=batch_tasks, delay_s=delay_s)
        report = commit.publish([part])
        if report.repeated and not report.tasks:  # another process was quicker, and had none
            must_be_as_many(report, part.tasks)
    except BaseException as error:
        if isinstance(error, InvalidTask):
            error.inserted, error.new, error.part = 0, 0, None
        elif isinstance(error, FsqueueError):
            insert_errors.note_none_inserted(error)
        elif isinstance(error, UserCodeError):
            error.count(0, 0)
        if isinstance(error, Exception) and process == forks.depth:
            with suppress(FsqueueError):  # otherwise `gc` does it
                commit.discard()
        raise
    warn_of_none(report)
    return 0 if report.repeated else report.tasks


def _reopened(path: str, worker: str | None, name: str, attempt: str) -> Commit:
    return Commit(Store(path, worker), name, attempt)
