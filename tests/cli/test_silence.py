"""A file server that does not answer: commands say so, and Ctrl-C ends them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fsqueue_cli import process as this_process
from fsqueue_cli.process import ANSWERS, SILENT

import fsqueue
from fsqueue import Group, Status
from tests.cli.conftest import Run, Spawn
from tests.conftest import QueueFactory
from tests.waiting import PATIENCE_S, until

MNT_FORCE, MNT_DETACH = 1, 2


@pytest.fixture
def silence() -> Iterator[Callable[[Path], None]]:
    """Yield what mounts a FUSE filesystem whose daemon never answers: as on NFS, a process that looks into it waits,
    and only a signal ends it.
    """
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting takes root and /dev/fuse")
    libc = ctypes.CDLL(None, use_errno=True)
    with ExitStack() as ending:

        def mount(place: Path) -> None:
            device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            ending.callback(os.close, device)  # who waits there gets an error then
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
            if libc.mount(b"silent", os.fsencode(place), b"fuse", 0, options.encode()) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            ending.callback(libc.umount2, os.fsencode(place), MNT_DETACH)

        yield mount


@pytest.fixture
def silent(tmp_path: Path, silence: Callable[[Path], None]) -> Path:
    """Return a mount that never answers."""
    place = tmp_path / "silent"
    place.mkdir()
    silence(place)
    return place


@pytest.mark.slow
def test_commands_say_that_the_server_does_not_answer_and_ctrl_c_ends_them(spawn: Spawn, silent: Path) -> None:
    commands = [("status",), ("wait",), ("insert", "--lines"), ("run", "--", "true")]
    processes = [spawn(name, silent / "q", *rest) for name, *rest in commands]
    for process in processes:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "does not answer" in line
        assert line == f"fsqueue: {silent}/q: {SILENT}\n" or line == f"fsqueue: {SILENT}\n", "a busy disk comes first"
        process.send_signal(signal.SIGINT)
    for process in processes:
        assert process.stderr is not None
        assert process.wait(PATIENCE_S) == 130
        # A busy disk may have kept the command waiting before the silent server did.
        *before, line = process.stderr.read().splitlines()
        assert before in ([], [f"fsqueue: {ANSWERS}"], [f"fsqueue: {ANSWERS}", f"fsqueue: {silent}/q: {SILENT}"])
        assert line.startswith("fsqueue: interrupted while the file server did not answer.")
        assert "comes back when its leases end" in line


@pytest.mark.slow
def test_a_server_that_answers_after_all_lets_the_command_go_on(spawn: Spawn, silent: Path) -> None:
    process = spawn("status", silent / "q")
    assert process.stderr is not None
    assert "does not answer" in process.stderr.readline()
    ctypes.CDLL(None).umount2(os.fsencode(silent), MNT_DETACH | MNT_FORCE)  # the kernel answers in its place
    assert process.wait(PATIENCE_S) in (1, 5), "an error of the filesystem, or no queue below the mount"
    assert "interrupted" not in process.stderr.read()


@pytest.mark.slow
def test_of_several_queues_a_worker_does_the_tasks_of_those_that_answer_and_can_be_ended(
    spawn: Spawn, silent: Path, queue_factory: QueueFactory
) -> None:
    queue = queue_factory("live")
    queue.insert_many(range(3))
    process = spawn("run", silent / "q", queue.path, "--", "true")
    until(lambda: queue.status().completed == 3, "the tasks of the other one")
    assert process.stderr is not None
    wanted = f"fsqueue: {silent}/q does not answer; it is tried again.\n"
    assert wanted in iter(process.stderr.readline, "")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "status --json", "status --watch", "wait"])
def test_of_several_queues_those_that_answer_are_told(
    spawn: Spawn, silent: Path, queue_factory: QueueFactory, command: str
) -> None:
    queue = queue_factory("live")
    queue.insert_many(range(3))
    for task in queue.lease(3):
        task.complete()
    verb, *options = command.split()
    process = spawn(verb, silent / "q", queue.path, *options)
    out, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5, said
    assert f"{silent}/q does not answer, and is left out" in said
    if "--json" in options:
        found = {line["queue"]: line for line in map(json.loads, out.splitlines())}
        assert found[str(queue.path)]["completed"] == 3
        assert "does not answer" in found[f"{silent}/q"]["error"]
    else:
        assert re.search(r"completed +3|live +0 +0 +0 +3|completed 3 of 3", out), out


@pytest.mark.slow
@pytest.mark.parametrize("is_alone", [False, True])
def test_wait_ends_at_its_time_though_a_file_server_falls_silent_meanwhile(
    fsqueue_cli: Run,
    silence: Callable[[Path], None],
    queue_factory: QueueFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_alone: bool,
) -> None:
    queue, real, waits = queue_factory("live"), fsqueue.wait, list[int]()
    queue.insert(1)
    (tmp_path / "root").mkdir()
    group = Group.create(tmp_path / "root" / "group", durability="none")

    def wait(sources: list[Any], *given: Any) -> list[Status]:
        waits.append(len(sources))
        if len(waits) == 1:
            silence(tmp_path / "root")
            os.stat(group.path)  # as each look at the group does
        return real(sources, *given)

    monkeypatch.setattr(fsqueue, "wait", wait)
    named = [group.path] if is_alone else [queue.path, group.path]
    result = fsqueue_cli("wait", *named, "--timeout", "0.1", "--json", code=5)
    assert f"fsqueue: {group.path} does not answer, and is left out" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["queue"], line.get("waiting")) for line in found] == (
        [] if is_alone else [(str(queue.path), 1), (str(group.path), None)]
    )
    assert waits == [1] if is_alone else [2, 1]


def test_what_the_threads_that_wait_are_asking_is_named() -> None:
    me = threading.get_native_id()
    with this_process.question_to("/dead/q"):
        with this_process.question_to("/dead/group"):
            assert this_process.silence([0, me]) == f"/dead/group: {SILENT}"
        assert this_process.silence([0, me]) == f"/dead/q: {SILENT}"
        assert this_process.silence([0]) == SILENT
    assert this_process.silence([me]) == SILENT


def states(monkeypatch: pytest.MonkeyPatch, *at_each_look: dict[int, tuple[str, int]]) -> list[dict[int, int]]:
    """At how many looks in a row each thread has waited by then, if these are their states and processor times."""
    waits: dict[int, tuple[int, int]] = {}
    found = []
    for at_once in at_each_look:
        monkeypatch.setattr(this_process, "_threads", lambda at_once=at_once: list(at_once))
        monkeypatch.setattr(this_process, "_state", at_once.__getitem__)
        waits = this_process.look(waits)
        found.append({thread: ticks for thread, (ticks, _) in waits.items()})
    return found


def test_only_a_thread_that_waits_all_the_time_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = 1_000_000
    assert states(
        monkeypatch,
        {1: ("D", 10 * ms), 2: ("D", 0), 3: ("S", 0)},
        {1: ("D", 11 * ms), 2: ("S", 0), 3: ("D", 0), 4: ("I", 0)},
        {1: ("D", 12 * ms), 2: ("D", 0), 3: ("D", 0), 4: ("I", 0)},
        {1: ("D", 14 * ms), 2: ("R", 0), 4: ("I", 0)},
        {1: ("D", 14 * ms), 2: ("", 0)},
    ) == [{1: 1, 2: 1}, {1: 2, 3: 1, 4: 1}, {1: 3, 2: 1, 3: 2, 4: 2}, {1: 1, 4: 3}, {1: 2}]


def test_the_state_of_threads_is_read() -> None:
    assert os.getpid() in this_process._threads()
    state, ran_ns = this_process._state(os.getpid())
    assert state == "R"
    assert ran_ns > 0
    assert this_process._state(2**30) == ("", 0)
