"""mv: tasks that wait go to another queue (docs/decisions/0070-moves.md)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby, islice
from typing import cast

import click

import fsqueue
from fsqueue.format import barriers, wording
from fsqueue.protocol import parcels
from fsqueue.protocol.parcels import Destination, Parcel

from .common import NOTHING_EXIT, example, json_option, path_of, queue_at
from .conditions import Condition, all_of, where_option
from .exporting import refuse_one
from .printing import Bar, complain, hint, print_done, quoted
from .targets import is_address

UPDATE_TASKS_MAX = 100
"""How many tasks an update of a group moves at once."""
TRIES_MAX = 20
"""How often an update is tried again whose tasks have changed, each time without those."""


@click.command(
    epilog=example(
        """fsqueue mv /scratch/me/tiles /project/me/tiles
fsqueue mv Q Q2 --where 'payload.site=north'
fsqueue mv /scratch/me/crawl/fetch /scratch/me/crawl/slow --where 'attempts>2'     # within a group: also with keys"""
    )
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@where_option
@click.option("--drop-keys", is_flag=True, help="Move tasks with keys, too, without their keys.")
@json_option
def mv(source: str, target: str, conditions: tuple[Condition, ...], drop_keys: bool, as_json: bool) -> None:
    """Move waiting and delayed tasks from SRC to DST, and print how many were moved. Both may be anywhere.

    Workers go on at both. If the command is killed, repeat it: no task is lost, and none is done at both queues. Until
    then up to 1,024 tasks may be held at SRC: no worker gets them, and 'fsqueue workers SRC' shows them as leased by
    'mv to DST'. Leased tasks stay, and how many there are is said. Payloads, priorities and due times stay as they
    are; ids are new, and attempts begin anew. Finished tasks, results and dead letters stay, and so do tasks of
    barriers.

    Within a group tasks move with their keys. If DST has a task with the key already, that one stands for both.
    Elsewhere tasks with keys stay, unless --drop-keys is given: nothing at DST would tell a repeated move from a new
    task once the first one was done.

    Tasks that are held for DST since a command that was killed are moved first, whatever --where says.

    Exit code 3: none was moved.
    """
    for one in (source, target):
        if is_address(one):
            raise click.UsageError(
                f"{one} is an address, and mv takes paths. Nothing was done. 'fsqueue export' and 'fsqueue import' "
                "take addresses; 'fsqueue cancel' ends the tasks at the source."
            )
    with queue_at(source) as src, _target_at(target, src) as dst:
        refuse_one(src, dst)
        mover = Mover(src, dst, conditions, drop_keys)
        with Bar("mv", " tasks") as progress:
            mover.bar = progress
            try:
                mover.run()
            except (Exception, KeyboardInterrupt):
                progress.close()
                mover.say_how_far()
                raise
        done = {"moved": mover.moved, "leased": mover.leased, "keyed": mover.keyed, "merged": mover.merged,
                "elsewhere": mover.elsewhere, "returned": mover.returned, "held": mover.held}  # fmt: skip
        print_done(as_json, done, mover.moved)
        mover.say_what_stays()
    if not mover.moved:
        raise click.exceptions.Exit(NOTHING_EXIT)


def _target_at(path: str, src: fsqueue.Queue) -> fsqueue.Queue:
    """Return DST. QueueNotFound says what to do about tasks that are held for it."""
    try:
        return queue_at(path)
    except fsqueue.QueueNotFound as error:
        if lost := _held_for(src, os.path.abspath(path)):
            raise fsqueue.QueueNotFound(f"{error} {_about_lost(src, lost, 'was deleted')}") from error
        raise


def _held_for(src: fsqueue.Queue, path: str) -> list[Parcel]:
    """Return the parcels that are held for the queue at a path."""
    return [parcel for parcel in parcels.held(src.store) if parcel.to.path == path]


def _about_lost(src: fsqueue.Queue, lost: list[Parcel], what: str) -> str:
    """Return what to do about tasks whose destination is not there any more."""
    tasks, to = sum(len(parcel.tasks) for parcel in lost), lost[0].to
    return (
        f"{to.path} {what} while {wording.counted(tasks, 'task')} of {path_of(src)} {'was' if tasks == 1 else 'were'} "
        "on the way there, and nobody can tell whether it had them. They are held at the source. To have them done "
        f"there: fsqueue release-all {quoted(path_of(src))} --worker {quoted(to.title)}"
    )


