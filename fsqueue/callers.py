"""The caller's own code, run inside a verb: generators of payloads, `where=`, `poll=`, `progress=`.

Its errors are not the queue's. An OSError raised in it would otherwise be taken for one of the filesystem: retried,
swallowed, or told as "the filesystem failed". So it travels inside of a `FromCaller` to the verb, which raises it as
it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from fsqueue.errors import FsqueueError, InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")


class FromCaller(Exception):
    """Carry an exception of the caller's code past the handlers in between. Never reaches the caller itself.

    A verb that calls another verb with the caller's code wraps twice; each verb unwraps once.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error

    def count(self, inserted: int) -> None:
        """Have an error of fsqueue's own kind say how many tasks this call has inserted.

        The caller's code may have got it from another queue, whose number would be taken for this call's.
        """
        error = self.error
        if isinstance(error, FromCaller):
            error.count(inserted)
        elif isinstance(error, FsqueueError):
            error.inserted = inserted


_MISTAKEN = (OSError, FsqueueError, FromCaller)
"""The errors that the handlers inside a verb would take for the queue's own."""
_OURS = (list, tuple, range, dict, set, frozenset, str)
"""Types whose iteration runs no code of the caller."""


def items_of(given: Iterable[T]) -> Iterable[T]:
    """Iterate over what the caller has given; an error of its own code comes as FromCaller."""
    return given if type(given) in _OURS else _carried(given)


def _carried(given: Iterable[T]) -> Iterator[T]:
    try:
        for item in given:  # noqa: UP028 - `yield from` would close the caller's generator, which it may go on with
            yield item
    except _MISTAKEN as error:
        raise FromCaller(error) from None


def calling(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function`, whose errors come as FromCaller; InvalidArgument if it is none."""
    if not callable(function):
        raise InvalidArgument(f"A function is expected here (where=, poll=, progress=), not {function!r}.")

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except _MISTAKEN as error:
            raise FromCaller(error) from None

    return call
