"""Tables of Spark's catalog, and rows that SQL inserts (docs/spark.md, "SQL").

Spark tells a Python data source the options of a table only once, when the table is created without columns; later it
hands over the columns alone. So the options travel in the metadata of the first column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
from pyspark.sql.types import StructField, StructType

from fsqueue.errors import InvalidArgument
from fsqueue.spark import schemas
from fsqueue.spark.options import WriteOptions
from fsqueue.spark.writing import FsqueueWriter, StagedPart

if TYPE_CHECKING:
    import pyarrow as pa

METADATA = "fsqueue"
"""The key in a column's metadata under which a table's options are, as JSON."""
PAYLOAD = "payload"
"""The column that SQL may insert."""


def marked(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a table's columns with its options in the metadata."""
    first, *others = schema.fields
    known = {**(first.metadata or {}), METADATA: orjson.dumps(dict(options)).decode()}
    return StructType([StructField(first.name, first.dataType, first.nullable, known), *others])


def options_of(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read or a write, with those of the table that it goes to, where it goes to one."""
    given = dict(options)
    if "path" in given or "paths" in given:
        return given
    for field in schema.fields:
        try:
            known = orjson.loads((field.metadata or {}).get(METADATA, ""))
        except (orjson.JSONDecodeError, TypeError):
            continue
        if isinstance(known, dict):
            return {**{str(key): str(value) for key, value in known.items()}, **given}
    return given


def is_insertion(wanted: WriteOptions, schema: StructType) -> bool:
    """Return whether rows have the columns of the view `tasks`: an INSERT into a table or a temporary view."""
    names = schema.names[1:] if schema.names[:1] == [schemas.QUEUE] else schema.names
    return wanted.payload is None and names == list(schemas.columns_of("tasks"))


class TableWriter(FsqueueWriter):
    """Inserts the column `payload`, JSON text. The others must be null."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        wanted = replace(options, payload=PAYLOAD, is_json=True)
        super().__init__(wanted, StructType([schema[PAYLOAD]]), overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the payloads of a partition."""
        return super().write(map(_payloads, iterator))


def _payloads(batch: pa.RecordBatch) -> pa.RecordBatch:
    for name in batch.schema.names:
        if name != PAYLOAD and batch.column(name).null_count < batch.num_rows:
            raise InvalidArgument(
                f"The column {name!r} cannot be inserted: SQL inserts payloads alone, as JSON text: "
                "INSERT INTO … (payload) SELECT to_json(struct(…)). To make payloads of such rows from Python, write "
                "a DataFrame with the option `payload`; and with `priority` and `key`, which name their columns."
            )
    return batch.select([PAYLOAD])
