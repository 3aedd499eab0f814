"""The grammar of names: what is built can be parsed, and nothing else can."""

from __future__ import annotations

import ast
from typing import NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.clock import MS_MAX
from fsqueue.errors import InvalidArgument
from fsqueue.format import names
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import LAST, rank_of
from tests.house import source
from tests.house.source import PACKAGE, TOP, code

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
KEY = "aa93f0c2a4b97c31a2d5e8f0012345ff"

batches = st.text("0123456789abcdef", min_size=32, max_size=32)
priorities = st.one_of(st.none(), st.text("abcXYZ019%-_.~", max_size=30))
in_the_file = st.builds(
    TaskFileName, st.integers(0, MS_MAX), batches, st.integers(1, 1024), priorities, inserted=st.none()
)
in_the_log = st.builds(
    TaskFileName,
    st.integers(0, MS_MAX),
    batches,
    st.just(0),
    priorities,
    st.one_of(st.just(names.TAKES_INSERTS), st.integers(1, 1024)),
)
task_file_names = st.one_of(in_the_file, in_the_log)


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
        f"0000000000000-{BATCH}~{KEY}-1.jsonl",
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
    assert TaskFileName(0, BATCH, 1, "a%2Fb%20c").rank == rank_of("a/b c")
    assert TaskFileName(0, BATCH, 1).rank == LAST
    assert TaskFileName(0, BATCH, 1).ranked(rank_of("a/b c")) == TaskFileName(0, BATCH, 1, "a%2Fb%20c")


@given(batches)
def test_log_is_named_by_the_batch(batch: names.Batch) -> None:
    assert names.parse_log_file(names.log_file(batch)) == batch


@pytest.mark.parametrize(
    "text", ["", f"{BATCH}", f"{BATCH}.json", f"x{BATCH}.jsonl", f"{BATCH}~{KEY}.jsonl", ".nfs0001"]
)
def test_anything_else_is_no_log(text: str) -> None:
    assert names.parse_log_file(text) is None


def test_birth_is_in_the_batch() -> None:
    assert names.birth_ms(BATCH) == 0x0193F0C2A4B9


@given(batches, st.integers(1, 4096))
def test_shard_is_one_of_all(batch: str, shards: int) -> None:
    every = names.all_shards(shards)
    assert names.shard_of(batch, shards) in every
    assert len(set(every)) == shards


def test_batches_spread_over_all_shards() -> None:
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


def test_a_task_files_name_has_255_bytes_at_most() -> None:
    stem = f"{0:013d}-{'0' * 32}-1-"
    assert len(stem) == 49
    for count, fits in ((200, True), (201, False)):
        assert (names.parse_task_file(f"{stem}{'p' * count}.jsonl") is not None) == fits


@pytest.mark.parametrize("text", ["ä", "a b", "\udc80", "a\n"])
def test_a_priority_in_a_name_is_percent_encoded(text: str) -> None:
    assert names.parse_task_file(f"{0:013d}-{'0' * 32}-1-{text}.jsonl") is None


ids = st.text("0123456789abcdef", min_size=16, max_size=16)
numbers = st.integers(1, 10**18 - 1)
days = st.dates().map(lambda day: day.strftime("%Y-%m-%d").zfill(10))
commits = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._=+@-]{0,199}\Z")
anything = st.one_of(
    st.text(max_size=80),
    st.text("0123456789abcdef-~./\n\0", max_size=80),
    st.builds("{}{}".format, st.sampled_from([".fsqueue-deleted-", ".gone-", ".new-", "1-", "2026-11-21-"]), ids),
    st.builds("{}/../{}".format, ids, batches),
    st.builds("{}\n".format, ids),
)


@given(ids, ids)
def test_the_name_of_a_deleted_queue_round_trips(queue: str, random: str) -> None:
    name = names.deleted(names.QueueId(queue), random)
    assert names.parse_deleted(name) == queue
    assert len(name) == 50
    assert names.parse_deleted(f"{name}-{random}") is None


@given(numbers, ids, ids)
def test_the_names_of_generations_round_trip(number: int, queue: str, random: str) -> None:
    name = names.generation(number, names.QueueId(queue))
    assert names.parse_generation(name) == (number, queue)
    assert names.parse_trashed_generation(names.trashed(name, random)) == (number, queue)
    assert names.parse_trashed_day(names.trashed(name, random)) is None


