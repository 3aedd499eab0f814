"""Results are read, and what lies beside them is removed, in a thread: the loop renews leases meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsqueue import Queue, Worker
from fsqueue.filesystem.result_paths import ResultFile, ResultFiles
from fsqueue.worker import commands
from tests.waiting import PATIENCE_S, until
from tests.worker.support import drained, in_background, until_there

pytestmark = pytest.mark.once


class Away:
    """The filesystem of results does not answer, for the first result that is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        take = ResultFiles.take

        def waits(files: ResultFiles, result: ResultFile, bytes_max: int) -> bytes:
            self.asked.set()
            self.answers.wait()
            return take(files, result, bytes_max)

        monkeypatch.setattr(ResultFiles, "take", waits)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    away = Away(monkeypatch)
    yield away
    away.answers.set()


@pytest.mark.usefixtures("renews_often")
def test_leases_are_renewed_while_the_results_do_not_answer(queue: Queue, away: Away, tmp_path: Path) -> None:
    queue.insert("true")
    other = queue.insert(until_there(tmp_path / "go")).id
    worker = Worker(queue, command=["sh", "-c", "{}"], allow_in_script=True, processes=2)
    thread, reports = in_background(worker)
    away.asked.wait()
    renewed: set[float] = set()

    def is_renewed() -> bool:
        task = queue.task(other)
        if task.state == "leased" and task.lease_until is not None:
            renewed.add(task.lease_until)
        return len(renewed) > 3

    until(is_renewed, "the lease of the other task to be renewed three times")
    (tmp_path / "go").touch()
    away.answers.set()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=2)]


def test_a_worker_that_is_told_to_stop_puts_back_what_it_cannot_judge(queue: Queue, away: Away) -> None:
    queue.insert("x")
    said: list[str] = []
    worker = Worker(queue, command=["true"], grace_s=0, tell=lambda event: said.append(event.text))
    thread, reports = in_background(worker)
    away.asked.wait()
    worker.stop()
    thread.join(PATIENCE_S)
    assert [(report.ended, report.completed, report.released) for report in reports] == [("signal", 0, 1)]
    assert any("could not be read: it does not answer" in text for text in said)
    [task] = queue.lease()
    assert task.attempt == 1


def test_no_more_results_wait_than_there_are_slots(queue: Queue, away: Away) -> None:
    queue.insert_many(range(20))
    worker = Worker(queue, command=["true"], processes=2, prefetch=5)
    thread, reports = in_background(worker)
    executor = worker._loop._executor
    assert isinstance(executor, commands.Commands)
    until(lambda: len(executor._awaited) == 2, "both commands to have ended")
    assert executor._path_count == 2
    away.answers.set()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=20)]


def test_a_tree_is_removed_piece_by_piece(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path))
    files.open()
    result = files.new()
    beside = Path(result.path).parent
    for number in range(25):
        (beside / "tree" / f"{number}").mkdir(parents=True)
    Path(result.path).write_text("here")
    assert files.take(result, 10) == b"here"
    assert not beside.exists()
    pieces = 0
    while files.has_trees:
        files.sweep(10)
        pieces += 1
    assert pieces >= 3
    assert [path for path in next(tmp_path.iterdir()).iterdir() if path.is_dir()] == []
    files.close()
    assert list(tmp_path.iterdir()) == []
