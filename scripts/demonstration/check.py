"""What the demonstration checks, without believing the queue: results against files, as coreutils see them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Measurement = tuple[str, int]
"""SHA-256 in hex, number of lines."""


@dataclass
class Results:
    """What the workers wrote, together."""

    found: dict[str, Measurement] = field(default_factory=dict)  # by path
    repeats: int = 0  # lines about a path that had one already: its task was executed twice
    torn: int = 0  # lines cut short by the kill; their tasks were not completed
    problems: list[str] = field(default_factory=list)


def read_results(files: Iterable[Path]) -> Results:
    """All results. A task may have been executed twice (at-least-once is the contract): then both must agree."""
    results = Results()
    for file in files:
        *lines, tail = file.read_bytes().split(b"\n")
        results.torn += bool(tail)
        for line in lines:
            entry = json.loads(line)
            path, measured = entry["path"], (entry["sha256"], entry["lines"])
            if path not in results.found:
                results.found[path] = measured
                continue
            results.repeats += 1
            if results.found[path] != measured:
                results.problems.append(f"{path} was measured twice, with different results")
    return results


def measure_with_coreutils(paths: Sequence[str]) -> dict[str, Measurement]:
    """The same by another road: GNU sha256sum and wc."""
    names = "".join(path + "\0" for path in paths).encode()
    hashes = _run("xargs", "-0", "sha256sum", "--zero", "--", names=names).split("\0")[:-1]
    counts = _run("wc", "-l", "--files0-from=-", names=names).splitlines()
    return {
        path: (checksum.split()[0], int(count.split()[0]))
        for path, checksum, count in zip(paths, hashes, counts, strict=False)  # wc ends with a total
    }


def _run(*command: str, names: bytes) -> str:
    return subprocess.run(command, input=names, stdout=subprocess.PIPE, check=True).stdout.decode()


def compare(expected: dict[str, Measurement], results: Results) -> list[str]:
    """Every disagreement between what should have been found and what was, as sentences; none is the proof."""
    found = results.found
    return [
        *results.problems,
        *(f"{path} was queued and never processed" for path in sorted(expected.keys() - found.keys())),
        *(f"{path} was processed and never queued" for path in sorted(found.keys() - expected.keys())),
        *(
            f"{path}: the workers found {found[path]}, coreutils {expected[path]}"
            for path in sorted(expected.keys() & found.keys())
            if found[path] != expected[path]
        ),
    ]
