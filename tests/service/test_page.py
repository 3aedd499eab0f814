"""The pages as they are sent: what they say, what others wrote in them, what their buttons do."""

from __future__ import annotations

import json
import re
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import fsqueue
from fsqueue import Group
from fsqueue.service import page, page_contents, page_frame, page_lists
from tests.service.conftest import READ, WRITE, Open, pages_of
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[2J"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;\\u202e\\x1b[2J"
LONG = "x" * (64 << 10)


@pytest.fixture(autouse=True)
def _no_page_comes_before_its_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_frame, "FIRST_S", 60.0)


def text(client: TestClient, path: str, status: int = 200, **query: str) -> str:
    """Return a page, with nothing in it that could be markup of others."""
    answer = client.get(path, params=query)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in answer.text
    assert not re.search("[\u202e\x1b]", answer.text)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    return answer.text


def act(client: TestClient, verb: str, queue: str, **fields: str) -> str:
    """Press a button. Return what the page says then."""
    answer = client.post("/act", data={"verb": verb, "queue": queue, **fields})
    assert answer.status_code == 303, answer.text
    where = urlsplit(answer.headers["location"])
    assert parse_qs(where.query)["done"] == [verb]
    shown = client.get(answer.headers["location"]).text
    found = re.search(r'<p id="part-done"[^>]*>(.*?)</p>', shown)
    assert found
    return found[1]


def test_the_page_of_a_group_has_each_queue_and_why_it_stands_still(client: TestClient, group: Group) -> None:
    group["fetch"].insert_many(range(1200))
    group["parse"].insert(1)
    group["parse"].pause("why not")
    shown = text(client, "/")
    assert '<a href="queue?name=fetch">fetch</a>' in shown
    assert "1,200 tasks could be worked on, and no worker is there" in shown
    assert "“why not”. 1 task wait" in shown
    assert "2 queues; together 1,201 waiting" in shown
    assert "2 reasons to stand still, 0 problems." in shown


@pytest.mark.parametrize("read_only", [False, True])
def test_what_others_wrote_is_text_wherever_it_is_shown(group: Group, open_gateway: Open, read_only: bool) -> None:
    queue = Group(group.path, worker="<script>alert(2)</script>&")[HOSTILE]
    queue.insert_many([{"a": HOSTILE + LONG}, HOSTILE, LONG, b"<script>\xff"], batch_tasks=4)
    tasks = queue.lease(4)
    tasks[0].bury(HOSTILE + LONG)
    tasks[1].fail(HOSTILE, delay_s=0)
    tasks[2].complete({"r": HOSTILE})
    queue.pause(HOSTILE[:190])
    client = open_gateway(group.path, token=READ if read_only else WRITE)
    pages = [
        text(client, "/"),
        text(client, "/", q=HOSTILE),
        text(client, "/queue", name=HOSTILE),
        text(client, "/dead", queue=HOSTILE),
        text(client, "/results", queue=HOSTILE),
        *(text(client, "/task", queue=HOSTILE, id=task.id) for task in tasks),
        text(client, "/queue", name=HOSTILE + "x"),
        text(client, "/task", 400, queue=HOSTILE, id=HOSTILE),
        text(client, "/task", 404, queue="none", id=tasks[0].id),
        text(client, "/queue", 400, name=""),
    ]
    assert sum(SHOWN in shown for shown in pages) >= 8
    assert max(map(len, pages)) < 60_000
    assert any('action="act"' in shown for shown in pages) is not read_only


def test_the_tasks_history(client: TestClient, group: Group) -> None:
    group["q"].insert({"tile": 7})
    [task] = group["q"].lease()
    task.fail("no space", delay_s=0)
    shown = text(client, "/task", queue="q", id=task.id)
    assert "&#34;tile&#34;: 7" in shown
    assert re.findall(r'data-column="what">(\w+)<', shown) == ["insert", "lease", "fail"]
    assert "no space" in shown


def test_what_one_update_did_is_told_with_each_task(client: TestClient, group: Group) -> None:
    group["fetch"].insert("page")
    [task] = group["fetch"].lease()
    with group.update() as update:
        update.complete(task)
        update.insert("parse", "text")
    [made] = group["parse"].peek()
    first = text(client, "/task", queue="fetch", id=task.id)
    second = text(client, "/task", queue="parse", id=made.id)
    told = re.findall(r"by the update (\w+)", first)
    assert len(told) == 1
    assert told == re.findall(r"by the update (\w+)", second)
    assert f'<a href="task?queue=parse&amp;id={made.id}">' in first[first.index("What came of it</caption>") :]
    assert f'<a href="task?queue=fetch&amp;id={task.id}">' in second[second.index("It came of, the nearest") :]
    group["fetch"].insert("alone")
    assert "came of" not in text(client, "/task", queue="fetch", id=group["fetch"].peek()[0].id)


