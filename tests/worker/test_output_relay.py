"""How what attempts print is passed on: whole groups, whole lines, or as it comes; with tags or without."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.filesystem.outputs import Spool
from fsqueue.worker import output_relay
from fsqueue.worker.output import OutputWriter
from fsqueue.worker.output_relay import Channel, Exits
from tests.waiting import PATIENCE_S, until
from tests.worker.support import drained, in_background, shell_until, time_out, until_there

pytestmark = pytest.mark.once


class Printed:
    """What was passed on: all of it in order, and by descriptor."""

    def __init__(self) -> None:
        self.all = b""
        self.by: dict[int, bytes] = {1: b"", 2: b""}

    def __call__(self, ours: int, data: bytes) -> None:
        self.all += data
        self.by[ours] += data


@pytest.fixture
def printed() -> Printed:
    return Printed()


@pytest.fixture
def exits(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> Exits:
    """Standard output and error that lead to one file."""
    monkeypatch.setattr(output_relay, "is_same_file", lambda one, other: True)
    monkeypatch.setattr(output_relay, "is_terminal", lambda fd: False)
    return Exits(printed)


def channels(exits: Exits, output: Any, tags: bool = False) -> list[Channel]:
    found = [Channel(exits, 1, output, tags) for _ in range(2)]
    for number, channel in enumerate(found):
        channel.begin(f"task-{number}")
    return found


def test_lines_of_two_are_never_mixed(exits: Exits, printed: Printed) -> None:
    one, other = channels(exits, "line")
    for channel, chunk in ((one, b"a"), (other, b"x\ny"), (one, b"b\nc"), (other, b"z\n"), (one, b"d\n")):
        channel.take(chunk)
    assert printed.all == b"x\nab\nyz\ncd\n"


def test_groups_come_together_at_their_end(exits: Exits, printed: Printed) -> None:
    one, other = channels(exits, "group")
    for channel, chunk in ((one, b"a\n"), (other, b"x\n"), (one, b"b\n"), (other, b"y\n")):
        channel.take(chunk)
    assert printed.all == b""
    other.end()
    one.end()
    assert printed.all == b"x\ny\na\nb\n"


@pytest.mark.parametrize("output", ["group", "line"])
def test_a_last_line_without_an_end_gets_one_only_where_others_follow(
    exits: Exits, printed: Printed, output: str
) -> None:
    one, other = channels(exits, output)
    one.take(b"no end")
    one.end()
    assert printed.all == b"no end"
    other.take(b"neither")
    other.end()
    assert printed.all == b"no end\nneither"


def test_on_a_terminal_the_last_line_is_ended(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_relay, "is_terminal", lambda fd: fd == 1)
    monkeypatch.setattr(output_relay, "is_same_file", lambda one, other: False)
    exits = Exits(printed)
    for ours in (1, 2):
        channel = Channel(exits, ours, "group", False)
        channel.begin("task")
        channel.take(b"no end")
        channel.end()
        channel.end()
    assert printed.by == {1: b"no end\n", 2: b"no end"}


def test_as_it_comes(exits: Exits, printed: Printed) -> None:
    one, other = channels(exits, "ungrouped")
    one.take(b"a")
    other.take(b"b")
    assert printed.all == b"ab"


@pytest.mark.parametrize("output", ["group", "line"])
def test_tags_stand_before_each_line(exits: Exits, printed: Printed, output: str) -> None:
    one, other = channels(exits, output, tags=True)
    one.take(b"a\n\nb")
    other.take(b"x\r50%\r\n")
    one.end()
    other.end()
    lines = sorted(printed.all.removesuffix(b"\n").split(b"\n"))
    assert lines == [b"task-0\t", b"task-0\ta", b"task-0\tb", b"task-1\tx\r50%\r"]


def test_what_comes_after_the_end_comes_in_lines(exits: Exits, printed: Printed) -> None:
    one, _ = channels(exits, "group")
    one.end()
    one.take(b"late")
    assert printed.all == b""
    one.take(b"r\n")
    assert printed.all == b"later\n"


def test_a_line_without_end_is_not_held_back_for_ever(exits: Exits, printed: Printed) -> None:
    one, _ = channels(exits, "line", tags=True)
    for _ in range(3):
        one.take(b"x" * output_relay.LINE_BYTES_MAX)
    assert len(printed.all) >= 2 * output_relay.LINE_BYTES_MAX
    one.end()
    assert printed.all == b"task-0\t" + b"x" * 3 * output_relay.LINE_BYTES_MAX


def test_a_large_group_is_held_back_in_a_file(exits: Exits, printed: Printed) -> None:
    one, _ = channels(exits, "group")
    text = b"".join(b"%d\n" % number for number in range(100_000))
    for at in range(0, len(text), 10_000):
        one.take(text[at : at + 10_000])
    assert one._group is not None
    assert len(one._group._memory) <= output_relay.GROUP_BYTES
    assert printed.all == b""
    one.end()
    assert printed.all == text


def test_without_room_to_hold_back_it_is_shown_at_once(
    exits: Exits, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:10])
        raise OSError(errno.ENOSPC, "full")

    one, other = channels(exits, "group")
    one.take(b"a\n" * 1000)
    monkeypatch.setattr("fsqueue.filesystem.outputs.write_all", full)
    one.take(b"b\n" * output_relay.GROUP_BYTES)
    other.take(b"c\n")
    one.take(b"d\n")
    assert printed.all == b"a\n" * 1000 + b"b\n" * output_relay.GROUP_BYTES + b"d\n"
    other.end()
    assert printed.all.endswith(b"c\n")


def test_a_spool_gives_back_what_it_was_given() -> None:
    spool = Spool(10)
    for piece in (b"0123456", b"789", b"ab", b"c"):
        spool.append(piece)
    assert b"".join(spool.pieces()) == b"0123456789abc"
    spool.close()
    assert b"".join(spool.pieces()) == b""


# -- with workers

NOISY = f"""
cd "$2"
for n in 1 2 3; do
    printf '%s-' $1; before=$(ls | wc -l); touch $1
    [ $n != 1 ] || {shell_until("now=$(ls | wc -l); [ $now -ge $((before + 2)) ] || [ $now = 8 ]")}
    printf 'out\\n'; printf '%s-err\\n' $1 >&2
