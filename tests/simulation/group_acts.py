"""Groups in stories: queues that come into being at their first insert, lessees of all of them, and the judgement.

The two queues of a story, `q` and `r`, are queues of one group then. Neither is there when the story begins, unless
tasks are; by lot, not even the group is. So inserters meet while they make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import orjson

from fsqueue import Group, GroupNotFound, GroupQueue, LeasedTask
from fsqueue.format import groups, names
from fsqueue.format.layout import Settings, at_birth
from fsqueue.groups.drain_check import GroupDrainCheck
from fsqueue.groups.queue_selection import Selected
from tests.simulation import invariants, relays
from tests.simulation.books import END
from tests.simulation.disk import Directory, File
from tests.simulation.faults import GROUP, LONG_S
from tests.simulation.history import DONE, Actor, Call, History
from tests.simulation.wiring import Persona, acting

if TYPE_CHECKING:
    from fsqueue import Queue
    from tests.simulation.stories import Story

GROUP_ID = "00112233aabbccdd"
ANY = ".*"
NEW_S = 8.0
"""Within this time a lessee of a group finds a queue that has come into being (docs/groups.md)."""


class GroupActor(Actor):
    """A process that uses queues of a group: by their names, or all of them.

    It makes the group if there is none, unless that was moved away.
    """

    def __init__(self, history: History, persona: Persona, path: str, settings: Settings) -> None:
        super().__init__(history, persona, path)
        self._settings = settings

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            with acting(self.persona):
                group = self._opened() or self._created()
                self._queue = group[self.path.rpartition("/")[2]]
        return self._queue

    def _opened(self) -> Group | None:
        """The group; None if there is none. What is there for long is found, and while it is away nobody makes one."""
        disk, directory = self.world.disk, self.world.disk.root.entries.get(GROUP.removeprefix("/"))
        is_there = isinstance(directory, Directory) and groups.GROUP_FILE in directory.entries
        moves = len(disk.moved)
        try:
            return Group(GROUP)
        except GroupNotFound as error:
            if is_there and moves == len(disk.moved):
                self.history.wrong.append(f"{self.name} is told that there is no group: {error}")
            if moves and directory is None:
                raise
            return None

    def _created(self) -> Group:
        disk = self.world.disk
        begin = disk.step
        try:
            return Group.create(GROUP, exist_ok=True, **at_birth(self._settings))
        finally:
            disk.creations.append((begin, disk.step))

    def another(self, history: History, path: str) -> Actor:
        return GroupActor(history, self.persona, path, self._settings)


def group_of(queue: Queue) -> Group:
    """The group of a queue."""
    assert isinstance(queue, GroupQueue)
    assert isinstance(queue.group, Group)
    return queue.group


def make(story: Story) -> None:
    """Before a story: by lot nothing, the directory alone, or the group."""
    disk, luck = story.world.disk, story.rng.randrange(3)
    if luck:
        directory = disk.new_directory(disk.root, GROUP.removeprefix("/"))
    if luck == 2:
        file = disk.new_file(directory, groups.GROUP_FILE)
        file.data += groups.birth_record(story.settings, GROUP_ID, int(story.world.now * 1000))
        disk.written(file)


# -- acts ----------------------------------------------------------------------------------------------------


def _lease(story: Story, actor: Actor, n: int, wait_s: float = 0) -> list[LeasedTask]:
    """Lease from all queues of the group, by a fresh lessee; [] must be true of either."""
    got = actor.do("lease", lambda q: group_of(q).matching(ANY).lease(n, wait_s=wait_s), n=n) or []
    _saw(story, actor, got)
    if not got and actor.last.outcome == DONE and not _has_just_ended(story, actor.last):
        for view in (story, story.beside()):
            story.history.wrong += invariants.false_empty(view, actor.last, actor.persona.process)
    return got


def _saw(story: Story, actor: Actor, got: list[LeasedTask]) -> None:
    queues = relays.both(story, actor)
    for task in got:
        queues[relays.place_of(task)].history.saw(task.payload, task.id)


def _has_just_ended(story: Story, call: Call) -> bool:
    """Whether a queue was deleted or purged in a call, or just before: another one may have come into being since.

    Or was ever moved: a lessee may have found it away, and asks again later.
    """
    disk = story.world.disk
    return bool(disk.away) or any(
        step >= call.begin or disk.ended_at[step] > call.began - NEW_S for step, _ in disk.ends
    )


def relay_any(story: Story, actor: Actor) -> None:
    """Lease from the group, and hand tasks on to the other queue, which comes into being by that perhaps."""
    for task in _lease(story, actor, story.rng.choice((1, 1, 2)), story.rng.choice((0, 0, 3.0, 20.0))):
        relays.hand_on(story, actor, task, likely=0.6)


def consume_any(story: Story, actor: Actor) -> None:
    """Lease from the group, and complete."""
    for task in _lease(story, actor, story.rng.choice((1, 2, 4))):
        relays.hand_on(story, actor, task, likely=0.0)


def poll_any(story: Story, actor: Actor) -> None:
    """Work on the whole group until it is drained, and hand tasks on."""
    rng = story.rng
    loop = actor.do("poll", lambda q: group_of(q).matching(ANY).poll(prefetch=rng.choice((1, 1, 3))))
    if loop is None:
        return
    try:
        for _ in range(rng.randint(1, 5)):
            task = actor.do("next", lambda q: next(loop, None))
            if task is None:
                if actor.last.outcome == DONE:
                    story.history.wrong += relays.false_drained(story, actor.last)
                break
            _saw(story, actor, [task])
            relays.hand_on(story, actor, task, likely=0.5)
        actor.do("leave", lambda q: loop.close())
    finally:
        loop._ahead.tasks.clear()
        loop._ahead.open = False


def drained_any(story: Story, actor: Actor) -> None:
    """Ask whether the whole group is drained."""
    for _ in range(story.rng.randint(1, 3)):
        if actor.do("drained", lambda q: group_of(q).matching(ANY).is_drained()):
            story.history.wrong += relays.false_drained(story, actor.last)


def hop_any(story: Story, actor: Actor) -> None:
    """Let a task hop: insert the next one into the other queue, which is made for it, then delete this one."""
    queues, at = relays.both(story, actor), story.rng.randrange(2)
    for _ in range(story.rng.randint(5, 20)):
        at = 1 - at
        relays.insert(story, queues[at])
        queues[1 - at].plain("delete")


def drained_unluckily_any(story: Story, actor: Actor) -> None:
    """Ask whether the whole group is drained. Each look comes when nothing is in the queue that it looks at."""
    for _ in range(story.rng.randint(1, 3)):
        if actor.do("drained", lambda q: _UnluckyCheck([group_of(q).matching(ANY)])()):
            story.history.wrong += relays.false_drained(story, actor.last)


class _UnluckyCheck(GroupDrainCheck):
    """A check that comes to each queue at a moment at which nothing is in it, if there is one soon."""

    def _ask_member(self, source: Selected, directory: names.QueueDirectory) -> bytes | None:
        for _ in range(40):
            found = super()._ask_member(source, directory)
            if found is not None:
                break
            self._clock.sleep(0.01)
        return found


def wait_any(story: Story, actor: Actor) -> None:
    """Wait until the whole group is drained, or some time is over."""
    timeout_s = story.rng.choice((0.5, 10.0, 60.0))
    found = actor.do("wait", lambda q: group_of(q).matching(ANY).wait(timeout_s), timeout_s=timeout_s)
    if found is not None and actor.last.ended - actor.last.began < timeout_s:
        story.history.wrong += relays.false_drained(story, actor.last)


def look_around(story: Story, actor: Actor) -> None:
    """List the queues, or ask for the status of all: none is told of that is not the group's."""
    if story.rng.random() < 0.5:
        found = actor.do("queues", lambda q: [one.name for one in group_of(q).queues(tasks_min=0)])
    else:
        status = actor.do("status_of_all", lambda q: group_of(q).status())
        found = list(status.queues) if status is not None else None
    if found is not None and not {"q", "r"}.issuperset(found):
        story.history.wrong.append(f"{actor.last}: it tells of queues that are none")


