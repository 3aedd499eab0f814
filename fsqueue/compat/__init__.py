"""Layers for programs that were written for other task queues. They use fsqueue's public names alone.

Start with `taskqueue`: the calls of python-task-queue (docs/from-task-queue.md).
"""
