"""Requests of a client: connections, what is asked again, and errors as exceptions."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import select
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from fsqueue import errors, forks
from fsqueue.client.addresses import GatewayAddress, connection_to
from fsqueue.errors import FsqueueError, InvalidArgument, LeaseLost, StorageError
from fsqueue.filesystem import resources
from fsqueue.format import user_json
from fsqueue.format.wording import duration
from fsqueue.interruptions import is_interruption, let_out
from fsqueue.verbs.table import NDJSON, VERBS, Route, Verb

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("fsqueue")

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
LATER = (502, 503, 504)
"""The status of an answer after which the same may be asked again: a proxy gives the others while the gateway is away.
"""
REFUSED = (400, 413, 415)
"""The status of an answer to a body that the gateway has not taken, mostly since it is too large."""
ANSWERED_BY_OTHERS = {
    **dict.fromkeys((301, 302, 303, 307, 308, 401, 403),
                    "It may want you to log in: give the address and the token of the gateway itself."),
    404: "Look at the address: 'fsqueue serve' prints it.",
    413: "Its limit of bytes in a body is smaller than the gateway's: insert less at a time, or raise it.",
    429: "It limits the number of requests: ask it less often.",
}  # fmt: skip
"""What a proxy means by the status of an answer that is none of a gateway."""
WAIT_S = 30.0
"""How long one request waits at the gateway, in a loop that waits for longer."""
REPEAT = "Repeat the call: that does no harm."
"""Advise how to go on if it is unknown whether a verb has happened: a repetition changes nothing then, ..."""
LOOK_FIRST = "Look whether it has happened before you repeat the call."
"""... or may do it once more."""
WAITS = ("wait_s", "timeout_s")
"""The fields that say how long a gateway waits. A verb has one of them, if any."""
TOKEN_VARIABLE = "FSQUEUE_SERVE_TOKEN"


def in_one_process(act: Callable[P, T]) -> Callable[P, T]:
    """Decorate a verb, or a part of one. In a child that was forked within it, it ends with ForkedChild.

    What comes of the verb is its parent's: such a child sends no request of it, either.
    """

    @wraps(act)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        process = forks.depth
        if forks.is_of_the_parent():  # a signal handler has forked in a verb that comes here
            raise resources.in_child(None)
        try:
            found = act(*args, **kwargs)
        except BaseException as error:
            if process == forks.depth:
                raise
            raise resources.in_child(error) from None
        if process != forks.depth:
            raise resources.in_child(None)
        return found

    return whole


class _Kept(threading.local):
    """A thread's connection, the answer that comes by it, and when it was last used."""

    connection: http.client.HTTPConnection | None = None
    answer: http.client.HTTPResponse | None = None
    used_at = 0.0


Request = Callable[[float], tuple[dict[str, Any], Any]]
"""Return the fields in the path of a request, and its body, as JSON or as a value that JSON has; None: it has none.

It gets for how many seconds the gateway may wait."""


def in_steps(
    ask: Callable[[float], T],
    wait_s: float,
    is_enough: Callable[[T], object],
    step_s: float = WAIT_S,
    first_s: float = 0,
) -> T:
    """Ask a gateway until an answer is enough, or the time is over. The gateway waits, `step_s` at most in a request.

    `ask` takes how many seconds one request waits. The first one waits for `first_s` at most.
    """
    deadline, step = time.monotonic() + wait_s, min(first_s, wait_s)
    while True:
        found = ask(step)
        if is_enough(found) or time.monotonic() >= deadline:
            return found
        step = max(0.0, min(step_s, deadline - time.monotonic()))


