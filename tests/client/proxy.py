"""A proxy that has a gateway below a path."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsqueue.client.addresses import address_of, connection_to


@contextmanager
def below(prefix: str, gateway: str) -> Iterator[str]:
    """Yield the address of a proxy that hands on what is below a path, without that path; 404 for all else."""
    where = address_of(gateway)

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self._body()
            if not self.path.startswith(f"{prefix}/"):
                self._answer(404, [("Content-Type", "text/html")], b"<html>not found</html>")
                return
            connection = connection_to(where, 60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
            connection.request(self.command, self.path.removeprefix(prefix), body, headers | {"Host": "localhost"})
            answer = connection.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())
            connection.close()

        do_POST = do_PATCH = do_DELETE = do_GET

        def _body(self) -> bytes | None:
            if self.headers.get("Transfer-Encoding") != "chunked":
                size = self.headers.get("Content-Length")
                return None if size is None else self.rfile.read(int(size))
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() == "content-type":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *told: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()
