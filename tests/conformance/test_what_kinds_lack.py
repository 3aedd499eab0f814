"""Which verbs the command line and taskstore's protocol lack, and why: each other one is in the suite."""

from __future__ import annotations

import pytest

from fsqueue import LeasedTask
from fsqueue.verbs.table import OF_QUEUES, Verb
from tests.conformance import command_line, taskstore

pytestmark = pytest.mark.once

THE_SAME_COMMAND = {"poll", "commit", "fsck", "accept_copy", "result_columns"}
"""Verbs of which a command does another part than their methods, as their reasons say."""
NAMES = {verb.name for verb in OF_QUEUES}


@pytest.mark.parametrize("verb", OF_QUEUES, ids=lambda verb: verb.name)
def test_a_verb_is_a_command_in_the_suite_or_lacks_one_for_a_reason(verb: Verb) -> None:
    in_suite = hasattr(command_line.CommandLine, verb.name) or hasattr(LeasedTask, verb.name)
    assert in_suite != (verb.name in command_line.LACKING)
    assert bool(verb.command) == (in_suite or verb.name in THE_SAME_COMMAND)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_verb_is_a_call_of_taskstore_or_is_asked_beside_it_or_lacks_for_a_reason(name: str) -> None:
    calls = hasattr(taskstore.Taskstore, name)
    assert [calls, name in taskstore.BESIDE, name in taskstore.LACKING].count(True) == 1


def test_what_lacks_is_a_verb() -> None:
    assert command_line.LACKING.keys() | taskstore.LACKING.keys() | taskstore.BESIDE | THE_SAME_COMMAND <= NAMES
    assert command_line.LACKING.keys() >= THE_SAME_COMMAND
