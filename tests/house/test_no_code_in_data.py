"""Reading a queue never runs code: nothing that turns data into code is used, and fsck's kinds are documented."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsqueue.fsck.findings import KINDS
from tests.house.source import TOP, imported, nodes

RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "code", "runpy"}
MAY = {"fsqueue/pickled.py": {"cloudpickle"}}
"""It unpickles what is signed with the user's key, in workers that were told to, and nothing else (docs/joblib.md)."""
CALLS = {"eval", "exec", "compile", "__import__"}
FILES = sorted([*(TOP / "fsqueue").rglob("*.py"), *(TOP / "cli").rglob("*.py")])


def offences(path: Path) -> list[str]:
    refused = RUNS_CODE - MAY.get(str(path.relative_to(TOP)) if path.is_relative_to(TOP) else "", set())
    found = [f"{line}: {full}" for line, full in imported(path) if full.split(".")[0] in refused]
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(f"{node.lineno}: {node.func.id}()")
    return found


def test_nothing_turns_data_into_code() -> None:
    assert {str(path.relative_to(TOP)): found for path in FILES if (found := offences(path))} == {}


@pytest.mark.parametrize("line", ["import pickle", "from marshal import loads", "eval(a)", "exec(a)"])
def test_what_does_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("tests.house.source.TOP", tmp_path)
    (tmp_path / "module.py").write_text(line)
    assert offences(tmp_path / "module.py")


def test_every_kind_of_finding_is_documented() -> None:
    text = (TOP / "docs/fsck.md").read_text()
    assert [kind for kind, what in KINDS.items() if f"| `{kind}` | {what.meaning} | {what.repair} |" not in text] == []
