"""Contests: several parties do the same to the same files, and what they did shows whether anything broke.

A party is a thread, a process or a host; the contests are the same. What a party reports is plain data, so that it can
travel as JSON; `judge_...` looks at the reports of all of them, and at what is left on disk.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from fsqueue.clock import Clock, Entropy
from fsqueue.doctor.probes import ASK_ANOTHER, ASK_LOCKS, OK, UNFIT, UNTRIED, WARNING, ProbeResult
from fsqueue.filesystem import Filesystem, processes
from fsqueue.filesystem.expected_errors import retried_after_stale
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.interruptions import suppress

HOLD_S = 0.001
"""Seconds for which a lock is held on purpose, so that holds would overlap."""
LOCK_WAIT_S = 20.0
"""Seconds to wait for a lock that others have for moments."""
TAIL_BYTES = 64
"""More than the longest line that parties append."""
PROCESSES, ROUNDS, NAMES = 3, 40, 60
"""Number of processes of one host that contend, of times that each locks, and of names to race for."""
RACES = ("create", "link", "rename")
LEDGER_BYTES_MAX = 1 << 22
"""More than parties can write by turns. What others append without end is not read."""
PATIENCE_S = 60.0
"""Seconds that processes of this host may take."""


@dataclass(slots=True)
class Party:
    """One that takes part: its name, its filesystem, the directory of the contest."""

    name: str
    fs: Filesystem
    directory: str
    clock: Clock = field(default_factory=Clock)
    entropy: Entropy = field(default_factory=Entropy)
    owner: int | None = None
    """Whose files to append to must be, if others may have put something in their place."""

    def path(self, name: str) -> str:
        """Return a file of the contest."""
        return f"{self.directory}/{name}"


@dataclass(slots=True)
class Took:
    """A party's report of locking and appending: its holds (from, to, in milliseconds of its own clock)."""

    name: str
    rounds: int = 0
    holds: list[tuple[float, float]] = field(default_factory=list)
    timeouts: int = 0
    error: str = ""


# -- locks and locked appends ---------------------------------------------------------------------------


def take_turns(party: Party, rounds: int, until_s: float | None = None) -> Took:
    """Lock a file, read its last number, append `NAME ROUND in`, hold, append `NAME ROUND out NUMBER+1`, unlock; again.

    It is the locked file that is read and appended to, as in a queue: locking makes NFS look at that one anew.
    Where locks exclude, each `in` is followed by its own `out`. Where appending under them works, no line is missing.
    Where the holder of the lock sees what was written before, the last number is that of the rounds.
    """
    fs, clock, took = party.fs, party.clock, Took(party.name)
    begin = clock.monotonic()
    try:
        ledger = open_append(party, "ledger")
    except OSError as error:
        took.error = error.strerror or str(error)
        return took
    try:
        while took.rounds < rounds and (until_s is None or clock.monotonic() - begin < until_s):
            if not fs.lock(ledger, clock, party.entropy, LOCK_WAIT_S):
                took.timeouts += 1
                break
            started = clock.local_ms()
            number = _last_number(fs.pread(ledger, TAIL_BYTES, max(0, fs.fstat(ledger).st_size - TAIL_BYTES)))
            _append(fs, ledger, f"{party.name} {took.rounds} in")
            clock.sleep(HOLD_S)
            _append(fs, ledger, f"{party.name} {took.rounds} out {number + 1}")
            took.holds.append((started, clock.local_ms()))
            took.rounds += 1
            fs.unlock(ledger)
            clock.sleep(HOLD_S * party.entropy.random())
    except OSError as error:
        took.error = error.strerror or str(error)
    finally:
        fs.close(ledger)
    return took


def open_append(party: Party, name: str) -> int:
    """Open a file that several parties append to. OSError if it is not theirs alone."""
    fd = party.fs.open_append(party.path(name))
    if party.owner is not None:
        found = party.fs.fstat(fd)
        if found.st_uid != party.owner or found.st_nlink != 1:  # else one would append to another file of one's own
            party.fs.close(fd)
            raise OSError(errno.EPERM, f"another process put a file of its own in place of {name}")
    return fd


def _last_number(tail: bytes) -> int:
    """Return the number at the end of the last line; 0 if there is none."""
    word = tail.rpartition(b" ")[2].strip()
    return int(word) if word.isdigit() else 0


def _append(fs: Filesystem, fd: int, line: str) -> None:
    fs.write_all(fd, line.encode() + b"\n")
    if fs.shared:
        fs.fsync(fd)


@dataclass(frozen=True, slots=True)
class Sums:
    """What the file shows that all wrote by turns: holds that overlapped, lines that are missing, the last number."""

    overlaps: int
    lost: int
    number: int


def add_up(took: Sequence[Took], ledger: bytes) -> Sums:
    """Compare the ledger with the parties' reports, and return the sums. No clock is needed."""
    expected = Counter(
        f"{one.name} {number} {way}" for one in took for number in range(one.rounds) for way in ("in", "out")
    )
    found = [" ".join(line.split()[:3]) for line in ledger.decode("ascii", "replace").split("\n")[:-1]]
    return Sums(_interrupted(found), sum((expected - Counter(found)).values()), _last_number(ledger))


