"""The work loop: commands or Python functions for the tasks of queues (docs/decisions/0011-the-worker.md).

`loop` decides; what may block is done beside it: `feeding` leases, `settling` ends and renews leases, `output` writes
what commands print. `commands`, `processes` and `threads` do the tasks.
"""

from fsqueue.work.launchers import names_launcher
from fsqueue.work.passing import Output
from fsqueue.work.placeholders import check_program
from fsqueue.work.report import Event, WorkerReport
from fsqueue.work.worker import Worker

__all__ = ["Event", "Output", "Worker", "WorkerReport", "check_program", "names_launcher"]
