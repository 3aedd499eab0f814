"""Groups of queues: a directory of queues that come into being at their first insert (docs/groups.md).

Read `group` first: what users hold. `queue` is one queue of a group, `members` what a lessee of many queues has open.
`drain_check` tells whether all are drained, `update` changes several of them at once, `lineage` follows a task,
`task_numbers` gives tasks numbers as ids.
"""