class Wire:
    """Ask a gateway. Each thread has a connection of its own, which stays open.

    `patience_s`: how long what can be asked again is asked again while the gateway is away or says "later". In a child
    that was forked within a request, the request ends with ForkedChild: the answer is its parent's.
    """

    def __init__(self, address: GatewayAddress, token: str | None, timeout_s: float, patience_s: float) -> None:
        self.address, self.timeout_s, self.patience_s = address, timeout_s, patience_s
        self._token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        if self._token is not None:
            check_token(TOKEN_VARIABLE, self._token)
        self._kept = _Kept()
        forks.register(self, Wire.after_fork)

    def __reduce__(self) -> Any:
        return Wire, (self.address, self._token, self.timeout_s, self.patience_s)

    def at(self, address: GatewayAddress) -> Wire:
        """Return a wire to another address, or another one to the same."""
        return Wire(address, self._token, self.timeout_s, self.patience_s)

    def hurried(self) -> Wire:
        """Return a wire to the same address that repeats nothing."""
        return Wire(self.address, self._token, self.timeout_s, 0)

    @in_one_process
    def ask(
        self, method: str, path: str, request: Request = lambda left_s: ({}, None), *,
        again: bool = False, wait_s: float = 0, bytes_max: int | None = None,
    ) -> Any:  # fmt: skip
        """Return the answer's value.

        `again`: asking twice does what asking once does. `wait_s`: how long the gateway waits before it answers; a
        repetition waits for what is left of that. Errors as of the verb itself. A completion whose answer was lost, and
        whose repetition is told that it has been done, is done: {}. `bytes_max`: no more of the answer is read.
        StorageError if the gateway cannot be reached: nothing was done. Or if it does not answer: what happened is
        unknown then.
        """
        ends = time.monotonic() + wait_s

        def once() -> bytes:
            left_s = max(0.0, ends - time.monotonic())
            query, sent = request(left_s)
            body = sent if sent is None or isinstance(sent, bytes) else encoded(sent)
            headers = {"content-type": "application/json"} if sent is not None else {}
            with _Answer(self, method, self._target(path, query), body, headers, left_s) as answer:
                return _read(answer, bytes_max)

        return _value_of(self._patiently(once, again, DONE, ends), self.address.host, method)

    def call(
        self, name: str, given: Mapping[str, Any] = MappingProxyType({}), *, body: bytes | None = None,
        queue: str = "", task: str = "", again: bool | None = None, wait_s: float = 0, advice: str = "",
    ) -> Any:  # fmt: skip
        """Return what a verb of the table answers. `given`: its fields by name. Those of a body may be JSON: `body`.

        `again`, `wait_s`: see `ask`; `again` as the table says, unless it is given. The verb's own field gets what is
        left of `wait_s`. `advice`: how to go on if it is unknown whether the verb has happened.
        """
        verb, route = routed(name)
        waits = [one.name for one in route.fields if one.name in WAITS]

        def request(left_s: float) -> tuple[dict[str, Any], Any]:
            fields = {**given, **dict.fromkeys(waits, left_s)}
            query = {one.name: fields.pop(one.name) for one in route.query if one.name in fields}
            has_body = route.method not in ("GET", "DELETE")
            return query, fields if body is None and has_body else body

        with advising(advice or (REPEAT if verb.may_be_repeated else LOOK_FIRST)):
            found = self.ask(
                route.method, path_of(route, queue, task), request,
                again=verb.may_be_repeated if again is None else again, wait_s=wait_s,
            )  # fmt: skip
            return found[route.answer] if route.answer else found

    def call_lines(self, name: str, given: Mapping[str, Any], queue: str, task: str = "") -> Generator[Any, None, None]:
        """Yield what a verb of the table answers, as it comes. Errors as of `lines`."""
        _, route = routed(name)
        return self.lines(path_of(route, queue, task), dict(given))

    @in_one_process
    def call_with_lines(
        self, name: str, lines: Iterable[bytes], query: dict[str, Any], queue: str, again: bool, advice: str
    ) -> Any:  # fmt: skip
        """Return what a verb of the table answers to a body of JSON Lines, which is sent as it comes.

        `again`: see `ask`; each iteration over `lines` yields all of them then. Otherwise they are sent again only if
        the gateway cannot be reached: then no line was read yet. `advice`: see `call`.
        """
        parts, (_, route) = _Parts(lines), routed(name)
        target = self._target(path_of(route, queue), query)

        def once() -> bytes:
            try:
                with _Answer(self, route.method, target, parts, {"content-type": NDJSON}, 0) as answer:
                    return _read(answer)
            except _Failed as failed:
                raise failed.error if parts.has_begun and not again else failed from failed.__cause__

        with advising(advice):
            return _value_of(self._patiently(once, again), self.address.host, route.method)

    def lines(self, path: str, query: dict[str, Any]) -> Generator[Any, None, None]:
        """Yield the values of JSON Lines, as they come. It has a connection of its own.

        StorageError behind the last one that came if they were not all: then their number does not come behind them.
        """
        aside, process = self.at(self.address), forks.depth
        asked = _Answer(aside, "GET", self._target(path, query), None, {}, 0)
        try:
            with ExitStack() as opened:
                answer = in_one_process(aside._patiently)(lambda: opened.enter_context(asked), again=True)
                for line in answer:
                    if not line.endswith(b"\n") and line.startswith(b"{"):  # else it is no gateway's
                        raise http.client.IncompleteRead(line)
                    value = _value_of(line, self.address.host, "GET")
                    if value.keys() == {"error"} and type(value["error"]) is dict:
                        raise error_of(503, value, "GET")
                    if value.keys() == {"end"}:
                        break
                    yield value
                    if process != forks.depth:
                        break
                else:
                    raise http.client.IncompleteRead(b"")
        except BaseException as error:
            if process != forks.depth:
                raise resources.in_child(error) from None
            if isinstance(error, _Failed):
                raise error.error from error.__cause__
            raise
        if process != forks.depth:
            raise resources.in_child(None)

    def _patiently(
        self, once: Callable[[], T], again: bool = False, done: T | None = None, ends: float = -math.inf
    ) -> T:
        """Do something once; or until it is done, if the gateway is away and that does no harm.

        `done`: returned if a repetition is told that it has been done. `ends`: when what is asked for would be over.
        No pause goes beyond that.
        """
        until, pause_s = time.monotonic() + self.patience_s, RETRY_S[0]
        failures, is_in_doubt = 0, False
        while True:
            try:
                return once()
            except _Failed as failed:
                error, now = failed.error, time.monotonic()
                rest_s = min(pause_s, ends - now) if now < ends else pause_s
                if not (again or failed.nothing_done) or now + rest_s > until:
                    raise error from failed.__cause__
                failures, is_in_doubt = failures + 1, is_in_doubt or not failed.nothing_done
            except LeaseLost as lost:
                if done is None or not is_in_doubt or lost.reason != LeaseLost.COMPLETED_BEFORE:
                    raise
                return done
            if failures == FAILURES_TO_TELL:  # a wrong address, too, looks like a gateway that is away
                logger.warning("%s The request is repeated for up to %s.", error, duration(self.patience_s))
            time.sleep(rest_s)
            pause_s = min(pause_s * 2, RETRY_S[1])

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return this thread's connection, which is open. OSError if the gateway cannot be reached."""
        kept = self._kept
        is_idle = time.monotonic() - kept.used_at > IDLE_S
        if kept.connection is not None and (kept.answer is not None or is_idle or _is_over(kept.connection)):
            self.drop()
        if kept.connection is None:
            made = connection_to(self.address, timeout_s)
            made.connect()
            kept.connection = made
        kept.connection.timeout = timeout_s
        kept.connection.sock.settimeout(timeout_s)
        return kept.connection

    def comes(self, answer: http.client.HTTPResponse | None) -> None:
        """Note the answer that comes by this thread's connection; None: it was read to its end."""
        self._kept.answer, self._kept.used_at = answer, time.monotonic()

    def drop(self) -> None:
        """Close this thread's connection, and the answer that comes by it."""
        kept = self._kept
        connection, answer, kept.connection, kept.answer = kept.connection, kept.answer, None, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if answer is not None:  # one that ends with its connection holds that itself
                answer.close()

    def after_fork(self) -> None:
        """Let go of this thread's connection in a forked child. It may go on in the parent's wait for an answer: what
        it would read there is the parent's, so its descriptor leads nowhere.
        """
        connection, answer = self._kept.connection, self._kept.answer
        fds = set()
        if connection is not None and connection.sock is not None:
            fds.add(connection.sock.fileno())
        if answer is not None and not answer.isclosed():
            fds.add(answer.fileno())
        resources.lead_nowhere([fd for fd in fds if fd >= 0])
        self.drop()

    def headers(self) -> dict[str, str]:
        """Return what each request says."""
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}

    def _target(self, path: str, query: dict[str, Any] | None) -> str:
        said = {name: str(value).lower() if type(value) is bool else value for name, value in (query or {}).items()
                if value is not None}  # fmt: skip
        return f"{self.address.prefix}/v1{path}" + (f"?{urlencode(said)}" if said else "")


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Say how to go on in an error that leaves unknown what a request has done."""
    try:
        yield
    except StorageError as error:
        if not error.is_exact and not error.advice:
            error.args = (f"{error} {advice}", *error.args[1:])
            error.advice = advice
        raise


def routed(name: str) -> tuple[Verb, Route]:
    """Return a verb of the table, and its route."""
    verb = VERBS[name]
    assert verb.route is not None, name
    return verb, verb.route


def path_of(route: Route, queue: str = "", task: str = "") -> str:
    """Return the path of a route, of a queue and a task by their names."""
    given = {"queue": queue, "task": task}
    return route.path.format(**{name: segment(text) for name, text in given.items() if f"{{{name}}}" in route.path})


def check_token(name: str, token: object) -> None:
    """Raise InvalidArgument, without the token, if no header can hold it."""
    if type(token) is not str or not token.isascii() or not token.isprintable():
        raise InvalidArgument(f"{name} must be text of printable ASCII characters.")


def _is_over(connection: http.client.HTTPConnection) -> bool:
    """Return whether the gateway has closed an idle connection: nothing else comes by it unasked."""
    if connection.sock is None:
        return True
    look = select.poll()
    look.register(connection.sock, select.POLLIN)
    return bool(look.poll(0))


class _Failed(Exception):
    """A request has ended with `error`, and may be asked again: if nothing was done, or if that does no harm."""

    def __init__(self, error: StorageError, nothing_done: bool) -> None:
        super().__init__(error)
        self.error, self.nothing_done = error, nothing_done
        if not nothing_done:
            error.is_exact = False


class _Answer:
    """A request, and its answer for a block. The connection is kept if the answer was read to its end."""

    def __init__(
        self, wire: Wire, method: str, target: str, body: Any, headers: dict[str, str], wait_s: float
    ) -> None:  # fmt: skip
        self._wire, self._request, self._timeout_s = wire, (method, target, body, headers), wire.timeout_s + wait_s
        self._answer: http.client.HTTPResponse | None = None

    def __enter__(self) -> http.client.HTTPResponse:
        connection = self._connection()
        method, target, body, headers = self._request
        try:
            chunked = body is not None and not isinstance(body, bytes)
            try:
                connection.request(method, target, body, {**self._wire.headers(), **headers}, encode_chunked=chunked)
            except (BrokenPipeError, ConnectionResetError):
                if not chunked:
                    raise
                # It may have refused a body before its end: then it has answered.
            self._answer = connection.getresponse()
            self._wire.comes(self._answer)
            if self._answer.status >= 300:
                raise failure_of(self._answer.status, _read(self._answer, ERROR_BYTES_MAX), method)
        except (FsqueueError, _Failed):
            self._end()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._wire.drop()
            let_out(error)
            raise self._broken_off(error) from error
        except BaseException:  # what the stream of a body raises, or Ctrl-C: the rest of the request is never sent
            self._wire.drop()
            raise
        return self._answer

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._wire.connection(self._timeout_s)
        except OSError as error:
            let_out(error)
            away = StorageError(
                f"The gateway {self._wire.address.url} cannot be reached ({_told(error)}). Nothing was done. "
                "Look at the address, and whether 'fsqueue serve' runs there."
            )
            if isinstance(error, ssl.SSLCertVerificationError):  # no time mends that
                raise away from error
            raise _Failed(away, nothing_done=True) from error

    def _broken_off(self, error: Exception) -> _Failed:
        method = self._request[0]
        return _Failed(
            StorageError(
                f"The gateway {self._wire.address.url} has broken off ({_told(error)}). "
                f"{what_is_done(method)} Look whether 'fsqueue serve' runs there."
            ),
            nothing_done=method == "GET",
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end()
        if isinstance(error, (OSError, http.client.HTTPException)) and not is_interruption(error):
            self._wire.drop()
            raise self._broken_off(error) from error

    def _end(self) -> None:
        if self._answer is not None and self._answer.isclosed() and not self._answer.will_close:
            # Its finalizer would close it in the next request. What a signal handler raises there is passed over.
            self._answer.close()
            self._wire.comes(None)
        else:
            self._wire.drop()


def printable(text: str) -> str:
    """Return a text with what moves a terminal's cursor, or colours it, spelled out: another server may have sent it.

    Line breaks stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def _told(error: Exception) -> str:
    """Return an error of a connection in a line. Those of `http.client` quote what has come as it is."""
    return printable(f"{type(error).__name__}: {str(error).strip():.200}")


