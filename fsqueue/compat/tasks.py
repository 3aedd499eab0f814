"""Tasks as programs for python-task-queue write them: functions marked `queueable`, and RegisteredTask.

A table says which functions and classes may be executed: those that this process's own modules have registered. What a
queue holds are names for that table, and arguments. Whatever is at the top level of a module is registered with
`fsqueue.task`, too, so that `fsqueue run Q --load MODULE` executes the same tasks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import fsqueue
from fsqueue.compat import stored
from fsqueue.compat.stored import SCRIPTS, StoredCall
from fsqueue.format import user_json

Named = TypeVar("Named", bound=Callable[..., Any])

_functions: dict[tuple[str, str], Callable[..., Any]] = {}
_classes: dict[str, type[RegisteredTask]] = {}


class UnregisteredFunctionError(LookupError):
    """A task names a function or class that no module of this process has registered. Import the module first."""


class FunctionTaskLite(NamedTuple):
    """What a function's task consists of."""

    key: tuple[str, str]
    args: list[Any]
    kwargs: dict[str, Any]
    id: Any = -1


def queueable(function: Named) -> Named:
    """Register a function under its module and name, and return it as it is: ``partial(function, …)`` can be queued.

    InvalidArgument for a generator or an async function: a call alone would do nothing.
    """
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise fsqueue.InvalidArgument(
            f"{function!r} is a generator or async: a call alone would do nothing. Mark an ordinary function."
        )
    _functions[_key_of(function)] = function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:  # what it returns is dropped, as python-task-queue does
        function(*args, **kwargs)

    with suppress(fsqueue.InvalidArgument):  # one that workers could not import: this process alone executes it
        fsqueue.task(run)
    return function


def _key_of(function: Callable[..., Any]) -> tuple[str, str]:
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise fsqueue.InvalidArgument(f"{function!r} has no name to be queued under. Write a function, and mark that.")
    return "__main__" if module in SCRIPTS else module, name


