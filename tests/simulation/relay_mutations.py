"""What is asked of several queues at once, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "each of several queues is asked by itself whether it is drained",
        "a task inserts the next one into a queue that was asked before, and is completed then",
        "relay-calm",
        (
            (
                "DrainCheck.__call__",
                "return not self._has_left() and two_agree(self._collect)",
                """
                self._has_left()
                return all([one.collect() == one.collect() is not None for one in self._remains])
                """,
            ),
        ),
    ),
    Mutation(
        "of several queues the first one alone is asked whether it is drained",
        "it is called drained while the others have tasks",
        "relay",
        (("DrainCheck._collect", "for remains in self._remains: ...", "for remains in self._remains[:1]: ..."),),
    ),
    Mutation(
        "a batch of cancelled tasks ends without a trace",
        "two looks agree, though a task hopped from queue to queue all the time",
        "relay-hops",
        (
            (
                "note_cancelled",
                """
                with store.locked(locked.log.layout.cancelled, wait_s, durable=store.sync_movements) as fd: ...
                """,
                "pass",
            ),
        ),
    ),
    Mutation(
        "a wait for several queues believes what each says of itself",
        "they are asked one after the other, and the task is always in the one that is not asked",
        "relay-wait",
        (("Backlog.look", "drained = self.is_drained()", "drained = True"),),
        first=480,
    ),
    Mutation(
        "a loop ends when it finds nothing",
        "a task that another worker has leased comes back, and no loop is there any more",
        "relay-wait",
        (("EndCheck.__call__", "if not self._is_drained(): ...", "if False: ..."),),
    ),
    Mutation(
        "several queues are leased from by what they seem to have",
        "none of them is looked at before it is said that none has a task",
        "relay",
        (
            (
                "Several.look",
                "for watch in list(self._watches) if not held else (): ...",
                "for watch in (): ...",
            ),
        ),
    ),
    Mutation(
        "a queue that promises too much gives what it has",
        "its task is leased before a more urgent one of another queue",
        "relay-order",
        (
            (
                "Several._take",
                "bound = min((rank for rank in promised.values() if rank > best), default=LAST)",
                "bound = LAST",
            ),
        ),
    ),
    Mutation(
        "a lease from several queues may give one task twice",
        "a lease runs out while the call is stopped, and the call finds the task again",
        "relay",
        (
            (
                "Several.look",
                "return latest(held)",
                "return held",
            ),
        ),
        first=20460,
    ),
]
