"""Reading a queue, or a directory of queues, as a DataFrame: partitions of shards, Arrow record batches.

What the planning process sees (which queues, which generation, which shards) travels in the partitions; a partition
that finds another generation raises, since what was read before belongs to tasks that are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.types import StructType

from fsqueue.errors import InvalidArgument, StorageError
from fsqueue.format import names
from fsqueue.format.models import DELAYED, WAITING
from fsqueue.interruptions import suppress
from fsqueue.spark import schemas, views
from fsqueue.spark.options import ReadOptions
from fsqueue.storage import deadletters, history, listing, retrying
from fsqueue.storage.discovery import queues
from fsqueue.storage.store import Store
from fsqueue.views import inspection

if TYPE_CHECKING:
    import pyarrow as pa

    from fsqueue.spark.columns import Columns

PARTITION_TASKS = 500_000
"""Tasks in a partition, about. It is at least a shard."""
TASK_BYTES = 128 << 20
"""Bytes of task files in a partition, about."""
HISTORY_BYTES = 8 << 20
"""Bytes of history and letters in a partition, about. Starting one costs as much as reading 50,000 tasks."""
PLANNED_QUEUES_MAX = 64
"""A group with more queues is split queue by queue, not looked into beforehand."""
SPREAD_MAX = 256
"""Maximum number of partitions then."""


class Piece(NamedTuple):
    """A part of a queue: these shards (None: all of them) of this generation (None: whichever there is)."""

    path: str
    generation: int | None
    shards: tuple[str, ...] | None
    first: bool
    """Whether what belongs to no shard is read here, too."""


class Pieces(InputPartition):  # type: ignore[misc]
    """The share of one Spark task: what it reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(0)
        self.pieces = list(pieces)