def judge_turns(took: Sequence[Took], sums: Sums, among: str, *, one_clock: bool) -> list[ProbeResult]:
    """Return three findings: whether holds overlapped, appended lines are missing, and reads under a lock were old.

    Overlaps show in the ledger; parties with `one_clock` can also compare times.
    """
    errors = [one.error for one in took if one.error]
    overlaps = max(sums.overlaps, _overlaps(took) if one_clock else 0)
    rounds = sum(one.rounds for one in took)
    timeouts = sum(one.timeouts for one in took)
    figures = {"rounds": rounds, "overlaps": overlaps, "timeouts": timeouts}
    name = f"locks between {among}"
    if errors:
        first = ProbeResult(name, UNFIT, f"locking and appending failed: {errors[0]}.", ASK_LOCKS, figures)
    elif overlaps:
        first = ProbeResult(
            name,
            UNFIT,
            f"locks do not exclude: of {rounds} holds {overlaps} overlapped with another's.",
            ASK_LOCKS,
            figures,
        )
    elif timeouts or not all(one.rounds for one in took):
        seen = f"a process waited {LOCK_WAIT_S:g} s without success for a lock that the others hold for moments."
        first = ProbeResult(name, WARNING, seen, "Is the file server overloaded? Try again.", figures)
    else:
        first = ProbeResult(name, OK, f"{rounds} holds by {len(took)} {among}, none overlapped.", figures=figures)
    return [first, _judge_appends(2 * rounds, sums.lost, among), _judge_reads(rounds, sums.number, among)]


def _judge_appends(lines: int, lost: int, among: str) -> ProbeResult:
    name, figures = f"appending between {among}", {"lines": lines, "lost": lost}
    if lost:
        seen = f"of {lines} lines appended under a lock, {lost} are missing."
        return ProbeResult(name, UNFIT, seen, ASK_LOCKS, figures)
    return ProbeResult(name, OK, f"{lines} lines appended under a lock, none lost.", figures=figures)


def _judge_reads(rounds: int, added: int, among: str) -> ProbeResult:
    name, figures = f"reading between {among}", {"rounds": rounds, "added": added}
    if added != rounds:
        seen = f"a number was added to {rounds} times under a lock, and is {added}: old values were read."
        return ProbeResult(name, UNFIT, seen, ASK_LOCKS, figures)
    return ProbeResult(name, OK, "who has the lock sees what was written before.", figures=figures)


def _interrupted(lines: Sequence[str]) -> int:
    """Return how many holds have another's line between their `in` and their `out`."""
    broken, at = 0, 0
    while at < len(lines):
        if lines[at].endswith(" in") and lines[at + 1 : at + 2] == [lines[at][:-2] + "out"]:
            at += 1
        elif lines[at].endswith(" in"):
            broken += 1
        at += 1
    return broken


def _overlaps(took: Sequence[Took]) -> int:
    """Return how many holds began before one of another party had ended."""
    holds = sorted((start, end, one.name) for one in took for start, end in one.holds)
    overlaps, latest, whose = 0, float("-inf"), ""
    for start, end, name in holds:
        if name != whose and start < latest:
            overlaps += 1
        if end > latest:
            latest, whose = end, name
    return overlaps


# -- races for names ----------------------------------------------------------------------------------------


def prepare_races(party: Party, names: int) -> None:
    """Make the files that parties race to rename."""
    for number in range(names):
        party.fs.close(party.fs.create(party.path(f"prize-{number}")))


def race(party: Party, names: int, ready: Callable[[int], None] = lambda number: None) -> dict[str, list[int]]:
    """Race for names: create them exclusively, link them, rename them away. Which of each kind were won.

    `ready(number)` returns when it is time for that name: at the same moment for all.
    """
    fs = party.fs
    won: dict[str, list[int]] = {"create": [], "link": [], "rename": []}
    own = party.path(f"own-{party.name}")
    fs.close(fs.create(own))
    for number in range(names):
        ready(number)
        with suppress(FileExistsError):
            fs.close(fs.create(party.path(f"created-{number}")))
            won["create"].append(number)
        with suppress(OSError):  # taken; or there are no links, as another probe says
            fs.link(own, party.path(f"linked-{number}"))
            won["link"].append(number)
        if fs.rename(party.path(f"prize-{number}"), party.path(f"renamed-{number}-{party.name}")):
            won["rename"].append(number)
    moved = set(fs.names(party.directory))  # on a network mount a rename may fail, and have been done
    won["rename"] = [n for n in range(names) if n in won["rename"] or f"renamed-{n}-{party.name}" in moved]
    return won


