"""Functions as tasks: `@fsqueue.task` registers one, its calls are queued as JSON, workers run what they have loaded.

A call is a payload like any other: ``{"call": "package.module:function", "args": [...], "kwargs": {...}}``, `args` and
`kwargs` left out where empty; `types` says which arguments had types that JSON lacks (`format.call_types`). The name is
looked up in a table and nowhere else: nothing in a payload is imported, evaluated or followed. A user who can write
into a queue may choose the arguments, and a function that is registered by the modules that its workers were told to
load; nothing more.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

from fsqueue.clock import duration_ms
from fsqueue.errors import Bury, InvalidArgument, InvalidTask, said
from fsqueue.format import call_types
from fsqueue.format.models import Task, TaskRef
from fsqueue.queue import Queue
from fsqueue.storage.discovery import queue_path

P = ParamSpec("P")
R = TypeVar("R")
Where = Queue | str | os.PathLike[str]
"""A queue, or its path."""

NAME_LENGTH_MAX = 200
"""Characters in a function's name."""
ARGUMENTS = (
    "Arguments are None, booleans, numbers, texts, dates, paths, lists, tuples, and dicts whose keys are texts or "
    "integers."
)
DEPTH_MAX = call_types.DEPTH_MAX
_FIELDS = {"call", "args", "kwargs", "types"}
SCRIPTS = ("__main__", "__mp_main__")
"""What the module of the running script is called, and in its processes that `multiprocessing` spawns."""

_registered: dict[str, Function[..., Any]] = {}


class _Loading(threading.local):
    """The modules that the calling thread imports at the moment, to find functions in them."""

    def __init__(self) -> None:
        self.modules: list[str] = []


loading = _Loading()


class Function(Generic[P, R]):
    """A registered function. Calling it runs it here and now, as if it were not decorated.

    `call` makes a task of a call, `delay` inserts it, `on` chooses another queue or delay. The arguments are checked at
    once, against the signature and for what a call can hold: what the worker's call gets is equal to what was given,
    and of the same types, tuples, dates, paths and integer keys among them. NumPy's numbers come as Python's. What
    cannot come back so is refused: bytes, NaN, sets, arrays, objects. Defaults are not stored: the worker's apply.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R], name: str, queue: Where | None, delay_s: float) -> None:
        duration_ms(delay_s, "delay_s")
        if not (queue is None or isinstance(queue, Queue)):
            queue_path(queue)
        functools.update_wrapper(self, function, updated=())
        self.name = name
        """The name under which calls are queued."""
        self.signature = inspect.signature(function)
        self._by_place = _counts_by_place(self.signature)
        """How many arguments fit if all are given by place: the signature need not be asked then."""
        self._queue, self._delay_s = queue, delay_s

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Return a task that calls the function with these arguments, for `Queue.insert` and `insert_many`.

        InvalidTask.
        """
        if self.name.partition(":")[0] in SCRIPTS:
            raise InvalidTask(
                f"{self.__name__} is defined in the script that is running, which no worker can import. Move it into a "
                "module and import it from there; or, if workers load this very file as a module, say its name: "
                f"@fsqueue.task(name='module:{self.__name__}')."
            )
        if kwargs or len(args) not in self._by_place:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidTask(f"{self.name} does not take these arguments: {error}.") from None
        types: dict[str, str] = {}
        placed: list[Any] = []
        named: dict[str, Any] = {}
        argument: str | None = None
        try:
            for at, one in enumerate(args):
                placed.append(call_types.plain(one, f"/args/{at}", types))
            for argument, one in kwargs.items():
                named[argument] = call_types.plain(one, call_types.inside("/kwargs", argument), types)
        except call_types.Alien as error:
            if argument is None:
                argument = _names_of(self.signature, len(args))[len(placed)]
            raise InvalidTask(
                f"{self.name}: the argument {argument}{error.where} is {error.what}. {error.instead or ARGUMENTS}"
            ) from None
        payload: dict[str, Any] = {"call": self.name}
        for name, value in ("args", placed), ("kwargs", named), ("types", types):
            if value:
                payload[name] = value
        return Task(payload, delay_s=self._delay_s)

    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskRef:
        """Insert a call with these arguments into the function's queue; it is durable when this returns. InvalidTask.

        InvalidArgument if no queue was said; QueueNotFound if it is not there: nothing is created.
        """
        item = self.call(*args, **kwargs)
        return self._opened.insert(item)

    def on(self, queue: Where | None = None, *, delay_s: float | None = None) -> Function[P, R]:
        """Return this function for another queue, or for calls that become available `delay_s` seconds later.

        Keep what it returns if you insert more than a few: it opens the queue once.
        """
        return Function(
            self.__wrapped__,
            self.name,
            self._queue if queue is None else queue,
            self._delay_s if delay_s is None else delay_s,
        )

    @functools.cached_property
    def _opened(self) -> Queue:
        if self._queue is None:
            raise InvalidArgument(
                f"{self.name} has no queue. Say which: @fsqueue.task(queue=PATH), or .on(PATH).delay(...)."
            )
        return self._queue if isinstance(self._queue, Queue) else Queue(self._queue)

    def __reduce__(self) -> str:
        return self.__qualname__  # by reference, as functions do

    def __repr__(self) -> str:
        return f"<fsqueue.task {self.name}>"