class FunctionTask:
    """A call of a queueable function. `key`: its module and name. `id`: the task's id, or -1 before it is queued."""

    def __init__(self, key: Iterable[str], args: Iterable[Any], kwargs: dict[str, Any], id: Any = None) -> None:
        module, name = key
        self.key = (module, name)
        self.args, self.kwargs, self.id = list(args), dict(kwargs), id

    def payload(self) -> FunctionTaskLite:
        """Return what the task consists of."""
        return FunctionTaskLite(self.key, self.args, self.kwargs, self.id)

    def tofunc(self) -> functools.partial[Any]:
        """Return the function with its arguments. UnregisteredFunctionError."""
        function = _functions.get(self.key)
        if function is None:
            raise UnregisteredFunctionError(
                f"No function {self.key[1]} of the module {self.key[0]} is registered in this process. Import that "
                "module before; @queueable must stand before the function."
            )
        return functools.partial(function, *self.args, **self.kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Call the function with the task's own arguments; those of this call are not used."""
        self()

    def __call__(self) -> Any:
        return self.tofunc()()

    def __repr__(self) -> str:
        return f"FunctionTask({self.key!r}, {self.args!r}, {self.kwargs!r}, id={self.id!r})"


class RegisteredTask:
    """A task as an object: subclasses give their arguments to `super().__init__`, and have a method `execute`.

    The arguments become attributes. What is queued is the name of the class and these attributes, as JSON. Two classes
    of one name in two modules are refused (InvalidArgument): the name alone is stored, and would mean either.
    """

    _id: Any = -1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name, module = cls.__name__, cls.__module__
        other = _classes.get(name)
        if other is not None and module not in SCRIPTS and other.__module__ not in (*SCRIPTS, module):
            raise fsqueue.InvalidArgument(
                f"Two classes are called {name}: one of {other.__module__}, one of {module}. Queued tasks name the "
                "class alone. Give one of them another name."
            )
        _classes[name] = cls

        def run(**attributes: Any) -> None:
            cls(**attributes).execute()

        run.__module__, run.__name__, run.__qualname__ = module, name, name
        with suppress(fsqueue.InvalidArgument):  # a script's own, or a name that no call can have
            fsqueue.task(name=name)(run)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        given = dict(zip(names, args, strict=False)) | kwargs
        self._argument_names = list(given)
        vars(self).update(given)

    @property
    def id(self) -> Any:
        """Return the task's id; -1 before it is queued."""
        return self._id

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work. Subclasses have this."""
        raise NotImplementedError(f"{type(self).__name__} has no method execute.")

    def payload(self) -> dict[str, Any]:
        """Return the attributes that were arguments, as JSON has them, and the name of the class."""
        found = {name: stored.plain(getattr(self, name)) for name in self._argument_names}
        return found | {"class": type(self).__name__}

    @classmethod
    def deserialize(cls, data: Any) -> RegisteredTask:
        """Return the task of a payload, as JSON text or a dict. TypeError if it is of another class."""
        task = totask(data)
        if not isinstance(task, cls):
            raise TypeError(f"This is a {type(task).__name__}, not a {cls.__name__}.")
        return task

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._argument_names)
        return f"{type(self).__name__}({shown})"


AnyTask = FunctionTask | RegisteredTask


class PrintTask(RegisteredTask):
    """A task to try a queue with: it prints its text."""

    def __init__(self, txt: Any = "") -> None:
        super().__init__(txt)

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Print the task, with its text."""
        print(self)  # noqa: T201 - that is its work


class MockTask(RegisteredTask):
    """A task to try a queue with: it takes any arguments, and does nothing."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def totask(given: Any, id: Any = -1) -> AnyTask:
    """Return the task that is meant: a task, a function or a partial of one, a payload, or the JSON text of one.

    TypeError for arguments that do not fit the function; UnregisteredFunctionError; ValueError for what is no task.
    """
    if isinstance(given, (FunctionTask, RegisteredTask)):
        return given
    if isinstance(given, (str, bytes)):
        given = user_json.decode(given)
    if isinstance(given, dict) and "payload" in given:
        given, id = given["payload"], given.get("id", id)
    if isinstance(given, FunctionTaskLite):
        return FunctionTask(*given[:3], id)
    if isinstance(given, dict) and "call" in given:
        return of_call(stored.from_payload(given), id)
    if isinstance(given, (dict, list)):
        return of_call(stored.from_filequeue(given), id)
    if isinstance(given, functools.partial) or callable(given):
        return _of_function(given, id)
    raise ValueError(f"This is no task: {given!r:.100}. Give a partial of a queueable function, or a RegisteredTask.")


def call_of(task: AnyTask) -> StoredCall:
    """Return the call that is queued for a task."""
    if isinstance(task, FunctionTask):
        return StoredCall(*task.key, stored.plain(task.args), stored.plain(task.kwargs))
    return stored.from_filequeue(task.payload())


def of_call(call: StoredCall, id: Any) -> AnyTask:
    """Return the task of a queued call. UnregisteredFunctionError if it names a class that is not registered."""
    if call.module is not None:
        return FunctionTask((call.module, call.name), call.args, call.kwargs, id)
    kind = _classes.get(call.name)
    if kind is None:
        raise UnregisteredFunctionError(
            f"No class {call.name} is registered in this process. Import the module that defines it before."
        )
    task = kind(*call.args, **call.kwargs)
    task._id = id
    return task


def _of_function(given: Callable[..., Any], id: Any) -> FunctionTask:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(given, functools.partial):
        args, kwargs, given = (*given.args, *args), given.keywords | kwargs, given.func
    key = _key_of(given)
    if key not in _functions:
        raise UnregisteredFunctionError(f"{key[1]} of the module {key[0]} is not marked. Put @queueable before it.")
    try:
        inspect.signature(_functions[key]).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{key[1]} does not take these arguments: {error}.") from None
    return FunctionTask(key, args, kwargs, id)
