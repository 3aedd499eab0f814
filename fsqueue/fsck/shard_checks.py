"""Check a shard's files: task files and logs together, dead letters, history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from fsqueue.errors import HiddenTasks
from fsqueue.format import movements, names, sparse, task_file
from fsqueue.format.models import GcReport
from fsqueue.format.names import Batch, Shard, TaskFileName
from fsqueue.format.replay import DEAD, ReplayState
from fsqueue.format.wording import counted
from fsqueue.fsck import journal_checks, logged_updates, recount, unique_keys
from fsqueue.fsck.findings import Finding, Suspect, found, guarded, no_access
from fsqueue.fsck.journal_kinds import LOG, LOG_LINES, JournalKind
from fsqueue.fsck.repair import GRACE_S, LOOK_ONLY, OPEN, WAIT_S, Repair, unreadable, urgency_of
from fsqueue.interruptions import let_out
from fsqueue.storage import deadletters, history, published, record_times
from fsqueue.storage.store import Store
from fsqueue.upkeep import collect

MAKER_LOOKS = 10
"""How often to look again, in pauses of GRACE_S, at a log without a batch: a busy host may let its maker wait."""


class BatchLook:
    """One look at a batch: its names, its log, and its task file where that matters."""

    def __init__(
        self,
        store: Store,
        batch: Batch,
        there: list[TaskFileName],
        content: list[sparse.Piece] | None,
        is_finished: bool,
    ) -> None:
        self.store = store
        self.batch = batch
        self.names = there
        self.log = store.layout.log(batch)
        self.replay_state = ReplayState()
        self.content = content
        self.is_finished = is_finished
        """Whether the history knows that every task has an outcome."""
        self.replay_state.replay_pieces(content or [], 0)

    @property
    def has_returned(self) -> bool:
        """Return whether the batch has finished, and its file or its log is there as if it had not."""
        replay_state = self.replay_state
        return self.is_finished and (bool(replay_state.remaining) if replay_state.opened else bool(self.names))

    @property
    def _may_change(self) -> bool:
        """Return whether tasks may still come: from an inserter, or from an update that is not decided."""
        return self.replay_state.takes_inserts or bool(self.replay_state.prepared)

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, judged together: what has returned must not be executed, so nothing else is mended."""
        store, replay_state = self.store, self.replay_state
        if self.has_returned:
            path = store.layout.task_file(self.names[0]) if self.names else self.log
            yield found(store, "returned-file", path, replay_state.remaining or self.names[0].tasks)
            return
        if self.content is not None:
            yield from self._lines(self.content)
        if replay_state.gone or (self.content is not None and not replay_state.opened and not self.names):
            yield found(store, "orphaned-log", self.log)
        elif replay_state.opened and not (
            replay_state.remaining or replay_state.takes_inserts or replay_state.prepared
        ):
            yield found(store, "unfinished", self.log, replay_state.count)
        elif replay_state.opened and not self.names:
            yield found(store, "task-file-gone", self.log, replay_state.remaining)
        elif self.names:
            yield from self._file()
            yield from self._letters()
            yield from self._time()
            if replay_state.is_misled:
                yield found(store, "wrong-checkpoint", self.log, replay_state.remaining)

    def _lines(self, content: list[sparse.Piece]) -> Iterator[Finding]:
        bad, end = LOG_LINES.unsound_of(sparse.lines(content, 0))
        if bad:
            yield found(self.store, LOG.unsound, self.log, note=counted(len(bad), "line"))
        if LOG.torn is not None and sparse.end_of(content) > end:
            yield found(self.store, LOG.torn, self.log)

    def _file(self) -> Iterator[Finding]:
        store, replay_state, name = self.store, self.replay_state, self.names[0]
        path = store.layout.task_file(name)
        if len(self.names) > 1:
            others = ", ".join(str(other) for other in self.names[1:])
            yield found(store, "second-name", path, name.tasks, f"and {others}")
            return
        if name.inserted is not None:
            yield from self._file_of_inserts(path, name)
            return
        try:
            lines = task_file.split_lines(published.content_of(store, path))
        except FileNotFoundError:
            return
        count = replay_state.count or (len(lines) if name.count < len(lines) <= names.BATCH_TASKS_MAX else name.count)
        if count != name.count:
            yield found(store, "wrong-count", path, count)
        bad = [
            index
            for index in unreadable(lines, count, replay_state.payloads)
            if not replay_state.opened or replay_state.state[index] in OPEN
        ]
        if bad:
            yield found(store, "unreadable-tasks", path, len(bad), f"{'tasks' if bad[1:] else 'task'} {brief(bad)}")
        if urgency_of(lines, replay_state) < name.rank:
            yield found(store, "modest-name", path, count)
        if replay_state.opened and collect.is_late(replay_state, name):
            yield found(store, "late-name", path)

    def _file_of_inserts(self, path: str, name: TaskFileName) -> Iterator[Finding]:
        """Check the file of a batch whose tasks are in its log."""
        store, replay_state = self.store, self.replay_state
        if not name.is_open and replay_state.count != name.inserted:
            yield found(store, "wrong-count", path, replay_state.count)
        if urgency_of([], replay_state) < name.rank:
            yield found(store, "modest-name", path, replay_state.remaining)
        if replay_state.opened and collect.is_late(replay_state, name):
            yield found(store, "late-name", path)

    def _time(self) -> Iterator[Finding]:
        store, name = self.store, self.names[0]
        if self.replay_state.prepared:
            return  # the log's time cannot be corrected before they are decided
        if self.replay_state.opened and record_times.is_ahead(store, self.replay_state):
            yield found(store, "future-time", self.log, self.replay_state.remaining)
        elif not (self.replay_state.opened or self.replay_state.gone) and record_times.is_of_the_future(store, name):
            yield found(store, "future-time", store.layout.task_file(name), name.count)

    def _letters(self) -> Iterator[Finding]:
        missing = missing_letters(self.store, self.batch, self.replay_state)
        if missing:
            yield found(self.store, "missing-letter", self.log, len(missing))