@overload
def task(function: Callable[P, R], /) -> Function[P, R]: ...


@overload
def task(
    *, name: str | None = None, queue: Where | None = None, delay_s: float = 0
) -> Callable[[Callable[P, R]], Function[P, R]]: ...


def task(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    queue: Where | None = None,
    delay_s: float = 0,
) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """Register a function at the top level of a module, so that calls of it can be queued: see `Function`.

    ``@fsqueue.task``, or with options ``@fsqueue.task(queue="/scratch/me/q")``. `name`: what calls are queued under
    instead of "module:function", so that the function can be moved; `queue`: where `delay` inserts, opened by the first
    call; `delay_s`: seconds before a call becomes available. InvalidArgument for what is no plain function, is async or
    a generator, and for a name that another function has.
    """

    def register(function: Callable[P, R]) -> Function[P, R]:
        own = _own_name(function)
        made = Function(function, own if name is None else _checked_name(name), queue, delay_s)
        if own.partition(":")[0] not in SCRIPTS:
            other = _registered.setdefault(made.name, made)
            if _own_name(other.__wrapped__) != own:
                raise InvalidArgument(
                    f"Two functions are registered as {made.name!r}: {_own_name(other.__wrapped__)} and {own}. "
                    "Give one of them another name."
                )
            _registered[made.name] = made  # also when its module is loaded anew
        return made

    return register if function is None else register(function)


def handler(modules: Sequence[str]) -> Handler:
    """Import these modules, and return what a worker calls with each payload: it runs the functions they register.

    A function belongs to the module that defines it: importing it elsewhere makes it runnable nowhere else.
    InvalidArgument for a module that cannot be imported, or that registers nothing.
    """
    if isinstance(modules, str) or not modules:
        raise InvalidArgument(f"modules must be a list of names of modules, at least one, not {modules!r}.")
    for module in modules:
        load(module)
    functions = {name: one for name, one in _registered.items() if one.__module__ in modules}
    for module in modules:
        if not any(one.__module__ == module for one in functions.values()):
            raise InvalidArgument(f"The module {module} registers no function. {_elsewhere(module)}")
    return Handler(modules, functions)


class Handler:
    """Runs the calls that payloads ask for, among the functions of the modules it was made for."""

    def __init__(self, modules: Sequence[str], functions: dict[str, Function[..., Any]]) -> None:
        self.modules = list(modules)
        self.functions = functions
        """Those that it runs, by name."""

    def __call__(self, payload: Any) -> Any:
        """Run a call, and return what it returns. What the function raises goes through.

        Bury for what no further attempt can mend: a payload that is no call, a function that is not there, arguments
        that do not fit its signature. The reasons say nothing of what is in the payload: they last longer than it may
        be kept (`keep_payloads`).
        """
        name, args, kwargs = parts_of(payload)
        function = self.functions.get(name)
        if function is None:
            raise Bury(
                f"this worker has no function of the call's name, only those of {', '.join(self.modules)}: retry it "
                "when workers load the module that registers it"
            )
        try:
            function.signature.bind(*args, **kwargs)
        except TypeError as error:
            why = str(error)
            if "unexpected keyword" in why:  # and a name that is the payload's
                why = f"one has a name that no parameter of {function.signature} has"
            raise Bury(f"{name} does not take these arguments: {why}") from None
        return function(*args, **kwargs)


