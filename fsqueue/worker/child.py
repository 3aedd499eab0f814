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
import math
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
BRIEF_S = 0.0005
"""No process can be started and end in so little time."""


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
    meter = _Meter()

    def should_stop() -> bool:
        return os.pread(flag, 1, 0) != b"\0"

    while message := wire.receive(end):
        if message.body is None:  # end: the parent replaces this process by one that has descriptors again
            raise OSError(errno.EMFILE, "the payload could not be received: too many files are open in this process")
        attempt, queue, payload = wire.decode_task(message.body)
        task = functools.partial(handlers.TaskAtHand, message.task, attempt, queue, should_stop)
        began = meter.begin(clock())
        verb, value = handlers.execute(handler, way, payload, task)
        ended = clock()
        seconds, used = ended - began, meter.end(ended)
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


class _Meter:
    """Measure what each task uses, by one call at its end: that is where the next one begins, if that follows soon.

    A call costs more than a small function. Of the processes that this one has waited for is asked only after a task
    of more than `BRIEF_S`: no process ends that was started in less.
    """

    def __init__(self) -> None:
        self._cpu_ms = self._peak_kib = 0
        self._waited_for_s = 0.0
        self._began = self._looked_at = -math.inf

    def begin(self, now: float) -> float:
        """Note that a task begins now, and return that."""
        if now > self._looked_at + BRIEF_S:  # threads of the handler may have been at work meanwhile
            self._look(is_brief=False)
        self._began = now
        return now

    def end(self, now: float) -> Used:
        """Return what the task has used that ends now."""
        before = self._cpu_ms
        self._look(now <= self._began + BRIEF_S)
        self._looked_at = now
        return Used(self._cpu_ms - before, self._peak_kib)

    def _look(self, is_brief: bool) -> None:
        own = resource.getrusage(resource.RUSAGE_SELF)
        if not is_brief:
            others = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._waited_for_s = others.ru_utime + others.ru_stime
        self._cpu_ms = round((own.ru_utime + own.ru_stime + self._waited_for_s) * 1000)
        self._peak_kib = own.ru_maxrss


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, also in the middle of a handler."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # not Linux: the end of the messages tells
    if os.getppid() != parent:
        os._exit(1)
