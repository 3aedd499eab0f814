"""The files of a group's numbers: append records under a lock, follow what others append, read one (decision 53).

The number of a record is its place. So numbers grow, and none is used twice as long as the last file stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from fsqueue.errors import StorageError
from fsqueue.filesystem import PassingOverStrays, resources
from fsqueue.format import names, numbers
from fsqueue.format.numbers import FILE_RECORDS, RECORD_BYTES, NumberCodec, TaskVersion
from fsqueue.interruptions import is_interruption, let_out, suppress
from fsqueue.storage import group_directory, journals
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.journals import Journal

WAIT_S = 30.0
"""Seconds to wait for the lock of the last file, which is held for a few system calls and a sync."""
LOOKS = 10
"""Maximum number of times to look for the last file while others begin new ones, or remove old ones."""


def files(group: GroupDirectory) -> list[int]:
    """Return the places of a group's files of numbers, in order; none if something else has the directory's name."""
    listed: list[str] = []
    with PassingOverStrays():  # fsck tells of it
        listed = group.fs.names(numbers.directory(group.path))
    return sorted(place for name in listed if (place := names.parse_number_file(name)) is not None)


class NumberFile(Journal):
    """An open file of numbers: its records are equally long, and no lines."""

    __slots__ = ()

    def end_of_torn(self, size: int) -> bytes:
        """Return zeros that fill a torn record up. The number of that record names nothing."""
        return bytes(-size % RECORD_BYTES)


class Given(NamedTuple):
    """The number of a version, and what its record says of it."""

    number: int
    version: int
    available_ms: int
    owner: int


class _OfBatch:
    """Hold the latest number of each task of a batch, and the fields of its record. The number 0 stands for none."""

    __slots__ = ("numbers", "owners", "times", "versions")

    def __init__(self) -> None:
        self.numbers, self.versions, self.times, self.owners = array("q"), array("q"), array("q"), array("i")

    def put(self, index: int, given: Given) -> None:
        """Note the latest number of a task: that of its latest version; of one version, the last that it got.

        A number may come late: another process has changed the task, and that version has one already.
        """
        assert given.number > 0, "the number 0 stands for none"
        more = index + 1 - len(self.numbers)
        if more > 0:
            for each in (self.numbers, self.versions, self.times, self.owners):
                each.extend([0] * more)
        elif self.numbers[index] and self.versions[index] > given.version:
            return
        self.numbers[index], self.versions[index], self.times[index], self.owners[index] = given

    def of(self, index: int) -> Given | None:
        """Return the latest number of a task; None if it has none."""
        if index >= len(self.numbers) or not self.numbers[index]:
            return None
        return Given(self.numbers[index], self.versions[index], self.times[index], self.owners[index])


class _Asked:
    """A request for numbers, and its answer."""

    __slots__ = ("error", "found", "wanted")

    def __init__(self, wanted: Sequence[tuple[TaskVersion, bool]]) -> None:
        self.wanted = wanted
        self.found: list[Given] | None = None
        self.error: BaseException | None = None


class Numbers:
    """The numbers of one group, as this process knows them. Threads share it: those that come together share a sync.

    `syncs`: whether a number must survive a power loss once it was told.
    """

    def __init__(self, group: GroupDirectory, syncs: bool) -> None:
        self.group, self._fs = group, group.fs
        self._syncs = syncs
        self._codec = NumberCodec(group.state.id)
        self._mutex = resources.Mutex()
        self._gathering = resources.Mutex()
        self._asked: list[_Asked] = []
        self._known: dict[bytes, _OfBatch] = {}
        self._end = 0
        """Number of numbers that were given, as far as this process has followed the files."""
        self._distrusted = 0
        """Numbers up to this one, that were not followed yet, name nothing: their sync has failed."""
        self._last: int | None = None
        """The place of the file that was the last one when this process looked."""
        self._named = -1
        """Up to this file, the names of files are known to be on disk."""

    # -- what is known -----------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read the records that other processes have appended. They are on disk by then, if numbers are to survive."""
        with self._mutex:
            if self._last is None and not files(self.group):
                return  # no number was ever given: a look makes no file
            with self._locked() as (place, file):
                self._follow(place, file.fd)

    def latest(self, key: bytes, index: int) -> Given | None:
        """Return the latest number of a task; None if it has none. `key`: as `TaskVersion.key`.

        As far as this process has followed: see `catch_up`.
        """
        known = self._known.get(key)
        return None if known is None else known.of(index)

    def read(self, wanted: Sequence[int]) -> dict[int, TaskVersion]:
        """Return the task version that each of some numbers names. Numbers that name nothing are left out.

        Numbers that have ended are included: `latest` tells which have. Numbers that this process has not followed are
        left out.
        """
        by_file: dict[int, list[int]] = {}
        for number in set(wanted):
            if 1 <= number <= self._end:
                by_file.setdefault(numbers.where(number)[0], []).append(number)
        found: dict[int, TaskVersion] = {}
        for place, those in by_file.items():
            with suppress(FileNotFoundError), self._fs.closing(self._fs.look(self._path(place))) as fd:
                for number in those:
                    named = self._codec.parse(number, self._fs.pread(fd, RECORD_BYTES, numbers.where(number)[1]))
                    if named is not None:
                        found[number] = named
        return found

    # -- to take numbers ---------------------------------------------------------------------------

    def give(self, wanted: Sequence[tuple[TaskVersion, bool]]) -> list[Given]:
        """Return the numbers of these versions, in this order. Those that have none get the next ones.

        The flag says whether the caller knows the owner: then a number that says another one does not count. A version
        that is gone always gets a number of its own, which names nothing. Each call appends in its order.

        OSError, StorageError: nothing is known of what was appended. Nobody was told.
        """
        asked = _Asked(wanted)
        with self._gathering:
            self._asked.append(asked)
        with self._mutex:
            if asked.found is None and asked.error is None:
                self._give_all()
        if asked.error is not None:
            raise asked.error
        assert asked.found is not None
        return asked.found

    def _give_all(self) -> None:
        """Answer all requests that have gathered. The mutex is held."""
        with self._gathering:
            together, self._asked = self._asked, []
        try:
            found = self._append([one for asked in together for one in asked.wanted])
        except BaseException as error:
            for asked in together:
                asked.error = error if isinstance(error, Exception) and not is_interruption(error) else _interrupted()
            let_out(error)
            return
        assert len(found) == sum(len(asked.wanted) for asked in together), "each version gets one number"
        at = 0
        for asked in together:
            asked.found = found[at : at + len(asked.wanted)]
            at += len(asked.wanted)

    def _append(self, wanted: Sequence[tuple[TaskVersion, bool]]) -> list[Given]:
        found: list[Given] = []
        while len(found) < len(wanted):
            with self._locked() as (place, file):
                self._follow(place, file.fd)
                found += self._append_in(place, file, wanted[len(found) :])
        return found

    def _append_in(self, place: int, file: NumberFile, wanted: Sequence[tuple[TaskVersion, bool]]) -> list[Given]:
        """Append to the locked last file as many records as it takes, and return their numbers or known ones.

        A number counts only once its record is on disk: by then the index does not know it.
        """
        size = file.size = file.length()
        torn = -size % RECORD_BYTES
        first = place * FILE_RECORDS + (size + torn) // RECORD_BYTES + 1
        last = (place + 1) * FILE_RECORDS
        assert first <= last + 1, "a file of numbers has more records than it may"
        found: list[Given] = []
        fresh: dict[tuple[bytes, int, int], Given] = {}
        records: list[bytes] = []
        for named, is_owner_known in wanted:
            version = named.key, named.index, named.version
            given = fresh.get(version) or self.latest(named.key, named.index)
            if given is None or given.version != named.version or (is_owner_known and given.owner != named.owner):
                given = Given(first + len(records), named.version, named.available_ms, named.owner)
                if given.number > last:
                    break
                records.append(self._codec.record(given.number, named))
                fresh[version] = given
            found.append(given)
        if records or first > last:  # the last record is torn: only a file that is full has a next one
            file.append(b"".join(records), sync=None, read_back=True)  # durably, if that is asked for
            self._sync(place, file.fd, first + len(records) - 1)
            self._end = first + len(records) - 1
        for (key, index, _), given in fresh.items():
            self._known.setdefault(key, _OfBatch()).put(index, given)
        return found

    # -- the last file -----------------------------------------------------------------------------

    def _path(self, place: int) -> str:
        return numbers.path_of(self.group.path, names.number_file(place))

    @contextmanager
    def _locked(self) -> Iterator[tuple[int, NumberFile]]:
        """Hold the lock of the last file, which has room; it is made if there is none. LockTimeout."""
        fs, group = self._fs, self.group
        for _ in range(LOOKS):
            if self._last is None:
                self._last = max(files(group), default=0)
            place = self._last
            with ExitStack() as held:
                try:
                    file = held.enter_context(
                        journals.locked(NumberFile, fs, group.clock, group.entropy, self._path(place), WAIT_S)
                    )
                except FileNotFoundError:
                    if not group.is_in_place():
                        raise group_directory.gone(group.path) from None
                    self._begin(place)
                    continue
                if file.length() < FILE_RECORDS * RECORD_BYTES:
                    yield place, file
                    return
                self._sync(place, file.fd)  # before there is a next one: those who follow sync the last file alone
                self._begin(place + 1)
        raise StorageError(f"Other processes begin new files in {numbers.directory(group.path)} all the time. Repeat.")

    def _begin(self, place: int) -> None:
        """Make a file of numbers, unless there is a later one: the file may have been removed, and its numbers were
        used. In any case the last one is known then.
        """
        self._last = max([place, *files(self.group)])
        with suppress(FileExistsError):
            self._fs.close(self._fs.create(self._path(self._last)))

    def _sync(self, place: int, fd: int, end: int = 0) -> None:
        """Sync the file and its name, if numbers are to survive a power loss; on a shared mount in any case.

        After an error the numbers up to `end` are distrusted: the next sync may succeed although these are lost.
        """
        if not self._syncs and not self._fs.shared:
            return
        try:
            self._fs.fsync(fd)
            if self._named < place:
                self._fs.sync_directory(numbers.directory(self.group.path))
                self._fs.sync_directory(self.group.path)
                self._named = place
        except OSError:
            self._distrusted = max(self._distrusted, end)
            raise

    def _follow(self, place: int, fd: int) -> None:
        """Read records appended since the last reading. `fd`: the last file, locked. The mutex is held."""
        fs, begun = self._fs, self._end
        at, offset = numbers.where(begun + 1)
        if at < place:
            for earlier in files(self.group):
                if at <= earlier < place:
                    self._read_earlier(earlier, offset if earlier == at else 0)
            at, offset = place, 0
        content = fs.read_from(fd, offset)
        end = at * FILE_RECORDS + (offset + len(content)) // RECORD_BYTES
        if len(content) >= RECORD_BYTES or at * FILE_RECORDS > begun:
            self._sync(place, fd, end)  # its author may have died before that
        self._learn(at, offset, content)
        self._end = end

    def _read_earlier(self, place: int, offset: int) -> None:
        """Read the rest of a full file, which nothing is appended to any more."""
        fs = self._fs
        with suppress(FileNotFoundError), fs.closing(fs.look_anew(self._path(place))) as fd:
            self._learn(place, offset, fs.read_from(fd, offset))

    def _learn(self, place: int, offset: int, content: bytes) -> None:
        assert offset % RECORD_BYTES == 0, "records would be read from the middle of one on"
        first = place * FILE_RECORDS + offset // RECORD_BYTES + 1
        known = self._known
        for number, key, index, version, available_ms, owner in self._codec.each(first, content):
            if number <= self._distrusted:
                continue
            of_batch = known.get(key)
            if of_batch is None:
                of_batch = known[key] = _OfBatch()
            of_batch.put(index, Given(number, version, available_ms, owner))


def _interrupted() -> StorageError:
    return StorageError("The thread that was giving numbers was interrupted. No number was returned. Repeat the call.")
