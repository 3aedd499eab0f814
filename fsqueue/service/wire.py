"""The client's side of HTTP: addresses, connections, what is asked again, errors as exceptions."""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

import fsqueue
from fsqueue.format import user_json
from fsqueue.format.wording import duration

logger = logging.getLogger("fsqueue")

DEFAULT_PORT = 8750
IDLE_S = 30.0
"""A connection that was idle for longer is made anew: the gateway may just be ending it."""
RETRY_S = (0.2, 10.0)
"""Shortest and longest pause before something is asked again."""
FAILURES_TO_TELL = 4
"""How many failures of one request in a row give a warning. A busy gateway has mostly answered before, within 1.4 s."""
PART_BYTES, PART_S = 64 << 10, 0.5
"""How much of a stream is sent at once, and after how long less than that."""
ERROR_BYTES_MAX = 16 << 20
"""Maximum number of bytes that are read of an answer that is an error: the longest one names 10,000 tasks."""
DONE_BEFORE = "you have completed it already"
"""The reason of LeaseLost if this very lease has completed the task before."""
TOKEN_VARIABLE = "FSQUEUE_SERVE_TOKEN"
NDJSON = "application/x-ndjson"


class GatewayAddress(NamedTuple):
    """Where a gateway is, and which of its queues is meant, if one is."""

    scheme: str
    host: str
    port: int | None
    socket: str | None
    queue: str | None

    @property
    def url(self) -> str:
        """Return the address of the gateway itself, without a queue."""
        if self.socket is not None:
            return f"{self.scheme}://{quote(self.socket, safe='')}"
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def address_of(url: str) -> GatewayAddress:
    """Return what an address says: http://HOST:PORT, https://…, http+unix://SOCKET; with /QUEUE behind it or not.

    The path of the socket, and the name of the queue, are percent-encoded. InvalidArgument.
    """
    if type(url) is str:
        try:
            parts = urlsplit(url)
            queue = unquote(parts.path[1:], errors="strict") or None
            is_plain = not (parts.query or parts.fragment or parts.username) and "/" not in parts.path[1:]
            if parts.scheme == "http+unix" and parts.netloc and is_plain:
                return GatewayAddress(parts.scheme, "localhost", None, unquote(parts.netloc), queue)
            if parts.scheme in ("http", "https") and parts.hostname and is_plain:
                return GatewayAddress(parts.scheme, parts.hostname, parts.port or DEFAULT_PORT, None, queue)
        except (ValueError, UnicodeDecodeError):
            pass
    raise fsqueue.InvalidArgument(
        f"{url!r:.200} is no address of a gateway. It looks like http://localhost:8750, https://node7:8750/QUEUE or "
        "http+unix://%2Fhome%2Fme%2Fs.sock, with the queue's name percent-encoded."
    )


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(self.timeout)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            raise
        self.sock = made


class _Kept(threading.local):
    """A thread's connection, and when it was last used."""

    connection: http.client.HTTPConnection | None = None
    process = 0
    used_at = 0.0


