"""Mutations have their places in the code as it is, and keep them when it is only renamed, formatted or moved."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest

from fsqueue.format import replay
from tests.simulation.checkpoint_mutations import OF_THE_FORMAT
from tests.simulation.mutations import Mutation, applied, broken
from tests.simulation.patterns import PatternError, filled, locals_of
from tests.simulation.places import Place, PlaceLost, changed, edited, modules, places, places_in
from tests.simulation.trials import ALL

pytestmark = pytest.mark.once

each_mutation = pytest.mark.parametrize("mutation", [*ALL, *OF_THE_FORMAT], ids=lambda mutation: mutation.name)


def text(tree: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(tree))


# -- the mutations --------------------------------------------------------------------------------------


@each_mutation
def test_a_mutation_has_its_place_and_can_be_compiled(mutation: Mutation) -> None:
    for place, tree in broken(mutation).items():
        assert text(tree) != text(place.tree)
        compile(text(tree), place.path, "exec")


@pytest.mark.one_in(5)
@each_mutation
def test_a_mutation_is_the_same_when_all_locals_have_other_names(mutation: Mutation) -> None:
    changed = edited(mutation.edits)
    names = {place: {name: f"{name}_renamed" for name in _locals(place)} for place in changed}
    others = {place: replace(place, tree=filled(place.tree, names[place])) for place in changed}
    again = edited(mutation.edits, [others.get(place, place) for place in places()])
    for place, tree in changed.items():
        assert text(again[others[place]]) == text(filled(tree, names[place]))


@pytest.mark.one_in(5)
@each_mutation
def test_a_mutation_is_the_same_in_a_module_that_knows_any_name(mutation: Mutation) -> None:
    """As when a function moves: what only its locals were called, an import or a function is called there."""
    changed = edited(mutation.edits)
    any_name = _all_known().union(*map(_locals, changed))
    others = {place: replace(place, known=any_name) for place in changed}
    again = edited(mutation.edits, [others.get(place, place) for place in places()])
    for place, tree in changed.items():
        assert text(again[others[place]]) == text(tree)


@each_mutation
def test_each_edit_of_a_mutation_changes_something_that_runs(mutation: Mutation) -> None:
    """No module, class or table of the package has a function as it was. (The rest of a mutation may seem caught.)"""
    changed = broken(mutation)
    before = {place: standing(place) for place in changed}
    with applied(mutation):
        for place, original in before.items():
            assert standing(place) is not original
            assert not callable(original) or not list(holders_of(original)), f"{place.path} runs as it was"
    assert all(standing(place) is original for place, original in before.items())


def test_a_function_that_stands_in_a_table_is_changed_there() -> None:
    with changed(edited([("replay._gone", "return True", "return False")])):
        assert replay._HANDLERS["gone"] is replay._gone
        changed_there = replay._gone
    assert replay._HANDLERS["gone"] is replay._gone is not changed_there


def standing(place: Place) -> Any:
    """Return the function, method or constant that is at a place now."""
    return attrgetter(place.path)(importlib.import_module(place.module))


def holders_of(function: Any) -> Iterator[str]:
    """Yield where a function stands in the package: in modules and classes, and in what is a table there."""
    spaces: dict[ModuleType | type, str] = {module: module.__name__ for module in modules()}
    for module in list(spaces):  # a class is looked through once, however many modules import it
        spaces.update((one, one.__qualname__) for one in vars(module).values() if isinstance(one, type))
    for space, title in spaces.items():
        for name, value in list(vars(space).items()):
            within: Iterable[Any] = ()
            if isinstance(value, dict) and name != "__builtins__":
                within = value.values()
            elif isinstance(value, list | tuple | set | frozenset):
                within = value
            if value is function or id(function) in map(id, within):
                yield f"{title}.{name}"


def _locals(place: Place) -> set[str]:
    return locals_of(place.tree) if isinstance(place.tree, ast.FunctionDef) else set()


@cache
def _all_known() -> set[str]:
    return set().union(*(place.known for place in places()))


def test_a_mutation_that_has_lost_its_place_says_which_it_is() -> None:
    with pytest.raises(PlaceLost, match=r'The mutation "no farewell": there is no `Log\.end` in the code'):
        broken(Mutation("no farewell", "", "calm", (("Log.end", "path", "None"),)))


# -- what a pattern finds -------------------------------------------------------------------------------

BEFORE = """
    import os
    from away import published

    LIMIT_S = 3.0

    class Log:
        def end(self, store, path):
            for name in published.names(path):
                if store.sync and name:
                    store.fs.fsync(name)
            store.fs.unlink(path, missing=True)
            return path
    """
RENAMED = """
    from away import published
    import os


    LIMIT_S = 4.0

    class Log:
        def end(self, queue, where):
            # every name is synced
            for one in published.names(
                where,
            ):
                if queue.sync and one: queue.fs.fsync(one)

            queue.fs.unlink(where, missing=True)
            return where
    """


def after(source: str, *edits: tuple[str, str], where: str = "Log.end", module: str = "logs") -> str:
    """Return what edits make of the function, without its first line."""
    [tree] = edited([(where, old, new) for old, new in edits], in_module(source, module)).values()
    return text(tree).partition("\n")[2]


def in_module(source: str, module: str) -> list[Place]:
    return list(places_in(f"fsqueue.{module}", textwrap.dedent(source)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("store.fs.unlink(path, missing=True)", ""),
        ("store.fs.unlink(path, ...)", "store.fs.unlink(path)"),
        ("store.fs.unlink(...)", "store.fs.unlink(..., durable=True)"),
        ("store.sync and ...", "..."),
        ("if store.sync and name: ...", "if name: ..."),
        ("for name in published.names(path): ...\n...\nreturn path", "return path"),
        ("store.fs.unlink(path, missing=True)\nreturn path", "store.forget(path)\nreturn path"),
        ("store.fs.fsync(name)", "pass"),
    ],
)
def test_new_names_of_locals_another_layout_and_another_module_change_nothing(old: str, new: str) -> None:
    changed = after(BEFORE, (old, new))
    assert changed != after(BEFORE, ("return path", "return path"))
    names = {"queue": "store", "where": "path", "one": "name"}
    again = after(RENAMED, (old, new), module="storage.endings")
    assert re.sub(r"\b(queue|where|one)\b", lambda found: names[found[0]], again) == changed


def test_a_constant_is_found_by_its_name() -> None:
    for source in (BEFORE, RENAMED):
        [tree] = edited([("LIMIT_S", "LIMIT_S = ...", "LIMIT_S = 1e18")], in_module(source, "logs")).values()
        assert text(tree) == "LIMIT_S = 1e+18"


def test_edits_of_one_place_share_their_names() -> None:
    changed = after(RENAMED, ("store.fs.unlink(path, missing=True)", ""), ("return path", "return store.gone(path)"))
    assert "unlink" not in changed
    assert changed.endswith("return queue.gone(where)")


def test_a_block_that_has_lost_all_its_statements_passes() -> None:
    changed = after(BEFORE, ("store.fs.fsync(name)", ""))
    assert changed.splitlines()[2].strip() == "pass"


def test_what_a_wildcard_has_found_stays() -> None:
    changed = after(BEFORE, ("if ...: ...", "if not ...: ..."))
    assert "if not (store.sync and name):" in changed
    assert "store.fs.fsync(name)" in changed


def test_one_name_stands_for_one_local_and_two_names_for_two() -> None:
    source = "def add(one, other):\n    return one + other, one + one"
    assert after(source, ("a + b", "a - b"), where="add").strip() == "return (one - other, one + one)"
    assert after(source, ("a + a", "a - a"), where="add").strip() == "return (one + other, one - one)"


def test_a_global_name_does_not_stand_for_a_local() -> None:
    source = "from away import published\ndef end(log):\n    log.remove()\n    published.remove()"
    changed = after(source, ("published.remove()", "pass"), where="end")
    assert changed.split() == ["log.remove()", "pass"]


def test_of_several_functions_with_one_name_it_is_that_in_which_the_pattern_is_found() -> None:
    both = [
        *in_module("def sync(store):\n    store.flush()", "logs"),
        *in_module("def sync(store):\n    store.flush()\n    store.wait()", "names"),
    ]
    [place] = edited([("sync", "store.wait()", "")], both)
    assert place.module == "fsqueue.names"
    with pytest.raises(PlaceLost, match="`sync` has this 2 times, instead of once"):
        edited([("sync", "store.flush()", "")], both)
    [place] = edited([("logs.sync", "store.flush()", "")], both)
    assert place.module == "fsqueue.logs"


@pytest.mark.parametrize(
    ("where", "old", "said"),
    [
        ("Log.begin", "return path", "there is no `Log.begin` in the code"),
        ("Log.end", "store.fs.unlink(path)", "`Log.end` has this 0 times, instead of once:\nstore.fs.unlink(path)"),
        ("Log.end", "os.unlink", "`Log.end` has this 0 times, instead of once:\nos.unlink"),
        ("Log.end", "store.fs", "`Log.end` has this 2 times, instead of once:\nstore.fs"),
    ],
)
def test_a_place_whose_shape_has_changed_is_lost(where: str, old: str, said: str) -> None:
    with pytest.raises(PlaceLost) as lost:
        after(BEFORE, (old, "None"), where=where)
    assert str(lost.value).startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return path", "return store.gone(path)", "nothing says what store may be here"),
        ("store.fs.unlink(...)", "store.fs.unlink(..., ...)", "the pattern has `.*` 1 times"),
        ("if store:", "", "expected an indented block"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused(old: str, new: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        after(BEFORE, (old, new))
