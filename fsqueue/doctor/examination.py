"""The doctor: is this mount fit for a queue, and if not, what to ask the administrator for (docs/doctor.md).

`examine` looks from one host; `join` does so and then makes the tests that need two, together with another host.
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fsqueue.clock import Clock, Entropy
from fsqueue.doctor import contests, probes, rendezvous, twohosts
from fsqueue.doctor.probes import OK, UNFIT, UNTRIED, WARNING, ProbeResult, about, worst
from fsqueue.doctor.rendezvous import PartnerLost, Rendezvous
from fsqueue.errors import FULL, NO_DESCRIPTORS, FsqueueError, InvalidArgument, NotAQueue
from fsqueue.filesystem import Filesystem, Mount, mount_of
from fsqueue.filesystem.open_directories import Displaced, OpenDirectory, is_directory
from fsqueue.filesystem.processes import boot_id
from fsqueue.filesystem.quota import quota_of
from fsqueue.format.wording import counted
from fsqueue.interruptions import suppress
from fsqueue.storage.discovery import queue_path
from fsqueue.upkeep import doctorplaces
from fsqueue.views import stuck_locks

__all__ = ["ProbeResult", "Report", "examine", "join"]

BYTES_LOW, FILES_LOW = 100 << 20, 10_000
"""Warn if less room than this is left."""

NAMES_MAX = 100_000
"""Maximum number of names among which leftovers of killed doctors are looked for: strangers may have made more."""
MEETINGS = 20
"""Maximum number of tries to enter the meeting place. The last party to leave may remove it at the same moment."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """The doctor's findings on the mount that holds `path`."""

    path: str
    host: str
    mount: Mount
    findings: list[ProbeResult] = field(default_factory=list)
    stuck: list[stuck_locks.StuckLock] = field(default_factory=list)
    partner: str | None = None
    """The other host, if the tests between two were made to their end."""
    same_host: bool = False
    """Whether that other host was this one, so that the tests show nothing about two."""

    @property
    def verdict(self) -> str:
        """Return ok, warning or unfit: the worst of all findings. A stuck lock is worth a warning."""
        verdict = worst(self.findings)
        return WARNING if verdict == OK and self.stuck else verdict

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict, for JSON."""
        return {
            "path": self.path,
            "host": self.host,
            "partner": self.partner,
            "same_host": self.same_host,
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
            "stuck": [lock.as_dict() for lock in self.stuck],
        }


def examine(path: str | os.PathLike[str], *, progress: Progress = lambda step: None) -> Report:
    """Examine the mount that holds `path` (a queue or any directory) from this host.

    It takes some seconds, and removes what it wrote. InvalidArgument if nothing is at `path`, NotAQueue if it is a
    file; any other trouble is a finding.
    """
    examination = Examination(path, progress)
    if examination.mount.shared:
        advice = f"Type 'fsqueue doctor {shlex.quote(examination.report.path)} --join' here and on a second host."
        seen = "whether locks exclude between hosts cannot be seen from one."
        examination.report.findings.append(ProbeResult("two hosts", UNTRIED, seen, advice))
    return examination.report


def join(
    path: str | os.PathLike[str],
    *,
    timeout_s: float = 300,
    progress: Progress = lambda step: None,
    waiting: Callable[[], None] = lambda: None,
) -> Report:
    """Examine from this host, then make the tests that need two, with whichever host joins within `timeout_s`.

    Both hosts call this, with the same path. `waiting()` is called if the other is not there yet. If no other host
    comes, or it falls silent, the report has no `partner`, and a finding that says so.
    """
    examination = Examination(path, progress)
    examination.join(timeout_s, waiting)
    return examination.report


class Examination:
    """An examination from one host. It works in places of its own, which it holds by descriptor."""

    def __init__(
        self, path: str | os.PathLike[str], progress: Progress, make: Callable[..., Filesystem] = Filesystem
    ) -> None:
        where = queue_path(path)
        check_is_directory(where)
        self.directory = where
        self.mount = mount_of(where)
        self.make = make
        self.clock, self.entropy = Clock(), Entropy()
        self.progress = progress
        self.report = Report(where, socket.gethostname(), self.mount)
        self.report.findings.append(about(self.mount))
        self._look()

    def filesystem(self, place: OpenDirectory) -> Filesystem:
        """Return a filesystem whose root is a place. The place is closed when the filesystem is collected.

        After an interruption a thread of a contest may still be at work. If the place were closed by then, the thread
        would write to whatever file gets the descriptor's number next.
        """
        fs = self.make(place.path, shared=self.mount.shared)
        place.close_after(fs)
        return fs

    def _look(self) -> None:
        report = self.report
        try:
            with OpenDirectory.at(self.directory) as directory:
                report.findings.append(space(self.make(self.directory), self.directory, self.mount))
                self._work(directory)
        except OSError as error:
            report.findings.append(unwritable(error))
        if "scratch" in self.directory.lower():
            report.findings.append(
                ProbeResult(
                    "idle files",
                    OK,
                    "the path says scratch: such systems delete files not touched for weeks, waiting tasks among them.",
                    "Ask what the rule is; 'fsqueue gc --touch' refreshes a queue's files.",
                )
            )
        self.progress("stuck locks")
        with suppress(FsqueueError, OSError):  # no queue, or one that cannot be opened: as the other findings say
            report.stuck = stuck_locks.of_queue(report.path)

    def _work(self, directory: OpenDirectory) -> None:
        """Make all probes in a new place, and remove it in the end. Remove what killed doctors left, too."""
        if not directory.is_followed:
            self.report.findings.append(without_proc("locks, writing, names, syncing, stamps and the clock"))
            return
        place = doctorplaces.make_place(directory, self.entropy.hex16)
        fs = self.filesystem(place)
        try:
            with suppress(OSError):  # this user may write here, but not list
                doctorplaces.reap(directory, directory.names(NAMES_MAX), place.stat().st_mtime)
            self._probe(fs, place)
        finally:
            doctorplaces.remove_place(directory, place)

    def _probe(self, fs: Filesystem, place: OpenDirectory) -> None:
        findings = self.report.findings
        self.progress("probes")
        findings += probes.full(probes.Bench(fs, f"{place.path}/probe-", self.clock, self.entropy))
        for kind in ("threads", "processes"):
            self.progress(f"contests between {kind}")
            inside = f"{place.path}/{kind}"
            fs.make_directory(inside)
            if kind == "threads":
                findings += contests.among_threads(lambda: fs, inside)
            else:
                findings += contests.among_processes(fs, inside, (place.fd,))

    # -- with another host ------------------------------------------------------------------------------

    def join(self, timeout_s: float, waiting: Callable[[], None]) -> None:
        """Run the tests between two hosts, and add them to the report."""
        findings = self.report.findings
        try:
            with OpenDirectory.at(self.directory) as directory:
                if not directory.is_followed:
                    findings.append(without_proc("what two hosts do together"))
                    return
                try:
                    self._join(directory, timeout_s, waiting)
                finally:
                    doctorplaces.leave_meeting_place(directory)
        except PartnerLost as error:
            advice = f"Check that the other host sees {self.directory}, and repeat the command on both."
            findings.append(ProbeResult("two hosts", WARNING, f"The tests were not made to their end. {error}", advice))
        except doctorplaces.UnsafePlace as error:
            advice = "Ask that user to remove it, or make these tests in a directory of your own on the same mount."
            findings.append(ProbeResult("two hosts", WARNING, f"The tests were not made: {error.strerror}.", advice))
        except OSError as error:
            findings.append(unwritable(error))

    def _join(self, directory: OpenDirectory, timeout_s: float, waiting: Callable[[], None]) -> None:
        identity = self.identity(directory)
        place, meeting = self._come(directory)
        contest = Contest(self, place, meeting)
        try:
            there = meeting.meet(identity, timeout_s, waiting)
            host = there["host"][: rendezvous.HOST_CHARS_MAX] or "?"
            self.report.findings += self.about_partner(host, there, identity)
            if meeting.with_stranger:
                seen = f"the other party, which calls itself {host}, is another user: what follows rests on its word."
                advice = "Make these tests in a directory that only you can write in."
                self.report.findings.append(ProbeResult("two hosts", WARNING, seen, advice))
            try:
                self.report.findings += twohosts.examine(meeting, contest.enter, self.progress)
            except OSError:
                meeting.heed_end()
                raise
            meeting.finish()
            self.report.partner = host
        finally:
            try:
                meeting.close()  # first: if the partner misses anything else, it learns why
            except OSError:
                pass  # what is left is removed by a later doctor
            finally:
                contest.leave()
            if meeting.lost:
                doctorplaces.clear_away(place, meeting.partner)

    def _come(self, directory: OpenDirectory) -> tuple[OpenDirectory, Rendezvous]:
        """Enter the meeting place, and announce this party there: from then on no process removes it."""
        for left in reversed(range(MEETINGS)):
            place = doctorplaces.meeting_place(directory, self.entropy.hex16)
            meeting = Rendezvous(self.filesystem(place), place.path, self.clock, self.entropy)
            try:
                meeting.announce()
                return place, meeting
            except FileNotFoundError:  # the last party to leave has just removed it
                if not left:
                    raise
        raise AssertionError("unreachable")

    def identity(self, directory: OpenDirectory) -> dict[str, Any]:
        """Return the description of this host that the partner gets."""
        mount = self.report.findings[0]
        return {
            "host": rendezvous.say(self.report.host, rendezvous.HOST_CHARS_MAX) or "?",
            "boot": boot_id(),
            "device": directory.stat().st_dev,
            "mount": replace(
                mount,
                seen=rendezvous.say(mount.seen),
                figures={name: rendezvous.say(str(figure)) for name, figure in mount.figures.items()},
            ).as_dict(),
        }

    def about_partner(self, host: str, there: dict[str, Any], mine: dict[str, Any]) -> list[ProbeResult]:
        """Return the partner's mount as a finding, and a warning if the partner is this host itself."""
        findings = [ProbeResult(f"mount of {host}", **there["mount"])]
        if (there["boot"], there["device"]) == (mine["boot"], mine["device"]):
            self.report.same_host = True
            seen = "both ends run on the same host and mount: this shows nothing about two."
            findings.append(ProbeResult("two hosts", WARNING, seen, "Run the command on another host."))
        return findings


