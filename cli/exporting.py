"""export: tasks as JSON Lines, for `import`. cp: the same without a file (docs/decisions/0070-moves.md)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import fsqueue
from fsqueue.format import barriers, wording

from .common import example, json_option, match_option, moment, path_of, queues_argument
from .conditions import Condition, Item, all_of, where_option
from .printing import Bar, complain, hint, print_done, print_json
from .targets import Targets, one_queue, place_of

if TYPE_CHECKING:
    from .targets import AnyQueue

STATES = ("waiting", "delayed", "leased", "dead")
USUAL = ("waiting", "delayed")
SHOW_EVERY = 256
NAME_DIGITS = 32

states_option = click.option("--state", "states", type=click.Choice(STATES), multiple=True,
                             help="Tasks in this state. Repeatable [waiting, delayed].")  # fmt: skip


@click.command(
    epilog=example(
        """fsqueue export Q >tasks.jsonl
fsqueue export Q --where 'payload.site=north' | fsqueue import Q2 -
fsqueue export Q --state dead >dead.jsonl      # then: import Q2 dead.jsonl; dead purge Q - <dead.jsonl"""
    )
)
@queues_argument
@states_option
@where_option
@match_option
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON, an object a line.")
def export(queues: tuple[str, ...], states: tuple[str, ...], conditions: tuple[Condition, ...],
           match: str | None) -> None:  # fmt: skip
    """Print the waiting and delayed tasks of Q as JSON Lines, as 'fsqueue ls --json' does, for 'fsqueue import'.

    With and without --json, each line has the payload ("b64", in base64, if it is bytes), key, priority and
    "available_at", among what else is known. Nothing changes in Q, and workers go on: a task that one leases meanwhile
    may be among them. Leased tasks are left out, unless --state leased asks for them: a worker is at them, and they
    would be done twice. How many there are is said on standard error. The last line has "last": true, so that 'import'
    refuses an output that was cut.
    """
    targets = Targets(queues, match, True)
    asked = states or USUAL
    before: dict[str, Any] | None = None
    for target in targets:
        with target as q:
            chosen = Chosen(q, asked, conditions)
            with Bar("export", " tasks") as progress:
                for number, (task, state) in enumerate(chosen.items(), 1):
                    if before is not None:
                        print_json(before | {"last": False})
                    before = task.as_dict() | {"state": state} | target.as_dict({})
                    if number % SHOW_EVERY == 0:
                        progress.show(number, None)
            if chosen.leased and "leased" not in asked:
                hint(f"{path_of(q)}: {wording.counted(chosen.leased, 'leased task')} left out, which workers are at")
            if chosen.held:
                hint(f"{path_of(q)}: {wording.counted(chosen.held, 'task')} of barriers left out")
            if chosen.lost:
                complain(f"{path_of(q)}: {wording.counted(chosen.lost, 'dead letter')} left out: no payload is left")
    if before is not None:
        print_json(before | {"last": targets.is_sound})
    targets.end()


class Chosen:
    """The tasks of a queue that are in certain states and meet certain conditions. Each look counts anew."""

    def __init__(self, queue: AnyQueue, states: tuple[str, ...], conditions: tuple[Condition, ...]) -> None:
        self.queue, self.states, self._where = queue, states, all_of(conditions)
        self.leased = self.lost = self.held = 0
        """How many leased tasks were met; how many dead letters without a payload, and how many tasks of barriers, were
        left out.
        """

    def items(self) -> Iterator[tuple[fsqueue.TaskInfo | fsqueue.DeadLetter, str]]:
        """Yield them, each with its state."""
        self.leased = self.lost = self.held = 0
        where: Callable[[Item], bool] = self._where or (lambda item: True)
        if self.states != ("dead",):
            for task in self.queue.tasks():
                if barriers.is_held(task):
                    self.held += where(task)
                elif (task.state in self.states or task.state == "leased") and where(task):
                    self.leased += task.state == "leased"
                    if task.state in self.states:
                        yield task, task.state
        if "dead" in self.states:
            for letter in self.queue.dead():
                if not where(letter):
                    continue
                if letter.payload_lost:
                    self.lost += 1
                else:
                    yield letter, "dead"

    def read(self, keyed: bool) -> Iterator[fsqueue.Task]:
        """Yield those that have keys, or those that have none, to be inserted elsewhere."""
        for item, _ in self.items():
            if (item.key is not None) == keyed:
                due = item.available_at if isinstance(item, fsqueue.TaskInfo) and item.state == "delayed" else None
                yield fsqueue.Task(item.payload, key=item.key, priority=item.priority, available_at=due)


class Inserted(NamedTuple):
    """What `insert_set` has done. `new`: how many tasks; `known`: of an earlier call under the name, None if this is
    the first one; `is_whole`: whether that one had come to its end.
    """

    new: int
    known: fsqueue.CommitReport | None
    is_whole: bool


