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
from tests.house.test_waiting_loops import LOOPS

ONCE = {
    "Queue": ("fsqueue.queue", "fsqueue.maintenance"),
    "RemoteQueue": ("fsqueue.client.remote_queue", "fsqueue.client.remote_base"),
}
"""The modules in which a verb stands once: of a class, and of that from which it inherits."""
WRITTEN = {
    "fsqueue.client.remote_barriers": 1,
    "fsqueue.client.remote_group": 7,
    "fsqueue.client.remote_poll": 2,
    "fsqueue.errors": 1,
    "fsqueue.groups.barriers": 1,
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
    "fsqueue.groups.joins": 1,
    "fsqueue.maintenance": 1,
    "fsqueue.protocol.deciding": 1,
    "fsqueue.protocol.keyed_inserts": 1,
    "fsqueue.protocol.leasing": 3,
    "fsqueue.protocol.limiting": 1,
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
    "fsqueue.storage.barrier_files.write": "a new file",
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
    "fsqueue.protocol.fast_path.exchange_next": "the same",
    "fsqueue.protocol.fast_path.insert_next": "the same",
    "fsqueue.protocol.limiting._prove_lock": "the same, once more: the file server may have forgotten the lock",
    "fsqueue.storage.staging.stage_as": "what lives as long as its author",
    "fsqueue.storage.staging.is_held": "the same",
    "fsqueue.storage.commits._proposed": "the same",
    "fsqueue.storage.commits._attending": "the same",
    "fsqueue.upkeep.collect.reap_staged": "the same",
}
"""The functions that lock open files in a queue or its group, and which."""

