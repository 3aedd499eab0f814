"""The worker's side of supervisors: the fork server, and one supervisor for each process that is at work.

What they do, and why, is in `supervisor` and in docs/decisions/0039-supervisors.md. All of this is the loop's. It waits
for an answer only while a supervisor is forked and while a program is loaded.
"""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fsqueue import forks
from fsqueue.clock import Clock
from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import processes
from fsqueue.worker import shortages, supervisor
from fsqueue.worker.events import Mailbox

CLOSE_S = 1.0
"""How long the end waits for the fork server, which has nothing left to do by then."""
LOOK_S = 0.002
"""How often it is looked whether it has ended."""
TRIES = 3
"""Maximum number of attempts to get a supervisor, if each fork server is killed at once."""
REAP_S = 1.0
"""How often process 1, as a container has one, waits for those that it has adopted and that have died."""
ANSWER_S = 1.0
"""How long an answer is waited for before what may be stopped (SIGSTOP) is told to go on, again and again."""
KILL_ANSWER_S = 3 * supervisor.KILLED_S
"""How long a supervisor of which SIGKILL was asked may take to say how that went. It says so in two thirds of it."""
NOT_ENDED = (
    "Processes that a task had started could not be ended: they belong to another user, or the kernel holds them. They "
    "may still be at work when the task is executed again."
)


UNANSWERED = (
    "The process that supervises a task did not answer, although it was told to go on: it is killed, with what it has "
    "started."
)
ENDED = "and what it had started was ended"
NOT_ALL_ENDED = "and not all that it had started could be ended: some of it may be at work"
ALONE = "and so was the process above it: what it had started may still be at work"
"""What became of the processes below a supervisor that was killed."""


is_own_process = False
"""Whether this process does nothing else than to be a worker, and that in its main thread, as the command line's. Then
it is a subreaper, too: what is orphaned below it was started by its fork server, and by no other part of a program."""


def how_ended(status: int) -> str:
    """Return an exit status in words, given as `os.waitstatus_to_exitcode` gives it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


class NoForkServer(InvalidArgument):
    """Raised if the fork server cannot be executed: no process can be started then."""


class Supervised(Protocol):
    """A process that a supervisor has started."""

    def exited(self, flags: int, status: int, usage: resource.struct_rusage) -> None:
        """Take in how it has ended."""

    def held(self, is_refused: bool) -> None:
        """Take in that SIGKILL has not ended it: it was refused, or the kernel holds the process."""

    def lost(self, rest: str) -> None:
        """Take in that its supervisor was killed; `rest` says what became of all that it had started."""


class Handle:
    """A supervisor: `pid` its number, `process` what it is at, if it is at anything."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        self.process: Supervised | None = None


