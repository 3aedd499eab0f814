# ruff: noqa: E501
"""The protocol, broken on purpose: each of these changes to the real code must be caught.

A mutation is an edit of the source of one or more functions, applied for as long as a context lasts. Most are
drafts that somebody might write; the comments say what they lose.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

Edit = tuple[str, str, str]
"""Where ("module:function" or "module:Class.method", in fsqueue), what stands there, what shall."""


@dataclass(frozen=True)
class Mutation:
    """Caught by stories of a `scenario`, within `stories` from seed `first` on; or by a small case, at some call of its first verb."""

    name: str
    why: str
    found_by: str | tuple[str, str, str, str]
    """The name of a scenario; or of a filesystem, two verbs (or one and nothing) and a fate."""
    edits: tuple[Edit, ...]
    stories: int = 2000
    first: int = 0


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """While this lasts, fsqueue is broken."""
    edits: dict[str, list[tuple[str, str]]] = {}
    for where, old, new in mutation.edits:
        edits.setdefault(where, []).append((old, new))
    with ExitStack() as stack:
        for where, changes in edits.items():
            module_name, _, path = where.partition(":")
            module = importlib.import_module(f"fsqueue.{module_name}")
            owner: Any = module
            *holders, name = path.split(".")
            for holder in holders:
                owner = getattr(owner, holder)
            original = getattr(owner, name)
            changed = _edited(module, original, changes)
            for place in [owner, *_importers(original)] if not holders else [owner]:
                stack.enter_context(mock.patch.object(place, name, changed))
        yield


def _edited(module: ModuleType, original: Any, changes: list[tuple[str, str]]) -> Any:
    if not callable(original):
        [(old, new)] = changes
        assert repr(original) == old, f"{original!r} is not {old} any more"
        return eval(new)
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in changes:
        assert source.count(old) == 1, f"{original.__qualname__} has {source.count(old)} times: {old}"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(source, f"<{original.__qualname__}, mutated>", "exec"), vars(module), made)
    return made[original.__name__]


def _importers(original: Any) -> list[ModuleType]:
    """The modules that have it under its own name, too."""
    name = getattr(original, "__name__", None)
    if not isinstance(original, FunctionType) or name is None:
        return []
    return [
        module
        for key, module in sys.modules.items()
        if key.startswith("fsqueue") and vars(module).get(name) is original and key != original.__module__
    ]


BELIEVES: Edit = ("storage.staging:AWAY_S", "43200.0", "1e18")
"""An inserter that was away for days believes that its staged file is gone because it was published.

Else it raises an error, and nothing that `gc` has reaped is reported inserted: each of the two defences would do.
"""
ELSEWHERE: Edit = (
    "storage.queue_file:QueueFile.read",
    "    if not fs.is_in_place():  # on a full",
    "    if False:  # on a full",
)
"""Whether the open directory is still the one at the queue's path: it tells of a deletion, too, as the mark does."""

