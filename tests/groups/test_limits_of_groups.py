"""At most so many tasks of all queues of a group are leased at one instant, over all processes, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import fsqueue
from fsqueue import Group, GroupNotFound, InvalidArgument, LockTimeout, Queue, StorageError
from fsqueue.clock import ManualClock
from fsqueue.format import slots
from fsqueue.format.groups import group_file, slots_file
from fsqueue.format.layout import read_queue_state
from fsqueue.format.names import queue_directory
from fsqueue.fsck import fsck_lost
from fsqueue.protocol import all_limits, leasing
from fsqueue.protocol.limiting import SETTLE_S
from fsqueue.storage import group_directory, group_slots, queue_changes
from fsqueue.storage import slots as slot_files
from fsqueue.storage import store as stores
from fsqueue.storage.group_directory import GroupDirectory
from tests.support import PATIENCE_S

NAMES = ("a", "b", "c")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of all stores and groups that a test opens: a limit opens queues by itself."""
    clock = ManualClock()
    monkeypatch.setattr(stores, "Clock", lambda: clock)
    monkeypatch.setattr(group_directory, "Clock", lambda: clock)
    return clock


@pytest.fixture
def group(tmp_path: Path, clock: ManualClock) -> Group:
    """A group of three queues of twenty tasks each, with numbers from 0 on and every second one a licence."""
    group = Group.create(tmp_path / "group", batch_tasks_max=8, shards=2, lease_s=60)
    for name in NAMES:
        group[name].insert_many([{"n": n, "licence": "x"} if n % 2 else {"n": n} for n in range(20)])
    return group


Opened = Callable[[str], Queue]


@pytest.fixture
def at(group: Group) -> Opened:
    """Open a queue by its own path, as another process."""
    return lambda name: Queue(group.path / queue_directory(name))


def taken(group: Group) -> int:
    """How many slots have a record."""
    limits = group.directory().read_anew().limits
    assert limits is not None
    return len([*slots.each(group_slots.read(group.directory(), limits.epoch))])


def is_marked(group: Group, name: str) -> bool:
    path = group.path / queue_directory(name)
    return read_queue_state((path / "queue.jsonl").read_bytes(), str(path)).has_group_limits


def test_no_more_than_the_limit_are_leased_at_a_time_in_all_queues(group: Group, at: Opened) -> None:
    assert group.set_limits(max_leased=3).max_leased == 3
    held = at("a").lease(2)
    assert len(held) == 2
    b = at("b")
    assert len(b.lease(100)) == 1
    assert b.lease() == at("c").lease(5, strict=True) == at("a").lease(order="random") == []
    assert fsqueue.lease([at("a"), at("c")], 5) == []
    assert not group.is_drained()
    held[0].complete()
    assert len(at("c").lease(5)) == 1
    held[1].release()
    assert len(b.lease(5)) == 1
    assert taken(group) <= 3


def test_who_leases_from_the_group_keeps_to_it_too(group: Group) -> None:
    group.set_limits(max_leased=3)
    other = Group(group.path)
    assert len(other.lease(2)) == 2
    assert len(other["c"].lease(5)) == 1
    assert other.lease(5) == group["a"].lease() == []


def test_a_limit_by_a_field_counts_each_value_over_all_queues(group: Group, at: Opened) -> None:
    group.set_limits(limit={"licence": 2})
    a, b = at("a").lease(6), at("b").lease(6)
    assert sum("licence" in task.payload for task in a + b) == 2
    assert len(a) == len(b) == 6, "tasks without the field are not limited"
    held = next(task for task in a + b if "licence" in task.payload)
    held.complete()
    assert sum("licence" in task.payload for task in at("c").lease(9)) == 1


def test_a_rate_holds_over_all_queues(group: Group, at: Opened, clock: ManualClock) -> None:
    group.set_limits(rate="2/s")
    a, b = at("a"), at("b")
    begun = len(a.lease(9))
    for _ in range(100):
        clock.advance(0.1)
        begun += len(a.lease(9)) + len(b.lease(9))
    assert 18 <= begun <= 23


