"""A field of a request: what it may hold."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["number", "whole", "text", "flag", "priority", "texts", "objects", "object", "pattern", "any"]
BODY_BYTES_MAX = 8 << 20
"""The largest body of a request that is no stream, and the longest line of one that is."""
SECONDS_MAX = 9_999_999_999.0
"""The longest duration that a request may name: a queue's file names can say no later time."""


class Field(NamedTuple):
    """A field of a body or of a query. `fsqueue.service.request_fields` checks and describes it.

    `least`, `most`: of a number its bounds, of a text how many characters, of a list how many items. `of`: the fields
    of an object, or of each object in a list. `choices`: the texts that there are.
    """

    name: str
    kind: Kind
    about: str
    needed: bool = False
    default: Any = None
    least: float = 0
    most: float | None = None
    of: tuple[Field, ...] = ()
    choices: tuple[str, ...] = ()
    nullable: bool = False


PAYLOAD = Field("payload", "any", "What the task carries: any JSON value.", nullable=True)
BYTES = Field("b64", "text", "Instead of `payload`: bytes, in base64.", most=float(128 << 20))
PRIORITY = Field("priority", "priority", "Smaller ones come first: text, or a whole number of 64 bits.", nullable=True)
TASK = (
    PAYLOAD,
    BYTES,
    Field("key", "text", "Unique among the tasks that are to be done.", most=1024, nullable=True),
    PRIORITY,
    Field("delay_s", "number", "Seconds before it becomes available.", default=0, most=SECONDS_MAX),
    Field("available_at", "number", "The same as an absolute time, in Unix seconds.", most=1e11, nullable=True),
)
"""The fields of a task to insert."""
