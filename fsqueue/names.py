"""The grammar of names: every file name, task id and token is built and parsed here (docs/format.md, "Names")."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from fsqueue.clock import MS_MAX
from fsqueue.errors import InvalidArgument

BATCH_TASKS_MAX = 1024
"""The most tasks that a task file holds."""

NAME_BYTES_MAX = 255
"""What a filesystem takes for a name; a longer one in a record is nobody's."""
BATCH = r"[0-9a-f]{32}(?:~[0-9a-f]{32})?"
_BATCH = re.compile(BATCH)
_TASK_FILE = re.compile(rf"([0-9]{{13}})-({BATCH})-([1-9][0-9]{{0,3}})(?:-([^/\x00]*))?\.jsonl")
_LOG_FILE = re.compile(r"([0-9a-f]{32})\.jsonl")
_TASK_ID = re.compile(rf"({BATCH})\.(0|[1-9][0-9]{{0,8}})")
_TOKEN = re.compile(rf"({BATCH}\.(?:0|[1-9][0-9]{{0,8}}))@([0-9a-f]{{16}})")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UUID = re.compile(r"[0-9a-f]{32}")
_NODE_FILE = re.compile(r"[0-9a-f]{32}\.jsonl")
_QUEUE_ID = re.compile(r"[0-9a-f]{16}")
_GENERATION = re.compile(r"([1-9][0-9]{0,17})-[0-9a-f]{16}")
_COMMIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,199}")


class TaskFileName(NamedTuple):
    """What the name of a task file says. `available_at` (ms) is a hint; the rest never changes."""

    available_at: int
    batch: str
    count: int  # type: ignore[assignment]  # a tuple's own `count` is not needed
    priority: str | None = None

    def __str__(self) -> str:
        tail = "" if self.priority is None else f"-{self.priority}"
        return f"{self.available_at:013d}-{self.batch}-{self.count}{tail}.jsonl"

    def at(self, available_at: int) -> TaskFileName:
        """The same file's name with another time."""
        return self._replace(available_at=min(max(available_at, 0), MS_MAX))

    @property
    def decoded_priority(self) -> str | None:
        """The priority as users gave it (it may have been cut to fit)."""
        return None if self.priority is None else unquote(self.priority)


def parse_task_file(name: str) -> TaskFileName | None:
    """The parts of a task file's name; None for anything else (stray files are passed by)."""
    match = _TASK_FILE.fullmatch(name)
    if match is None or (len(name) > NAME_BYTES_MAX // 4 and len(os.fsencode(name)) > NAME_BYTES_MAX):
        return None
    available_at, batch, count, priority = match.groups()
    if int(count) > BATCH_TASKS_MAX:
        return None
    return TaskFileName(int(available_at), batch, int(count), priority)


def task_files_of(batch: str, texts: Iterable[str]) -> Iterator[TaskFileName]:
    """The task file names of a batch among `texts`, in their order: a record can name another batch's, too."""
    for text in texts:
        name = parse_task_file(text)
        if name is not None and name.batch == batch:
            yield name


def log_file(batch: str) -> str:
    """The name of a batch's movement log: its UUID, or its key's, which is what follows `~`."""
    return f"{batch[-32:]}.jsonl"


def parse_log_file(name: str) -> str | None:
    """The UUID in a movement log's name; None for anything else."""
    match = _LOG_FILE.fullmatch(name)
    return match and match[1]


def birth_ms(batch: str) -> int:
    """When a batch was made: the time in its UUIDv7, in milliseconds."""
    return int(batch[:12], 16)


def shard_of(batch: str, shards: int) -> str:
    """The hashed subdirectory of a batch or of its key: the UUID's last eight digits modulo `shards`."""
    number = int(batch[-8:], 16) % shards
    return f"{number:02x}" if shards <= 256 else f"{number:04x}"


def all_shards(shards: int) -> list[str]:
    """The names of all shards, made or not."""
    return [f"{number:02x}" if shards <= 256 else f"{number:04x}" for number in range(shards)]


def generation(number: int, queue_id: str) -> str:
    """The directory of a generation: of this one, of this queue, and of no other that was ever at the same path."""
    return f"{number}-{queue_id}"


def parse_generation(name: str) -> int | None:
    """The number in the name of a generation's directory, of whatever queue; None if it is no such name."""
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match else None


def node_file(node: str) -> str:
    """The name of a node's file: what nodes are called may be too long for a name, or lead astray."""
    digest = hashlib.blake2b(node.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return f"{digest}.jsonl"


def is_node_file(name: str) -> bool:
    """Whether a name can be that of a node's file."""
    return _NODE_FILE.fullmatch(name) is not None


def is_queue_id(text: str) -> bool:
    """Whether a text is fit to tell a queue from others: 16 hexadecimal digits."""
    return _QUEUE_ID.fullmatch(text) is not None


def is_day(name: str) -> bool:
    """Whether a name is that of a day, as under history/."""
    return _DAY.fullmatch(name) is not None


def task_id(batch: str, index: int) -> str:
    """The id of a task: never used twice."""
    return f"{batch}.{index}"


def parse_task_id(text: object) -> tuple[str, int]:
    """Batch and index of a task id; InvalidArgument if it is none."""
    match = _TASK_ID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a task id. Ids look like '{'0' * 32}.7': copy one from 'ls' or from what insert printed."
        )
    return match[1], int(match[2])


def parse_token(text: object) -> tuple[str, int, str]:
    """Batch, index and lease of a token; InvalidArgument if it is none."""
    match = _TOKEN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{text!r} is not a token. Tokens look like 'ID@LEASE': pass what lease printed as 'token'."
        )
    return *parse_task_id(match[1]), match[2]


