"""Imports go down only: the layers of docs/design.md, section 12."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fsqueue
from tests.house.source import PACKAGE, TOP, imported, nodes, parse

LAYERS = (
    "interruptions", "errors", "checks", "simulation", "weak_table", "forks", "clock", "filesystem", "format",
    "user_code", "cluster", "storage", "leased_task", "protocol", "views", "verbs", "upkeep", "doctor",
    "administration", "arguments", "fsck", "maintenance", "commit", "new_rows", "poll", "asyncpoll", "queue",
    "several_queues", "groups", "functions", "then", "pickled", "worker", "metrics", "webpages", "spark", "client",
    "executor", "compat", "service", "__main__",
)  # fmt: skip
"""The packages and modules of fsqueue, from the bottom up. Each may import those before it, and none after it."""

MAY_USE = {
    "interruptions": set(),
    "errors": {"interruptions"},
    "simulation": {"errors"},
    "checks": set(),
    "weak_table": set(),
    "forks": {"weak_table"},
    "clock": {"errors", "forks"},
    "filesystem": {"interruptions", "errors", "weak_table", "forks", "clock"},
    "format": {"interruptions", "errors", "clock"},
    "cluster": {"interruptions", "filesystem"},
    "webpages": {"errors", "format", "forks"},
    "storage": {"interruptions", "errors", "checks", "weak_table", "forks", "clock", "filesystem", "format", "cluster"},
}
"""The lowest packages use these and nothing else, also of what stands below them: `format` does no I/O."""


def unit(path: Path) -> str:
    """Return the package or module of LAYERS that a file is in."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def files() -> list[Path]:
    """Return every file of fsqueue but the one that hands out the public names."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def all_imports(path: Path) -> list[tuple[int, str]]:
    """Return line and full name of every import: in functions and for the type checker alone, too."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def arrows() -> list[tuple[str, str, str]]:
    """Return who imports whom, among LAYERS, and where."""
    return [
        (unit(path), full.split(".")[1], f"{path.relative_to(TOP)}:{line}")
        for path in files()
        for line, full in all_imports(path)
        if full.startswith("fsqueue.") and full.split(".")[1] != unit(path)
    ]


def test_every_package_has_its_place() -> None:
    assert {unit(path) for path in files()} == set(LAYERS), "give it a place, here and in docs/design.md"


def test_the_design_shows_the_same_layers() -> None:
    table = (TOP / "docs/design.md").read_text().partition("| layer | what it is for |")[2]
    shown = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert shown == list(LAYERS)


def test_imports_go_down_only() -> None:
    place = {name: number for number, name in enumerate(LAYERS)}
    climbs = [f"{where}: {name} imports {target}" for name, target, where in arrows() if place[target] > place[name]]
    assert climbs == []


def test_the_lowest_packages_use_what_they_may() -> None:
    assert [one for one in arrows() if one[0] in MAY_USE and one[1] not in MAY_USE[one[0]]] == []


def test_no_layer_uses_the_simulation() -> None:
    """It is a model to compare with. `import fsqueue` stays without it."""
    model = {"simulation"}
    assert [one for one in arrows() if one[1] in model and one[0] not in model] == []
    whole = [full for _, full in all_imports(PACKAGE / "__init__.py")]
    assert [full for full in whole if "simulation" in full] == []


def test_no_module_imports_one_that_imports_it() -> None:
    named = {".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__"): path for path in files()}
    graph: dict[str, set[str]] = {}
    for name, path in named.items():
        found = {full if full in named else full.rpartition(".")[0] for _, full in all_imports(path)}
        graph[name] = found & named.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules that import each other: {' -> '.join(error.args[1])}")


def test_nobody_below_imports_the_package_as_a_whole() -> None:
    """`from fsqueue import Queue` inside the package would hide which layer is meant."""
    whole_package = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in files()
        if unit(path) not in ("service", "compat")
        for line, full in all_imports(path)
        if full == "fsqueue" or (full.startswith("fsqueue.") and full.split(".")[1] not in LAYERS)
    ]
    assert whole_package == []


