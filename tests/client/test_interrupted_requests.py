"""A signal handler that raises comes out of a verb of a gateway's client, wherever the handler runs.

Python passes over what a finalizer raises. So a finalizer may run no code of Python in a verb: what a handler raised
there would be swallowed.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, RemoteQueue, TaskNotFound
from tests.client.test_remote_queue import answering
from tests.gateways import Serve
from tests.test_interrupted import behind_looks, in_thread

CLIENT = os.path.dirname(fsqueue.__file__) + "/client/"
STDLIB = (http.client.__file__, socket.__file__)
Place = tuple[CodeType, int, CodeType | None, int]

pytestmark = pytest.mark.once


class Alarm(TimeoutError):
    """What the handler raises, an OSError as that of a usual timeout."""


class Handler:
    """Raises where a signal handler may run, in the client and in what it uses: once a run, each time elsewhere.

    A place is told by its caller, too: a method that a verb calls is also called by finalizers.
    """

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind
        self.seen: set[Place] = set()
        self.where = ""

    def run(self, act: Callable[[], object]) -> str:
        """Do it; return where it was interrupted, "" if nowhere. AssertionError if that did not come out."""
        self.where = ""
        sys.settrace(self._enter)
        try:
            act()
        except self._kind:
            return self.where
        finally:
            sys.settrace(None)
        assert not self.where, f"swallowed at {self.where}"
        return ""

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.where or not frame.f_code.co_filename.startswith((CLIENT, *STDLIB)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode" or self.where or frame.f_lasti not in behind_looks(frame.f_code):
            return self._step
        caller = frame.f_back
        place = (frame.f_code, frame.f_lasti, caller and caller.f_code, caller.f_lasti if caller is not None else 0)
        if place not in self.seen:
            self.seen.add(place)
            self.where = (
                f"{frame.f_code.co_qualname}:{frame.f_lineno}, called by {caller and caller.f_code.co_qualname}"
            )
            raise self._kind("the handler")
        return self._step


def refused(queue: RemoteQueue) -> None:
    with pytest.raises(TaskNotFound):
        queue.task(f"{'0' * 32}.0")


def broken_off(queue: RemoteQueue) -> None:
    with closing(queue.tasks()) as found:
        list(islice(found, 1))


VERBS: dict[str, Callable[[RemoteQueue], object]] = {
    "status": lambda queue: (queue.status(), queue.status()),
    "insert": lambda queue: (queue.insert(1), queue.insert(2)),
    "insert a stream": lambda queue: (queue.insert_many(range(3)), queue.insert_many(range(3))),
    "lease, complete": lambda queue: [task.complete() for task in queue.lease(1)],
    "list": lambda queue: (list(queue.tasks()), list(queue.tasks())),
    "list in part": lambda queue: (broken_off(queue), broken_off(queue)),
    "refused": lambda queue: (refused(queue), refused(queue)),
    "close": lambda queue: (queue.status(), queue.close(), queue.status()),
}


def interrupted(handler: Handler, *acts: Callable[[], object]) -> None:
    for act in acts:
        while handler.run(act):
            pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
def test_what_a_handler_raises_comes_out_of_every_verb(group: Group, serve: Serve, kind: type[BaseException]) -> None:
    group["q"].insert_many(range(3))
    queue = fsqueue.connect(f"{serve(group.path)}/q", patience_s=0)
    assert isinstance(queue, RemoteQueue)
    handler = Handler(kind)
    in_thread(lambda: interrupted(handler, *(partial(act, queue) for act in VERBS.values())))
    queue.close()
    assert len(handler.seen) > 300


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
def test_it_comes_out_of_a_verb_whose_answer_ends_with_its_connection(kind: type[BaseException]) -> None:
    with answering(lambda path: (200, b'{"service": "fsqueue", "queue": "q", "drained": false}')) as url:
        queue = fsqueue.connect(url, patience_s=0)
        assert isinstance(queue, RemoteQueue)
        handler = Handler(kind)
        in_thread(lambda: interrupted(handler, lambda: (queue.is_drained(), queue.is_drained())))
    assert len(handler.seen) > 100
