"""JSON that users hand in goes through one decoder, and their values through one encoder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, TOP, nodes

pytestmark = pytest.mark.once

LIBRARIES = ("orjson", "json")
DECODERS = {
    "fsqueue/format/user_json.py": "the one for what users hand in",
    "fsqueue/format/checkpoints.py": "its own encoding",
    "fsqueue/format/barriers.py": "the files of barriers",
    "fsqueue/format/decisions.py": "decision files",
    "fsqueue/format/groups.py": ".group.jsonl",
    "fsqueue/format/keys.py": "lines of files of keys",
    "fsqueue/format/layout.py": "queue.jsonl",
    "fsqueue/format/movements.py": "records",
    "fsqueue/format/priority.py": "lines of task files",
    "fsqueue/format/task_file.py": "lines of task files",
    "fsqueue/format/uniform.py": "lines of task files",
    "fsqueue/protocol/fast_path.py": "lines of task files, and results that the caller has encoded",
    "fsqueue/protocol/leasing.py": "lines of task files",
    "fsqueue/storage/commits.py": "records of commits",
    "fsqueue/storage/history.py": "the history",
    "fsqueue/storage/letter_files.py": "letters",
    "fsqueue/storage/nested.py": "queue.jsonl of another queue",
    "fsqueue/storage/nodes.py": "lines of files of nodes",
    "fsqueue/storage/retrying.py": "letters",
    "fsqueue/fsck/surplus.py": "the history",
    "fsqueue/doctor/contests.py": "what its own process reports",
    "fsqueue/doctor/rendezvous.py": "what another doctor wrote",
    "fsqueue/worker/child.py": "messages between a worker and its children",
    "fsqueue/worker/child_processes.py": "the same",
    "fsqueue/worker/child_messages.py": "the same",
    "fsqueue/pickled.py": "the header of a text whose signature was compared",
    "fsqueue/worker/listed_functions.py": "what an executor has written into memory that it shares with its worker",
    "fsqueue/worker/handlers.py": "what it has encoded itself a line before",
    "cli/campaign.py": "what a job of the same campaign has encoded",
    "cli/result_files.py": "rows that it has written itself into a temporary file",
    "fsqueue/format/wording.py": "a text in quotes, and nothing else",
    "fsqueue/spark/columnar.py": "lines of task files",
    "fsqueue/spark/jobs/report.py": "a column that the data source made",
    "fsqueue/spark/lines.py": "lines that the JVM made of typed columns",
    "fsqueue/spark/options.py": "the option `paths`, which Spark makes; metadata of its own",
    "fsqueue/spark/parsing.py": "payloads that are in the queue",
    "fsqueue/spark/one_shape.py": "lines of task files",
}
"""The modules that decode JSON, and whose. `user_json` is for all that users hand in: add no other way in here."""


def decoding(path: Path) -> Iterator[int]:
    """Yield the lines in which a module takes a decoder from a library."""
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            is_decoder = node.value.id in LIBRARIES and node.attr in ("loads", "load")
        else:
            is_import = isinstance(node, ast.ImportFrom) and node.module in LIBRARIES
            is_decoder = is_import and bool({alias.name for alias in node.names} & {"loads", "load"})
        if is_decoder:
            yield node.lineno


def test_no_other_module_decodes_json() -> None:
    found = {
        str(path.relative_to(TOP))
        for path in [*PACKAGE.rglob("*.py"), *(TOP / "cli").rglob("*.py")]
        if any(decoding(path))
    }
    assert found == set(DECODERS)


def test_payloads_and_results_are_encoded_in_one_place() -> None:
    """What a user's value becomes is judged there: NaN, dates, depth, integers beyond 64 bits."""
    callers = {
        str(path.relative_to(TOP))
        for path in PACKAGE.rglob("*.py")
        for node in nodes(path)
        if (node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "")
        in ("encode_json", "encode_task", "encode_result")
    }
    assert callers >= {
        "fsqueue/protocol/encoding.py",
        "fsqueue/arguments.py",
        "fsqueue/worker/handlers.py",
        "fsqueue/spark/lines.py",
        "fsqueue/spark/jobs/drain.py",
    }
