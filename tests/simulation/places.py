"""Functions and constants of the package, found by name wherever they are, and changed while a context lasts."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import fsqueue_cli

import fsqueue
from tests.simulation.patterns import Bound, names_of, replaced

PACKAGES = (fsqueue.__name__, fsqueue_cli.__name__)
Edit = tuple[str, str, str]
"""Where, which pattern, and what shall stand there instead: see `patterns`.

Where is the qualified name of a function, method or constant ("finish", "Leaser.begin", "AWAY_S"), whatever its module.
If several have the name, the pattern says which; or the last part of the module's name does ("queue_file.FRESH_S").
"""


class PlaceLost(Exception):
    """The code has no such place any more, or has several: write the edit anew, for what does the same today."""


@dataclass(frozen=True, eq=False)
class Place:
    """A function or a constant. `known` are the names of its module."""

    module: str
    path: str
    tree: ast.FunctionDef | ast.Module
    known: set[str]


def places_in(module: str, source: str) -> Iterator[Place]:
    """Yield the functions, methods and constants of a module."""
    known = names_of(source)

    def within(body: list[ast.stmt], prefix: str) -> Iterator[Place]:
        for node in body:
            match node:
                case ast.ClassDef():
                    yield from within(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef():
                    yield Place(module, prefix + node.name, node, known)
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield Place(module, prefix + name, ast.Module([node], []), known)

    yield from within(ast.parse(source).body, "")


OF_COMMANDS = ("campaign", "successors")
"""Modules of the command line that mutations change, too."""


@cache
def places() -> tuple[Place, ...]:
    """Return the functions, methods and constants of the whole package, and of some of its commands."""
    root, commands = Path(fsqueue.__file__).parent, Path(fsqueue_cli.__file__).parent
    files = [(_module_name(path.relative_to(root.parent)), path) for path in sorted(root.rglob("*.py"))]
    files += [(f"{fsqueue_cli.__name__}.{name}", commands / f"{name}.py") for name in OF_COMMANDS]
    return tuple(place for module, path in files for place in places_in(module, path.read_text()))


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def edited(edits: Sequence[Edit], among: Sequence[Place] | None = None) -> dict[Place, ast.AST]:
    """Return the changed trees. PlaceLost unless each pattern is found once.

    Edits of one place are made one after the other, and their names stand for the same locals.
    """
    changed: dict[Place, tuple[ast.AST, Bound]] = {}
    for where, old, new in edits:
        named = [place for place in (places() if among is None else among) if where in _names(place)]
        if not named:
            raise PlaceLost(f"there is no `{where}` in the code")
        found = []
        for place in named:
            tree, bound = changed.get(place, (place.tree, {}))
            found += [(place, made) for made in replaced(tree, place.known, old, new, bound)]
        if len(found) != 1:
            raise PlaceLost(f"`{where}` has this {len(found)} times, instead of once:\n{textwrap.dedent(old).strip()}")
        changed.update(found)
    return {place: tree for place, (tree, _) in changed.items()}


def _names(place: Place) -> tuple[str, str]:
    return place.path, f"{place.module.rpartition('.')[2]}.{place.path}"


def _compiled(place: Place, tree: ast.AST, module: ModuleType) -> Any:
    """Return the function or the constant of which this is the tree."""
    source = tree if isinstance(tree, ast.Module) else ast.Module([tree], [])
    ast.fix_missing_locations(source)
    made: dict[str, Any] = {}
    exec(compile(source, f"<{place.path}, mutated>", "exec"), vars(module), made)
    return made[place.path.rpartition(".")[2]]


@contextmanager
def changed(trees: Mapping[Place, ast.AST]) -> Iterator[None]:
    """While this lasts, the package's places are as these trees say."""
    with ExitStack() as stack:
        for place, tree in trees.items():
            module = importlib.import_module(place.module)
            *holders, name = place.path.split(".")
            owner: Any = module
            for holder in holders:
                owner = getattr(owner, holder)
            original = getattr(owner, name)
            new = _compiled(place, tree, module)
            for each in [owner] if holders else _importers(name, original):
                stack.enter_context(mock.patch.object(each, name, new))
            for table in _tables(original) if callable(original) else ():
                entries = {key: new for key, value in table.items() if value is original}
                stack.enter_context(mock.patch.dict(table, entries))
        yield


def _importers(name: str, original: Any) -> list[ModuleType]:
    """Return the modules that have it: its own, and those that import it under its name."""
    return [module for module in modules() if vars(module).get(name) is original]


def _tables(original: Any) -> list[dict[Any, Any]]:
    """Return the dictionaries of modules in which a function stands, such as that of the handlers of a replay."""
    return [
        value
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, dict) and name != "__builtins__" and any(one is original for one in value.values())
    ]


def modules() -> list[ModuleType]:
    """Return the modules of the package, and of its commands, that are loaded."""
    return [module for key, module in [*sys.modules.items()] if key.partition(".")[0] in PACKAGES]
