"""Start the command line. This is loaded first, and loads the rest while Ctrl-C already ends it as it should."""

from __future__ import annotations

import os
import signal
import sys

closed: set[str] = set()
"""The standard streams that the caller had closed."""
_is_ours = False
"""Whether this process is the command line, so that its signals are ours to handle. False in tests."""


def main() -> None:
    """Be the console script."""
    global _is_ours
    _is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else nohup or a shell has it ignored
    leave_at_once()
    try:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # closed by the caller: a file of the queue must not get its number
                setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
                closed.add(name)
        from . import silence
        from .main import cli

        silence.watch()
        cli.main(prog_name="fsqueue")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        leave_at_once()


def leave_at_once() -> None:
    """Have SIGINT end the process, without a word: for the moments in which nothing has begun or all is done.

    An exception would not do: an import that it interrupts may print it and go on.
    """
    if _is_ours:
        signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again: a command begins, which may have to tidy up."""
    if _is_ours and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(130)
