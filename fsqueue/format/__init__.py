"""Build, parse and replay the bytes and names of a queue. Pure: nothing here does I/O (docs/format.md).

Read `names` first, then `task_file` (tasks at rest), `movements` (the records of a log) and `replay`, which turns
records into the state of each task. `layout` says where everything lies, and holds the settings.
"""
