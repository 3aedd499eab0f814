"""Payloads are UTF-8 in each locale; what came from this system goes back as the bytes that it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import QueueFactory
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

TEXT = "é漢 ß"
LOCALES = ["C", "en_US.ISO-8859-1", "C.UTF-8"]
"""The second need not be there: then it is C."""
SCRIPT = 'cat; printf "%s\\n" "$FSQUEUE_PAYLOAD" "$@"'


def run(queue: str, *arguments: str | bytes, locale: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "fsqueue_cli", "run", queue, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("locale", LOCALES)
def test_a_payload_reaches_its_command(queue_factory: QueueFactory, locale: str) -> None:
    """By standard input, by the environment, and in arguments, also beside bytes that are no UTF-8."""
    queue = queue_factory(max_attempts=1)
    queue.insert(TEXT)
    arguments = ["{}", "\xe9{}".encode("latin-1"), "ü{}".encode()]
    done = run(
        str(queue.path), "--output", "ungrouped", "--stdin", "--", "sh", "-c", SCRIPT, "sh", *arguments, locale=locale
    )
    text = TEXT.encode()
    lines = [b'"' + text + b'"', text, text, b"\xe9" + text, "ü".encode() + text]
    assert (done.returncode, done.stdout) == (0, b"".join(line + b"\n" for line in lines)), done.stderr
    assert queue.status().completed == 1


def test_what_fails_says_why(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert(TEXT)
    done = run(str(queue.path), "--", "sh", "-c", f"echo {TEXT} >&2; exit 3", locale="C")
    assert done.returncode == 9
    assert b"Traceback" not in done.stderr
    [letter] = queue.tasks("dead")
    assert TEXT in str(letter.error)


def test_a_handler_is_found_under_a_path_of_any_bytes(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_factory("dé", max_attempts=1)
    queue.insert(TEXT)
    modules = tmp_path / "möd"
    modules.mkdir()
    (modules / "handler_of_a_locale.py").write_text("def handle(payload):\n    return payload\n")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    done = run(str(queue.path), "--call", "handler_of_a_locale:handle", locale="C")
    assert done.returncode == 0, done.stderr
    assert [task.result for task in queue.tasks("completed")] == [TEXT]
