"""docs/hpc.md and the pages that go on from it, typed as they stand there, on a real Slurm; what they show must come.

The sections of all pages are typed in one session, in the order of `SESSION`. The guide takes where to work and how
many tasks from SCRATCH and N, and says so: nothing in its blocks is replaced. In what it shows, numbers of tasks are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.house.source import TOP
from tests.lab.guests import LAB, why_not
from tests.pages import Block, blocks, is_shown, text_of

TASKS = 400
INSTALL = ("hpc.md", "Install")
"""It needs a package index, which is not within the lab's reach."""
SESSION = (
    ("hpc.md", "Begin"),
    ("where.md", "Is the mount fit?"),
    ("hpc.md", "Insert"),
    ("hpc.md", "Try one"),
    ("hpc.md", "In jobs"),
    ("slurm.md", "Options of a job"),
    ("slurm.md", "As many jobs as the tasks need"),
    ("slurm.md", "A script of your own"),
    ("resubmit.md", "Jobs for weeks"),
    ("hpc.md", "What failed"),
    ("dead-nodes.md", "When jobs end before their tasks"),
    ("after.md", "What waits for the end"),
    ("after.md", "Stages"),
    ("command-results.md", "Results"),
    ("purged-scratch.md", "Files that vanish"),
    ("hpc.md", "Clean up"),
)
PAGES = tuple(dict.fromkeys(page for page, _ in SESSION))


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


class Shown(NamedTuple):
    """A block that is typed, where it stands, and what the page shows of its output; None if it shows nothing."""

    page: str
    block: Block
    output: Block | None


def shown(page: str) -> list[Shown]:
    """Return the blocks of a page that are typed, in order."""
    found = blocks(text_of(f"docs/{page}"))
    after = [*found[1:], None]
    return [
        Shown(page, block, other if other is not None and other.language == "text" else None)
        for block, other in zip(found, after, strict=True)
        if block.language in ("sh", *RULES)
    ]


EVERY = [one for page in PAGES for one in shown(page)]


def of(page: str, section: str) -> list[Shown]:
    return [one for one in EVERY if (one.page, one.block.section) == (page, section)]


def fewer(shown: str) -> str:
    """What the guide shows, with as many tasks as there are here."""
    for many, here in {"1,000,000": f"{TASKS:,}", "1000000": f"{TASKS}", "999,999": f"{TASKS - 1:,}"}.items():
        shown = shown.replace(many, here)
    return shown


def session(wanted: list[Shown], home: Path, *wrapper: str) -> subprocess.CompletedProcess[str]:
    """Type blocks into one shell, each with its output in a file of its own."""
    (home / "scratch").mkdir(exist_ok=True)
    (home / "at").unlink(missing_ok=True)
    lines = ["set -e", f"cd {home}"]
    for page, block, _ in wanted:
        at = f"{page}.{block.line}"
        lines.append(f"echo {at} >{home}/at\n{{\n{block.code}}} >{home}/{at} 2>&1 </dev/null")
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


def check(ran: subprocess.CompletedProcess[str], wanted: list[Shown], home: Path) -> None:
    """Everything went well, and what the guide shows of it is what came."""
    if ran.returncode:
        at = (home / "at").read_text().strip() if (home / "at").exists() else "script.sh"
        logs = "\n".join(
            f"-- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
            for log in sorted((home / "slurm").glob("*.log"))
        )
        pytest.fail(f"{at} (page and line): exit {ran.returncode}\n{(home / at).read_text()}{ran.stderr}\n{logs}")
    for page, block, after in wanted:
        if after is not None:
            output = (home / f"{page}.{block.line}").read_text().replace(str(home / "scratch"), "/scratch/me")
            assert is_shown(fewer(after.code), output), f"not what {page}, line {after.line} shows:\n{output}"


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


def test_the_session_types_every_section_that_has_commands() -> None:
    sections = {(one.page, one.block.section) for one in EVERY}
    assert sections == {INSTALL, *SESSION}


@pytest.mark.slow
@pytest.mark.thorough
def test_the_guide(home: Path) -> None:
    if lacking := why_not():
        pytest.skip(lacking)
    pytest.importorskip("ensurepip", reason="a virtualenv cannot be made: Debian has python3-venv for it")
    install = of(*INSTALL)
    check(session(install, home), install, home)

    rest = [one for section in SESSION for one in of(*section)]
    rest = [one._replace(block=on_one_machine(as_typed(one.block))) for one in rest]
    logs = home / "slurm"
    logs.mkdir()
    check(session(rest, home, str(LAB / "slurm"), str(logs)), rest, home)
