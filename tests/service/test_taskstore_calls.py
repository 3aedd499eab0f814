"""taskstore's calls, case by case as docs/taskstore.md lists them. What one gateway has done, another one tells."""

from __future__ import annotations

import base64
import errno
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import fsqueue
from fsqueue import Group, Queue
from fsqueue.filesystem import Filesystem
from fsqueue.service import api, login, page, taskstore_calls
from fsqueue.service.faults import RETRY_AFTER_S, Overloaded
from fsqueue.service.gate import TASKSTORE
from fsqueue.service.taskstore import Taskstore
from tests.levels import how_many
from tests.service.conftest import READ, WRITE, Open
from tests.waiting import until

pytestmark = pytest.mark.once

ME, OTHER = 7, 8
MINUTE_MS = 60_000
NOTHING: dict[str, list[Any]] = {"changes": [], "deletes": [], "depends": [], "owned": [], "bugs": []}


class Pair:
    """Two gateways of one group. Each call goes to the other one than the call before."""

    def __init__(self, first: TestClient, second: TestClient) -> None:
        self._clients = [first, second]

    def next(self) -> TestClient:
        self._clients.reverse()
        return self._clients[0]

    def get(self, path: str) -> Any:
        answer = self.next().get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(answer.content)
        return answer.json()

    def post(self, path: str, **fields: Any) -> Any:
        answer = self.next().post(path, json=fields)
        assert answer.status_code == 200, answer.text
        assert list(answer.json()) == ["tasks", "error"]
        return answer.json()

    def update(self, client: int = ME, **fields: Any) -> list[dict[str, Any]]:
        """Return the new tasks of an update that must happen."""
        answer = self.post("/update", clientid=client, **fields)
        assert answer["error"] is None
        tasks: list[dict[str, Any]] = answer["tasks"]
        return tasks

    def refused(self, path: str = "/update", client: int = ME, **fields: Any) -> dict[str, Any]:
        """Return the lists of an update, or a claim, that must not happen."""
        before = self.everything()
        answer = self.post(path, clientid=client, **fields)
        assert answer["tasks"] == []
        assert list(answer["error"]) == list(NOTHING)
        assert self.everything() == before
        error: dict[str, Any] = answer["error"]
        return error

    def add(self, *data: str, group: str = "map", **time: int) -> list[int]:
        """Return the ids of tasks that it adds."""
        return [one["id"] for one in self.update(adds=[{"group": group, "data": one, **time} for one in data])]

    def everything(self) -> dict[str, Any]:
        return {name: self.get(f"/group/{quote(name)}?owned=yes") for name in self.get("/groups")}


@pytest.fixture
def pair(group: Group, open_gateway: Open) -> Pair:
    return Pair(open_gateway(group.path), open_gateway(group.path))


# -- looking -----------------------------------------------------------------------------------------------------------


def test_groups_are_there_while_they_have_tasks(pair: Pair) -> None:
    assert pair.get("/groups") == pair.get("/group") == []
    pair.add("a", group="reduce")
    [one] = pair.add("b", group="map")
    assert sorted(pair.get("/group")) == sorted(pair.get("/groups")) == ["map", "reduce"]
    pair.update(deletes=[one])
    assert pair.get("/groups") == pair.get("/group") == ["reduce"]


def test_a_task_by_its_id_and_null_for_what_is_gone(pair: Pair) -> None:
    [added] = pair.update(adds=[{"group": "map", "data": "a:1:2", "timespec": 5}])
    assert added == {
        "id": 1, "group": "map", "data": "a:1:2", "timespec": 5, "duration": 5_000_000, "ownerid": ME
    }  # fmt: skip
    assert pair.get("/task/1") == pair.get("/task/+01") == added
    assert pair.get("/tasks/1") == pair.get("/tasks/1") == [added]
    assert pair.get("/task/2") is None
    assert pair.get("/tasks/0,1,2,-3,1,9223372036854775807") == [None, added, None, None, added, None]
    pair.update(deletes=[1])
    assert pair.get("/task/1") is None
    assert pair.get("/tasks/1") == [None]


