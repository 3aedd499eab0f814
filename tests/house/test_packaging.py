"""What is installed: the package, its command line, its type marker, and nothing with a generic name."""

from __future__ import annotations

import compileall
import configparser
import re
import shutil
import subprocess
import sys
import tarfile
import zipapp
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.house.source import TOP
from tests.pages import Typed, blocks, text_of
from tests.waiting import PATIENCE_S

NAME = "fsqueue-tasks"
"""The distribution's name. `fsqueue` is another program's on the package index."""
MAN = TOP / "docs" / "man"
LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")
"""A link to a file beside the page."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which README's section "Install" was typed, so that the tree gets no build/ directory."""
    tree, target = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("target")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, tree)
    for name in ("fsqueue", "cli", "docs", "tests"):
        shutil.copytree(TOP / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    # The virtual environment is this one: a new one would ask a package index for what the package needs.
    typed = Typed(tree, "README.md", {"python3 -m venv ~/fsqueue && . ~/fsqueue/bin/activate": ":"}, {})
    # pip installs into a directory of its own; what the package needs is in this environment. Little of it is run.
    options = f"--target {target} --upgrade --no-deps --no-compile"
    added = f'[ "$1" != install ] || {{ shift; set -- install {options} "$@"; }}'
    typed.file("bin/pip", f'#!/bin/sh\n{added}\nexec {sys.executable} -m pip "$@"\n')
    typed.file("bin/fsqueue", f'#!/bin/sh\nPYTHONPATH={target} exec {sys.executable} -P {target}/bin/fsqueue "$@"\n')
    for block in blocks(text_of("README.md")):
        if block.section == "Install":
            typed.type(block)
    assert typed.printed is not None
    assert typed.printed.endswith("fsqueue 0.1.0\n")
    assert (target / "fsqueue" / "__init__.py").exists()
    assert (target / "share" / "man" / "man1" / "fsqueue-run.1").exists()
    return tree


@pytest.fixture(scope="module")
def wheel(clone: Path) -> zipfile.ZipFile:
    (file,) = (clone / "dist").glob("*.whl")
    return zipfile.ZipFile(file)


def test_wheel_holds_every_module_and_nothing_generic(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{installed}/{path.relative_to(TOP / tree)}".replace("fsqueue/spark/pyspark_fsqueue/", "pyspark_fsqueue/")
        for tree, installed in {"fsqueue": "fsqueue", "cli": "fsqueue_cli"}.items()
        for path in (TOP / tree).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed" or path.parent.name == "templates"
    }
    assert "pyspark_fsqueue/__init__.py" in expected
    assert {"fsqueue/py.typed", "fsqueue/webpages/templates/base.html"} <= expected
    pages = {f"{NAME.replace('-', '_')}-0.1.0.data/data/share/man/man1/{path.name}" for path in MAN.iterdir()}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected | pages


def test_the_sdist_holds_what_is_installed_and_no_tests(tmp_path: Path) -> None:
    """Some of the tests without their neighbours could not run."""
    shutil.copytree(TOP, tmp_path / "tree", ignore=lambda place, names: {
        name for name in names if name in ("__pycache__", "lab") or name.startswith((".", "build", "dist"))
    })  # fmt: skip
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path / "tree", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [path] = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert {name for name in held if name.startswith(("tests", "scripts"))} == set()
    links = {target.partition("#")[0] for target in LINK.findall(text_of("README.md"))}
    assert {link for link in links if link.rstrip("/") not in held} == set(), "README.md leads to what the sdist lacks"
    assert held >= {
        str(file.relative_to(TOP))
        for tree in ("fsqueue", "cli")
        for file in (TOP / tree).rglob("*")
        if file.suffix == ".py" or file.name == "py.typed" or file.parent.name == "templates"
    } | {f"docs/man/{page.name}" for page in MAN.iterdir()}


def test_a_zip_file_says_what_it_cannot_do(tmp_path: Path) -> None:
    app = tmp_path / "app"
    for source, name in (("fsqueue", "fsqueue"), ("cli", "fsqueue_cli")):
        shutil.copytree(TOP / source, app / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert compileall.compile_dir(app, quiet=1, legacy=True)  # else each start compiles all of it
    zipapp.create_archive(app, tmp_path / "f.pyz", main="fsqueue_cli.entry:main")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # What the package needs comes from this environment; the package itself from the zip file, which is first.
        command = [sys.executable, "-P", str(tmp_path / "f.pyz"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)

    assert run("create", "q").returncode == 0
    assert run("insert", "q", "--task", "1").stdout == "1\n"
    reason = f"fsqueue lies in the zip file {tmp_path}/f.pyz, and no process can be started from there. Install it"
    for arguments in (
        ("run", "q", "--", "true"),
        ("run", "q", "--call", "json:dumps"),
        ("slurm", "q", "--time", "1", "--print", "--", "true"),
    ):
        done = run(*arguments)
        assert (done.returncode != 0, reason in " ".join(done.stderr.split())) == (True, True), done.stderr
        assert "Traceback" not in done.stderr
    done = run("doctor", ".")
    assert (done.returncode, reason in " ".join(done.stdout.split())) == (0, True), done.stdout
    assert "waiting                  1" in run("status", "q").stdout


def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    info = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    text = wheel.read(info).decode()
    for line in (f"Name: {NAME}", "Version: 0.1.0", "Requires-Python: >=3.11", "License-File: LICENSE"):
        assert f"{line}\n" in text
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(info.replace("METADATA", "entry_points.txt")).decode())
    assert dict(scripts["console_scripts"]) == {"fsqueue": "fsqueue_cli.entry:main"}


def test_what_an_index_shows_has_no_link_that_leads_nowhere(wheel: zipfile.ZipFile) -> None:
    """A link to a file would be looked for on the index. README.md has many, and is not what the index shows."""
    info = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    head, _, shown = wheel.read(info).decode().partition("\n\n")
    assert shown.strip() == text_of("docs/package.md").strip()
    assert "Description-Content-Type: text/markdown" in head
    assert LINK.findall(shown) == []
    assert LINK.findall(text_of("README.md")) != []


@pytest.mark.parametrize("page", ["README.md", "docs/package.md"])
def test_a_page_lists_the_extras(page: str) -> None:
    setup = configparser.ConfigParser()
    setup.read(TOP / "setup.cfg")
    ours = {"test", "thorough", "bench", "docs"}  # for those who work on fsqueue
    table = text_of(page).partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(setup["options.extras_require"]) - ours


def test_the_citation_names_this_version() -> None:
    import fsqueue

    lines = (TOP / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {fsqueue.__version__}" in lines
    assert "license: BSD-3-Clause" in lines
    assert "cff-version: 1.2.0" in lines


def test_python_m_is_the_command() -> None:
    for module in ("fsqueue", "fsqueue_cli"):
        done = subprocess.run([sys.executable, "-m", module, "help", "wait"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Usage: fsqueue wait")


def test_the_installed_version_is_the_tree_s() -> None:
    import fsqueue

    assert metadata.version(NAME) == fsqueue.__version__
    assert Path(fsqueue.__file__).parent == TOP / "fsqueue", "the tests run against another fsqueue than this tree's"


def test_an_extra_is_had_by_the_name_that_errors_give() -> None:
    """pip takes the installed distribution, and asks an index only for what the extra adds (of `bench`: nothing)."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", f"{NAME}[bench]"]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_nothing_tells_a_user_to_install_a_stranger_s_distribution() -> None:
    """Texts name this distribution, a clone, or a wheel; README alone names the stranger's, and warns of it."""
    suffixes = {".py", ".md", ".cfg", ".toml", ""}
    files = [TOP / "README.md", TOP / "CONTRIBUTING.md"]
    files += [path for name in ("fsqueue", "cli", "docs", "scripts", "examples") for path in (TOP / name).rglob("*")]
    told = [
        f"{path.relative_to(TOP)}: {words}"
        for path in files
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts
        for words in re.findall(
            r"pip install [^\n`]*?(?<![\w./])fsqueue(?![\w.-])[^\s`]*", path.read_text(encoding="utf-8")
        )
    ]
    assert told == ["README.md: pip install fsqueue"]


def test_the_container_is_built_of_what_is_there() -> None:
    """What the Containerfile copies is in the tree, is not ignored, and is all that a wheel is built of."""
    lines = (TOP / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if re.match("COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert [name for name in copied if not (TOP / name).exists()] == []
    admitted = {line[1:] for line in (TOP / ".containerignore").read_text().splitlines() if line.startswith("!")}
    assert admitted == set(copied)
    assert {"setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "fsqueue", "cli", "docs"} <= set(copied)
    setup = configparser.ConfigParser()
    setup.read(TOP / "setup.cfg")
    [extras] = re.findall(r"\$wheel\[([\w,]+)\]", "\n".join(lines))
    assert set(extras.split(",")) <= set(setup["options.extras_require"])
