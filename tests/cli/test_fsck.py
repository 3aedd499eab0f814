"""fsck at the command line: exit codes, and what programs read (docs/fsck.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.cli.conftest import Run
from tests.pages import text_of
from tests.prepared import ByHand
from tests.support import insert_in_file

pytestmark = pytest.mark.once


def test_what_is_found_and_not_repaired_ends_with_10(fsqueue_cli: Run, queue: Queue) -> None:
    queue.insert_many(range(3))
    assert fsqueue_cli("fsck", queue.path).output.startswith("nothing was found")
    (queue.path / "note").write_text("mine")
    assert "note" in fsqueue_cli("fsck", queue.path, code=10).output
    assert "note [repaired]" in fsqueue_cli("fsck", queue.path, "--repair").output
    fsqueue_cli("fsck", queue.path)
    assert queue.status().waiting == 3


def test_each_finding_is_a_line_with_the_fields_that_the_page_names(fsqueue_cli: Run, queue: Queue) -> None:
    for name in ("one", "two"):
        (queue.path / name).touch()
    lines = fsqueue_cli("fsck", queue.path, "--json", code=10).stdout.splitlines()
    assert [json.loads(line)["path"] for line in lines] == ["one", "two"]
    said = re.search(r"With `--json` each finding is a line: (.*?)\.\n", text_of("docs/fsck.md"), re.DOTALL)
    assert said is not None
    assert set(json.loads(lines[0])) == set(re.findall(r"`(\w+)`", said[1]))


def test_each_run_s_quarantine_keeps_the_path_that_a_file_had(fsqueue_cli: Run, queue: Queue) -> None:
    for content in ("first", "second"):
        (queue.path / "notes").mkdir(exist_ok=True)
        insert_in_file(queue, content)
        [shard] = {path.parent for path in queue.path.rglob("queue/*/*.jsonl") if content in path.read_text()}
        (shard / "note").write_text(content)
        fsqueue_cli("fsck", queue.path, "--repair")
        assert not (shard / "note").exists()
        kept = [path for path in (queue.path / ".quarantine").rglob("note") if path.read_text() == content]
        assert [path.relative_to(queue.path / ".quarantine").parts[1:] for path in kept] == [
            (shard / "note").relative_to(queue.path).parts
        ]
    assert len(list((queue.path / ".quarantine").iterdir())) == 2


def test_of_a_group_its_own_files_are_checked_first(fsqueue_cli: Run, tmp_path: Path) -> None:
    update = ByHand(tmp_path / "group")
    update.says("commit")
    assert fsqueue_cli("fsck", update.group.path).output.startswith("nothing was found")
    (update.file.parent / "note").touch()
    (update.first.path / "note").touch()
    lines = [json.loads(line) for line in fsqueue_cli("fsck", update.group.path, "--json", code=10).stdout.splitlines()]
    assert [(line["path"], line.get("queue")) for line in lines] == [
        (".updates/note", None),
        ("note", f"{update.group.path}/first"),
    ]
    assert fsqueue_cli("fsck", update.group.path, "--repair").output.count("[repaired]") == 2