def test_a_group_lists_what_nobody_owns_and_the_rest_on_demand(pair: Pair) -> None:
    free = pair.add("a", "b", "c")
    [owned] = pair.add("d", timespec=-MINUTE_MS)

    def ids(query: str) -> list[int]:
        return sorted(one["id"] for one in pair.get(f"/group/map{query}"))

    assert ids("") == ids("?owned=no") == ids("?owned=&limit=") == ids("?limit=0&other=x") == free
    assert ids("?owned=TRUE") == ids("?owned=1&limit=-1") == [*free, owned]
    assert len(ids("?limit=2")) == 2
    assert len(ids("?limit=3&owned=yes")) == 3
    assert ids("?limit=9223372036854775807") == free
    assert pair.get("/group/reduce") is None
    pair.update(deletes=free)
    assert pair.get("/group/map") == [], "it has a task"
    pair.update(deletes=[owned])
    assert pair.get("/group/map?owned=yes") is None


def test_a_groups_name_is_any_text(pair: Pair, group: Group) -> None:
    names = ["a b", "é", "a/b/c", "..", "%2F", "?", "example.org#fetch", "<&>"]
    for name in names:
        pair.add("x", group=name)
        segment = "".join(f"%{byte:02X}" for byte in name.encode())
        assert [one["group"] for one in pair.get(f"/group/{segment}")] == [name]
    assert [one["group"] for one in pair.get("/group/a/b/c")] == ["a/b/c"], "as the Go client sends it"
    assert sorted(pair.get("/groups")) == sorted(names)
    assert sorted(queue.name for queue in group.queues()) == sorted(names)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_an_update_gives_the_new_tasks_first_those_it_adds(pair: Pair) -> None:
    first, second, gone, kept = pair.add("a", "b", "c", "kept")
    given = pair.update(
        updates=[{"id": second, "data": "B", "timespec": -MINUTE_MS}, {"id": first}],
        adds=[{"group": "reduce", "data": "d"}, {"group": "map", "id": first, "ownerid": OTHER}],
        deletes=[gone],
        depends=[first, kept],
    )
    assert [(one["group"], one["data"]) for one in given] == [("reduce", "d"), ("map", ""), ("map", "B"), ("map", "")]
    ids = [one["id"] for one in given]
    assert ids == sorted(ids)
    assert min(ids) > kept, "ids grow, also from gateway to gateway"
    assert pair.get(f"/task/{kept}")["data"] == "kept", "what an update depends on stays as it is"
    assert all(one["ownerid"] == ME for one in given)
    assert pair.get(f"/tasks/{first},{second},{gone}") == [None, None, None]
    assert pair.get("/tasks/" + ",".join(map(str, ids))) == given


def test_all_that_is_in_the_way_is_listed_and_nothing_is_done(pair: Pair) -> None:
    mine, free = pair.add("a", "b")
    [owned, changed] = [
        one["id"]
        for one in pair.update(client=OTHER, adds=[{"group": "map", "timespec": -MINUTE_MS} for _ in range(2)])
    ]
    [gone] = pair.add("c")
    pair.update(deletes=[gone])
    error = pair.refused(
        adds=[{"group": "map", "data": "never"}],
        updates=[{"id": 95}, {"id": mine}, {"id": changed}, {"id": 0}, {"id": gone}],
        deletes=[96, owned, free, -1],
        depends=[97, free, gone, 98],
    )
    assert (error["changes"], error["deletes"], error["depends"]) == ([95, 0, gone], [96, -1], [97, gone, 98])
    assert sorted(error["owned"]) == sorted([owned, changed])
    assert error["bugs"] == []
    pair.update(client=OTHER, deletes=[owned], updates=[{"id": changed}])


