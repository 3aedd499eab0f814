"""The options of the data source, checked. Spark gives their keys in lower case."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import unquote

import orjson
from pyspark.sql.types import StructField, StructType

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import NOT_FILES, Filesystem, mount_of
from fsqueue.format.models import DELAYED, LEASED, WAITING
from fsqueue.format.names import commit_name
from fsqueue.spark import schemas
from fsqueue.storage.discovery import queue_path

IF_EXISTS = ("append", "create", "error", "ignore")
READ = (
    "path", "paths", "view", "state", "shards", "partitions", "pushdown", "mode", "columnnameofcorruptrecord",
)  # fmt: skip
WRITE = ("path", "commit", "ifexists", "payload", "payloadformat", "delay_s", "priority", "key", "batch_tasks")
ATTEMPT = "__attempt"
"""The option by which `seed` names its attempt."""
PERMISSIVE, DROP, FAIL = MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""What becomes of payloads that are not of the type that is asked for: as for Spark's own JSON source."""
MADE_OF = "__made_of"
"""How `seeding` hands WriteOptions.made_of over."""
OTHERS = ("checkpointlocation", "queryname", "outputmode", "includeheader")
"""Of Spark itself."""
METADATA = "fsqueue"
"""The key in a column's metadata under which a table's options are, as JSON."""


@dataclass(frozen=True)
class ReadOptions:
    """The rows to read: a view of the queue, or of all queues in the directory, at each of `paths`."""

    paths: tuple[str, ...]
    view: str = "tasks"
    states: tuple[str, ...] = (WAITING, DELAYED, LEASED)
    shards: tuple[str, ...] | None = None
    partitions: int | None = None
    pushdown: bool = False
    mode: str = PERMISSIVE
    corrupt: str = "_corrupt_record"
    """The field of a parsed payload that takes the text of one that does not fit, if it is asked for."""


@dataclass(frozen=True)
class WriteOptions:
    """The tasks to make of a DataFrame's rows, and where. `commit` None: a name of its own."""

    path: str
    commit: str | None = None
    if_exists: str = "append"
    payload: str | None = None
    is_json: bool = False
    delay_s: str | None = None
    priority: str | None = None
    key: str | None = None
    """The column of keys: then rows are inserted one by one, and no commit is made."""
    batch_tasks: int | None = None
    made_of: str | None = None
    """The column `payload` holds whole lines that the JVM made of this type (its JSON). Only `seeding` asks for it."""
    attempt: str | None = None
    """The attempt under which to stage, if the caller wants to know its own again. Not for users."""


