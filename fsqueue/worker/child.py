"""A child of a worker: runs the handler, one task after the other, and nothing else.

It knows no queue and holds no lease. Its first message says where the handler is; it answers whether it has found
it, and then each task with one message that names the task. Its arguments are two descriptors: its end of the socket,
and a byte that says whether the worker is stopping. It ends with its parent: by the signal that the kernel sends, or by
the end of the messages.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

import orjson

from fsqueue.errors import FsqueueError, in_unicode
from fsqueue.format.models import Used
from fsqueue.worker import handlers, wire
from fsqueue.worker.marks import Marker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve tasks until the parent is gone or has no more."""
    ours, flag = map(int, sys.argv[1:])
    for fd in (ours, flag):
        os.set_inheritable(fd, False)  # what the handler starts must not keep them
    end = socket.socket(fileno=ours)
    first = wire.receive(end)
    if first is None or first.body is None:
        return  # the parent is gone
    setup = json.loads(first.body)
    _die_with(setup["parent"])
    marker = Marker(setup["token"], flag)  # before user code can redirect what is printed
    sys.argv[:] = setup["argv"]
    handlers.is_loading = True
    try:
        handler = handlers.find(setup["handler"])
        way = handlers.Way(handler)
    except BaseException as error:
        why = str(error) if isinstance(error, FsqueueError) else handlers.describe(error)
        wire.send(end, 0, "", orjson.dumps(in_unicode(why)))
        return
    handlers.is_loading = False
    _flush()
    marker.ended(0)
    wire.send(end, 0, "", orjson.dumps(""))
    _serve(end, flag, marker, handler, way)


def _serve(end: socket.socket, flag: int, marker: Marker, handler: Any, way: handlers.Way) -> None:
    clock = time.monotonic

    def should_stop() -> bool:
        return os.pread(flag, 1, 0) != b"\0"

    while message := wire.receive(end):
        if message.body is None:  # end: the parent replaces this process by one that has descriptors again
            raise OSError(errno.EMFILE, "the payload could not be received: too many files are open in this process")
        attempt, queue, payload = wire.decode_task(message.body)
        task = functools.partial(handlers.TaskAtHand, message.task, attempt, queue, should_stop)
        began, cpu_ms = clock(), _cpu_ms()
        verb, value = handlers.execute(handler, way, payload, task)
        seconds, used = clock() - began, Used(_cpu_ms() - cpu_ms, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        _flush()
        marker.ended(message.number)
        wire.send(end, message.number, message.task, wire.encode_answer(verb, value, seconds, used))


def _flush() -> None:
    """Write out what was printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, or replaced by the handler


def _cpu_ms() -> int:
    """Return the processor time of this process, and of those that it has waited for, in milliseconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return round(sum(each.ru_utime + each.ru_stime for each in used) * 1000)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, also in the middle of a handler."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # not Linux: the end of the messages tells
    if os.getppid() != parent:
        os._exit(1)
