"""The view `history` as a stream: tasks, as they finish (docs/spark-write.md, "Streams").

An offset tells how far each file of the history was read. Lines are only ever appended, so a batch that Spark repeats
has the same rows. What a purge has removed is in no batch any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from fsqueue.clock import Clock
from fsqueue.errors import InvalidArgument
from fsqueue.format import names
from fsqueue.interruptions import suppress
from fsqueue.spark import schemas, views
from fsqueue.spark.options import ReadOptions
from fsqueue.storage import history, journals
from fsqueue.storage.discovery import queues_in
from fsqueue.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("fsqueue")

LOOK_S = 1.0
"""Spark asks a hundred times a second for news; the queue is looked at this often."""
LATE_MS = 3_600_000
"""Time after the end of a day from which on its files are taken to grow no more: a worker may wait for a lock."""
PARTITION_BYTES = 8 << 20
"""Bytes of history in a partition, about."""
PIECE_BYTES = 1 << 16

Offset = dict[str, Any]
"""`generation`: which; `files`: how many bytes of each file were read, by DAY/SHARD."""


class Slice(NamedTuple):
    """Whole lines of a file of the history."""

    day: str
    shard: str
    begin: int
    end: int


class Slices(InputPartition):  # type: ignore[misc]
    """The share of one Spark task: what it reads."""

    def __init__(self, generation: str, slices: Sequence[Slice]) -> None:
        super().__init__(0)
        self.generation, self.slices = generation, list(slices)


class HistoryStream(DataSourceStreamReader):  # type: ignore[misc]
    """Reads finished tasks, oldest days first; begins with all that the history keeps."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.view != "history":
            raise InvalidArgument(
                f"A stream reads the view 'history', tasks as they finish, not {options.view!r}. Add "
                '.option("view", "history"), or read the view as a table.'
            )
        if len(options.paths) != 1 or queues_in(options.paths[0]) is not None:
            raise InvalidArgument("A stream reads one queue. Start one for each, and unite them.")
        schemas.check(options.view, schema, options.corrupt)
        self.options, self.schema = options, schema
        if not Store(options.paths[0]).settings.keep_history:
            raise InvalidArgument(f"The queue {options.paths[0]} keeps no history: there is nothing to stream.")
        self._last: Offset = {}
        self._looked_at, self._seen_ms = -LOOK_S, 0

    def initialOffset(self) -> Offset:
        """Return where a new query begins."""
        return {"generation": "", "files": {}}

    def latestOffset(self) -> Offset:
        """Return how far the history goes now. A hint: up to LOOK_S seconds old."""
        now = Clock().monotonic()
        if now - self._looked_at >= LOOK_S:
            self._last, self._looked_at = self._look(), now
        return self._last

    def _look(self) -> Offset:
        store = Store(self.options.paths[0])
        generation, known, now_ms = str(store.layout.directory), {}, store.clock.now_ms()
        if self._last.get("generation") == generation:
            growing = names.day_of(max(0, self._seen_ms - LATE_MS))  # days before it had ended at the last look
            known = {name: end for name, end in self._last["files"].items() if name < growing}
        files = dict(known)
        closed = {name.partition("/")[0] for name in known}
        for day in history.days(store):
            for shard in history.shards_of(store, day) if day not in closed else ():
                if self.options.shards is None or shard in self.options.shards:
                    end = _end(store, store.layout.history(day, shard))
                    if end:
                        files[f"{day}/{shard}"] = end
        store.close()
        self._seen_ms = now_ms
        return {"generation": generation, "files": dict(sorted(files.items()))}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Split what is between two offsets."""
        read = start["files"] if start["generation"] == end["generation"] else {}
        split: list[list[Slice]] = [[]]
        size = 0
        for name, until in end["files"].items():
            begin = read.get(name, 0)
            if until > begin:
                if size >= PARTITION_BYTES:
                    split.append([])
                    size = 0
                day, _, shard = name.partition("/")
                split[-1].append(Slice(day, shard, begin, until))
                size += until - begin
        return [Slices(end["generation"], slices) for slices in split if slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the tasks of the batches in some slices."""
        from fsqueue.spark.columns import Columns

        path = self.options.paths[0]
        store = Store(path)
        if store.layout.directory != partition.generation:
            logger.warning("%s was purged: what a stream had not read of its history yet is gone", path)
            return
        columns, seen = Columns(self.options, self.schema, path.rpartition("/")[2]), set[str]()
        for piece in partition.slices:
            for line in _lines(store, piece):
                found = history.parse(line)
                if found is not None and found[0] not in seen:
                    seen.add(found[0])
                    yield from columns.rows(views.finished_in(*found))
        yield from columns.rest()

    def commit(self, end: Offset) -> None:
        """Do nothing: nothing is kept for a stream."""


def _end(store: Store, path: str) -> int:
    """Return how many bytes of a file are whole lines."""
    with suppress(FileNotFoundError), journals.opened(store.fs, path) as file:
        at = file.length()
        while at > 0:
            size = min(PIECE_BYTES, at)
            last = store.fs.pread(file.fd, size, at - size).rfind(b"\n")
            if last >= 0:
                return at - size + last + 1
            at -= size
    return 0


def _lines(store: Store, piece: Slice) -> Iterator[bytes]:
    day, shard = names.parse_day(piece.day), names.parse_shard_file(f"{piece.shard}.jsonl", store.layout.shards)
    if day is None or shard is None:
        return
    path, left = store.layout.history(day, shard), piece.end - piece.begin
    with suppress(FileNotFoundError), journals.opened(store.fs, path) as file:  # `gc` has removed the day
        for length, lines in file.pieces(piece.begin):
            yield from lines[:left].split(b"\n")[:-1]
            left -= length
            if left <= 0:
                return