def missing_letters(
    store: Store, batch: Batch, replay_state: ReplayState, known: Callable[[], set[str]] | None = None
) -> list[int]:
    """Return the dead tasks of a batch that have no letter, nor had one. `known`: the ids that have, or had."""
    dead = [index for index, state in enumerate(replay_state.state) if state == DEAD] if replay_state.done[DEAD] else []
    if not dead:
        return []
    ids = deadletters.known(store, store.layout.shard(batch)) if known is None else known()
    return [index for index in dead if names.task_id(batch, index) not in ids]


def brief(indices: list[int]) -> str:
    """Return indices for people."""
    ranges = movements.to_ranges(indices)
    return ", ".join(f"{start} to {end - 1}" if end - start > 1 else str(start) for start, end in ranges)


class ShardCheck:
    """The files of one shard."""

    def __init__(self, store: Store, repair: Repair, shard: Shard) -> None:
        self.store = store
        self.repair = repair
        self.shard = shard

    def suspects(self) -> Iterator[Suspect]:
        """Yield all that looks wrong, batches first."""
        layout = self.store.layout
        yield from guarded(self.store, f"{layout.tasks}/{self.shard}", self._batches())
        yield from journal_checks.check_all(self.store, self.repair.quarantine, self._journals)
        yield from guarded(self.store, layout.history_days, self._history())
        yield from guarded(self.store, f"{layout.keys}/{self.shard}", unique_keys.check(self.store, self.shard))

    def _journals(self, kind: JournalKind) -> Iterable[str]:
        return () if kind.in_shard is None else kind.in_shard(self.store, self.shard)

    # -- batches ------------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Suspect]:
        layout = self.store.layout
        files: dict[Batch, list[TaskFileName]] = {}
        # What a link hides is not gone: a batch that has a hidden file is left alone. `places` tells of it.
        hidden: set[Batch] = set()
        try:
            for directory in (layout.tasks, layout.logs):
                self.store.fs.names(f"{directory}/{self.shard}", True)
        except HiddenTasks:
            return
        for text, kind in self.store.fs.entries(f"{layout.tasks}/{self.shard}"):
            name = names.parse_task_file(text)
            if name is not None and layout.shard(name.batch) == self.shard:
                if kind == "file":
                    files.setdefault(name.batch, []).append(name)
                else:
                    hidden.add(name.batch)
        logs: set[Batch] = set()
        for text, kind in self.store.fs.entries(f"{layout.logs}/{self.shard}"):
            if (uuid := names.parse_log_file(text)) and layout.shard(uuid) == self.shard:
                (logs if kind == "file" else hidden).add(uuid)
        try:
            finished = history.finished(self.store, self.shard, files.keys() | logs)
        except OSError as error:
            let_out(error)
            yield no_access(self.store, layout.history_days, error)
            finished = set()
        for batch in sorted((files.keys() | logs) - hidden):
            yield from self._batch(batch, files.get(batch, []), batch in logs, batch in finished)

    def _batch(self, batch: Batch, there: list[TaskFileName], has_log: bool, is_finished: bool) -> Iterator[Suspect]:
        """Yield what is wrong with a batch, and then what shows only when that is mended: each kind once."""
        store = self.store
        told: set[str] = set()
        while True:
            path = store.layout.log(batch)
            try:
                content = store.fs.read_pieces(path) if has_log else None
                path = store.layout.task_file(there[0]) if there else path
                look = BatchLook(store, batch, there, content, is_finished)
                findings = [finding for finding in look.findings() if finding.kind not in told]
            except FileNotFoundError:  # finished meanwhile
                return
            except OSError as error:
                let_out(error)
                yield no_access(store, path, error)
                return
            if not findings:
                if content is not None:
                    yield from logged_updates.check(store, batch, content)
                return
            for finding in findings:
                told.add(finding.kind)
                yield Suspect(
                    finding,
                    partial(self._again, batch, finding.kind),
                    partial(self._mend, batch, finding),
                )
            there = self._names(batch)
            has_log = store.fs.exists(store.layout.log(batch))

    def _again(self, batch: Batch, kind: str) -> bool:
        """Look once more, under the lock of the log if there is one. Return whether the finding still holds."""
        store = self.store
        path = store.layout.log(batch)
        for _ in range(10):
            try:
                if kind == "orphaned-log":
                    self._leave_to_maker(path)
                with store.locked_existing(path, WAIT_S):
                    return self._finds(batch, kind, store.fs.read_pieces(path))
            except FileNotFoundError:
                same = self._finds(batch, kind, None)
                if not store.fs.exists(path):  # else a process has just made it
                    return same
            except OSError as error:
                if error.errno not in LOOK_ONLY:
                    raise
                store.clock.sleep(GRACE_S)
                return self._finds(batch, kind, store.fs.read_pieces(path))
        return False

    def _leave_to_maker(self, path: str) -> None:
        """Wait until a new log is gone, or so old that no process is about to lock it. FileNotFoundError if it is gone.

        A process that makes a log for a batch that another has finished meanwhile removes it under its lock.
        """
        clock = self.store.clock
        for _ in range(MAKER_LOOKS):
            if clock.now_ms() / 1000 - self.store.fs.stat(path).st_mtime >= MAKER_LOOKS * GRACE_S:
                break
            clock.sleep(GRACE_S)

    def _finds(self, batch: Batch, kind: str, content: list[sparse.Piece] | None) -> bool:
        is_finished = bool(history.finished(self.store, self.shard, {batch}))
        look = BatchLook(self.store, batch, self._names(batch), content, is_finished)
        return any(finding.kind == kind for finding in look.findings())

    def _names(self, batch: Batch) -> list[TaskFileName]:
        return published.names_of(self.store, self.store.layout, batch)

    def _mend(self, batch: Batch, finding: Finding) -> None:
        store, repair, log = self.store, self.repair, self.store.layout.log(batch)
        match finding.kind:
            case LOG.torn:
                journal_checks.close_off(store, LOG, log)
            case LOG.unsound:
                journal_checks.void(store, repair.quarantine, LOG, log)
            case "returned-file":
                repair.send_back(batch)
            case "orphaned-log":
                repair.end_orphan(batch)
            case "second-name":
                repair.one_name(batch)
            case "wrong-count":
                repair.right_count(batch, finding.tasks)
            case "modest-name":
                repair.promise_more(batch)
            case "unreadable-tasks":
                repair.bury_unreadable(batch)
            case "wrong-checkpoint":
                repair.restate(batch)
            case "future-time":
                repair.right_time(batch)
                there = self._names(batch)
                collect.mend(store, batch, there[0] if there else None, GcReport())
            case "task-file-gone":
                collect.mend(store, batch, None, GcReport())
                repair.check_held(batch)
            case _:
                there = self._names(batch)  # another repair may have renamed the file since it was found
                collect.mend(store, batch, there[0] if there else None, GcReport())

    # -- history --------------------------------------------------------------------------------------

    def _history(self) -> Iterator[Suspect]:
        store = self.store
        seen: dict[str, set[tuple[str, int, int]]] = {}
        known = cache(partial(deadletters.known, store, self.shard))  # of a batch that it misses, it is asked anew
        for day in history.days(store):
            path = store.layout.history(day, self.shard)
            for offset, length, batch, records in history.read(store, path):
                if batch in seen:
                    if recount.announced(records) <= seen[batch]:
                        yield self._repeat(path, offset, length)
                    continue
                replay_state = history.replay(records)
                seen[batch] = recount.announced(records)
                yield from self._finished(path, batch, replay_state, known)
                yield from logged_updates.check_finished(store, path, batch, records)

    def _repeat(self, path: str, offset: int, length: int) -> Suspect:
        store = self.store

        def is_so() -> bool:
            return any(found_at == offset for found_at, *_ in history.read(store, path))

        return Suspect(
            found(store, "repeated-history", path, note=f"at byte {offset}"),
            is_so,
            lambda: self.repair.void_line(path, offset, length),
        )

    def _finished(
        self, path: str, batch: Batch, replay_state: ReplayState, known: Callable[[], set[str]]
    ) -> Iterator[Suspect]:
        """Yield what must be true of a batch that the history knows as finished."""
        store = self.store
        missing = missing_letters(store, batch, replay_state, known)
        if missing:
            yield Suspect(
                found(store, "missing-letter", path, len(missing), f"batch {batch}"),
                lambda: bool(missing_letters(store, batch, replay_state)),
                lambda: deadletters.restore(store, batch, replay_state, missing),
            )
        short = recount.short(store, batch, replay_state)
        if short:
            yield Suspect(
                found(store, "counter-bytes", path, short, f"batch {batch}"),
                lambda: recount.is_short(store, batch),
                lambda: self.repair.recount(batch),
            )
