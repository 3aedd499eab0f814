"""How many ways lead to the same: methods that write a verb once more, and lines that finish what others left undone.

A verb is one method of `Queue`, and one of `RemoteQueue` if it has a route. No number of others may grow. Whoever makes
one smaller writes that down here. (`test_waiting_loops` does so for loops that wait.)
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from fsqueue.verbs.table import OF_QUEUES
from tests.house.source import TOP, parse

ONCE = {
    "Queue": ("fsqueue.queue", "fsqueue.maintenance"),
    "RemoteQueue": ("fsqueue.client.remote_queue", "fsqueue.client.remote_base"),
}
"""The modules in which a verb stands once: of a class, and of that from which it inherits."""
WRITTEN = {
    "fsqueue.client.remote_group": 7,
    "fsqueue.client.remote_poll": 2,
    "fsqueue.errors": 1,
    "fsqueue.groups.group": 8,
    "fsqueue.groups.group_source": 1,
    "fsqueue.groups.pending_update": 9,
    "fsqueue.groups.queue": 5,
    "fsqueue.leased_task": 13,
    "fsqueue.poll": 2,
    "fsqueue.service.application": 1,
    "fsqueue.service.lessees": 1,
    "fsqueue.service.taskstore": 1,
}
"""Number of verbs that stand as methods elsewhere, by module of the packages that have kinds of queues."""
OF_KINDS = re.compile(r"fsqueue\.(client\.|groups\.|service\.|verbs\.)?\w+")

ASKS = {
    "retrying.publish_pending", "retrying.pending", "commits.apply_pending", "commits.pending",
    "inspection.apply_pending", "apply_pending", "decided.seen", "decided.seen_records", "decided.with_outcomes",
    "locked.undecided",
}  # fmt: skip
"""Calls that ask whether a commit, a retry or an update of another process is unfinished, or finish it."""
ASKED = {
    "fsqueue.fsck.places": 2,
    "fsqueue.maintenance": 1,
    "fsqueue.protocol.deciding": 1,
    "fsqueue.protocol.keyed_inserts": 1,
    "fsqueue.protocol.leasing": 3,
    "fsqueue.spark.reading": 2,
    "fsqueue.storage.listing": 3,
    "fsqueue.upkeep.collect": 3,
    "fsqueue.views.inspection": 8,
    "fsqueue.views.outcomes": 1,
    "fsqueue.views.priorities": 2,
    "fsqueue.views.task_history": 1,
}
"""Number of those calls, by module."""

APPENDS = {
    "fsqueue.storage.journals.Journal.append": "records of all kinds",
    "fsqueue.storage.logs.Log.append": "records of a batch's log, which is on the hot path",
    "fsqueue.storage.counters.add": "bytes of completed tasks, which are no records",
    "fsqueue.storage.counters.note_cancelled": "the same",
    "fsqueue.storage.counters.reserve": "the same",
    "fsqueue.fsck.recount.Recount._behind": "the same",
    "fsqueue.storage.decisions.OwnDecisionFile._sync": "a line once more, whose sync has failed",
    "fsqueue.storage.decisions.OwnDecisionFiles._made": "the first line of a new file",
    "fsqueue.storage.group_directory.GroupDirectory._link": "the same",
    "fsqueue.storage.remains._link": "the same",
    "fsqueue.administration._create": "the same",
    "fsqueue.storage.letter_files._write_successor": "a new file",
    "fsqueue.storage.payloads.put": "a new file",
    "fsqueue.storage.staging.stage_as": "a new file",
    "fsqueue.storage.commits.cast_ballot": "a new file",
    "fsqueue.fsck.repair.Quarantine.keep": "a new file",
    "fsqueue.spark.jobs.output_directory.Place.write": "a new file",
    "fsqueue.storage.commits._proposed": "a new file",
    "fsqueue.protocol.overwriting._note": "a new file",
    "fsqueue.commit._Stager._write": "a new file",
}
"""The functions that write to open files in a queue or its group, and what."""
LOCKS = {
    "fsqueue.storage.journals.Journal.take_lock": "journals, by their paths",
    "fsqueue.storage.decisions.OwnDecisionFile._decide": "a journal that stays open",
    "fsqueue.storage.locked_batch.LockedBatch.__enter__": "logs, which stay open",
    "fsqueue.storage.locked_batch.LockedBatch._wait_for": "the same",
    "fsqueue.protocol.fast_path.lease_next": "the same, where all is as usual",
    "fsqueue.protocol.fast_path.complete_in_hand": "the same",
    "fsqueue.protocol.fast_path.insert_next": "the same",
    "fsqueue.storage.staging.stage_as": "what lives as long as its author",
    "fsqueue.storage.staging.is_held": "the same",
    "fsqueue.storage.commits._proposed": "the same",
    "fsqueue.storage.commits._attending": "the same",
    "fsqueue.upkeep.collect.reap_staged": "the same",
}
"""The functions that lock open files in a queue or its group, and which."""

ADVICE_JOURNAL = (
    "Records are appended by Journal.append, under a lock that journals.locked takes (fsqueue/storage/journals.py, "
    "docs/decisions/0059-one-journal.md). A new kind of file is a subclass of Journal, if it is more than lines."
)
ADVICE_VERB = (
    "A verb has one entry in fsqueue/verbs/table.py, one method in Queue, and one in RemoteQueue if it has a route. Do "
    "not write it once more: have it come from the table (CONTRIBUTING.md, 'A new verb')."
)
ADVICE_ASK = (
    "Whether another process has left something undone is asked by what reads the queue: fsqueue.views.inspection for "
    "looks, fsqueue.protocol.leasing for leases. Call one of these."
)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((TOP / "fsqueue").rglob("*.py")):
        yield ".".join(("fsqueue", *path.relative_to(TOP / "fsqueue").with_suffix("").parts)), parse(path)


def verbs_in(tree: ast.AST) -> list[str]:
    """Return the names of verbs that public methods of classes have. Further signatures of a method do not count."""
    names = {verb.name for verb in OF_QUEUES}
    return [
        one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name in names
        if not any(ast.unparse(decorator).endswith("overload") for decorator in one.decorator_list)
    ]


def asks_in(tree: ast.AST) -> int:
    """Count the calls that ask for what others have left undone."""
    return sum(isinstance(node, ast.Call) and ast.unparse(node.func) in ASKS for node in ast.walk(tree))


def calling(names: set[str], node: ast.AST, within: str) -> Iterator[str]:
    """Yield the functions and methods that call a method of one of these names, or bind it to a name of their own."""
    for one in ast.iter_child_nodes(node):
        inner = f"{within}.{one.name}" if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else within
        if isinstance(one, ast.Attribute) and one.attr in names and ast.unparse(one.value).rpartition(".")[2] == "fs":
            yield within
        yield from calling(names, one, inner)


def counted(count: Callable[[ast.AST], int], trees: Iterable[tuple[str, ast.AST]]) -> dict[str, int]:
    return {module: found for module, tree in trees if (found := count(tree))}


def more_than(held: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Return the modules that have more than is held, with how many more."""
    return {module: number - held.get(module, 0) for module, number in found.items() if number > held.get(module, 0)}