def parts_of(payload: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """Return name and arguments of a call; Bury for anything else."""
    if isinstance(payload, dict) and payload.keys() <= _FIELDS:
        name, args, kwargs = payload.get("call"), payload.get("args", []), payload.get("kwargs", {})
        if isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict):
            try:
                if "types" in payload:
                    args, kwargs = copy.deepcopy(args), copy.deepcopy(kwargs)  # the payload stays as it was leased
                    call_types.restored(args, kwargs, payload["types"])
            except ValueError:  # its text quotes the payload
                raise Bury("the payload is no call of a function: its types do not suit its arguments") from None
            return name, args, kwargs
    raise Bury('the payload is no call of a function: {"call": NAME, "args": [...], "kwargs": {...}}, and nothing else')


def load(module: object) -> types.ModuleType:
    """Import a module, or say in one sentence why that cannot be: InvalidArgument."""
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        raise InvalidArgument(f"{module!r} is not the name of a module. Give it as in an import: package.module.")
    loading.modules.append(module)
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise InvalidArgument(
                f"This Python finds no module {error.name!r}. Name it as in an import, without .py; install it, be in "
                "its directory, or put that on PYTHONPATH."
            ) from None
        why = f"{said(error)}{_place(error)}".rstrip(".")
        raise InvalidArgument(f"The module {module} cannot be imported: {why}.") from error
    finally:
        loading.modules.pop()


def leads_back(function: object, module: str, path: str) -> bool:
    """Return whether a qualified name leads to this very function, in a module that is loaded.

    If it does not, another process that imports the module finds another function.
    """
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is function


def _place(error: BaseException) -> str:
    """Return where an import failed, as " (FILE:LINE)"; "" where the error's own text tells, or nothing does."""
    if isinstance(error, SyntaxError):
        return ""
    for place in reversed(traceback.extract_tb(error.__traceback__)):
        if not place.filename.startswith("<"):  # <frozen importlib._bootstrap>
            return f" ({place.filename}:{place.lineno})"
    return ""


def _elsewhere(module: str) -> str:
    """Return the advice on a module that registers no function: the modules of those that it imports."""
    found = {one.__module__ for one in vars(sys.modules[module]).values() if isinstance(one, Function)}
    if found:
        return f"What it imports belongs to {', '.join(sorted(found))}: load that."
    return "Put @fsqueue.task before a function at its top level."


def _own_name(function: Callable[..., Any]) -> str:
    """Return module and name of what can be a task, as "module:function"; InvalidArgument says why something cannot."""
    if not isinstance(function, types.FunctionType):
        raise InvalidArgument(f"@fsqueue.task is for plain functions, not for {function!r}.")
    name = function.__qualname__
    if function.__name__ == "<lambda>":
        raise InvalidArgument("A lambda has no name to be queued under. Write a function at the top level of a module.")
    if "." in name:
        raise InvalidArgument(
            f"{name} is not at the top level of a module, where workers would find it. Move it there (a decorator "
            "between @fsqueue.task and a function that is there has to use functools.wraps)."
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(f"{name} is async. Register an ordinary function that calls asyncio.run.")
    if inspect.isgeneratorfunction(function):
        raise InvalidArgument(f"{name} is a generator: a call alone would do nothing. Let it return a list.")
    module = function.__module__
    if module == "__main__" and (spec := getattr(sys.modules[module], "__spec__", None)):
        module = spec.name  # python -m package.module
    return f"{module}:{name}"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidArgument(f"name must be 1 to {NAME_LENGTH_MAX} printable characters, not {name!r}.")
    return name


def _counts_by_place(signature: inspect.Signature) -> range:
    """Return how many arguments a call may give if it gives all by place; no number if it must name some."""
    least = most = 0
    for parameter in signature.parameters.values():
        is_optional = parameter.default is not parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = sys.maxsize - 1
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            most += 1
            least += not is_optional
        elif parameter.kind is parameter.KEYWORD_ONLY and not is_optional:
            return range(0)
    return range(least, most + 1)


def _names_of(signature: inspect.Signature, count: int) -> list[str]:
    """Return what the caller calls the first `count` arguments, given by place: `name`, or `args[0]` for the others."""
    names: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}[{number}]" for number in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
    return names
