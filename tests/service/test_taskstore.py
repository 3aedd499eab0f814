"""taskstore's calls on a group: immutable tasks with numbers, whoever works on the queues beside."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue.service.taskstore import Add, Change, NumberedTask, Refused, Taskstore
from tests.concurrency.processes import children, together
from tests.waiting import until

ME, OTHER = 7, -2_147_483_648
HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000


@pytest.fixture
def group(tmp_path: Path) -> fsqueue.Group:
    return fsqueue.Group.create(tmp_path / "group", durability="none", max_attempts=None)


@pytest.fixture
def store(group: fsqueue.Group) -> Taskstore:
    return Taskstore(group)


def another(group: fsqueue.Group) -> Taskstore:
    """Another gateway."""
    return Taskstore(fsqueue.Group(group.path))


def ids(tasks: Sequence[NumberedTask | None] | None) -> list[int]:
    assert tasks is not None
    return [task.id for task in tasks if task is not None]


def data(store: Taskstore, name: str) -> list[str]:
    return sorted(task.data for task in store.listing(name, allow_owned=True) or [])


def refused(call: Callable[[], object]) -> dict[str, Any]:
    """What is in the way of a call, list by list; empty lists are left out."""
    with pytest.raises(Refused) as caught:
        call()
    lists = vars(caught.value)
    return {name: lists[name] for name in ("changes", "deletes", "depends", "owned", "bugs") if lists[name]}


# -- ids ----------------------------------------------------------------------------------------------


def test_ids_begin_at_one_and_grow_and_none_names_a_task_again(group: fsqueue.Group, store: Taskstore) -> None:
    assert (store.groups(), store.listing("map"), store.tasks([1, 0, -3, 2**62])) == ([], None, [None] * 4)
    added = store.update(ME, [Add("map", "a"), Add("reduce", "b"), Add("map", "c", FAR_MS)])
    assert [(task.id, task.group, task.data, task.owner) for task in added] == [
        *((1, "map", "a", ME), (2, "reduce", "b", ME), (3, "map", "c", ME))
    ]
    assert added[2].available_ms == FAR_MS
    assert store.tasks([3, 1, 9, 2]) == another(group).tasks([3, 1, 9, 2]) == [added[2], added[0], None, added[1]]
    assert store.groups() == ["map", "reduce"]
    assert store.listing("map") == [added[0]]
    assert sorted(ids(store.listing("map", allow_owned=True))) == [1, 3]
    claimed = store.claim(ME, "map", HOUR_MS)
    assert claimed is not None
    assert (claimed.id, claimed.data, claimed.owner) == (4, "a", ME)
    assert claimed.available_ms > added[0].available_ms + HOUR_MS - 1
    assert store.claim(OTHER, "map", HOUR_MS) is None
    assert store.listing("map") == [], "there are tasks, and all of them are owned"
    [changed] = store.update(ME, changes=[Change(4, "a again", -HOUR_MS)])
    assert (changed.id, changed.group, changed.data, changed.owner) == (5, "map", "a again", ME)
    assert another(group).tasks([1, 4, 5]) == [None, None, changed]
    assert store.update(ME, deletes=[5, 3, 2]) == []
    assert (store.tasks(range(1, 6)), store.groups(), store.listing("map")) == ([None] * 5, [], None)
    assert ids(store.update(ME, [Add("map")])) == [6]


def test_tasks_that_workers_insert_have_ids_when_they_are_seen(group: fsqueue.Group, store: Taskstore) -> None:
    group["q"].insert_many(["in a file", 5], batch_tasks=2)
    group["q"].insert({"x": 1}, priority=3)
    group["q"].insert(b"\xff", delay_s=3600)
    seen = store.listing("q", allow_owned=True)
    assert seen is not None
    assert [one.id for one in seen] == [1, 2, 3, 4]
    assert sorted(one.data for one in seen) == ["5", "in a file", '{"b64":"/w=="}', '{"x":1}']
    assert another(group).listing("q", allow_owned=True) == seen
    by_data = {one.data: one for one in seen}
    delayed = by_data['{"b64":"/w=="}']
    assert ids(store.listing("q", limit=2)) == [id for id in ids(seen) if id != delayed.id][:2]
    assert refused(lambda: store.update(ME, deletes=[delayed.id])) == {"owned": [delayed.id]}
    store.update(ME, changes=[Change(by_data['{"x":1}'].id, '{"x":1}', -1)])
    again = next(info for info in group["q"].tasks() if info.priority is not None)
    assert (again.payload, again.priority) == ({"x": 1}, 3), "what is not changed stays what it was"


def test_what_a_worker_does_ends_an_id(group: fsqueue.Group, store: Taskstore) -> None:
    [first, second] = store.update(ME, [Add("q", "1"), Add("q", "2")])
    tasks = group["q"].lease(2, lease_s=60)
    assert store.tasks([first.id, second.id]) == [None, None]
    held = store.listing("q", allow_owned=True)
    assert held is not None
    assert ids(held) == [3, 4]
    for client in (ME, OTHER, 0):
        gone = refused(lambda client=client: store.update(client, changes=[Change(1)], deletes=[3], depends=[2, 4]))  # type: ignore[misc]
        assert gone == {"changes": [1], "depends": [2], "owned": [3]}
    tasks[0].release()
    tasks[1].complete()
    assert [task is None for task in store.tasks([3, 4])] == [True, True]
    assert ids(store.listing("q")) == [5]
    group["q"].purge()
    assert (store.tasks([5]), store.listing("q")) == ([None], None)
    group.delete("q")
    assert (store.tasks([5]), store.groups()) == ([None], [])
    assert ids(store.update(ME, [Add("q")])) == [6]


# -- updates ------------------------------------------------------------------------------------------


def test_all_that_is_in_the_way_is_told_and_nothing_happens(store: Taskstore) -> None:
    store.update(ME, [Add("q", "mine", -HOUR_MS), Add("q", "free"), Add("q", "too"), Add("q", "gone")])
    store.update(ME, deletes=[4])
    call = lambda: store.update(  # noqa: E731
        OTHER, [Add(""), Add("q", "never")], [Change(1), Change(77), Change(2), Change(0)], [4, 1, 3, -5], [4, 2, 99]
    )
    assert refused(call) == {
        "changes": [77, 0],
        "deletes": [4, -5],
        "depends": [4, 99],
        "owned": [1, 1],
        "bugs": ["adds[0] has no group"],
    }
    assert refused(lambda: store.update(OTHER, [Add("")])) == {"bugs": ["adds[0] has no group"]}
    assert refused(lambda: store.update(OTHER, depends=[2])) == {"bugs": ["the update is empty"]}
    assert data(store, "q") == ["free", "mine", "too"]
    assert ids(store.update(ME, [Add("q")])) == [5], "no id was used"


def test_one_id_may_stand_in_several_lists(store: Taskstore) -> None:
    """As in taskstore: it ends once, and each change of it makes a task."""
    store.update(ME, [Add("q", "a"), Add("q", "b")])
    new = store.update(OTHER, [], [Change(1, "x"), Change(1, "y")], [1, 2, 2], [1, 2])
    assert [(task.id, task.data, task.owner) for task in new] == [(3, "x", OTHER), (4, "y", OTHER)]
    assert data(store, "q") == ["x", "y"]


def test_an_update_depends_on_tasks_that_it_leaves_alone(group: fsqueue.Group, store: Taskstore) -> None:
    store.update(ME, [Add("q", "free"), Add("q", "mine", -HOUR_MS), Add("claims", "c")])
    assert store.claim(ME, "claims", HOUR_MS) is not None
    assert ids(store.update(OTHER, [Add("new", "n")], depends=[1, 2, 4])) == [5], "also on those of other clients"
    [task] = group["q"].lease(1, lease_s=60)
    assert refused(lambda: store.update(OTHER, [Add("new")], depends=[1, 2, 4])) == {"depends": [1]}
    task.release()
    assert refused(lambda: store.update(OTHER, [Add("new")], depends=[1])) == {"depends": [1]}, "it never comes back"
    assert data(store, "new") == ["n"]


def test_a_task_that_changes_between_the_look_and_the_update_refuses_it(
    group: fsqueue.Group, store: Taskstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.update(ME, [Add("q", str(n)) for n in range(4)])
    asked = group.numbers.named
    workers: list[fsqueue.LeasedTask] = []

    def named_and_leased(numbers: Sequence[int]) -> list[fsqueue.NumberedInfo | None]:
        found = asked(numbers)
        if not workers:
            workers.extend(group["q"].lease(4, lease_s=60))
            workers.pop().release()
        return found

    monkeypatch.setattr(fsqueue.TaskNumbers, "named", lambda self, numbers: named_and_leased(numbers))
    found = refused(lambda: store.update(ME, [Add("q", "never")], [Change(1)], [2, 3], [4]))
    assert found == {"changes": [1], "deletes": [2, 3], "depends": [4]}
    assert "never" not in data(store, "q")


def test_when_a_claim_has_run_out_anyone_may_change_the_task(group: fsqueue.Group, store: Taskstore) -> None:
    store.update(ME, [Add("q", "a"), Add("r", "b")])
    first, second = store.claim(ME, "q", 0), store.claim(ME, "r", 0)
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (3, 4)
    assert ids(store.update(OTHER, changes=[Change(first.id, "c")])) == [5]
    assert store.update(ME, deletes=[second.id]) == []
    assert refused(lambda: store.update(ME, deletes=[first.id])) == {"deletes": [first.id]}
    assert (data(store, "q"), group["r"].status().completed) == (["c"], 1)


# -- claims -------------------------------------------------------------------------------------------


def test_a_claim_depends_on_tasks_even_if_there_is_none_to_claim(group: fsqueue.Group, store: Taskstore) -> None:
    store.update(ME, [Add("signal", "on"), Add("q", "a")])
    assert refused(lambda: store.claim(ME, "none", HOUR_MS, [1, 9, 8])) == {"depends": [9, 8]}
    claimed = store.claim(ME, "q", HOUR_MS, [1])
    assert claimed is not None
    assert claimed.data == "a"
    store.update(ME, [Add("q", "b")], deletes=[1])
    assert refused(lambda: store.claim(ME, "q", HOUR_MS, [1])) == {"depends": [1]}


@pytest.mark.parametrize("kind", ["added", "inserted in a file", "delayed before", "claimed and let go before"])
def test_a_claim_may_take_a_task_that_it_depends_on(group: fsqueue.Group, store: Taskstore, kind: str) -> None:
    if kind == "inserted in a file":
        group["q"].insert_many(["x"], batch_tasks=1)
    else:
        store.update(ME, [Add("q", "x", -1 if kind == "delayed before" else 0), Add("other", "y")])
    if kind == "delayed before":
        until(lambda: store.listing("q"), "its time")
    if kind == "claimed and let go before":
        store.claim(OTHER, "q", 0)
        until(lambda: store.listing("q"), "its time")
    [seen] = store.listing("q") or []
    [other] = store.listing("other") or [None]
    depends = [seen.id] if other is None else [seen.id, other.id]
    claimed = store.claim(ME, "q", HOUR_MS, depends)
    assert claimed is not None
    assert (claimed.data, claimed.owner) == ("x", ME)
    assert store.tasks([seen.id, claimed.id]) == [None, claimed]
    assert refused(lambda: store.claim(ME, "q", HOUR_MS, [seen.id])) == {"depends": [seen.id]}


def test_a_claim_that_depends_on_all_tasks_of_its_group_is_never_refused(
    group: fsqueue.Group, store: Taskstore
) -> None:
    store.update(ME, [Add("q", str(number)) for number in range(4)])
    for _ in range(12):
        waiting = ids(store.listing("q"))
        claimed = store.claim(ME, "q", HOUR_MS, waiting)
        assert claimed is not None
        assert store.tasks(waiting).count(None) == 1, "the others keep their ids"
        store.update(ME, changes=[Change(claimed.id, claimed.data, -1)])
        until(lambda: len(store.listing("q") or []) == 4, "its time")


def test_a_claim_does_not_take_a_task_as_it_was_seen_after_another_client_had_it(
    group: fsqueue.Group, store: Taskstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the lease another client claims the very task, and lets it go."""
    store.update(ME, [Add("q", "x")])
    lease = fsqueue.GroupQueue.lease

    def after_another(queue: fsqueue.GroupQueue, *arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(fsqueue.GroupQueue, "lease", lease)
        [task] = fsqueue.Group(group.path)["q"].lease()
        task.release()
        return lease(queue, *arguments, **how)

    monkeypatch.setattr(fsqueue.GroupQueue, "lease", after_another)
    assert refused(lambda: store.claim(ME, "q", HOUR_MS, [1])) == {"depends": [1]}
    [free] = store.listing("q") or []
    assert (free.data, free.id > 1) == ("x", True), "it was put back, under a new id"


def test_a_claim_is_given_back_if_what_it_depends_on_ends_meanwhile(
    group: fsqueue.Group, store: Taskstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.update(ME, [Add("signal", "on"), Add("q", "a")])
    lease = fsqueue.GroupQueue.lease

    def lease_too_late(queue: fsqueue.GroupQueue, *args: Any, **how: Any) -> list[fsqueue.LeasedTask]:
        another(group).update(OTHER, deletes=[1])
        return lease(queue, *args, **how)

    monkeypatch.setattr(fsqueue.GroupQueue, "lease", lease_too_late)
    assert refused(lambda: store.claim(ME, "q", HOUR_MS, [1])) == {"depends": [1]}
    status = group["q"].status()
    assert (status.waiting, status.leased) == (1, 0)


def test_claims_are_random(store: Taskstore) -> None:
    store.update(ME, [Add("q", str(n)) for n in range(30)])
    got = [store.claim(ME, "q", HOUR_MS) for _ in range(30)]
    order = [int(task.data) for task in got if task is not None]
    assert sorted(order) == list(range(30))
    assert order != sorted(order)


# -- several gateways, and crashes --------------------------------------------------------------------


def test_a_gateway_that_sees_a_task_before_it_has_its_number_does_not_take_it_from_its_owner(
    group: fsqueue.Group, store: Taskstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, seen = fsqueue.TaskNumbers.give, []

    def seen_meanwhile(self: fsqueue.TaskNumbers, tasks: Sequence[fsqueue.NewNumber]) -> list[fsqueue.NumberedInfo]:
        if self._group is group:
            seen.append(another(group).listing("q", allow_owned=True))
        return give(self, tasks)

    monkeypatch.setattr(fsqueue.TaskNumbers, "give", seen_meanwhile)
    [delayed, free] = store.update(ME, [Add("q", "delayed", -HOUR_MS), Add("q", "free")])
    assert (delayed.owner, another(group).tasks([delayed.id, free.id])) == (ME, [delayed, store.tasks([free.id])[0]])
    claimed = store.claim(ME, "q", HOUR_MS)
    assert claimed is not None
    assert another(group).tasks([claimed.id]) == [claimed]
    assert another(group).update(ME, deletes=[delayed.id, claimed.id]) == []
    assert group["q"].status().completed == 1
    assert seen


@pytest.mark.parametrize("verb", ["update", "claim"])
def test_a_gateway_that_dies_before_it_gives_the_numbers_leaves_tasks_without_one(
    group: fsqueue.Group, store: Taskstore, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.update(ME, [Add("q", "a")])

    def die(tasks: object) -> list[fsqueue.NumberedInfo]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def live() -> None:
        mine = fsqueue.Group(group.path)
        monkeypatch.setattr(fsqueue.TaskNumbers, "give", lambda self, tasks: die(tasks))
        if verb == "claim":
            Taskstore(mine).claim(ME, "q", HOUR_MS)
        else:
            Taskstore(mine).update(ME, [Add("q", "b")], [Change(1, "c", -HOUR_MS)])

    with children((live,)) as [child]:
        assert child.wait() == -signal.SIGKILL, child.report()
    assert store.tasks([1]) == [None]
    left = store.listing("q", allow_owned=True)
    assert left is not None
    if verb == "claim":
        assert [(task.id, task.owner) for task in left] == [(2, ME)], "the lease tells whose it is"
        assert refused(lambda: store.update(OTHER, deletes=[2])) == {"owned": [2]}
        store.update(ME, deletes=[2])
        assert group["q"].status().completed == 1
    else:
        assert sorted((task.data, task.owner) for task in left) == [("b", 0), ("c", 0)]


def test_an_update_whose_ids_cannot_be_kept_says_that_it_has_happened(
    group: fsqueue.Group, store: Taskstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.update(ME, [Add("q", "a")])
    with monkeypatch.context() as full:

        def no_room(fd: int, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(group.directory().fs, "write_all", no_room)  # the queues have filesystems of their own
        with pytest.raises(fsqueue.StorageFull, match="has happened: do not repeat it"):
            store.update(ME, changes=[Change(1, "b")])  # in one log: no decision file is needed
        with pytest.raises(fsqueue.StorageFull):
            store.claim(ME, "q", HOUR_MS)
        assert group["q"].status().leased == 0
        assert store.tasks([1]) == [None]
    assert [(task.id, task.data) for task in store.listing("q") or []] == [(2, "b")]


def test_the_files_of_ids_are_known_to_those_who_count_and_check_files(group: fsqueue.Group, store: Taskstore) -> None:
    store.update(ME, [Add("q", str(n)) for n in range(3)])
    home = group.path / ".numbers"
    assert (group.usage()["numbers"].files, group.usage()["numbers"].bytes) == (1, 3 * 72)
    os.utime(home / ("0" * 12), (0, 0))
    assert group["q"].gc(touch=True).touched > 2
    assert (home / ("0" * 12)).stat().st_mtime > 0
    assert list(group.fsck()) == []
    (home / "mine").write_text("a user's")
    (home / ("0" * 11 + "1")).symlink_to("mine")
    assert sorted(finding.kind for finding in group.fsck(repair=True)) == ["link", "stray"]
    assert (list(group.fsck()), os.listdir(home)) == ([], ["0" * 12])
    assert ids(another(group).update(ME, [Add("q")])) == [4]
    held = group.directory().fs.look(str(home / ("0" * 12)), os.O_RDWR)
    os.utime(home / ("0" * 12), (0, 0))
    assert group.directory().fs.try_lock(held)
    assert [lock.what for lock in group["q"].stuck()] == ["numbers of tasks"]
    group.directory().fs.close(held)


def _storm(path: str, client: int, seed: int, turns: int) -> dict[str, Any]:
    """Claim, change, move on and delete at random; tell all ids that were given, and what was finished."""
    store, chance = Taskstore(fsqueue.Group(path)), random.Random(seed)
    given: list[list[int]] = []
    finished: list[str] = []
    for turn in range(turns):
        what = chance.random()
        try:
            if what < 0.3:
                name = f"{client}-{turn}"
                given.append(ids(store.update(client, [Add("in", name), Add("in", f"{name}'")])))
                continue
            task = store.claim(client, chance.choice(["in", "out"]), HOUR_MS)
            if task is None:
                continue
            given.append([task.id])
            if what < 0.5:
                [task] = store.update(client, changes=[Change(task.id, task.data, -HOUR_MS)])
                given.append([task.id])
            if task.group == "in":
                given.append(ids(store.update(client, [Add("out", task.data)], deletes=[task.id])))
            else:
                store.update(client, deletes=[task.id])
                finished.append(task.data)
        except fsqueue.UpdateConflict as conflict:
            if not conflict.busy:
                raise
    return {"given": given, "finished": finished}


def _check_storm(group: fsqueue.Group, told: list[dict[str, Any]]) -> None:
    """Each task is done once or is there once, and each id was given once."""
    store = Taskstore(group)
    given = [ids for one in told for ids in one["given"]]
    flat = [id for ids in given for id in ids]
    assert len(flat) == len(set(flat)), "no id was given twice"
    for one in told:
        own = [id for ids in one["given"] for id in ids]
        assert own == sorted(own), "they grow"
    finished = [name for one in told for name in one["finished"]]
    left = [*data(store, "in"), *data(store, "out")]
    assert len(finished) == len(set(finished)), "none was finished twice"
    everything = sorted([*finished, *left])
    assert everything == sorted(set(everything)), "none is there twice"
    names = {name.removesuffix("'") for name in everything}
    assert len(everything) == 2 * len(names), "none is lost: they were added in pairs"


def test_a_storm_of_clients_at_several_gateways_loses_nothing_and_doubles_nothing(group: fsqueue.Group) -> None:
    path = str(group.path)
    _check_storm(group, together(*((_storm, path, client, client, 12) for client in (1, 2, 3))))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
def test_a_longer_storm(group: fsqueue.Group, seed: int) -> None:
    path = str(group.path)
    _check_storm(group, together(*((_storm, path, client, 100 * seed + client, 150) for client in range(1, 7))))


def _told_storm(path: str, client: int, log: str) -> None:
    """Add, claim, move on and delete without end. Each id that was given is told in a log, and each intent before."""
    store, chance, turn = Taskstore(fsqueue.Group(path)), random.Random(client), 0
    with open(log, "a", buffering=1) as told:
        while True:
            turn += 1
            try:
                if chance.random() < 0.3:
                    told.write(f"adds {client}-{turn}\n")
                    new = store.update(client, [Add("in", f"{client}-{turn}"), Add("out", f"{client}-{turn}'")])
                elif (task := store.claim(client, chance.choice(["in", "out"]), HOUR_MS)) is None:
                    continue
                elif task.group == "in":
                    new = [task, *store.update(client, [Add("out", task.data)], deletes=[task.id])]
                else:
                    told.write(f"ends {task.data}\n")
                    store.update(client, deletes=[task.id])
                    new = [task]
                told.write("".join(f"id {one.id}\n" for one in new))
            except fsqueue.UpdateConflict as conflict:
                if not conflict.busy:
                    raise


@pytest.mark.thorough
def test_gateways_that_are_killed_lose_nothing_double_nothing_and_give_no_id_twice(
    group: fsqueue.Group, tmp_path: Path
) -> None:
    path, logs = str(group.path), [tmp_path / f"log {number}" for number in range(12)]
    clients = iter(range(1, 13))
    for number in range(0, 12, 3):
        batch = logs[number : number + 3]
        with children(*((_told_storm, path, next(clients), str(log)) for log in batch)) as started:
            for child, log in zip(started, batch, strict=True):
                until(lambda log=log: log.exists() and log.read_text().count("id ") > 40, "some work")  # type: ignore[misc]
                child.signal(signal.SIGKILL)
            for child in started:
                assert child.wait() == -signal.SIGKILL, child.report()
    lines = [line for log in logs for line in log.read_text().splitlines()]
    given = [int(line.removeprefix("id ")) for line in lines if line.startswith("id ")]
    assert len(given) == len(set(given)), "no id was given twice"
    adds = {line.removeprefix("adds ") for line in lines if line.startswith("adds ")}
    ends = [line.removeprefix("ends ") for line in lines if line.startswith("ends ")]
    store = Taskstore(group)

    def are_decided() -> bool:
        """Nobody waits for the tasks that the last dead clients were changing: upkeep gets their updates decided."""
        for name in ("in", "out"):
            group[name].gc()
        return not [info for name in ("in", "out") for info in group[name].tasks() if info.update]

    until(are_decided, "the updates of the dead to be decided")
    left = [*data(store, "in"), *data(store, "out")]
    assert len(left) == len(set(left)), "none is there twice"
    assert len(ends) == len(set(ends)), "none was claimed by two at its end"
    known = {*left, *ends}
    assert {name.removesuffix("'") for name in known} <= adds
    halves = [name for name in adds if (name in known) != (f"{name}'" in known)]
    assert halves == [], "an update happens all or not at all, and no task is lost"
    last = max(given)
    assert ids(store.update(ME, [Add("in", "more")]))[0] > last
