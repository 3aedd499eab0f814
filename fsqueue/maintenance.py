"""Define the verbs of `Queue` that look after it: dead letters, completed tasks, all leases, purge, delete, gc, fsck.

Completed tasks are inserted again each once (docs/design.md, section 4.10). The history and the logs tell which tasks
were completed, and with which payloads. The `retried` lines of a shard say which of them were inserted again before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fsqueue.arguments import (
    EVERY,
    Every,
    node_of,
    reason_of,
    selector,
    settings_of,
    tasks_meant,
    translated,
    verb,
    whole,
)
from fsqueue.cluster.identity import user_of_this_process
from fsqueue.errors import FsqueueError, LockTimeout, QueueNotFound
from fsqueue.forks import Late
from fsqueue.format import names, priority, task_file
from fsqueue.format.layout import Settings
from fsqueue.format.models import DeadLetter, GcReport, Result, RetryReport
from fsqueue.format.names import Batch, Shard
from fsqueue.format.priority import Priority
from fsqueue.interruptions import suppress
from fsqueue.storage import copies, deadletters, letter_files, nodes, payloads, retrying
from fsqueue.storage.journals import Journal
from fsqueue.storage.retrying import EndedTask
from fsqueue.storage.store import Store
from fsqueue.user_code import user_function
from fsqueue.views import inspection

if TYPE_CHECKING:
    from fsqueue import administration
    from fsqueue import fsck as checker
    from fsqueue.fsck import Finding
    from fsqueue.upkeep import collect
    from fsqueue.views import finished, task_results
    from fsqueue.views.finished import FinishedBatch
else:
    administration, checker = Late("fsqueue.administration"), Late("fsqueue.fsck")
    collect = Late("fsqueue.upkeep.collect")
    finished, task_results = Late("fsqueue.views.finished"), Late("fsqueue.views.task_results")

GROUP_TASKS_MAX, GROUP_BYTES_MAX = 16_384, 8 << 20
"""Maximum number of tasks of a shard, and of bytes of their lines, to hold before the lock of its file is taken."""

Where = Callable[[Result], bool]


class Maintenance:
    """Hold the methods of `Queue` for the person who looks after a queue. `Queue` inherits them."""

    store: Store

    def _why_gone(self, error: QueueNotFound) -> FsqueueError:
        """Return what a verb raises if the queue is not there any more."""
        return error

    # -- dead letters ---------------------------------------------------------------------------------------

    def dead(self, where: Callable[[DeadLetter], bool] | None = None) -> Iterator[DeadLetter]:
        """Iterate over the dead letters, or those for which `where(letter)` is true."""
        if where is not None:
            user_function(where)  # raises InvalidArgument if it is no function
        self._write_letters()
        letters = translated(self, deadletters.letters(self.store), "reading dead letters")
        return letters if where is None else filter(where, letters)

    @verb("retrying dead letters")
    def retry_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Insert dead tasks again, with new ids and no attempts used. Return how many.

        With `ids` only these, with `where` those for which `where(letter)` is true, else all. `ids=None` is refused:
        None often comes from a variable that was never set.
        """
        wanted, tell = tasks_meant(ids, "dead letters"), None if where is None else user_function(where)
        self._write_letters()
        retried = deadletters.retry(self.store, wanted, tell)
        self.store.doorbell.ring()
        return retried

    @verb("retrying completed tasks")
    def retry_completed(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[Result], bool] | None = None
    ) -> RetryReport:
        """Insert completed tasks again, with new ids and no attempts used. Return what became of them.

        With `ids` only these, with `where` those for which `where(result)` is true (see `results`), else all.
        `ids=None` is refused, as by `retry_dead`. Payloads come from the history, so it needs `keep_history`, and
        `keep_payloads` large enough: tasks whose payload is not kept are counted, and stay as they are.

        Each task is inserted again once, also if several processes call this, or one was killed and calls it again.
        What it was inserted as is a task of its own: once completed, it can be retried in turn. Keys are not kept.
        """
        wanted, tell = tasks_meant(ids, "completed tasks"), None if where is None else user_function(where)
        report = retry_completed(self.store, wanted, tell)
        self.store.doorbell.ring()
        return report

    @verb("purging dead letters")
    def purge_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Remove dead letters. Return how many. `ids` and `where` as in `retry_dead`."""
        wanted, tell = tasks_meant(ids, "dead letters"), None if where is None else user_function(where)
        self._write_letters()
        return deadletters.purge(self.store, wanted, tell)

    @verb("writing dead letters")
    def _write_letters(self) -> None:
        self.store.refresh(now=True)
        collect.write_letters(self.store)

    # -- the whole queue ----------------------------------------------------------------------------------------

    @verb("releasing all leases")
    def release_all(
        self,
        *,
        worker: str | Every = EVERY,
        host: str | Every = EVERY,
        slurm_job: str | Every = EVERY,
        job: str | Every = EVERY,
        offline: bool = False,
    ) -> int:
        """End leases of other workers: all, or those of a worker's name, host or job. Return how many had not run out.

        `job` is a job of Slurm, PBS, LSF, Grid Engine or HTCondor, or an element of an array, as their commands call
        it. `slurm_job` is a job of Slurm alone. The ended attempts do not count. A worker that still works on such a
        task gets LeaseLost. To end all leases, leave all names out; those of a move to another queue (`fsqueue mv`)
        end only if `worker` names it, since that queue may have the tasks. None and "" are refused: they often come
        from a variable that was never set.

        Set `offline` if no process works on the queue: then a locked batch raises LockTimeout at once.
        """
        by_worker = selector("worker", worker), selector("host", host)
        by_job = selector("slurm_job", slurm_job), selector("job", job)
        return administration.release_all(self.store, *by_worker, *by_job, offline)

    @verb("forgetting a node's failures")
    def admit_node(self, node: str) -> bool:
        """Forget the failures in a row on a node: it takes tasks again. Return False if there are none.

        `node`: its name as `failing_nodes` has it. An error of the filesystem is logged, and leaves the node as it is.
        """
        node_of(node)
        self.store.refresh()
        return nodes.admit(self.store, node)

    @verb("changing settings")
    def change_settings(self, /, **settings: Any) -> Settings:
        """Change settings of the queue in use: `max_attempts`, `lease_s`, `backoff_s`, `keep_payloads`, `max_leased`,
        `limit`, `rate`. Return all settings.

        `limit={"host": 4}` lets at most four tasks whose payloads have one value of `host` be leased at one instant,
        over all hosts; None in place of the number ends that. Limits of fields that are not named stay. `rate="5/s"`
        (`/m`, `/h`) lets five tasks a second (minute, hour) be leased at most, over all hosts.

        It is durable when this returns. Other processes use the new ones from their next look at the queue on: two
        seconds later at most. Leases that are held keep their length until they are renewed. InvalidArgument, with
        nothing changed, for a value out of range, for a setting that is fixed, and for a name that is none.
        """
        given = settings_of(settings)
        return administration.change_settings(self.store, given)

    @verb("pausing")
    def pause(self, reason: str | None = None) -> bool:
        """Have no process lease tasks of this queue until `resume`. Return False if it is paused already.

        Workers that are at work lease nothing two seconds later at the latest. What they hold they finish; they wait,
        and do not end. `lease` returns []. All other verbs go on as ever. It is durable when this returns.
        """
        reason_of(reason)
        return administration.pause(self.store, reason, user_of_this_process())

    @verb("resuming")
    def resume(self) -> bool:
        """Have tasks leased again, and wake idle workers. Return False if the queue was not paused.

        Workers of this host go on at once, those of other hosts within eight seconds.
        """
        return administration.resume(self.store)

    @verb("purging")
    def purge(self) -> None:
        """Drop everything in the queue, at once, whatever its size. Settings stay; counts begin at zero."""
        administration.purge(self.store)

    @verb("deleting the queue")
    def delete(self, *, foreground: bool = False) -> dict[str, str]:
        """Delete the queue at once, whatever its size. Its files are removed in the background.

        With `foreground`, they are removed before this returns. What could not be removed is returned: path to reason.
        It is of no queue any more; `fsqueue gc --trash` removes it later.
        """
        return administration.delete(self.store, foreground)

    @verb("collecting garbage")
    def gc(
        self,
        *,
        touch: bool = False,
        history_days: int | None = None,
        payload_days: int = payloads.PAYLOAD_DAYS,
        payload_bytes: int = payloads.PAYLOAD_BYTES,
    ) -> GcReport:
        """Finish what crashes left half done; remove trash and old staged files. Safe at any time.

        `touch` refreshes the times of all files that the queue needs, for scratch systems that delete idle files.
        `history_days`: remove history that is older than this. `payload_days`, `payload_bytes`: remove files with
        payloads of finished tasks that are older, or that exceed those bytes, by whole days; today's stay.
        """
        if history_days is not None:
            whole("history_days", history_days, 0)
        kept = (whole("payload_days", payload_days, 0), whole("payload_bytes", payload_bytes, 0))
        return collect.gc(self.store, touch, collect.Keep(history_days, *kept))

    def fsck(self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None) -> Iterator[Finding]:
        """Yield what is wrong on disk, as it is found. Safe at any time. A sound queue has no findings.

        With `repair`, each finding is mended before it is yielded; its `note` tells why if that failed. A file that may
        still be needed is moved into `.quarantine`, and never removed. `progress(done, steps)` is called now and then.
        """
        tell = None if progress is None else user_function(progress)
        found = checker.fsck(self.store, repair, tell)
        return translated(self, found, "checking the queue")

    @verb("looking whether the queue is a copy")
    def is_copy(self) -> bool:
        """Return whether its directory may be a copy of the one in which it was made, as after a restored backup.

        Then tasks that were done after the copy was made are executed again. A hint: docs/fsck.md says when it errs.
        """
        self.store.refresh(now=True)
        return copies.is_copy(self.store)

    @verb("accepting a copy")
    def accept_copy(self) -> bool:
        """Have its directory count as the queue's own from now on, durably. Return False if it does already."""
        return copies.accept(self.store)