def delete_any(story: Story, actor: Actor) -> None:
    """Delete one of the queues. What comes later makes it anew."""
    story.rng.choice(relays.both(story, actor)).plain("delete")


def purge_any(story: Story, actor: Actor) -> None:
    """Purge one of the queues, or both, one after the other."""
    queues = relays.both(story, actor)
    for one in story.rng.sample(queues, story.rng.choice((1, 2))):
        one.plain("purge")


def end_any(story: Story, actor: Actor) -> None:
    """Purge or delete one of the queues, or both, one after the other."""
    queues = relays.both(story, actor)
    for one in story.rng.sample(queues, story.rng.choice((1, 2))):
        one.plain(story.rng.choice(("purge", "delete")))


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    act.__name__: act
    for act in (
        relay_any,
        consume_any,
        poll_any,
        drained_any,
        drained_unluckily_any,
        wait_any,
        hop_any,
        look_around,
        delete_any,
        purge_any,
        end_any,
    )
}


# -- the judgement -------------------------------------------------------------------------------------------


def at_rest(story: Story) -> Iterator[str]:
    """When nothing goes wrong any more, one lessee of the group empties all queues, and finds them drained."""
    story.purpose(END)
    story.world.now += LONG_S + 2 * story.skew_s
    actor = story.actor("all", story.hosts[0])
    for _ in range(200):
        got = _lease(story, actor, 1)
        if got:
            relays.hand_on(story, actor, got[0], likely=0.0)
        elif actor.do("drained", lambda q: group_of(q).matching(ANY).is_drained()):
            yield from relays.false_drained(story, actor.last)
            break
        else:
            actor.work(5.0)
            if "retry_dead" in story.scenario.actions:  # joins may wait for what was given up
                actor.plain("retry_dead")
    else:
        yield "the group does not drain"
    for one in relays.both(story, actor):
        story._refusals(one, story.history.wrong)
    actor.exit()


