"""Time limits of a client's verbs, over a gateway that is away for a while, by a clock of the test's own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import fsqueue
from fsqueue import RemoteGroup, StorageError
from fsqueue.client import remote_group, wire
from fsqueue.client.remote_queue import TASKS_MAX

pytestmark = pytest.mark.once

AWAY = 503, {"error": {"type": "StorageError", "message": "away", "nothing_done": True}}
Answer = tuple[int, dict[str, Any]]


@dataclass
class Gateway:
    """Answers requests. It is away until `back_at`. Its waits and the client's pauses take no time but by `now`."""

    back_at: float = 0.0
    now: float = 1000.0
    waits: list[float] = field(default_factory=list)
    """For how long each request asked it to wait."""
    url: str = ""
    drained: bool = False
    leases: list[int] = field(default_factory=list)
    """How many tasks each next lease gets."""

    def monotonic(self) -> float:
        """Return the time (s)."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def answer(self, path: str, asked: dict[str, Any]) -> Answer:
        """Return a status and what is answered."""
        if path == "/v1":
            return 200, {"service": "fsqueue", "queue": None}
        wait_s = asked.get("wait_s", asked.get("timeout_s"))
        if wait_s is not None:
            self.waits.append(round(float(wait_s), 3))
        if self.now < self.back_at:
            return AWAY
        if path.endswith("/update"):
            self.sleep(float(wait_s))
            return 409, {"error": {"type": "UpdateConflict", "message": "m", "busy": [[0, "insert", "q", None]]}}
        if "lease" in path:
            n = self.leases.pop(0) if self.leases else 0
            self.sleep(0 if n else float(wait_s))
            task = {"token": f"{'0' * 32}.0@{'b' * 16}", "lease_until": 1.0, "payload": 1, "attempt": 1, "version": 1}
            return 200, {"tasks": [{**task, "queue": "q"}] * n}
        if path.endswith("/wait"):
            self.sleep(0 if self.drained else float(wait_s))
        counts = dict.fromkeys(("waiting", "delayed", "leased", "completed", "dead"), 0)
        return 200, {
            "drained": self.drained,
            "state": "s",
            "states": {},
            **counts,
            "leased": 1,
            "queues": {"q": counts},
        }


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    found = Gateway()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()} | sent
            status, answer = found.answer(parts.path, asked)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *about: object) -> None:
            pass

    clock = SimpleNamespace(monotonic=found.monotonic, sleep=found.sleep)
    monkeypatch.setattr(wire, "time", clock)
    monkeypatch.setattr(remote_group, "time", clock)
    with http.server.HTTPServer(("localhost", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found.url = f"http://localhost:{server.server_port}"
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def lease(group: RemoteGroup, limit_s: float) -> None:
    assert group["q"].lease(wait_s=limit_s) == []


def lease_any(group: RemoteGroup, limit_s: float) -> None:
    assert group.lease(wait_s=limit_s) == []


def wait(group: RemoteGroup, limit_s: float) -> None:
    assert group["q"].wait(timeout_s=limit_s).leased == 1


def wait_for_all(group: RemoteGroup, limit_s: float) -> None:
    assert group.wait(timeout_s=limit_s).leased == 1


def apply(group: RemoteGroup, limit_s: float) -> None:
    update = group.update()
    update.insert("q", 1)
    with pytest.raises(fsqueue.UpdateConflict):
        update.apply(timeout_s=limit_s)


VERBS: list[Callable[[RemoteGroup, float], None]] = [lease, lease_any, wait, wait_for_all, apply]


def connected(gateway: Gateway, **options: Any) -> RemoteGroup:
    found = fsqueue.connect(gateway.url, **options)
    assert isinstance(found, RemoteGroup)
    return found


@pytest.mark.parametrize("limit_s", [0, 3, 100])
@pytest.mark.parametrize("verb", VERBS)
def test_it_ends_at_its_limit_if_the_gateway_was_away(
    gateway: Gateway, verb: Callable[[RemoteGroup, float], None], limit_s: float
) -> None:
    """It asks once more at the limit. A call that first looks without a wait may pause a little longer."""
    group = connected(gateway)
    gateway.back_at = ends = gateway.now + limit_s
    verb(group, limit_s)
    late_s = wire.RETRY_S[1] if verb in (wait, wait_for_all) and limit_s else 0
    assert ends <= gateway.now + 1e-6 <= ends + late_s + 2e-6


@pytest.mark.parametrize("verb", VERBS)
def test_it_ends_when_the_gateway_is_back_behind_its_limit(
    gateway: Gateway, verb: Callable[[RemoteGroup, float], None]
) -> None:
    group = connected(gateway)
    gateway.back_at = gateway.now + 200
    verb(group, 20)
    assert gateway.back_at <= gateway.now <= gateway.back_at + wire.RETRY_S[1]
    assert gateway.waits[-1] == 0, "nothing was left of the limit"
    assert sorted(gateway.waits, reverse=True) == gateway.waits or verb in (wait, wait_for_all)


@pytest.mark.parametrize("verb", VERBS)
def test_it_ends_with_patience_if_the_gateway_stays_away(
    gateway: Gateway, verb: Callable[[RemoteGroup, float], None]
) -> None:
    group = connected(gateway, patience_s=50)
    gateway.back_at, began = gateway.now + 1e6, gateway.now
    with pytest.raises(StorageError, match="away"):
        verb(group, 20)
    assert 50 - wire.RETRY_S[1] <= gateway.now - began <= 50


def test_what_is_leased_is_returned_at_once_if_the_gateway_goes_away(gateway: Gateway) -> None:
    group = connected(gateway)
    for queue in (group["q"], group):
        gateway.leases, began = [TASKS_MAX], gateway.now
        answer = gateway.answer

        def once(path: str, asked: dict[str, Any], answer: Any = answer) -> Answer:
            found: Answer = answer(path, asked)
            gateway.back_at = gateway.now + 1e6
            return found

        gateway.back_at, gateway.answer = 0, once  # type: ignore[method-assign]
        assert len(queue.lease(n=TASKS_MAX + 1, wait_s=5)) == TASKS_MAX
        assert gateway.now == began
        gateway.answer = answer  # type: ignore[method-assign]