def test_a_verb_is_one_method_of_a_queue_and_one_of_a_gateways_queue() -> None:
    found = dict(modules())
    for kind, places in ONCE.items():
        written = Counter(chain.from_iterable(verbs_in(found[place]) for place in places))
        assert {name: count for name, count in written.items() if count > 1} == {}, (kind, ADVICE_VERB)
        assert written.keys() >= {"lease", "insert", "status"}


def test_no_verb_is_written_by_hand_once_more() -> None:
    once = set(chain.from_iterable(ONCE.values()))
    others = ((name, tree) for name, tree in modules() if OF_KINDS.fullmatch(name) and name not in once)
    assert more_than(WRITTEN, counted(lambda tree: len(verbs_in(tree)), others)) == {}, ADVICE_VERB


def test_no_further_line_asks_for_what_is_unfinished() -> None:
    found = counted(asks_in, modules())
    assert more_than(ASKED, found) == {}, ADVICE_ASK


def test_records_are_appended_and_files_locked_in_one_way() -> None:
    kept = [(name, tree) for name, tree in modules() if not name.startswith(("fsqueue.filesystem", "fsqueue.doctor"))]
    appends, locks = (
        {place for name, tree in kept for place in calling(names, tree, name)}
        for names in ({"write", "write_all"}, {"lock", "try_lock"})
    )
    assert (appends, locks) == (APPENDS.keys(), LOCKS.keys()), ADVICE_JOURNAL


def test_what_appends_or_locks_is_found() -> None:
    text = (
        "class Kind:\n def f(self):\n  write = self.fs.write\n def g(self, fs): fs.lock(1)\n def h(self): log.write(1)"
    )
    assert list(calling({"write", "lock"}, ast.parse(text), "m")) == ["m.Kind.f", "m.Kind.g"]


def test_what_is_written_or_asked_is_found() -> None:
    text = "class Kind:\n def lease(self): commits.apply_pending(store)\n async def wait(self): 0\n def f(self): g()\n"
    text += " @overload\n def peek(self): ..."
    assert (verbs_in(ast.parse(text)), asks_in(ast.parse(text))) == (["lease", "wait"], 1)
    assert more_than({"a": 1, "b": 2}, {"a": 2, "b": 1, "c": 3}) == {"a": 1, "c": 3}
