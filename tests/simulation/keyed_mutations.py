"""Unique keys, broken on purpose: what is written first, what is proven, and what is made durable."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "the record of a keyed task comes before the key's line",
        "its inserter dies between the two: the next insert finds no line, and inserts a second task",
        "keyed",
        (
            (
                "SingleInserter._insert",
                """
                if announce is not None:
                    announce(layout, batch, pending)
                """,
                "",
            ),
            (
                "SingleInserter._insert",
                "index = self._insert_into(batch, pending, rank, together)",
                """
                index = self._insert_into(batch, pending, rank, together)
                if announce is not None and index is not None:
                    announce(layout, batch, pending)
                """,
            ),
        ),
    ),
    Mutation(
        "a batch in which a key's record is not is left unsealed",
        "the record of an inserter that was cut off comes later: two tasks live",
        "keyed-cut",
        (("Claims._end", "if not is_known and locked.replay_state.takes_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "a batch without a log counts as ended on a network mount",
        "the inserter that has named it may be about to make the log",
        "keyed-cut",
        (("Claims._living", "if not may_come_late: ...", "if True: ..."),),
    ),
    Mutation(
        "a task lives because the key's last line names it",
        "it ended long ago: what should be inserted is not",
        "keyed",
        (
            (
                "InsertIds.find",
                "if state.places.get(index) == offset and state.state[index] in LIVING: ...",
                "if True: ...",
            ),
            (
                "Claims._find_in_open_log",
                "found[identity] = index, 0 if index is None else locked.replay_state.places[index] + 1",
                "found[identity] = index, 0 if index is None else 1 << 62",
            ),
        ),
    ),
    Mutation(
        "an inserter does not lock the key's file",
        "two look at the same time, and both find the key free: two tasks live",
        "keyed",
        (
            (
                "Journal.take_lock",
                """
                fs, fd = self.fs, self.fd
                asks_once = one_name and not fs.shared
                if not (asks_once and fs.try_lock(fd)): ...
                """,
                """
                fs, fd = self.fs, self.fd
                asks_once = one_name and not fs.shared
                if not ("/keys" in self.path or (asks_once and fs.try_lock(fd))): ...
                """,
            ),
        ),
    ),
    Mutation(
        "upkeep removes the file of a key without its lock",
        "an inserter that has it open goes on, another begins a new file: two tasks live",
        "keyed-gc",
        (
            (
                "KeyCollector._reap",
                "with keys.locked_existing(self.store, self.layout, path, finishing.WAIT_S) as key_file: ...",
                """
                with __import__("contextlib").nullcontext(
                    keys.KeyFile(
                        self.store, self.layout, self.epochs, None, self.store.fs, path, self.store.fs.look(path)
                    )
                ) as key_file: ...
                """,
            ),
        ),
    ),
    Mutation(
        "an inserter does not look whether the path still names the key's file",
        "it writes into a file that upkeep has removed",
        "keyed-order-gc",
        (("KeyFile.is_in_place", "self.size is not None or super().is_in_place()", "True"),),
        first=3000,
    ),
    Mutation(
        "a key is taken whose task has ended, and that is not synced",
        "a power loss takes the completion: two tasks live",
        "keyed-again-power",
        (("Claims._make_end_durable", "if not self.store.sync_movements: ...", "if False: ..."),),
    ),
    Mutation(
        "the key's line is not synced",
        "a power loss takes it, and keeps the task",
        "keyed-power",
        (
            (
                "KeyFile.add",
                "self.append(..., sync, read_back=self.fs.shared)",
                "self.append(..., False, read_back=self.fs.shared)",
            ),
        ),
    ),
    Mutation(
        "the name of the key's file is not synced",
        "a power loss takes the file, and keeps the task",
        "keyed-power",
        (("KeyFile.add", "if sync and not self.size: ...", "if False: ..."),),
    ),
    Mutation(
        "an inserter goes on after a purge with the key of the generation before",
        "another inserts with the key in the new generation: two tasks live",
        "keyed-purge",
        (
            (
                "KeyFile.is_current",
                "state.generation == self.layout.generation and state.key_epochs == self.epochs",
                "state.key_epochs == self.epochs",
            ),
            ("KeyedInserter._announcing", "if layout.generation != key_file.layout.generation: ...", "if False: ..."),
        ),
    ),
    # -- key epochs --------------------------------------------------------------------------------------
    Mutation(
        "an inserter goes on that has written its claim where no process looks any more",
        "another finds no claim in the present epoch: two tasks live",
        "keyed-epochs",
        (
            (
                "KeyFile.is_current",
                "state.generation == self.layout.generation and state.key_epochs == self.epochs",
                "state.generation == self.layout.generation",
            ),
        ),
    ),
    Mutation(
        "an inserter does not look into the epoch before the present one",
        "the task with its key is named there only: two tasks live",
        "keyed-epochs",
        (
            (
                "KeyedInserter._living",
                "key_file.last(key) or keys.earlier(store, key_file, key, wait_s)",
                "key_file.last(key)",
            ),
        ),
    ),
    Mutation(
        "an epoch ends without its claims being carried over",
        "no file names the tasks that live: second ones are inserted",
        "keyed-epochs",
        (("KeyCollector._carry", "key_file.add(claim)", ""),),
    ),
    Mutation(
        "upkeep removes the files of keys on a network mount one by one",
        "it is cut off between the look and the removal, and removes a file that another has begun: two tasks live",
        "keyed-gc-nfs",
        (
            (
                "KeyCollector.collect",
                """
                if self.store.fs.shared: ...
                else: ...
                """,
                """
                if False: ...
                else: ...
                """,
            ),
        ),
        first=1000,
    ),
    # -- several keys together -------------------------------------------------------------------------
    Mutation(
        "the files of several keys are let go before the records are there",
        "another process finds claims without records, and takes the keys: two tasks live",
        "keyed-together",
        (
            (
                "KeyedInserter._insert_together",
                "batch, indices = self._single.insert_all(new, self._announcing_all(files))",
                """
                [self.store.fs.unlock(one.fd) for one in files]
                batch, indices = self._single.insert_all(new, self._announcing_all(files))
                """,
            ),
        ),
    ),
    Mutation(
        "the lines of several keys are not synced",
        "a power loss takes one, and keeps the task",
        "keyed-together-power",
        (("keys.add_all", "fs.fsync(file.fd)", "pass"),),
    ),
    Mutation(
        "the names of the files of several keys are not synced",
        "a power loss takes one, and keeps the task",
        "keyed-together-power",
        (
            (
                "keys.add_all",
                "fs.at_once([partial(store.names.sync, directory) for directory in directories])",
                "",
            ),
        ),
    ),
    Mutation(
        "an inserter of several goes on after a purge with the keys of the generation before",
        "another inserts with one of them in the new generation: two tasks live",
        "keyed-together-purge",
        (
            (
                "KeyedInserter._announcing_all",
                "if layout.generation != files[0].layout.generation: ...",
                "if False: ...",
            ),
            (
                "KeyedInserter._announcing_all",
                "if not all(file.epochs == files[0].epochs for file in files) or not files[0].is_current(): ...",
                "if False: ...",
            ),
        ),
    ),
    Mutation(
        "an inserter of several takes the key of a claim without a record on a network mount",
        "the record comes late: two tasks live",
        "keyed-together-cut",
        (("Claims.all_living", "if not (store.fs.shared or claim.shared): ...", "if True: ..."),),
    ),
    # -- keys and priorities together ----------------------------------------------------------------
    Mutation(
        "a keyed task goes into an open batch as one without a priority",
        "the file's name does not promise it, and a worker with a bound may believe that no task has a priority",
        "keyed-order",
        (
            (
                "KeyedInserter._insert",
                "self._single.insert(task, self._announcing(key_file, key))",
                r"self._single.insert(task._replace(rank=b'\x01'), self._announcing(key_file, key))",
            ),
        ),
    ),
    Mutation(
        "of a stream the tasks with keys lose their priorities in names",
        "no worker looks for them before all that have one",
        "keyed-order",
        (
            (
                "encoding.encode",
                "return EncodedTask(line, when, priority, rank_of(priority), key, index)",
                "return EncodedTask(line, when, priority, LAST if key else rank_of(priority), key, index)",
            ),
        ),
    ),
    Mutation(
        "of a stream the tasks with keys are inserted without their priorities",
        "the file's name promises what no task in it has: they come after all others",
        "keyed-order",
        (
            (
                "encoding.encode",
                "line = task_file.encode_task(task.payload, bytes_max, index, priority)",
                "line = task_file.encode_task(task.payload, bytes_max, index, None if task.key else priority)",
            ),
        ),
    ),
    Mutation(
        "a stream counts the tasks whose keys are taken as new",
        "its caller believes that they are in the queue",
        "keyed-order",
        (("_Done.count_keyed", "self.keyed_new += is_new", "self.keyed_new += 1"),),
    ),
    Mutation(
        "a new task is told not to be new",
        "its caller believes that nothing was inserted",
        "keyed-order",
        (
            (
                "KeyedInserter._insert",
                "return TaskRef(self._single.insert(task, self._announcing(key_file, key)))",
                "return TaskRef(self._single.insert(task, self._announcing(key_file, key)), inserted=False)",
            ),
        ),
    ),
    Mutation(
        "a batch without priorities is done when its leases have run out",
        "workers pass it over while others in the queue have priorities",
        "keyed-order-restated",
        (
            ("States.head", "self._gather(at, margin)", "self.is_ranked and self._gather(at, margin)"),
            ("States.choose", "self._gather(at, margin)", "self.is_ranked and self._gather(at, margin)"),
        ),
        first=4600,
    ),
]
