"""Two parties that meet in a directory, and the tests between two hosts: threads with filesystems of their own."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fsqueue.clock import Clock, Entropy
from fsqueue.doctor import rendezvous, twohosts
from fsqueue.doctor.contests import Party
from fsqueue.doctor.probes import OK, UNFIT, WARNING, ProbeResult
from fsqueue.doctor.rendezvous import PartnerEnded, PartnerLost, Rendezvous
from fsqueue.filesystem import Filesystem

Make = Callable[[], Filesystem]


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "m").mkdir()
    return str(tmp_path / "m")


def party(place: str, fs: Filesystem | None = None, clock: Clock | None = None) -> Rendezvous:
    """A party that says that it is here."""
    one = Rendezvous(fs or Filesystem(place, shared=False), f"{place}/.join", clock or Clock(), Entropy())
    one.announce()
    return one


def nothing() -> None:
    pass


MOUNT = {"verdict": OK, "seen": "", "advice": "", "figures": {"type": "", "point": "", "options": "", "source": ""}}
WORD = {"word": rendezvous.TEXT}
"""The shape of what they say here."""


def meet(one: Rendezvous, name: str, timeout_s: float = 60) -> str:
    """Return who it was."""
    return str(one.meet({"host": name, "boot": "", "device": 1, "mount": MOUNT}, timeout_s, nothing)["host"])


def met(place: str) -> tuple[Rendezvous, Rendezvous]:
    """Two parties that have met."""
    one, two = party(place), party(place)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: meet(one, "x"), (one, two)))
    return one, two


def turned(place: str, fs: Filesystem | None = None) -> tuple[Rendezvous, Rendezvous]:
    """Two parties before their first note: one has turned to the other."""
    one, two = party(place, fs), party(place)
    one.turn_to(two.me)
    return one, two


def test_two_meet_one_leads_and_they_talk(place: str) -> None:
    one, two = party(place), party(place)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(meet, one, "one"), pool.submit(meet, two, "two")
        assert (first.result(), second.result()) == ("two", "one")
        assert one.leads != two.leads
        assert (one.partner, two.partner) == (two.me, one.me)
        for word in "abc":
            there, here = (pool.submit(each.exchange, {"word": each.me + word}, WORD) for each in (one, two))
            assert (there.result(), here.result()) == ({"word": two.me + word}, {"word": one.me + word})
        assert [done.result() for done in (pool.submit(one.finish), pool.submit(two.finish))] == [None, None]
    for each in (one, two):
        each.close()
    assert os.listdir(f"{place}/.join") == []


def test_who_finishes_first_may_leave_at_once(place: str) -> None:
    """It removes its last note, too: that it is gone says as much."""
    one, two = met(place)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(lambda each: (each.finish(), each.close()), each) for each in (one, two)]
        assert [end.result() for end in ends] == [(None, None)] * 2
    assert os.listdir(f"{place}/.join") == []


def test_four_that_come_at_once_make_two_pairs(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "ANSWER_S", 2.0)
    parties = [party(place) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: meet(one, one.me), parties))
    partners = {one.me: one.partner for one in parties}
    assert all(partners[partners[me]] == me for me in partners)


def test_who_waits_alone_is_told_to_and_gives_up(place: str) -> None:
    one, told = party(place), []
    with pytest.raises(PartnerLost, match="No other host joined"):
        one.meet({}, 0.6, lambda: told.append(1))
    one.close()
    assert told == [1]
    assert os.listdir(f"{place}/.join") == []


def test_the_dead_are_passed_over(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remnants of killed doctors answer nobody: of one that waited, and of one that was at its tests."""
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.8)
    for number in range(2):
        dead = party(place)
        if number:
            dead._post("e" * 16 + ".000007", {})
    one, two = party(place), party(place)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(meet, one, "one", 30), pool.submit(meet, two, "two", 30)
        assert (first.result(), second.result()) == ("two", "one")
    for each in (one, two):
        each.close()
    assert len(os.listdir(f"{place}/.join")) == 3, "those of the dead, and nothing of ids that were given up"


def test_who_waits_with_the_dead_is_told_to(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.2)
    party(place)
    one, told = party(place), []
    with pytest.raises(PartnerLost, match="No other host joined"):
        one.meet({}, 1.5, lambda: told.append(1))
    assert told == [1]


def test_a_partner_that_ends_is_missed(place: str) -> None:
    one, two = met(place)
    two.close()
    with pytest.raises(PartnerEnded, match="was ended"):
        one.keep_step()
    one.close()
    assert os.listdir(f"{place}/.join") == []


