"""Print what `run` would do with the first tasks. Nothing is leased, begun or changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import orjson

from fsqueue import QueueNotFound, TaskInfo
from fsqueue.format.wording import counted
from fsqueue.worker import Away, placeholders

from .common import path_of
from .printing import complain, print_json, say

if TYPE_CHECKING:
    from .running import Source

_FEWER = "a gateway shows 1,000 of a queue at most, and others may have leased some"
TASKS = 10
"""Number of tasks that are shown, unless --max-tasks says another."""


class DryRun:
    """Shows the command of each of the first tasks, or what `call` is called with."""

    def __init__(
        self, command: list[str], call: str | None, gives_stdin: bool, as_json: bool, tasks_each: int | None = None
    ) -> None:
        """`tasks_each`: how many tasks a command gets at most on standard input; None: one."""
        self._command, self._call, self._as_json, self._tasks_each = command, call, as_json, tasks_each
        self._has_stdin = bool(command) and (gives_stdin or not placeholders.hand_over(command))
        self._unfit = 0

    def show(self, sources: Sequence[Source], waiting: int, tasks_max: int | None, away: Sequence[Away] = ()) -> None:
        """Show the first of `waiting` tasks, and name the queues that are away.

        Exit with 1 if an attempt at one of the tasks would fail for its payload. Otherwise exit as a run that a queue
        is missing for, with 5, if any is away.
        """
        most, shown = TASKS if tasks_max is None else tasks_max, 0
        for one in away:
            complain(f"{one.path} {one.why}{'' if one.is_upstream else ': its tasks are not shown'}")
        waiting_tasks = islice(_waiting(sources, most), most)
        while self._tasks_each is not None and (together := list(islice(waiting_tasks, self._tasks_each))):
            shown += len(together)
            self._show_together(together)
        for path, task in waiting_tasks:
            shown += 1
            try:
                self._show(path, task)
            except placeholders.Unfilled as error:
                self._unfit += 1
                complain(f"an attempt at {task.id} would fail: {error}")
        if waiting > shown:
            why = "--max-tasks says how many are" if shown == most else _FEWER
            complain(f"{counted(waiting - shown, 'more task')} not shown: {why}")
        elif not shown:
            complain("no task is waiting")
        if self._unfit:
            raise click.exceptions.Exit(1)
        if away:
            raise click.exceptions.Exit(QueueNotFound.exit_code)

    def _show(self, path: str, task: TaskInfo) -> None:
        words = placeholders.fill(self._command, task.payload, task.id)
        placeholders.check_filled(words)
        argv = [word.decode(errors="backslashreplace") for word in words]
        payload = _payload_of(task)
        if self._as_json:
            print_json({"queue": path, "id": task.id, "command": argv or None, "call": self._call,
                        "stdin": self._has_stdin, **payload})  # fmt: skip
        elif not self._command:
            say(f"{self._call or ''} {_text(payload)}".strip())
        elif self._has_stdin:
            say(f"{shlex.join(argv)} <<<{shlex.quote(_text(payload))}")
        else:
            say(shlex.join(argv))

    def _show_together(self, tasks: Sequence[tuple[str, TaskInfo]]) -> None:
        """Show a command that gets several tasks, with the lines that it gets. A token is known once a task is leased.

        A task that was attempted before is shown among the others here.
        """
        argv = [word.decode(errors="backslashreplace") for word in placeholders.fill(self._command, None, "")]
        lines = [
            {"id": task.id, "attempt": task.attempt + 1, "queue": path, **_payload_of(task)} for path, task in tasks
        ]
        if self._as_json:
            print_json({"command": argv, "tasks": lines})
        else:
            for text in (f"{shlex.join(argv)} <<'END'", *(orjson.dumps(line).decode() for line in lines), "END"):
                say(text)


def _waiting(sources: Sequence[Source], most: int) -> Iterator[tuple[str, TaskInfo]]:
    """Yield up to `most` waiting tasks of each queue, the most urgent first, with the queue's path."""
    for source in sources:
        queues: Any = source.queues() if hasattr(source, "queues") else [source]
        for queue in queues:
            for task in queue.peek(most):
                yield path_of(queue), task


def _payload_of(task: TaskInfo) -> dict[str, Any]:
    """Return a payload as the field `payload`, or `b64` for bytes."""
    info = task.as_dict()
    return {name: info[name] for name in ("payload", "b64") if name in info}


def _text(payload: dict[str, Any]) -> str:
    """Return a payload as JSON; of one of bytes the object with base64 that has it."""
    return orjson.dumps(payload.get("payload", payload)).decode()
