"""The processes of a storm: workers and gateways, which are killed, stopped beyond their leases, and started anew."""

from __future__ import annotations

import ctypes
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fsqueue import Group
from tests.concurrency.processes import Child, at_a_random_moment
from tests.gateways import RealGateway
from tests.waiting import until

_libc = ctypes.CDLL(None)
_PR_SET_CHILD_SUBREAPER = 36

FAULTS = ("kill", "kill", "kill", "stop", "stop", "stop", "kill a gateway", "end a gateway", "stop a gateway")
PAUSES_S = (0.01, 0.05, 0.2, 0.8)
"""The longest times from one fault to the next."""
LATER = 6
"""After how many further faults at most what was stopped goes on, and a gateway that was killed is started again."""

Hire = Callable[[int, list[str]], Child]
"""Starts the worker with a number, given the addresses of the gateways."""


def adopt_orphans() -> None:
    """Let this process be the parent of what its children leave behind."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Crew:
    """Workers, each of which is hired anew when it was killed, and gateways of one group."""

    def __init__(self, group: Group, home: Path, dice: random.Random, hire: Hire, workers: int, gateways: int) -> None:
        self._dice, self._hire, self._number = dice, hire, 0
        self.stderr = home / "gateways"
        self.gateways = [RealGateway(group, home / f"{number}.sock", self.stderr) for number in range(gateways)]
        self._workers: list[Child] = []
        self._mends: list[tuple[int, Callable[[], None]]] = []
        """By the time of which fault something is to be mended."""
        self._down: set[RealGateway] = set()
        self._unready: set[RealGateway] = set()
        """Gateways that were started again, and of which nobody has heard yet."""
        self.counts: Counter[str] = Counter()
        for _ in range(workers):
            self._workers.append(self._next())

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            worker.close()
        for gateway in self.gateways:
            gateway.kill()

    def _next(self) -> Child:
        self._number += 1
        return self._hire(self._number, [gateway.url for gateway in self.gateways])

    def suffer(self, faults: int) -> None:
        """Let this many faults happen, each after a random time."""
        for number in range(faults):
            at_a_random_moment(self._dice, self._dice.choice(PAUSES_S))
            self._mend(number)
            fault = self._dice.choice(FAULTS)
            self.counts[fault] += 1
            back = number + self._dice.randrange(1, LATER + 1)
            if "gateway" in fault:
                self._trouble(fault, self._dice.choice(self.gateways), back)
            else:
                self._fell(fault, self._dice.randrange(len(self._workers)), back)
            for worker in self._workers:
                assert worker.running, f"a worker has ended with {worker.status}: {worker.report()}"
        self._mend(faults + LATER)
        for gateway in self._unready:
            gateway.wait_ready()

    def _mend(self, number: int) -> None:
        """Mend what is to be mended by the time of this fault."""
        due = [mend for at, mend in self._mends if at <= number]
        self._mends = [(at, mend) for at, mend in self._mends if at > number]
        for mend in due:
            mend()

    def _fell(self, fault: str, place: int, back: int) -> None:
        victim = self._workers[place]
        if fault == "stop":
            victim.signal(signal.SIGSTOP)
            self._mends.append((back, lambda: victim.signal(signal.SIGCONT)))
            return
        self._workers[place] = self._next()
        victim.kill()
        victim.close()

    def _trouble(self, fault: str, gateway: RealGateway, back: int) -> None:
        if fault == "stop a gateway":
            gateway.send(signal.SIGSTOP)
            self._mends.append((back, lambda: gateway.send(signal.SIGCONT)))
        elif gateway not in self._down:
            gateway.send(signal.SIGCONT)  # a stopped process does not end when it is told to
            gateway.kill(signal.SIGKILL if fault == "kill a gateway" else signal.SIGTERM)
            self._down.add(gateway)
            self._unready.discard(gateway)
            self._mends.append((back, lambda: self._restart(gateway)))

    def _restart(self, gateway: RealGateway) -> None:
        gateway.begin()
        self._down.discard(gateway)
        self._unready.add(gateway)

    @property
    def pids(self) -> set[int]:
        """Return the processes of the gateways."""
        return {gateway.pid for gateway in self.gateways}

    def results(self) -> list[dict[str, int]]:
        """Return what the workers tell, once all have ended. What they have forked may live on."""
        return [worker.result() for worker in self._workers]

    def odd(self) -> list[str]:
        """Return what gateways have written that tells of an error of their own."""
        said = self.stderr.read_text()
        return [f"a gateway: {said}"] if "Traceback" in said or "InternalError" in said else []


def wait_for_orphans(known: set[int]) -> list[str]:
    """Wait for the end of all children of this process but those known, also of what it has adopted.

    Return what went wrong in one: a killed worker may leave children that it has forked, and they end by themselves.
    """
    found: list[str] = []

    def are_over() -> bool:
        children = set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())) - known
        for pid in children:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended and os.waitstatus_to_exitcode(status) != 0:
                found.append(f"an orphan, process {pid}, has ended with {os.waitstatus_to_exitcode(status)}")
        return not children

    until(are_over, "the end of what was forked")
    return found