def test_updates_that_cannot_be_read_leave_the_page_whole(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*given: object) -> None:
        raise fsqueue.StorageError("The decision files cannot be read.")

    group["fetch"].insert("page")
    [task] = group["fetch"].lease()
    with group.update() as update:
        update.complete(task)
        update.insert("parse", "text")
    monkeypatch.setattr(Group, "flows", away)
    monkeypatch.setattr(Group, "lineage", away)
    assert "2 queues" in text(client, "/")
    assert "by the update" in text(client, "/task", queue="fetch", id=task.id)


def test_the_stages_of_a_pipeline_stand_in_the_order_of_the_flow(client: TestClient, group: Group) -> None:
    group[HOSTILE].insert_many(range(3))
    for source, target in ((HOSTILE, "parse"), ("parse", "index")):
        [task] = group[source].lease()
        with group.update() as update:
            update.complete(task)
            update.insert(target, "text")
    group["index"].pause()
    shown = text(client, "/")
    graph = shown[shown.index('<ol class="stages">') : shown.index("</ol>")]
    links = re.findall(r"<a href=[^>]*>([^<]*)</a>: <strong>([^<]*)</strong>", graph)
    assert links == [(SHOWN, "at work"), ("parse", "done"), ("index", "paused")]
    assert "→ parse (about 1 of the latest updates)" in graph
    assert '<ol class="stages">' not in text(client, "/", q="parse")


def test_buttons(client: TestClient, group: Group) -> None:
    queue = group["q"]
    queue.insert_many(range(5), batch_tasks=5)
    assert act(client, "pause", "q", reason="why") == "The queue is paused."
    assert group["q"].pause() is False
    assert act(client, "resume", "q", back="group") == "The queue goes on."
    dead, other, held, done = queue.lease(4)
    dead.bury("broken 17")
    other.bury("missing")
    assert act(client, "retry-dead", "q", reason="broken 18", back="dead") == "Inserted again: 1 task."
    assert [letter.id for letter in queue.dead()] == [other.id]
    assert act(client, "retry-dead", "q", id=other.id) == "Inserted again: 1 task."
    assert act(client, "release", "q", id=held.id, back="task") == "Released: 1 task."
    assert queue.task(held.id).state == "waiting"
    assert act(client, "cancel", "q", id=held.id, back="task") == "Cancelled: 1 task."
    done.complete()
    assert act(client, "retry-completed", "q", id=done.id) == "Inserted again: 1 task."
    queue.lease(2)
    assert act(client, "release", "q", host=fsqueue.Queue(queue.path).workers()[0].node) == "Released: 2 tasks."


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"verb": "delete"}, 400), ({"verb": "cancel"}, 400), ({"verb": "cancel", "id": "../x"}, 400),
        ({"verb": "pause", "queue": ""}, 400), ({"verb": "pause", "queue": "none"}, 404),
        ({"verb": "release", "id": "00000000000000000000000000000000.0"}, 404),
        ({"verb": "pause", "reason": "x" * 10_000}, 400),
        ({"verb": "pause"} | dict.fromkeys(map(str, range(30)), "x"), 400),
    ],
)  # fmt: skip
def test_a_form_that_asks_for_what_is_not_there(
    client: TestClient, group: Group, fields: dict[str, str], status: int
) -> None:
    group["q"].insert(1)
    answer = client.post("/act", data={"queue": "q"} | fields)
    assert answer.status_code == status
    assert "<h1>Something is wrong</h1>" in answer.text
    assert group["q"].paused is None
    assert group["q"].status().waiting == 1


def test_in_a_browser_a_button_needs_the_pages_own_token(group: Group, open_gateway: Open) -> None:
    group["q"].insert(1)
    client = open_gateway(group.path, token=None)
    client.post("/login", data={"token": WRITE})
    [csrf, *_] = re.findall(r'name="csrf" value="(\w+)"', text(client, "/queue", name="q"))
    assert client.post("/act", data={"verb": "pause", "queue": "q"}).status_code == 403
    assert fsqueue.Queue(group["q"].path).paused is None
    assert client.post("/act", data={"verb": "pause", "queue": "q", "csrf": csrf}).status_code == 303
    assert fsqueue.Queue(group["q"].path).paused is not None


