"""Clients of taskstore at real gateways: what upstream's Go client does, and docs/taskstore.md as it is typed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Group
from tests.cli.conftest import Spawn
from tests.pages import Typed, blocks, text_of
from tests.service.go_client import GoClient, GoError, Lists, ResponseError, TaskInfo
from tests.waiting import until

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

Start = Callable[..., str]


@pytest.fixture
def start(spawn: Spawn, tmp_path: Path) -> Start:
    """`start(group, *options)`: a gateway on a free port. Returns the address as a Go client has it, with the token."""

    def ready(path: Path, *options: str) -> str:
        served = spawn("serve", path, "--listen", "localhost:0", "--token-file", tmp_path / "serve.tokens", *options)
        for line in served.stdout or ():
            if line.startswith("fsqueue serves "):
                token = dict(one.split() for one in (tmp_path / "serve.tokens").read_text().splitlines())["write"]
                return str(line.rstrip().rpartition(" on ")[2]).replace("http://", f"http://any:{token}@")
        raise AssertionError(f"it has ended: {served.stderr.read() if served.stderr else ''}")

    return ready


def test_upstreams_client_works_at_two_gateways(start: Start, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "work", shards=2)
    address = start(group.path)
    one = GoClient(f"{address}/", 0)  # an id that upstream's client may have
    other = GoClient(start(group.path, "--taskstore-duration", "ns"), 255)
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
    address = start(group.path)
    tokens = tmp_path / "serve.tokens"
    places = {"localhost:8750": address.rpartition("@")[2], "~/.config/fsqueue/serve.tokens": str(tokens)}
    typed = Typed(tmp_path, "docs/taskstore.md", places, {})
    typed.file("bin/curl", CURL)
    by_hand = [block for block in blocks(text_of("docs/taskstore.md")) if block.section == "By hand"]
    assert [block.language for block in by_hand] == ["sh", "text"]
    for block in by_hand:
        typed.type(block)
    assert [(queue.name, queue.status().remaining) for queue in group.queues()] == [("map", 1), ("reduce", 1)]
