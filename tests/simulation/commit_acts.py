"""Named commits in stories: who stages, publishes, repeats and discards, and what must hold of it.

Few names, so that several processes meet at one; fresh payloads in each part, so that one sees whose parts won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fsqueue import Commit, CommitPart, CommitReport, Queue
from fsqueue.format import names
from fsqueue.storage.commits import Record, parse
from tests.simulation import order
from tests.simulation.disk import Directory, File
from tests.simulation.history import DONE, Actor, Call

if TYPE_CHECKING:
    from tests.simulation.stories import Story

NAMES = ("seed", "job")


class Staged:
    """What was staged in a story, whoever lived to publish it."""

    def __init__(self) -> None:
        self.payloads: dict[str, list[str]] = {}
        """Of each part, by its first batch."""
        self.parts: list[CommitPart] = []
        """Those that others may publish."""

    def note(self, part: CommitPart, payloads: list[str]) -> CommitPart:
        """Remember a part that was staged."""
        self.payloads[part.first] = payloads
        self.parts.append(part)
        return part

    def of(self, parts: list[CommitPart]) -> list[str]:
        """The payloads of some parts."""
        return [payload for part in parts for payload in self.payloads[part.first]]


# -- acts ----------------------------------------------------------------------------------------------------


def commit(story: Story, actor: Actor) -> None:
    """Stage some parts and publish them, as one process does that inserts a file; perhaps not for the first time."""
    rng, name = story.rng, story.rng.choice(NAMES)
    chunks = [story.fresh(rng.randint(0, 3)) for _ in range(rng.randint(1, 2))]
    tasks = [story.tasks(chunk) for chunk in chunks]
    look_first, again, batch_tasks = rng.random() < 0.5, rng.random() < 0.2, rng.choice((None, 1))

    def act(queue: Queue) -> CommitReport:
        mine = queue.commit(name)
        known = mine.committed() if look_first else None
        if known is not None:
            return known
        report = mine.publish(
            [
                story.staged.note(mine.stage(some, batch_tasks=batch_tasks), chunk)
                for some, chunk in zip(tasks, chunks, strict=True)
            ]
        )
        return mine.publish([]) if again else report

    actor.do("commit", act, name=name, payloads=[payload for chunk in chunks for payload in chunk])


def overwrite(story: Story, actor: Actor) -> None:
    """Stage a part, and publish it in place of all there is; perhaps under a name that was committed before."""
    rng, name = story.rng, story.rng.choice(NAMES)
    _overwrite(story, actor, name, story.fresh(rng.randint(0, 3)))


def _overwrite(story: Story, actor: Actor, name: str, payloads: list[str]) -> None:
    tasks = story.tasks(payloads)

    def act(queue: Queue) -> CommitReport:
        mine = queue.commit(name)
        return mine.publish([story.staged.note(mine.stage(tasks, batch_tasks=1), payloads)], overwrite=True)

    actor.do("commit", act, name=name, payloads=payloads, overwrite=True)


def stage(story: Story, actor: Actor) -> None:
    """Stage a part, for others to publish; perhaps beside others, as an executor of a job does."""
    rng, name, payloads = story.rng, story.rng.choice(NAMES), story.fresh(story.rng.randint(1, 3))
    attempts = [part.attempt for part in story.staged.parts if part.commit == name]
    attempt = rng.choice(attempts) if attempts and rng.random() < 0.5 else None
    tasks = story.tasks(payloads)
    actor.do("stage", lambda q: story.staged.note(Commit(q.store, name, attempt).stage(tasks), payloads), name=name)


def publish(story: Story, actor: Actor) -> None:
    """Publish what anybody has staged for a name."""
    rng, name = story.rng, story.rng.choice(NAMES)
    known = [part for part in story.staged.parts if part.commit == name]
    parts = rng.sample(known, rng.randint(1, len(known))) if known else []
    if parts:
        actor.do("commit", lambda q: q.commit(name).publish(parts), name=name, payloads=story.staged.of(parts))


def discard(story: Story, actor: Actor) -> None:
    """Drop an attempt, whatever became of it."""
    if story.staged.parts:
        part = story.rng.choice(story.staged.parts)
        actor.do("discard", lambda q: Commit(q.store, part.commit, part.attempt).discard(), attempt=part.attempt)


ACTS: dict[str, Callable[[Story, Actor], None]] = {
    act.__name__: act for act in (commit, overwrite, stage, publish, discard)
}


# -- verbs of the small cases --------------------------------------------------------------------------------


def stage_before(story: Story, before: Actor) -> None:
    """Two parts of one attempt, for others to publish or discard."""
    for number in range(2):
        payloads = story.fresh(1 + number)
        tasks = story.tasks(payloads)
        attempt = story.staged.parts[0].attempt if story.staged.parts else None
        before.do(
            "stage",
            lambda q, tasks=tasks, payloads=payloads, attempt=attempt: story.staged.note(
                Commit(q.store, NAMES[0], attempt).stage(tasks, batch_tasks=1), payloads
            ),
        )


def commit_anew(story: Story, actor: Actor) -> None:
    """One's own tasks, under a name for which others have staged theirs."""
    payloads = story.fresh(2)
    tasks = story.tasks(payloads)

    def act(queue: Queue) -> CommitReport:
        mine = queue.commit(NAMES[0])
        return mine.publish([story.staged.note(mine.stage(tasks, batch_tasks=1), payloads)])

    actor.do("commit", act, name=NAMES[0], payloads=payloads)


