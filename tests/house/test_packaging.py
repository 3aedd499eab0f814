"""What is installed: the package, its command line, its type marker, and nothing with a generic name."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.house.source import TOP


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the tree, so that the tree gets no build/ directory."""
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, tree)
    for name in ("fsqueue", "cli", "tests"):
        shutil.copytree(TOP / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(tree)]
    subprocess.run(command, check=True)
    (file,) = dist.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.mark.once
def test_wheel_holds_every_module_and_nothing_generic(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{installed}/{path.relative_to(TOP / tree)}".replace("fsqueue/spark/pyspark_fsqueue/", "pyspark_fsqueue/")
        for tree, installed in {"fsqueue": "fsqueue", "cli": "fsqueue_cli"}.items()
        for path in (TOP / tree).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert "pyspark_fsqueue/__init__.py" in expected
    assert "fsqueue/py.typed" in expected
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


@pytest.mark.once
def test_wheel_metadata(wheel: zipfile.ZipFile) -> None:
    info = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    text = wheel.read(info).decode()
    for line in ("Name: fsqueue", "Version: 0.1.0", "Requires-Python: >=3.11", "License-File: LICENSE"):
        assert f"{line}\n" in text
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(info.replace("METADATA", "entry_points.txt")).decode())
    assert dict(scripts["console_scripts"]) == {"fsqueue": "fsqueue_cli.entry:main"}


@pytest.mark.once
def test_the_installed_version_is_the_tree_s() -> None:
    import fsqueue

    assert metadata.version("fsqueue") == fsqueue.__version__
    assert Path(fsqueue.__file__).parent == TOP / "fsqueue", "the tests run against another fsqueue than this tree's"
