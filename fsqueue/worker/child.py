"""A child of a worker: runs the handler, one task after the other, and nothing else.

It knows no queue and holds no lease. Its first message says where the handler is; it answers whether it has found
it, and then each task with an answer that names the task. Its arguments are descriptors: its end of the socket, a byte
that says whether the worker is stopping, the memory for answers, and an executor's list of functions, if there is one.
It ends with its parent: by the signal that
the kernel sends, or by the end of the messages.
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
from fsqueue.worker import child_messages, handlers
from fsqueue.worker.answer_memory import ANSWER_BYTES_MAX, RING_AFTER, RING_S, Answers
from fsqueue.worker.marks import STOPPING_AT, Flags, Marker, flags

_PR_SET_PDEATHSIG = 1
BRIEF_S = 0.0005
"""No process can be started and end in so little time."""


def main() -> None:
    """Serve tasks until the parent is gone or has no more."""
    ours, flag, memory, *others = map(int, sys.argv[1:])
    for fd in (ours, flag, memory, *others):
        os.set_inheritable(fd, False)  # what the handler starts must not keep them
    end = socket.socket(fileno=ours)
    teller = _Teller(end, memory)
    first = child_messages.receive(end)
    if first is None or first.body is None:
        return  # the parent is gone
    setup = json.loads(first.body)
    _die_with(setup["parent"])
    shared = flags(flag)
    marker = Marker(setup["token"], shared)  # before user code can redirect what is printed
    sys.argv[:] = setup["argv"]
    handlers.is_loading = True
    try:
        handler = handlers.find(setup["handler"])
        way = handlers.Way(handler)
    except BaseException as error:
        why = str(error) if isinstance(error, FsqueueError) else handlers.describe(error)
        child_messages.send(end, 0, "", orjson.dumps(in_unicode(why)))
        return
    handlers.is_loading = False
    _flush()
    marker.ended(0)
    child_messages.send(end, 0, "", orjson.dumps(""))
    _serve(teller, shared, marker, handler, way)


class _Teller:
    """Receive tasks, and tell how they ended: in memory, or by messages if that takes more than a slot of it."""

    def __init__(self, end: socket.socket, memory: int) -> None:
        self._end, self._answers = end, Answers(memory)
        os.close(memory)
        self._untold = 0
        """Number of answers that the worker was not told of."""
        self._rung_at = -math.inf

    def receive(self) -> child_messages.Message | None:
        """Wait for the next task; None if there is none any more. Nothing is left untold meanwhile."""
        if self._untold:
            try:
                return child_messages.receive(self._end, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._ring()
        return child_messages.receive(self._end)

    def answer(self, number: int, task: str, body: bytes) -> None:
        """Tell how a task has ended: soon, or at once if that was not done for a while."""
        answer = child_messages.packed(number, task, body)
        if len(answer) > ANSWER_BYTES_MAX:
            if self._untold:
                self._ring()
            child_messages.send(self._end, number, task, body)
            return
        self._answers.put(answer)
        self._untold += 1
        # The time is asked for when the answer is there: what is not told of then is there when the worker looks.
        if self._untold >= RING_AFTER or time.monotonic() > self._rung_at + RING_S:
            self._ring()

    def _ring(self) -> None:
        self._untold, self._rung_at = 0, time.monotonic()
        child_messages.send(self._end, self._answers.count, "", b"")


def _serve(teller: _Teller, shared: Flags, marker: Marker, handler: Any, way: handlers.Way) -> None:
    clock = time.monotonic
    meter = _Meter()

    def should_stop() -> bool:
        return bool(shared[STOPPING_AT])

    while message := teller.receive():
        if message.body is None:  # end: the parent replaces this process by one that has descriptors again
            raise OSError(errno.EMFILE, "the payload could not be received: too many files are open in this process")
        attempt, queue, payload = child_messages.decode_task(message.body)
        task = functools.partial(handlers.TaskAtHand, message.task, attempt, queue, should_stop)
        began = meter.begin(clock())
        verb, value, memory = handlers.execute(handler, way, payload, task)
        ended = clock()
        seconds, used = ended - began, meter.end(ended)
        _flush()
        marker.ended(message.number)
        answer = child_messages.encode_answer(verb, value, seconds, used, memory)
        teller.answer(message.number, message.task, answer)


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
