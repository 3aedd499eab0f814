"""Kept output: files are made anew, whatever others have put in their place; what is not kept is said, and counted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, StorageFull, Worker
from fsqueue.filesystem import outputs
from fsqueue.filesystem.outputs import KeptOutput
from tests.support import QueueFactory, needs_root
from tests.test_group import MEMBER, OWNER, as_user, shared
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, in_background, until_there

Make = Callable[..., Worker]
__all__ = ["shared"]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


@pytest.fixture(params=["command", "function"])
def run(request: pytest.FixtureRequest, kept: Path, told: list[str]) -> Make:
    """A worker whose tasks print a line on standard output and one on standard error."""

    def make(queue: Queue, **options: Any) -> Worker:
        options = {"keep_output": kept, "tell": lambda event: event.text and told.append(event.text)} | options
        if request.param == "command":
            return Worker(queue, command=["sh", "-c", "echo out; echo err >&2"], **options)
        return Worker(queue, tasks.prints, **options)

    return make


def lines(path: Path) -> list[str]:
    return sorted(path.read_text().split())


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a private file": lambda path, private: path.symlink_to(private),
    "a hard link to a private file": lambda path, private: path.hardlink_to(private),
    "a link that leads nowhere": lambda path, private: path.symlink_to(private.parent / "new"),
    "a pipe": lambda path, private: os.mkfifo(path),
    "a directory": lambda path, private: path.mkdir(),
    "a file": lambda path, private: path.write_text("of somebody else"),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", PLANTS)
def test_what_is_planted_under_its_name_is_left_alone(
    queue: Queue, run: Make, kept: Path, tmp_path: Path, what: str
) -> None:
    private = tmp_path / "private"
    private.write_text("# private\n")
    ids = [queue.insert(number).id for number in range(3)]
    planted = kept / f"{ids[0]}.1"
    PLANTS[what](planted, private)
    before = planted.lstat()
    assert run(queue).run() == drained(completed=3)
    assert private.read_text() == "# private\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"q", "kept", "private"}
    after = planted.lstat()
    assert (after.st_mode, after.st_ino, after.st_size) == (before.st_mode, before.st_ino, before.st_size)
    for path in (kept / f"{ids[0]}.1-2", kept / f"{ids[1]}.1", kept / f"{ids[2]}.1"):
        assert lines(path) == ["err", "out"]
        assert stat.S_ISREG(path.lstat().st_mode)
    assert len(list(kept.iterdir())) == 4


def test_what_is_put_in_a_files_place_while_it_is_written_gets_nothing(
    queue: Queue, kept: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.write_text("# private\n")
    path = kept / f"{queue.insert(1).id}.1"
    script = f"echo one; {until_there(tmp_path / 'go')}; echo two; head -c 100000 /dev/zero"
    thread, reports = in_background(Worker(queue, command=["sh", "-c", script], keep_output=kept))
    until(lambda: path.exists() and path.read_bytes() == b"one\n", "the first line of the kept output")
    path.rename(kept / "away")
    path.symlink_to(private)
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=1)]
    assert private.read_text() == "# private\n"
    assert (kept / "away").read_bytes() == b"one\ntwo\n" + bytes(100_000)


def test_the_directory_may_be_reached_by_links_and_is_not_left(queue: Queue, run: Make, tmp_path: Path) -> None:
    """Where it leads is looked up once: a link that is turned later leads nobody elsewhere."""
    (tmp_path / "there").mkdir()
    (tmp_path / "way").symlink_to("there")
    task_id = queue.insert(1).id
    assert run(queue, keep_output=tmp_path / "way" / "new" / "deep").run() == drained(completed=1)
    assert lines(tmp_path / "there" / "new" / "deep" / f"{task_id}.1") == ["err", "out"]


@pytest.mark.once
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_directory_that_cannot_be_used_is_refused_before_anything_is_leased(
    queue: Queue, run: Make, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    queue.insert(1)
    with pytest.raises(InvalidArgument, match=r"No output can be kept in .*: .*No task was begun"):
        run(queue, keep_output=tmp_path / place).run()
    assert [(task.state, task.attempt) for task in queue.tasks()] == [("waiting", 0)]
    assert [move.op for task in queue.tasks() for move in queue.history(task.id)] == ["insert"]


@pytest.mark.once
def test_a_full_disk_is_refused_at_once(queue: Queue, run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: KeptOutput) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(KeptOutput, "open", full)
    with pytest.raises(StorageFull, match="no room"):
        run(queue).run()


def test_what_is_not_kept_is_said_once_and_counted(
    queue: Queue, run: Make, kept: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert_many(range(5))
    real, fails = outputs.write_all, iter([False, False, True, True] + [True] * 4)

    def full(fd: int, data: bytes) -> None:
        if os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")) == str(kept) and next(fails, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, data)

    monkeypatch.setattr(outputs, "write_all", full)
    report = run(queue).run()
    assert (report.completed, report.failed) == (5, 0)
    assert 1 <= report.unkept < 5
    assert len(told) == 1
    assert "is not kept" in told[0]
    assert "No space left" in told[0]


def test_when_all_names_are_taken_that_is_said_and_counted(
    queue: Queue, run: Make, kept: Path, told: list[str]
) -> None:
    ids = [queue.insert(number).id for number in range(2)]
    for name in (f"{ids[0]}.1", *(f"{ids[0]}.1-{number}" for number in range(2, outputs.NAMES_MAX + 1))):
        (kept / name).symlink_to("/dev/null")
    assert run(queue).run() == drained(completed=2, unkept=1)
    assert len(told) == 1
    assert "names are taken" in told[0]
    assert lines(kept / f"{ids[1]}.1") == ["err", "out"]


def test_each_attempt_has_a_file_and_no_descriptor_is_left(queue_factory: QueueFactory, run: Make, kept: Path) -> None:
    queue = queue_factory()
    queue.insert_many(range(3))
    run(queue).run()
    before = len(os.listdir("/proc/self/fd"))
    queue.insert_many(range(40))
    assert run(queue, processes=3).run() == drained(completed=40)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, "descriptors to be closed")
    assert len(list(kept.iterdir())) == 43
    assert all(lines(path) == ["err", "out"] for path in kept.iterdir())


def test_so_many_files_are_open_at_a_time_and_what_comes_later_goes_into_new_ones(tmp_path: Path) -> None:
    kept = KeptOutput(str(tmp_path), open_max=2)
    kept.open()
    files = [kept.file(name) for name in "abc"]
    before = len(os.listdir("/proc/self/fd"))
    for text in (b"1", b"2"):
        for file in files:
            file.append(text)
            assert len(os.listdir("/proc/self/fd")) <= before + 2
    kept.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a": "1", "b": "1", "c": "1", "a-2": "2", "b-2": "2", "c-2": "2"
    }  # fmt: skip


@needs_root
def test_a_member_who_knows_the_name_gets_nothing_into_the_workers_own_files(shared: Path, tmp_path: Path) -> None:
    path, out, private = shared / "q", shared / "out", shared / "home"
    out.mkdir()
    private.mkdir()
    for place, owner, mode in ((out, OWNER, 0o2775), (private, OWNER, 0o700)):
        os.chown(place, owner, shared.stat().st_gid)
        place.chmod(mode)

    def prepare() -> str:
        (private / ".profile").write_text("# private\n")
        return Queue.create(path).insert("alias ls=evil").id

    def plant() -> None:
        (out / f"{task_id}.1").symlink_to(private / ".profile")

    def work() -> list[str]:
        # No worker: as this user the interpreter that it would start may be out of reach.
        kept = KeptOutput(str(out), open_max=2)
        kept.open()
        kept.file(f"{task_id}.1").append(b"alias ls=evil\n")
        kept.close()
        return [(private / ".profile").read_text(), (out / f"{task_id}.1-2").read_text()]

    task_id = as_user(OWNER, 0o002, prepare)
    as_user(MEMBER, 0o002, plant)
    assert as_user(OWNER, 0o002, work) == ["# private\n", "alias ls=evil\n"]


@needs_root
def test_a_directory_in_which_one_may_not_write_is_refused(shared: Path) -> None:
    path, out = shared / "q", shared / "out"
    out.mkdir(mode=0o755)

    def work() -> str:
        queue = Queue.create(path)
        queue.insert(1)
        try:
            Worker(queue, command=["true"], keep_output=out).run()
        except InvalidArgument as error:
            return f"{error} {queue.status().waiting}"
        return "not refused"

    said = as_user(OWNER, 0o002, work)
    assert "Permission denied" in said
    assert said.endswith(" 1")


@needs_root
def test_a_link_of_another_user_is_not_followed_to_the_directory(queue: Queue, kept: Path, tmp_path: Path) -> None:
    """Whoever may write beside it would choose where the files are made; a link of one's own is one's word."""
    mine, theirs, chain = tmp_path / "mine", tmp_path / "theirs", tmp_path / "chain"
    mine.symlink_to("kept")
    theirs.symlink_to(kept)
    os.lchown(theirs, MEMBER, MEMBER)
    chain.symlink_to(theirs)
    queue.insert(1)
    for path in (theirs, chain):
        with pytest.raises(InvalidArgument, match="another user"):
            Worker(queue, command=["echo", "out"], keep_output=path).run()
    assert os.listdir(kept) == []
    Worker(queue, command=["echo", "out"], keep_output=mine, max_tasks=1).run()
    assert len(os.listdir(kept)) == 1
