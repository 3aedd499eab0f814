"""The conformance suite: the same tests over every kind of queue, and over every kind of group.

A kind that is new adds itself to `QUEUES` or `GROUPS` in `kinds.py`, and every test here runs over it.
"""
