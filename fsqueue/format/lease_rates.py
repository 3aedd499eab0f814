"""The bucket that each lease of a queue with a rate takes from (docs/decisions/0076-rates.md).

Pure: no clock, no input or output. A bucket is filled at the rate, up to `bucket_size`; each task that is leased takes
one token out. It is told by one time: that at which it was empty, or would have been. So nothing has to fill it,
another rate needs no other record, and a token that was taken for a lease that never began is only a lease too few.
"""

from __future__ import annotations

import math
import struct
from typing import Final
from zlib import crc32

from fsqueue.format.layout import LeaseRate

BURST_S: Final = 1.0
"""A bucket keeps the tokens of this many seconds, and one more: workers that come a moment late then catch up."""
APART_US: Final = 60_000_000
"""If a bucket says that it was empty at a time that is further ahead than this (µs), a wrong clock has told it."""
RECORD_AT: Final = 32
"""Where the record of the bucket stands in the file of slots: behind the 32 bytes that tell whether that is whole."""
_RECORD_BYTES: Final = 32
_TIME = struct.Struct("<Q")
_SUM = struct.Struct("<I")


def bucket_size(rate: LeaseRate) -> float:
    """Return how many tokens a bucket has at most."""
    return 1 + rate.per_s * BURST_S


def record(empty_us: int) -> bytes:
    """Return the record of a bucket that was empty at this time, in Unix microseconds."""
    body = _TIME.pack(max(0, empty_us))
    return (_SUM.pack(crc32(body)) + body).ljust(_RECORD_BYTES, b"\n")


def empty_us(content: bytes | bytearray) -> int | None:
    """Return when the bucket was empty, by the content of the file of slots. None: it has no record, or a torn one."""
    data = bytes(content[RECORD_AT : RECORD_AT + _SUM.size + _TIME.size])
    if len(data) < _SUM.size + _TIME.size or _SUM.unpack_from(data)[0] != crc32(data[_SUM.size :]):
        return None
    return int(_TIME.unpack_from(data, _SUM.size)[0])


def tokens(rate: LeaseRate, empty: int | None, now_ms: int) -> float:
    """Return how many tokens a bucket has now. Without a record it has one."""
    if empty is None:
        return 1.0
    return min(bucket_size(rate), max(0, now_ms * 1000 - empty) * rate.per_s / 1e6)


def allowed(rate: LeaseRate, empty: int | None, now_ms: int, n: int) -> int:
    """Return for how many of `n` tasks a bucket has a token now."""
    assert n >= 0, "a number of tasks"
    return min(n, int(tokens(rate, empty, now_ms) + 1e-6))


def without(rate: LeaseRate, empty: int | None, now_ms: int, n: int) -> int:
    """Return when a bucket was empty, or would have been, that has `n` tokens less from now on.

    One that was empty only in the future was told by a wrong clock: it counts as empty now. So such a clock makes no
    tokens.
    """
    assert n >= 0, "a lease would put tokens into the bucket"
    now = now_ms * 1000
    if empty is not None and empty > now + APART_US:
        return now
    if empty is None:
        first = now - math.floor(1e6 / rate.per_s)
    else:
        first = max(empty, now - math.floor(bucket_size(rate) * 1e6 / rate.per_s))
    return first + math.ceil(n * 1e6 / rate.per_s)


def wait_s(rate: LeaseRate, empty: int | None, now_ms: int) -> float:
    """Return in how many seconds a bucket has a token, if no other process takes it; 0 if it has one."""
    if empty is None or tokens(rate, empty, now_ms) + 1e-6 >= 1:
        return 0.0
    return (empty - now_ms * 1000) / 1e6 + 1 / rate.per_s
