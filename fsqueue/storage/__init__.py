"""One open queue on disk: its state, its logs and locks, and each kind of file in it (docs/format.md).

Read `store` first: what all verbs of one open queue share. `logs` is the movement log of a batch; `published` are its
task files; the others are one kind of file each.
"""
