"""Find where tests go by the clock, by reading their source: sleeps, comparisons of wall time, short timeouts.

A place is a file and a function (`Class.method` or `function`; what stands within a function counts as that function).
Programs and shell commands that stand in strings are read, too.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.house.source import TOP, nodes, parse, walk

GUARD_S = 30.0
"""A shorter sleep or timeout can decide on a busy machine; a longer one only ends what hangs."""

SLEEPS, COMPARES, LIMITS, COUNTS = "sleeps", "compares wall time", "has a short timeout", "counts the processors"
KINDS = {
    SLEEPS: f"sleeps for less than {GUARD_S:g} s: wait for a condition (tests/waiting.py)",
    COMPARES: "compares wall time: assert an order, or inject a clock",
    LIMITS: f"ends after less than {GUARD_S:g} s: give it PATIENCE_S (tests/waiting.py)",
    COUNTS: "starts a process for each processor: others work beside it",
}

READINGS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime"}
"""Functions of `time` that read a clock which goes on by itself."""
OTHER_READINGS = ("datetime.now", "datetime.utcnow", "loop.time", "loop().time")
KEPT_BY = {"abs", "min", "max", "round", "int", "float", "sum", "sorted", "list"}
"""Functions that give wall time for wall time."""
FIRST = {"join", "wait", "poll", "alarm", "settimeout", "timeout"}
"""Functions whose first argument is a timeout, if it is a number."""
SECOND = {"wait_for", "acquire", "get"}
"""Functions whose second argument is a timeout, if it is a number."""
NAMED = {"timeout", "timeout_s", "wait_timeout", "patience_s"}
"""What timeouts are called. The `timeout_s` of `Queue.wait` belongs to the queue's clock, and does not count."""
POOLS = {"Pool", "ProcessPoolExecutor"}
"""They start as many processes as there are processors, unless they are given a number."""
POOL_SIZES = {"processes", "max_workers"}
COUNTERS = {"cpu_count", "process_cpu_count", "sched_getaffinity"}

SLEEP_IN_SHELL = re.compile(r"\bsleep +([\d.]+|_)([smhd]?)")
TIMEOUT_IN_SHELL = re.compile(r"\btimeout +(?:-\S+ +)*([\d.]+)([smhd]?)\b")
UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
A_PROGRAM = re.compile(r"sleep\(|monotonic|perf_counter|time\.time\(|timeout|cpu_count|\.(?:join|wait)\(")
"""Only a text in which one of these stands is read as a program."""


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
"""Wall time is never equal to anything but itself."""


class Finding(NamedTuple):
    """A place, what it does there, and the line."""

    file: str
    function: str
    kind: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {KINDS[self.kind]}\n    {self.text}"


def findings_of(path: Path) -> list[Finding]:
    """All findings in one file of this repository."""
    return sorted(findings_in(parse(path), str(path.relative_to(TOP)), constants_of(path)), key=lambda one: one.line)


def findings_in(tree: ast.Module, file: str, constants: dict[str, float] | None = None) -> list[Finding]:
    """All findings in a module. `constants`: numbers by the names that it knows them by."""
    constants = constants if constants is not None else dict(numbers(tree))
    reader = Reader(tree, constants)
    found = []
    for function, body in functions(tree):
        for kind, node, text in reader.read(body):
            found.append(Finding(file, function, kind, getattr(node, "lineno", 0), text or ast.unparse(node)))
    return list(dict.fromkeys(found))


@cache
def constants_of(path: Path) -> dict[str, float]:
    """The numbers that a module's names stand for; those that it imports from other tests, too."""
    known = {}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            source = TOP.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            theirs = dict(numbers(parse(source))) if source.exists() else {}
            known |= {name.asname or name.name: theirs[name.name] for name in node.names if name.name in theirs}
    return known | dict(numbers(parse(path)))


def numbers(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """The names that a module gives to numbers."""
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ) if value is not None:
                number = number_of(value, {})
                if number is not None:
                    yield name, number


