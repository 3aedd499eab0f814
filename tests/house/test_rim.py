"""docs/security.md lists every place at the rim: new ones are found, and rows that say what is so no more."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house import rim
from tests.house.source import TOP, nodes

PAGE = "docs/security.md"
FOLLOWS = "follows"
"""A name from a file becomes part of a path: no scan can see that, so people keep these."""
_ROW = re.compile(r"^\| (`[^|]*`) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def rows(text: str) -> dict[str, set[str]]:
    """What the table says that each place does."""
    found: dict[str, set[str]] = {}
    for places, kinds, _, _ in _ROW.findall(text):
        for place in re.findall(r"`([\w.]+)`", places):
            assert place not in found, f"{PAGE} names {place} twice: in one row say all that it does"
            found[place] = {kind.strip() for kind in kinds.split(",")}
    return found


def compare(listed: dict[str, set[str]], found: dict[str, set[str]], defined: set[str]) -> str:
    """What is to change in the table, as rows to paste; "" if nothing is."""
    said = []
    for place in sorted(found):
        if place not in listed or listed[place] - {FOLLOWS} != found[place]:
            keeps = [FOLLOWS] if FOLLOWS in listed.get(place, ()) else []
            kinds = ", ".join([*(kind for kind in rim.KINDS if kind in found[place]), *keeps])
            said.append(f"| `{place}` | {kinds} | RULE | `tests/TEST` |")
    if said:
        said.insert(0, f"Paste these rows into {PAGE}, each with its rule and the test that shows it:")
    stale = sorted(
        place
        for place, kinds in listed.items()
        if place not in found and not (FOLLOWS in kinds and kinds == {FOLLOWS} and place in defined)
    )
    if stale:
        said.append(f"Take out of {PAGE}, since they do no such thing any more: {', '.join(stale)}")
    return "\n".join(said)


def defined() -> set[str]:
    """Every function of the source."""
    found = set()
    for top, package in ((TOP / "fsqueue", "fsqueue"), (TOP / "cli", "cli")):
        for path in top.rglob("*.py"):
            module = rim.module_name(path, top, package)
            found |= {
                f"{module}.{node.name}" for node in nodes(path) if isinstance(node, ast.FunctionDef)
            }  # methods, too: without their class, which is near enough for what people keep
    return found


def test_every_place_is_in_the_table_and_every_row_is_true() -> None:
    said = compare(rows((TOP / PAGE).read_text(encoding="utf-8")), rim.places(), defined())
    assert not said, said


def test_every_row_has_a_rule_and_names_a_test() -> None:
    """That the tests are there is what test_guarantees looks at."""
    found = _ROW.findall((TOP / PAGE).read_text(encoding="utf-8"))
    assert len(found) > 50
    for places, kinds, rule, tests in found:
        assert {kind.strip() for kind in kinds.split(",")} <= {*rim.KINDS, FOLLOWS}, places
        assert rule.strip() not in ("", "RULE"), places
        assert re.search(r"`tests/(?!TEST)", tests), places


def test_every_kind_is_explained() -> None:
    page = (TOP / PAGE).read_text(encoding="utf-8")
    assert [kind for kind in (*rim.KINDS, FOLLOWS) if f"`{kind}`" not in page] == []


def test_what_the_filesystem_layer_offers_has_a_kind() -> None:
    """A new method that deletes or writes would otherwise be called unseen."""
    known = {
        name
        for table in (rim.OF_FILESYSTEM, rim.OF_A_FILESYSTEM, rim.WRAPPERS)
        for names in table.values()
        for name in (each.rpartition(".")[2] for each in names)
    }
    offered = {
        place
        for place, kinds in rim.places().items()
        if place.startswith("filesystem.") and kinds & {rim.DELETES, rim.MOVES, rim.MAKES, rim.WRITES}
    }
    public = {place for place in offered if "._" not in place}
    assert {place for place in public if place.rpartition(".")[2] not in known} <= WHOLE, "give them a kind in rim.py"


WHOLE = {
    "filesystem.beneath.open_at",
    "filesystem.outputs.KeptFile.append",
    "filesystem.memory.make_memory",
    "filesystem.memory.shared_memory",
    "filesystem.outputs.KeptOutput.open",
    "filesystem.replacing.Replaced.replace",
    "filesystem.replacing.Replaced.spool",
    "filesystem.result_paths.ResultFiles.close",
    "filesystem.result_paths.ResultFiles.open",
    "filesystem.result_paths.ResultFiles.sweep",
    "filesystem.result_paths.ResultFiles.take",
    "filesystem.outputs.Spool.append",
    "filesystem.trees.OpenTree.read",
}
"""Functions that only the layer calls, or that choose their paths themselves: their own row says it all."""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("fs.unlink(path)", rim.DELETES),
        ("store.fs.remove_tree(path)", rim.DELETES),
        ("partial(self.store.fs.unlink, path)", rim.DELETES),
        ("from os import rmdir\nrmdir(path)", rim.DELETES),
        ("fs.rename(a, b)", rim.MOVES),
        ("import os\nos.link(a, b)", rim.MOVES),
        ("from fsqueue import store\nstore.discard(fs, a, b, c)", rim.MOVES),
        ("fs.create(path)", rim.MAKES),
        ("import tempfile\ntempfile.mkdtemp()", rim.MAKES),
        ("fs.look(path, os.O_RDWR)", rim.WRITES),
        ("fs.look(path, flags)", rim.WRITES),
        ("fs.overwrite(path, data)", rim.WRITES),
        ("open(path, 'w')", rim.WRITES),
        ("open(path, mode)", rim.WRITES),
        ("import shutil\nshutil.copy(a, b)", rim.WRITES),
        ("import subprocess\nsubprocess.run([a])", rim.STARTS),
        ("from subprocess import Popen\nPopen([a])", rim.STARTS),
        ("import os\nos.posix_spawnp(a, b, c)", rim.STARTS),
        ("import ctypes\nctypes.CDLL(None)", rim.STARTS),
        ("import os\nos.set_inheritable(fd, True)", rim.HANDS),
        ("run(a, env=b)", rim.HANDS),
        ("import os\nos.environ['a']", rim.HANDS),
        ("import os\nos.killpg(a, 9)", rim.SIGNALS),
        ("click.echo(a)", rim.PRINTS),
        ("logger.warning(a)", rim.PRINTS),
    ],
)
def test_a_new_place_is_found(tmp_path: Path, line: str, kind: str) -> None:
    body = "\n".join(f"        {each}" for each in line.splitlines())
    (tmp_path / "module.py").write_text(f"class Thing:\n    def do(self):\n{body}\n")
    found = list(rim.places_in(tmp_path / "module.py", "module"))
    assert ("module.Thing.do", kind) in found


@pytest.mark.parametrize("line", ["fs.look(path)", "open(path)", "names.remove(a)", "seen.discard(a)", "a.clear()"])
def test_what_is_harmless_is_no_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(f"def do():\n    {line}\n")
    assert list(rim.places_in(tmp_path / "module.py", "module")) == []


def test_what_is_to_change_is_said_in_rows_to_paste() -> None:
    listed = rows("| `a.gone`, `a.same` | deletes | 5. | `tests/x` |\n| `a.more` | moves, follows | 4. | `tests/x` |")
    found = {"a.same": {rim.DELETES}, "a.more": {rim.MOVES, rim.WRITES}, "a.new": {rim.STARTS}}
    said = compare(listed, found, set())
    assert "| `a.new` | starts | RULE | `tests/TEST` |" in said
    assert "| `a.more` | moves, writes, follows | RULE | `tests/TEST` |" in said
    assert "a.same" not in said
    assert said.endswith("a.gone")
    assert compare({"a.same": {rim.DELETES}}, {"a.same": {rim.DELETES}}, set()) == ""
