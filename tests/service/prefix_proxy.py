"""A reverse proxy that has a gateway below a prefix, as nginx has it. It removes the prefix, or leaves it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")


@contextmanager
def prefixed(gateway: str, prefix: str, strip: bool = True) -> Iterator[str]:
    """Yield the address at which a proxy has the gateway. Requests outside of the prefix get 404."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.answer(404, [], b"outside of the prefix")
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0))) or None
            connection = http.client.HTTPConnection(urlsplit(gateway).netloc)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            try:
                connection.request(self.command, self.path[len(prefix) :] if strip else self.path, body, headers)
                found = connection.getresponse()
                self.answer(found.status, found.getheaders(), found.read())
            finally:
                connection.close()

        do_POST = do_HEAD = do_GET

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *about: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{proxy.server_address[1]}{prefix}"
        finally:
            proxy.shutdown()
            thread.join()
