"""Updates in the views: pure, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue.format.models import DELAYED, LEASED, WAITING
from fsqueue.format.names import all_shards
from fsqueue.groups.queue import GroupQueue
from fsqueue.spark import schemas, views
from fsqueue.storage import listing
from tests.prepared import ByHand, U

pytestmark = pytest.mark.once


@pytest.fixture
def update(tmp_path: Path) -> ByHand:
    update = ByHand(tmp_path / "group")
    update.prepare()
    return update


def rows(queue: GroupQueue, view: str) -> list[dict[str, object]]:
    columns, [shard] = schemas.columns_of(view), all_shards(1)
    if view == "tasks":
        names = listing.task_files(queue.store, shard).values()
        found = [row for name in names for row in views.tasks(queue.store, name, (WAITING, DELAYED, LEASED))]
    else:
        found = [*views.BY_SHARD[view](queue.store, shard)]
    return [dict(zip(columns, row, strict=True)) for row in found]


@pytest.mark.parametrize("is_decided", [False, True])
def test_each_view_shows_what_is_decided(update: ByHand, is_decided: bool) -> None:
    update.says("commit" if is_decided else "nothing")
    first, then = update.first, update.then
    assert [row["payload"] for row in rows(then, "tasks")] == (['"new"'] if is_decided else [])
    assert [row["id"] for row in rows(first, "leases")] == ([] if is_decided else [update.task.id])
    assert [(row["state"], row["result"]) for row in rows(first, "history")] == (
        [("completed", '"done"')] if is_decided else []
    )
    assert [row["outcome"] for row in rows(first, "attempts")] == ["complete" if is_decided else "open"]
    states = {str(row["state"]): row["tasks"] for row in rows(first, "states") if row["shard"] is not None}
    assert states == ({"completed": 1} if is_decided else {"leased": 1})


@pytest.mark.parametrize("is_decided", [False, True])
def test_movements_are_the_records_as_they_stand(update: ByHand, is_decided: bool) -> None:
    update.says("commit" if is_decided else "nothing")
    found = [(row["op"], row["update"]) for row in rows(update.first, "movements")]
    assert found == [("open", None), ("insert", None), ("lease", None), ("complete", U)]
    with Path(update.first.store.layout.log(update.source)).open("ab") as log:
        log.write(update.commit())
    assert [(row["op"], row["update"]) for row in rows(update.first, "movements")] == [*found, ("commit", U)]
