"""All file operations go through fsqueue/filesystem, so that tests can inject faults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGE, TOP, code, imported, parse

FILE_MODULES = {
    "fcntl", "shutil", "tempfile", "glob", "fileinput", "mmap", "io", "gzip", "lzma", "bz2", "zipfile", "tarfile",
    "sqlite3", "dbm", "shelve", "posix", "filelock", "inotify_simple",
}  # fmt: skip
"""Modules that only fsqueue/filesystem may import, because they read or write files."""

HARMLESS = {
    # this process and its surroundings
    "environ", "environb", "getpid", "getppid", "getuid", "geteuid", "urandom", "register_at_fork", "cpu_count",
    "strerror", "sched_getaffinity",
    # names, not files
    "path", "fspath", "PathLike", "stat_result", "fsencode", "fsdecode", "sep", "extsep", "curdir",
    # flags that are handed to the filesystem layer
    "O_RDONLY", "O_WRONLY", "O_RDWR", "O_APPEND", "O_CREAT", "O_EXCL", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC",
}  # fmt: skip
"""What any module may use of `os`."""

HARMLESS_PATHS = {
    "join",
    "basename",
    "dirname",
    "abspath",
    "normpath",
    "expanduser",
    "split",
    "splitext",
    "isabs",
    "sep",
}
"""What any module may use of `os.path`: it computes names and asks the filesystem nothing."""

CHILDREN = {
    # to start processes and to end them
    "posix_spawnp", "POSIX_SPAWN_CLOSE", "POSIX_SPAWN_OPEN", "set_inheritable", "waitpid", "waitstatus_to_exitcode",
    "WNOHANG", "_exit", "devnull", "pidfd_open",
    # to talk with them: through pipes, and files in memory
    "pipe", "dup", "set_blocking", "read", "close", "memfd_create", "fdopen", "fstat", "lseek", "SEEK_SET", "pread",
    "pwrite", "eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK",
}  # fmt: skip
"""What fsqueue/worker also needs, to run commands and children and to talk with them; it touches no file."""

SUPERVISOR = {
    "fork", "execve", "POSIX_SPAWN_DUP2", "kill", "killpg", "waitid", "wait4", "P_PID", "P_ALL", "CLD_EXITED",
    "WEXITED", "WNOWAIT", "dup2", "getsid",
    # /dev/null, and what /proc says of its children
    "open", "listdir",
}  # fmt: skip
"""What the supervisor needs beside that: a program of its own, which imports nothing of fsqueue."""

READS_OR_WRITES = {
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "iterdir",
    "rglob",
    "symlink_to",
    "hardlink_to",
}
"""Methods of pathlib's paths that are unmistakable; `import pathlib` alone is no offence."""


def outside() -> list[Path]:
    """Return every file of the package outside the filesystem layer."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "filesystem")


def offences(path: Path) -> Iterator[str]:
    is_supervisor = path == PACKAGE / "worker" / "supervisor.py"
    allowed = (
        HARMLESS | (CHILDREN if path.parent.name == "worker" else set()) | (SUPERVISOR if is_supervisor else set())
    )
    for line, full in imported(path):
        if full.split(".")[0] in FILE_MODULES or full.startswith(("os.", "pathlib.Path.")):
            yield f"{line}: import {full}"
    for node in code(parse(path)):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner == "os" and node.attr not in allowed:
                yield f"{node.lineno}: os.{node.attr}"
            elif owner == "os.path" and node.attr not in HARMLESS_PATHS:
                yield f"{node.lineno}: os.path.{node.attr}"
            elif node.attr in READS_OR_WRITES:
                yield f"{node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "open" and not is_supervisor:
            yield f"{node.lineno}: open()"


def test_only_the_filesystem_layer_touches_files() -> None:
    found = [f"{path.relative_to(TOP)}:{offence}" for path in outside() for offence in offences(path)]
    assert found == [], "go through fsqueue.filesystem"


@pytest.mark.parametrize(
    "line",
    [
        "import fcntl",
        "from shutil import rmtree",
        "from os import rename",
        "import os; os.rename(a, b)",
        "import os\ndef f():\n    os.stat(a)",
        "import os; os.path.exists(a)",
        "open(a)",
        "Path(a).read_text()",
    ],
)
def test_going_around_the_layer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("tests.house.source.TOP", tmp_path)
    path = tmp_path / "module.py"
    path.write_text(line)
    assert list(offences(path)) != []
