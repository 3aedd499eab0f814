"""Open batches, broken on purpose: what an inserter proves before it appends, and what it makes durable."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "an inserter does not look whether the queue was purged",
        "a task is reported inserted that went with the purge",
        "open-purge",
        (
            (
                "SingleInserter._is_in_queue",
                "if not store.queue_file.is_unchanged(layout.generation): ...",
                "if False: ...",
            ),
        ),
    ),
    Mutation(
        "a task is inserted into a batch that is sealed",
        "its file may have a later name: no worker looks for the task",
        "open-ending",
        (
            ("States.may_insert", "self.takes_inserts", "self.inserts is not None and not self.finished"),
            ("SingleInserter._takes_now", "takes = replay_state.takes_inserts", "takes = not replay_state.finished"),
        ),
    ),
    Mutation(
        "the file of an open batch gets a later name",
        "no worker looks for what is inserted into it from then on",
        "open-calm",
        (
            (
                "Leaser._record_lease",
                "replay_state.exhausted(at) and log.name is not None and not replay_state.takes_inserts",
                "replay_state.exhausted(at) and log.name is not None",
            ),
        ),
    ),
    Mutation(
        "an inserter goes on with a batch of before the power loss",
        "records that others had acted upon may be lost: their tasks' ids are given again",
        "open-power-ending",
        (
            (
                "SingleInserter._takes_now",
                "takes and not is_full and replay_state.inserts == store.domain",
                "takes and not is_full",
            ),
        ),
    ),
    Mutation(
        "an inserter does not sync the names of its batch",
        "a power loss takes the log, or the task file that leads to it",
        "open-power",
        (("SingleInserter._make_durable", "if batch != self._known_batch: ...", "if False: ..."),),
    ),
    Mutation(
        "an inserter does not sync its log",
        "a power loss takes a task that was reported inserted",
        "open-power",
        (("SingleInserter._make_durable", "self._syncer.up_to(batch, end)", ""),),
    ),
    Mutation(
        "after an error an inserter takes the task for not inserted",
        "it inserts the task again: there are two",
        ("open", "insert", "", "eio-after"),
        (
            (
                "SingleInserter._append_surely",
                "found, end = self._find_records(layout, batch, pending, error, closing=is_last and not is_full)",
                "found, end = {}, 0",
            ),
        ),
    ),
    Mutation(
        "one of several tasks in the log counts as all of them",
        "tasks are reported inserted for which the disk had no room",
        "few-full",
        (
            (
                "SingleInserter._append_surely",
                "missing = [(identity, task) for identity, task in pending if identity not in found]",
                "missing = [(identity, task) for identity, task in pending if not found]",
            ),
        ),
    ),
    Mutation(
        "an error forgets which of several tasks have found room",
        "it says that none is in the queue, and a repeat inserts those again",
        "few-full",
        (
            (
                "SingleInserter._append_surely",
                """
                if found:
                    new = next(...)
                    return ...
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "an inserter does not prove that the task file is there",
        "it has made the log of a batch anew that has finished: nothing leads to what it inserts",
        "open-ending",
        (
            ("SingleInserter._takes_now", "if locked.read_lines() is None or log.name is None: ...", "if False: ..."),
            ("SingleInserter._takes_now", "if not is_known and locked.read_lines() is None: ...", "if False: ..."),
            (
                "SingleInserter._takes_now",
                "transitions.opening(locked, log.name)",
                "transitions.opening(locked, log.name or names.open_batch_file(locked.batch))",
            ),
        ),
    ),
    Mutation(
        "an open batch is finished under an inserter's eyes, and its log is not locked",
        "a look at the names alone says that a batch is drained whose log has tasks",
        "open",
        (
            (
                "_Remains._work_in",
                """
                if replay_state is None:
                    return not name.is_open, 0
                if replay_state.remaining > 0 or replay_state.prepared: ...
                """,
                """
                if replay_state is None:
                    return not name.is_open, 0
                if not name.is_open: ...
                """,
            ),
        ),
    ),
    Mutation(
        "a worker that was notified does not look once more",
        "an idle worker overlooks what was inserted without a notification of its own",
        "open-idle",
        (("IdlePoller.look", "if now >= self._again_at: ...", "if False: ..."),),
    ),
    Mutation(
        "a checkpoint leaves out where tasks are in the log",
        "those tasks are not there for new readers",
        "open-restated",
        (("_inserted", "tasks = sorted(states.places)", "tasks: list[int] = []"),),
    ),
    Mutation(
        "a checkpoint leaves out that the batch is sealed",
        "tasks are inserted into it again",
        "open-restated",
        (("_inserted", "states.sealed", "False"),),
    ),
]