@pytest.mark.parametrize(
    "fields", [{}, {"adds": [], "deletes": None}, {"depends": [1]}, {"adds": [{"data": "no group"}]}, {"adds": [{}]}]
)
def test_what_can_never_be_done_is_a_bug(pair: Pair, fields: dict[str, Any]) -> None:
    pair.add("a")
    error = pair.refused(**fields)
    assert error["bugs"]
    assert all(type(one) is str for one in error["bugs"])
    assert {name: error[name] for name in NOTHING if name != "bugs"} == {
        name: [] for name in NOTHING if name != "bugs"
    }  # fmt: skip


# -- claims ------------------------------------------------------------------------------------------------------------


def test_a_claim_gives_a_task_a_new_id_and_an_owner_until_its_time(pair: Pair) -> None:
    [old] = pair.add("a")
    answer = pair.post("/claim", clientid=ME, group="map", duration=MINUTE_MS)
    [claimed] = answer["tasks"]
    assert answer["error"] is None
    assert (claimed["group"], claimed["data"], claimed["ownerid"]) == ("map", "a", ME)
    assert claimed["id"] > old
    assert claimed["duration"] == claimed["timespec"] * 1_000_000
    assert pair.get(f"/tasks/{old},{claimed['id']}") == [None, claimed]
    assert pair.post("/claim", clientid=OTHER, group="map", duration=MINUTE_MS) == {"tasks": [], "error": None}
    assert pair.refused(client=OTHER, deletes=[claimed["id"]]) == NOTHING | {"owned": [claimed["id"]]}
    assert pair.refused(deletes=[old]) == NOTHING | {"deletes": [old]}
    [renewed] = pair.update(updates=[{"id": claimed["id"], "data": "a", "timespec": -2 * MINUTE_MS}])
    assert renewed["timespec"] > claimed["timespec"]
    assert pair.refused(updates=[{"id": claimed["id"]}]) == NOTHING | {"changes": [claimed["id"]]}
    pair.update(deletes=[renewed["id"]])
    assert pair.get("/groups") == []


def test_a_claim_that_ends_at_once_leaves_the_task_to_all(pair: Pair) -> None:
    pair.add("a")
    seen = set()
    for client, duration in ((ME, 0), (OTHER, -5), (ME, 0)):
        [claimed] = until(
            lambda: pair.post("/claim", clientid=client, group="map", duration=duration)["tasks"],  # noqa: B023
            "the claim before to be over",
        )
        assert claimed["ownerid"] == client
        seen.add(claimed["id"])
    assert len(seen) == 3
    pair.update(client=OTHER, deletes=[max(seen)])


@pytest.mark.parametrize(("attempts", "is_there"), [(2, False), (None, True)])
def test_claims_that_run_out_are_attempts(
    tmp_path: Path, open_gateway: Open, attempts: int | None, is_there: bool
) -> None:
    client = open_gateway(Group.create(tmp_path / "g", shards=2, max_attempts=attempts).path)
    client.post("/update", json={"clientid": ME, "adds": [{"group": "map"}]})

    def claim() -> list[Any]:
        tasks: list[Any] = client.post("/claim", json={"clientid": ME, "group": "map", "duration": 0}).json()["tasks"]
        return tasks

    for _ in range(2):
        until(claim, "the claim before to be over")
    if is_there:
        until(claim, "the claim before to be over")
    else:
        until(lambda: not claim() and client.get("/groups").json() == [], "the task to be given up")


def test_a_claim_depends_on_tasks_that_are_there(pair: Pair) -> None:
    [signal] = pair.add("go", group="signals")
    asked = {"group": "map", "duration": MINUTE_MS}
    assert pair.refused("/claim", **asked, depends=[99, signal, 98]) == NOTHING | {"depends": [99, 98]}
    pair.add("a")
    assert pair.refused("/claim", **asked, depends=[99]) == NOTHING | {"depends": [99]}
    answer = pair.post("/claim", clientid=ME, **asked, depends=[signal])
    assert [one["data"] for one in answer["tasks"]] == ["a"]