done
"""
"""Each command stops within its first line until another has begun one."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("output", [None, "group", "line"])
def test_commands_side_by_side_never_mix_within_a_line(
    queue: Queue, printed: Printed, tmp_path: Path, output: Any
) -> None:
    (tmp_path / "begun").mkdir()
    queue.insert_many(f"t{number}" for number in range(8))
    command = ["sh", "-c", NOISY, "sh", "{}", str(tmp_path / "begun")]
    Worker(queue, command=command, processes=4, output=output, pass_on=printed).run()
    lines = printed.all.decode().splitlines()
    assert sorted(lines) == sorted(f"t{number}-{what}" for number in range(8) for what in ["out", "err"] * 3)
    if output != "line":
        for at in range(0, len(lines), 6):
            assert [line.partition("-")[2] for line in lines[at : at + 6]] == ["out"] * 3 + ["err"] * 3
            assert len({line.partition("-")[0] for line in lines[at : at + 6]}) == 1


def test_a_command_alone_is_heard_at_once(queue: Queue, printed: Printed, tmp_path: Path) -> None:
    queue.insert(1)
    command = ["sh", "-c", f"echo begun; {until_there(tmp_path / 'go')}"]
    worker = Worker(queue, command=command, pass_on=printed)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: printed.all == b"begun\n", "the output of the command")
    (tmp_path / "go").touch()
    thread.join()


