"""Steps in processes of their own, so that nobody inherits another's memory, caches or garbage."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.systems import BY_NAME

GRACE_S = 120
"""How much longer than its budget a step may take before it is stopped."""


START_NS = 50_000_000
"""How long after the last worker was ready all begin."""


class StepFailed(Exception):
    """A step did not finish; the message is the end of what it said."""


class Launcher:
    """Starts workers: fsqueue's and the floor's with this interpreter, the peers' with theirs.

    `bytecode`: a directory for compiled modules, so that only the first worker compiles.
    """

    def __init__(self, peer_python: str | None, bytecode: str) -> None:
        self._peer_python, self._bytecode = peer_python, bytecode

    def _start(self, request: dict[str, Any], errors: Any) -> subprocess.Popen[str]:
        entry = BY_NAME.get(request.get("system", ""))
        peer = entry is not None and entry.peer
        python = (self._peer_python if peer else None) or sys.executable
        paths = [str(machine.ROOT / "scripts")] + ([] if peer else [str(machine.ROOT)])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": self._bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            [python, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=machine.ROOT,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return process

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do one step and return what it measured; StepFailed if it broke or did not end."""
        with tempfile.TemporaryFile("w+") as errors:
            process = self._start(request, errors)
            try:
                output, _ = process.communicate(timeout=request.get("budget_s", 3600) + GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise StepFailed("it did not end in time") from None
            except BaseException:
                process.kill()
                process.wait()
                raise
            return _answer(process, output, errors)

    def run_together(self, requests: list[dict[str, Any]], stop: tuple[str, int] | None = None) -> list[dict[str, Any]]:
        """Do several steps at once: all begin when the last is ready.

        `stop`: a file to make when the first so many of them (the producers) have ended.
        """
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in requests]
            processes: list[subprocess.Popen[str]] = []
            try:
                for request, errors in zip(requests, files, strict=True):
                    processes.append(self._start(request, errors))
                for process, errors in zip(processes, files, strict=True):
                    assert process.stdout is not None
                    if process.stdout.readline().strip() != "ready":
                        process.kill()
                        _answer(process, process.communicate()[0], errors)
                moment = time.perf_counter_ns() + START_NS
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(f"{moment}\n")
                    process.stdin.flush()
                results = []
                for number, (request, process, errors) in enumerate(zip(requests, processes, files, strict=True), 1):
                    output, _ = process.communicate(timeout=request.get("budget_s", 3600) + GRACE_S)
                    results.append(_answer(process, output, errors))
                    if stop is not None and number == stop[1]:
                        Path(stop[0]).touch()
                return results
            except subprocess.TimeoutExpired:
                raise StepFailed("it did not end in time") from None
            finally:
                for process in processes:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
                    for pipe in (process.stdin, process.stdout):
                        if pipe is not None:
                            pipe.close()


def _answer(process: subprocess.Popen[str], output: str, errors: Any) -> dict[str, Any]:
    lines = output.strip().splitlines()
    if process.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    errors.seek(0)
    said = errors.read().strip().splitlines()
    raise StepFailed(said[-1] if said else f"its process ended with {process.returncode}")