def test_the_service_uses_public_names_only() -> None:
    """It is a room of its own: `import fsqueue`, and of its modules the verbs, JSON of users, pages."""
    open_to_it = (
        "fsqueue.service.", "fsqueue.webpages", "fsqueue.metrics", "fsqueue.format.user_json", "fsqueue.format.wording",
        "fsqueue.verbs",
    )  # fmt: skip
    service = [path for path in files() if unit(path) == "service"]
    reaching_in = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in service
        for line, full in all_imports(path)
        if full.split(".")[0] == "fsqueue" and full != "fsqueue" and not full.startswith(open_to_it)
    ]
    hidden = [
        f"{path.relative_to(TOP)}:{node.lineno}: fsqueue.{node.attr}"
        for path in service
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "fsqueue"
        and node.attr not in (*fsqueue.__all__, "__all__")
    ]
    private = [
        f"{path.relative_to(TOP)}:{node.lineno}: {ast.unparse(node)}"
        for path in service
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and (node.attr == "store" or (node.attr.startswith("_") and not node.attr.startswith("__")))
        and ast.unparse(node.value).split(".")[-1] in ("queue", "group", "task")
    ]
    assert service
    assert reaching_in + hidden + private == []


def test_the_layers_for_other_programs_use_public_names_only() -> None:
    """They show what a program of anybody could do: `import fsqueue`, and the decoder of JSON of users."""
    compat = [path for path in files() if unit(path) == "compat"]
    reaching_in = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in compat
        for line, full in all_imports(path)
        if full.split(".")[0] == "fsqueue"
        and full != "fsqueue"
        and not full.startswith(("fsqueue.compat.", "fsqueue.format.user_json"))
    ]
    hidden = [
        f"{path.relative_to(TOP)}:{node.lineno}: {ast.unparse(node)}"
        for path in compat
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and (
            (ast.unparse(node.value) == "fsqueue" and node.attr not in fsqueue.__all__)
            or node.attr == "store"
            or (node.attr.startswith("_") and ast.unparse(node.value).split(".")[-1] in ("queue", "held", "one"))
        )
    ]
    assert compat
    assert reaching_in + hidden == []


def test_the_command_line_uses_public_modules_only() -> None:
    """cli/ calls what users can call: names of the package, or of its public modules."""
    public = {
        "fsqueue",
        "fsqueue.views.activity",
        "fsqueue.client.values",
        "fsqueue.errors",
        "fsqueue.cluster.identity",
        "fsqueue.cluster.slurm",
        "fsqueue.cluster.controller",
        "fsqueue.cluster.lsf",
        "fsqueue.cluster.pbs",
        "fsqueue.cluster.sge",
        "fsqueue.storage.stops",
        "fsqueue.worker",
        "fsqueue.metrics",
        "fsqueue.storage.payloads",
        "fsqueue.upkeep.trash",
        "fsqueue.storage.nested",
        "fsqueue.storage.nodes",
        "fsqueue.filesystem.replacing",
        "fsqueue.filesystem.mountadvice",
        "fsqueue.protocol.all_limits",
        "fsqueue.protocol.limiting",
        "fsqueue.protocol.parcels",
        "fsqueue.views.outcomes",
        "fsqueue.views.copy_warnings",
        "fsqueue.views.lease_holders",
        "fsqueue.views.rates",
        "fsqueue.doctor",
        "fsqueue.worker.shortages",
        "fsqueue.fsck",
        "fsqueue.weak_table",
        "fsqueue.simulation",
        "fsqueue.simulation.figures",
        "fsqueue.service.application",
        "fsqueue.service.faults",
        "fsqueue.service.gate",
        "fsqueue.service.limits",
        "fsqueue.spark",
        "fsqueue.format.barriers",
        "fsqueue.format.priority",
        "fsqueue.format.wording",
        "fsqueue.compat.stored",
        "fsqueue.format.nesting",
        "fsqueue.format.uniform",
        "fsqueue.format.user_json",
    }
    hidden = {f"fsqueue.{name}" for name in LAYERS} - {f"fsqueue.{name}" for name in fsqueue.__all__} - public
    reaching_in = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in sorted((TOP / "cli").rglob("*.py"))
        for line, full in imported(path)
        if full.split(".")[0] == "fsqueue"
        and full not in public
        and (full.rpartition(".")[0] not in public or full in hidden or full.rpartition(".")[2].startswith("_"))
    ]
    assert reaching_in == []


