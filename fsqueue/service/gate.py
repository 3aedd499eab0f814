"""Who may: the token, the host's name, and the origin (docs/security.md).

Everything passes here before a route is looked for. What is asked for without a token must be listed in `OPEN`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fsqueue.service import faults

Role = Literal["read", "write"]
SAFE: Final = ("GET", "HEAD")
OPEN: Final = ("/login", "/healthz")
"""Paths that can be asked for without a token. They tell nothing of the queues."""
SESSION: Final = ("/login", "/logout")
"""Paths whose forms change nothing but the browser's own cookie."""
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
FORM_BYTES_MAX = 64 << 10
"""The largest form: it is read before its token against forged requests is."""
CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
TASKSTORE: Final = re.compile(r"/(groups?|tasks?/.*|group/.*|update|claim)")
"""Paths of taskstore's format (docs/taskstore.md). There, and only there, a token may also come as Basic credentials:
its client has no other way to send one than `http://NAME:TOKEN@HOST`. A browser would send them by itself."""
_PATH = re.compile(rb"/[\x21-\x7e]*")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has sent a request: `request.state.caller`. `csrf`: what its forms have to send in the field CSRF_FIELD.

    `is_stranger`: it has shown no token, and asks for what is open to all.
    """

    role: Role
    csrf: str = ""
    by_cookie: bool = False
    is_stranger: bool = False

    @property
    def may_write(self) -> bool:
        """Return whether this caller may change anything."""
        return self.role == "write"


class Tokens:
    """The tokens that a gateway takes, by what each allows. They are kept and compared as digests alone."""

    def __init__(self, tokens: Mapping[Role, str]) -> None:
        self._digests: list[tuple[Role, bytes]] = [(role, _digest(token)) for role, token in tokens.items()]

    def role(self, token: str) -> Role | None:
        """Return what a token allows; None if it is none of these. The time it takes tells nothing of them."""
        return self._role_of(_digest(token))

    def cookie(self, token: str) -> str:
        """Return what a browser keeps instead of a token. Each gateway with the same tokens takes it."""
        return _derived(_digest(token), b"session")

    def caller(self, cookie: str) -> Caller | None:
        """Return who has sent a cookie; None if it is none of this gateway's."""
        found: Caller | None = None
        for role, digest in self._digests:
            if hmac.compare_digest(_derived(digest, b"session").encode(), cookie.encode("utf-8", "replace")):
                found = Caller(role, _derived(digest, b"csrf"), by_cookie=True)
        return found

    def _role_of(self, digest: bytes) -> Role | None:
        found: Role | None = None
        for role, known in self._digests:
            if hmac.compare_digest(known, digest):
                found = role
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _derived(digest: bytes, purpose: bytes) -> str:
    return hmac.new(digest, purpose, hashlib.sha256).hexdigest()


