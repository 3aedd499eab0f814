"""What the command line prints goes through cli/printing.py, which escapes what drives a terminal."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, TOP, code, imported, parse

HERE = "printing.py"
PRINTS = {
    "print", "tqdm", "click.echo", "click.secho", "click.echo_via_pager", "click.confirm", "click.prompt",
    "click.get_text_stream", "click.get_binary_stream", "click.progressbar", "click.clear", "click.pause",
    "os.write", "traceback.print_exception", "warnings.warn", "input",
}  # fmt: skip
STREAMS = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")
WRITES = {"write", "writelines", "buffer"}
LOGS = ("logging", "curses", "pprint")
STREAMING = {
    "doctor/contests.py": "a child of the doctor, whose output is a pipe",
    "worker/child.py": "flushes what a function has printed",
    "worker/output.py": "passes on what commands print, which is theirs",
}
"""Modules of the library that use the standard streams."""


def offences(path: Path) -> Iterator[str]:
    """What prints, or hands a standard stream to something that does."""
    for line, full in imported(path):
        if full.split(".")[0] in LOGS or full in {"sys.stdout", "sys.stderr"} | PRINTS - {"tqdm"}:
            yield f"{line}: import {full}"
    for node in code(parse(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTS:
            yield f"{node.lineno}: {ast.unparse(node.func)}()"
        if isinstance(node, ast.Attribute) and node.attr in WRITES and ast.unparse(node.value) in STREAMS:
            yield f"{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg in ("file", "stream") and ast.unparse(node.value) in STREAMS:
            yield f"{node.value.lineno}: {node.arg}={ast.unparse(node.value)}"


def test_the_command_line_prints_in_one_module() -> None:
    found = {
        str(path.relative_to(TOP)): said
        for path in sorted((TOP / "cli").rglob("*.py"))
        if path.name != HERE and (said := list(offences(path)))
    }
    assert found == {}, "say it with cli/printing.py"


def test_the_library_prints_nothing() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in code(parse(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in STREAMS
    }
    assert found == STREAMING.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import click; click.echo(a)",
        "print(a)",
        "import sys; sys.stdout.write(a)",
        "import sys; sys.stderr.buffer.write(a)",
        "import logging",
        "from tqdm import tqdm; tqdm(total=1)",
        "import click; click.confirm(a)",
        "import sys; f(file=sys.stderr)",
        "import os; os.write(2, a)",
    ],
)
def test_printing_elsewhere_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("tests.house.source.TOP", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(line)
    assert list(offences(path)) != []
