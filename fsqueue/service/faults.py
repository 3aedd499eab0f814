"""Errors as answers: which status each error of fsqueue has, and what its body says."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import fsqueue

logger = logging.getLogger("fsqueue")

RETRY_AFTER_S = 5
"""When a client should come again after the filesystem failed, or a lock stayed busy."""

STATUS: dict[type[fsqueue.FsqueueError], int] = {
    fsqueue.TaskTooLarge: 413,
    fsqueue.InvalidArgument: 400,
    fsqueue.TaskNotFound: 404,
    fsqueue.QueueNotFound: 404,
    fsqueue.GroupNotFound: 404,
    fsqueue.NotAQueue: 409,
    fsqueue.QueueFileLost: 409,
    fsqueue.QueueExists: 409,
    fsqueue.LeaseLost: 409,
    fsqueue.UpdateConflict: 409,
    fsqueue.CommitLost: 409,
    fsqueue.QueuePurged: 410,
    fsqueue.StorageFull: 507,
    fsqueue.StorageError: 503,
    fsqueue.FsqueueError: 500,
}
"""The status of each error, and of those below it. The first that fits counts."""

GONE = ("purged", "the queue was deleted")
"""Why leases were lost that no repetition brings back: 410 instead of 409."""


class BadField(fsqueue.InvalidArgument):
    """A field of a request is missing, unknown, of the wrong type or out of range. Nothing was done."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field = field


class Overloaded(fsqueue.StorageError):
    """The gateway has too much to do. Nothing was done: come again."""


class Unanswered(fsqueue.StorageError):
    """The filesystem has not answered in time. Whether the operation happens is unknown."""


def answer_to(error: fsqueue.FsqueueError) -> Response:
    """Return the answer that an error is told by."""
    status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
    said: dict[str, Any] = {"type": type_of(error), "message": str(error)}
    if isinstance(error, BadField):
        said["field"] = error.field
    if isinstance(error, fsqueue.LeaseLost):
        said |= {"tokens": error.tokens, "reason": error.reason}
        status = 410 if error.reason in GONE else status
    if isinstance(error, fsqueue.UpdateConflict):
        said |= {name: [list(one) for one in getattr(error, name)] for name in error.KINDS}
    if isinstance(error, fsqueue.InvalidResult):
        said["reasons"] = error.reasons
        lost = error.__cause__
        said["lost"] = lost.tokens if isinstance(lost, fsqueue.LeaseLost) else []
    if isinstance(error, fsqueue.InvalidTask) and error.index is not None:
        said["index"] = error.index
    if error.inserted is not None or error.new is not None:
        said |= {"inserted": error.inserted, "new": error.new, "is_exact": error.is_exact}
    if error.advice:
        said["advice"] = error.advice
    if isinstance(error, (Overloaded, fsqueue.LockTimeout)):
        said["nothing_done"] = True
    answer = JSONResponse({"error": said}, status)
    if status == 503:
        answer.headers["retry-after"] = str(1 if isinstance(error, Overloaded) else RETRY_AFTER_S)
    return answer


def refusal(status: int, kind: str, message: str) -> Response:
    """Return an answer that no error of fsqueue tells."""
    return JSONResponse({"error": {"type": kind, "message": message}}, status)


def cut_off() -> Response:
    """Return the answer to a request that is under way when the gateway ends."""
    return answer_to(
        Unanswered("The gateway has ended within this request. Whether it is done in the end is unknown: look.")
    )


def type_of(error: fsqueue.FsqueueError) -> str:
    """Return the name of the public class that an error is of."""
    return next(one.__name__ for one in type(error).__mro__ if one.__name__ in fsqueue.__all__)


async def on_error(request: Request, error: Exception) -> Response:
    """Answer an error of fsqueue."""
    assert isinstance(error, fsqueue.FsqueueError)
    return answer_to(error)


async def on_gone(request: Request, error: Exception) -> Response:
    """Answer nobody: the client has closed its connection."""
    return Response(status_code=499)


async def on_bug(request: Request, error: Exception) -> Response:
    """Answer an error that nothing expects. The log has it; the client learns nothing of the insides."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(500, "InternalError", "The gateway has failed. Its log tells why.")


def refused(error: HTTPException) -> Response:
    """Return the answer to a request that is no sound one of HTTP."""
    return refusal(error.status_code, "BadRequest", error.detail)


async def on_http(request: Request, error: Exception) -> Response:
    """Answer what no route has: an unknown path, a method that a path does not have."""
    status = getattr(error, "status_code", 500)
    what = {404: f"There is nothing at {request.url.path!r:.300}. /v1/openapi.json lists what there is.",
            405: f"{request.method} is not for {request.url.path!r:.300}."}  # fmt: skip
    answer = refused(HTTPException(status, what.get(status, getattr(error, "detail", ""))))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer
