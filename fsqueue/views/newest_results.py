"""The results of the tasks that ended last, read from the ends of logs and of the history (docs/newest-results.md).

A queue may have millions of completed tasks. What is read here does not grow with them: a page of each log at work, a
page of each shard's history of the latest day, and then whole logs and lines until no other can have a later end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from heapq import nsmallest

from fsqueue.clock import MS_MAX
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names
from fsqueue.format.models import Result
from fsqueue.format.names import Batch, Day, Shard, day_of
from fsqueue.format.replay import COMPLETED
from fsqueue.storage import deadletters, history, listing, payloads
from fsqueue.storage.store import Store
from fsqueue.views import inspection, task_results
from fsqueue.views.finished import FinishedBatch
from fsqueue.views.task_results import Columns

logger = logging.getLogger("fsqueue")

BYTES_MAX = 16 << 20
"""Number of bytes of logs and of the history after which no further one is read; most bytes to read of one shard's."""
LETTERS_BYTES_MAX = 4 << 20
"""About how many bytes of dead letters are read, from the ends of their files."""
FILES_MAX = 4096
"""Maximum number of logs, and of files of the history, of which the last page is read."""


def results(store: Store, count: int, dead: bool = False) -> Iterator[list[Result]]:
    """Yield one list: the `count` completed tasks and dead letters that ended last, the newest first; `dead`: the
    latter alone.

    A hint while others work, as `task_results.results` is. A warning says if the bounds above were met: what ended
    later may then be missing. QueuePurged.
    """
    store.verify()
    layout = store.layout
    search = _Search(store, count)
    if not dead and store.settings.keep_history:
        search.look_into_logs()
        search.look_into_history()
    search.look_into_letters()
    task_results.check_generation(store, layout)
    history.warn_of_damage(store, search.damaged)
    if search.is_cut:
        logger.warning(
            "the newest results of %s may not be all here: there was more to read than is read for them; "
            "'fsqueue results' without --newest reads everything",
            store.path,
        )
    yield [result for _, result in search.best]


def columns(store: Store, count: int, dead: bool = False) -> Iterator[Columns]:
    """Yield the same as columns."""
    for found in results(store, count, dead):
        if found:
            yield [*map(list, zip(*found, strict=True))]


class _Search:
    """What ended last in a queue, of what was looked at so far. Logs come before the history, as ever: a batch that
    finishes in between is in one of them.
    """

    def __init__(self, store: Store, count: int) -> None:
        self.store, self.count = store, count
        self.best: list[tuple[tuple[float, str, int], Result]] = []
        """The newest results, newest first, each behind what it is sorted by."""
        self.damaged = 0
        """Number of lines of the history that could not be read."""
        self.is_cut = False
        """Whether something was left unread for its size."""
        self._left = BYTES_MAX
        self._seen: set[Batch] = set()
        """Batches whose tasks have been looked at."""

    @property
    def since_ms(self) -> float:
        """Return when the oldest of the newest results ended, once there are enough: what ended then or before is no
        newer."""
        return -self.best[-1][0][0] if len(self.best) >= self.count else -math.inf

    def _take(self, found: Iterable[Result]) -> None:
        for result in found:
            batch, index = names.parse_task_id(result.id)
            self.best.append(((-round((result.finished_at or 0) * 1000), batch, index), result))
        self.best.sort(key=lambda one: one[0])
        del self.best[self.count :]

    def _newest_of(self, found: FinishedBatch) -> list[int]:
        """Return the tasks of a batch that are among the newest results, as far as these are known."""
        state, since, least = found.replay_state.state, found.replay_state.since, self.since_ms
        ended = (n for n in range(found.replay_state.count) if state[n] == COMPLETED and since[n] > least)
        return sorted(nsmallest(self.count, ended, key=lambda index: (-since[index], index)))

    # -- batches at work ----------------------------------------------------------------------------------------

    def look_into_logs(self) -> None:
        """Take in what was completed in batches at work."""
        ends: list[tuple[float, Batch, int]] = []
        for batch in listing.with_logs(self.store):
            if len(ends) >= FILES_MAX:
                self.is_cut = True
                break
            with PassingOverStrays():
                size, written = listing.end_of_log(self.store, batch)
                ends.append((math.inf if written is None else written, batch, size))
        for last, batch, size in sorted(ends, reverse=True):
            if last <= self.since_ms:
                break
            if self._left <= 0:
                self.is_cut = True
                break
            self._left -= size
            for found in inspection.partly_done(self.store, [batch]):
                self._seen.add(batch)
                self._take(task_results.completed(found, self._newest_of(found)))

    # -- finished batches ---------------------------------------------------------------------------------------

    def look_into_history(self) -> None:
        """Take in what was completed in finished batches, the latest days first."""
        files = 0
        for day in reversed(history.days(self.store)):
            if self._is_older(day):
                return
            ends: list[tuple[float, Shard, int]] = []
            for shard in history.shards_of(self.store, day):
                if files >= FILES_MAX:
                    self.is_cut = True
                    break
                files += 1
                size, finished = history.end_of(self.store, day, shard)
                ends.append((math.inf if finished < 0 else finished, shard, size))
            for last, shard, size in sorted(ends, reverse=True):
                if last + history.LATE_MS < self.since_ms:
                    break
                if self._left <= 0:
                    self.is_cut = True
                    return
                self._look_into(day, shard, size)

    def _is_older(self, day: Day) -> bool:
        """Return whether all that finished on a day ended before the newest results."""
        if self.since_ms < history.LATE_MS:
            return False
        latest = min(int(self.since_ms), MS_MAX)  # a damaged record may name a time that no calendar has
        return day < day_of(latest - history.LATE_MS)

    def _look_into(self, day: Day, shard: Shard, size: int) -> None:
        unread = size
        with closing(history.lines_from_end(self.store, day, shard, BYTES_MAX)) as lines:
            for begin, line in lines:
                finished_ms = history.finished_ms(line)
                if 0 <= finished_ms < self.since_ms - history.LATE_MS:
                    return  # so did all that stands before it
                unread = begin
                self._left -= len(line)
                if not 0 <= finished_ms <= self.since_ms and history.batch_named(line) not in self._seen:
                    self._add_line(day, line)
                if self._left <= 0:
                    break
        if unread and (self._left <= 0 or size > BYTES_MAX):
            self.is_cut = True

    def _add_line(self, day: Day, line: bytes) -> None:
        kept = history.finished_in(line)
        if kept is None:
            self.damaged += history.is_damaged(line)
            return
        if kept.batch in self._seen:
            return
        self._seen.add(kept.batch)
        found = FinishedBatch(kept.batch, kept.records, kept.lines, self.store.settings.keep_payloads)
        chosen = self._newest_of(found)
        if chosen and not kept.lines and found.replay_state.inserts is None and self.store.settings.keep_payloads != 0:
            # A process that went on with what another had begun may have done so on another day.
            days = {day, day_of(max(0, history.finished_ms(line)))}
            texts = map(str, names.task_files_of(kept.batch, reversed(found.replay_state.names)))
            found.lines = payloads.lines_named(self.store, sorted(days, reverse=True), texts)
        self._take(task_results.completed(found, chosen))

    # -- dead letters -------------------------------------------------------------------------------------------

    def look_into_letters(self) -> None:
        """Take in the dead letters at the ends of their files."""
        letters, is_whole = deadletters.latest(self.store, LETTERS_BYTES_MAX)
        newest = nsmallest(self.count, letters, key=lambda letter: -letter.at)
        self._take(letter.as_result() for letter in newest)
        self.is_cut = self.is_cut or (not is_whole and len(self.best) < self.count)