class Wire:
    """Ask a gateway. Each thread has a connection of its own, which stays open.

    `patience_s`: how long what can be asked again is asked again while the gateway is away or says "later".
    """

    def __init__(self, address: GatewayAddress, token: str | None, timeout_s: float, patience_s: float) -> None:
        self.address, self.timeout_s, self.patience_s = address, timeout_s, patience_s
        self._token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        self._kept = _Kept()

    def __reduce__(self) -> Any:
        return Wire, (self.address, self._token, self.timeout_s, self.patience_s)

    def ask(
        self, method: str, path: str, sent: Any = None, *, query: dict[str, Any] | None = None,
        again: bool = False, wait_s: float = 0, headers: dict[str, str] | None = None, bytes_max: int | None = None,
    ) -> Any:  # fmt: skip
        """Return the answer's value. `again`: asking twice does what asking once does. Errors as of the verb itself.

        A completion whose answer was lost, and whose repetition is told that it has been done, is done: {}.
        `bytes_max`: no more of the answer is read.
        StorageError if the gateway cannot be reached, or does not answer: what happened is unknown then.
        """
        body = None if sent is None else json.dumps(sent).encode()
        told = {"content-type": "application/json"} if sent is not None else {}
        until, pause_s = time.monotonic() + self.patience_s, RETRY_S[0]
        failures = 0
        while True:
            try:
                with _Answer(self, method, _target(path, query), body, told | (headers or {}), wait_s) as answer:
                    found = answer.read(bytes_max)
            except fsqueue.StorageError as error:
                nothing_done = isinstance(error, _Later) and error.nothing_done
                if not (again or nothing_done) or time.monotonic() + pause_s > until:
                    raise
                failures += 1
                if failures == FAILURES_TO_TELL:  # a wrong address, too, looks like a gateway that is away
                    logger.warning("%s The request is repeated for up to %s.", error, duration(self.patience_s))
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S[1])
            except fsqueue.LeaseLost as lost:
                if not failures or lost.reason != DONE_BEFORE:
                    raise
                return Answer()
            else:
                return _value_of(found, self.address.host)  # what is no gateway will not be one later

    def send_lines(self, path: str, lines: Iterable[bytes], query: dict[str, Any]) -> Any:
        """Return the answer to a body of JSON Lines, which is sent as it comes."""
        with _Answer(self, "POST", _target(path, query), _parts(lines), {"content-type": NDJSON}, 0) as answer:
            return _value_of(answer.read(), self.address.host)

    def lines(self, path: str, query: dict[str, Any]) -> Iterator[Any]:
        """Yield the values of JSON Lines, as they come. It has a connection of its own."""
        aside = Wire(self.address, self._token, self.timeout_s, self.patience_s)
        with _Answer(aside, "GET", _target(path, query), None, {}, 0) as answer:
            for line in answer:
                value = _value_of(line, self.address.host)
                if set(value) == {"error"} and type(value["error"]) is dict:
                    raise error_of(503, value)
                yield value

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return this thread's connection."""
        kept, now = self._kept, time.monotonic()
        if kept.connection is not None and (now - kept.used_at > IDLE_S or kept.process != os.getpid()):
            self.drop()
        if kept.connection is None:
            kept.connection, kept.process = self._made(timeout_s), os.getpid()
        kept.connection.timeout = timeout_s
        if kept.connection.sock is not None:
            kept.connection.sock.settimeout(timeout_s)
        return kept.connection

    def keep(self) -> None:
        """Note that the connection can be used again."""
        self._kept.used_at = time.monotonic()

    def drop(self) -> None:
        """Close this thread's connection."""
        if self._kept.connection is not None:
            self._kept.connection.close()
        self._kept.connection = None

    def headers(self) -> dict[str, str]:
        """Return what each request says."""
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}

    def _made(self, timeout_s: float) -> http.client.HTTPConnection:
        where = self.address
        if where.socket is not None:
            return _UnixConnection(where.socket, timeout_s)
        if where.scheme == "https":
            secure = ssl.create_default_context()
            return http.client.HTTPSConnection(where.host, where.port, timeout=timeout_s, context=secure)
        return http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)


class _Later(fsqueue.StorageError):
    """The gateway cannot do it now. `nothing_done`: it says that nothing was done."""

    nothing_done = False


class _Answer:
    """A request, and its answer for a block. The connection is kept if the answer was read to its end."""

    def __init__(
        self, wire: Wire, method: str, target: str, body: Any, headers: dict[str, str], wait_s: float
    ) -> None:  # fmt: skip
        self._wire, self._request, self._timeout_s = wire, (method, target, body, headers), wire.timeout_s + wait_s
        self._answer: http.client.HTTPResponse | None = None

    def __enter__(self) -> http.client.HTTPResponse:
        method, target, body, headers = self._request
        try:
            connection = self._wire.connection(self._timeout_s)
            chunked = body is not None and not isinstance(body, bytes)
            try:
                connection.request(method, target, body, {**self._wire.headers(), **headers}, encode_chunked=chunked)
            except (BrokenPipeError, ConnectionResetError):
                if not chunked:
                    raise
                # It may have refused a body before its end: then it has answered.
            self._answer = connection.getresponse()
            if self._answer.status >= 300:
                raise error_of(self._answer.status, self._answer.read(ERROR_BYTES_MAX))
        except fsqueue.FsqueueError:
            self._end()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._wire.drop()
            raise fsqueue.StorageError(
                f"The gateway {self._wire.address.url} cannot be reached, or has broken off "
                f"({type(error).__name__}: {error}). Whether it has done what it was asked is unknown. Look at the "
                "address, and whether 'fsqueue serve' runs there."
            ) from error
        except BaseException:  # what the stream of a body raises, or Ctrl-C: the rest of the request is never sent
            self._wire.drop()
            raise
        return self._answer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end()
        if isinstance(error, (OSError, http.client.HTTPException)):
            self._wire.drop()
            raise fsqueue.StorageError(
                f"The gateway {self._wire.address.host} has broken off within its answer: {error}."
            ) from error

    def _end(self) -> None:
        if self._answer is not None and self._answer.isclosed() and not self._answer.will_close:
            self._wire.keep()
        else:
            self._wire.drop()


