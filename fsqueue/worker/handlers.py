"""Name the function that executes tasks, find it in another process, call it, and tell how the call ended.

docs/functions.md has the rules by which it gets a payload: as a whole, or its fields by name.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import orjson

from fsqueue import forks, functions
from fsqueue.clock import duration_ms
from fsqueue.errors import UNKEPT, Bury, InvalidArgument, InvalidTask, Retry, bury_reason, in_unicode, said
from fsqueue.format.results import encode_result
from fsqueue.then import Then
from fsqueue.worker import inserts, shortages
from fsqueue.worker.background import end_in_child
from fsqueue.worker.causes import Memory
from fsqueue.worker.listed_functions import ListedFunctions

TRACEBACK_CHARS = 4000
"""Number of characters of a traceback that are kept as the reason of a failure."""
MAIN = "__fsqueue_main__"
"""The name under which a child loads the script that its parent runs: not `__main__`, or it would work itself."""

is_loading = False
"""Whether this is a child that imports its handler: a worker that starts now would start in every child."""


class CallEnd(NamedTuple):
    """How a call of a handler has ended."""

    verb: str
    """The verb that ends the lease; "then": a completion that inserts tasks."""
    value: Any
    """Its result, reason or delay in seconds; for "then" a result and `Inserts`."""
    memory: Memory = Memory.ENOUGH
    """Whether a failure was for want of memory."""


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


class Mismatch(ValueError):
    """Say why a function cannot be called with a payload."""


class Way:
    """How a function is called with one payload after the other.

    InvalidArgument if it takes no argument, or is an `async` function. One that is built in does not say what it takes:
    it gets each payload as a whole.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument("A handler is a plain function, not an 'async' one: call asyncio.run in it.")
        self.name = getattr(function, "__name__", type(function).__name__)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = [inspect.Parameter("payload", inspect.Parameter.POSITIONAL_ONLY)]
        empty = inspect.Parameter.empty
        placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        takes_any = bool(placed) or any(one.kind is one.VAR_POSITIONAL for one in parameters)
        fields = [one for one in named if one.name != "task"]
        if not takes_any and not fields:
            raise InvalidArgument(
                "A handler takes the payload as its argument: def handler(payload), or (payload, task); or the fields "
                "of payloads, by their names."
            )
        self.names = frozenset(one.name for one in fields)
        """The parameters that a field can go to: those with a name, but for `task`."""
        self.required = frozenset(one.name for one in fields if one.default is empty)
        """Those of them that have no default."""
        self.is_whole = "payload" in self.names
        """Whether it gets each payload as a whole, because a parameter is called `payload`."""
        self.can_be_named = not any(one.kind is one.POSITIONAL_ONLY and one.default is empty for one in placed)
        """Whether all that it needs can be given by name."""
        self.payload_at = "payload" if self.is_whole and (not placed or placed[0].name != "payload") else ""
        """The name by which it gets a whole payload; "" for the first place."""
        second = placed[1] if len(placed) > 1 and not self.payload_at else None
        self.task_is_second = second is not None and (second.default is empty or second.name == "task")
        """Whether it gets the task in the second place, behind a whole payload."""
        given = {self.payload_at} if self.payload_at else {one.name for one in placed[: 1 + self.task_is_second]}
        missing = {one.name for one in [*placed, *named] if one.default is empty} - given - {"task"}
        self.cannot_be_whole = bool(missing) or not (takes_any or self.payload_at)
        """Whether it needs more than the payload and the task."""
        self.task_is_named = any(one.name == "task" for one in named)
        """Whether a parameter that can be given by name is called `task`."""
        self.task_is_apart = self.task_is_named and "task" not in given
        """Whether that one is in neither of the first two places, which a whole payload fills."""

    def arguments(self, payload: Any, task: Callable[[], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a payload, by place and by name. Mismatch."""
        if not self.is_whole and self.can_be_named and isinstance(payload, dict) and payload:
            if self.required <= payload.keys() <= self.names:
                return [], {**payload, **({"task": task()} if self.task_is_named else {})}
            if len(self.names) > 1 and payload.keys() & self.names:
                raise Mismatch(self._mismatch(is_object=True))
        if self.cannot_be_whole:
            raise Mismatch(self._mismatch(is_object=isinstance(payload, dict) and bool(payload)))
        placed = [] if self.payload_at else [payload]
        named = {self.payload_at: payload} if self.payload_at else {}
        if self.task_is_second:
            placed.append(task())
        elif self.task_is_apart:
            named["task"] = task()
        return placed, named

    def _mismatch(self, is_object: bool) -> str:
        """Say what the function takes, and not what a payload has: a reason lasts longer than it may be kept."""
        takes = ", ".join(name if name in self.required else f"{name} (optional)" for name in sorted(self.names))
        has = "has not just these" if is_object else "has no fields"
        return (
            f"{self.name} takes the fields {takes}, and the payload {has}. Name them alike; or call a parameter "
            "'payload', which gets the whole."
        )


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
    if isinstance(handler, ListedFunctions):
        return {"listed": handler.names}
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
    if not functions.leads_back(handler, where, name):
        raise InvalidArgument(
            f"{where}:{name} is something else than the handler (decorated without functools.wraps, or replaced?): "
            "another process would find the wrong one. Name it as 'package.module:function', or give threads=…."
        )
    return {"module": where, "name": name}


def find(named: dict[str, Any]) -> Callable[..., Any]:
    """Return the handler that `name_of` named, or those of `{"load": modules}`, or of `{"listed": descriptor}`.

    InvalidArgument if it cannot be found or its module cannot be imported; what the running script raises.
    """
    if "load" in named:
        return functions.handler(named["load"])
    if "listed" in named:
        return ListedFunctions(named["listed"], describe)
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


def execute(handler: Callable[..., Any], way: Way, payload: Any, task: Callable[[], TaskAtHand]) -> CallEnd:
    """Call a handler with a payload, in its way. See `call`."""
    try:
        placed, named = way.arguments(payload, task)
    except Mismatch as error:
        return CallEnd("fail", str(error))
    return call(handler, placed, named)


def call(
    handler: Callable[..., Any], placed: Sequence[Any], named: Mapping[str, Any] = MappingProxyType({})
) -> CallEnd:
    """Call a handler, and return the verb that its end asks for. Only a MemoryError in here can raise.

    If the handler forks, and its child returns from it, or raises, that child ends here. It has no business with the
    task, nor with those that come next.
    """
    depth = forks.depth
    result = _call(handler, placed, named)
    end_in_child(depth)
    return result


def _call(handler: Callable[..., Any], placed: Sequence[Any], named: Mapping[str, Any]) -> CallEnd:
    try:
        result = handler(*placed, **named)
    except Retry as retry:
        try:
            return CallEnd("release", None if retry.delay_s is None else duration_ms(retry.delay_s, "delay_s") / 1000)
        except InvalidArgument as error:
            return CallEnd("fail", f"fsqueue.Retry: {error}")
    except Bury as given_up:
        return CallEnd("bury", bury_reason(given_up))
    except SystemExit as error:
        if error.code is None or (isinstance(error.code, int) and error.code == 0):  # as programs end that are done
            return CallEnd("complete", None)
        return _failed(error)
    except BaseException as error:
        return _failed(error)
    following = inserts.NONE
    if isinstance(result, Then):
        try:
            following, result = inserts.of_then(result), result.result
        except inserts.NotInserted as unfit:
            return CallEnd(unfit.verb, str(unfit))
        except Exception as error:  # raised by what the handler gave as a list
            return _failed(error)
    try:
        # Decoded again: the handler's threads may go on changing `result`.
        kept = None if result is None else orjson.loads(encode_result(result))
    except InvalidTask as error:  # the work is done, and would end so each time
        return CallEnd("bury", f"{UNKEPT}: {error}")
    return CallEnd("then", (kept, following)) if following.each else CallEnd("complete", kept)


def _failed(error: BaseException) -> CallEnd:
    """Return the end of a call that has raised `error`."""
    return CallEnd("fail", describe(error), _memory(error))


def _memory(error: BaseException) -> Memory:
    return Memory.SHORT if isinstance(error, MemoryError) else Memory.ENOUGH


def describe(error: BaseException) -> str:
    """Return an exception in a line, then the end of its traceback, without our own part of it."""
    what = said(error)
    headline = _memory(error).reason(what) + shortages.memory(what)
    trace = error.__traceback__
    lines = traceback.format_exception(type(error), error, trace.tb_next if trace is not None else None)
    return in_unicode(f"{headline[:1000]}\n{''.join(lines)[-TRACEBACK_CHARS:].rstrip()}")
