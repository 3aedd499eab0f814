"""Changes of the code by shape: a pattern that is found once in the syntax tree, and what stands there instead.

A pattern is Python, an expression or a run of statements:

- Every name stands for one local or parameter of the function, whatever it is called there: the pattern
  `store.fs.unlink(path)` is found in `s.fs.unlink(where)`, if `s` and `where` are locals.
- But a name that the function's module defines or imports, or that is Python's own, is that name. Attributes, keywords
  and constants are what they are.
- `...` stands for any one expression; among arguments or elements, for any number of them; as a statement, for any
  number of statements.

What replaces it is written with the same names. Each `...` in it is what the pattern's `...` in the same place has
found; there are as many of them as in the pattern, or none. A statement is deleted by replacing it with nothing.
So a function may be formatted anew, its locals renamed, and it may move to another module: the pattern is found.
"""

from __future__ import annotations

import ast
import builtins
import copy
import symtable
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Bound = dict[str, Any]
"""What stands for a pattern's names: a local's name for a name, a node or a list of them for a wildcard."""
IDENTIFIERS: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.FunctionDef: "name",
}
"""Where nodes hold names of locals."""
FIELDS_APART = {"ctx", "type_comment", "kind"}
"""Fields of nodes that say nothing of what the code does."""


class Span(NamedTuple):
    """A node, or a run of nodes in a list: where it is in its parent."""

    parent: int
    """Its number, as `ast.walk` comes to the nodes."""
    field: str
    start: int | None = None
    end: int | None = None


class PatternError(Exception):
    """A pattern or its replacement makes no sense: write it anew."""


def replaced(tree: ast.AST, known: set[str], old: str, new: str, bound: Bound) -> list[tuple[ast.AST, Bound]]:
    """Return a changed copy of the tree for each match of `old`, and what its names stand for.

    `known` are the names of the tree's module; `bound` is what names stand for already.
    """
    is_expression = _is_expression(old) and _is_expression(new)
    pattern, replacement = (_parsed(text, is_expression) for text in (old, new))
    local_names = locals_of(tree)
    public = (known | set(dir(builtins))) - local_names
    introduced = locals_of(ast.Module(_nodes(replacement), [])) - _names(pattern) - bound.keys()
    wanted, given = _wildcards(pattern), _wildcards(replacement)
    if given and given != wanted:
        raise PatternError(
            f"the pattern has `...` {len(wanted)} times, and what replaces it {len(given)} times:\n{new}"
        )
    search = _Search(public, local_names)
    found = list((search.expressions if is_expression else search.runs)(tree, pattern, bound))
    unbound = _names(replacement) - _names(pattern) - public - introduced - bound.keys()
    if found and unbound:
        raise PatternError(f"nothing says what {', '.join(sorted(unbound))} may be here:\n{new}")
    return [
        (_exchanged(tree, span, filled(replacement, now)), _named(now) | {name: name for name in introduced})
        for span, now in found
    ]


def _named(bound: Bound) -> Bound:
    """Return what names stand for, without what wildcards have found."""
    return {name: found for name, found in bound.items() if isinstance(found, str)}


def _exchanged(tree: ast.AST, span: Span, new: Any) -> ast.AST:
    """Return a copy with something else in one span."""
    changed = copy.deepcopy(tree)
    parent = next(node for number, node in enumerate(ast.walk(changed)) if number == span.parent)
    part = getattr(parent, span.field)
    if span.start is None:
        setattr(parent, span.field, new)
        return changed
    part[span.start : span.end] = new if isinstance(new, list) else [new]
    if not part and span.field == "body":
        part.append(ast.Pass())
    return changed


