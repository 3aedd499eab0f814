"""Spark's daemon of Python workers, with everything imported before it forks any: each of them starts in no time.

`python -m tests.spark.daemon MODULE`, as Spark calls it: the module is what each worker runs.
"""

import importlib
import sys

import pandas
import pyarrow.json
from pyspark.daemon import manager

import fsqueue.spark.reading
import fsqueue.spark.writing

PRELOADED = (pandas, pyarrow.json, fsqueue.spark.reading, fsqueue.spark.writing)

if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    manager()
