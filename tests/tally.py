"""What long tests have done, in numbers, for the totals of scripts/soak.

FSQUEUE_TEST_TALLY=FILE pytest …    # each test that has numbers appends a line
python -m tests.tally FILE          # their sums
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path


def note(what: str, numbers: Mapping[str, int]) -> None:
    """Append numbers of a kind of test to the tally, if one is kept."""
    path = os.environ.get("FSQUEUE_TEST_TALLY")
    if path:
        with open(path, "a") as tally:
            tally.write(json.dumps({"what": what, "tests": 1, **numbers}) + "\n")


def totals(path: Path) -> dict[str, Counter[str]]:
    """The sums of each kind."""
    found: dict[str, Counter[str]] = {}
    for line in path.read_text().splitlines():
        numbers = json.loads(line)
        found.setdefault(numbers.pop("what"), Counter()).update(numbers)
    return found


def main() -> None:
    for what, numbers in totals(Path(sys.argv[1])).items():
        print(f"{what}: " + ", ".join(f"{name} {number:,}" for name, number in numbers.items()))


if __name__ == "__main__":
    main()
