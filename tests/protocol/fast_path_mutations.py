"""The fast path without one of its preconditions, or with another mistake: a story must notice each.

Five preconditions are defences that no story tells from others: see docs/decisions/0060-fast-path.md.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.fast_and_normal import CALM, EXCHANGES, SINGLES
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
        "n == 1 and self.shares is None",
        "self.shares is None",
    ),
    "for several holders": of("rules", 1, "Leaser.lease", "n == 1 and self.shares is None", "n == 1"),
    "in a queue with priorities": Mutation(  # either precondition would do
        "priority",
        13,
        (
            (
                "Leaser.lease",
                "if not queue_file.state.is_plain: ...\nelse: ...",
                "if False: ...\nelse: ...",
            ),
            ("_survey", "name.priority is not None", "False"),
        ),
    ),
    "a lease in a signal handler": of("interrupted", 0, "lease_next", "log is None or held", "log is None"),
    "a lease without the lock": of("locked", 3, "lease_next", "fd < 0 or not try_lock(fd)", "fd < 0"),
    "a lease not caught up": of("other", 0, "lease_next", "if pread(fd, TAIL_BYTES, log.end): ...", "if False: ..."),
    "a lease in a log far ahead": of("server's time", 5, "lease_next", "if last > at + FAR_MS: ...", "if False: ..."),
    "a lease behind the log's time": of("time", 2, "lease_next", "at = last", "at = at"),
    "the last task": of(CALM, 0, "lease_next", "place + 1 >= state.fresh_end", "place >= state.fresh_end"),
    "something comes back": of("time", 6, "lease_next", "at >= state.quiet_until", "False"),
    "the own lease runs out": of("time", 6, "lease_next", "if until < state.quiet_until: ...", "if False: ..."),
    "a line nests too deep": of("damage", 5, "lease_next", "if len(line) > nesting.SHALLOW_BYTES: ...", ""),
    "a line is damaged": of("damage", 0, "lease_next", "raise Unusual from None", "record = payload = {}"),
    "no key": of("insert", 2, "lease_next", "if len(record) > 1: ...", ""),
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
    "how long the work took": of("complete", 0, "complete_in_hand", "made |= transitions.work_fields_of(...)", ""),
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
        "complete", 2, "complete_in_hand", 'made["result"] = value = loads(result)', 'made["result"] = loads(result)'
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
    "an exchange in a queue with priorities": Mutation(  # either would do
        EXCHANGES,
        34,
        (
            ("Leaser.exchange", "queue.is_plain and self.shares is None", "self.shares is None"),
            ("_survey", "name.priority is not None", "False"),
        ),
    ),
    "an exchange in a signal handler": of(EXCHANGES, 0, "exchange_next", "log is None or held", "log is None"),
    "an exchange without the lock": of(EXCHANGES, 5, "exchange_next", "fd < 0 or not try_lock(fd)", "fd < 0"),
    "an exchange not caught up": of(
        EXCHANGES, 13, "exchange_next", "if pread(fd, TAIL_BYTES, log.end): ...", "if False: ..."
    ),
    "an exchange in a log far ahead": of(
        EXCHANGES, 113, "exchange_next", "if last > at + FAR_MS: ...", "if False: ..."
    ),
    "an exchange behind the log's time": of(
        EXCHANGES, 0, "exchange_next", "if last > at + FAR_MS: ...\nat = last", "if last > at + FAR_MS: ..."
    ),
    "an exchange for the last task": of(
        EXCHANGES, 0, "exchange_next", "place + 1 >= state.fresh_end", "place >= state.fresh_end"
    ),
    "an exchange while something comes back": of(EXCHANGES, 59, "exchange_next", "at >= state.quiet_until", "False"),
    "an exchange whose lease runs out": of(
        EXCHANGES, 125, "exchange_next", "if until < state.quiet_until: ...", "if False: ..."
    ),
    "an exchange for a damaged line": of(
        EXCHANGES, 1, "exchange_next", "raise Unusual from None", "record = payload = {}"
    ),
    "an exchange for a task without its key": of(EXCHANGES, 5, "exchange_next", "if len(record) > 1: ...", ""),
    "an exchange of a lease that does not hold": of(
        EXCHANGES, 19, "exchange_next", "not state.holds(done, task.lease) or ...", "state.used"
    ),
    "an exchange of a task that was measured before": of(
        EXCHANGES,
        75,
        "exchange_next",
        "not state.holds(done, task.lease) or state.used",
        "not state.holds(done, task.lease)",
    ),
    "an exchange that forgets how long it took": of(
        EXCHANGES, 5, "exchange_next", "task.began is not None or task.used is not None or ...", "task.used is not None"
    ),
    "an exchange whose completion is in the log alone": of(
        EXCHANGES, 0, "exchange_next", "state.complete(at, [done], base)", ""
    ),
    "an exchange whose result is in the record alone": of(
        EXCHANGES,
        0,
        "exchange_next",
        "state.complete(at, [done], base, loads(result))",
        "state.complete(at, [done], base)",
    ),
    "an exchange whose result is in the state alone": of(
        EXCHANGES, 0, "exchange_next", 'made["result"] = Fragment(result)', ""
    ),
    "an exchange whose result is lost": of(
        EXCHANGES, 5, "exchange_next", "transitions.result_of(task, result)", "None"
    ),
    "a result that the normal way of an exchange leaves out": of(
        EXCHANGES,
        0,
        "Leaser.exchange",
        "transitions.add_completion(locked, task, at, result)",
        "transitions.add_completion(locked, task, at, None)",
    ),
    "an exchange whose lease has the place of the completion": of(
        EXCHANGES, 0, "exchange_next", "base += len(completion)", ""
    ),
    "an exchange that stays at its task": of(EXCHANGES, 16, "exchange_next", "state._frontier = place + 1", ""),
    "the log's time stays behind an exchange": of(EXCHANGES, 120, "exchange_next", "state.at = at", ""),
    "an exchange is lost for good": of(EXCHANGES, 0, "exchange_next", "if error.errno not in LOST: ...", "raise"),
    "an exchange keeps what failed": of(
        EXCHANGES,
        0,
        "exchange_next",
        """
        if not is_sound:
            store.logs.drop(log)
        elif ...: ...
        """,
        "",
    ),
    "a damaged task that an exchange has leased is not buried": of(
        EXCHANGES, 37, "Leaser.exchange", "if self._damaged: ...", ""
    ),
    "several inserts": of(SINGLES, 5, "SingleInserter._append_surely", "len(pending) == 1", "True"),
    "an urgent insert": of(
        SINGLES, 2, "SingleInserter._append_surely", "is_known and rank == LAST and ...", "is_known and ..."
    ),
    "an insert for later": of(SINGLES, 0, "SingleInserter._append_surely", "task.when is NOW", "True"),
    "an insert in a signal handler": of(SINGLES, 0, "insert_next", "log is None or held", "log is None"),
    "an insert without the lock": of(SINGLES, 1, "insert_next", "fd < 0 or not try_lock(fd)", "fd < 0"),
    "an insert not caught up": of(SINGLES, 0, "insert_next", "if pread(fd, TAIL_BYTES, log.end): ...", "if False: ..."),
    "an insert into a log that is gone": of(SINGLES, 3, "insert_next", "state.gone", "False"),
    "an insert behind a torn tail": of(SINGLES, 2, "insert_next", "log.torn", "False"),
    "an insert into a sealed batch": Mutation(  # either would do
        SINGLES,
        0,
        (
            ("insert_next", "state.sealed", "False"),
            ("States.insert", "self.inserts is None or self.sealed or self.finished", "self.inserts is None"),
        ),
    ),
    "an insert into a batch of another boot": of(
        SINGLES, 17, "insert_next", "state.inserts != store.domain", "state.inserts is None"
    ),
    "an insert into a full batch": of(SINGLES, 5, "insert_next", "index >= store.settings.batch_tasks_max", "False"),
    "an insert into a long log": of(SINGLES, 7, "insert_next", "base >= sealing.LOG_BYTES_MAX", "False"),
    "an insert into a log far ahead": of(SINGLES, 4, "insert_next", "if last > at + FAR_MS: ...", "if False: ..."),
    "an insert behind the log's time": of(
        SINGLES, 3, "insert_next", "if last > at + FAR_MS: ...\nat = last", "if last > at + FAR_MS: ..."
    ),
    "an insert in the log alone": of(
        SINGLES, 0, "insert_next", "not state.insert(at, identity, index, 0, base)", "False"
    ),
    "a log's time that does not follow an insert": of(SINGLES, 0, "insert_next", "state.at = at", ""),
    "an insert whose record is not looked for": of(
        SINGLES, 0, "insert_next", "raise AppendBroken(error) from error", "raise"
    ),
    "a record that nobody has appended is looked for": of(
        SINGLES, 0, "SingleInserter._append_surely", "error, is_closed = broken.error, False", "raise broken.error"
    ),
    "an insert keeps what failed": of(
        SINGLES,
        0,
        "insert_next",
        """
        if not is_sound:
            store.logs.drop(log)
        elif ...: ...
        """,
        "",
    ),
}
