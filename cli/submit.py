"""Give spark-submit a Python file that runs `fsqueue spark …`. `fsqueue spark --entry` prints this file's path.

spark-submit may copy this file away from its package, and may start it with any Python. So it imports by full names
only, and says which Python it is where that Python has no fsqueue.
"""

import sys

NOT_HERE = (
    "fsqueue: spark-submit starts the driver with {python}, which has no module {missing!r}. Nothing was done. "
    "Name a Python that has fsqueue: spark-submit --conf spark.pyspark.python=/path/to/python …"
)


def main() -> None:
    """Run the command line with `spark` before what spark-submit passes on."""
    from importlib import import_module  # not before sys.path is in order, below

    try:
        command_line = import_module("fsqueue_cli.entry")
    except ModuleNotFoundError as error:
        sys.exit(NOT_HERE.format(python=sys.executable, missing=error.name))
    sys.argv.insert(1, "spark")
    command_line.main()


if __name__ == "__main__":
    # Python searches a script's own directory first. There, this package's modules would hide others of the same names.
    sys.path[:] = [place for place in sys.path if place != __file__.rpartition("/")[0]]
    main()
