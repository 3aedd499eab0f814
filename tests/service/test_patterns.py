"""Patterns of clients end soon, whatever names they are compared with."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from fsqueue import Group
from fsqueue.service import request_fields
from fsqueue.service.faults import BadField
from tests.service.conftest import READ, Open

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "pattern",
    [
        "fetch", ".*#fetch", r"site\d+#(fetch|parse)", "[^#]+#(a|b)", "(?i)fetch.*", "a{3}", r"\d{2,4}-x", "(ab)+", "",
        "(a+)?b", "(?P<site>[a-z]+)#.*", "[(+|*]+", r"\(\+\)+", "(?:a|b)c+", ".*?x.*", "a++b", "[]+*]+",
        "(?=a+)a", "é+", "(?#why+)a+", "(?>a+)b",
    ],
)  # fmt: skip
def test_what_ends_soon_is_taken(pattern: str) -> None:
    assert request_fields.check_pattern("match", pattern) == pattern
    for name in ("a" * 60 + "!", "ab" * 30 + "!", "(" * 60):  # it does end
        re.fullmatch(pattern, name)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b", "(a|a)*b", "(a|aa)+b", r"(\w+)+#", "((a?)*)*b", "(.*a){20}", "([a-z]+)*!", "(?:a|ab)+b", "(?i:a+)+b",
        "(?P<x>a*)*b", "a*a*a*a*a*b", "(?x)(a +) +b", "(?ix)a", r"(a)\1*b", "(?P<x>a+)(?P=x)b", "((a+))+b",
        "(a{1,9}){9}b", "(a)?(?(1)b|c)", "(?#x)(a+)+b",
        "(b|(a*))+c", "((?=a+)a)+b", "(", "[", "*", "a{99999999999}", "(?<=a+)b",
    ],
)  # fmt: skip
def test_what_could_take_for_ever_or_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadField):
        request_fields.check_pattern("match", pattern)


def test_a_dot_matches_a_line_break_in_a_name(group: Group, open_gateway: Open) -> None:
    group["two\nlines"].insert(1)
    client: TestClient = open_gateway(group.path, token=READ)
    answer = client.get("/v1/queues", params={"match": "two.*"})
    assert answer.status_code == 200
    assert "two\\nlines" in answer.text


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/status", "/metrics"])
def test_a_reader_cannot_stop_a_gateway_by_a_pattern(group: Group, open_gateway: Open, path: str) -> None:
    group["a" * 100].insert(1)
    client: TestClient = open_gateway(group.path, token=READ)
    answer = client.get(path, params={"match": "(a+)+b"})
    assert answer.status_code == 400
    assert "Nothing was done" in answer.text
    assert client.get(path, params={"match": "a+"}).status_code == 200
