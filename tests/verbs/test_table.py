"""The signatures that are written by hand are those of the table of verbs (`fsqueue/verbs/table.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import click
import pytest
from fsqueue_cli.main import cli

from fsqueue import GroupQueue, LeasedTask, Queue, RemoteQueue
from fsqueue.arguments import EVERY
from fsqueue.verbs.table import ALL, CONFIRM, OF_GATEWAYS, OF_QUEUES, ROUTED, VERBS, Route, Verb

pytestmark = pytest.mark.once

NO_VERBS = {
    "close", "create", "directory", "drained_proof", "exists", "gateway", "generation", "group", "has_priorities", "id",
    "inputs", "lease_for_others", "path", "paused", "settings", "typed_path", "url",
}  # fmt: skip
"""What tells what a queue is, opens and closes it, or is of tasks of joins, which gateways do not tell."""
OF_LOOPS = {"committed", "counted", "lease_patiently", "put_back"}
"""What `RemotePoll`, a wait for several, and `insert --commit` ask of a gateway's queue."""
IN_GROUPS = {"depends"}
"""Arguments that name other queues of a group: a plain queue has none."""
NAMED_OTHERWISE = {
    "complete": {"tasks"}, "renew": {"tokens", "lease_s"}, "release": {"tokens", "delay_s"}, "attach": {"token"},
    "change_settings": {"settings"}, "fail": {"token", "error", "delay_s"}, "bury": {"token", "reason"},
    "insert": {"b64", "commit", "total", "new_by", "refs"},
}  # fmt: skip
"""Fields of requests that stand for what Python's methods take otherwise: leased tasks, bytes, any setting by name."""

OTHER_DEFAULTS = {("insert", "payload"), ("wait", "timeout_s")}
"""A payload may be in `b64` instead. A request that says no time waits for none."""


def arguments(of: Callable[..., object]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(of).parameters)
    found.pop("self")
    return found


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def method_of(kind: type, verb: Verb) -> Callable[..., object]:
    found: Callable[..., object] = getattr(kind if hasattr(kind, verb.name) else LeasedTask, verb.name)
    return found


def same(one: inspect.Parameter, other: inspect.Parameter) -> bool:
    return (one.name, one.kind, one.default) == (other.name, other.kind, other.default)


def test_the_names_are_all() -> None:
    assert len(VERBS) == len(OF_QUEUES) + len(OF_GATEWAYS)
    of_queues = {verb.name for verb in OF_QUEUES}
    assert public(GroupQueue) - NO_VERBS | {"fail", "bury"} == of_queues
    assert public(RemoteQueue) - NO_VERBS - OF_LOOPS <= of_queues


@pytest.mark.parametrize("verb", OF_QUEUES, ids=lambda verb: verb.name)
def test_a_queue_of_a_group_takes_what_a_queue_takes(verb: Verb) -> None:
    mine, theirs = arguments(method_of(GroupQueue, verb)), arguments(method_of(Queue, verb))
    assert mine.keys() - IN_GROUPS == theirs.keys()
    assert all(same(mine[name], one) for name, one in theirs.items())


@pytest.mark.parametrize("verb", [verb for verb in OF_QUEUES if hasattr(RemoteQueue, verb.name)], ids=lambda v: v.name)
def test_a_queue_of_a_gateway_takes_the_same_but_what_the_table_names(verb: Verb) -> None:
    mine, theirs = arguments(method_of(RemoteQueue, verb)), arguments(method_of(Queue, verb))
    assert theirs.keys() - mine.keys() == set(verb.here_only)
    assert mine.keys() - theirs.keys() <= IN_GROUPS
    assert all(same(one, theirs[name]) for name, one in mine.items() if name in theirs)


@pytest.mark.parametrize("name", [verb.name for verb, _ in ROUTED if verb in OF_QUEUES])
def test_a_request_has_the_fields_that_the_verb_takes(name: str) -> None:
    verb, route = next(one for one in ROUTED if one[0].name == name)
    takes = arguments(method_of(Queue, verb))
    fields = {one.name: one for one in route.fields if one not in (ALL, CONFIRM)}
    others = fields.keys() - takes.keys() - IN_GROUPS
    assert others == NAMED_OTHERWISE.get(name, set()) - takes.keys()
    for one in fields.values():
        if one.name in takes and not one.needed and (name, one.name) not in OTHER_DEFAULTS:
            assert one.default == (None if takes[one.name].default is EVERY else takes[one.name].default), one.name


@pytest.mark.parametrize(("verb", "route"), ROUTED, ids=lambda one: one.name if isinstance(one, Verb) else "")
def test_what_only_reads_is_asked_for_by_get(verb: Verb, route: Route) -> None:
    # No address may have a token, which logs would keep; nor has it room for a thousand ids.
    by_get = verb.effect == "reads" and verb.name not in ("attach", "results_of")
    assert (route.method == "GET") == by_get


@pytest.mark.parametrize("name", sorted({verb.command for verb in VERBS.values()} - {""}))
def test_a_command_that_the_table_names_is_there(name: str) -> None:
    found: click.Command = cli
    for word in name.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