def test_no_module_imports_a_private_name_of_another() -> None:
    """What begins with an underscore may change with the module that it is in."""
    private = [
        f"{path.relative_to(TOP)}:{line} imports {full}"
        for path in [*files(), *sorted((TOP / "cli").glob("*.py"))]
        for line, full in imported(path)
        if full.startswith(("fsqueue.", "cli.")) and full.rpartition(".")[2].startswith("_")
    ]
    assert private == []


def test_only_one_module_has_hooks_for_forks() -> None:
    """What must not be shared with a forked child registers itself there: one order, and one place to look."""
    hooks = [path.relative_to(PACKAGE).as_posix() for path in files() if "register_at_fork" in path.read_text()]
    assert hooks == ["forks.py"]


def test_what_is_imported_late_is_imported_while_no_fork_can_begin() -> None:
    """A module stays locked in a child that is forked while another thread imports it. Spark's workers have no threads,
    and functions load modules for the user.
    """
    late = [
        f"{path.relative_to(TOP)}:{node.lineno}"
        for path in [*files(), PACKAGE / "__init__.py"]
        if unit(path) != "spark"
        for function in nodes(path)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in _unguarded(function)
    ]
    assert late == []


def _unguarded(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports in a function that are not in a block under `held_off`. That of `forks` itself may be."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.With) and any("held_off" in ast.unparse(item) for item in child.items):
            continue
        if isinstance(child, ast.Import) or (
            isinstance(child, ast.ImportFrom) and child.module not in ("fsqueue.forks", "importlib")
        ):
            found.append(child)
        found += _unguarded(child)
    return found


def test_tests_mirror_the_packages() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if not list((TOP / "tests" / name).glob("test_*.py"))} == set()


def test_every_module_says_what_it_is_for() -> None:
    files = [*PACKAGE.rglob("*.py"), *(TOP / "cli").rglob("*.py")]
    silent = [str(path.relative_to(TOP)) for path in files if not ast.get_docstring(parse(path))]
    assert silent == []


def test_a_batch_is_locked_in_two_places() -> None:
    """Only `LockedBatch` and the fast path lock a movement log and catch up with it; else what changes a batch takes a
    LockedBatch.
    """
    inside = {"storage/locked_batch.py", "storage/logs.py", "storage/open_logs.py", "protocol/fast_path.py"}
    entering = [
        f"{path.relative_to(TOP)}:{node.lineno}"
        for path in files()
        if path.relative_to(PACKAGE).as_posix() not in inside
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in ("catch_up", "mutex") and "log" in ast.unparse(node.value)
    ]
    assert entering == []
    assert ".catch_up()" in (PACKAGE / "storage/locked_batch.py").read_text()


def test_no_two_public_classes_share_a_name() -> None:
    """A reader who meets `Finding` in an error or an import must know which one is meant."""
    places: dict[str, list[str]] = {}
    for path in [*files(), *sorted((TOP / "cli").glob("*.py"))]:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(TOP).as_posix())
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_package_hands_out_a_name_that_one_of_its_modules_has() -> None:
    """`fsqueue.task` would be the module or the function, by what was imported first."""
    clashes = []
    for package in sorted(path.parent for path in PACKAGE.rglob("__init__.py")):
        modules = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/*.py")}
        tree = parse(package / "__init__.py")
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        lists = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
        named = {name for value in lists for name in ast.literal_eval(value)}
        bound = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            for alias in getattr(node, "names", [])
            if isinstance(node, ast.ImportFrom)
        }
        defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        clashes += [f"{package.relative_to(TOP)}: {name}" for name in sorted((named | bound | defined) & modules)]
    assert clashes == []


def test_lines_come_into_queue_jsonl_in_one_place() -> None:
    """Elsewhere the lock, the comparison or the sync could be left out."""
    appending = {
        path.relative_to(PACKAGE).as_posix()
        for path in files()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and "settings_file" in (text := ast.unparse(node))
        and ("O_APPEND" in text or "open_append" in text or text.startswith(("journals.locked", "store.locked")))
    }
    assert appending == {"storage/queue_changes.py"}
