"""Functions as an executor's calls name them: by the name that a worker imports."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsqueue.errors import InvalidArgument
from fsqueue.format.models import Task
from fsqueue.functions import SCRIPTS, Function, leads_back

MOVE_IT = "Move it into a module, and import it from there."


class NamedFunction:
    """A function, and the name of its calls. InvalidArgument says why workers could not find it, and what to do."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.is_registered = isinstance(function, Function)
        """Whether `@fsqueue.task` has registered it, so that workers which load its module call it, too."""
        if isinstance(function, Function):
            self.module, self.path = _module_of(function.__wrapped__, function.__name__), function.__qualname__
            self._function = function
            return
        self.module, self.path = _place_of(function)
        name = f"{self.module}:{self.path}"
        try:
            self._function = Function(function, name, None, 0)
        except ValueError:  # it is built in, and does not say which arguments it takes
            self._function = Function(_of_any, name, None, 0)

    @property
    def name(self) -> str:
        """Return the name that calls have."""
        return self._function.name

    @property
    def line(self) -> bytes:
        """Return its line of the list that own workers read."""
        return json.dumps([self.name, self.module, self.path]).encode() + b"\n"

    def task(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what to insert for a call. InvalidTask for arguments that do not fit, or that JSON cannot hold."""
        made: Task = self._function.call(*args, **kwargs)
        return made if made.delay_s else made.payload


def _of_any(*args: Any, **kwargs: Any) -> None:
    """Have the signature of a function that does not tell its own."""


def _place_of(function: object) -> tuple[str, str]:
    """Return module and qualified name of a function that a worker can import. InvalidArgument."""
    if isinstance(function, functools.partial):
        raise InvalidArgument(
            "A functools.partial has no name by which a worker could import it. Give the function itself, and its "
            "arguments to submit or map."
        )
    if not callable(function):
        raise InvalidArgument(f"An executor calls functions, and {function!r:.100} is none.")
    where, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(where, str) or not isinstance(path, str) or "<" in path:
        raise InvalidArgument(
            f"{path or repr(function)[:100]} has no name by which a worker could import it: it is a lambda, or was "
            "defined within a function. Define it with 'def' at the top of a module, and import it from there."
        )
    module = _module_of(function, path)
    if not leads_back(function, where, path):
        raise InvalidArgument(
            f"{where}.{path} is something else than this function (a bound method, or decorated without "
            "functools.wraps?): a worker would import the wrong one. Give a function at the top of a module."
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(f"{path} is async. Give an ordinary function that calls asyncio.run.")
    if inspect.isgeneratorfunction(function):
        raise InvalidArgument(f"{path} is a generator: a call alone would do nothing. Let it return a list.")
    return module, path


def _module_of(function: Any, path: str) -> str:
    """Return the name by which a worker imports the module of a function. InvalidArgument."""
    where: str = function.__module__
    if where not in SCRIPTS:
        return where
    spec = getattr(sys.modules[where], "__spec__", None)
    if where == "__main__" and spec is not None and spec.name:  # python -m package.module
        return str(spec.name)
    raise InvalidArgument(
        f"{path} is defined in the script that is running, or at a prompt, which no worker can import. {MOVE_IT}"
    )