@pytest.mark.parametrize("options", [{"tag": True}, {"output": "group", "tag": True}])
def test_functions_have_tags_of_their_own_tasks(queue: Queue, printed: Printed, options: dict[str, Any]) -> None:
    ids = {n: ref.id for n in range(20) for ref in [queue.insert({"do": "print", "text": f"of {n}"})]}
    assert Worker(queue, "tests.worker.tasks:obey", processes=2, pass_on=printed, **options).run() == drained(
        completed=20
    )
    assert sorted(printed.all.decode().splitlines()) == sorted(f"{id}\tof {n}" for n, id in ids.items() for _ in "12")


def test_commands_have_tags(queue: Queue, printed: Printed) -> None:
    task_id = queue.insert(1).id
    Worker(queue, command=["sh", "-c", "echo a; echo b; echo c >&2"], tag=True, pass_on=printed).run()
    assert printed.by == {1: f"{task_id}\ta\n{task_id}\tb\n".encode(), 2: f"{task_id}\tc\n".encode()}


def test_a_group_is_shown_when_its_command_is_killed(queue: Queue, printed: Printed, tmp_path: Path) -> None:
    queue.insert_many([1, 2])
    command = ["sh", "-c", f"echo heard; echo $$ >&2; touch {tmp_path}/began-$$; sleep 1000"]
    worker = Worker(queue, command=command, processes=2, task_timeout_s=1000, max_tasks=2, pass_on=printed)
    thread, reports = in_background(worker)
    until(lambda: len(list(tmp_path.glob("began-*"))) == 2, "the begin of two commands")
    time_out(worker)
    thread.join(PATIENCE_S)
    assert reports[0].failed == 2
    assert printed.by[1] == b"heard\n" * 2


@pytest.mark.parametrize("options", [{"output": "lines"}, {"output": "ungrouped", "tag": True},
                                     {"threads": 2, "tag": True},
                                     {"threads": 2, "output": "group"}])  # fmt: skip
def test_contradictions(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Worker(queue, len, **options)


LOOKS = """
from fsqueue.worker import output
real, looks = output.OutputWriter.close, []
def close(self, is_hurried):
    def look():
        looks.append(1)
        if len(looks) == 20:
            open(waits, "w").close()
        return is_hurried()
    real(self, look)
output.OutputWriter.close, output.CLOSE_S, output.CLOSE_LOOK_S = close, 0.05, 0.01
"""
"""In a worker that ends with its output stuck: make a file after many more looks than it would wait for otherwise."""


def test_a_reader_that_pauses_gets_everything(queue: Queue, tmp_path: Path) -> None:
    """A pager reads what it shows, and no more. The end waits for it, until somebody is in a hurry."""
    queue.insert(1)
    program = (
        f"waits = {str(tmp_path / 'waits')!r}\n{LOOKS}\n"
        "from fsqueue import Queue, Worker\n"
        f"Worker(Queue({str(queue.path)!r}), command=['seq', '100000']).run()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        until(lambda: queue.status().completed == 1, "a completed task")
        until((tmp_path / "waits").exists, "the worker to wait for the reader")
        assert process.poll() is None
        assert process.stdout is not None
        assert re.findall(r"\d+", process.stdout.read()) == [str(n) for n in range(1, 100_001)]
        assert process.wait(PATIENCE_S) == 0


def test_who_is_in_a_hurry_does_not_wait_for_a_stuck_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsqueue.worker.output.CLOSE_S", 0.1)
    go, entered = threading.Event(), threading.Event()

    def stuck(ours: int, data: bytes) -> None:
        entered.set()
        go.wait(PATIENCE_S)

    output_writer = OutputWriter(lambda name, error: None, lambda text: None, stuck)
    output_writer.start()
    output_writer.do(lambda: output_writer.exits.write(1, b"x"))
    entered.wait(PATIENCE_S)
    looks: list[None] = []
    output_writer.close(lambda: looks.append(None) or len(looks) > 5)
    assert len(looks) > 5
    assert output_writer.is_alive()
    go.set()
    output_writer.join(PATIENCE_S)