def test_a_partner_that_ends_while_it_writes_a_note_is_missed(place: str) -> None:
    one, two = met(place)
    two.fs.write_all = lambda fd, data: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        two.keep_step()
    del two.fs.write_all  # type: ignore[method-assign]
    two.close()
    with pytest.raises(PartnerEnded, match="was ended"):
        one.keep_step()


def test_who_ends_removes_first_what_says_that_it_is_there(place: str) -> None:
    """Whatever else its partner misses, it is not taken for nonsense."""
    removed = []
    one, two = met(place)
    unlink = two.fs.unlink
    two.fs.unlink = lambda path: removed.append(path) or unlink(path)  # type: ignore[func-returns-value, method-assign]
    two.close()
    assert removed[0] == f"{place}/.join/{two.me}.here"
    assert len(removed) > 1
    with pytest.raises(PartnerEnded):
        one.heed_end()


def test_a_partner_that_falls_silent_is_given_up_and_cleared_away(place: str) -> None:
    one, two = met(place)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(two.exchange, {"word": "last"}, WORD)
        assert one.exchange({"word": ""}, WORD) == {"word": "last"}
        said.result()
    with pytest.raises(PartnerLost, match="said nothing more"):
        one.exchange({}, WORD, 0.3)
    one.close()
    assert os.listdir(f"{place}/.join") == []


def test_a_note_that_is_not_whole_yet_is_read_again(place: str) -> None:
    one, two = turned(place)
    two._post(f"{one.me}.000001", {"word": "whole"})
    path = Path(place) / ".join" / f"{two.me}.{one.me}.000001"
    content = path.read_bytes()
    path.write_bytes(content[:-4])
    looks = []
    real = one._take
    one._take = lambda name: (looks.append(name), path.write_bytes(content) if len(looks) == 3 else None, real(name))[2]  # type: ignore[method-assign, func-returns-value]
    assert one.exchange({}, WORD) == {"word": "whole"}
    assert len(looks) >= 3


def test_notes_are_found_even_where_listings_never_show_them(place: str) -> None:
    blind = Filesystem(place, shared=False)
    one, two = turned(place, blind)
    blind.names = lambda directory: []  # type: ignore[method-assign]
    two._post(f"{one.me}.000001", {"word": "hidden"})
    assert one.exchange({}, WORD) == {"word": "hidden"}


def test_a_note_of_another_user_is_not_the_partner_s(place: str) -> None:
    """Any neighbour may write one, under the name that comes next."""
    one, two = turned(place)
    one._owner_there += 1
    two._post(f"{one.me}.000001", {"word": "forged"})
    with pytest.raises(PartnerLost, match="said nothing more"):
        one.exchange({}, WORD, 0.3)


# -- the tests between two ----------------------------------------------------------------------------------


def hosts(place: str, one: Make, two: Make, clocks: tuple[Clock, Clock] | None = None) -> list[ProbeResult]:
    """The findings on two hosts with filesystems of their own; both must report the same."""
    clocks = clocks or (Clock(), Clock())

    def host(make: Make, clock: Clock) -> list[ProbeResult]:
        meeting = party(place, make(), clock)
        meet(meeting, "host")
        directory = f"{place}/.join/{min(meeting.me, meeting.partner)}.place"

        def enter() -> Party:
            fs = make()
            fs.make_directory(directory)
            return Party(meeting.me, fs, directory, clock)

        findings = twohosts.examine(meeting, enter, lambda step: None)
        meeting.finish()
        if meeting.leads:
            Filesystem(place).remove_tree(directory)
        meeting.close()
        return findings

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(host, (one, two), clocks))
    assert found[0] == found[1]
    assert os.listdir(f"{place}/.join") == []
    return found[0]


def verdicts(findings: list[ProbeResult]) -> dict[str, str]:
    return {finding.probe.removesuffix(" between hosts"): finding.verdict for finding in findings}


ALL_WELL = dict.fromkeys(
    ("locks", "appending", "reading", "create", "link", "rename", "sight", "clocks of hosts"), OK
)  # fmt: skip


def good(place: str) -> Make:
    return lambda: Filesystem(place, shared=False)


def test_two_hosts_on_a_good_filesystem(place: str) -> None:
    findings = hosts(place, good(place), good(place))
    assert verdicts(findings) == ALL_WELL
    assert findings[0].figures["rounds"] > 20


class OwnLocks(Filesystem):
    """Locks that succeed and exclude within one host only: as on sshfs, or NFS with local_lock=all."""

    def __init__(self, root: str) -> None:
        super().__init__(root, shared=False)
        self.try_lock = lambda fd: True


