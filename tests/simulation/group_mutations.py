"""Groups of queues, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a queue of a group gets its line behind the link",
        "a crash between the two leaves a queue that is not the group's, for ever",
        "group",
        (
            (
                "GroupDirectory._link",
                """
                fs.write_all(fd, birth + layout.group_record(self.state.id, now) + unsafe + mark)
                fs.fsync(fd)
                with suppress(FileExistsError): ...
                """,
                """
                fs.write_all(fd, birth + unsafe + mark)
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
        "a lessee of a group lists it once",
        "it does not find the queue that comes into being while it waits",
        "group-wait",
        (("_OfOne.list_anew", "if now < self._look_at: ...", "if self.listed: ..."),),
        first=33,
    ),
    Mutation(
        "a directory of a group that seems missing is believed missing",
        "a client does not see for a minute that the group was made, and says that there is none",
        "group-nfs",
        (
            (
                "GroupDirectory.__init__",
                """
                try: ...
                except GroupNotFound:
                    if not mount.shared or not _is_there_after_all(path):
                        raise
                    self._stamp, self.state = self._read()
                """,
                "self._stamp, self.state = self._read()",
            ),
            # What the error says of the mount point is learnt by a listing, and after it the client sees the group.
            ("how_to_go_on", "bare = _empty_directory(path)", "bare = None"),
        ),
        first=1550,
    ),
    Mutation(
        "a look at a group notes no stamp of its directory",
        "two looks agree, though a task hopped all the time into queues that were made for it and deleted after it",
        "group-hops",
        (("GroupDrainCheck._collect", "if not are_queues: ...", ""),),
        first=39,
    ),
    Mutation(
        "a look at a group begins in the tick in which the last one noted the stamp",
        "a queue comes and is deleted in that tick, and leaves the stamp as it was",
        "group-hops",
        (("GroupDrainCheck._collect", "if (early_s := self._shows_at - self._clock.monotonic()) > 0: ...", ""),),
        first=39,
    ),
    Mutation(
        "a barrier passes whether its queues are drained or not",
        "its tasks are available while tasks are left that it waits for",
        "barrier",
        (
            (
                "BarrierLooks._see_to",
                """
                if now == "waiting" and (verdict := self._verdict(group, record)) is not None:
                    now = barrier_files.advance(directory, identity, "waiting", verdict)
                """,
                """
                if now == "waiting":
                    now = barrier_files.advance(directory, identity, "waiting", "firing")
                """,
            ),
        ),
        first=19,
    ),
    Mutation(
        "a join passes while tasks of its set are left",
        "its task is available before the tasks that it waits for have ended",
        "join",
        (("JoinProgress.look", 'if _is_unfinished(group, self._left[-1]): return "waits"', ""),),
    ),
    Mutation(
        "a join passes while one of its tasks is a dead letter",
        "its task is available before the tasks that it waits for are done",
        "join-dead",
        (("JoinProgress.look", 'return "waits" if dead else "done"', 'return "done"'),),
    ),
    Mutation(
        "a barrier that has begun is gone on with by nobody",
        "whoever has set it died, and its tasks are due never",
        "barrier",
        (("BarrierLooks._see_to", 'if now == "begun": ...', ""),),
    ),
]
