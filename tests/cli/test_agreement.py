"""One word has one meaning on the command line: these tests read click's commands and options, whichever there are."""

from __future__ import annotations

import click
import pytest

from tests.cli.test_options import OPTIONS

pytestmark = pytest.mark.once

OF_COLUMNS = "spark seed"
"""Its options name columns of a table in place of values."""


def kind(option: click.Option) -> str:
    """Return what an option takes: nothing (a flag), or the name of its click type."""
    return "flag" if option.is_flag else type(option.type).__name__


def test_an_option_takes_the_same_kind_of_value_in_every_command() -> None:
    kinds: dict[str, dict[str, list[str]]] = {}
    for name, option in OPTIONS:
        if name != OF_COLUMNS:
            for flag in option.opts:
                kinds.setdefault(flag, {}).setdefault(kind(option), []).append(name)
    assert {flag: found for flag, found in kinds.items() if len(found) > 1} == {}


def test_timeout_says_how_long_the_command_waits() -> None:
    waits = {name: option.help or "" for name, option in OPTIONS if "--timeout" in option.opts}
    assert waits.keys() >= {"wait", "doctor"}
    assert [name for name, help in waits.items() if not help.startswith("How long to wait")] == []
