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
from itertools import pairwise
from pathlib import Path

import pytest

from tests.house.source import TOP
from tests.lab.guests import LAB, why_not
from tests.pages import Block, blocks, is_shown, text_of

PAGE = "docs/hpc.md"

TASKS = 400
OUTSIDE = ("Install",)
"""The sections that need a package index, which is not within the lab's reach."""


RULES = {"python": r'shell: "(.*)"', "groovy": r'"""(.*?)"""'}
"""Workflow rules: what their shell gets, for the same names in braces as a shell has in its variables."""


def as_typed(block: Block) -> Block:
    """A block as commands: of a rule those that it holds, with the names that its language fills in as the shell's."""
    if block.language not in RULES:
        return block
    [commands] = re.findall(RULES[block.language], block.code, re.DOTALL)
    return block._replace(code=re.sub(r"\$?\{(?:params\.)?(\w+)\}", r"$\1", commands) + "\n")


def on_one_machine(block: Block) -> Block:
    """A block for hosts that are all this machine: there the doctor ends with 124, since it met nobody but itself."""
    meeting = re.compile(r"^fsqueue doctor .* --join$", re.MULTILINE)
    return block._replace(code=meeting.sub(r"\g<0> || [ $? = 124 ]", block.code))


BLOCKS = blocks(text_of(PAGE))


def fewer(shown: str) -> str:
    """What the guide shows, with as many tasks as there are here."""
    for many, here in {"1,000,000": f"{TASKS:,}", "1000000": f"{TASKS}", "999,999": f"{TASKS - 1:,}"}.items():
        shown = shown.replace(many, here)
    return shown


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
        [*wrapper, "bash", str(script)], cwd=home, env=environment, capture_output=True, text=True, timeout=1800
    )


def check(ran: subprocess.CompletedProcess[str], wanted: list[Block], home: Path) -> None:
    """Everything went well, and what the guide shows of it is what came."""
    if ran.returncode:
        at = (home / "at").read_text().strip() if (home / "at").exists() else "script.sh"
        logs = "\n".join(
            f"-- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted((home / "slurm").glob("*.log"))
        )
        pytest.fail(f"{PAGE}, line {at}: exit {ran.returncode}\n{(home / at).read_text()}{ran.stderr}\n{logs}")
    typed = {block.line for block in wanted}
    for block, after in pairwise(BLOCKS):
        if after.language == "text" and block.line in typed:
            output = (home / str(block.line)).read_text().replace(str(home / "scratch"), "/scratch/me")
            assert is_shown(fewer(after.code), output), f"not what line {after.line} shows:\n{output}"


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
@pytest.mark.thorough
def test_the_guide(home: Path) -> None:
    if lacking := why_not():
        pytest.skip(lacking)
    pytest.importorskip("ensurepip", reason="a virtualenv cannot be made: Debian has python3-venv for it")
    install = [block for block in BLOCKS if block.language == "sh" and block.section in OUTSIDE]
    check(session(install, home), install, home)

    rest = [block for block in BLOCKS if block.language in ("sh", *RULES) and block.section not in OUTSIDE]
    rest = [on_one_machine(as_typed(block)) for block in rest]
    logs = home / "slurm"
    logs.mkdir()
    check(session(rest, home, str(LAB / "slurm"), str(logs)), rest, home)