class Supervisors:
    """The supervisors of a worker. They are made as processes are started, and used again.

    `say` is called with a sentence when something could not be ended, the first time. `foreign`: descriptors that
    what is started is not to inherit, although they are inheritable. `is_hurried` tells whether the user waits no
    longer: then no answer is waited for.
    """

    def __init__(
        self, mailbox: Mailbox, say: Callable[[str], object], is_hurried: Callable[[], bool] = lambda: False
    ) -> None:
        self._mailbox, self._clock, self.say, self._is_hurried = mailbox, Clock(), say, is_hurried
        self.foreign: Sequence[int] = ()
        self.on_death: Callable[[], Sequence[str]] | None = None
        """Returns the command that the first fork server executes after this process's death, when nothing is left of
        what has been started. A later fork server does not know what the first one has started, and gets none."""
        self._server: socket.socket | None = None
        self._server_pid = 0
        self._environment: dict[bytes, bytes] = {}
        """The fork server's, and so the supervisors'."""
        self._has_said = self._has_retired = False
        self._adopts = False
        """Whether what the fork server and a supervisor leave that are killed both comes to this process."""
        self._idle: list[Handle] = []
        self._all: set[Handle] = set()
        self._awaited: dict[int, Supervised] = {}
        """By the numbers of supervisors that were killed: what they were at, until the fork server has ended that."""
        self._unanswered: dict[Handle, float] = {}
        """The supervisors that SIGKILL was asked of, and until when they may answer."""
        self._reap_at = self._clock.monotonic() if is_own_process and os.getpid() == 1 else math.inf
        """When to wait for what this process has adopted as the first one of a container; infinite if it is not."""
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
        fork server. The number is 0 if nothing was heard: it may have been started, and what becomes of it is heard.
        """
        words = [os.fsencode(word) for word in argv]
        if any(b"\0" in word for word in words):
            raise ValueError("embedded null byte")
        while True:
            handle = self._take()  # first: the fork server's environment is what is compared with
            without = list(self._environment.keys() - environment.keys())
            changed = dict(environment.items() - self._environment.items())
            if any(b"\0" in value for value in changed.values()):
                self.give_back(handle)
                raise ValueError("embedded null byte")
            try:
                supervisor.send(
                    handle.end, supervisor.START, supervisor.encode_command(words, changed, without), tuple(files)
                )
                kind, body = self._answer(handle.end)
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
            handle.process = process  # it was killed just now, and may have started the process before
            return handle, 0

    def _answer(self, end: socket.socket) -> tuple[bytes, bytes]:
        """Wait for an answer, and have what is stopped go on meanwhile. Kind b"": there is none, or it takes too long.

        A program may be loaded from a file server that does not answer: that takes as long as it takes.
        """
        poll = select.poll()
        poll.register(end, select.POLLIN)
        while not poll.poll(ANSWER_S * 1000):
            self._resume()
            if self._is_hurried():
                return b"", b""
        kind, body, _ = supervisor.receive(end)
        return kind, body

    def _take(self) -> Handle:
        """Return a supervisor that has nothing to do."""
        if self._idle:
            return self._idle.pop()
        for _ in range(TRIES):
            ours, theirs = socket.socketpair()
            has_ended = False
            try:
                with theirs:
                    supervisor.send(self._running_server(), supervisor.FORK, fds=(theirs.fileno(),))
                kind, body = self._answer(ours)
                if kind == supervisor.HELLO:
                    handle = Handle(ours, supervisor.NUMBER.unpack(body)[0])
                    self._mailbox.watch(ours.fileno(), lambda handle=handle: self._heard(handle))  # type: ignore[misc]
                    self._all.add(handle)
                    return handle
                ours.close()
                if kind == supervisor.REFUSED:
                    code = supervisor.NUMBER.unpack(body)[0]
                    raise OSError(code, os.strerror(code))
            except ConnectionError:  # of the fork server's socket, which is closed when that has ended
                ours.close()
                has_ended = True
            except BaseException:
                ours.close()
                raise
            why = self._failed_server(has_ended)
        raise shortages.NoSupervisor(f"{why}, {TRIES} times in a row")

    def _running_server(self) -> socket.socket:
        if self._server is None:
            server = self._start_server()
            try:
                self._mailbox.watch(server.fileno(), self._heard_server)
            except BaseException:
                server.close()
                raise
            self._server = server
            if self.on_death is not None:
                command, self.on_death = self.on_death(), None
                self._tell_on_death(command)
        return self._server

    def _start_server(self) -> socket.socket:
        if (reason := processes.no_second_python()) is not None:
            raise NoForkServer(f"Commands and functions are started by a process of Python's own. {reason}")
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
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        program = [sys.executable, "-I", "-S", supervisor.__file__]
        program += map(str, (os.getpid(), theirs.fileno(), *map(int, blocked)))
        self._environment = dict(os.environb)
        if is_own_process and os.getpid() != 1 and supervisor.own_children() == []:
            supervisor.become_subreaper()
            self._adopts = True
        try:
            with theirs:
                theirs.set_inheritable(True)  # only the loop starts processes: no other gets it
                self._server_pid = os.posix_spawnp(
                    program[0], program, self._environment, file_actions=actions, setsid=True,
                    setsigdef=supervisor.DEFAULT, setsigmask=supervisor.CAUGHT | blocked,
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

    def _failed_server(self, has_ended: bool) -> str:
        """Return what became of a fork server that has given no supervisor, in words. If it has ended, forget it.

        `has_ended`: its end is known. Else its socket tells; or it goes on, and the supervisor alone was killed.
        NoForkServer if it cannot run.
        """
        if not (has_ended or self._has_hung_up()):
            return "has not answered"
        try:
            # A look without waiting would find it alive: its socket is closed a moment before it can be waited for.
            code: int | None = os.waitstatus_to_exitcode(os.waitpid(self._server_pid, 0)[1])
        except ChildProcessError:
            code = None  # something else in this process has waited for it
        self._server_ended()
        if code is not None and code > 0:
            raise NoForkServer(
                f"The process that starts commands and functions has failed with exit status {code}: "
                f"{sys.executable} -I -S {supervisor.__file__}"
            )
        return "has ended" if code is None else f"has ended ({how_ended(code)})"

    def _has_hung_up(self) -> bool:
        """Return whether the fork server has ended. Wait for that, or for its message that a supervisor was killed."""
        poll = select.poll()
        assert self._server is not None
        poll.register(self._server, select.POLLIN)
        longest_s = 0.0 if self._is_hurried() else ANSWER_S
        return any(events & select.POLLHUP for _, events in poll.poll(longest_s * 1000))

    # -- what it is told

    def _heard(self, handle: Handle) -> None:
        kind, body, _ = supervisor.receive(handle.end)
        process = handle.process
        self._unanswered.pop(handle, None)
        if kind == supervisor.HELD and process is not None:
            process.held(bool(supervisor.NUMBER.unpack(body)[0]))
            return
        if kind == supervisor.STARTED:
            return  # later than it was waited for
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
            process.lost(self._end_orphans())
        else:
            self._awaited[handle.pid] = process
            self._resume()

    def _heard_server(self) -> None:
        assert self._server is not None
        kind, body, _ = supervisor.receive(self._server)
        if kind == supervisor.LOST:
            number, left = supervisor.NUMBERS.unpack(body)
            for handle in [handle for handle in self._all if handle.pid == number]:
                self._heard(handle)  # what it had said before, or the end of that
            process = self._awaited.pop(number, None)
            if left:
                self._not_ended()
            if process is not None:
                process.lost(NOT_ALL_ENDED if left else ENDED)
            return
        if kind == supervisor.RETIRED:
            self._has_retired = True
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
            self._awaited.pop(number).lost(self._end_orphans())

    def _end_orphans(self) -> str:
        """End what a supervisor has left that was killed, as its fork server was. Return what became of it."""
        if not self._adopts:
            return ALONE
        spared = self._own_numbers()
        deadline = self._clock.monotonic() + supervisor.KILLED_S
        while found := supervisor.orphans(spared):
            for number in found:
                supervisor.kill(number)
            if self._clock.monotonic() > deadline:
                self._not_ended()
                return NOT_ALL_ENDED
            self._clock.sleep(LOOK_S)
        return ENDED

    def _own_numbers(self) -> set[int]:
        """Return the numbers of the supervisors, which may come to this process, and of the fork server."""
        return {handle.pid for handle in self._all} | ({self._server_pid} if self._server is not None else set())

    def _not_ended(self) -> None:
        if not self._has_said:
            self._has_said = True
            self.say(NOT_ENDED)

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

    # -- to ask for something

    def ask(self, handle: Handle, kind: bytes, number: int = 0) -> None:
        """Send a supervisor a short message. If it is stopped, it goes on; if it is gone, that is heard of."""
        try:
            supervisor.send(handle.end, kind, supervisor.NUMBER.pack(number))
        except OSError:
            return
        if kind == supervisor.SIGNAL and number == signal.SIGKILL:
            self._unanswered.setdefault(handle, self._clock.monotonic() + KILL_ANSWER_S)
        self._resume()

    def _resume(self) -> None:
        """Have the fork server and the supervisors go on, if they are stopped (SIGSTOP)."""
        if self._server is not None:
            supervisor.resume(self._server_pid)
            self._ask_server(supervisor.RESUME)

    def _ask_server(self, kind: bytes, number: int = 0) -> None:
        self._tell_server(kind, supervisor.NUMBER.pack(number))

    def _tell_server(self, kind: bytes, body: bytes, fds: tuple[int, ...] = ()) -> None:
        if self._server is not None:
            try:
                supervisor.send(self._server, kind, body, fds)
            except OSError:
                pass  # its end is heard of

    def _tell_on_death(self, command: Sequence[str]) -> None:
        """Have the fork server execute a command after this process's death, with what proves that, if there is any."""
        body = supervisor.encode_command([os.fsencode(word) for word in command], {}, [])
        try:
            own = os.pidfd_open(os.getpid())
        except (OSError, AttributeError):  # no descriptor is free; before Linux 5.3 there are none
            self._tell_server(supervisor.ON_DEATH, body)
            return
        try:
            self._tell_server(supervisor.ON_DEATH, body, (own,))
        finally:
            os.close(own)

    @property
    def due_at(self) -> float:
        """Return when `keep_time` has something to do, on the monotonic clock."""
        return min((self._reap_at, *self._unanswered.values()))

    def keep_time(self, now: float) -> None:
        """Have a supervisor killed that does not answer: the fork server ends what it was at. Reap the adopted."""
        if now >= self._reap_at:
            self._reap_at = now + REAP_S
            supervisor.reap_adopted(self._own_numbers())
        for handle in [handle for handle, until in self._unanswered.items() if now >= until]:
            del self._unanswered[handle]
            if self._server is not None:
                self.say(UNANSWERED)
                self._ask_server(supervisor.KILL, handle.pid)

    # -- the end of a process

    def is_open(self, handle: Handle) -> bool:
        """Return whether the supervisor is there, as far as was heard."""
        return handle in self._all

    def give_back(self, handle: Handle) -> None:
        """Have a supervisor used again that has nothing to do."""
        if handle in self._all:
            self._idle.append(handle)

    def retire(self, handle: Handle) -> None:
        """End a supervisor whose command has succeeded. Processes that the command left behind go on.

        When this returns, neither the death of the worker nor anything else ends that.
        """
        if self._adopts:
            supervisor.become_subreaper(False)  # what is left passes by this process, too
        if self._server is not None:
            self._resume()
            self._ask_server(supervisor.RETIRE, handle.pid)
            is_gone = self._has_answered_retire()
            self.drop(handle)
        else:
            self.drop(handle)  # without its fork server it ends by itself
            is_gone = self._has_ended(handle.pid)
        if self._adopts and is_gone:
            supervisor.become_subreaper()
        self._adopts = self._adopts and is_gone  # else what is left might come to this process, and be ended

    def _has_answered_retire(self) -> bool:
        """Wait until the fork server says that a supervisor is retired. Return whether it did, in time."""
        self._has_retired, deadline = False, self._clock.monotonic() + supervisor.KILLED_S
        poll = select.poll()
        if self._server is not None:
            poll.register(self._server, select.POLLIN)
        while self._server is not None and not self._has_retired:
            if not poll.poll(max(0.0, deadline - self._clock.monotonic()) * 1000):
                break
            self._heard_server()
        return self._has_retired

    def _has_ended(self, number: int) -> bool:
        """Wait for a supervisor that this process has adopted. Return whether it has ended, in time."""
        deadline = self._clock.monotonic() + supervisor.KILLED_S
        while self._adopts and supervisor.is_child(number) and self._clock.monotonic() < deadline:
            if os.waitpid(number, os.WNOHANG)[0]:
                return True
            self._clock.sleep(LOOK_S)
        return False

    def drop(self, handle: Handle) -> None:
        """Let a supervisor go. If it is at anything, it ends that, however long that takes."""
        self._unanswered.pop(handle, None)
        if handle in self._all:
            self._all.discard(handle)
            self._mailbox.forget(handle.end.fileno())
            handle.end.close()
        if handle in self._idle:
            self._idle.remove(handle)

    def close(self) -> None:
        """End them all, and what they are at."""
        self._tell_server(supervisor.ON_DEATH, b"")  # an end in order: the worker puts back what it holds
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