def _read(answer: http.client.HTTPResponse, bytes_max: int | None = None) -> bytes:
    """Return an answer's body, or its beginning. HTTPException if the connection has ended before the answer has.

    A head that breaks off counts as a whole one in `http.client`. Nothing tells the length of the body then, and it is
    empty: a gateway gives no such answer.
    """
    body = answer.read(bytes_max)
    is_cut = bool(answer.length) or (not body and answer.length is None and not answer.chunked)
    if is_cut and (bytes_max is None or len(body) < bytes_max):
        raise http.client.IncompleteRead(body)
    return body


def what_is_done(method: str) -> str:
    """Return the sentence about what a request has done whose answer is not one of a gateway, or not whole."""
    if method == "GET":
        return "Nothing was changed: the request only reads, and may be repeated."
    return "Whether it has done what it was asked is unknown."


class Answer(dict[str, Any]):
    """The fields of an answer. StorageError if one is asked for that is not there."""

    def __missing__(self, name: str) -> Any:
        raise lacking(f"the field {name!r}")


def lacking(what: str) -> StorageError:
    """Return what is raised for an answer that is not whole."""
    error = StorageError(
        f"The answer lacks {what}. Whether the gateway has done what it was asked is unknown. Perhaps it has another "
        "version of fsqueue than this process: install the same one. Or what answers there is no gateway of fsqueue: "
        "look at the address."
    )
    error.is_exact = False
    return error


