"""`queue.jsonl` and where things are."""

from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.errors import FormatTooNew, InvalidArgument, NotAQueue
from fsqueue.format import layout
from fsqueue.format.layout import Layout, QueueState, Settings, read_queue_state
from fsqueue.format.names import TaskFileName

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
ID = "0123456789abcdef"
BIRTH = layout.birth_record(Settings(), ID, 1)


def test_a_queue_is_born_in_its_first_generation() -> None:
    settings = Settings(shards=3, max_attempts=None, backoff_s=(0.5, 2), durability="strict", keep_history=False)
    assert read_queue_state(layout.birth_record(settings, ID, 1), "q") == QueueState(settings, ID, 1, closed=False)


def test_generations_follow_each_other() -> None:
    content = BIRTH + layout.generation_record(2, 5) + layout.generation_record(3, 6)
    assert read_queue_state(content, "q") == QueueState(Settings(), ID, 3)
    assert read_queue_state(content, "q").directory == f"3-{ID}"


def test_an_older_generation_does_not_come_back() -> None:
    content = BIRTH + layout.generation_record(3, 5) + layout.generation_record(2, 6) + layout.generation_record(3, 7)
    assert read_queue_state(content, "q").generation == 3


@pytest.mark.parametrize("queue_id", ["", "..", "/etc", "../" + "x" * 13, ID.upper(), ID + "0", ID + "\n", 7, None])
def test_an_id_never_leads_out_of_the_queue(queue_id: object) -> None:
    """It is part of the generations' names."""
    record = orjson.dumps({"op": "create", "at": 1, "format": layout.FORMAT, "id": queue_id, "settings": {}})
    with pytest.raises(NotAQueue):
        read_queue_state(record + b"\n", "q")


@pytest.mark.parametrize("number", [1, 0, -1, 10**18, "2", 2.0, None])
def test_a_generation_that_is_none_is_void(number: object) -> None:
    record = orjson.dumps({"op": "generation", "at": 1, "generation": number})
    assert read_queue_state(BIRTH + record + b"\n", "q") == QueueState(Settings(), ID)


def test_closed_stays_closed() -> None:
    queue_state = read_queue_state(BIRTH + layout.closed_record(3) + layout.generation_record(2, 4), "q")
    assert queue_state.closed
    assert queue_state.generation == 2


def test_torn_and_strange_lines_are_passed_over() -> None:
    noise = b'~\n\n[]\n7\n"x"\nnull\n{"op":"later","x":1}\n{"op":"generation"}\n'
    noise += b'{"op":"generation","generation":"2","directory":2}\n'
    assert read_queue_state(
        BIRTH + noise + layout.generation_record(2, 4) + b'{"op":"closed","at":9}', "q"
    ) == QueueState(Settings(), ID, 2)


def test_a_second_birth_does_not_change_the_settings() -> None:
    assert read_queue_state(BIRTH + layout.birth_record(Settings(shards=2), "1" * 16, 2), "q").settings == Settings()


def test_settings_that_this_version_does_not_know_are_left_alone() -> None:
    record = layout.birth_record(Settings(shards=7), ID, 1).replace(b'"settings":{', b'"settings":{"colour":"red",')
    assert b"colour" in record
    assert read_queue_state(record, "q").settings == Settings(shards=7)


def born(**changes: object) -> bytes:
    """The first line with other settings, or (`format`) another format; None: without."""
    record = orjson.loads(BIRTH)
    for key, value in changes.items():
        inside = record if key == "format" else record["settings"]
        inside[key] = value
        if value is None:
            del inside[key]
    return orjson.dumps(record) + b"\n"


def test_a_queue_of_an_older_version_has_the_default_of_a_later_setting() -> None:
    assert read_queue_state(born(keep_payloads=None), "q").settings.keep_payloads == Settings().keep_payloads


@pytest.mark.parametrize("key", layout.REQUIRED)
def test_a_queue_that_lacks_a_setting_is_not_opened_with_a_default(key: str) -> None:
    with pytest.raises(NotAQueue, match=f"lacks the setting {key}.*nothing was changed.*Restore"):
        read_queue_state(born(**{key: None}), "q")


