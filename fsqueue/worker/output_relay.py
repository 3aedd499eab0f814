"""Pass on what attempts print to the worker's own standard output and error: in groups, in lines, or as it comes.

Only the output writer's thread runs this code. It may wait for a slow reader of the output; the work goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fsqueue import forks
from fsqueue.filesystem.outputs import Spool, is_same_file, is_terminal, write_all
from fsqueue.worker.background import end_in_child

Output = Literal["group", "line", "ungrouped"]
"""group: what an attempt prints is shown together when it ends; line: line by line; none: as it comes."""
OUTPUTS = ("group", "line", "ungrouped")
PassOn = Callable[[int, bytes], object]
"""Called with 1 or 2 (standard output or error) and the bytes to write there."""

LINE_BYTES_MAX = 1 << 16
"""A longer line is shown before its end has come."""
GROUP_BYTES = 1 << 16
"""Number of bytes of a group held in memory; the rest goes into a file."""


class Exits:
    """Write to the worker's standard output and error. Output of different channels never shares a line."""

    def __init__(self, pass_on: PassOn | None) -> None:
        self._pass_on = pass_on or write_all
        self._is_one = is_same_file(1, 2)
        self._is_terminal = {1: is_terminal(1), 2: is_terminal(2)}
        self._unfinished: dict[int, Channel] = {}
        """By descriptor: the channel whose last line has no end yet."""
        self.is_writing = False
        """Whether a write is under way. Read by other threads."""

    def put(self, channel: Channel, data: bytes) -> None:
        """Write a channel's data. Begin a new line if another channel's last line has no end."""
        where = 1 if self._is_one else channel.ours
        before = self._unfinished.get(where)
        if before is not None and before is not channel:
            data = b"\n" + data
        self._unfinished.pop(where, None)
        if not data.endswith(b"\n"):
            self._unfinished[where] = channel
        self.write(channel.ours, data)

    def end(self, channel: Channel) -> None:
        """End the last line of a channel, on a terminal only: the user's typing, or the bar, begins on a new line.

        Add nothing to a file: a command's output may be binary.
        """
        if self._is_terminal[channel.ours] and channel in self._unfinished.values():
            self.put(channel, b"\n")

    def write(self, ours: int, data: bytes) -> None:
        """Write data as it is."""
        depth, self.is_writing = forks.depth, True
        try:
            self._pass_on(ours, data)
        finally:
            self.is_writing = False
            end_in_child(depth)


class Channel:
    """Carry what attempts print on one of their two outputs to ours. One attempt prints at a time."""

    def __init__(self, exits: Exits, ours: int, output: Output, has_tags: bool) -> None:
        self._exits, self.ours, self._output, self._has_tags = exits, ours, output, has_tags
        self._group: Spool | None = None
        self._partial = b""
        """The beginning of a line, held back until its end comes."""
        self._tag = b""
        self._is_within_line = False

    def begin(self, name: str) -> None:
        """Begin an attempt at the task of this name: what follows is its output."""
        self._tag = f"{name}\t".encode() if self._has_tags else b""
        if self._output == "group":
            self._group = Spool(GROUP_BYTES)

    def take(self, chunk: bytes) -> None:
        """Pass on what was printed, or hold it back."""
        if self._output == "ungrouped":
            self._exits.write(self.ours, chunk)
        elif self._group is not None:
            try:
                self._group.append(chunk)
            except OSError:  # the disk is full: show what was held back, and what follows line by line
                self.end()
        else:
            data = self._partial + chunk
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) > LINE_BYTES_MAX:
                cut = len(data)
            self._partial = data[cut:]
            self._show(data[:cut])

    def end(self) -> None:
        """Show what was held back. Later output, of processes that outlive the attempt, is shown line by line."""
        group, self._group = self._group, None
        if group is not None:
            try:
                for piece in group.pieces():
                    self._show(piece)
            finally:
                group.close()
        partial, self._partial = self._partial, b""
        self._show(partial)
        self._exits.end(self)
        self._is_within_line = False

    def _show(self, data: bytes) -> None:
        if not data:
            return
        if self._tag:
            tagged = data[:-1].replace(b"\n", b"\n" + self._tag) + data[-1:]
            data, self._is_within_line = tagged if self._is_within_line else self._tag + tagged, data[-1:] != b"\n"
        self._exits.put(self, data)
