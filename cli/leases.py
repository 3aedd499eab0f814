"""lease, complete, renew, release, fail, bury, release-all, cancel: the verbs for scripts."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

import fsqueue
from fsqueue.format import user_json, wording
from fsqueue.protocol import parcels
from fsqueue.views import outcomes

from . import process
from .common import (
    NOTHING_EXIT,
    UNKNOWN_EXIT,
    confirm,
    example,
    ids_argument,
    is_id,
    json_option,
    match_option,
    path_of,
    print_count,
    queue_argument,
    queues_argument,
    say_unknown,
    words,
    words_with_objects,
    worker_option,
    yes_option,
)
from .conditions import Condition, all_of, where_option
from .options import DURATION, PRIORITY
from .printing import complain, hint, print_done, print_json, quoted, say
from .targets import Targets, group_limits, is_address, is_rate_used_up, one_queue, state_of, unknown_in, why_lost

if TYPE_CHECKING:
    from .targets import AnyQueue

WAIT_STEP_S = (0.5, 5.0)
"""Shortest and longest wait after which an interrupted `lease --wait` notices. It grows with the time waited."""

ORDERS = ("priority", "random")
RENEWED = "renewed"
"""What is said of renewed leases."""

tokens_argument = click.argument("tokens", metavar="TOKEN...", nargs=-1, required=True)


@click.command(
    epilog=example(
        """fsqueue lease Q                        # {"token": ..., "id": ..., "payload": ...}
token=$(fsqueue lease Q --tokens) && work && fsqueue complete Q "$token"
fsqueue lease Q -n 100 --wait 1m > mine.jsonl; fsqueue complete Q - < mine.jsonl
fsqueue lease Q --up-to 5                # only tasks of priority 5 or more urgent
fsqueue lease Q --id 0193f0c2a4b97c31a2d5e8f001234567.12    # this task, to see why it fails"""
    )
)
@queue_argument
@click.option("-n", "--limit", "n", metavar="N", type=click.IntRange(min=1), default=1,
              help="Lease at most N tasks [1].")  # fmt: skip
@click.option("--lease", "lease_s", type=DURATION,
              help="How long each lease lasts, unless renewed [the queue's].")  # fmt: skip
@click.option("--wait", "wait_s", type=DURATION, default=0.0,
              help="How long to wait for tasks if there are none.")  # fmt: skip
@click.option("--up-to", "up_to", metavar="PRIORITY", type=PRIORITY,
              help="Only tasks with this priority or a smaller one: 5 is a number, '\"5\"' a text.")  # fmt: skip
@click.option("--order", type=click.Choice(ORDERS), default="priority",
              help="The most urgent tasks first, or random ones [priority].")  # fmt: skip
@click.option("--id", "ids", metavar="TASK", multiple=True,
              help="Lease this task, named by its id or key, whatever comes before it; '-' reads them from standard "
              "input. Repeatable.")  # fmt: skip
@worker_option
@click.option("--tokens/--json", "tokens_only", help="Print tokens only / JSON, an object a line (default).")
def lease(
    queue: str, n: int, lease_s: float | None, wait_s: float, up_to: str | int | None,
    order: Literal["priority", "random"], ids: tuple[str, ...], worker: str | None, tokens_only: bool,
) -> None:  # fmt: skip
    """Lease up to N tasks of Q and print each on a line. Exit code 3: nothing to do, no task is available.

    The most urgent tasks come first, then those without a priority, about in the order of insertion.
    Give the tokens to complete, renew, release, fail or bury. If a line cannot be written, its task is put back.

    With --id, the named tasks are leased as far as they are available: not one that another worker holds, that waits
    for its time, or that has ended. The command says of each that was not leased why. Exit code 3: none was leased; 13:
    none was, and there is no such task.
    """
    if ids:
        _refuse_beside_ids()
    if "stdout" in process.closed:
        raise click.ClickException(
            "Standard output is closed, so no program could read the tokens. Nothing was leased."
        )
    chosen = list(dict.fromkeys(words(ids)))
    with one_queue(queue, worker) as q, noted_signals() as noted:
        if isinstance(q, fsqueue.GroupQueue):
            q.lease_for_others()  # it may not be there yet
        elif isinstance(q, fsqueue.Queue):
            q.store.lease_for_others()
        deadline, step_s = time.monotonic() + wait_s, WAIT_STEP_S[0]
        while not ids:
            left_s = max(0.0, deadline - time.monotonic())
            strict = order == "priority" and q.has_priorities  # who leases once would know of two shards only
            wait_step_s = min(left_s, step_s)
            tasks = q.lease(n, lease_s=lease_s, wait_s=wait_step_s, up_to=up_to, order=order, strict=strict)
            if tasks or noted or left_s <= step_s:
                break
            step_s = min(step_s * 1.5, WAIT_STEP_S[1])
        if ids:
            chosen, no_keys = _ids_of(q, chosen)
            tasks = q.lease_by_id(chosen, lease_s=lease_s)
        if noted:
            _put_back(q, tasks)
            raise click.exceptions.Exit(128 + noted[0])
        if ids:
            _say_left_out(q, chosen, no_keys, tasks)
        elif not tasks:
            complain(_why_nothing(q))
            raise click.exceptions.Exit(NOTHING_EXIT)
        for position, task in enumerate(tasks):
            try:
                if tokens_only:
                    say(task.token)
                else:
                    print_json(_as_dict(task))
            except OSError:
                _put_back(q, tasks[position:])
                raise


