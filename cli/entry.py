"""Start the command line: what the console script `fsqueue` and `python -m fsqueue_cli` call.

This module is loaded first, so that Ctrl-C ends the command while the rest is loading. The commands are in `main`.
"""

from __future__ import annotations

import os
import signal
import sys

closed: set[str] = set()
"""The standard streams that the caller had closed."""
is_own_process = False
"""Whether this process is the command line, and nothing else. False in tests."""
_is_ours = False
"""Whether this process is the command line, so that its signals are ours to handle. False in tests."""


def main() -> None:
    """Run the console script."""
    global _is_ours, is_own_process
    is_own_process = True
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
    """Make SIGINT end the process silently. Used before a command has begun and after it has ended.

    KeyboardInterrupt would not do: an import that it interrupts may print it and go on.
    """
    if _is_ours:
        signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Make SIGINT raise KeyboardInterrupt again, when a command begins: the command may have to tidy up."""
    if _is_ours and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(130)
