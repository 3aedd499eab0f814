"""With FSQUEUE_TEST_NO_SKIPS=1 a skipped test is a failed one: CI must not pass by not looking.

scripts/test loads this for all tests (`-p tests.house.no_skips`); .ci/run sets the variable.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

NO_SKIPS = os.environ.get("FSQUEUE_TEST_NO_SKIPS") == "1"


def _fail(report: pytest.CollectReport | pytest.TestReport) -> None:
    if NO_SKIPS and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, but FSQUEUE_TEST_NO_SKIPS=1 allows no skips: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not hasattr(report, "wasxfail"):  # an expected failure is reported as a skip, and is none
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail(report)
    return report
