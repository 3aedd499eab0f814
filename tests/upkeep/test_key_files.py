"""Files of free keys on a network mount go with the directory of their key epoch (decision 32)."""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from fsqueue import Queue
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import KeyEpochs, key_epochs_record
from fsqueue.format.models import GcReport
from fsqueue.protocol import fast_path
from fsqueue.storage import keys
from fsqueue.upkeep import key_files
from fsqueue.upkeep.refusals import Refusals
from tests import record_lines
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, trapped


@contextmanager
def a_day_later() -> Iterator[None]:
    """Meanwhile all files and epochs that there are count as old."""
    with mock.patch.multiple(key_files, KEY_AGE_S=-1, EPOCH_AGE_S=-1):
        yield


class Mounted:
    """A queue as hosts see it that have it on a network mount."""

    def __init__(self, path: Path) -> None:
        self.path = path
        Queue.create(path, shards=1).close()
        self.queue = self.host()

    def host(self) -> Queue:
        """One more process, of another host."""
        return Queue(self.path, filesystem=Filesystem(str(self.path), shared=True))

    def files(self) -> dict[str, int]:
        """How many files of keys each directory has."""
        base = Path(self.queue.store.layout.base)
        found = {path.name: len([*path.glob("*/*")]) for path in base.glob("keys*")}
        return {name: count for name, count in found.items() if count}

    def gc_a_day_later(self) -> int:
        """Upkeep, when all that there is now is a day old; how many files of keys it has removed."""
        with a_day_later():
            return self.queue.gc().keys_removed

    def epochs(self) -> tuple[int, int]:
        self.queue.store.refresh(now=True)
        return self.queue.store.queue_state.key_epochs[:2]

    def begin_epoch(self) -> None:
        assert key_files.KeyCollector(self.queue.store, GcReport(), Refusals())._begin_next()

    def insert_and_complete(self, key: str) -> None:
        self.queue.insert("x", key=key)
        self.queue.complete(self.queue.lease())


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setattr(key_files, "FREE_MIN", 2)
    return Mounted(tmp_path / "q")


def begun(mounted: Mounted) -> str:
    """Have an epoch begun; the id of the living task that only the directory of before names."""
    kept = mounted.queue.insert("y", key="kept", delay_s=3600)
    for key in ("a", "b", "c"):
        mounted.insert_and_complete(key)
    assert mounted.gc_a_day_later() == 0
    assert mounted.epochs() == (0, 1)
    return kept.id


def test_files_go_with_their_epoch(mounted: Mounted) -> None:
    kept = begun(mounted)
    assert mounted.files() == {"keys": 4}
    assert mounted.queue.gc().keys_removed == 0  # a listing may be from before
    assert mounted.gc_a_day_later() == 3
    assert mounted.epochs() == (1, 1)
    assert mounted.files() == {"keys-1": 1}
    again = mounted.host().insert("z", key="kept")
    assert (again.inserted, again.id) == (False, kept)
    assert mounted.host().insert("z", key="a").inserted
    assert not mounted.queue.insert("z", key="a").inserted
    assert [*mounted.queue.fsck()] == []


def test_both_directories_count_until_the_claims_are_carried_over(mounted: Mounted) -> None:
    kept = begun(mounted)
    other = mounted.host()
    assert other.insert("z", key="kept").id == kept
    first = other.insert("z", key="a")
    assert first.inserted
    assert mounted.files() == {"keys": 4, "keys-1": 2}
    assert mounted.queue.insert("z", key="a").id == first.id
    assert [*mounted.queue.fsck()] == []
    mounted.gc_a_day_later()
    assert mounted.queue.insert("z", key="a").id == first.id