def test_locks_of_one_host_only_are_found_out(place: str) -> None:
    findings = hosts(place, lambda: OwnLocks(place), good(place))
    found = verdicts(findings)
    assert found["locks"] == UNFIT
    assert findings[0].figures["overlaps"] > 0
    assert "local_lock=none" in findings[0].advice
    assert (found["create"], found["sight"]) == (OK, OK)


class LateSight(Filesystem):
    """What is gone is seen for some time yet, even by a fresh look; and so it is with sizes."""

    def __init__(self, root: str, late_s: float) -> None:
        super().__init__(root, shared=False)
        self.seen: dict[str, tuple[float, Any]] = {}
        self.late_s = late_s

    def _stale(self, path: str, now: Any) -> Any:
        if "/sights" not in path:
            return now
        at, old = self.seen.setdefault(path, (time.monotonic(), now))
        if old == now or time.monotonic() - at > self.late_s:
            return now
        return old

    def exists(self, path: str) -> bool:
        return bool(self._stale(path, super().exists(path)))

    def read(self, path: str) -> bytes:
        return bytes(self._stale(path, super().read(path)))


@pytest.mark.parametrize(("late_s", "verdict"), [(0.2, OK), (3.0, UNFIT)])
def test_fresh_looks_that_are_not_fresh_are_found_out(place: str, late_s: float, verdict: str) -> None:
    findings = hosts(place, lambda: LateSight(place, late_s), good(place))
    assert verdicts(findings) == ALL_WELL | {"sight": verdict}, findings
    figures = next(finding.figures for finding in findings if "sight" in finding.probe)
    assert abs(figures["fresh_gone_s"] - late_s) < 1.5
    assert figures["plain_gone_s"] < 1.5


def test_names_that_come_late_are_a_warning(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twohosts, "STALE_S", 2.5)

    class OldListings(Filesystem):
        def names(self, directory: str) -> list[str]:
            return ["gone", "grows"] if directory.endswith("/listing") else super().names(directory)

    findings = hosts(place, good(place), lambda: OldListings(place, shared=False))
    assert verdicts(findings) == ALL_WELL | {"sight": WARNING}, findings
    assert "not within 2.5 s" in next(finding.seen for finding in findings if "sight" in finding.probe)


class Ahead(Clock):
    """A host whose clock is a minute ahead."""

    def local_s(self) -> float:
        return super().local_s() + 60


def test_clocks_that_differ_are_measured_and_allowed_for(place: str) -> None:
    for clocks in ((Ahead(), Clock()), (Clock(), Ahead())):
        findings = hosts(place, good(place), good(place), clocks)
        assert verdicts(findings) == ALL_WELL | {"clocks of hosts": WARNING}
        assert abs(findings[-1].figures["apart_s"] - 60) < 1
        assert findings[0].figures["overlaps"] == 0


class TwoWinners(Filesystem):
    """Creating and linking are not exclusive between hosts."""

    def create(self, path: str, sync: bool = False) -> int:
        if "/created-" in path:
            return self.look(path, os.O_RDWR | os.O_CREAT)
        return super().create(path, sync)

    def link(self, source: str, target: str) -> None:
        try:
            super().link(source, target)
        except FileExistsError:
            pass


def test_names_won_by_both_hosts_are_counted(place: str) -> None:
    findings = hosts(place, *[lambda: TwoWinners(place, shared=False)] * 2)
    assert verdicts(findings) == ALL_WELL | {"create": UNFIT, "link": UNFIT}
    assert findings[3].figures["won_twice"] > 0


def test_a_host_without_locks_says_so_and_both_come_to_an_end(place: str) -> None:
    def no_locks() -> Filesystem:
        fs = Filesystem(place, shared=False)

        def try_lock(fd: int) -> bool:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        fs.try_lock = try_lock
        return fs

    findings = hosts(place, no_locks, good(place))
    assert verdicts(findings)["locks"] == UNFIT
    assert "not implemented" in findings[0].seen


class LateLister(Filesystem):
    """A listing misses what was made last, until a change of one's own makes the client ask (NFS 3)."""

    news: tuple[str, ...] = ()

    def names(self, directory: str) -> list[str]:
        return [name for name in super().names(directory) if name not in self.news]

    def create(self, path: str, sync: bool = False) -> int:
        self.news = (os.path.basename(path),)
        return super().create(path, sync)

    def unlink(self, path: str) -> bool:
        self.news = ()
        return super().unlink(path)


def test_what_an_old_listing_does_not_show_is_removed_all_the_same(place: str) -> None:
    one = party(place, LateLister(place, shared=False))
    with pytest.raises(PartnerLost):
        meet(one, "one", 0.1)
    for step in range(1, 3):
        one._post(f"{'b' * 16}.{step:06d}", {})
    one.close()
    assert os.listdir(f"{place}/.join") == []
