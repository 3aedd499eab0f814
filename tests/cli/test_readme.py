"""The two minutes of the README, typed as they stand there, with fewer tasks and in a temporary directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.house.source import TOP

FEWER = {"seq 1 100000": "seq 1 20", "1_000_000": "1_000"}


def blocks(language: str, home: Path) -> str:
    """The code of that language under "Two minutes"."""
    text = (TOP / "README.md").read_text().partition("## Two minutes")[2].partition("\n## ")[0]
    code = "\n".join(re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert "/scratch/me" in code
    for many, few in FEWER.items():
        code = code.replace(many, few)
    return code.replace("/scratch/me", str(home))


@pytest.mark.once
def test_the_shell_commands(tmp_path: Path) -> None:
    for name, script in {"render": 'echo "$2" >>rendered', "assemble": "wc -l <rendered"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    install, *commands = blocks("sh", tmp_path).strip().splitlines()
    assert install.startswith("pip install .")  # it is installed
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[-1] == "20"
    assert sorted(map(int, (tmp_path / "rendered").read_text().split())) == list(range(1, 21))


@pytest.mark.once
def test_the_python_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rendered: list[int] = []
    exec(blocks("python", tmp_path), {"render": rendered.append})
    assert sorted(rendered) == list(range(1_000))
    assert Queue(tmp_path / "tiles").status().completed == 1_000
    assert capsys.readouterr().out == "Status(waiting=0, delayed=0, leased=0, completed=1000, dead=0)\n"


@pytest.mark.once
def test_the_python_code_survives_failing_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    Queue.create(tmp_path / "tiles", max_attempts=1)
    rendered: list[int] = []

    def render(tile: int) -> None:
        if tile % 400 == 7:
            raise ValueError(f"tile {tile} has no data")
        rendered.append(tile)

    exec(blocks("python", tmp_path), {"render": render})
    assert len(rendered) == 997
    assert capsys.readouterr().out == "Status(waiting=0, delayed=0, leased=0, completed=997, dead=3)\n"
    reasons = sorted(letter.reason for letter in Queue(tmp_path / "tiles").dead())
    assert reasons == [f"ValueError: tile {tile} has no data" for tile in (407, 7, 807)]
    assert len(caplog.records) == 3