def number_of(node: ast.AST, constants: dict[str, float]) -> float | None:
    """The number that an expression is, if that can be read."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return constants.get(name)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.Add() as op, right=right):
            one, two = number_of(left, constants), number_of(right, constants)
            if one is None or two is None:
                return None
            if isinstance(op, ast.Mult):
                return one * two
            return one + two if isinstance(op, ast.Add) else one / (two or 1)
    return None


def functions(tree: ast.Module) -> Iterator[tuple[str, list[ast.AST]]]:
    """The functions and methods of a module, by name, and what stands outside of them: all nodes of each."""
    rest: list[ast.AST] = []
    for node in tree.body:
        if isinstance(node, FUNCTION):
            yield node.name, walk(node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, FUNCTION):
                    yield f"{node.name}.{inner.name}", walk(inner)
                else:
                    rest += walk(inner)
        else:
            rest += walk(node)
    yield "module", rest


class Reader:
    """Reads the functions of one module."""

    def __init__(self, tree: ast.Module, constants: dict[str, float]) -> None:
        self.constants = constants
        self.modules: dict[str, str] = {}
        """What modules are called here."""
        self.members: dict[str, str] = {}
        """What members of modules are called here: the full name of each."""
        self.passed_by: set[int] = set()
        """Docstrings, and the parts of texts, which are read together."""
        self.reads_a_clock = False
        self.timers: set[str] = set()
        """Functions of this module that return wall time."""
        inner = walk(tree)
        for node in inner:
            match node:
                case ast.Import(names=names):
                    self.modules |= {alias.asname or alias.name: alias.name for alias in names}
                case ast.ImportFrom(module=module, names=names):
                    self.members |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
                case ast.Expr(value=ast.Constant() as text):
                    self.passed_by.add(id(text))
                case ast.JoinedStr():
                    self.passed_by |= {id(part) for part in walk(node) if part is not node}
        self.reads_a_clock = any(isinstance(node, ast.Call) and self._reads_a_clock(node) for node in inner)
        if self.reads_a_clock:
            defined = [(node.name, walk(node)) for node in inner if isinstance(node, FUNCTION)]
            before = -1
            while before != len(self.timers):
                before = len(self.timers)
                self.timers |= {name for name, body in defined if self._returns_wall_time(body)}

    def read(self, body: list[ast.AST]) -> Iterator[tuple[str, ast.AST, str]]:
        """What a function does, and where. The text is empty if the node says it."""
        names = self._wall_names(body)
        for node in body:
            if isinstance(node, ast.Call):
                yield from ((kind, node, "") for kind in self._of_call(node))
            elif isinstance(node, ast.Compare):
                if any(isinstance(how, ORDERS) for how in node.ops) and any(
                    self._is_wall(side, names) for side in (node.left, *node.comparators)
                ):
                    yield COMPARES, node, ""
            elif isinstance(node, ast.arguments):
                yield from ((LIMITS, default, f"{name}={ast.unparse(default)}") for name, default in self._short(node))
            if isinstance(node, ast.List | ast.Tuple):
                yield from ((kind, node, "") for kind in self._of_words(node.elts))
            elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in self.passed_by:
                yield from ((kind, node, text) for kind, text in self._of_text(self._text(node)))

    def _full_name(self, node: ast.AST) -> str:
        """Full name of what is called: `time.sleep`, however it was imported."""
        if isinstance(node, ast.Name):
            return self.members.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            of = ast.unparse(node.value)
            return f"{self.modules.get(of, self.members.get(of, of))}.{node.attr}"
        return ""

    def _of_call(self, node: ast.Call) -> Iterator[str]:
        name = self._full_name(node.func)
        last = name.rpartition(".")[2]
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in ("time.sleep", "asyncio.sleep"):
            if self._is_short(node.args[0] if node.args else node, unknown=True):
                yield SLEEPS
        elif last in COUNTERS or (last in POOLS and not node.args and not given.keys() & POOL_SIZES):
            yield COUNTS
        limits = [value for key, value in given.items() if key in NAMED and not (key == "timeout_s" and last == "wait")]
        if last in FIRST and len(node.args) == 1 and not given:
            limits += node.args
        elif last in SECOND and len(node.args) > 1 and not (last == "get" and is_key(node.args[0])):
            limits.append(node.args[1])
        if any(self._is_short(value, unknown=False) for value in limits):
            yield LIMITS
        yield from self._of_words(node.args)

    def _is_short(self, node: ast.AST, unknown: bool) -> bool:
        """Tell whether a sleep or a timeout is short; `unknown` if that cannot be read. 0 is a look, not a wait."""
        seconds = number_of(node, self.constants)
        return unknown if seconds is None else 0 < seconds < GUARD_S

    def _short(self, node: ast.arguments) -> Iterator[tuple[str, ast.AST]]:
        """The parameters that are short timeouts if they are left out."""
        positional = [*node.posonlyargs, *node.args]
        pairs = [*zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True)]
        pairs += [(name, value) for name, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value]
        yield from (
            (name.arg, value) for name, value in pairs if name.arg in NAMED and self._is_short(value, unknown=False)
        )

    def _of_words(self, elements: list[ast.expr]) -> Iterator[str]:
        """A command that is given word by word."""
        words = [self._text(element) for element in elements]
        for word, after in pairwise(words):
            if word == "sleep" and 0 < as_seconds(after) < GUARD_S:
                yield SLEEPS
            elif word == "timeout" and 0 < as_seconds(after) < GUARD_S:
                yield LIMITS

    def _text(self, node: ast.AST) -> str:
        """A string; numbers that are put into it, if they can be read, and `_` for anything else."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=bytes(text)):
                return text.decode(errors="replace")
            case ast.JoinedStr(values=values):
                return "".join(self._text(value) for value in values)
            case ast.FormattedValue(value=value):
                number = number_of(value, self.constants)
                return "_" if number is None else f"{number:g}"
        return ""

    def _of_text(self, text: str) -> Iterator[tuple[str, str]]:
        for pattern, kind in ((SLEEP_IN_SHELL, SLEEPS), (TIMEOUT_IN_SHELL, LIMITS)):
            for match in pattern.finditer(text):
                if match[1] == "_" or 0 < as_seconds(match[1] + match[2]) < GUARD_S:
                    yield kind, match[0]
        if A_PROGRAM.search(text):
            try:
                program = ast.parse(textwrap.dedent(text))
            except (SyntaxError, ValueError):
                for match in re.finditer(r"\bsleep\(([\d.]+|_)\)", text):
                    if match[1] == "_" or 0 < as_seconds(match[1]) < GUARD_S:
                        yield SLEEPS, match[0]
            else:
                for found in findings_in(program, "", {**self.constants, **dict(numbers(program))}):
                    yield found.kind, found.text

    def _reads_a_clock(self, node: ast.Call) -> bool:
        name = self._full_name(node.func)
        module, _, function = name.partition(".")
        return (module == "time" and function in READINGS) or name.endswith(OTHER_READINGS)

    def _returns_wall_time(self, body: list[ast.AST]) -> bool:
        names = self._wall_names(body)
        returned = (node.value for node in body if isinstance(node, ast.Return) and node.value)
        return any(self._is_wall(value, names) for value in returned)

    def _wall_names(self, body: list[ast.AST]) -> set[str]:
        """The names (and attributes) that hold wall time in a function."""
        names: set[str] = set()
        before = -1 if self.reads_a_clock else 0
        while before != len(names):
            before = len(names)
            for node in body:
                names |= {ast.unparse(target) for target, value in assigned(node) if self._is_wall(value, names)}
        return names

    def _is_wall(self, node: ast.AST, names: set[str]) -> bool:
        """Tell whether an expression is wall time, or a difference of it."""
        match node:
            case ast.Call(func=func, args=args):
                name = self._full_name(func)
                if self._reads_a_clock(node) or name in self.timers:
                    return True
                return name in KEPT_BY and any(self._is_wall(arg, names) for arg in args)
            case ast.Name() | ast.Attribute():
                return ast.unparse(node) in names
            case ast.BinOp(left=left, right=right):
                return self._is_wall(left, names) or self._is_wall(right, names)
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.NamedExpr(value=inner):
                return self._is_wall(inner, names)
            case ast.Starred(value=inner) | ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner):
                return self._is_wall(inner, names)
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_wall(body, names) or self._is_wall(orelse, names)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return any(self._is_wall(element, names) for element in elements)
        return False


def assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets and values of an assignment, element by element; a list and what is appended to it."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from split(target, value)
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value) if value:
            yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.Call(func=ast.Attribute(value=target, attr="append" | "extend"), args=[value]):
            yield target, value
        case ast.For(target=ast.Name() as target, iter=value):
            yield target, value


def split(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    match target, value:
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for one, its in zip(targets, values, strict=True):
                yield from split(one, its)
        case ast.Tuple(elts=targets), _:
            yield from ((one, value) for one in targets)
        case _:
            yield target, value


def is_key(node: ast.AST) -> bool:
    """Tell `counts.get(name, 5)` from `queue.get(True, 5)`."""
    return not (isinstance(node, ast.Constant) and isinstance(node.value, bool | int))


def as_seconds(text: str) -> float:
    """Seconds of `5`, `0.5` or `5m`; 0 if it is not a time."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", text)
    return float(match[1]) * UNITS_S[match[2]] if match else 0.0
