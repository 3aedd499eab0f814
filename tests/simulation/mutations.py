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
    """`scenario`: the kind of stories that catch it, within `stories` from seed 0 on."""

    name: str
    why: str
    scenario: str
    edits: tuple[Edit, ...]
    stories: int = 2000


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


MUTATIONS = [
    Mutation(
        "log before task file",
        "a crash between the two leaves a task file without a log: everything in it is available again",
        "crash",
        (
            ("finishing:finish", "    taskfiles.remove(store, log)\n", ""),
            ("finishing:farewell", "    store.fs.unlink(log.path)\n", "    store.fs.unlink(log.path)\n    taskfiles.remove(store, log)\n"),
        ),
    ),
    Mutation(
        "no farewell",
        "somebody who opened the log before it was unlinked appends to a file without a name",
        "calm-nfs",
        (("finishing:farewell", '    log.append(movements.record("gone", max(store.clock.now_ms(), log.ledger.at)))\n', ""),),
    ),
    Mutation(
        "farewell not heeded",
        "what is appended after `gone` is lost with the log",
        "calm-nfs",
        (("finishing:farewell_if_gone", "    if not log.ledger.gone:\n", "    if True:\n"),),
    ),
    Mutation(
        "a missing directory is believed missing",
        "a client does not see for a minute that the first task was inserted, and calls the queue empty",
        "first",
        (
            (
                "filesystem.door:Filesystem.names",
                "return self._names_afresh(directory) if self.shared else []",
                "return []",
            ),
        ),
    ),
    Mutation(
        "not synced before it is published",
        "the name survives a power loss, the tasks do not",
        "power",
        (("staging:sync", "    if store.sync_inserts:\n", "    if False:\n"),),
    ),
    Mutation(
        "directory not synced",
        "the tasks survive a power loss, their name does not",
        "power",
        (("staging:publish", "    if store.sync_inserts:\n", "    if False:\n"),),
    ),
    Mutation(
        "new shard not synced",
        "the shard's directory is lost with everything in it",
        "power",
        (("staging:prepare", "        if store.sync_inserts:\n", "        if False:\n"),),
    ),
    Mutation(
        "no sync after an append",
        "the read-back comes from the client's own cache: after a lost lock everything seems to succeed",
        "cut",
        (("logs:Log.append", "    if self.sync:\n", "    if False:\n"),),
    ),
    Mutation(
        "read back before the sync, and the sync's error ignored",
        "a lost lock is reported by fsync alone",
        "cut",
        (("logs:Log.append", "        self.fs.fsync(fd)\n", "        try:\n            self.fs.fsync(fd)\n        except OSError:\n            pass\n"),),
    ),
    Mutation(
        "one listing before empty",
        "a listing can miss a name that is being renamed",
        "stale",
        (("leasing:Leaser._further", "if fruitless == 2 or (held and fruitless):", "if fruitless == 1:"),),
    ),
    Mutation(
        "one listing before drained",
        "the same, and everybody goes home",
        "home",
        (("inspection:DrainCheck.__call__", "for _ in range(2):", "for _ in range(1):"),),
    ),
    Mutation(
        "counting without the lock",
        "bytes are lost, or counted twice",
        "calm-nfs",
        (("jsonl:locked", "if not fs.lock(fd, clock, entropy, timeout_s):", "if 'completions' not in path and not fs.lock(fd, clock, entropy, timeout_s):"),),
    ),
    Mutation(
        "counting again",
        "who goes on with a half-done finish counts what was counted",
        "crash",
        (("counters:add", " - sum(there(store, layout, log.batch, *announced) for announced in log.ledger.counts)", ""),),
    ),
    Mutation(
        "counted before it is announced",
        "a crash in between is counted again by the next",
        "crash",
        (
            ("counters:add", "                log.note(\"count\", at, file=number, offset=fs.fstat(fd).st_size, count=missing)\n", "                size = fs.fstat(fd).st_size\n"),
            ("counters:add", "                return\n", "                log.note(\"count\", at, file=number, offset=size, count=missing)\n                return\n"),
        ),
    ),
    Mutation(
        "purge without the mark",
        "who still has the old tree's path cached inserts into the trash, and reports success",
        "stale-purge",
        (
            (
                "administration:purge",
                "        if fate.generation == old.generation:  # else somebody else purged just now: that was it\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutation(
        "published, and not looked again",
        "a purge that overtook the insert takes its tasks along",
        "purge-insert",
        (("insertion:publish", "        store.refresh(now=True)\n        if store.layout is layout:\n", "        if True:\n"),),
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
        (("finishing:finish", "    if store.sync_inserts and not log.sync:\n", "    if False:\n"),),
    ),
    Mutation(
        "task file unlinked before the letters are written",
        "their payload was in it",
        "crash",
        (
            ("finishing:finish", "    taskfiles.remove(store, log)\n", ""),
            ("finishing:finish", "    if ledger.done[DEAD]:\n", "    taskfiles.remove(store, log)\n    log.lines = None\n    if ledger.done[DEAD]:\n"),
        ),
    ),
    Mutation(
        "a bare newline after a torn tail",
        "it revives what was reported failed",
        "full",
        (("movements:VOID", "b'~\\n'", "b'\\n'"),),
    ),
    Mutation(
        "torn tails not voided",
        "the next record is glued to them, and void",
        "full",
        (("movements:VOID", "b'~\\n'", "b''"),),
    ),
    Mutation(
        "time runs backwards in a log",
        "who has a slower clock writes records that do not apply",
        "skew",
        (("leasing:Leaser._claim", "at = now if now > ledger.at else ledger.at", "at = now"),),
    ),
    Mutation(
        "only the current name is unlinked",
        "after a renaming that failed the task file stays, and everything in it is available again",
        "reply",
        (("taskfiles:remove", "    for name in candidates(store, log):\n", "    for name in [log.name] if log.name else []:\n"),),
    ),
    Mutation(
        "an error of a listing is an empty listing",
        "a queue whose server failed for a moment is called empty",
        "error",
        (("filesystem.door:Filesystem.names", "    except (FileNotFoundError, NotADirectoryError):\n", "    except OSError:\n"),
         ("filesystem.door:Filesystem.names", "return self._names_afresh(directory) if self.shared else []", "return []")),
    ),
    Mutation(
        "completing without looking who holds it",
        "a task that was taken over is reported done by both",
        "crash",
        (("transitions:_complete_in", "holds = not ledger.gone and ledger.holds(index, lease)", "holds = not ledger.gone"),),
    ),
    Mutation(
        "a lease that has not run out is taken over",
        "two workers have the task at the same time",
        "calm",
        (("states:States.lease", "elif state[index] == LEASED and since[index] <= at:", "elif state[index] == LEASED:"),
         ("states:States._may_be_taken", "    return (\n        self.state[index] == LEASED\n", "    return True or (\n        self.state[index] == LEASED\n"),
         ("states:States._gather", "        if until + min(margin, lease.span // 10) > at:\n            break\n", ""),
         ("states:States.choose", "or (expiries and expiries[0][0] <= at)", "or expiries"),),
    ),
    Mutation(
        "not caught up under the lock",
        "what others appended meanwhile is not seen",
        "calm-nfs",
        (("transitions:_complete_in", "    log.catch_up()\n", ""),),
    ),
    Mutation(
        "status looks once",
        "a batch that finishes meanwhile is counted twice or not at all",
        "calm-nfs",
        (("inspection:status", "if seen.counted == _counted(store) or (before is not None and before.batches() <= seen.batches()):", "if True:"),),
    ),
    Mutation(
        "a full disk is not noticed",
        "a short write counts as a whole one",
        "full",
        (
            ("logs:Log.append", "if self.fs.write(fd, data) != size:", "if self.fs.write(fd, data) < 0:"),
            ("logs:Log.append", "if self.fs.pread(fd, size + 1, base) != data:", "if False:"),
        ),
    ),
]  # fmt: skip
