"""A process of its own session: started in the cheapest way, watched without a thread, ended, reaped.

posix_spawn costs little more than the kernel's part of it, where subprocess.Popen adds a fifth; and unlike fork
it is safe in a process with threads. A pidfd tells of the exit. Kernels before 5.3 have none: a thread waits there.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from fsqueue.clock import Clock
from fsqueue.models import Used
from fsqueue.worker.events import Mailbox

KEPT_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and what it starts should not."""
REAP_S = 0.01
"""How often the end of a process that was killed is looked for."""


class Process:
    """A running process, the leader of a session and a process group.

    Only the loop signals and reaps it, so that its number never means another process. `files`: what it gets as
    standard input, output and error; `inherited`: descriptors that it gets under the same numbers; `closed`: those
    that are not to be inherited, although they are inheritable. It gets no others. `ended` is called in the loop when
    it has exited, before it is reaped. OSError or ValueError if it cannot be started.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        argv: Sequence[str | bytes],
        environment: Mapping[str, str] | Mapping[bytes, bytes],
        files: Sequence[int],
        ended: Callable[[], object],
        inherited: Sequence[int] = (),
        closed: Sequence[int] = (),
    ) -> None:
        self._mailbox, self._ended, self._clock = mailbox, ended, Clock()
        self.status: int | None = None
        """The exit status; negative: the signal that ended it. None: not known (yet)."""
        self.used: Used | None = None
        """What it used, with all processes that it has waited for. None: not known (yet)."""
        self._gone = False
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in enumerate(files)]
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for fd in closed:
            if fd >= most:  # posix_spawn would fail; from now on only this process has it
                os.set_inheritable(fd, False)
            elif fd not in inherited:
                actions.append((os.POSIX_SPAWN_CLOSE, fd))
        # Keep a number free for the pidfd: a process that has begun could not be watched without.
        reserved = os.dup(files[0])
        try:
            for fd in inherited:
                os.set_inheritable(fd, True)  # only the loop starts processes: no other gets it
            self.pid = os.posix_spawnp(
                argv[0],
                list(argv),
                environment,
                file_actions=actions,
                setsid=True,
                setsigdef=KEPT_IGNORED,
            )
        finally:
            for fd in inherited:
                os.set_inheritable(fd, False)
            os.close(reserved)
        self._handle, self._is_watched = -1, False
        try:
            self._watch()
        except RuntimeError as error:  # no thread, either
            self.kill(signal.SIGKILL)
            self.reap()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error

    def _watch(self) -> None:
        """Have the loop told of the exit."""
        try:
            self._handle = os.pidfd_open(self.pid)
            self._mailbox.watch(self._handle, self._exited)
            self._is_watched = True
        except (OSError, AttributeError):
            threading.Thread(target=self._wait_for_it, daemon=True).start()

    def has_exited(self) -> bool:
        """Return whether it has ended, reaped or not."""
        if self._gone:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self, number: int) -> None:
        """Send a signal to it and to all of its process group. After the reaping nothing happens."""
        if self._gone:
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # they have ended, or run as another user

    def reap(self, deadline: float = math.inf) -> None:
        """Wait for the exit, learn its status, and let its number go.

        At `deadline`, of the monotonic clock, it is left alone: what the kernel holds is not ended even by SIGKILL.
        """
        while not self._gone and deadline < math.inf and not self.has_exited():
            if self._clock.monotonic() > deadline:
                self._let_go()
                self._gone = True
                return
            self._clock.sleep(REAP_S)
        if self._gone:
            return
        self._let_go()
        try:
            _, status, used = os.wait4(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
            self.used = Used(round((used.ru_utime + used.ru_stime) * 1000), used.ru_maxrss)  # Linux: in KiB
        except ChildProcessError:
            pass  # something else in this process has waited for it
        self._gone = True

    def _let_go(self) -> None:
        if self._is_watched:
            self._mailbox.forget(self._handle)
        if self._handle >= 0:
            os.close(self._handle)

    def _exited(self) -> None:
        if not self._gone:
            self._ended()

    def _wait_for_it(self) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except OSError:
            pass  # it was waited for elsewhere; whatever it is, the loop must hear of the end
        self._mailbox.post(self._exited)


def describe(status: int | None) -> str:
    """Return an exit status in words."""
    if status is None:
        return "its exit status was lost: something else in this process waited for it"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
