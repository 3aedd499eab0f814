"""Bodies: JSON in bounded memory, and JSON Lines line by line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from fsqueue.format import user_json
from fsqueue.service.faults import BadField
from fsqueue.service.gate import FORM_BYTES_MAX

T = TypeVar("T")

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines", "application/jsonlines")
FORM_FIELDS_MAX = 20
AT_ONCE_BYTES_MAX = 64 << 10
"""Maximum length of a body that is read in the event loop. That takes less than 10 ms."""


def kind_of(request: Request) -> str:
    """Return the type of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def whole(request: Request, bytes_max: int) -> bytes:
    """Return a body that is held in memory. HTTPException 413 if it is larger, before more of it is read; 415."""
    refuse_encoded(request)
    length = request.headers.get("content-length", "0")
    parts: list[bytes] = []
    size = int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else 0
    if size <= bytes_max:
        size = 0
        try:
            async for part in _stream(request):
                size += len(part)
                if size > bytes_max:
                    break
                parts.append(part)
        except HTTPException as error:
            raise HTTPException(error.status_code, f"{error.detail} Nothing was done.") from None
    if size > bytes_max:
        raise HTTPException(413, f"The body has more than {bytes_max:,} bytes. Nothing was done.")
    return b"".join(parts)


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form, of each name the first one; {} for what is no form. HTTPException 413."""
    body = await whole(request, FORM_BYTES_MAX)
    try:
        found = parse_qs(body.decode("utf-8", "replace"), max_num_fields=FORM_FIELDS_MAX)
    except ValueError:  # it has too many fields
        return {}
    return {name: values[0] for name, values in found.items()}


async def json_object(request: Request, bytes_max: int, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the value of a body of JSON; of {} if there is no body. BadField."""
    body = await whole(request, bytes_max)
    if not body.strip():
        return read({})
    if kind_of(request) not in ("application/json", ""):
        raise HTTPException(415, refused_kind(request, "application/json"))
    return await aside(request, len(body), lambda: read(decoded(body, "body")))


async def aside(request: Request, size: int, act: Callable[[], T]) -> T:
    """Return what reading a body of `size` bytes returns. A long one is read in a thread of the verbs.

    Otherwise the gateway would answer nobody for as long as that takes: up to a second for each 8 MiB. Overloaded.
    """
    if size <= AT_ONCE_BYTES_MAX:
        return act()
    return await request.app.state.gateway.threads.run(act)  # type: ignore[no-any-return]  # its state has no types


def refused_kind(request: Request, accepted: str) -> str:
    """Return the sentence on a body of another type than those that are accepted."""
    return f"The body has the Content-Type {kind_of(request)!r:.200}. It must be {accepted}. Nothing was done."


def refuse_encoded(request: Request) -> None:
    """Raise HTTPException 415 for a body that is compressed."""
    encoding = request.headers.get("content-encoding", "").strip()
    if encoding.lower() not in ("", "identity"):
        raise HTTPException(
            415,
            f"The body has the Content-Encoding {encoding!r:.200}. Send it as it is, without one. Nothing was done.",
            {"accept-encoding": "identity"},
        )


def decoded(text: bytes, where: str) -> Any:
    """Return the value of JSON text, exactly; BadField says what is wrong with it."""
    try:
        return user_json.decode(text)
    except user_json.NotExact as error:
        raise BadField(where, f"{error}. Nothing was done.") from None


async def lines(request: Request, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a body that are not empty, some at a time. HTTPException 413 for a line that is too long."""
    begun: list[bytes] = []
    """The parts of the line that has not ended. They are joined once: many small parts cost no more than one."""
    size = 0
    async for part in _stream(request):
        *found, rest = part.split(b"\n")
        if found:
            found[0] = b"".join((*begun, found[0]))
            begun, size = [], 0
        begun.append(rest)
        size += len(rest)
        if size > line_bytes_max or any(len(line) > line_bytes_max for line in found):
            raise HTTPException(413, f"A line has more than {line_bytes_max:,} bytes.")
        whole_lines = [line for line in found if line.strip()]
        if whole_lines:
            yield whole_lines
    if (last := b"".join(begun)).strip():
        yield [last]


async def _stream(request: Request) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            if part:
                yield part
    except ClientDisconnect:
        raise HTTPException(400, "The body has ended too soon.") from None
