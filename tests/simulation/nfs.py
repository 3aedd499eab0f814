"""The client of a network filesystem: a cache of names and one of pages on each host, and locks that can be lost.

After what was measured with Linux clients of NFS 4.2. Opening a directory revalidates the names in it; names that
are used on the way to somewhere may be a minute old, in both directions. Opening a file and taking its lock
revalidate its pages; but while a process of the host has the file open for writing, opening only tells how long
it is: what others have appended reads as zeros, unless one drops what is cached first. Writes are buffered until
fsync, unlock or close. Exclusive create, rename, link, unlink and mkdir ask the server. The read of an unlinked
file that another host removed is ESTALE; what this host has open lives on as `.nfs…` until it is closed.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.disk import Directory, File, Node
from tests.simulation.handles import Host, Opened, Stat, failure
from tests.simulation.kernel import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

PAGE_BYTES = 4096
STALE_S = 60.0
"""The longest time for which a cached name or size is believed."""


class Names:
    """What a client remembers of a directory."""

    __slots__ = ("names", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.names: dict[str, tuple[Node | None, float]] = {}


class Pages:
    """What a client remembers of a file, and what it has not written back yet."""

    __slots__ = ("at", "deferred", "dirty", "version", "view")

    def __init__(self) -> None:
        self.view = bytearray()
        self.version = -1
        self.at = 0.0
        self.deferred = False
        """Whether what is cached is to be read anew as soon as nobody here has the file open for writing."""
        self.dirty: list[tuple[Opened, int, bytes]] = []


class _PagesByFile(dict[File, Pages]):
    """What a client remembers of each file: of one that it does not know yet, nothing."""

    def __missing__(self, file: File) -> Pages:
        made = self[file] = Pages()
        return made


class Client(Host):
    """A host with a network filesystem mounted. `stale`: how likely a cached name is believed when it may be."""

    def __init__(self, name: str, skew_s: float = 0.0, stale: float = 0.0) -> None:
        super().__init__(name, skew_s)
        self.stale = stale
        self.directories: dict[Directory, Names] = {}
        self.pages = _PagesByFile()
        self.open: dict[File, int] = defaultdict(int)
        """How many descriptions of a file this host has."""
        self.writers: dict[File, int] = defaultdict(int)
        """How many of them are for writing."""
        self.listed: dict[Directory, tuple[list[str], float] | None] = {}
        """The last listing of each directory, and its time; None after a stale one was served."""
        self.silly: dict[File, tuple[Directory, str]] = {}

    def unsent(self) -> object:
        """Return all that the disk does not have yet when every process of this host dies: equal if it is the same.

        What it remembers of names and pages besides ends with the processes that used it.
        """
        dirty = [
            (file.number, file.removed_by is self, opened.lost, offset, bytes(data))
            for file, pages in self.pages.items()
            for opened, offset, data in pages.dirty
        ]
        silly = [(file.number, directory.number, name) for file, (directory, name) in self.silly.items()]
        return sorted(dirty), sorted(silly)


class NfsProcess(Process):
    """The `os` of a process on a client."""

    host: Client

    def __init__(self, world: World, name: str, host: Client) -> None:
        super().__init__(world, name, host)

    # -- names -------------------------------------------------------------------------------------

    def directory(self, path: str, below: Directory | None = None) -> Directory:
        if self.host.stale:
            return self.walk(path, below)  # what it means depends on what this host has cached
        return super().directory(path, below)

    def lookup(self, directory: Directory, name: str) -> Node | None:
        host = self.host
        truth = directory.entries.get(name)
        if not host.stale:
            return truth
        known = host.directories.get(directory)
        if known is None:
            known = host.directories[directory] = Names(directory.version)
        cached = known.names.get(name)
        now = self.world.now
        if cached is not None and cached[0] is not truth and now - cached[1] < STALE_S:
            node = cached[0]
            if (node is None or node.links or isinstance(node, Directory)) and self.world.rng.random() < host.stale:
                if self.world.trace is not None:
                    self.world.say(f"    {self.name} believes what it remembers of {name}")
                return node
        known.names[name] = (truth, now)
        return truth

    def changed(self, directory: Directory, name: str, node: Node | None) -> None:
        if self.host.stale:
            known = self.host.directories.get(directory)
            if known is not None:
                known.names[name] = (node, self.world.now)

    def gone(self, path: str | None) -> OSError:
        """The client is told by the server, and looks the names up anew from then on."""
        self.host.directories.clear()
        return failure(errno.ESTALE, path)

    def opening(self, node: Node) -> None:
        if isinstance(node, File):
            self.revalidate(node, unless_written=True)
        elif node.removed:
            raise self.gone(None)
        elif self.host.stale:
            known = self.host.directories.get(node)
            if known is not None and known.version != node.version:
                known.names.clear()
                known.version = node.version

    def listing(self, directory: Directory) -> list[str]:
        world = self.world
        if not world.stale_listings:
            return super().listing(directory)
        before = self.host.listed.get(directory)
        if before is not None and world.now - before[1] < STALE_S and world.rng.random() < world.stale_listings:
            self.host.listed[directory] = None
            if world.trace is not None:
                world.say(f"    {self.name} gets an old listing")
            return before[0]
        names = super().listing(directory)
        self.host.listed[directory] = (names, world.now)
        return names

    # -- pages -------------------------------------------------------------------------------------

    def opened(self, opened: Opened, file: File) -> None:
        self.host.open[file] += 1
        if opened.writes:
            self.host.writers[file] += 1

    def revalidate(self, file: File, unless_written: bool = False) -> None:
        """Ask the server what the file holds; what is buffered stays on top. `unless_written`: only how long it is,
        if a process of this host has it open for writing.
        """
        pages = self.host.pages[file]
        if unless_written and pages.version not in (-1, file.version) and self.host.writers.get(file):
            self.reach(file)
            end = -(-len(pages.view) // PAGE_BYTES) * PAGE_BYTES
            pages.view.extend(bytes(max(0, min(end, len(file.data)) - len(pages.view))))
            pages.view += file.data[len(pages.view) :]
            pages.version, pages.deferred = file.version, True
        if pages.deferred and not unless_written:
            pages.version, pages.deferred = -1, False
        # what a lost lock voids is not to be seen by others on this host
        voided = pages.dirty and any(opened.lost for opened, _, _ in pages.dirty)
        if pages.version != file.version or voided:
            self.reach(file)
            pages.view = bytearray(file.data)
            pages.version = file.version
            for opened, offset, data in pages.dirty:
                if not opened.lost:
                    _overlay(pages.view, offset, data)
        pages.at = self.world.now

    def reach(self, file: File) -> None:
        """ESTALE when another host has removed the file."""
        if not file.links and file.removed_by is not self.host:
            raise failure(errno.ESTALE)

    def content(self, opened: Opened, file: File) -> bytearray:
        pages = self.host.pages[file]
        if pages.version < 0 or self.world.now - pages.at > STALE_S:
            if not opened.lost:
                self.revalidate(file, unless_written=True)
            elif pages.version != file.version:
                raise failure(errno.EIO)  # the server does not know the lock that this reading goes by
        return pages.view

    def put_data(self, opened: Opened, file: File, offset: int, data: bytes) -> None:
        if opened.append and not opened.lost:
            self.revalidate(file)  # appending asks for the size first
            offset = len(self.host.pages[file].view)
        pages = self.host.pages[file]
        _overlay(pages.view, offset, data)
        pages.dirty.append((opened, offset, data))

    def is_felt(self, opened: Opened, file: File) -> bool:
        """Closing writes back what is buffered of the file, whoever wrote it, and removes what lives on as `.nfs…`."""
        pages = self.host.pages.get(file)
        return super().is_felt(opened, file) or bool(pages and pages.dirty) or file in self.host.silly

    def flush(self, opened: Opened, file: File) -> None:
        if opened.lost:
            self.drop_buffered(opened, file)
            raise failure(errno.EIO)
        self.write_back(file)

    def write_back(self, file: File) -> None:
        """Everything that this host has buffered of a file goes to the server, but for what a lost lock voids."""
        pages = self.host.pages.get(file)
        if pages is None or not pages.dirty:
            return
        keep = [part for part in pages.dirty if part[0].lost]
        send = [part for part in pages.dirty if not part[0].lost]
        pages.dirty = keep
        if send:
            self.reach(file)
            alone = pages.version == file.version
            for _, offset, data in send:
                _overlay(file.data, offset, data)
            self.disk.written(file)
            self.disk.sync_file(file)  # the client waits until it is stable on the server
            if alone:
                pages.version = file.version

    def drop_buffered(self, opened: Opened, file: File) -> None:
        pages = self.host.pages[file]
        self.voided(file, [part for part in pages.dirty if part[0] is opened])
        pages.dirty = [part for part in pages.dirty if part[0] is not opened]
        pages.version = -1  # read anew
        opened.lost = False

    def lose_buffered(self, opened: Opened, file: File) -> None:
        """The server takes nothing of what this host has buffered of a file through this description."""
        is_lost = opened.lost
        self.drop_buffered(opened, file)
        opened.lost = is_lost

    def voided(self, file: File, parts: list[tuple[Opened, int, bytes]]) -> None:
        """These never got to the server, but others on this host may have read them before."""
        if any(b'"gone"' in data for _, _, data in parts):
            self.world.voided_farewells.add(file)

    def closing(self, opened: Opened, file: File) -> None:
        """Unlocking and closing write back what is buffered, and say nothing when that fails."""
        if opened.lost:
            self.drop_buffered(opened, file)
        elif file.links or file.removed_by is self.host:
            self.write_back(file)
        else:
            self.host.pages[file].dirty.clear()
        if not opened.shared_by:
            self._last_closed(opened, file)

    def _last_closed(self, opened: Opened, file: File) -> None:
        if opened.writes:
            self.host.writers[file] -= 1
            pages = self.host.pages[file]
            if pages.deferred and not self.host.writers[file]:
                pages.version, pages.deferred = -1, False
        left = self.host.open[file] = self.host.open[file] - 1
        if not left:
            silly = self.host.silly.pop(file, None)
            if silly is not None and silly[0].entries.get(silly[1]) is file:
                self.disk.put([(*silly, None)])

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        """What is not buffered is forgotten."""
        opened, file = self._file(fd)
        if not self.host.pages[file].dirty and not opened.lost:
            self.host.pages[file].version = -1

    def locked(self, opened: Opened, file: File) -> None:
        """Before it takes a lock, a client writes back what it has buffered of the file, whoever wrote it.

        What a lost lock voids fails then: the new holder does not read it, and who wrote it is told when he syncs.
        """
        if opened.lost:
            return
        self.write_back(file)
        pages = self.host.pages[file]
        if pages.dirty:
            self.voided(file, pages.dirty)
            pages.dirty, pages.version = [], -1
        self.revalidate(file)

    def attributes(self, opened: Opened) -> Stat:
        node = opened.node
        if isinstance(node, File) and node.removed_by not in (None, self.host) and not node.links:
            raise failure(errno.ESTALE)
        return super().attributes(opened)

    def removing(self, directory: Directory, name: str, file: File) -> None:
        file.removed_by = self.host
        if self.host.open.get(file) and file.links == 1:
            silly = f".nfs{file.number:024x}"
            self.host.silly[file] = (directory, silly)
            self.disk.put([(directory, name, None), (directory, silly, file)])
        else:
            self.disk.put([(directory, name, None)])


def _overlay(target: bytearray, offset: int, data: bytes) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data
