"""What fsck can find: each kind with what it means and what repairing does, in words for users (docs/fsck.md)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from fsqueue.store import Store

LEFTOVER, DAMAGE, STRAY = "leftover", "damage", "stray"
"""What a crash leaves, and who passes by mends; what hinders or has lost something; what does not belong there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: how grave, what it means, what repairing does."""

    gravity: str
    meaning: str
    repair: str


KINDS = {
    # -- leftovers
    "unfinished": Kind(
        LEFTOVER,
        "All tasks of this batch have an outcome, but the process that was clearing it away died. "
        "Nothing is lost; status counts it rightly.",
        "clears it away: missing dead letters, counter, history, then the log",
    ),
    "orphaned-log": Kind(
        LEFTOVER,
        "A movement log without a batch: its opener died, or the batch finished before. No task depends on it.",
        "ends and removes the log; what is in it is kept in quarantine",
    ),
    "late-name": Kind(
        LEFTOVER,
        "The task file's name promises a later time than the first of its tasks is available at: "
        "a process died before renaming it. Its tasks wait longer than they must, at most until their lease ends.",
        "renames the file to the right time",
    ),
    "missing-letter": Kind(
        LEFTOVER,
        "Tasks were given up, but their dead letters are not written: a process died or the disk was full.",
        "writes the letters (without payload, if the task file is gone)",
    ),
    "torn-line": Kind(
        LEFTOVER,
        "The file ends in half a line: its writer died, or the disk was full. "
        "What it was about to say was never reported done.",
        "closes the line off, so that it stays void",
    ),
    "staged-file": Kind(
        LEFTOVER,
        "A staged file is over a day old and its writer lives no more. The insert was never reported done.",
        "removes it",
    ),
    "pending-retry": Kind(
        LEFTOVER,
        "Dead letters were retried, but the process died before it published their new tasks.",
        "publishes the tasks",
    ),
    "pending-commit": Kind(
        LEFTOVER,
        "A commit was decided, but the process died before all of its tasks were in their place. Status counts them, "
        "and whoever finds nothing else to lease puts them there.",
        "publishes the tasks",
    ),
    "stale-proposal": Kind(
        LEFTOVER,
        "A commit was proposed over a day ago, but the process died before it was decided. It was never reported done.",
        "withdraws it",
    ),
    "staged-attempt": Kind(
        LEFTOVER,
        "Tasks were staged for a commit over a week ago and never published, or are left of what was dropped.",
        "removes them",
    ),
    "old-generation": Kind(
        LEFTOVER,
        "A purged generation is still in place: the purging process died, or somebody came late. Nobody reads it.",
        "moves it into the trash and empties that",
    ),
    "trash": Kind(LEFTOVER, "The trash is not empty, and nobody is emptying it.", "empties it"),
    "new-file": Kind(
        LEFTOVER, "Left by a process that died while it created the queue. Nobody reads it.", "removes it"
    ),
    "repeated-history": Kind(
        LEFTOVER,
        "The history tells of a batch a second time: the first process died before it had removed the log. "
        "Readers pass it by.",
        "voids the repeat",
    ),
    # -- damage
    "task-file-gone": Kind(
        DAMAGE,
        "Tasks of this batch have no outcome, but its task file is gone: something else than fsqueue removed it. "
        "Their payloads are lost.",
        "makes them dead letters, so that nobody waits for them; who holds a lease may still complete",
    ),
    "unreadable-tasks": Kind(
        DAMAGE,
        "Lines of the task file are damaged or missing: these tasks cannot be executed.",
        "keeps a copy of the file in quarantine and makes the tasks dead letters",
    ),
    "wrong-count": Kind(
        DAMAGE,
        "The task file's name tells another number of tasks than there are: status would be wrong, or tasks be missed.",
        "renames the file",
    ),
    "future-time": Kind(
        DAMAGE,
        "A process whose clock was far ahead worked on this batch, or inserted it: what it leased, failed or inserted "
        "comes back only when the right clock has got there.",
        "sets the batch's time right by this host's clock, so see that that is right ('date'); leases end, and failed "
        "tasks come back, as long from now as they would have",
    ),
    "second-name": Kind(
        DAMAGE,
        "A batch has several task files. Its tasks could be executed again after it has finished.",
        "moves all but one into quarantine: the one stays in which most tasks can be read",
    ),
    "returned-file": Kind(
        DAMAGE,
        "The task file of a batch that has finished: it came back, perhaps from a backup, and perhaps with its log. "
        "Its tasks would be executed again.",
        "moves it into quarantine; a worker that has begun on it again gets LeaseLost",
    ),
    "wrong-shard": Kind(
        DAMAGE,
        "The file lies in another shard's directory than its name says, where nobody will find it.",
        "moves it to its place, or into quarantine if its batch has finished, or is there already and as complete",
    ),
    "damaged-line": Kind(
        DAMAGE,
        "A line cannot be read, and counts as not written: a movement that it recorded is forgotten "
        "(a completed task may be executed again), a letter or a piece of history is lost.",
        "keeps a copy of the line in quarantine and marks it as void",
    ),
    "damaged-record": Kind(
        DAMAGE,
        "The record of a commit cannot be read: what it inserted cannot be told, nor can its name be committed again.",
        "moves it into quarantine; see whether its tasks were inserted before you commit under its name again",
    ),
    "counter-bytes": Kind(
        DAMAGE,
        "Completions of a finished batch are missing from the counter, as after a power loss: status tells too few.",
        "writes the bytes",
    ),
    "counter-surplus": Kind(
        DAMAGE,
        "A counter has bytes that no batch in the history has written: status tells too many.",
        "keeps a copy of them in quarantine and overwrites them with NUL, which does not count",
    ),
    "in-the-way": Kind(
        DAMAGE,
        "Something that is no directory (or no file) stands where the queue needs one.",
        "moves it into quarantine",
    ),
    "linked-file": Kind(
        DAMAGE,
        "A file to which the queue appends has a second name, as backups by hard links make it ('cp -al', rsnapshot). "
        "It may be somebody's private file, so nobody writes to it: its tasks can neither be leased nor completed.",
        "nothing, since processes that have it open would go on in the old file. If it is the queue's own, replace it "
        "while no process uses the queue: cp -p FILE FILE.new && mv -f FILE.new FILE; if not, move it elsewhere",
    ),
    "no-access": Kind(
        DAMAGE,
        "It cannot be read or changed: what it holds could not be checked. The rest was.",
        "nothing: ask its owner for read and write access, and check again",
    ),
    # -- strays
    "queue-inside": Kind(
        STRAY,
        "Another queue stands inside this one's directory: it cannot be deleted while it does, "
        "and what would be moved or removed with that queue is left.",
        "nothing: move that directory elsewhere with mv while nobody works on it, and check again",
    ),
    "link": Kind(
        STRAY,
        "A symbolic link. fsqueue makes none and follows none: what it points to is not part of the queue.",
        "moves the link (not what it points to) into quarantine",
    ),
    "stray": Kind(
        STRAY,
        "Nothing that fsqueue knows; it reads or writes nothing there.",
        "moves it into quarantine",
    ),
}


@dataclass(slots=True)
class Finding:
    """Something that fsck found. `path` is relative to the queue; `tasks`: how many tasks it concerns, if any.

    `repaired` after a repair that a second look confirmed; `note` says what is particular.
    """

    kind: str
    path: str
    tasks: int = 0
    note: str = ""
    repaired: bool = False

    @property
    def gravity(self) -> str:
        """leftover, damage or stray."""
        return KINDS[self.kind].gravity

    @property
    def meaning(self) -> str:
        """What it means."""
        return KINDS[self.kind].meaning

    @property
    def repair(self) -> str:
        """What repairing does."""
        return KINDS[self.kind].repair

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {
            "kind": self.kind,
            "gravity": self.gravity,
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"},
            "meaning": self.meaning,
            "repair": self.repair,
        }


@dataclass(slots=True)
class Suspect:
    """What a first look found. `confirm` looks again, under the lock that matters; `mend` may be repeated."""

    finding: Finding
    confirm: Callable[[], bool]
    mend: Callable[[], object]


def found(store: Store, kind: str, path: str, tasks: int = 0, note: str = "") -> Finding:
    """A finding at an absolute path in the queue; what is no text in it is escaped."""
    inside = path.removeprefix(store.path + "/")
    return Finding(kind, os.fsencode(inside).decode("utf-8", "backslashreplace"), tasks, note)
