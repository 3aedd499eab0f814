"""What to say of queues that may be copies (docs/fsck.md, "Copies"), as text. Nothing is looked at here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

NAMED_MAX = 5
"""Maximum number of queues that one warning names."""


def of_queue(path: str) -> str:
    """Return what to say of a queue that may be a copy. `path`: as a user types it."""
    return (
        f"{path} may be a copy: its directory is not the one that its queue.jsonl names. If it is a copy, {_FOLLOWS} "
        f"To use it, and to end this warning: {_command(path)}"
    )


def of_several(names: Sequence[str], of: int, accept_at: Sequence[str]) -> str:
    """Return what to say of several queues that may be copies, of `of` queues. `accept_at`: what to type, each."""
    named = ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")
    more = "" if len(accept_at) == 1 else f", and so on for each of these {len(accept_at)}"
    return (
        f"{len(names):,} of {of:,} queues may be copies ({named}): their directories are not those that their "
        f"queue.jsonl names. If they are copies, {_FOLLOWS} To use them, and to end this warning: "
        f"{_command(accept_at[0])}{more}"
    )


def in_group(path: str, group: str) -> str:
    """Return what a worker says of the first queue of a group that may be a copy. Of the others it says nothing."""
    return (
        f"{path} may be a copy, and so may others of its group: its directory is not the one that its queue.jsonl "
        f"names. If it is a copy, {_FOLLOWS} To use the group as it is, and to end this warning: {_command(group)}"
    )


_FOLLOWS = (
    "tasks that were done after the copy was made are executed again, and workers may be at work on the original. "
    "Check that."
)


def _command(path: str) -> str:
    return f"fsqueue fsck {shlex.quote(path)} --accept-copy"