NOTHING_AVAILABLE = "nothing is available"


def _why_nothing(q: AnyQueue) -> str:
    """Return why no task was leased."""
    pause, settings = q.paused, q.settings
    if pause is not None:
        return f"{q.path} is paused {pause}"
    most, rate, of_group = settings.max_leased, settings.rate, group_limits(q)
    if most is None and rate is None and not settings.limit and not of_group:
        return NOTHING_AVAILABLE
    status = q.status()
    if most is not None and status.leased >= most:
        return f"{q.path} allows no more leased tasks at a time (max_leased={most}). Try again later."
    if rate is not None and status.waiting and is_rate_used_up(q) is not False:
        return f"it is not time for the next task of {q.path} (rate={rate}). Try again later."
    fields = " ".join(f"limit.{name}={number}" for name, number in settings.limit.items())
    if fields and status.waiting and status.leased:
        return f"the values of all tasks of {q.path} that wait are full, or other workers were faster ({fields})"
    if of_group and status.waiting:
        return f"tasks of {q.path} wait, perhaps for a place ({of_group}). Try again later."
    return NOTHING_AVAILABLE


def _refuse_beside_ids() -> None:
    """Raise UsageError for options of `lease` that choose tasks, or wait for one, where tasks are named."""
    ctx = click.get_current_context()
    for name, option in (("n", "--limit"), ("wait_s", "--wait"), ("up_to", "--up-to"), ("order", "--order")):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--id names the tasks, and {option} chooses others. Leave one out.")


def _ids_of(q: AnyQueue, named: list[str]) -> tuple[list[str], list[str]]:
    """Return the ids of tasks that are named by their ids or keys, and the keys that no unfinished task has."""
    ids: dict[str, None] = {}
    no_keys: list[str] = []
    for one in named:
        if is_id(one):
            ids[one] = None
            continue
        try:
            ids[q.find_by_key(one).id] = None
        except fsqueue.TaskNotFound:
            no_keys.append(one)
    return [*ids], no_keys


def _say_left_out(q: AnyQueue, ids: list[str], no_keys: list[str], tasks: list[fsqueue.LeasedTask]) -> None:
    """Say why named tasks were not leased. Exit with NOTHING_EXIT if none was, or UNKNOWN_EXIT if some are unknown."""
    if not ids and not no_keys:
        complain("standard input names no task")
    for key in no_keys:
        complain(f"no unfinished task has the key {key!r}")
    left_out = [one for one in ids if one not in {task.id for task in tasks}]
    states = {one: state_of(q, one) for one in left_out}
    held_up = _why_nothing(q) if "waiting" in states.values() else NOTHING_AVAILABLE
    unknown = [one for one in left_out if states[one] is None]
    say_unknown(unknown)
    for one in left_out:
        if states[one] is not None:
            is_held_up = states[one] == "waiting" and held_up != NOTHING_AVAILABLE
            why = held_up if is_held_up else _NOT_LEASED.get(states[one] or "", "it has ended")
            complain(f"{one} ({states[one]}) is not leased: {why}")
    if not tasks:
        raise click.exceptions.Exit(UNKNOWN_EXIT if unknown or no_keys else NOTHING_EXIT)


