"""A file with figures for Prometheus: `fsqueue status Q --prometheus FILE`."""

from __future__ import annotations

from typing import IO

from fsqueue import metrics
from fsqueue.errors import from_os_error

from .result_files import place_of
from .status_text import Look


def write(path: str, looks: list[Look], roots: dict[str, str], at: float, took_s: float) -> None:
    """Write what was seen of queues into a file, whole or not at all. click.UsageError, OSError, FsqueueError.

    `roots`: the directory that each queue is in, by its path. `at`: Unix seconds.
    """
    found = [
        metrics.Figures(roots[look.path], look.name, look.status, look.activity, look.paused is not None)
        for look in looks
        if look.error is None
    ]
    figures = metrics.text(metrics.Scrape(found, at, took_s, unreadable=len(looks) - len(found)))

    def put(file: IO[bytes]) -> None:
        file.write(figures)

    try:
        with place_of(path) as place:
            place.replace(put)
    except OSError as error:
        raise from_os_error(error, f"writing the figures to {path}") from error
