"""What fsqueue wrote, read by the names and records that docs/format.md fixes: the floor does as much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SAMPLED_LOGS = 200


def task_files(queue: str) -> dict[str, Path]:
    """The task files of a queue, by batch, oldest first."""
    found = {path.name.split("-")[1]: path for path in Path(queue).glob("[0-9]*/queue/*/*.jsonl")}
    return dict(sorted(found.items()))


def task_count(path: Path) -> int:
    """How many tasks a batch holds: as its file's name says, or as many as were inserted into its log."""
    count = path.name.removesuffix(".jsonl").split("-")[2]
    return int(count) if count.isdecimal() else len(_inserts(path))


def line_bytes(files: dict[str, Path]) -> int:
    """The mean size of a task, in its file or as its `insert` record."""
    some = list(files.values())[-20:]
    tasks = sum(map(task_count, some))
    return round(sum(path.stat().st_size + sum(map(len, _inserts(path))) for path in some) / tasks) if tasks else 0


def _inserts(path: Path) -> list[bytes]:
    """The `insert` records in the log of a batch; none if its tasks are in its file."""
    batch, count = path.name.removesuffix(".jsonl").split("-")[1:3]
    if count.isdecimal():
        return []
    log = path.parents[2] / "movements" / path.parent.name / f"{batch}.jsonl"
    return [line for line in log.read_bytes().splitlines(keepends=True) if line.startswith(b'{"op":"insert",')]


def record_bytes(queue: str) -> dict[str, int]:
    """The mean size of a lease and of a complete record in the logs that are still there, and in the history."""
    sums: dict[str, list[int]] = {"lease": [], "complete": []}
    logs = sorted(Path(queue).glob("[0-9]*/movements/*/*.jsonl"))[:SAMPLED_LOGS]
    for log in logs:
        for line in log.read_bytes().split(b"\n")[:-1]:
            _note(line, sums)
    return {op: round(sum(sizes) / len(sizes)) for op, sizes in sums.items() if sizes}


def _note(line: bytes, sums: dict[str, list[int]]) -> None:
    try:
        record: Any = json.loads(line)
    except ValueError:
        return
    if isinstance(record, dict) and record.get("op") in sums:
        sums[record["op"]].append(len(line) + 1)
