"""The grammar of names: every file name, task id and token is built and parsed here (docs/format.md, "Names").

Text from a caller or from a file becomes part of a path only as one of the types below. Only this module makes them,
and only of text that the grammar knows: none of them holds a slash or is `..`. Each form has one function that builds
it and one that parses it. mypy refuses a plain string where `Layout` wants one of these types, at no cost at run time.
"""

from __future__ import annotations

import hashlib
import re
import string
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, NewType, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

from fsqueue.clock import MS_MAX, Entropy
from fsqueue.errors import InvalidArgument, in_unicode
from fsqueue.format.plain_values import plain
from fsqueue.format.priority import LAST, Rank, in_name, rank_in_name

QueueId = NewType("QueueId", str)
"""16 hexadecimal digits that tell a queue from every other."""
Generation = NewType("Generation", str)
"""The name of a generation's directory: `N-ID`."""
Batch = NewType("Batch", str)
"""The name of a batch, or the UUID in the name of its log."""
Uuid = NewType("Uuid", str)
"""The name of an attempt or of a proposal."""
CommitName = NewType("CommitName", str)
Shard = NewType("Shard", str)
"""The name of a shard: two or four hexadecimal digits."""
Day = NewType("Day", str)
"""A day of the history, as 2026-11-21."""
KeyDigest = NewType("KeyDigest", str)
"""The digest of a task's key: 32 hexadecimal digits."""
KeyEpoch = NewType("KeyEpoch", str)
"""The name of a key epoch's directory: `keys` for the first epoch, `keys-N` for a later one."""
QueueDirectory = NewType("QueueDirectory", str)
"""The name of a queue's directory in its group: the queue's own name, percent-encoded."""
UpdateId = NewType("UpdateId", str)
"""16 random hexadecimal digits that tell an update from every other."""
DecisionFileName = NewType("DecisionFileName", str)
"""The name of a decision file without its ending: a UUID of version 7, never used again."""
NumberFileName = NewType("NumberFileName", str)
"""The name of a file of numbers: which one of them it is, 12 hexadecimal digits from 0."""
CounterName = NewType("CounterName", str)
"""The name of one of the completion counters: two hexadecimal digits."""

BATCH_TASKS_MAX = 1024
"""The most tasks that a batch holds."""
TAKES_INSERTS = -1
"""Stands in the name of an open batch's file in place of the number of tasks: their number is not known there."""

NAMES_KEPT = 1024
"""Number of names of queues whose directories are remembered: an update names the same few again and again."""
NAME_BYTES_MAX = 255
"""The longest name that a filesystem takes. A longer one in a record names no file."""
QUEUE_NAME_RULE = (
    "text of 1 byte or more, without zero bytes. Letters, digits and _ - . ~ @ = + , count one byte each, every other "
    f"byte of UTF-8 counts three; at most {NAME_BYTES_MAX} in all."
)
"""The rule for names of queues in a group, as the end of a sentence."""
BATCH = r"[0-9a-f]{32}"
_BATCH = re.compile(BATCH)
_TASK_FILE = re.compile(
    rf"([0-9]{{13}})-({BATCH})-(?:([1-9][0-9]{{0,3}})|0\+([1-9][0-9]{{0,3}})?)(?:-([A-Za-z0-9_.~%-]*))?\.jsonl"
)
_LOG_FILE = re.compile(r"([0-9a-f]{32})\.jsonl")
_SHARD_FILE = re.compile(r"([0-9a-f]{2}|[0-9a-f]{4})\.jsonl")
_SUCCESSOR = re.compile(r"([0-9a-f]{2}|[0-9a-f]{4})\.[0-9a-f]{16}\.jsonl")
_SETTLED_FILE = re.compile(r"([0-9a-f]{2}|[0-9a-f]{4})\.settled\.jsonl")
_COUNTER = re.compile(r"0[0-9a-f]")
_NUMBER_FILE = re.compile(r"[0-9a-f]{12}")
_TASK_ID = re.compile(rf"({BATCH})\.(0|[1-9][0-9]{{0,8}})")
_TOKEN = re.compile(rf"({BATCH}\.(?:0|[1-9][0-9]{{0,8}}))@([0-9a-f]{{16}})")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UUID = re.compile(r"[0-9a-f]{32}")
_NODE_FILE = re.compile(r"[0-9a-f]{32}\.jsonl")
_SLOT_FILE = re.compile(r"[0-9a-f]{16}\.slots")
_QUEUE_ID = re.compile(r"[0-9a-f]{16}")
_GENERATION = re.compile(r"([1-9][0-9]{0,17})-([0-9a-f]{16})")
_DELETED = re.compile(r"\.fsqueue-deleted-([0-9a-f]{16})-[0-9a-f]{16}")
_KEY_EPOCH = re.compile(r"keys(?:-([1-9][0-9]{0,17}))?")
_TRASHED = re.compile(r"(.+)-[0-9a-f]{16}", re.DOTALL)
_GONE = re.compile(r"\.gone-[0-9a-f]{16}")
_PASSING = re.compile(r"[0-9a-f]{16}\.(?:probe|whole)")
_FRESH = re.compile(r"\.new-[0-9a-f]{16}")
PLAIN = string.ascii_letters + string.digits + "_-.~@=+,"
"""The signs of a queue's name that stand for themselves in the name of its directory; a dot not at the beginning."""
_BYTES = "|".join(f"{byte:02X}" for byte in range(1, 128) if chr(byte) not in PLAIN)
"""The bytes below 128 that are encoded, in hexadecimal digits."""
_BEGIN = r"(?:%2E|(?=[^.]))"
_ASCII = re.compile(rf"{_BEGIN}(?:[A-Za-z0-9_.~@=+,-]++|%(?:{_BYTES}))*+")
_ENCODED = re.compile(rf"{_BEGIN}(?:[A-Za-z0-9_.~@=+,-]++|%(?:{_BYTES}|[89A-F][0-9A-F]))*+")
"""No byte that stands for itself is encoded. The bytes from 128 on may be no text."""
_COMMIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,199}")


