"""Poll for asyncio: looks in threads, sleeps in the event loop, and leaves nothing leased when it is cancelled."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Queue, StorageError
from fsqueue.filesystem import Filesystem
from fsqueue.leased_task import in_thread
from fsqueue.protocol import waiting
from fsqueue.storage import listening
from fsqueue.storage.listening import Listener
from tests.waiting import until_async

TIMEOUT_S = 60.0


async def turn() -> None:
    """Let every coroutine that can go on do so: a cancellation takes a few turns of the loop until it has arrived."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that idle loops have begun."""
    begun: list[float] = []
    nap = fsqueue.AsyncPoll._nap

    async def noted(self: fsqueue.AsyncPoll, seconds: float, listener: Listener | None) -> None:
        begun.append(seconds)
        await nap(self, seconds, listener)

    monkeypatch.setattr(fsqueue.AsyncPoll, "_nap", noted)
    return begun


def test_everything_is_handed_out_once_until_the_queue_is_drained(queue: Queue) -> None:
    queue.insert_many(range(20), batch_tasks=5)

    async def main() -> list[int]:
        found = []
        async for task in queue.poll_async(prefetch=3):
            async with task:
                found.append(task.payload)
        return found

    assert sorted(asyncio.run(main())) == list(range(20))
    assert queue.status().completed == 20


