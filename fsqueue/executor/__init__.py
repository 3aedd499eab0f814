"""An executor of `concurrent.futures` whose calls are tasks of a queue (decision 69). Read `executor` first."""