def reading(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read; InvalidArgument names what is wrong."""
    given = _known(options, READ, "reading")
    states = tuple(part.strip() for part in given.get("state", f"{WAITING},{DELAYED},{LEASED}").split(","))
    for state in states:
        if state not in (WAITING, DELAYED, LEASED):
            raise InvalidArgument(
                f"The option `state` takes waiting, delayed and leased (of finished tasks tell the views history and "
                f"dead), not {state!r}."
            )
    shards = given.get("shards")
    mode = given.get("mode", PERMISSIVE).upper()
    if mode not in MODES:
        raise InvalidArgument(f"The option `mode` is one of {', '.join(MODES)}, not {mode!r}.")
    return ReadOptions(
        paths=_paths(given),
        view=schemas.view_of(given.get("view", "tasks")),
        states=states,
        shards=None if shards is None else tuple(part.strip() for part in shards.split(",")),
        partitions=_whole(given, "partitions"),
        pushdown=_flag(given, "pushdown"),
        mode=mode,
        corrupt=given.get("columnnameofcorruptrecord", ReadOptions.corrupt),
    )


def writing(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write; InvalidArgument names what is wrong."""
    given = _known(options, WRITE, "writing")
    if_exists = given.get("ifexists", "append").lower()
    if if_exists not in IF_EXISTS:
        raise InvalidArgument(f"The option `ifExists` is one of {', '.join(IF_EXISTS)}, not {if_exists!r}.")
    if "key" in given:
        _check_keyed(given, if_exists)
    commit = given.get("commit")
    if commit is not None:  # an empty one would be left out: repeating the write would insert all rows again
        commit_name(commit)
    form = given.get("payloadformat", "").lower()
    if form not in ("", "json"):
        raise InvalidArgument(f"The option `payloadFormat` is 'json' (the column holds JSON text), not {form!r}.")
    if form and "payload" not in given:
        raise InvalidArgument("The option `payloadFormat` says what is in the column that the option `payload` names.")
    return WriteOptions(
        path=_path(given),
        commit=commit,
        if_exists=if_exists,
        payload=given.get("payload"),
        is_json=form == "json",
        delay_s=given.get("delay_s"),
        priority=given.get("priority"),
        key=given.get("key"),
        batch_tasks=_whole(given, "batch_tasks"),
        made_of=given.get(MADE_OF),
        attempt=given.get(ATTEMPT),
    )


def _check_keyed(given: Mapping[str, str], if_exists: str) -> None:
    """Refuse what rows with keys cannot have: they are inserted one by one."""
    if "commit" in given:
        raise InvalidArgument(
            "A named commit takes no keys: its name makes the whole insert happen once. Leave out the option `key` or "
            "the option `commit`."
        )
    if "batch_tasks" in given:
        raise InvalidArgument(
            "Tasks with keys are inserted one by one, not in files of so many: leave out the option `batch_tasks`."
        )
    if if_exists not in ("append", "create"):
        raise InvalidArgument(
            "A write with keys that was interrupted is repeated, and finds its own tasks in the queue: the option "
            "`ifExists` is append or create."
        )


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether these are the properties of a table that is being created."""
    return "provider" in options


def must_be_tasks(given: Mapping[str, str]) -> None:
    """Refuse to insert into a table of another view."""
    if given.get("view", "tasks") != "tasks":
        raise InvalidArgument(
            f"A table of the view {given['view']!r} is for reading. Insert into one of the view 'tasks', the default."
        )


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options among the properties of a table, with an absolute path."""
    given = {key[7:].lower(): value for key, value in options.items() if key.lower().startswith("option.")}
    given.pop("serialization.format", None)
    return {**given, "path": _path({"path": options.get("path", "")})}


def _known(options: Mapping[str, str], names: tuple[str, ...], doing: str) -> dict[str, str]:
    given = {key.lower(): value for key, value in options.items()}
    for key in given:
        if key not in names and key not in OTHERS and not key.startswith("__") and "." not in key:
            near = get_close_matches(key, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(names)}."
            raise InvalidArgument(f"There is no option {key!r} for {doing}.{hint}")
    return given


def _path(given: Mapping[str, str]) -> str:
    path = given.get("path", "")
    if not path:
        raise InvalidArgument(
            "Name the queue's directory: .load(path), .save(path), or OPTIONS (path '…'). Of a table that was created "
            "with columns of its own, Spark does not tell the path: create it without columns."
        )
    return directory(path)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" not in given:
        return (_path(given),)
    try:
        found = orjson.loads(given["paths"])
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise InvalidArgument('Name several queues as .load(["/scratch/me/a", "/scratch/me/b"]).')
    return tuple(dict.fromkeys(directory(path) for path in found))


def _whole(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not int(value):
        raise InvalidArgument(f"The option `{name}` is a whole number of at least 1, not {value!r}.")
    return int(value)


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"The option `{name}` is true or false, not {value!r}.")
    return value == "true"


def directory(path: str) -> str:
    """Return the directory that `path`, `fq://path` or `file:/path` means; InvalidArgument for other URLs.

    As for Spark, a percent sign in a path stands for itself. Only of a `file:` URL for which there is no such
    directory it is decoded, if that names one.
    """
    if not path.startswith("file:"):
        return queue_path(path)
    where = path.removeprefix("file:")
    if where.startswith("//"):
        host, slash, rest = where[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidArgument(
                f"{path!r} names the host {host!r}. A queue is a directory of a mounted filesystem: give its path, as "
                "file:///scratch/me/tiles."
            )
        where = slash + rest
    if not where.startswith("/"):
        raise InvalidArgument(f"{path!r} is no absolute path. Give it as file:///scratch/me/tiles.")
    literal, decoded = queue_path(where), unquote(where)
    if decoded != where and "\0" not in decoded and not _is_there(literal) and _is_there(queue_path(decoded)):
        return queue_path(decoded)
    return literal


def _is_there(path: str) -> bool:
    try:
        return Filesystem(path, shared=mount_of(path).shared).exists(path)
    except OSError as error:
        # ENAMETOOLONG: %E3%81%82 is nine bytes before it is decoded, and three after
        if error.errno in (*NOT_FILES, errno.ENOENT, errno.EACCES, errno.ENAMETOOLONG):
            return False
        raise


# -- tables of Spark's catalog (docs/spark.md, "SQL") ------------------------------------------------------------


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a table's columns with its options in the metadata of the first.

    Spark tells a Python data source the options of a table only once, when the table is created without columns; later
    it hands over the columns alone.
    """
    first, *others = schema.fields
    known = {**(first.metadata or {}), METADATA: orjson.dumps(dict(options)).decode()}
    return StructType([StructField(first.name, first.dataType, first.nullable, known), *others])


def with_those_of_table(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
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
