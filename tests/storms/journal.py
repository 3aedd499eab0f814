"""What a process of a storm writes down of each of its calls, before and after it, and what the judge reads of that."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.concurrency.books import Diary

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"
"""What a caller knows of a call: all of it has happened; nothing of it has; either."""


class Journal:
    """The diary of one process. A call is written down before it is made; what is told of it, afterwards."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name = directory, name
        self._diary = Diary(directory / name)
        self._calls = 0

    def close(self) -> None:
        """Close the file."""
        self._diary.__exit__()

    def _note(self, *words: Any) -> None:
        self._diary.note(json.dumps([time.monotonic(), *words]))

    def begin(self) -> str:
        """Return the name of the next call. Nothing of it is written down yet."""
        self._calls += 1
        return f"{self.name}.{self._calls}"

    def will(self, call: str, kind: str, /, **effects: Any) -> None:
        """Say what a call is about to do."""
        self._note("will", call, {"kind": kind, **effects})

    def did(self, call: str, told: str, **more: Any) -> None:
        """Say what is known of a call: see DONE."""
        self._note("did", call, {"told": told, **more})

    def say(self, what: str, /, **more: Any) -> None:
        """Write down something else."""
        self._note(what, "", more)


@dataclass
class Call:
    """A call as its process wrote it down. Times are those of the host's monotonic clock (s)."""

    name: str
    begun: float
    effects: dict[str, Any]
    told: str = UNKNOWN
    ended: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Read:
    """All that was written down."""

    calls: dict[str, Call]
    said: list[tuple[float, str, str, dict[str, Any]]]
    """When, by whom, what, and more."""

    def each(self, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield who has said something, and what more."""
        return ((who, more) for _, who, said, more in self.said if said == what)


def read(directory: Path) -> Read:
    """Read all journals of a directory."""
    found = Read({}, [])
    for path in sorted(directory.iterdir()):
        for line in path.read_text().splitlines():
            at, what, name, more = json.loads(line)
            if what == "will":
                found.calls[name] = Call(name, at, more)
            elif what == "did":
                call = found.calls[name]
                call.told, call.ended, call.more = more["told"], at, more
            else:
                found.said.append((at, path.name, what, more))
    return found
