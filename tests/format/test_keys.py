"""Lines of keys' files, and the names of these files (docs/format.md, "Keys")."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import keys, names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import Layout
from fsqueue.format.names import Batch, Generation

BATCH = Batch("01a31" + "0" * 27)
LAYOUT = Layout("/q", Generation("1-0123456789abcdef"), 64)


@given(st.text(min_size=1).filter(lambda text: keys.fault(text) is None), st.integers(0, 1 << 40))
def test_a_claim_is_read_as_it_was_written(key: str, at: int) -> None:
    claim = KeyClaim(key, at, BATCH, "0123456789abcdef", "node7", 4711)
    line = keys.encode(claim)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert keys.parse(line[:-1]) == claim


@pytest.mark.parametrize(
    "line",
    [
        b"", b"~", b"{}", b"[]", b'{"op":"key"}', b'{"op":"key","at":1,"key":"k","batch":"x","insert":"y"}',
        b'{"op":"key","at":1,"key":"k","batch":"' + BATCH.encode() + b'"}',
        b'{"op":"key","at":1,"key":"k","staged":"0000000000000-' + BATCH.encode() + b'-1.jsonl"}',
        b'{"op":"other","at":1,"key":"k","batch":"' + BATCH.encode() + b'","insert":"y"}',
    ],
)  # fmt: skip
def test_what_is_no_claim(line: bytes) -> None:
    assert keys.parse(line) is None


@given(st.text(max_size=40))
def test_a_keys_file_lies_in_its_shard_whatever_the_key(key: str) -> None:
    path = LAYOUT.key(names.key_digest(key), 0)
    shard, name = path.removeprefix(f"{LAYOUT.keys(0)}/").split("/")
    digest = names.parse_key_file(name)
    assert digest == names.key_digest(key)
    assert LAYOUT.shard(digest or "") == shard
    assert names.parse_key_file(f"{name}~") is None


@given(st.dictionaries(st.text(), st.booleans()), st.text(min_size=1).filter(lambda text: keys.fault(text) is None))
def test_a_key_in_a_tasks_line(payload: dict[str, bool], key: str) -> None:
    line = b'{"payload":' + orjson.dumps(payload) + b"}\n"
    assert orjson.loads(keys.with_key(line, key)) == {"payload": payload, "key": key}