@pytest.mark.parametrize("key", sorted(Settings.__dataclass_fields__.keys() - {*layout.LIMITS}))
@pytest.mark.parametrize("value", [-1, 10**30, 1.5, "x", [], {}, [1], [[1], [2]], True])
def test_a_setting_of_the_wrong_type_or_range_is_refused_by_name(key: str, value: object) -> None:
    if (key, value) in (("keep_history", True), ("lease_s", 1.5)):
        return
    if value == 10**30:
        value = 1e30
    with pytest.raises(NotAQueue, match=f"{key} must"):
        read_queue_state(born(**{key: value}), "q")


@pytest.mark.parametrize("value", [-1, 0, True, False, "1", "2", 1.0, 2.5, [], {}, None])
def test_a_format_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(NotAQueue, match=r"says format.*nothing was changed"):
        read_queue_state(born(format=value), "q")
    if value is not None:
        with pytest.raises(NotAQueue, match="says format"):
            read_queue_state(BIRTH + orjson.dumps({"op": "upgrade", "at": 2, "format": value}) + b"\n", "q")


def test_a_damaged_birth_is_not_passed_over_for_a_later_one() -> None:
    with pytest.raises(NotAQueue, match="lacks the setting shards"):
        read_queue_state(born(shards=None) + BIRTH, "q")
    with pytest.raises(FormatTooNew):
        read_queue_state(born(shards=None) + b'{"op":"format","at":2,"format":4}\n', "q")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"garbage\n",
        BIRTH[:-1],
        layout.closed_record(1),
    ],
)
def test_without_a_birth_it_is_no_queue(content: bytes) -> None:
    with pytest.raises(NotAQueue, match=r"q holds a queue\.jsonl that is empty or damaged"):
        read_queue_state(content, "q")


@pytest.mark.parametrize(
    "content",
    [
        re.sub(rb'"format":\d', b'"format":4', BIRTH),
        BIRTH + b'{"op":"format","at":2,"format":4}\n',
        b'{"op":"create","at":1,"format":99,"settings":"other"}\n',
    ],
)
def test_a_newer_format_is_refused(content: bytes) -> None:
    with pytest.raises(FormatTooNew, match=r"reads format 3\. Upgrade"):
        read_queue_state(content, "q")


@given(st.binary(max_size=200))
def test_any_bytes_after_the_birth_are_passed_over_or_understood(noise: bytes) -> None:
    try:
        queue_state = read_queue_state(BIRTH + noise, "q")
    except FormatTooNew:
        return
    assert queue_state.settings == Settings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"shards": 0},
        {"shards": 4097},
        {"shards": 1.5},
        {"shards": True},
        {"shards": "64"},
        {"batch_tasks_max": 0},
        {"batch_tasks_max": 1025},
        {"task_bytes_max": 0},
        {"max_attempts": 0},
        {"max_attempts": 2.0},
        {"lease_s": 0},
        {"lease_s": -1},
        {"lease_s": float("nan")},
        {"lease_s": float("inf")},
        {"lease_s": "600"},
        {"lease_s": 10**400},
        {"backoff_s": 5},
        {"backoff_s": (1,)},
        {"backoff_s": (2, 1)},
        {"backoff_s": (-1, 1)},
        {"backoff_s": (0, float("nan"))},
        {"durability": "full"},
        {"keep_history": 1},
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


def test_settings_round_trip_through_the_file() -> None:
    settings = Settings(
        shards=4096,
        batch_tasks_max=1,
        task_bytes_max=10,
        max_attempts=1,
        lease_s=0.5,
        backoff_s=(0, 0),
        durability="none",
        keep_history=False,
    )
    assert read_queue_state(layout.birth_record(settings, ID, 0), "q").settings == settings


def test_paths_as_in_the_format() -> None:
    here = Layout("/g/q", "2", 64)
    shard = here.shard(BATCH)
    assert here.task_file(TaskFileName(0, BATCH, 4)) == f"/g/q/2/queue/{shard}/0000000000000-{BATCH}-4.jsonl"
    assert here.log(BATCH) == f"/g/q/2/movements/{shard}/{BATCH}.jsonl"
    assert here.counter("07") == "/g/q/2/completions/07"
    assert here.dead("3f") == "/g/q/2/dead/3f.jsonl"
    assert here.history("2026-11-21", "3f") == "/g/q/2/history/2026-11-21/3f.jsonl"
    assert (here.doorbell, here.settings_file, here.staging, here.trash) == (
        "/g/q/doorbell",
        "/g/q/queue.jsonl",
        "/g/q/2/staging",
        "/g/q/.trash",
    )
    assert [layout.parent_of(queue) for queue in ("/g/q", "/q")] == ["/g", "/"]


