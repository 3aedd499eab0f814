"""One simulated world: its time, its disk, its processes, and whose turn it is.

Workers run the real code, each in a thread of its own, but only the one whose turn it is moves. A turn may end
before any call to the disk. Everything that happens is decided by one random generator, in one order, so a seed
replays exactly.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from fsqueue.clock import Clock, Entropy
from tests.garbage import at_rest
from tests.simulation.books import BEGIN, Book
from tests.simulation.disk import Directory, Disk, File, Node
from tests.simulation.handles import FIRST_FD, Crash
from tests.simulation.kernel import Process
from tests.simulation.slurm import Slurm
from tests.simulation.wiring import begin_anew, on_stage, take_stage, tell_here

START_S = 1_800_000_000.0
NEVER = 1 << 60
STEPS_MAX = 60_000
"""A world that takes longer turns in circles."""


def _is_successor(node: Node, other: Node) -> bool:
    """Whether the last line of a file of dead letters closes it in favour of the other."""
    if not isinstance(node, File) or not isinstance(other, File):
        return False
    identity = re.match(rb'\{"op":"rewritten","id":"([0-9a-f]{16})"', node.data)
    closing = rb'(?:\A|\n)\{"op":"moved","here":(\d+),"to":"%s","bytes":\d+\}\n\Z' % (identity[1] if identity else b"-")
    found = re.search(closing, other.data)
    return found is not None and other.data[int(found[1]) :].startswith(b'{"op":"moved"')


Pause = Callable[[Process, str, tuple[Any, ...]], None]


class Circles(BaseException):
    """The world does not come to an end."""


class World:
    """Time, a disk, and who is in it."""

    def __init__(self, seed: int | str, lossy: bool = False, trace: bool = False, book: Book | None = None) -> None:
        self.book = book
        """Where the story is written down, or read from, if it is."""
        self.rng = Random(seed) if book is None else book
        self.now = START_S
        self.disk = Disk(self, lossy)
        self.trace: list[str] | None = [] if trace else None
        self.alert_at = STEPS_MAX + 1
        """The step from which on `alert` is asked before each call: the others cost little."""
        self.pause_at = NEVER
        self.pause: Pause = lambda process, name, args: None
        self.torn_listings = 0.0
        """How likely a listing takes so long that the directory may change meanwhile."""
        self.stale_listings = 0.0
        """How likely a client answers with the listing it had before; but never twice in a row."""
        self.cuts: dict[Process, float] = {}
        """Of whose next write only this fraction gets to the disk."""
        self.torn: list[tuple[Any, int, bytes]] = []
        """Writes that were cut: file, offset of what was kept, and all that was meant."""
        self.voided_farewells: set[File] = set()
        """Logs to which somebody whose lock was lost wrote a `gone` that never got to the server."""
        self.overwritten: list[str] = []
        """Names that a rename put another file's in place of."""
        self.faults: list[str] = []
        """What was done to this world."""
        self.sleep: Callable[[Process, float], None] = self.pass_time
        self.fd = FIRST_FD - 1
        """The descriptor that was given last."""
        self.slurm: Slurm | None = None
        """What jobs are submitted to, if the story has jobs."""

    @property
    def pause_at(self) -> int:
        """The step from which on `pause` is asked before each call."""
        return self._pause_at

    @pause_at.setter
    def pause_at(self, step: int) -> None:
        self._pause_at = step
        self.alert_at = 0 if self.trace is not None or self.book is not None else min(step, STEPS_MAX + 1)

    def alert(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        """Before a call: tell of it, and ask whether something is to happen first."""
        self._not_in_circles()
        if self.book is not None:
            self.book.count(process.name, name)
        if self.trace is not None:
            self.note(process, name, args)
        if self.disk.step >= self._pause_at:
            self.pause(process, name, args)
            if process.dead:
                raise Crash

    def _not_in_circles(self) -> None:
        if self.disk.step > STEPS_MAX:
            raise Circles(f"after {STEPS_MAX} steps it still goes on")

    def step(self, seconds: float) -> None:
        """Something happens, and takes time."""
        self.now += seconds
        self.disk.step += 1
        self._not_in_circles()

    def pass_time(self, process: Process, seconds: float) -> None:
        """Sleeping where nobody else can go on meanwhile."""
        self.step(max(seconds, 0.0))
        if process.dead:
            raise Crash

    # -- telling ---------------------------------------------------------------------------------

    def note(self, process: Process, name: str, args: tuple[Any, ...]) -> None:
        shown = ", ".join(self._show(process, arg) for arg in args)
        who = process.name if self.book is None else self.book.place(process.name)
        self.say(f"{self.disk.step:5d} {self.now - START_S:9.3f} {who}: {name}({shown})")

    @staticmethod
    def _show(process: Process, arg: Any) -> str:
        if isinstance(arg, int) and arg in process.fds:
            return f"<{process.fds[arg].name}>"
        text = arg.decode(errors="replace") if isinstance(arg, bytes) else str(arg)
        return text.strip() if len(text) < 300 else f"{text[:300]}…"

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(text)

    def fault(self, text: str) -> None:
        """Something is done to this world."""
        self.faults.append(f"{self.disk.step}: {text}")
        self.say(f"!!!!! {text}")

    # -- what the kernel asks ----------------------------------------------------------------------

    def cut_write(self, process: Process, data: bytes) -> int | None:
        """How much of a write gets to the disk; None: all."""
        fraction = self.cuts.pop(process, None)
        if fraction is None:
            return None
        return min(int(len(data) * fraction), len(data) - 1)

    def renaming(self, process: Process, node: Node, name: str, other: Node | None) -> None:
        if other is not None and not _is_successor(node, other):
            self.overwritten.append(f"{process.name} put a file over {name}")

    def listing(self, process: Process, directory: Directory) -> list[str]:
        """The names in a directory. What changes while it is read may be seen or not."""
        names = list(directory.entries)
        if self.torn_listings and self.rng.random() < self.torn_listings:
            before = dict(directory.entries)
            process.enter("listdir goes on", ())
            after, rng = directory.entries, self.rng
            names = [name for name, node in before.items() if after.get(name) is node or rng.random() < 0.5]
            names += [name for name, node in after.items() if before.get(name) is not node and rng.random() < 0.5]
        return names


class SimClock(Clock):
    """A host's clock: wrong by its skew, and moved by the world alone."""

    is_real = False

    def __init__(self, process: Process, stale: bool = False) -> None:
        super().__init__()
        self._process = process
        self._world = process.world
        self._stale = stale

    def local_s(self) -> float:
        return self._world.now + self._process.host.skew_s

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.sleep(self._process, seconds)

    def is_stale(self) -> bool:
        return self._stale and super().is_stale()


class SimEntropy(Entropy):
    """Random numbers that a seed decides. A child inherits its parent's, until it forgets them."""

    def __init__(self, seed: int | str) -> None:
        super().__init__()
        self._rng = Random(seed)
        self._fresh = 0

    def hex16(self) -> str:
        return f"{self._rng.getrandbits(64):016x}"

    def inherited(self) -> SimEntropy:
        """What a forked child has."""
        child = SimEntropy("")
        child._rng.setstate(self._rng.getstate())
        return child

    def forget(self) -> None:
        self._fresh += 1
        self._rng = Random(f"{self._rng.getrandbits(64)}/{self._fresh}")


# -- turns ---------------------------------------------------------------------------------------------


class _Thread:
    """A thread that is kept for one worker after the other."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.job: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Wait for the next worker."""
        _idle.append(self)

    @classmethod
    def woken(cls) -> _Thread:
        """Return one that waits, or another one."""
        if not _idle:
            return cls()
        return _idle.pop()

    def _run(self) -> None:
        tell_here()
        while True:
            # Not before: the worker that ends last wakes the main thread while its own frames still hold its world.
            # That would be kept for good.
            at_rest.add(self._thread)
            self.turn.acquire()
            at_rest.discard(self._thread)
            job, self.job = self.job, None
            assert job is not None
            begin_anew()
            job()
            # Else the world that it was in would live until the next one, and close its files in that.
            job = None
            begin_anew()


_idle: list[_Thread] = []


class Turn:
    """A worker as the scheduler sees it."""

    __slots__ = ("act", "awake_at", "failure", "finished", "process", "started", "thread")

    def __init__(self, process: Process, act: Callable[[], None]) -> None:
        self.process = process
        self.act = act
        self.thread = _Thread.woken()
        self.awake_at = -math.inf
        """When it may go on; infinity: never."""
        self.started = self.finished = False
        self.failure: BaseException | None = None


class Scheduler:
    """Gives turns to workers until all have finished, died, or been stopped for ever."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turns: list[Turn] = []
        self.by_process: dict[Process, Turn] = {}
        self._main = threading.Lock()
        self._main.acquire()
        world.sleep = self.sleep

    def add(self, process: Process, act: Callable[[], None]) -> Turn:
        turn = Turn(process, act)
        self.turns.append(turn)
        self.by_process[process] = turn
        return turn

    def run(self) -> None:
        """Until nobody can go on. Those that were stopped are killed then."""
        self._go_on()
        for turn in self.turns:
            if not turn.finished:
                turn.process.kill()
                self._hand_to(turn)
                self._main.acquire()
        for turn in self.turns:
            turn.thread.rest()
            if turn.failure is not None:
                raise turn.failure

    def _go_on(self) -> None:
        first = self.next(BEGIN)
        if first is not None:
            self._hand_to(first)
            self._main.acquire()

    def next(self, place: str = "", mine: Turn | None = None) -> Turn | None:
        """Whose turn it is now, by lot; time passes if all sleep. None: nobody's.

        Where a story is written down: `place` is where the last one stopped. `mine` is its turn if it need not have.
        """
        following = self._next(place)
        if self.world.book is not None and following is not None:
            self.world.book.turned(place, following.process.name, is_choice=mine is None)
        return following

    def _next(self, place: str) -> Turn | None:
        world = self.world
        able = []
        for turn in self.turns:
            if not turn.finished:
                if turn.process.dead:
                    return turn  # it only has to unwind
                if turn.awake_at <= world.now:
                    able.append(turn)
        if not able:
            waiting = [turn for turn in self.turns if not turn.finished and turn.awake_at < math.inf]
            if not waiting:
                return None
            first = min(waiting, key=lambda turn: turn.awake_at)
            world.now = max(world.now, first.awake_at)
            return first
        if len(able) == 1:
            return able[0]
        if world.book is not None:
            return able[world.book.choose([turn.process.name for turn in able], place)]
        return able[int(world.rng.random() * len(able))]

    def _hand_to(self, turn: Turn) -> None:
        if not turn.started:
            turn.started = True
            turn.thread.job = lambda: self._work(turn)
        turn.thread.turn.release()

    def _work(self, turn: Turn) -> None:
        try:
            turn.act()
        except Crash:
            pass
        except BaseException as failure:
            turn.failure = failure
        turn.finished = True
        following = self.next(f"{turn.process.name} ends") if turn.failure is None else None
        if following is None or self._ending:
            self._main.release()
        else:
            self._hand_to(following)

    @property
    def _ending(self) -> bool:
        return any(turn.failure is not None for turn in self.turns)

    def switch(self, process: Process, place: str = "", is_choice: bool = False) -> None:
        """Let somebody go on, perhaps the same."""
        mine = self.by_process[process]
        following = self.next(place, None if is_choice else mine)
        if following is mine:
            return
        persona = on_stage()
        if following is None:
            self._main.release()
        else:
            self._hand_to(following)
        mine.thread.turn.acquire()
        take_stage(persona)
        if process.dead:
            raise Crash

    def sleep(self, process: Process, seconds: float) -> None:
        if process.dead:
            raise Crash
        world = self.world
        world.step(0.0)
        turn = self.by_process.get(process)
        if turn is None:
            world.now += max(seconds, 0.0)
            return
        turn.awake_at = world.now + max(seconds, 0.0)
        self.switch(process, world.book.sleep(process.name) if world.book is not None else "", is_choice=True)
        turn.awake_at = -math.inf


def runs(turns: Iterable[Turn]) -> bool:
    """Whether any of them has not come to its end."""
    return any(not turn.finished for turn in turns)