class NoGateway(StorageError):
    """What answers is no gateway."""


class NothingThere(FsqueueError):
    """A gateway has nothing at the path that it was asked for."""


def _value_of(body: bytes, host: str, method: str) -> Answer:
    """Return what an answer holds, which is one object. NoGateway for anything else."""
    try:
        value = user_json.decode(body)
    except user_json.NotExact:
        value = None
    if type(value) is not dict:
        raise not_a_gateway(host, body[:100], method)
    return Answer(value)


def not_a_gateway(host: str, answer: object, method: str) -> NoGateway:
    """Return what is raised for an answer that no gateway gives."""
    error = NoGateway(
        f"What answers at {host} is no gateway of fsqueue: {answer!r:.120}. {what_is_done(method)} Look at the "
        "address: 'fsqueue serve' prints it."
    )
    error.is_exact = method == "GET"
    return error


class _Parts:
    """Lines joined to parts of some size. What a slow stream has brought is sent with the next line."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.has_begun = False
        """Whether a line was asked for. Most streams cannot be sent a second time then."""

    def __iter__(self) -> Iterator[bytes]:
        self.has_begun = True
        part, size, sent_at = list[bytes](), 0, time.monotonic()
        for line in self._lines:
            part.append(line)
            size += len(line)
            if size >= PART_BYTES or time.monotonic() - sent_at >= PART_S:
                yield b"".join(part)
                part, size, sent_at = [], 0, time.monotonic()
        if part:
            yield b"".join(part)


DONE = b"{}"
"""The answer to a completion that is told to have been done before."""


def encoded(value: Any) -> bytes:
    """Return an argument as JSON. InvalidArgument if JSON cannot hold it."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"An argument is no JSON, and cannot be sent: {error}. Nothing was done.") from None


