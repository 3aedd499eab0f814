"""A reverse proxy that has a gateway below a prefix, as nginx has it. It removes the prefix, or leaves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fsqueue.client.addresses import address_of, connection_to
from tests.waiting import PATIENCE_S

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server")


@contextmanager
def prefixed(gateway: str, prefix: str, strip: bool = True) -> Iterator[str]:
    """Yield the address at which a proxy has the gateway. Requests outside of the prefix get 404."""
    where = address_of(gateway)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.body()
            if not self.path.startswith(f"{prefix}/"):
                self.answer(404, [("content-type", "text/html")], b"<html>outside of the prefix</html>")
                return
            connection = connection_to(where, PATIENCE_S)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            try:
                connection.request(self.command, self.path[len(prefix) :] if strip else self.path, body, headers)
                found = connection.getresponse()
                self.answer(found.status, found.getheaders(), found.read())
            finally:
                connection.close()

        do_POST = do_PATCH = do_DELETE = do_HEAD = do_GET

        def body(self) -> bytes | None:
            if self.headers.get("transfer-encoding") != "chunked":
                size = self.headers.get("content-length")
                return None if size is None else self.rfile.read(int(size))
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

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
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://localhost:{proxy.server_port}{prefix}"
        finally:
            proxy.shutdown()
            thread.join()
