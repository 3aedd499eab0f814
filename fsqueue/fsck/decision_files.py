"""Check a group's own files, decision files and numbers: what is none of these, and lines that cannot be read; and
whether a directory in it is what is left of a queue."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from functools import partial

from fsqueue.format import decisions, names, numbers
from fsqueue.format.wording import counted
from fsqueue.fsck.findings import Finding, Suspect, found, guarded
from fsqueue.fsck.own_files import fsck_lost_member
from fsqueue.fsck.repair import WAIT_S, Quarantine, void_lines
from fsqueue.fsck.walk import judge
from fsqueue.storage import journals
from fsqueue.storage.group_directory import GroupDirectory

_KINDS = {stat.S_IFLNK: "link", stat.S_IFDIR: "directory", stat.S_IFREG: "file"}


def fsck_group(group: GroupDirectory, repair: bool) -> Iterator[Finding]:
    """Yield what is wrong with a group's own files; with `repair` each finding is mended before it is yielded.

    Each of its queues is checked by itself: see `fsck`.
    """
    quarantine = Quarantine(group.fs, group.path, group.clock, group.entropy)
    for directory, parse, has_lines in (
        (decisions.directory(group.path), names.parse_decision_file, True),
        (numbers.directory(group.path), names.parse_number_file, False),
    ):
        for suspect in guarded(group, directory, _suspects(group, quarantine, directory, parse, has_lines)):
            finding = judge(group, suspect, repair)
            if finding is not None:
                yield finding
    for member in sorted(group.directories()):
        yield from fsck_lost_member(group, member, repair)


def _suspects(
    group: GroupDirectory,
    quarantine: Quarantine,
    directory: str,
    parse: Callable[[str], object],
    has_lines: bool,
) -> Iterator[Suspect]:
    """Yield what may be wrong in a directory of the group's own. `parse` returns None for what is no name in it."""
    kind = _kind(group, directory)
    if kind not in (None, "directory"):
        yield _misplaced(group, quarantine, directory, kind, "link" if kind == "link" else "in-the-way")
        return
    for text, kind in group.fs.entries(directory):
        path, is_named = f"{directory}/{text}", parse(text) is not None
        if text.startswith(".nfs"):
            continue
        if not is_named or kind != "file":
            what = "link" if kind == "link" else "in-the-way" if is_named else "stray"
            yield _misplaced(group, quarantine, path, kind, what)
        elif _links(group, path) > 1:
            yield Suspect(found(group, "linked-file", path), partial(_is_linked, group, path), lambda: None)
        elif has_lines and (bad := _bad_lines(group, path)):
            yield Suspect(
                found(group, "damaged-line", path, note=counted(bad, "line")),
                partial(_has_bad_lines, group, path),
                partial(_void, group, quarantine, path),
            )


def _misplaced(group: GroupDirectory, quarantine: Quarantine, path: str, kind: str | None, what: str) -> Suspect:
    note = "" if kind == "file" else f"a {kind}" if kind in ("link", "directory") else "a pipe, socket or device"
    return Suspect(
        found(group, what, path, note=note), lambda: _kind(group, path) == kind, partial(quarantine.move, path)
    )


def _kind(group: GroupDirectory, path: str) -> str | None:
    """Return what is at a path; None if nothing is."""
    try:
        return _KINDS.get(stat.S_IFMT(group.fs.stat(path).st_mode), "other")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _links(group: GroupDirectory, path: str) -> int:
    """Return the number of links to a file; 0 if it was retired meanwhile. A hint."""
    try:
        return group.fs.stat(path).st_nlink
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_linked(group: GroupDirectory, path: str) -> bool:
    try:
        with group.fs.closing(group.fs.look(path)) as fd:
            return group.fs.fstat(fd).st_nlink > 1
    except (FileNotFoundError, NotADirectoryError):
        return False


def _bad_lines(group: GroupDirectory, path: str) -> int:
    """Return how many lines make no sense. What follows the last newline is being written, or its writer died."""
    try:
        with journals.opened(group.fs, path) as file:
            return len(file.unsound(journals.is_object)[0])
    except (FileNotFoundError, NotADirectoryError):
        return 0  # it was retired meanwhile


def _has_bad_lines(group: GroupDirectory, path: str) -> bool:
    return _bad_lines(group, path) > 0


def _void(group: GroupDirectory, quarantine: Quarantine, path: str) -> None:
    flags = journals.IN_PLACE
    with journals.locked(journals.Journal, group.fs, group.clock, group.entropy, path, WAIT_S, flags) as file:
        void_lines(file, journals.is_object, quarantine)
