"""scripts/old-figures: which figures of the pages were measured many commits ago."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.house.source import TOP

pytestmark = pytest.mark.once

_spec = importlib.util.spec_from_file_location("old_figures", TOP / "scripts" / "old_figures.py")
assert _spec is not None
assert _spec.loader is not None
old_figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(old_figures)


def git(tree: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(
        ["git", "-C", str(tree), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def printed(tree: Path, commits: int) -> tuple[int, str]:
    command = [str(TOP / "scripts" / "old-figures"), "--tree", str(tree), "--commits", str(commits)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stderr == ""
    return ran.returncode, ran.stdout


def test_figures_that_are_older_than_so_many_commits_are_listed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    first = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("nothing\n")
    (tmp_path / "docs" / "hpc.md").write_text(f"# A\n\nIt takes 2 s (measured at `{first[:8]}`).\n")
    (tmp_path / "docs" / "spark.md").write_text(f"Measured on 2026-11-25 at commit {first[:12]}-dirty: 2 cores.\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "two")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "three")
    assert printed(tmp_path, 2) == (0, "")
    old = f"docs/hpc.md:3: {first[:8]}, 2 commits ago\ndocs/spark.md:1: {first[:12]}, 2 commits ago\n"
    assert printed(tmp_path, 1) == (1, old)
    (tmp_path / "README.md").write_text("It was measured at commit 0123456789ab.\n")
    assert printed(tmp_path, 2) == (1, "README.md:1: 0123456789ab, which this clone lacks\n")


def test_pages_name_the_commit_of_their_figures_in_the_form_that_is_found() -> None:
    """What a reader would look for, and the script would pass by: a commit in other words."""
    found = {where.partition(":")[0] for where, _ in old_figures.figures(TOP)}
    wanted = {"docs/benchmarks.md", "docs/benchmarks-order.md", "docs/growth.md", "docs/where.md", "docs/group-cost.md"}
    assert found >= wanted
    for page in sorted((TOP / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        said = text.count("Measured on 2") + text.count("measured at `") + text.count("Measured at `")
        named = len(old_figures.NAMED.findall(text))
        assert named >= said, page
