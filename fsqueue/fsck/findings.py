"""The kinds of findings of fsck: what each means and what repairing does, in words for users (docs/fsck.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

from fsqueue.filesystem import NOT_FILES, Filesystem
from fsqueue.interruptions import let_out

LEFTOVER, DAMAGE, STRAY = "leftover", "damage", "stray"
"""How grave a finding is. A leftover of a crash: the next process that meets it mends it. Damage: it hinders work, or
data is lost. A stray: it is not the queue's."""
UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)


@dataclass(frozen=True, slots=True)
class Kind:
    """Describe a kind of finding: its gravity, its meaning, and what a repair does."""

    gravity: str
    meaning: str
    repair: str


KINDS = {
    # -- leftovers
    "unfinished": Kind(
        LEFTOVER,
        "All tasks of this batch have an outcome, but the process that was removing it died. Nothing is lost; "
        "status counts it rightly.",
        "finishes the removal: writes missing dead letters, counter bytes and history, then removes the log",
    ),
    "orphaned-log": Kind(
        LEFTOVER,
        "A movement log without a batch: the process that made it died, or the batch finished before. No task "
        "depends on it.",
        "retires and removes the log, and keeps its content in quarantine",
    ),
    "late-name": Kind(
        LEFTOVER,
        "The time in the task file's name is later than the time at which its first task is available: a process "
        "died before it renamed the file. Its tasks wait longer than they must, at most until their lease ends.",
        "renames the file to the right time",
    ),
    "missing-letter": Kind(
        LEFTOVER,
        "Tasks were given up, but their dead letters are not written: a process died or the disk was full.",
        "writes the letters (without payload, if the task file is gone)",
    ),
    "torn-line": Kind(
        LEFTOVER,
        "The file ends in half a line: its writer died, or the disk was full. The change in that line was never "
        "reported done. A log, or a file of the history, that ends in NUL bytes after a power loss is told as this, "
        "too.",
        "ends the line, so that it stays void",
    ),
    "zeros": Kind(
        LEFTOVER,
        "A file of dead letters, of settled ones or of keys, or queue.jsonl, ends in NUL bytes: after a power loss it "
        "was longer than what had been written of it. Readers skip them.",
        "cuts them off",
    ),
    "staged-file": Kind(
        LEFTOVER,
        "A staged file is over a day old and its writer is gone. The insert was never reported done.",
        "removes it",
    ),
    "pending-retry": Kind(
        LEFTOVER,
        "Tasks were retried, but the process died before it published the new ones.",
        "publishes the tasks",
    ),
    "pending-commit": Kind(
        LEFTOVER,
        "A commit was decided, but the process died before all of its tasks were in place. Status counts them. A "
        "worker that finds nothing else to lease publishes them.",
        "publishes the tasks",
    ),
    "stale-proposal": Kind(
        LEFTOVER,
        "A commit was proposed over a day ago, but the process died before it was decided. It was never reported done.",
        "withdraws it",
    ),
    "staged-attempt": Kind(
        LEFTOVER,
        "Tasks were staged for a commit over a week ago and never published, or were left when the commit was dropped.",
        "removes them",
    ),
    "old-generation": Kind(
        LEFTOVER,
        "A purged generation is still in place: the purging process died, or another process wrote to it late. No "
        "process reads it.",
        "moves it into the trash and empties the trash",
    ),
    "trash": Kind(
        LEFTOVER,
        "The trash is not empty, and no process is emptying it.",
        "empties it",
    ),
    "new-file": Kind(
        LEFTOVER,
        "A process died while it created the queue, and left this file. No process reads it.",
        "removes it",
    ),
    "repeated-history": Kind(
        LEFTOVER,
        "The history contains a batch twice: the first process died before it had removed the log. Readers ignore "
        "the repeat.",
        "voids the repeat",
    ),
    "undecided-update": Kind(
        LEFTOVER,
        "An atomic update has no outcome in this log for over a day: its process died, or was stopped. The tasks that "
        "it changes are frozen, and those that it inserts are not there. A process that needs them decides.",
        "decides against it, if it is not decided, and writes the outcome into the log",
    ),
    # -- damage
    "task-file-gone": Kind(
        DAMAGE,
        "Tasks of this batch have no outcome, but its task file is gone: another program than fsqueue removed it. "
        "Their payloads are lost, but for those of tasks that were inserted one by one: these are in the log.",
        "makes them dead letters, so that nothing waits for them; a worker that holds a lease may still complete",
    ),
    "unreadable-tasks": Kind(
        DAMAGE,
        "Lines of the task file are damaged or missing: these tasks cannot be executed.",
        "keeps a copy of the file in quarantine and makes the tasks dead letters",
    ),
    "wrong-count": Kind(
        DAMAGE,
        "The task file has another number of tasks than its name says: status would be wrong, or tasks be missed.",
        "renames the file",
    ),
    "modest-name": Kind(
        DAMAGE,
        "The name of the task file promises less urgent tasks than it holds: workers take them too late.",
        "renames the file",
    ),
    "future-time": Kind(
        DAMAGE,
        "A process whose clock was far ahead worked on this batch, or inserted it. What it leased, failed or "
        "inserted is available again only when the right clock reaches that time.",
        "corrects the batch's times by this host's clock; check that clock first ('date'). Leases end, and retried "
        "tasks come back, as long from now as they would have",
    ),
    "wrong-checkpoint": Kind(
        DAMAGE,
        "A checkpoint in the batch's log says something else than the records before it. Who reads the log from there "
        "may take a task for waiting that is completed, or the other way round.",
        "appends a checkpoint of all records, from which the log is read from then on",
    ),
    "second-name": Kind(
        DAMAGE,
        "A batch has several task files. Its tasks could be executed again after it has finished.",
        "keeps the one in which most tasks can be read, and moves the others into quarantine",
    ),
    "returned-file": Kind(
        DAMAGE,
        "The task file of a finished batch is there again, perhaps from a backup, and perhaps with its log. Its "
        "tasks would be executed again.",
        "moves it into quarantine; a worker that has leased from it gets LeaseLost",
    ),
    "wrong-shard": Kind(
        DAMAGE,
        "The file lies in another shard's directory than its name says. No worker finds it there.",
        "moves it to its place. If its batch has finished, or is there already and as complete: moves it into "
        "quarantine",
    ),
    "damaged-line": Kind(
        DAMAGE,
        "A line, or a record of numbers, cannot be read, or lacks what its kind has to say, and counts as not written. "
        "A movement that it recorded is lost (a completed task may be executed again, an inserted one is missing), and "
        "so is a dead letter, a piece of history, a setting, or the number of a task.",
        "keeps a copy of it in quarantine and marks it as void",
    ),
    "damaged-record": Kind(
        DAMAGE,
        "The record of a commit cannot be read. fsqueue cannot tell what it inserted, and refuses to commit under "
        "its name again.",
        "moves it into quarantine; check whether its tasks were inserted before you commit under its name again",
    ),
    "damaged-barrier": Kind(
        DAMAGE,
        "The file of a barrier that has not ended cannot be read. No process can let the barrier pass, or cancel it. "
        "Its tasks stay delayed until the year 2286. A copy of the file is better than a repair.",
        "moves it into quarantine. The tasks stay: 'fsqueue ls GROUP/QUEUE --state delayed' lists them, 'fsqueue "
        "change GROUP/QUEUE ID --delay 0' makes one available, 'fsqueue cancel' takes one out",
    ),
    "lost-decision": Kind(
        DAMAGE,
        "An atomic update has happened in another log of the group, and waits in this one: its decision file was "
        "removed, cut off, or restored from an old backup. A process that needs the tasks may take it for given up.",
        "completes the update in this log, and writes the decision into the file again, if that is there",
    ),
    "cut-decisions": Kind(
        DAMAGE,
        "An atomic update has happened in this log, and its decision file does not say so: the file was cut off, "
        "overwritten, or restored from an old backup. If other logs still wait for the decision, fsck tells of each.",
        "writes the decision into the file again",
    ),
    "half-update": Kind(
        DAMAGE,
        "An atomic update has another outcome in this log than was decided: a decision file was removed or restored "
        "from an old backup, or a power loss took what was not synced (durability 'none'). One queue has its part "
        "of the update, another one does not.",
        "nothing: what has happened since relies on it. The records with this update in the log tell what is missing, "
        "or too much",
    ),
    "moved-queue": Kind(
        DAMAGE,
        "The queue was moved out of its group while an atomic update was under way. The tasks that it changes are "
        "frozen. If you can, move the queue back before any process works in the group.",
        "gives the update up in this queue, also if it has happened in others",
    ),
    "queue-file-gone": Kind(
        DAMAGE,
        "The queue's own file, queue.jsonl, is gone: another program removed it, such as the cleaner of a scratch "
        "filesystem. Its tasks are there, and no process can see them. A copy of the file is better than a repair.",
        "writes the file again, while no process may use the queue: the id, the generation and the number of shards "
        "from its directories, all other settings from the group, or the defaults. A pause, limits, changed settings, "
        "and a purge just before are forgotten: compare 'fsqueue set'",
    ),
    "group-file-gone": Kind(
        DAMAGE,
        "Queues here were made in a group, and its own file, .group.jsonl, is gone; or they were moved here, and "
        "nothing is wrong with them. A copy of the file is better than a repair.",
        "writes the file again, with the group's id, and the settings that most of the queues have",
    ),
    "counter-bytes": Kind(
        DAMAGE,
        "Completions of a finished batch are missing from the counter, as after a power loss: status counts too few.",
        "writes the bytes",
    ),
    "counter-surplus": Kind(
        DAMAGE,
        "A counter has bytes that no batch in the history has written: status counts too many.",
        "keeps a copy of them in quarantine and overwrites them with NUL, which does not count",
    ),
    "missing-slot": Kind(
        DAMAGE,
        "Tasks are leased that the file of slots does not name, as after it was damaged or restored from a backup: "
        "they do not count against max_leased, and more tasks could be leased than it allows. A slot whose lease is "
        "over is not told: it is left until its place is needed.",
        "writes the slots",
    ),
    "missing-mark": Kind(
        DAMAGE,
        "The group has limits over its queues, and this queue's own file does not say so, as after it was restored "
        "from a backup: its leases do not count against the group's limits.",
        "marks the queue in its file, and writes the slots of its leases",
    ),
    "mark-of-no-group": Kind(
        DAMAGE,
        "The queue was made in a group with limits, and does not lie in that group: no task of it is leased. It was "
        "moved or copied elsewhere. If it belongs to the group, move it back, and do not repair it.",
        "has the queue lease tasks by its own limits alone",
    ),
    "shared-key": Kind(
        DAMAGE,
        "A task with this key is not done, and another with the same key, which the key's file names, is not done "
        "either: a file was lost or damaged. Both will be executed.",
        "nothing: cancel one of the two, if executing both does harm",
    ),
    "unnamed-key": Kind(
        DAMAGE,
        "A task with a key is not done, and the key's file does not name it: the file was lost or damaged. Another "
        "task with the key could be inserted beside it.",
        "names the task in the key's file",
    ),
    "in-the-way": Kind(
        DAMAGE,
        "The queue needs a directory here, and there is a file; or it needs a file, and there is something else.",
        "moves it into quarantine",
    ),
    "hidden-file": Kind(
        DAMAGE,
        "A symbolic link stands in the place of a file or directory of the queue; or a link, a file or anything else "
        "stands where a group's queue or its queue.jsonl belongs. Deduplicators ('rdfind "
        "-makesymlinks'), archives and moves to another disk leave such links. fsqueue follows none, so tasks behind "
        "it are neither executed nor surely counted. While it stands where tasks may be, 'status', 'wait' and workers "
        "name it and end with exit code 5.",
        "nothing: only a person can tell whether the link leads to what was there. If it does, put that back while no "
        'process uses the queue: target=$(readlink -f LINK) && rm LINK && cp -a "$target" LINK. If it does not, '
        "remove the link: then the file is gone. What was never a queue, move out of the group",
    ),
    "linked-file": Kind(
        DAMAGE,
        "A file to which the queue appends has a second name. Backups by hard links make such names ('cp -al', "
        "rsnapshot). It may be a user's private file, so fsqueue does not write to it: tasks of a log can neither "
        "be leased nor completed, and a task with the key of a key's file cannot be inserted.",
        "nothing, since processes that have it open would go on in the old file. If it is the queue's own, replace"
        " it while no process uses the queue: cp -p FILE FILE.new && mv -f FILE.new FILE; if not, move it "
        "elsewhere",
    ),
    "no-access": Kind(
        DAMAGE,
        "It cannot be read or changed, so its content was not checked. Everything else was.",
        "nothing: ask its owner for read and write access, and check again",
    ),
    # -- strays
    "queue-inside": Kind(
        STRAY,
        "Another queue stands inside this one's directory. Until it is moved, this queue cannot be deleted, and "
        "directories that contain the other queue are not moved or removed.",
        "nothing: move that directory elsewhere with mv while no process works on it, and check again",
    ),
    "link": Kind(
        STRAY,
        "A symbolic link. fsqueue makes none and follows none: its target is not part of the queue.",
        "moves the link (not its target) into quarantine",
    ),
    "stray": Kind(
        STRAY,
        "A file or directory that is not fsqueue's. fsqueue reads and writes nothing there.",
        "moves it into quarantine",
    ),
}


