"""`.group.jsonl` and `.bells`: the id of a group of queues, the settings of its queues, and who has rung.

docs/format-groups.md, "Groups".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from fsqueue.errors import FormatTooNew, InvalidArgument, NotAQueue
from fsqueue.format import names
from fsqueue.format.layout import SETTINGS_FILE, QueueLimits, Settings, at_birth, limits_in, settings_of

FORMAT = 1
"""The format of groups: this version reads and writes no other."""
GROUP_FILE = ".group.jsonl"
BELLS = 4096
"""Number of bells of a group."""
BELL_BYTES = 4
"""Length of a bell in bytes."""
BELLS_BYTES = BELLS * BELL_BYTES


class GroupState(NamedTuple):
    """Hold the content of `.group.jsonl`: the group's id, the settings that its queues begin with, and its limits.

    The limits among `settings` are the group's own: no queue begins with them.
    """

    id: names.QueueId
    settings: Settings
    allows_unsafe: bool = False
    """True if a user has allowed the group on mounts that are known to be unfit. Its queues begin with that, too."""
    limits: QueueLimits | None = None
    """The limits over all of its queues and all hosts; None: there are none."""
    had_limits: bool = False
    """True if a line has set limits, or has ended them."""


def group_file(group: str) -> str:
    """Return the path of a group's `.group.jsonl`."""
    return f"{group}/{GROUP_FILE}"


def is_reserved(name: str) -> bool:
    """Return whether no queue and no group may have this name: in a directory it tells what that directory is, or what
    was in it.
    """
    return name in (SETTINGS_FILE, GROUP_FILE) or bool(names.parse_deleted(name) or names.parse_generation(name))


def barriers_directory(group: str) -> str:
    """Return the path of the directory of a group's barriers."""
    return f"{group}/.barriers"


def bells_file(group: str) -> str:
    """Return the path of a group's `.bells`."""
    return f"{group}/.bells"


def limits_directory(group: str) -> str:
    """Return the path of the directory of a group's files of slots."""
    return f"{group}/.limits"


def slots_file(group: str, epoch: str) -> str:
    """Return the path of the file that lists which leases count against a group's limits."""
    return f"{limits_directory(group)}/{names.slot_file(epoch)}"


def bell_of(directory: names.QueueDirectory) -> int:
    """Return the number of a queue's bell. Several queues may share one."""
    return crc32(directory.encode()) % BELLS


def birth_record(settings: Settings, identity: str, at: int) -> bytes:
    """Return the first line of `.group.jsonl`. `identity` stands in each of its queues, and tells them from others."""
    record = {"op": "create", "at": at, "format": FORMAT, "id": identity, "settings": at_birth(settings)}
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def limits_record(limits: QueueLimits | None, by: dict[str, Any], at: int) -> bytes:
    """Return the line that sets a group's limits, all at once; None: it has none. `by`: tells who has written it."""
    record = {"op": "limits", "at": at, "by": by, "limits": {} if limits is None else limits.as_dict()}
    return orjson.dumps(record | ({} if limits is None else {"slots": limits.epoch}), option=orjson.OPT_APPEND_NEWLINE)


def read_group_state(content: bytes, path: str) -> GroupState:
    """Replay `.group.jsonl`. Torn lines and unknown ones are skipped.

    NotAQueue if it has no `create` that can be read: the settings of its queues are not guessed. FormatTooNew.
    """
    state: GroupState | None = None
    why = "it has no line that says so"
    for line in content.split(b"\n")[:-1]:
        try:
            record: Any = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        match record:
            case {"format": int(wanted)} if wanted > FORMAT:
                raise FormatTooNew(
                    f"The group {path} has format {wanted}; this fsqueue reads format {FORMAT}. Upgrade fsqueue."
                )
            case {"op": "create", "format": 1, "id": str(text), "settings": dict(given)} if state is None:
                identity = names.parse_queue_id(text)
                try:
                    state = None if identity is None else GroupState(identity, settings_of(given))
                except InvalidArgument as error:
                    why = str(error).rstrip(".")
            case {"op": "limits", "limits": dict(given)} if state is not None:
                try:
                    settings, limits = limits_in(state.settings, record, given)
                except (InvalidArgument, TypeError, RecursionError):
                    continue  # the line is void
                limits = None if limits is None else replace(limits, group=path)
                state = state._replace(settings=settings, limits=limits, had_limits=True)
            case {"op": "allow-unsafe"} if state is not None:
                state = state._replace(allows_unsafe=True)
    if state is None:
        raise NotAQueue(
            f"{group_file(path)} is damaged: {why}. Nothing was changed. Each queue in it can still be opened by the "
            "path of its directory. Restore the file from a backup."
        )
    return state