@pytest.mark.once
def test_a_failing_task_is_recorded_and_the_loop_goes_on(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.insert_many(range(4))

    async def main() -> None:
        done = 0
        async with queue.poll_async(until="forever") as loop:
            async for task in loop:
                async with task:
                    done += 1
                    if task.payload == 2:
                        raise ZeroDivisionError
                if done == 4:
                    break

    asyncio.run(main())
    status = queue.status()
    assert (status.completed, status.remaining, status.leased, len(caplog.records)) == (3, 1, 0, 1)


@pytest.mark.once
def test_several_coroutines_share_a_loop(queue: Queue) -> None:
    queue.insert_many(range(12), batch_tasks=12)
    at_once: set[str] = set()

    async def work(loop: fsqueue.AsyncPoll, together: asyncio.Barrier) -> int:
        count = 0
        async for task in loop:
            async with task:
                at_once.add(task.id)
                if count == 0:
                    await together.wait()
                count += 1
        return count

    async def main() -> int:
        together = asyncio.Barrier(3)
        loop = queue.poll_async()
        return sum(await asyncio.gather(*(work(loop, together) for _ in range(3))))

    async def limited() -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await main()

    assert asyncio.run(limited()) == 12
    assert (len(at_once), queue.status().completed) == (12, 12)


@pytest.mark.once
def test_a_cancellation_releases_the_task_of_the_block_and_what_was_leased_ahead(queue: Queue) -> None:
    queue.insert_many(range(5), batch_tasks=5)
    begun = threading.Event()

    async def work() -> None:
        async with queue.poll_async(prefetch=4) as loop:
            async for task in loop:
                async with task:
                    begun.set()
                    await asyncio.sleep(1000)

    async def main() -> None:
        running = asyncio.create_task(work())
        await until_async(begun.is_set, "the task")
        assert queue.status().leased == 4
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (queue.status().leased, queue.status().waiting) == (0, 5)
        assert {info.attempt for info in queue.tasks()} == {0}

    asyncio.run(main())


@pytest.mark.once
def test_a_cancellation_during_a_look_releases_what_it_finds(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.insert_many(range(3), batch_tasks=3)
    inside, go_on = threading.Event(), threading.Event()
    look = Queue._look

    def held_up(*arguments: object) -> object:
        got = look(*arguments)  # type: ignore[arg-type]
        inside.set()
        go_on.wait(TIMEOUT_S)
        return got

    monkeypatch.setattr(Queue, "_look", held_up)

    async def main() -> None:
        loop = queue.poll_async(prefetch=2)
        running = asyncio.create_task(anext(loop))
        await until_async(inside.is_set, "the thread")
        assert queue.status().leased == 2
        running.cancel()
        await turn()
        running.cancel()  # twice, as by a timeout around a timeout
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert queue.status().leased == 0
        task = await anext(loop)  # it was the wait that was cancelled, not the loop
        task.complete()
        await loop.aclose()
        assert (queue.status().completed, queue.status().leased) == (1, 0)

    asyncio.run(main())


@pytest.mark.once
def test_an_idle_loop_sleeps_outside_of_threads_and_ends_at_once(queue: Queue, naps: list[float]) -> None:
    async def main() -> None:
        loop = queue.poll_async(until="forever")
        waiting = asyncio.create_task(anext(loop, None))
        await until_async(lambda: loop._turn.locked() and naps, "an idle loop")
        cancelled = asyncio.create_task(anext(loop, None))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        async with asyncio.timeout(TIMEOUT_S):
            await loop.aclose()
            assert await waiting is None
        assert await anext(loop, None) is None
        assert repr(loop) == f"<AsyncPoll of {queue!r} until forever, closed>"

    asyncio.run(main())


@pytest.mark.once
def test_what_comes_later_is_found(queue: Queue, naps: list[float]) -> None:
    async def main() -> object:
        async with asyncio.timeout(TIMEOUT_S), queue.poll_async(until="forever") as loop:
            waiting = asyncio.create_task(anext(loop))
            await until_async(lambda: naps, "an idle loop")
            await asyncio.to_thread(queue.insert, "late")
            async with await waiting as task:
                return task.payload

    assert asyncio.run(main()) == "late"
    assert queue.status().completed == 1


@pytest.mark.once
def test_errors_of_the_filesystem_are_ours(queue: Queue, tmp_path: Path) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs)
    q.insert("x")

    def broken(fd: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    async def main() -> None:
        async for _ in q.poll_async():
            pytest.fail("nothing could be leased")

    fs.write = broken  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="Input/output error"):
        asyncio.run(main())


def test_a_cancellation_waits_for_the_thread_and_keeps_its_error_quiet(caplog: pytest.LogCaptureFixture) -> None:
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def act() -> None:
        inside.set()
        go_on.wait(TIMEOUT_S)
        ended.set()
        raise ZeroDivisionError

    async def main() -> None:
        running = asyncio.create_task(in_thread(act))
        await until_async(inside.is_set, "the thread")
        running.cancel()
        await turn()
        assert not running.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended.is_set()
        with pytest.raises(ZeroDivisionError):
            await in_thread(act)

    asyncio.run(main())
    assert caplog.records == []


@pytest.mark.once
@pytest.mark.parametrize("kind", ["listens", "loop without readers", "no inotify"])
def test_a_task_inserted_on_this_host_wakes_an_idle_loop(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, naps: list[float], kind: str
) -> None:
    if kind == "listens":
        monkeypatch.setattr(waiting, "BELL_S", (600.0, 600.0))  # looking again would come too late
    if kind == "no inotify":
        monkeypatch.setattr(listening, "Changes", fail_to_listen)

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        if kind == "loop without readers":
            monkeypatch.setattr(loop, "add_reader", not_implemented)
        found: list[object] = []
        async with queue.poll_async(until="forever") as poll:
            for number in range(3):
                naps.clear()
                waiting = asyncio.ensure_future(anext(poll))
                await until_async(lambda: naps, "an idle loop")
                await in_thread(lambda: queue.insert(number))  # noqa: B023 - called at once
                async with asyncio.timeout(TIMEOUT_S):
                    task = await waiting
                found.append(task.payload)
                await in_thread(task.complete)
        return found

    assert asyncio.run(main()) == [0, 1, 2]


def fail_to_listen() -> None:
    raise OSError(errno.EMFILE, "no instance left")


def not_implemented(*_: object) -> None:
    raise NotImplementedError
