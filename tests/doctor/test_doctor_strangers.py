"""The doctor in directories where strangers write: what they plant, exchange and say harms nobody."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue.clock import Clock, Entropy, ManualClock
from fsqueue.doctor import contests, rendezvous, twohosts
from fsqueue.doctor import examination as doctor
from fsqueue.doctor.contests import Party
from fsqueue.doctor.probes import ProbeResult
from fsqueue.doctor.rendezvous import PartnerLost, Rendezvous
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.open_directories import OpenDirectory
from fsqueue.upkeep import doctorplaces
from tests.concurrency.processes import Child
from tests.levels import how_many
from tests.support import needs_root, open_to_all
from tests.waiting import until

OWNER, STRANGER = 64_012, 64_013
MOUNT = {"verdict": "ok", "seen": "", "advice": "", "figures": {"type": "", "point": "", "options": "", "source": ""}}
HOST = "\x1b]0;PWNED\x07\x1b[2Jnode7"


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(0o022 if uid == OWNER else 0)


@contextmanager
def as_user(uid: int, action: Callable[..., object], *args: object) -> Iterator[Child]:
    """A process of another user, which does not outlive the block."""

    def live() -> object:
        become(uid)
        return action(*args)

    child = Child(live)
    try:
        yield child
    finally:
        child.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A directory as /tmp: everybody may write in it, and only owners remove."""
    open_to_all(tmp_path)
    place = tmp_path / "everybodys"
    place.mkdir()
    place.chmod(0o1777)
    return place


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What belongs to the owner alone."""
    home = tmp_path / "home"
    (home / "Thesis").mkdir(parents=True)
    (home / "Thesis" / "chapter1").write_text("years of work")
    (home / ".secretrc").write_text("secret")
    for path in (*home.rglob("*"), home):
        os.chown(path, OWNER, OWNER)
        os.utime(path, (1e9, 1e9))
    home.chmod(0o700)
    return home


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


def plant(scratch: str, mode: int, home: str) -> None:
    """Wait until a doctor removes what looks old, and put a link in place of the directory that it is at."""
    outer, join = f"{scratch}/.fsqueue-doctor", f"{scratch}/.fsqueue-doctor/join"
    os.makedirs(join)
    for place in (outer, join):
        os.chmod(place, mode)
    for name in [
        *(f"d{number:04d}" for number in range(1500)),
        *(f"{number:016x}" for number in range(99)),
        ".secretrc",
    ]:
        Path(join, name).touch()
    os.mkdir(f"{join}/Thesis")
    for name in os.listdir(join):
        os.utime(f"{join}/{name}", (1e9, 1e9))
    os.symlink(home, f"{outer}/link")
    first = f"{join}/{os.listdir(join)[0]}"
    Path(f"{outer}/ready").touch()
    while os.path.exists(first):
        pass
    os.rename(join, f"{outer}/real")
    os.rename(f"{outer}/link", join)
    signal.pause()


def examine(directory: str) -> dict[str, Any]:
    return doctor.examine(directory).as_dict()


def ready(path: Path) -> None:
    until(path.exists, "the stranger")


@needs_root
@pytest.mark.parametrize("caller", [OWNER, 0], ids=["a user", "root"])
def test_an_exchanged_directory_leads_no_doctor_to_ones_home(scratch: Path, home: Path, caller: int) -> None:
    before = contents(home)
    with as_user(STRANGER, plant, str(scratch), 0o777, str(home)):
        ready(scratch / ".fsqueue-doctor" / "ready")
        planted = contents(scratch)
        with as_user(caller, examine, str(scratch)) as child:
            assert child.result()["verdict"] in ("ok", "warning")
        assert contents(scratch) == planted, "what a stranger left is not the caller's to remove"
    assert contents(home) == before


@needs_root
def test_a_meeting_place_that_a_stranger_made_is_refused_with_a_sentence(scratch: Path, home: Path) -> None:
    with as_user(STRANGER, plant, str(scratch), 0o777, str(home)):
        ready(scratch / ".fsqueue-doctor" / "ready")
        planted = contents(scratch)
        with as_user(OWNER, lambda: doctor.join(scratch, timeout_s=60).as_dict()) as child:
            report = child.result()
        assert contents(scratch) == planted
    assert report["partner"] is None
    seen = report["findings"][-1]
    assert f"belongs to another user (number {STRANGER}) and is not sticky" in seen["seen"]
    assert "directory of your own" in seen["advice"]


# -- a stranger who answers ----------------------------------------------------------------------------------


class Evil(doctor.Examination):
    """A party that says what it likes."""

    says: dict[str, Any] | None = None

    def _look(self) -> None:
        pass

    def about_partner(self, host: str, there: dict[str, Any], mine: dict[str, Any]) -> list[ProbeResult]:
        return []

    def identity(self, directory: OpenDirectory) -> dict[str, Any]:
        return super().identity(directory) | {"boot": "another"} if self.says is None else self.says


def answer(scratch: str, says: dict[str, Any] | None) -> str:
    evil = Evil(scratch, lambda step: None)
    evil.says = says
    evil.join(60, lambda: None)
    return evil.report.findings[-1].seen


def joined(directory: str) -> dict[str, Any]:
    return doctor.join(directory, timeout_s=60).as_dict()


@needs_root
@pytest.mark.parametrize(
    "says",
    [
        {"host": HOST, "boot": "x", "device": 1, "mount": MOUNT},
        {"host": "x"},
        {},
    ],
    ids=["escapes in its name", "half of it", "nothing"],
)  # fmt: skip
def test_a_stranger_who_talks_nonsense_is_told_from_a_doctor(scratch: Path, says: dict[str, Any]) -> None:
    with as_user(STRANGER, lambda: OpenDirectory.at(str(scratch)).make_or_enter(doctorplaces.DOCTOR, 0o1777, str).path):
        ready(scratch / ".fsqueue-doctor")
    with as_user(STRANGER, answer, str(scratch), says), as_user(OWNER, joined, str(scratch)) as child:
        report = child.result()
    assert report["partner"] is None
    assert "makes no sense" in report["findings"][-1]["seen"]
    assert "\x1b" not in json.dumps(report, ensure_ascii=False)
    assert owned(scratch) == []


def owned(scratch: Path) -> list[str]:
    """What is left of the owner's."""
    return [path.name for path in scratch.rglob("*") if path.stat().st_uid == OWNER]


