"""Time and randomness, injected."""

from __future__ import annotations

import errno
import math
import os
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import Queue
from fsqueue.clock import (
    MARGIN_MS,
    MS_MAX,
    REMEASURE_S,
    Backoff,
    Clock,
    Entropy,
    LatestMeasurement,
    ManualClock,
    duration_ms,
    margin_ms,
)
from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import Filesystem

pytestmark = pytest.mark.once


def test_the_clock_follows_the_host_until_it_learns_better(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Clock.local_s is time.time
    monkeypatch.setattr(Clock, "local_s", lambda self: 1234.5)
    clock = Clock()
    assert clock.now_ms() == 1_234_500
    assert clock.is_stale()


def test_a_probe_teaches_the_server_s_offset_and_the_error() -> None:
    clock = ManualClock(1000.0)
    clock.learn(server_ms=1_005_000, before_ms=999_900, after_ms=1_000_100)
    assert clock.offset_ms == 5_000
    assert clock.now_ms() == 1_005_000
    assert clock.error_ms >= 100
    assert not clock.is_stale()
    clock.advance(3600)
    assert clock.is_stale()


def test_the_true_time_is_within_the_error_wherever_the_stamp_was_taken() -> None:
    for stamped_after in (0, 37, 200):
        clock = ManualClock(1000.0)
        clock.learn(server_ms=2_000_000 + stamped_after, before_ms=1_000_000, after_ms=1_000_200)
        assert abs(clock.offset_ms - 1_000_000) <= clock.error_ms


def test_a_slow_probe_does_not_spoil_what_is_known() -> None:
    """The server was away for 40 seconds in the middle of it."""
    clock = ManualClock(1000.0)
    clock.learn(server_ms=1_000_000 + 5_000, before_ms=1_000_000 - 2, after_ms=1_000_000 + 2)
    known = clock.offset_ms, clock.error_ms
    for stamped_after in (0, 100, 39_900, 40_000):
        clock.learn(server_ms=1_100_000 + stamped_after + 5_000, before_ms=1_100_000, after_ms=1_140_000)
        assert (clock.offset_ms, clock.error_ms) == known
    assert not clock.is_stale()


def test_a_clock_that_was_set_is_followed_as_far_as_a_slow_probe_proves_it() -> None:
    clock = ManualClock(1000.0)
    clock.learn(server_ms=1_000_000, before_ms=1_000_000 - 1, after_ms=1_000_000 + 1)
    clock.learn(server_ms=1_060_000, before_ms=1_000_000, after_ms=1_020_000)  # by 40 to 60 seconds
    assert 40_000 - 1 <= clock.offset_ms <= 60_000
    assert abs(clock.offset_ms - 60_000) <= clock.error_ms
    assert clock.is_vague()
    clock.learn(server_ms=1_060_000, before_ms=1_000_000 - 1, after_ms=1_000_000 + 1)
    assert (clock.offset_ms, clock.is_vague()) == (60_000, False)


@given(
    st.integers(-10_000_000, 10_000_000),
    st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 1)), min_size=1),
)
def test_the_true_offset_is_within_the_error_after_any_probes(offset: int, probes: list[tuple[int, float]]) -> None:
    clock = ManualClock(1000.0)
    errors = []
    for took, share in probes:
        before = 1_000_000_000
        clock.learn(before + took * share + offset, before, before + took)
        assert abs(clock.offset_ms - offset) <= clock.error_ms
        errors.append(clock.error_ms)
    assert errors == sorted(errors, reverse=True)


def test_the_error_covers_the_drift_of_a_day_of_slow_probes() -> None:
    clock, offset = ManualClock(1000.0), 0.0
    clock.learn(server_ms=1_000_000, before_ms=1_000_000 - 1, after_ms=1_000_000 + 1)
    for _ in range(24 * 60):
        clock.advance(60)
        offset += 60 * 0.05  # 50 parts in a million
        now = clock.local_ms()
        clock.learn(server_ms=now + offset, before_ms=now, after_ms=now + 400)
        assert abs(clock.offset_ms - offset) <= clock.error_ms <= 210


def test_the_margin_is_twice_the_error_within_bounds() -> None:
    least, most = MARGIN_MS
    for error, margin in ((0, least), (least, 2 * least), (10 * most, most)):
        assert margin_ms(error) == margin


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(10.0)
    assert clock.now_ms() == 10_000
    clock.sleep(0.5)
    clock.advance(1)
    assert (clock.now_ms(), clock.monotonic(), clock.local_ms()) == (11_500, 11.5, 11_500)


