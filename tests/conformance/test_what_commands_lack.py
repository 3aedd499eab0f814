"""Which verbs the command line lacks, and why: each other one is in the suite."""

from __future__ import annotations

import pytest

from fsqueue import LeasedTask
from fsqueue.verbs.table import OF_QUEUES, Verb
from tests.conformance.command_line import LACKING, CommandLine

pytestmark = pytest.mark.once

THE_SAME_COMMAND = {"poll", "commit", "fsck", "accept_copy", "result_columns"}
"""Verbs of which a command does another part than their methods, as their reasons say."""


@pytest.mark.parametrize("verb", OF_QUEUES, ids=lambda verb: verb.name)
def test_a_verb_is_a_command_in_the_suite_or_lacks_one_for_a_reason(verb: Verb) -> None:
    in_suite = hasattr(CommandLine, verb.name) or hasattr(LeasedTask, verb.name)
    assert in_suite != (verb.name in LACKING)
    assert bool(verb.command) == (in_suite or verb.name in THE_SAME_COMMAND)


def test_what_lacks_a_command_is_a_verb() -> None:
    assert LACKING.keys() | THE_SAME_COMMAND == LACKING.keys() & {verb.name for verb in OF_QUEUES}
