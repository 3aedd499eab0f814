"""Which batch next: shards as subqueues, their heads in a bounded cache (docs/design.md, section 8).

After the relaxed priority queue: a worker looks at a few shards, picks the best of what it sees,
and asks no other process. What is here are hints; the log decides.
"""

from __future__ import annotations

from heapq import nsmallest

from fsqueue.format import names
from fsqueue.format.names import Batch, TaskFileName, shard_listed
from fsqueue.format.priority import LAST, Rank
from fsqueue.storage import listing
from fsqueue.storage.store import Store

HEADS_MAX = 1024
"""How many task files of a shard are kept in mind."""
LISTING_S = 1.0
"""Another shard is listed after this time, although heads are left."""
SHARDS_LISTED = 2
"""How many shards with something in them are looked at before choosing (the paper's peeks)."""
LISTINGS_MAX = 3
"""Maximum number of times that a strict look lists a shard, if a batch at work is missing."""
NEVER = 1 << 62


class Selection:
    """The heads of the shards that were listed, best first. One thread at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heads: list[TaskFileName] = []
        """Task files that may have something available, best last."""
        self.next_due: dict[str, int] = {}
        """Per shard the earliest time in the future that its names mention, as of its last listing."""
        self._unlisted: list[str] = []
        self._further: dict[str, str] = {}
        """Per shard of which more than HEADS_MAX heads were seen: the last one kept. The others come behind it."""
        self._listed_at = -1e9

    def sweep(self, shards: list[str] | None = None) -> None:
        """Begin anew: all shards, or the ones given, must be listed, in an order of this process's own."""
        self.heads.clear()
        self._further.clear()
        if shards is None:
            shards = self.store.fs.names(self.store.layout.tasks)
            self.next_due.clear()
        self._unlisted = self.store.entropy.shuffled(shards)

    def expect(self, batch: str, due: int) -> None:
        """Remember that a task in this batch will be available at `due` (ms), which the file's name does not say."""
        shard = self.store.layout.shard(batch)
        self.next_due[shard] = min(self.next_due.get(shard, NEVER), due)

    def next(
        self, now: int, strict: bool = False, bound: Rank = LAST, stay: Batch | None = None
    ) -> TaskFileName | None:
        """Return the best head, taken off the cache. None: all shards of this sweep were listed and are used up.

        A shard with more heads than are kept is listed again when all that were kept are used up. `bound` and `stay`
        are for queues with an order: `OrderedSelection`.
        """
        stale = self.store.clock.monotonic() - self._listed_at > LISTING_S
        if strict:
            wanted = len(self._unlisted)
        elif self.heads:
            wanted = 1 if stale and self._unlisted else 0
        else:
            wanted = SHARDS_LISTED
        while self._unlisted and wanted > 0:
            had_some = self._list(self._unlisted.pop(), now, strict=strict)
            wanted -= 1 if had_some or strict else 0
        while self._further and not self.heads:
            shard, behind = self._further.popitem()
            self._list(shard, now, behind)
        return self.heads.pop() if self.heads else None

    def glance(self, now: int, bound: Rank = LAST) -> Rank | None:
        """Return the rank of the best head, which stays; None if there is none that is not less urgent than `bound`."""
        name = self.next(now)
        if name is None:
            return None
        self.heads.append(name)
        return LAST if bound == LAST else None

    def _names(self, shard: str, strict: bool) -> list[str]:
        """Return the names of a shard's task files.

        A listing may miss a file that is being renamed, and an inserter renames an open batch when a more urgent task
        joins it. Such a batch has a log. So a strict look lists the logs, too, and the files again if one is missing.
        """
        path = f"{self.store.layout.tasks}/{shard}"
        texts = [text for text in self.store.fs.names(path) if text[13:14] == "-"]
        for _ in range(LISTINGS_MAX - 1 if strict else 0):
            there = {text[14:46]: text for text in texts}
            if there.keys() >= set(listing.logs(self.store, shard_listed(shard))):
                break
            there |= {text[14:46]: text for text in self.store.fs.names(path) if text[13:14] == "-"}
            texts = list(there.values())
        return texts

    def _list(self, shard: str, now: int, behind: str = "", strict: bool = False) -> bool:
        """List a shard and merge its heads, of batches named later than `behind`; whether it had any.

        A batch keeps its place in that order whatever its file is renamed to: heads are kept from its beginning, and
        none between two lists of a sweep is passed over.
        """
        texts = self._names(shard, strict)
        limit = f"{now:013d}~"
        due = [text for text in texts if text < limit and text[14:] > behind]
        later = min((text for text in texts if text > limit), default=None)
        promised = int(later[:13]) if later is not None and later[:13].isdigit() else NEVER
        self.next_due[shard] = min(promised, self.next_due.get(shard, NEVER)) if behind else promised
        self._listed_at = self.store.clock.monotonic()
        best = due
        if len(due) > HEADS_MAX:
            best = nsmallest(HEADS_MAX, due, key=_birth)
            self._further[shard] = best[-1][14:]
        fresh = [name for name in map(names.parse_task_file, best) if name is not None]
        if fresh:
            self.heads.extend(fresh)
            self.heads.sort(key=_age, reverse=True)
        return bool(fresh)

    def due(self, now: int) -> list[str]:
        """Return the shards of which a name promised something for a time that has come."""
        return [shard for shard, time in self.next_due.items() if time <= now]

    def earliest(self) -> int:
        """Return the earliest time in the future (ms) at which a listed shard said that something will be available."""
        return min(self.next_due.values(), default=NEVER)


def _birth(text: str) -> str:
    return text[14:]


def _age(name: TaskFileName) -> str:
    return name.batch
