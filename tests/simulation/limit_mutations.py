"""Limits over all hosts, broken on purpose."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a lease does not count the slots under their lock",
        "two workers that have seen the last free slot both lease",
        "limited-calm",
        (
            (
                "Limiter.take",
                "room = len(tasks) if limits.max_leased is None else max(0, limits.max_leased - len(taken))",
                "room = len(tasks)",
            ),
        ),
    ),
    Mutation(
        "slots are given back without a look into their log",
        "a lease that is held loses its slot, and one task too many is leased",
        "limited-calm",
        (("Limiter._over", "over = over_in(locked, record_times.present(locked), those)", "over = [*those]"),),
    ),
    Mutation(
        "a lease that has run out is not shown to be over in its log",
        "the worker whose clock is behind renews it after its slot was given back",
        "limited-skew",
        (("over_in", "if any(end is End.RUN_OUT for _, end in ends): ...", "pass"),),
        stories=6000,
    ),
    Mutation(
        "the slots of leases that were held before are left out",
        "when a limit is set, as many as it allows are leased besides those",
        "limited-set",
        (("make", "for number, slot in enumerate(_held(store), 1): ...", "pass"),),
    ),
    Mutation(
        "a limit holds at once",
        "a worker that has read the settings a moment before it was set leases without a slot",
        "limited-set",
        (("begin", "store.clock.sleep(SETTLE_S)", "pass"), ("Limiter._make", "if not self._content: ...", "pass")),
    ),
    Mutation(
        "the fast path does not ask for limits",
        "the next task of the batch in hand is leased without a slot",
        "limited",
        (("Leaser.lease", "not queue_file.state.is_plain", "queue_file.state.is_ordered"),),
    ),
    Mutation(
        "slots are never given back",
        "the queue stands still once as many leases were given as are allowed",
        "limited",
        (
            ("end_of", "if not state.named_by([index], slot.lease): ...", "pass"),
            ("end_of", "holder, until = ...", "return End.HELD"),
        ),
    ),
]