def segment(name: str) -> str:
    """Return a name as a segment of a path."""
    if type(name) is not str or not name:
        raise InvalidArgument(f"A name must be text of 1 character or more, not {name!r:.100}.")
    try:
        return quote(name, safe="").replace(".", "%2E")
    except UnicodeEncodeError:
        raise InvalidArgument(f"The name {name!r:.100} is no text that UTF-8 can hold.") from None


class _Said(NamedTuple):
    """What an answer says that is an error."""

    kind: str
    message: str
    fields: dict[str, Any]


def failure_of(status: int, body: bytes, method: str) -> Exception:
    """Return what is raised for an answer that is an error: `_Failed` if the same may be asked again."""
    error = error_of(status, body, method)
    if status not in LATER:
        return error
    said = _said(body)
    if not isinstance(error, StorageError):
        error = StorageError(str(error))
    return _Failed(error, nothing_done=said is not None and bool(said.fields.get("nothing_done")))


def error_of(status: int, body: bytes | dict[str, Any], method: str) -> FsqueueError:
    """Return the exception that an answer stands for: that which the verb itself would have raised."""
    said = _said(body)
    try:
        if said is not None:
            return _error_of(said, status)
    except (AttributeError, KeyError, TypeError):
        pass
    hint = ANSWERED_BY_OTHERS.get(status, "Look whether 'fsqueue serve' runs there.")
    strange = NoGateway(
        f"The gateway, or a proxy before it, answered {status}: {body!r:.200}. {what_is_done(method)} {hint}"
    )
    strange.is_exact = method == "GET"
    return strange


