"""Read a queue: status, tasks and their history, rates, lease holders, stuck locks.

Read `inspection` first. A look changes nothing but this: it publishes what a decided commit or a recorded retry has
still to publish.
"""
