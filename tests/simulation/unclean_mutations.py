"""Clean-ups that fail, broken on purpose: what an insert says of the queue then, and what becomes of locks."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "what was closed counts as stored",
        "an NFS client writes when it closes, and the error of that comes too late for a name that is there",
        "unclosed-nfs",
        (("sync", "if store.sync_inserts: ...", "if False: ..."),),
        first=390,
    ),
    Mutation(
        "a file that cannot be removed counts as not published",
        "a renaming was done, and its reply an error: the tasks are in the queue, and the insert says that none is",
        "unclean",
        (("_remove", "not in_doubt or (not fs.shared and fs.same_file(staged.fd, staged.path))", "True"),),
    ),
    Mutation(
        "an error of removing a staged file ends the clean-up",
        "what is behind it is not noted: that a renaming may have been done, which failed",
        "unclean",
        (
            ("_remove", "if not in_doubt or (not fs.shared and fs.same_file(staged.fd, staged.path)): ...", "raise"),
            (
                "discard",
                "with suppress(OSError): staged.is_published = _remove(store, staged)",
                "staged.is_published = _remove(store, staged)",
            ),
        ),
    ),
    Mutation(
        "an error of unlocking hides what was done",
        "the task is published, and the error of its staged file's lock says that nothing was inserted",
        "unclean",
        (("Filesystem.end_lock", "with suppress(OSError): ...", "if True: ..."),),
    ),
    Mutation(
        "a lock that cannot be given back is kept",
        "the log stays open with its lock, and no other process gets on with the batch",
        "unclean",
        (
            (
                "end_badly",
                """
                store.logs.drop(log)
                if not isinstance(error, OSError) or is_interruption(error):
                    raise error
                """,
                """
                if not isinstance(error, OSError) or is_interruption(error):
                    store.logs.drop(log)
                    raise error
                """,
            ),
        ),
    ),
]
