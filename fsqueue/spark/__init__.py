"""fsqueue on Spark (docs/spark.md): the data source `fsqueue`, and jobs for what outgrows one machine.

`import fsqueue.spark` needs nothing; what is called needs the extra: pip install 'fsqueue-tasks[spark]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsqueue.errors import FsqueueError

if TYPE_CHECKING:
    from fsqueue.spark.jobs.audit import AuditReport, audit
    from fsqueue.spark.jobs.drain import DrainReport, drain, results
    from fsqueue.spark.jobs.report import report
    from fsqueue.spark.jobs.report_page import QueueReport
    from fsqueue.spark.jobs.requeue import requeue
    from fsqueue.spark.seeding import SeedReport, seed
    from fsqueue.spark.sessions import register

_PLACES = {
    "AuditReport": "jobs.audit",
    "DrainReport": "jobs.drain",
    "QueueReport": "jobs.page",
    "SeedReport": "seeding",
    "audit": "jobs.audit",
    "drain": "jobs.drain",
    "register": "sessions",
    "report": "jobs.report",
    "requeue": "jobs.requeue",
    "results": "jobs.drain",
    "seed": "seeding",
}
"""In which module each public name is: it is imported when it is first asked for."""

__all__ = [
    "AuditReport",
    "DrainReport",
    "QueueReport",
    "SeedReport",
    "audit",
    "drain",
    "register",
    "report",
    "requeue",
    "results",
    "seed",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(f"{__name__}.{_PLACES[name]}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("pyspark", "pyarrow", "pandas"):
            raise
        raise FsqueueError(f"{missing} is not installed. To install it: pip install 'fsqueue-tasks[spark]'.") from None
    return getattr(module, name)
