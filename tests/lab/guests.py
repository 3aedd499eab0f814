"""Guests, from outside: started once for many tests, each of which calls a scenario in them (see `agent`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from tests.house.source import TOP
from tests.waiting import until

LAB = TOP / "scripts" / "lab"
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
BOOT_S = 120.0
"""How long a guest may take until it answers, on a busy machine."""
PATIENCE_S = 500.0
"""How long a call may take: longer than what it waits for itself, so that it can tell what it waited for."""


class Lab(Protocol):
    """A guest or a cluster: some directory, and what its parts have written."""

    directory: Path

    def said(self) -> str:
        """Return the end of what its parts have written."""


running: list[Lab] = []
"""The labs of this process: a test that fails prints what they have said (tests/lab/conftest.py)."""


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
        running.append(self)

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

        def is_answered() -> bool:
            assert answer.exists() or self._process.poll() is None, "the guest has ended"
            return answer.exists()

        until(is_answered, f"an answer of the guest in {self.directory}", timeout_s)
        found = json.loads(answer.read_text())
        assert found["status"] == 0, f"in the guest: {found['result']}"
        return found["result"]

    def call(self, module: str, function: str, timeout_s: float = PATIENCE_S, **arguments: Any) -> Any:
        """`begin`, and its `result`."""
        return self.result(self.begin(module, function, timeout_s, **arguments), BOOT_S + timeout_s)

    def said(self) -> str:
        """The end of what the guest has written, its kernel included."""
        return self._output.read_text(errors="replace")[-4000:]

    def ends_then(self) -> None:
        """Let it shut itself down once it has answered what it was asked for."""
        (self.directory / "end").touch()

    def close(self) -> None:
        """Shut it down."""
        running.remove(self)
        self.ends_then()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
