"""docs/hpc.md, typed as it stands there, one block after the other, on a real Slurm; what it shows is what comes.

The guide takes where to work and how many tasks from SCRATCH and N, and says so: nothing in its blocks is replaced.
In what it shows the numbers of tasks are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from fsqueue_cli.main import cli

from tests.house.source import TOP
from tests.lab.guests import LAB, why_not

TASKS = 400
OUTSIDE = ("Install",)
"""The sections that need a package index, which is not within the lab's reach."""

pytestmark = pytest.mark.once


class Block(NamedTuple):
    section: str
    language: str
    code: str
    line: int


def blocks() -> list[Block]:
    """The fenced blocks of the guide, in order."""
    text = (TOP / "docs/hpc.md").read_text()
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        section = re.findall(r"^## (.*)", text[: match.start()], re.MULTILINE)[-1]
        found.append(Block(section, match[1], match[2], text[: match.start()].count("\n") + 2))
    return found


RULES = {"python": r'shell: "(.*)"', "groovy": r'"""(.*?)"""'}
"""Workflow rules: what their shell gets, for the same names in braces as a shell has in its variables."""


def as_typed(block: Block) -> Block:
    """A block as commands: of a rule those that it holds, with the names that its language fills in as the shell's."""
    if block.language not in RULES:
        return block
    [commands] = re.findall(RULES[block.language], block.code, re.DOTALL)
    return block._replace(code=re.sub(r"\$?\{(?:params\.)?(\w+)\}", r"$\1", commands) + "\n")


BLOCKS = blocks()


def plain(text: str, home: Path) -> list[str]:
    """Output without what differs from run to run (ids, times, where it is) and the widths of columns."""
    text = text.replace(str(home / "scratch"), "/scratch/me")
    text = re.sub(r"[0-9a-f]{32}\.\d+", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines()]


def is_shown(shown: str, output: str, home: Path) -> bool:
    """Whether the lines that the guide shows are among those that came, in that order; … stands for anything."""
    for many, here in {"1,000,000": f"{TASKS:,}", "1000000": f"{TASKS}", "999,999": f"{TASKS - 1:,}"}.items():
        shown = shown.replace(many, here)
    rest = iter(plain(output, home))
    for line in plain(shown, home):
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        if not any(pattern.fullmatch(other) for other in rest):
            return False
    return True


def session(wanted: list[Block], home: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    """Type blocks into one shell, each with its output in a file of its own."""
    (home / "scratch").mkdir(exist_ok=True)
    (home / "at").unlink(missing_ok=True)
    lines = ["set -e", f"cd {home}"]
    for block in wanted:
        lines.append(f"echo {block.line} >{home}/at\n{{\n{block.code}}} >{home}/{block.line} 2>&1 </dev/null")
    script = home / "script.sh"
    script.write_text("\n".join(lines) + "\n")
    venv = Path(sys.executable).parent
    path = [f"{sys.base_prefix}/bin", *(part for part in os.environ["PATH"].split(":") if part != str(venv))]
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= {"HOME": str(home), "SCRATCH": str(home / "scratch"), "N": str(TASKS), "PATH": ":".join(path)}
    environment |= {"TZ": "UTC", "LC_ALL": "C.UTF-8", "USER": "me", "input": "tasks.jsonl"}
    return subprocess.run(
        [*wrapper, "bash", str(script)], cwd=home, env=environment, capture_output=True, text=True, timeout=600
    )


def check(ran: subprocess.CompletedProcess[str], wanted: list[Block], home: Path) -> None:
    """Everything went well, and what the guide shows of it is what came."""
    if ran.returncode:
        at = (home / "at").read_text().strip() if (home / "at").exists() else "script.sh"
        pytest.fail(f"docs/hpc.md, line {at}: exit {ran.returncode}\n{(home / at).read_text()}{ran.stderr}")
    for block, after in pairwise(BLOCKS):
        if after.language == "text" and block in wanted:
            output = (home / str(block.line)).read_text()
            assert is_shown(after.code, output, home), f"not what line {after.line} shows:\n{output}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of somebody who has a clone, and nothing else."""
    home = tmp_path_factory.mktemp("home")
    clone = home / "fsqueue"
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        clone.mkdir(exist_ok=True)
        shutil.copy(TOP / name, clone)
    for name in ("fsqueue", "cli"):
        shutil.copytree(TOP / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    return home


@pytest.mark.slow
def test_the_guide(home: Path) -> None:
    if lacking := why_not():
        pytest.skip(lacking)
    pytest.importorskip("ensurepip", reason="a virtualenv cannot be made: Debian has python3-venv for it")
    install = [block for block in BLOCKS if block.language == "sh" and block.section in OUTSIDE]
    check(session(install, home), install, home)

    rest = [as_typed(block) for block in BLOCKS if block.language in ("sh", *RULES) and block.section not in OUTSIDE]
    logs = home / "slurm"
    logs.mkdir()
    check(session(rest, home, str(LAB / "slurm"), str(logs)), rest, home)


def commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """All commands by name, those of groups with the group's."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from ((f"{name} {inner}", one) for inner, one in commands(command))
            elif command is not None:
                yield name, command


def test_what_the_guide_names_in_passing_exists() -> None:
    """Commands and options within sentences."""
    known = {name: {word for one in command.params for word in one.opts} for name, command in commands(cli)}
    options = set().union(*known.values())
    text = re.sub(r"^```.*?^```$", "", (TOP / "docs/hpc.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    named = [span for span in re.findall(r"`([^`]+)`", text) if span.startswith(("fsqueue ", "create ", "dead ", "-"))]
    assert len(named) > 20
    for span in named:
        words = span.removeprefix("fsqueue ").split()
        command = next((name for name in known if words[: len(name.split())] == name.split()), None)
        assert command or words[0].startswith("-"), span
        for word in words:
            if word.startswith("-"):
                assert word in (known[command] if command else options), span