class TaskFileName(NamedTuple):
    """The parts of a task file's name. `available_at` (ms), `priority` and `inserted` are hints; the rest stays."""

    available_at: int
    batch: Batch
    count: int  # type: ignore[assignment]  # a tuple's own `count` is not needed
    """Number of tasks that the file holds: 0 if they are in the batch's log."""
    priority: str | None = None
    """The rank of the most urgent task inside, as `priority.in_name` writes it; None if no task has a priority."""
    inserted: int | None = None
    """Number of tasks in the log of a batch that takes no more; TAKES_INSERTS; None if they are in the file."""

    def __str__(self) -> str:
        tail = "" if self.priority is None else f"-{self.priority}"
        if self.inserted is not None:
            tail = f"+{'' if self.inserted == TAKES_INSERTS else self.inserted}{tail}"
        return f"{self.available_at:013d}-{self.batch}-{self.count}{tail}.jsonl"

    @property
    def is_open(self) -> bool:
        """Return whether the batch takes inserts, as the name says."""
        return self.inserted == TAKES_INSERTS

    @property
    def tasks(self) -> int:
        """Return how many tasks a task file's name promises. That of an open batch counts none of those in its log."""
        return self.count + max(self.inserted or 0, 0)

    def sealed(self, tasks: int) -> TaskFileName:
        """Return the file's name once the batch takes no more inserts, with so many tasks in its log."""
        assert 0 <= tasks <= BATCH_TASKS_MAX, "readers would take a name with so many tasks for a stray"
        return self._replace(inserted=tasks)

    def at(self, available_at: int) -> TaskFileName:
        """Return the file's name with another time."""
        return self._replace(available_at=min(max(available_at, 0), MS_MAX))

    @property
    def rank(self) -> Rank:
        """Return the rank of the most urgent task that the name promises. None in the batch is more urgent."""
        return LAST if self.priority is None else rank_in_name(self.priority)

    def ranked(self, rank: Rank) -> TaskFileName:
        """Return the file's name with another rank."""
        return self._replace(priority=in_name(rank))


def parse_task_file(name: str) -> TaskFileName | None:
    """Return the parts of a task file's name; None for anything else (stray files are passed by)."""
    match = _TASK_FILE.fullmatch(name)
    if match is None or len(name) > NAME_BYTES_MAX:
        return None
    available_at, batch, count, inserted, priority = match.groups()
    if count is not None:
        if int(count) > BATCH_TASKS_MAX:
            return None
        return TaskFileName(int(available_at), Batch(batch), int(count), priority)
    if inserted is not None and int(inserted) > BATCH_TASKS_MAX:
        return None
    tasks = TAKES_INSERTS if inserted is None else int(inserted)
    return TaskFileName(int(available_at), Batch(batch), 0, priority, tasks)


