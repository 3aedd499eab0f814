"""The functions that an executor has named to the workers that it has started (docs/functions.md, decision 69).

The list is a file in memory, which the executor writes and its workers read. Nothing in a queue adds to it: a payload
chooses among the functions of the list, as it does among those that modules register.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from fsqueue import functions
from fsqueue.errors import Bury, InvalidArgument, Retry

READ_BYTES = 1 << 16


class ListedFunctions:
    """Runs the calls that payloads ask for, among the functions of a list. An exception of a function is final.

    `names`: the descriptor of the list, whose lines are JSON: the name that calls have, and where the function is.
    `describe`: returns an exception in words, with its traceback.
    """

    def __init__(self, names: int, describe: Callable[[BaseException], str] = str) -> None:
        self.names, self._describe = names, describe
        self._read = 0
        """How many bytes of the list were read."""
        self._places: dict[str, tuple[str, str]] = {}
        """Module and qualified name of each function of the list."""
        self._found: dict[str, Callable[..., Any]] = {}

    def __call__(self, payload: Any) -> Any:
        """Run a call, and return what it returns.

        Bury for what no further attempt can mend: what the function has raised, a payload that is no call, a function
        that is not in the list or cannot be imported. A failed attempt would be repeated after a pause, and the future
        would wait for it. `fsqueue.Retry` goes through, and so do a lack of memory, which another attempt may mend, and
        KeyboardInterrupt: somebody ends the worker.
        """
        name, args, kwargs = functions.parts_of(payload)
        function = self._found.get(name) or self._find(name)
        try:
            return function(*args, **kwargs)
        except (Bury, Retry, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # sys.exit, too
            raise Bury(self._describe(error)) from error

    def _find(self, name: str) -> Callable[..., Any]:
        """Return a function of the list. Bury."""
        if name not in self._places:
            self._read_on()
        if name not in self._places:
            raise Bury(
                "the executor that has started this worker was given no function of the call's name. Such calls of "
                "others need a queue of their own; retry it when workers are there that have the function"
            )
        module, path = self._places[name]
        try:
            found: Any = functions.load(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (InvalidArgument, AttributeError) as error:
            raise Bury(f"{name} cannot be found in this worker: {error}") from error
        self._found[name] = found
        return found  # type: ignore[no-any-return]

    def _read_on(self) -> None:
        """Read what was added to the list."""
        more = b""
        while part := os.pread(self.names, READ_BYTES, self._read + len(more)):
            more += part
        whole = more[: more.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            name, module, path = json.loads(line)
            self._places[name] = module, path
