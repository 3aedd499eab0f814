"""Hide what differs between the PySpark versions that setup.cfg admits (docs/spark.md lists them).

Only this module may ask which PySpark is installed. It asks for the function's parameters, not for a version number:
a vendor's build may carry a later change.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# PySpark 4.1 makes every timestamp UTC by itself, and refuses `timezone`. From 4.2 on, timestamps have no zone
# without it, and Spark refuses the record batch.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches with this schema. Timestamps are in UTC."""
    return to_arrow_schema(schema, **_UTC)