def successor(batch: str, index: int) -> str:
    """The batch that comes `index` after another one of the same part of a commit: its last eight digits count."""
    return f"{batch[:24]}{(int(batch[24:], 16) + index) % (1 << 32):08x}"


def distance(first: str, batch: str) -> int | None:
    """How far a batch comes after the first one of its part; None if it is of another part."""
    if len(batch) != len(first) or batch[:24] != first[:24]:
        return None
    return (int(batch[24:], 16) - int(first[24:], 16)) % (1 << 32)


def is_uuid(text: object) -> bool:
    """Whether a text is a UUID as it stands in names."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


def is_batch(text: object) -> bool:
    """Whether a text is the name of a batch."""
    return isinstance(text, str) and _BATCH.fullmatch(text) is not None


def is_commit(text: object) -> bool:
    """Whether a text can be a commit's name."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def commit_name(text: object) -> str:
    """A commit's name as users give it; InvalidArgument if it cannot be one."""
    if not isinstance(text, str) or not is_commit(text):
        raise InvalidArgument(
            f"{text!r} cannot be a commit's name: 1 to 200 letters, digits and the signs . _ = + @ -, "
            "with a letter or a digit first, as in seed-2026-11."
        )
    return text


def parse_record_file(name: str) -> str | None:
    """The commit whose record has this file name; None for anything else."""
    text = name.removesuffix(".json")
    return text if text != name and is_commit(text) else None


def parse_proposal_file(name: str) -> str | None:
    """The id of a proposal; None for anything else."""
    text = name.removesuffix(".json")
    return text if text != name and is_uuid(text) else None


def parse_attempt(name: str) -> tuple[str, str] | None:
    """The id of an attempt, and the commit that it is for; None for anything else."""
    attempt, dash, commit = name[:32], name[32:33], name[33:]
    return (attempt, commit) if dash == "-" and is_uuid(attempt) and is_commit(commit) else None


def queue_path(path: object) -> str:
    """The directory that a user's `path` or `fq://path` means, as an absolute path without a final slash."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.removeprefix("fq://") or "\0" in text:
        raise InvalidArgument(
            f"{path!r} is not a queue's path. Give a directory, as /scratch/me/tiles or fq:///scratch/me/tiles."
        )
    return os.path.abspath(os.path.expanduser(text.removeprefix("fq://")))
