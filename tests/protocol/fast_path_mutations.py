"""The fast path without one of its preconditions, or with another mistake: a story must notice each.

Two preconditions are defences that no story tells from others. A task that was touched (`States.survey`) has come back,
or `States.lease` refuses it. A queue with priorities (`Leaser.lease`) shows in the names of its files.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.fast_and_normal import CALM
from tests.simulation.places import Edit


class Mutation(NamedTuple):
    """A change, and the story that notices it."""

    much: str
    """The kind of step of which there are many in the story."""
    seed: int
    edits: tuple[Edit, ...]


def of(much: str, seed: int, where: str, old: str, new: str) -> Mutation:
    return Mutation(much, seed, ((where, old, new),))


MUTATIONS: dict[str, Mutation] = {
    "several tasks": of(
        "several",
        0,
        "Leaser.lease",
        "n == 1 and self.shares is None and not queue_file.state.is_ordered",
        "self.shares is None and not queue_file.state.is_ordered",
    ),
    "for several holders": of("rules", 1, "Leaser.lease", "n == 1 and self.shares is None and ...", "n == 1 and ..."),
    "in a queue with priorities": Mutation(  # either precondition would do
        "priority",
        13,
        (
            (
                "Leaser.lease",
                "n == 1 and self.shares is None and not queue_file.state.is_ordered",
                "n == 1 and self.shares is None",
            ),
            ("_survey", "name.priority is not None", "False"),
        ),
    ),
    "a lease in a signal handler": of("interrupted", 0, "lease_next", "log is None or held", "log is None"),
    "a lease without the lock": of("locked", 3, "lease_next", "fd < 0 or not try_lock(fd)", "fd < 0"),
    "a lease not caught up": of("other", 0, "lease_next", "if pread(fd, TAIL_BYTES, log.end): ...", "if False: ..."),
    "a lease in a log far ahead": of("server's time", 5, "lease_next", "if last > at + FAR_MS: ...", "if False: ..."),
    "a lease behind the log's time": of("time", 2, "lease_next", "at = last", "at = at"),
    "the last task": of(
        CALM, 0, "lease_next", "state._frontier + 1 >= state.fresh_end", "state._frontier >= state.fresh_end"
    ),
    "something comes back": of("time", 6, "lease_next", "at >= state.quiet_until", "False"),
    "the own lease runs out": of("time", 6, "lease_next", "if until < state.quiet_until: ...", "if False: ..."),
    "a line nests too deep": of("damage", 5, "lease_next", "if len(line) > nesting.SHALLOW_BYTES: ...", ""),
    "a line is damaged": of("damage", 0, "lease_next", "raise Unusual from None", "record = payload = {}"),
    "no key": of("insert", 0, "lease_next", "if len(record) > 1: ...", ""),
    "a lease is lost for good": of("fault", 1, "lease_next", "if error.errno not in LOST: ...", "raise"),
    "a lease keeps what failed": of(
        "fault",
        1,
        "lease_next",
        """
        if not is_sound:
            store.logs.drop(log)
        elif ...: ...
        """,
        "",
    ),
    "a log that is gone": of("gone", 1, "_survey", "state.gone", "False"),
    "a torn tail": of("torn", 2, "_survey", "log.torn", "False"),
    "what has come back": of("end", 2, "States.survey", "self._ready or at >= until", "at >= until"),
    "what is due": of("end", 1, "States.survey", "self._ready or at >= until", "self._ready"),
    "what is taken": of("cancel", 1, "States.survey", "state[order[place]] == AVAILABLE", "True"),
    "one fresh task": of(CALM, 0, "States.survey", "place > begin + 1", "place > begin"),
    "an old survey": of("end", 1, "Log.catch_up", "self.replay_state.fresh_end = 0", ""),
    "a completion in a signal handler": of(
        "interrupted", 0, "complete_in_hand", "log is None or held or ...", "log is None or ..."
    ),
    "a completion after a purge": of(
        "rare", 4, "complete_in_hand", "store.queue_file.is_unchanged(task.generation)", "True"
    ),
    "a completion without the lock": of("locked", 1, "complete_in_hand", "fd < 0 or not try_lock(fd)", "fd < 0"),
    "a completion not caught up": of(
        "other", 2, "complete_in_hand", "if pread(fd, TAIL_BYTES, log.end): ...", "if False: ..."
    ),
    "a completion in a log far ahead": of(
        "server's time", 7, "complete_in_hand", "if last > at + FAR_MS: ...", "if False: ..."
    ),
    "a completion behind the log's time": of(
        "time", 5, "complete_in_hand", "if last > at + FAR_MS: ...\nat = last", "if last > at + FAR_MS: ..."
    ),
    "a completion in a log that is gone": of("gone", 1, "complete_in_hand", "state.gone", "False"),
    "a completion behind a torn tail": of("torn", 1, "complete_in_hand", "log.torn", "False"),
    "the last task without an outcome": of(CALM, 0, "complete_in_hand", "state.remaining < 2", "False"),
    "a lease that does not hold": of("end", 0, "complete_in_hand", "not state.holds(index, task.lease)", "False"),
    "how long the work took": of("complete", 0, "complete_in_hand", "made |= transitions.measured(...)", ""),
    "a measured completion that is not applied as such": of(
        "complete",
        3,
        "complete_in_hand",
        "state.apply(made, log.end)",
        """
        state.complete(made["at"], [made["tasks"][0][0]], log.end, made.get("result"))
        state.at = made["at"]
        """,
    ),
    "a task that was measured before": of(
        "end", 7, "complete_in_hand", "state.used or task.began is not None or ...", "task.began is not None or ..."
    ),
    "a completion in the state alone": of(
        CALM, 0, "complete_in_hand", "state.complete(at, [index], log.end, value)", ""
    ),
    "a result in the record alone": of(
        "complete", 0, "complete_in_hand", 'made["result"] = value = loads(result)', 'made["result"] = loads(result)'
    ),
    "a result that is lost": of("fault", 1, "complete_in_hand", "transitions.result_of(task, result)", "None"),
    "a completion is lost for good": of("fault", 1, "complete_in_hand", "if error.errno not in LOST: ...", "raise"),
    "a completion keeps what failed": of(
        "fault",
        1,
        "complete_in_hand",
        """
        if not is_sound:
            store.logs.drop(log)
        elif ...: ...
        """,
        "",
    ),
}
