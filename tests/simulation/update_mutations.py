"""Atomic updates, broken on purpose: the rules that docs/design.md has in 4.22, each left out."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "an update is aborted in a log and not in its file",
        "the updater commits after that, and the other logs act",
        "update-stop",
        (("ask_in", "return vote_against(group, name, update, clock, entropy)", "return ABORTED"),),
    ),
    Mutation(
        "an error at the decision counts as no decision",
        "the line stands in the file, and the updater aborts its logs",
        "update-error",
        (("_Try.apply", "decision = self._settle(file.name, error)", "decision = ABORTED"),),
    ),
    Mutation(
        "an update is decided before its logs are on disk",
        "a power loss takes the prepared records of one log, and keeps the decision",
        "update-power",
        (("_Try._sync", "if not self._syncs: ...", "if True: ..."),),
    ),
    Mutation(
        "a decision is not on disk before the outcomes",
        "a power loss takes the decision, and keeps the outcome in one log",
        "update-power",
        (
            (
                "OwnDecisionFile._sync",
                """
                try:
                    fs.fsync(opened.fd)
                except OSError: ...
                else: ...
                """,
                "return",
            ),
        ),
    ),
    Mutation(
        "an updater does not ask whether a queue was purged",
        "its inserts lie in the purged tree, and it reports them done",
        "update-purge-nfs",
        (("_Try._look", "for opened in self._queues: ...", "for opened in (): ..."),),
    ),
    Mutation(
        "a prepared record freezes nothing",
        "a lease that runs out is taken over, and the commit acts on another one's task",
        "update-stop",
        (("task_states.States.freeze", "self.frozen.update(dict.fromkeys(tasks, prepared.update))", "pass"),),
    ),
    Mutation(
        "a task that an update depends on is not frozen",
        "its lease ends between the look and the decision, and the update happens all the same",
        "update-depends",
        (("task_states.States.freeze", "self.frozen.setdefault(index, prepared.update)", "pass"),),
    ),
    Mutation(
        "the first line of a decision file is written when it pleases the client",
        "it comes over the abort of another host, which has aborted a log by then",
        "update-steps",
        (("OwnDecisionFiles._made", "if group.fs.shared: ...", "if False: ..."),),
        first=1117,
    ),
]
