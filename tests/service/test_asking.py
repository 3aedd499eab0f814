"""/v1: what is sent and answered, what is refused, and how faults are told."""

from __future__ import annotations

import errno
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import fsqueue
from fsqueue import Group, Queue
from fsqueue.filesystem import Filesystem
from fsqueue.format import user_json
from fsqueue.service import bodies
from fsqueue.verbs.table import ROUTED
from tests.service.conftest import READ, Open, Serve, gateway_of
from tests.waiting import PATIENCE_S, until, until_async

pytestmark = pytest.mark.once

Q = "/v1/queues/q"


def said(answer: Any) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert "Traceback" not in answer.text
    return error


def test_a_name_is_one_segment_and_leads_nowhere_else(client: TestClient, group: Group) -> None:
    names = ["a/b", "..", ".", "a b", "é", "%2F", "<script>", "../../etc/passwd", "a\nb"]
    for name in names:
        segment = "".join(f"%{byte:02X}" for byte in name.encode())
        assert client.post(f"/v1/queues/{segment}/tasks", json={"payload": name}).status_code == 201
        assert client.get(f"/v1/queues/{segment}/status").json()["waiting"] == 1
    assert client.get("/v1/queues").json() == {"queues": sorted(names), "next": None}
    assert {path.name for path in Path(group.path).parent.iterdir()} == {"group"}
    assert client.get("/v1/queues/%FF/status").status_code == 400
    assert client.get("/v1/queues/%00/status").status_code == 400
    assert client.get(f"/v1/queues/{'a' * 300}/status").status_code == 400
    assert client.get("/v1/queues/a/b/status").status_code == 404


def test_queues_come_in_pages(client: TestClient, group: Group) -> None:
    for n in range(5):
        group[f"q{n}"].insert(n)
    group["q1"].purge()
    pages, after = [], None
    while True:
        page = client.get("/v1/queues", params={"limit": 2} | ({} if after is None else {"after": after})).json()
        pages.append(page["queues"])
        after = page["next"]
        if after is None:
            break
    assert pages == [["q0", "q2"], ["q3", "q4"]]
    assert client.get("/v1/queues?match=q[01]&tasks_min=0").json()["queues"] == ["q0", "q1"]
    assert said(client.get("/v1/queues?match=("))["type"] == "InvalidArgument"


INT64 = 1 << 63


@pytest.mark.parametrize(
    ("path", "sent", "field"),
    [
        ("tasks", {}, "payload"),
        ("tasks", {"payload": 1, "b64": "AA=="}, "payload"),
        ("tasks", {"b64": "not base64"}, "b64"),
        ("tasks", {"payload": 1, "prioritty": 1}, "prioritty"),
        ("tasks", {"payload": 1, "priority": INT64}, "priority"),
        ("tasks", {"payload": 1, "priority": 1.5}, "priority"),
        ("tasks", {"payload": 1, "delay_s": -1}, "delay_s"),
        ("tasks", {"payload": 1, "delay_s": "1"}, "delay_s"),
        ("tasks", {"payload": 1, "key": 5}, "key"),
        ("tasks", [], "body"),
        ("lease", {"n": 0}, "n"),
        ("lease", {"n": INT64}, "n"),
        ("lease", {"n": True}, "n"),
        ("lease", {"n": "1"}, "n"),
        ("lease", {"order": "best"}, "order"),
        ("lease", {"lease_s": 0}, "lease_s"),
        ("lease", {"holder": 5}, "holder"),
        ("complete", {}, "tasks"),
        ("complete", {"tasks": []}, "tasks"),
        ("complete", {"tasks": [{"token": "t", "results": 1}]}, "tasks[0].results"),
        ("complete", {"tasks": [{}]}, "tasks[0].token"),
        ("renew", {"tokens": [5]}, "tokens[0]"),
        ("release", {"tokens": "t"}, "tokens"),
        ("fail", {"token": "t"}, "error"),
        ("cancel", {"ids": []}, "ids"),
        ("dead/retry", {}, "ids"),
        ("dead/purge", {"ids": ["x"], "all": True}, "ids"),
        ("release-all", {}, "worker"),
        ("purge", {"confirm": "other"}, "confirm"),
        ("purge", None, "confirm"),
    ],
)
def test_a_bad_field_is_named_and_nothing_is_done(
    client: TestClient, group: Group, path: str, sent: Any, field: str
) -> None:
    group["q"].insert("there")
    answer = client.post(f"{Q}/{path}", json=sent) if sent is not None else client.post(f"{Q}/{path}")
    assert answer.status_code == 400
    assert said(answer)["field"] == field
    assert group["q"].status() == fsqueue.Status(waiting=1)


