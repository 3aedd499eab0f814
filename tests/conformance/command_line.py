"""A queue whose verbs are commands: what they print as JSON becomes the library's values, and exit codes its errors.

Each command runs in this process, as in `tests/cli`. `LACKING` says which verbs no command has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import orjson
from click.testing import CliRunner, Result
from fsqueue_cli.main import cli

import fsqueue
from fsqueue import errors
from fsqueue.arguments import EVERY, leased, reason_of, task_ids
from fsqueue.client.remote_queue import QueueStandIn
from fsqueue.client.values import leased_task, made
from fsqueue.clock import Clock, Entropy
from fsqueue.format import wording

LACKING = {
    "poll_async": "a loop is a program's: `run` executes a command for each task",
    "poll": "a loop is a program's: `run` executes a command for each task",
    "lease_for": "a gateway's: it leases for several workers at once",
    "attach": "each command that takes a token attaches to its lease",
    "commit": "parts of a commit are staged by programs; `insert --commit` does all of it at once",
    "timeline": "only the page in a browser shows it",
    "peek": "`ls` lists in no order",
    "is_copy": "`status` says so to people",
    "accept_copy": "`fsck --accept-copy` checks the whole queue, too",
    "fsck": "its findings are those of `tests/fsck`, and its exit codes those of `tests/cli/test_fsck.py`",
    "results_of": "`show` tells of one task, and `results` of all",
    "result": "`show` prints it, and nothing waits for it",
    "result_columns": "`results` writes tables",
}
"""Verbs that this kind does not have, each with the reason."""

ERRORS: dict[int, type[errors.FsqueueError]] = {
    2: errors.InvalidTask,  # the code of what else is wrong with a task, and with a result or an argument
    5: errors.QueueNotFound,
    6: errors.UpdateConflict,
    7: errors.StorageFull,
    8: errors.UnsafeFilesystem,
    13: errors.TaskNotFound,
    14: errors.TaskTooLarge,
}
"""Which errors exit codes stand for."""
IS_OVER = (0, 9)
"""Exit codes of a `wait` whose queue is drained."""
OUT_OF_TIME = 124


class CommandLine:
    """A queue of a group, at a path, with those methods of `Queue` that commands have.

    A task is inserted with a key, a priority or a delay by an update of one operation, which also tells its id.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.store = QueueStandIn(str(path), Clock(), Entropy())

    # -- commands -------------------------------------------------------------------------------------------------

    def _run(self, command: str, *words: object, given: str | bytes | None = None) -> Result:
        """Run a command, which is to print JSON, and return what comes of it. Nothing may look like a traceback."""
        as_json = () if command == "lease" else ("--json",)
        typed = (*command.split(), *as_json, *map(str, words))
        found = CliRunner().invoke(cli, typed, input=given, prog_name="fsqueue")
        assert "Traceback" not in found.output, found.output
        assert "internal error" not in found.output, found.output
        return found

    def _ask(self, command: str, *words: object, given: str | bytes | None = None, sound: Sequence[int] = (0,)) -> Any:
        """Return the lines of a command on this queue, each decoded; raise the error that its exit code stands for."""
        found = self._run(command, self.path, *words, given=given)
        if found.exit_code not in sound:
            _fail(found)
        return _lines(found)

    def _one(self, command: str, *words: object, **more: Any) -> Any:
        [line] = self._ask(command, *words, **more)
        return line

    # -- inserting ------------------------------------------------------------------------------------------------

    def insert(self, payload: Any, **given: Any) -> fsqueue.TaskRef:
        task = payload if isinstance(payload, fsqueue.Task) else fsqueue.Task(payload)
        [ref] = self._update([replace(task, **given)])
        return ref

    def insert_many(
        self, payloads: Iterable[Any], *, delay_s: float = 0, commit: str | None = None, new_by: str | None = None
    ) -> int:
        """Insert payloads by `insert`; tasks that have more than those by an update."""
        tasks = list(payloads)
        if any(isinstance(task, fsqueue.Task) for task in tasks):
            return sum(ref.inserted for ref in self._update([_task(task, delay_s) for task in tasks]))
        lines = b"".join(_encoded(payload) + b"\n" for payload in tasks)
        words = [*_option("--delay", delay_s or None), *_option("--commit", commit), *_option("--new-by", new_by)]
        found = self._run("insert", self.path, *words, given=lines)
        count: int = _lines(found)[0]["inserted"] if found.stdout else 0
        if found.exit_code:
            _fail(found, new=count)
        return count

    def _update(self, tasks: Iterable[fsqueue.Task]) -> list[fsqueue.TaskRef]:
        """Insert tasks by one update."""
        lines = []
        for task in tasks:
            fields = {name: getattr(task, name) for name in ("key", "priority", "available_at")}
            known = {name: value for name, value in fields.items() if value is not None}
            known |= {"payload": task.payload, "delay_s": task.delay_s}
            lines.append(_encoded({"insert": {"queue": self.name, **known}}))
        found = self._run("update", self.path.parent, given=b"\n".join(lines))
        if found.exit_code:
            _fail(found, new=0)
        return [fsqueue.TaskRef(done["id"], done.get("inserted", True)) for done in _lines(found)[0]["done"]]

    # -- leasing --------------------------------------------------------------------------------------------------

    def lease(
        self, n: int = 1, *, lease_s: float | None = None, wait_s: float = 0, up_to: str | int | None = None,
        order: str = "priority", strict: bool = False, holder: Mapping[str, Any] | None = None,
    ) -> list[fsqueue.LeasedTask]:  # fmt: skip
        """Lease tasks. `strict` is what a command always is; of a holder it takes the name."""
        until = None if up_to is None else wording.priority_text(up_to)
        words = [*_option("--limit", n), *_option("--lease", lease_s), *_option("--wait", wait_s)]
        words += [*_option("--up-to", until), *_option("--order", order)]
        words += _option("--worker", None if holder is None else holder["name"])
        return [leased_task(self, one) for one in self._ask("lease", *words, sound=(0, 3))]  # type: ignore[arg-type]

    def lease_by_id(
        self, ids: Any, *, lease_s: float | None = None, holder: Mapping[str, Any] | None = None
    ) -> list[fsqueue.LeasedTask]:
        """Lease tasks by their ids. Of a holder a command takes the name."""
        chosen = task_ids(ids)
        if not chosen:
            return []
        words = [*(word for one in chosen for word in ("--id", one)), *_option("--lease", lease_s)]
        words += _option("--worker", None if holder is None else holder["name"])
        return [leased_task(self, one) for one in self._ask("lease", *words, sound=(0, 3, 13))]  # type: ignore[arg-type]

    def complete(self, tasks: Any, results: Mapping[str, Any] | None = None) -> None:
        self._end("complete", leased(tasks), results=results or {})

    def renew(self, tasks: Any, lease_s: float | None = None) -> None:
        self._end("renew", leased(tasks), *_option("--lease", lease_s), ends=False)

    def release(self, tasks: Any, delay_s: float = 0) -> None:
        self._end("release", leased(tasks), *_option("--delay", delay_s))

    def _complete_one(self, task: fsqueue.LeasedTask, result: Any) -> None:
        self._end("complete", [task], *([] if result is None else ["--result", _encoded(result).decode()]))

    def _fail(self, task: fsqueue.LeasedTask, error: object, delay_s: float | None) -> None:
        self._end("fail", [task], "--reason", _said(error), *_option("--delay", delay_s))

    def _bury(self, task: fsqueue.LeasedTask, reason: object) -> None:
        self._end("bury", [task], "--reason", errors.text_of(reason))

    def _end(
        self, command: str, tasks: Sequence[fsqueue.LeasedTask], *words: object, ends: bool = True,
        results: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Do something to leases, whose tokens are read from standard input; those with results as JSON."""
        if not tasks:
            return
        lines = [
            _encoded({"token": task.token, "result": results[task.id]}) if task.id in results else task.token.encode()
            for task in tasks
        ]
        found = self._run(command, self.path, *words, "-", given=b"\n".join(lines))
        if found.exit_code not in (0, 4, 13):
            _fail(found)
        said = _lines(found)[0]
        until = dict(zip(said.get("renewed", ()), said.get("lease_until", ()), strict=True))
        for task in tasks:
            task.until_ms = round(until[task.id] * 1000) if task.id in until else task.until_ms
        gone = {*said["lost"], *said.get("already", ()), *said.get("unknown", ())}
        for task in tasks:
            task.done = task.done or (ends and task.id not in gone)
        if gone and found.exit_code:
            raise errors.LeaseLost(found.stderr, [task.token for task in tasks if task.id in gone])

    # -- looking --------------------------------------------------------------------------------------------------

    def status(self, exact: bool = True) -> fsqueue.Status:
        found: fsqueue.Status = made(fsqueue.Status, self._one("status", *("--fast",) * (not exact)))
        return found

    def activity(self, window_s: float | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self._one("status", *_option("--window", window_s))["activity"]
        return found

    def usage(self) -> dict[str, fsqueue.Usage]:
        return {part: made(fsqueue.Usage, one) for part, one in self._one("status", "--usage")["usage"].items()}

    def waiting_by_priority(self) -> list[fsqueue.PriorityRange]:
        return [made(fsqueue.PriorityRange, one) for one in self._one("status", "--priorities")["priorities"]]

    def stuck(self) -> list[fsqueue.StuckLock]:
        return [made(fsqueue.StuckLock, one) for one in self._one("status")["stuck"]]

    def workers(self) -> list[fsqueue.LeaseHolder]:
        return [made(fsqueue.LeaseHolder, one) for one in self._one("workers")["workers"]]

    def failing_nodes(self) -> list[fsqueue.FailingNode]:
        return [made(fsqueue.FailingNode, one) for one in self._one("workers")["nodes"]]

    def admit_node(self, node: str) -> bool:
        return node in self._one("workers", *_option("--admit", node))["admitted"]

    def is_drained(self) -> bool:
        return self._run("wait", self.path, "--timeout", 0).exit_code in IS_OVER

    def wait(self, timeout_s: float | None = None) -> fsqueue.Status:
        words = _option("--timeout", timeout_s)
        found: fsqueue.Status = made(fsqueue.Status, self._one("wait", *words, sound=(*IS_OVER, OUT_OF_TIME)))
        return found

    def task(self, id: str) -> fsqueue.TaskInfo:
        found: fsqueue.TaskInfo = made(fsqueue.TaskInfo, self._of_queue(self._one("show", id)))
        return found

    def find_by_key(self, key: str) -> fsqueue.TaskInfo:
        found: fsqueue.TaskInfo = made(fsqueue.TaskInfo, self._of_queue(self._one("show", "--key", key)))
        return found

    def history(self, id: str) -> list[fsqueue.Movement]:
        return [made(fsqueue.Movement, one) for one in self._one("show", id)["history"]]

    def tasks(self, state: str | None = None) -> Iterator[fsqueue.TaskInfo]:
        found = self._ask("ls", *_option("--state", state))
        return (made(fsqueue.TaskInfo, self._of_queue(one)) for one in found)

    def _of_queue(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what is told of a task, with its queue's name as `TaskInfo` has it: `ls` tells the path."""
        return given | {"queue": self.name}

    def results(
        self, dead: bool = False, latest_by: str | None = None, newest: int | None = None
    ) -> Iterator[fsqueue.Result]:
        words = [*("--dead",) * dead, *_option("--latest-by", latest_by), *_option("--newest", newest)]
        return (made(fsqueue.Result, one) for one in self._ask("results", *words))

    def dead(self) -> Iterator[fsqueue.DeadLetter]:
        return (made(fsqueue.DeadLetter, one) for one in self._ask("dead list"))

    # -- for the person who looks after it --------------------------------------------------------------------------

    def cancel(self, ids: Any) -> int:
        chosen = task_ids(ids)
        return self._one("cancel", *chosen, "--yes", sound=(0, 13))["cancelled"] if chosen else 0

    def change(self, ids: Any, *, no_priority: bool = False, **given: Any) -> fsqueue.ChangeReport:
        chosen = task_ids(ids)
        if not chosen:
            return fsqueue.ChangeReport()
        urgency = given.get("priority")
        words = [*_option("--priority", None if urgency is None else wording.priority_text(urgency))]
        words += [*_option("--delay", given.get("delay_s")), *_option("--at", given.get("available_at"))]
        found = self._one("change", *chosen, *words, *("--no-priority",) * no_priority, sound=(0, 3, 13))
        return fsqueue.ChangeReport(found["changed"], found["leased"])

    def retry_dead(self, ids: Any = EVERY) -> int:
        return self._of_letters("dead retry", ids)["retried"]

    def purge_dead(self, ids: Any = EVERY) -> int:
        return self._of_letters("dead purge", ids)["purged"]

    def retry_completed(self, ids: Any = EVERY) -> fsqueue.RetryReport:
        words = () if ids is not EVERY else ("--all",)
        found: fsqueue.RetryReport = made(fsqueue.RetryReport, self._of_letters("retry", ids, "--completed", *words))
        return found

    def _of_letters(self, command: str, ids: Any, *words: object) -> dict[str, Any]:
        chosen = () if ids is EVERY else task_ids(ids)
        if ids is not EVERY and not chosen:
            return {"retried": 0, "purged": 0}
        found: dict[str, Any] = self._one(command, *chosen, *words, "--yes", sound=(0, 1, 13))
        return found

    def release_all(self, **only: str) -> int:
        words = [word for name, value in only.items() for word in _option(f"--{name.replace('_', '-')}", value)]
        released: int = self._one("release-all", *words, "--yes")["released"]
        return released

    @property
    def settings(self) -> fsqueue.Settings:
        return self._settings()

    def change_settings(self, **given: Any) -> fsqueue.Settings:
        return self._settings(*(f"{name}={_setting(name, value)}" for name, value in given.items()))

    def _settings(self, *words: str) -> fsqueue.Settings:
        found = self._one("set", *words)["settings"]
        settings: fsqueue.Settings = made(fsqueue.Settings, found | {"backoff_s": tuple(found["backoff_s"])})
        return settings

    @property
    def paused(self) -> Any:
        found = self._one("status", "--fast").get("paused")
        return None if found is None else made(fsqueue.Pause, found)

    def pause(self, reason: str | None = None) -> bool:
        changed: bool = self._one("pause", *_option("--reason", reason_of(reason)))["changed"]
        return changed

    def resume(self) -> bool:
        changed: bool = self._one("resume")["changed"]
        return changed

    def purge(self) -> None:
        self._one("purge", "--yes")

    def delete(self) -> dict[str, Any]:
        self._one("delete", "--yes", "--foreground")
        return {}

    def gc(self) -> fsqueue.GcReport:
        found: fsqueue.GcReport = made(fsqueue.GcReport, self._one("gc"))
        return found


def _fail(found: Result, new: int | None = None) -> NoReturn:
    """Raise the error that an exit code stands for. `new`: how many tasks an insert has inserted."""
    error = ERRORS.get(found.exit_code, errors.FsqueueError)(found.stderr)
    error.inserted = error.new = new
    raise error


def _task(given: Any, delay_s: float) -> fsqueue.Task:
    """Return a task of a stream, with the stream's delay if it has none of its own."""
    task = given if isinstance(given, fsqueue.Task) else fsqueue.Task(given)
    return task if task.available_at is not None or task.delay_s else replace(task, delay_s=delay_s)


def _lines(found: Result) -> list[Any]:
    return [orjson.loads(line) for line in found.stdout.splitlines()]


def _option(name: str, value: object) -> tuple[str, ...]:
    return () if value is None else (f"{name}={value}",)


def _setting(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return {"max_attempts": "none", "keep_payloads": "all"}[name] if value is None else str(value)


def _encoded(value: Any) -> bytes:
    return orjson.dumps(value)


def _said(error: object) -> str:
    return errors.said(error) if isinstance(error, BaseException) else errors.text_of(error)