def test_who_may_only_read_has_no_buttons_and_is_refused(group: Group, open_gateway: Open) -> None:
    group["q"].insert(1)
    group["q"].pause()
    client = open_gateway(group.path, token=READ)
    for path in ("/", "/queue?name=q"):
        assert "<form method=" not in client.get(path).text
    assert client.post("/act", data={"verb": "resume", "queue": "q"}).status_code == 403


def test_a_browser_that_has_the_page_gets_it_again_only_after_another_look(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group["q"].insert(1)
    first = client.get("/queue", params={"name": "q"})
    tag = first.headers["etag"]
    assert f'data-tag="{tag[1:-1]}"' in first.text
    again = client.get("/queue", params={"name": "q"}, headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert float(again.headers["x-next-look"]) >= page_contents.LEAST_S
    act(client, "pause", "q")
    assert client.get("/queue", params={"name": "q"}, headers={"if-none-match": tag}).status_code == 200


def test_a_first_look_that_takes_long_does_not_keep_the_page_waiting(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group["q"].insert(1)
    go, look_at = threading.Event(), page_contents.look_at
    monkeypatch.setattr(page_frame, "FIRST_S", 0.01)

    def slow(*given: Any, **how: Any) -> page_contents.QueueLook:
        assert go.wait(PATIENCE_S)
        return look_at(*given, **how)

    monkeypatch.setattr(page_contents, "look_at", slow)
    assert "The queues are being read" in text(client, "/")
    assert "The queues are being read" in text(client, "/")
    go.set()
    until(lambda: "1 task could be worked on" in text(client, "/"), "the look")


def test_a_single_queue(queue: fsqueue.Queue, open_gateway: Open) -> None:
    queue.insert(1)
    client = open_gateway(queue.path)
    shown = text(client, "/")
    assert f"<h1>{queue.path.name}</h1>" in shown
    assert f"fsqueue run {queue.path} -- COMMAND" in shown
    assert act(client, "pause", queue.path.name) == "The queue is paused."
    assert client.get("/queue", params={"name": "other"}).status_code == 404


def test_a_file_server_that_fails_is_said_on_the_page(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group["q"].insert(1)

    def away(*given: object) -> page_contents.QueuePage:
        raise fsqueue.StorageError("The file server is away.")

    monkeypatch.setattr(page_contents, "look_into", away)
    answer = client.get("/queue", params={"name": "q"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "The file server is away." in answer.text


def test_queues_are_searched_and_paged(client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_contents, "ROWS", 2)
    monkeypatch.setattr(page, "ROWS", 2)
    for name in ("a", "b", "c", "site/1", "site/2"):
        group[name].insert(1)
    first = text(client, "/")
    assert re.findall(r'href="(queue\?name=[^"]*)">[^<]*</a></th>', first) == ["queue?name=a", "queue?name=b"]
    assert "Page 1 of 3" in first
    assert '<a href="./?page=2" rel="next">' in text(client, "/", page="1")
    found = text(client, "/", q="SITE")
    assert "2 queues of 5" in found
    assert "queue?name=site%2F1" in found
    assert "<h1>site/1</h1>" in text(client, "/queue", name="site/1")


def test_figures_for_prometheus(client: TestClient, group: Group, open_gateway: Open) -> None:
    for name in ("fetch", "parse"):
        group[name].insert_many(range(3))
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [one for family in text_string_to_metric_families(answer.text) for one in family.samples]
    waiting = {one.labels["queue"]: one.value for one in samples if one.labels.get("state") == "waiting"}
    assert waiting == {"fetch": 3, "parse": 3}
    assert {one.labels["root"] for one in samples if "root" in one.labels} == {str(group.path)}
    assert 'queue="parse"' not in client.get("/metrics", params={"match": "fetch"}).text
    assert client.get("/metrics", params={"match": "("}).status_code == 400
    assert open_gateway(group.path, token=READ).get("/metrics").status_code == 200
    assert open_gateway(group.path, token=None).get("/metrics").status_code == 401


def test_payloads_of_all_kinds_are_shown() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert page_frame.as_text(deep) == "(nested too deeply to be shown)"
    assert json.loads(page_frame.as_text({"a": "é"}, 2)) == {"a": "é"}
    assert page_frame.lines_of("x\ny") == ["x", "y"]
    assert page_frame.lines_of("x" * 5000)[-1] == "… (cut: it has 5,000 characters)"


def test_a_task_is_found_by_its_id_its_token_and_its_key(client: TestClient, group: Group) -> None:
    group["fetch"].insert("other")
    ref = group["parse"].insert(HOSTILE, key=HOSTILE)
    [task] = group["parse"].lease()
    where = f"task?queue=parse&id={ref.id}"
    for wanted in (ref.id, f"  {task.token} ", HOSTILE):
        for queue in ({}, {"queue": "parse"}):
            answer = client.get("/find", params={"task": wanted, **queue})
            assert (answer.status_code, answer.headers.get("location")) == (303, where), answer.text
    assert SHOWN in text(client, "/task", queue="parse", id=ref.id)
    assert "No task has the id" in text(client, "/find", 404, task=ref.id, queue="fetch")
    assert text(client, "/find", 404, task="no such key")
    assert client.get("/find", params={"task": " ", "queue": "parse"}).headers["location"] == "queue?name=parse"
    assert 'action="find"' in text(client, "/")
    assert 'name="queue" value="parse"' in text(client, "/queue", name="parse")


def test_what_is_looked_for_often_lists_the_names_no_more_often(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are listed as often as those of the page of the group, also by a reader who finds nothing."""
    clock, lists = [1000.0], []
    queues = Group.queues

    def listing(self: Group, *args: Any, **options: Any) -> Any:
        lists.append(clock[0])
        return queues(self, *args, **options)

    group["a"].insert(1, key="first")
    monkeypatch.setattr(Group, "queues", listing)
    monkeypatch.setattr(pages_of(client).names, "_monotonic", lambda: clock[0])

    def status(key: str) -> int:
        return int(client.get("/find", params={"task": key}).status_code)

    assert [status(key) for key in ("first", "none", "none")] == [303, 404, 404]
    group["b"].insert(1, key="second")
    assert status("second") == 404
    assert lists == [1000.0]
    clock[0] += 60
    assert status("first") == 303
    assert lists == [1000.0]  # what is found in the queues that are known lists nothing
    assert [status("second"), status("second")] == [303, 303]
    assert [status("none") for _ in range(9)] == [404] * 9
    assert lists == [1000.0, 1060.0]


def test_tasks_in_a_state_are_listed_page_by_page(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_lists, "ROWS", 2)
    monkeypatch.setattr(page_lists, "LIST_PAGES_MAX", 2)
    queue = group["q"]
    queue.insert_many([f"{HOSTILE} {number}" for number in range(5)])
    queue.insert("later", delay_s=3600, key="a key", priority=4)
    [task] = queue.lease()
    first = text(client, "/tasks", queue="q", state="waiting")
    assert re.findall(r" (\d)</td>", first) == ["1", "2"]
    assert SHOWN in first
    assert 'href="tasks?queue=q&amp;state=waiting&amp;page=1" rel="next"' in first
    second = text(client, "/tasks", queue="q", state="waiting", page="1")
    assert re.findall(r" (\d)</td>", second) == ["3", "4"]
    assert "There are more" not in second
    assert 'rel="next"' not in second
    queue.insert("one more")
    assert f"fsqueue ls {queue.path} --state waiting" in text(client, "/tasks", queue="q", state="waiting", page="7")
    delayed = text(client, "/tasks", queue="q", state="delayed")
    assert "later" in delayed
    assert "a key" in delayed
    assert task.id in text(client, "/tasks", queue="q", state="leased")
    assert "Waiting tasks of q" in text(client, "/tasks", queue="q", state="foo")
    assert 'href="tasks?queue=q&amp;state=leased"' in text(client, "/queue", name="q")


def test_the_newest_results_are_listed_newest_first(
    client: TestClient, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_lists, "ROWS", 2)
    monkeypatch.setattr(page_lists, "LIST_PAGES_MAX", 2)
    assert "None." in text(client, "/results", queue="q")
    queue = Group(group.path, worker="me")["q"]
    queue.insert_many([{"x": number} for number in range(5)], batch_tasks=1)
    tasks = {task.payload["x"]: task for task in queue.lease(5)}
    for number in range(4):
        tasks[number].complete({"y": f"{HOSTILE} {number}" if number else LONG[:60_000]})
    tasks[4].bury("no fours")
    first, second = (text(client, "/results", queue="q", page=page) for page in ("0", "1"))
    newest = [str(result.payload["x"]) for result in queue.results(newest=4)]  # several may end at one instant
    assert re.findall(r"&#34;x&#34;: (\d)", first) == newest[:2]
    assert re.findall(r"&#34;x&#34;: (\d)", second) == newest[2:]
    assert "&lt;script&gt;alert(1)" in first + second
    assert 'href="results?queue=q&amp;page=1" rel="next"' in first
    assert ('rel="next"' in second, f"fsqueue results {queue.path}" in second) == (False, True)
    monkeypatch.setattr(page_lists, "ROWS", 50)
    whole = text(client, "/results", queue="q")
    assert len(whole) < 20_000
    assert ("given up" in whole, "no fours" in whole) == (True, True)
    assert "me on" in first
    assert 'href="results?queue=q"' in text(client, "/queue", name="q")
    assert 'href="results?queue=q"' in text(client, "/tasks", queue="q")
    assert 'href="tasks?queue=q&amp;state=leased"' in first


def test_at_most_as_many_results_are_asked_for_as_there_may_be(client: TestClient, group: Group) -> None:
    queue = group["q"]
    queue.insert_many(range(1010), batch_tasks=1010)
    queue.complete(queue.lease(1010))
    last = text(client, "/results", queue="q", page="19")
    assert "<td" in last
    assert ('rel="next"' in last, "There may be more" in last) == (False, True)


def test_without_a_history_the_newest_results_are_dead_letters(queue_factory: Any, open_gateway: Open) -> None:
    queue = queue_factory(keep_history=False)
    queue.insert_many(["done", "bad"], batch_tasks=2)
    tasks = {task.payload: task for task in queue.lease(2)}
    tasks["done"].complete()
    tasks["bad"].bury("no")
    shown = text(open_gateway(queue.path), "/results", queue=queue.path.name)
    assert "keeps nothing of tasks that were completed" in shown
    assert (">bad<" in shown, ">done<" in shown) == (True, False)


def test_a_worker_has_a_page_as_long_as_it_holds_a_task(client: TestClient, group: Group) -> None:
    queue = Group(group.path, worker=HOSTILE[:-5])["q"]
    queue.insert_many(["first", "second"])
    tasks = queue.lease(2)
    [digest] = re.findall(r'href="worker\?queue=q&amp;worker=(\w+)"', text(client, "/queue", name="q"))
    shown = text(client, "/worker", queue="q", worker=digest)
    assert all(task.id in shown for task in tasks)
    assert "second" in shown
    assert "Release all leases of" in shown
    queue.complete(tasks)
    pages_of(client).looks.forget()
    assert "holds no task of q any more" in text(client, "/worker", 404, queue="q", worker=digest)


def test_who_works_is_looked_at_once_for_all_who_ask_and_payloads_for_each(
    group: Group, open_gateway: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a worker shares the look at its queue: Slurm is asked, and all logs are read, for that alone."""
    looks = []
    workers = fsqueue.GroupQueue.workers

    def looking(self: fsqueue.GroupQueue, asks_slurm: bool = True) -> Any:
        looks.append(asks_slurm)
        return workers(self, asks_slurm=asks_slurm)

    monkeypatch.setattr(fsqueue.GroupQueue, "workers", looking)
    client = open_gateway(group.path, token=READ)
    clock = [1000.0]
    monkeypatch.setattr(pages_of(client).looks, "_monotonic", lambda: clock[0])
    queue = group["q"]
    queue.insert_many(["the first payload", "the second payload", "the third payload"])
    first, second = queue.lease(2)
    [digest] = re.findall(r'href="worker\?queue=q&amp;worker=(\w+)"', text(client, "/queue", name="q"))
    for _ in range(5):
        shown = text(client, "/worker", queue="q", worker=digest)
        assert "the first payload" in shown
        assert "the second payload" in shown
        assert text(client, "/worker", 404, queue="q", worker="0" * 32)
    assert looks == [True]
    first.complete()
    shown = text(client, "/worker", queue="q", worker=digest)
    assert "the first payload" not in shown
    assert "the second payload" in shown
    second.release()
    shown = text(client, "/worker", queue="q", worker=digest)
    assert "payload</td>" not in shown
    assert looks == [True]
    clock[0] += 3600
    assert "holds no task of q any more" in text(client, "/worker", 404, queue="q", worker=digest)
    assert looks == [True, True]


@pytest.mark.parametrize("token", [READ, WRITE])
def test_a_browser_that_logs_out_has_to_show_the_token_again(group: Group, open_gateway: Open, token: str) -> None:
    group["q"].insert(1)
    client = open_gateway(group.path, token=None)
    client.post("/login", data={"token": token})
    assert 'action="logout"' in text(client, "/")
    forged = client.post("/logout", headers={"origin": "http://evil.example"})
    assert forged.status_code == 403
    assert client.get("/").status_code == 200
    answer = client.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "login")
    assert client.get("/", headers={"accept": "text/html"}).headers["location"] == "login"
    assert 'action="logout"' not in text(open_gateway(group.path), "/"), "a client with a header has no cookie"
