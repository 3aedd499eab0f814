"""What the client of a gateway lacks is what docs/serve.md says, and nothing else."""

from __future__ import annotations

import re

import pytest

import fsqueue
from tests.house.source import TOP

pytestmark = pytest.mark.once

OF_A_PATH = {
    "queue": {"create", "directory", "generation", "id", "lease_for_others", "typed_path"},
    "group": {"create", "directory", "id", "lineage", "path"},
}
"""What has to do with a directory on this host, or is what the layers above `Queue` and `Group` ask."""
BETWEEN_LAYERS = {
    "at", "barriers_due_s", "bells", "directories", "holding", "note_open", "opened_queue", "opener", "queue_at",
    "queue_in", "queue_stamp", "stamp", "states",
}  # fmt: skip
"""What the modules of groups ask each other."""


def public(*kinds: type) -> set[str]:
    return {name for kind in kinds for name in dir(kind) if not name.startswith("_")}


def test_the_page_lists_what_is_missing() -> None:
    page = (TOP / "docs" / "serve.md").read_text(encoding="utf-8")
    found = re.search(r"missing at a gateway:\s(.*?)\.\sGroups\slack\s(.*?)\.\s", page, re.DOTALL)
    assert found is not None
    of_a_queue = set(re.findall(r"`(\w+)`", found[1])) - {"insert_many"}
    of_a_group = set(re.findall(r"`(\w+)`", found[2]))
    lacking = public(fsqueue.Queue, fsqueue.GroupQueue) - public(fsqueue.RemoteQueue)
    assert lacking - OF_A_PATH["queue"] == of_a_queue
    lacking = public(fsqueue.Group) - public(fsqueue.RemoteGroup)
    assert lacking - OF_A_PATH["group"] - BETWEEN_LAYERS == of_a_group
