"""Turn tasks of python-task-queue, as its FileQueue stores them in JSON, into calls as fsqueue queues them; no I/O.

A function's task is ``[[MODULE, FUNCTION], ARGS, KWARGS, ID]`` there, a RegisteredTask's ``{"class": CLASS, …}``. Here
both are calls (docs/functions.md): ``{"call": "MODULE:FUNCTION", …}`` and ``{"call": "CLASS", "kwargs": {…}}``. Nothing
that stands in them is imported or evaluated: names are looked up among what is registered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SCRIPTS = ("__main__", "__mp_main__")
"""What the module of the running script is called, and in processes that `multiprocessing` spawns."""


class StoredTaskError(ValueError):
    """Say why a value is no task of python-task-queue, or no call, as the end of a sentence. It quotes no payload."""


class StoredCall(NamedTuple):
    """A call, taken apart. `module` is None for a RegisteredTask, whose class alone is stored."""

    module: str | None
    name: str
    args: list[Any]
    kwargs: dict[str, Any]

    def as_payload(self) -> dict[str, Any]:
        """Return the payload that is queued: `args` and `kwargs` are left out where they are empty."""
        called = self.name if self.module is None else f"{self.module}:{self.name}"
        payload: dict[str, Any] = {"call": called}
        payload |= {key: value for key, value in (("args", self.args), ("kwargs", self.kwargs)) if value}
        return payload


def from_payload(payload: object) -> StoredCall:
    """Return the call that a queue of fsqueue holds. StoredTaskError if it is none."""
    if isinstance(payload, dict) and payload.keys() <= {"call", "args", "kwargs", "types"}:
        called, args, kwargs = payload.get("call"), payload.get("args", []), payload.get("kwargs", {})
        if isinstance(called, str) and isinstance(args, list) and isinstance(kwargs, dict):
            module, colon, name = called.rpartition(":")
            return StoredCall(module if colon else None, name, args, kwargs)
    raise StoredTaskError('is no call: {"call": NAME, "args": [...], "kwargs": {...}}, and nothing else')


def from_filequeue(stored: object) -> StoredCall:
    """Return the call in the "payload" of a FileQueue's task file. StoredTaskError if it is none."""
    if isinstance(stored, dict):
        kwargs = dict(stored)
        name = kwargs.pop("class", None)
        if isinstance(name, str) and name:
            return StoredCall(None, name, [], kwargs)
        raise StoredTaskError("has a payload that names no class")
    if isinstance(stored, list) and len(stored) in (3, 4):
        key, args, kwargs = stored[:3]
        if isinstance(key, list) and len(key) == 2 and all(isinstance(part, str) and part for part in key):
            module, name = key
            if isinstance(args, list) and isinstance(kwargs, dict):
                return StoredCall("__main__" if module in SCRIPTS else module, name, args, kwargs)
    raise StoredTaskError("has a payload that is neither a function's call nor an object with a class")


def plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays and tuples as lists, NumPy's numbers as Python's, bytes as text (UTF-8).

    An object with a method `serialize` becomes what that returns. Keys of dicts become texts as of Python's `json`. All
    else is returned as it is, and refused when it is inserted.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if callable(serialize := getattr(value, "serialize", None)):
        return plain(serialize())
    if callable(tolist := getattr(value, "tolist", None)):
        return plain(tolist())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, str):  # of a subclass: a member of an Enum is its value
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    return value


def _key(key: Any) -> Any:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    key = plain(key)
    return str(key) if isinstance(key, (int, float)) else key