MUTATIONS = [
    Mutation(
        "log before task file",
        "a crash between the two leaves a task file without a log: everything in it is available again",
        "crash",
        (
            ("protocol.finishing:finish", "    published.remove(locked)\n", ""),
            ("protocol.finishing:retire", "    store.fs.unlink(locked.log.path)\n", "    store.fs.unlink(locked.log.path)\n    published.remove(locked)\n"),
        ),
    ),
    Mutation(
        "no farewell",
        "somebody who opened the log before it was unlinked appends to a file without a name",
        "calm-nfs",
        (("protocol.finishing:retire", '    locked.log.append(movements.record("gone", max(store.clock.now_ms(), locked.replay_state.at)))\n', ""),),
    ),
    Mutation(
        "farewell not heeded",
        "what is appended after `gone` is lost with the log",
        "calm-nfs",
        (("storage.locked_batch:LockedBatch.__enter__", "if replay_state.gone:", "if False:"),),
    ),
    Mutation(
        "a missing directory is believed missing",
        "a client does not see for a minute that the first task was inserted, and calls the queue empty",
        "first",
        (
            (
                "filesystem.operations:Filesystem.names",
                "return self._names_afresh(directory) if self.shared else []",
                "return []",
            ),
        ),
    ),
    Mutation(
        "not synced before it is published",
        "the name survives a power loss, the tasks do not",
        "power",
        (("storage.staging:sync", "    if store.sync_inserts:\n", "    if False:\n"),),
    ),
    Mutation(
        "directory not synced",
        "the tasks survive a power loss, their name does not",
        "power",
        (("storage.staging:publish", "    if store.sync_inserts:\n", "    if False:\n"),),
    ),
    Mutation(
        "new shard not synced",
        "the shard's directory is lost with everything in it",
        "power",
        (("storage.staging:prepare", "        if store.sync_inserts:\n", "        if False:\n"),),
    ),
    Mutation(
        "no sync after an append",
        "the read-back comes from the client's own cache: after a lost lock everything seems to succeed",
        "cut",
        (("storage.logs:Log.append", "    if self.sync:\n", "    if False:\n"),),
    ),
    Mutation(
        "read back before the sync, and the sync's error ignored",
        "a lost lock is reported by fsync alone",
        "cut",
        (("storage.logs:Log.append", "    if self.sync:\n        fs.fsync(fd)\n", ""),
         ("storage.logs:Log.append", "    self.end, self.torn = end, written - size\n", "    if self.sync:\n        try:\n            fs.fsync(fd)\n        except OSError:\n            pass\n    self.end, self.torn = end, written - size\n")),
    ),
    Mutation(
        "one listing before empty",
        "a listing can miss a name that is being renamed",
        "stale",
        (("protocol.leasing:Leaser._lease_from_heads", "if fruitless == 2 or (held and fruitless):", "if fruitless == 1:"),),
    ),
    Mutation(
        "one listing before drained",
        "the same, and everybody goes home",
        "home",
        (("views.inspection:DrainCheck.__call__", "for _ in range(2):", "for _ in range(1):"),),
    ),
    Mutation(
        "counting without the lock",
        "bytes are lost, or counted twice",
        "beside",
        (("storage.jsonl:locked", "if not fs.lock(fd, clock, entropy, timeout_s):", "if 'completions' not in path and not fs.lock(fd, clock, entropy, timeout_s):"),),
    ),
    Mutation(
        "counting again",
        "who goes on with a half-done finish counts what was counted",
        "crash",
        (("storage.counters:add", " - sum(there(store, layout, log.batch, *announced) for announced in locked.replay_state.counts)", ""),),
    ),
    Mutation(
        "counted before it is announced",
        "a crash in between is counted again by the next",
        "crash",
        (
            ("storage.counters:add", "                locked.append_record(\"count\", at, file=number, offset=offset, count=missing)\n", ""),
            ("storage.counters:add", "                return\n", "                locked.append_record(\"count\", at, file=number, offset=offset, count=missing)\n                return\n"),
        ),
    ),
    Mutation(
        "two batches announce one offset",
        "the bytes of one pass for the other's, where both are equal, as those of one task are in one of 255 cases",
        "crash",
        (
            ("storage.counters:reserve", "    store.fs.write_all(fd, GUARD)\n", ""),
            ("storage.counters:mark", "    return (pattern * (count // 32 + 1))[:count]\n", "    return pattern[:0] + b\"m\" * count\n"),
        ),
    ),
    Mutation(
        "purge without the mark",
        "who still has the old tree's path cached inserts into the trash, and reports success",
        "stale-purge",
        (
            (
                "administration:purge",
                "        if queue_state == old:  # else another process purged or deleted it just now\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutation(
        "published, and not looked again",
        "a purge that overtook the insert takes its tasks along",
        "purge-insert",
        (("protocol.insertion:publish", "        store.refresh(now=True)\n        if store.layout is layout:\n", "        if True:\n"),),
    ),
    Mutation(
        "a purge that is not synced",
        "after a power loss the old generation counts again, and what was inserted into the new one is nowhere",
        "power-purge",
        (("administration:purge", "store.clock.now_ms()), True)", "store.clock.now_ms()), False)"),),
    ),
    Mutation(
        "task file unlinked before the log is synced",
        "a power loss keeps the unlinking and loses the outcomes",
        "power",
        (("protocol.finishing:finish", "    if store.sync_inserts and not log.sync:\n", "    if False:\n"),),
    ),
    Mutation(
        "task file unlinked before the letters are written",
        "their payload was in it",
        "crash",
        (
            ("protocol.finishing:finish", "    published.remove(locked)\n", ""),
            ("protocol.finishing:finish", "    if replay_state.done[DEAD]:\n", "    published.remove(locked)\n    log.lines = None\n    if replay_state.done[DEAD]:\n"),
        ),
    ),
    Mutation(
        "a bare newline after a torn tail",
        "it revives what was reported failed",
        "full",
        (("format.movements:VOID", "b'~\\n'", "b'\\n'"),),
    ),
    Mutation(
        "torn tails not voided",
        "the next record is glued to them, and void",
        "full",
        (("format.movements:VOID", "b'~\\n'", "b''"),),
    ),
    Mutation(
        "time runs backwards in a log",
        "who has a slower clock writes records that do not apply",
        "skew",
        (("storage.record_times:present", "    return last\n", "    return now\n"),),
    ),
    Mutation(
        "only the current name is unlinked",
        "after a renaming that failed the task file stays, and everything in it is available again",
        ("local", "poll", "", "eio-after"),
        (("storage.published:remove", "    for name in candidates(locked):\n", "    for name in [log.name] if log.name else []:\n"),),
    ),
    Mutation(
        "an error of a listing is an empty listing",
        "a queue whose server failed for a moment is called empty",
        ("local", "is-drained", "", "unlistable"),
        (("filesystem.operations:Filesystem.names", "    except (FileNotFoundError, NotADirectoryError):\n", "    except OSError:\n"),
         ("filesystem.operations:Filesystem.names", "return self._names_afresh(directory) if self.shared else []", "return []")),
    ),
    Mutation(
        "completing without looking who holds it",
        "a task that was taken over is reported done by both",
        "crash",
        (("protocol.transitions:complete_one", "if locked.replay_state.holds(task.index, task.lease):", "if True:"),),
    ),
    Mutation(
        "a lease that has not run out is taken over",
        "two workers have the task at the same time",
        "calm",
        (("format.task_states:States.lease", "elif state[index] == LEASED and since[index] <= at:", "elif state[index] == LEASED:"),
         ("format.task_states:States._may_be_taken", "    return (\n        self.state[index] == LEASED\n", "    return True or (\n        self.state[index] == LEASED\n"),
         ("format.task_states:States._gather", "        if until + min(margin, lease.span // 10) > at:\n            break\n", ""),
         ("format.task_states:States.choose", "or (expiries and expiries[0][0] <= at)", "or expiries"),),
    ),
    Mutation(
        "not caught up under the lock",
        "what others appended meanwhile is not seen",
        "calm-nfs",
        (("storage.locked_batch:LockedBatch.__enter__", "log.catch_up()", "log.replay_state.count or log.catch_up()"),),
    ),
    Mutation(
        "status looks once",
        "a batch that finishes meanwhile is counted twice or not at all",
        "calm-nfs",
        (("views.inspection:_status", "counted = seen.counted == now or not vanished", "counted = True"),),
    ),
    Mutation(
        "a full disk is not noticed",
        "a short write counts as a whole one",
        "full",
        (
            ("storage.logs:Log.append", "    if written < size:", "    if False:"),
            ("storage.logs:Log.append", "if pread(fd, written + 1, base) != data[:written]:", "if False:"),
        ),
    ),
    Mutation(
        "no fresh look",
        "a client believes for a minute what it remembers of a name: a log that is gone, or that is not there yet",
        "attach",
        (("filesystem.operations:Filesystem._open_anew",
          "    try:\n        within = self._open_directory(directory)\n    except FileNotFoundError:\n        if not self.shared:\n            raise\n        within = self._walk_to(directory)\n    try:\n        return open_at(within, name, flags, self)\n    finally:\n        resources.close(within)\n",
          "    return self._open(path, flags | LOOK_FLAGS)\n"),),
    ),
    Mutation(
        "who only looks reads what is cached",
        "a client serves zeros for what others have appended, while a process on it has the file open for writing",
        "beside",
        (("filesystem.operations:Filesystem.look_anew", "    if self.shared:\n        self.drop_cached(fd)\n", "    pass\n"),),
    ),
    Mutation(
        "a log made anew is believed",
        "opening the log of a batch that finished after it was listed makes an empty one: everything is available again",
        ("local", "lease", "poll", "on"),
        (("protocol.leasing:Leaser._claim", "if published.read(locked) is None or locked.log.name is None:", "if locked.log.name is None:"),),
    ),
    Mutation(
        "a retry is published before it is recorded",
        "a crash in between leaves a letter, and the task",
        ("local", "retry-dead", "", "killed"),
        (("storage.deadletters:retry", "            named = True\n", "            named = True\n            list(staging.publish(store, layout, [staged]))\n"),
         ("storage.deadletters:retry", "            jsonl.append(store.fs, fd, line, store.sync_inserts)\n            list(staging.publish(store, layout, [staged]))\n", "            jsonl.append(store.fs, fd, line, store.sync_inserts)\n"),),
    ),
    Mutation(
        "a retry is recorded before its file has a durable name",
        "a power loss keeps the line, and loses the tasks that it promises",
        ("lossy", "retry-dead", "", "power"),
        (("storage.deadletters:retry", "            if store.sync_inserts:\n                store.names.sync(layout.staging)  # the line must not outlive what it names\n", ""),),
    ),
    Mutation(
        "a retry that broke off takes back what it staged",
        "the line may stand all the same, and then names nothing",
        ("local", "retry-dead", "", "eio-after"),
        (("storage.deadletters:retry", "            named = True\n", ""),),
    ),
    Mutation(
        "nobody publishes what a dead retry recorded",
        "no log leads to its tasks: the queue is called empty without them",
        ("local", "retry-dead", "", "killed"),
        (("storage.deadletters:publish_pending", "    published = 0\n", "    return 0\n"),),
    ),
    Mutation(
        "staged files are reaped without their lock",
        "their author is late by a day, finds his file gone, and takes that for the reply to his rename that was lost",
        ("local", "insert-many", "gc", "days"),
        (("upkeep.collect:reap_staged", "if store.fs.try_lock(fd) and store.fs.same_file(fd, path) and text", "if text"), BELIEVES),
    ),
    Mutation(
        "released, and not renamed",
        "nobody looks for the task before its lease would have ended",
        ("local", "release", "", "on"),
        (("protocol.transitions:release", "        name_earlier(locked, at, available_at)\n", ""),),
    ),
    Mutation(
        "a queue made in place",
        "a crash leaves a `queue.jsonl` with nothing in it, or half of it",
        ("local", "create-anew", "", "killed"),
        (("administration:_create", '    fresh = f"{path}/{names.fresh(entropy.hex16())}"\n', "    fresh = layout.settings_file(path)\n"),
         ("administration:_create", "        fs.link(fresh, layout.settings_file(path))\n", ""),
         ("administration:_create", "        fs.unlink(fresh)\n", "")),
    ),
    Mutation(
        "a new generation is believed before it is on disk",
        "a power loss brings back the generation before, without what was inserted into the new one",
        ("lossy", "purge", "insert-many", "killed-then-power"),
        (("protocol.insertion:publish", "            store.secure_generation()\n", ""),),
    ),
    Mutation(
        "letters in a file without a durable name",
        "a power loss takes the file, and with it the payloads of the dead",
        "power",
        (("storage.deadletters:write", "durable=store.sync_inserts", "durable=False"),),
    ),
    Mutation(
        "deleted without the mark",
        "who has the queue open, or its path cached, inserts into the trash",
        ("nfs", "insert-twice", "delete", "on"),
        (("administration:_mark", "        jsonl.append(fs, fd, mark, True)\n", "        pass\n"), ELSEWHERE),
    ),
    Mutation(
        "generations of all queues have the same names",
        "who is late in a deleted queue counts, or writes letters, in one that was created in its place",
        ("local", "complete", "replace", "on"),
        (("format.names:generation", 'f"{number}-{queue_id}"', 'f"{number}-{0:016x}"'),),
    ),
    Mutation(
        "status looks at letters and tasks, and not at what lies between",
        "a task whose retry is recorded and not published yet is counted nowhere by who may only look",
        ("local", "retry-dead", "status", "on"),
        (("views.inspection:_status", "    deadletters.publish_pending(store)\n", ""),
         ("views.inspection:_look", "    seen.files.update({name.batch: name for name in retried})  # as good as published, ...\n", ""),),
    ),
    Mutation(
        "the local clock plus the offset",
        "setting a host's clock takes over live leases, and marks batches with times to come",
        "steps-measured",
        (("clock:Clock.now_ms", "int(self.monotonic() * 1000) + base", "int(self.local_s() * 1000) + self.offset_ms"),),
    ),
]  # fmt: skip

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
    8: ["a record that exists is taken for done", "nobody looks for what is pending"],
    9: ["nobody publishes what a dead retry recorded"],
    10: ["purge without the mark", "published, and not looked again", "deleted without the mark"],
    11: ["staged files are reaped without their lock"],
    12: "the log of a stuck holder is never replaced",
    13: "forks and threads are not simulated: tests/test_fork_and_threads.py",
    14: ["only the current name is unlinked"],
    15: ["counting again", "counted before it is announced", "counting without the lock"],
    16: ["time runs backwards in a log"],
    17: ["a bare newline after a torn tail", "torn tails not voided"],
    18: ["one listing before empty", "one listing before drained"],
}
"""The ways in which eighteen drafts of the protocol broke, and by which mutations they are tried, or why they are not."""
