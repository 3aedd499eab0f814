"""Exchange messages between a worker and its children: one for each task, one for each large answer, named by task.

One process receives a task's message: the child, or the parent that takes it back. The parent keeps both ends of the
socket open for that, and needs no help from code in the child. The kernel decides which process receives which message.
So neither process may conclude anything from how many messages there were: the number in a message says what it is.
A body that is too large for a message travels in a memory file, whose descriptor goes with the message.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from typing import Any, NamedTuple

import orjson

from fsqueue.format.models import Used
from fsqueue.format.task_file import decode_fields, payload_fields
from fsqueue.worker import inserts
from fsqueue.worker.causes import Memory

MESSAGE_BYTES_MAX = 32_768
"""A larger body travels beside the message, in a memory file."""
HEAD_BYTES_MAX = 1024
"""The room for the line that names the task."""
VERBS = ("complete", "then", "fail", "bury", "release")
"""The verbs of an answer: how the task ended. `then`: completed, with tasks to insert."""
_BESIDE = b"beside"
_ROOM = socket.CMSG_SPACE(4)


class Garbled(ValueError):
    """Raised for a message that this module did not make."""


class Message(NamedTuple):
    """A message between a worker and a child: about a task, the setup of the child, or its ring.

    A message without a task is a setup if its number is 0, or the child's answer to the setup. With another number it
    is a ring, with which the child tells how many answers it has put into the shared memory (`answer_memory`).
    """

    number: int
    """With a task: the number of its handing-out to the child; no two handings-out have the same. Without a task: 0, or
    in a ring the number of answers in the shared memory."""
    task: str
    """The id of the task. Empty in a setup, and in a ring."""
    body: bytes | None
    """The content; None if it was lost, because the receiver has no descriptor free."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the parent's end, and the child's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode_task(attempt: int, queue: str, payload: Any) -> bytes:
    """Encode a task for a child. `queue`: the path of its queue. TypeError if JSON cannot hold it."""
    return orjson.dumps([attempt, _in_hex(queue), payload_fields(payload)])


def decode_task(body: bytes) -> tuple[int, str, Any]:
    """Return what `encode_task` was given."""
    attempt, queue, fields = orjson.loads(body)
    return attempt, _of_hex(queue), decode_fields(fields)


@functools.lru_cache(maxsize=256)
def _in_hex(path: str) -> str:
    """Return the path of a queue as JSON can hold it."""
    return path.encode("utf-8", "surrogateescape").hex()


@functools.lru_cache(maxsize=256)
def _of_hex(path: str) -> str:
    return bytes.fromhex(path).decode("utf-8", "surrogateescape")


class ChildAnswer(NamedTuple):
    """How a task has ended: a verb, with its result, reason or delay; with "then", a result and `Inserts`."""

    verb: str
    value: Any
    seconds: float
    """How long the handler took."""
    used: Used
    memory: Memory = Memory.ENOUGH
    """Whether a failure was for want of memory."""


def encode_answer(verb: str, value: Any, seconds: float, used: Used, memory: Memory = Memory.ENOUGH) -> bytes:
    """Encode an answer, of which these are the fields."""
    if verb == "then":
        value = [value[0], inserts.packed(value[1])]
    answer = [verb, value, seconds, *used]
    return orjson.dumps(answer if memory is Memory.ENOUGH else [*answer, memory.value])


def decode_answer(body: bytes) -> ChildAnswer:
    """Return what `encode_answer` was given. Raises Garbled."""
    try:
        verb, value, seconds, cpu_ms, peak_kib, *short = orjson.loads(body)
        memory = Memory.ENOUGH
        if short:
            [name] = short
            memory = Memory(name)
    except (ValueError, TypeError) as error:
        raise Garbled(f"no answer: {error}") from error
    if verb not in VERBS or not isinstance(seconds, float) or not type(cpu_ms) is type(peak_kib) is int:
        raise Garbled("no answer: neither verb nor time")
    if verb == "then":
        try:
            result, packed = value
            value = result, inserts.unpacked(packed)
        except (ValueError, TypeError) as error:
            raise Garbled(f"no answer: {error}") from error
    return ChildAnswer(verb, value, seconds, Used(cpu_ms, peak_kib), memory)


def send(end: socket.socket, number: int, task: str, body: bytes, flags: int = 0) -> None:
    """Send a message. BlockingIOError, with MSG_DONTWAIT: there is no room. Another OSError: the reader is gone."""
    if len(body) <= MESSAGE_BYTES_MAX:
        end.send(packed(number, task, body), flags)
        return
    head = b"%d %b" % (number, task.encode())
    fd = os.memfd_create("message")
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(body)
        socket.send_fds(end, [head + b" " + _BESIDE], [fd], flags)
    finally:
        os.close(fd)


def receive(end: socket.socket, flags: int = 0) -> Message | None:
    """Receive the next message; None when the other end is closed.

    BlockingIOError, with MSG_DONTWAIT, if there is none. Garbled if it is no message; it is gone then.
    """
    data, beside, _, _ = end.recvmsg(HEAD_BYTES_MAX + MESSAGE_BYTES_MAX, _ROOM, flags)
    body: bytes | None = None
    if beside:
        fd = int.from_bytes(beside[0][2][:4], sys.byteorder)
        with os.fdopen(fd, "rb") as file:
            body = os.pread(fd, os.fstat(file.fileno()).st_size, 0)
    return _unpacked(data, body) if data else None


def packed(number: int, task: str, body: bytes) -> bytes:
    """Return a message as one piece."""
    return b"%d %b\n%b" % (number, task.encode(), body)


def unpacked(data: bytes) -> Message:
    """Return what `packed` was given. Garbled."""
    return _unpacked(data, None)


def _unpacked(data: bytes, body: bytes | None) -> Message:
    """Return the message. `body`: what came beside it."""
    head, inside, rest = data.partition(b"\n")
    try:
        number, task, *where = head.decode().split(" ")
        return Message(int(number), task, rest if inside and not where else body)
    except ValueError as error:
        raise Garbled(f"no message: {data[:100]!r}") from error
