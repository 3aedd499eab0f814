"""The doctor: is this mount fit for a queue, and if not, what to ask the administrator for (docs/doctor.md).

`examine` looks from one host; `join` does so and then makes the tests that need two, together with another host.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fsqueue import names, stuck, upkeep
from fsqueue.clock import Clock, Entropy
from fsqueue.doctor import contests, mountadvice, probes, twohosts
from fsqueue.doctor.rendezvous import PartnerLost, Rendezvous
from fsqueue.doctor.verdicts import OK, UNFIT, UNTRIED, WARNING, Finding, worst
from fsqueue.errors import FULL, FsqueueError, NotAQueue
from fsqueue.filesystem import Filesystem, Mount, mount_of
from fsqueue.filesystem.holders import boot_id
from fsqueue.filesystem.quota import quota_of
from fsqueue.layout import DOCTOR

__all__ = ["Finding", "Report", "examine", "join"]

BYTES_LOW, FILES_LOW = 100 << 20, 10_000
"""Less room than this is worth a warning."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What the doctor found. `directory` is where it looked: the path itself, or what will hold it."""

    path: str
    directory: str
    host: str
    mount: Mount
    findings: list[Finding] = field(default_factory=list)
    stuck: list[stuck.StuckLock] = field(default_factory=list)
    partner: str | None = None
    """The other host, if the tests between two were made to their end."""

    @property
    def verdict(self) -> str:
        """ok, warning or unfit: the worst of all findings. A stuck lock is worth a warning."""
        verdict = worst(self.findings)
        return WARNING if verdict == OK and self.stuck else verdict

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "path": self.path,
            "directory": self.directory,
            "host": self.host,
            "partner": self.partner,
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
            "stuck": [lock.as_dict() for lock in self.stuck],
        }


def examine(path: str | os.PathLike[str], *, progress: Progress = lambda step: None) -> Report:
    """Examine the mount that holds `path` (a queue, a directory, or what is not there yet) from this host.

    Some seconds. What it writes is removed again. NotAQueue if `path` is a file; other trouble is a finding.
    """
    examination = Examination(path, progress)
    if examination.mount.shared:
        advice = f"Type 'fsqueue doctor {examination.report.path} --join' here and on a second host."
        seen = "whether locks exclude between hosts cannot be seen from one."
        examination.report.findings.append(Finding("two hosts", UNTRIED, seen, advice))
    return examination.report


def join(
    path: str | os.PathLike[str],
    *,
    timeout_s: float = 300,
    progress: Progress = lambda step: None,
    waiting: Callable[[], None] = lambda: None,
) -> Report:
    """Examine from this host, then make the tests that need two, with whichever host joins within `timeout_s`.

    Both hosts call this, with the same path. `waiting()` is called if the other is not there yet. If nobody comes, or
    falls silent, the report has no `partner`, and a finding that says so.
    """
    examination = Examination(path, progress)
    examination.join(timeout_s, waiting)
    return examination.report


class Examination:
    """An examination from one host, and the place where it works."""

    def __init__(self, path: str | os.PathLike[str], progress: Progress, fs: Filesystem | None = None) -> None:
        where = names.queue_path(path)
        self.directory = nearest(where)
        self.mount = mount_of(self.directory)
        self.fs = fs or Filesystem(self.directory, shared=self.mount.shared)
        self.clock, self.entropy = Clock(), Entropy()
        self.progress = progress
        self.report = Report(where, self.directory, socket.gethostname(), self.mount)
        self.report.findings.append(mountadvice.about(self.mount))
        self._look()

    def _look(self) -> None:
        report = self.report
        try:
            report.findings.append(space(self.fs, self.directory, self.mount))
            with workplace(self.fs, self.directory, self.clock, self.entropy) as place:
                self._probe(place)
        except OSError as error:
            report.findings.append(unwritable(error))
        if "scratch" in self.directory.lower():
            report.findings.append(
                Finding(
                    "idle files",
                    OK,
                    "the path says scratch: such systems delete files not touched for weeks, waiting tasks among them.",
                    "Ask what the rule is; 'fsqueue gc --touch' refreshes a queue's files.",
                )
            )
        if self.directory == report.path:
            self.progress("stuck locks")
            try:
                report.stuck = stuck.of_queue(report.path)
            except (FsqueueError, OSError):
                pass  # no queue, or one that cannot be opened: as the other findings say

    def _probe(self, place: str) -> None:
        fs, findings = self.fs, self.report.findings
        self.progress("probes")
        findings += probes.full(probes.Bench(fs, f"{place}/", self.clock, self.entropy))
        for kind in ("threads", "processes"):
            self.progress(f"contests between {kind}")
            inside = f"{place}/{kind}"
            fs.make_directory(inside)
            if kind == "threads":
                findings += contests.among_threads(lambda: fs, inside)
            else:
                findings += contests.among_processes(fs, inside)

    def join(self, timeout_s: float, waiting: Callable[[], None]) -> None:
        """The tests between two hosts, added to the report."""
        findings = self.report.findings
        directory = f"{self.directory}/{DOCTOR}/join"
        meeting = Rendezvous(self.fs, directory, self.clock, self.entropy)
        try:
            there = meeting.meet(self.identity(), timeout_s, waiting)
            place = f"{directory}/{min(meeting.me, meeting.partner)}.place"
            party = contests.Party(meeting.me, self.fs, place, self.clock, self.entropy)
            findings += self.about_partner(there)
            findings += twohosts.examine(meeting, party, self.progress)
            meeting.finish()
            self.report.partner = str(there.get("host"))
        except PartnerLost as error:
            advice = f"Check that the other host sees {self.directory}, and repeat the command on both."
            findings.append(Finding("two hosts", WARNING, f"The tests were not made to their end. {error}", advice))
        except OSError as error:
            findings.append(unwritable(error))
        finally:
            try:
                meeting.close()
            except OSError:
                pass  # what is left is removed by a later doctor
            self.fs.remove_directory(directory)
            self.fs.remove_directory(f"{self.directory}/{DOCTOR}")

    def identity(self) -> dict[str, Any]:
        """What the partner is told of this host."""
        return {
            "host": self.report.host,
            "boot": boot_id(),
            "device": self.fs.stat(self.directory).st_dev,
            "mount": self.report.findings[0].as_dict(),
        }

    def about_partner(self, there: dict[str, Any]) -> list[Finding]:
        """The partner's mount; and a warning if it is this host's own."""
        mount = Finding(**there["mount"])
        findings = [replace(mount, probe=f"mount of {there['host']}")]
        mine = self.identity()
        if (there["boot"], there["device"]) == (mine["boot"], mine["device"]):
            seen = "both ends run on the same host and mount: this shows nothing about two."
            findings.append(Finding("two hosts", WARNING, seen, "Type the command on another host."))
        return findings


