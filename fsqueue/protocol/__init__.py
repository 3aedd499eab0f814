"""Change a queue: insert, select, lease, and all that ends a lease (docs/design.md, section 4).

Read `leasing` first, then `transitions` (complete, renew, release, fail, bury) and `finishing`, the end of a batch.
"""
