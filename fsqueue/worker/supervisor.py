"""The program that starts commands and ends all that they have started (docs/decisions/0039-supervisors.md).

A worker runs this file once, as a fork server. For each slot the fork server forks a supervisor, which starts one
command at a time and is the subreaper of whatever that starts: a process whose parent has died becomes a child of the
supervisor, whatever sessions and groups it has made. So a supervisor ends all of it by ending its own children, until
it has none. It does so if the command fails, if the worker asks for it, and if the worker is gone.

*Proof before each signal:* only the supervisor waits for its own children. The number of a child that it has not waited
for means no other process, and `waitid` tells whether a number is that of a child. A process group of that number can
only hold processes of the child's own session, which the command or a process that it started has made.

The file imports nothing of fsqueue: it starts soon and stays small. The worker's side is `supervision`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import NoReturn

HEADER = struct.Struct("!cI")
"""Before each message: its kind, and how many bytes follow."""
NUMBER = struct.Struct("!i")
NUMBERS = struct.Struct("!ii")
EXIT = struct.Struct("!ii2d14q")
"""How a command has ended: flags, its exit status as `os.waitstatus_to_exitcode` gives it, and its rusage."""
FORK, RETIRE, RESUME, KILL, ON_DEATH = b"F", b"R", b"C", b"Q", b"W"
"""What the worker asks the fork server for: a supervisor on the socket that comes along; the end of one, by its number;
that all of them go on which are stopped; SIGKILL for one, by its number; a command to execute after the worker's death,
with a pidfd of the worker, or, with an empty message, none."""
START, SIGNAL, END = b"S", b"K", b"D"
"""What it asks a supervisor for: a command; a signal for the command; the end of what a command has left."""
HELLO, STARTED, REFUSED, HELD, EXITED, LOST, RETIRED = b"H", b"P", b"E", b"N", b"X", b"L", b"T"
"""What it is told: a supervisor's number; a command's number; an errno; that SIGKILL has not ended a command, and 1 if
it was refused; how a command has ended; that a supervisor was killed, and how many of its processes are left; that one
has retired."""
TOLD, LEFT = 1, 2
"""Flags of an exit: the worker had sent a signal before; processes that the command started are left."""

KILLED_S = 3.0
"""How long after SIGKILL processes are waited for before the worker is told that some are left."""
DEATH_S = 60.0
"""How long the fork server waits for the worker's death after its socket has ended. The kernel closes the files of a
process that was killed before it tells of its death."""
LOOK_MS = (20, 500)
"""How long to wait before children are looked for again while they are ended: twice as long each time, up to this."""
REFUSED_MAX, UNSEEN_MAX = 3, 50
"""Maximum number of looks in a row that end no child: since another user owns the children; since /proc shows none."""
FIRST_FD = 10
"""What a process receives has numbers from here on: those below are the standard streams and what a command gets."""
DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and what it starts should not."""
FDS_MAX = 8
"""Maximum number of descriptors that come with a message."""
_ROOM = socket.CMSG_LEN(FDS_MAX * 4)
_PR_SET_CHILD_SUBREAPER = 36
_UNTOUCHED = {
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,
}  # fmt: skip
CAUGHT = frozenset(signal.valid_signals() - _UNTOUCHED)
"""What a fork server and its supervisors catch. The worker starts a fork server with these blocked: a signal that comes
while its interpreter starts waits, and does not end it."""


# -- messages


