"""The verbs of queues and groups, in one table: what each takes and does, however it is called. Read `table` first."""
