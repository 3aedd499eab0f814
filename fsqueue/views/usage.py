"""Count the files, directories and bytes of a queue, by what they are for (docs/growth.md)."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from fsqueue.filesystem import Filesystem
from fsqueue.format import decisions, names, numbers
from fsqueue.format.groups import barriers_directory, bells_file, group_file, limits_directory
from fsqueue.format.layout import CANCELLED_FILE, quarantine_of
from fsqueue.format.models import AsDict
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store

BLOCK_BYTES = 512
"""The unit of `st_blocks` (POSIX)."""
PARTS = {
    "queue": "tasks",
    "movements": "logs",
    "completions": "counters",
    CANCELLED_FILE: "counters",
    "dead": "dead",
    "history": "history",
    "payloads": "payloads",
    "nodes": "nodes",
    "commits": "commits",
    "staging": "staging",
}
"""What a generation's directory holds, and what those files are called here."""
KEYS = "keys"
"""What the files of keys are called, in whichever directory."""
OUTSIDE = {".quarantine": "quarantine", ".results": "results"}


@dataclass
class Usage(AsDict):
    """What one kind of files takes: inodes are `files` plus `directories`.

    `bytes` is the sum of the files' lengths. `disk_bytes` is what the filesystem has allocated, also for directories.
    """

    files: int = 0
    directories: int = 0
    bytes: int = 0
    disk_bytes: int = 0

    def add(self, other: Usage) -> None:
        """Add another one's numbers to these."""
        self.files += other.files
        self.directories += other.directories
        self.bytes += other.bytes
        self.disk_bytes += other.disk_bytes


def of_store(store: Store) -> dict[str, Usage]:
    """Return what each kind of files takes, and their sum as "all"; a hint while others work.

    It asks for each file: some 10 µs each on a local disk, a request each on a shared one. Links are not followed.
    """
    store.refresh(now=True)
    kinds = ("settings", *dict.fromkeys(PARTS.values()), KEYS, "trash", *OUTSIDE.values(), "other", "all")
    found = {name: Usage() for name in kinds}
    base = store.layout.base.rpartition("/")[2]
    _add(store.fs, store.path, found["settings"])
    for name, kind in store.fs.entries(store.path):
        path = f"{store.path}/{name}"
        if name == base:
            _add(store.fs, path, found["settings"])
            for part, inner in store.fs.entries(path):
                called = KEYS if names.parse_key_epoch(part) is not None else PARTS.get(part, "other")
                _add_tree(store.fs, f"{path}/{part}", inner, found[called])
        elif kind == "file" and path in (store.layout.settings_file, store.layout.doorbell):
            _add(store.fs, path, found["settings"])
        else:
            part = "trash" if name.startswith(".trash") else OUTSIDE.get(name, "other")
            _add_tree(store.fs, path, kind, found[part])
    found["all"] = sum_of(found.values())
    return found


def of_group(group: GroupDirectory, queues: Iterable[dict[str, Usage]]) -> dict[str, Usage]:
    """Return what each kind of files of a group takes: its own, and those of its queues. What is no queue is left out.

    Its own are its file and those of its limits as "settings", decision files as "updates", the "numbers" of tasks,
    "barriers", and what fsck moved away as "quarantine".
    """
    own = {"settings": Usage(), "updates": Usage(), "numbers": Usage(), "barriers": Usage(), "quarantine": Usage()}
    _add(group.fs, group.path, own["settings"])
    _add(group.fs, group_file(group.path), own["settings"])
    _add(group.fs, bells_file(group.path), own["settings"])
    for kind, path in (
        ("updates", decisions.directory(group.path)),
        ("numbers", numbers.directory(group.path)),
        ("barriers", barriers_directory(group.path)),
        ("settings", limits_directory(group.path)),
        ("quarantine", quarantine_of(group.path)),
    ):
        if group.fs.is_directory(path):
            _add_tree(group.fs, path, "directory", own[kind])
    found: dict[str, Usage] = {}
    for part in (own, {"all": sum_of(own.values())}, *queues):
        for kind, usage in part.items():
            found.setdefault(kind, Usage()).add(usage)
    return found


def sum_of(parts: Iterable[Usage]) -> Usage:
    """Return the sum of several."""
    found = Usage()
    for usage in parts:
        found.add(usage)
    return found


def _add_tree(fs: Filesystem, path: str, kind: str, usage: Usage) -> None:
    below = [(path, kind)]
    while below:
        path, kind = below.pop()
        _add(fs, path, usage)
        if kind == "directory":
            below += ((f"{path}/{name}", inner) for name, inner in fs.entries(path))


def _add(fs: Filesystem, path: str, usage: Usage) -> None:
    try:
        found = fs.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # it went meanwhile, or is another user's
    is_directory = stat.S_ISDIR(found.st_mode)
    usage.directories += is_directory
    usage.files += not is_directory
    usage.bytes += 0 if is_directory else found.st_size
    usage.disk_bytes += found.st_blocks * BLOCK_BYTES
