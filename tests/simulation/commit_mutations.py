"""Named commits, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a commit's record is created, then written",
        "a crash in between leaves half a record, and the name is burnt",
        ("local", "publish-staged", "", "killed"),
        (
            (
                "decide",
                "store.fs.link(layout.ballot(record.id), layout.record(record.name))",
                """
                fd = store.fs.create(layout.record(record.name))
                store.fs.write_all(fd, record.encode())
                store.fs.close(fd)
                """,
            ),
        ),
    ),
    Mutation(
        "an error after the decision says that nothing is visible",
        "its user gives the tasks another name, and they are done twice",
        "commits-unclean",
        (("Commit._conclude", "commits.DECIDED", "commits.NOTHING"),),
    ),
    Mutation(
        "a link that has failed has decided nothing",
        "its reply was lost: the commit is decided, and is called not visible",
        "commits-unclean",
        (
            (
                "decide",
                """
                found = find(store, layout, record.name)
                if found is None or found.id != record.id: ...
                """,
                """
                withdraw(store, layout, record.id)
                found = None
                """,
            ),
        ),
    ),
    Mutation(
        "a record that exists is taken for done",
        "who died before applying it has left its tasks in staging, and a repeat reports success",
        ("local", "publish-staged", "commit-anew", "killed"),
        (
            (
                "Commit._finish",
                """
                commits.apply(store, layout, record)
                ...
                return CommitReport(..., repeated)
                """,
                """
                if not repeated:
                    commits.apply(store, layout, record)
                ...
                return CommitReport(..., repeated)
                """,
            ),
            ("apply_pending", "met = pending(store, layout, strict)", "met = []"),
            ("end_proposal", "if record is not None and is_decided(store, layout, record): ...", "if False: ..."),
        ),
    ),
    Mutation(
        "no process looks for what is pending",
        "after a crash a queue with committed tasks is called empty",
        "commits-crash",
        (("Leaser._lease_from_heads", "if commits.apply_pending(store) and anew: ...", "if False: ..."),),
    ),
    Mutation(
        "no worker looks for what is pending before it ends",
        "the same, and every worker ends",
        "commits-crash",
        (
            (
                "_Remains.collect",
                "if layout.commits in there and commits.apply_pending(store, strict=True): ...",
                "",
            ),
        ),
    ),
    Mutation(
        "the proposal goes before its files are in their place",
        "a crash in between leaves a decision that nothing leads to",
        "commits-crash",
        (
            (
                "apply",
                """
                try:
                    if store.sync_inserts: ...
                    with _attending(store, layout.proposal(record.id)): ...
                except OSError as error: ...
                """,
                """
                store.fs.unlink(layout.proposal(record.id))
                try:
                    if store.sync_inserts: ...
                    with _attending(store, layout.proposal(record.id)): ...
                except OSError as error: ...
                """,
            ),
        ),
    ),
    Mutation(
        "the decision is not synced before it is applied",
        "a power loss keeps some of the files and loses the decision",
        "commits-power",
        (("apply", "store.names.sync(layout.commits)", ""),),
    ),
    Mutation(
        "the shards are not synced before the proposal goes",
        "a power loss puts the files back into staging, and nothing leads to them",
        "commits-power",
        (("apply", 'store.fs.sync_directory(f"{layout.tasks}/{shard}")', ""),),
    ),
    Mutation(
        "what is staged is not synced",
        "its names survive a power loss, the tasks do not",
        "commits-power",
        (("_Stager._sync", "for fd in done if self.store.sync_inserts else (): ...", "for fd in (): ..."),),
    ),
    Mutation(
        "an attempt's directory is not synced",
        "parts that were reported staged are gone after a power loss",
        "commits-power",
        (
            ("_Stager._finish_part", "if store.sync_inserts: ...", "if False: ..."),
            ("_is_whole", "return not files and not tasks", "return True"),
        ),
    ),
    Mutation(
        "nothing is proven",
        "what was discarded is committed, and reported so",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (
            ("_is_whole", "return not files and not tasks", "return True"),
            ("prove", "whole = False", "whole = True"),
        ),
    ),
    Mutation(
        "reaped without looking for proposals",
        "what was proven is gone when it is decided",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (
            (
                "reap",
                "if not end_proposals(store, layout, (attempt,)): ...",
                "if False: ...",
            ),
        ),
    ),
    Mutation(
        "reaped without looking for the record",
        "what was decided is reaped",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (("reap", "if record is None or attempt not in record.attempts(): ...", "if True: ..."),),
    ),
    Mutation(
        "proven before it is proposed",
        "who reaps in between sees no proposal",
        ("nfs", "publish-staged", "discard-staged", "on"),
        (
            (
                "decide",
                """
                with _proposed(store, layout, record):
                    _prove(store, layout, record)
                    ...
                """,
                """
                _prove(store, layout, record)
                with _proposed(store, layout, record):
                    ...
                """,
            ),
        ),
    ),
    Mutation(
        "applied before it is decided",
        "half of a commit that is never decided is executed",
        ("local", "publish-staged", "lease-many", "killed"),
        (
            (
                "decide",
                "_prove(store, layout, record)",
                """
                _prove(store, layout, record)
                for attempt, parts in record.attempts().items():
                    _publish(store, layout, attempt, record.name, parts)
                """,
            ),
        ),
    ),
    Mutation(
        "each publishes his own parts, whoever won",
        "the tasks of both are executed",
        ("nfs", "publish-staged", "commit-anew", "on"),
        (
            (
                "Commit.publish",
                """
                own = Record(..., self.name, ...)
                try:
                    known = ... if overwrite else commits.decide(store, layout, own)
                except OSError as error: ...
                except FsqueueError as error: ...
                repeated = known.id != own.id
                """,
                """
                own = Record(..., self.name, ...)
                try:
                    known = ... if overwrite else commits.decide(store, layout, own)
                except OSError as error: ...
                except FsqueueError as error: ...
                repeated = known.id != own.id
                for attempt, mine in own.attempts().items():
                    commits._publish(store, layout, attempt, self.name, mine)
                """,
            ),
        ),
    ),
    Mutation(
        "a generation begins before its record is in it",
        "a crash in between leaves an empty queue, and what was to be in it is lost",
        ("local", "overwrite-staged", "", "killed"),
        (
            (
                "begin",
                """
                _note(store, following, record)
                try:
                    queue_file.append(...)
                except BaseException as error: ...
                """,
                """
                try:
                    queue_file.append(...)
                    _note(store, following, record)
                except BaseException as error: ...
                """,
            ),
        ),
    ),
    Mutation(
        "an overwriting does not look who else publishes its parts",
        "an NFS client moves a file out of a directory that has become the next generation's, and the task is lost",
        "commits-unclean-nfs",
        (
            ("overwriting._move", "if not commits.end_proposals(store, layout, attempts, commits.LOCK_S): ...", ""),
            ("overwriting._move", "are_free = commits.end_proposals(store, layout, attempts)", "are_free = True"),
            ("overwriting._move", "if found is not None: ...", ""),
        ),
        stories=1,
        first=5200097,
    ),
    Mutation(
        "a generation begins before its names are durable",
        "a power loss keeps the line that begins it, and nothing of what was to be in it",
        "commits-overwrite-power",
        (("_note", "fs.sync_directory(directory)", ""),),
    ),
    Mutation(
        "the ballot is not synced",
        "a power loss leaves a decision without its content",
        ("lossy", "publish-staged", "", "power-names"),
        (("cast_ballot", "if store.sync_inserts: ...", "if False: ..."),),
    ),
    # -- tasks with priorities -----------------------------------------------------------------------
    Mutation(
        "staging does not make it known that there are priorities",
        "a worker with a bound believes that there are none",
        "commits-order",
        (("_Stager._write", "queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))", ""),),
    ),
    Mutation(
        "the process that publishes makes it known that there are priorities, when all is in its place",
        "it dies between the two, or a worker with a bound comes first",
        "commits-order",
        (
            ("_Stager._write", "queue_changes.mark_ordered(store, min(encoded.rank for encoded in group))", ""),
            (
                "Commit._finish",
                "commits.apply(store, layout, record)",
                """
                commits.apply(store, layout, record)
                queue_changes.mark_ordered(store, b'')
                """,
            ),
        ),
    ),
    Mutation(
        "staged files have names without priorities",
        "no worker looks for the urgent tasks in them",
        "commits-order-calm",
        (("_Stager._write", "names.TaskFileName(...).ranked(encoded.rank)", "names.TaskFileName(...)"),),
    ),
    Mutation(
        "what a commit publishes loses the priority of its name",
        "no worker looks for the urgent tasks in it",
        "commits-order-calm",
        (("_publish", "layout.task_file(name)", "layout.task_file(name._replace(priority=None))"),),
    ),
]
