"""Checking and mending a queue (docs/fsck.md).

From the top down: `walk`; `places` (what lies where), `shard_checks` (what files say) and `journal_checks` (by the
table in `journal_kinds`) name suspects; `repair` mends them; `recount` counts histories; `findings` is what is said of
them. `own_files` checks files of a group.
"""

from fsqueue.fsck.findings import Finding
from fsqueue.fsck.own_files import fsck_group, fsck_lost
from fsqueue.fsck.walk import fsck, fsck_part

__all__ = ["Finding", "fsck", "fsck_group", "fsck_lost", "fsck_part"]