class Contest:
    """Hold the place of the tests between two hosts. The leading party makes it; of others only a partner enters."""

    def __init__(self, examination: Examination, place: OpenDirectory, meeting: Rendezvous) -> None:
        self.examination, self.place, self.meeting = examination, place, meeting
        self.inside: OpenDirectory | None = None
        self.fs: Filesystem | None = None
        """Keeps the place open."""

    def enter(self) -> contests.Party:
        """Make the place, or open the one that the partner has made."""
        meeting, entropy = self.meeting, self.examination.entropy
        try:
            if meeting.leads:
                inside = doctorplaces.make_contest(self.place, meeting.me, meeting.with_stranger, entropy.hex16)
            else:
                inside = doctorplaces.enter_contest(self.place, meeting.partner)
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            meeting.heed_end()
            raise rendezvous.Nonsense("the place for the tests is not there, or not as it was made") from None
        self.inside, self.fs = inside, self.examination.filesystem(inside)
        return contests.Party(meeting.me, self.fs, inside.path, meeting.clock, entropy, inside.stat().st_uid)

    def leave(self) -> None:
        """Remove the place, if this party made it."""
        if self.inside is not None and self.meeting.leads:
            doctorplaces.remove_place(self.place, self.inside)


def check_is_directory(path: str) -> None:
    """Raise NotAQueue if a file is at `path`, and InvalidArgument, with a directory to name instead, if nothing is."""
    try:
        if not is_directory(path):
            raise NotAQueue(f"{path} is a file. Give the doctor a queue or a directory.")
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidArgument(
            f"There is nothing at {path}. Give the doctor a directory that is there. The nearest one is {_above(path)}"
        ) from None
    except OSError:
        pass  # it cannot be looked at: the probes will say why


