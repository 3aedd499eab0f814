"""What there is to see when a story in a guest fails: all that it takes to understand it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fsqueue import Queue
from tests.concurrency.books import accounts
from tests.concurrency.processes import in_the_kernel, what_they_do
from tests.support import base_of

LINES = 8
"""Number of last lines that are shown of each process's diary."""
BYTES = 4000
"""Number of last bytes that are shown of each file that tells of a batch with a finding."""
BATCHES = 5
"""Maximum number of batches with findings of which the logs are printed."""


def _told(what: str, tell: Callable[[], str]) -> str:
    """A part of the evidence. What cannot be had must not hide the rest."""
    try:
        return f"-- {what}\n{tell()}"
    except Exception as error:
        return f"-- {what}\nnot to be had: {type(error).__name__}: {error}"


def of_guest() -> str:
    """Its processes and where each is, the locks, and the last words of its kernel."""

    def processes() -> str:
        found = []
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if command:  # else it is the kernel's
                found.append(f"{pid} ({in_the_kernel(pid)}): {command[:150]}")
        return "\n".join(found)

    def kernel() -> str:
        return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout[-3000:]

    return "\n".join(
        [
            _told("processes", processes),
            _told("locks", lambda: Path("/proc/locks").read_text()),
            _told("the kernel's last words", kernel),
        ]
    )


def of_queue(path: Path, name: str | None = None) -> str:
    """Its status, its files, what fsck finds, and of the batches with findings what their logs and the history say."""
    told = [f"== {name or path}"]

    def files() -> str:
        found = [one for one in sorted(path.rglob("*")) if not one.is_dir()]
        return "\n".join(f"{one.relative_to(path)} {one.stat().st_size}" for one in found)

    def check() -> str:
        queue = Queue(path)
        findings = list(queue.fsck())
        lines = [f"{finding!r}" for finding in findings] or ["nothing"]
        batches = {
            batch for finding in findings for batch in re.findall(r"[0-9a-f]{32}", f"{finding.path} {finding.note}")
        }
        for batch in sorted(batches)[:BATCHES]:
            for file in sorted(base_of(queue).rglob("*")):
                if file.is_dir():
                    continue
                content = file.read_bytes()
                if batch in file.name:
                    lines.append(f"{file.relative_to(path)}: {content[-BYTES:]!r}")
                elif batch.encode() in content:
                    known = [line for line in content.split(b"\n") if batch.encode() in line]
                    lines.append(f"{file.relative_to(path)}, of {batch}: {known!r}"[:BYTES])
        for place in sorted({finding.path for finding in findings})[:BATCHES]:
            if (path / place).is_file():
                lines.append(f"{place}: {(path / place).read_bytes()[-BYTES:]!r}")
        return "\n".join(lines)

    told.append(_told("status", lambda: str(Queue(path).status())))
    told.append(_told("stuck", lambda: str(Queue(path).stuck())))
    told.append(_told("files", files))
    told.append(_told("what fsck finds", check))
    told.append(_told("accounts", lambda: accounts(Queue(path))))
    return "\n".join(told)


def of_diaries(notes: Path) -> str:
    """The last lines that each process wrote down."""

    def tails() -> str:
        return "\n".join(
            f"{file.name}: {' | '.join(file.read_text(errors='replace').splitlines()[-LINES:])}"
            for file in sorted(notes.iterdir())
        )

    return _told(f"the last {LINES} lines of each in {notes}", tails)


@contextmanager
def explained(path: Path, notes: Path | None = None, more: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Adds what a queue, the processes and the guest say to the message of a failure. `path`: where the truth is."""
    try:
        yield
    except Exception as error:
        told = [f"{type(error).__name__}: {error}", of_queue(path)]
        told += [] if notes is None else [of_diaries(notes)]
        told += [_told("more", more), _told("children", what_they_do)]
        raise AssertionError("\n".join(told)) from error
