"""Every loop that waits is named here with the question that it asks: there are few of them, and no new ones.

Decision 55 says who waits. A new kind of queue is a `TaskSource` that `fsqueue.protocol.waiting.wait` looks at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import TOP, parse

SLEEPS = {"sleep", "_sleep", "wait", "wait_for", "_nap", "poll"}
"""Names of calls that wait, ..."""
PAUSES = {"gateway.pause", "self.pause"}
"""... whatever they belong to, and others. (To pause a queue is no wait.)"""
TIMES = {"wait_s"}
"""Names of arguments that make a call wait: at a gateway, say."""

LOOPS = {
    "is there a task?": {
        "fsqueue.protocol.waiting.wait": "the loop of all verbs that wait for a task",
        "fsqueue.asyncpoll.AsyncPoll._look_and_wait": "the same, which sleeps in an event loop",
        "fsqueue.worker.feeding.Feeder._wait": "a worker also asks whether all is done, who has died, what is away",
        "fsqueue.service.lessees._SharedLessee._work": "a thread of a gateway waits for requests",
        "fsqueue_cli.leases.lease": "in parts, so that a signal ends it",
    },
    "is all done?": {
        "fsqueue.poll.Backlog.wait": "the loop of `wait`, for queues and groups",
        "fsqueue.poll.result_of": "one task, of which no notification tells",
        "fsqueue.poll._as_completed": "the same of many, of one queue or several: its pauses are the same",
        "fsqueue.service.streaming._waited.waiting": "a request at a gateway, which sleeps in an event loop",
    },
    "has it changed?": {
        "fsqueue.service.streaming._events.telling": "a stream of events of a gateway",
        "fsqueue.views.stuck_locks.of_store": "a lock that one process holds: two looks",
        "fsqueue_cli.running._end_when_stopped.watch": "a line of queue.jsonl, by which a campaign ends",
        "fsqueue_cli.watching._watch": "a status on a screen",
    },
    "is what others do at this moment over?": {
        "fsqueue.client.remote_group.RemoteUpdate._carry_out": "an update meets another: the gateway waits",
        "fsqueue.client.wire.Wire._patiently": "the gateway is away",
        "fsqueue.compat.taskqueue.TaskQueue.poll": "a service that asked for patience",
        "fsqueue.filesystem.operations.Filesystem.lock": "a lock",
        "fsqueue_cli.importing.import_": "leases in a queue of another program",
        "fsqueue.fsck.shard_checks.ShardCheck._again": "a step of another process, before it is called damage",
        "fsqueue.fsck.shard_checks.ShardCheck._leave_to_maker": "a log that another process is about to lock",
        "fsqueue.protocol.leasing.Leaser._from_batch": "a lock, at the last task",
        "fsqueue.protocol.leasing.Leaser._outwait": "locks of several batches at once",
        "fsqueue.protocol.updates.Coordinator.apply": "another update",
        "fsqueue.upkeep.trash.until_finished": "another process removes the same",
        "fsqueue.worker.feeding.Feeder._feed": "the filesystem is away",
        "fsqueue_cli.successors.Filling.is_done": "many submit jobs at the same time: it spaces them out",
        "fsqueue_cli.successors.Filling.try_for": "Slurm takes no job at the moment",
        "fsqueue_cli.successors.begin_campaign": "the same",
        "fsqueue_cli.successors.is_alone": "a job that began at the same time leaves",
    },
    "is a process, or a thread, ready or over?": {
        "fsqueue.filesystem.outputs.PipeEnd.write": "the reader of a pipe",
        "fsqueue.leased_task.in_thread": "a thread",
        "fsqueue.spark.record_batches._Taker.run": "the reader of rows that were taken",
        "fsqueue.storage.listening._Closer._close": "a listener that no wait takes again",
        "fsqueue.worker.loop.Loop.run": "whatever a worker waits for",
        "fsqueue.worker.child_processes.Children.close": "a worker's children",
        "fsqueue.worker.reclaiming.reclaim": "a queue whose filesystem is away: leases of a killed worker",
        "fsqueue.worker.spawning.Process.reap": "a command",
        "fsqueue.executor.mapped_calls.MappedCalls.wait": "a call of a `map`",
        "fsqueue.executor.pending_calls.PendingCalls._step": "whatever an executor waits for",
        "fsqueue.executor.pending_calls.PendingCalls._end_worker": "the worker that an executor has started",
        "fsqueue.worker.supervision.Supervisors._answer": "a fork server",
        "fsqueue.worker.supervision.Supervisors._end_orphans": "commands of a fork server that was killed",
        "fsqueue.worker.supervision.Supervisors._has_answered_retire": "a fork server",
        "fsqueue.worker.supervision.Supervisors._has_ended": "a fork server",
        "fsqueue.worker.supervision.Supervisors.close": "fork servers",
        "fsqueue.worker.supervision.Supervisors.wait": "a command",
        "fsqueue.worker.supervisor.ForkServer.serve": "its worker, and its children",
        "fsqueue.worker.supervisor.Reaper.end_children": "children",
        "fsqueue.worker.supervisor.Supervisor._watch": "the command",
        "fsqueue.worker.supervisor.Supervisor.serve": "its worker",
        "fsqueue_cli.insert_input.Producer.end": "a command whose output is inserted",
        "fsqueue_cli.process._watch": "the process that started this one",
        "fsqueue_cli.progress.LogProgress._keep_time": "the end of the work, to print a line meanwhile",
        "fsqueue_cli.progress.Progress._keep_drawing": "the same, to draw",
        "fsqueue_cli.progress.Progress._keep_looking": "the same, to look",
        "fsqueue_cli.silent_servers.wait_while_answering": "threads that ask file servers, some of them silent",
    },
    "does this directory do what queues need?": {
        "fsqueue.doctor.contests.take_turns": "processes that lock in turn",
        "fsqueue.doctor.probes.listing.until": "a listing that shows a change",
        "fsqueue.doctor.probes.timestamps": "two stamps that differ",
        "fsqueue.doctor.rendezvous.Rendezvous._await": "another host",
        "fsqueue.doctor.rendezvous.Rendezvous.meet": "another host",
        "fsqueue.doctor.twohosts.Sights.watch": "what another host does",
    },
}
"""By the question that it asks: the loop, and for what it waits. None may be added to the first two questions."""


def waiting_loops() -> set[str]:
    """Every function of the source that waits within a loop."""
    found = set()
    for top, package in ((TOP / "fsqueue", "fsqueue"), (TOP / "cli", "fsqueue_cli")):
        for path in top.rglob("*.py"):
            module = ".".join((package, *path.relative_to(top).with_suffix("").parts))
            found |= {name for name, function in functions(parse(path), module) if waits_in_loop(function)}
    return found


def functions(node: ast.AST, within: str) -> Iterator[tuple[str, ast.AST]]:
    """Every function in a module or a class, also those in functions, by full name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{within}.{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from functions(child, name)
        else:
            yield from functions(child, within)


def waits_in_loop(node: ast.AST, in_loop: bool = False) -> bool:
    """Whether a function waits within a loop of its own, not of a function that it defines."""
    in_loop = in_loop or isinstance(node, (ast.While, ast.For, ast.AsyncFor))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if (in_loop and isinstance(child, ast.Call) and waits(child)) or waits_in_loop(child, in_loop):
            return True
    return False


def waits(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in SLEEPS or ast.unparse(call.func) in PAUSES or bool(TIMES & {one.arg for one in call.keywords})


def test_every_loop_that_waits_is_named_with_its_question() -> None:
    assert waiting_loops() == {name for loops in LOOPS.values() for name in loops}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n while True: clock.sleep(60)", {"f"}),
        ("def f():\n for _ in 'ab': time.sleep(60)", {"f"}),
        ("class C:\n async def f(self):\n  while True:\n   if x: await self._nap(1)", {"C.f"}),
        ("def f():\n def g():\n  while True: e.wait()\n g()", {"f.g"}),
        ("def f():\n while True:\n  def g(): e.wait()", set()),
        ("def f():\n while True: self._wire.ask('x', wait_s=1)", {"f"}),
        ("def f():\n while not lock(): pass\n sleep(1)", set()),
    ],
)
def test_what_waits_in_a_loop_is_found(text: str, found: set[str]) -> None:
    assert {name[2:] for name, node in functions(ast.parse(text), "m") if waits_in_loop(node)} == found
