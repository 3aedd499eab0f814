"""The disk, or the file server's: inodes, directories, and what of both a power loss leaves.

Directory operations wait in a journal until one of the directories they touch is synced. A power loss keeps
some of those that wait (any subset that respects dependencies by name; or a prefix), and of each file what
was synced and perhaps a part of what was appended since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from tests.simulation.world import World


T = TypeVar("T")


class File:
    """An inode. `durable` is its content as of the last sync; None: never synced."""

    __slots__ = (
        "data",
        "durable",
        "home",
        "links",
        "lost_at",
        "mtime",
        "number",
        "owner",
        "removed_by",
        "version",
    )

    def __init__(self, number: int, now: float, home: Directory) -> None:
        self.number = number
        self.home = home
        """Where it was made."""
        self.data = bytearray()
        self.durable: bytes = b""
        self.links = 0
        self.mtime = now
        self.version = 0
        self.owner: object | None = None
        self.lost_at = -1
        """At which step a process that was out of touch lost its lock on it."""
        """The open file description that has it locked."""
        self.removed_by: object | None = None


class Directory:
    """A directory. `since` tells at which step each name came to be."""

    __slots__ = ("above", "durable", "entries", "links", "mtime", "name", "number", "removed", "since", "version")

    def __init__(self, number: int, now: float, above: Directory | None = None, name: str = "") -> None:
        self.number = number
        self.above, self.name = above, name
        """Where it was made, and how it was called there."""
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.since: dict[str, int] = {}
        self.removed = False
        """Nothing can be made in it any more, though somebody may remember it."""
        self.links = 1
        self.mtime = now
        self.version = 0

    def __str__(self) -> str:
        return f"<directory {self.number}>"


Node = File | Directory
Effect = tuple[Directory, str, Node | None]
"""In this directory this name now means that, or nothing."""


class Lost(NamedTuple):
    """A queue that was moved away for good: its name, when it went (s), and the path of its directory since then."""

    name: str
    at: float
    path: str


class Disk:
    """The truth, all of it. `lossy`: whether a journal is kept for a power loss."""

    def __init__(self, world: World, lossy: bool, names_sync: bool = False) -> None:
        self.world = world
        self.lossy = lossy
        self.names_sync = names_sync
        """Whether directory operations are durable at once, as on a file server."""
        self.keeps_both_names = False
        """Whether a power loss may leave a file that was being renamed with both its names (btrfs)."""
        self.tick_s = 0.0
        """The resolution of the times that it keeps; 0: they are exact."""
        self.step = 0
        self.numbers = 1
        self.boots = 1
        """How often the hosts were started."""
        self.root = Directory(1, world.now)
        self.journal: list[list[Effect]] = []
        self.files: list[File] = []
        """Every file that ever was."""
        self.logs: dict[str, list[File]] = {}
        """Every movement log that ever was, by its name."""
        self.ends: list[tuple[int, str]] = []
        """When the queue ended, and what was in it: the steps at which it was purged, closed or moved away."""
        self.ended: list[tuple[int, str]] = []
        """The same steps, and the name of the queue that was purged or deleted then."""
        self.lost: list[Lost] = []
        """The queues that were moved away, and did not come back."""
        self.moved: list[float] = []
        """When a queue was moved out of its group, or a group out of its place, and when it came back (s)."""
        self.remade: list[int] = []
        """The steps at which the directory of another group was made in place of one that was moved away."""
        self.creations: list[tuple[int, int]] = []
        """From which step to which a process was creating the group."""
        self.away: list[tuple[int, int]] = []
        """From which step to which a queue was not in its place, but came back."""
        self.ended_at: dict[int, float] = {}
        """The time of each of those steps."""
        self.grown: dict[File, list[tuple[int, int]]] = {}
        """Of each log and decision file: at which steps it was written to, and how many bytes it had then."""
        self._fates: dict[File, list[tuple[int, str]]] = {}
        """The same for each file that was ever called `queue.jsonl`, as far as its lines say so."""
        self.readings: dict[File, tuple[int, Any]] = {}
        """What the judgement has read in a file, and in which version of it."""
        self.moved_directories = 0
        """How often a directory was renamed or removed: until then resolved paths hold."""

    # -- changes ---------------------------------------------------------------------------------

    def kept(self, at: float) -> float:
        """Return a time as the disk keeps it."""
        return at // self.tick_s * self.tick_s if self.tick_s else at

    def new_file(self, directory: Directory, name: str) -> File:
        self.numbers += 1
        file = File(self.numbers, self.world.now, directory)
        self.files.append(file)
        self.put([(directory, name, file)])
        if len(name) == 38 and name.endswith(".jsonl") and not _is_of_keys(directory):
            self.grown[file] = []
            if not _is_of_updates(directory):
                self.logs.setdefault(name[:32], []).append(file)
        return file

    def new_directory(self, directory: Directory, name: str) -> Directory:
        self.numbers += 1
        made = Directory(self.numbers, self.world.now, directory, name)
        self.put([(directory, name, made)])
        if directory is self.root and self.moved:
            self.remade.append(self.step)
        return made

    def put(self, effects: list[Effect]) -> None:
        """Change names, all at once."""
        for directory, name, node in effects:
            old = directory.entries.pop(name, None)
            if old is not None:
                old.links -= 1
                if name == "q" and node is None:
                    self.ends.append((self.step, "moved"))
                    self.ended_at[self.step] = self.world.now
            if node is not None:
                directory.entries[name] = node
                directory.since[name] = self.step
                node.links += 1
                if name == "queue.jsonl" and isinstance(node, File):
                    self._fates.setdefault(node, [])
            directory.version += 1
            directory.mtime = self.world.now
        if self.lossy:
            self.journal.append(effects)
            if self.names_sync:
                self._settle([True])

    def written(self, file: File) -> None:
        file.version += 1
        file.mtime = self.world.now
        if file in self.grown:
            self.grown[file].append((self.step, len(file.data)))
        known = self._fates.get(file)
        if known is not None:
            fresh = [(self.step, word) for word in _fate(file.data)[len(known) :]]
            known += fresh
            self.ends += fresh
            if fresh:
                self.ended.append((self.step, file.home.name))
            self.ended_at[self.step] = self.world.now

    def fates(self) -> Iterator[tuple[Directory, list[tuple[int, str]]]]:
        """Each queue's directory, as they were made, with the steps at which the queue was purged or closed."""
        for file, fates in sorted(self._fates.items(), key=lambda one: one[0].home.number):
            yield file.home, fates

    def content_at(self, file: File, step: int) -> bytes:
        """What a log or decision file had before a step, if nobody has written over that since."""
        sizes = [size for at, size in self.grown.get(file, ()) if at < step]
        return bytes(file.data[: sizes[-1]]) if sizes else b""

    def read_by(self, reader: Callable[[bytes], T], file: File) -> T:
        """What a reader makes of a file's content: again only when that has changed. One reader for each file."""
        known = self.readings.get(file)
        if known is None or known[0] != file.version:
            known = self.readings[file] = (file.version, reader(bytes(file.data)))
        made: T = known[1]
        return made

    def remove_directory(self, above: Directory, name: str) -> None:
        """Remove an empty directory."""
        node = above.entries[name]
        assert isinstance(node, Directory)
        self.put([(above, name, None)])
        node.removed = True
        self.moved_directories += 1

    def move(self, above: Directory, name: str, to: Directory, target: str) -> None:
        """Somebody else moves a directory. It is no end of what is in it."""
        to.entries[target] = above.entries.pop(name)
        for one, text in ((above, name), (to, target)):
            one.since[text] = self.step
            one.version += 1
            one.mtime = self.world.now
        self.moved_directories += 1

    def lose(self, step: int, lost: Lost) -> None:
        """A queue was moved away at a step, and does not come back."""
        self.ends.append((step, "moved"))
        self.ended.append((step, lost.name))
        self.ended_at[step] = self.world.now
        self.lost.append(lost)

    def was_away(self, begin: int, end: int) -> bool:
        """Whether a queue was not in its place at some time between two steps."""
        return any(first <= end and last >= begin for first, last in self.away)

    def remove_empty_directories(self, top: Directory) -> int:
        """What a cleaner of scratch space does below a directory; how many it removed."""
        removed = 0
        for name, node in list(top.entries.items()):
            if isinstance(node, Directory):
                removed += self.remove_empty_directories(node)
                if not node.entries:
                    self.remove_directory(top, name)
                    removed += 1
        return removed

    def state(self) -> object:
        """Return all that a new process can find here, now or after a power loss: equal if it is the same."""
        files = [
            (file.number, bytes(file.data), file.durable, file.links, file.mtime, file.owner is not None, file.lost_at)
            for file in self.files
        ]
        journal = [
            [(directory.number, name, node and node.number) for directory, name, node in effects]
            for effects in self.journal
        ]
        return files, journal, list(self._names(self.root)), list(self.ends), self.boots

    def _names(self, directory: Directory) -> Iterator[object]:
        yield directory.number, directory.mtime, directory.removed
        for entries in (directory.entries, directory.durable):
            yield [(name, node.number) for name, node in entries.items()]
        for node in {**directory.durable, **directory.entries}.values():
            if isinstance(node, Directory):
                yield from self._names(node)

    def take_apart(self) -> None:
        """Make no file or directory know another."""
        for file in self.files:
            file.home, file.owner, file.removed_by = self.root, None, None
        self._forget_above(self.root)
        vars(self).clear()

    def _forget_above(self, directory: Directory) -> None:
        nodes = [*directory.entries.values(), *directory.durable.values()]
        directory.above = None
        directory.entries.clear()
        directory.durable.clear()
        for node in nodes:
            if isinstance(node, Directory):
                self._forget_above(node)

    # -- durability ------------------------------------------------------------------------------

    def sync_file(self, file: File) -> None:
        if self.lossy:
            file.durable = bytes(file.data)

    def sync_directory(self, directory: Directory) -> None:
        """Make the operations that touch this directory durable, and those before them that touch the same names."""
        if self.lossy and self.journal:
            self._settle([any(at is directory for at, _, _ in effects) for effects in self.journal])

    def sync_all(self) -> None:
        """As a disk is when a story begins."""
        self._settle([True] * len(self.journal))
        for file in self.files:
            file.durable = bytes(file.data)

    def _settle(self, chosen: list[bool]) -> None:
        journal = self.journal
        wanted: set[tuple[int, str]] = set()
        for at in range(len(journal) - 1, -1, -1):
            keys = {(directory.number, name) for directory, name, _ in journal[at]}
            if chosen[at] or keys & wanted:
                chosen[at] = True
                wanted |= keys
        for effects, yes in zip(journal, chosen, strict=True):
            if yes:
                for directory, name, node in effects:
                    if node is None:
                        directory.durable.pop(name, None)
                    else:
                        directory.durable[name] = node
        self.journal = [effects for effects, yes in zip(journal, chosen, strict=True) if not yes]

    def lose_power(self, rng: Random) -> None:
        """Only what is durable remains, and by luck some of the rest."""
        chance = rng.choice((0.0, 0.5, 0.9, 1.0))
        if rng.random() < 0.3:  # a journal that is replayed up to some point
            kept = rng.randint(0, len(self.journal))
            chosen = [at < kept for at in range(len(self.journal))]
        else:
            chosen = [rng.random() < chance for _ in self.journal]
        if self.keeps_both_names:
            self.journal = [_with_both_names(effects) if rng.random() < 0.5 else effects for effects in self.journal]
        self._lose(chosen, lambda file: _remains(bytes(file.data), file.durable, chance, rng))

    def lose_power_exactly(self, names: bool, data: bool, both_names: bool = False) -> None:
        """Of the directory operations that were not synced all remain, or none; of the data likewise."""
        if both_names:
            self.journal = [_with_both_names(effects) for effects in self.journal]
        self._lose([names] * len(self.journal), lambda file: bytes(file.data) if data else file.durable)

    def _lose(self, chosen: list[bool], remains: Callable[[File], bytes]) -> None:
        if not self.lossy:
            raise ValueError("this disk keeps no journal")
        self._settle(chosen)
        self.journal.clear()
        self.boots += 1
        for file in self.files:
            file.links = 0
            file.owner = None
            if file.data != file.durable:
                file.data = bytearray(remains(file))
                file.durable = bytes(file.data)
                file.version += 1
        for file, known in self._fates.items():  # what a line said that is lost has not happened
            for lost in known[len(_fate(file.data)) :]:
                known.remove(lost)
                self.ends.remove(lost)
                self.ended = [one for one in self.ended if one[0] != lost[0]]
        self._revert(self.root)
        self.moved_directories += 1

    def _revert(self, directory: Directory) -> None:
        directory.entries = dict(directory.durable)
        directory.version += 1
        for node in directory.entries.values():
            if isinstance(node, Directory):
                node.links, node.removed = 1, False
                self._revert(node)
            else:
                node.links += 1


