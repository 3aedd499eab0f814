"""Forks in user code: in a stream of payloads that a verb reads, and in the body of a loop over `poll`.

In a stream there is one thread for both, which goes on as the child, and comes back into the verb. The parent is
stopped until the story ends, with all open that it had. So the child must leave what its parent has staged, publish
nothing of it, and give none of its locks away.

In a loop both go on, each in a thread of its own. What the child is made of are new objects, which have what the parent
had that is registered with `forks`: its descriptors, its open logs, its random digits, and what its loop has leased
ahead. The child lets go of these as its first act, while its parent goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fsqueue import ForkedChild, Queue, forks
from fsqueue.filesystem import resources
from fsqueue.poll import Poll
from fsqueue.storage.logs import Log
from tests.simulation import invariants
from tests.simulation.disk import File
from tests.simulation.handles import Opened
from tests.simulation.history import Actor
from tests.simulation.kernel import Process
from tests.simulation.wiring import Persona, take_stage
from tests.simulation.world import SimClock, SimEntropy

if TYPE_CHECKING:
    from tests.simulation.stories import Story

NAME = "forked"
"""Of the commit that nobody publishes."""


class _OfTheChild(Exception):
    """What the stream raises in the child."""


def fork_in_insert(story: Story, actor: Actor) -> None:
    """Insert a stream that forks."""
    _fork_in(story, actor, lambda queue, stream: queue.insert_many(stream, batch_tasks=1))


def fork_in_stage(story: Story, actor: Actor) -> None:
    """Stage a stream that forks."""
    _fork_in(story, actor, lambda queue, stream: queue.commit(NAME).stage(stream, batch_tasks=1))


def fork_in_poll(story: Story, actor: Actor) -> None:
    """Fork in the body of a loop. Parent and child go on with the loop, and insert. No lease is handed out to both."""
    rng = story.rng
    prefetch = rng.choice((1, 3, 3))
    loop = actor.do("poll", lambda q: q.poll(prefetch=prefetch))
    if loop is None:
        return
    handed: dict[str, str] = {}
    """To which process each lease was handed out."""
    try:
        _rounds(story, actor, loop, handed, rng.randint(1, 2))
        _fork_with(story, actor, loop, prefetch, handed)
        _rounds(story, actor, loop, handed, rng.randint(1, 4))
        actor.do("leave", lambda q: loop.close())
    finally:
        _forget(loop)


def _rounds(story: Story, actor: Actor, loop: Poll, handed: dict[str, str], rounds: int) -> None:
    """Do some tasks of a loop, and insert now and then."""
    rng = story.rng
    loop._stop = lambda: True  # ends when nothing is left at the moment
    for _ in range(rounds):
        task = actor.next(loop)
        if task is None:
            return
        first = handed.setdefault(task.lease, actor.name)
        if first != actor.name:
            story.history.wrong.append(f"{actor.last}: this lease of {task.payload!r} was handed out to {first}, too")
        if rng.random() < 0.3:
            actor.insert(*story.fresh(1))
        if rng.random() < 0.3:
            actor.work(rng.choice((0.1, 4.0)))
        if rng.random() < 0.9:
            actor.complete([task])


def _forget(loop: Poll) -> None:
    """Let a loop that is over, or whose process is dead, have nothing that a real thread would put back."""
    loop._ahead.tasks.clear()
    loop._ahead.open = False


def _fork_with(story: Story, actor: Actor, loop: Poll, prefetch: int, handed: dict[str, str]) -> None:
    """Fork a process between two verbs; parent and child go on beside each other."""
    parent = actor.persona
    assert isinstance(parent.entropy, SimEntropy)
    story.serial += 1
    process = parent.process.fork(f"{parent.process.name}f{story.serial}")
    parent.process.children.remove(process)  # it takes locks of its own
    entropy = parent.entropy.inherited()
    clock = SimClock(process, story.scenario.compare_clocks)
    persona = Persona(process, clock, entropy, parent.shared, parent.worker | {"pid": story.serial})
    persona.depth = parent.depth + 1
    child = Actor(story.history, persona, actor.path)
    story.processes.append(process)
    story.actors.append(child)
    ahead = [copy.copy(task) for task in loop._ahead.tasks]
    logs = [(log.batch, log.fd, log.sync) for log in actor.queue.store.logs if not log.closed]
    rounds = story.rng.randint(1, 4)
    story.world.fault(f"{parent.process.name} forks, and {process.name} goes on beside it")

    loops: list[Poll] = []

    def born(queue: Queue) -> Poll:
        mine = queue.poll(prefetch=prefetch)
        for task in ahead:
            task.queue, task.poll = queue, mine._ahead
        loops.append(mine)
        mine._ahead.tasks.extend(ahead)
        _let_go(queue, mine, entropy, logs)
        return mine

    def go_on() -> None:
        try:
            story.begin_act(child, 1)
            mine = child.do("fork", born)
            if mine is not None:
                _rounds(story, child, mine, handed, rounds)
                child.do("leave", lambda q: mine.close())
        finally:
            for one in loops:
                _forget(one)
        child.exit()

    story.scheduler.add(process, go_on)


def _let_go(queue: Queue, loop: Poll, entropy: SimEntropy, logs: list[tuple[str, int, bool]]) -> None:
    """Let go, in a child, of what it has of its parent, as `forks` has each holder do."""
    store = queue.store
    inherited = [Log(store.fs, store.layout, batch, fd, sync) for batch, fd, sync in logs]
    mine = [loop._ahead, entropy, store, *inherited]
    for holder, let_go in forks._holders.items():
        if any(holder is one for one in mine):
            let_go(holder)


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    act.__name__: act for act in (fork_in_insert, fork_in_stage, fork_in_poll)
}


def _fork_in(story: Story, actor: Actor, act: Callable[[Queue, Iterator[str]], object]) -> None:
    rng = story.rng
    payloads = story.fresh(rng.randint(2, 6))
    at, raises = rng.randrange(len(payloads)), rng.random() < 0.3
    born: list[tuple[Process, set[str], set[str], list[File]]] = []

    def stream() -> Iterator[str]:
        for number, payload in enumerate(payloads):
            if number == at:
                parent = _become_child(story, actor)
                born.append((parent, *_named(story, payloads), _locked(parent)))
                if raises:
                    raise _OfTheChild
            yield payload

    def call(queue: Queue) -> None:
        try:
            act(queue, stream())
        except _OfTheChild:
            return
        if born:
            story.history.wrong.append(f"{actor.last}: a child came back out of the call of its parent")

    actor.do("fork", call, payloads=payloads)
    if not born or actor.persona.process.dead:
        return
    parent, published, staged, locked = born[0]
    now_published, now_staged = _named(story, payloads)
    wrong = story.history.wrong
    if not raises and actor.last.error is not None and not isinstance(actor.last.error, ForkedChild):
        wrong.append(f"{actor.last}: the child was to be told that it is one")
    if staged - now_staged:
        wrong.append(f"{actor.last}: the child took away what its parent has staged: {sorted(staged - now_staged)}")
    if now_published - published:
        wrong.append(f"{actor.last}: the child published: {sorted(now_published - published)}")
    if len(_locked(parent)) < len(locked):
        wrong.append(f"{actor.last}: the child gave a lock of its parent away")


def _become_child(story: Story, actor: Actor) -> Process:
    """Go on as a child of this process, which has let go as `forks` says. Return the parent, which is stopped."""
    process, queue = actor.persona.process, actor.queue
    parent = process.fork(f"the parent of {process.name}")
    process.children.remove(parent)
    story.processes.append(parent)
    story.world.fault(f"{process.name} forks, and its parent is stopped")
    story.serial += 1
    actor.persona.depth += 1
    actor.persona.worker = actor.persona.worker | {"pid": story.serial}
    actor.held.clear()
    take_stage(actor.persona)
    for fd in resources.this_thread.owned.fds:
        opened = process.fds.get(fd)
        if opened is not None and opened.writes:  # `resources` has it lead nowhere, which this kernel has not
            opened.shared_by -= 1
            process.fds[fd] = Opened(story.world.disk.root, process.O_RDONLY, process.host, "/")
    store = queue.store
    for holder, let_go in forks._holders.items():
        if holder in (store, store.entropy, store.logs) or store.fs in (
            getattr(holder, "fs", None),
            getattr(getattr(holder, "_store", None), "fs", None),
        ):
            let_go(holder)
    return parent


def _locked(process: Process) -> list[File]:
    """The files that a process has locked."""
    return [one.node for one in process.fds.values() if isinstance(one.node, File) and one.node.owner is one]


def _named(story: Story, payloads: list[str]) -> tuple[set[str], set[str]]:
    """The batches of these payloads that are in the queue, and those in staging."""
    base = invariants.generation(story)
    signs = [f'"payload":"{payload}"'.encode() for payload in payloads]
    found = [
        {
            path.rpartition("/")[2][14:46]
            for path, file in invariants.files(story, f"{base}/{part}")
            if any(sign in file.data for sign in signs)
        }
        for part in ("queue", "staging")
    ]
    return found[0], found[1]
