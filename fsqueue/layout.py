"""Where things are in a queue's directory, and `queue.jsonl`: its settings and fate (docs/format.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from fsqueue import names
from fsqueue.errors import FormatTooNew, InvalidArgument, NotAQueue

FORMAT = 1
"""The format this version writes, and the newest it reads."""

DURABILITIES = ("none", "default", "strict")
BATCH_BYTES_MAX = 1 << 20
"""A batch of more than one task is not larger than this."""
GENERATION_MAX = 10**18 - 1
COUNTERS = 16
"""Into how many files the completion counter is spread."""

DOCTOR = ".fsqueue-doctor"
"""Where the doctor works, in the directory that it examines."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was decided when the queue was created; units are in the names.

    `shards`: hashed subdirectories, 1 to 4,096. `batch_tasks_max`: tasks a file, 1 to 1,024.
    `max_attempts`: after so many a task is buried; None: never. `lease_s`: how long a lease lasts
    unless the lessee says otherwise. `backoff_s`: least and greatest pause after a failure.
    """

    shards: int = 64
    batch_tasks_max: int = 1024
    task_bytes_max: int = 64 * 2**20
    max_attempts: int | None = 5
    lease_s: float = 600
    backoff_s: tuple[float, float] = (1, 3600)
    durability: str = "default"
    keep_history: bool = True

    def __post_init__(self) -> None:
        def whole(name: str, least: int, most: int) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidArgument(f"{name} must be a whole number from {least:,} to {most:,}, not {value!r}.")

        whole("shards", 1, 4096)
        whole("batch_tasks_max", 1, 1024)
        whole("task_bytes_max", 1, 2**30)
        if self.max_attempts is not None:
            whole("max_attempts", 1, 1_000_000)
        _seconds("lease_s", self.lease_s, 0.001)
        pair: Any = self.backoff_s
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidArgument(f"backoff_s must be a pair (least, greatest) of seconds, not {pair!r}.")
        for value in pair:
            _seconds("backoff_s", value, 0)
        if pair[0] > pair[1]:
            raise InvalidArgument(f"backoff_s must be (least, greatest), not {tuple(pair)!r}.")
        object.__setattr__(self, "backoff_s", tuple(pair))
        if self.durability not in DURABILITIES:
            raise InvalidArgument(f"durability must be one of {', '.join(DURABILITIES)}, not {self.durability!r}.")
        if not isinstance(self.keep_history, bool):
            raise InvalidArgument(f"keep_history must be True or False, not {self.keep_history!r}.")


def _seconds(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{name} must be a number of seconds, not {value!r}.")
    if not least <= value <= 10**9:
        raise InvalidArgument(f"{name} must be from {least:g} to 1,000,000,000 seconds, not {value!r}.")


@dataclass(frozen=True, slots=True)
class Fate:
    """What `queue.jsonl` says: settings, its own id, the current generation, closed or not."""

    settings: Settings
    id: str
    generation: int = 1
    closed: bool = False

    @property
    def directory(self) -> str:
        """The directory of the current generation, in the queue's."""
        return names.generation(self.generation, self.id)


def birth_record(settings: Settings, identity: str, at: int) -> bytes:
    """The first line of `queue.jsonl`. `identity` tells this queue from one made later at the same path."""
    return _line({"op": "create", "at": at, "format": FORMAT, "id": identity, "settings": asdict(settings)})


def generation_record(generation: int, at: int) -> bytes:
    """The line that begins a generation: everything before it is purged."""
    return _line({"op": "generation", "at": at, "generation": generation})