@needs_root
def test_a_partner_who_is_another_user_is_named_as_one(scratch: Path) -> None:
    """Two who share no group may not finish the tests; both are told, and each clears away what is his."""
    with as_user(STRANGER, answer, str(scratch), None) as stranger, as_user(OWNER, joined, str(scratch)) as child:
        report, said = child.result(), stranger.result()
    assert any("another user: what follows rests on its word" in finding["seen"] for finding in report["findings"])
    assert said
    assert owned(scratch) == []


# -- what is planted where notes belong ----------------------------------------------------------------------


def parties(directory: Path) -> tuple[Rendezvous, Rendezvous]:
    place = str(directory)
    one, two = (Rendezvous(Filesystem(place, shared=False), place, Clock(), Entropy()) for _ in range(2))
    for party in (one, two):
        party.announce()
    return one, two


def met(directory: Path) -> tuple[Rendezvous, Rendezvous]:
    one, two = parties(directory)
    with ThreadPoolExecutor(2) as pool:
        hello = [
            pool.submit(party.meet, {"host": name, "boot": "", "device": 1, "mount": MOUNT}, 60, lambda: None)
            for party, name in ((one, "1"), (two, "2"))
        ]
        assert [done.result()["host"] for done in hello] == ["2", "1"]
    return one, two


