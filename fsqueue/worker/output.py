"""The output of commands and functions: passed on (`output_relay`), its tail remembered, all kept where asked for.

A process that an ended command has left behind may still print (`Leftovers`).

Our own standard output and error may be stuck (a full pipe, a stopped terminal, a file on a server that is away), and
so may the directory of kept output. So a thread of its own writes, and as long as too much lies before it the loop
reads nothing more. Only the commands and functions that print have to wait.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from fsqueue.clock import Clock
from fsqueue.errors import FULL
from fsqueue.filesystem.outputs import KeptFile
from fsqueue.leased_task import LeasedTask
from fsqueue.worker.background import BackgroundThread, Died
from fsqueue.worker.events import Mailbox
from fsqueue.worker.marks import Marks
from fsqueue.worker.output_relay import Channel, Exits, Output, PassOn

TAIL_BYTES = 4096
"""Number of bytes of what was printed that are kept as the reason of a failure."""
CHUNK_BYTES = 1 << 16
BACKLOG_BYTES_MAX = 1 << 20
"""Number of bytes waiting to be written from which on nothing more is read."""
DRAIN_READS_MAX = 32
"""Maximum number of reads of a pipe to get what was printed so far: a command that prints without end must not block
the loop."""
CLOSE_S = 2.0
"""Maximum wait at the end for what is still to be written."""
CLOSE_LOOK_S = 0.1
"""Time between two looks meanwhile whether the worker was told to hurry."""

OPEN_MAX = 1024
"""Maximum number of pipes to keep open for such processes, ..."""
SHARE = 4
"""... and no more than this part of the descriptors that the worker may have: logs and other commands need the rest."""
NOTE = b"\n[fsqueue: too many processes that commands left behind held their outputs open; this one ends here]\n"
"""What is appended to the kept output that ends."""


class OutputWriter(BackgroundThread):
    """Writes in the order in which it is told to. What cannot be written is dropped: no task must suffer for it."""

    def __init__(self, died: Died, trouble: Callable[[str], object], pass_on: PassOn | None = None) -> None:
        super().__init__("output", died)
        self.exits = Exits(pass_on)
        self._jobs: SimpleQueue[tuple[Callable[[], object], int, KeptFile | None] | None] = SimpleQueue()
        self._backlog = 0
        self._mutex = threading.Lock()
        self._resumed: list[Callable[[], object]] = []
        self._trouble = trouble
        """Called in this thread, with a sentence: once for each kind of error that loses output."""
        self._said: set[int | None] = set()
        self._not_passed_on: set[int | None] = set()
        """Which errors kept output from being passed on."""
        self.unkept = 0
        """The number of attempts whose output was not kept, or not all of it. Final after `close`."""
        self._unwritten: Counter[KeptFile] = Counter()
        """Number of writes still to come, by file."""

    def do(self, action: Callable[[], object], size: int = 0, kept: KeptFile | None = None) -> None:
        """Call `action` in the thread. It writes so many bytes, into `kept` or elsewhere."""
        with self._mutex:
            self._backlog += size
            if kept is not None:
                self._unwritten[kept] += 1
        self._jobs.put((action, size, kept))

    def keep(self, file: KeptFile, data: bytes) -> None:
        """Append to a file."""
        self.do(lambda: self._keep(file, data), len(data), file)

    def say(self, text: str) -> None:
        """Tell the worker's user a sentence about outputs, in the thread."""
        self.do(lambda: self._trouble(text))

    def cut(self, file: KeptFile, note: bytes) -> None:
        """Append a note that nothing more follows, although there might have been more."""

        def end() -> None:
            self._keep(file, note)
            self._miss(file)

        self.do(end, len(note), file)

    def _keep(self, file: KeptFile, data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            self._miss(file)
            if error.errno not in self._said:
                self._said.add(error.errno)
                self._trouble(f"the output of {file.name} is not kept, or not all of it: {error}. The end counts such.")

    def _not_written(self, error: OSError) -> None:
        """Say, once for each kind of error, that output is not passed on. A reader that went away wants no more."""
        if error.errno != errno.EPIPE and error.errno not in self._not_passed_on:
            self._not_passed_on.add(error.errno)
            self._trouble(
                f"what is printed could not be written to standard output or standard error, and is lost: {error}. "
                "The tasks go on, and count."
            )

    @property
    def is_full_disk(self) -> bool:
        """Tell whether output was lost for want of room behind standard output or error. Final after `close`."""
        return any(number in FULL for number in self._not_passed_on)

    def _miss(self, file: KeptFile) -> None:
        """Count an attempt of which something is not kept."""
        if not file.is_incomplete:
            file.is_incomplete = True
            self.unkept += 1

    def is_full(self, resume: Callable[[], object]) -> bool:
        """Return whether nothing more should come; then `resume` is called, in this thread, when that is over."""
        with self._mutex:
            full = self._backlog > BACKLOG_BYTES_MAX
            if full:
                self._resumed.append(resume)
        return full

    def close(self, is_hurried: Callable[[], bool] = lambda: True) -> None:
        """End after what was told so far, or without it when it takes longer than CLOSE_S seconds.

        For our own standard output and error, which may be a pipe to a pager, wait until `is_hurried` says so.
        """
        self._jobs.put(None)
        if self.ident is None:
            return  # it was never started
        now = Clock().monotonic
        deadline = now() + CLOSE_S
        while self.is_alive() and now() < deadline:
            self.join(CLOSE_LOOK_S)
            if self.exits.is_writing and not is_hurried():
                deadline = now() + CLOSE_S
        with self._mutex:
            for file in self._unwritten:
                self._miss(file)

    def work(self) -> None:
        while (job := self._jobs.get()) is not None:
            action, size, kept = job
            try:
                action()
            except OSError as error:
                self._not_written(error)
            with self._mutex:
                self._backlog -= size
                if kept is not None:
                    self._unwritten[kept] -= 1
                    if not self._unwritten[kept]:
                        del self._unwritten[kept]
                waiting = self._resumed if self._backlog <= BACKLOG_BYTES_MAX // 2 else []
                if waiting:
                    self._resumed = []
            for resume in waiting:
                resume()


class Stream:
    """A pipe that a task prints into. The loop reads it; it ends with the end of the pipe or by `close`."""

    def __init__(
        self,
        mailbox: Mailbox,
        output_writer: OutputWriter,
        ours: int,
        output: Output,
        has_tags: bool,
        marks: Marks | None = None,
    ) -> None:
        self.marks = marks
        """What tells where the output of each task ends; None: all of it is one task's."""
        self._mailbox, self._output_writer, self._ours = mailbox, output_writer, ours
        self._channel = Channel(output_writer.exits, ours, output, has_tags)
        self._is_told_apart = output == "group" or has_tags
        self._begins: str | None = None
        """The attempt that has begun, and has printed nothing yet: the writer is told with the first piece."""
        self._has_passed = self._is_over = False
        """Whether anything was passed on since an attempt began or ended; whether it has ended."""
        self.tail = b""
        self.head = bytearray()
        """The beginning, up to `head_bytes_max` bytes."""
        self.head_bytes_max = 0
        self.is_shown = True
        """Whether what is printed is passed on."""
        self.heard: Callable[[bytes], object] | None = None
        """Called in the loop with each piece that was read."""
        self.kept: KeptFile | None = None
        """The file that everything is appended to, too. Set by `keep_in`."""
        self._fd, self.write_end = os.pipe()
        self._watched = False
        try:
            os.set_blocking(self._fd, False)
            mailbox.watch(self._fd, self.read)
        except OSError:
            self.close()
            raise
        self._watched = True

    def started(self) -> None:
        """Close our end: the process that prints has its own now."""
        fd, self.write_end = self.write_end, -1
        os.close(fd)

    def read(self) -> None:
        """Read the output that the pipe holds now, at most one piece."""
        if self._fd < 0:
            return
        if self._output_writer.is_full(lambda: self._mailbox.post(self._resume)):
            self._pause()
            return
        self._read()

    def _read(self) -> bool:
        """Read a piece. Return whether there was one."""
        if self.marks is not None:
            self.marks.begin_read()
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        is_end, tail = not chunk, self.tail + chunk
        if self.marks is not None:
            chunk, tail = self.marks.take(chunk, self.tail, is_cut=len(chunk) == CHUNK_BYTES)
        self.tail = tail[-TAIL_BYTES:]
        if chunk:
            self._pass_on(chunk)
        if is_end:
            self.close()
        return not is_end

    def _pass_on(self, chunk: bytes) -> None:
        """Show and keep what was printed."""
        if len(self.head) < self.head_bytes_max:
            self.head += chunk[: self.head_bytes_max - len(self.head)]
        if self.heard is not None:
            self.heard(chunk)
        if self.kept is not None:
            self._output_writer.keep(self.kept, chunk)
        is_open = (sys.__stdout__, sys.__stderr__)[self._ours - 1] is not None  # None: closed when this process began
        if self.is_shown and is_open:
            self._has_passed = True
            channel = self._channel
            if (name := self._begins) is not None:
                self._begins = None
                self._output_writer.do(lambda: channel.begin(name))
            self._output_writer.do(lambda: channel.take(chunk), len(chunk))

    def drain(self) -> None:
        """Read all that was printed so far, unless the output writer is full."""
        for _ in range(DRAIN_READS_MAX):
            before = self.tail
            if self._watched and self._fd >= 0:
                self.read()
            if self.tail is before:
                return

    def drain_to_end(self) -> None:
        """Read all that an exited process has printed, also if the output writer is full: nothing reads it later.

        That is no more than a pipe holds, unless another process prints on: then, as far as `head` goes.
        """
        reads = 0
        while self._fd >= 0 and self._read():
            reads += 1
            if reads >= DRAIN_READS_MAX and len(self.head) >= self.head_bytes_max:
                return

    def take_head(self) -> bytes:
        """Return what was asked for of what an exited process has printed, none of it missing. Collect no more."""
        if self.head_bytes_max:
            self.drain_to_end()
        head, self.head, self.head_bytes_max = bytes(self.head), bytearray(), 0
        return head

    def tail_of(self, number: int) -> bytes:
        """Return the end of what was printed by the task that was given with this number."""
        return self.tail if self.marks is None else self.marks.tail_of(number, self.tail)[-TAIL_BYTES:]

    @property
    def is_open(self) -> bool:
        """Return whether a process may still print."""
        return self._fd >= 0

    def fresh(self, task: LeasedTask) -> None:
        """Forget what was printed: what follows belongs to this task. Where there are marks, these tell."""
        self.head = bytearray()
        if self.marks is None:
            self.tail = b""
        self._is_over = False
        if self._is_told_apart:
            self._begins = task.id

    def ended(self) -> None:
        """Show what was printed so far: the attempt has ended."""
        self._is_over = True
        if self._has_passed:
            self._has_passed = False
            self._output_writer.do(self._channel.end)

    def keep_in(self, file: KeptFile | None) -> None:
        """Append what is read from now on to this file, too. The last stream that leaves a file closes it."""
        before, self.kept = self.kept, file
        if file is not None:
            file.writers += 1
        if before is not None:
            before.writers -= 1
            if not before.writers:
                self._output_writer.do(before.close)

    def close(self) -> None:
        """Read no more."""
        if self._is_over and self._has_passed:
            self.ended()  # what a process that was left behind has printed
        self.keep_in(None)
        if self._fd >= 0:
            self._pause()
            fd, self._fd = self._fd, -1
            os.close(fd)
        if self.write_end >= 0:
            self.started()

    def _pause(self) -> None:
        if self._watched:
            self._mailbox.forget(self._fd)
            self._watched = False

    def _resume(self) -> None:
        if self._fd >= 0 and not self._watched:
            self._mailbox.watch(self._fd, self.read)
            self._watched = True


def open_max() -> int:
    """Return how many pipes may be kept open beside everything else."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OPEN_MAX if limit == resource.RLIM_INFINITY else min(OPEN_MAX, max(2, limit // SHARE))


class Leftovers:
    """Keep the pipes of ended commands open, but fewer than would use up the worker's descriptors.

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


def reason(headline: str, *tails: bytes) -> str:
    """Return why something failed: the headline with the last line of the first tail that has any, then the tails."""
    texts = [text for tail in tails if (text := tail.decode(errors="replace").strip())]
    if not texts:
        return headline
    return f"{headline}: {texts[0].rpartition(chr(10))[2].strip()[:200]}\n" + "\n".join(texts)