def open_batch_file(batch: Batch, rank: Rank = LAST) -> TaskFileName:
    """Return the name of the task file of an open batch, whose most urgent task has this rank.

    The name promises tasks at any time. So it never promises a later time than the truth, whatever is inserted.
    """
    return TaskFileName(0, batch, 0, in_name(rank), TAKES_INSERTS)


def task_files_of(batch: str, texts: Iterable[str]) -> Iterator[TaskFileName]:
    """Yield the task file names of a batch among `texts`, in their order: a record can name another batch's, too."""
    for text in texts:
        name = parse_task_file(text)
        if name is not None and name.batch == batch:
            yield name


def log_file(batch: Batch) -> str:
    """Return the name of a batch's movement log."""
    return f"{batch}.jsonl"


def parse_log_file(name: str) -> Batch | None:
    """Return the UUID in a movement log's name; None for anything else."""
    match = _LOG_FILE.fullmatch(name)
    return Batch(match[1]) if match else None


def birth_ms(batch: str) -> int:
    """Return when a batch was made: the time in its UUIDv7, in milliseconds."""
    return int(batch[:12], 16)


def shard_of(batch: str, shards: int) -> Shard:
    """Return the hashed subdirectory of a batch: the last eight digits of its UUID modulo `shards`."""
    number = int(batch[-8:], 16) % shards
    return Shard(f"{number:02x}" if shards <= 256 else f"{number:04x}")


def shard_listed(directory: str) -> Shard:
    """Return the shard of a directory that was listed as one."""
    return Shard(directory)


def all_shards(shards: int) -> list[Shard]:
    """Return the names of all shards, made or not."""
    assert shards > 0, "a queue has a shard at least"
    return [Shard(f"{number:02x}" if shards <= 256 else f"{number:04x}") for number in range(shards)]


def parse_shard_file(name: str, shards: int) -> Shard | None:
    """Return the shard in `SHARD.jsonl`; None for anything else."""
    return _shard_in(_SHARD_FILE.fullmatch(name), shards)


def parse_successor(name: str, shards: int) -> Shard | None:
    """Return the shard in `SHARD.ID.jsonl`, a file that is to replace another; None for anything else."""
    return _shard_in(_SUCCESSOR.fullmatch(name), shards)


def parse_settled_file(name: str, shards: int) -> Shard | None:
    """Return the shard in `SHARD.settled.jsonl`; None for anything else."""
    return _shard_in(_SETTLED_FILE.fullmatch(name), shards)


def _shard_in(match: re.Match[str] | None, shards: int) -> Shard | None:
    if match is None or int(match[1], 16) >= shards:
        return None
    shard = shard_of(match[1], shards)
    return shard if shard == match[1] else None


def counters(count: int) -> list[CounterName]:
    """Return the names of the completion counters."""
    assert 0 < count <= 256, "a counter's name has two digits"
    return [CounterName(f"{number:02x}") for number in range(count)]


def parse_counter(name: str) -> CounterName | None:
    """Return the name of a completion counter; None for anything else."""
    return CounterName(name) if _COUNTER.fullmatch(name) else None


def generation(number: int, queue_id: QueueId) -> Generation:
    """Return the name of a generation's directory. No other queue that was ever at the same path has the same."""
    return Generation(f"{number}-{queue_id}")


def parse_generation(name: str) -> tuple[int, QueueId] | None:
    """Return the number and the queue's id in the name of a generation's directory; None for anything else."""
    match = _GENERATION.fullmatch(name)
    return (int(match[1]), QueueId(match[2])) if match else None


def deleted(queue_id: QueueId, hex16: str) -> str:
    """Return the name to which a queue's directory is renamed, beside its own, when the queue is deleted."""
    return f".fsqueue-deleted-{queue_id}-{hex16}"


def parse_deleted(name: str) -> QueueId | None:
    """Return the id of the deleted queue that a directory of this name holds; None for anything else."""
    match = _DELETED.fullmatch(name)
    return QueueId(match[1]) if match else None


def trashed(tree: Generation | Day | KeyEpoch, hex16: str) -> str:
    """Return the name of a tree in the queue's own trash: an earlier generation, a day of the history, or files of
    keys.
    """
    return f"{tree}-{hex16}"


def parse_trashed_generation(name: str) -> tuple[int, QueueId] | None:
    """Return number and queue of a generation in the trash; None for anything else."""
    match = _TRASHED.fullmatch(name)
    return parse_generation(match[1]) if match else None


