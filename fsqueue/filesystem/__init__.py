"""The only access to files, locks and mounts (docs/design.md, section 3).

Everything that fsqueue does on disk goes through one `Filesystem` object, so that tests can put a
failing, lying or crashing one in its place. Nothing here knows what a queue is.
"""

from fsqueue.filesystem.expected_errors import (
    LOST,
    NOT_FILES,
    PassingOverStrays,
    either_of_two,
    is_gone,
    retried_after_stale,
    stale_is_missing,
)
from fsqueue.filesystem.mounts import UNKNOWN, Mount, beegfs_setting, directories_above, mount_of, resolved_name
from fsqueue.filesystem.operations import Filesystem
from fsqueue.filesystem.processes import inheritable_descriptors, is_program, program_fault, resident_bytes
from fsqueue.filesystem.rooted import Stamp
from fsqueue.filesystem.trees import OpenTree

__all__ = [
    "LOST",
    "NOT_FILES",
    "UNKNOWN",
    "Filesystem",
    "Mount",
    "OpenTree",
    "PassingOverStrays",
    "Stamp",
    "retried_after_stale",
    "beegfs_setting",
    "either_of_two",
    "directories_above",
    "inheritable_descriptors",
    "is_gone",
    "is_program",
    "mount_of",
    "program_fault",
    "resident_bytes",
    "resolved_name",
    "stale_is_missing",
]
