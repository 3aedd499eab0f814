"""A real Prometheus asks a gateway, and examples/grafana.json asks Prometheus: each question has an answer.

`scripts/test --all` fetches Prometheus (scripts/setup-prometheus). Elsewhere the test is skipped, with the reason.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group
from tests.house.source import TOP
from tests.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.thorough]

FETCHED = TOP / ".venv-prometheus/usr/bin/prometheus"
PROMETHEUS = str(FETCHED) if FETCHED.exists() else shutil.which("prometheus")
CONFIG = """
global: {scrape_interval: 3s, scrape_timeout: 3s}
scrape_configs:
  - job_name: fsqueue
    authorization: {credentials_file: TOKEN}
    static_configs: [{targets: ["ADDRESS"]}]
"""
"""As docs/metrics.md has it."""
NOTHING_TO_SAY = ("fsqueue_workers == 0", "http_open_streams", "http_open_event_streams")
"""What may have no answer: every queue with waiting tasks has a worker, and no stream was ever open."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Prometheus:
    """A Prometheus that asks one gateway every three seconds."""

    def __init__(self, home: Path, gateway: str, token: Path) -> None:
        assert PROMETHEUS is not None
        config, port = home / "prometheus.yml", free_port()
        config.write_text(CONFIG.replace("TOKEN", str(token)).replace("ADDRESS", gateway))
        self._url = f"http://127.0.0.1:{port}/api/v1/query?"
        places = [f"--config.file={config}", f"--storage.tsdb.path={home / 'data'}"]
        with open(home / "prometheus.log", "w") as log:
            command = [PROMETHEUS, *places, f"--web.listen-address=127.0.0.1:{port}"]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression's answer. Errors of Prometheus, such as one of syntax, are raised."""
        with urllib.request.urlopen(self._url + urllib.parse.urlencode({"query": expression}), timeout=30) as answer:
            told = json.load(answer)
        assert told["status"] == "success", told
        found: list[dict[str, Any]] = told["data"]["result"]
        return found

    def has(self, expression: str) -> bool:
        """Tell whether an expression has an answer. False while Prometheus starts."""
        try:
            return bool(self.ask(expression))
        except (urllib.error.URLError, ConnectionError):
            return False


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """A group in which a task waits, one is leased, and others have failed."""
    made = Group.create(tmp_path / "crawl", max_attempts=2, backoff_s=(0.01, 0.01))
    made["fetch"].insert_many(range(2000))
    made["fetch"].lease(1)
    return made


@pytest.fixture
def prometheus(tmp_path: Path, group: Group) -> Iterator[Prometheus]:
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not there (scripts/setup-prometheus)")
    address, tokens, token = f"127.0.0.1:{free_port()}", tmp_path / "tokens", tmp_path / "token"
    command = [sys.executable, "-m", "fsqueue_cli", "serve", str(group.path), "--listen", address]
    serving = subprocess.Popen(
        [*command, "--token-file", str(tokens)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert serving.stdout is not None
        assert "fsqueue serves" in serving.stdout.readline()
        [token_read] = [line.split()[-1] for line in tokens.read_text().splitlines() if line.startswith("read")]
        token.write_text(token_read)
        asking = Prometheus(tmp_path, address, token)
        try:
            yield asking
        finally:
            asking.process.terminate()
            asking.process.wait()
    finally:
        serving.terminate()
        serving.communicate()


def questions() -> list[str]:
    board = json.loads((TOP / "examples/grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [one.replace("$__rate_interval", "1m").replace("$root", ".*").replace("$queue", ".*") for one in asked]


def test_the_dashboard_has_answers_from_a_real_prometheus(prometheus: Prometheus, group: Group) -> None:
    until(lambda: prometheus.has("fsqueue_counting_since_timestamp_seconds"), "the first answer of the gateway")

    scrapes = ["0"]

    def work() -> bool:
        """Complete and fail tasks between two scrapes. Tell whether the counters, 15 seconds late, have grown."""
        [scraped] = prometheus.ask("count_over_time(up[1h])")
        if scraped["value"][1] != scrapes[-1]:
            scrapes.append(scraped["value"][1])
            for task in group["fetch"].lease(4):
                if task.payload % 2 and task.attempt == 1:
                    task.complete()
                else:
                    task.fail("no answer")
        return all(
            prometheus.has(f"rate(fsqueue_{name}[1m]) > 0")
            for name in ("failed_attempts_total", "given_up_tasks_total", "task_duration_seconds_count")
        )

    until(work, "the counters to grow")
    asked = questions()
    assert len(asked) > 25
    unanswered = [one for one in asked if not prometheus.has(one) and not any(part in one for part in NOTHING_TO_SAY)]
    assert unanswered == []
    [up] = prometheus.ask('up{job="fsqueue"}')
    assert up["value"][1] == "1"