def parse_trashed_day(name: str) -> Day | None:
    """Return the day of a part of the history in the trash; None for anything else."""
    match = _TRASHED.fullmatch(name)
    return parse_day(match[1]) if match else None


def is_trashed_key_epoch(name: str) -> bool:
    """Return whether a name in the trash is that of a key epoch's directory."""
    match = _TRASHED.fullmatch(name)
    return match is not None and parse_key_epoch(match[1]) is not None


def gone(hex16: str) -> str:
    """Return the name to which the directory of an attempt is renamed, in `staging/`, before it is removed."""
    return f".gone-{hex16}"


def is_gone(name: str) -> bool:
    """Return whether a name in `staging/` is that of an attempt that is being removed."""
    return _GONE.fullmatch(name) is not None


def probe(hex16: str) -> str:
    """Return the name of a file in `staging/` whose stamp tells the file server's time."""
    return f"{hex16}.probe"


def is_passing(name: str) -> bool:
    """Return whether a name in `staging/` is that of a probe of the clock, or of a `replacement`."""
    return _PASSING.fullmatch(name) is not None


def replacement(hex16: str) -> str:
    """Return the name of a file in `staging/` that is renamed to where it belongs once it is whole."""
    return f"{hex16}.whole"


def fresh(hex16: str) -> str:
    """Return the name of a file that becomes `queue.jsonl`, or of a probe of the place where a queue is made."""
    return f".new-{hex16}"


def is_fresh(name: str) -> bool:
    """Return whether a name is one that `fresh` makes."""
    return _FRESH.fullmatch(name) is not None