@given(days, ids)
def test_the_names_of_days_round_trip(text: str, random: str) -> None:
    day = names.parse_day(text)
    assert day == text
    assert names.parse_trashed_day(names.trashed(day, random)) == day
    assert names.parse_trashed_generation(names.trashed(day, random)) is None


@given(batches, commits)
def test_the_names_of_attempts_proposals_and_records_round_trip(identity: str, commit: str) -> None:
    uuid, name = names.attempt_name(identity), names.commit_name(commit)
    assert names.parse_attempt(names.attempt(uuid, name)) == (uuid, name)
    assert names.parse_proposal_file(names.proposal_file(uuid)) == uuid
    assert names.parse_record_file(names.record_file(name)) == name


@given(st.integers(0, 4095), st.integers(1, 4096))
def test_the_names_of_shards_and_counters_round_trip(number: int, shards: int) -> None:
    shard = names.all_shards(shards)[number % shards]
    assert names.parse_shard_file(f"{shard}.jsonl", shards) == shard
    assert names.parse_shard_file(f"{shard}", shards) is None
    assert [names.parse_counter(name) for name in names.counters(16)] == names.counters(16)


@given(ids)
def test_the_names_of_what_passes_round_trip(random: str) -> None:
    for build, parse in (
        (names.gone, names.is_gone),
        (names.probe, names.is_passing),
        (names.fresh, names.is_fresh),
    ):
        assert parse(build(random))
        assert not parse(build(random) + "0")
        assert not parse(build(random[1:]))


PARSERS = [
    names.parse_task_file, names.parse_log_file, names.parse_counter, names.parse_generation, names.parse_deleted,
    names.parse_trashed_generation, names.parse_trashed_day, names.parse_queue_id, names.parse_day, names.parse_uuid,
    names.parse_batch, names.parse_commit, names.parse_record_file, names.parse_proposal_file,
    names.parse_ballot_file,
    names.parse_attempt, lambda text: names.parse_shard_file(text, 64),
    lambda text: names.is_gone(text) or None, lambda text: names.is_passing(text) or None,
    lambda text: names.is_fresh(text) or None, lambda text: names.is_node_file(text) or None,
]  # fmt: skip


@given(anything)
def test_nothing_that_parses_leads_out_of_its_directory(text: str) -> None:
    for parse in PARSERS:
        found = parse(text)
        if found is not None:
            assert "/" not in text
            assert "\0" not in text
            assert text not in ("", ".", "..")
            assert not text.endswith("\n")
            parts = found if isinstance(found, tuple) else (found,)
            assert all(part in text for part in parts if type(part) is str)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../../../precious", "/x", "a" * 31, "A" * 32, "a" * 33, None, 7, b"a"]
)
def test_what_is_no_attempt_is_an_invalid_argument(text: object) -> None:
    with pytest.raises(InvalidArgument, match="Nothing was done"):
        names.attempt_name(text)


def makes(node: ast.AST, kinds: set[str]) -> bool:
    """Whether this is `Batch(text)`, or `cast(Batch, text)`."""
    if not isinstance(node, ast.Call):
        return False
    called = [ast.unparse(one).rpartition(".")[2] for one in (node.func, *node.args[:1])]
    return called[0] in kinds or (called[0] == "cast" and called[-1] in kinds)


def test_only_the_grammar_makes_names() -> None:
    """mypy refuses a plain string in a path; nobody may get round it by making the type himself."""
    kinds = {name for name, kind in vars(names).items() if isinstance(kind, NewType)}
    assert kinds == {
        "QueueId",
        "Generation",
        "Batch",
        "Uuid",
        "CommitName",
        "Shard",
        "Day",
        "CounterName",
        "KeyDigest",
        "KeyEpoch",
        "QueueDirectory",
        "UpdateId",
        "DecisionFileName",
        "NumberFileName",
    }
    examples = ast.parse("names.Batch(a); cast(names.Day, a); f(a)").body
    assert [makes(one.value, kinds) for one in examples] == [True, True, False]
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "names.py"]
    nodes = ((path, node) for path in files for node in code(source.parse(path)))
    assert [f"{path.relative_to(TOP)}:{node.lineno}" for path, node in nodes if makes(node, kinds)] == []
