"""A gateway in this process, and clients that ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import fsqueue
from fsqueue.service import application
from fsqueue.service.gate import Tokens
from fsqueue.service.limits import ServiceLimits
from fsqueue.service.page_frame import Pages
from fsqueue.service.taskstore_wire import DurationUnit
from tests.gateways import Serve, gateways

WRITE, READ = "w" * 20, "r" * 20

Open = Callable[..., TestClient]


@pytest.fixture
def open_gateway() -> Iterator[Open]:
    """`open_gateway(path, read_only=True, ...)`: a client of a gateway; limits are given by their names."""
    with ExitStack() as opened:

        def make(
            path: Path | str,
            token: str | None = WRITE,
            tokens: bool = True,
            hosts: tuple[str, ...] = (),
            read_only: bool = False,
            taskstore_duration: DurationUnit = "auto",
            root_path: str = "",
            **limits: Any,
        ) -> TestClient:
            taken = Tokens({"write": WRITE, "read": READ}) if tokens else None
            made = application.gateway(path, taken, replace(ServiceLimits(), **limits))
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            app = application.application(made, hosts, read_only, taskstore_duration, root_path)
            return opened.enter_context(
                TestClient(
                    app,
                    "http://localhost:8750",
                    headers=headers,
                    raise_server_exceptions=False,
                    follow_redirects=False,
                )
            )

        yield make


def gateway_of(client: TestClient) -> application.Gateway:
    """Return the gateway that a client asks."""
    found: application.Gateway = _state_of(client).gateway
    return found


def pages_of(client: TestClient) -> Pages:
    """Return what the pages of that gateway share."""
    found: Pages = _state_of(client).pages
    return found


def _state_of(client: TestClient) -> Any:
    app: Any = client.app
    while not hasattr(app, "state"):
        app = app.app if hasattr(app, "app") else app._app
    return app.state


@pytest.fixture
def group(tmp_path: Path) -> fsqueue.Group:
    """An empty group."""
    return fsqueue.Group.create(tmp_path / "group", shards=2)


@pytest.fixture
def client(group: fsqueue.Group, open_gateway: Open) -> TestClient:
    """A client that may do everything, of a gateway that serves the group."""
    return open_gateway(group.path)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve(path)`: a gateway on a Unix socket, in a thread of this process; returns its address."""
    with gateways(tmp_path) as start:
        yield start
