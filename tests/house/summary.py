"""What a run says of each failed test, at once and at its end: the command that repeats it, and why. And where the time
went.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from xdist.workermanage import WorkerController

WHY_LINES = 10
"""Lines that tell why a test failed."""
LEVEL = "--all " if os.environ.get("FSQUEUE_TEST_LEVEL") == "all" else ""

_terminal: pytest.TerminalReporter | None = None
"""What prints. The processes that run tests for another one have none."""
_cpu_before = 0.0
_times: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
"""By directory: the number of tests, seconds of wall time, seconds of processor time."""
_ended: dict[str, float] = {}
"""When each process that ran tests has ended."""
_at_begin: list[float] = []


def cpu_s() -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what each step of a test has used. In the process that runs it: reports carry it to the one that tells."""
    global _cpu_before
    report = yield
    now = cpu_s()
    report.cpu_s, _cpu_before = now - _cpu_before, now
    return report


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    global _terminal
    _terminal = config.pluginmanager.get_plugin("terminalreporter")
    _at_begin[:] = processors()


def processors() -> list[float]:
    """Return what the machine's processors have done since it was started, in seconds: work, and nothing."""
    with suppress(OSError):
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]  # "idle", and waiting for a disk
        return [(sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), idle / os.sysconf("SC_CLK_TCK")]
    return [0.0, 0.0]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    _ended[node.gateway.id] = time.monotonic()


def balance(began: list[float], now: list[float], ended: dict[str, float]) -> Iterator[str]:
    """Yield how much of the processors was used, by whomever, and how long each process waited for the last one."""
    worked_s, idle_s = (after - before for before, after in zip(began, now, strict=True))
    yield f"The processors worked for {worked_s:.0f} s, and did nothing for {idle_s:.0f} s."
    if ended:
        waited = (f"{name} {max(ended.values()) - at:.0f} s" for name, at in sorted(ended.items()))
        yield f"Before the last process these ended: {', '.join(waited)}."


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and _terminal is not None:
        _terminal.ensure_newline()
        for line in told(report):
            _terminal.write_line(line)
    used = _times[directory_of(report.nodeid)]
    used[0] += report.when == "call"
    used[1] += report.duration
    used[2] += getattr(report, "cpu_s", 0.0)


def directory_of(nodeid: str) -> str:
    """Return the directory of a test below tests/, or "tests" for those of the top level."""
    parts = nodeid.partition("::")[0].split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else "tests"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    if len(_times) > 1:
        terminalreporter.section("time per directory")
        for line in (*table(_times), "", *balance(_at_begin, processors(), _ended)):
            write(line)
    failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    if failed:
        terminalreporter.section("what failed, and how to repeat it", red=True)
        for report in failed:
            for line in told(report):
                write(line)


def table(times: dict[str, list[float]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, the most processor time first."""
    yield "| directory | tests | wall s | processor s |"
    yield "|---|--:|--:|--:|"
    for name, (tests, wall_s, used_s) in sorted(times.items(), key=lambda item: -item[1][2]):
        yield f"| `{name}` | {tests} | {wall_s:.0f} | {used_s:.0f} |"


def told(report: pytest.TestReport | pytest.CollectReport) -> Iterator[str]:
    """Yield the name of a failed test, the command that repeats it, the seeds that it printed, and why it failed."""
    yield f"{report.nodeid}"
    yield f"    scripts/test {LEVEL}'{report.nodeid}'"
    printed = f"{report.capstdout}\n{report.capstderr}".splitlines()
    for line in [line for line in printed if "seed" in line.lower()][:3]:
        yield f"    {line}"
    for line in why(report.longreprtext.splitlines()):
        yield f"    {line}"
    yield ""


def why(text: Iterable[str]) -> list[str]:
    """Return the lines of a failure's text that tell most: those of the error itself, or else the last ones."""
    lines = [line.rstrip() for line in text]
    error = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return error[:WHY_LINES] or lines[-WHY_LINES:]