class Answer(dict[str, Any]):
    """The fields of an answer. StorageError if one is asked for that is not there."""

    def __missing__(self, name: str) -> Any:
        raise lacking(f"the field {name!r}")


def lacking(what: str) -> fsqueue.StorageError:
    """Return what is raised for an answer that is not whole."""
    return fsqueue.StorageError(
        f"The gateway's answer lacks {what}. Whether it has done what it was asked is unknown. Perhaps the gateway has "
        "another version of fsqueue than this process: install the same one."
    )


def _value_of(body: bytes, host: str) -> Answer:
    """Return what an answer holds, which is one object. StorageError for anything else."""
    try:
        value = user_json.decode(body)
    except user_json.NotExact:
        value = None
    if type(value) is not dict:
        raise not_a_gateway(host, body[:100])
    return Answer(value)


def not_a_gateway(host: str, answer: object) -> fsqueue.StorageError:
    """Return what is raised for an answer that no gateway gives."""
    return fsqueue.StorageError(
        f"What answers at {host} is no gateway of fsqueue: {answer!r:.120}. Whether it has done what it was asked is "
        "unknown. Look at the address: 'fsqueue serve' prints it."
    )


def _parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines joined to parts of some size; what a slow stream has brought is sent with the next line."""
    part, size, sent_at = list[bytes](), 0, time.monotonic()
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= PART_BYTES or time.monotonic() - sent_at >= PART_S:
            yield b"".join(part)
            part, size, sent_at = [], 0, time.monotonic()
    if part:
        yield b"".join(part)


def _target(path: str, query: dict[str, Any] | None) -> str:
    said = {name: str(value).lower() if type(value) is bool else value for name, value in (query or {}).items()
            if value is not None}  # fmt: skip
    return f"/v1{path}" + (f"?{urlencode(said)}" if said else "")


def segment(name: str) -> str:
    """Return a name as a segment of a path."""
    if type(name) is not str or not name:
        raise fsqueue.InvalidArgument(f"A name must be text of 1 character or more, not {name!r:.100}.")
    try:
        return quote(name, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        raise fsqueue.InvalidArgument(f"The name {name!r:.100} is no text that UTF-8 can hold.") from None


CONFLICTS = ("missing", "changed", "owned", "depends", "busy")
"""What an UpdateConflict tells."""


def error_of(status: int, body: bytes | dict[str, Any]) -> fsqueue.FsqueueError:
    """Return the exception that an answer stands for: that which the verb itself would have raised."""
    try:
        return _error_of(status, body)
    except (AttributeError, KeyError, TypeError):
        return fsqueue.FsqueueError(f"The gateway answered {status}: {body!r:.200}")


def _error_of(status: int, body: bytes | dict[str, Any]) -> fsqueue.FsqueueError:
    """Return it. AttributeError, KeyError, TypeError if the answer is not one of a gateway."""
    said: dict[str, Any] = {}
    try:
        value = user_json.decode(body) if isinstance(body, bytes) else body
        said = value["error"]
        kind, message = said["type"], str(said["message"])
    except (user_json.NotExact, KeyError, TypeError):
        kind, message = "", f"The gateway answered {status}: {body!r:.200}"
    if status == 503:
        later = _Later(message)
        later.nothing_done = bool(said.get("nothing_done"))
        return later
    found: Any = getattr(fsqueue, kind, None) if kind in fsqueue.__all__ else None
    if not (isinstance(found, type) and issubclass(found, fsqueue.FsqueueError)):
        return fsqueue.FsqueueError(message)
    if issubclass(found, fsqueue.LeaseLost):
        return found(message, said.get("tokens", ()), said.get("reason", ""))
    if issubclass(found, fsqueue.UpdateConflict):
        return found(message, **{name: [fsqueue.Conflict(*one) for one in said.get(name, ())] for name in CONFLICTS})
    if issubclass(found, fsqueue.InvalidResult):
        refused = found(message, said.get("reasons"))
        if said.get("lost"):
            refused.__cause__ = fsqueue.LeaseLost(message, said["lost"])
        return refused
    if issubclass(found, fsqueue.InvalidTask):
        error: fsqueue.FsqueueError = found(message, said.get("index"))
    elif found is fsqueue.ForkedChild:
        error = fsqueue.FsqueueError(message)
    else:
        error = found(message)
    if "is_exact" in said:
        error.inserted, error.new, error.is_exact = said["inserted"], said["new"], said["is_exact"]
    return error
