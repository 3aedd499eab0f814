"""Which directory a user means: a path, or a URL of the form fq://path."""

from __future__ import annotations

import os
import re

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem.mounts import without_dots

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""How a URL begins. `pathlib` leaves one slash of the two."""


def queue_path(path: object) -> str:
    """Return the directory that a user's `path` or `fq://path` means, as an absolute path without a final slash.

    InvalidArgument for other URLs: as a path, `s3://x` would make the directory `s3:` where the program happens to be.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.removeprefix("fq://") or "\0" in text:
        raise InvalidArgument(
            f"{path!r} is not a queue's path. Give a directory, as /scratch/me/tiles or fq:///scratch/me/tiles."
        )
    text = text.removeprefix("fq://")
    if _SCHEME.match(text):
        scheme = text.partition(":")[0]
        raise InvalidArgument(
            f"{path!r} is a URL ({scheme}:), and a queue is a directory of a mounted filesystem. Nothing was done. "
            "Give its path, as /scratch/me/tiles or fq:///scratch/me/tiles (a directory whose name ends in a colon: "
            "as ./name:/tiles)."
        )
    try:
        return without_dots(os.path.expanduser(text))
    except FileNotFoundError:
        raise InvalidArgument(
            f"The working directory has been removed, so the relative path {text!r} leads nowhere. Nothing was "
            "changed. Change into another directory, or give an absolute path."
        ) from None