def _said(body: bytes | dict[str, Any]) -> _Said | None:
    """Return what an answer says that is an error; None if no gateway says so."""
    try:
        said = (user_json.decode(body) if isinstance(body, bytes) else body)["error"]
        return _Said(said["type"], printable(str(said["message"])), said)
    except (user_json.NotExact, KeyError, TypeError):
        return None


def _error_of(told: _Said, status: int) -> FsqueueError:
    """Return it. AttributeError, KeyError, TypeError if the answer is not one of a gateway."""
    kind, message, said = told
    found: Any = getattr(errors, kind, None)
    if not (isinstance(found, type) and issubclass(found, FsqueueError)) or found is errors.ForkedChild:
        if status == 404:
            return NothingThere(message)
        return InvalidArgument(message) if status in REFUSED else FsqueueError(message)
    if issubclass(found, LeaseLost):
        return found(message, said.get("tokens", ()), said.get("reason", ""))
    if issubclass(found, errors.UpdateConflict):
        return found(message, **{name: [errors.Conflict(*one) for one in said.get(name, ())] for name in found.KINDS})
    if issubclass(found, errors.InvalidResult):
        refused = found(message, said.get("reasons"))
        if said.get("lost"):
            refused.__cause__ = LeaseLost(message, said["lost"])
        return refused
    error: FsqueueError = found(message, said.get("index")) if issubclass(found, errors.InvalidTask) else found(message)
    if "is_exact" in said:
        error.inserted, error.new, error.is_exact = said["inserted"], said["new"], said["is_exact"]
    error.advice = str(said.get("advice", ""))
    return error