_NOT_LEASED = {
    "waiting": "another process had its batch locked, or it must be leased alone. Try again, with this --id alone",
    "delayed": "it waits for its time. 'fsqueue show' tells it",
    "leased": "a worker holds it. 'fsqueue workers' tells which",
    "dead": "it was given up. To try it again: fsqueue dead retry",
}
"""Why a named task is not leased, by its state."""


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of being stopped in the middle of a verb."""
    noted: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: noted.append(number)) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _put_back(q: AnyQueue, tasks: list[fsqueue.LeasedTask]) -> None:
    if tasks:
        q.release(tasks)


def _as_dict(task: fsqueue.LeasedTask) -> dict[str, Any]:
    """Return what a program needs of a task. A payload of bytes is in `b64`, as in `TaskInfo.as_dict`."""
    info = fsqueue.TaskInfo(task.id, "leased", task.payload).as_dict()
    payload = {name: info[name] for name in ("payload", "b64") if name in info}
    rest = {name: getattr(task, name) for name in ("key", "priority", "attempt", "version", "lease_until")}
    known = {name: value for name, value in rest.items() if value is not None}
    return {"token": task.token, "id": task.id} | payload | known


def _task_of(token: str) -> str:
    """Return the id of the task that a token names."""
    return token.partition("@")[0]


class Ending:
    """Do one verb to the tasks of many tokens: to all that still hold. Name the others.

    Exit code 4 if leases were lost, 13 if all the others are tasks that the queue does not know. `completes`: the verb
    completes. A task that was completed before, by the same token, is then as it should be: it is named, and no loss.
    So a script may type `complete` again if it does not know whether that was done.
    """

    def __init__(self, queue: str, tokens: tuple[str, ...], verb: str, as_json: bool, completes: bool = False) -> None:
        given = list(words_with_objects(tokens))
        self._queue, self._tokens = queue, [token for token, _ in given]
        self.results = {token: line["result"] for token, line in given if line.get("result") is not None}
        """The result of each task whose line on standard input has one, by its token."""
        self._verb, self._as_json, self._completes = verb, as_json, completes
        self.lost: dict[str, str] = {}
        self.already: dict[str, str] = {}
        self.unknown: list[str] = []
        self.done: list[fsqueue.LeasedTask] = []

    def end_at_once(self, act: Callable[[AnyQueue, list[fsqueue.LeasedTask]], object]) -> None:
        """Call `act` on all at once."""
        self._do(act, max(1, len(self._tokens)))

    def end_singly(self, act: Callable[[fsqueue.LeasedTask], object]) -> None:
        """Call `act` on one after the other."""
        self._do(lambda q, tasks: act(tasks[0]), 1)

    def _do(self, act: Callable[[AnyQueue, list[fsqueue.LeasedTask]], object], at_once: int) -> None:
        with one_queue(self._queue) as q:
            tasks = self._attach(q)
            for first in range(0, len(tasks), at_once):
                some = tasks[first : first + at_once]
                try:
                    act(q, some)
                except fsqueue.LeaseLost as error:
                    self._lose(q, [task for task in some if task.token in error.tokens], error)
            gone = self.lost.keys() | self.already.keys()
            self.done = [task for task in tasks if task.token not in gone]
        self._report()

    def _lose(self, q: AnyQueue, tasks: list[fsqueue.LeasedTask], error: fsqueue.LeaseLost) -> None:
        """Note leases that were lost since they were looked at: perhaps to the same command, typed twice at once."""
        found: dict[str, outcomes.Loss | None] = {}
        with suppress(fsqueue.FsqueueError):  # this only chooses the words
            found = why_lost(q, [task.token for task in tasks])
        for task in tasks:
            self._note(task.token, found.get(task.token) or outcomes.Loss(str(error)))

    def _note(self, token: str, loss: outcomes.Loss) -> None:
        if not loss.is_completed:
            self.lost[token] = loss.why
        elif self._completes:
            self.already[token] = loss.why
        else:
            task = _task_of(token)
            already = f"You have completed {task} already, with this lease."
            self.lost[token] = f"{already} That counts; it is not {self._verb}."

    def _attach(self, q: AnyQueue) -> list[fsqueue.LeasedTask]:
        """Return the leased tasks whose tokens hold a lease. A malformed token raises, before anything is done."""
        tasks, absent = {}, []
        for token in self._tokens:
            try:
                tasks[token] = q.attach(token)
            except fsqueue.LeaseLost as error:
                self._note(token, outcomes.loss_of(error))
            except fsqueue.TaskNotFound:
                absent.append(token)
        for token, loss in why_lost(q, absent).items() if absent else ():
            if loss is None:
                self.unknown.append(_task_of(token))
            else:
                self._note(token, loss)
        return list(tasks.values())

    def _report(self) -> None:
        more: dict[str, Any] = {"already": list(map(_task_of, self.already))} if self.already else {}
        more |= {"unknown": self.unknown} if self.unknown else {}
        more |= {"lost_tokens": list(self.lost)} if self.lost else {}
        if self._verb == RENEWED:
            more["lease_until"] = [task.lease_until for task in self.done]
        lost = list(map(_task_of, self.lost))
        print_done(self._as_json, {self._verb: [task.id for task in self.done], "lost": lost, **more})
        for token, why in (self.already | self.lost).items():
            complain(f"{_task_of(token)}: {why}")
        say_unknown(self.unknown)
        if self.lost:
            raise click.exceptions.Exit(4)
        if self.unknown:
            raise click.exceptions.Exit(UNKNOWN_EXIT)


@click.command(
    epilog=example(
        """fsqueue complete Q "$token"