def test_a_queues_own_limits_hold_besides(group: Group, at: Opened, clock: ManualClock) -> None:
    at("a").change_settings(max_leased=1)
    group.set_limits(max_leased=3)
    a, b = at("a"), at("b")
    [held] = a.lease(9)
    assert len(b.lease(9)) == 2
    held.complete()
    assert len(a.lease(9)) == 1
    assert a.lease(9) == b.lease(9) == []
    a.change_settings(max_leased=5)
    clock.advance(1.1)
    assert at("a").lease(9) == a.lease(9) == []


def test_a_task_that_one_of_two_limits_refuses_does_not_hold_up_one_that_both_allow(
    tmp_path: Path, clock: ManualClock
) -> None:
    group = Group.create(tmp_path / "group")
    group["a"].insert_many([{"host": "h", "licence": "x"}, {"host": "h", "licence": "y"}, {"licence": "y"}])
    group["b"].insert({"licence": "x"})
    a = Queue(group.path / "a")
    a.change_settings(limit={"host": 1})
    group.set_limits(limit={"licence": 1})
    assert len(Queue(group.path / "b").lease()) == 1
    clock.advance(1.1)
    assert [task.payload for task in a.lease(5)] == [{"host": "h", "licence": "y"}]


def test_what_is_held_when_a_limit_begins_counts(group: Group, at: Opened) -> None:
    held = [*at("a").lease(2), *at("b").lease(2)]
    group.set_limits(max_leased=3)
    c = at("c")
    assert c.lease() == []
    held[0].complete()
    assert c.lease() == []
    held[3].complete()
    assert len(c.lease(5)) == 1


def test_limits_are_raised_lowered_and_taken_away(group: Group, at: Opened, clock: ManualClock) -> None:
    group.set_limits(max_leased=3)
    a, b = at("a"), at("b")
    assert len(a.lease(9)) == 3
    group.set_limits(max_leased=5)
    clock.advance(1.1)
    assert len(b.lease(9)) == 2
    group.set_limits(max_leased=2)
    clock.advance(1.1)
    assert a.lease(9) == b.lease(9) == []
    group.set_limits(limit={"licence": 1})  # another file of slots, with what is held
    clock.advance(1.1)
    assert a.lease(9) == b.lease(9) == []
    settings = group.set_limits(max_leased=None, limit={"licence": None})
    assert (settings.max_leased, settings.limit) == (None, {})
    clock.advance(1.1)
    assert len(b.lease(9)) == 9
    assert not any(is_marked(group, name) for name in NAMES)
    assert b.store.queue_state.is_plain
    b.gc()
    assert [*(group.path / ".limits").iterdir()] == []


def test_a_queue_that_comes_later_keeps_to_them(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=3)
    group["later"].insert_many(range(9))
    assert is_marked(group, "later")
    assert group["later"].settings.max_leased is None, "the limits are the group's"
    assert len(at("a").lease(2)) == 2
    assert len(at("later").lease(9)) == 1