def publish_staged(story: Story, actor: Actor) -> None:
    """What was staged before, all of it."""
    parts = list(story.staged.parts[:2])
    actor.do("commit", lambda q: q.commit(NAMES[0]).publish(parts), name=NAMES[0], payloads=story.staged.of(parts))


def overwrite_anew(story: Story, actor: Actor) -> None:
    """One's own tasks in place of all there is, under a name for which others have staged theirs."""
    _overwrite(story, actor, NAMES[0], story.fresh(2))


def overwrite_staged(story: Story, actor: Actor) -> None:
    """What was staged before, in place of all there is."""
    parts = list(story.staged.parts[:2])
    payloads = story.staged.of(parts)
    actor.do(
        "commit",
        lambda q: q.commit(NAMES[0]).publish(parts, overwrite=True),
        name=NAMES[0],
        payloads=payloads,
        overwrite=True,
    )


def discard_staged(story: Story, actor: Actor) -> None:
    """Drop what was staged before."""
    attempt = story.staged.parts[0].attempt
    actor.do("discard", lambda q: Commit(q.store, NAMES[0], attempt).discard(), attempt=attempt)


VERBS = (commit_anew, publish_staged, discard_staged, overwrite_anew, overwrite_staged)


def repeat_all(story: Story, last: Actor) -> None:
    """When nothing goes wrong any more, whatever was begun is repeated: each name gets its tasks, or has them."""
    if not story.staged.payloads:
        return
    for name in NAMES:
        payloads = story.fresh(2)
        tasks = story.tasks(payloads)

        def act(
            queue: Queue, name: str = name, payloads: list[str] = payloads, tasks: list[Any] = tasks
        ) -> CommitReport:
            mine = queue.commit(name)
            return mine.publish([story.staged.note(mine.stage(tasks), payloads)])

        last.do("commit", act, name=name, payloads=payloads)


# -- the judgement -------------------------------------------------------------------------------------------


def records(story: Story, base: str) -> Iterator[tuple[Record, int]]:
    """What was decided in a generation, and at which step: what was there when it began, by its beginning."""
    began = max((step for step, _ in story.world.disk.ends), default=-1) + 1
    found = _directory(story, f"{base}/commits")
    for name, node in sorted(found.entries.items()) if found is not None else ():
        if isinstance(node, File) and names.parse_record_file(name):
            record = parse(bytes(node.data))
            assert found is not None
            if record is None:
                story.history.wrong.append(f"the record {name} is torn")
            else:
                yield record, max(found.since[name], began)


