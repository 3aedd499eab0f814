"""The source tree as the house tests see it: modules, what they import, where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TOP = Path(__file__).parents[2]
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""For a pytest that a test starts: to load all plugins of this environment takes a second, and more in each of its
processes.
"""
PACKAGE = TOP / "fsqueue"


@cache
def parse(path: Path) -> ast.Module:
    """Return what a file says. Python 3.11 keeps one recursion depth for all threads: if another thread parses at the
    same moment (it prints a traceback), each may take the other's for a mistake (CPython's issue 106905).
    """
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SystemError:
        return ast.parse(path.read_bytes(), str(path))


def walk(tree: ast.AST) -> list[ast.AST]:
    """Return a node and all below it, but for the contexts of names (`ast.Load` and its like).

    `ast.walk` takes three times as long, and the tests are half a million nodes.
    """
    found = [tree]
    for node in found:  # it grows meanwhile
        for field in node._fields:
            if field != "ctx":
                value = getattr(node, field, None)
                if isinstance(value, ast.AST):
                    found.append(value)
                elif isinstance(value, list):
                    found += [one for one in value if isinstance(one, ast.AST)]
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file."""
    return walk(parse(path))


@cache
def code(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node that can run: what stands under `if TYPE_CHECKING:` is for the type checker alone."""
    return tuple(_code(tree))


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (inner for branch in node.orelse for inner in (branch, *_code(branch)))
            continue
        yield node
        yield from _code(node)


@cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything that a file imports; `from a import b` gives a.b."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    package = path.relative_to(TOP).parent.parts
    for node in code(parse(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*base, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