def test_no_task_to_claim_is_no_error(pair: Pair) -> None:
    for _ in range(2):
        assert pair.post("/claim", clientid=ME, group="map", duration=1) == {"tasks": [], "error": None}
    pair.add("a", timespec=-MINUTE_MS)
    for client in (ME, OTHER):
        assert pair.post("/claim", clientid=client, group="map", duration=1) == {"tasks": [], "error": None}


@pytest.mark.parametrize(
    ("unit", "duration", "status"), [("auto", 500_000_000, 400), ("ns", 500_000_000, 200), ("ms", 500_000_000, 200)]
)
def test_what_a_claims_duration_counts_is_an_option_of_the_gateway(
    group: Group, open_gateway: Open, unit: str, duration: int, status: int
) -> None:
    client = open_gateway(group.path, taskstore_duration=unit)
    client.post("/update", json={"clientid": ME, "adds": [{"group": "map"}]})
    answer = client.post("/claim", json={"clientid": ME, "group": "map", "duration": duration})
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["field"] == "duration"
        return
    [claimed] = answer.json()["tasks"]
    [free] = client.post("/update", json={"clientid": ME, "adds": [{"group": "map"}]}).json()["tasks"]
    lasts_ms = claimed["timespec"] - free["timespec"]
    assert lasts_ms <= 500 if unit == "ns" else lasts_ms > 400_000_000


# -- how it is sent ----------------------------------------------------------------------------------------------------

ADD = {"clientid": ME, "adds": [{"group": "map", "data": "a&b=c+d%"}], "deletes": None}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (json.dumps(ADD), None), (json.dumps(ADD), "application/json"), (json.dumps(ADD), "text/plain"),
        (" \n" + json.dumps(ADD) + "\n", "application/x-www-form-urlencoded"),
        (urlencode({"update": json.dumps(ADD)}), "application/x-www-form-urlencoded"),
        (urlencode({"other": 1, "update": json.dumps(ADD)}), "application/x-www-form-urlencoded; charset=utf-8"),
    ],
)  # fmt: skip
def test_a_body_is_json_or_a_form(pair: Pair, body: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = pair.next().post("/update", content=body.encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["tasks"][0]["data"] == "a&b=c+d%"
    claim = urlencode({"claim": json.dumps({"clientid": ME, "group": "map", "duration": 1})})
    answer = pair.next().post(
        "/claim", content=claim.encode(), headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert len(answer.json()["tasks"]) == 1


FORM = "application/x-www-form-urlencoded"
WRONG_BODIES = [
    (b"", None, "body"), (b"  ", "application/json", "body"), (b"{", None, "body"), (b"[]", None, "body"),
    (b"null", None, "body"), (b"\xff\xfe{}", None, "body"), (b'{"clientid":1}x', None, "body"),
    (b'{"clientid":"\\ud800"}', None, "body"), (b'{"clientid":1,"clientid":2}', None, "body"),
    (b"[" * 100_000, None, "body"), (b'{"clientid":' + b"[" * 100_000, None, "body"),
    (b'{"clientid":1,"deletes":[9223372036854775808]}', None, "deletes[0]"),
    (b'{"clientid":1,"deletes":[123456789012345678901234567890]}', None, "deletes[0]"),
    (b'{"clientid":1,"adds":[{"group":"map","timespec":-9223372036854775809}]}', None, "adds[0].timespec"),
    (b'{"clientid":2147483648}', None, "clientid"), (b'{"clientid":1,"adds":[{"group":1}]}', None, "adds[0].group"),
    (b"", FORM, "update"), (b"update=", FORM, "update"), (b"claim=%7B%7D", FORM, "update"),
    (b"update=%7B", FORM, "update"), (b"update=%FF", FORM, "body"), (b"\xff", FORM, "body"),
    (b"&".join([b"a=1"] * 50), FORM, "body"), (b"update=%7B%22clientid%22%3A%22x%22%7D", FORM, "clientid"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "field"), WRONG_BODIES, ids=[f"{n}-{one[2]}" for n, one in enumerate(WRONG_BODIES)]
)
def test_a_wrong_body_is_refused_by_the_fields_name(
    client: TestClient, body: bytes, kind: str | None, field: str
) -> None:
    answer = client.post("/update", content=body, headers={} if kind is None else {"content-type": kind})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["field"]) == ("InvalidArgument", field)
    assert error["message"].startswith(field)
    assert "Nothing was done" in error["message"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/task/", "id"), ("/task/x", "id"), ("/task/1,2", "id"), ("/task/9223372036854775808", "id"),
        ("/task/%FF", "id"), ("/task/1/", "id"), ("/group/", "group"),
         ("/tasks/", "id"), ("/tasks/1,,2", "id"), ("/tasks/1;2", "id"), ("/group/%FF", "group"),
        ("/group/map?limit=x", "limit"), ("/group/map?owned=maybe", "owned"),
    ],
)  # fmt: skip
def test_a_wrong_path_is_refused_by_the_fields_name(client: TestClient, path: str, field: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/group", 405), ("POST", "/groups", 405), ("POST", "/group/map", 405), ("DELETE", "/task/1", 405),
        ("PUT", "/tasks/1", 405), ("GET", "/update", 405), ("GET", "/claim", 405), ("POST", "/update/", 404),
        ("GET", "/groups/", 404), ("HEAD", "/groups", 200), ("HEAD", "/task/1", 200),
    ],
)  # fmt: skip
def test_other_methods_are_not_for_these_paths(client: TestClient, method: str, path: str, status: int) -> None:
    assert client.request(method, path).status_code == status


