"""Make the tests that need two hosts: locks, appends, races, and how late one sees the other's changes.

Both do the same at the same time, step by step. The leader judges, and both report its findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from fsqueue.clock import Clock
from fsqueue.doctor import contests, messages
from fsqueue.doctor.contests import Party
from fsqueue.doctor.probes import SKEW_S
from fsqueue.doctor.rendezvous import SILENCE_S, Rendezvous
from fsqueue.doctor.verdicts import OK, UNFIT, WARNING, ProbeResult

AMONG = "hosts"
ROUNDS, TURNS_S = 2000, 3.0
"""Maximum number of locks that each host takes, and seconds for them: one host may start later than the other."""
HEAD_START_S, SLOT_S = 1.0, 0.02
"""When the first name is raced for, after both agreed on it, and the time between two names."""
PINGS = 6
STALE_S, LOOK_PAUSE_S = 10.0, 0.02
"""How long to wait for the other host's change to be seen, and the pause between two looks."""
AGE_S_MAX = 1e9
"""No clocks can show a greater age, in seconds."""
FRESH_S = 2.0
"""What a revalidating open or a listing shows may not be older than this."""

Progress = Callable[[str], None]
Ages = dict[str, float | None]
"""By way of looking and kind of change: after how many seconds it was seen; None: not within STALE_S."""


def examine(meeting: Rendezvous, enter: Callable[[], Party], progress: Progress) -> list[ProbeResult]:
    """Make all tests with a partner that was met, and return the findings. PartnerLost if it falls silent, or talks
    nonsense.

    `enter()` opens the directory where both work; that of the party that leads makes it first.
    """
    progress("clocks")
    ahead_ms, error_ms = compare_clocks(meeting)
    if meeting.leads:
        party = enter()
        contests.prepare_races(party, contests.NAMES)
        party.fs.close(party.fs.create(party.path("ledger")))
    meeting.exchange({"step": "locks"})
    if not meeting.leads:
        party = enter()
    progress("locks and appends")
    took = contests.take_turns(party, ROUNDS, TURNS_S)
    mine = {"took": asdict(replace(took, holds=[], error=messages.say(took.error)))}
    theirs = messages.took(meeting.exchange(mine), meeting.partner, ROUNDS)
    progress("races")
    won = contests.race(party, contests.NAMES, agree_on_times(meeting, party.clock, ahead_ms))
    others = messages.won(meeting.exchange({"won": won}))
    progress("what is seen of changes")
    if meeting.leads:
        ages = watch(meeting, party, "1", ahead_ms)
        change(meeting, party, "2")
        progress("judging")
        ages_there = messages.ages(meeting.receive(), ages.keys(), AGE_S_MAX)
        findings = contests.judge_turns([took, theirs], contests.written(party), AMONG, one_clock=False)
        left = party.fs.names(party.directory)
        findings += contests.judge_races([won, others], contests.NAMES, left, AMONG)
        findings += [judge_ages([ages, ages_there]), judge_clocks(ahead_ms, error_ms)]
        meeting.send({"findings": [finding.as_dict() for finding in findings]})
        return findings
    change(meeting, party, "1")
    meeting.send({"ages": watch(meeting, party, "2", ahead_ms)})
    progress("judging")
    return messages.findings(meeting.receive())


def compare_clocks(meeting: Rendezvous) -> tuple[float, float]:
    """Return how many milliseconds the other host's clock is ahead of this one's, and how far that may be wrong.

    As NTP does it: the best of a few messages there and back.
    """
    now = meeting.clock.local_ms
    if not meeting.leads:
        for _ in range(PINGS):
            meeting.receive()
            received = now()
            meeting.send({"received": received, "sent": now()})
        told = meeting.receive()
        return -messages.number(told, "ahead_ms"), messages.number(told, "error_ms")
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        sent = now()
        meeting.send({"ping": sent})
        pong = meeting.receive()
        back = now()
        there, from_there = messages.number(pong, "received"), messages.number(pong, "sent")
        best = min(best, (((back - sent) - (from_there - there)) / 2, ((there - sent) + (from_there - back)) / 2))
    error_ms, ahead_ms = best
    meeting.send({"ahead_ms": ahead_ms, "error_ms": error_ms})
    return ahead_ms, error_ms


def agree_on_times(meeting: Rendezvous, clock: Clock, ahead_ms: float) -> Callable[[int], None]:
    """Return what waits until it is time for a name, on both hosts at once: as far as their clocks can be compared."""
    if meeting.leads:
        begin_ms = clock.local_ms() + HEAD_START_S * 1000
        meeting.send({"begin_ms": begin_ms})
    else:
        begin_ms = messages.number(meeting.receive(), "begin_ms") - ahead_ms
        if begin_ms - clock.local_ms() > SILENCE_S * 1000:
            raise messages.Nonsense("it would begin in more than a minute")

    def ready(number: int) -> None:
        left_ms = begin_ms + number * SLOT_S * 1000 - clock.local_ms()
        if left_ms > 0:
            clock.sleep(left_ms / 1000)

    return ready


def judge_clocks(ahead_ms: float, error_ms: float) -> ProbeResult:
    """Return how far the hosts' clocks are apart."""
    apart, error = abs(ahead_ms) / 1000, error_ms / 1000
    figures = {"apart_s": apart, "error_s": error}
    seen = f"the hosts' clocks are {apart:.3f} s apart (within {error:.3f} s)."
    if apart - error > SKEW_S:
        advice = "Set the hosts' clocks (NTP). Where the file server stamps files, fsqueue goes by its clock instead."
        return ProbeResult("clocks of hosts", WARNING, seen, advice, figures)
    return ProbeResult("clocks of hosts", OK, seen, figures=figures)