DECIDES = {
    "fsqueue.administration._create": "that there is a queue",
    "fsqueue.storage.group_directory.GroupDirectory._link": "that there is a group",
    "fsqueue.storage.remains._link": "that a directory whose file of settings is lost is a queue, or a group, again",
    "fsqueue.storage.commits.decide": "a named commit",
    "fsqueue.storage.commits._publish": "where a file of a decided commit is",
    "fsqueue.storage.commits.reap": "that an attempt is given up",
    "fsqueue.storage.barrier_files.write": "that there is a barrier",
    "fsqueue.storage.barrier_files.advance": "how far it is",
    "fsqueue.storage.staging.publish_staged": "that a batch is in the queue",
    "fsqueue.storage.staging._rename_into_shard": "the same, in its shard",
    "fsqueue.storage.locked_batch.LockedBatch.rename_task_file_surely": "what a task file's name promises",
    "fsqueue.storage.locked_batch.LockedBatch.move_task_file_away": "that the file of a batch that is over is kept",
    "fsqueue.storage.payloads.put": "that payloads of a batch that is over are kept",
    "fsqueue.storage.letter_files.LetterFile.is_replaced": "that a file of letters has a successor",
    "fsqueue.storage.store.Store.discard": "that a tree is out of use",
    "fsqueue.protocol.overwriting._move": "whose the staged files of a commit are",
    "fsqueue.protocol.leasing.Leaser._correct_name": "that a file whose name was given by a wrong clock is due",
    "fsqueue.fsck.repair.Quarantine.move": "that something damaged is in quarantine",
    "fsqueue.fsck.repair.Quarantine._make_way": "the same",
    "fsqueue.fsck.repair.Repair.file_to_its_shard": "in which shard a task file is",
    "fsqueue.fsck.repair.Repair.log_to_its_shard": "in which shard a log is",
}
"""The functions that link or rename files of a queue or its group: what all processes see from then on. (What the first
record of its kind decides is among `APPENDS`: updates, numbers, purges, keys.)
"""
SHRINKS = {
    "fsqueue.storage.barrier_files.tidy": "the file of a barrier that has ended",
    "fsqueue.storage.barrier_files.write": "the file of one that could not be set",
    "fsqueue.protocol.finishing.retire": "a log that ends in `gone`",
    "fsqueue.storage.locked_batch.LockedBatch._retire_gone": "the same",
    "fsqueue.storage.locked_batch.LockedBatch.remove_task_file": "a task file whose batch is over",
    "fsqueue.storage.locked_batch.LockedBatch._make_single": "a second name of one",
    "fsqueue.storage.keys.KeyFile.remove": "a key's file of an epoch that has ended",
    "fsqueue.storage.nodes.admit": "a node's file, once it is fit again",
    "fsqueue.storage.slots.forget": "a file of slots whose limits have ended",
    "fsqueue.storage.group_slots.forget": "the same, of a group",
    "fsqueue.storage.letter_files.LetterFile.must_have_one_name": "the former name of a file of letters",
    "fsqueue.storage.letter_files.reap_successors": "a successor that has replaced nothing",
    "fsqueue.storage.letter_files.give_back": "a file of letters all of which are settled",
    "fsqueue.storage.bells.make": "a group's bells, which are made anew in their place",
    "fsqueue.upkeep.decision_files._remove": "a decision file whose outcomes are on disk",
    "fsqueue.upkeep.number_files._retire": "a file of numbers all of which have ended",
    "fsqueue.upkeep.payload_erasure._kept_file": "kept payloads, after their time",
    "fsqueue.storage.payloads.put": "the task file whose payloads were kept",
    "fsqueue.storage.staging._remove": "a staged file that is not published",
    "fsqueue.commit._Stager._give_up": "what was staged for a commit",
    "fsqueue.commit.Commit.forget": "a commit's record",
    "fsqueue.storage.commits.drop": "an applied commit's attempt",
    "fsqueue.storage.commits.withdraw": "a proposal and its ballot",
    "fsqueue.upkeep.collect.reap_ballot": "a ballot whose author is dead",
    "fsqueue.upkeep.collect.reap_staged": "a staged file whose author is dead",
    "fsqueue.upkeep.trash.reap_own": "what is in the trash",
    "fsqueue.upkeep.trash.reap_tree": "the same",
    "fsqueue.administration._create": "the name under which a queue's file was written",
    "fsqueue.storage.group_directory.GroupDirectory._link": "the same, of a group",
    "fsqueue.storage.remains._link": "the same, of what is mended",
    "fsqueue.fsck.places._Places._top": "the same, left by a process that died",
    "fsqueue.fsck.repair.Repair.log_to_its_shard": "the name of a log in a wrong shard",
    "fsqueue.fsck.journal_checks.cut_zeros": "zeros at the end of a file of records",
}
"""The functions that unlink, cut or write over files in a queue or its group, and which. No log shrinks: a checkpoint
in it says where to begin.
"""
FOLDS = {
    "fsqueue.format.replay.ReplayState.replay": "all readers of a log",
    "fsqueue.format.replay._lease": "a transition that has a method, since the fast path calls it, too",
    "fsqueue.format.replay._complete_held": "the same",
    "fsqueue.format.replay._insert": "the same",
    "fsqueue.protocol.fast_path.lease_next": "the same, called there",
    "fsqueue.protocol.fast_path.complete_in_hand": "the same",
    "fsqueue.protocol.fast_path.exchange_next": "the same",
    "fsqueue.protocol.fast_path.insert_next": "the same",
    "fsqueue.storage.logs.Log.add": "the writer of a record",
    "fsqueue.storage.logs.Log.add_all": "the same, of several completions",
    "fsqueue.protocol.leasing.Leaser._record_lease": "the same, before the record says the file's name",
    "fsqueue.protocol.single_inserts.SingleInserter.add": "the same, one that names versions",
    "fsqueue.protocol.transitions._act_in_batch": "an update in one log",
    "fsqueue.protocol.updates._Try._judge_finished": "what a finished batch says of an update",
    "fsqueue.storage.logs.Log.catch_up": "who has the log open",
    "fsqueue.storage.logs.Log.recall": "the same, from the beginning",
    "fsqueue.storage.logs._read_from": "who looks at a log",
    "fsqueue.storage.listing.read_replay_state.read": "the same",
    "fsqueue.storage.decided.seen": "the same, beside updates",
    "fsqueue.views.outcomes._replay_state": "the same",
    "fsqueue.views.stuck_locks._describe": "the same",
    "fsqueue.views.task_history.movements_of": "the same",
    "fsqueue.views.activity.Survey._add_line": "a sample of the history",
    "fsqueue.views.activity.Survey._draw": "the same",
    "fsqueue.views.attempts._Counting._add_lines": "the same",
    "fsqueue.storage.history.replay": "the history",
    "fsqueue.views.finished.FinishedBatch.__init__": "the same",
    "fsqueue.spark.views.finished_in": "the same",
    "fsqueue.spark.views._hidden": "the same",
    "fsqueue.fsck.logged_updates._told_by": "a check",
    "fsqueue.fsck.recount.known": "the same",
    "fsqueue.fsck.shard_checks.BatchLook.__init__": "the same",
    "fsqueue.fsck.shard_checks.ShardCheck._history": "the same",
    "fsqueue.fsck.unique_keys.living": "claims of a key",
    "fsqueue.protocol.keyed_inserts.Claims._read": "the same",
    "fsqueue.storage.decisions.DecisionFile.add": "a decision file",
    "fsqueue.storage.decisions.DecisionFile.catch_up": "the same",
    "fsqueue.storage.decisions.OwnDecisionFile._decide": "the same",
    "fsqueue.storage.decisions.read": "the same",
}
"""The functions that have records act upon a state, and for whom."""
READS = {"replay", "replay_pieces", "apply_all"}
"""Names of functions by which many records act, ..."""
ACTS = {"apply", "lease", "complete", "insert"}
"""... and names of methods of states (`STATES`: how these are called) by which one does."""
STATES = {"state", "states", "replay_state", "_state"}
SCANS = {
    "fsqueue.administration": 1,
    "fsqueue.fsck.findings": 1,
    "fsqueue.fsck.own_files": 2,
    "fsqueue.fsck.places": 8,
    "fsqueue.fsck.shard_checks": 1,
    "fsqueue.fsck.unique_keys": 1,
    "fsqueue.protocol.limiting": 1,
    "fsqueue.protocol.selection": 3,
    "fsqueue.protocol.single_inserts": 1,
    "fsqueue.spark.jobs.output_directory": 2,
    "fsqueue.storage.absence": 1,
    "fsqueue.storage.barrier_files": 1,
    "fsqueue.storage.commits": 3,
    "fsqueue.storage.counters": 1,
    "fsqueue.storage.decisions": 1,
    "fsqueue.storage.discovery": 1,
    "fsqueue.storage.group_directory": 2,
    "fsqueue.storage.group_slots": 1,
    "fsqueue.storage.history": 2,
    "fsqueue.storage.keys": 1,
    "fsqueue.storage.letter_files": 3,
    "fsqueue.storage.listing": 5,
    "fsqueue.storage.nested": 1,
    "fsqueue.storage.nodes": 1,
    "fsqueue.storage.number_table": 1,
    "fsqueue.storage.payloads": 5,
    "fsqueue.storage.published": 1,
    "fsqueue.storage.queue_file": 1,
    "fsqueue.storage.remains": 6,
    "fsqueue.storage.retrying": 1,
    "fsqueue.storage.slots": 1,
    "fsqueue.storage.staging": 2,
    "fsqueue.storage.unopened_queues": 2,
    "fsqueue.upkeep.collect": 5,
    "fsqueue.upkeep.key_files": 2,
    "fsqueue.upkeep.trash": 3,
    "fsqueue.views.stuck_locks": 1,
    "fsqueue.views.usage": 2,
}
"""Number of functions that list directories of a queue or its group, by module."""
DECISION = TOP / "docs/decisions/0059-one-journal.md"

