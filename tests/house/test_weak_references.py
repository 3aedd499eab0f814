"""No code of Python runs when an object dies that a weak reference leads to: see `fsqueue/weak_table.py`."""

from __future__ import annotations

import ast

from tests.house.source import TOP, imported, parse

IN_PYTHON = {
    "WeakKeyDictionary", "WeakMethod", "WeakSet", "WeakValueDictionary", "finalize",
}  # fmt: skip
"""What the module `weakref` has of Python code that runs at a death."""
WITH_CALLBACKS = {"fsqueue/filesystem/resources.py", "fsqueue/weak_table.py"}
"""Modules whose weak references call something at a death: C code."""
FILES = [path for package in ("fsqueue", "cli") for path in (TOP / package).rglob("*.py")]


def test_tables_of_objects_are_weak_without_code_of_python() -> None:
    named = {
        f"{path.relative_to(TOP)}: {name}"
        for path in FILES
        for node in ast.walk(parse(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module == "weakref"
            else [node.attr]
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "weakref"
            else []
        )
        if name in IN_PYTHON
    }
    assert named == set(), "use fsqueue.weak_table.WeakTable"


def test_few_modules_have_something_called_at_a_death() -> None:
    calling = {
        str(path.relative_to(TOP))
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("weakref.ref", "weakref.proxy")
        and (len(node.args) > 1 or node.keywords)
    }
    assert calling == WITH_CALLBACKS


def test_each_of_these_names_is_one_of_the_module() -> None:
    import weakref

    assert set(weakref.__all__) > IN_PYTHON


def test_weak_references_are_imported_as_a_module() -> None:
    """So the first test finds what is used of it."""
    names = {name for path in FILES for _, name in imported(path) if name.startswith("weakref")}
    assert names == {"weakref"}
