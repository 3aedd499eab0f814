"""Versions: tasks whose payloads have the same value in a field (docs/new-rows.md, "Only what is new or changed").

Pure: no input or output. A version that `insert_many(new_by=FIELD)` has inserted has a key that tells its content.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from fsqueue.format import keys

DIGEST_CHARS = 32
"""Number of hexadecimal digits of a content's digest, BLAKE2b-128."""
VALUE_BYTES_MAX = keys.BYTES_MAX - DIGEST_CHARS - 1
"""The longest value of a field, in bytes of UTF-8: the key has a mark and the digest besides."""


class RowVersion(NamedTuple):
    """A task of those with one value of a field. The greatest one is the newest."""

    at: int
    """Time at which the row was inserted (ms)."""
    batch: str
    place: int
    """The task's index in its batch: of a batch that takes inserts, later ones have greater ones."""
    content: str
    """The digest of its content."""


def value_of(payload: object, field: str) -> str | None:
    """Return the value of a field as a text; None if the payload has none that tells versions apart.

    Texts, numbers and truth values do. A number is its JSON: 7 and "7" are one value.
    """
    value = payload.get(field) if type(payload) is dict else None
    if type(value) is str:
        return value
    return orjson.dumps(value).decode() if type(value) in (int, float, bool) else None


def digest(payload: Any) -> str:
    """Return the digest of a payload's content, a JSON object as it is read from a task: the order of its fields does
    not count.
    """
    return blake2b(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS), digest_size=DIGEST_CHARS // 2).hexdigest()


def key_of(value: str, content: str) -> str:
    """Return the key of the version with this value and this content."""
    return f"{value}#{content}"


def parts_of(key: str) -> tuple[str, str]:
    """Return the value and the content of a key that `key_of` has made."""
    return key[: -DIGEST_CHARS - 1], key[-DIGEST_CHARS:]


def content_of(payload: Any, key: str | None, value: str) -> str:
    """Return the digest of the content that a task was inserted with. Its key has it, if `key_of` has made that.

    An update may have given the task another payload since.
    """
    if key is not None and len(key) == len(value) + DIGEST_CHARS + 1 and key.startswith(f"{value}#"):
        return key[-DIGEST_CHARS:]
    return digest(payload)
