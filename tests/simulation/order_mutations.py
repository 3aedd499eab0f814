"""Order, broken on purpose: what names promise, what workers know of ranks, and what they take."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a task is appended before its batch's file has the name",
        "a crash between the two leaves a task that is more urgent than the name says",
        ("open", "insert-urgent", "", "killed"),
        (
            (
                "SingleInserter._append_surely",
                "rank == LAST or self._ensure_promise(locked, rank)",
                "True",
            ),
            (
                "SingleInserter._append_surely",
                "self._syncer.wrote(batch, locked.log.end)",
                """
                rank == LAST or self._ensure_promise(locked, rank)
                self._syncer.wrote(batch, locked.log.end)
                """,
            ),
        ),
    ),
    Mutation(
        "a renaming is recorded, and not proven",
        "it fails, and the task is inserted all the same",
        ("open", "insert-urgent", "", "eio"),
        (
            (
                "SingleInserter._ensure_promise",
                "name = target if locked.rename_task_file_surely(target) else None",
                """
                locked.rename_task_file(target)
                name = target
                """,
            ),
        ),
    ),
    Mutation(
        "an open batch keeps the name of its first task",
        "no worker looks for the urgent task in it",
        "order-calm",
        (("SingleInserter._ensure_promise", "rank < name.rank", "False"),),
    ),
    Mutation(
        "an inserter does not sync the name that its task needs",
        "a power loss keeps the task, and takes the name",
        "order-power",
        (
            (
                "SingleInserter._make_durable",
                "if batch != self._known_batch or is_promise_new: ...",
                "if batch != self._known_batch: ...",
            ),
        ),
    ),
    Mutation(
        "an inserter does not tell its own state of the priority",
        "a worker in the same process takes tasks as they came, and its checkpoints leave the priority out",
        "order-restated",
        (("SingleInserter.add", "replay_state.insert(..., task.priority)", "replay_state.insert(...)"),),
    ),
    Mutation(
        "it is told after the insert that there are priorities",
        "a worker with a bound believes that there are none",
        "order",
        (
            ("SingleInserter._insert", "queue_changes.mark_ordered(store, rank)", ""),
            (
                "SingleInserter._insert",
                "store.doorbell.ring_now_and_then(...)",
                """
                queue_changes.mark_ordered(store, rank)
                store.doorbell.ring_now_and_then(...)
                """,
            ),
        ),
    ),
    Mutation(
        "it is told after a bulk insert that there are priorities",
        "a worker with a bound believes that there are none",
        "order-files",
        (
            ("publish", "queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))", ""),
            (
                "publish",
                "store.doorbell.ring()",
                """
                queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))
                store.doorbell.ring()
                """,
            ),
        ),
    ),
    Mutation(
        "a checkpoint leaves out priorities",
        "new readers take the tasks for ones without",
        "order-restated",
        (("_inserted", "... if states.priorities else {}", "... if False else {}"),),
    ),
    Mutation(
        "a batch's tasks are chosen as they came",
        "a less urgent one comes first",
        "order-calm",
        (
            ("States.take_ranks", "if given != sorted(given): ...", ""),
            (
                "States.choose",
                "self._sift(self._by_rank(at, limit), ...)",
                "self._sift(found := sorted(self._by_rank(at, limit)), ...)",
            ),
            ("States.choose", "for index in aside: ...", "for index in found: ..."),
        ),
    ),
    Mutation(
        "a batch goes back with a rank that is less urgent than what it has",
        "workers take less urgent tasks of others",
        "order-calm",
        (
            (
                "Leaser._choose",
                "None if head is None or name is None else (name, head)",
                "None if head is None or name is None else (name, LAST)",
            ),
        ),
    ),
    Mutation(
        "a batch that promised too much is not put back",
        "workers take less urgent tasks of others until they list anew",
        "order-calm",
        (("Leaser._tell_selection", "selection.put_back(*left)", ""),),
    ),
    Mutation(
        "a completion leases whatever its batch has next",
        "a worker that stays with a batch overlooks what is more urgent elsewhere",
        "order-calm",
        (("Leaser.exchange", "selection.limit_in_hand(task.batch)", "LAST"),),
    ),
    Mutation(
        "a worker that stays with a batch compares it with nothing",
        "it takes less urgent tasks than other batches have",
        "order-calm",
        (
            ("Selection.limit_in_hand", "if in_hand[1] > self._limit: ...", ""),
            ("Selection.limit_in_hand", "return self._limit", "return LAST"),
        ),
    ),
    Mutation(
        "a strict lease gives up at batches that promise too much",
        "it knows nothing from before, and takes what the next one has each time",
        "order-later",
        (
            (
                "Leaser._from_head",
                """
                if self._corrected is None or batch in self._corrected: ...
                else: ...
                """,
                """
                if True: ...
                else: ...
                """,
            ),
        ),
    ),
    Mutation(
        "a completion forgets what it has chosen beside a task that is out of attempts",
        "it takes nothing then, and looks for the next task elsewhere",
        "order-spent",
        (("Leaser._tell_rest", "spent and locked.log.name is not None", "False and locked.log.name is not None"),),
        stories=6000,
    ),
    Mutation(
        "only names are compared with the bound",
        "a task is leased that is less urgent than was asked for",
        "order-calm",
        (
            (
                "Leaser._from_head",
                "self._limit = self._bound if self._overpromised >= OVERPROMISED_MAX else selection.limit(self._bound)",
                "self._limit = LAST if self._overpromised >= OVERPROMISED_MAX else selection.limit()",
            ),
        ),
    ),
    Mutation(
        "names that promise just the bound are left out",
        "nothing is said to be there that is urgent enough, and there is",
        "order-calm",
        (
            (
                "Selection.glance",
                "(rank := self.best()) is None or rank > bound",
                "(rank := self.best()) is None or rank > bound or rank == bound < LAST",
            ),
        ),
    ),
    Mutation(
        "a worker goes by what it read a moment ago of whether there are priorities",
        "with a bound it believes that no task has a priority",
        "order-calm",
        (
            (
                "Leaser.lease",
                """
                self.begin_look(now=True)
                if self._has_none_within(up_to): ...
                """,
                """
                self.begin_look()
                if self._has_none_within(up_to): ...
                """,
            ),
        ),
    ),
    Mutation(
        "urgent heads that are not kept are forgotten",
        "there is more in a shard than a worker keeps in mind, and it says that there is nothing",
        "order-small",
        (("Selection._list", 'self._further[shard] = ""', ""),),
    ),
    Mutation(
        "the name of a bulk insert's batch promises its last task",
        "no worker looks for the more urgent ones in it",
        "order-files",
        (
            (
                "SortWindow.drain",
                """
                batch = Encoded(when, [priorities[place] for place in places[first : first + len(chosen)]])
                batch.take(content, len(chosen))
                """,
                """
                batch = Encoded(when, [priorities[places[first + len(chosen) - 1]]])
                batch.take(content, len(chosen))
                """,
            ),
        ),
    ),
    Mutation(
        "a bulk insert is not sorted",
        "its batches' names promise whatever came first",
        "order-files",
        (("SortWindow.drain", "sorted(range(len(lines)), key=comparable.__getitem__)", "list(range(len(lines)))"),),
    ),
    Mutation(
        "the name of a sealed batch loses its priority",
        "no worker looks for the urgent tasks that come back in it",
        "order",
        (("TaskFileName.sealed", "self._replace(inserted=tasks)", "self._replace(inserted=tasks, priority=None)"),),
    ),
    Mutation(
        "a dead letter that is given back has no priority any more",
        "it comes after all others",
        "order",
        (("retry", "task_file.encode_task(..., priority=letter.priority)", "task_file.encode_task(...)"),),
    ),
    Mutation(
        "a change does not see to what the name promises",
        "no worker looks for the task that has become urgent, or early",
        "changed",
        (("changing.promise", "target != name", "False"),),
    ),
    Mutation(
        "a task is changed before its batch's file has the name",
        "a crash between the two leaves a task that is more urgent than the name says",
        "changed-files",
        (
            ("changing._change_in", "promise(locked, values.rank, first, at)", ""),
            (
                "changing._change_in",
                "locked.log.write(movements.change(at, free, versions, available_at, values.priority))",
                """
                locked.log.write(movements.change(at, free, versions, available_at, values.priority))
                promise(locked, values.rank, first, at)
                """,
            ),
        ),
    ),
    Mutation(
        "a name that a change needs is not synced",
        "a power loss keeps the change, and takes the name",
        "changed-power",
        (("changing.promise", "store.sync_inserts and not store.fs.shared", "False"),),
    ),
    Mutation(
        "a checkpoint leaves out changed priorities",
        "new readers go by those with which the tasks were inserted",
        "changed-restated",
        (("checkpoints._entry", "single in states.changed", "False"),),
    ),
    Mutation(
        "a changed task keeps its place among those that came back",
        "it is taken by its old priority",
        "changed",
        (
            ("States.change", "self._ready = ...", ""),
            ("States.change", "heapify(self._ready)", ""),
        ),
    ),
    Mutation(
        "the priorities in a task file count more than changed ones",
        "a worker that learns them forgets the changes",
        "changed-files",
        (("States._rank_ready", "self.rank_changed()", ""),),
    ),
    Mutation(
        "a change does not tell that tasks have priorities",
        "workers compare none",
        "changed",
        (("changing.begin", "queue_changes.mark_ordered(store, values.rank)", ""),),
    ),
]
