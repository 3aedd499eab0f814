"""The findings of fsck in some shards of a queue: its look, spread over executors. Nothing is mended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsqueue.format.names import Shard
from fsqueue.fsck import fsck_part
from fsqueue.spark.views import Row
from fsqueue.storage.store import Store


def findings(store: Store, shards: Sequence[Shard], first: bool) -> Iterator[Row]:
    """Yield the findings in these shards and, in the first part, in what belongs to no shard."""
    for finding in fsck_part(store, shards, first):
        yield finding.kind, finding.gravity, finding.path, finding.tasks, finding.note, finding.meaning
