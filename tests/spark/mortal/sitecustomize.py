"""On the path of a driver that is to die: every Python process that it starts imports this.

Which of them comes to a certain step of a commit dies there. DIE_AT in the environment names the step, DRIVER the
process that is killed with its JVM.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def die(*arguments: Any) -> None:
    """Kill the driver, the JVM that it started, and this process."""
    pid, family = os.getpid(), []
    while pid != int(os.environ["DRIVER"]) and pid > 1:
        family.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for victim in [pid, *reversed(family)]:
        os.kill(victim, 9)


def die_half_way(publish: Any) -> Any:
    def publishing(store: Any, *arguments: Any) -> Any:
        rename, moved = store.fs.rename, []

        def renaming(source: str, target: str) -> bool:
            moved.append(target)
            if len(moved) > 3:
                die()
            done: bool = rename(source, target)
            return done

        store.fs.rename = renaming
        return publish(store, *arguments)

    return publishing


def die_after(finish: Any) -> Any:
    return lambda *arguments: (finish(*arguments), die())


if "DRIVER" in os.environ:
    from fsqueue import commit
    from fsqueue.storage import commits

    match os.environ["DIE_AT"]:
        case "before":
            commits.decide = die  # type: ignore[assignment]
        case "half-way":
            commits._publish = die_half_way(commits._publish)
        case "after":
            commit.Commit._finish = die_after(commit.Commit._finish)  # type: ignore[method-assign]
