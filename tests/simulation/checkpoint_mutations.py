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
                "storage.logs:Log.write",
                "    self.replay_state.replay_own(data, self.next_offset())\n    self.append(data)\n",
                "    self.replay_state.replay_own(data, self.append(data))\n",
            ),
        ),
    ),
    Mutation(
        "a torn checkpoint is not closed off",
        "the next record is part of its line, and is lost",
        "restated-full",
        (
            (
                "storage.logs:Log.append",
                "self.end, self.torn = end, written - size",
                "self.end, self.torn = base + written, 0",
            ),
        ),
    ),
    Mutation(
        "a checkpoint leaves out attempts",
        "a task is tried more often than it may be",
        "restated",
        (("format.checkpoints:_entry", "    if group.attempts:", "    if False:"),),
    ),
    Mutation(
        "a checkpoint leaves out that a lease was alone",
        "a lease that runs out charges no attempt",
        "restated",
        (("format.checkpoints:restore", 'each["alone"] is True', "False"),),
    ),
    Mutation(
        "a checkpoint stands behind the last record",
        "records are written behind the one that ends the log",
        "restated",
        (("format.replay:ReplayState.checkpoint", "    if not self.left:", "    if False:"),),
    ),
    Mutation(
        "a checkpoint does not say when leases end",
        "a lease that holds is taken over",
        "restated",
        (
            (
                "format.checkpoints:_restore_group",
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
        (("format.checkpoints:_trusted", "    if here != start + place:", "    if False:"),),
    ),
    Mutation(
        "a checkpoint is trusted whatever stands before it",
        "a client without a lock has overwritten what it restates: new readers see what nobody else sees",
        BY_UNIT_TESTS,
        (("format.checkpoints:_trusted", ' or _checksum(before) != record.get("sum")', ""),),
    ),
    Mutation(
        "a checkpoint leaves out which tasks go alone",
        "a task that kills its workers takes others with it again",
        BY_UNIT_TESTS,
        (("format.checkpoints:_entry", "    if group.is_solo:", "    if False:"),),
    ),
    Mutation(
        "a checkpoint leaves out what was cancelled",
        "what was taken out is handed out again",
        BY_UNIT_TESTS,
        (("format.checkpoints:restated", '"cancelled": _runs_of(CANCELLED, states)', '"cancelled": []'),),
    ),
]
