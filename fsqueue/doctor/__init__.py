"""Is this directory fit for queues? `examination` asks, with what stands beside it (docs/doctor.md).

From the top down: `examination`; `twohosts` (what two of them find out together) over `rendezvous` (how they
meet); `contests` (many processes at once); `probes` (one process); `mountadvice` (what the mount itself says);
`verdicts`. `Queue.create` asks the quick ones alone, so nothing is imported here.
"""