def retry_completed(store: Store, wanted: set[str] | None, where: Where | None) -> RetryReport:
    """Insert completed tasks again, with new ids and no attempts used: those with these ids, for which `where` holds.

    A task that was inserted again before is left out, and so is one whose payload is not kept. What an earlier call
    has recorded, and did not live to publish, is published first. No lock is held while `where` runs. Memory is bounded
    by a group, and by the ids of a shard that were retried or purged.

    QueuePurged, QueueNotFound: a purge or a deletion overtook it. Any other error says how many were inserted.
    """
    store.refresh(now=True)
    repeater = _Repeater(store)
    with repeater.settlement.explaining_errors():
        retrying.publish_pending(store)
        repeater.retry(wanted, where)
    return repeater.report


class _Candidate(NamedTuple):
    """A completed task that is asked for. `line`: that of the new task; None if the payload is not kept."""

    id: str
    line: bytes | None
    priority: Priority | None


class _Repeater:
    """One call: what it has read of the queue, and what it has done."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settlement = retrying.Settlement(store, "retrying completed tasks", "Tasks inserted again")
        self.layout = self.settlement.layout
        self.report = RetryReport()
        self._settled: set[str] = set()
        self._read: tuple[Shard, letter_files.State] | None = None
        """The shard whose retried and purged ids are in `_settled`, and the state of its file then."""

    def retry(self, wanted: set[str] | None, where: Where | None) -> None:
        """Go through all completed tasks, shard by shard as they are read, and insert those that are asked for."""
        shard: Shard | None = None
        group: list[_Candidate] = []
        size = 0
        for found in self._ended(wanted):
            at = self.layout.shard(found.batch)
            if at != shard:
                self._insert(shard, group)
                self._give_back(shard)
                shard, group, size = at, [], 0
            for result in task_results.completed(found):
                if (wanted is None or result.id in wanted) and (where is None or where(result)):
                    group.append(self._candidate(found, result.id))
                    size += len(group[-1].line or b"")
                    if len(group) >= GROUP_TASKS_MAX or size >= GROUP_BYTES_MAX:
                        self._insert(shard, group)
                        group, size = [], 0
        self._insert(shard, group)
        self._give_back(shard)

    def _ended(self, wanted: set[str] | None) -> Iterator[FinishedBatch]:
        """Yield batches with completed tasks: those at work, then those of the history, so that none is missed."""
        only: Collection[Batch] | None = None
        if wanted is not None:
            only = {names.parse_task_id(task_id)[0] for task_id in wanted}
        seen: set[Batch] = set()
        for at_work in inspection.partly_done(self.store, only):
            seen.add(at_work.batch)
            yield at_work
        for found in finished.batches(self.store, offsets=False, only=only):
            if found.batch not in seen:
                yield found

    def _candidate(self, found: FinishedBatch, task_id: str) -> _Candidate:
        index = names.parse_task_id(task_id)[1]
        if not found.keeps_payload(index):
            return _Candidate(task_id, None, None)
        payload, _, urgency = found.task(index)
        urgency = None if priority.fault(urgency) is not None else urgency
        line = task_file.encode_task(payload, 2 * self.store.settings.task_bytes_max, priority=urgency)
        return _Candidate(task_id, line, urgency)

    def _insert(self, shard: Shard | None, group: list[_Candidate]) -> None:
        """Insert those of a group that were not inserted again before, in parts as large as an insert's batches."""
        if shard is None or not group:
            return
        store, report = self.store, self.report
        with self.settlement.locked(shard) as file:
            if file is None:
                return
            self._read_settled(shard, file)
            tasks: list[EndedTask] = []
            for task in group:
                if task.id in self._settled:
                    report.repeated += 1
                elif task.line is None:
                    report.note_unkept(task.id)
                else:
                    tasks.append(EndedTask(task.id, task.line, task.priority))
            for part in retrying.parts(store, tasks):
                retrying.insert_again(store, self.layout, file, part)
                self._settled.update(task.id for task in part)
                self.settlement.count = report.retried = report.retried + len(part)
            self._read = shard, letter_files.state_of(file)

    def _read_settled(self, shard: Shard, file: Journal) -> None:
        """Read which tasks of a shard were retried or purged, unless its file is as this call has left it."""
        if self._read == (shard, letter_files.state_of(file)):
            return
        self._read = None
        self._settled = letter_files.settled(file)
        for line in letter_files.given_back(self.store, shard):
            self._settled.update(one for one in line["ids"] if isinstance(one, str))

    def _give_back(self, shard: Shard | None) -> None:
        """Move `retried` lines to the history, if they are most of the shard's file. If it is busy, `gc` does it."""
        if shard is not None and self._read is not None and self._read[0] == shard and self.report.retried:
            with suppress(LockTimeout):
                deadletters.give_back(self.store, shard)
