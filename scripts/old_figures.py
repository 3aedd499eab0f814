"""List the figures in README.md and docs/ that were measured more than a number of commits ago: `scripts/old-figures`.

A page names the commit at which its figures were measured: "measured at `1a2b3c4d`", or "at commit 1a2b3c4d". A commit
that this clone does not have is listed, too. Exits with 1 if anything is listed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COMMITS_MAX = 1000
NAMED = re.compile(r"(?:measured|at)\s+(?:at\s+)?(?:commit\s+)?`?\b([0-9a-f]{7,40})\b(?:-dirty)?`?", re.IGNORECASE)


def figures(top: Path) -> Iterator[tuple[str, str]]:
    """Yield page and line, and the commit, of each place that names a commit of measurements."""
    for page in sorted([top / "README.md", *(top / "docs").rglob("*.md")]):
        if not page.exists():
            continue
        text = page.read_text(encoding="utf-8")
        for found in NAMED.finditer(text):
            yield f"{page.relative_to(top)}:{text.count(chr(10), 0, found.start()) + 1}", found[1]


def commits_since(top: Path, commit: str) -> int | None:
    """Return how many commits HEAD has that this commit has not; None if the clone lacks it."""
    command = ["git", "-C", str(top), "rev-list", "--count", f"{commit}..HEAD"]
    counted = subprocess.run(command, capture_output=True, text=True)
    return int(counted.stdout) if counted.returncode == 0 else None


def main(arguments: list[str]) -> int:
    """Print what is old. Return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/old-figures", description=__doc__.partition("\n")[0])
    parser.add_argument("--commits", type=int, default=COMMITS_MAX, help=f"how many commits are old [{COMMITS_MAX}]")
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).resolve().parent.parent, help="the clone to look at"
    )
    given = parser.parse_args(arguments)
    old = 0
    for where, commit in figures(given.tree):
        count = commits_since(given.tree, commit)
        if count is None or count > given.commits:
            old += 1
            print(f"{where}: {commit}, " + ("which this clone lacks" if count is None else f"{count:,} commits ago"))
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