def closed_record(at: int) -> bytes:
    """The line that ends a queue."""
    return _line({"op": "closed", "at": at})


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def read_fate(content: bytes, path: str) -> Fate:
    """Fold `queue.jsonl`. Lines that are torn or not understood are passed over.

    NotAQueue if its first line is no `create`; FormatTooNew if any line asks for a newer reader.
    """
    fate: Fate | None = None
    for line in content.split(b"\n")[:-1]:
        try:
            record = orjson.loads(line)
            if not isinstance(record, dict):
                continue
            wanted = record.get("format", 0)
            if isinstance(wanted, int) and wanted > FORMAT:
                raise FormatTooNew(
                    f"The queue {path} has format {wanted}; this fsqueue reads up to {FORMAT}. Upgrade fsqueue."
                )
            match record:
                case {"op": "create", "id": str(identity), "settings": dict(given)} if fate is None:
                    known = {key: given[key] for key in Settings.__dataclass_fields__ if key in given}
                    if names.is_queue_id(identity):
                        fate = Fate(Settings(**known), identity)
                case {"op": "generation", "generation": int(number)} if fate is not None:
                    if fate.generation < number <= GENERATION_MAX:
                        fate = replace(fate, generation=number)
                case {"op": "closed"} if fate is not None:
                    fate = replace(fate, closed=True)
        except (orjson.JSONDecodeError, InvalidArgument, TypeError, RecursionError):
            continue  # a RecursionError: from the text of an InvalidArgument about a deep value
    if fate is None:
        raise NotAQueue(
            f"{path} holds a queue.jsonl that is empty or damaged. Restore it from a backup, or use another path."
        )
    return fate


class Layout:
    """The paths of one generation of a queue. Cheap to make; touches nothing."""

    __slots__ = (
        "base",
        "commits",
        "doorbell",
        "logs",
        "nodes",
        "pending",
        "quarantine",
        "queue",
        "settings_file",
        "shards",
        "staging",
        "tasks",
        "trash",
    )

    def __init__(self, queue: str, directory: str, shards: int) -> None:
        self.queue = queue
        self.base = base = f"{queue}/{directory}"
        self.shards = shards
        self.settings_file = settings_file(queue)
        self.doorbell = f"{queue}/doorbell"
        self.trash = f"{queue}/.trash"
        self.quarantine = f"{queue}/.quarantine"
        self.staging = f"{base}/staging"
        self.commits = f"{base}/commits"
        self.pending = f"{base}/commits/pending"
        self.tasks = f"{base}/queue"
        self.logs = f"{base}/movements"
        self.nodes = f"{base}/nodes"

    def shard(self, batch: str) -> str:
        """The name of a batch's shard."""
        return names.shard_of(batch, self.shards)

    def task_file(self, name: names.TaskFileName) -> str:
        """The path of a published task file."""
        return f"{self.tasks}/{names.shard_of(name.batch, self.shards)}/{name}"

    def log(self, batch: str) -> str:
        """The path of a batch's movement log."""
        return f"{self.logs}/{names.shard_of(batch, self.shards)}/{names.log_file(batch)}"

    def counter(self, number: str) -> str:
        """The path of one of the completion counters."""
        return f"{self.base}/completions/{number}"

    def node(self, node: str) -> str:
        """The path of a node's failures in a row."""
        return f"{self.nodes}/{names.node_file(node)}"

    def dead(self, shard: str) -> str:
        """The path of a shard's dead letters."""
        return f"{self.base}/dead/{shard}.jsonl"

    def history(self, day: str, shard: str) -> str:
        """The path of a day's history of a shard."""
        return f"{self.base}/history/{day}/{shard}.jsonl"

    def attempt(self, attempt: str, commit: str) -> str:
        """The directory in which an attempt stages what it has for a commit."""
        return f"{self.staging}/{attempt}-{commit}"

    def proposal(self, identity: str) -> str:
        """The path of a record that is proposed, or decided and not applied yet."""
        return f"{self.pending}/{identity}.json"

    def record(self, commit: str) -> str:
        """The path of a commit's record."""
        return f"{self.commits}/{commit}.json"

    @property
    def history_days(self) -> str:
        """The directory of the days."""
        return f"{self.base}/history"


def is_passing(name: str) -> bool:
    """Whether a name in a directory without a queue is in nobody's way.

    It comes from making one, from a doctor, or from somebody who was still at work in a queue that was deleted.
    """
    return name.startswith(".new-") or name in (DOCTOR, ".trash", "doorbell")


def settings_file(queue: str) -> str:
    """The path of a queue's `queue.jsonl`."""
    return f"{queue}/queue.jsonl"


def group_trash(queue: str) -> str:
    """Where a deleted queue is moved: the trash of the directory that holds it."""
    return f"{queue.rpartition('/')[0]}/.trash"
