"""Where a table of results goes, and where none may be (docs/results.md)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import click

from fsqueue.filesystem import replacing
from fsqueue.filesystem.replacing import Replaced
from fsqueue.storage import nested

GRAMMAR = ".fsqueue-results-"


@contextmanager
def place_of(path: str) -> Iterator[Replaced]:
    """Hold the place of a file, which need not exist, until the end of a `with` block. Symbolic links of this user's
    and of root's are followed.

    click.UsageError if no table may be there. An OSError in the block names the file that the user named.
    """
    try:
        directory, name = replacing.place_of(path)
        try:
            place = Replaced(directory, name or ".", GRAMMAR)
            _check(place, directory, path)
            place.tidy()
            yield place
        finally:
            os.close(directory)
    except replacing.OthersLink:
        raise click.UsageError(
            f"{path!r} is, or leads to, a symbolic link of another user, who could choose which of your files is "
            "replaced. Nothing was written. Name another file."
        ) from None
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise


def _check(place: Replaced, directory: int, path: str) -> None:
    """Refuse a place that is not for tables: in a queue, or taken by what is no regular file. click.UsageError."""
    if nested.holds(directory):
        raise click.UsageError(
            f"{path!r} lies inside the directory of a queue, whose files are not to be replaced. Nothing was "
            "written. Name a file outside of it."
        )
    before = place.status()
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise click.UsageError(f"{path!r} is there already, and is no regular file. Name another file.")
