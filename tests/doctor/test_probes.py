"""The doctor's probes, on a good disk and on filesystems that lie."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsqueue.clock import Clock, Entropy
from fsqueue.doctor import contests, probes
from fsqueue.doctor.probes import OK, UNFIT, WARNING, Bench, ProbeResult, worst
from fsqueue.filesystem import Filesystem


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    (tmp_path / "m").mkdir()
    return Filesystem(str(tmp_path / "m"), shared=False)


class HastyClock(Clock):
    """Time passes a hundred times faster."""

    def monotonic(self) -> float:
        return super().monotonic() * 100

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 100)


def bench(fs: Filesystem) -> Bench:
    return Bench(fs, f"{fs.root}/", HastyClock(), Entropy())


def error(code: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def unfit(findings: list[ProbeResult]) -> set[str]:
    return {finding.probe for finding in findings if finding.verdict == UNFIT}


# -- on a good disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_a_good_disk_passes_all_probes_and_nothing_is_left(fs: Filesystem, shared: bool) -> None:
    fs = Filesystem(fs.root, shared=shared)
    findings = probes.full(Bench(fs, f"{fs.root}/", Clock(), Entropy()))
    assert [finding for finding in findings if finding.verdict != OK] == []
    assert len({finding.probe for finding in findings}) == len(findings) == 10
    assert os.listdir(fs.root) == []


def test_the_quick_part_costs_a_few_dozen_calls(fs: Filesystem) -> None:
    """Each may be a question to a file server."""
    calls: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any) -> Any:
            calls.append(name)
            return call(*args)

        return do

    for name in (
        "look",
        "create",
        "rename",
        "link",
        "unlink",
        "write",
        "fsync",
        "pread",
        "fstat",
        "try_lock",
        "unlock",
    ):
        setattr(fs, name, counted(name, getattr(fs, name)))
    assert worst(probes.quick(bench(fs))) == OK
    assert len(calls) < 90
    assert calls.count("fsync") <= 2


# -- lies, probe by probe ---------------------------------------------------------------------------------


def lies() -> dict[str, tuple[str, Callable[[Filesystem], None]]]:
    """By name: which probe must notice, and how the filesystem is made to lie."""

    def locks_exclude_nobody(fs: Filesystem) -> None:
        fs.try_lock = lambda fd: True

    def nothing_can_be_locked(fs: Filesystem) -> None:
        fs.try_lock = lambda fd: False

    def locks_stay(fs: Filesystem) -> None:
        fs.unlock = lambda fd: None

    def no_locks(fs: Filesystem) -> None:
        fs.try_lock = error(errno.ENOSYS)

    def locks_are_mandatory(fs: Filesystem) -> None:
        fs.pread = error(errno.EIO)

    def appends_are_lost(fs: Filesystem) -> None:
        real = fs.write
        fs.write = lambda fd, data: len(data) if data == b"2\n" else real(fd, data)

    def appends_overwrite(fs: Filesystem) -> None:
        fs.write = lambda fd, data: os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), data, 0)

    def creating_has_two_winners(fs: Filesystem) -> None:
        real = fs.look
        fs.create = lambda path, sync=False: real(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)  # type: ignore[method-assign]

    def no_links(fs: Filesystem) -> None:
        fs.link = error(errno.EPERM)  # type: ignore[method-assign]

    def a_link_is_another_file(fs: Filesystem) -> None:
        def link(source: str, target: str) -> None:
            with open(target, "x"):
                pass

        fs.link = link  # type: ignore[method-assign]

    def links_replace(fs: Filesystem) -> None:
        def link(source: str, target: str) -> None:
            fs.unlink(target)
            os.link(source, target)

        fs.link = link  # type: ignore[method-assign]

    def renaming_copies(fs: Filesystem) -> None:
        def rename(source: str, target: str) -> bool:
            fs.unlink(target)
            os.link(source, target)
            return True

        fs.rename = rename  # type: ignore[method-assign]

    def renaming_always_wins(fs: Filesystem) -> None:
        real = fs.rename
        fs.rename = lambda source, target: real(source, target) or True  # type: ignore[method-assign]

    def renaming_replaces_nothing(fs: Filesystem) -> None:
        real = fs.rename

        def rename(source: str, target: str) -> bool:
            return False if os.path.exists(target) else real(source, target)

        fs.rename = rename  # type: ignore[method-assign]

    def directories_cannot_be_synced(fs: Filesystem) -> None:
        fs.sync_directory = error(errno.EINVAL)  # type: ignore[method-assign]

    def files_cannot_be_synced(fs: Filesystem) -> None:
        fs.fsync = error(errno.EIO)

    def directories_are_devices(fs: Filesystem) -> None:
        real = fs.rename

        def rename(source: str, target: str) -> bool:
            if os.path.dirname(source) != os.path.dirname(target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            return real(source, target)

        fs.rename = rename  # type: ignore[method-assign]

    def what_was_removed_stays_listed(fs: Filesystem) -> None:
        seen: set[str] = set()
        real = fs.names
        fs.names = lambda directory: list(seen.update(real(directory)) or seen)  # type: ignore[method-assign, func-returns-value]

    def what_is_new_is_not_seen(fs: Filesystem) -> None:
        fs.names = lambda directory: []  # type: ignore[method-assign]

    found = {name: lie for name, lie in locals().items() if callable(lie)}
    probe_of = {
        "appends": "appending",
        "creating": "exclusive create",
        "no_links": "link",
        "a_link": "link",
        "links": "link",
        "renaming": "rename",
        "directories_cannot": "sync",
        "files": "sync",
        "directories_are": "directories",
        "what": "listing",
    }
    return {
        name: (next((probe for start, probe in probe_of.items() if name.startswith(start)), "locks"), lie)
        for name, lie in found.items()
    }


@pytest.mark.parametrize("name", sorted(lies()))
def test_each_lie_is_noticed_by_name(fs: Filesystem, name: str) -> None:
    probe, lie = lies()[name]
    lie(fs)
    findings = probes.full(bench(fs))
    assert probe in unfit(findings), findings
    for finding in findings:
        assert (finding.verdict == UNFIT) <= bool(finding.advice), finding
        assert finding.seen.endswith("."), finding
    if probe == "locks":
        assert any("flock" in finding.advice or "POSIX" in finding.advice for finding in findings)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EROFS, errno.EACCES]
)
def test_no_room_no_permission_and_limits_are_not_the_filesystems_fault(fs: Filesystem, code: int) -> None:
    fs.create = error(code)  # type: ignore[method-assign]
    with pytest.raises(OSError) as caught:
        probes.quick(bench(fs))
    assert caught.value.errno == code


@pytest.mark.parametrize(("step_ns", "verdict"), [(10**9, WARNING), (2 * 10**9, WARNING), (4 * 10**6, OK)])
def test_the_steps_of_timestamps_are_told(fs: Filesystem, step_ns: int, verdict: str) -> None:
    real = fs.fstat

    def fstat(fd: int) -> Any:
        return SimpleNamespace(st_mtime_ns=real(fd).st_mtime_ns // step_ns * step_ns + (step_ns < 10**9))

    fs.fstat = fstat  # type: ignore[assignment]
    finding = probes.timestamps(Bench(fs, f"{fs.root}/", Clock(), Entropy()))
    assert finding.verdict == verdict
    assert ("2 s" in finding.seen or "1 s" in finding.seen) == (verdict == WARNING)


def test_a_clock_that_stands_still_is_told(fs: Filesystem) -> None:
    fs.fstat = lambda fd: SimpleNamespace(st_mtime_ns=10**18)  # type: ignore[assignment, return-value]
    finding = probes.timestamps(bench(fs))
    assert finding.verdict == WARNING
    assert "did not change" in finding.seen


@pytest.mark.parametrize(("hours", "verdict", "way"), [(2, WARNING, "ahead of"), (-2, WARNING, "behind"), (0, OK, "")])
def test_the_offset_of_the_servers_clock_is_measured(fs: Filesystem, hours: int, verdict: str, way: str) -> None:
    real = fs.fstat
    fs.fstat = lambda fd: SimpleNamespace(st_mtime=real(fd).st_mtime + 3600 * hours,  # type: ignore[assignment, return-value]
                                          st_mtime_ns=real(fd).st_mtime_ns + 3600 * hours * 10**9)  # fmt: skip
    finding = probes.clock(Bench(fs, f"{fs.root}/", Clock(), Entropy()))
    assert finding.verdict == verdict
    assert way in finding.seen
    assert abs(finding.figures["offset_s"] - 3600 * hours) < 1


# -- contests -----------------------------------------------------------------------------------------------


def probes_of(findings: list[ProbeResult]) -> dict[str, str]:
    return {finding.probe.partition(" between")[0]: finding.verdict for finding in findings}


ALL_WELL = dict.fromkeys(("locks", "appending", "reading", "create", "link", "rename"), OK)


def test_threads_and_processes_contend_fairly_on_a_good_disk(fs: Filesystem) -> None:
    for kind, contest in (
        ("threads", lambda place: contests.among_threads(lambda: fs, place)),
        ("processes", lambda place: contests.among_processes(fs, place)),
    ):
        place = f"{fs.root}/{kind}"
        fs.make_directory(place)
        findings = contest(place)
        assert probes_of(findings) == ALL_WELL
        assert findings[0].figures["rounds"] == contests.PROCESSES * contests.ROUNDS
        assert all(kind in finding.probe for finding in findings)


def test_locks_that_exclude_nobody_show_in_overlaps(fs: Filesystem) -> None:
    def make() -> Filesystem:
        mine = Filesystem(fs.root, shared=False)
        mine.try_lock = lambda fd: True
        return mine

    findings = contests.among_threads(make, fs.root)
    assert findings[0].verdict == UNFIT
    assert findings[0].figures["overlaps"] > 10
    assert "flock" in findings[0].advice


def test_lost_appends_are_counted(fs: Filesystem) -> None:
    def make() -> Filesystem:
        mine = Filesystem(fs.root, shared=False)
        real, written = mine.write, [0]

        def write(fd: int, data: bytes) -> int:
            written[0] += 1
            return len(data) if written[0] % 10 == 0 else real(fd, data)

        mine.write = write
        return mine

    findings = contests.among_threads(make, fs.root)
    assert findings[1].verdict == UNFIT
    assert findings[1].figures == {"lines": 240, "lost": 24}


def test_races_with_two_winners_are_noticed(fs: Filesystem) -> None:
    mutex = threading.Lock()

    def make() -> Filesystem:
        mine = Filesystem(fs.root, shared=False)
        create, rename = mine.create, mine.rename

        def creating(path: str, sync: bool = False) -> int:
            if path.endswith("created-7"):
                return mine.look(path, os.O_RDWR | os.O_CREAT)
            return create(path, sync)

        def renaming(source: str, target: str) -> bool:
            if not source.endswith("prize-8"):
                return rename(source, target)
            with mutex:
                os.link(source, target)
            return True

        mine.create, mine.rename = creating, renaming  # type: ignore[method-assign]
        return mine

    findings = contests.among_threads(make, fs.root)
    assert probes_of(findings) == ALL_WELL | {"create": UNFIT, "rename": UNFIT}
    assert [finding.figures["won_twice"] for finding in findings[3:]] == [1, 0, 1]


def test_a_lock_that_never_comes_is_a_warning_not_a_lie(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contests, "LOCK_WAIT_S", 0.2)
    fd = fs.open_append(f"{fs.root}/ledger")
    assert fs.try_lock(fd)
    findings = contests.among_threads(lambda: Filesystem(fs.root, shared=False), fs.root)
    fs.close(fd)
    assert findings[0].verdict == WARNING
    assert "without success" in findings[0].seen


def test_holds_that_overlap_by_the_clock_alone_are_noticed() -> None:
    """One clock, and a ledger that tells nothing of it."""
    ledger = b"a 0 in\na 0 out 1\nb 0 in\nb 0 out 2\n"
    for start, overlaps in ((1011.0, 0), (1009.0, 1)):
        took = [contests.Took("a", 1, [(1000, 1010)]), contests.Took("b", 1, [(start, 1020)])]
        [first, *others] = contests.judge_turns(took, contests.add_up(took, ledger), "threads", one_clock=True)
        assert (first.figures["overlaps"], first.verdict == UNFIT) == (overlaps, overlaps == 1)
        assert [finding.verdict for finding in others] == [OK, OK]
        assert contests.judge_turns(took, contests.add_up(took, ledger), "hosts", one_clock=False)[0].verdict == OK


def test_an_interrupted_hold_needs_no_clock_to_be_noticed() -> None:
    took = [contests.Took("a", 1, [(0, 1)]), contests.Took("b", 1, [(5, 6)])]
    ledger = b"a 0 in\nb 0 in\na 0 out 1\nb 0 out 2\n"
    [first, second, third] = contests.judge_turns(took, contests.add_up(took, ledger), "hosts", one_clock=False)
    assert (first.verdict, first.figures["overlaps"], second.verdict, third.verdict) == (UNFIT, 2, OK, OK)


def test_old_values_read_under_a_lock_are_noticed(fs: Filesystem) -> None:
    """Locks exclude, and each host goes on believing its cache."""

    def make() -> Filesystem:
        mine = Filesystem(fs.root, shared=False)
        real, cache = mine.pread, dict[int, bytes]()

        def pread(fd: int, count: int, offset: int) -> bytes:
            return cache.setdefault(fd, real(fd, count, offset))  # as long as it is open

        mine.pread = pread
        return mine

    findings = contests.among_threads(make, fs.root)
    assert probes_of(findings)["locks"] == OK
    assert probes_of(findings)["reading"] == UNFIT
