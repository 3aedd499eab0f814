"""What can go wrong at any call, and when: drawn beforehand, from the same seed as everything else."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.disk import Directory, File, Lost
from tests.simulation.handles import Crash, Opened
from tests.simulation.kernel import INTERRUPTED, Process
from tests.simulation.nfs import Client, NfsProcess
from tests.simulation.slurm import CALLS, TROUBLES

if TYPE_CHECKING:
    from tests.simulation.stories import Story

NAMES = frozenset({"rename", "link", "unlink", "mkdir"})
EXCLUSIVE = frozenset({"link", "mkdir", "open"})
"""Of which a repeat says that the name is there; of others, that it is not."""
WRITES = frozenset({"write", "pwrite"})
CLEAN_UPS = frozenset({"unlink", "unlock"})
"""What a verb ends with, after an error or behind what it has done: it removes files, and gives locks back."""
DECISIVE = NAMES | WRITES | {"fsync"}
"""Calls behind which a verb that fails has something to clean up."""
CLEAN_UP_ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES)
CLOSE_ERRORS = (errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT)
ANY_ERROR = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EACCES)
NO_ERRORS = frozenset({"close", "unlock", "scandir", *CALLS})
"""Calls that get no error of a disk."""
GROUP = "/group"
"""Where the queues are."""
QUEUE = "/group/q"
"""Where the queue is."""
BESIDE = "/group/r"
"""Where the other one is, if there are two."""
AWAY = "away"
"""Where a queue is while it is not in its group, and a group that is not in its place."""
DAY_S = 86_400.0
LONG_S = 900.0
"""Longer than any lease, and than a client may be out of touch before its locks are gone."""

Act = Callable[["Story", Process, str, tuple[Any, ...]], bool]
"""Do it if this call is the place for it; whether it was done."""


class Fault:
    """Something that happens at the first fitting call from a step on."""

    __slots__ = ("act", "kind", "step")

    def __init__(self, kind: str, step: int) -> None:
        self.kind, self.step, self.act = kind, step, FAULTS[kind]


def kill(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The worker dies before this call; or in the middle of a write, of which a part gets to the disk."""
    rng = story.world.rng
    if name in WRITES and rng.random() < 0.6:
        opened, file = process._file(args[0])
        cut = min(int(len(args[1]) * rng.choice((0.3, 0.9, 1.0))), len(args[1]) - 1)
        if cut > 0 and name == "write":
            torn(story, process, opened, file, args[1], cut)
            process.put_data(opened, file, len(process.content(opened, file)), args[1][:cut])
    story.world.fault(f"{process.name} is killed at {name}")
    story.slurm.killed.add(process.name)
    process.kill()
    raise Crash


def torn(story: Story, process: Process, opened: Any, file: File, data: bytes, cut: int) -> None:
    """Remember a cut write to a log: it must stay void."""
    if opened.append and len(opened.name) == 38:
        story.world.torn.append((file, len(process.content(opened, file)), data))


