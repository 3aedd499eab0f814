# ruff: noqa: E501
"""Unique keys, broken on purpose: what is written first, what is proven, and what is made durable."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

CLAIMS = "protocol.keyed_inserts:Claims"
INSERTER = "protocol.keyed_inserts:KeyedInserter"

MUTATIONS = [
    Mutation(
        "the record of a keyed task comes before the key's line",
        "its inserter dies between the two: the next insert finds no line, and inserts a second task",
        "keyed",
        (
            ("protocol.single_inserts:SingleInserter.insert", "if announce is not None:\n            announce(layout, batch, identity)\n", "pass\n"),
            ("protocol.single_inserts:SingleInserter.insert", "index = self._into(batch, identity, line, when, rank)", "index = self._into(batch, identity, line, when, rank)\n            if announce is not None and index is not None:\n                announce(layout, batch, identity)"),
        ),
    ),
    Mutation(
        "a batch in which a key's record is not is left unsealed",
        "the record of an inserter that was cut off comes later: two tasks live",
        "keyed-cut",
        ((f"{CLAIMS}._end", "if not is_known and locked.replay_state.takes_inserts:", "if False:"),),
    ),
    Mutation(
        "a batch without a log counts as ended on a network mount",
        "the inserter that has named it may be about to make the log",
        "keyed-cut",
        ((f"{CLAIMS}._in_log", "if not store.fs.shared:\n                return None", "if True:\n                return None"),),
    ),
    Mutation(
        "a task lives because the key's last line names it",
        "it ended long ago: what should be inserted is not",
        "keyed",
        (("storage.insert_ids:InsertIds.find", "return index if index >= 0 and state.state[index] in LIVING else None", "return index if index >= 0 else None"),
         ("protocol.keyed_inserts:Claims._in_open_log", "locked.replay_state.places[index] + 1", "log.end")),
    ),
    Mutation(
        "an inserter does not lock the key's file",
        "two look at the same time, and both find the key free: two tasks live",
        "keyed",
        (("storage.keys:locked", "if fs.shared or not fs.try_lock(fd):", "if False:"),),
    ),
    Mutation(
        "upkeep removes the file of a key without its lock",
        "an inserter that has it open goes on, another begins a new file: two tasks live",
        "keyed-gc",
        (("upkeep.key_files:KeyCollector._reap", "with keys.held(self.store, self.layout, path, finishing.WAIT_S) as held:", "with __import__('contextlib').nullcontext(keys.KeyFile(self.store, self.layout, self.epochs, self.store.fs.look(path), path)) as held:"),),
    ),
    Mutation(
        "an inserter does not look whether the path still names the key's file",
        "it writes into a file that upkeep has removed",
        "keyed-gc",
        (("storage.keys:_names_of", "found.st_nlink == 1", "True"),),
    ),
    Mutation(
        "a key is taken whose task has ended, and that is not synced",
        "a power loss takes the completion: two tasks live",
        "keyed-again-power",
        ((f"{CLAIMS}._make_end_durable", "if not self.store.sync_movements:", "if False:"),),
    ),
    Mutation(
        "the key's line is not synced",
        "a power loss takes it, and keeps the task",
        "keyed-power",
        (("storage.keys:KeyFile.append", "jsonl.append(store.fs, self._fd, line, store.sync_inserts, size)", "jsonl.append(store.fs, self._fd, line, False, size)"),),
    ),
    Mutation(
        "the name of the key's file is not synced",
        "a power loss takes the file, and keeps the task",
        "keyed-power",
        (("storage.keys:KeyFile.append", "if store.sync_inserts and not size:", "if False:"),),
    ),
    Mutation(
        "an inserter goes on after a purge with the key of the generation before",
        "another inserts with the key in the new generation: two tasks live",
        "keyed-purge",
        (("storage.keys:KeyFile.is_in_present", "state.generation == self.layout.generation and ", ""),
         (f"{INSERTER}._announcing", "if layout.generation != held.layout.generation:", "if False:")),
    ),
    Mutation(
        "a listing proves that a task with a file of its own lives",
        "the listing is old, and the task has ended",
        "keyed-files-nfs",
        ((f"{CLAIMS}._with_own_file", "any(store.fs.exists(layout.task_file(one)) for one in listed)", "listed"),),
    ),
    Mutation(
        "a staged file that a key's line names is not published",
        "its key can never be used again",
        "keyed-files",
        ((f"{CLAIMS}._with_own_file", "if staging.publish_named(store, layout, str(name)):", "if False:"),),
    ),
    Mutation(
        "a task with a file of its own is published before the key's line",
        "its inserter dies between the two: the next insert finds no line, and inserts a second task",
        "keyed-files",
        (
            ("storage.staging:publish_one", "        if announce is not None:\n            announce()\n", ""),
            ("storage.staging:publish_one", "is_published = True\n", "is_published = True\n            if announce is not None:\n                announce()\n"),
        ),
    ),
    # -- key epochs --------------------------------------------------------------------------------------
    Mutation(
        "an inserter goes on that has written its claim where nobody looks any more",
        "another finds no claim in the present epoch: two tasks live",
        "keyed-epochs",
        (("storage.keys:KeyFile.is_in_present", " and state.key_epochs == self.epochs", ""),),
    ),
    Mutation(
        "an inserter does not look into the epoch before the present one",
        "the task with its key is named there only: two tasks live",
        "keyed-epochs",
        ((f"{INSERTER}._insert", "held.last(key) or keys.earlier(store, held, key)", "held.last(key)"),),
    ),
    Mutation(
        "an epoch ends without its claims being carried over",
        "no file names the tasks that live: second ones are inserted",
        "keyed-epochs",
        (("upkeep.key_files:KeyCollector._carry", "held.append(claim)", "pass"),),
    ),
    Mutation(
        "upkeep removes the files of keys on a network mount one by one",
        "it is cut off between the look and the removal, and removes a file that another has begun: two tasks live",
        "keyed-gc-nfs",
        (("upkeep.key_files:KeyCollector.collect", "elif self.store.fs.shared:", "elif False:"),),
        first=1000,
    ),
    # -- keys and priorities together ----------------------------------------------------------------
    Mutation(
        "a keyed task goes into an open batch as one without a priority",
        "the file's name does not promise it, and a worker with a bound may believe that no task has a priority",
        "keyed-order",
        ((f"{INSERTER}._insert", "self._single.insert(line, when, rank, ", "self._single.insert(line, when, announce="),),
    ),
    Mutation(
        "the file of a large keyed task has a name without its priority",
        "no worker looks for it before all that have one",
        "keyed-order-large",
        ((f"{INSERTER}._with_own_file", "insertion.moment(store, when), rank)", "insertion.moment(store, when))"),),
    ),
    Mutation(
        "a large keyed task does not make it known that there are priorities",
        "a worker with a bound believes that there are none",
        "keyed-order-large",
        ((f"{INSERTER}._with_own_file", "    ordering.mark(store, rank)\n", ""),),
    ),
    Mutation(
        "what is known of priorities comes behind a large keyed task",
        "its inserter dies between the two: the task is there, and a worker with a bound believes that there are none",
        "keyed-order-large",
        ((f"{INSERTER}._with_own_file", "    ordering.mark(store, rank)\n", ""),
         (f"{INSERTER}._with_own_file", "    store.doorbell.ring()\n", "    ordering.mark(store, rank)\n    store.doorbell.ring()\n")),
    ),
    Mutation(
        "of a stream the tasks with keys lose their priorities in names",
        "no worker looks for them before all that have one",
        "keyed-order",
        (("protocol.encoding:_runs", "at, rank_of(priority), task.key, index)", "at, LAST, task.key, index)"),),
    ),
    Mutation(
        "of a stream the tasks with keys are inserted without their priorities",
        "the file's name promises what no task in it has: they come after all others",
        "keyed-order",
        (("protocol.encoding:_runs", "keyed_line = with_key(line, ", "keyed_line = with_key(encode(task.payload, bytes_max, index), "),),
    ),
    Mutation(
        "a stream counts the tasks whose keys are taken as new",
        "its caller believes that they are in the queue",
        "keyed-order",
        (("protocol.insertion:_Done.count_keyed", "self.keyed_new += is_new", "self.keyed_new += 1"),),
    ),
    Mutation(
        "a new task is told not to be new",
        "its caller believes that nothing was inserted",
        "keyed-order",
        ((f"{INSERTER}._insert", "return TaskRef(self._single.insert(line, when, rank, self._announcing(held, key)))", "return TaskRef(self._single.insert(line, when, rank, self._announcing(held, key)), inserted=False)"),),
    ),
    Mutation(
        "a batch without priorities is done when its leases have run out",
        "workers pass it over while others in the queue have priorities",
        "keyed-order-restated",
        (("format.task_states:States.head", "        self._gather(at, margin)\n", "        self.ranks is None or self._gather(at, margin)\n"),),
        first=4600,
    ),
]  # fmt: skip
