"""Find the parts of a table that a program has written as a directory of Parquet files (docs/tables.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import fsqueue

from .insert_parquet import SUFFIXES, schema_of

OTHER_TABLES = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""What lies in a directory whose files are not all part of the table: some are of earlier versions."""
UNFINISHED = "_temporary"
"""What a Spark job has in the directory until it commits its files."""
NOTHING = "Nothing was inserted."


def parts_of(directory: str) -> list[str]:
    """Return the Parquet files of a directory in the order of their names; [] if it is no directory, or has none.

    Names that begin with a dot or an underscore are skipped, as Spark does. InvalidArgument for a directory that has
    anything else in it, so that no row is left out without a word.
    """
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:  # it is a file, or is not there: said later
        return []
    names = {entry.name for entry in entries}
    shown = [entry for entry in entries if not entry.name.startswith((".", "_"))]
    is_table = any(entry.name.lower().endswith(SUFFIXES) or ("=" in entry.name and entry.is_dir()) for entry in shown)
    if not is_table:
        return []
    for name, kind in OTHER_TABLES.items():
        if name in names:
            raise _refused(directory, f"it is {kind}, with files of earlier versions in it. Write it anew as Parquet.")
    if UNFINISHED in names:
        raise _refused(directory, f"{UNFINISHED} is in it: a job is writing it, or has died. Wait, or write it anew.")
    for entry in shown:
        if entry.is_dir() and "=" in entry.name:
            column = entry.name.partition("=")[0]
            raise _refused(
                directory,
                f"it is partitioned, with values of the column {column!r} in names of directories ({entry.name}). They "
                "are not read: write it without partitions.",
            )
        if not (entry.is_file() and entry.name.lower().endswith(SUFFIXES)):
            raise _refused(
                directory, f"{entry.name} is in it, which is no Parquet file. Move it away, or name the files."
            )
    return [os.path.join(directory, entry.name) for entry in shown]


def must_agree(directory: str, parts: Sequence[str]) -> None:
    """Refuse parts that have other columns than the first, or columns of other types. InvalidArgument.

    A column without a value (of the type null) agrees with any.
    """
    first: dict[str, tuple[str, Any]] = {}
    """By the name of a column: a part in which it has values, else the first part, and its type there."""
    for part in parts:
        found = schema_of(part)
        if not first:
            first = {name: (part, kind) for name, kind in found.items()}
        for name in [*first, *found]:
            if name not in found:
                raise _disagree(directory, f"{part} has no column {name!r}, and {first[name][0]} has")
            if name not in first:
                raise _disagree(directory, f"{part} has a column {name!r}, and {parts[0]} has none")
            known, kind = first[name]
            if str(kind) == "null":
                first[name] = part, found[name]
            elif found[name] != kind and str(found[name]) != "null":
                raise _disagree(
                    directory,
                    f"{part} has the column {name!r} of type {found[name]}, and {known} has it of type {kind}",
                )


def _refused(directory: str, why: str) -> fsqueue.InvalidArgument:
    return fsqueue.InvalidArgument(f"{directory} cannot be inserted as one table: {why} {NOTHING}")


def _disagree(directory: str, what: str) -> fsqueue.InvalidArgument:
    return fsqueue.InvalidArgument(f"{what}: the parts of {directory} must have the same columns. {NOTHING}")