def judge(story: Story) -> Iterator[str]:
    """What was reported inserted is in a queue of the group; each queue in its place is the group's; no other is there.

    A directory without a queue may be left, as design.md says in 4.21, and what a deletion has moved away.
    """
    yield from _made_anew(story)
    ended = max((step for step, _ in story.world.disk.ends), default=-1)
    is_inserted = any(
        call.verb == "insert" and call.outcome == DONE and call.begin > ended
        for history in (story.history, story.history_beside)
        for call in history.calls
    )
    directory = invariants.directory(story, GROUP)
    file = directory.entries.get(groups.GROUP_FILE) if directory is not None else None
    if not isinstance(file, File) or directory is None:
        if is_inserted:
            yield "tasks were reported inserted, and there is no group"
        return
    [birth, *more] = [orjson.loads(line) for line in bytes(file.data).split(b"\n")[:-1]]
    if more or birth["settings"] != orjson.loads(orjson.dumps(at_birth(story.settings))):
        yield f"the group was not made as it was asked for: {birth}, {more}"
    for name, node in directory.entries.items():
        if name.startswith("."):
            is_known = (
                name in (groups.GROUP_FILE, ".bells", ".updates", ".barriers")
                or name.startswith(names.fresh(""))
                or names.parse_deleted(name)
            )
            if not is_known and not name.startswith(".nfs"):
                yield f"{name} lies in the group"
        elif name not in ("q", "r") or not isinstance(node, Directory):
            yield f"{name} lies in the group, and is no queue of it"
        elif isinstance(made := node.entries.get("queue.jsonl"), File):
            lines = list(invariants.records(made))
            if [line["id"] for line in lines if line["op"] == "group"] != [birth["id"]]:
                yield f"the queue {name} is not the group's: {lines}"


def _made_anew(story: Story) -> Iterator[str]:
    """A group is made in place of one that was moved only by `Group.create`, which had begun before.

    All else must leave the place free, for the group that is moved back.
    """
    disk = story.world.disk
    for step in disk.remade:
        if not any(begin <= step <= end for begin, end in disk.creations):
            yield f"at {step} a group was made in place of one that was moved, and nobody was creating it"