def meet_beside(directory: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path], None]) -> None:
    """Two parties meet, and talk, where `plant` has put things under the names that they expect."""
    real, planted = Rendezvous.announce, ("0" * 16, "f" * 16)

    def announce(party: Rendezvous) -> None:
        real(party)
        if len(list(directory.glob("*.here"))) == 4:  # those of both, beside two planted ones
            one, two = (path.stem for path in directory.glob("*.here") if path.stem not in planted)
            for name in (f"{'0' * 16}.{one}", f"{'0' * 16}.{two}", f"{one}.{two}"):
                plant(directory / f"{name}.000001")

    for name in planted:
        plant(directory / f"{name}.here")
    monkeypatch.setattr(Rendezvous, "announce", announce)
    one, two = met(directory)
    plant(directory / f"{two.me}.{one.me}.000003")
    with pytest.raises(PartnerLost, match="said nothing more"):
        one.exchange({}, {}, 0.3)  # there is something else where the note belongs
    with pytest.raises(PartnerLost, match="in the place of a note"):
        two.keep_step()
    for party in (one, two):
        party.close()


def link_to(target: Path) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("what", ["pipe", "link", "directory", "endless", "nested", "closed"])
def test_what_is_planted_where_notes_belong_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.5)
    outside, place = tmp_path / "outside", tmp_path / "m"
    outside.mkdir()
    place.mkdir()
    (outside / "precious").write_text("precious")

    def endless(path: Path) -> None:
        path.touch()
        os.truncate(path, 1 << 40)

    def directory(path: Path) -> None:
        path.mkdir()
        (path / "precious").touch()

    def nested(path: Path) -> None:
        data = b"[" * 100_000 + b"]" * 100_000
        digest = rendezvous.hashlib.blake2b(data, digest_size=16).hexdigest().encode()
        path.write_bytes(digest + b"\n" + data)

    def closed(path: Path) -> None:
        path.write_text("secret")
        path.chmod(0)

    plants: dict[str, Callable[[Path], None]] = {
        "pipe": lambda path: os.mkfifo(path),
        "link": link_to(outside / "precious"),
        "directory": directory,
        "endless": endless,
        "nested": nested,
        "closed": closed,
    }
    meet_beside(place, monkeypatch, plants[what])
    assert (outside / "precious").read_text() == "precious"
    if what == "directory":
        assert list(place.rglob("precious")), "no tree is removed, whatever it is called"


def test_thousands_that_want_one_hold_it_up_no_longer_than_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two thousand at three tenths of a second each, only as many as fit into the second that it waits."""
    monkeypatch.setattr(rendezvous, "ANSWER_S", 0.3)
    one, two = parties(tmp_path)
    two.close()
    for number in range(2000):
        for name in (f"{number:016x}.here", f"{number:016x}.{one.me}.000001"):
            (tmp_path / name).touch()
    real, tried = one._agree_with, []
    monkeypatch.setattr(one, "_agree_with", lambda other, identity: tried.append(other) or real(other, identity))
    with pytest.raises(PartnerLost, match="No other host joined"):
        one.meet({}, 1.0, lambda: None)
    assert 0 < len(tried) < 10
    one.close()


@pytest.mark.parametrize("how", ["another's", "linked"])
@pytest.mark.parametrize("name", ["ledger", "sights1/plain/grows"])
def test_a_file_to_append_to_that_is_another_is_not_written_to(tmp_path: Path, name: str, how: str) -> None:
    """A partner who leads could have put a hard link to a file of the other's into the place."""
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    place = tmp_path / "m"
    party = Party("p", Filesystem(str(place), shared=False), str(place), owner=os.geteuid())
    place.mkdir()
    sights = twohosts.Sights(party, 1)
    sights.make()
    (place / name).unlink(missing_ok=True)
    if how == "linked":
        os.link(precious, place / name)
    else:
        (place / name).touch()
        party.owner = os.geteuid() + 1
    if name == "ledger":
        assert "another process put a file of its own in place of ledger" in contests.take_turns(party, 3).error
    else:
        with pytest.raises(PermissionError, match="another process put a file of its own in place of sights1"):
            sights.change()
    assert precious.read_text() == "precious\n"


