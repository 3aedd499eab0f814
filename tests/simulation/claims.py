"""What the error of an insert, or of a named commit, says of the queue, against what came into it.

An error may come after what has decided, and the clean-up behind it may fail, too. It must hide neither.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fsqueue import FsqueueError, GroupNotFound, QueueNotFound
from tests.protocol import test_what_errors_say as words
from tests.simulation import commit_acts, keyed_acts
from tests.simulation.history import REFUSED, Call

if TYPE_CHECKING:
    from tests.simulation.stories import Story

NOTHING, DECIDED, UNKNOWN = "Nothing of it is visible", "It is decided", "It is unknown whether the commit is decided"
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
    if error.new is None and (
        isinstance(error, GroupNotFound) or re.search("(opening|creating) the (queue|group)", str(error))
    ):  # it has not come to the insert
        if there:
            yield f"{call}: nothing was opened, and {there} are there"
        return
    if "keys" in call.args or error.inserted != error.new:  # a key was taken: "the task" may be another one
        if error.new is None or (error.new != len(there) if error.is_exact else error.new > len(there)):
            yield f"{call}: it says that {error.new} are new (exactly: {error.is_exact}), and {there} are there"
        return
    try:
        words.judge(words.Told(error, words.Verb(call.args["payloads"], lambda queue: None), there))
    except AssertionError as untrue:
        yield f"{call}: what it says is not so: {untrue}"


# -- named commits -----------------------------------------------------------------------------------------------


def judge_commits(story: Story, base: str) -> Iterator[str]:
    """Compare each error of a named commit with what was decided by then for its name.

    Where another process was at the same name meanwhile, it may have decided after the last look: then "nothing" was
    true when it was found out. So was "decided", if the generation ended after the last look. What was decided in a
    generation that has ended is not known any more.
    """
    if story.power_lost:
        return
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    decided = {record.name: (record, step) for record, step in commit_acts.records(story, base)}
    calls = [call for call in story.history.calls if call.verb == "commit"]
    for call in calls:
        error = call.error
        if call.outcome != REFUSED or not isinstance(error, FsqueueError) or isinstance(error, QueueNotFound):
            continue
        record, step = decided.get(call.args["name"], (None, -1))
        if record is None or step > call.end:
            if call.begin > ended and (DECIDED in str(error) or error.new):
                yield f"{call}: it says that it is decided (new: {error.new}), and there is no record of it"
            continue
        staged = {payload for part in record.parts for payload in story.staged.payloads[part.first]}
        theirs = any(_are_beside(call, other) for other in calls)
        if staged & set(call.args["payloads"]) and not theirs and (NOTHING in str(error) or _says_none(error)):
            yield f"{call}: it says that nothing is visible (new: {error.new}), and {record} was decided"
        if error.new and error.new != record.total("tasks"):
            yield f"{call}: it says that {error.new} are new, and {record} was decided"
        if UNKNOWN in str(error) and error.is_exact:
            yield f"{call}: it says that this is unknown, and that its number is exact"


def _says_none(error: FsqueueError) -> bool:
    """Whether it says that no task is new, and not that another call had decided."""
    return error.new == 0 and error.is_exact and DECIDED not in str(error)


def _are_beside(call: Call, other: Call) -> bool:
    """Whether another call was at the same name at the same time."""
    is_same = other is not call and other.args["name"] == call.args["name"]
    return is_same and other.begin <= call.end and call.begin <= other.end
