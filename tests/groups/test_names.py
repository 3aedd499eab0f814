"""Names of queues in a group, and the paths that mean them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import Group, InvalidArgument, Queue, QueueNotFound, Status
from fsqueue.format import names
from fsqueue.format.groups import GROUP_FILE

pytestmark = pytest.mark.once

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
"""None is too long: a character takes twelve bytes at most in the directory's name."""


@given(NAMES)
def test_a_name_comes_back_and_leads_nowhere_else(name: str) -> None:
    directory = names.queue_directory(name)
    assert names.parse_queue_directory(directory) == name
    assert os.path.normpath(os.path.join("/group", directory)) == f"/group/{directory}"
    assert not directory.startswith(".")
    assert directory.isascii()
    assert directory.isprintable()


@given(st.text(max_size=20))
def test_a_directory_is_that_of_one_name_or_of_none(text: str) -> None:
    name = names.parse_queue_directory(text)
    assert name is None or names.queue_directory(name) == text


WRONG = ("", ".", "..", ".x", "a b", "a/b", "%41", "%2f", "%", "%F", "%FF", "%00", "ä", "x" * 256)


@pytest.mark.parametrize("text", WRONG)
def test_other_directories_hold_no_queue(text: str) -> None:
    assert names.parse_queue_directory(text) is None


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "ä" * 43, "\ud800", None, 5, b"x"])
def test_what_cannot_be_a_name_is_refused(name: object, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be the name of a queue"):
        Group.create(tmp_path / "g")[name].insert(1)  # type: ignore[index]
    assert sorted(os.listdir(tmp_path / "g")) == [".bells", GROUP_FILE]


def test_the_longest_names_make_queues(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    for name in ("x" * 255, "ä" * 42):
        group[name].insert(name)
        assert [task.payload for task in group[name].lease()] == [name]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    group = Group.create(tmp_path / "g", shards=1, durability="none")
    group["google.com#fetch"].insert(1)
    group["a/b"].insert(2)
    return group


def test_a_path_means_a_queue_by_its_name(group: Group) -> None:
    assert Group.queue_at(group.path / "google.com#fetch", "w").status().waiting == 1
    assert Group.queue_at(f"fq://{group.path}/a/b").status().waiting == 1
    assert Group.queue_at(group.path / "never" / "was").status() == Status()
    assert Group.queue_at(group.path / "x" / ".." / "a/b") == group["a/b"]


def test_a_url_in_a_path_is_a_name(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path, `http://a.org/` would lose two slashes, and another queue be meant."""
    name = "http://a.org/../b//c/"
    group[name].insert(3)
    monkeypatch.chdir(group.path)
    for path in (f"{group.path}/{name}", f"fq://{group.path}/{name}", f"../g/{name}", f"./{name}", f"../g//{name}"):
        assert Group.queue_at(path) == group[name]
        assert Group.holding(path) == str(group.path)
    assert Group.queue_at(f"{group.path}//a//b") == group["a/b"]
    with pytest.raises(QueueNotFound):
        Group.queue_at(group.path.parent / "x" / name)


def test_the_name_of_a_directory_as_a_shell_completes_it_is_explained(group: Group) -> None:
    with pytest.raises(InvalidArgument, match=r"Give the queue's name: .*/google\.com#fetch"):
        Group.queue_at(group.path / "google.com%23fetch")
    group["google.com%23fetch"].insert(3)
    assert Group.queue_at(group.path / "google.com%23fetch").peek()[0].payload == 3
    assert Group.queue_at(group.path / "50%25") == group["50%25"]


def test_a_path_elsewhere_is_that_of_a_queue_and_makes_nothing(group: Group, tmp_path: Path) -> None:
    Queue.create(tmp_path / "plain").insert(1)
    assert type(Group.queue_at(tmp_path / "plain")) is Queue
    for wrong in (tmp_path / "typo", group.path.parent / "gg" / "fetch"):
        with pytest.raises(QueueNotFound):
            Group.queue_at(wrong)
    assert sorted(os.listdir(tmp_path)) == ["g", "plain"]


def test_a_pattern_is_one_for_whole_names(group: Group) -> None:
    group["google.com#parse"].insert(1)
    group["empty"].insert(1)
    group["empty"].lease()[0].complete()
    assert [queue.name for queue in group.queues("google.*")] == ["google.com#fetch", "google.com#parse"]
    assert [queue.name for queue in group.queues("google")] == []
    every = [queue.name for queue in group.queues(tasks_min=0)]
    assert every == ["a/b", "empty", "google.com#fetch", "google.com#parse"]
    assert [queue.name for queue in group.matching(".*#.*").queues(".*fetch", 0)] == ["google.com#fetch"]
    group["a/b"].insert_many(range(4))
    assert [queue.name for queue in group.queues(tasks_min=5)] == ["a/b"]
    assert group.status(".*#.*").status.waiting == 2
    assert group.matching(".*#.*").status(".*parse").queues == {"google.com#parse": Status(waiting=1)}


def test_a_dot_of_a_pattern_matches_a_line_break_in_a_name(group: Group) -> None:
    group["two\nlines"].insert(1)
    for pattern in (".*", "two.lines", "two.*"):
        assert "two\nlines" in [queue.name for queue in group.queues(pattern)]
        assert "two\nlines" in [queue.name for queue in group.matching(pattern).queues()]
        assert not group.matching(pattern).is_drained()
    assert group.matching("two.*").status().status.waiting == 1
    [task] = group.matching("two.*").lease()
    task.complete()
    assert group.matching("two.*").is_drained()


@pytest.mark.parametrize("pattern", ["(", "*", 5, b"x", "(?P<a>.)(?P<a>.)", "x{99999999999}", "\ud800"])
def test_what_is_no_pattern_is_refused(group: Group, pattern: object) -> None:
    with pytest.raises(InvalidArgument, match="no regular expression"):
        group.matching(pattern)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="no regular expression"):
        list(group.queues(pattern))  # type: ignore[arg-type]


@given(st.lists(st.text(st.sampled_from("aZ0._-~@=+,%2EF4Cä#\n/ "), max_size=12)))
def test_many_directories_are_parsed_as_one_is(texts: list[str]) -> None:
    texts += [*WRONG, "%2Ea", "a%23b", "%C3%A4", "%C3", "x" * 255, "a" * 200 + "%"]
    expected = [text for text in texts if names.parse_queue_directory(text) is not None]
    assert names.listed_queue_directories(texts) == expected
    assert all(names.queue_directory(names.parse_queue_directory(text)) == text for text in expected)


def test_listing_a_queue_takes_few_steps(tmp_path: Path) -> None:
    """A group may have 100,000 queues, of which the caller uses a few."""
    group, steps = Group.create(tmp_path / "g"), 0
    for number in range(1000):
        (tmp_path / "g" / f"site{number}.example%23fetch").mkdir()

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = list(group.queues(tasks_min=0))
    finally:
        sys.setprofile(None)
    assert steps < 8 * len(found)
    assert found[1].name == "site1.example#fetch"
    assert found[1] == group["site1.example#fetch"]
    assert found[1].lease() == []
