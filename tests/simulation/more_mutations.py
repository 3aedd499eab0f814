"""More of the protocol, broken on purpose: defences that no story missed at first."""

from __future__ import annotations

from tests.simulation.mutations import BELIEVES, ELSEWHERE, Mutation

MUTATIONS = [
    Mutation(
        "a task may be handed out twice by one call",
        "its caller does it twice, and cannot tell which of both leases a LeaseLost means",
        "crash",
        (
            (
                "latest_leases",
                "return list({(task.batch, task.index): task for task in tasks}.values())",
                "return tasks",
            ),
        ),
    ),
    Mutation(
        "busy batches are not waited for",
        "a queue is called empty while somebody has the log of a batch with waiting tasks locked for a moment",
        "stop",
        (("Leaser._lease_from_heads", "if not held and busy and ...: ...", "if False and ...: ..."),),
    ),
    Mutation(
        "absence of a task file without a listing",
        "after a power loss the log does not know the file's newest name, and the tasks in it are buried as lost",
        ("lossy", "release", "complete", "then-power-names"),
        (("LockedBatch.task_file_names", "for _ in range(2): ...", "for _ in range(0): ..."),),
    ),
    Mutation(
        "names of logs, counters and letters are not made durable",
        "a power loss takes a file with everything in it that was synced",
        ("strict", "complete", "", "power"),
        (("DurableNames.secure", "self.sync(os.path.dirname(path))", ""),),
    ),
    Mutation(
        "a line of letters is not synced before what it names is published",
        "a power loss keeps the new tasks and loses the line that ends the letter: both are there",
        ("strict", "retry-dead", "lease-many", "killed-then-power"),
        (("publish_pending", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "gone is not looked for when leasing",
        "what is recorded in a log that has ended is lost with it",
        ("local", "lease", "poll", "on"),
        (
            (
                "LockedBatch.__enter__",
                """
                if try_lock(log.fd) or (wait_s > 0 and self._wait_for(log)):
                    ...
                    if replay_state.gone: ...
                    ...
                """,
                """
                if try_lock(log.fd) or (wait_s > 0 and self._wait_for(log)):
                    ...
                    if replay_state.gone and wait_s: ...
                    ...
                """,
            ),
        ),
    ),
    Mutation(
        "the log of a batch that has finished is unlinked without a farewell",
        "somebody who opened it meanwhile appends to a file without a name",
        ("local", "lease", "poll", "on"),
        (
            (
                "Leaser._from_locked",
                "finishing.retire(locked)",
                """
                locked.store.fs.unlink(locked.log.path)
                locked.drop()
                """,
            ),
        ),
    ),
    Mutation(
        "empty is said of a generation that was purged",
        "a queue is called empty although something was inserted before anybody asked",
        ("local", "lease-again", "purge-and-insert", "on"),
        (("Leaser.lease", "if not held and self.begin_look(now=True): ...", "if False: ..."),),
    ),
    Mutation(
        "a batch without its first record",
        "replaying the log gives nothing: no lease and no outcome in it counts",
        "calm",
        (
            (
                "Leaser._from_locked",
                "locked.log.add(transitions.opening(...))",
                "locked.replay_state.apply(transitions.opening(locked, locked.log.name), 0)",
            ),
        ),
    ),
    Mutation(
        "finished and not counted",
        "status promises tasks that no process counts any more",
        "calm",
        (("finish", "if replay_state.done[COMPLETED]: ...", "if False: ..."),),
    ),
    Mutation(
        "leased without the lock",
        "two write into one log at the same time",
        "calm",
        (
            (
                "LockedBatch.__enter__",
                "try_lock(log.fd) or (wait_s > 0 and self._wait_for(log))",
                "try_lock(log.fd) or not wait_s or (wait_s > 0 and self._wait_for(log))",
            ),
        ),
    ),
    Mutation(
        "renamed to a later time than the earliest",
        "no worker looks for the task when it is due",
        "calm",
        (("Leaser._record_lease", "due if due is not None else until", "(due if due is not None else until) + 60000"),),
    ),
    Mutation(
        "staged and not locked",
        "upkeep takes it for an orphan while its author is late",
        ("local", "insert-many", "gc", "days"),
        (
            ("stage_as", "locked = fs.lock(fd, store.clock, store.entropy, LOCK_S)", "locked = True"),
            BELIEVES,
        ),
    ),
    Mutation(
        "an inserter that was late to lock what it staged does not look again",
        "upkeep has reaped it meanwhile, and the insert reports success",
        ("local", "insert-many", "gc", "days"),
        (
            ("stage_as", "late = store.clock.monotonic() - began > LATE_S", "late = False"),
            BELIEVES,
        ),
    ),
    Mutation(
        "a finishing that writes no letters",
        "a crash in between loses the payloads of the dead",
        "crash",
        (
            (
                "finish",
                """
                if replay_state.done[DEAD]:
                    write_missing_letters(locked)
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "a queue that says it is closed is used on",
        "what is inserted goes into the trash",
        ("nfs", "insert-twice", "delete", "on"),
        (
            ("QueueFile.read", "if state.closed: ...", "if False: ..."),
            ELSEWHERE,
        ),
    ),
    Mutation(
        "leased without catching up",
        "what others have recorded meanwhile is not seen",
        "calm-nfs",
        (
            (
                "LockedBatch.__enter__",
                """
                if try_lock(log.fd) or (wait_s > 0 and self._wait_for(log)):
                    log.catch_up()
                    ...
                """,
                """
                if try_lock(log.fd) or (wait_s > 0 and self._wait_for(log)):
                    (not wait_s and log.replay_state.count) or log.catch_up()
                    ...
                """,
            ),
        ),
    ),
    Mutation(
        "staged without its last byte",
        "the last line of each batch is torn",
        "calm",
        (("stage_as", 'fs.write_all(fd, b"".join(pieces))', 'fs.write_all(fd, b"".join(pieces)[:-1])'),),
    ),
    Mutation(
        "lines of shared files are never synced on a local disk",
        "a power loss brings back the generation before",
        "power-purge",
        (("Journal.append", "sync or (fs.shared and sync is not None)", "fs.shared and sync is not None"),),
    ),
    Mutation(
        "shared files are written to without waiting for the lock",
        "two append to one file at the same time",
        "beside",
        (
            (
                "Journal.take_lock",
                "if not fs.lock(fd, clock, entropy, wait_s): ...",
                "if not fs.try_lock(fd) and False: ...",
            ),
        ),
    ),
    Mutation(
        "a task file keeps its old name",
        "no worker looks for what is waiting until the old name's time has come",
        "calm",
        (
            (
                "LockedBatch.rename_task_file_surely",
                "if name != target and store.fs.rename(log.layout.task_file(name), path): ...",
                "if True: ...",
            ),
        ),
    ),
    Mutation(
        "who was away for days takes what is gone for published",
        "its lock was lost and `gc` has reaped the file; the insert reports success",
        ("nfs", "insert-many", "gc", "away"),
        (BELIEVES,),
    ),
    Mutation(
        "given back before the file has an earlier name",
        "the renaming fails, and the caller is told so although the record stands",
        ("local", "release", "", "eio"),
        (
            (
                "release",
                """
                name_earlier(locked, at, available_at)
                ...
                locked.append_record("release", ...)
                """,
                """
                ...
                locked.append_record("release", ...)
                name_earlier(locked, at, available_at)
                """,
            ),
        ),
    ),
    Mutation(
        "a failure is recorded before the file has an earlier name",
        "the same; the attempt is charged, and the repeat is told that the lease was lost",
        ("local", "fail", "", "eio"),
        (
            (
                "fail",
                """
                name_earlier(locked, at, at + pause)
                locked.append_record("fail", ...)
                """,
                """
                locked.append_record("fail", ...)
                name_earlier(locked, at, at + pause)
                """,
            ),
        ),
    ),
    Mutation(
        "heads that are not kept are forgotten",
        "a shard has more task files than are kept in mind, and is called empty when those are used up",
        "small",
        (("Selection._list", "self._further[shard] = due[-1][14:]", ""),),
    ),
    Mutation(
        "an idle worker looks only when the bell rings",
        "what comes due, or whose lease runs out, is called by no worker",
        ("local", "idle-looks", "", "on"),
        (("IdlePoller.look", "leaser.selection.due(store.clock.now_ms())", "[]"),),
    ),
    Mutation(
        "a lease that has run out is renewed",
        "who took it over, or may have, has the task as well",
        ("local", "renew", "", "late"),
        (("renew", "in_time = [index for index in held if at < replay_state.since[index]]", "in_time = held"),),
    ),
    Mutation(
        "a task file's name is not on disk before its batch's log is",
        "a power loss keeps the lease of a task that was not reported inserted yet, and loses its file",
        ("strict", "insert-many", "lease-many", "then-power"),
        (("opening", "if store.sync_movements and not store.fs.shared: ...", "if False: ..."),),
    ),
    Mutation(
        "a task comes back before the time that its file's name promises",
        "no worker looks for it until then",
        "calm",
        (
            (
                "fail",
                'locked.append_record("fail", at, ..., available_at=at + pause, error=error)',
                'locked.append_record("fail", at, ..., available_at=at, error=error)',
            ),
        ),
    ),
    Mutation(
        "only names above a directory are made durable",
        "a power loss takes the new directory's name, and what was inserted with it",
        "power",
        (
            (
                "DurableNames.sync",
                """
                self._fs.sync_directory(directory)
                while directory not in self._known: ...
                """,
                "while directory not in self._known: ...",
            ),
        ),
    ),
    Mutation(
        "a log that ended is unlinked by its name",
        "whoever revived the name in vain, or leases from a file that was put back, writes into a file without a name",
        "crash-nfs",
        (("LockedBatch._retire_gone", "if self.store.fs.same_file(log.fd, log.path): ...", "if True: ..."),),
    ),
    Mutation(
        "what was purged is completed",
        "its holder is told that its work counts",
        "delete",
        (("of_present_generation", "lost = [task for task in tasks if task.generation != generation]", "lost = []"),),
    ),
    Mutation(
        "a purge is noticed a second later",
        "the same, for a second",
        "purge",
        (("QueueFile.is_unchanged", "... <= FRESH_S and size_now() == self._size_read", "... <= FRESH_S"),),
    ),
    Mutation(
        "queue.jsonl is believed for an hour",
        "tasks are leased that were purged a while ago",
        "delete",
        (("queue_file.FRESH_S", "FRESH_S = ...", "FRESH_S = 3600.0"),),
    ),
    Mutation(
        "a name that is late is left as it is",
        "upkeep leaves a task that waits, and no worker looks for it before the time that the name says",
        ("strict", "release", "", "power"),
        (("_look_at", "not at_work or is_late(replay_state, files[batch]) or ...", "not at_work or ..."),),
    ),
    Mutation(
        "letters of a batch at work are forgotten",
        "who replays its log finds dead tasks without letters, and writes those that were purged again",
        "given-back-full",
        (("_sort_out", "at_work = _batches_at_work(...)", "at_work = set()"),),
    ),
    Mutation(
        "a retry that is not published is given back",
        "no line names the staged tasks any more: they are reaped",
        ("nfs", "retry-dead", "bury", "stopped"),
        (
            (
                "_sort_out",
                "staged = _still_staged(store, layout, ...)",
                "staged = set()",
            ),
        ),
    ),
    Mutation(
        "letters are appended to a file that is closed",
        "a late renaming puts its successor in its place, without them",
        ("nfs", "purge-dead", "bury", "locks-lost"),
        (
            (
                "LetterFile.is_in_place",
                "super().is_in_place() and not self.is_replaced()",
                "super().is_in_place()",
            ),
        ),
    ),
    Mutation(
        "a file takes another's place before it is synced",
        "a power loss keeps its name, and loses the letters in it",
        ("strict", "bury", "purge-dead", "then-power"),
        (
            (
                "_write_successor",
                """
                if store.sync_inserts or store.fs.shared:
                    store.fs.fsync(made)
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "settled letters are forgotten before their batch is gone for good",
        "a power loss brings the log back, and its letters with it",
        ("strict", "bury", "purge-dead", "killed-then-power"),
        (("_sort_out", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    Mutation(
        "letters are synced to a file whose new name is not",
        "a power loss brings the closed file back, and what was appended to its successor is not seen",
        ("strict", "purge-dead", "bury", "then-power"),
        (
            (
                "letter_files.locked",
                """
                if durable:
                    file.secure_name()
                """,
                "",
            ),
        ),
    ),
    Mutation(
        "letters of a batch that others have finished",
        "a worker that has lost its lock writes a letter again that was purged and given back meanwhile",
        ("nfs", "bury", "purge-dead", "locks-lost"),
        (("write", "if wanted and not store.fs.same_file(log.fd, log.path): ...", "if False: ..."),),
    ),
    Mutation(
        "what was settled is given back before the history has it",
        "a power loss keeps the shorter file and loses the lines: nothing says what became of the letters",
        ("strict", "purge-dead", "bury", "then-power"),
        (
            ("_to_history", "store.locked(path, durable=store.sync_inserts)", "store.locked(path)"),
            ("_to_history", "file.append(..., store.sync_inserts)", "file.append(..., False)"),
        ),
    ),
]