def judge_races(won: Sequence[dict[str, list[int]]], names: int, among: str) -> list[ProbeResult]:
    """Return a finding for each kind of race: no two parties may have won the same name."""
    findings = []
    for kind, does in (("create", "created"), ("link", "linked"), ("rename", "renamed")):
        wins = Counter(number for party in won for number in party[kind])
        double = sum(count > 1 for count in wins.values())
        figures = {"names": names, "won": len(wins), "won_twice": double}
        name = f"{kind} between {among}"
        if double:
            seen = f"of {names} names, {double} were {does} by two at once."
            findings.append(ProbeResult(name, UNFIT, seen, ASK_ANOTHER, figures))
        elif not wins:
            findings.append(ProbeResult(name, UNTRIED, "no process could do it at all.", figures=figures))
        else:
            seen = f"{len(won)} {among} raced for {names} names, and each was {does} once."
            findings.append(ProbeResult(name, OK, seen, figures=figures))
    return findings


# -- on one host ----------------------------------------------------------------------------------------------


def among_threads(make: Callable[[], Filesystem], directory: str) -> list[ProbeResult]:
    """Return the contests between threads, each with a filesystem from `make`."""
    parties = [Party(f"t{number}", make(), directory) for number in range(PROCESSES)]
    prepare_races(parties[0], NAMES)
    reports: list[dict[str, Any]] = [{} for _ in parties]
    start = threading.Barrier(len(parties))

    def take_part(number: int) -> None:
        start.wait()
        reports[number] = contend(parties[number])

    threads = [SideThread(f"fsqueue-{number}", partial(take_part, number)) for number in range(len(parties))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return judge(parties[0], reports, "threads")


def contend(party: Party) -> dict[str, Any]:
    """Take a party's part in all contests, and return its report."""
    took = take_turns(party, ROUNDS)
    try:
        return {"took": asdict(took), "won": race(party, NAMES)}
    except OSError as error:
        took.error = took.error or error.strerror or str(error)
        return {"took": asdict(took), "won": {"create": [], "link": [], "rename": []}}


def judge(party: Party, reports: Sequence[dict[str, Any]], among: str) -> list[ProbeResult]:
    """Return the findings on contests within this host, whose parties share a clock."""
    if not all(reports):
        seen = f"a contest did not end within {PATIENCE_S:g} s."
        return [ProbeResult(f"locks between {among}", WARNING, seen, "Is the filesystem overloaded? Try again.")]
    took = [Took(**report["took"]) for report in reports]
    findings = judge_turns(took, add_up(took, written(party)), among, one_clock=True)
    return findings + judge_races([report["won"] for report in reports], NAMES, among)


def written(party: Party) -> bytes:
    """Return the ledger that parties wrote by turns; nothing, where it is not to be found."""
    where = party.fs, party.path("ledger"), LEDGER_BYTES_MAX, party.owner
    try:
        return retried_after_stale(lambda: start_of(*where))
    except FileNotFoundError:
        return b""


def start_of(fs: Filesystem, path: str, bytes_max: int, owner: int | None) -> bytes:
    """Return what a file holds, by a revalidating open; nothing if it must be one user's, and is another's.

    No more than `bytes_max` is read: others may write without end.
    """
    found = bytearray()
    with fs.closing(fs.look_anew(path)) as fd:
        if owner is not None and fs.fstat(fd).st_uid != owner:
            return b""
        while len(found) < bytes_max and (chunk := fs.pread(fd, bytes_max - len(found), len(found))):
            found += chunk
        return bytes(found)


def among_processes(fs: Filesystem, directory: str, inherited: tuple[int, ...] = ()) -> list[ProbeResult]:
    """Return the contests between processes: this interpreter, started anew a few times.

    They get the descriptors `inherited`, through which `directory` may lead. They import nothing from the directory in
    which they are started: a stranger may have put modules there.
    """
    if not sys.executable:
        return [ProbeResult("locks between processes", UNTRIED, "this program cannot start a Python of its own.")]
    if (reason := processes.no_second_python()) is not None:
        return [ProbeResult("locks between processes", UNTRIED, reason)]
    host = Party("p", fs, directory)
    prepare_races(host, NAMES)
    program = f"import sys; sys.path[:] = {safe_path()!r}; from fsqueue.doctor.contests import main; main()"
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(PROCESSES):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-c", program, f"p{number}", directory, fs.root, str(int(fs.shared))],
                    cwd="/",
                    pass_fds=inherited,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reports = [_report_of(process) for process in started]
    except (OSError, ValueError) as error:
        return [ProbeResult("locks between processes", UNTRIED, f"processes could not be started: {error}.")]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return judge(host, reports, "processes")


def safe_path() -> list[str]:
    """Return where this interpreter finds modules, without the working directory, unless fsqueue itself is there."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        here = os.path.abspath(os.curdir)
    except FileNotFoundError:
        here = ""  # it was removed
    return [entry for entry in sys.path if os.path.isabs(entry) and (entry == home or os.path.normpath(entry) != here)]


def _report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a process printed; {} if it did not come to an end in time."""
    try:
        report: dict[str, Any] = json.loads(process.communicate(timeout=PATIENCE_S)[0])
        return report
    except subprocess.TimeoutExpired:
        return {}


def main() -> None:
    """Play one process's part, as `among_processes` starts it: say "ready", wait for a line, contend, report."""
    name, directory, root, shared = sys.argv[1:]
    party = Party(name, Filesystem(root, shared=shared == "1"), directory)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(json.dumps(contend(party)))
