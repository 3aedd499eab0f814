"""Groups of queues: a directory of queues that come into being at their first insert (docs/groups.md).

Read `group` first: what users hold. `queue` is one queue of a group, `members` what a lessee of many queues has open,
`drained` the check whether all of them are.
"""

from fsqueue.groups.group import Group, GroupQueues, GroupStatus
from fsqueue.groups.queue import GroupQueue

__all__ = ["Group", "GroupQueue", "GroupQueues", "GroupStatus"]
