"""Pipes of commands that have ended, into which a process that they left behind may still print."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Sequence

from fsqueue.worker.output import OutputWriter, Stream

OPEN_MAX = 1024
"""Maximum number of pipes to keep open for such processes, ..."""
SHARE = 4
"""... and no more than this part of the descriptors that the worker may have: logs and other commands need the rest."""
NOTE = b"\n[fsqueue: too many processes that commands left behind held their outputs open; this one ends here]\n"
"""What is appended to the kept output that ends."""


def open_max() -> int:
    """Return how many pipes may be kept open beside everything else."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_MAX if limit == resource.RLIM_INFINITY else min(OPEN_MAX, max(2, limit // SHARE))


class Leftovers:
    """Keep the pipes of ended commands open, but not so many that the worker runs out of descriptors.

    A command's pipes stay open as long as any process holds them: a daemon that each command starts would otherwise
    use up two descriptors a task. When there are too many, those of the oldest command are closed. The worker says
    so the first time. A process that goes on printing gets EPIPE, or SIGPIPE.
    """

    def __init__(self, output_writer: OutputWriter) -> None:
        self._output_writer, self._said = output_writer, False
        self._most = open_max()
        self._commands: deque[list[Stream]] = deque()
        """The open streams of each command, the oldest command first."""

    def add(self, streams: Sequence[Stream]) -> None:
        """Take over the streams of a command that has ended."""
        left = ([stream for stream in each if stream.is_open] for each in (*self._commands, streams))
        self._commands = deque(each for each in left if each)
        while sum(map(len, self._commands)) > self._most:
            self.give_up()

    def give_up(self) -> bool:
        """Close the streams of the oldest command; False if there are none."""
        if not self._commands:
            return False
        oldest = self._commands.popleft()
        for stream in oldest:
            stream.read()  # what was printed so far: a pipe holds no more than that
        if oldest[0].kept is not None:
            self._output_writer.cut(oldest[0].kept, NOTE)
        for stream in oldest:
            stream.close()
        if not self._said:
            self._said = True
            self._output_writer.say(
                "Commands have left many processes behind that hold their output open. The oldest such outputs are "
                "closed: what those processes still print is dropped, and it may end them (SIGPIPE). "
                "Redirect the output of what a command leaves behind."
            )
        return True

    def close(self) -> None:
        """Close them all: the worker reads no more."""
        for streams in self._commands:
            for stream in streams:
                stream.close()
        self._commands.clear()
