"""Clients of taskstore at real gateways: what upstream's Go client does, and docs/taskstore.md as it is typed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fsqueue import Group
from tests.cli.conftest import Spawn
from tests.pages import Typed, blocks, text_of
from tests.service.go_client import GoClient, GoError, Lists, ResponseError, TaskInfo
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

SECOND_NS = 10**9
CURL = f"""#!{sys.executable}
# As much of curl as the page types. It is not on each machine.
import base64, sys, urllib.request
assert sys.argv[1:3] == ["-s", "-u"]
url, rest = sys.argv[4], sys.argv[5:]
data = rest[1].encode() if rest else None
assert rest[:1] in ([], ["-d"])
request = urllib.request.Request(url, data, {{"Authorization": b"Basic " + base64.b64encode(sys.argv[3].encode())}})
sys.stdout.write(urllib.request.urlopen(request, timeout=60).read().decode())
"""


class Gateway(NamedTuple):
    """A process that serves a group, and its address as a Go client has it: with the token."""

    address: str
    process: subprocess.Popen[str]


Start = Callable[..., Gateway]


@pytest.fixture
def start(spawn: Spawn, tmp_path: Path) -> Start:
    """`start(path, *options)`: a gateway on a free port that is ready. All take the same tokens."""

    def ready(path: Path, *options: str) -> Gateway:
        tokens = tmp_path / "serve.tokens"
        served = spawn("serve", path, "--listen", "localhost:0", "--token-file", tokens, *options)
        for line in served.stdout or ():
            if line.startswith("fsqueue serves "):
                token = dict(one.split() for one in tokens.read_text().splitlines())["write"]
                at = line.rstrip().rpartition(" on ")[2]
                return Gateway(at.replace("http://", f"http://any:{token}@"), served)
        raise AssertionError(f"it has ended: {served.stderr.read() if served.stderr else ''}")

    return ready


def test_upstreams_client_works_at_two_gateways(start: Start, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "work", shards=2)
    address = start(group.path).address
    one = GoClient(f"{address}/", 0)  # an id that upstream's client may have
    other = GoClient(start(group.path, "--taskstore-duration", "ns").address, 255)
    assert one.groups() == other.group("map", 0, True) == []
    assert other.claim("map", 30 * SECOND_NS) is None
    assert other.task(1) == TaskInfo()

    first, second = one.update(adds=[TaskInfo(group="map", data='<a&b>\u2028"é'), TaskInfo(group="map", data="c")])
    assert (first.id, first.group, first.data, first.ownerid) == (1, "map", '<a&b>\u2028"é', 0)
    assert other.groups() == ["map"]
    assert other.task(1) == first
    assert other.tasks(2, 3, 1) == [second, TaskInfo(), first]
    assert sorted(other.group("map", 0, False)) == [first, second]
    assert len(other.group("map", 1, False)) == 1

    claimed = one.claim("map", 3600 * SECOND_NS)
    assert claimed is not None
    assert (claimed.id, claimed.ownerid) == (3, 0)
    with pytest.raises(ResponseError) as refused:
        other.update(updates=[TaskInfo(claimed.id)], deletes=[99], depends=[98, claimed.id])
    assert refused.value.lists == Lists([], [99], [98], [claimed.id])
    with pytest.raises(ResponseError) as refused:
        other.claim("map", SECOND_NS, depends=[97])
    assert refused.value.lists == Lists([], [], [97], [])
    for request in ((), ([TaskInfo(data="no group")],)):
        with pytest.raises(GoError, match=r"200|value of error"):  # it cannot read a bug, and returns an error so
            one.update(*request)

    [renewed] = one.update(updates=[claimed._replace(timespec=-7200 * SECOND_NS)], depends=[claimed.id])
    assert renewed.data == claimed.data
    assert claimed.timespec < renewed.timespec
    left = first if claimed.data == second.data else second
    mine = other.claim("map", 1, depends=[renewed.id])  # a nanosecond: over when it is told
    assert mine is not None
    assert mine.data == left.data
    with pytest.raises(GoError, match=r"error status 400.*--taskstore-duration ms, or ns"):
        one.claim("map", SECOND_NS // 2)
    again = until(lambda: one.claim("map", 60 * SECOND_NS), "the claim of a nanosecond to be over")
    assert again.data == left.data
    [result] = one.update(adds=[TaskInfo(group="reduce", data="d")], deletes=[again.id, renewed.id])
    assert other.groups() == ["reduce"]
    assert other.group("reduce", 0, True) == [result]
    assert (one.connections, other.connections) == (1, 1), "each answer lets the client keep its connection"

    with pytest.raises(GoError, match="error status 401"):
        GoClient(address.partition("any:")[0] + address.rpartition("@")[2], 1).groups()
    one.close()
    other.close()
    assert list(group.fsck()) == []


def test_the_page_as_it_is_typed(start: Start, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "work", shards=2)
    address = start(group.path).address
    tokens = tmp_path / "serve.tokens"
    places = {"localhost:8750": address.rpartition("@")[2], "~/.config/fsqueue/serve.tokens": str(tokens)}
    typed = Typed(tmp_path, "docs/taskstore.md", places, {})
    typed.file("bin/curl", CURL)
    by_hand = [block for block in blocks(text_of("docs/taskstore.md")) if block.section == "By hand"]
    assert [block.language for block in by_hand] == ["sh", "text"]
    for block in by_hand:
        typed.type(block)
    assert [(queue.name, queue.status().remaining) for queue in group.queues()] == [("map", 1), ("reduce", 1)]


@pytest.mark.thorough
def test_gateways_are_killed_under_upstreams_clients_and_each_task_counts_once(start: Start, tmp_path: Path) -> None:
    """Whatever a client was told: a task that it deletes, and what it adds for it, go together."""
    group = Group.create(tmp_path / "work", shards=2, max_attempts=None)
    gateways = [start(group.path) for _ in range(2)]
    tasks = [str(number) for number in range(60)]
    seed = GoClient(gateways[0].address, 0)
    seed.update(adds=[TaskInfo(group="map", data=one) for one in tasks])
    seed.close()
    claimed, is_over = threading.Semaphore(0), threading.Event()

    def work(number: int) -> None:
        turn = number
        while not is_over.is_set():
            turn += 1
            client = GoClient(gateways[turn % 2].address, number)
            try:
                while not is_over.is_set() and (task := client.claim("map", 10 * SECOND_NS)) is not None:
                    claimed.release()
                    client.update(adds=[TaskInfo(group="done", data=task.data)], deletes=[task.id])
            except (OSError, IndexError, KeyError, GoError, ResponseError):
                pass  # it was killed, within an answer perhaps; or the claim was over
            finally:
                client.close()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for worker in workers:
        worker.start()
    try:
        for turn in range(4):
            for _ in range(8):
                assert claimed.acquire(timeout=PATIENCE_S)
            gateways[turn % 2].process.kill()
            gateways[turn % 2].process.wait()
            gateways[turn % 2] = start(group.path)
        until(group["map"].is_drained, "each task to be done")
    finally:
        is_over.set()
        for worker in workers:
            worker.join()
    last = GoClient(gateways[0].address, 0)
    done = last.group("done", 0, True)
    assert sorted(one.data for one in done) == sorted(tasks)
    assert len({one.id for one in done}) == len(tasks)
    assert last.groups() == ["done"]
    last.close()
    assert list(group.fsck()) == []
