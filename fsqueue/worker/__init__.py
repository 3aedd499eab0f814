"""The work loop: commands or Python functions for the tasks of queues (docs/decisions/0011-the-worker.md).

`loop` decides; what may block is done beside it: `feeding` leases, `settling` ends and renews leases, `output` writes
what commands print. `commands`, `processes` and `threads` do the tasks.
"""

from fsqueue.filesystem.processes import no_second_python
from fsqueue.worker.passing import OUTPUTS, Output
from fsqueue.worker.report import Event, WorkerReport
from fsqueue.worker.scripts import check_command, check_program, names_launcher
from fsqueue.worker.sources import SILENT_S, Away
from fsqueue.worker.worker import Worker, check_fields

__all__ = [
    "OUTPUTS",
    "SILENT_S",
    "Away",
    "Event",
    "Output",
    "Worker",
    "WorkerReport",
    "check_command",
    "check_fields",
    "check_program",
    "names_launcher",
    "no_second_python",
]
