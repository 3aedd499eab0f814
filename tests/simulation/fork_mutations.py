"""Forks, broken on purpose: what a child does with its parent's files, and what locks it keeps."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a child that comes back into a call removes what its parent has staged",
        "the parent goes on, and publishes a part whose files are gone",
        "fork-stream",
        (("_Stager._give_up", "if self._process != forks.depth: ...", "if False: ..."),),
    ),
    Mutation(
        "a child that comes back into a call goes on with it",
        "the rest of the stream is inserted by the parent and by the child",
        "fork-stream",
        (
            ("_carried", "if forks.depth != process: break", "if False: break"),
            ("_carried", 'if forks.depth != process: raise ForkedInCall(ForkedChild("a call"))', "if False: pass"),
        ),
    ),
    Mutation(
        "a child goes on with what its parent has leased ahead",
        "both do these tasks, and no lease has run out",
        "fork-both",
        (("Prefetched.forget", "self.tasks.clear()", "pass"),),
    ),
    Mutation(
        "a child goes on with the random digits of its parent",
        "both make the same names and leases: one's task is taken for the other's",
        "fork-both",
        (("Entropy.__init__", "forks.register(self, type(self).forget)", ""),),
    ),
    Mutation(
        "a child unlocks what it has inherited",
        "its parent has locked the same open log again, and others change it beside the parent",
        "fork-both",
        (("Log.discard", "if not inherited: ...", "if True: ..."),),
    ),
    Mutation(
        "the lock of a staged file is closed, and not given back",
        "a child has the file open, too: its lock stays taken, and upkeep takes the file's inserter for alive",
        "fork",
        (("Staged.close", "store.fs.end_lock(fd)", ""),),
    ),
    Mutation(
        "a log that is dropped is closed, and not unlocked",
        "a child has the log open, too: no process gets on with the batch as long as it lives",
        "fork",
        (("Log.discard", "if not inherited: ...", "if False: ..."),),
    ),
    Mutation(
        "the lock of a key's file is closed, and not given back",
        "a child has the file open, too: no process inserts with the key as long as it lives",
        "keyed-fork",
        (("Filesystem._end_section", "self.end_lock(fd)", "None"),),
    ),
]
