"""Paths that lead through a descriptor go to the system alone: other code may resolve them by name."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.source import TOP, code, imported, parse

PLACES = {
    "fsqueue/filesystem/parent_directories.py",
    "fsqueue/filesystem/beneath.py",
    "fsqueue/filesystem/changes.py",
    "fsqueue/filesystem/open_directories.py",
    "fsqueue/filesystem/processes.py",
    "fsqueue/filesystem/resources.py",
}
"""Modules that build such a path. docs/security.md, "Paths that are handed to others' code", argues for each."""
BY_NAME = {"fsqueue/filesystem/named_locks.py"}
"""Modules that lock by name (docs/decisions/0033-filelock.md)."""


def sources() -> list[Path]:
    return [path for top in ("fsqueue", "cli") for path in sorted((TOP / top).rglob("*.py"))]


def builds_such_a_path(path: Path) -> bool:
    """Return whether a text in the code, not in a docstring, begins with the directory of descriptors."""
    texts = (node.value for node in code(parse(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(text.startswith(("/proc/self/fd", "/dev/fd")) for text in texts)


def test_each_place_that_builds_a_path_through_a_descriptor_is_known() -> None:
    assert {str(path.relative_to(TOP)) for path in sources() if builds_such_a_path(path)} == PLACES


def test_locks_by_name_are_taken_in_one_module() -> None:
    found = {path for path in sources() for _, name in imported(path) if name.partition(".")[0] == "filelock"}
    assert {str(path.relative_to(TOP)) for path in found} == BY_NAME
