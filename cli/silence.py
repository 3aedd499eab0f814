"""A watch over a command's threads: says that the file server does not answer, and has Ctrl-C end it all the same.

A process that waits for a file server (NFS mounted "hard", a FUSE daemon) is woken by nothing but the answer or
a deadly signal. Python's handler for Ctrl-C makes that signal none, and never runs, since its thread does not wake.
"""

from __future__ import annotations

import _thread
import os
import signal
import time

from .printing import say_at_once

TICK_S = 1.0
"""How often the watch looks. It costs a healthy command some microseconds a second, and a short one nothing."""
SILENT_TICKS = 5
"""A thread that waits at so many looks in a row is said to wait for the file server."""
IDLE_NS = 2_000_000
"""A thread that computes for longer meanwhile is answered, if slowly: a loop of syncs on a busy disk."""
WAITING = ("D", "I")
"""States in which a thread takes no signal (proc_pid_stat(5)): uninterruptible, and the same without load (Lustre)."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SILENT = f"the file server (or a disk) does not answer, for {SILENT_TICKS * TICK_S:g} s now; still waiting"
ANSWERS = "the file server answers again"
ENDED = (
    "interrupted while the file server did not answer. What was being done may have happened or not: look when it "
    "answers. What this command had leased comes back when its leases end."
)
SAY_S = 0.2
"""How long the last line may take: standard error may be a file on that very server."""


def watch() -> None:
    """Begin to watch this process, for as long as it lives. To be called in its main thread, before others start."""
    _thread.start_new_thread(_watch, (_thread.get_native_id(),))


def _watch(main: int) -> None:
    # Every signal stays with the threads that it was for. One that the main thread cannot take stays pending, and is
    # told as such to a thread that blocks it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    waits: dict[int, tuple[int, int]] = {}
    said = False
    while True:
        time.sleep(TICK_S)
        waits = look(waits)
        silent = [thread for thread, (ticks, _) in waits.items() if ticks >= SILENT_TICKS]
        if bool(silent) != said:
            said = not said
            say_at_once(SILENT if said else ANSWERS)
        if main in silent:
            number = next((one for one in ENDING if one in signal.sigpending()), None)
            if number is not None:
                say_at_once(ENDED)
                time.sleep(SAY_S)
                os._exit(128 + number)


def look(waits: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return for each thread that waits at how many looks in a row it did, and its processor time at the first (ns)."""
    found = {}
    for thread in _threads():
        state, ran_ns = _state(thread)
        if state in WAITING:
            ticks, before_ns = waits.get(thread, (0, ran_ns))
            found[thread] = (ticks + 1, before_ns) if ran_ns - before_ns <= IDLE_NS else (1, ran_ns)
    return found


def _threads() -> list[int]:
    """Return the threads of this process; none where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def _state(thread: int) -> tuple[str, int]:
    """Return a thread's state, and the processor time that it has had, in nanoseconds; "" if it has just ended."""
    try:
        fields = _read(f"/proc/self/task/{thread}/stat").rpartition(b")")[2].split()
    except OSError:
        return "", 0
    try:
        ran_ns = int(_read(f"/proc/self/task/{thread}/schedstat").split()[0])
    except (OSError, IndexError):  # a kernel that does not account for it so finely
        ran_ns = (int(fields[11]) + int(fields[12])) * 10_000_000
    return fields[0].decode(), ran_ns


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)

