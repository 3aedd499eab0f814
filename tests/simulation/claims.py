"""What the error of an insert says of the queue, against what came into it: in numbers and in words.

An error may come after what has decided, and the clean-up behind it may fail, too. It must hide neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fsqueue import FsqueueError, QueueNotFound
from tests.protocol import test_what_errors_say as words
from tests.simulation import keyed_acts
from tests.simulation.history import REFUSED, Call

if TYPE_CHECKING:
    from tests.simulation.stories import Story

VERBS = ("insert", keyed_acts.ACT, keyed_acts.ACT_OF_MANY)


def judge(story: Story, seen: Collection[str]) -> Iterator[str]:
    """Compare each error of an insert with `seen`: the payloads of all tasks that ever were in the queue.

    A purge takes tasks that nobody has seen, and a power loss takes back what was found out. Nothing is known then.
    """
    if story.power_lost:
        return
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    for call in story.history.calls:
        is_told = call.verb in VERBS and call.outcome == REFUSED and isinstance(call.error, FsqueueError)
        if is_told and call.begin > ended and not isinstance(call.error, QueueNotFound):
            yield from _judge(call, [payload for payload in call.args["payloads"] if payload in seen])


def _judge(call: Call, there: list[str]) -> Iterator[str]:
    """By the table of sentences; of a call that may have found keys taken, by the number of new tasks alone."""
    error = call.error
    assert isinstance(error, FsqueueError)
    if error.new is None and "opening the queue" in str(error):  # it has not come to the insert
        if there:
            yield f"{call}: the queue did not open, and {there} are there"
        return
    if "keys" in call.args or error.inserted != error.new:  # a key was taken: "the task" may be another one
        if error.new is None or (error.new != len(there) if error.is_exact else error.new > len(there)):
            yield f"{call}: it says that {error.new} are new (exactly: {error.is_exact}), and {there} are there"
        return
    try:
        words.judge(words.Told(error, words.Verb(call.args["payloads"], lambda queue: None), there))
    except AssertionError as untrue:
        yield f"{call}: what it says is not so: {untrue}"