# -- what is said ---------------------------------------------------------------------------------------------

SHAPES: list[dict[str, Any]] = [rendezvous.IDENTITY, twohosts.TURNS, twohosts.OUTCOME]
KEYS = sorted({key for shape in SHAPES for key in shape} | {"seen", "advice", "rename", "overlaps", "fresh new"})
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text(max_size=5),
    st.sampled_from(["ok", "unfit", HOST, "\x9b", "\x7f", 0, 1, 1e308, -1e308, float("nan"), float("inf")]),
)  # fmt: skip
BODIES = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_size=6,
)


def parts(value: Any) -> Iterator[Any]:
    """What a value consists of, keys and all."""
    for inner in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)
    if not isinstance(value, (dict, list)):
        yield value


def sensible(shape: Any) -> Any:
    """What a doctor would say."""
    if isinstance(shape, dict):
        return {key: sensible(inner) for key, inner in shape.items()}
    if isinstance(shape, list):
        return [sensible(shape[0])]
    return "" if shape is rendezvous.TEXT else shape[0] if isinstance(shape, tuple) else 1


@settings(max_examples=how_many(12, 100), deadline=None)
@given(BODIES, st.sampled_from(SHAPES))
def test_any_body_is_understood_or_called_nonsense(body: dict[str, Any], shape: dict[str, Any]) -> None:
    found, said = {}, ""
    try:
        found = rendezvous.taken(sensible(shape) | body, shape)
    except rendezvous.Nonsense as error:
        said = str(error)
    assert said.isprintable()
    assert said or found.keys() == shape.keys()
    for part in parts(found):
        assert part is None or (part.isprintable() if isinstance(part, str) else abs(part) <= rendezvous.NUMBER_MAX)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (rendezvous.TEXT, ["x" * 10_001, HOST, 1, None, ["x"]]),
        (rendezvous.NUMBER, [1 << 70, -1e19, float("nan"), True, "1", None, []]),
        (rendezvous.NUMBER_OR_NONE, [1e19, "", {}]),
        (7, [8, -1, 1.0, True, None, "7"]),
        (("ok", "unfit"), ["better", None, 0, ["ok"]]),
        ([7], [[0] * 101, [8], 7, {"7": 7}, None]),
        ({"a": 7}, [{}, {"b": 7}, {"a": 8}, [7], 7, None]),
    ],
)
def test_what_is_out_of_bounds_is_nonsense(shape: Any, said: list[Any]) -> None:
    rendezvous.taken(sensible(shape), shape)
    for one in said:
        with pytest.raises(rendezvous.Nonsense):
            rendezvous.taken(one, shape)


class Scripted:
    """A meeting in which the partner says what it likes."""

    def __init__(self, leads: bool, bodies: list[dict[str, Any]]) -> None:
        self.leads, self.bodies = leads, iter(bodies)
        self.me, self.partner = "a" * 16, "b" * 16
        self.clock = Clock()

    def exchange(self, body: dict[str, Any], shape: dict[str, Any]) -> Any:
        json.dumps(body)
        try:
            return rendezvous.taken(sensible(shape) | next(self.bodies), shape)
        except StopIteration:
            raise PartnerLost("silent") from None

    def keep_step(self) -> None:
        self.exchange({}, {})


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(leads=st.booleans(), well=st.integers(0, 16), odd=st.lists(BODIES, max_size=3))
def test_whatever_a_partner_says_in_between_the_tests_come_to_an_end(
    tmp_path_factory: pytest.TempPathFactory, leads: bool, well: int, odd: list[dict[str, Any]]
) -> None:
    place = str(tmp_path_factory.mktemp("m"))
    if not leads:
        for number in range(contests.NAMES):
            Path(place, f"prize-{number}").touch()
        for number in (1, 2):
            twohosts.Sights(Party("p", Filesystem(place, shared=False), place), number).make()
    meeting: Any = Scripted(leads, [{}] * well + odd)
    party = Party(meeting.me, Filesystem(place, shared=False), place, owner=os.geteuid())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("ROUNDS", 2),
            ("TURNS_S", 0.05),
            ("STALE_S", 0.05),
            ("HEAD_START_S", 0.0),
            ("SLOT_S", 0.0),
        ):
            patch.setattr(twohosts, name, value)
        said: list[str] = []
        try:
            said = [finding.seen for finding in twohosts.examine(meeting, lambda: party, lambda step: None)]
        except PartnerLost as error:
            said = [str(error)]
        except OSError:
            pass  # it said that it had made what is not there: `join` makes that a finding
        assert all(text.isprintable() for text in said)


