"""Ctrl-C in a script of the pages that starts several workers: it stops all of them, and loses no task."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group
from tests.cli.terminal import Terminal
from tests.pages import text_of
from tests.waiting import until
from tests.worker.support import until_there

pytestmark = [pytest.mark.once, pytest.mark.slow]

AT_WORK = re.compile(r"stopping: (\d+) tasks? at work")
STAGES = {"docs/pipelines.md": ["fetch", "extract"], "docs/groups.md": ["fetch", "parse"]}


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    found: list[Terminal] = []
    yield found
    for terminal in found:
        terminal.close()


def processes_in(place: Path) -> list[str]:
    """The processes whose command names something in a directory."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                words = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(place) + b"/crawl/" in words:
                found.append(words.replace(b"\0", b" ").decode())
    return found


def begun(place: Path) -> list[Path]:
    """The commands that have begun, each with its task."""
    return list(place.glob("begun.*"))


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("page", STAGES)
def test_ctrl_c_in_a_script_of_several_stages_stops_all_workers(
    tmp_path: Path, terminals: list[Any], page: str, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    found = re.search(r"^\(\n +trap .*?^\)$", text_of(page), re.DOTALL | re.MULTILINE)
    assert found is not None
    script = tmp_path / "script"
    script.write_text(found[0].replace("/scratch/me", str(tmp_path)) + "\n[ $? -eq 0 ] || exit\necho went on\n")
    for name in ("fetch", "parse"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch begun.$1\n{until_there(tmp_path / 'end')}\n")
        (tmp_path / name).chmod(0o755)
    group = Group.create(tmp_path / "crawl")
    group["fetch"].insert_many(range(50))
    run = "import os, sys; os.chdir(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    terminal = Terminal(tmp_path, shell, script, program=("-c", run), env={"PATH": path})
    terminals.append(terminal)
    until(lambda: begun(tmp_path) and len(processes_in(tmp_path)) >= 2, "both workers to be at work")
    os.write(terminal.main, b"\x03")
    terminal.read(lambda text: AT_WORK.search(text) is not None)
    (tmp_path / "end").touch()
    code, screen = terminal.end()
    until(lambda: processes_in(tmp_path) == [], "the workers to end")
    status = group["fetch"].status()
    assert (status.inserted, status.leased, status.dead) == (50, 0, 0)
    (at_work,) = AT_WORK.findall(screen)
    assert status.completed == len(begun(tmp_path)) == int(at_work) > 0, "what they have begun, and nothing else"
    assert (code != 0, "went on" in screen) == (True, False), screen