class Gate:
    """Let requests through to `app` that may pass, with the caller in their state.

    `tokens`: None for a Unix socket, whose file decides who may. `hosts`: the names by which a browser may know this
    gateway; another name means that a stranger's name was made to lead here. `read_only`: no caller may write,
    whatever token comes. `root_path`: a prefix, as "/queues", that a proxy before this gateway leaves in paths; "" if
    there is none, or the proxy removes it.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens | None, hosts: Iterable[str] = (), read_only: bool = False,
        root_path: str = "",
    ) -> None:  # fmt: skip
        self._app, self._tokens, self._read_only, self._root = app, tokens, read_only, root_path.encode("ascii")
        self._hosts = {host.lower().strip("[]") for host in (*LOCAL, *hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what may not pass; hand on everything else."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        caller = self._caller(scope, headers) if refusal is None else None
        scope.setdefault("state", {})["caller"] = caller
        if caller is not None:
            if scope["method"] in SAFE or scope["path"] in SESSION:
                await self._app(scope, receive, send)
                return
            if not caller.may_write:
                refusal = faults.refusal(
                    403, "ReadOnly", "This token, or this gateway, is for reading alone. Nothing was done."
                )
            elif caller.by_cookie:
                form, receive = await _form(headers, receive)
                given = form if form is not None else headers.get(CSRF_HEADER, "")
                if not hmac.compare_digest(given.encode("utf-8", "replace"), caller.csrf.encode()):
                    refusal = faults.refusal(
                        403, "Forged", "The request does not come from this gateway's own page. Nothing was done."
                    )
        elif refusal is None:
            refusal = self._asked_for_token(scope, headers)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that no token could make good; None if it may go on."""
        raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
        if not _PATH.fullmatch(raw):
            return faults.refusal(400, "BadRequest", "The path has characters that stand percent-encoded in a path.")
        if self._root and raw == self._root:  # relative links would lead out of the prefix
            return RedirectResponse(f"{raw.decode('ascii').rpartition('/')[2]}/", 308)
        if self._root and raw.startswith(self._root + b"/"):
            raw = raw[len(self._root) :]
        # Routes are found by the path as it was sent: a name that has a "/" in it is one segment then.
        scope["path"] = raw.decode("ascii")
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy that goes by the other one would take a part of this body for a request, or the reverse.
            refusal = faults.refusal(400, "BadRequest", "The body has both a Content-Length and a Transfer-Encoding.")
            refusal.headers["connection"] = "close"
            return refusal
        host = headers.getlist("host")
        if len(host) != 1 or _name_of(host[0]) not in self._hosts:
            return faults.refusal(
                421,
                "WrongHost",
                f"This gateway is not known by the name {', '.join(host)!r:.200}. Use localhost, or start it with "
                "--allow-host NAME.",
            )
        if scope["method"] not in SAFE:
            origin = headers.get("origin")
            if origin is not None and urlsplit_netloc(origin) != host[0].lower():
                return faults.refusal(403, "Forged", "The request comes from another site's page. Nothing was done.")
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return faults.refusal(403, "Forged", "The request comes from another site's page. Nothing was done.")
        return None

    def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return who has sent the request; None if it must show a token, and does not."""
        found: Caller | None = None
        if self._tokens is None:
            found = Caller("write")
        elif (given := headers.get("authorization")) is not None:
            token = _token_in(given, takes_basic=TASKSTORE.fullmatch(scope["path"]) is not None)
            role = None if token is None else self._tokens.role(token)
            found = None if role is None else Caller(role)
        else:
            found = self._tokens.caller(cookie_of(headers, cookie_name(scope)))
        if found is None and scope["path"] in OPEN:
            found = Caller("read", is_stranger=True)
        if found is not None and self._read_only:
            return replace(found, role="read")
        return found

    @staticmethod
    def _asked_for_token(scope: Scope, headers: Headers) -> Response:
        if scope["method"] in SAFE and "text/html" in headers.get("accept", ""):
            return RedirectResponse("../" * (scope["path"].count("/") - 1) + "login", 303)
        is_taskstore = TASKSTORE.fullmatch(scope["path"]) is not None
        given = headers.get("authorization", "")
        in_url = ", or http://any:TOKEN@HOST:PORT as the address" if is_taskstore else ""
        if not in_url and given.lower().startswith("basic "):
            in_url = " (as a password, at the paths of taskstore's calls alone)"
        unknown = "The token that came is none of this gateway's. " if _token_in(given, is_taskstore) else ""
        refusal = faults.refusal(
            401,
            "Unauthorized",
            f"{unknown}A token is needed: the header 'Authorization: Bearer TOKEN'{in_url}. By default 'fsqueue serve' "
            "keeps its tokens in ~/.config/fsqueue/serve.tokens. 'fsqueue run' and fsqueue.connect take the one in the "
            "environment variable FSQUEUE_SERVE_TOKEN.",
        )
        refusal.headers["www-authenticate"] = "Bearer"
        return refusal


def has_shown_token(state: Mapping[str, Any]) -> bool | None:
    """Return whether a request of this state has a valid token, or needs none; None if no `Gate` has judged it yet."""
    if "caller" not in state:
        return None
    caller: Caller | None = state["caller"]
    return caller is not None and not caller.is_stranger


def _token_in(authorization: str, takes_basic: bool) -> str | None:
    """Return the token of an Authorization header; None if there is none.

    Of Basic credentials it is the password, or the name if there is no password: `http://TOKEN@HOST`.
    """
    kind, _, given = authorization.partition(" ")
    if kind.lower() == "bearer":
        return given.strip()
    if kind.lower() != "basic" or not takes_basic:
        return None
    try:
        name, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8
        return None
    return password or name


def cookie_name(scope: Scope) -> str:
    """Return the name of this gateway's cookie. A browser sends it to each port of the host: it has the port in it."""
    server = scope.get("server") or ("", 0)
    return f"fsqueue_{server[1] or 0}"


def cookie_of(headers: Headers, name: str) -> str:
    """Return the value of a cookie; "" if there is none."""
    for one in headers.get("cookie", "").split(";"):
        key, _, value = one.strip().partition("=")
        if key == name:
            return value
    return ""


def urlsplit_netloc(origin: str) -> str:
    """Return host and port of an origin, in lower case; "" for `null` and for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


async def _form(headers: Headers, receive: Receive) -> tuple[str | None, Receive]:
    """Return the token that a form has sent, and its body once more; None if the request is no form.

    A form that is too large has none.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        return None, receive
    body, more = b"", True
    while more and len(body) <= FORM_BYTES_MAX:
        message = await receive()
        if message["type"] != "http.request":
            return "", receive
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if more or len(body) > FORM_BYTES_MAX:
        return "", receive
    try:
        given = parse_qs(body.decode("ascii"), max_num_fields=100).get(CSRF_FIELD, [""])[0]
    except ValueError:
        given = ""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return given, again