class FsqueueReader(DataSourceReader):  # type: ignore[misc]
    """Reads a view. With options.pushdown use `PushdownReader`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        schemas.check(options.view, schema, options.corrupt)
        self.options = options
        self.schema = schema
        self.queue_names: tuple[str, ...] | None = None

    # -- planning, on the driver --------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        """Return pieces of about the same size. First publish what was decided and not yet published."""
        paths = [path for given in self.options.paths for path in queues(given)]
        if self.queue_names is not None:
            paths = [path for path in paths if name_of(path) in self.queue_names]
        if len(paths) > PLANNED_QUEUES_MAX:
            return self._by_queue(paths)
        weighed = [unit for path in paths for unit in self._plan(path)]
        total = sum(weight for _, weight in weighed)
        most = max(1, min(len(weighed), self.options.partitions or round(total + 0.5)))
        split: list[list[Piece]] = [[]]
        filled = 0.0
        for piece, weight in weighed:
            if filled >= total / most * len(split) and len(split) < most and split[-1]:
                split.append([])
            _join(split[-1], piece)
            filled += weight
        return [Pieces(pieces) for pieces in split]

    def _by_queue(self, paths: list[str]) -> list[InputPartition]:
        most = min(self.options.partitions or SPREAD_MAX, len(paths))
        pieces = [Piece(path, None, self.options.shards, True) for path in paths]
        return [Pieces(pieces[number::most]) for number in range(most)]

    def _plan(self, path: str) -> list[tuple[Piece, float]]:
        """Return the shards of a queue, each with its weight: 1 is as much as a partition should have."""
        store = Store(path)
        retrying.publish_pending(store)
        inspection.apply_pending(store)
        known, asked = names.all_shards(store.layout.shards), self.options.shards
        wanted = known if asked is None else [shard for shard in known if shard in asked]
        if odd := set(asked or ()) - set(known):
            raise InvalidArgument(
                f"The queue {path} has no shard {min(odd)!r}: its {len(known)} shards are {known[0]} to {known[-1]}."
            )
        weights = _weigh(store, self.options.view, wanted)
        return [
            (Piece(path, store.queue_state.generation, (shard,), number == 0), weights.get(shard, 0.0))
            for number, shard in enumerate(wanted)
        ]

    # -- reading, on the executors ------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of some pieces."""
        from fsqueue.spark.columns import Columns  # with pandas, which planning does without: a quarter of a second
        from fsqueue.spark.record_batches import system_pool

        with system_pool():
            for piece in partition.pieces:
                store = Store(piece.path)
                _same_generation(store, piece)
                columns = Columns(self.options, self.schema, name_of(piece.path))
                yield from self._read(store, piece, columns)
                yield from columns.rest()
                store.refresh(now=True)
                _same_generation(store, piece)

    def _read(self, store: Store, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
        view = self.options.view
        if view in views.OF_NO_SHARD:
            yield from columns.rows(views.OF_NO_SHARD[view](store) if piece.first else iter(()))
            return
        known = names.all_shards(store.layout.shards)
        shards = known if piece.shards is None else [shard for shard in known if shard in piece.shards]
        if view == "findings":
            yield from columns.rows(views.findings(store, shards, piece.first))
            return
        for shard in shards:
            if view == "tasks":
                yield from self._tasks(store, shard, columns)
            else:
                yield from columns.rows(views.BY_SHARD[view](store, shard))

    def _tasks(self, store: Store, shard: names.Shard, columns: Columns) -> Iterator[pa.RecordBatch]:
        states = self.options.states
        fresh, touched = views.untouched(store, shard)
        now = store.clock.now_ms()
        for name in fresh:
            state = DELAYED if name.available_at > now else WAITING
            if state in states:
                content = views.content_of(store, name) if columns.is_content_wanted else None
                is_gone = columns.is_content_wanted and content is None
                full = None if is_gone else columns.untouched(name, state, content)
                if full is not None:
                    yield from full
                else:  # renamed, finished, or with lines that need to be looked at one by one
                    yield from columns.rows(views.tasks(store, name, states))
        for name in touched:
            yield from columns.rows(views.tasks(store, name, states))


class PushdownReader(FsqueueReader):
    """Understands filters on `state` and `queue`. Spark wants spark.sql.python.filterPushdown.enabled for it."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what can be pruned by; every filter is still applied by Spark, too."""
        for one in filters:
            if isinstance(one, (EqualTo, In)) and len(one.attribute) == 1:
                values = tuple(one.value) if isinstance(one, In) else (one.value,)
                if one.attribute[0] == "state" and self.options.view == "tasks":
                    states = tuple(state for state in self.options.states if state in values)
                    self.options = ReadOptions(**{**vars(self.options), "states": states})
                elif one.attribute[0] == schemas.QUEUE:
                    self.queue_names = tuple(map(str, values))
            yield one


def name_of(path: str) -> str:
    """Return a queue's name in its group: its directory's, percent-decoded."""
    return unquote(path.rpartition("/")[2])


def _join(pieces: list[Piece], piece: Piece) -> None:
    last = pieces[-1] if pieces else None
    if last is not None and last.path == piece.path and last.shards is not None and piece.shards is not None:
        pieces[-1] = last._replace(shards=last.shards + piece.shards)
    else:
        pieces.append(piece)


def _weigh(store: Store, view: str, shards: Sequence[names.Shard]) -> dict[str, float]:
    """Return how much of a partition each shard is, from names and sizes alone."""
    if view in views.OF_NO_SHARD:
        return {}
    if view == "dead":
        sizes = deadletters.sizes(store)
        return {shard: sizes.get(shard, 0) / HISTORY_BYTES for shard in shards}
    if view in ("tasks", "states", "findings", "leases"):
        return {shard: _weigh_tasks(store, shard) for shard in shards}
    kept = history.sizes(store)
    each = names.BATCH_TASKS_MAX / PARTITION_TASKS
    return {shard: kept.get(shard, 0) / HISTORY_BYTES + len(listing.logs(store, shard)) * each for shard in shards}


def _weigh_tasks(store: Store, shard: names.Shard) -> float:
    """Return a shard's weight: by the tasks that the names tell, or by their bytes, as one file tells the size.

    A batch that takes inserts weighs as much as one that is full: its name does not tell how many tasks it has.
    """
    files = list(listing.task_files(store, shard).values())
    count = sum(names.BATCH_TASKS_MAX if name.is_open else name.tasks for name in files)
    known = min((name for name in files if name.tasks), key=lambda name: name.inserted is not None, default=None)
    size = 0.0
    if known is not None:
        is_in_log = known.inserted is not None
        path = store.layout.log(known.batch) if is_in_log else store.layout.task_file(known)
        with suppress(OSError):  # renamed or finished meanwhile
            size = store.fs.stat(path).st_size / known.tasks
    return max(count / PARTITION_TASKS, count * size / TASK_BYTES)


def _same_generation(store: Store, piece: Piece) -> None:
    if piece.generation is not None and store.queue_state.generation != piece.generation:
        raise StorageError(f"The queue {piece.path} was purged while it was being read. Read it again.")
