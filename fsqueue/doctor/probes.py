"""Probes of what a queue needs of a filesystem, from one process (docs/doctor.md).

Each makes files of its own in a directory, looks, and removes them. `quick` is what creating a queue runs: some
milliseconds on a local disk, some dozens of calls to a file server.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import FULL, NO_DESCRIPTORS, NO_LOCKS
from fsqueue.filesystem import Filesystem, Mount, mountadvice
from fsqueue.interruptions import suppress

NOT_OURS = (*FULL, *NO_DESCRIPTORS, errno.EFBIG, errno.EROFS, errno.EACCES)
"""Errors that say nothing about what the filesystem can do: they are raised."""

SHOWN_S = 5.0
"""Seconds to wait for this host to see its own changes."""
STAMPS, STAMPS_S, STAMP_PAUSE_S = 4, 3.0, 0.002
"""Number of different stamps to see, seconds to try for, and the pause between two tries."""
COARSE_S = 0.5
"""Stamps in steps this large say little about the time."""
OK, WARNING, UNFIT, UNTRIED = mountadvice.OK, mountadvice.WARNING, mountadvice.UNFIT, "untried"
"""A queue's need is met; met, but with a limit that users should know; not met; not tested."""
SKEW_S = 1.0
"""A host's clock is well set if it is not further from the file server's than this."""
ASK_LOCKS = (
    "Use another filesystem, or ask for the mount option that makes file locks work (Lustre: 'flock'; NFS: "
    "'local_lock=none', and a running lock service; BeeGFS: 'tuneUseGlobalFileLocks = true')."
)
ASK_ANOTHER = "Use another filesystem (NFS 4, Lustre with 'flock', ext4, xfs, ...)."


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The finding of one probe. `seen` and `advice` are sentences for people; `figures` numbers for programs."""

    probe: str
    verdict: str
    seen: str
    advice: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def worst(findings: Iterable[ProbeResult]) -> str:
    """Return the verdict over all: unfit if anything is, else with a warning if anything has one, else ok."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in (UNFIT, WARNING) if verdict in verdicts), OK)


def about(mount: Mount) -> ProbeResult:
    """Return what is known of a mount, as a finding."""
    verdict, seen, advice = mountadvice.advice_on(mount)
    return ProbeResult(
        "mount",
        verdict,
        f"{mount.kind} at {mount.point} ({mount.options}): {seen}",
        advice,
        {"type": mount.kind, "point": mount.point, "options": mount.options, "source": mount.source},
    )


class Bench:
    """Where probes work: fresh names that begin with `prefix`, all of which are removed in the end."""

    def __init__(self, fs: Filesystem, prefix: str, clock: Clock, entropy: Entropy) -> None:
        self.fs = fs
        self.clock = clock
        self.directory = prefix.rpartition("/")[0]
        self._prefix, self._entropy = prefix, entropy
        self._made: list[str] = []

    def path(self) -> str:
        """Return a name that no process has used."""
        self._made.append(self._prefix + self._entropy.hex16())
        return self._made[-1]

    @contextmanager
    def file(self, path: str | None = None) -> Iterator[tuple[str, int]]:
        """Make a file, and open it for appending."""
        path = path or self.path()
        with self.fs.closing(self.fs.create(path)) as fd:
            yield path, fd

    def again(self, path: str) -> AbstractContextManager[int]:
        """Open the file once more, by a revalidating open, for a `with` block."""
        return self.fs.closing(self.fs.look(path, os.O_RDWR | os.O_APPEND))

    def clean(self) -> None:
        """Remove what was made, as far as it can be."""
        for path in self._made:
            with suppress(OSError):
                self.fs.unlink(path)
        self._made.clear()


Probe = Callable[[Bench], ProbeResult]


def run(bench: Bench, probe: Probe) -> ProbeResult:
    """Make one probe, and return its finding. An error of the filesystem is one, too, but NOT_OURS are raised."""
    try:
        return probe(bench)
    except OSError as error:
        if error.errno in NOT_OURS:
            raise
        advice = ASK_LOCKS if error.errno in NO_LOCKS and probe is locks else ASK_ANOTHER
        name = probe.__name__.replace("_", " ")
        return ProbeResult(name, UNFIT, f"it fails: {error.strerror or error}.", advice)


def quick(bench: Bench) -> list[ProbeResult]:
    """Make the probes that take some milliseconds, and return their findings."""
    try:
        return [run(bench, probe) for probe in QUICK]
    finally:
        bench.clean()


def full(bench: Bench) -> list[ProbeResult]:
    """Make all probes that one process can make, which takes up to some seconds, and return their findings."""
    try:
        return [run(bench, probe) for probe in (*QUICK, directories, listing, timestamps, clock)]
    finally:
        bench.clean()


# -- quick ------------------------------------------------------------------------------------------


