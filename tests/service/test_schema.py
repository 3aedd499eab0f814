"""/v1/openapi.json describes the routes that there are, and no request that it allows brings the gateway down."""

from __future__ import annotations

import re
import warnings
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from starlette.routing import Route
from starlette.testclient import TestClient

import fsqueue
from fsqueue import Group
from fsqueue.service import api, application
from fsqueue.service.api import openapi
from fsqueue.service.limits import ServiceLimits
from fsqueue.verbs.table import ROUTED
from tests.levels import how_many

pytestmark = pytest.mark.once

EXAMPLES = how_many(1, 300)
"""How many requests are made of each operation."""
FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_it_describes_each_route_and_no_other() -> None:
    routes = {(route.path, method) for route in api.routes() if isinstance(route, Route)
              for method in (route.methods or ()) if method != "HEAD"}  # fmt: skip
    described = {(path, method.upper()) for path, methods in openapi()["paths"].items() for method in methods}
    assert routes - described == {("/v1/openapi.json", "GET")}
    assert described <= routes
    names = [one["operationId"] for methods in openapi()["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names) == len(ROUTED)


def test_it_is_served(client: TestClient) -> None:
    assert client.get("/v1/openapi.json").json()["openapi"].startswith("3.1")


def test_there_is_an_operation_for_each_verb() -> None:
    """Those that are left out act on this process alone, take a function, or ask for others again and again."""
    left_out = {
        "create", "close", "path", "directory", "settings", "generation", "has_priorities", "paused", "poll",
        "poll_async", "id", "commit", "result_columns", "fsck", "insert_many", "lease_for_others",
        "typed_path", "exists", "lease_for", "is_copy", "accept_copy", "drained_proof", "result",
        "inputs",
    }  # fmt: skip
    verbs = {name for name in dir(fsqueue.GroupQueue) if not name.startswith("_")} - {"store", "group", "name"}
    assert verbs - left_out - {verb.name for verb, _ in ROUTED} == set()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    group = Group.create(tmp_path_factory.mktemp("fuzz") / "group", shards=1, durability="none")
    group["q"].insert(1)
    # Nothing waits for long, so that there are many requests.
    made = application.gateway(group.path, None, ServiceLimits(wait_s_max=0.01))
    return application.application(made)


def described(app: Any) -> Any:
    schemathesis = pytest.importorskip("schemathesis")
    raw = openapi() | {"servers": [{"url": "http://localhost:8750"}]}
    # Streams of events have no end.
    raw["paths"] = {path: methods for path, methods in raw["paths"].items() if not re.search("/events$", path)}
    schema = schemathesis.openapi.from_dict(raw)
    schema.app = app
    return schema


@pytest.mark.slow
def test_no_request_brings_it_down(fuzzed: Any) -> None:
    """Requests that the description allows, and such as it does not: each has an answer that is described."""
    import hypothesis
    import hypothesis.strategies
    import schemathesis

    with TestClient(fuzzed, "http://localhost:8750", raise_server_exceptions=False) as client:
        for result in described(fuzzed).get_all_operations():
            operation = result.ok()

            modes = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

            @FEW
            @hypothesis.given(case=hypothesis.strategies.one_of(modes))
            def ask(case: Any) -> None:
                given = case.as_transport_kwargs(base_url="http://localhost:8750")
                given = {
                    name: given[name]
                    for name in ("method", "url", "params", "json", "data", "headers")
                    if name in given
                }
                if (data := given.pop("data", None)) is not None:
                    given["content"] = data if isinstance(data, (bytes, str)) else str(data)
                try:
                    answer = client.request(**given)
                except (ValueError, httpx2.InvalidURL):
                    return  # no client can send it
                assert str(answer.status_code) in {*case.operation.definition.raw["responses"], "200", "201"}, (
                    given,
                    answer.text,
                )
                assert answer.status_code != 500

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ask()
