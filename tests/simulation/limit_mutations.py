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
                "room = len(tasks) if limits.max_leased is None else limits.max_leased - len(table.taken)",
                "room = len(tasks)",
            ),
        ),
    ),
    Mutation(
        "slots are counted as they were read last",
        "a slot that another worker has taken since is not seen",
        "limited-calm",
        (("Limiter.take", "table.update(file.content())", "pass"),),
    ),
    Mutation(
        "slots are given back without a look into their log",
        "a lease that is held loses its slot, and one task too many is leased",
        "limited-calm",
        (("Limiter._over_in", "over = over_in(locked, record_times.next_at(locked), those)", "over = [*those]"),),
    ),
    Mutation(
        "a lease that has run out is not ended by a record",
        "the worker whose clock is behind renews it after its slot was given back",
        "limited-skew",
        (
            ("Limiter.take", "if leases and run_out: ...", "pass"),
            ("over_in", "end(locked, at, [slot for _, slot in over])", "pass"),
        ),
        stories=6000,
    ),
    Mutation(
        "a lease that is over by the time of its log needs no record",
        "the log's time, which a wrong clock gave, is set back, and the lease holds again",
        "limited-steps",
        (("end_of", "if index in state.frozen: ...", "if state.at >= state.since[index]: return End.OVER"),),
        stories=6000,
    ),
    Mutation(
        "slots of an earlier boot count",
        "a power loss has taken a slot, and kept its lease",
        "limited-power",
        (("is_whole", "slots.header(store.domain)", "b'fsqueue slots 1'"),),
        stories=6000,
    ),
    Mutation(
        "slots are not synced where leases are",
        "a power loss has taken a slot of the same boot, and kept its lease",
        "limited-strict",
        (("SlotFile.put", "if durably: ...", "pass"), ("is_whole", "slots.header(store.domain)", "b'fsqueue slots 1'")),
        stories=6000,
    ),
    Mutation(
        "the slots of leases that were held before are left out",
        "when a limit is set, as many as it allows are leased besides those",
        "limited-set",
        (("fill", "for number, slot in enumerate(held, 1): ...", "pass"),),
    ),
    Mutation(
        "a limit holds at once",
        "a worker that has read the settings a moment before it was set leases without a slot",
        "limited-set",
        (
            ("begin", "store.clock.sleep(SETTLE_S)", "pass"),
            ("Limiter._make_file", "if not self._table.content: ...", "pass"),
        ),
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
    Mutation(
        "a slot does not tell the value of its task",
        "two workers lease tasks of one value, of which one is allowed",
        "fields-calm",
        (
            (
                "Limiter.take",
                "LeaseSlot(locked.batch, index, lease.id, self._of_queue + counts.get(index, ()))",
                "LeaseSlot(locked.batch, index, lease.id)",
            ),
        ),
    ),
    Mutation(
        "values are not counted under the lock of the slots",
        "two workers that have seen the last free place of a value both lease",
        "fields-calm",
        (("Limiter._fitting", "left.get(digest, 0) - gained.get(digest, 0) >= most[digest]", "False"),),
    ),
    Mutation(
        "a limit of one more field keeps the slots",
        "leases that were held before do not count against it",
        "fields-added",
        (("limits_after", "not after.limit.keys() <= settings.limit.keys()", "False"),),
        stories=6000,
    ),
    Mutation(
        "the maker of slots reads no payloads",
        "leases that were held when the limit began count against nothing",
        "fields-set",
        (("with_digests", "tuple(slots.digests(...).values())", "()"),),
    ),
    Mutation(
        "slots of a full value are never given back",
        "tasks of it wait for ever once as many were leased as are allowed",
        "fields",
        (("Limiter.give_back_of", "found = False", "return False"),),
    ),
    Mutation(
        "tasks of other values overtake one whose value only seems full",
        "a less urgent task is leased first, although nobody holds the more urgent one's value",
        "fields-order",
        (("Limiter.may_give_back", "return ...", "return False"),),
    ),
    Mutation(
        "slots are given back by what a log said before its lock was lost",
        "a client that was cut off takes the slot of a lease that another one has recorded since",
        "limited-nfs",
        (("Limiter.take", "if found: ...", "pass"),),
    ),
    Mutation(
        "a batch whose other tasks have no room now is forgotten",
        "tasks of other batches are leased before them, although they have room again",
        "fields-order",
        (("Leaser._choose_with_room", "if kept: ...", "pass"),),
    ),
    Mutation(
        "a rate is not asked under the lock of the slots",
        "two workers that have seen the last token both lease",
        "rated-calm",
        (("Limiter.take", "tasks = tasks[: self._may_begin(len(tasks))]", "pass"),),
    ),
    Mutation(
        "a lease takes no token",
        "tasks are leased as fast as workers can",
        "rated",
        (("Limiter.take", "if limits.rate is not None and begun: ...", "pass"),),
    ),
    Mutation(
        "tokens are kept for ever",
        "after a quiet hour all of its tasks are leased at once",
        "rated-calm",
        (("bucket_size", "return ...", "return 1e9"),),
    ),
    Mutation(
        "a queue of a group with limits is leased from as any other",
        "its leases have no slots in the group",
        "grouped-calm",
        (("AllLimits._each", "if state.has_group_limits: ...", "pass"),),
    ),
    Mutation(
        "slots of another queue of the group are given back without a look into it",
        "a lease that is held there loses its slot, and one task too many is leased",
        "grouped-two",
        (
            (
                "GroupLimiter._over_of",
                "return [*those] if store is None else self._over_in(store, batch, those)",
                "return [*those]",
            ),
        ),
    ),
    Mutation(
        "slots of a group are counted as they were read last",
        "two workers that have seen the last free slot both lease",
        "grouped-calm",
        (("Limiter.take", "table.update(file.content())", "pass"),),
    ),
    Mutation(
        "the slots of a group that stand for earlier leases are left out",
        "after a power loss as many as are allowed are leased besides those",
        "grouped-power",
        (("held_in", "found += of_group(directory, slot_files.held_now(store, fields))", "pass"),),
        stories=6000,
    ),
    Mutation(
        "a task that is not chosen among others is forgotten, if its lease has run out",
        "tasks of other batches are leased before it",
        "fields-order",
        (("States.choose_among", "self._gather(at, margin)", "pass"),),
    ),
]
