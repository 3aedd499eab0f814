"""Tell others who this process is: its host, its boot, its scheduler's job, and when that job ends.

Read `identity` first: what a lease says of its worker. `slurm` and `schedulers` ask the batch system.
"""