def _above(path: str) -> str:
    """Return the nearest directory above a path at which nothing is."""
    while True:
        path = path.rpartition("/")[0] or "/"
        with suppress(OSError):
            if is_directory(path):
                return path


def without_proc(what: str) -> ProbeResult:
    """Return the finding for a host without /proc, through which alone places can be held: `what` was not examined."""
    return ProbeResult(
        "probes",
        WARNING,
        f"there is no /proc, or it cannot be read: {what} were not examined. Without it others could exchange the "
        "place where the doctor works.",
        "Run the doctor where /proc is mounted (in a container: with its own /proc).",
    )


def unwritable(error: OSError) -> ProbeResult:
    """Return the finding that says why nothing can be tried."""
    if error.errno == errno.EROFS:
        return ProbeResult("writing", UNFIT, "it is mounted read-only.", "Use a mount that is writable.")
    if isinstance(error, Displaced):
        advice = "Examine a directory that strangers cannot write in."
        return ProbeResult("writing", UNFIT, f"{error.strerror}.", advice)
    if error.errno in (errno.EACCES, errno.EPERM):
        seen = f"this user may not write here: {error.strerror}."
        return ProbeResult("writing", UNFIT, seen, "Ask the owner of the directory for permission to write.")
    if error.errno in FULL:
        return ProbeResult(
            "writing", UNFIT, f"there is no room: {error.strerror}.", "Make room, or ask for more quota."
        )
    if error.errno in (*NO_DESCRIPTORS, errno.EFBIG):
        limit = "of a file's size ('ulimit -f')" if error.errno == errno.EFBIG else "of open files ('ulimit -n')"
        seen = f"nothing was tried: {error.strerror}. The filesystem is not to blame."
        return ProbeResult("writing", UNFIT, seen, f"Raise the limit {limit}.")
    return ProbeResult("writing", UNFIT, f"the filesystem fails: {error.strerror or error}.", "Ask the administrator.")


