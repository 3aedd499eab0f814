"""What executors of commands have in common, whether a command gets one task or many: `Commands` and `Batches`."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fsqueue import errors
from fsqueue.filesystem import idle_files
from fsqueue.filesystem.outputs import open_nothing, write_all
from fsqueue.groups.queue import GroupQueue
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.worker import placeholders, scripts, shortages
from fsqueue.worker.causes import Memory
from fsqueue.worker.jobs import How
from fsqueue.worker.limits import KILLED_S
from fsqueue.worker.loop import Loop
from fsqueue.worker.output import Leftovers, Stream
from fsqueue.worker.sources import is_remote
from fsqueue.worker.spawning import NOT_EXECUTABLE, NOT_FOUND, Process, ProcessExecutor, describe, not_executed

T = TypeVar("T")

EX_DATAERR, EX_TEMPFAIL = 65, 75
"""The exit codes of sysexits.h that mean something on request."""
NO_COMMAND = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.ENAMETOOLONG)
"""With these, the kernel says that a program cannot be executed."""
FAULTS_MAX = 100
"""Maximum number of diagnoses of commands that did not find a program: each reads files in the loop."""


class CommandAtWork:
    """A command that was started: its process, and the streams of its standard output and error.

    `ended` is called in the loop when it has exited.
    """

    def __init__(
        self,
        commands: CommandExecutor,
        argv: Sequence[bytes],
        environment: Mapping[bytes, bytes],
        stdin: bytes | None,
        task: LeasedTask,
        ended: Callable[[], object],
    ) -> None:
        self.slot, how = commands.free[-1], commands.how
        slots = {key.encode(): value.encode() for key, value in how.of_slots[self.slot].items()}
        self.streams: list[Stream] = []
        source = commands.nothing() if stdin is None else file_of(stdin)
        try:
            for ours in (1, 2):
                self.streams.append(Stream(commands.mailbox, commands.output_writer, ours, how.output, how.has_tags))
            ends = [stream.write_end for stream in self.streams]
            self.process = Process(commands.supervisors, argv, {**environment, **slots}, [source, *ends], ended)
        except BaseException:
            for stream in self.streams:
                stream.close()
            raise
        finally:
            if stdin is not None:
                os.close(source)
        for stream in self.streams:
            stream.started()
        commands.begin_attempt(self.streams, task)


class CommandExecutor(ProcessExecutor):
    """Runs commands, as many at a time as there are slots. A slot is free again when its command has exited."""

    def __init__(self, how: How, loop: Loop) -> None:
        super().__init__(how, loop)
        self.free = list(reversed(range(how.slots)))
        """The slots in which no command is at work; the last is taken next."""
        self._argv = how.command
        self._is_fixed = not any(placeholders.in_argument(how.command[0]))  # else each payload names its own program
        self._faults_told = 0
        self._nothing = -1
        self._left = Leftovers(self.output_writer)

    def start(self) -> None:
        """Do what any executor by processes does. InvalidArgument if the command line was quoted as a whole."""
        scripts.check_program(self._argv)
        super().start()

    def nothing(self) -> int:
        """Return a descriptor of `/dev/null`, the standard input of commands. OSError."""
        if self._nothing < 0:
            self._nothing = open_nothing()
        return self._nothing

    def having_descriptors(self, action: Callable[[], T]) -> T:
        """Call `action`. As long as it fails for want of descriptors, close what ended commands have left open."""
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in errors.NO_DESCRIPTORS or not self._left.give_up():
                    raise

    def fall_short(self, error: OSError) -> None:
        """Wait after a call that the system has refused for want of something; end if nothing will give it back."""
        what = f"The command {self._argv[0]!r} could not be begun"
        idle_files.make_room(error)  # for the next try
        if self.shortage.met():
            self.output_writer.say(shortages.words(error, what, "Its task waits, or is put back. Trying again."))
        elif not self.at_work() and self.shortage.is_hopeless(error):
            self.loop.refused(shortages.explain(error, what, "beginning a command"))

    def how_it_ended(self, process: Process, *tails: bytes) -> tuple[str, Memory]:
        """Return how a command has ended, with what else is to blame, and whether for want of memory."""
        status = process.status
        said = b"\n".join(tails).decode(errors="replace")
        fault = ""
        if self._is_fixed and self._faults_told < FAULTS_MAX and status in (NOT_FOUND, NOT_EXECUTABLE):
            self._faults_told += 1
            fault = not_executed(self._argv[0], said)
        return (f"{describe(process)}{fault}", Memory.ENOUGH) if fault else self.described(process, said)

    def let_go(self, command: CommandAtWork) -> None:
        """Make the slot of a command free that has exited."""
        self.free.append(command.slot)
        for stream in command.streams:
            stream.ended()
        self._left.add(command.streams)

    def end_all(self, commands: Sequence[CommandAtWork]) -> None:
        """Send SIGKILL to commands, and wait for their ends."""
        for command in commands:
            command.process.kill(signal.SIGKILL)
        deadline = self.now() + KILLED_S
        for command in commands:
            command.process.reap(deadline)
            self.let_go(command)
        self.supervisors.close()
        self._left.close()
        if self._nothing >= 0:
            os.close(self._nothing)


def file_of(data: bytes) -> int:
    """Return a descriptor of a file in memory, at its beginning: unlike a pipe it is never full and never breaks."""
    fd = os.memfd_create("payload")
    try:
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def path_for_commands(queue: Verbs) -> str:
    """Return a queue's path as commands of fsqueue take it: of a queue of a group, with the name as it is."""
    if isinstance(queue, GroupQueue):
        return queue.typed_path
    return queue.url if is_remote(queue) else os.path.abspath(queue.path)
