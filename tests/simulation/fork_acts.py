"""Forks in user code: a stream of payloads forks while a verb reads it, and the child comes back into the verb.

There is one thread for both, which goes on as the child. The parent is stopped until the story ends, with all open that
it had. So the child must leave what its parent has staged, publish nothing of it, and give none of its locks away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fsqueue import ForkedChild, Queue, forks
from fsqueue.filesystem import resources
from tests.simulation import invariants
from tests.simulation.disk import File
from tests.simulation.handles import Opened
from tests.simulation.history import Actor
from tests.simulation.kernel import Process
from tests.simulation.wiring import take_stage

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


ACTS: dict[str, Callable[[Story, Actor], None]] = {act.__name__: act for act in (fork_in_insert, fork_in_stage)}


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
    for reference, let_go in list(forks._holders.values()):
        holder = reference()
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
