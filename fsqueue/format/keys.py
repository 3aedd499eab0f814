"""Keys: texts that are unique among the tasks without an outcome (docs/format.md, "Keys"; decision 31).

Pure: no input or output. A key's file has a line for each task that was inserted with the key, or was about to be. Only
the last line that can be read counts.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from fsqueue.format import names
from fsqueue.format.names import Batch

BYTES_MAX = 1024
"""The longest key, in bytes of UTF-8."""


def fault(value: object) -> str | None:
    """Return why a value is not a valid key, which is a str itself (see `plain_values`); None if it is valid."""
    if type(value) is not str:
        return f"a key is a text, not {type(value).__name__}: make a text of it"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "the key is no valid text: UTF-8 cannot hold it"
    if not size:
        return "the key is empty. Leave it out, or give a text"
    return None if size <= BYTES_MAX else f"the key takes {size:,} bytes; {BYTES_MAX:,} are the most"


class KeyClaim(NamedTuple):
    """Hold what a line of a key's file says: which task has the key, as long as that task has no outcome."""

    key: str
    at: int
    batch: Batch
    insert: str
    """The id of the task's `insert` record, in the log of that batch."""
    host: str = ""
    pid: int = 0
    shared: bool = False
    """True if the inserter of the task has the queue on a mount that several hosts share, where the key's lock can be
    lost."""

    @property
    def holder(self) -> dict[str, object]:
        """Return the host and the pid of the process that wrote the line; empty if the line does not say them."""
        return {"host": self.host, "pid": self.pid} if self.host else {}


def encode(claim: KeyClaim) -> bytes:
    """Return a claim as a line, with its newline."""
    record: dict[str, object] = {
        "op": "key",
        "at": claim.at,
        "key": claim.key,
        "batch": claim.batch,
        "insert": claim.insert,
    }
    if claim.host:
        record |= {"host": claim.host, "pid": claim.pid}
    if claim.shared:
        record["shared"] = True
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def parse(line: bytes) -> KeyClaim | None:
    """Return the claim in a line, given without its newline; None if the line is not a claim."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    match found:
        case {"op": "key", "at": int(at), "key": str(key), "batch": str(text), "insert": str(insert)} as record:
            batch = names.parse_batch(text)
        case _:
            return None
    if batch is None:
        return None
    host, pid = record.get("host"), record.get("pid")
    host, pid = host if isinstance(host, str) else "", pid if isinstance(pid, int) else 0
    return KeyClaim(key, at, batch, insert, host, pid, record.get("shared") is True)


def with_key(line: bytes, key: str) -> bytes:
    """Return a task's line with a key added. Both lines end with a newline."""
    return line[:-2] + b',"key":' + orjson.dumps(key) + b"}\n"
