"""The worker's side of supervisors: the fork server, and one supervisor for each process that is at work.

What they do, and why, is in `supervisor` and in docs/decisions/0039-supervisors.md. All of this is the loop's. It waits
for an answer only while a supervisor is forked and while a program is loaded.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fsqueue import forks
from fsqueue.clock import Clock
from fsqueue.errors import InvalidArgument
from fsqueue.worker import shortages, supervisor
from fsqueue.worker.events import Mailbox

CLOSE_S = 1.0
"""How long the end waits for the fork server, which has nothing left to do by then."""
LOOK_S = 0.002
"""How often it is looked whether it has ended."""
TRIES = 3
"""Maximum number of attempts to get a supervisor, if each fork server is killed at once."""
NOT_ENDED = (
    "Processes that a task had started could not be ended: they belong to another user, or the kernel holds them. They "
    "may still be at work when the task is executed again."
)


class NoForkServer(InvalidArgument):
    """Raised if the fork server cannot be executed: no process can be started then."""


class Supervised(Protocol):
    """A process that a supervisor has started."""

    def exited(self, flags: int, status: int, usage: resource.struct_rusage) -> None:
        """Take in how it has ended."""

    def lost(self) -> None:
        """Take in that its supervisor was killed, and that all it had started was ended."""


class Handle:
    """A supervisor: `pid` its number, `process` what it is at, if it is at anything."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        self.process: Supervised | None = None

    def ask(self, kind: bytes, number: int = 0) -> None:
        """Send a short message. If the supervisor is gone, that is heard of."""
        try:
            supervisor.send(self.end, kind, supervisor.NUMBER.pack(number))
        except OSError:
            pass


