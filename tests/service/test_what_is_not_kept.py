"""A gateway shows nothing of a finished task that its queue does not keep, from the moment at which the task ends."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from fsqueue import Group, Task
from tests.service.conftest import Open

pytestmark = pytest.mark.once

Q = "/v1/queues/q"


def text_of(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("way", ["at work", "ended", "singly", "replaced"])
def test_no_answer_and_no_page_shows_a_payload_that_is_not_kept(
    client: TestClient, open_gateway: Open, group: Group, way: str
) -> None:
    """A page shows what it saw last, until it is loaded anew: so another gateway is asked for the pages."""
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
    [task] = queue.lease(1)
    task.complete("a result")
    answers = [
        f"{Q}/tasks/{task.id}", f"{Q}/tasks/{task.id}/history", f"{Q}/tasks/{task.id}/events", f"{Q}/results",
        f"{Q}/tasks?state=completed",
    ]  # fmt: skip
    pages = [f"/task?queue=q&id={task.id}", "/queue?name=q", "/"]
    assert {path for path in [*answers, *pages] if "secret" in text_of(client, path)} >= {
        answers[0],
        *answers[3:],
        pages[0],
    }
    queue.change_settings(keep_payloads=0)
    assert [path for path in answers if "secret" in text_of(client, path)] == []
    assert [path for path in [*answers, *pages] if "secret" in text_of(open_gateway(group.path), path)] == []
    assert "a result" in text_of(client, f"{Q}/results")
