"""A thread is started in one place, so that no forked child waits for one of its parent's."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, nodes

STARTS = frozenset(
    (
        "Thread",
        "Timer",
        "ThreadPoolExecutor",
        "start_new_thread",
        "start_joinable_thread",
        "to_thread",
        "run_in_executor",
    )
)
"""What starts a thread, or becomes one that is started."""

MAY_START = {
    "filesystem/side_threads.py": {"Thread", "start_new_thread"},  # the place; `at_once` looks for forks itself
    "storage/listening.py": {"start_new_thread"},  # nobody waits for that thread
    "poll.py": {"start_new_thread"},  # nor for that one: a finalizer starts it, and may wait for nothing
    "leased_task.py": {"run_in_executor"},  # of the user's event loop, which no child goes on with
    "service/threads.py": {"ThreadPoolExecutor"},  # a gateway's own process, whose signal handlers are its own
    "service/lessees.py": {"Thread"},  # the same; a gateway is made of public names alone
}
"""Who may start a thread otherwise than by `SideThread`, and why no child waits there for ever."""


def starts(path: Path) -> set[str]:
    """Return by which names a file starts threads."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found & STARTS


def test_threads_are_started_in_one_place() -> None:
    found = {str(path.relative_to(PACKAGE)): starts(path) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == MAY_START


@pytest.mark.parametrize(
    "text",
    [
        "threading.Thread(target=act).start()",
        "class Mine(threading.Thread): pass",
        "from threading import Thread as T",
        "_thread.start_new_thread(act, ())",
        "asyncio.to_thread(act)",
    ],
)
def test_the_test_finds_a_thread(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text)
    assert starts(tmp_path / "module.py")