# -- how old is what one sees ----------------------------------------------------------------------------

WAYS = ("fresh", "listing", "plain")
"""By a revalidating open, as fsqueue looks; in a listing; by the path alone, on which nothing in fsqueue rests."""


class Sights:
    """Files that one host changes and the other watches: in a directory for each way of looking."""

    def __init__(self, party: Party, number: str) -> None:
        self.fs, self.clock = party.fs, party.clock
        self.base = f"{party.directory}/sights{number}"

    def path(self, way: str, what: str) -> str:
        """Return the path of a file to be changed: `new` will come, `gone` will go, `grows` will grow."""
        return f"{self.base}/{way}/{what}"

    def make(self) -> None:
        """Make what is there before the changes."""
        self.fs.make_directory(self.base)
        for way in WAYS:
            for what in ("gone", "grows"):
                self.fs.close(self.fs.create(self.path(way, what)))

    def change(self) -> None:
        """Make all changes, durably on the server."""
        for way in WAYS:
            self.fs.close(self.fs.create(self.path(way, "new")))
            self.fs.unlink(self.path(way, "gone"))
            fd = self.fs.open_append(self.path(way, "grows"))
            try:
                self.fs.write_all(fd, b"grown\n")
                self.fs.fsync(fd)
            finally:
                self.fs.close(fd)

    def looks(self) -> dict[str, Callable[[], bool]]:
        """Return, by way and kind of change, a function that looks whether the change is seen."""
        fs = self.fs

        def size(what: str) -> int:
            try:
                return fs.stat(self.path("plain", what)).st_size
            except OSError:
                return -1

        return {
            "fresh new": lambda: fs.exists(self.path("fresh", "new")),
            "fresh gone": lambda: not fs.exists(self.path("fresh", "gone")),
            "fresh grown": lambda: fs.read(self.path("fresh", "grows")) != b"",
            "listing new": lambda: "new" in fs.names(f"{self.base}/listing"),
            "listing gone": lambda: "gone" not in fs.names(f"{self.base}/listing"),
            "plain new": lambda: size("new") >= 0,
            "plain gone": lambda: size("gone") < 0,
            "plain grown": lambda: size("grows") > 0,
        }

    def watch(self) -> dict[str, float]:
        """Return when each change was seen, by this host's clock, for as long as STALE_S."""
        waiting, seen = self.looks(), dict[str, float]()
        until = self.clock.monotonic() + STALE_S
        while waiting and self.clock.monotonic() < until:
            for name, look in list(waiting.items()):
                if look():
                    seen[name] = self.clock.local_ms()
                    del waiting[name]
            self.clock.sleep(LOOK_PAUSE_S)
        return seen


def change(meeting: Rendezvous, party: Party, number: str) -> None:
    """Make the changes that the other host watches."""
    sights = Sights(party, number)
    sights.make()
    meeting.exchange({"step": f"made {number}"})
    meeting.receive()  # it has looked, and caches what it saw
    sights.change()
    meeting.send({"changed_ms": party.clock.local_ms()})


def watch(meeting: Rendezvous, party: Party, number: str, ahead_ms: float) -> Ages:
    """Watch the other host's changes; how long each took to be seen."""
    sights = Sights(party, number)
    meeting.exchange({"step": f"made {number}"})
    for look in sights.looks().values():
        look()
    meeting.send({"step": "watching"})
    seen = sights.watch()
    changed_ms = messages.number(meeting.receive(), "changed_ms") - ahead_ms
    return {name: max(0.0, seen[name] - changed_ms) / 1000 if name in seen else None for name in sights.looks()}


def judge_ages(ages: Sequence[Ages]) -> ProbeResult:
    """Return how old what either host sees may be.

    What is gone, or has grown, must not be overlooked by a revalidating open.
    """
    oldest = {name: max((age.get(name) for age in ages), key=lambda s: STALE_S if s is None else s) for name in ages[0]}

    def oldest_of(*kinds: str) -> float:
        found = (age for name, age in oldest.items() if name.startswith(kinds))
        return max(STALE_S if age is None else age for age in found)

    def said(seconds: float) -> str:
        return f"after {seconds:.2f} s" if seconds < STALE_S else f"not within {STALE_S:g} s"

    figures = {name.replace(" ", "_") + "_s": age for name, age in oldest.items()}
    seen = (
        f"what one host changes the other sees {said(oldest_of('fresh'))} by a revalidating open, "
        f"{said(oldest_of('listing'))} in a listing, {said(oldest_of('plain'))} by its path alone "
        "(on which fsqueue does not rely)."
    )
    if oldest_of("fresh gone", "fresh grown") > FRESH_S:
        advice = "Opening a file must ask the server: on NFS, mount without 'nocto'. Or use another filesystem."
        return ProbeResult("sight between hosts", UNFIT, seen, advice, figures)
    if oldest_of("fresh", "listing") > FRESH_S:
        advice = "New tasks are found late. On NFS ask for a smaller 'acdirmax'."
        return ProbeResult("sight between hosts", WARNING, seen, advice, figures)
    return ProbeResult("sight between hosts", OK, seen, figures=figures)
