"""Addresses of gateways, and how a client reaches one."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import resources
from fsqueue.interruptions import let_out, suppress

PORTS = {"http": 80, "https": 443}
"""The port of an address that names none, as in a browser."""
LOOPBACK = ("127.0.0.1", "::1")
"""What "localhost" means. Many hosts know one of the two by that name, and the gateway may listen on the other one."""
LOOKS_LIKE = (
    "The address of a gateway looks like http://localhost:8750 or http+unix://%2Fhome%2Fme%2Fs.sock, and one of its "
    "queues like https://node7:8750/QUEUE. If a proxy has the gateway below a path, that comes before the queue: "
    "https://portal/PREFIX/QUEUE. The queue's name is percent-encoded: a/b is a%2Fb."
)
_SEGMENT = re.compile(r"(?!\.\.?$)(?:[\w!$&'()*+,;=:@.~-]|%[0-9A-Fa-f]{2})+", re.ASCII)
"""A segment of a path as it is sent. Proxies take "." and ".." out."""


class GatewayAddress(NamedTuple):
    """Where a gateway is, and which of its queues is meant, if one is."""

    scheme: str
    host: str
    port: int | None
    socket: str | None
    prefix: str
    """The path below which a proxy has the gateway, percent-encoded, as "/crawl"; mostly ""."""
    queue: str | None

    @property
    def url(self) -> str:
        """Return the address of the gateway itself, without a queue."""
        if self.socket is not None:
            return f"{self.scheme}://{quote(self.socket, safe='')}{self.prefix}"
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.prefix}"

    @property
    def below(self) -> GatewayAddress | None:
        """Return what the address means if its last segment belongs to the prefix, and is no queue's name."""
        if self.queue is None:
            return None
        return self._replace(prefix=f"{self.prefix}/{quote(self.queue, safe='')}", queue=None)


def address_of(url: str) -> GatewayAddress:
    """Return what an address says: http://HOST:PORT, https://…, http+unix://SOCKET; with PREFIX/ and QUEUE, or without.

    The path of the socket, and the name of the queue, are percent-encoded. What stands before the last slash is the
    prefix of a proxy. InvalidArgument.
    """
    why = "."
    if type(url) is str:
        try:
            parts = urlsplit(url)
            prefix, _, last = parts.path.rpartition("/")
            queue = unquote(last, errors="strict") or None
            is_plain = not (parts.query or parts.fragment or parts.username)
            is_plain = is_plain and all(_SEGMENT.fullmatch(one) for one in prefix.split("/")[1:])
            if parts.scheme == "http+unix" and parts.netloc and is_plain:
                path = unquote(parts.netloc)
                if path.startswith("/"):
                    return GatewayAddress(parts.scheme, "localhost", None, path, prefix, queue)
                why = f": {path!r:.200} is no absolute path of a socket. Is each slash of it percent-encoded?"
            if parts.scheme in PORTS and parts.hostname and is_plain:
                port = PORTS[parts.scheme] if parts.port is None else parts.port
                if not port:  # as servers are told "any port"
                    raise ValueError("no port to connect to")
                return GatewayAddress(parts.scheme, parts.hostname, port, None, prefix, queue)
        except (ValueError, UnicodeDecodeError):
            pass
    raise InvalidArgument(f"{url!r:.200} is no address of a gateway{why} {LOOKS_LIKE}")


class _OfOneProcess(http.client.HTTPConnection):
    """A connection by which a forked child sends nothing of a call that its parent had begun."""

    def send(self, data: Any) -> None:
        """Send a part of a request. ForkedInCall in such a child."""
        resources.refuse_the_parents()
        super().send(data)


class UnixConnection(_OfOneProcess):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(self.timeout)
        try:
            made.connect(self._path)
        except BaseException:
            made.close()
            raise
        self.sock = made


class TcpConnection(_OfOneProcess):
    """A connection to a port, by TLS if a context is given."""

    def __init__(self, host: str, port: int | None, timeout_s: float, secure: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._secure = secure

    def connect(self) -> None:
        """Connect to the first address of the host that answers."""
        made = reached(self.host, self.port, self.timeout)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = made if self._secure is None else self._secure.wrap_socket(made, server_hostname=self.host)
        except BaseException:
            made.close()
            raise


def reached(host: str, port: int, timeout_s: float | None) -> socket.socket:
    """Return a connection to a port of a host; to "localhost" by IPv4 or IPv6, whichever answers. OSError."""
    try:
        return socket.create_connection((host, port), timeout_s)
    except OSError as error:
        let_out(error)
        for one in LOOPBACK if host.lower() == "localhost" else ():
            with suppress(OSError):
                return socket.create_connection((one, port), timeout_s)
        raise


def connection_to(where: GatewayAddress, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection that is not open yet."""
    if where.socket is not None:
        return UnixConnection(where.socket, timeout_s)
    return TcpConnection(
        where.host, where.port, timeout_s, ssl.create_default_context() if where.scheme == "https" else None
    )