def test_the_pages_are_where_they_were(client: TestClient) -> None:
    page = {"accept": "text/html"}
    assert "<html" in client.get("/", headers=page).text
    assert client.get("/task?queue=q&id=x", headers=page).headers["content-type"].startswith("text/html")
    assert client.get("/queue?name=q", headers=page).headers["content-type"].startswith("text/html")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (fsqueue.StorageFull("There is no room left."), 507, "StorageFull"),
        (fsqueue.StorageError("The file server is away."), 503, "StorageError"),
        (fsqueue.LockTimeout("Another process has it."), 503, "LockTimeout"),
        (Overloaded("Too many."), 503, "StorageError"),
        (fsqueue.TaskTooLarge("It is too long."), 413, "TaskTooLarge"),
        (fsqueue.UpdateConflict("Others were in the way.", busy=[("update", "q", "", "busy")]), 409, "UpdateConflict"),
        (fsqueue.InvalidArgument("No such name."), 400, "InvalidArgument"),
        (RuntimeError("secret"), 500, "InternalError"),
    ],
)  # fmt: skip
def test_faults_have_a_status_and_are_no_answer_of_the_store(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, kind: str
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    for name in ("groups", "tasks", "listing", "update", "claim"):
        monkeypatch.setattr(Taskstore, name, fails)
    answers = [client.get(path) for path in ("/groups", "/group", "/task/1", "/tasks/1", "/group/map")]
    answers += [client.post(path, json=ADD | {"group": "map"}) for path in ("/update", "/claim")]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert ("retry-after" in answer.headers) == (status == 503)
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
    if kind == "StorageError" and type(error) is fsqueue.StorageError:
        assert answers[0].headers["retry-after"] == str(RETRY_AFTER_S)


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 507), (errno.EIO, 503)])
def test_no_fault_at_any_write_leaves_half_an_update(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    """Each write in turn fails, in one gateway. The other one sees all of the update or nothing."""
    real, left = Filesystem.write_all, 0

    def fails(self: Filesystem, fd: int, data: bytes | memoryview) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(number, "broken")
        real(self, fd, data)

    monkeypatch.setattr(Filesystem, "write_all", fails)
    outcomes = set()
    for write in range(1, 50):
        groups = f"a{write}", f"b{write}"
        changed, deleted = pair.add("old", "old", group=groups[0])
        left = write
        answer = pair.next().post(
            "/update",
            json={
                "clientid": ME,
                "adds": [{"group": name, "data": "new"} for name in groups],
                "updates": [{"id": changed, "data": "new"}],
                "deletes": [deleted],
            },
        )
        was_reached, left = left <= 0, 0
        seen = [sorted(one["data"] for one in pair.get(f"/group/{name}") or ()) for name in groups]
        assert seen in ([["new", "new"], ["new"]], [["old", "old"], []]), f"half an update, at write {write}"
        assert answer.status_code in (200, status), answer.text
        assert ("retry-after" in answer.headers) == (answer.status_code == 503)
        assert answer.status_code != 200 or seen[1] == ["new"]
        if answer.status_code != 200:
            is_said = "has happened: do not repeat it" in answer.json()["error"]["message"]
            assert is_said == (seen[1] == ["new"]), answer.text
        outcomes.add((answer.status_code, seen[1] == ["new"]))
        if not was_reached:
            break
    assert not was_reached, "each write was tried"
    assert {(200, True), (status, False), (status, True)} <= outcomes


def test_a_body_has_a_bound(group: Group, open_gateway: Open) -> None:
    client = open_gateway(group.path, body_bytes_max=1_000)
    for data in ("x" * 1_000, "x" * 100_000):
        answer = client.post("/update", json={"clientid": ME, "adds": [{"group": "map", "data": data}]})
        assert answer.status_code == 413
        assert "Nothing was done" in answer.json()["error"]["message"]
    assert client.get("/groups").json() == []


def test_a_single_queue_has_none_of_these_calls(tmp_path: Path, open_gateway: Open) -> None:
    client = open_gateway(Queue.create(tmp_path / "q", shards=1).path)
    claim = {"clientid": ME, "group": "q", "duration": 5}
    for answer in (client.get("/groups"), client.get("/task/1"), client.post("/claim", json=claim)):
        assert answer.status_code == 404
        assert "group of queues" in answer.json()["error"]["message"]


# -- who may -----------------------------------------------------------------------------------------------------------


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


@pytest.mark.parametrize("path", ["/group", "/groups", "/group/map", "/task/1", "/tasks/1,2"])
def test_the_token_may_stand_in_the_clients_address(group: Group, open_gateway: Open, path: str) -> None:
    client = open_gateway(group.path, token=None)
    for may in (basic("any", WRITE), basic("", READ), basic(READ, ""), {"authorization": f"Bearer {READ}"}):
        assert client.get(path, headers=may).status_code == 200
    for may_not in (
        {}, basic("any", "wrong"), basic(WRITE, "wrong"), basic("", ""), {"authorization": "Basic"},
        {"authorization": f"Basic {WRITE}"}, {"authorization": "Basic !"}, {"authorization": "Basic /w=="},
    ):  # fmt: skip
        answer = client.get(path, headers=may_not)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer", "no browser asks for a name and a password"
        assert "http://any:TOKEN@" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/status", "/task", "/queue", "/metrics", "/taskss/1", "/updates"])
def test_elsewhere_the_token_may_not_come_as_a_password(group: Group, open_gateway: Open, path: str) -> None:
    answer = open_gateway(group.path, token=None).get(path, headers=basic("any", WRITE))
    assert answer.status_code == 401
    assert "as a password, at the paths of taskstore's calls alone" in answer.json()["error"]["message"]


def test_a_token_comes_as_a_password_at_taskstores_routes_and_at_no_other() -> None:
    def examples(of: Any) -> list[str]:
        return [re.sub(r"\{[^}]*\}", "x", route.path) for route in of.routes()]

    assert [path for path in examples(taskstore_calls) if not TASKSTORE.fullmatch(path)] == []
    others = [path for of in (api, login, page) for path in examples(of)] + ["/healthz", "/metrics"]
    assert [path for path in (*others, "/healthz") if TASKSTORE.fullmatch(path)] == []


def test_who_may_only_read_neither_updates_nor_claims(group: Group, open_gateway: Open) -> None:
    writer, reader = open_gateway(group.path), open_gateway(group.path, READ)
    add = {"clientid": ME, "adds": [{"group": "map", "data": "a"}]}
    assert reader.post("/update", json=add).status_code == 403
    assert writer.post("/update", json=add).status_code == 200
    assert reader.post("/claim", json={"clientid": ME, "group": "map", "duration": 5}).status_code == 403
    assert [one["data"] for one in reader.get("/group/map").json()] == ["a"]
    closed = open_gateway(group.path, read_only=True)
    assert closed.post("/update", json=add).status_code == 403
    assert closed.get("/task/1").json()["data"] == "a"
    group["map"].insert("direct")
    before = list(group["map"].tasks())
    assert [one["id"] for one in closed.get("/group/map").json()] == [1, 2], "the directly inserted task gets an id"
    assert list(group["map"].tasks()) == before, "and stays as it is"


def test_another_sites_page_and_another_hosts_name_change_nothing(client: TestClient) -> None:
    forged = {"origin": "https://evil.example"} | basic("any", WRITE)
    assert client.post("/update", json=ADD, headers=forged).status_code == 403
    assert client.post("/update", json=ADD, headers={"host": "evil.example"}).status_code == 421
    assert client.get("/groups").json() == []


# -- tasks of others ---------------------------------------------------------------------------------------------------


def test_tasks_that_were_inserted_directly_are_there_with_ids(pair: Pair, group: Group) -> None:
    group["map"].insert("text")
    group["map"].insert({"page": 1})
    found = {one["data"]: one["id"] for one in pair.get("/group/map")}
    assert {name if name == "text" else json.dumps(json.loads(name)): id > 0 for name, id in found.items()} == {
        "text": True, '{"page": 1}': True
    }  # fmt: skip
    assert {one["id"] for one in pair.get("/group/map")} == set(found.values()), "another gateway knows the ids"
    [leased] = group["map"].lease()
    leased.complete()
    left = pair.get("/group/map?owned=yes")
    assert len(left) == 1
    pair.update(deletes=[left[0]["id"]])
    assert group["map"].status().remaining == 0


def test_a_task_that_was_added_can_be_worked_on_directly(pair: Pair, group: Group) -> None:
    [added] = pair.add("a")
    [task] = group["map"].lease()
    assert task.payload == "a"
    assert pair.post("/claim", clientid=ME, group="map", duration=MINUTE_MS) == {"tasks": [], "error": None}
    task.complete()
    assert pair.get(f"/task/{added}") is None
    assert pair.refused(depends=[added], adds=[{"group": "map"}]) == NOTHING | {"depends": [added]}


# -- anything ----------------------------------------------------------------------------------------------------------

ADDS = st.fixed_dictionaries({"group": st.text(max_size=3)}, optional={"timespec": st.integers()})
BODIES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.fixed_dictionaries(
        {"clientid": st.integers(-3, 3)},
        optional={
            "adds": st.lists(ADDS, max_size=3),
            "updates": st.lists(st.fixed_dictionaries({"id": st.integers(-2, 9)}), max_size=3),
            "deletes": st.lists(st.integers(-2, 9), max_size=3),
            "depends": st.lists(st.integers(-2, 9), max_size=3),
            "group": st.text(max_size=3),
            "duration": st.integers(-5, 10**20),
        },
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


@given(BODIES, st.sampled_from(["/update", "/claim"]), st.sampled_from([None, "application/json", FORM]))
@hypothesis_settings(
    max_examples=how_many(8, 2_000), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_body_is_answered_in_the_format_or_refused(
    client: TestClient, body: bytes, path: str, kind: str | None
) -> None:
    answer = client.post(path, content=body, headers={} if kind is None else {"content-type": kind})
    assert answer.status_code in (200, 400, 413), answer.text
    if answer.status_code == 200:
        assert list(answer.json()) == ["tasks", "error"]
    else:
        assert answer.json()["error"]["message"]