ADVICE_WAYS = (
    "Do it by a function that is there, if one fits: docs/design.md, section 12, has those to read first. If you have "
    "made ways fewer or more, say so here, and in the table of docs/decisions/0059-one-journal.md."
)
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


def folding(node: ast.AST, within: str) -> Iterator[str]:
    """Yield the functions and methods that have records act upon a state."""
    for one in ast.iter_child_nodes(node):
        inner = f"{within}.{one.name}" if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else within
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute):
            on, name = ast.unparse(one.func.value).rpartition(".")[2], one.func.attr
            if name in READS or (name in ACTS and on in STATES):
                yield within
        yield from folding(one, inner)


def kept() -> list[tuple[str, ast.Module]]:
    """Return the modules above the layer of the filesystem, but for the doctor's, which touches no queue."""
    return [(name, tree) for name, tree in modules() if not name.startswith(("fsqueue.filesystem", "fsqueue.doctor"))]


def functions_with(names: set[str]) -> set[str]:
    """Return the functions that call a method of the filesystem layer of one of these names."""
    return {place for name, tree in kept() for place in calling(names, tree, name)}


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
    assert functions_with({"write", "write_all"}) == APPENDS.keys(), ADVICE_JOURNAL
    assert functions_with({"lock", "try_lock"}) == LOCKS.keys(), ADVICE_JOURNAL


