"""A client that does byte for byte what taskstore's Go client does: what it sends, and how it reads answers.

Read from upstream's service/client and service/protocol, and from Go's net/http and encoding/json. Nothing of it is a
copy. What it would not take is an error here: another type in a field that it knows, an answer without a length (of
which it leaves the connection behind).
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tests.waiting import PATIENCE_S

INT32, INT64 = 1 << 31, 1 << 63


class TaskInfo(NamedTuple):
    """A task as the client has it. `timespec` is nanoseconds, in the field `duration` of what goes over the wire."""

    id: int = 0
    group: str = ""
    data: str = ""
    timespec: int = 0
    ownerid: int = 0


class Lists(NamedTuple):
    """The lists of an answer's error."""

    changes: list[int]
    deletes: list[int]
    depends: list[int]
    owned: list[int]


class ResponseError(Exception):
    """The store has refused an update or a claim."""

    def __init__(self, lists: Lists) -> None:
        super().__init__(lists)
        self.lists = lists


class GoError(Exception):
    """Any other error: a status that is not 200, or an answer that Go's decoder refuses."""


class GoClient:
    """The client for one base address. One connection is kept, as by Go's transport; `connections` counts."""

    def __init__(self, base_url: str, client_id: int) -> None:
        parts = urlsplit(base_url.removesuffix("/"))
        assert parts.hostname is not None
        self._host, self._at, self.client_id = parts.netloc.rpartition("@")[2], (parts.hostname, parts.port), client_id
        self._authorization = ""
        if parts.username is not None:
            credentials = f"{parts.username}:{parts.password or ''}".encode()
            self._authorization = f"Authorization: Basic {base64.b64encode(credentials).decode()}\r\n"
        self._socket: socket.socket | None = None
        self.connections = 0

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- its methods

    def groups(self) -> list[str]:
        found = self._asked("GET", "/group")
        return [] if found is None else [_typed(one, str) for one in _typed(found, list)]

    def task(self, id: int) -> TaskInfo:
        return _task(self._asked("GET", f"/task/{id}"))

    def tasks(self, *ids: int) -> list[TaskInfo]:
        return _tasks(self._asked("GET", f"/tasks/{','.join(map(str, ids))}"))

    def group(self, name: str, limit: int, owned: bool) -> list[TaskInfo]:
        path = quote(f"/group/{name}", safe="/:@&=+$,;!*'()~")  # what Go's url.Parse does to a path
        return _tasks(self._asked("GET", f"{path}?limit={limit}&owned={int(owned)}"))

    def update(
        self,
        adds: Sequence[TaskInfo] | None = None,
        updates: Sequence[TaskInfo] | None = None,
        deletes: Sequence[int] | None = None,
        depends: Sequence[int] | None = None,
    ) -> list[TaskInfo]:
        request = {
            "clientid": self.client_id,
            "adds": None if adds is None else [_sent(one) for one in adds],
            "updates": None if updates is None else [_sent(one) for one in updates],
            "deletes": deletes,
            "depends": depends,
        }
        tasks, lists = _response(self._asked("POST", "/update", request))
        if lists is not None and any(lists):
            raise ResponseError(lists)
        return tasks

    def claim(self, group: str, duration: int, depends: Sequence[int] | None = None) -> TaskInfo | None:
        request = {"clientid": self.client_id, "group": group, "duration": duration, "depends": depends}
        tasks, lists = _response(self._asked("POST", "/claim", request))
        if lists is not None:
            raise ResponseError(lists)
        return tasks[0] if tasks else None

    # -- HTTP as Go's transport speaks it

    def _asked(self, method: str, path: str, request: Any = None) -> Any:
        body = b"" if request is None else go_json(request)
        length = "" if request is None else f"Content-Length: {len(body)}\r\n"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: Go-http-client/1.1\r\n{length}"
            f"{self._authorization}Accept-Encoding: gzip\r\n\r\n"
        )
        if self._socket is None:
            self._socket = socket.create_connection(self._at, timeout=PATIENCE_S)
            self.connections += 1
        self._socket.sendall(head.encode("ascii") + body)
        with self._socket.makefile("rb") as answer:
            status = answer.readline().decode("ascii").split(" ", 2)[1]
            headers = {}
            while line := answer.readline().strip():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            assert "transfer-encoding" not in headers, "the client leaves the connection of such an answer behind"
            text = answer.read(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        if status != "200":
            raise GoError(f"error status {status}: {text.decode()}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise GoError(str(error)) from None


def go_json(value: Any) -> bytes:
    """Return JSON as Go's encoder writes it: no spaces, UTF-8, and what HTML gives a meaning is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode()


def _sent(task: TaskInfo) -> dict[str, Any]:
    return {
        "id": task.id, "group": task.group, "data": task.data, "duration": task.timespec, "ownerid": task.ownerid
    }  # fmt: skip


# -- Go's decoder: case does not matter, unknown fields are ignored, null changes nothing, types must fit


def _members(value: Any) -> dict[str, Any]:
    return {name.lower(): one for name, one in _typed(value, dict).items() if one is not None}


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise GoError(f"json: cannot unmarshal {value!r:.100} into a value of {kind.__name__}")
    return value


def _number(value: Any, bound: int) -> int:
    found: int = _typed(value, int)
    if not -bound <= found < bound:
        raise GoError(f"json: cannot unmarshal number {found}")
    return found


def _task(value: Any) -> TaskInfo:
    if value is None:
        return TaskInfo()
    fields = _members(value)
    return TaskInfo(
        _number(fields.get("id", 0), INT64),
        _typed(fields.get("group", ""), str),
        _typed(fields.get("data", ""), str),
        _number(fields.get("duration", 0), INT64),
        _number(fields.get("ownerid", 0), INT32),
    )


def _tasks(value: Any) -> list[TaskInfo]:
    return [] if value is None else [_task(one) for one in _typed(value, list)]


def _response(value: Any) -> tuple[list[TaskInfo], Lists | None]:
    """Return the tasks, and the lists of the error if there is one."""
    fields = _members(value)
    tasks = _tasks(fields.get("tasks"))
    if "error" not in fields:
        return tasks, None
    error = _members(fields["error"])
    for one in _typed(error.get("bugs", []), list):
        if one is not None:  # Go has no value of the interface `error` for it
            raise GoError(f"json: cannot unmarshal {one!r:.200} into a value of error")
    names = ("changes", "deletes", "depends", "owned")
    return tasks, Lists(*([_number(id, INT64) for id in _typed(error.get(name, []), list)] for name in names))
