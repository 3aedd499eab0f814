"""A gateway shows nothing of a finished task that its queue does not keep, from the moment at which the task ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from fsqueue import Group, LeasedTask, Task
from fsqueue.service import application
from fsqueue.verbs.table import ROUTED

pytestmark = pytest.mark.once

Q = "/v1/queues/q"
QUERIES = {
    "/queue": ["name=q"], "/dead": ["queue=q"], "/task": ["queue=q&id={id}"],
    f"{Q}/tasks": ["", *(f"state={one}" for one in ("waiting", "delayed", "leased", "completed", "dead", "cancelled"))],
    "/group/q": ["owned=no", "owned=yes"], f"{Q}/results": ["", "dead=true", "newest=9"], f"{Q}/wait": ["timeout_s=0"],
    "/tasks": [f"queue=q&state={one}" for one in ("waiting", "delayed", "leased")], "/worker": ["queue=q&worker=0"],
    "/results": ["queue=q"],
    "/find": ["task={id}"], f"{Q}/keys": ["key=k"],
    "/v1/barriers/state": [f"id={'0' * 32}"], f"{Q}/peek": ["n=99"], f"{Q}/commits": ["name=c"],
}  # fmt: skip
"""What routes are asked for beside their paths."""
ENDLESS = f"{Q}/events"
"""It tells the status of the queue until the client goes."""


def readers(task: LeasedTask, has_ended: bool) -> Iterator[str]:
    """Yield all that can be asked of a gateway and changes nothing: each route, filled in with a queue and a task."""
    paths: set[str] = set()
    for route in application._routes():
        assert isinstance(route, Route)
        if "GET" in (route.methods or ()):
            paths.add(route.path)
    assert {f"/v1{route.path}" for _, route in ROUTED if route.method == "GET"} < paths
    for path in sorted(paths):
        path = path.replace("{queue}", "q").replace("{task}", task.id).replace("{name:path}", "q")
        path = path.replace("{ids:path}", "1")
        assert "{" not in path
        if path != ENDLESS and (has_ended or not path.endswith("/events")):  # those of a task end with it
            yield from (f"{path}?{query}".replace("{id}", task.id) for query in QUERIES.get(path, [""]))


def showing(client: TestClient, task: LeasedTask, has_ended: bool = True) -> set[str]:
    """Return the readers that show a payload."""
    found = set()
    for path in readers(task, has_ended):  # /group/q comes first: it numbers the task
        answer = client.get(path)
        is_of_no_join = path.endswith("/inputs?") and answer.status_code == 400
        assert answer.status_code in (200, 303, 404) or is_of_no_join, path
        if "secret" in answer.text:
            found.add(path)
    return found


def inserted(group: Group, way: str) -> LeasedTask:
    """Return a leased task with the payload "secret"."""
    queue = group["q"]
    match way:
        case "at work":
            queue.insert_many(["secret", "what waits"])
        case "ended":
            queue.insert_many([Task("secret", key="secret key")])
        case "singly":
            queue.insert("secret", key="secret key")
        case "replaced":
            queue.insert("first")
            with group.update() as update:
                update.replace(next(queue.tasks()), "secret, in its place")
    return queue.lease(1)[0]


WAYS = ["at work", "ended", "singly", "replaced"]


@pytest.mark.parametrize("way", WAYS)
def test_a_setting_that_is_made_smaller_hides_from_every_reader_at_once(
    client: TestClient, group: Group, way: str
) -> None:
    """Each has shown the payload just before."""
    task = inserted(group, way)
    task.complete("a result")
    assert showing(client, task) >= {
        f"{Q}/tasks/{task.id}?", f"{Q}/results?", f"{Q}/tasks?state=completed", f"/task?queue=q&id={task.id}",
        f"{Q}/results?newest=9", "/results?queue=q",
    }  # fmt: skip
    group["q"].change_settings(keep_payloads=0)
    assert showing(client, task) == set()
    assert "a result" in client.get(f"{Q}/results").text


ENDS: dict[str, Callable[[LeasedTask], object]] = {
    "complete": LeasedTask.complete,
    "cancel": lambda task: (task.release(), task.queue.cancel(task.id)),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_the_end_of_a_task_hides_it_from_every_reader_at_once(
    client: TestClient, group: Group, way: str, end: str
) -> None:
    task = inserted(group, way)
    group["q"].change_settings(keep_payloads=0)
    assert showing(client, task, has_ended=False) >= {
        f"{Q}/tasks/{task.id}?", f"{Q}/tasks?", f"{Q}/tasks?state=leased", f"/task?queue=q&id={task.id}",
        "/queue?name=q", "/group/q?owned=yes",
    }  # fmt: skip
    ENDS[end](task)
    assert showing(client, task) == set()


def test_a_dead_letter_that_is_retried_and_completed_is_hidden_at_once(client: TestClient, group: Group) -> None:
    task = inserted(group, "singly")
    group["q"].change_settings(keep_payloads=0)
    task.bury("no")
    assert showing(client, task) >= {f"{Q}/dead?", f"{Q}/tasks?state=dead", "/dead?queue=q", f"{Q}/results?dead=true"}
    group["q"].retry_dead()
    for again in group["q"].lease(9):
        again.complete()
    assert showing(client, task) == set()
