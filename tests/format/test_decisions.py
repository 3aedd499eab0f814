"""Decision files replay to the same state however they are read, and the first line of an update counts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.clock import Entropy
from fsqueue.format import decisions, names
from fsqueue.format.decisions import ABORTED, Decision, DecisionState, LogName
from fsqueue.format.names import Batch, QueueId, UpdateId

U, V, W = (UpdateId(digit * 16) for digit in "abc")
LOG = LogName(names.queue_directory("a b"), names.generation(3, QueueId("1" * 16)), Batch("0" * 32))
LINES = [
    decisions.opening(1, QueueId("2" * 16), {"host": "here", "pid": 7}),
    *(decisions.commit(at, update, [LOG, LOG]) for at, update in ((5, U), (6, V))),
    *(decisions.abort(at, update) for at, update in ((2, U), (9, V))),
    decisions.gone(10),
    b"~\n",
    b'{"op":"commit"\n',
]


def replayed(content: bytes) -> DecisionState:
    state = DecisionState()
    state.replay([(0, content)])
    return state


@given(st.lists(st.sampled_from(LINES)), st.binary(max_size=3).filter(lambda torn: b"\n" not in torn), st.data())
def test_the_first_line_counts_and_pieces_are_as_good_as_all(
    lines: list[bytes], torn: bytes, data: st.DataObject
) -> None:
    content = b"".join(lines)
    state = DecisionState()
    cut = data.draw(st.integers(0, len(content)))
    assert state.replay([(0, content[:cut])]) == cut - state.end
    assert state.replay([(state.end, content[state.end :] + torn)]) == len(torn)
    whole = replayed(content)
    assert (state.first, state.is_gone, state.at, state.end) == (whole.first, whole.is_gone, whole.at, len(content))
    before_gone = lines[: lines.index(LINES[5])] if LINES[5] in lines else lines
    assert state.is_gone == (LINES[5] in lines)
    for update, commit, abort in ((U, LINES[1], LINES[3]), (V, LINES[2], LINES[4])):
        first = next((line for line in before_gone if line in (commit, abort)), None)
        wanted = {commit: Decision("commit", (LOG, LOG)), abort: ABORTED}.get(first or b"")
        assert state.first.get(update) == wanted
        assert state.about(update) == (wanted or (ABORTED if state.is_gone else None))
    assert state.about(W) == (ABORTED if state.is_gone else None)


ESCAPED = b'{"op":"\\u0061bort","at":3,"update":"' + b"".join(b"\\u%04x" % ord(digit) for digit in U) + b'"}\n'
"""A line against U, as JSON may be written, too."""


@given(
    st.lists(st.sampled_from([*LINES, ESCAPED, decisions.abort(4, W)])),
    st.lists(st.sampled_from([U, V, W, *(UpdateId(f"{n:016x}") for n in range(20))]), min_size=1, unique=True),
    st.data(),
)
def test_a_look_for_some_updates_tells_of_them_what_a_whole_replay_tells(
    lines: list[bytes], asked: list[UpdateId], data: st.DataObject
) -> None:
    content = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=3)))
    pieces = [(a, content[a:b]) for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True) if a < b]
    whole, state = replayed(content), DecisionState(asked)
    state.replay(pieces)
    assert [state.about(update) for update in asked] == [whole.about(update) for update in asked]
    assert (state.is_gone, state.end) == (whole.is_gone, whole.end)
    assert state.commits.keys() & set(asked) == whole.commits.keys() & set(asked)


def test_a_look_for_some_updates_parses_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease looks at the file whenever it meets an update that is not decided: each look took 0.1 s for a MiB."""
    parsed = []
    monkeypatch.setattr(decisions.orjson, "loads", lambda line: parsed.append(line) or {})
    others = [decisions.commit(5, UpdateId(f"{n:016x}"), [LOG]) for n in range(1000)]
    state = DecisionState([U, V])
    state.replay([(0, b"".join([*others, LINES[1]]))])
    assert parsed == [LINES[1].rstrip()]


@given(
    st.recursive(
        st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=3), st.sampled_from([*LOG, "commit", "gone", U])),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    ),
    st.dictionaries(
        st.sampled_from(["op", "at", "update", "logs"]),
        st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.sampled_from(["commit", "abort", U, "x"])),
    ),
)
def test_lines_that_make_no_sense_are_void(logs: Any, others: dict[str, Any]) -> None:
    for record in ({"op": "commit", "at": 1, "update": U, "logs": logs}, others, logs):
        state = replayed(orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS) + b"\n" + LINES[3])
        found = state.about(U)
        assert found is not None
        assert (found.outcome == "commit") == bool(found.logs)


def test_names_of_decision_files_and_updates_are_parsed_as_they_are_built() -> None:
    entropy = Entropy()
    file = names.new_decisions(entropy, 1_800_000_000_000)
    assert names.parse_decision_file(names.decision_file(file)) == file == names.parse_decisions(file)
    assert decisions.path_of("/group", file) == f"/group/.updates/{file}.jsonl"
    update = names.new_update(entropy)
    assert names.parse_update(update) == update
    for wrong in ("", "x" * 16, update.upper() + "A", f"{file}", None, 7):
        assert names.parse_update(wrong) is None
        assert names.parse_decision_file(str(wrong)) is None