def node_file(node: str) -> str:
    """Return the name of a node's file: what nodes are called may be too long for a name, or lead astray."""
    digest = hashlib.blake2b(node.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"{digest}.jsonl"


def is_node_file(name: str) -> bool:
    """Return whether a name can be that of a node's file."""
    return _NODE_FILE.fullmatch(name) is not None


def slot_file(epoch: str) -> str:
    """Return the name of the file of slots of the limits that a line of `queue.jsonl` has begun under this id."""
    return f"{epoch}.slots"


def is_slot_file(name: str) -> bool:
    """Return whether a name can be that of a file of slots."""
    return _SLOT_FILE.fullmatch(name) is not None


def key_digest(key: str) -> KeyDigest:
    """Return the digest of a task's key, under which its file is found: 32 hexadecimal digits."""
    return KeyDigest(hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest())


def key_epoch(number: int) -> KeyEpoch:
    """Return the name of the directory that holds the files of keys in an epoch; the first has the number 0."""
    assert number >= 0, "epochs of keys are numbered from 0"
    return KeyEpoch(f"keys-{number}" if number else "keys")


def parse_key_epoch(name: str) -> int | None:
    """Return the number of a key epoch, given the name of its directory; None for anything else."""
    match = _KEY_EPOCH.fullmatch(name)
    return int(match[1] or 0) if match else None


def key_digest_of(data: bytes | bytearray) -> KeyDigest:
    """Return the digest of a key from its 16 bytes."""
    return KeyDigest(data.hex())


def key_file(digest: KeyDigest) -> str:
    """Return the name of a key's file: a key may be too long for a name, or lead astray."""
    return f"{digest}.jsonl"


def parse_key_file(name: str) -> KeyDigest | None:
    """Return the digest in the name of a key's file; None for anything else."""
    match = _LOG_FILE.fullmatch(name)
    return KeyDigest(match[1]) if match else None


def queue_directory(name: object) -> QueueDirectory:
    """Return the name of the directory of a group's queue. InvalidArgument for what cannot be a queue's name.

    Nothing in it leads out of the group: a slash, a zero byte and a leading dot are encoded.
    """
    return _queue_directory(name) if type(name) is str else _queue_directory_of(plain(name))


def _queue_directory_of(text: object) -> QueueDirectory:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
    encoded = quote_from_bytes(data, safe=PLAIN)
    if encoded.startswith("."):
        encoded = f"%2E{encoded[1:]}"
    if not 1 <= len(encoded) <= NAME_BYTES_MAX or b"\0" in data or in_unicode(str(text)) != text:
        raise InvalidArgument(
            f"{text!r:.100} cannot be the name of a queue in a group: {QUEUE_NAME_RULE} Nothing was done."
        )
    return QueueDirectory(encoded)


_queue_directory = lru_cache(NAMES_KEPT)(_queue_directory_of)


@lru_cache(NAMES_KEPT)
def parse_queue_directory(text: str) -> str | None:
    """Return the name of the queue that a directory of this name in a group may hold; None for any other name.

    A name that is not the encoding of what it decodes to is no queue's: otherwise two directories had one queue's name.
    """
    if len(text) > NAME_BYTES_MAX or _ENCODED.fullmatch(text) is None:
        return None
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None


def listed_queue_directory(text: str) -> QueueDirectory | None:
    """Return the name of a directory in a group as that of a queue's directory; None if it cannot be one."""
    return None if parse_queue_directory(text) is None else QueueDirectory(text)


def listed_queue_directories(texts: Iterable[str]) -> list[QueueDirectory]:
    """Return the names among those of a group's directory that a queue's directory can have, in the same order."""
    is_ascii = _ASCII.fullmatch
    found = [
        text
        for text in texts
        if (len(text) <= NAME_BYTES_MAX and is_ascii(text) is not None) or parse_queue_directory(text) is not None
    ]
    return cast("list[QueueDirectory]", found)


def queue_id_of(data: bytes) -> QueueId:
    """Return the id of a queue from its 8 bytes."""
    return QueueId(data.hex())


def parse_queue_id(text: object) -> QueueId | None:
    """Return a text that is fit to tell a queue from others, 16 hexadecimal digits; None for anything else."""
    return QueueId(text) if isinstance(text, str) and _QUEUE_ID.fullmatch(text) else None


def new_update(entropy: Entropy) -> UpdateId:
    """Return the id of a new update, which no other update has."""
    return UpdateId(entropy.hex16())


def parse_update(text: object) -> UpdateId | None:
    """Return a text that is fit to tell an update from others, 16 hexadecimal digits; None for anything else."""
    return UpdateId(text) if isinstance(text, str) and _QUEUE_ID.fullmatch(text) else None


def new_decisions(entropy: Entropy, now_ms: int) -> DecisionFileName:
    """Return the name of a decision file that is new."""
    return DecisionFileName(entropy.uuid7(now_ms))


def parse_decisions(text: object) -> DecisionFileName | None:
    """Return the name of a decision file as records say it, 32 hexadecimal digits; None for anything else."""
    return DecisionFileName(text) if isinstance(text, str) and _UUID.fullmatch(text) else None


def decision_file(name: DecisionFileName) -> str:
    """Return the file name of a decision file."""
    return f"{name}.jsonl"


def parse_decision_file(name: str) -> DecisionFileName | None:
    """Return the decision file that has this file name; None for anything else."""
    text = name.removesuffix(".jsonl")
    return parse_decisions(text) if text != name else None


def number_file(place: int) -> NumberFileName:
    """Return the name of a file of numbers, by its place among them from 0."""
    assert 0 <= place < 1 << 48, "the name has 12 digits"
    return NumberFileName(f"{place:012x}")


def parse_number_file(name: str) -> int | None:
    """Return the place of the file of numbers that has this name; None for anything else."""
    return int(name, 16) if _NUMBER_FILE.fullmatch(name) else None


def day_of(at_ms: int) -> Day:
    """Return the UTC day of a time, as 2026-11-21."""
    return Day(time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000)))


def parse_day(name: str) -> Day | None:
    """Return the day that a name is, as under history/; None for anything else."""
    return Day(name) if _DAY.fullmatch(name) else None


def task_id(batch: str, index: int) -> str:
    """Return the id of a task: never used twice."""
    return f"{batch}.{index}"


def parse_task_id(text: object) -> tuple[Batch, int]:
    """Return batch and index of a task id; InvalidArgument if it is none."""
    match = _TASK_ID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a task id. Ids look like '{'0' * 32}.7': copy one from what 'fsqueue ls' prints."
        )
    return Batch(match[1]), int(match[2])


def token(batch: Batch, index: int, lease: str) -> str:
    """Return the token of a lease on a task."""
    return f"{task_id(batch, index)}@{lease}"


def task_of(token: str) -> str:
    """Return the id of the task that a token names."""
    return token.partition("@")[0]


def parse_token(text: object) -> tuple[Batch, int, str]:
    """Return batch, index and lease of a token; InvalidArgument if it is none."""
    match = _TOKEN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a token. Tokens look like 'ID@LEASE': pass what lease printed as 'token'."
        )
    return *parse_task_id(match[1]), match[2]


