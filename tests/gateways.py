"""Gateways on Unix sockets, in threads of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from fsqueue_cli.serving_protocol import BoundedProtocol

from fsqueue.service import application
from fsqueue.service.gate import Tokens
from fsqueue.service.limits import ServiceLimits

Serve = Callable[..., str]


@contextmanager
def gateways(home: Path) -> Iterator[Serve]:
    """Yield `serve(path)`: it starts a gateway on a socket in `home`, and returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(path: Path | str, tokens: Tokens | None = None, **limits: Any) -> str:
        at = home / f"{len(running)}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(at))
        listener.listen()
        made = application.gateway(path, tokens, replace(ServiceLimits(), **limits))
        config = uvicorn.Config(
            application.application(made),
            http=BoundedProtocol,
            ws="none",
            log_level="critical",
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        running.append((server, thread))
        return f"http+unix://{quote(str(at), safe='')}"

    try:
        yield start
    finally:
        for server, thread in running:
            server.should_exit = True
            thread.join()
