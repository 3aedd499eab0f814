"""Calls to a real NFS server: how many one client makes for a task (scripts/lab/nfs). A count, not a time.

Outside, `measure` starts the lab with this module in it for each system; inside, `main` does the steps and counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.systems import BY_NAME, open_system

BEGIN, END = "<!-- calls: scripts/bench --nfs writes what follows -->", "<!-- end of the calls -->"
BATCH_TASKS = 1000
TASKS = {"fsqueue": 20_000, "task-queue": 200}
STEPS = {
    "insert": "insert in bulk",
    "lease_one": "lease one, complete one",
    "loop": "the work loop",
    "lease_many": "lease 100, complete 100",
}

Found = dict[str, dict[str, float]]


def measure(python: str | None) -> dict[str, Found]:
    """For each system and step, the calls a task by kind, and `all`. `python`: the peers' interpreter, if wanted."""
    found: dict[str, Found] = {}
    for name, interpreter in {"fsqueue": sys.executable, "task-queue": python}.items():
        if interpreter is None:
            continue
        paths = [str(machine.ROOT / "scripts")] + ([] if BY_NAME[name].peer else [str(machine.ROOT)])
        with tempfile.TemporaryDirectory(prefix="fsqueue-lab-") as directory:
            answer = Path(directory) / "answer"
            subprocess.run(
                [machine.ROOT / "scripts/lab/nfs", directory, interpreter, "-m", "benchmarks.calls", name, answer],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CLIENTS": "1"},
                cwd=machine.ROOT,
                stdout=sys.stderr,
                check=True,
            )
            found[name] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def main(name: str, answer: str) -> None:
    """In the lab: do the steps with one system, and write down what was counted."""
    found: Found = {}
    system, tasks = open_system(name, "/c1/queue"), TASKS[name]
    system.create()

    def count(step: str, tasks: int, act: Callable[[], object]) -> None:
        before = _calls()
        act()
        made = _calls() - before
        found[step] = {"all": sum(made.values()) / tasks, **{kind: n / tasks for kind, n in made.most_common()}}

    def insert() -> None:
        if name == "fsqueue":  # one size of batch, so that the steps below do not depend on which come first
            import fsqueue

            fsqueue.Queue("/c1/queue").insert_many(({"n": n} for n in range(tasks)), batch_tasks=BATCH_TASKS)
        else:
            system.insert_many({"n": n} for n in range(tasks))

    def lease_one() -> None:
        for _ in range(tasks // 10):
            system.complete(system.lease(1))

    def loop() -> None:
        for number, _ in enumerate(system.loop()):
            if number == tasks // 10:
                break

    def lease_many() -> None:
        left = tasks // 2
        while left > 0:
            got = system.lease(100)
            system.complete(got)
            left -= len(got)

    count("insert", tasks, insert)
    count("lease_one", tasks // 10, lease_one)
    count("loop", tasks // 10, loop)
    count("lease_many", tasks // 2, lease_many)
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


def _calls() -> Counter[str]:
    lines = subprocess.run(["lab-nfs", "calls", "1"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return Counter({line.split()[0]: int(line.split()[1]) for line in lines})


def markdown(found: dict[str, Found]) -> str:
    """The counts as a table, and what they are made of."""
    lines = [
        f"NFS 4.2, default mount options, one client, at commit {machine.commit()}; fsqueue from batches of "
        f"{BATCH_TASKS:,}, {TASKS['fsqueue']:,} tasks (task-queue: {TASKS['task-queue']}).",
        "",
        "| calls to the server, a task | " + " | ".join(found) + " |",
        "|---|" + "---:|" * len(found),
    ]
    for step, words in STEPS.items():
        lines.append(f"| {words} | " + " | ".join(f"{of[step]['all']:.3g}" for of in found.values()) + " |")
    lines += ["", "What they are, most frequent first:", ""]
    for name, of in found.items():
        for step, words in STEPS.items():
            kinds = [f"{kind} {n:.2g}" for kind, n in of[step].items() if kind != "all" and n >= 0.001]
            lines.append(f"- {BY_NAME[name].title}, {words}: {', '.join(kinds[:8])}")
    return "\n".join(lines) + "\n"


def write(docs: Path, found: dict[str, Any]) -> Path:
    """Put the counts into docs/benchmarks.md, between their marks."""
    page = docs / "benchmarks.md"
    text = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    if BEGIN not in text:
        text += f"\n## Calls to an NFS server\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n\n{markdown(found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return page


if __name__ == "__main__":
    main(*sys.argv[1:])