@pytest.mark.parametrize(
    ("query", "field"), [("exact=perhaps", "exact"), ("exacd=1", "exacd"), ("exact=1&exact=0", "exact")]
)
def test_a_bad_parameter_is_named(client: TestClient, query: str, field: str) -> None:
    answer = client.get(f"{Q}/status?{query}")
    assert (answer.status_code, said(answer)["field"]) == (400, field)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400), (b'{"payload": 1}{}', 400), (b"\xff", 400), (b'{"payload": NaN}', 400),
        (b'{"payload": 18446744073709551616}', 400), (b'{"payload": {"a": 1, "a": 2}}', 400),
        (b'{"payload": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400), (b'{"payload": "' + b"x" * 2_000 + b'"}', 413),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_or_too_large(group: Group, open_gateway: Open, body: bytes, status: int) -> None:
    client = open_gateway(group.path, body_bytes_max=11_000 if status == 400 else 1_000)
    answer = client.post(f"{Q}/tasks", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert said(answer)
    in_parts = client.post(f"{Q}/tasks", content=iter([body]), headers={"content-type": "application/json"})
    assert in_parts.status_code == status, "without a length, too"
    assert not group["q"].exists()


def test_another_type_of_body_is_refused(client: TestClient) -> None:
    answer = client.post(f"{Q}/lease", content=b"n=1", headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 415
    assert client.post(f"{Q}/nothing").status_code == 404
    assert client.put(f"{Q}/lease").status_code == 405


@pytest.mark.parametrize("path", [f"{Q}/lease", f"{Q}/tasks", "/v1/update", "/update", "/claim"])
def test_a_body_that_is_compressed_or_in_parts_is_refused_by_its_name(
    client: TestClient, group: Group, path: str
) -> None:
    for kind in ("application/json", "application/x-ndjson"):
        headers = {"content-type": kind, "content-encoding": "gzip"}
        answer = client.post(path, content=gzip.compress(b"{}"), headers=headers)
        assert answer.status_code == 415
        assert "Content-Encoding 'gzip'" in said(answer)["message"]
    answer = client.post(path, content=b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 415
    assert "'multipart/form-data'" in said(answer)["message"]
    assert client.post(f"{Q}/lease", json={}, headers={"content-encoding": "identity"}).status_code == 200
    assert not group["q"].exists()


@pytest.mark.parametrize(
    ("ends", "status", "reason"),
    [
        (["purge"], 410, "purged"), (["delete"], 410, "the queue was deleted"),
        (["delete", "insert"], 409, "it has finished, or its queue was deleted"),
        (["purge", "insert"], 410, "purged"),
    ],
)  # fmt: skip
def test_a_gateway_that_had_not_opened_a_queue_tells_what_became_of_a_lease(
    client: TestClient, group: Group, ends: list[str], status: int, reason: str
) -> None:
    """The token is all that it knows of the lease."""
    group["elsewhere"].insert(1)
    [task] = group["elsewhere"].lease()
    for end in ends:
        getattr(group["elsewhere"], end)(*([2] if end == "insert" else []))
    answer = client.post("/v1/queues/elsewhere/complete", json={"tasks": [{"token": task.token}]})
    assert (answer.status_code, said(answer)["type"], said(answer)["reason"]) == (status, "LeaseLost", reason)
    answer = client.post("/v1/update", json={"complete": [{"queue": "elsewhere", "token": task.token}]})
    assert (answer.status_code, [one[3] for one in said(answer)["missing"]]) == (409, [reason])


@pytest.mark.parametrize(("end", "reason"), [("purge", "purged"), ("delete", "the queue was deleted")])
def test_a_lease_on_what_was_purged_or_deleted_is_answered_by_410(
    client: TestClient, group: Group, end: str, reason: str
) -> None:
    client.post("/v1/queues/fetch/tasks", json={"payload": 1})
    token = client.post("/v1/queues/fetch/lease", json={}).json()["tasks"][0]["token"]
    if end == "purge":
        assert client.post("/v1/queues/fetch/purge", json={"confirm": "fetch"}).status_code == 200
    else:
        assert client.delete("/v1/queues/fetch?confirm=fetch").status_code == 200
    for verb, body in (
        ("complete", {"tasks": [{"token": token}]}), ("renew", {"tokens": [token]}), ("release", {"tokens": [token]}),
        ("fail", {"token": token, "error": "x"}), ("bury", {"token": token, "reason": "x"}),
    ):  # fmt: skip
        answer = client.post(f"/v1/queues/fetch/{verb}", json=body)
        found = said(answer)
        assert (answer.status_code, found["type"], found["tokens"], found["reason"]) == (
            410, "LeaseLost", [token], reason,
        )  # fmt: skip
    answer = client.post("/v1/update", json={"complete": [{"queue": "fetch", "token": token}]})
    assert (answer.status_code, [one[3] for one in said(answer)["missing"]]) == (409, [reason])


def test_a_lease_may_depend_on_tasks(client: TestClient, group: Group) -> None:
    group["q"].insert_many([1, 2])
    group["other"].insert("there")
    [seen] = group["other"].tasks()
    depends = [{"queue": "other", "id": seen.id, "version": seen.version}]
    assert len(client.post(f"{Q}/lease", json={"depends": depends}).json()["tasks"]) == 1
    [held] = group["other"].lease()
    for wait_s in (0, 1):
        answer = client.post(f"{Q}/lease", json={"depends": depends, "wait_s": wait_s})
        assert (answer.status_code, said(answer)["type"]) == (409, "UpdateConflict")
        assert [one[2] for one in said(answer)["depends"]] == [seen.id]
    assert group["q"].status() == fsqueue.Status(waiting=1, leased=1)
    by_token = [{"queue": "other", "token": held.token}]
    assert len(client.post(f"{Q}/lease", json={"depends": by_token, "wait_s": 1}).json()["tasks"]) == 1
    answer = client.post(f"{Q}/lease", json={"depends": [{"queue": "other", "id": seen.id}]})
    assert (answer.status_code, said(answer)["field"]) == (400, "depends[0].token")


def test_lines_are_inserted_in_bounded_memory(group: Group, open_gateway: Open) -> None:
    client = open_gateway(group.path, line_bytes_max=1_000, body_bytes_max=1_000)
    kind = {"content-type": "application/x-ndjson"}
    lines = (b'{"payload": %d}\n' % n for n in range(3_000))
    assert client.post(f"{Q}/tasks", content=lines, headers=kind).json() == {"inserted": 3_000}
    for _ in range(2):
        answer = client.post(f"{Q}/tasks", content=b'{"payload": 1}\n\n{"payload": 2}',
                             headers=kind | {"idempotency-key": "once"})  # fmt: skip
    assert (answer.status_code, answer.json()) == (200, {"inserted": 0})
    assert group["q"].status().waiting == 3_002
    long_line = client.post(f"{Q}/tasks", content=b"x" * 2_000, headers=kind)
    assert long_line.status_code == 413
    bad = client.post(f"{Q}/tasks?commit=other", content=b'{"payload": 1}\n{"payload": }', headers=kind)
    assert said(bad)["field"] == "line 2"
    assert group["q"].status().waiting == 3_002


def test_answers_of_many_lines_are_streams(client: TestClient, group: Group) -> None:
    queue = group["q"]
    queue.insert_many(range(1_200))
    with client.stream("GET", f"{Q}/tasks") as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        *lines, end = answer.iter_lines()
        assert sorted(json.loads(line)["payload"] for line in lines) == list(range(1_200))
        assert json.loads(end) == {"end": 1_200}
    assert client.get(f"{Q}/dead").json() == {"end": 0}
    assert client.get(f"{Q}/tasks?state=done").status_code == 400


def test_events_of_a_task_go_on_to_its_end(client: TestClient, group: Group) -> None:
    queue = group["q"]
    ref = queue.insert(1)
    [task] = queue.lease()
    task.complete()
    with client.stream("GET", f"{Q}/tasks/{ref.id}/events") as answer:
        told = answer.read().decode().split("\n\n")
    assert [event.split("\n")[1] for event in told[:-2]] == ["event: movement"] * 3
    assert told[-2] == "event: end\ndata: {}"
    with client.stream("GET", f"{Q}/tasks/{ref.id}/events", headers={"last-event-id": "2"}) as answer:
        assert '"op":"complete"' in answer.read().decode().split("\n\n")[0]
    assert client.get(f"{Q}/tasks/{ref.id}/events", headers={"last-event-id": "x"}).status_code == 400
    assert client.get(f"{Q}/tasks/01a217e8f08f70e69f2d729f927415aa.0/events").status_code == 404


def test_a_reader_sees_everything_and_changes_nothing(group: Group, open_gateway: Open) -> None:
    group["q"].insert(1)
    client = open_gateway(group.path, READ)
    for verb, route in ROUTED:
        path = "/v1" + route.path.format(queue="q", task="01a217e8f08f70e69f2d729f927415aa.0")
        if route.gives == "text/event-stream" and "task" not in route.path:
            continue  # it has no end
        needed = (
            {one.name: "x" * int(one.least or 1) for one in route.query if one.needed} if route.method == "GET" else {}
        )
        status = client.request(route.method, path, params=needed).status_code
        of_no_join = verb.name == "inputs" and status == 400
        assert status == 403 if route.method != "GET" else status in (200, 404) or of_no_join, verb.name
    assert group["q"].status() == fsqueue.Status(waiting=1)


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [(errno.ENOSPC, 507, "StorageFull"), (errno.EDQUOT, 507, "StorageFull"), (errno.EIO, 503, "StorageError"),
     (errno.ESTALE, 503, "StorageError")],
)  # fmt: skip
def test_a_full_disk_and_a_broken_one_are_told(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch, number: int, status: int, kind: str
) -> None:
    group["q"].insert(0)

    def fails(self: Filesystem, fd: int, data: Any) -> None:
        raise OSError(number, "broken")

    monkeypatch.setattr(Filesystem, "write_all", fails)
    monkeypatch.setattr(Filesystem, "append", fails, raising=False)
    answer = client.post(f"{Q}/tasks", json={"payload": "x" * 100_000})
    assert (answer.status_code, said(answer)["type"]) == (status, kind)
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_file_server_that_does_not_answer_holds_up_no_more_than_its_threads(
    group: Group, open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    group["q"].insert(0)
    client = open_gateway(group.path, answer_s=1.0, verbs_max=1, backlog_max=1)
    away = threading.Event()
    monkeypatch.setattr(fsqueue.GroupQueue, "status", lambda self, exact=True: away.wait() and fsqueue.Status())
    try:
        slow = client.get(f"{Q}/status")
        assert (slow.status_code, said(slow)["type"]) == (503, "StorageError")
        assert slow.headers["retry-after"]
        answers = [client.get(f"{Q}/peek") for _ in range(3)]
        assert {answer.status_code for answer in answers} == {503}
        assert client.get("/healthz").status_code == 200
    finally:
        away.set()
    until(lambda: client.get(f"{Q}/peek").status_code == 200, "the thread to be free")


def test_the_lease_is_in_the_name_of_its_holder(client: TestClient, group: Group) -> None:
    queue = group["q"]
    queue.insert_many([1, 2])
    holder = {"host": "node7", "pid": 5, "name": "me", "slurm_job": "4711"}
    client.post(f"{Q}/lease", json={"holder": holder})
    client.post(f"{Q}/lease", json={})
    mine, nobody = sorted((one.worker for one in queue.workers(asks_slurm=False)), key=len, reverse=True)
    assert mine == holder
    assert set(nobody) == {"host", "name"}, "never the gateway's process, whose end proves nothing"
    for wrong in ({"host": "x", "process": "1.2.3"}, {"host": "x", "run": "1"}, {"name": "no host"}, {"host": ""}):
        assert client.post(f"{Q}/lease", json={"holder": wrong}).status_code == 400


def test_a_client_that_goes_while_it_waits_gets_no_task(group: Group, open_gateway: Open) -> None:
    """What is leased after it has gone is put back, and waits for the next."""
    import asyncio

    from fsqueue.service.lessees import Lessees
    from fsqueue.service.limits import ServiceLimits
    from fsqueue.service.streaming import put_back
    from fsqueue.service.threads import ServiceThreads

    queue = group["q"]
    began, may_go_on = threading.Event(), threading.Event()

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        if wait_s:
            began.set()
            may_go_on.wait()
        return queue.lease(n)

    async def story() -> None:
        limits = ServiceLimits()
        threads = ServiceThreads(limits)
        lessees = Lessees(threads, limits)
        first = asyncio.ensure_future(lessees.lease("key", 1, 60, look, put_back))
        await asyncio.to_thread(began.wait)
        queue.insert_many([1, 2])
        first.cancel()
        await asyncio.wait([first])
        may_go_on.set()
        await asyncio.to_thread(until, lambda: queue.status() == fsqueue.Status(waiting=2), "the task to be put back")
        got = await asyncio.gather(*(lessees.lease("key", 1, 60, look, put_back) for _ in range(2)))
        assert sorted(task.payload for tasks in got for task in tasks) == [1, 2]
        threads.close()

    asyncio.run(story())


def test_a_request_waits_no_longer_than_it_said_beside_one_with_more_patience() -> None:
    import asyncio

    from fsqueue.service.lessees import Lessees
    from fsqueue.service.limits import ServiceLimits
    from fsqueue.service.threads import ServiceThreads

    began, may_go_on = threading.Event(), threading.Event()

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        if wait_s:
            began.set()
            may_go_on.wait()
        return []

    async def story() -> None:
        limits = ServiceLimits(answer_s=5)
        threads = ServiceThreads(limits)
        lessees = Lessees(threads, limits)
        patient = asyncio.ensure_future(lessees.lease("key", 1, 600, look, list))
        await asyncio.to_thread(began.wait)
        assert await lessees.lease("key", 1, 0.01, look, list) == []
        assert not patient.done()
        lessees.close()
        assert await patient == []
        may_go_on.set()
        threads.close()

    asyncio.run(story())


def test_a_request_whose_time_ends_during_a_look_is_answered_before_the_wait_of_another_one() -> None:
    import asyncio

    from fsqueue.service.lessees import Lessees
    from fsqueue.service.limits import ServiceLimits
    from fsqueue.service.threads import ServiceThreads

    begun, waits, may_go_on, looks = threading.Event(), threading.Event(), threading.Semaphore(0), list[float]()

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        looks.append(wait_s)
        (waits if wait_s else begun).set()
        may_go_on.acquire()
        return []

    async def story() -> None:
        limits = ServiceLimits(answer_s=600)
        threads = ServiceThreads(limits)
        lessees = Lessees(threads, limits)
        patient = asyncio.ensure_future(lessees.lease("key", 1, 600, look, list))
        await asyncio.to_thread(begun.wait)
        brief = asyncio.ensure_future(lessees.lease("key", 1, 0.01, look, list))
        [lessee] = lessees._lessees.values()
        await asyncio.to_thread(until, lambda: len(lessee.asked) == 2, "the brief request to come")
        lessee.asked[-1].deadline = 0  # its time is over
        may_go_on.release()  # the look ends that began before the brief request came: one is made for it
        may_go_on.release()
        assert await asyncio.wait_for(brief, 60) == []
        await asyncio.to_thread(waits.wait)
        assert looks[:2] == [0, 0]
        assert looks[2] > 300
        assert not patient.done()
        lessees.close()
        assert await patient == []
        may_go_on.release()
        threads.close()

    asyncio.run(story())


def test_a_worker_that_has_ended_leaves_its_place_to_the_next_one() -> None:
    import asyncio

    from fsqueue.service.faults import Overloaded
    from fsqueue.service.lessees import Lessees
    from fsqueue.service.limits import ServiceLimits
    from fsqueue.service.threads import ServiceThreads

    may_go_on = threading.Event()

    def look(n: int, wait_s: float) -> list[fsqueue.LeasedTask]:
        if wait_s > 1:
            may_go_on.wait()
        return []

    async def story() -> None:
        limits = ServiceLimits(lessees_max=2)
        threads = ServiceThreads(limits)
        lessees = Lessees(threads, limits)
        for worker in range(5):  # each one stays for a while, for the next request of the same worker
            assert await lessees.lease(worker, 1, 0.001, look, list) == []
            await until_async(lambda: all(one._is_idle for one in lessees._lessees.values()), "them to be idle")
        assert list(lessees._lessees) == [3, 4]
        waiting = [asyncio.ensure_future(lessees.lease(worker, 1, 600, look, list)) for worker in (3, 5)]
        await until_async(lambda: all(one.waits_until for one in lessees._lessees.values()), "both to wait")
        with pytest.raises(Overloaded):  # none of them is idle
            await lessees.lease(6, 1, 1, look, list)
        lessees.close()
        may_go_on.set()
        assert await asyncio.gather(*waiting) == [[], []]
        threads.close()

    asyncio.run(story())


def test_what_waits_ends_when_the_gateway_is_told_to(client: TestClient, group: Group) -> None:
    gateway = gateway_of(client)
    gateway.stop()
    assert client.post(f"{Q}/lease", json={"wait_s": 1_000}).json() == {"tasks": []}
    group["q"].insert(1)
    assert client.get(f"{Q}/wait?timeout_s=1000").json()["drained"] is False


def test_a_single_queue_is_known_by_its_directory(tmp_path: Path, open_gateway: Open) -> None:
    client = open_gateway(Queue.create(tmp_path / "tiles", shards=1).path)
    assert client.get("/v1").json()["queue"] == "tiles"
    assert client.get("/v1/queues").json()["queues"] == ["tiles"]
    assert client.get("/v1/queues/other/status").status_code == 404
    assert client.get("/v1/status").json()["queues"].keys() == {"tiles"}
    assert client.post("/v1/lease").status_code == 400


@pytest.mark.parametrize("verb", ["cancel", "replace", "depends"])
@pytest.mark.parametrize(
    "named",
    [
        {},
        {"id": "a.0"},
        {"version": 1},
        {"token": "a.0@b", "version": 1},
        {"token": "a.0@b", "id": "a.0", "version": 1},
    ],
)
def test_an_update_names_a_task_by_its_lease_or_as_it_was_seen(
    client: TestClient, group: Group, verb: str, named: dict[str, Any]
) -> None:
    one = {"queue": "q", **named, **({"payload": 1} if verb == "replace" else {})}
    answer = client.post("/v1/update", json={"inserts": [{"queue": "q", "payload": 1}], verb: [one]})
    assert answer.status_code == 400
    assert said(answer)["field"] == f"{verb}[0].token"
    assert group["q"].status().inserted == 0


def test_an_update_of_a_task_that_is_none_does_nothing(client: TestClient, group: Group) -> None:
    for id, status in (("no id", 400), (f"{'0' * 32}.0", 409)):
        cancelled = {"queue": "q", "id": id, "version": 1}
        answer = client.post("/v1/update", json={"inserts": [{"queue": "p", "payload": 1}], "cancel": [cancelled]})
        assert answer.status_code == status, answer.text
        said(answer)
    assert list(group.queues()) == []


def test_null_is_a_new_payload(client: TestClient, group: Group) -> None:
    id = group["q"].insert(1).id
    named = {"queue": "q", "id": id, "version": group["q"].task(id).version}
    assert client.post("/v1/update", json={"replace": [named]}).status_code == 400
    answer = client.post("/v1/update", json={"replace": [named | {"payload": None}]}).json()
    seen = group["q"].task(id)
    assert answer == {"inserted": [], "renewed": [], "replaced": [{"id": id, "version": seen.version}]}
    assert seen.payload is None


def test_a_large_body_is_read_beside_the_other_requests(
    group: fsqueue.Group, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read, the gateway answers others."""
    began, go = threading.Event(), threading.Event()
    decode = user_json.decode

    def slowly(text: bytes | str) -> Any:
        if len(text) > bodies.AT_ONCE_BYTES_MAX:
            began.set()
            assert go.wait(PATIENCE_S)
        return decode(text)

    monkeypatch.setattr(user_json, "decode", slowly)
    address = serve(group.path)
    inserting = threading.Thread(target=lambda: fsqueue.connect(f"{address}/q").insert("x" * bodies.AT_ONCE_BYTES_MAX))
    inserting.start()
    try:
        assert began.wait(PATIENCE_S)
        fsqueue.connect(f"{address}/other").insert(1)
        assert group["other"].status().waiting == 1
    finally:
        go.set()
        inserting.join()
    assert group["q"].status().waiting == 1
