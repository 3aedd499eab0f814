"""Registers the data source `fsqueue` with Spark, which looks for modules named pyspark_… on its own.

Installed at the top level. It must import lightly and always: one such module that fails hides all others.
"""

from fsqueue.spark.source import FsqueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