def test_upkeep_asks_once_for_the_status_of_each_file(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a request to the file server, and there may be millions."""
    for key in ("a", "b", "c"):
        mounted.insert_and_complete(key)
    fs, asked = mounted.queue.store.fs, Counter[str]()
    real = fs.stat

    def stat(path: str) -> os.stat_result:
        asked[path] += "/keys/" in path
        return real(path)

    monkeypatch.setattr(fs, "stat", stat)
    mounted.gc_a_day_later()
    assert mounted.epochs() == (0, 1)
    assert sorted(number for number in asked.values() if number) == [1, 1, 1]


@pytest.mark.parametrize("has_log", [False, True])
def test_the_server_s_own_process_seals_what_a_client_left(mounted: Mounted, has_log: bool) -> None:
    """A client that was cut off between its line and its record may have lost the key's lock, and go on later."""
    server, client = Queue(mounted.path, filesystem=Filesystem(str(mounted.path), shared=False)), mounted.queue
    server.insert("server")  # it has a batch, and does not look for those that others have left
    expected = {"server", "y"}
    if has_log:
        client.insert("first")
        expected.add("first")

    class CutOff(Exception):
        pass

    with (
        mock.patch.object(fast_path, "insert_next", return_value=None),
        mock.patch.object(client._inserter, "_write_inserts", side_effect=CutOff) as cut_off,
        pytest.raises(CutOff),
    ):
        client.insert("x", key="k")
    locked, [(identity, task)] = cut_off.call_args.args
    opening = b"".join(locked.log._added)
    late = opening + record_lines.insert(client.store.clock.now_ms(), identity, int(has_log), task.line, 0)
    path = Path(locked.log.path)
    assert server.insert("y", key="k").inserted
    if path.exists():
        with path.open("ab") as log:
            log.write(late)
    else:
        assert not has_log
    assert {task.payload for task in [*mounted.host().lease(9), *server.lease(9)]} == expected


def test_few_files_stay(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mounted.insert_and_complete("a")
    mounted.gc_a_day_later()
    assert mounted.epochs() == (0, 0)


def test_a_long_file_is_begun_anew_with_the_next_epoch(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "BYTES_MAX", 300)
    for _ in range(4):
        mounted.insert_and_complete("a")
    assert mounted.files() == {"keys": 1}  # not by the inserter, who may have lost the lock
    mounted.gc_a_day_later()
    assert mounted.epochs() == (0, 1)


@contextmanager
def after_the_next_claim(step: Callable[[], object]) -> Iterator[None]:
    """Do a step right after the next claim is written, before its inserter goes on."""
    append = keys.KeyFile.add

    def appended(file: keys.KeyFile, claim: KeyClaim, sync: bool = False) -> None:
        append(file, claim, sync)
        keys.KeyFile.add = append  # type: ignore[method-assign]
        step()

    with mock.patch.object(keys.KeyFile, "add", appended):
        yield


def test_an_inserter_that_has_not_seen_the_epoch_begins_anew(mounted: Mounted) -> None:
    """Its claim stands where nobody will look. It is void, and the task is inserted once."""
    late = mounted.host()
    late.insert("x", key="a")
    late.complete(late.lease())
    with after_the_next_claim(mounted.begin_epoch):
        ref = late.insert("x", key="a")
    assert ref.inserted
    assert mounted.files() == {"keys": 1, "keys-1": 1}
    assert mounted.queue.insert("x", key="a").id == ref.id
    assert mounted.queue.status().waiting == 1


def test_an_upkeep_killed_at_every_step_loses_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "FREE_MIN", 2)
    step, status = 0, -1
    while status:
        step += 1
        mounted = Mounted(tmp_path / str(step))
        kept = begun(mounted)

        def live(mounted: Mounted = mounted, step: int = step) -> None:
            store = trapped(mounted.queue, trap := DieAt(step), shared=True).store
            trap.armed = True
            with a_day_later():
                key_files.KeyCollector(store, GcReport(), Refusals()).collect()

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        assert mounted.host().insert("z", key="kept").id == kept, f"step {step}"
        mounted.gc_a_day_later()
        assert mounted.host().insert("z", key="kept").id == kept, f"step {step}"
        mounted.queue.gc()
        assert mounted.files() == {"keys-1": 1}, f"step {step}"
    assert step > 20


def test_a_purge_begins_with_the_first_epoch(mounted: Mounted) -> None:
    begun(mounted)
    mounted.queue.purge()
    assert mounted.epochs() == (0, 0)
    assert mounted.queue.insert("x", key="a").inserted
    assert mounted.files() == {"keys": 1}


def test_a_directory_that_a_late_process_has_made_again_goes(mounted: Mounted) -> None:
    begun(mounted)
    mounted.gc_a_day_later()
    path = mounted.queue.store.layout.key(names.key_digest("a"), 0)
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(b"")
    mounted.queue.gc()
    assert mounted.files() == {"keys-1": 1}


def test_the_files_are_counted_as_those_of_keys(mounted: Mounted) -> None:
    begun(mounted)
    mounted.queue.insert("z", key="a")
    assert mounted.queue.usage()["keys"].files == 5
    assert mounted.queue.usage()["other"].files == 0


def test_nothing_begins_that_another_process_has_begun(mounted: Mounted) -> None:
    store = mounted.host().store
    collector = key_files.KeyCollector(store, GcReport(), Refusals())
    assert collector._begin_next()
    assert not collector._begin_next()
    assert store.queue_state.key_epochs == KeyEpochs(0, 1, store.queue_state.key_epochs.begun_at)


def test_nothing_begins_in_a_generation_that_has_begun_meanwhile(mounted: Mounted) -> None:
    store = mounted.host().store
    collector = key_files.KeyCollector(store, GcReport(), Refusals())
    mounted.queue.purge()
    assert not collector._begin_next()
    assert mounted.epochs() == (0, 0)


def test_an_epoch_has_a_number_that_no_directory_has(mounted: Mounted) -> None:
    """An old copy of `queue.jsonl` may have been put back: what is in a later directory must not count again."""
    path = mounted.path / "queue.jsonl"
    old = path.read_bytes()
    begun(mounted)
    mounted.gc_a_day_later()
    path.write_bytes(old)
    assert mounted.epochs() == (0, 0)
    mounted.begin_epoch()
    assert mounted.epochs() == (0, 2)


def test_a_stray_does_not_keep_an_epoch_and_a_file_of_another_user_does(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    begun(mounted)
    stray = Path(mounted.queue.store.layout.key(names.key_digest("stray"), 0))
    stray.mkdir()
    with mock.patch.object(keys, "locked_existing", side_effect=PermissionError(errno.EACCES, "not yours")):
        mounted.gc_a_day_later()
    assert mounted.epochs() == (0, 1)
    assert "could not be looked into" in caplog.text
    mounted.gc_a_day_later()
    assert mounted.epochs() == (1, 1)


def test_a_full_disk_leaves_the_rest_of_upkeep_alone(mounted: Mounted) -> None:
    begun(mounted)
    with mock.patch.object(keys.KeyFile, "add", side_effect=OSError(errno.ENOSPC, "full")):
        mounted.gc_a_day_later()
    assert mounted.epochs() == (0, 1)
    assert mounted.gc_a_day_later() == 3


def test_a_line_of_another_key_is_not_carried_over_in_place_of_the_files_own(mounted: Mounted) -> None:
    kept = begun(mounted)
    path = Path(mounted.queue.store.layout.key(names.key_digest("kept"), 0))
    path.write_bytes(path.read_bytes() + path.read_bytes().replace(b'"kept"', b'"other"'))
    mounted.gc_a_day_later()
    assert mounted.queue.insert("z", key="kept").id == kept


def test_a_time_of_the_future_keeps_no_epoch_for_ever(mounted: Mounted) -> None:
    begun(mounted)
    state = mounted.queue.store.queue_state
    with (mounted.path / "queue.jsonl").open("ab") as file:
        file.write(key_epochs_record(state.generation, 1, 2, 9 * 10**12))
    assert mounted.epochs() == (1, 2)
    mounted.queue.gc()
    assert mounted.epochs() == (2, 2)