def note_decided(story: Story, base: str) -> None:
    """What was decided counts as inserted, at that step: each of its tasks must be accounted for."""
    for record, step in list(records(story, base)):
        if record.name.startswith("barrier-"):
            continue  # to set a barrier is an insert of its own: see `barrier_acts`
        payloads = [payload for part in record.parts for payload in story.staged.payloads[part.first]]
        call = Call("everybody", "insert", {"payloads": payloads, "name": record.name}, story.world)
        call.begin = call.end = step
        call.outcome = DONE
        story.history.calls.append(call)


def ends_the_generation(call: Call) -> bool:
    """Whether a call may have ended what was in the queue before."""
    return call.verb in ("purge", "delete") or "overwrite" in call.args


def judge(story: Story, base: str) -> Iterator[str]:
    """A name has one record; what it does not name was never seen; what was reported is what it says."""
    purges = [call for call in story.history.calls if ends_the_generation(call)]
    decided = {record.name: record for record, _ in records(story, base)}
    first = {part.first for record in decided.values() for part in record.parts}
    if not purges:
        for part, payloads in story.staged.payloads.items():
            seen = [payload for payload in payloads if story.history.ids.get(payload)]
            if seen and part not in first:
                yield f"{seen} were seen, but no commit was decided for them"
    for call in story.history.calls:
        if call.verb != "commit" or call.outcome != DONE:
            continue
        if any(purge.end > call.begin for purge in purges if purge is not call):
            continue
        record, report = decided.get(call.args["name"]), call.result
        if record is None:
            yield f"{call}: it was reported committed, but there is no record of it"
        elif (report.tasks, report.files) != (record.total("tasks"), record.total("files")):
            yield f"{call}: the record says {record}"
        elif not report.repeated and {part.first for part in record.parts} - {
            first for first, known in story.staged.payloads.items() if not set(known) - set(call.args["payloads"])
        }:
            yield f"{call}: it was reported new, but the record says {record}"


def judge_leftovers(story: Story, base: str) -> Iterator[str]:
    """After upkeep, a week later, nothing is pending."""
    found = _directory(story, f"{base}/commits/pending")
    for name in found.entries if found is not None else ():
        if not name.startswith(".nfs"):
            yield f"upkeep left the proposal {name}"


def false_empty(story: Story, call: Call, base: str, limit: int) -> Iterator[str]:
    """A `lease` that answered "empty" although something decided lay in staging all the time.

    A name that promises a task within the bound has one: nobody has leased from the file yet.
    """
    bound = call.args.get("up_to")
    for record, name in unpublished(story, call, base):
        if int(name[:13]) <= limit and (bound is None or order.is_surely_within(name, bound)):
            yield f'{call}: "empty", but {name} of the commit {record.name} was not published'


def false_drained(story: Story, call: Call, base: str) -> Iterator[str]:
    """The same of a queue that was called drained."""
    for record, name in unpublished(story, call, base):
        yield f'{call}: "drained", but {name} of the commit {record.name} was not published'


def unpublished(story: Story, call: Call, base: str) -> Iterator[tuple[Record, str]]:
    """What was decided before a call, and lies in staging still."""
    for record, step in records(story, base):
        for attempt, parts in record.attempts().items() if step <= call.begin else ():
            found = _directory(story, f"{base}/staging/{attempt}-{record.name}")
            for name in found.entries if found is not None else ():
                if name[:13].isdigit() and any(part.has(name[14:46]) for part in parts):
                    yield record, name


def surely_inserted(call: Call) -> list[Any]:
    """The payloads that a call has inserted, as it was reported."""
    mine = call.verb == "insert" or (call.verb == "commit" and not getattr(call.result, "repeated", True))
    return list(call.args["payloads"]) if mine and call.outcome == DONE else []


def _directory(story: Story, path: str) -> Directory | None:
    from tests.simulation.invariants import directory

    return directory(story, path)