def space(fs: Filesystem, directory: str, mount: Mount) -> ProbeResult:
    """Return how many bytes and files there is room for, by the disk and by quotas."""
    found = fs.space(directory)
    figures: dict[str, Any] = {}
    if found.f_blocks:  # ramfs, and FUSE systems without statfs, tell none: that is no full disk
        figures["bytes_free"] = found.f_bavail * found.f_frsize
    if found.f_files:
        figures["files_free"] = found.f_favail
    whose = []
    for quota in quota_of(mount):
        whose.append(f"quota of {quota.whose}")
        if quota.bytes_limit:
            left = max(0, quota.bytes_limit - quota.bytes_used)
            figures["bytes_free"] = min(figures.get("bytes_free", left), left)
        if quota.files_limit:
            left = max(0, quota.files_limit - quota.files_used)
            figures["files_free"] = min(figures.get("files_free", left), left)
    room, files = figures.get("bytes_free"), figures.get("files_free")
    parts = ["an unknown number of bytes" if room is None else f"{room / 2**30:,.1f} GiB"]
    parts += [] if files is None else [counted(files, "file")]
    seen = f"room for {' and '.join(parts)}"
    seen += f" ({', '.join(whose)})." if whose else "; no quota is to be seen from here."
    if room == 0 or files == 0:
        return ProbeResult("space", UNFIT, seen, "Make room, or ask for more quota.", figures)
    if (room is not None and room < BYTES_LOW) or (files is not None and files < FILES_LOW):
        return ProbeResult("space", WARNING, seen, "That is little. Make room, or ask for more quota.", figures)
    if room is None:
        return ProbeResult("space", UNTRIED, f"the filesystem does not tell how much is free: {seen}", figures=figures)
    return ProbeResult("space", OK, seen, figures=figures)