def locks(bench: Bench) -> ProbeResult:
    """Check that two openings of one file exclude each other, and that a reader without a lock can still read."""
    fs = bench.fs
    with bench.file() as (path, first), bench.again(path) as second:
        fs.write_all(first, b"locked\n")
        if not fs.try_lock(first):
            return ProbeResult("locks", UNFIT, "a file that no process has locked cannot be locked.", ASK_LOCKS)
        if fs.try_lock(second):
            return ProbeResult(
                "locks", UNFIT, "locks do not exclude: two openings of one file could both lock it.", ASK_LOCKS
            )
        try:
            fs.pread(second, 7, 0)
        except OSError as error:
            return ProbeResult(
                "locks",
                UNFIT,
                f"a locked file cannot be read by others ({error.strerror}): locks are mandatory here.",
                "SMB: ask for POSIX extensions (SMB 3.1.1 'posix'), or use NFS.",
            )
        fs.unlock(first)
        if not fs.try_lock(second):
            return ProbeResult("locks", UNFIT, "a lock that was given back is still taken.", ASK_LOCKS)
        fs.unlock(second)
    return ProbeResult("locks", OK, "two openings of a file exclude each other; a locked file can be read.")


def appending(bench: Bench) -> ProbeResult:
    """Check that two openings can append by turns, each under the lock."""
    fs = bench.fs
    with bench.file() as (path, first), bench.again(path) as second:
        for fd, line in ((first, b"1\n"), (second, b"2\n"), (first, b"3\n")):
            fs.try_lock(fd)
            fs.write_all(fd, line)
            if fs.shared:
                fs.fsync(fd)
            fs.unlock(fd)
        found = fs.read(path)
    if found != b"1\n2\n3\n":
        return ProbeResult("appending", UNFIT, f"of three appended lines {found!r} is there.", ASK_ANOTHER)
    return ProbeResult("appending", OK, "lines that two openings append by turns are all there, in order.")


def exclusive_create(bench: Bench) -> ProbeResult:
    """Check that a name can be created only once."""
    with bench.file() as (path, _):
        try:
            bench.fs.close(bench.fs.create(path))
        except FileExistsError:
            return ProbeResult("exclusive create", OK, "a name that is taken is refused.")
    return ProbeResult("exclusive create", UNFIT, "a name that was taken was created again.", ASK_ANOTHER)


def link(bench: Bench) -> ProbeResult:
    """Check that a file can have a second name in its directory, and that a name which is taken is refused.

    Creating a queue and deciding a commit depend on both.
    """
    fs, second = bench.fs, bench.path()
    with bench.file() as (path, fd):
        try:
            fs.link(path, second)
        except OSError as error:
            if error.errno in FULL:
                raise
            return ProbeResult("link", UNFIT, f"hard links do not work: {error.strerror or error}.", ASK_ANOTHER)
        if not fs.same_file(fd, second):
            return ProbeResult(
                "link", UNFIT, "two names of one file have different inode numbers: they look like two.", ASK_ANOTHER
            )
        try:
            fs.link(path, second)
        except FileExistsError:
            return ProbeResult("link", OK, "a file can have a second name; one that is taken is refused.")
    return ProbeResult("link", UNFIT, "linking to a name that was taken succeeded.", ASK_ANOTHER)


def rename(bench: Bench) -> ProbeResult:
    """Check that renaming moves the very file, replaces what has the new name, and fails if it came too late."""
    fs, fresh = bench.fs, bench.path()
    with bench.file() as (path, fd), bench.file() as (taken, _):
        if not fs.rename(path, fresh) or fs.exists(path) or not fs.same_file(fd, fresh):
            return ProbeResult("rename", UNFIT, "a file that was renamed is not where it should be.", ASK_ANOTHER)
        if fs.rename(path, fresh):
            return ProbeResult("rename", UNFIT, "renaming a name that was gone succeeded: two would win.", ASK_ANOTHER)
        if not fs.rename(fresh, taken) or not fs.same_file(fd, taken):
            return ProbeResult("rename", UNFIT, "renaming does not replace the file that has the name.", ASK_ANOTHER)
    return ProbeResult("rename", OK, "it moves the very file, replaces what is there, and only one can win.")


def sync(bench: Bench) -> ProbeResult:
    """Check that files and directories can be made durable."""
    with bench.file() as (_, fd):
        bench.fs.write_all(fd, b"durable\n")
        bench.fs.fsync(fd)
    try:
        bench.fs.sync_directory(bench.directory)
    except OSError as error:
        return ProbeResult("sync", UNFIT, f"directories cannot be synced: {error.strerror or error}.", ASK_ANOTHER)
    return ProbeResult("sync", OK, "files and directories can be synced.")


QUICK: tuple[Probe, ...] = (locks, appending, exclusive_create, link, rename, sync)


