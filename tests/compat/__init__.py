"""Layers for programs that were written for other task queues."""
