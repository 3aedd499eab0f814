"""The protocol, broken on purpose: each of these changes to the real code must be caught.

A mutation is one or more edits of the syntax tree, applied for as long as a context lasts. `places` says how an edit
names a function, and `patterns` how it describes what it changes there. Most mutations are drafts that somebody might
write; `why` says what they lose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulation.places import Edit, Place, PlaceLost, changed, edited


@dataclass(frozen=True)
class Mutation:
    """A change that stories of a scenario catch, within `stories` from seed `first` on; or a small case does."""

    name: str
    why: str
    found_by: str | tuple[str, str, str, str]
    """The name of a scenario; or of a filesystem, two verbs (or one and nothing), and a fate at a call of the first."""
    edits: tuple[Edit, ...]
    stories: int = 2000
    first: int = 0


def broken(mutation: Mutation) -> dict[Place, ast.AST]:
    """Return what the mutation makes of its functions. PlaceLost, with its name, if they are not as it knows them."""
    try:
        return edited(mutation.edits)
    except PlaceLost as lost:
        raise PlaceLost(f'The mutation "{mutation.name}": {lost}') from None


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """While this lasts, fsqueue is broken."""
    with changed(broken(mutation)):
        yield


BELIEVES: Edit = ("AWAY_S", "AWAY_S = ...", "AWAY_S = 1e18")
"""An inserter that was away for days believes that its staged file is gone because it was published.

Else it raises an error, and nothing that `gc` has reaped is reported inserted: each of the two defences would do.
"""
ELSEWHERE: Edit = ("QueueFile.read", "if not fs.is_in_place(): ...", "if False: ...")
"""Whether the open directory is still the one at the queue's path: it tells of a deletion, too, as the mark does."""

