"""Each mutation of the protocol on trial: what catches it, and that this ends well without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation import (
    campaign_mutations,
    checkpoint_mutations,
    commit_mutations,
    fork_mutations,
    group_mutations,
    keyed_mutations,
    limit_mutations,
    more_mutations,
    open_mutations,
    order_mutations,
    relay_mutations,
    unclean_mutations,
    update_mutations,
)
from tests.simulation.corpus import kept_for, tell_kept
from tests.simulation.exhaustive import Schedule, calls_of, play
from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import collect, undisturbed

ALL = (
    MUTATIONS
    + commit_mutations.MUTATIONS
    + more_mutations.MUTATIONS
    + checkpoint_mutations.MUTATIONS
    + open_mutations.MUTATIONS
    + keyed_mutations.MUTATIONS
    + order_mutations.MUTATIONS
    + unclean_mutations.MUTATIONS
    + relay_mutations.MUTATIONS
    + fork_mutations.MUTATIONS
    + group_mutations.MUTATIONS
    + update_mutations.MUTATIONS
    + limit_mutations.MUTATIONS
    + campaign_mutations.MUTATIONS
)
BY_NAME = {mutation.name: mutation for mutation in ALL}
Case = Callable[[], list[str]]

SAMPLE = (
    "log before task file",  # order of steps on disk
    "farewell not heeded",  # the end of a log
    "not synced before it is published",  # sync of data
    "directory not synced",  # sync of names
    "counting again",  # counters, and their lock
    "one listing before empty",  # old listings
    "no fresh look",  # names that an NFS client remembers
    "a full disk is not noticed",  # full disk
    "a file that cannot be removed counts as not published",  # what an error says
    "a lock that cannot be given back is kept",  # clean-ups that fail
    "what was closed counts as stored",  # errors of closing
    "an error after the decision says that nothing is visible",  # what the error of a commit says
    "a wait for several queues believes what each says of itself",  # drained, and waiting, over several queues
    "a queue that promises too much gives what it has",  # leases from several queues
    "a child that comes back into a call removes what its parent has staged",  # forks in user code; both go on
    "a log that is dropped is closed, and not unlocked",  # forks beside a verb
    "a bare newline after a torn tail",  # torn writes
    "time runs backwards in a log",  # time in a log
    "the local clock plus the offset",  # clocks
    "a lease that has not run out is taken over",  # leases
    "completing without looking who holds it",  # lost leases
    "a queue made in place",  # creation
    "purge without the mark",  # purge
    "deleted without the mark",  # delete
    "a retry is published before it is recorded",  # retries of letters
    "letters are appended to a file that is closed",  # files of letters
    "proven before it is proposed",  # commits
    "a generation begins before its record is in it",  # overwriting
    "a torn checkpoint is not closed off",  # checkpoints
    "an inserter does not look whether the queue was purged",  # open batches
    "the record of a keyed task comes before the key's line",  # keys
    "an inserter does not look into the epoch before the present one",  # key epochs
    "a task is appended before its batch's file has the name",  # priorities of names
    "a batch's tasks are chosen as they came",  # priorities of tasks
    "a directory of a group that seems missing is believed missing",  # groups
    "an update is aborted in a log and not in its file",  # updates
    "a task that an update inserts is looked for before its log has the outcome",  # updates of tasks that were seen
    "a prepared insert counts as no task of its key",  # keys in updates
    "a decision file that is gone counts as a commit",  # the end of decision files
    "staged files are reaped without their lock",  # upkeep
    "status looks at letters and tasks, and not at what lies between",  # status
    "a lease does not count the slots under their lock",  # limits over all hosts
    "an idle worker looks only when the bell rings",  # waiting
    "a job submits a successor without looking for one",  # jobs that replace themselves
)
"""One of each family that is caught soon, for each run of the tests; the others are left to `scripts/test --all`."""


def cases(mutation: Mutation) -> list[Case]:
    """Return what is tried, one after the other, and the kept stories first; each case tells what went wrong."""
    return [*_kept(mutation), *_searched(mutation)]


def _kept(mutation: Mutation) -> list[Case]:
    """Return the story that is kept because this mutation made it go wrong, if there is one."""
    path = kept_for(mutation.name)
    return [] if path is None else [lambda: tell_kept(path).wrong]


def _searched(mutation: Mutation) -> list[Case]:
    """Return stories of one scenario, seed by seed; or a small case, call by call."""
    if isinstance(mutation.found_by, str):
        return [
            partial(_story, mutation.found_by, seed)
            for seed in range(mutation.first, mutation.first + mutation.stories)
        ]
    kind, first, second, fate = mutation.found_by
    calls = len(calls_of(kind, first, second))
    return [partial(_small, Schedule(kind, first, second, fate, at)) for at in range(1, calls + 1)]


def _story(scenario: str, seed: int) -> list[str]:
    return tell(SCENARIOS[scenario], seed).wrong


def _small(schedule: Schedule) -> list[str]:
    told = play(schedule)
    return told.wrong if told is not None else []


def caught(name: str) -> tuple[int, list[str], list[str]]:
    """Return which case goes wrong first, how, and what is wrong with it when the code is as it is."""
    with undisturbed():
        tried = cases(BY_NAME[name])
        with applied(BY_NAME[name]):
            for number, case in enumerate(tried):
                wrong = case()
                if wrong:
                    break
                collect(number)
        return number, wrong, case() if wrong else []