def insert_set(
    queue: AnyQueue, name: str, read: Callable[[bool], Iterator[fsqueue.Task]], keyed: bool, total: int | None
) -> Inserted:
    """Insert a set of tasks under a name, once: those without keys at one instant, then those with keys.

    `read(False)` yields those without keys, `read(True)` those with. `keyed`: whether there may be any of these. The
    name with '.keys' behind it is committed without tasks when all is done: from then on nothing is inserted.
    """
    known = committed(queue, name)
    mark = f"{name}.keys"
    if known is not None and (not keyed or committed(queue, mark) is not None):
        return Inserted(0, known, True)
    new = 0
    if known is None:
        plain = read(False)
        first = next(plain, None)
        if first is not None:
            new = queue.insert_many(chain([first], plain), commit=name, total=total)
        elif keyed and next(read(True), None) is not None:
            _publish_none(queue, name)
        else:
            return Inserted(0, None, True)  # the name stays free
    if keyed:
        new += queue.insert_many(read(True))
        _publish_none(queue, mark)
    return Inserted(new, known, False)


def committed(queue: AnyQueue, name: str) -> fsqueue.CommitReport | None:
    """Return what was inserted under a name; None if nothing was decided yet."""
    if isinstance(queue, fsqueue.Queue):
        return queue.commit(name).committed()
    return queue.committed(name)


def _publish_none(queue: AnyQueue, name: str) -> None:
    """Use a name up."""
    if isinstance(queue, fsqueue.Queue):
        queue.commit(name).publish([])
    else:
        queue.insert_many([], commit=name)


@click.command(
    epilog=example(
        """fsqueue cp /scratch/me/tiles /project/me/tiles
fsqueue cp Q Q2 --where 'payload.site=north'
fsqueue cp Q Q2 --commit again            # once more, under another name
fsqueue cp Q http://localhost:8750/tiles --state dead"""
    )
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@states_option
@where_option
@click.option("--commit", metavar="NAME",
              help="The name under which the tasks are inserted, once [made from SRC and the options].")  # fmt: skip
@json_option
def cp(source: str, target: str, states: tuple[str, ...], conditions: tuple[Condition, ...], commit: str | None,
       as_json: bool) -> None:  # fmt: skip
    """Copy the waiting and delayed tasks of SRC into DST, and print how many were inserted. SRC stays as it is.

    Those without keys appear in DST at one instant, or not at all, then those with keys that are free there. The
    command may be killed and repeated: what was copied is not copied again. Attempts begin anew. The same tasks are
    then in two queues; 'fsqueue mv' moves them.
    """
    with one_queue(source) as src, one_queue(target) as dst:
        refuse_one(src, dst)
        asked = states or USUAL
        name = _name_of(src, asked, conditions) if commit is None else commit
        chosen = Chosen(src, asked, conditions)
        counts = Counter[bool]()
        with Bar("cp", " tasks") as progress:

            def read(keyed: bool) -> Iterator[fsqueue.Task]:
                counts[keyed] = 0
                for task in chosen.read(keyed):
                    counts[keyed] += 1
                    if counts.total() % SHOW_EVERY == 0:
                        progress.show(counts.total(), None)
                    yield task

            found = insert_set(dst, name, read, True, None)
        done: dict[str, Any] = {"inserted": found.new, "left": counts.total() - found.new, "leased": chosen.leased,
                                "commit": name, "repeated": found.known is not None}  # fmt: skip
        print_done(as_json, done, found.new)
        if found.is_whole and found.known is not None:
            complain(
                f"{path_of(src)} was copied on {moment(found.known.at)} under the name {name}: nothing was added. To "
                "copy what is there now, give another name: --commit NAME"
            )
            return
        if counts.total() > found.new:
            hint(f"{wording.counted(counts.total() - found.new, 'task')} left out: keys that {path_of(dst)} has")
        if chosen.leased and "leased" not in asked:
            hint(f"{wording.counted(chosen.leased, 'leased task')} left out, which workers of {path_of(src)} are at")
        if chosen.held:
            hint(f"{wording.counted(chosen.held, 'task')} of barriers left out")


def refuse_one(src: AnyQueue, dst: AnyQueue) -> None:
    """Raise UsageError if two names mean one queue."""
    if place_of(src) == place_of(dst):
        raise click.UsageError(f"SRC and DST are one queue, {path_of(src)}. Nothing was done.")


def _name_of(src: AnyQueue, states: tuple[str, ...], conditions: tuple[Condition, ...]) -> str:
    """Return the name of a copy: that of the same queue, asked for the same tasks."""
    identity = f"{src.id}.{src.generation}" if isinstance(src, fsqueue.Queue) else place_of(src)
    asked = [identity, *sorted(states), *sorted(one.text for one in conditions)]
    return f"cp-{hashlib.sha256(chr(0).join(asked).encode()).hexdigest()[:NAME_DIGITS]}"