class Mover:
    """The steps of a move; docs/decisions/0070-moves.md says what a crash between any two leaves."""

    def __init__(
        self, src: fsqueue.Queue, dst: fsqueue.Queue, conditions: tuple[Condition, ...], drop_keys: bool
    ) -> None:
        self.src, self.dst, self._where, self._drop_keys = src, dst, all_of(conditions), drop_keys
        self.bar = Bar("mv")
        self.moved = self.merged = 0
        """How many tasks were moved, and how many of them DST had by their keys."""
        self.leased = self.keyed = self.elsewhere = self.held = 0
        """How many stay: leased by workers, with keys, on their way to another queue, held by a barrier."""
        self.returned = 0
        """How many were put back, since another mover could not insert them."""
        self.has_begun = False
        """Whether anything may be held at SRC, or was moved."""
        self._total: int | None = None
        self._others: set[str] = set()
        """The paths of other queues to which tasks are on their way."""

    def run(self) -> None:
        """Move what is to be moved. Errors: what was moved by then is moved."""
        src_id = self.src.id  # QueueNotFound, before DST comes into being
        self._total = self.src.status(exact=False).remaining
        to = self._destination()
        if to.id == src_id:
            raise fsqueue.FsqueueError(
                f"{path_of(self.dst)} is a copy of {path_of(self.src)}: both have the same id, and the same tasks. "
                "Nothing was moved."
            )
        self._go_on_with(to)
        group = self._common_group()
        if group is None:
            self._by_parcels(to, self._wanted(with_keys=False))
        else:
            self._by_updates(group, to)

    def _destination(self) -> Destination:
        """Return what names DST. A queue of a group comes into being."""
        self.dst.commit("mv")
        self.dst.store.refresh(now=True)
        return Destination(self.dst.id, self.dst.generation, f"{parcels.MOVES}{path_of(self.dst)}")

    def _common_group(self) -> fsqueue.Group | None:
        """Return the group that both queues are in."""
        if not isinstance(self.src, fsqueue.GroupQueue) or not isinstance(self.dst, fsqueue.GroupQueue):
            return None
        homes = [os.path.realpath(one.group.path) for one in (self.src, self.dst)]
        return cast(fsqueue.Group, self.src.group) if homes[0] == homes[1] else None

    def _wanted(self, with_keys: bool) -> Iterator[fsqueue.TaskInfo]:
        """Yield the tasks that are to be moved, batch by batch, and count those that stay."""
        self.leased = self.keyed = self.elsewhere = self.held = 0
        for task in self.src.tasks():
            if self._where is not None and not self._where(task):
                continue
            if task.state == "leased":
                is_moved = type((task.worker or {}).get("move")) is dict
                if is_moved:
                    self._others.add(str((task.worker or {}).get("name")).removeprefix(parcels.MOVES))
                self.elsewhere += is_moved
                self.leased += not is_moved
            elif barriers.is_held(task):
                self.held += 1
            elif task.key is not None and not with_keys and not self._drop_keys:
                self.keyed += 1
            else:
                yield task

    # -- between any two queues ---------------------------------------------------------------------------------

    def _go_on_with(self, to: Destination) -> None:
        """Finish the parcels that are on their way to DST since an earlier call, or by another one."""
        lost = []
        for parcel in parcels.held(self.src.store):
            if parcel.to.id == to.id:
                if not self._deliver(parcel, parcel.to.generation != to.generation):
                    lost.append(parcel)
            elif parcel.to.title == to.title:
                lost.append(parcel)
        if lost:
            raise fsqueue.QueuePurged(_about_lost(self.src, lost, "was purged, or deleted and made anew,"))

    def _by_parcels(self, to: Destination, wanted: Iterable[fsqueue.TaskInfo]) -> None:
        host = socket.gethostname()
        for batch, some in groupby(wanted, lambda task: parcels.place(task.id)[0]):
            indices = [parcels.place(task.id)[1] for task in some]
            parcel = parcels.hold(self.src.store, batch, indices, to, host)
            if parcel is not None:
                self._deliver(parcel)

    def _deliver(self, parcel: Parcel, is_stray: bool = False) -> bool:
        """Insert a parcel at DST, once, and end it at SRC. `is_stray`: it was on the way to DST before a purge.

        Return False, with nothing done, if it is a stray, and DST does not say what became of it.
        """
        known = self.dst.commit(parcel.commit).committed()
        refused: fsqueue.FsqueueError | None = None
        if known is None:
            if is_stray:
                return False
            tasks = parcels.tasks(self.src.store, parcel)
            if tasks is None:  # another mover has ended it, or its leases were taken away
                return True
            self.has_begun = True
            commit = self.dst.commit(parcel.commit)
            try:
                part = commit.stage(tasks)
            except fsqueue.FsqueueError as error:
                refused = error
                with suppress(fsqueue.FsqueueError):  # otherwise `gc` does it
                    commit.discard()
                # Use the name up: another mover of the same parcel could otherwise still publish it.
                known = self.dst.commit(parcel.commit).publish([])
            else:
                known = commit.publish(part)
        if known.tasks:
            self.moved += parcels.end(self.src.store, parcel)
            self.bar.show(self.moved, self._total)
        else:
            parcels.give_back(self.src.store, parcel)
            self.returned += len(parcel.tasks)
            if refused is not None:
                raise refused
        return True

    # -- within a group -----------------------------------------------------------------------------------------

    def _by_updates(self, group: fsqueue.Group, to: Destination) -> None:
        wanted, large = self._wanted(with_keys=True), list[fsqueue.TaskInfo]()
        while some := [*islice(wanted, UPDATE_TASKS_MAX)]:
            large += self._update(group, some)
            self.bar.show(self.moved, self._total)
        with_keys = sum(task.key is not None for task in large) if not self._drop_keys else 0
        self.keyed += with_keys
        self._by_parcels(to, (task for task in large if task.key is None or self._drop_keys))

    def _update(self, group: fsqueue.Group, tasks: list[fsqueue.TaskInfo]) -> list[fsqueue.TaskInfo]:
        """Move tasks by one update, but those that have changed since. Return those that are too large for it."""
        left, large = tasks, list[fsqueue.TaskInfo]()
        target = cast(fsqueue.GroupQueue, self.dst).name
        for tries in range(TRIES_MAX):
            update = group.update()
            for task in left:
                due = task.available_at if task.state == "delayed" else None
                key = None if self._drop_keys else task.key
                try:
                    update.insert(target, task.payload, key=key, priority=task.priority, available_at=due)
                except fsqueue.TaskTooLarge:
                    large.append(task)
                else:
                    update.cancel(task)
            left = [task for task in left if task not in large]
            if not left:
                break
            try:
                results = update.apply()
            except fsqueue.UpdateConflict as conflict:
                gone = {one.id for one in (*conflict.missing, *conflict.changed, *conflict.owned)}
                if tries + 1 == TRIES_MAX and not gone:
                    raise
                left = [task for task in left if task.id not in gone]
                continue
            self.moved += len(left)
            self.merged += sum(isinstance(one, fsqueue.TaskRef) and not one.inserted for one in results)
            break
        return large

    # -- what is said -------------------------------------------------------------------------------------------

    def say_how_far(self) -> None:
        """Say what was moved before an error, and what to do."""
        if not self.has_begun and not self.moved:
            return
        held = 0
        with suppress(fsqueue.FsqueueError, OSError):  # the error that is raised says what is wrong
            held = sum(len(parcel.tasks) for parcel in _held_for(self.src, path_of(self.dst)))
        stay = (
            f"{wording.counted(held, 'task')} of {path_of(self.src)} {'is' if held == 1 else 'are'} held until then"
            if held
            else f"all others are at {path_of(self.src)} as before, and --where can leave out those that cannot move"
        )
        complain(f"{wording.counted(self.moved, 'task')} moved so far. To go on, repeat the command: {stay}")

    def say_what_stays(self) -> None:
        """Say of which tasks none were moved, and why."""
        if self.leased:
            hint(f"{wording.counted(self.leased, 'leased task')} stayed, which workers are at")
        if self.keyed:
            hint(
                f"{wording.counted(self.keyed, 'task')} with keys stayed: between these queues none can move with its "
                "key. --drop-keys moves them without"
            )
        if self.held:
            hint(f"{wording.counted(self.held, 'task')} of barriers stayed: 'fsqueue barrier GROUP' lists these")
        if self.returned:
            hint(
                f"{wording.counted(self.returned, 'task')} put back, which another mv could not insert: repeat the "
                "command"
            )
        if self.merged:
            hint(f"{wording.counted(self.merged, 'task')} had keys that {path_of(self.dst)} had: those there stay")
        if self.elsewhere:
            again = "; ".join(f"fsqueue mv {quoted(path_of(self.src))} {quoted(one)}" for one in sorted(self._others))
            hint(f"{wording.counted(self.elsewhere, 'task')} stayed, on the way to another queue. To go on: {again}")
