"""Make the tests that need two hosts: locks, appends, races, and how late one sees the other's changes (decision 44).

Both do the same at the same time, step by step, and tell each other what they saw. Each judges both, by the same rules:
so both report the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

from fsqueue.doctor import contests, messages
from fsqueue.doctor.contests import Party, Sums
from fsqueue.doctor.probes import SKEW_S
from fsqueue.doctor.rendezvous import Rendezvous
from fsqueue.doctor.verdicts import OK, UNFIT, WARNING, ProbeResult

AMONG = "hosts"
ROUNDS, TURNS_S = 2000, 3.0
"""Lock at most so often on each host, and for so many seconds: one host may start a little later than the other."""
HEAD_START_S, SLOT_S = 1.0, 0.02
"""When the first name is raced for, after both have ended their turns, and the time between two names."""
PINGS = 6
STALE_S, LOOK_PAUSE_S = 10.0, 0.02
"""How long to wait for the other host's change to be seen, and the pause between two looks."""
FRESH_S = 2.0
"""What a revalidating open or a listing shows may not be older than this."""

T = TypeVar("T")
Progress = Callable[[str], None]
ByChange = dict[str, float | None]
"""When or after how many seconds a change was seen, by way of looking and kind; None: not within STALE_S."""


def examine(meeting: Rendezvous, enter: Callable[[], Party], progress: Progress) -> list[ProbeResult]:
    """Make all tests with a partner that was met, and return the findings. PartnerLost if it falls silent, ends, or
    talks nonsense.

    `enter()` opens the directory where both work; that of the party that leads makes it first.
    """
    progress("clocks")
    ahead_ms, error_ms = compare_clocks(meeting)
    if meeting.leads:
        party = enter()
        party.fs.close(party.fs.create(party.path("ledger")))
        contests.prepare_races(party, contests.NAMES)
        for number in (1, 2):
            Sights(party, number).make()
    meeting.exchange({})
    if not meeting.leads:
        party = enter()

    progress("locks and appends")
    mine = contests.take_turns(party, ROUNDS, TURNS_S)
    mine.error, sent_ms = messages.say(mine.error), party.clock.local_ms()
    there = meeting.exchange(
        {"rounds": mine.rounds, "timeouts": mine.timeouts, "error": mine.error, "sent_ms": sent_ms}
    )
    took = in_order(meeting, mine, messages.took(there, meeting.partner, ROUNDS))
    sums = contests.add_up(took, contests.written(party))

    progress("races")
    begin_ms = max(sent_ms, messages.number(there, "sent_ms") - ahead_ms) + HEAD_START_S * 1000
    won = contests.race(party, contests.NAMES, waiting_for(party, begin_ms))

    progress("what is seen of changes")
    changed_ms, seen = show_and_watch(meeting, party)

    progress("judging")
    there = meeting.exchange({"sums": asdict(sums), "won": won, "changed_ms": changed_ms, "seen_ms": seen})
    ages = ages_of(seen, messages.number(there, "changed_ms") - ahead_ms)
    ages_there = ages_of(messages.seen(there, seen), changed_ms + ahead_ms)
    findings = contests.judge_turns(took, worse(sums, messages.sums(there, 2 * ROUNDS)), AMONG, one_clock=False)
    findings += contests.judge_races(in_order(meeting, won, messages.won(there)), contests.NAMES, AMONG)
    return [*findings, judge_ages(in_order(meeting, ages, ages_there)), judge_clocks(ahead_ms, error_ms)]


def in_order(meeting: Rendezvous, mine: T, theirs: T) -> list[T]:
    """Return what is this party's and the partner's in the same order on both hosts."""
    return [mine, theirs] if meeting.leads else [theirs, mine]


def worse(one: Sums, other: Sums) -> Sums:
    """Return the worse of what the ledger shows two hosts: of its number, the smaller."""
    return Sums(max(one.overlaps, other.overlaps), max(one.lost, other.lost), min(one.number, other.number))


def compare_clocks(meeting: Rendezvous) -> tuple[float, float]:
    """Return how many milliseconds the other host's clock is ahead of this one's, and how far that may be wrong.

    As NTP does it (RFC 5905, section 8): from the fastest of a few notes each way. `way_ms` is how long one took, as
    the two clocks show it: the one way too long by as much as the other is too short.
    """
    now, way_ms = meeting.clock.local_ms, messages.NUMBER_MAX
    for _ in range(PINGS):
        there = meeting.exchange({"sent_ms": now()})
        way_ms = min(way_ms, now() - messages.number(there, "sent_ms"))
    there_ms = messages.number(meeting.exchange({"way_ms": way_ms}), "way_ms")
    return (there_ms - way_ms) / 2, (there_ms + way_ms) / 2


def waiting_for(party: Party, begin_ms: float) -> Callable[[int], None]:
    """Return what waits until it is time for a name, on both hosts at once: as far as their clocks can be compared.

    What the other host says delays the beginning by no more than HEAD_START_S.
    """
    clock = party.clock
    begin_ms = min(begin_ms, clock.local_ms() + HEAD_START_S * 1000)

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

    def __init__(self, party: Party, number: int) -> None:
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

    def watch(self) -> ByChange:
        """Return when each change was seen, in milliseconds of this host's clock; None: not within STALE_S."""
        waiting = self.looks()
        seen: ByChange = dict.fromkeys(waiting)
        until = self.clock.monotonic() + STALE_S
        while waiting and self.clock.monotonic() < until:
            for name, look in list(waiting.items()):
                if look():
                    seen[name] = self.clock.local_ms()
                    del waiting[name]
            self.clock.sleep(LOOK_PAUSE_S)
        return seen


def show_and_watch(meeting: Rendezvous, party: Party) -> tuple[float, ByChange]:
    """Make changes that the other host watches, and watch those that it makes: first the one host, then the other.

    Return when this host had made its changes, and when it saw each of the other's, in milliseconds of its own clock.
    """
    changed_ms, seen = 0.0, ByChange()
    for number, is_mine in enumerate(in_order(meeting, True, False), 1):
        sights = Sights(party, number)
        if not is_mine:
            for look in sights.looks().values():
                look()  # from now on this host caches what was there before
        meeting.exchange({})
        if is_mine:
            sights.change()
            changed_ms = party.clock.local_ms()
        else:
            seen = sights.watch()
    return changed_ms, seen


def ages_of(seen: ByChange, changed_ms: float) -> ByChange:
    """Return after how many seconds each change was seen; both times are of one clock."""
    return {name: None if at is None else max(0.0, at - changed_ms) / 1000 for name, at in seen.items()}


def judge_ages(ages: Sequence[ByChange]) -> ProbeResult:
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