@dataclass(slots=True)
class Finding:
    """Describe one thing that fsck found. `path` is relative to the queue; `tasks`: how many tasks it concerns, if any.

    `repaired`: a second look has confirmed the repair. `note`: details of this finding.
    """

    kind: str
    path: str
    tasks: int = 0
    note: str = ""
    repaired: bool = False

    @property
    def gravity(self) -> str:
        """Return "leftover", "damage" or "stray"."""
        return KINDS[self.kind].gravity

    @property
    def meaning(self) -> str:
        """Return a sentence on what it means."""
        return KINDS[self.kind].meaning

    @property
    def repair(self) -> str:
        """Return what a repair does."""
        return KINDS[self.kind].repair

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return {
            "kind": self.kind,
            "gravity": self.gravity,
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"},
            "meaning": self.meaning,
            "repair": self.repair,
        }


@dataclass(slots=True)
class Suspect:
    """Hold what a first look found. `confirm` looks again, under the lock that matters; `mend` may be repeated."""

    finding: Finding
    confirm: Callable[[], bool]
    mend: Callable[[], object]


class CheckedPlace(Protocol):
    """What is checked: an open queue or group."""

    path: str
    fs: Filesystem


def found(place: CheckedPlace, kind: str, path: str, tasks: int = 0, note: str = "") -> Finding:
    """Return a finding at an absolute path in the queue. Bytes of the path that are not UTF-8 are escaped."""
    inside = path.removeprefix(place.path + "/")
    return Finding(kind, os.fsencode(inside).decode("utf-8", "backslashreplace"), tasks, note)


