"""Run user code inside a verb: generators of payloads, and the functions `where=`, `poll=`, `progress=`.

Errors of user code are not the queue's. A verb would take an OSError from it for one of the filesystem: retry, swallow
it, or report "the filesystem failed". So the error travels inside a `UserCodeError` up to the verb, which raises it
unchanged.

User code may fork. The child that comes back into the verb would do again what its parent does: it gets ForkedChild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from fsqueue import forks
from fsqueue.errors import ForkedChild, ForkedInCall, FsqueueError, InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")


class UserCodeError(Exception):
    """Carry an exception of user code past the handlers in between. The user never gets it.

    If a verb passes user code to another verb, the exception is wrapped twice. Each verb unwraps once.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error

    def count(self, inserted: int, new: int) -> None:
        """Set how many tasks this call has inserted, if the error is an FsqueueError: `inserted` and `new`.

        User code may have got the error from another queue. That queue's numbers would be taken for this call's.
        """
        error = self.error
        if isinstance(error, UserCodeError):
            error.count(inserted, new)
        elif isinstance(error, FsqueueError):
            error.inserted, error.new, error.is_exact, error.advice = inserted, new, True, ""

    def count_new(self, more: int) -> None:
        """Add `more` to how many tasks this call has inserted, after `count`."""
        error = self.error
        if isinstance(error, UserCodeError):
            error.count_new(more)
        elif isinstance(error, FsqueueError):
            error.new = (error.new or 0) + more


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise what user code has raised in a block, and what a child gets that was forked there, as it is."""
    try:
        yield
    except (UserCodeError, ForkedInCall) as carried:
        raise carried.error from None


_MISTAKEN = (OSError, FsqueueError, UserCodeError)
"""The errors that the handlers inside a verb would take for the queue's own."""
_OURS = (list, tuple, range, dict, set, frozenset, str)
"""Types whose iteration runs no user code."""


def reads_alike(given: Iterable[T]) -> bool:
    """Return whether each iteration over what the caller has given is known to yield all of it, and to raise nothing.

    A generator goes on where the iteration before has ended. Other types of users may, too.
    """
    return type(given) in _OURS


def user_items(given: Iterable[T]) -> Iterable[T]:
    """Iterate over what the caller has given. An error of user code is raised as UserCodeError."""
    return given if reads_alike(given) else _carried(given)


def _carried(given: Iterable[T]) -> Iterator[T]:
    process = forks.depth
    try:
        for item in given:
            if forks.depth != process:
                break
            yield item
    except Exception as error:
        if forks.depth != process:
            raise ForkedInCall(error) from None
        if isinstance(error, _MISTAKEN):
            raise UserCodeError(error) from None
        raise
    if forks.depth != process:
        raise ForkedInCall(ForkedChild("a call"))


def user_function(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` so that its errors are raised as UserCodeError. InvalidArgument if it is not callable."""
    if not callable(function):
        raise InvalidArgument(f"A function is expected here (where=, poll=, progress=), not {function!r}.")

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        process = forks.depth
        try:
            found = function(*args, **kwargs)
        except Exception as error:
            if forks.depth != process:
                raise ForkedInCall(error) from None
            if isinstance(error, _MISTAKEN):
                raise UserCodeError(error) from None
            raise
        if forks.depth != process:
            raise ForkedInCall(ForkedChild("a call"))
        return found

    return call