def test_a_queue_without_such_a_mark_looks_at_no_file_of_its_group(
    group: Group, at: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(all_limits, "group_of", lambda *given: asked.append(given))
    a = at("a")
    for task in a.lease(5):
        task.complete()
    assert asked == []
    assert a.store.queue_state.is_plain
    assert not (group.path / ".limits").exists()


@pytest.mark.parametrize("wrong", [{"max_leased": 0}, {"limit": {"x": "3"}}, {"rate": "5"}, {"nonsense": 1}])
def test_what_is_no_limit_is_refused_and_changes_nothing(group: Group, wrong: dict[str, object]) -> None:
    before = Path(group_file(str(group.path))).read_bytes()
    with pytest.raises(InvalidArgument):
        group.set_limits(**wrong)
    with pytest.raises(InvalidArgument, match="what its queues begin with"):
        group.set_limits(lease_s=5)
    with pytest.raises(InvalidArgument, match="At most 3 fields"):
        group.set_limits(limit=dict.fromkeys("wxyz", 1))
    assert Path(group_file(str(group.path))).read_bytes() == before


def test_a_line_with_wrong_limits_is_void(group: Group, at: Opened, clock: ManualClock) -> None:
    group.set_limits(max_leased=3)
    with open(group_file(str(group.path)), "ab") as file:
        file.write(b'{"op":"limits","at":1,"limits":{"max_leased":-1},"slots":"0123456789abcdef"}\n')
        file.write(b'{"op":"limits","at":1,"limits":{"max_leased":1},"slots":"x"}\n')
    clock.advance(1.1)
    assert len(at("a").lease(9)) == 3


def test_a_pause_and_its_end_leave_the_mark(group: Group, at: Opened, clock: ManualClock) -> None:
    """Programs that do not know it see a pause all the time."""

    def as_seen_before(*unknown: str) -> object:
        lines = [orjson.loads(line) for line in (group.path / "a" / "queue.jsonl").read_bytes().splitlines()]
        for line in lines:
            for name in unknown:
                line.pop(name, None)
        return read_queue_state(b"".join(orjson.dumps(line) + b"\n" for line in lines), "q").paused

    group.set_limits(max_leased=2)
    a = at("a")
    assert a.paused is None
    a.change_settings(max_leased=5)
    a.pause("maintenance")
    a.resume()
    assert a.paused is None
    assert as_seen_before("group_limits") is not None
    assert as_seen_before("group_limits", "limits", "slots", "resumes") is not None
    clock.advance(1.1)
    assert len(at("a").lease(9)) == 2
    a.pause("maintenance")
    group.set_limits(max_leased=None)
    a.store.refresh(now=True)
    assert a.paused is not None
    assert a.paused.reason == "maintenance"
    a.resume()
    assert as_seen_before("group_limits") is None
    assert as_seen_before("group_limits", "limits", "slots", "resumes") is not None


# -- crashes -------------------------------------------------------------------------------------------------


def killed_in(act: Callable[[], object]) -> None:
    """Call it in another process, which is killed at its end at the latest."""

    def work() -> None:
        act()
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL


def kill(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_setter_that_is_killed_behind_its_line_leaves_the_rest_to_the_next_lessee_that_knows(
    group: Group, at: Opened, clock: ManualClock
) -> None:
    before = at("b")
    assert len(before.lease(1)) == 1

    def set_it() -> None:
        group_slots.mark_all = kill  # type: ignore[assignment]
        group.set_limits(max_leased=3)

    killed_in(set_it)
    assert not any(is_marked(group, name) for name in NAMES)
    clock.advance(1.1)
    assert len(Group(group.path)["a"].lease(9)) == 2, "who opens a queue in its group goes on"
    assert all(is_marked(group, name) for name in NAMES)
    clock.advance(1.1)
    assert before.lease() == []


def test_a_setter_that_is_killed_between_two_marks_leaves_the_others_to_the_next_lessee(
    group: Group, at: Opened, clock: ManualClock
) -> None:
    mark = queue_changes.mark_group_limits

    def set_it() -> None:
        def first(*given: object, **others: object) -> None:
            mark(*given, **others)  # type: ignore[arg-type]
            kill()

        queue_changes.mark_group_limits = first  # type: ignore[assignment]
        group.set_limits(max_leased=3)

    held = at("c").lease(1)
    killed_in(set_it)
    assert [is_marked(group, name) for name in NAMES] == [True, False, False]
    began = clock.monotonic()
    assert len(at("a").lease(9)) == 2
    assert clock.monotonic() - began >= SETTLE_S, "it waits until all know of the marks"
    assert all(is_marked(group, name) for name in NAMES)
    held[0].complete()
    assert len(at("b").lease(9)) == 1


def test_a_setter_that_is_killed_before_the_header_leaves_no_lease_without_a_slot(group: Group, at: Opened) -> None:
    def set_it() -> None:
        fill = slot_files.fill

        def half(file: slot_files.SlotFile, held: list[slots.LeaseSlot], domain: str, durably: bool) -> None:
            file.put({64: bytes(64), 128: slots.record(held[0])}, durably)
            kill()

        assert fill is not half
        slot_files.fill = half  # type: ignore[assignment]
        group.set_limits(max_leased=3)

    held = at("c").lease(2)
    killed_in(set_it)
    assert len(at("a").lease(9)) == 1
    assert held[0].complete() is None
    assert len(at("b").lease(9)) == 1


def test_one_that_ends_limits_and_is_killed_leaves_marks_that_cost_a_look(
    group: Group, at: Opened, clock: ManualClock
) -> None:
    group.set_limits(max_leased=2)

    def end() -> None:
        group_slots.unmark_all = kill  # type: ignore[assignment]
        group.set_limits(max_leased=None)

    killed_in(end)
    clock.advance(1.1)
    assert is_marked(group, "a")
    assert len(at("a").lease(9)) == 9
    group.set_limits(max_leased=None)
    assert not is_marked(group, "a")


def test_limits_that_begin_while_marks_are_taken_away_find_or_write_them(
    group: Group, at: Opened, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    group.set_limits(max_leased=2)
    other, mark, is_done = Group(group.path), group_slots._mark, False

    def between(*given: object) -> None:
        nonlocal is_done
        mark(*given)  # type: ignore[arg-type]
        if not is_done:
            is_done = True
            begun.start()

    def begin() -> None:
        while True:
            try:
                other.set_limits(max_leased=1)
                return
            except LockTimeout:  # by the clock of the test, which does not wait for the other thread
                continue

    begun = threading.Thread(target=begin)
    monkeypatch.setattr(group_slots, "_mark", between)
    group.set_limits(max_leased=None)
    begun.join(PATIENCE_S)
    assert all(is_marked(group, name) for name in NAMES)
    clock.advance(1.1)
    assert [len(at(name).lease(9)) for name in NAMES] == [1, 0, 0]


@pytest.mark.parametrize("dies", [False, True])
def test_a_queue_that_comes_into_being_while_limits_begin_has_its_mark(
    group: Group, at: Opened, clock: ManualClock, dies: bool
) -> None:
    """Its maker has read the group's file before, and makes the name when all others were marked."""
    late = GroupDirectory(str(group.path))
    group.set_limits(max_leased=2)
    late.is_in_place = lambda: True  # type: ignore[method-assign]  # what the first look said
    link = late._link

    def linked(path: str) -> None:
        link(path)
        del late.is_in_place
        if dies:
            kill()

    late._link = linked  # type: ignore[method-assign]
    if dies:
        killed_in(lambda: late.begin(queue_directory("late")))
        assert not is_marked(group, "late")
    else:
        late.begin(queue_directory("late"))
    group["late"].insert_many(range(5))
    assert is_marked(group, "late")
    clock.advance(1.1)
    assert len(at("late").lease(9)) == 2
    assert at("a").lease() == []


@pytest.mark.parametrize("step", ["before the slot", "in the slot", "before the lease", "behind the lease"])
@pytest.mark.parametrize("own", [None, 9])
def test_a_worker_that_is_killed_leaves_a_slot_too_many_and_never_one_too_few(
    group: Group, at: Opened, clock: ManualClock, step: str, own: int | None
) -> None:
    """A worker of another queue gives back a slot whose lease was never recorded. One that was recorded runs out."""
    if own is not None:
        at("a").change_settings(max_leased=own)
    group.set_limits(max_leased=3)
    put = slot_files.SlotFile.put

    def work() -> None:
        if step == "before the slot":
            slot_files.SlotFile.put = kill  # type: ignore[method-assign,assignment]
        elif step == "in the slot":

            def half(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
                put(self, {offset: data[:30] for offset, data in changes.items()}, durably)
                kill()

            slot_files.SlotFile.put = half  # type: ignore[assignment,method-assign]
        elif step == "before the lease":

            def whole(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
                put(self, changes, durably)
                kill()

            slot_files.SlotFile.put = whole  # type: ignore[assignment,method-assign]
        at("a").lease(3, lease_s=10)

    killed_in(work)
    was_leased = step == "behind the lease"
    written = {"before the lease": (1, 3), "behind the lease": (3,)}  # where a batch has one task, its first lease
    assert taken(group) in written.get(step, (0,))
    b = at("b")
    assert len(b.lease(9, lease_s=10)) == (0 if was_leased else 3)
    clock.advance(11)
    c = at("c")
    assert sum(len(c.lease(9)) for _ in range(5)) == 3


@pytest.mark.parametrize("of", ["group", "queue", "queue by a field"])
def test_limits_that_begin_while_a_lessee_waits_for_a_batch_hold_for_it(
    group: Group, at: Opened, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    """It has read `queue.jsonl` before they were set, and is not stopped: only its look takes long."""
    a, from_batch = at("a"), leasing.Leaser._from_batch

    def is_busy_once(*args: object, **more: object) -> object:
        monkeypatch.setattr(leasing.Leaser, "_from_batch", from_batch)
        if of == "group":
            group.set_limits(max_leased=2)
            assert len(at("b").lease(9)) == 2
        elif of == "queue":
            at("a").change_settings(max_leased=2)
        else:
            at("a").change_settings(limit={"n": 1})
        assert of == "group" or len(at("a").lease(2)) == 2
        return leasing.BUSY

    monkeypatch.setattr(leasing.Leaser, "_from_batch", is_busy_once)
    assert len(a.lease(20)) == (18 if of == "queue by a field" else 0)
    if of == "queue by a field":
        a.insert({"n": 5})
        assert a.lease(1) == []


def test_the_slot_of_a_lease_that_has_run_out_comes_back_and_it_cannot_be_renewed(
    group: Group, at: Opened, clock: ManualClock
) -> None:
    group.set_limits(max_leased=2)
    a = at("a")
    held = a.lease(2, lease_s=10)
    clock.advance(9)
    held[0].renew(60)
    b = at("b")
    assert b.lease(9) == []
    clock.advance(2)
    assert len(b.lease(9)) == 1
    with pytest.raises(fsqueue.LeaseLost):
        held[1].renew()
    assert b.lease() == []


def test_many_processes_never_hold_more_than_the_limit(tmp_path: Path) -> None:
    """Each that holds a task has a file of its own meanwhile, in whichever queue. One is killed while it does."""
    group = Group.create(tmp_path / "group", batch_tasks_max=8, lease_s=600)
    for name in NAMES:
        group[name].insert_many(range(30))
    group.set_limits(max_leased=3)
    place = tmp_path / "held"
    place.mkdir()
    context = multiprocessing.get_context("fork")
    seen = context.Queue()

    def work(number: int) -> None:
        mine = Group(group.path, worker=f"worker {number}")
        while not mine.is_drained():
            for task in mine.lease(2) if number % 2 else mine[NAMES[number % 3]].lease(2):
                mark = place / f"{task.queue.path.name}.{task.id}"
                mark.touch()
                seen.put(len(os.listdir(place)))
                if number == 3:
                    kill()
                mark.unlink()
                task.complete()

    children = [context.Process(target=work, args=(number,)) for number in range(4)]
    for child in children:
        child.start()
    children[3].join(PATIENCE_S)
    for name in NAMES:
        group[name].release_all(worker="worker 3")
    counts = []
    reader = threading.Thread(target=lambda: counts.extend(seen.get(timeout=PATIENCE_S) for _ in range(90)))
    reader.start()
    for child in children:
        child.join(PATIENCE_S)
    reader.join(PATIENCE_S)
    assert max(counts) <= 3 + 2, "the killed one has left up to two files"
    assert group.status().status.completed == 90


# -- queues that come and go -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["deleted", "purged", "moved out", "made anew"])
def test_slots_of_a_queue_that_is_gone_come_back(group: Group, at: Opened, clock: ManualClock, way: str) -> None:
    group.set_limits(max_leased=3)
    a = at("a")
    assert len(a.lease(3)) == 3
    if way == "purged":
        a.purge()
    elif way == "moved out":
        a.close()
        (group.path / "a").rename(group.path.parent / "a")
    else:
        group.delete("a")
        if way == "made anew":
            group["a"].insert(1)
    clock.advance(1.1)
    assert len(at("b").lease(9)) == 3


def test_a_lease_in_a_generation_that_a_worker_does_not_know_yet_keeps_its_slot(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=2)
    late, other = at("a"), at("a")
    late.lease()[0].complete()
    other.purge()
    other.insert_many(range(9))
    held = other.lease(2)
    assert len(held) == 2
    assert late.lease() == at("b").lease(9) == []


def test_a_queue_that_was_moved_out_leases_nothing_until_it_is_told_that_it_has_no_group(
    group: Group, clock: ManualClock
) -> None:
    group.set_limits(max_leased=2)
    outside = group.path.parent / "a"
    (group.path / "a").rename(outside)
    before = {path: path.read_bytes() for path in group.path.rglob("*") if path.is_file()}
    moved = Queue(outside)
    with pytest.raises(StorageError, match="does not lie in the group"):
        moved.lease()
    assert {path: path.read_bytes() for path in group.path.rglob("*") if path.is_file()} == before
    assert [one.kind for one in moved.fsck()] == ["mark-of-no-group"]
    assert [one.repaired for one in moved.fsck(repair=True)] == [True]
    assert len(moved.lease(9)) == 9


def test_a_queue_in_another_group_writes_nothing_there(group: Group, tmp_path: Path, clock: ManualClock) -> None:
    group.set_limits(max_leased=2)
    other = Group.create(tmp_path / "other")
    other["x"].insert(1)
    other.set_limits(max_leased=1)
    (group.path / "a").rename(other.path / "a")
    before = {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()}
    with pytest.raises(StorageError, match="does not lie in the group"):
        Queue(other.path / "a").lease()
    assert {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()} == before


def test_a_link_in_place_of_the_limits_is_not_followed(group: Group, at: Opened, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = Path(group_file(str(group.path)))
    (group.path / ".limits").symlink_to(elsewhere)
    before = own.read_bytes()
    with pytest.raises(StorageError):
        group.set_limits(max_leased=2)
    assert own.read_bytes() == before
    (group.path / ".limits").unlink()
    group.set_limits(max_leased=2)
    (group.path / ".limits").rename(group.path / ".moved")
    (group.path / ".limits").symlink_to(elsewhere)
    with pytest.raises(StorageError):
        at("a").lease()
    assert [*elsewhere.iterdir()] == []
    assert [one.kind for one in group.fsck()] == ["link"]
    assert all(one.repaired for one in group.fsck(repair=True))
    assert len(at("a").lease(9)) == 2


@pytest.mark.parametrize("where", ["outside", "beside", "in another group"])
def test_a_queue_that_is_opened_through_a_link_of_another_name_keeps_to_them(
    group: Group, at: Opened, tmp_path: Path, clock: ManualClock, where: str
) -> None:
    holder = tmp_path
    if where == "beside":
        holder = group.path
    elif where == "in another group":
        holder = Path(Group.create(tmp_path / "other").path)
    link = holder / "b2"
    link.symlink_to(group.path / "a")
    group.set_limits(max_leased=2)
    linked = Queue(link)
    [held] = linked.lease()
    assert held.payload == {"n": 0}
    assert len(at("b").lease(9)) == 1
    assert linked.lease() == []
    held.complete()
    clock.advance(1.1)
    assert len(linked.lease(9)) == 1
    assert linked.store.name_in_group == "a"
    assert [*linked.fsck()] == []


def test_a_link_that_leads_elsewhere_by_now_is_resolved_anew(group: Group, tmp_path: Path, clock: ManualClock) -> None:
    link = tmp_path / "link"
    link.symlink_to(group.path / "a")
    group.set_limits(max_leased=5)
    linked = Queue(link)
    assert len(linked.lease(2)) == 2
    (group.path / "a").rename(group.path / "renamed")
    link.unlink()
    link.symlink_to(group.path / "renamed")
    clock.advance(1.1)
    with pytest.raises(fsqueue.QueueNotFound):
        linked.lease()
    assert len(linked.lease(9)) == 3


@pytest.mark.parametrize("what", ["link to a directory", "link to a queue", "dangling link", "pipe"])
def test_what_is_no_directory_does_not_hold_up_limits_that_begin(
    group: Group, at: Opened, tmp_path: Path, what: str
) -> None:
    """It is neither followed nor opened: fsck tells of it."""
    stray, elsewhere = group.path / "bb", tmp_path / "elsewhere"
    elsewhere.mkdir()
    if what == "pipe":
        os.mkfifo(stray)
    elif what == "link to a queue":
        shutil.copytree(group.path / "a", elsewhere, dirs_exist_ok=True)
        stray.symlink_to(elsewhere)
    else:
        stray.symlink_to(elsewhere if what == "link to a directory" else tmp_path / "nothing")
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    assert len(at("a").lease(1)) == 1
    assert group.set_limits(max_leased=3).max_leased == 3
    assert len(at("c").lease(9)) == 2
    slots_path(group).unlink()
    assert at("b").lease() == []
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before
    assert "hidden-file" in [one.kind for one in group.fsck()]


def test_a_queue_whose_own_file_is_a_link_holds_limits_up_that_begin(group: Group, at: Opened) -> None:
    """The queue lies in the group, so leases in it may hold."""
    own = group.path / "b" / "queue.jsonl"
    own.rename(own.with_name("moved"))
    own.symlink_to("moved")
    with pytest.raises(fsqueue.QueueFileLost, match="symbolic link"):
        group.set_limits(max_leased=3)
    with pytest.raises(fsqueue.QueueFileLost, match="symbolic link"):
        at("a").lease()
    own.unlink()
    own.with_name("moved").rename(own)
    assert len(at("a").lease(9)) == 3


def test_a_copy_of_the_whole_group_counts_by_itself(group: Group, at: Opened, clock: ManualClock) -> None:
    group.set_limits(max_leased=2)
    assert len(at("a").lease(9)) == 2
    shutil.copytree(group.path, group.path.parent / "copy")
    copied = Queue(group.path.parent / "copy" / "b")
    assert copied.lease() == [], "what is leased in the copy, too"
    assert at("b").lease() == []


def test_a_copy_of_a_queue_within_the_group_gives_no_slots_of_the_other_back(group: Group, at: Opened) -> None:
    """It has batches of the same names."""
    shutil.copytree(group.path / "a", group.path / "z")
    group.set_limits(max_leased=3)
    held = at("a").lease(3)
    assert len(held) == 3
    assert at("z").lease(9) == at("b").lease(9) == []
    held[0].complete()
    assert len(at("z").lease(9)) == 1


def test_a_queue_that_cannot_be_read_keeps_its_slots(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=2)
    assert len(at("a").lease(2)) == 2
    own = group.path / "a" / "queue.jsonl"
    own.rename(own.with_name("hidden"))
    assert at("b").lease() == []
    own.with_name("hidden").rename(own)
    at("a").release_all()
    assert len(at("b").lease(9)) == 2


def test_a_group_whose_file_was_written_anew_leases_nothing_until_its_limits_are_set(
    group: Group, at: Opened, clock: ManualClock
) -> None:
    group.set_limits(max_leased=2)
    Path(group_file(str(group.path))).unlink()
    with pytest.raises(StorageError, match="does not lie in the group"):
        at("a").lease()
    assert [one.repaired for one in fsck_lost(str(group.path), True)] == [True]
    with pytest.raises(StorageError, match="was written anew"):
        at("a").lease()
    again = Group(group.path)
    again.set_limits(max_leased=1)
    assert len(at("a").lease(9)) == 1


def test_a_group_that_is_away_is_no_group_without_limits(group: Group, at: Opened, clock: ManualClock) -> None:
    group.set_limits(max_leased=2)
    a = at("a")
    group.path.rename(group.path.with_name("away"))
    clock.advance(1.1)
    with pytest.raises((GroupNotFound, StorageError, fsqueue.QueueNotFound)):
        a.lease()


# -- the file of slots -----------------------------------------------------------------------------------------


def slots_path(group: Group) -> Path:
    limits = group.directory().read_anew().limits
    assert limits is not None
    return Path(slots_file(str(group.path), limits.epoch))


@pytest.mark.parametrize("what", ["half", "another boot", "gone"])
def test_a_file_of_slots_that_is_not_whole_is_made_anew_from_all_logs(group: Group, at: Opened, what: str) -> None:
    group.set_limits(max_leased=3)
    assert len(at("a").lease(1)) == len(at("b").lease(1)) == 1
    path = slots_path(group)
    if what == "half":
        path.write_bytes(bytes(64) + path.read_bytes()[64:128] + b"torn")
    elif what == "another boot":
        path.write_bytes(slots.header("another boot") + bytes(path.stat().st_size - 64))
    else:
        path.unlink()
    assert len(at("c").lease(9)) == 1


def test_a_directory_in_place_of_the_file_of_slots_is_named(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=3)
    path = slots_path(group)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError) as caught:
        at("a").lease()
    assert str(path) in str(caught.value)
    assert "fsqueue fsck --repair" in str(caught.value)
    assert all(one.repaired for one in group.fsck(repair=True))
    assert len(at("a").lease(9)) == 3


def test_a_locked_file_of_slots_gives_no_task_and_no_error(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=3)
    a = at("a")
    by = group_slots.Clocks(a.store.clock, a.store.entropy)
    limits = group.directory().read_anew().limits
    assert limits is not None
    with group_slots.locked(group.directory(), by, limits.epoch):
        assert a.lease() == []
    assert len(a.lease(9)) == 3


def test_fsck_writes_slots_and_a_mark_that_are_missing(group: Group, at: Opened, clock: ManualClock) -> None:
    before = (group.path / "a" / "queue.jsonl").read_bytes()
    group.set_limits(limit={"licence": 2})
    a = at("a")
    assert [*a.fsck()] == []
    (group.path / "a" / "queue.jsonl").write_bytes(before)
    free = at("a")
    assert len(free.lease(8)) == 8, "it does not know of the limits"
    found = [(one.kind, one.repaired) for one in free.fsck()]
    assert found == [("missing-mark", False)]
    found = [(one.kind, one.repaired) for one in free.fsck(repair=True)]
    assert found[0] == ("missing-mark", True)
    assert set(found[1:]) == {("missing-slot", True)}
    assert [*free.fsck()] == []
    clock.advance(1.1)
    assert not any("licence" in task.payload for task in at("b").lease(20))


def test_upkeep_keeps_the_files_of_limits_young(group: Group, at: Opened) -> None:
    group.set_limits(max_leased=2)
    path = slots_path(group)
    os.utime(path, (1, 1))
    at("a").gc(touch=True)
    assert path.stat().st_mtime > 1
    assert group.usage()["settings"].files >= 2 + len(NAMES)
