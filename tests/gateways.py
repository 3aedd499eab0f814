"""Gateways on Unix sockets: in threads of this process, and processes of their own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from fsqueue_cli.serving_protocol import BoundedProtocol

from fsqueue import Group
from fsqueue.service import application
from fsqueue.service.gate import Tokens
from fsqueue.service.limits import ServiceLimits

Serve = Callable[..., str]


@contextmanager
def gateways(home: Path) -> Iterator[Serve]:
    """Yield `serve(path)`: it starts a gateway on a socket in `home`, and returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(path: Path | str, tokens: Tokens | None = None, root_path: str = "", **limits: Any) -> str:
        at = home / f"{len(running)}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(at))
        listener.listen()
        made = application.gateway(path, tokens, replace(ServiceLimits(), **limits))
        config = uvicorn.Config(
            application.application(made, root_path=root_path),
            http=BoundedProtocol,
            ws="none",
            log_level="critical",
            timeout_graceful_shutdown=5,
            timeout_keep_alive=75,  # as of `fsqueue serve`: clients let go of an idle connection earlier
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


class RealGateway:
    """A process that serves a group on a Unix socket. `url`: the group's. `stderr`: where it adds its errors."""

    def __init__(self, group: Group, at: Path, stderr: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "fsqueue_cli", "serve", str(group.path), "--listen", f"unix:{at}"]
        self._stderr = stderr
        self.url = f"http+unix://{quote(str(at), safe='')}"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Start it."""
        with open(self._stderr, "a") if self._stderr is not None else nullcontext() as stderr:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=stderr, stdin=subprocess.DEVNULL, text=True
            )

    def wait_ready(self) -> None:
        """Wait until it is ready, once after each start."""
        assert self._process.stdout is not None
        assert "fsqueue serves" in self._process.stdout.readline()

    @property
    def pid(self) -> int:
        """Return the number of its process."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill it, as a power cut of its host would; or have it end."""
        self._process.send_signal(how)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
