"""Name the function that executes tasks, find it in another process, call it, and tell how the call ended."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import orjson

from fsqueue import functions
from fsqueue.clock import duration_ms
from fsqueue.errors import UNKEPT, Bury, InvalidArgument, InvalidTask, Retry, bury_reason, in_unicode, said
from fsqueue.format.results import encode_result
from fsqueue.worker import diagnosis
from fsqueue.worker.background import end_in_child
from fsqueue.worker.calling import Mismatch, Way

TRACEBACK_CHARS = 4000
"""How much of a traceback is kept as the reason of a failure."""
MAIN = "__fsqueue_main__"
"""The name under which a child loads the script that its parent runs: not `__main__`, or it would work itself."""

is_loading = False
"""Whether this is a child that imports its handler: a worker that starts now would start in every child."""

Result = tuple[str, Any]
"""The verb that ends the lease, and its result, reason or delay in seconds."""


@dataclass(frozen=True, slots=True)
class TaskAtHand:
    """Tell a handler which task it executes, and whether the worker is stopping.

    For a parameter that is called `task`, or the second one behind a whole payload.
    """

    id: str
    attempt: int
    queue: str
    """The path of the task's queue."""
    should_stop: Callable[[], bool]
    """Whether the worker is stopping, so that what is left should rather be put back (`raise fsqueue.Retry()`)."""


def name_of(handler: object) -> dict[str, Any]:
    """Return how another process finds a handler; InvalidArgument if it cannot.

    "package.module:function" as it is; of a function its module and name; of the script that runs, its file.
    """
    if isinstance(handler, str):
        module, colon, function = handler.partition(":")
        if not (module and colon and function):
            raise InvalidArgument(f"A handler is named as 'package.module:function', not {handler!r}.")
        return {"module": module, "name": function}
    if isinstance(handler, functions.Handler):
        return {"load": handler.modules}
    if not callable(handler):
        raise InvalidArgument(f"A handler is a function or the name of one, not {handler!r}.")
    named: tuple[str | None, str | None] = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    where, name = named
    if not where or not name or "<" in name:
        raise InvalidArgument(
            f"{name or handler!r} cannot be found by its name in another process. Define it with 'def' at the top of a "
            "module, or give threads=… to stay in this process."
        )
    if where == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None and spec.name:
            return {"module": MAIN, "main": spec.name, "name": name}
        if file is None:
            raise InvalidArgument(
                f"{name} was defined at a prompt, so no other process can import it. Put it into a module, or give "
                "threads=…."
            )
        return {"module": MAIN, "file": os.path.abspath(file), "name": name}
    found: Any = sys.modules.get(where)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not handler:
        raise InvalidArgument(
            f"{where}:{name} is something else than the handler (decorated without functools.wraps, or replaced?): "
            "another process would find the wrong one. Name it as 'package.module:function', or give threads=…."
        )
    return {"module": where, "name": name}


def find(named: dict[str, Any]) -> Callable[..., Any]:
    """Return the handler that `name_of` named, or those of `{"load": modules}`.

    InvalidArgument if it cannot be found or its module cannot be imported; what the running script raises.
    """
    if "load" in named:
        return functions.handler(named["load"])
    module = _main(named) if named["module"] == MAIN else functions.load(named["module"])
    found: Any = module
    for part in named["name"].split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(f"The module {module.__name__} has no function {named['name']!r}.") from None
    if not callable(found):
        raise InvalidArgument(f"{named['module']}:{named['name']} is no function, but {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def _main(named: dict[str, Any]) -> ModuleType:
    """Return the script that the parent runs, under another name."""
    if MAIN in sys.modules:
        return sys.modules[MAIN]
    if "main" in named:
        found = importlib.util.find_spec(named["main"])
        spec = importlib.util.spec_from_file_location(MAIN, found.origin if found is not None else None)
    else:
        spec = importlib.util.spec_from_file_location(MAIN, named["file"])
    if spec is None or spec.loader is None:
        raise InvalidArgument(f"The script {named.get('main') or named['file']} cannot be imported by another process.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module


def execute(handler: Callable[..., Any], way: Way, payload: Any, task: Callable[[], TaskAtHand]) -> Result:
    """Call a handler with a payload, in its way. See `call`."""
    try:
        placed, named = way.arguments(payload, task)
    except Mismatch as error:
        return "fail", str(error)
    return call(handler, placed, named)


def call(handler: Callable[..., Any], placed: Sequence[Any], named: Mapping[str, Any] = MappingProxyType({})) -> Result:
    """Call a handler, and return the verb that its end asks for. Only a MemoryError in here can raise.

    If the handler forks, and its child returns from it, or raises, that child ends here. It has no business with the
    task, nor with those that come next.
    """
    process = os.getpid()
    result = _call(handler, placed, named)
    end_in_child(process)
    return result


def _call(handler: Callable[..., Any], placed: Sequence[Any], named: Mapping[str, Any]) -> Result:
    try:
        result = handler(*placed, **named)
    except Retry as retry:
        try:
            return "release", None if retry.delay_s is None else duration_ms(retry.delay_s, "delay_s") / 1000
        except InvalidArgument as error:
            return "fail", f"fsqueue.Retry: {error}"
    except Bury as given_up:
        return "bury", bury_reason(given_up)
    except SystemExit as error:
        if error.code is None or (isinstance(error.code, int) and error.code == 0):  # as programs end that are done
            return "complete", None
        return "fail", describe(error)
    except BaseException as error:
        return "fail", describe(error)
    if result is None:
        return "complete", None
    try:
        # Decoded again: the handler's threads may go on changing `result`.
        return "complete", orjson.loads(encode_result(result))
    except InvalidTask as error:  # the work is done, and would end so each time
        return "bury", f"{UNKEPT}: {error}"


def describe(error: BaseException) -> str:
    """Return an exception in a line, then the end of its traceback, without our own part of it."""
    headline = f"{said(error)}{diagnosis.memory(said(error))}"
    trace = error.__traceback__
    lines = traceback.format_exception(type(error), error, trace.tb_next if trace is not None else None)
    return in_unicode(f"{headline[:1000]}\n{''.join(lines)[-TRACEBACK_CHARS:].rstrip()}")
