"""The grammar of names: what is built can be parsed, and nothing else can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import names
from fsqueue.clock import MS_MAX
from fsqueue.errors import InvalidArgument
from fsqueue.names import TaskFileName

pytestmark = pytest.mark.once

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
KEY = "aa93f0c2a4b97c31a2d5e8f0012345ff"

uuids = st.text("0123456789abcdef", min_size=32, max_size=32)
batches = st.one_of(uuids, st.builds("{}~{}".format, uuids, uuids))
priorities = st.one_of(st.none(), st.text("abcXYZ019%-_.~", max_size=30))
task_file_names = st.builds(TaskFileName, st.integers(0, MS_MAX), batches, st.integers(1, 1024), priorities)


@given(task_file_names)
def test_task_file_name_round_trips(name: TaskFileName) -> None:
    assert names.parse_task_file(str(name)) == name


@given(st.text(max_size=120))
def test_what_parses_as_a_task_file_is_spelled_the_one_way_there_is(text: str) -> None:
    name = names.parse_task_file(text)
    assert name is None or str(name) == text


def test_task_file_name_as_in_the_format() -> None:
    assert str(TaskFileName(0, BATCH, 256)) == f"0000000000000-{BATCH}-256.jsonl"
    assert str(TaskFileName(5, BATCH, 1, "a%2Fb")) == f"0000000000005-{BATCH}-1-a%2Fb.jsonl"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".nfs000000000001",
        f"0000000000000-{BATCH}-256",
        f"0000000000000-{BATCH}-256.jsonl~",
        f"0000000000000-{BATCH}-256.jsonl.swp",
        f".0000000000000-{BATCH}-256.jsonl",
        f"000000000000-{BATCH}-256.jsonl",
        f"00000000000000-{BATCH}-256.jsonl",
        f"0000000000000-{BATCH[:-1]}-256.jsonl",
        f"0000000000000-{BATCH.upper()}-256.jsonl",
        f"0000000000000-{BATCH}-0.jsonl",
        f"0000000000000-{BATCH}-01.jsonl",
        f"0000000000000-{BATCH}--1.jsonl",
        f"-000000000001-{BATCH}-1.jsonl",
        f"0000000000000-{BATCH}-1.jsonl\n",
        f"0000000000000-{BATCH}~-1.jsonl",
        f"000000000000\u0660-{BATCH}-1.jsonl",
    ],
)
def test_anything_else_is_no_task_file(text: str) -> None:
    assert names.parse_task_file(text) is None


def test_at_changes_the_time_alone_and_keeps_it_writable() -> None:
    name = TaskFileName(7, BATCH, 3, "p")
    assert name.at(9) == TaskFileName(9, BATCH, 3, "p")
    assert name.at(-1).available_at == 0
    assert len(str(name.at(10**14))) == len(str(name))


def test_names_of_one_batch_sort_by_time() -> None:
    name = TaskFileName(0, BATCH, 3)
    times = [0, 1, 999_999_999_999, 1_000_000_000_000, MS_MAX]
    assert sorted(str(name.at(time)) for time in reversed(times)) == [str(name.at(time)) for time in times]


def test_priority_is_decoded_for_comparing() -> None:
    assert TaskFileName(0, BATCH, 1, "a%2Fb%20c").decoded_priority == "a/b c"
    assert TaskFileName(0, BATCH, 1).decoded_priority is None


@given(batches)
def test_log_is_named_by_the_batch_or_its_key(batch: str) -> None:
    assert names.parse_log_file(names.log_file(batch)) == batch[-32:]


@pytest.mark.parametrize(
    "text", ["", f"{BATCH}", f"{BATCH}.json", f"x{BATCH}.jsonl", f"{BATCH}~{KEY}.jsonl", ".nfs0001"]
)
def test_anything_else_is_no_log(text: str) -> None:
    assert names.parse_log_file(text) is None


def test_birth_is_in_the_batch() -> None:
    assert names.birth_ms(BATCH) == 0x0193F0C2A4B9
    assert names.birth_ms(f"{BATCH}~{KEY}") == 0x0193F0C2A4B9


@given(batches, st.integers(1, 4096))
def test_shard_is_one_of_all(batch: str, shards: int) -> None:
    every = names.all_shards(shards)
    assert names.shard_of(batch, shards) in every
    assert len(set(every)) == shards


def test_shard_of_a_keyed_batch_is_that_of_its_key() -> None:
    assert names.shard_of(f"{BATCH}~{KEY}", 64) == names.shard_of(KEY, 64)
    assert {names.shard_of(f"{BATCH[:-2]}{number:02x}", 64) for number in range(256)} == set(names.all_shards(64))


@given(batches, st.integers(0, 999_999_999))
def test_task_id_round_trips(batch: str, index: int) -> None:
    assert names.parse_task_id(names.task_id(batch, index)) == (batch, index)


@pytest.mark.parametrize(
    "text", ["", BATCH, f"{BATCH}.", f"{BATCH}.01", f"{BATCH}.-1", f"{BATCH}.x", f" {BATCH}.0", f"{BATCH}.0\n", None, 7]
)
def test_malformed_task_id_is_an_invalid_argument(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a task id"):
        names.parse_task_id(text)


@given(batches, st.integers(0, 999_999_999), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_token_round_trips(batch: str, index: int, lease: str) -> None:
    assert names.parse_token(f"{batch}.{index}@{lease}") == (batch, index, lease)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{BATCH}.0",
        f"{BATCH}.0@",
        f"{BATCH}.0@0123",
        f"{BATCH}@0123456789abcdef",
        f"{BATCH}.0@0123456789abcdeF",
        None,
    ],
)
def test_malformed_token_is_an_invalid_argument(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a token"):
        names.parse_token(text)


def test_day() -> None:
    assert names.parse_day("2026-11-21") == "2026-11-21"
    assert not any(map(names.parse_day, ["2026-11-2", "2026-11-211", "x", ".nfs", "2026_11_21"]))


def test_queue_path_takes_paths_and_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert names.queue_path("/a/b/") == "/a/b"
    assert names.queue_path("fq:///a/b") == "/a/b"
    assert names.queue_path(Path("/a/../c")) == "/c"
    assert names.queue_path("q") == names.queue_path("fq://q") == os.path.join(tmp_path, "q")
    assert names.queue_path("~/q") == "/home/me/q"


@pytest.mark.parametrize("path", ["", "fq://", "a\0b", None, 7, b"/a"])
def test_what_is_no_path_is_an_invalid_argument(path: object) -> None:
    with pytest.raises(InvalidArgument, match="not a queue's path"):
        names.queue_path(path)


@pytest.mark.parametrize(("character", "most"), [("p", 200), ("ä", 100)])
def test_a_task_files_name_has_255_bytes_at_most(character: str, most: int) -> None:
    stem = f"{0:013d}-{'0' * 32}-1-"
    assert len(stem) == 49
    for count, fits in ((most, True), (most + 1, False)):
        assert (names.parse_task_file(f"{stem}{character * count}.jsonl") is not None) == fits