class Supervisors:
    """The supervisors of a worker. They are made as processes are started, and used again.

    `say` is called with a sentence when something could not be ended, the first time. `foreign`: descriptors that
    what is started is not to inherit, although they are inheritable.
    """

    def __init__(self, mailbox: Mailbox, say: Callable[[str], object]) -> None:
        self._mailbox, self._clock, self._say = mailbox, Clock(), say
        self.foreign: Sequence[int] = ()
        self._server: socket.socket | None = None
        self._server_pid = 0
        self._environment: dict[bytes, bytes] = {}
        """The fork server's, and so the supervisors'."""
        self._has_said = False
        self._idle: list[Handle] = []
        self._all: set[Handle] = set()
        self._awaited: dict[int, Supervised] = {}
        """By the numbers of supervisors that were killed: what they were at, until the fork server has ended that."""
        forks.register(self, Supervisors.after_fork)

    def after_fork(self) -> None:
        """Close what is the parent's: its end would not be noticed as long as a child had it open, too."""
        for handle in self._all:
            handle.end.close()
        if self._server is not None:
            self._server.close()

    # -- to start a process

    def begin(
        self, process: Supervised, argv: Sequence[str | bytes], environment: Mapping[bytes, bytes], files: Sequence[int]
    ) -> tuple[Handle, int]:
        """Start a process with `files` as its first descriptors. Return its supervisor, and its number.

        OSError if it cannot be started; ValueError if an argument holds a NUL. NoForkServer if there can be no
        fork server.
        """
        words = [os.fsencode(word) for word in argv]
        if any(b"\0" in word for word in (*words, *environment.values())):
            raise ValueError("embedded null byte")
        while True:
            handle = self._take()  # first: the fork server's environment is what is compared with
            without = [name for name in self._environment if name not in environment]
            changed = {name: value for name, value in environment.items() if self._environment.get(name) != value}
            try:
                supervisor.send(
                    handle.end, supervisor.START, supervisor.encode_command(words, changed, without), tuple(files)
                )
                kind, body, _ = supervisor.receive(handle.end)
            except ConnectionError:
                self.drop(handle)
                continue  # it was killed while it had nothing to do
            except BaseException:
                self.drop(handle)
                raise
            if kind == supervisor.STARTED:
                handle.process = process
                return handle, supervisor.NUMBER.unpack(body)[0]
            if kind == supervisor.REFUSED:
                self.give_back(handle)
                code = supervisor.NUMBER.unpack(body)[0]
                raise OSError(code, os.strerror(code), argv[0])
            self.drop(handle)  # killed just now; the fork server ends what it may have started
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _take(self) -> Handle:
        """Return a supervisor that has nothing to do."""
        if self._idle:
            return self._idle.pop()
        for _ in range(TRIES):
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    supervisor.send(self._running_server(), supervisor.FORK, fds=(theirs.fileno(),))
                kind, body, _ = supervisor.receive(ours)
                if kind == supervisor.HELLO:
                    handle = Handle(ours, supervisor.NUMBER.unpack(body)[0])
                    self._mailbox.watch(ours.fileno(), lambda handle=handle: self._heard(handle))  # type: ignore[misc]
                    self._all.add(handle)
                    return handle
                ours.close()
                if kind == supervisor.REFUSED:
                    code = supervisor.NUMBER.unpack(body)[0]
                    raise OSError(code, os.strerror(code))
            except ConnectionError:
                ours.close()
            except BaseException:
                ours.close()
                raise
            self._check_server()  # it was killed: another one is started
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _running_server(self) -> socket.socket:
        if self._server is None:
            server = self._start_server()
            try:
                self._mailbox.watch(server.fileno(), self._heard_server)
            except BaseException:
                server.close()
                raise
            self._server = server
        return self._server

    def _start_server(self) -> socket.socket:
        pairs = [socket.socketpair()]
        try:
            while pairs[-1][1].fileno() < 3:  # this process has a standard stream closed
                pairs.append(socket.socketpair())
            ours, theirs = pairs.pop()
        finally:
            for pair in pairs:
                for end in pair:
                    end.close()
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)
        ]
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for fd in self.foreign:
            if fd >= most:  # posix_spawn would fail; from now on only this process has it
                os.set_inheritable(fd, False)
            else:
                actions.append((os.POSIX_SPAWN_CLOSE, fd))
        program = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(theirs.fileno())]
        self._environment = dict(os.environb)
        try:
            with theirs:
                theirs.set_inheritable(True)  # only the loop starts processes: no other gets it
                self._server_pid = os.posix_spawnp(
                    program[0], program, self._environment, file_actions=actions, setsid=True,
                    setsigdef=supervisor.DEFAULT,
                )  # fmt: skip
        except BaseException as error:
            ours.close()
            if not isinstance(error, OSError) or shortages.is_short(error):
                raise
            raise NoForkServer(
                f"Commands and functions are started by a process of Python's own, and {sys.executable!r} cannot be "
                f"executed: {error.strerror}."
            ) from error
        return ours

    def _check_server(self) -> None:
        """Have another fork server started the next time, if this one has ended. NoForkServer if it cannot run."""
        try:
            number, status = os.waitpid(self._server_pid, os.WNOHANG)
        except ChildProcessError:
            number, status = self._server_pid, 0
        if number:
            self._server_ended()
            code = os.waitstatus_to_exitcode(status)
            if code > 0:
                raise NoForkServer(
                    f"The process that starts commands and functions has failed with exit status {code}: "
                    f"{sys.executable} -I -S {supervisor.__file__}"
                )

    # -- what it is told

    def _heard(self, handle: Handle) -> None:
        kind, body, _ = supervisor.receive(handle.end)
        process = handle.process
        if kind == supervisor.EXITED and process is not None:
            handle.process = None
            flags, status, *usage = supervisor.EXIT.unpack(body)
            if flags & supervisor.LEFT and (status or flags & supervisor.TOLD):
                self._not_ended()
            process.exited(flags, status, resource.struct_rusage(usage))
            return
        self.drop(handle)
        handle.process = None
        if process is None:
            return
        if self._server is None:
            process.lost()
        else:
            self._awaited[handle.pid] = process

    def _heard_server(self) -> None:
        assert self._server is not None
        kind, body, _ = supervisor.receive(self._server)
        if kind == supervisor.LOST:
            number, left = supervisor.NUMBERS.unpack(body)
            process = self._awaited.pop(number, None)
            if left:
                self._not_ended()
            if process is not None:
                process.lost()
            return
        try:
            os.waitpid(self._server_pid, 0)
        except ChildProcessError:
            pass
        self._server_ended()

    def _server_ended(self) -> None:
        """Forget a fork server that was killed. Its supervisors go on; nobody ends what one that is killed leaves."""
        if self._server is not None:
            self._mailbox.forget(self._server.fileno())
            self._server.close()
            self._server = None
        for number in list(self._awaited):
            self._awaited.pop(number).lost()

    def _not_ended(self) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(NOT_ENDED)

    def wait(self, handle: Handle, seconds: float) -> None:
        """Wait for news of one supervisor, and hear them. For the end, when the mailbox is not waited at."""
        poll = select.poll()
        if handle in self._all:
            poll.register(handle.end, select.POLLIN)
        if self._server is not None:
            poll.register(self._server, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, seconds) * 1000):
            if self._server is not None and fd == self._server.fileno():
                self._heard_server()
            else:
                self._heard(handle)

    # -- the end of a process

    def is_open(self, handle: Handle) -> bool:
        """Return whether the supervisor is there, as far as was heard."""
        return handle in self._all

    def give_back(self, handle: Handle) -> None:
        """Have a supervisor used again that has nothing to do."""
        if handle in self._all:
            self._idle.append(handle)

    def retire(self, handle: Handle) -> None:
        """End a supervisor whose command has succeeded, and leave what that has left to itself.

        When this returns, neither the death of the worker nor anything else ends that.
        """
        if self._server is not None:
            try:
                supervisor.send(self._server, supervisor.RETIRE, supervisor.NUMBER.pack(handle.pid))
                gone = select.poll()
                gone.register(handle.end, select.POLLIN)
                gone.poll(supervisor.KILLED_S * 1000)
            except OSError:
                pass  # without its fork server it ends by itself
        self.drop(handle)

    def drop(self, handle: Handle) -> None:
        """Let a supervisor go. If it is at anything, it ends that, however long that takes."""
        if handle in self._all:
            self._all.discard(handle)
            self._mailbox.forget(handle.end.fileno())
            handle.end.close()
        if handle in self._idle:
            self._idle.remove(handle)

    def close(self) -> None:
        """End them all, and what they are at."""
        for handle in list(self._all):
            self.drop(handle)
        server, self._server = self._server, None
        if server is None:
            return
        self._mailbox.forget(server.fileno())
        server.close()
        deadline = self._clock.monotonic() + CLOSE_S
        try:
            while not os.waitpid(self._server_pid, os.WNOHANG)[0] and self._clock.monotonic() < deadline:
                self._clock.sleep(LOOK_S)
        except ChildProcessError:
            pass  # something else in this process has waited for it
