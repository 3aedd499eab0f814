"""What reads a queue: status, tasks and their history, rates, lease holders, stuck locks.

Read `inspection` first. Nothing here changes a task.
"""