def test_what_decides_and_what_shrinks_is_known() -> None:
    assert functions_with({"link", "rename"}) == DECIDES.keys(), ADVICE_WAYS
    removing = {"unlink", "remove_tree", "remove_directory", "overwrite", "overwrite_at", "cut_to"}
    assert functions_with(removing) == SHRINKS.keys(), ADVICE_WAYS


def test_what_has_records_act_is_known() -> None:
    assert {place for name, tree in kept() for place in folding(tree, name)} == FOLDS.keys(), ADVICE_WAYS


def test_what_lists_directories_is_known() -> None:
    scans = ((name, set(calling({"names", "entries", "names_but_files"}, tree, name))) for name, tree in kept())
    assert {name: len(found) for name, found in scans if found} == SCANS, ADVICE_WAYS


def test_the_page_has_the_number_of_ways() -> None:
    text = DECISION.read_text()
    table = {way: int(now) for way, now in re.findall(r"^\| \*(\w+)\*:.* \| (\d+) \|$", text, re.MULTILINE)}
    assert table == {
        "decide": len(DECIDES),
        "append": len(APPENDS),
        "lock": len(LOCKS),
        "shrink": len(SHRINKS),
        "fold": len(FOLDS),
        "scan": sum(SCANS.values()),
        "wait": sum(map(len, LOOPS.values())),
    }, ADVICE_WAYS


def test_what_appends_or_locks_is_found() -> None:
    text = (
        "class Kind:\n def f(self):\n  write = self.fs.write\n def g(self, fs): fs.lock(1)\n def h(self): log.write(1)"
    )
    assert list(calling({"write", "lock"}, ast.parse(text), "m")) == ["m.Kind.f", "m.Kind.g"]


def test_what_has_records_act_is_found() -> None:
    text = "def f(): log.replay_state.apply(record, 0)\ndef g(): update.apply()\ndef h(): history.replay(lines)"
    assert list(folding(ast.parse(text), "m")) == ["m.f", "m.h"]


def test_what_is_written_or_asked_is_found() -> None:
    text = "class Kind:\n def lease(self): commits.apply_pending(store)\n async def wait(self): 0\n def f(self): g()\n"
    text += " @overload\n def peek(self): ..."
    assert (verbs_in(ast.parse(text)), asks_in(ast.parse(text))) == (["lease", "wait"], 1)
    assert more_than({"a": 1, "b": 2}, {"a": 2, "b": 1, "c": 3}) == {"a": 1, "c": 3}
