"""Groups of queues, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a queue of a group is not synced before it is used",
        "a power loss takes the queue, with tasks that were reported inserted",
        "group-power",
        (
            (
                "GroupDirectory._begin",
                """
                try:
                    if state_in(...).closed: ...
                    fs.fsync(fd)
                finally: ...
                fs.sync_directory(path)
                fs.sync_directory(self.path)
                """,
                """
                try:
                    if state_in(...).closed: ...
                finally: ...
                """,
            ),
        ),
        first=1500,
    ),
    Mutation(
        "a queue of a group gets its line behind the link",
        "a crash between the two leaves a queue that is not the group's, for ever",
        "group",
        (
            (
                "GroupDirectory._link",
                """
                fs.write_all(fd, birth + layout.group_record(self.state.id, now) + unsafe)
                fs.fsync(fd)
                with suppress(FileExistsError): ...
                """,
                """
                fs.write_all(fd, birth + unsafe)
                fs.fsync(fd)
                with suppress(FileExistsError): ...
                fs.write_all(fd, layout.group_record(self.state.id, now))
                """,
            ),
        ),
    ),
    Mutation(
        "a queue of a group is made in place",
        "another inserter opens it before all of it is written",
        "group",
        (
            (
                "GroupDirectory._link",
                'fresh = f"{path}/{names.fresh(self.entropy.hex16())}"',
                "fresh = layout.settings_file(path)",
            ),
            (
                "GroupDirectory._link",
                """
                with suppress(FileExistsError): ...
                """,
                "",
            ),
            ("GroupDirectory._link", "with suppress(OSError): fs.unlink(fresh)", "pass"),
        ),
    ),
    Mutation(
        "a deleted queue of a group that is in its place is not moved away",
        "its deleter died, and nothing can be inserted under its name any more",
        "group-delete",
        (("GroupQueue._begin_or_open", "administration.finish_deletion(str(self._path))", "pass"),),
    ),
    Mutation(
        "the queues of a group are listed once to find them drained",
        "a queue comes into being behind the listing, and the task that made it is completed then",
        "group-relay",
        (("GroupDrainCheck.__call__", "return two_agree(self._collect)", "return self._collect() is not None"),),
    ),
    Mutation(
        "of a group each queue is asked by itself whether it is drained",
        "a task inserts the next one into a queue that was asked before, and is completed then",
        "group-relay",
        (
            (
                "GroupDrainCheck._ask",
                "return queue.store.queue_state.id.encode() + seen",
                'return b"drained"',
            ),
        ),
    ),
    Mutation(
        "a lessee of a group lists it once",
        "it does not find the queue that comes into being while it waits",
        "group-wait",
        (("_OfOne.list_anew", "if now < self._look_at: ...", "if self.listed: ..."),),
    ),
    Mutation(
        "a directory of a group that seems missing is believed missing",
        "a client does not see for a minute that the group was made, and calls it drained",
        "group-nfs",
        (
            (
                "GroupDirectory.__init__",
                """
                try: ...
                except QueueNotFound:
                    if not mount.shared or not _is_there_after_all(path):
                        raise
                    self.state = self._read()
                """,
                "self.state = self._read()",
            ),
        ),
    ),
]
