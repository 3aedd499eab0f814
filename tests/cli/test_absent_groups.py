"""Commands on a group whose filesystem is not mounted: each says so, and makes nothing in the bare mount point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from fsqueue_cli.main import cli

from tests.groups.absent import Used, nothing_was_done, removed, unmounted

COMMANDS = (
    "insert {group}/open --task 1", "insert {group}/never --task 1", "run {group} -- true", "run {group}/never -- true",
    "wait {group}", "wait {group}/never", "status {group}", "status {group}/never", "ls {group}", "ls {group}/never",
    "lease {group}/open", "update {group} --insert open=1", "update {group}/open --insert never=1", "gc {group}",
    "fsck {group}", "delete {group} --queue open --yes", "delete {group}/open --yes", "purge {group}/open --yes",
    "pause {group}/open", "set {group}", "set {group}/open", "workers {group}/open", "results {group}/open",
    "dead list {group}/open", "serve {group} --listen 127.0.0.1:0",
)  # fmt: skip


@pytest.mark.parametrize("away", [unmounted, removed])
def test_each_command_says_that_it_may_not_be_mounted(tmp_path: Path, away: Callable[[Used], None]) -> None:
    (tmp_path / "disk").mkdir()
    used = Used(tmp_path / "disk")
    away(used)
    for command in COMMANDS:
        done = CliRunner().invoke(cli, command.format(group=used.group.path).split())
        said = done.stderr
        assert done.exit_code in (2, 5), (command, done.exit_code, said)
        assert "mounted" in said, (command, said)
        assert done.stdout == "", command
    nothing_was_done(used, away)
