"""Imports go down only: the floors of docs/design.md."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.house.source import PACKAGE, TOP, files_of, imported, modules

FLOORS = {
    "errors": 0,
    "callers": 0,
    "clock": 0,
    "nesting": 0,
    "aside": 0,
    "wording": 0,
    "filesystem": 1,
    "names": 1,
    "layout": 1,
    "doctorplaces": 1,
    "mountadvice": 1,
    "identity": 1,
    "slurm": 1,
    "schedulers": 1,
    "task": 2,
    "batch": 2,
    "movements": 2,
    "states": 2,
    "ledger": 2,
    "jsonl": 2,
    "logs": 2,
    "moments": 2,
    "store": 2,
    "taskfiles": 2,
    "staging": 2,
    "counters": 2,
    "retried": 2,
    "deadletters": 2,
    "ballots": 2,
    "commits": 2,
    "history": 2,
    "nodes": 2,
    "discovery": 2,
    "nested": 2,
    "selection": 3,
    "batching": 3,
    "insertion": 3,
    "overwriting": 3,
    "committing": 3,
    "transitions": 3,
    "worktimes": 3,
    "finishing": 3,
    "revoking": 3,
    "leasing": 3,
    "arguments": 3,
    "waiting": 3,
    "trash": 3,
    "queue": 4,
    "poll": 4,
    "asyncpoll": 4,
    "maintenance": 4,
    "administration": 4,
    "work": 4,
    "inspection": 4,
    "activity": 4,
    "attaching": 4,
    "biography": 4,
    "known": 4,
    "upkeep": 4,
    "stuck": 4,
    "workers": 4,
    "doctor": 4,
    "functions": 4,
    "fsck": 4,
    "spark": 5,
}
"""A module may import from lower floors, and from its own without going round in circles."""

LONGEST_LINES_MAX = 500
"""A module is read in one sitting."""


def imports_within() -> dict[str, set[str]]:
    """Which modules of fsqueue each of them imports."""
    found: dict[str, set[str]] = {}
    for name, where in modules().items():
        parts = [full.split(".") for path in files_of(where) for _, full in imported(path)]
        found[name] = {part[1] for part in parts if part[0] == "fsqueue" and part[1:2]} & modules().keys() - {name}
    return found


@pytest.mark.once
def test_every_module_has_a_floor() -> None:
    assert modules().keys() - FLOORS.keys() == set(), "give each new module a floor, here and in docs/design.md"


@pytest.mark.once
def test_the_design_shows_the_same_floors() -> None:
    table = (TOP / "docs/design.md").read_text().partition("| floor | modules |")[2]
    rows = re.findall(r"^\| (\d) \|(.*)\|$", table, re.MULTILINE)
    shown = {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == FLOORS


@pytest.mark.once
def test_imports_go_down_only() -> None:
    climbs = [
        f"{name} imports {target}, which is a floor above"
        for name, targets in imports_within().items()
        for target in targets
        if FLOORS.get(target, 0) > FLOORS.get(name, 0)
    ]
    assert climbs == []


@pytest.mark.once
def test_nobody_below_imports_the_package_as_a_whole() -> None:
    """`from fsqueue import Queue` inside the package would hide which floor is meant."""
    through_the_roof = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for where in modules().values()
        for path in files_of(where)
        for line, full in imported(path)
        if full == "fsqueue" or (full.startswith("fsqueue.") and full.split(".")[1] not in modules())
    ]
    assert through_the_roof == []


@pytest.mark.once
def test_imports_have_no_cycles() -> None:
    try:
        TopologicalSorter(imports_within()).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import each other: {' -> '.join(error.args[1])}")


@pytest.mark.once
def test_the_command_line_uses_public_modules_only() -> None:
    """cli/ calls what users can call: names of the package, or of its public modules."""
    public = {
        "fsqueue",
        "fsqueue.activity",
        "fsqueue.errors",
        "fsqueue.identity",
        "fsqueue.work",
        "fsqueue.upkeep",
        "fsqueue.nodes",
        "fsqueue.workers",
        "fsqueue.doctor",
        "fsqueue.spark",
    }
    reaching_in = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in sorted((TOP / "cli").rglob("*.py"))
        for line, full in imported(path)
        if full.split(".")[0] == "fsqueue" and full not in public and full.rpartition(".")[0] not in public
    ]
    assert reaching_in == []


@pytest.mark.once
@pytest.mark.parametrize("tree", ["fsqueue", "cli"])
def test_modules_read_in_one_sitting(tree: str) -> None:
    lines = {path: path.read_bytes().count(b"\n") for path in (TOP / tree).rglob("*.py")}
    long = {str(path.relative_to(TOP)): count for path, count in lines.items() if count > LONGEST_LINES_MAX}
    assert long == {}


@pytest.mark.once
def test_every_module_says_what_it_is_for() -> None:
    files = [*PACKAGE.rglob("*.py"), *(TOP / "cli").rglob("*.py")]
    silent = [str(path.relative_to(TOP)) for path in files if not ast.get_docstring(ast.parse(path.read_bytes()))]
    assert silent == []