# -- not so quick -------------------------------------------------------------------------------------


def directories(bench: Bench) -> ProbeResult:
    """Check that files can be renamed from one directory into another, and whole directories can be renamed."""
    fs, one, two = bench.fs, bench.path(), bench.path()
    fs.make_directory(one)
    try:
        with bench.file(f"{one}/file") as (path, fd):
            fs.make_directory(two)
            if not fs.rename(path, f"{two}/file") or not fs.same_file(fd, f"{two}/file"):
                return ProbeResult("directories", UNFIT, "a file cannot move to another directory.", ASK_ANOTHER)
            if not fs.rename(two, f"{one}/inner") or not fs.same_file(fd, f"{one}/inner/file"):
                return ProbeResult("directories", UNFIT, "a directory cannot move into another.", ASK_ANOTHER)
    finally:
        fs.remove_tree(one)
        fs.remove_tree(two)
    return ProbeResult("directories", OK, "files and directories move from one directory into another.")


def listing(bench: Bench) -> ProbeResult:
    """Find out whether this host sees its own changes at once: in a listing, by a revalidating open, by reading."""
    fs, clock = bench.fs, bench.clock

    def until(seen: Callable[[], bool]) -> float | None:
        begin = clock.monotonic()
        while not seen():
            if clock.monotonic() - begin > SHOWN_S:
                return None
            clock.sleep(0.01)
        return clock.monotonic() - begin

    with bench.file() as (path, fd):
        name = path.rpartition("/")[2]
        waits = [until(lambda: name in fs.names(bench.directory)), until(lambda: fs.exists(path))]
        fs.write_all(fd, b"seen\n")
        waits.append(until(lambda: fs.read(path) == b"seen\n"))
        fs.unlink(path)
        waits += [until(lambda: not fs.exists(path)), until(lambda: name not in fs.names(bench.directory))]
    if None in waits:
        return ProbeResult(
            "listing", UNFIT, f"this host does not see its own changes for more than {SHOWN_S:g} s.", ASK_ANOTHER
        )
    slowest = max(wait for wait in waits if wait is not None)
    if slowest > 1:
        return ProbeResult(
            "listing", WARNING, f"this host sees its own changes only after {slowest:.1f} s.", ASK_ANOTHER
        )
    return ProbeResult("listing", OK, "this host sees its own changes at once.", figures={"seconds": round(slowest, 3)})


def timestamps(bench: Bench) -> ProbeResult:
    """Find out in which steps files are stamped."""
    fs, clock = bench.fs, bench.clock
    stamps: list[int] = []
    begin = clock.monotonic()
    with bench.file() as (_, fd):
        while len(stamps) < STAMPS and clock.monotonic() - begin < STAMPS_S:
            fs.write_all(fd, b".")
            if fs.shared:
                fs.fsync(fd)
            stamp = fs.fstat(fd).st_mtime_ns
            if stamps[-1:] != [stamp]:
                stamps.append(stamp)
            clock.sleep(STAMP_PAUSE_S)
    if len(stamps) < 2:
        return ProbeResult(
            "timestamps", WARNING, f"the stamp of a file that is written to did not change in {STAMPS_S:g} s.",
            "Times of the file server cannot be told: keep the hosts' clocks set (NTP).",
        )  # fmt: skip
    step = min(abs(after - before) for before, after in pairwise(stamps)) / 1e9
    figures = {"step_s": step}
    if step >= COARSE_S or not any(stamp % 10**9 for stamp in stamps):
        return ProbeResult(
            "timestamps", WARNING, f"files are stamped in steps of {max(step, 1.0):g} s.",
            "The file server's clock is known no better than that: lease for minutes rather than seconds.", figures,
        )  # fmt: skip
    return ProbeResult(
        "timestamps", OK, f"files are stamped in steps of at most {step * 1000:.3g} ms.", figures=figures
    )


def clock(bench: Bench) -> ProbeResult:
    """Measure how far this host's clock is from the one that stamps the files."""
    measured = Clock()
    bench.fs.compare_clock(measured, bench.path())
    offset, error = measured.offset_ms / 1000, measured.error_ms / 1000
    figures = {"offset_s": offset, "error_s": error}
    way = "ahead of" if offset > 0 else "behind"
    seen = f"the clock that stamps the files is {abs(offset):.3f} s {way} this host's (within {error:.3f} s)."
    if abs(offset) - error > SKEW_S:
        return ProbeResult(
            "clock", WARNING, seen, "fsqueue goes by the server's clock where it can; set this host's (NTP).", figures
        )
    return ProbeResult("clock", OK, seen, figures=figures)


def untried(probe: str, why: str, advice: str = "") -> ProbeResult:
    """Return a finding of a probe that could not be made."""
    return ProbeResult(probe, UNTRIED, why, advice)