def kill_decided(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The worker dies when it has decided for an update, before it gives a log the outcome."""
    if name not in WRITES or not bytes(args[1]).startswith(b'{"op":"commit"') or b'"logs"' in bytes(args[1]):
        return False
    story.world.fault(f"{process.name} is killed before it gives a log the outcome of an update")
    process.kill()
    raise Crash


def kill_all(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Power loss."""
    story.world.fault("the power fails")
    story.lose_power(lambda: story.world.disk.lose_power(story.rng))
    raise Crash


def lost_reply(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """It happens, and the repeated request finds it done."""
    exclusive = name == "open" and args[1] & process.O_EXCL
    if name not in NAMES and not exclusive:
        return False
    process.answer = errno.EEXIST if name in EXCLUSIVE else errno.ENOENT
    story.world.fault(f"the reply to {name} of {process.name} is lost")
    return True


def error_after(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """It happens, and an error is reported."""
    if name in NO_ERRORS:
        return False
    process.answer = story.world.rng.choice((errno.EIO, errno.EINTR))
    story.world.fault(f"{process.name} gets {errno.errorcode[process.answer]} from {name} that was done")
    return True


def error(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """It does not happen, and an error is reported."""
    if name in NO_ERRORS:
        return False
    code = story.world.rng.choice(ANY_ERROR)
    story.world.fault(f"{process.name} gets {errno.errorcode[code]} from {name} that was not done")
    raise OSError(code, "simulated", args[0] if args and isinstance(args[0], str) else None)


def unclean(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A clean-up is not done, and an error is reported: a removal, or giving a lock back."""
    if name not in CLEAN_UPS:
        return False
    code = story.world.rng.choice(CLEAN_UP_ERRORS)
    story.world.fault(f"{process.name} gets {errno.errorcode[code]} from {name} with which it cleans up")
    raise OSError(code, "simulated", args[0] if isinstance(args[0], str) else None)


def unclosed(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Closing reports an error. The descriptor is closed all the same.

    On a network mount the error may be that of a write: what was buffered, and not synced, does not get to the server.
    """
    if name != "close":
        return False
    rng = story.world.rng
    code, is_lost = rng.choice(CLOSE_ERRORS), rng.random() < 0.5
    opened, file = process._file(args[0])
    then = ""
    if is_lost and isinstance(process, NfsProcess):
        process.lose_buffered(opened, file)
        then = ", and what was not synced is lost"
    story.world.fault(f"{process.name} gets {errno.errorcode[code]} when it closes {opened.name}{then}")
    process._close(args[0])
    raise OSError(code, "simulated")


def broken(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A call that decides something fails, done or not, and so do the clean-ups that come next."""
    if name not in DECISIVE:
        return False
    rng = story.world.rng
    is_done, code, clean_ups = rng.random() < 0.5, rng.choice(CLEAN_UP_ERRORS), rng.randint(1, 3)
    story.faults[:0] = [Fault("unclean", story.world.disk.step + 1) for _ in range(clean_ups)]
    if is_done:
        process.answer = code = errno.EIO
    how = "was done" if is_done else "was not done"
    story.world.fault(f"{process.name} gets {errno.errorcode[code]} from {name} that {how}, and cannot clean up")
    if not is_done:
        raise OSError(code, "simulated", args[0] if isinstance(args[0], str) else None)
    return True


def full(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The disk is full for a while, from the middle of this write on."""
    if name not in WRITES:
        return False
    rng = story.world.rng
    story.full = rng.choice((1, 2, 5, 20))
    story.full_code = rng.choice((errno.ENOSPC, errno.EDQUOT))
    story.world.cuts[process] = rng.choice((0.0, 0.3, 0.9, 1.0))
    story.world.fault(f"the disk is full when {process.name} writes")
    return True


def delay(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The worker does not move for a while: a suspended job, a slow server."""
    seconds = story.world.rng.choice((0.05, 1.0, 3.0, 11.0, 40.0))
    story.world.fault(f"{process.name} stands still for {seconds} s before {name}")
    story.world.sleep(process, seconds)
    return True


def nap(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The worker does not move for days."""
    story.world.fault(f"{process.name} stands still for two days before {name}")
    story.world.sleep(process, 2 * DAY_S)
    return True


def stop(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The worker is stopped inside a critical section, for ever or until much later."""
    if not process.has_lock():
        return False
    seconds = story.world.rng.choice((math.inf, 100.0, LONG_S))
    story.world.fault(f"{process.name} is stopped before {name}, for {seconds} s")
    story.world.sleep(process, seconds)
    return True


def fork(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The process forks inside a critical section. The child is stopped at once, with all open that its parent has.

    So a lock that is only closed stays taken, until the story ends.
    """
    if not process.has_lock():
        return False
    story.world.fault(f"{process.name} forks before {name}, and the child is stopped")
    story.processes.append(process.fork(f"a child of {process.name}"))
    return True


def locks_of(story: Story, process: Process) -> list[Opened]:
    """The open files that processes of the same host have locked."""
    return [
        one
        for other in story.processes
        if other.host is process.host and not other.dead
        for one in other.fds.values()
        if isinstance(one.node, File) and one.node.owner is one
    ]


def lose_locks(story: Story, process: Process) -> bool:
    """The server forgets the locks of a host; False if it has none."""
    held = locks_of(story, process)
    for opened in held:
        assert isinstance(opened.node, File)
        opened.node.owner = None
        opened.node.lost_at = process.world.disk.step
        opened.lost = True
    return bool(held)


def cut_off(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """The client loses touch with the server, with a call under way perhaps, loses its locks, and comes back."""
    if not isinstance(process, NfsProcess):
        return True
    if not lose_locks(story, process):
        return False
    rng = story.world.rng
    seconds = rng.choice((0.0, 5.0, 95.0, LONG_S))
    story.world.fault(f"{process.host.name} is cut off before {name} of {process.name}, for {seconds} s")
    if rng.random() < 0.5:
        story.world.sleep(process, seconds)
    return True


def away(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A client is away for days, as a suspended laptop is: its locks are gone when it goes on."""
    lose_locks(story, process)
    story.world.fault(f"{process.host.name} is away for two days before {name} of {process.name}")
    story.world.sleep(process, 2 * DAY_S)
    return True


def clean(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A cleaner of scratch space removes the empty directories of the queue."""
    if clean_up(story):
        story.world.fault(f"empty directories are removed before {name} of {process.name}")
        return True
    return False


def clean_up(story: Story) -> int:
    """Remove the queue's empty directories; how many there were."""
    top = _queue_directory(story)
    return 0 if top is None else story.world.disk.remove_empty_directories(top)


def is_clean(story: Story) -> bool:
    """Whether the queue has no empty directories."""
    top = _queue_directory(story)
    return top is None or not _has_empty(top)


def _has_empty(top: Directory) -> bool:
    inner = [node for node in top.entries.values() if isinstance(node, Directory)]
    return any(not node.entries or _has_empty(node) for node in inner)


def _queue_directory(story: Story) -> Directory | None:
    top: Any = story.world.disk.root
    for part in QUEUE.split("/")[1:]:
        top = top.entries.get(part) if isinstance(top, Directory) else None
    return top if isinstance(top, Directory) else None


def moved(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Somebody moves a queue out of its group, and back a while later, if no other one has come into its place."""
    which = story.world.rng.choice(("q", "r"))
    group = story.world.disk.root.entries.get(GROUP.removeprefix("/"))
    if not isinstance(group, Directory) or which not in group.entries:
        return False
    _move(story, process, name, group, which)
    return True


def moved_group(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Somebody moves the whole group, and back a while later, if no other one has come into its place."""
    root, which = story.world.disk.root, GROUP.removeprefix("/")
    if not isinstance(root.entries.get(which), Directory):
        return False
    _move(story, process, name, root, which)
    return True


def _move(story: Story, process: Process, name: str, above: Directory, which: str) -> None:
    """Move a queue or the group away, for a while or for good."""
    disk = story.world.disk
    seconds = story.world.rng.choice((0.1, 3.0, 11.0, 2 * DAY_S))
    story.world.fault(f"{which} is moved away before {name} of {process.name}, for {seconds} s")
    target = f"{AWAY}-{which}-{disk.moved_directories}"  # another one of this name may be away already
    disk.move(above, which, disk.root, target)
    begin, began = disk.step, story.world.now
    disk.moved.append(began)
    try:
        story.world.sleep(process, seconds)
    finally:
        if which not in above.entries:
            disk.move(disk.root, target, above, which)
        elif above is disk.root:
            for queue in (QUEUE, BESIDE):
                own = queue.rpartition("/")[2]
                disk.lose(begin, Lost(own, began, f"/{target}/{own}"))
        else:  # what is in it is the group's no more
            disk.lose(begin, Lost(which, began, f"/{target}"))
        disk.moved.append(story.world.now)
        disk.away.append((begin, disk.step))


def interrupt(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Ctrl-C, just before a call or just after it; the process lives on."""
    after = story.world.rng.random() < 0.5
    story.world.fault(f"{process.name} is interrupted {'after' if after else 'before'} {name}")
    if not after:
        raise KeyboardInterrupt
    process.answer = INTERRUPTED
    return True


def host_dies(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A client is switched off: what it had buffered is gone."""
    host = process.host
    if isinstance(host, Client):
        for pages in host.pages.values():
            pages.dirty.clear()
    story.world.fault(f"{host.name} is switched off")
    for other in story.processes:
        if other.host is host and not other.dead:
            other.kill()
    if isinstance(host, Client):
        host.pages.clear()  # started again, it does not show what it never sent
    raise Crash


def clock_step(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """A host's clock is set, forward or back. Where the server's is measured, that must change nothing."""
    seconds = story.world.rng.choice((-DAY_S, -400.0, 400.0, DAY_S))
    story.world.fault(f"the clock of {process.host.name} is set by {seconds:+.0f} s before {name} of {process.name}")
    process.host.skew_s += seconds
    if not story.scenario.compare_clocks:
        story.skew_s += abs(seconds)
    return True


def trouble(how: str) -> Act:
    """Return what lets a command of Slurm go wrong, now and then some times in a row: see `slurm.TROUBLES`."""

    def act(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
        if name != TROUBLES[how]:
            return False
        times = story.world.rng.choice((1, 1, 2, 9))
        story.slurm.troubles.setdefault(name, []).extend([how] * times)
        story.world.fault(f"{name} of {process.name} is {how}, and so are {times - 1} more calls")
        return True

    return act


def requeue(story: Story, process: Process, name: str, args: tuple[Any, ...]) -> bool:
    """Slurm ends the job that the process is of, and lets it begin anew."""
    job = story.slurm.job_of(process)
    if job is None or job.state != "runs":
        return False
    story.world.fault(f"job {job.number} is requeued before {name} of {process.name}")
    story.slurm.requeue(job)
    raise Crash


FAULTS: dict[str, Act] = {
    **{how: trouble(how) for how in TROUBLES},
    "requeue": requeue,
    "kill": kill,
    "decided": kill_decided,
    "power": kill_all,
    "reply": lost_reply,
    "after": error_after,
    "error": error,
    "unclean": unclean,
    "unclosed": unclosed,
    "broken": broken,
    "full": full,
    "delay": delay,
    "nap": nap,
    "away": away,
    "clean": clean,
    "moved": moved,
    "moved-group": moved_group,
    "interrupt": interrupt,
    "stop": stop,
    "fork": fork,
    "cut": cut_off,
    "host": host_dies,
    "clock": clock_step,
}


def draw(rng: Random, kinds: list[str], most: int, horizon: int) -> list[Fault]:
    """Up to `most` faults of these kinds at random steps, the first one first; now and then none."""
    number = min(int(rng.expovariate(0.8) + 0.8), most) if kinds else 0
    return sorted((Fault(rng.choice(kinds), rng.randint(1, horizon)) for _ in range(number)), key=lambda one: one.step)