def test_key_epochs_do_not_go_back_and_belong_to_their_generation() -> None:
    def epochs(*lines: bytes) -> tuple[int, ...]:
        return read_queue_state(BIRTH + b"".join(lines), "q").key_epochs

    def by_hand(earlier: int, present: int) -> bytes:
        return b'{"op":"keys","at":5,"generation":1,"earlier":%d,"present":%d}\n' % (earlier, present)

    line = layout.key_epochs_record
    assert epochs() == (0, 0, 0)
    assert epochs(line(1, 0, 1, 5)) == (0, 1, 5)
    assert epochs(line(1, 0, 1, 5), line(1, 1, 1, 9)) == (1, 1, 5)
    assert epochs(line(1, 1, 1, 9), line(1, 0, 1, 5)) == (1, 1, 9)
    assert epochs(line(1, 0, 1, 5), layout.generation_record(2, 6), line(1, 1, 1, 7)) == (0, 0, 0)
    assert epochs(by_hand(2, 1), by_hand(-1, 1), line(1, 0, 10**18, 5)) == (0, 0, 0)
    assert epochs(b'{"op":"keys","at":1,"generation":1,"earlier":"0","present":1}\n') == (0, 0, 0)
    assert epochs(b'{"op":"keys","at":1,"generation":1,"earlier":true,"present":true}\n') == (1, 1, 1)


SMALLER = layout.settings_record({"keep_payloads": 10}, 5 * 86_400_000)


def erased(*lines: bytes) -> tuple[int | None, int | None]:
    """When payloads were erased, and how long the longest one may be, after these lines of a queue that kept all."""
    state = layout.read_queue_state(b"".join([layout.birth_record(Settings(keep_payloads=None), ID, 1), *lines]), "q")
    return state.erased_at, state.payload_bytes_max


def test_what_a_line_says_that_was_erased() -> None:
    of, day = 5 * 86_400_000, 86_400_000
    assert erased(SMALLER) == (None, None)
    assert erased(SMALLER, layout.erased_record(10, of, of + 1)) == (of + 1, None)
    assert erased(SMALLER, layout.erased_record(10, of, of + 2 * day - 1)) == (of + 2 * day - 1, None)
    assert erased(SMALLER, layout.erased_record(10, of, of + 2 * day)) == (of + 2 * day, 10)
    first, second = layout.erased_record(10, of, of + 1), layout.erased_record(10, of, of + 2 * day)
    assert erased(SMALLER, first, second) == erased(SMALLER, second, first) == (of + 2 * day, 10)
    other = layout.settings_record({"lease_s": 5}, of + 7)
    assert erased(SMALLER, first, other) == (of + 1, None), "another setting"
    again = layout.settings_record({"keep_payloads": 100}, of + 3 * day)
    assert erased(SMALLER, second, again) == (None, 100)
    assert erased(SMALLER, again, second) == (None, None), "it came late"


@pytest.mark.parametrize(
    "wrong",
    [
        {"of": 1}, {"of": None}, {"at": None}, {"at": -1}, {"at": 1 << 43}, {"at": 1.5}, {"at": True}, {"at": "1"},
        {"keep_payloads": 11}, {"keep_payloads": None}, {"keep_payloads": True}, {"keep_payloads": 10.0},
    ],
)  # fmt: skip
def test_a_line_about_what_was_erased_that_makes_no_sense_is_void(wrong: dict[str, object]) -> None:
    record = orjson.loads(layout.erased_record(10, 5 * 86_400_000, 50 * 86_400_000)) | wrong
    assert erased(SMALLER, orjson.dumps(record) + b"\n") == (None, None)


def test_a_setting_without_a_time_is_never_said_to_be_done() -> None:
    for at in (None, "1", -1, 1 << 43):
        line = orjson.dumps({"op": "settings", "at": at, "settings": {"keep_payloads": 10}}) + b"\n"
        assert erased(line, layout.erased_record(10, 1, 50 * 86_400_000)) == (None, None)
