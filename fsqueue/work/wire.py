"""How a worker talks with its children: a message a task each way, over a socket that keeps messages apart.

Both ends of the socket stay open in the parent. So it can take back what a child has not read yet: a message is read
once, by whoever is first, and no code of the child's has to help. What is too large for a message goes in a file in
memory, whose descriptor is the message.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

import orjson

from fsqueue.batch import decode_fields, payload_fields

MESSAGE_BYTES_MAX = 32_768
"""What is larger travels beside the message."""
_BESIDE = b"beside"
_ROOM = socket.CMSG_SPACE(4)


def pair() -> tuple[socket.socket, socket.socket]:
    """The parent's end, and the child's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode_task(task_id: str, attempt: int, queue: int, payload: Any) -> bytes:
    """A task for a child. `queue`: the number of its queue. TypeError if JSON cannot hold it."""
    return orjson.dumps([task_id, attempt, queue, payload_fields(payload)])


def decode_task(data: bytes) -> tuple[str, int, int, Any]:
    """What `encode_task` was given."""
    task_id, attempt, queue, fields = orjson.loads(data)
    return task_id, attempt, queue, decode_fields(fields)


def send(end: socket.socket, data: bytes, flags: int = 0) -> None:
    """Send a message. BlockingIOError, with MSG_DONTWAIT, while there is no room; other OSErrors if nobody is there."""
    if len(data) <= MESSAGE_BYTES_MAX:
        end.send(data, flags)
        return
    fd = os.memfd_create("message")
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        socket.send_fds(end, [_BESIDE], [fd], flags)
    finally:
        os.close(fd)


def receive(end: socket.socket, flags: int = 0) -> bytes:
    """The next message; b"" when the other end is closed. BlockingIOError, with MSG_DONTWAIT, if there is none."""
    data, beside, _, _ = end.recvmsg(MESSAGE_BYTES_MAX, _ROOM, flags)
    if not beside:
        return data
    fd = int.from_bytes(beside[0][2][:4], sys.byteorder)
    with os.fdopen(fd, "rb") as file:
        return os.pread(fd, os.fstat(file.fileno()).st_size, 0)