def new_batch(entropy: Entropy, now_ms: int) -> Batch:
    """Return a batch's name that is new."""
    return Batch(entropy.uuid7(now_ms))


def new_batch_in(entropy: Entropy, now_ms: int, shard: int, shards: int) -> Batch:
    """Return a new batch's name that belongs to the shard of this number."""
    assert 0 <= shard < shards, "a batch would lie in another shard than asked for"
    name = new_batch(entropy, now_ms)
    last = int(name[-8:], 16)
    last += shard - last % shards
    return Batch(f"{name[:-8]}{last if last < 1 << 32 else last - shards:08x}")


def new_uuid(entropy: Entropy, now_ms: int) -> Uuid:
    """Return the name of an attempt or of a proposal that is new."""
    return Uuid(entropy.uuid7(now_ms))


def successor(batch: Batch, index: int) -> Batch:
    """Return the batch `index` places after another one of the same part of a commit: the last eight digits count."""
    assert 0 <= index < 1 << 32, "two batches of a part would have one name"
    return Batch(f"{batch[:24]}{(int(batch[24:], 16) + index) % (1 << 32):08x}")


def distance(first: str, batch: str) -> int | None:
    """Return how far a batch comes after the first one of its part; None if it is of another part."""
    if len(batch) != len(first) or batch[:24] != first[:24]:
        return None
    return (int(batch[24:], 16) - int(first[24:], 16)) % (1 << 32)


def parse_uuid(text: object) -> Uuid | None:
    """Return a UUID as it stands in names; None for anything else."""
    found = _UUID.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Uuid(found[0])


def batch_of(data: bytes) -> Batch:
    """Return the name of a batch from its 16 bytes."""
    return Batch(data.hex())


def parse_batch(text: object) -> Batch | None:
    """Return the name of a batch; None for anything else."""
    return Batch(text) if isinstance(text, str) and _BATCH.fullmatch(text) else None


def parse_commit(text: object) -> CommitName | None:
    """Return a commit's name; None for what cannot be one."""
    found = _COMMIT.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else CommitName(found[0])  # of a member of an Enum what was looked at: its value


def commit_name(text: object) -> CommitName:
    """Return a commit's name as users give it; InvalidArgument if it cannot be one."""
    name = parse_commit(text)
    if name is None:
        raise InvalidArgument(
            f"{text!r} cannot be a commit's name: 1 to 200 letters, digits and the signs . _ = + @ -, "
            "with a letter or a digit first, as in seed-2026-11."
        )
    return name


def attempt_name(text: object) -> Uuid:
    """Return an attempt's name as users give it back; InvalidArgument if it cannot be one."""
    name = parse_uuid(text)
    if name is None:
        raise InvalidArgument(
            f"{text!r} is not the name of an attempt at a commit: 32 hexadecimal digits. Nothing was done. "
            "Pass what `stage` returned as `part.attempt`, or leave it out."
        )
    return name


def record_file(commit: CommitName) -> str:
    """Return the file name of a commit's record."""
    return f"{commit}.json"


def parse_record_file(name: str) -> CommitName | None:
    """Return the commit whose record has this file name; None for anything else."""
    text = name.removesuffix(".json")
    return parse_commit(text) if text != name else None


def proposal_file(identity: Uuid) -> str:
    """Return the file name of a proposal."""
    return f"{identity}.json"


def parse_proposal_file(name: str) -> Uuid | None:
    """Return the id of a proposal; None for anything else."""
    text = name.removesuffix(".json")
    return parse_uuid(text) if text != name else None


def ballot_file(identity: Uuid) -> str:
    """Return the file name of a proposal's ballot: the copy of it that is linked to the record's name."""
    return f".{identity}.json"


def parse_ballot_file(name: str) -> Uuid | None:
    """Return the id of a ballot's proposal; None for anything else. No record has such a name."""
    return parse_proposal_file(name[1:]) if name.startswith(".") else None


def attempt(identity: Uuid, commit: CommitName) -> str:
    """Return the name of the directory in which an attempt stages what it has for a commit."""
    return f"{identity}-{commit}"


def parse_attempt(name: str) -> tuple[Uuid, CommitName] | None:
    """Return the id of an attempt, and the commit that it is for; None for anything else."""
    identity, dash, commit = parse_uuid(name[:32]), name[32:33], parse_commit(name[33:])
    return (identity, commit) if dash == "-" and identity is not None and commit is not None else None