def locals_of(tree: ast.AST) -> set[str]:
    """Return the names that a function binds, those of nested functions and comprehensions among them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif node is not tree and not isinstance(node, ast.Name) and (name := _identifier(node)) is not None:
            names.add(name)
    return names


def names_of(source: str) -> set[str]:
    """Return the names that a module defines and imports."""
    symbols = symtable.symtable(source, "", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def _is_expression(text: str) -> bool:
    try:
        ast.parse(textwrap.dedent(text).strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _parsed(text: str, is_expression: bool) -> Any:
    """Return an expression, or a list of statements, in which the wildcards are names: "...0", "...1"."""
    text = textwrap.dedent(text).strip()
    try:
        tree = ast.parse(text, mode="eval" if is_expression else "exec")
    except SyntaxError as error:
        raise PatternError(f"{error}:\n{text}") from error
    wildcards = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is ...]
    wildcards.sort(key=lambda node: (node.lineno, node.col_offset))
    for number, node in enumerate(wildcards):
        _Exchange(node, ast.Name(f"...{number}", ast.Load())).visit(tree)
    return tree.body


def _nodes(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [part]


def _wildcards(part: Any) -> set[str]:
    return {name for name in _identifiers(part) if name.startswith("...")}


def _names(part: Any) -> set[str]:
    return {name for name in _identifiers(part) if not name.startswith("...")}


def _identifiers(part: Any) -> set[str]:
    found = (_identifier(one) for node in _nodes(part) for one in ast.walk(node))
    return {name for name in found if name is not None}


def _identifier(node: ast.AST) -> str | None:
    return getattr(node, IDENTIFIERS.get(type(node), ""), None)


def _wildcard(node: Any) -> str:
    """Return the name of a wildcard, or nothing if the node is none."""
    if isinstance(node, ast.Expr):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id.startswith("...") else ""


class _Search:
    """Match patterns against nodes, and yield each way to bind a pattern's names."""

    def __init__(self, known: set[str], local_names: set[str]) -> None:
        self._known = known
        self._locals = local_names

    def expressions(self, tree: ast.AST, pattern: ast.expr, bound: Bound) -> Iterator[tuple[Span, Bound]]:
        """Yield where there is such an expression."""
        for parent, node in enumerate(ast.walk(tree)):
            for field, part in ast.iter_fields(node):
                for start, one in enumerate(_nodes(part)):
                    for now in self.match(pattern, one, bound):
                        at = (start, start + 1) if isinstance(part, list) else (None, None)
                        yield Span(parent, field, *at), now
                        break

    def runs(self, tree: ast.AST, pattern: list[ast.stmt], bound: Bound) -> Iterator[tuple[Span, Bound]]:
        """Yield where there is such a run of statements."""
        for parent, node in enumerate(ast.walk(tree)):
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                for start in range(len(statements)) if isinstance(statements, list) else ():
                    for now, length in self.match_start(pattern, statements[start:], bound):
                        yield Span(parent, field, start, start + length), now
                        break

    def match(self, pattern: Any, node: Any, bound: Bound) -> Iterator[Bound]:
        if isinstance(pattern, list):
            for now, length in self.match_start(pattern, node, bound) if isinstance(node, list) else ():
                if length == len(node):
                    yield now
        elif (wildcard := _wildcard(pattern)) and isinstance(node, ast.expr):
            yield bound | {wildcard: node}
        elif type(pattern) is not type(node):
            return
        elif isinstance(pattern, ast.AST):
            yield from self._match_parts(list(_parts(pattern)), list(_parts(node)), bound)
        elif pattern == node:
            yield bound

    def match_start(self, pattern: list[Any], nodes: list[Any], bound: Bound) -> Iterator[tuple[Bound, int]]:
        """Match a run with the beginning of another; yield what is bound, and how many nodes it took."""
        if not pattern:
            yield bound, 0
            return
        first: Iterable[tuple[Bound, int]]
        if wildcard := _wildcard(pattern[0]):
            first = ((bound | {wildcard: nodes[:length]}, length) for length in range(len(nodes) + 1))
        else:
            first = ((now, 1) for now in (self.match(pattern[0], nodes[0], bound) if nodes else ()))
        for now, length in first:
            for later, more in self.match_start(pattern[1:], nodes[length:], now):
                yield later, length + more

    def _match_parts(self, patterns: list[Any], nodes: list[Any], bound: Bound) -> Iterator[Bound]:
        if not patterns:
            yield bound
            return
        (is_name, pattern), (_, node) = patterns[0], nodes[0]
        for now in self._match_name(pattern, node, bound) if is_name else self.match(pattern, node, bound):
            yield from self._match_parts(patterns[1:], nodes[1:], now)

    def _match_name(self, pattern: str | None, name: str | None, bound: Bound) -> Iterator[Bound]:
        if pattern is None or pattern in self._known or name not in self._locals:
            if pattern == name:
                yield bound
        elif bound.get(pattern, name) == name and (pattern in bound or name not in bound.values()):
            yield bound | {pattern: name}


def _parts(node: ast.AST) -> Iterator[tuple[bool, Any]]:
    """Yield what a node is made of, and for each part whether it may be the name of a local."""
    if isinstance(node, ast.Call):
        yield False, node.func
        yield False, [*node.args, *node.keywords]  # so that one wildcard may stand for all arguments
        return
    for name in node._fields:
        if name not in FIELDS_APART:
            yield IDENTIFIERS.get(type(node)) == name, getattr(node, name)


def filled(replacement: Any, bound: Bound) -> Any:
    """Return a copy of a node, or of a run of them, with what is bound instead of its names and wildcards."""
    return _Filling(bound).part(copy.deepcopy(replacement))


class _Filling(ast.NodeTransformer):
    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def part(self, part: Any) -> Any:
        if not isinstance(part, list):
            return self.visit(part)
        holder = ast.Module(part, [])
        self.generic_visit(holder)
        return holder.body

    def visit(self, node: ast.AST) -> Any:
        if wildcard := _wildcard(node):
            found = copy.deepcopy(self._bound[wildcard])
            return ast.Expr(found) if isinstance(node, ast.Expr) and isinstance(found, ast.expr) else found
        field = IDENTIFIERS.get(type(node))
        if field is not None:
            name = getattr(node, field)
            setattr(node, field, self._bound.get(name, name))
        self.generic_visit(node)
        if isinstance(node, ast.Call):
            keywords = [one for one in node.args if isinstance(one, ast.keyword)]
            node.args = [one for one in node.args if not isinstance(one, ast.keyword)]
            node.keywords[:0] = keywords
        return node


class _Exchange(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self.generic_visit(node)
