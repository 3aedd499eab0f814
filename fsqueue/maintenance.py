"""Define the verbs of `Queue` that look after it: dead letters, all leases, purge, delete, gc, fsck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fsqueue import administration, repeating
from fsqueue.arguments import EVERY, Every, selector, tasks_meant, translated, verb, whole
from fsqueue.cluster.identity import user_of_this_process
from fsqueue.errors import InvalidArgument
from fsqueue.format.layout import REASON_CHARS_MAX, Settings
from fsqueue.format.models import DeadLetter, GcReport, Result, RetryReport
from fsqueue.fsck import Finding, fsck
from fsqueue.storage import deadletters
from fsqueue.storage.store import Store
from fsqueue.upkeep import collect
from fsqueue.user_code import user_function


class Maintenance:
    """Hold the methods of `Queue` for the person who looks after a queue. `Queue` inherits them."""

    store: Store

    # -- dead letters ---------------------------------------------------------------------------------------

    def dead(self, where: Callable[[DeadLetter], bool] | None = None) -> Iterator[DeadLetter]:
        """Iterate over the dead letters, or those for which `where(letter)` is true."""
        if where is not None:
            user_function(where)  # raises InvalidArgument if it is no function
        self._write_letters()
        letters = translated(self.store, deadletters.letters(self.store), "reading dead letters")
        return letters if where is None else filter(where, letters)

    @verb("retrying dead letters")
    def retry_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Insert dead tasks again, with new ids and no attempts used. Return how many.

        With `ids` only these, with `where` those for which `where(letter)` is true, else all. `ids=None` is refused:
        None often comes from a variable that was never set.
        """
        wanted = tasks_meant(ids, "dead letters")
        self._write_letters()
        retried = deadletters.retry(self.store, wanted, None if where is None else user_function(where))
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
        wanted = tasks_meant(ids, "completed tasks")
        report = repeating.retry_completed(self.store, wanted, None if where is None else user_function(where))
        self.store.doorbell.ring()
        return report

    @verb("purging dead letters")
    def purge_dead(
        self, ids: str | Iterable[str] | Every = EVERY, where: Callable[[DeadLetter], bool] | None = None
    ) -> int:
        """Remove dead letters. Return how many. `ids` and `where` as in `retry_dead`."""
        wanted = tasks_meant(ids, "dead letters")
        self._write_letters()
        return deadletters.purge(self.store, wanted, None if where is None else user_function(where))

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
        task gets LeaseLost. To end all leases, leave all names out. None and "" are refused: they often come from a
        variable that was never set.

        Set `offline` if no process works on the queue: then a locked batch raises LockTimeout at once.
        """
        by_worker = selector("worker", worker), selector("host", host)
        by_job = selector("slurm_job", slurm_job), selector("job", job)
        return administration.release_all(self.store, *by_worker, *by_job, offline)

    @verb("changing settings")
    def change_settings(self, /, **settings: Any) -> Settings:
        """Change settings of the queue in use: `max_attempts`, `lease_s`, `backoff_s`. Return all settings.

        It is durable when this returns. Other processes use the new ones from their next look at the queue on: two
        seconds later at most. Leases that are held keep their length until they are renewed. InvalidArgument, with
        nothing changed, for a value out of range, for a setting that is fixed, and for a name that is none.
        """
        return administration.change_settings(self.store, settings)

    @verb("pausing")
    def pause(self, reason: str | None = None) -> bool:
        """Have no process lease tasks of this queue until `resume`. Return False if it is paused already.

        Workers that are at work lease nothing two seconds later at the latest. What they hold they finish; they wait,
        and do not end. `lease` returns []. All other verbs go on as ever. It is durable when this returns.
        """
        if reason is not None and (not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX):
            raise InvalidArgument(f"reason must be text of at most {REASON_CHARS_MAX:,} characters. Nothing was done.")
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
    def delete(self, *, wait: bool = False) -> None:
        """Delete the queue at once, whatever its size. Its files are removed in the background; with `wait`, first."""
        administration.delete(self.store, wait)

    @verb("collecting garbage")
    def gc(
        self,
        *,
        touch: bool = False,
        history_days: int | None = None,
        payload_days: int = collect.PAYLOAD_DAYS,
        payload_bytes: int = collect.PAYLOAD_BYTES,
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
        found = fsck(self.store, repair, None if progress is None else user_function(progress))
        return translated(self.store, found, "checking the queue")
