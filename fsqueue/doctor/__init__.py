"""Is this directory fit for queues? `examine` asks on one host, `join` together with another (docs/doctor.md).

From the top down: `examination`; `twohosts` (what two of them find out together) over `rendezvous` (how they
meet, and what a note may say); `contests` (many processes at once); `probes` (one process, and findings: over
`mountadvice`, one layer down, what the mount itself says).
"""

from fsqueue.doctor.examination import Report, examine, join

__all__ = ["Report", "examine", "join"]
