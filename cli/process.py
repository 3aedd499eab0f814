"""This process as the command line: its signals, the streams that its caller had closed, and a watch on its threads.

The watch says when the file server does not answer, and lets Ctrl-C end the command even then. Only the answer or a
fatal signal wakes a process that waits for a file server (NFS mounted "hard", a FUSE daemon). Python handles SIGINT, so
SIGINT is not fatal. The handler never runs, since its thread does not wake.

Nothing of the package is imported here: Ctrl-C ends the command while the rest is loading.
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

closed: set[str] = set()
"""The standard streams that the caller had closed."""
is_own = False
"""Whether this process is the command line, and nothing else. False in tests."""
_are_signals_ours = False
"""Whether this process is the command line, so that its signals are ours to handle. False in tests."""
_asked_paths: dict[int, str] = {}
"""By thread: the path whose file server it asks."""
_left: set[int] = set()
"""Threads that nothing waits for any more: their file servers are silent, and named already."""

TICK_S = 1.0
"""Time between two looks. They cost a healthy command some microseconds a second, and a short one nothing."""
SILENT_TICKS = 5
"""Number of looks in a row that find a thread waiting before it counts as waiting for the file server."""
IDLE_NS = 2_000_000
"""A thread that used more processor time meanwhile does get answers, if slowly: a loop of syncs on a busy disk."""
WAITING = ("D", "I")
"""States in which a thread takes no signal (proc_pid_stat(5)): uninterruptible, and the same without load (Lustre)."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SILENT = f"the file server (or a disk) does not answer, for {SILENT_TICKS * TICK_S:g} s now; still waiting"
"""What is said, behind the paths that the threads ask for, as far as that is known."""
ANSWERS = "the file server answers again"
ENDED = (
    "interrupted while the file server did not answer. What was being done may have happened or not: look when it "
    "answers. What this command had leased comes back when its leases end."
)
SAY_S = 0.2
"""Time for the last line to be written: standard error may be a file on the server that does not answer."""


def begin() -> None:
    """Make this process the command line's: end it silently at SIGINT, and have its standard streams open.

    Turn the garbage collector off until the command is loaded: it would look through what stays anyway, time and again.
    """
    global _are_signals_ours, is_own
    is_own = True
    gc.disable()
    # Else nohup or a shell has it ignored.
    _are_signals_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    leave_at_once()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: a file of the queue must not get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
            closed.add(name)


def leave_at_once() -> None:
    """Make SIGINT end the process silently. Used before a command has begun and after it has ended.

    KeyboardInterrupt would not do: an import that it interrupts may print it and go on.
    """
    if _are_signals_ours:
        signal.signal(signal.SIGINT, _leave)


def command_begins() -> None:
    """Make SIGINT raise KeyboardInterrupt again, now that the command is loaded: it may have to tidy up.

    Turn the garbage collector on again. It leaves alone what was loaded, also when the process ends.
    """
    if is_own:
        gc.freeze()
        gc.enable()
    if _are_signals_ours and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    os._exit(130)


# -- the watch ----------------------------------------------------------------------------------------------


def watch() -> None:
    """Begin to watch this process, for as long as it lives. Call it in the main thread, before other threads start."""
    from .printing import say_at_once

    _thread.start_new_thread(_watch, (_thread.get_native_id(), say_at_once))


@contextmanager
def question_to(path: str) -> Iterator[None]:
    """Name this path if this thread waits for the file server meanwhile."""
    thread = _thread.get_native_id()
    before = _asked_paths.get(thread)
    _asked_paths[thread] = path
    try:
        yield
    finally:
        if before is None:
            _asked_paths.pop(thread, None)
        else:
            _asked_paths[thread] = before


def leave(threads: Iterable[int]) -> None:
    """Say no more of these threads: the command goes on without them."""
    _left.update(threads)


def silence(threads: Iterable[int]) -> str:
    """Return what is said of these threads, which wait for the file server."""
    paths = dict.fromkeys(path for thread in threads if (path := _asked_paths.get(thread)) is not None)
    return f"{', '.join(paths)}: {SILENT}" if paths else SILENT


def _watch(main: int, say_at_once: Callable[..., None]) -> None:
    # Block all signals here, so that the other threads get them. A signal that the main thread cannot take then stays
    # pending, and `sigpending` shows it to this thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    waits: dict[int, tuple[int, int]] = {}
    said = False
    while True:
        time.sleep(TICK_S)
        waits = look(waits)
        _left.intersection_update(waits)
        silent = [thread for thread, (ticks, _) in waits.items() if ticks >= SILENT_TICKS and thread not in _left]
        lines = []
        if bool(silent) != said:
            said = not said
            lines.append(silence(silent) if said else ANSWERS)
        number = next((one for one in ENDING if one in signal.sigpending()), None) if main in silent else None
        if number is not None:
            lines.append(ENDED)
        if lines:
            say_at_once(*lines)  # together: nobody knows which of two writes comes first
        if number is not None:
            time.sleep(SAY_S)
            os._exit(128 + number)


def look(waits: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return for each waiting thread at how many looks in a row it waited, and its processor time at the first (ns)."""
    found = {}
    for thread in _threads():
        state, ran_ns = _state(thread)
        if state in WAITING:
            ticks, before_ns = waits.get(thread, (0, ran_ns))
            found[thread] = (ticks + 1, before_ns) if ran_ns - before_ns <= IDLE_NS else (1, ran_ns)
    return found


def _threads() -> list[int]:
    """Return the threads of this process; none if there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def _state(thread: int) -> tuple[str, int]:
    """Return a thread's state and the processor time that it has used (ns); "" and 0 if it has just ended."""
    try:
        fields = _read(f"/proc/self/task/{thread}/stat").rpartition(b")")[2].split()
    except OSError:
        return "", 0
    try:
        ran_ns = int(_read(f"/proc/self/task/{thread}/schedstat").split()[0])
    except (OSError, IndexError):  # a kernel without schedstat: take the time in ticks of 10 ms
        ran_ns = (int(fields[11]) + int(fields[12])) * 10_000_000
    return fields[0].decode(), ran_ns


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
