"""The work loop: commands or Python functions for the tasks of queues (docs/decisions/0011-the-worker.md).

`loop` decides; what may block is done beside it: `feeding` leases, `settling` ends and renews leases, `output` writes
what commands print. `commands`, `batches`, `child_processes` and `handler_threads` do the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_LAZY = {
    "OUTPUTS": "fsqueue.worker.output_relay",
    "SILENT_S": "fsqueue.worker.sources",
    "TASKS_PER_COMMAND_MAX": "fsqueue.worker.limits",
    "Away": "fsqueue.worker.sources",
    "Event": "fsqueue.worker.report",
    "Output": "fsqueue.worker.output_relay",
    "Worker": "fsqueue.worker.worker",
    "WorkerReport": "fsqueue.worker.report",
    "check_command": "fsqueue.worker.scripts",
    "check_fields": "fsqueue.worker.worker",
    "check_no_placeholders": "fsqueue.worker.worker",
    "check_program": "fsqueue.worker.scripts",
    "names_launcher": "fsqueue.worker.scripts",
    "no_second_python": "fsqueue.filesystem.processes",
}
"""Where its names are. A child of a worker imports this package for other modules: it needs none of them."""

if TYPE_CHECKING:
    from fsqueue.filesystem.processes import no_second_python
    from fsqueue.worker.limits import TASKS_PER_COMMAND_MAX
    from fsqueue.worker.output_relay import OUTPUTS, Output
    from fsqueue.worker.report import Event, WorkerReport
    from fsqueue.worker.scripts import check_command, check_program, names_launcher
    from fsqueue.worker.sources import SILENT_S, Away
    from fsqueue.worker.worker import Worker, check_fields, check_no_placeholders
else:  # hidden from type checkers, which would take every misspelt name for one that is imported late

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'fsqueue.worker' has no attribute {name!r}")
        from importlib import import_module

        from fsqueue.forks import held_off

        with held_off():
            return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "OUTPUTS",
    "SILENT_S",
    "TASKS_PER_COMMAND_MAX",
    "Away",
    "Event",
    "Output",
    "Worker",
    "WorkerReport",
    "check_command",
    "check_fields",
    "check_no_placeholders",
    "check_program",
    "names_launcher",
    "no_second_python",
]
