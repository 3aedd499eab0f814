"""What runs in a guest: calls scenarios for a test process on the machine outside, which shares a directory with it.

    python -m tests.lab.agent DIRECTORY

`DIRECTORY/N.call` names a function of a module and its arguments, as JSON; what it returned, or its traceback, goes to
`DIRECTORY/N.answer`. Each call has a forked process of its own, with everything imported: in a guest,
starting Python takes a second.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

from tests.concurrency.processes import Child
from tests.lab import evidence
from tests.waiting import until

MODULES = ("tests.lab.nfs", "tests.lab.commits", "tests.lab.groups", "tests.lab.power", "tests.lab.updates")


def perform(request: dict[str, Any]) -> Any:
    """Do one call."""
    return getattr(importlib.import_module(request["module"]), request["function"])(**request["arguments"])


def serve(directory: Path) -> None:
    """Answer one call after the other, until there is none more and a file `end`."""
    for module in MODULES:
        importlib.import_module(module)
    number = 0
    while True:
        call = directory / f"{number}.call"
        until(lambda call=call: call.exists() or (directory / "end").exists(), "a call", math.inf)
        if not call.exists():
            return
        request = json.loads(call.read_text())
        child = Child(perform, request)
        try:
            status = child.wait(request["timeout_s"])
            answer = {"status": status, "result": json.loads(child.report()) if status == 0 else child.report()}
        except TimeoutError as error:
            answer = {"status": 1, "result": f"{error}\n{child.report()}"}
        finally:
            child.close()
        if answer["status"] != 0:
            answer["result"] += f"\n{evidence.of_guest()}"
        temporary = directory / f"{number}.answer-unfinished"
        temporary.write_text(json.dumps(answer))
        temporary.rename(directory / f"{number}.answer")
        number += 1


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
