"""docs/guarantees.md and docs/security.md name tests: they must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE, SECURITY = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("guarantees.md", "security.md"))
NAMED = sorted(set(re.findall(r"`((?:tests|scripts)/[\w./-]+(?:::\w+)?)`", PAGE + SECURITY)))


def test_every_promise_names_a_test() -> None:
    promises = re.findall(r"^\| \d+ \|.*", PAGE, re.MULTILINE)
    assert len(promises) >= 12
    for promise in promises:
        assert "`tests/" in promise or "benchmarks.md" in promise, promise


@pytest.mark.parametrize("name", NAMED)
def test_the_test_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    assert (ROOT / path).exists()
    if function:
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8")