fsqueue complete Q "$token" --result '{"mean": 0.5}'
jq -c '{token, result: .payload.n}' mine.jsonl | fsqueue complete Q -      # each task has a result of its own"""
    )
)
@queue_argument
@tokens_argument
@click.option("--result", metavar="JSON", help="A small result, kept in the history.")
@json_option
def complete(queue: str, tokens: tuple[str, ...], result: str | None, as_json: bool) -> None:
    """Complete the tasks of the TOKENs ('-': read them from standard input).

    Exit code 4: a lease was lost, discard that result. The others are completed all the same. To complete a task
    again with the same TOKEN is no error: the command says so, and keeps the first result.

    --result is that of each task. For results that differ, give lines of JSON on standard input, each with "token" and
    "result".
    """
    value = None
    if result is not None:
        try:
            value = user_json.decode_with_constants(result)
        except user_json.NotExact as error:
            raise click.UsageError(f"--result {error}.") from None
    ending = Ending(queue, tokens, "completed", as_json, completes=True)
    if value is not None and ending.results:
        raise click.UsageError(
            "A result is given by --result, and others on standard input. Nothing was done. Give all on standard input."
        )
    ending.end_at_once(
        lambda q, tasks: q.complete(tasks, {task.id: ending.results.get(task.token, value) for task in tasks})
    )


@click.command(epilog=example('fsqueue renew Q "$token" --lease 1h'))
@queue_argument
@tokens_argument
@click.option("--lease", "lease_s", type=DURATION, help="How long from now [the queue's].")
@json_option
def renew(queue: str, tokens: tuple[str, ...], lease_s: float | None, as_json: bool) -> None:
    """Extend the leases of the TOKENs ('-': read them from standard input). Exit code 4: a lease was lost.

    --json prints until when each of the renewed leases lasts, in Unix seconds: "lease_until".
    """
    Ending(queue, tokens, RENEWED, as_json).end_at_once(lambda q, tasks: q.renew(tasks, lease_s=lease_s))


@click.command(epilog=example('fsqueue release Q "$token" --delay 1m'))
@queue_argument
@tokens_argument
@click.option("--delay", "delay_s", type=DURATION, default=0.0, help="How long until they are available again.")
@json_option
def release(queue: str, tokens: tuple[str, ...], delay_s: float, as_json: bool) -> None:
    """Put the tasks of the TOKENs back ('-': read them from standard input). It does not count as an attempt."""
    Ending(queue, tokens, "released", as_json).end_at_once(lambda q, tasks: q.release(tasks, delay_s))


@click.command(epilog=example('fsqueue fail Q "$token" --reason "no such image"'))
@queue_argument
@tokens_argument
@click.option("--reason", "error", required=True,
              help="What went wrong; kept, also if the task becomes a dead letter.")  # fmt: skip
@click.option("--delay", "delay_s", type=DURATION, help="How long until the next attempt [the queue's backoff].")
@json_option
def fail(queue: str, tokens: tuple[str, ...], error: str, delay_s: float | None, as_json: bool) -> None:
    """Report a failed attempt at the tasks of the TOKENs ('-': read them from standard input).

    They are tried again while attempts are left, then they become dead letters.
    """
    Ending(queue, tokens, "failed", as_json).end_singly(lambda task: task.fail(error, delay_s))


@click.command(epilog=example('fsqueue bury Q "$token" --reason "the input is corrupt"'))
@queue_argument
@tokens_argument
@click.option("--reason", required=True, help="Why there is no point in trying again.")
@json_option
def bury(queue: str, tokens: tuple[str, ...], reason: str, as_json: bool) -> None:
    """Make the tasks of the TOKENs ('-': read them from standard input) dead letters at once.

    'fsqueue dead retry' brings them back.
    """
    Ending(queue, tokens, "buried", as_json).end_singly(lambda task: task.bury(reason))


