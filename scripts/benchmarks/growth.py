"""scripts/soak-growth: work one queue for millions of movements, and measure in each tenth what every command costs.

A movement is what happens to one task: it is leased, renewed, completed, released, cancelled; its attempt fails; it
is buried; its dead letter is retried or purged. The queue is worked one by one and in bulk, day after day. Each day
takes a day's share of the movements; between two days the clock of all processes is set forward. So leases, pauses
and the history are as old as they would be, and `gc --history-days` has old days to give back.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import fsqueue
from benchmarks import alive, machine, plot, report
from fsqueue.clock import Clock

Made = dict[str, Any]

TENTHS = 10
REPEATS = 3
"""Of so many runs of a command the cheapest counts, if --repeat does not say otherwise: what else the machine does only
adds."""
DAY_S = 86_400
KEEP_DAYS = 2
"""So many days of history stay."""

WAITING_LEAST, INSERTED = 2_000, 4_096
"""If fewer tasks wait, so many are inserted at once, ..."""
ALONE_EACH = 400
"""... and one by one each day: one for so many movements."""
BULK = 64
HELD = 100
"""Each day so many tasks are leased and held until two days later; a renewal each day keeps them."""
FOREVER = 4
"""So many tasks of the first batch are held, and renewed each day, from the first day to the last."""
LETTERS_KEPT = 20

BARE, BARE_TIMES = "bare", 200
"""What does not change: so many small records are encoded, decoded, and a file is opened and read for each. It is done
ten times a day, so that the load of the machine falls on it as on the verbs."""

RISE, RISE_CPU_S, RISE_US, RISE_MB = 1.15, 0.02, 3.0, 2.0
"""A cost is flat if the last three tenths take at most so many times what the first three take (medians), or so many
CPU seconds, microseconds a task, or MB more. What commands read does not depend on what else the machine does."""

START = alive.START
COMMANDS = (
    (START,),
    ("status",),
    ("status", "--fast"),
    ("status", "--usage"),
    ("peek",),
    ("workers",),
    ("ls", "--state", "leased"),
    ("ls", "--state", "delayed"),
    ("dead list",),
    ("gc", "--history-days", f"{KEEP_DAYS}"),
    ("fsck",),
)
"""`--version` looks at no queue: it shows how much the machine itself varies."""

DOC = "growth.md"
PLOT = "growth.svg"
BEGIN, END = "<!-- soak: scripts/soak-growth writes what follows -->", "<!-- end of the soak -->"


@dataclass
class Soak:
    """One queue at work. `verbs`: for each verb calls, tasks and CPU seconds since they were last taken."""

    queue: fsqueue.Queue
    random: Random
    repeats: int = REPEATS
    movements: int = 0
    done: int = 0
    inserted: int = 0
    waiting: int = 0
    verbs: dict[str, list[float]] = field(default_factory=dict)
    held: deque[list[fsqueue.LeasedTask]] = field(default_factory=deque)
    forever: list[fsqueue.LeasedTask] = field(default_factory=list)

    def day(self, movements: int) -> None:
        """Work a day's share of the movements."""
        end, next_bare = self.movements + movements, 0
        self._morning(1 + movements // ALONE_EACH)
        while self.movements < end:
            if self.movements >= next_bare:
                next_bare = self.movements + movements // 10
                self._timed(BARE, BARE_TIMES, _bare, self.queue.path / "queue.jsonl")
            if self.waiting < WAITING_LEAST:
                self._insert_many(INSERTED)
            if self.random.random() < 1 / BULK:
                self._in_bulk()
            else:
                self._alone()
        self._evening()

    # -- a day ---------------------------------------------------------------------------------

    def _morning(self, inserted_alone: int) -> None:
        self.waiting = self.queue.status().waiting
        for _ in range(inserted_alone):
            self._timed("insert", 1, self.queue.insert, {"tile": self.inserted})
            self.inserted += 1
            self.waiting += 1
        if self.waiting < WAITING_LEAST:
            self._insert_many(INSERTED)
        if not self.forever:
            self.forever = self._lease(FOREVER)
        if len(self.held) == 2:
            self._complete(self.held.popleft())
        for tasks in [*self.held, self.forever]:
            self._renew(tasks, 3 * DAY_S)
        self.held.append(self._lease(HELD))
        self._renew(self.held[-1], 3 * DAY_S)

    def _evening(self) -> None:
        """Retry half of the dead letters, purge the other half but for a few, and give back what is old."""
        letters = sorted(letter.id for letter in self.queue.dead())[LETTERS_KEPT:]
        half = len(letters) // 2
        if half:
            self._moved("retry", half, self.queue.retry_dead, letters[:half])
            self._moved("purge", half, self.queue.purge_dead, letters[-half:])
        self._timed("gc", 1, partial(self.queue.gc, history_days=KEEP_DAYS))

    def _alone(self) -> None:
        for task in self._lease(1):
            kind = self.random.random()
            if kind < 0.04:
                self._renew([task], None)
            if kind < 0.86:
                self._moved("complete 1", 1, task.complete)
                self.done += 1
            elif kind < 0.92:
                self._moved("fail", 1, task.fail, "timeout", self.random.uniform(DAY_S / 24, DAY_S / 2))
            elif kind < 0.96:
                self._moved("release", 1, task.release)
                self.waiting += 1
            elif kind < 0.98:
                self._moved("bury", 1, task.bury, "no such tile")
            else:
                self._moved("release", 1, task.release)
                self._moved("cancel", 1, self.queue.cancel, task.id)

    def _in_bulk(self) -> None:
        tasks = self._lease(BULK)
        if self.random.random() < 0.5:
            self._renew(tasks, None)
        self._complete(tasks[2:])
        for task in tasks[:2]:
            self._moved("fail", 1, task.fail, "node lost", DAY_S / 4)

    # -- verbs ---------------------------------------------------------------------------------

    def _insert_many(self, tasks: int) -> None:
        first = self.inserted
        self.inserted += tasks
        self.waiting += tasks
        self._timed("insert many", tasks, self.queue.insert_many, ({"tile": first + number} for number in range(tasks)))

    def _lease(self, tasks: int) -> list[fsqueue.LeasedTask]:
        leased = self._timed("lease 1" if tasks == 1 else "lease many", tasks, self.queue.lease, tasks)
        self.movements += len(leased)
        self.waiting = max(0, self.waiting - len(leased)) if leased else 0
        return leased

    def _complete(self, tasks: list[fsqueue.LeasedTask]) -> None:
        if tasks:
            self._moved("complete many", len(tasks), self.queue.complete, tasks)
            self.done += len(tasks)

    def _renew(self, tasks: list[fsqueue.LeasedTask], lease_s: float | None) -> None:
        if tasks:
            self._moved("renew", len(tasks), self.queue.renew, tasks, lease_s)

    def _moved(self, verb: str, tasks: int, act: Callable[..., Any], *arguments: Any) -> None:
        self._timed(verb, tasks, act, *arguments)
        self.movements += tasks

    def _timed(self, verb: str, tasks: int, act: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.process_time()
        answer = act(*arguments)
        spent = time.process_time() - begin
        sums = self.verbs.setdefault(verb, [0, 0, 0.0])
        sums[0] += 1
        sums[1] += tasks
        sums[2] += spent
        return answer


def _bare(file: Path) -> None:
    for number in range(BARE_TIMES):
        line = json.dumps({"op": "lease", "at": number, "tasks": [[number, number + 1]], "worker": {"host": "node001"}})
        fd = os.open(file, os.O_RDONLY)
        os.pread(fd, 4096, 0)
        os.close(fd)
        json.loads(line)


# -- measuring -----------------------------------------------------------------------------------


def run(
    path: str, movements: int, days: int, seed: int, say: Callable[[str], None], repeats: int = REPEATS
) -> list[Made]:
    """Work a queue at `path`, and return what each tenth cost. RuntimeError if the queue does not add up at the end."""
    began = time.monotonic()
    ahead = Ahead(-days * DAY_S)
    tenths = []
    with (
        ahead,
        fsqueue.Queue.create(path, durability="none", allow_unsafe=True, max_attempts=3, lease_s=DAY_S) as queue,
    ):
        soak = Soak(queue, Random(seed), repeats)
        for day in range(1, days + 1):
            soak.day(max(1, round(movements * day / days) - soak.movements))
            if day * TENTHS // days > len(tenths):
                tenths.append(_tenth(soak, path, day, ahead.seconds))
                seconds = time.monotonic() - began
                costs = [f"{name} {cost['cpu_s'] * 1e3:.0f}" for name, cost in tenths[-1]["commands"].items()]
                say(
                    f"day {day} of {days}, {soak.movements:,} movements, {seconds:,.0f} s: "
                    f"{tenths[-1]['inodes']:,} inodes; ms of CPU: {', '.join(costs)}"
                )
            ahead.seconds += DAY_S
        _check(soak)
    return tenths


@dataclass
class Ahead:
    """A clock that is ahead of the machine's by so many seconds, in this process, while it is entered."""

    seconds: float

    def __enter__(self) -> None:
        """Set the clock."""
        Clock.local_s = staticmethod(lambda: time.time() + self.seconds)

    def __exit__(self, *_: object) -> None:
        """Set it back."""
        Clock.local_s = staticmethod(time.time)


def _tenth(soak: Soak, path: str, day: int, ahead_s: float) -> Made:
    verbs = {
        verb: {"calls": int(calls), "tasks": int(tasks), "cpu_us": round(cpu_s / tasks * 1e6, 2)}
        for verb, (calls, tasks, cpu_s) in sorted(soak.verbs.items())
    }
    soak.verbs.clear()
    usage = {kind: [each.files, each.bytes] for kind, each in soak.queue.usage().items()}
    return {
        "day": day,
        "movements": soak.movements,
        "done": soak.done,
        "inodes": machine.count_names(path),
        "usage": usage,
        "memory_mb": _resident_mb(),
        "verbs": verbs,
        "commands": {" ".join(command): _cheapest(path, command, ahead_s, soak.repeats) for command in COMMANDS},
    }


def _cheapest(path: str, command: tuple[str, ...], ahead_s: float, repeats: int) -> Made:
    runs = [alive.cost(path, command[0], *command[1:], ahead_s=ahead_s) for _ in range(repeats)]
    if any(each["code"] for each in runs):
        raise RuntimeError(f"fsqueue {' '.join(command)} ended with {[each['code'] for each in runs]}")
    return {key: min(each[key] for each in runs) for key in ("seconds", "cpu_s", "memory_mb", "read_mb")}


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _check(soak: Soak) -> None:
    status = soak.queue.status()
    found = [str(finding) for finding in soak.queue.fsck()]
    held = sum(map(len, soak.held)) + len(soak.forever)
    if status.completed != soak.done or status.leased != held or found:
        raise RuntimeError(
            f"the queue does not add up: {soak.done} tasks are completed and {held} are held. It says {status}; {found}"
        )


# -- judging -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One cost: in the first tenth, in the last, and whether it is flat."""

    what: str
    unit: str
    values: list[float]
    slack: float
    beside: list[float] | None = None
    """What the same tenths took for something that does not change: then that is what the costs are held against."""

    def _ends(self) -> tuple[float, float]:
        """The cost in the first three tenths and in the last three, each as if the machine had been as slow as in the
        first."""
        slow = [each / self.beside[0] for each in self.beside] if self.beside else [1.0] * len(self.values)
        fair = [value / factor for value, factor in zip(self.values, slow, strict=True)]
        return statistics.median(fair[:3]), statistics.median(fair[-3:])

    @property
    def times(self) -> float:
        """How many times the cost of the first three tenths the last three have."""
        first, last = self._ends()
        return last / first if first else 1.0

    @property
    def is_flat(self) -> bool:
        """Whether it does not rise, as far as can be measured."""
        first, last = self._ends()
        return last <= max(first * RISE, first + self.slack)


def rows(tenths: list[Made]) -> list[Row]:
    """All costs."""
    found = [Row("files and directories", "", [each["inodes"] for each in tenths], 20)]
    starts = [each["commands"][START]["cpu_s"] for each in tenths] if START in tenths[0]["commands"] else None
    bare = [each["verbs"][BARE]["cpu_us"] for each in tenths] if BARE in tenths[0]["verbs"] else None
    for command in tenths[0]["commands"]:
        for key, unit, factor, slack in (
            ("cpu_s", "ms", 1e3, RISE_CPU_S),
            ("memory_mb", "MB", 1, RISE_MB),
            ("read_mb", "MB read", 1, 0),
        ):
            values = [each["commands"][command][key] * factor for each in tenths]
            beside = starts if key == "cpu_s" else None
            found.append(Row(f"`{alive.typed(command)}`", unit, values, slack * factor, beside))
    for verb in tenths[0]["verbs"]:
        if all(verb in each["verbs"] for each in tenths):
            values = [each["verbs"][verb]["cpu_us"] for each in tenths]
            # What a day has once only is judged by the day: it may take milliseconds more.
            slack = RISE_US if tenths[0]["verbs"][verb]["calls"] > 1000 else RISE_CPU_S * 1e6
            unit = "µs a task" if verb not in ("gc", BARE) else "µs"
            found.append(Row(verb, unit, values, slack, bare))
    found.append(Row("the working process", "MB", [each["memory_mb"] for each in tenths], RISE_MB))
    return found


def markdown(made: Made) -> str:
    """The result as a page's section."""
    tenths, facts = made["tenths"], made["facts"]
    costs: dict[str, list[Row]] = {}
    for row in rows(tenths):
        costs.setdefault(row.what, []).append(row)
    lines = [
        [
            what,
            *(
                ", ".join(report.number(row.values[place], f" {row.unit}".rstrip()) for row in several)
                for place in (0, -1)
            ),
            ", ".join(report.ratio(row.times) for row in several),
            "flat" if all(row.is_flat for row in several) else "**rises**",
        ]
        for what, several in costs.items()
    ]
    usage = [
        [f"`{kind}`", *(f"{files:,} files, {size:,} bytes" for files, size in (each["usage"][kind] for each in ends))]
        for ends in [(tenths[0], tenths[-1])]
        for kind in tenths[0]["usage"]
        if any(each["usage"][kind][0] for each in ends)
    ]
    header = [
        f"{tenths[-1]['movements']:,} movements in {tenths[-1]['day']} days, seed {made['seed']}; it took "
        f"{made['took_s']:,} s.",
        f"Measured on {facts['date']} at commit {facts['commit']}:",
        f"{facts['cores']} cores ({facts['cpu']}), {facts['kernel']}, {facts['filesystem']}, Python",
        f"{facts['python']}. What else the machine had to do, as load average: {facts['load_average']}.",
    ]
    return "\n".join(
        [
            *header,
            "",
            report.table(["cost", "first tenth", "last tenth", "times", ""], lines),
            "",
            report.table(["kind", "first tenth", "last tenth"], usage),
        ]
    )


def write(docs: Path, made: Made) -> list[Path]:
    """Put the table into the page, between its marks, and the plot beside it."""
    page = docs / DOC
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{page} has no place for the results: it must have {BEGIN} and {END}")
    body = f"![Costs in each tenth of a soak]({PLOT})\n\n{markdown(made)}"
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    drawing = docs / PLOT
    drawing.write_text(plot.growth(made["tenths"]), encoding="utf-8")
    return [page, drawing]


# -- the command ---------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"soak-growth: {text}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="scripts/soak-growth",
        description="Work one queue, and measure in each tenth of the work what every command costs.",
    )
    made.add_argument("--movements", type=int, default=2_000_000, metavar="N", help="how many movements (2000000)")
    made.add_argument("--days", type=int, default=100, metavar="N", help="days of the queue's clock (100)")
    made.add_argument("--seed", type=int, default=None, metavar="N", help="of what happens to each task (random)")
    made.add_argument("--repeat", type=int, default=REPEATS, metavar="K", help=f"runs of each command ({REPEATS})")
    made.add_argument("--dir", metavar="DIR", help="work below this directory (the system's temporary directory)")
    made.add_argument("--json", metavar="FILE", help="write all that was measured")
    made.add_argument("--docs", metavar="DIR", help=f"write the table into DIR/{DOC}, and the plot beside it")
    made.add_argument(
        "--from", dest="source", metavar="FILE", help="work no queue: make table and plot of an earlier --json FILE"
    )
    return made


def main(arguments: Iterable[str] | None = None) -> int:
    """Run; return the exit code: 1 if a cost rises."""
    options = parser().parse_args(None if arguments is None else list(arguments))
    if options.source:
        made = json.loads(Path(options.source).read_text(encoding="utf-8"))
    else:
        if options.days < TENTHS or options.movements < options.days or options.repeat < 1:
            parser().error(f"at least {TENTHS} days are needed, a movement for each, and one run of each command")
        made = _measure(options)
    if options.json and not options.source:
        Path(options.json).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        _say(f"wrote {options.json}")
    if options.docs:
        for path in write(Path(options.docs), made):
            _say(f"wrote {path}")
    else:
        print(markdown(made))
    rising = [f"{row.what} ({row.unit})" for row in rows(made["tenths"]) if not row.is_flat]
    _say(f"these rise: {'; '.join(rising)}" if rising else "every cost is flat")
    return 1 if rising else 0


def _measure(options: argparse.Namespace) -> Made:
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    directory = tempfile.mkdtemp(prefix="fsqueue-growth-", dir=options.dir)
    try:
        _say(f"seed {seed}; working in {directory}")
        facts = machine.facts(directory, {"fsqueue": fsqueue.__version__})
        begin = time.monotonic()
        tenths = run(os.path.join(directory, "queue"), options.movements, options.days, seed, _say, options.repeat)
        return {"seed": seed, "facts": facts, "took_s": round(time.monotonic() - begin), "tenths": tenths}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