def nearest(path: str) -> str:
    """`path`, or the nearest directory above it that is there; NotAQueue if that is a file."""
    fs = Filesystem(path)
    while True:
        try:
            if not stat_is_directory(fs, path):
                raise NotAQueue(f"{path} is a file. Give the doctor a directory, or a path where one could be made.")
            return path
        except FileNotFoundError:
            path = path.rpartition("/")[0] or "/"
        except NotADirectoryError:
            path = path.rpartition("/")[0] or "/"
        except OSError:
            return path  # it cannot be looked at: the probes will say why


def stat_is_directory(fs: Filesystem, path: str) -> bool:
    """Whether a path, links followed, is a directory."""
    try:
        fs.close(fs.look(f"{path}/.", os.O_RDONLY | os.O_DIRECTORY))
        return True
    except NotADirectoryError:
        return False


@contextmanager
def workplace(fs: Filesystem, directory: str, clock: Clock, entropy: Entropy) -> Iterator[str]:
    """A directory to work in, removed in the end with all that is in it; remnants of dead doctors go, too."""
    place = f"{directory}/{DOCTOR}/{entropy.hex16()}"
    try:
        fs.make_directory(place)
        upkeep.reap_doctors(fs, directory, fs.stat(place).st_mtime)
        yield place
    finally:
        try:
            fs.remove_tree(place)
            fs.remove_directory(f"{directory}/{DOCTOR}")
        except OSError:
            pass


def unwritable(error: OSError) -> Finding:
    """The finding that says why nothing can be tried."""
    if error.errno == errno.EROFS:
        return Finding("writing", UNFIT, "it is mounted read-only.", "Use a mount that is writable.")
    if error.errno in (errno.EACCES, errno.EPERM):
        seen = f"this user may not write here: {error.strerror}."
        return Finding("writing", UNFIT, seen, "Ask the owner of the directory for permission to write.")
    if error.errno in FULL:
        return Finding("writing", UNFIT, f"there is no room: {error.strerror}.", "Make room, or ask for more quota.")
    return Finding("writing", UNFIT, f"the filesystem fails: {error.strerror or error}.", "Ask the administrator.")


def space(fs: Filesystem, directory: str, mount: Mount) -> Finding:
    """How many bytes and files there is room for, by the disk and by quotas."""
    found = fs.space(directory)
    figures: dict[str, Any] = {"bytes_free": found.f_bavail * found.f_frsize}
    if found.f_files:
        figures["files_free"] = found.f_favail
    whose = []
    for quota in quota_of(mount):
        whose.append(f"quota of {quota.whose}")
        if quota.bytes_limit:
            left = max(0, quota.bytes_limit - quota.bytes_used)
            figures["bytes_free"] = min(figures["bytes_free"], left)
        if quota.files_limit:
            left = max(0, quota.files_limit - quota.files_used)
            figures["files_free"] = min(figures.get("files_free", left), left)
    room, files = figures["bytes_free"], figures.get("files_free")
    seen = f"room for {room / 2**30:,.1f} GiB" + ("" if files is None else f" and {files:,} files")
    seen += f" ({', '.join(whose)})." if whose else "; no quota is to be seen from here."
    if not room or files == 0:
        return Finding("space", UNFIT, seen, "Make room, or ask for more quota.", figures)
    if room < BYTES_LOW or (files is not None and files < FILES_LOW):
        return Finding("space", WARNING, seen, "That is little. Make room, or ask for more quota.", figures)
    return Finding("space", OK, seen, figures=figures)