def _with_both_names(effects: list[Effect]) -> list[Effect]:
    """What a power loss leaves of a renaming, where the new name was written and the old one not removed."""
    is_renaming = len(effects) == 2 and effects[0][2] is None and isinstance(effects[1][2], File)
    return effects[1:] if is_renaming else effects


def _fate(data: bytearray) -> list[str]:
    """What the whole lines of a `queue.jsonl` say of its end, in order."""
    words = (("closed", b'"op":"closed"'), ("purged", b'"op":"generation"'))
    return [word for line in data.split(b"\n")[:-1] for word, sign in words if sign in line]


def _remains(data: bytes, durable: bytes, chance: float, rng: Random) -> bytes:
    if not data.startswith(durable):
        return data if rng.random() < chance else durable  # overwritten in place
    fresh = len(data) - len(durable)
    luck = rng.random()
    if luck < chance:
        return data
    if luck < 0.6:
        return durable
    kept = rng.randint(0, fresh)
    if rng.random() < 0.3:  # the size was journaled, and some of the bytes never written
        return durable + bytes(kept) + data[len(durable) + kept :]
    return data[: len(durable) + kept]


def _is_of_updates(directory: Directory) -> bool:
    """Whether decision files are in a directory, whose names look like those of logs, too."""
    return directory.above is not None and directory.above.entries.get(".updates") is directory


def _is_of_keys(directory: Directory) -> bool:
    """Whether files of keys are in a directory, whose names look like those of logs."""
    part = directory.above
    if part is None or part.above is None:
        return False
    return any(node is part and name.startswith("keys") for name, node in part.above.entries.items())