@click.command(
    epilog=example(
        """fsqueue release-all Q --host node17 --yes
fsqueue release-all /scratch/me/crawl --match '.*#fetch' --yes       # queues of a group
fsqueue release-all Q --job 4711 --yes            # of an array, all of it; 4711_3 is one element (PBS, LSF: 4711[3])"""
    )
)
@queues_argument
@match_option
@click.option("--worker", metavar="NAME", help="Only leases of workers with this name.")
@click.option("--host", help="Only leases of workers on this host, or Slurm node.")
@click.option("--job", metavar="JOB", help="Only leases of this job of a batch scheduler, or element of an array.")
@click.option("--offline", is_flag=True, help="In bulk, when certainly no worker is running.")
@yes_option
@json_option
def release_all(
    queues: tuple[str, ...], match: str | None, worker: str | None, host: str | None, job: str | None,
    offline: bool, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Take leases away, so that their tasks are available at once: all of Q, or those of a worker, host or job.

    Q may be a group: then of all its queues. A worker that is still at such a task loses its lease, and the task runs
    again. No attempt is charged. On a terminal, the command asks first.

    Tasks that 'fsqueue mv' holds stay: DST may have them. Repeat that mv. If DST is gone for good, --worker 'mv to DST'
    gives them back.
    """
    if worker is not None and worker.startswith(parcels.MOVES) and "://" not in worker:
        worker = parcels.MOVES + os.path.abspath(worker.removeprefix(parcels.MOVES))
    given = {"worker": worker, "host": host, "job": job}
    only = {name: value for name, value in given.items() if value is not None}
    chosen = [f"{name} {value}" for name, value in only.items()]
    targets = Targets(queues, match, as_json)
    if offline and (remote := [one for one in queues if is_address(one)]):
        raise click.UsageError(f"--offline writes the queue's files, and {remote[0]} is an address. Nothing was done.")
    whose = f"of {', '.join(chosen)} " if chosen else ""
    targets.confirm_at_terminal(
        f"Take all leases {whose}on tasks of {targets.described} away{', offline' if offline else ''}?", yes
    )
    for target in targets:
        with target as q:
            ends: Callable[..., int] = partial(q.release_all, offline=True) if offline else q.release_all  # type: ignore[call-arg]
            target.print_count("released", ends(**only))
            if worker is None and isinstance(q, fsqueue.Queue):
                _say_what_moves(q)
    targets.end()


def _say_what_moves(q: fsqueue.Queue) -> None:
    """Say how to go on with tasks that a move holds."""
    held = Counter[str]()
    with suppress(fsqueue.QueueNotFound):  # of a group, before its first task
        for parcel in parcels.held(q.store):
            held[parcel.to.path] += len(parcel.tasks)
    for path, tasks in sorted(held.items()):
        hint(
            f"{wording.counted(tasks, 'task')} left alone, on the way to {path}. To go on: fsqueue mv "
            f"{quoted(path_of(q))} {quoted(path)}"
        )


@click.command(
    epilog=example(
        """fsqueue cancel Q 0193f0c2a4b97c31a2d5e8f001234567.12 --yes
fsqueue cancel Q --where 'payload.seed>100'"""
    )
)
@queue_argument
@ids_argument
@where_option
@yes_option
@json_option
def cancel(queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], yes: bool, as_json: bool) -> None:
    """Cancel waiting tasks of Q and print how many were: the TASKs, or those that meet the conditions.

    With both, those of the TASKs that meet the conditions. '-' reads TASKs from standard input. Leased and finished
    ones stay as they are. Exit code 13: there is no such task.
    """
    if not ids and not conditions:
        raise click.UsageError("Say which tasks: TASKs or --where. 'fsqueue purge Q' drops all.")
    with one_queue(queue) as q:
        chosen = list(dict.fromkeys(words(ids)))
        unknown = unknown_in(q, chosen)  # before: without a history no trace is left
        where = all_of(conditions)
        if where is not None:
            met = [task.id for task in q.tasks() if task.state != "leased" and where(task)]
            chosen = [*filter(set(met).__contains__, chosen)] if ids else met
        confirm(f"Cancel {wording.counted(len(chosen), 'task')} of {path_of(q)}?", yes or not chosen)
        count = q.cancel(chosen)
    print_count("cancelled", count, as_json, unknown)
