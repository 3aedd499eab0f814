"""A Slurm cluster of scripts/lab/slurm, from outside: commands run on its login host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.guests import DIES_WITH_US, LAB, running, why_not
from tests.waiting import until

START_S = 120.0
"""How long a cluster may take until it is ready, on a busy machine."""
PATIENCE_S = 180.0
"""How long anything may take in it: time limits are looked at every 30 s."""
FSQUEUE = (sys.executable, "-m", "fsqueue_cli")


def why_no_cluster() -> str:
    """What a cluster lacks on this machine; "" if it can be had."""
    made = subprocess.run(
        ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return why_not() or (f"no namespaces can be made here: {made.stderr.strip()}" if made.returncode else "")


class Cluster:
    """Several nodes; ends with this process, and everything in it."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        (directory / "logs").mkdir(parents=True)
        with open(directory / "output", "wb") as output:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, LAB / "slurm", directory / "logs", "sleep", "infinity"],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        running.append(self)
        try:
            self.until("the cluster is ready", (directory / "logs" / "ready").exists, START_S)
            namespaces = _only_child(self._process.pid)
            first = str(_only_child(namespaces))
        except BaseException:
            self.close()
            raise
        self._inside = ("nsenter", "--target", first, "--mount", "--net", "--uts", "--pid", f"--wd={directory}", "--")

    def run(self, *command: object, code: int | None = 0, **environment: str) -> str:
        """What a command prints on the login host."""
        done = subprocess.run(
            [*self._inside, *map(str, command)],
            env=self._environment() | environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fsqueue(self, *arguments: object, code: int | None = 0, **environment: str) -> str:
        """The same of `fsqueue`."""
        return self.run(*FSQUEUE, *arguments, code=code, **environment)

    def _environment(self) -> dict[str, str]:
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return outer | {
            "SLURM_CONF": "/run/slurm/slurm.conf",
            "PATH": f"/run/slurm:{os.environ['PATH']}:/usr/sbin:/sbin",
        }

    def state(self, job: str) -> str:
        """The state of a job or of an element of an array; "" if Slurm does not know it."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines).get(job, "")

    def until(self, what: str, is_so: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait for something, and return it."""

        def look() -> Any:
            assert self._process.poll() is None, "the cluster has ended"
            return is_so()

        return until(look, f"{what} (in the cluster)", timeout_s)

    def said(self) -> str:
        """The end of what its parts have written: the controller, each node's daemon, and each job."""
        files = [self.directory / "output", *sorted(self.directory.glob("logs/*.log"))]
        files += sorted([*self.directory.glob("*.out"), *self.directory.glob("fsqueue-logs/*.out")])
        return "\n".join(
            f"-- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files if file.exists()
        )

    def close(self) -> None:
        """End it, and everything in it."""
        running.remove(self)
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _only_child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
