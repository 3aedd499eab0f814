"""Tell an interruption from an error: what a signal handler raises ends whatever it comes in, as Ctrl-C does.

A TimeoutError, as the handler of an alarm raises it, is an OSError. Taken for one of the system's, it would be reported
as a failed filesystem, or passed over where the system's error is expected.
"""

from __future__ import annotations

import gc
from types import CellType, FrameType, TracebackType


def handler_in(error: BaseException) -> TracebackType | None:
    """Return where a signal handler begins in an exception's traceback; None if none has raised it.

    A handler got the frame that it interrupted as an argument. It may have been replaced since, or have replaced
    itself. So its arguments tell, not `signal.getsignal`. The collector tells what a frame refers to. `f_locals` would
    keep it: a generator with an open file would live on when the frame is cleared.
    """
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        interrupted, at = at.tb_frame, at.tb_next
        if _holds(at.tb_frame, interrupted):
            return at
    return None


def _holds(frame: FrameType, caller: FrameType) -> bool:
    """Return whether a frame that has ended has its caller's in a variable, beside `f_back`."""
    held = gc.get_referents(frame)
    packed = [one for each in held if type(each) in (tuple, CellType) for one in gc.get_referents(each)]
    return sum(one is caller for one in held) > 1 or any(one is caller for one in packed)


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler has raised an exception."""
    return handler_in(error) is not None


def is_interruption(error: BaseException) -> bool:
    """Return whether an exception ends whatever it comes in: a signal handler has raised it, or it is no Exception."""
    return not isinstance(error, Exception) or is_from_signal_handler(error)


def let_out(error: BaseException) -> None:
    """Raise an exception again if it is an interruption. The first step of whatever passes over errors."""
    if is_interruption(error):
        try:
            raise error
        finally:
            del error  # else it and this frame would keep each other


class suppress:
    """Pass over errors of these kinds in a `with` block, but over no interruption."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, at: object) -> bool:
        return isinstance(error, self._kinds) and not is_interruption(error)
