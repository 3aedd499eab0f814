"""Logs that were recorded once mean today what they meant then."""

from __future__ import annotations

from collections import Counter

from fsqueue.format.replay import ReplayState, is_well_formed
from tests.format import recorded


def test_a_replay_comes_to_the_same_as_it_did() -> None:
    wrong = [name for name, data, expected in recorded.loaded() if recorded.together(data) != expected]
    assert wrong == []


def test_the_logs_have_every_kind_of_record() -> None:
    kinds = Counter(record["op"] for _, data, _ in recorded.loaded() for _, record in recorded.records(data))
    assert {op for op, number in kinds.items() if number >= 5} >= {
        "open", "insert", "seal", "lease", "renew", "complete", "release", "fail", "bury", "cancel", "revoke",
        "replace", "depends", "move", "clock", "finish", "count", "gone", "commit", "abort",
    }  # fmt: skip


def test_every_record_that_acts_shows_in_the_digest() -> None:
    """Left out of what is replayed, each record changes what is known."""
    for _, data, _ in recorded.loaded()[::20]:
        whole = ReplayState()
        whole.replay(data, 0)
        for left_out, (_, record) in enumerate(found := recorded.records(data)):
            if record["op"] in ("open", "lease", "complete", "bury") and is_well_formed(record):
                state = ReplayState()
                for number, (offset, each) in enumerate(found):
                    if number != left_out:
                        state.apply(each, offset)
                assert recorded.digest(state) != recorded.digest(whole)