def test_the_file_server_s_stamp_is_compared_with_the_local_clock(tmp_path: Path) -> None:
    clock = ManualClock(time.time() - 3600)
    Filesystem(str(tmp_path), shared=False).compare_clock(clock, f"{tmp_path}/.staging/probe")
    assert abs(clock.offset_ms - 3_600_000) < 5_000
    assert os.listdir(tmp_path / ".staging") == []


def test_the_clock_is_measured_again_while_the_server_is_slow(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    took_ms = [40_000, 2_000, 10, 10]

    def compare(_: Filesystem, clock: Clock, probe: str) -> None:
        took = took_ms.pop(0)
        ticks = clock.ticks_ms()
        clock.learn(clock.local_ms() + took / 2, ticks, ticks + took)

    monkeypatch.setattr(Filesystem, "compare_clock", compare)
    clock = queue.store.clock = Clock()
    queue.store.compare_clock()
    assert took_ms == [10]
    assert (abs(clock.offset_ms) <= 10, clock.is_stale()) == (True, False)


class SteppedClock(Clock):
    """The clock of a host that is set while its ticks go on."""

    step_ms = 0.0
    slept_ms = 0.0

    def local_s(self) -> float:
        return super().local_s() + self.step_ms / 1000

    def monotonic(self) -> float:
        return super().monotonic() + self.slept_ms / 1000


def set_clock(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    """Set this host's clock; the one that stamps its files stays."""
    wall = time.time
    monkeypatch.setattr(Clock, "local_s", lambda clock: wall() + step_ms / 1000)


@pytest.mark.parametrize("step_ms", [900_000, -900_000])
def test_setting_the_local_clock_does_not_move_the_server_s_time(step_ms: int) -> None:
    clock = SteppedClock()
    ticks = clock.ticks_ms()
    clock.learn(clock.local_ms() + 7_000, ticks, ticks + 2)
    before = clock.now_ms()
    clock.step_ms = step_ms
    assert 0 <= clock.now_ms() - before < 5_000
    assert clock.is_stale()  # and it is measured anew, in case that it was the ticks that missed something
    clock.learn(clock.now_ms(), clock.ticks_ms(), clock.ticks_ms())
    assert not clock.is_stale()
    assert abs(clock.offset_ms - 7_000 + step_ms) < 5_000  # of the local clock as it is now


def test_time_that_the_machine_was_suspended_counts() -> None:
    clock = SteppedClock()
    ticks = clock.ticks_ms()
    clock.learn(clock.local_ms(), ticks, ticks + 2)
    before = clock.now_ms()
    clock.slept_ms = clock.step_ms = 3_600_000
    assert 3_600_000 <= clock.now_ms() - before < 3_605_000


@pytest.mark.parametrize("step_ms", [900_000, -900_000])
def test_a_step_of_the_local_clock_takes_over_no_live_lease_on_a_shared_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    q = Queue.create(tmp_path / "q", shards=1, lease_s=600)
    q.insert("t")
    holder, other = (Queue(q.path, filesystem=Filesystem(str(q.path), shared=True)) for _ in range(2))
    [held] = holder.lease(1)
    assert other.lease(1) == []
    set_clock(monkeypatch, step_ms)
    assert other.lease(1) == []
    other.store.refresh(now=True)
    assert other.lease(1) == []
    held.renew()
    held.complete()


def test_a_full_disk_does_not_leave_a_host_with_its_own_clock(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe can be made; the times of a file that is there can be set."""
    clock = Clock()
    queue.store.clock = clock
    set_clock(monkeypatch, 30 * 86_400_000)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(queue.store.fs, "create", full)
    queue.store.compare_clock()
    assert clock.offset_ms == pytest.approx(-30 * 86_400_000, abs=60_000)


def test_monotonic_time_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    before = clock.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.monotonic() < before + 60


def test_identifiers_are_hexadecimal_of_fixed_length_and_never_repeat() -> None:
    entropy = Entropy()
    found = [entropy.hex16() for _ in range(5_000)]
    assert len(set(found)) == 5_000
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in found)
    assert len(entropy.bytes16()) == 16


def test_random_numbers_are_in_the_unit_interval() -> None:
    entropy = Entropy()
    found = [entropy.random() for _ in range(1_000)]
    assert 0 <= min(found) < 0.1
    assert 0.9 < max(found) < 1


def test_after_forgetting_the_pool_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = iter([b"\x01" * Entropy.POOL_BYTES, b"\x02" * Entropy.POOL_BYTES])
    monkeypatch.setattr(os, "urandom", lambda size: next(pools))
    entropy = Entropy()
    assert entropy.hex16() == "01" * 8
    entropy.forget()
    assert entropy.hex16() == "02" * 8


@given(st.integers(0, (1 << 48) - 1))
def test_uuid7_carries_the_time_version_and_variant(now_ms: int) -> None:
    uuid = Entropy().uuid7(now_ms)
    assert len(uuid) == 32
    assert int(uuid[:12], 16) == now_ms
    assert uuid[12] == "7"
    assert uuid[16] in "89ab"


def test_uuid7_sorts_by_time() -> None:
    entropy = Entropy()
    made = [entropy.uuid7(now_ms) for now_ms in range(1_000_000_000_000, 1_000_000_000_100)]
    assert made == sorted(made)


def test_uuid7_of_one_millisecond_sort_as_they_were_made() -> None:
    entropy = Entropy()
    for now_ms in (1_000_000_000_000, 1_000_000_000_001):
        made = [entropy.uuid7(now_ms) for _ in range(2049)]
        assert made == sorted(made)
        assert len(set(made)) == 2049
    assert len({entropy.uuid7(now_ms) for _ in range(10_000)}) == 10_000


@given(st.floats(0, 1e9))
def test_durations_are_rounded_up_to_milliseconds(seconds: float) -> None:
    found = duration_ms(seconds, "x")
    assert -0.001 <= found - seconds * 1000 < 1.001


def test_a_duration_of_whole_milliseconds_stays_what_it_is() -> None:
    assert [duration_ms(seconds, "x") for seconds in (0, 0.001, 0.3, 1.1, 2.2, 600)] == [0, 1, 300, 1100, 2200, 600_000]


@pytest.mark.parametrize(
    "seconds", [-1, -0.001, math.nan, math.inf, -math.inf, MS_MAX, 10**30, 10**400, "1", None, True, [1]]
)
def test_what_is_no_duration_is_an_invalid_argument(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="delay_s must be"):
        duration_ms(seconds, "delay_s")


def test_a_least_duration_is_kept() -> None:
    with pytest.raises(InvalidArgument, match=r"between 0\.001"):
        duration_ms(0, "lease_s", 0.001)
    assert duration_ms(0.001, "lease_s", 0.001) == 1


# -- pauses that grow --------------------------------------------------------------------------


def test_pauses_grow_up_to_the_longest() -> None:
    backoff = Backoff((1.0, 5.0), lambda: 0.5, growth=2)
    assert not backoff.is_longest
    assert [backoff.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.is_longest


@pytest.mark.parametrize("jitter", [0.0, 0.25, 0.5])
def test_pauses_differ_by_no_more_than_the_jitter(jitter: float) -> None:
    backoff = Backoff((2.0, 2.0), Random(7).random, jitter=jitter)
    pauses = [backoff.next_s() for _ in range(1000)]
    assert 2 - 2 * jitter <= min(pauses) <= max(pauses) <= 2 + 2 * jitter
    assert max(pauses) - min(pauses) >= 3.9 * jitter


def test_a_measurement_is_taken_over_while_it_is_newer_and_holds() -> None:
    latest, clock, other = LatestMeasurement(), SteppedClock(), SteppedClock()
    assert not latest.tell(other)
    ticks = clock.ticks_ms()
    clock.learn(clock.local_ms() + 7_000, ticks, ticks + 20)
    latest.note(clock)
    assert latest.tell(other)
    assert (other.offset_ms, other.error_ms, other.margin_ms) == (clock.offset_ms, clock.error_ms, clock.margin_ms)
    assert abs(other.now_ms() - clock.now_ms()) < 5_000
    assert not latest.tell(other)  # it is no newer
    clock.learn(clock.local_ms() + 9_000, ticks, ticks + 4)
    assert other.offset_ms != clock.offset_ms  # what was noted is not what the clock learns later
    late = SteppedClock()
    late.slept_ms = late.step_ms = 1000 * REMEASURE_S + 1000
    assert not latest.tell(late)
    assert late.offset_ms != 0  # a start, for what is measured now
