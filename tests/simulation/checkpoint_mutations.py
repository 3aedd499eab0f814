"""Checkpoints, broken on purpose: what they restate, when they are made, and when they are trusted."""

from __future__ import annotations

from tests.simulation.mutations import Mutation

MUTATIONS = [
    Mutation(
        "a checkpoint is made before its movement is in the state",
        "new readers do not see that movement",
        "restated",
        (
            (
                "Log.write",
                """
                for record in records:
                    self.add(record)
                data = b"".join(self._added)
                self._added, self.added_bytes = [], 0
                self.append(data)
                """,
                """
                offset = self.next_offset()
                data = b"".join([*self._added, *map(movements.encode, records)])
                self._added, self.added_bytes = [], 0
                self.append(data)
                for record in records:
                    self.replay_state.apply(record, offset)
                """,
            ),
        ),
    ),
    Mutation(
        "a torn checkpoint is not closed off",
        "the next record is part of its line, and is lost",
        "restated-full",
        (
            (
                "Log.append",
                """
                self.end, self.torn = end, written - size
                if ...:
                    self.end, self.torn = base + written, 0
                    ...
                """,
                """
                self.end, self.torn = base + written, 0
                if ...:
                    self.end, self.torn = base + written, 0
                    ...
                """,
            ),
        ),
    ),
    Mutation(
        "a checkpoint leaves out attempts",
        "a task is tried more often than it may be",
        "restated",
        (("_entry", 'if attempts:\n    found["attempts"] = attempts', "pass"),),
    ),
    Mutation(
        "a checkpoint leaves out that a lease was alone",
        "a lease that runs out charges no attempt",
        "restated",
        (("restore", 'each["alone"] is True', "False"),),
    ),
    Mutation(
        "a checkpoint stands behind the last record",
        "records are written behind the one that ends the log",
        "restated",
        (("ReplayState.checkpoint", "if not self.remaining or self.prepared: ...", "if self.prepared: ..."),),
    ),
    Mutation(
        "a checkpoint does not say when leases end",
        "a lease that holds is taken over",
        "restated",
        (
            (
                "_restore_group",
                'state, since = _CODES[group["state"]], number(group["since"], movements.TIME_MAX)',
                'state, since = _CODES[group["state"]], 0',
            ),
        ),
    ),
]

BY_UNIT_TESTS = "tests/format/test_checkpoints.py"
"""In stories no late write of a client without a lock gets through, as it does on servers that do not know of locks."""
OF_THE_FORMAT = [
    Mutation(
        "a checkpoint is trusted wherever it stands",
        "a client without a lock has written it behind the records of others, which are lost to new readers",
        BY_UNIT_TESTS,
        (("_trusted", "if here != start + place: ...", "if False: ..."),),
    ),
    Mutation(
        "a checkpoint is trusted whatever stands before it",
        "a client without a lock has overwritten what it restates: new readers see what no other reader sees",
        BY_UNIT_TESTS,
        (
            (
                "_trusted",
                'len(before) != here - since or _checksum(before) != line.get("sum")',
                "len(before) != here - since",
            ),
        ),
    ),
    Mutation(
        "a checkpoint leaves out which tasks go alone",
        "a task that kills its workers takes others with it again",
        BY_UNIT_TESTS,
        (("_entry", 'if is_solo:\n    found["solo"] = True', "pass"),),
    ),
    Mutation(
        "a checkpoint leaves out what was cancelled",
        "what was taken out is handed out again",
        BY_UNIT_TESTS,
        (("restated", "_runs_of(CANCELLED, states)", "[]"),),
    ),
]