def guarded(store: CheckedPlace, place: str, suspects: Iterable[Suspect]) -> Iterator[Suspect]:
    """Yield the suspects of one part of the queue. If it cannot be read further, yield that, and end.

    So end where something else stands in the place of a file that the part needs: `places` tells of it.
    """
    try:
        yield from suspects
    except OSError as error:
        let_out(error)
        if error.errno in NOT_FILES:
            return
        yield no_access(store, place, error)


def no_access(store: CheckedPlace, place: str, error: OSError) -> Suspect:
    """Return the finding for a path that cannot be read: the one that `error` names, or `place`.

    If a directory above it cannot be read, the finding names that directory. Any other error is raised again.
    """
    if error.errno not in UNREADABLE:
        raise error
    path = str(error.filename or place)
    while (holder := path.rpartition("/")[0]).startswith(store.path + "/") and not _is_readable(store, holder):
        path = holder
    return Suspect(
        found(store, "no-access", path, note=str(error.strerror)), lambda: not _is_readable(store, path), lambda: None
    )


def _read(store: CheckedPlace, path: str) -> None:
    with store.fs.closing(store.fs.look_anew(path)) as fd:
        for _ in store.fs.pieces(fd, 0):
            pass  # a file may have more bytes than memory


def _is_readable(store: CheckedPlace, path: str) -> bool:
    try:
        if store.fs.is_directory(path):
            store.fs.entries(path)
        else:
            _read(store, path)
    except FileNotFoundError:
        pass
    except OSError as error:
        let_out(error)
        return error.errno not in UNREADABLE
    return True
