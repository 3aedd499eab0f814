"""What type checkers say to users' programs: nothing to a sound one, and each mistake of a mistaken one is found."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType

import pytest

import fsqueue
from tests.house.source import TOP
from tests.waiting import PATIENCE_S

TYPED = TOP / "tests/house/typed"
PROGRAM, MISTAKES = TYPED / "program.py", TYPED / "mistakes.py"
NOT_FOR_USERS = {"NewNumber", "NumberedInfo", "TaskNumbers", "drained_proof", "stage_encoded"}
"""Public for fsqueue's own gateway, its client and its Spark writer alone."""


def marked() -> list[tuple[str, int]]:
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    return [(MISTAKES.name, number) for number, line in lines if "# MISTAKE: " in line]


def lines_with_errors(found: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted({(Path(file).name, line) for file, line in found})


def test_the_mistakes_are_ten() -> None:
    assert len(marked()) == 10


def test_mypy_accepts_the_program_and_finds_the_mistakes() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", str(PROGRAM), str(MISTAKES)]
    ran = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=PATIENCE_S)
    found = re.findall(r"^(.+?):(\d+): error:", ran.stdout, re.MULTILINE)
    assert lines_with_errors((file, int(line)) for file, line in found) == marked(), ran.stdout + ran.stderr
    assert len(found) == 10, ran.stdout


def pyright() -> list[str] | None:
    """How pyright is called here: basedpyright, which the extra `test` brings, is pyright with a Node.js of its own."""
    if importlib.util.find_spec("basedpyright") is not None:
        return [sys.executable, "-m", "basedpyright"]
    path = shutil.which("pyright")
    return [path] if path is not None else None


@pytest.mark.thorough
@pytest.mark.skipif(pyright() is None, reason="neither basedpyright nor pyright is installed")
def test_pyright_accepts_the_program_and_finds_the_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "pyrightconfig.json"
    settings = {"typeCheckingMode": "strict", "include": [str(TYPED)], "extraPaths": [str(TOP)]}
    config.write_text(json.dumps(settings | {"pythonVersion": "3.11"}))
    command = [*(pyright() or ()), "--outputjson", "--project", str(config), "--pythonpath", sys.executable]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    said = json.loads(ran.stdout)
    assert said["summary"]["filesAnalyzed"] >= 2
    found = ((one["file"], one["range"]["start"]["line"] + 1) for one in said["generalDiagnostics"])
    assert lines_with_errors(found) == marked(), ran.stdout


def test_the_program_calls_every_public_verb_and_names_what_they_return() -> None:
    tree = ast.parse(PROGRAM.read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    kinds = (fsqueue.Queue, fsqueue.LeasedTask, fsqueue.Commit, fsqueue.Poll, fsqueue.AsyncPoll, fsqueue.Worker)
    verbs = {
        name
        for kind in kinds
        for base in kind.__mro__
        for name, value in vars(base).items()
        if not name.startswith("_") and isinstance(value, (FunctionType, classmethod, property))
    }
    public = {
        name
        for name in fsqueue.__all__
        if not (isinstance(kind := getattr(fsqueue, name), type) and issubclass(kind, fsqueue.FsqueueError))
    }
    assert (verbs | public) - names - NOT_FOR_USERS == set()