def test_a_beginning_in_the_far_future_is_not_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    begun = clock.now_s
    twohosts.waiting_for(Party("p", Filesystem(str(tmp_path)), str(tmp_path), clock), 9e12)(0)
    assert clock.now_s == begun + twohosts.HEAD_START_S


class Later(Clock):
    """The clock after all the time that the tests may take."""

    def monotonic(self) -> float:
        return super().monotonic() + rendezvous.TESTS_S


def test_a_partner_who_drags_it_out_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = met(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(two.exchange, {"word": 1}, {})
        assert one.exchange({}, {"word": 1}) == {"word": 1}
        said.result()
    monkeypatch.setattr(one, "clock", Later())
    with pytest.raises(PartnerLost, match="said nothing more"):
        one.keep_step()


@pytest.mark.parametrize("there", [False, True], ids=["no place", "an empty place"])
def test_a_leader_that_is_interrupted_is_not_taken_for_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """It removes what says that it is there, and then the place of the tests, which the follower looks for."""
    examination = Evil(str(tmp_path), lambda step: None)  # an honest one, but quicker
    with OpenDirectory.at(str(tmp_path)) as held:
        doctorplaces.meeting_place(held, Entropy().hex16).close()
        identity = examination.identity(held)
    join = tmp_path / doctorplaces.DOCTOR / doctorplaces.JOIN
    leader = Rendezvous(Filesystem(str(join), shared=False), str(join), Clock(), Entropy())
    leader.me = "0" * 16
    leader.announce()

    def lead() -> None:
        leader.meet(identity, 60, lambda: None)
        twohosts.compare_clocks(leader)
        if there:
            (join / f"{leader.me}.place").mkdir(0o700)
        leader.keep_step()
        leader.close()

    real = doctorplaces.enter_contest
    with ThreadPoolExecutor(1) as pool:
        led = pool.submit(lead)
        monkeypatch.setattr(doctorplaces, "enter_contest", lambda *place: (led.result(), real(*place))[1])
        examination.join(60, lambda: None)
    assert str(rendezvous.PartnerEnded()) in examination.report.findings[-1].seen
    assert [path.name for path in join.glob("*")] == [f"{leader.me}.place"] * there


def test_places_are_closed_to_others_unless_one_of_them_takes_part(tmp_path: Path) -> None:
    with OpenDirectory.at(str(tmp_path)) as held:
        token = Entropy().hex16
        made = {
            "place": doctorplaces.make_place(held, token),
            "contest": doctorplaces.make_contest(held, "a" * 16, False, token),
            "others": doctorplaces.make_contest(held, "b" * 16, True, token),
            "meeting": doctorplaces.meeting_place(held, token),
        }
        modes = {name: stat.S_IMODE(place.stat().st_mode) for name, place in made.items()}
        for place in made.values():
            place.close()
    assert modes["place"] == modes["contest"] == 0o700
    assert modes["others"] == 0o777 & ~umask()
    assert modes["meeting"] == 0o1777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
