"""Prints what pytest would run, a line of JSON for each test: `python -m tests.house.collected PATH… [OPTION…]`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

import pytest

from tests.house.source import NO_PLUGINS, TOP


@dataclass
class Collected:
    """A test that would run."""

    name: str
    """Its node id without what is in brackets."""
    directory: str
    """Below `tests`; empty for a module that stands in `tests` itself."""
    tasks_a_batch: int | None
    """The parameter of that name, if the test or a fixture of it asks for it."""
    makes_queues: bool
    """Whether a fixture of it says that it returns queues, or what makes them."""
    own_marks: list[str]
    """On the function, or on its parameters."""
    marks: list[str]
    """All, with those of its module."""


def collected(*arguments: str, level: str = "gate") -> list[Collected]:
    """Return the tests that pytest, in a process of its own, would run with these arguments."""
    command = [sys.executable, "-m", "tests.house.collected", *arguments]
    env = os.environ | NO_PLUGINS | {"FSQUEUE_TEST_LEVEL": level}
    finished = subprocess.run(command, cwd=TOP, env=env, stdout=subprocess.PIPE, text=True, check=True)
    lines = (line for line in finished.stdout.splitlines() if line.startswith("{"))
    return [Collected(**json.loads(line)) for line in lines]


class _Printer:
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function), item
            print("\n" + json.dumps(asdict(_described(item))), end="")


def _described(item: pytest.Function) -> Collected:
    parts = item.path.relative_to(TOP / "tests").parts
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    used = [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values()]
    return Collected(
        name=item.nodeid.partition("[")[0],
        directory=parts[0] if len(parts) > 1 else "",
        tasks_a_batch=parameters.get("tasks_a_batch"),
        makes_queues=any("Queue" in str(one.func.__annotations__.get("return", "")) for one in used),
        own_marks=[mark.name for mark in item.own_markers],
        marks=[mark.name for mark in item.iter_markers()],
    )


if __name__ == "__main__":
    sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[_Printer()]))