MUTATIONS = [
    Mutation(
        "log before task file",
        "a crash between the two leaves a task file without a log: everything in it is available again",
        "crash",
        (
            ("finish", "if lines is not None: ...", ""),
            (
                "retire",
                "store.fs.unlink(locked.log.path)",
                """
                store.fs.unlink(locked.log.path)
                locked.remove_task_file()
                """,
            ),
        ),
    ),
    Mutation(
        "no farewell",
        "somebody who opened the log before it was unlinked appends to a file without a name",
        "calm-nfs",
        (
            (
                "retire",
                'locked.log.append(movements.encode(movements.record("gone", ...)))',
                "",
            ),
        ),
    ),
    Mutation(
        "farewell not heeded",
        "what is appended after `gone` is lost with the log",
        "calm-nfs",
        (("LockedBatch.__enter__", "if replay_state.gone: ...", "if False: ..."),),
    ),
    Mutation(
        "a missing directory is believed missing",
        "a client does not see for a minute that the first task was inserted, and calls the queue empty",
        "first",
        (("Filesystem.names", "return self._names_afresh(directory)", "return []"),),
    ),
    Mutation(
        "not synced before it is published",
        "the name survives a power loss, the tasks do not",
        "power",
        (("sync", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "directory not synced",
        "the tasks survive a power loss, their name does not",
        "power",
        (("publish", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "new shard not synced",
        "the shard's directory is lost with everything in it",
        "power",
        (("prepare", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "no sync after an append",
        "the read-back comes from the client's own cache: after a lost lock everything seems to succeed",
        "cut",
        (("Log.append", "if self.sync: ...", "if False: ..."),),
    ),
    Mutation(
        "read back before the sync, and the sync's error ignored",
        "a lost lock is reported by fsync alone",
        "cut",
        (
            (
                "Log.append",
                """
                if self.sync:
                    fs.fsync(fd)
                ...
                self.end, self.torn = end, written - size
                """,
                """
                ...
                if self.sync:
                    try:
                        fs.fsync(fd)
                    except OSError:
                        pass
                self.end, self.torn = end, written - size
                """,
            ),
        ),
    ),
    Mutation(
        "one listing before empty",
        "a listing can miss a name that is being renamed",
        "stale",
        (("Leaser._lease_from_heads", "if fruitless == 2 or (held and fruitless): ...", "if fruitless == 1: ..."),),
    ),
    Mutation(
        "one listing before drained",
        "the same, and every worker ends",
        "home",
        (("inspection.two_agree", "if found == before: ...", "if True: ..."),),
    ),
    Mutation(
        "counting without the lock",
        "bytes are lost, or counted twice",
        "beside",
        (
            (
                "Journal.take_lock",
                """
                fs, fd = self.fs, self.fd
                asks_once = one_name and not fs.shared
                if not (asks_once and fs.try_lock(fd)): ...
                """,
                """
                fs, fd = self.fs, self.fd
                asks_once = one_name and not fs.shared
                if not ("completions" in self.path or (asks_once and fs.try_lock(fd))): ...
                """,
            ),
        ),
    ),
    Mutation(
        "counting again",
        "who goes on with a half-done finish counts what was counted",
        "crash",
        (("add", "done - sum(...)", "done"),),
    ),
    Mutation(
        "counted before it is announced",
        "a crash in between is counted again by the next",
        "crash",
        (
            (
                "add",
                """
                locked.append_record("count", at, file=number, offset=offset, count=missing)
                ...
                return
                """,
                """
                ...
                locked.append_record("count", at, file=number, offset=offset, count=missing)
                return
                """,
            ),
        ),
    ),
    Mutation(
        "two batches announce one offset",
        "the bytes of one pass for the other's, where both are equal, as those of one task are in one of 255 cases",
        "crash",
        (
            ("reserve", "store.fs.write_all(fd, GUARD)", ""),
            ("mark", "return (pattern * (count // 32 + 1))[:count]", 'return pattern[:0] + b"m" * count'),
        ),
    ),
    Mutation(
        "purge without the mark",
        "who still has the old tree's path cached inserts into the trash, and reports success",
        "stale-purge",
        (("purge", "if queue_file.state == old: ...", "if False: ..."),),
    ),
    Mutation(
        "published, and not looked again",
        "a purge that overtook the insert takes its tasks along",
        "purge-insert",
        (
            (
                "publish",
                """
                store.refresh(now=True)
                if store.layout is layout: ...
                """,
                "if True: ...",
            ),
        ),
    ),
    Mutation(
        "a purge that is not synced",
        "after a power loss the old generation counts again, and what was inserted into the new one is nowhere",
        "power-purge",
        (("administration.purge", "queue_file.append(...)", "queue_file.fs.write_all(queue_file.fd, ...)"),),
    ),
    Mutation(
        "task file unlinked before the log is synced",
        "a power loss keeps the unlinking and loses the outcomes",
        "power",
        (("finish", "if store.sync_inserts and not log.sync: ...", "if False: ..."),),
    ),
    Mutation(
        "task file moved to the payloads before the log is synced",
        "a power loss keeps the renaming and loses the outcomes",
        "moved-power",
        (("finish", "if store.sync_inserts and not log.sync: ...", "if False: ..."),),
    ),
    Mutation(
        "task file unlinked before the letters are written",
        "their payload was in it",
        "crash",
        (
            (
                "finish",
                """
                if store.sync_inserts and not log.sync: ...
                if replay_state.done[DEAD]: ...
                lines = payloads.keep(locked, at)
                if lines is not None: ...
                """,
                """
                if store.sync_inserts and not log.sync: ...
                lines = payloads.keep(locked, at)
                if lines is not None: ...
                log.lines = None
                if replay_state.done[DEAD]: ...
                """,
            ),
        ),
    ),
    Mutation(
        "a bare newline after a torn tail",
        "it revives what was reported failed",
        "full",
        (("VOID", "VOID = ...", "VOID = b'\\n'"),),
    ),
    Mutation(
        "torn tails not voided",
        "the next record is glued to them, and void",
        "full",
        (("VOID", "VOID = ...", "VOID = b''"),),
    ),
    Mutation(
        "time runs backwards in a log",
        "who has a slower clock writes records that do not apply",
        "skew",
        (
            (
                "next_at",
                """
                if last <= now: ...
                ...
                return last
                """,
                """
                if last <= now: ...
                ...
                return now
                """,
            ),
        ),
    ),
    Mutation(
        "only the current name is unlinked",
        "after a renaming that failed the task file stays, and everything in it is available again",
        ("local", "poll", "", "eio-after"),
        (
            (
                "LockedBatch.remove_task_file",
                """
                store, log = self.store, self.log
                for name in self.task_file_names(): ...
                """,
                """
                store, log = self.store, self.log
                for name in [log.name] if log.name else []: ...
                """,
            ),
        ),
    ),
    Mutation(
        "an error of a listing is an empty listing",
        "a queue whose server failed for a moment is called empty",
        ("local", "is-drained", "", "unlistable"),
        (
            (
                "Filesystem.names",
                """
                try: return retried_after_stale(lambda: self._list(directory))
                except (FileNotFoundError, NotADirectoryError) as error: ...
                """,
                """
                try: return retried_after_stale(lambda: self._list(directory))
                except OSError as error: ...
                """,
            ),
            ("Filesystem.names", "return self._names_afresh(directory)", "return []"),
            ("Filesystem.names", "if strict and code != errno.ENOENT: ...", "if strict and code == errno.ENOTDIR: ..."),
        ),
    ),
    Mutation(
        "completing without looking who holds it",
        "a task that was taken over is reported done by both",
        "crash",
        (
            ("complete_in_hand", "not state.holds(index, task.lease)", "False"),
            ("_act_in_locked", "replay_state.named_by(indices, lease)", "indices"),
        ),
    ),
    Mutation(
        "a lease that has not run out is taken over",
        "two workers have the task at the same time",
        "calm",
        (
            ("States.lease", "state[index] == LEASED and since[index] <= at", "state[index] == LEASED"),
            (
                "States.may_be_taken",
                "return self.state[index] == LEASED and ...",
                "return True or (self.state[index] == LEASED and ...)",
            ),
            (
                "States._gather",
                """
                if until + min(margin, lease.span // 10) > at:
                    break
                """,
                "",
            ),
            ("States.choose", "(expiries and expiries[0][0] <= at) or ...", "expiries or ..."),
        ),
    ),
    Mutation(
        "not caught up under the lock",
        "what others appended meanwhile is not seen",
        "calm-nfs",
        (("LockedBatch.__enter__", "log.catch_up()", "log.replay_state.count or log.catch_up()"),),
    ),
    Mutation(
        "status looks once",
        "a batch that finishes meanwhile is counted twice or not at all",
        "calm-nfs",
        (("_status", "counted = seen.counted == now or not vanished", "counted = True"),),
    ),
    Mutation(
        "a full disk is not noticed",
        "a short write counts as a whole one",
        "full",
        (
            ("Log.append", "if written < size: ...", "if False: ..."),
            ("Log.append", "if pread(fd, written + 1, base) != data[:written]: ...", "if False: ..."),
        ),
    ),
    Mutation(
        "no fresh look",
        "a client believes for a minute what it remembers of a name: a log that is gone, or that is not there yet",
        "attach",
        (("Filesystem._open_anew", "path == self.root", "True"),),
    ),
    Mutation(
        "who only looks reads what is cached",
        "a client serves zeros for what others have appended, while a process on it has the file open for writing",
        "beside",
        (
            (
                "Filesystem.look_anew",
                """
                if self.shared:
                    self.drop_cached(fd)
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "a log made anew is believed",
        "opening the log of a batch that finished after it was listed makes an empty one: "
        "everything is available again",
        ("local", "lease", "poll", "on"),
        (
            (
                "Leaser._from_locked",
                "if locked.read_lines() is None or locked.log.name is None: ...",
                "if locked.log.name is None: ...",
            ),
        ),
    ),
    Mutation(
        "a retry is published before it is recorded",
        "a crash in between leaves a letter, and the task",
        ("local", "retry-dead", "", "killed"),
        (
            (
                "insert_again",
                """
                file.append(line, store.sync_inserts)
                _publish(store, layout, staged)
                """,
                """
                _publish(store, layout, staged)
                file.append(line, store.sync_inserts)
                """,
            ),
        ),
    ),
    Mutation(
        "a retry is recorded before its file has a durable name",
        "a power loss keeps the line, and loses the tasks that it promises",
        ("lossy", "retry-dead", "", "power"),
        (
            (
                "insert_again",
                """
                if store.sync_inserts:
                    store.names.sync(layout.staging)
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "a retry that broke off takes back what it staged",
        "the line may stand all the same, and then names nothing",
        ("local", "retry-dead", "", "eio-after"),
        (("insert_again", "named = True", ""),),
    ),
    Mutation(
        "a completed task is retried again",
        "a retry that was killed and is repeated inserts the same tasks twice",
        "again",
        (("_Repeater._insert", "task.id in self._settled", "False"),),
    ),
    Mutation(
        "what was retried before is read from the file alone",
        "once its lines are given back to the history, a task is retried again",
        "again",
        (("_Repeater._read_settled", "letter_files.given_back(self.store, shard)", "()"),),
    ),
    Mutation(
        "no process publishes what a dead retry recorded",
        "no log leads to its tasks: the queue is called empty without them",
        ("local", "retry-dead", "", "killed"),
        (("publish_pending", "so_far = 0", "return 0"),),
    ),
    Mutation(
        "staged files are reaped without their lock",
        "their author is late by a day, finds his file gone, and takes that for the reply to his rename that was lost",
        ("local", "insert-many", "gc", "days"),
        (
            (
                "reap_staged",
                "store.fs.try_lock(fd) and store.fs.same_file(fd, path) and text not in ...",
                "text not in ...",
            ),
            BELIEVES,
        ),
    ),
    Mutation(
        "released, and not renamed",
        "no worker looks for the task before its lease would have ended",
        ("local", "release", "", "on"),
        (("release", "name_earlier(locked, at, available_at)", ""),),
    ),
    Mutation(
        "a queue made in place",
        "a crash leaves a `queue.jsonl` with nothing in it, or half of it",
        ("local", "create-anew", "", "killed"),
        (
            (
                "_create",
                'fresh, target = f"{path}/{names.fresh(entropy.hex16())}", f"{path}/{kind.file}"',
                'fresh = target = f"{path}/{kind.file}"',
            ),
            ("_create", "fs.link(fresh, target)", ""),
            ("_create", "fs.unlink(fresh)", ""),
        ),
    ),
    Mutation(
        "a new generation is believed before it is on disk",
        "a power loss brings back the generation before, without what was inserted into the new one",
        ("lossy", "purge", "insert-many", "killed-then-power"),
        (("publish", "store.secure_generation()", ""),),
    ),
    Mutation(
        "letters in a file without a durable name",
        "a power loss takes the file, and with it the payloads of the dead",
        "power",
        (
            (
                "write",
                "letter_files.locked(..., durable=store.sync_inserts)",
                "letter_files.locked(..., durable=False)",
            ),
        ),
    ),
    Mutation(
        "deleted without the mark",
        "who has the queue open, or its path cached, inserts into the trash",
        ("nfs", "insert-twice", "delete", "on"),
        (
            ("_mark", "queue_file.append(mark)", ""),
            ELSEWHERE,
        ),
    ),
    Mutation(
        "generations of all queues have the same names",
        "who is late in a deleted queue counts, or writes letters, in one that was created in its place",
        ("local", "complete", "replace", "on"),
        (("generation", 'f"{number}-{queue_id}"', 'f"{number}-{0:016x}"'),),
    ),
    Mutation(
        "status looks at letters and tasks, and not at what lies between",
        "a task whose retry is recorded and not published yet is counted nowhere by who may only look",
        ("local", "retry-dead", "status", "on"),
        (
            ("_status", "retrying.publish_pending(store)", ""),
            ("_look", "seen.files.update({name.batch: name for name in retried})", ""),
        ),
    ),
    Mutation(
        "the local clock plus the offset",
        "setting a host's clock takes over live leases, and marks batches with times to come",
        "steps-measured",
        (("Clock.now_ms", "int(self.monotonic() * 1000) + base", "int(self.local_s() * 1000) + self.offset_ms"),),
    ),
]

ISSUE = {
    "unlink the log before the task file": ["log before task file"],
    "no `gone`": ["no farewell", "farewell not heeded"],
    "no fresh look": ["no fresh look"],
    "no sync before rename": ["not synced before it is published"],
    "skip the read-back": ["a full disk is not noticed"],  # with the check of the count, since either does
    "believe a listing": ["a missing directory is believed missing", "an error of a listing is an empty listing"],
    "count without lock": ["counting without the lock"],
    "one listing before empty": ["one listing before empty", "one listing before drained"],
    "purge without the mark": ["purge without the mark"],
}
"""The classics, and by which mutations they are tried."""

DRAFTS: dict[int, list[str] | str] = {
    1: ["read back before the sync, and the sync's error ignored", "no sync after an append"],
    2: ["a log made anew is believed"],
    3: ["no farewell", "farewell not heeded", "log before task file"],
    4: "keyed tasks are not built yet",
    5: ["a queue made in place"],
    6: "updates over several logs are not built yet",
    7: "updates over several logs are not built yet",
    8: ["a record that exists is taken for done", "no process looks for what is pending"],
    9: ["no process publishes what a dead retry recorded"],
    10: ["purge without the mark", "published, and not looked again", "deleted without the mark"],
    11: ["staged files are reaped without their lock"],
    12: "the log of a stuck holder is never replaced",
    13: ["a child goes on with the random digits of its parent", "a child unlocks what it has inherited"],
    14: ["only the current name is unlinked"],
    15: ["counting again", "counted before it is announced", "counting without the lock"],
    16: ["time runs backwards in a log"],
    17: ["a bare newline after a torn tail", "torn tails not voided"],
    18: ["one listing before empty", "one listing before drained"],
}
"""The ways in which eighteen drafts of the protocol broke: by which mutations they are tried, or why they are not."""