def send(end: socket.socket, kind: bytes, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    """Send a message, with copies of descriptors. OSError if the other end is gone."""
    head = HEADER.pack(kind, len(body))
    if fds:
        beside = struct.pack(f"{len(fds)}i", *fds)
        end.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, beside)], socket.MSG_NOSIGNAL)
        end.sendall(body, socket.MSG_NOSIGNAL)
    else:
        end.sendall(head + body, socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> tuple[bytes, bytes, list[int]]:
    """Wait for a message; kind b"" if the other end is closed. The descriptors are the caller's; all or none come."""
    try:
        flags = socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC  # which `socket.recv_fds` does not pass on
        head, beside, got, _ = end.recvmsg(HEADER.size, _ROOM, flags)
        fds = [fd for _, _, data in beside for (fd,) in struct.iter_unpack("i", data)]
        while fds and got & socket.MSG_CTRUNC:  # not all of them: there was no descriptor free
            os.close(fds.pop())
        if len(head) < HEADER.size:
            return b"", b"", []
        kind, size = HEADER.unpack(head)
        body = b""
        while len(body) < size:
            more = end.recv(size - len(body), socket.MSG_WAITALL)
            if not more:
                return b"", b"", []
            body += more
    except ConnectionError:
        return b"", b"", []
    return kind, body, fds


def encode_command(argv: list[bytes], environment: dict[bytes, bytes], without: list[bytes]) -> bytes:
    """Encode a command line, what its environment has more, and what it has not. No part may hold a NUL."""
    items = [b"%s=%s" % item for item in environment.items()]
    return b"\0".join((b"%d" % len(argv), *argv, *items, *without))


def decode_command(body: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Return the command line and its whole environment."""
    count, *parts = body.split(b"\0")
    environment = dict(_own_environment())
    for item in parts[int(count) :]:
        name, is_set, value = item.partition(b"=")
        if is_set:
            environment[name] = value
        else:
            environment.pop(name, None)
    return parts[: int(count)], environment


def _own_environment() -> dict[bytes, bytes]:
    """Return the environment of this process, which never changes: to decode it again would cost as much as a fork."""
    global _environment
    if not _environment:
        _environment = dict(os.environb)
    return _environment


_environment: dict[bytes, bytes] = {}


# -- processes


def become_subreaper(is_one: bool = True) -> bool:
    """Have orphaned descendants become children of this process, or no longer. Return False where it cannot be had.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def own_children() -> list[int] | None:
    """Return what /proc says are the children of the main thread, and what was orphaned below a subreaper: a hint.

    None without CONFIG_PROC_CHILDREN, or with another namespace's /proc.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return None


def listed_children() -> list[int]:
    """Return what /proc says are the children of this process: a hint. Nothing where there is no /proc."""
    if (own := own_children()) is not None:
        return own
    me = os.getpid()
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    found = []
    for number in numbers:
        try:
            with open(f"/proc/{number}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == me:
                    found.append(number)
        except (OSError, IndexError):
            pass  # it has ended, or is hidden
    return found


def is_child(number: int) -> bool:
    """Return whether a number is that of a child which has not been waited for. The truth, and it stays true."""
    try:
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, OverflowError):
        return False
    return True


def orphans(spared: set[int]) -> list[int]:
    """Return the children in other sessions than this process's, besides `spared`. Wait for those that are dead.

    For the main thread of a subreaper that has started nothing in another session but a fork server: they all come from
    below that. What other threads have started is not among them.
    """
    own = os.getsid(0)
    while True:
        found, is_any_dead = [], False
        for number in own_children() or []:
            if number not in spared and is_child(number) and os.getsid(number) != own:
                if os.waitpid(number, os.WNOHANG)[0]:
                    is_any_dead = True  # its own children have come to this process: they are looked for again
                else:
                    found.append(number)
        if not is_any_dead:
            return found


def reap_adopted(spared: set[int]) -> None:
    """Wait for the dead children of the main thread besides `spared`: for process 1, which adopts what is orphaned.

    For the main thread of a process that has started no child which still runs but `spared`. What other threads have
    started is not among them: the kernel lists the children of each thread by themselves.
    """
    for number in own_children() or []:
        if number not in spared and is_child(number):
            os.waitpid(number, os.WNOHANG)


def resume(number: int) -> None:
    """Have a child go on that is stopped (SIGSTOP)."""
    if is_child(number):
        os.kill(number, signal.SIGCONT)


def kill(number: int) -> bool:
    """Send SIGKILL to a child and the process group that it leads. Return False if it is another user's process."""
    try:
        os.killpg(number, signal.SIGKILL)  # all at once: none of it can fork any more
    except (ProcessLookupError, PermissionError):
        pass  # it leads none
    try:
        os.kill(number, signal.SIGKILL)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


class Reaper:
    """The parent of processes, until `end` is closed or its worker is gone. One thread, which alone waits for them."""

    def __init__(self, end: socket.socket, worker: int) -> None:
        self.end, self.worker = end, worker
        """`worker`: a pidfd, which also tells of a death if another process has a copy of the socket. -1: none."""
        self.spared: set[int] = set()
        """Children that are not to be ended: the supervisors of a fork server."""
        self._wakes, wake = os.pipe()
        for fd in (self._wakes, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll, self._wake = select.poll(), select.poll()
        self._wake.register(self._wakes, select.POLLIN)
        for fd in (end.fileno(), self._wakes, worker):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self.is_subreaper = become_subreaper()
        """Whether all that is orphaned below this process has become its child."""

    def wait(self, longest_ms: int | None = None) -> set[int]:
        """Wait until a child has exited, a message is there or the worker is gone. Return which descriptors tell."""
        ready = {fd for fd, _ in self._poll.poll(longest_ms)}
        if self._wakes in ready:
            self._hear()
        return ready

    def pause(self, longest_ms: int) -> None:
        """Wait until a child has exited, for `longest_ms` at most. The worker's death does not end this wait."""
        if self._wake.poll(longest_ms):
            self._hear()

    def _hear(self) -> None:
        """Take in that signals have come."""
        try:
            os.read(self._wakes, 65_536)  # all that such a pipe holds
        except BlockingIOError:
            pass

    def has_children(self) -> bool:
        """Return whether there are any, after those that have exited are waited for."""
        try:
            while True:
                number, status = os.waitpid(-1, os.WNOHANG)
                if not number:
                    return True
                self.reaped(number, status)
        except ChildProcessError:
            return False

    def reaped(self, number: int, status: int) -> None:
        """Take in that a child has been waited for."""
        self.spared.discard(number)

    def end_children(self, within_s: float | None = None) -> int:
        """End all children and what they have started. Return how many are left: others' users, or held by the kernel.

        None of what it can end is missed: a child that dies leaves its own children to this process, before its death
        is seen. With `within_s` None what the kernel holds is waited for.
        """
        deadline = time.monotonic() + (within_s or 0.0)
        idle, pause_ms = 0, LOOK_MS[0]
        while self.has_children() and (found := self._found()) is not None:
            idle = 0 if sum([kill(number) for number in found]) else idle + 1
            is_late = within_s is not None and time.monotonic() > deadline
            if is_late or idle > (REFUSED_MAX if found else UNSEEN_MAX):
                return max(1, len(found))
            self.pause(pause_ms)
            pause_ms = min(2 * pause_ms, LOOK_MS[1])
        return 0

    def _found(self) -> list[int] | None:
        """Return the children that are to be ended, as far as they can be seen; None if there is none besides others.

        The numbers of /proc are a hint; that they are children of this process is certain.
        """
        found = [number for number in listed_children() if number not in self.spared and is_child(number)]
        return None if self.spared and not found else found


class Supervisor(Reaper):
    """Starts one command at a time, and ends what it has started unless it succeeds."""

    mask: frozenset[signal.Signals | int] = frozenset()
    """The signals that a command starts with blocked: those that the worker's loop has."""
    server = 0
    """The number of the fork server, its parent as long as that lives."""

    def serve(self) -> None:
        """Serve the worker until it is gone, or wants no more."""
        send(self.end, HELLO, NUMBER.pack(os.getpid()))
        while True:
            ready = self.wait()
            if self.end.fileno() in ready:
                kind, body, fds = receive(self.end)
                if kind == START:
                    self._start(body, fds)
                elif kind == END:
                    self.end_children()
                    return
                elif not kind:
                    return  # what commands that succeeded have left stays
            elif self.worker in ready:
                return

    def _start(self, body: bytes, fds: list[int]) -> None:
        if not fds:
            send(self.end, REFUSED, NUMBER.pack(errno.EMFILE))
            return
        argv, environment = decode_command(body)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]
        try:
            # A session of its own: Ctrl-C at the terminal reaches the worker only, and a signal all of the command.
            number = os.posix_spawnp(
                argv[0], argv, environment, file_actions=actions, setsid=True, setsigdef=DEFAULT, setsigmask=self.mask
            )
        except OSError as error:
            send(self.end, REFUSED, NUMBER.pack(error.errno))
            return
        finally:
            for fd in fds:
                os.close(fd)
        try:
            send(self.end, STARTED, NUMBER.pack(number))
            self._watch(number)
        except ConnectionError:
            self._give_up(number)

    def _watch(self, command: int) -> None:
        """Tell how a command has ended, and end what it has started, unless it has succeeded."""
        is_told = is_refused = False
        held_at: float | None = None  # when SIGKILL has had its time
        while (succeeded := self._has_succeeded(command)) is None:
            left_s = None if held_at is None else held_at - time.monotonic()
            if left_s is not None and left_s <= 0:
                held_at = left_s = None
                send(self.end, HELD, NUMBER.pack(is_refused))
            ready = self.wait(None if left_s is None else int(left_s * 1000) + 1)
            if self.end.fileno() in ready:
                kind, body, _ = receive(self.end)
                if kind != SIGNAL:
                    self._give_up(command)
                if self._has_succeeded(command) is None:  # else it has ended by itself, and that counts
                    is_told, number = True, NUMBER.unpack(body)[0]
                    is_refused = not self._signal(command, number)
                    if number == signal.SIGKILL:
                        held_at = time.monotonic() + (0.0 if is_refused else KILLED_S)
            elif self.worker in ready:
                self._give_up(command)
        is_over = not succeeded or is_told
        if is_over:
            kill(command)  # its number is still its own
        _, status, usage = os.wait4(command, 0)
        left = self.end_children(KILLED_S) if is_over else int(self.has_children())
        flags = (TOLD if is_told else 0) | (LEFT if left else 0)
        send(self.end, EXITED, EXIT.pack(flags, os.waitstatus_to_exitcode(status), *usage))
        if is_over and left:
            self._give_up(command)

    def _has_succeeded(self, command: int) -> bool | None:
        """Return whether a command has exited with 0; None if it has not exited. Wait for other children that have."""
        while exited := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if exited.si_pid == command:
                return exited.si_code == os.CLD_EXITED and exited.si_status == 0
            os.waitpid(exited.si_pid, 0)
        return None

    def _signal(self, command: int, number: int) -> bool:
        """Send a signal to the process group of a command that has not been waited for; SIGKILL to all there is.

        Return False if all of the group is another user's.
        """
        is_sent = True
        try:
            os.killpg(command, number)
        except PermissionError:
            is_sent = False
        except ProcessLookupError:
            pass
        if number == signal.SIGKILL:
            for child in listed_children():
                if is_child(child):
                    kill(child)
        return is_sent

    def _give_up(self, command: int) -> NoReturn:
        """End all that there is, however long that takes, and this process.

        The command comes first, by its own number: /proc may not show it.
        """
        if is_child(command):
            kill(command)
        self.end_children()
        self.leave()

    def leave(self) -> NoReturn:
        """End this process. If the fork server is stopped, it goes on: its worker may be gone, and it would stay."""
        if os.getppid() == self.server:
            os.kill(self.server, signal.SIGCONT)
        os._exit(0)


class ForkServer(Reaper):
    """Forks supervisors, and ends what one that was killed has left: it is the subreaper above them.

    After the worker's death it executes what the worker has asked for, if nothing is at work any more
    (docs/decisions/0042-leases-of-a-killed-worker.md).
    """

    def __init__(self, end: socket.socket, worker: int) -> None:
        super().__init__(end, worker)
        self._on_death: tuple[list[bytes], dict[bytes, bytes]] | None = None
        """A command and its environment; None: nothing is executed."""
        self._unwatched: set[int] = set()
        """The supervisors that have lived while this process was no subreaper for a moment."""

    def serve(self) -> None:
        """Serve the worker until it is gone, or wants no more; then see to it that nothing is left."""
        while True:
            ready = self.wait()
            self.has_children()
            if self.end.fileno() in ready:
                kind, body, fds = receive(self.end)
                if kind == FORK and fds:
                    self._fork(fds[0])
                elif kind == RETIRE:
                    self._retire(NUMBER.unpack(body)[0])
                    self._tell(RETIRED)
                elif kind == RESUME:
                    self._resume()
                elif kind == KILL:
                    self._kill(NUMBER.unpack(body)[0])
                elif kind == ON_DEATH:
                    self._on_death = decode_command(body) if body else None
                    for fd in fds:
                        self._watch(fd)
                elif not kind:
                    break
            elif self.worker in ready:
                break
        self._resume()  # a supervisor that is stopped would not see that the worker is gone
        deadline = time.monotonic() + KILLED_S
        while self.has_children() and self.spared:  # they see it themselves
            if time.monotonic() > deadline:
                for number in list(self.spared):
                    self._kill(number)
            self.pause(LOOK_MS[1])
        self.end_children()
        self._act_on_death()

    def _watch(self, worker: int) -> None:
        """Take over a pidfd of the worker. One that it has opened itself proves its death however early that was."""
        if self.worker >= 0:
            self._poll.unregister(self.worker)
            os.close(self.worker)
        self.worker = worker
        self._poll.register(worker, select.POLLIN)

    def _act_on_death(self) -> None:
        """Execute the command that the worker asked for, if the worker is proven dead and no process of it is left."""
        if self._on_death is None or not self.is_subreaper or self.has_children() or not self._is_worker_dead():
            return
        argv, environment = self._on_death
        try:
            os.execve(argv[0], argv, environment)
        except (OSError, ValueError):
            pass  # its leases run out by themselves

    def _is_worker_dead(self) -> bool:
        """Return whether the worker's process is proven to be gone. One that executes another program is not."""
        if self.worker < 0:
            return False
        poll = select.poll()
        poll.register(self.worker, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(DEATH_S * 1000))

    def _resume(self) -> None:
        """Have all supervisors go on that are stopped."""
        for number in self.spared:
            resume(number)

    def _kill(self, number: int) -> None:
        """Kill a supervisor. What it was at becomes this process's, and is ended when its death is seen."""
        if number in self.spared and is_child(number):
            os.kill(number, signal.SIGKILL)

    def _fork(self, fd: int) -> None:
        end, server = socket.socket(fileno=fd), os.getpid()
        try:
            number = os.fork()
        except OSError as error:
            send(end, REFUSED, NUMBER.pack(error.errno))
            end.close()
            return
        if number:
            self.spared.add(number)
            end.close()
            return
        try:
            self.end.close()
            supervisor = Supervisor(end, self.worker)
            supervisor.server = server
            supervisor.serve()
            supervisor.leave()
        finally:
            os._exit(1)

    def _retire(self, number: int) -> None:
        """End a supervisor, and leave what is below it to the next subreaper above this process, usually init."""
        if number not in self.spared:
            return
        self.spared.discard(number)
        self._unwatched |= self.spared
        become_subreaper(False)
        try:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
        finally:
            self.is_subreaper = become_subreaper() and self.is_subreaper

    def reaped(self, number: int, status: int) -> None:
        if number not in self.spared:
            return
        self.spared.discard(number)
        if status:
            if number in self._unwatched:
                self._on_death = None  # what it has left may have passed this process by
            self._tell(LOST, NUMBERS.pack(number, self.end_children(KILLED_S)))

    def _tell(self, kind: bytes, body: bytes = b"") -> None:
        try:
            send(self.end, kind, body)
        except OSError:
            pass  # the worker is gone: the next look at its messages tells


def main() -> None:
    """Be a fork server.

    The arguments are numbers: of the worker's process, of the socket to it, and of the signals that the worker's loop
    has blocked.
    """
    worker, given, *blocked = map(int, sys.argv[1:])
    while (null := os.open(os.devnull, os.O_RDWR)) < FIRST_FD:
        pass  # keep the low numbers taken
    end = socket.socket(fileno=os.dup(given))
    os.dup2(null, given, inheritable=False)
    for number in CAUGHT:
        # Slurm's signals reach all processes of a job. A command gets what is caught here as default, and what the
        # worker was started to ignore (nohup) ignored.
        if number == signal.SIGCHLD or signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda *_: None)
    Supervisor.mask = frozenset(blocked)
    signal.pthread_sigmask(signal.SIG_SETMASK, Supervisor.mask - {signal.SIGCHLD})  # what has come meanwhile is caught
    try:
        watched = os.pidfd_open(worker)
    except (OSError, AttributeError):
        watched = -1  # an old kernel: the end of the messages tells
    if os.getppid() != worker:  # it is dead, which the end of its messages tells; the number may be another's by now
        watched = -1
    ForkServer(end, watched).serve()


if __name__ == "__main__":
    main()
