"""Garbage collection: what crashes and deletions leave behind (docs/design.md, section 4.11).

Read `collect` first. `trash` removes trees, with the proof that they are ours.
"""
