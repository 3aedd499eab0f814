"""Guests, from outside: started once for many tests, each of which calls a scenario in them (see `agent`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.house.source import TOP

LAB = TOP / "scripts" / "lab"
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
BOOT_S = 120.0
"""How long a guest may take until it answers, on a busy machine."""
PATIENCE_S = 500.0
"""How long a call may take: longer than what it waits for itself, so that it can tell what it waited for."""


def why_not() -> str:
    """What the labs lack on this machine; "" if they can be had."""
    checked = subprocess.run([LAB / "setup", "--check"], capture_output=True, text=True, check=False)
    return "" if checked.returncode == 0 else checked.stdout.strip() or checked.stderr.strip()


class Guest:
    """A guest with `lab` in it, "nfs" or "power" of scripts/lab, and an agent."""

    def __init__(self, directory: Path, lab: str, **environment: str) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._output = directory / "output"
        agent = [sys.executable, "-m", "tests.lab.agent", directory]
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, LAB / "guest", directory, LAB / f"{lab}-inside", "up", *agent],
                cwd=TOP,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._calls = 0

    def begin(self, module: str, function: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> int:
        """Ask for `module.function(**arguments)`, after what was asked for before; the number for `result`."""
        number, self._calls = self._calls, self._calls + 1
        request = {"module": module, "function": function, "arguments": arguments, "timeout_s": timeout_s}
        temporary = self.directory / f"{number}.call-unfinished"
        temporary.write_text(json.dumps(request))
        temporary.rename(self.directory / f"{number}.call")
        return number

    def result(self, number: int, timeout_s: float = BOOT_S) -> Any:
        """What a call returned; AssertionError with its traceback if it failed, or if the guest did."""
        answer = self.directory / f"{number}.answer"
        until = time.monotonic() + timeout_s
        while not answer.exists():
            assert self._process.poll() is None, f"the guest has ended: {self.said()}"
            assert time.monotonic() < until, f"no answer within {timeout_s:g} s: {self.said()}"
            time.sleep(0.02)
        found = json.loads(answer.read_text())
        assert found["status"] == 0, f"in the guest: {found['result']}\n{self.said()}"
        return found["result"]

    def call(self, module: str, function: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Any:
        """`begin`, and its `result`."""
        return self.result(self.begin(module, function, timeout_s, **arguments), BOOT_S + timeout_s)

    def said(self) -> str:
        """The end of what the guest has written."""
        return self._output.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Shut it down."""
        (self.directory / "end").touch()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
