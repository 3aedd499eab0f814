"""Make the tests that need two hosts: locks, appends, races, and how late one sees the other's changes (decision 44).

Both do the same at the same time, step by step, and tell each other what they saw. Each judges both, by the same rules:
so both report the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

from fsqueue.doctor import contests, rendezvous
from fsqueue.doctor.contests import Party, Sums
from fsqueue.doctor.probes import OK, SKEW_S, UNFIT, WARNING, ProbeResult
from fsqueue.doctor.rendezvous import NUMBER, NUMBER_OR_NONE, TEXT, Rendezvous

AMONG = "hosts"
ROUNDS, TURNS_S = 2000, 3.0
"""Maximum number of locks that each host takes, and seconds for them: one host may start later than the other."""
HEAD_START_S, SLOT_S = 1.0, 0.02
"""When the first name is raced for, after both have ended their turns, and the time between two names."""
PINGS = 6
STALE_S, LOOK_PAUSE_S = 10.0, 0.02
"""Seconds to wait for the other host's change to be seen, and the pause between two looks."""
FRESH_S = 2.0
"""What a revalidating open or a listing shows may not be older than this."""

WAYS = ("fresh", "listing", "plain")
"""By a revalidating open, as fsqueue looks; in a listing; by the path alone, on which nothing in fsqueue rests."""
LOOKS = [f"{way} {what}" for way in WAYS for what in ("new", "gone", "grown") if (way, what) != ("listing", "grown")]
"""A way of looking, and a kind of change."""

TURNS = {"rounds": ROUNDS, "timeouts": ROUNDS, "error": TEXT, "sent_ms": NUMBER}
OUTCOME = {
    "sums": dict.fromkeys(("overlaps", "lost", "number"), 4 * ROUNDS),
    "won": {kind: [contests.NAMES - 1] for kind in contests.RACES},
    "changed_ms": NUMBER,
    "seen_ms": dict.fromkeys(LOOKS, NUMBER_OR_NONE),
}
"""The shapes of notes."""

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
    meeting.keep_step()
    if not meeting.leads:
        party = enter()

    progress("locks and appends")
    mine = contests.take_turns(party, ROUNDS, TURNS_S)
    mine.error, sent_ms = rendezvous.say(mine.error), party.clock.local_ms()
    said = {"rounds": mine.rounds, "timeouts": mine.timeouts, "error": mine.error, "sent_ms": sent_ms}
    there = meeting.exchange(said, TURNS)
    begin_ms = max(sent_ms, there.pop("sent_ms") - ahead_ms) + HEAD_START_S * 1000
    took = in_order(meeting, mine, contests.Took(meeting.partner, **there))
    sums = contests.add_up(took, contests.written(party))

    progress("races")
    won = contests.race(party, contests.NAMES, waiting_for(party, begin_ms))

    progress("what is seen of changes")
    changed_ms, seen = show_and_watch(meeting, party)

    progress("judging")
    there = meeting.exchange({"sums": asdict(sums), "won": won, "changed_ms": changed_ms, "seen_ms": seen}, OUTCOME)
    ages = ages_of(seen, there["changed_ms"] - ahead_ms)
    ages_there = ages_of(there["seen_ms"], changed_ms + ahead_ms)
    findings = contests.judge_turns(took, worse(sums, Sums(**there["sums"])), AMONG, one_clock=False)
    findings += contests.judge_races(in_order(meeting, won, there["won"]), contests.NAMES, AMONG)
    return [*findings, judge_ages(in_order(meeting, ages, ages_there)), judge_clocks(ahead_ms, error_ms)]


def in_order(meeting: Rendezvous, mine: T, theirs: T) -> list[T]:
    """Return what is this party's and the partner's in the same order on both hosts."""
    return [mine, theirs] if meeting.leads else [theirs, mine]


def worse(one: Sums, other: Sums) -> Sums:
    """Return the worse of two hosts' readings of one ledger: of its last number, the smaller one."""
    return Sums(max(one.overlaps, other.overlaps), max(one.lost, other.lost), min(one.number, other.number))


def compare_clocks(meeting: Rendezvous) -> tuple[float, float]:
    """Return how many milliseconds the other host's clock is ahead of this one's, and how far that may be wrong.

    As NTP does it (RFC 5905, section 8): from the fastest of a few notes each way. `way_ms` is how long one took, as
    the two clocks show it: the one way too long by as much as the other is too short.
    """
    now, way_ms = meeting.clock.local_ms, rendezvous.NUMBER_MAX
    for _ in range(PINGS):
        there = meeting.exchange({"sent_ms": now()}, {"sent_ms": NUMBER})
        way_ms = min(way_ms, now() - there["sent_ms"])
    there_ms = meeting.exchange({"way_ms": way_ms}, {"way_ms": NUMBER})["way_ms"]
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


class Sights:
    """Files that one host changes and the other watches: in a directory for each way of looking."""

    def __init__(self, party: Party, number: int) -> None:
        self.party, self.fs, self.clock = party, party.fs, party.clock
        self.name = f"sights{number}"

    def path(self, way: str, what: str) -> str:
        """Return the path of a file to be changed: `new` will come, `gone` will go, `grows` will grow."""
        return self.party.path(f"{self.name}/{way}/{what}")

    def make(self) -> None:
        """Make what is there before the changes."""
        self.fs.make_directory(self.party.path(self.name))
        for way in WAYS:
            for what in ("gone", "grows"):
                self.fs.close(self.fs.create(self.path(way, what)))

    def change(self) -> None:
        """Make all changes, durably on the server."""
        for way in WAYS:
            self.fs.close(self.fs.create(self.path(way, "new")))
            self.fs.unlink(self.path(way, "gone"))
            with self.fs.closing(contests.open_append(self.party, f"{self.name}/{way}/grows")) as fd:
                self.fs.write_all(fd, b"grown\n")
                self.fs.fsync(fd)

    def sees(self, look: str) -> bool:
        """Look, in one of the ways of LOOKS, whether a change is seen."""
        way, what = look.split()
        path = self.path(way, "grows" if what == "grown" else what)
        if way == "listing":
            return (what in self.fs.names(self.party.path(f"{self.name}/listing"))) == (what == "new")
        if way == "plain":
            try:
                size = self.fs.stat(path).st_size
            except OSError:
                size = -1
            return {"new": size >= 0, "gone": size < 0, "grown": size > 0}[what]
        return self.fs.read(path) != b"" if what == "grown" else self.fs.exists(path) == (what == "new")

    def watch(self) -> ByChange:
        """Return when each change was seen, in milliseconds of this host's clock; None: not within STALE_S."""
        seen: ByChange = dict.fromkeys(LOOKS)
        until = self.clock.monotonic() + STALE_S
        while None in seen.values() and self.clock.monotonic() < until:
            for look in LOOKS:
                if seen[look] is None and self.sees(look):
                    seen[look] = self.clock.local_ms()
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
            for look in LOOKS:
                sights.sees(look)  # from now on this host caches what was there before
        meeting.keep_step()
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
