"""docs/functions.md, typed as it stands there, with fewer tasks and in a temporary directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.house.source import TOP

FEWER = ("1_000_000", "1_000")


@pytest.mark.once
def test_the_example(tmp_path: Path) -> None:
    text = (TOP / "docs/functions.md").read_text().replace("/scratch/me", str(tmp_path)).replace(*FEWER)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "python", "sh", "json"]
    for _, code in blocks[:2]:
        name = code.split(maxsplit=2)[1].rstrip(",:")
        (tmp_path / name).write_text(code)
    ran = subprocess.run(
        ["sh", "-e", "-c", blocks[2][1]],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "{'tile': 3, 'pixels': 256}"
    queue = Queue(tmp_path / "tiles")
    assert (queue.status().completed, queue.status().delayed) == (1_003, 0)
    results = [task.result for task in queue.tasks("completed")]
    assert results.count({"tile": 7, "pixels": 256}) == 1
    assert results.count({"tile": 7, "pixels": 512}) == 1

    from fsqueue.functions import _parts

    assert _parts(json.loads(blocks[3][1])) == ("tiles:render", [7], {"zoom": 2.0})
