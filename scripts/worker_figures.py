"""The worker's figures: what a task costs, what idleness costs, what a kill costs. A table, and JSON with --json."""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsqueue
from fsqueue.protocol.waiting import BELL_S

FSQUEUE = [sys.executable, "-m", "fsqueue_cli"]
FILE_CALLS = "openat,open,newfstatat,fstat,stat,statx,pread64,pwrite64,close,getdents64,rename,unlink,fsync,mkdir,link"
"""The system calls that a file server may hear of. Reads of pipes and sockets are none."""


def nothing(payload: Any) -> None:
    """A handler that does nothing."""


def note(payload: dict[str, Any]) -> None:
    """A handler that appends which task it was given, and when."""
    fd = os.open(payload["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, f"{payload['n']} {time.time():.3f}\n".encode())
    os.close(fd)
    time.sleep(payload.get("s", 0))


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def together(*commands: list[str]) -> None:
    """Run commands side by side, to their ends."""
    started = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in commands]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"{commands[0]} ended with {codes}")


@contextmanager
def killing(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def commit() -> str:
    """Return the commit of these files, with a star if they differ from it."""
    here = Path(__file__).parent
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty=*", "--exclude=*"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return said.stdout.strip() or "unknown"


def measured(action: Callable[[], object]) -> tuple[float, float]:
    """Return how many seconds an action took, and of processor time: of this process, and of those it waited for."""
    began, before = time.perf_counter(), os.times()
    action()
    took, after = time.perf_counter() - began, os.times()
    return took, sum(after[:4]) - sum(before[:4])


class Apart:
    """The start and the steady state of several ways to do tasks: each does few and many, in turns.

    What a task more costs is the difference; what is left of the few is the start, the end included. A figure that has
    both depends on how many tasks are measured.
    """

    def __init__(self, few: int, many: int, rounds: int, ways: dict[str, Callable[[int], tuple[float, float]]]) -> None:
        took: dict[tuple[str, int], list[tuple[float, float]]] = collections.defaultdict(list)
        for _ in range(rounds):
            for name, way in ways.items():
                for tasks in (few, many):
                    took[name, tasks].append(way(tasks))
        self.each: dict[str, tuple[float, float]] = {}
        """Seconds and CPU seconds of a task more."""
        self.start: dict[str, tuple[float, float]] = {}
        """Seconds and CPU seconds of the start."""
        for name in ways:
            less, more = ([statistics.median(one) for one in zip(*took[name, n], strict=True)] for n in (few, many))
            each = [(b - a) / (many - few) for a, b in zip(less, more, strict=True)]
            self.each[name] = each[0], each[1]
            self.start[name] = less[0] - few * each[0], less[1] - few * each[1]

    def rows(self, unit: str, scale: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (wall, cpu) in self.each.items():
            found[f"{unit} a task, {name}"] = (wall * scale, cpu * scale)
            found[f"s of its start, {name}"] = self.start[name]
        return found

    def ratio(self, name: str, to: str) -> tuple[float, float]:
        """Return how many times longer a task takes, and how many times more processor time, in the steady state."""
        return self.each[name][0] / self.each[to][0], self.each[name][1] / self.each[to][1]


def commands(place: Path, few: int, many: int, rounds: int) -> dict[str, Any]:
    """`true`, four at a time, by workers and others. In turns, the medians."""
    queue = fsqueue.Queue.create(place / "commands")
    run = [*FSQUEUE, "run", str(queue.path)]

    def piped(*command: str) -> Callable[[int], tuple[float, float]]:
        def way(tasks: int) -> tuple[float, float]:
            numbers = "".join(f"{n}\n" for n in range(tasks))
            return measured(
                lambda: subprocess.run(command, input=numbers, text=True, stdout=subprocess.DEVNULL, check=True)
            )

        return way

    def filled(*lines: list[str]) -> Callable[[int], tuple[float, float]]:
        def way(tasks: int) -> tuple[float, float]:
            queue.insert_many(range(tasks))
            return measured(lambda: together(*lines))

        return way

    ways = {
        "4 workers": filled(*[[*run, "--", "true"]] * 4),
        "1 worker, -j 4": filled([*run, "-j", "4", "--", "true"]),
        "xargs -P 4": piped("xargs", "-P", "4", "-n", "1", "true"),
    }
    if shutil.which("parallel"):
        ways["parallel -j4"] = piped("parallel", "--will-cite", "-j4", "true", "{}")
    apart = Apart(few, many, rounds, ways)
    found = apart.rows("ms", 1000)
    for name in ("1 worker, -j 4", "4 workers"):
        found[f"ratio to xargs, {name} (at most 1.6)"] = apart.ratio(name, "xargs -P 4")
    if "parallel -j4" in ways:
        found["ratio to parallel, 4 workers (below 1)"] = apart.ratio("4 workers", "parallel -j4")
    else:
        found["ratio to parallel, 4 workers (below 1)"] = "GNU parallel is not installed"
    return found


def handlers(place: Path, few: int, many: int, rounds: int) -> dict[str, Any]:
    """Handlers that do nothing, beside leasing one and completing it in one process. In turns, the medians."""
    queue = fsqueue.Queue.create(place / "handlers")

    def bare() -> None:
        while leased := queue.lease():
            leased[0].complete()

    def filled(action: Callable[[], object]) -> Callable[[int], tuple[float, float]]:
        def way(tasks: int) -> tuple[float, float]:
            queue.insert_many(range(tasks))
            return measured(action)

        return way

    apart = Apart(
        few, many, rounds,
        {
            "bare lease 1 + complete": filled(bare),
            "1 process": filled(lambda: fsqueue.Worker(queue, nothing).run()),
            "2 processes": filled(lambda: fsqueue.Worker(queue, nothing, processes=2).run()),
        },
    )  # fmt: skip
    found = apart.rows("us", 1e6)
    found["CPU us a task, 1 process (at most 25)"] = apart.each["1 process"][1] * 1e6
    found["ratio to bare, 1 process (at most 1.6)"] = apart.ratio("1 process", "bare lease 1 + complete")
    return found


def idle(place: Path, workers: int, settle_s: float, watch_s: float) -> dict[str, Any]:
    """What idle workers ask of the file system, and how soon one of them begins what is inserted."""
    queue = fsqueue.Queue.create(place / "idle")
    queue.insert(0)
    subprocess.run([*FSQUEUE, "run", str(queue.path), "--", "true"], check=True, stderr=subprocess.DEVNULL)
    pids = []
    for _ in range(workers):
        pid = os.fork()
        if not pid:
            fsqueue.Worker(queue, command=["sh", "-c", 'date +%s.%N >> "$1"', "sh", "{}"], until="forever").run()
            os._exit(0)
        pids.append(pid)
    found: dict[str, Any] = {"workers": workers, "longest pause, s": BELL_S[1] * 1.25}
    try:
        time.sleep(settle_s)
        if shutil.which("strace"):
            watched = pids[:: max(1, workers // 10)]
            count = place / "calls"
            options = [option for pid in watched for option in ("-p", str(pid))]
            subprocess.run(
                [
                    "timeout",
                    str(watch_s),
                    "strace",
                    "-qq",
                    "-f",
                    "-e",
                    f"trace={FILE_CALLS}",
                    "-o",
                    str(count),
                    *options,
                ],
                stderr=subprocess.DEVNULL,
            )
            calls = len(count.read_text().splitlines())
            found["file calls a second each (below 1)"] = calls / watch_s / len(watched)
        else:
            found["file calls a second each (below 1)"] = "strace is not installed"
        waits = []
        for number in range(5):
            log = place / f"started-{number}"
            began = time.time()
            queue.insert(str(log))
            while not (log.exists() and log.read_text().endswith("\n")):
                time.sleep(0.005)
            waits.append(float(log.read_text()) - began)
        found["s from insert to start, of 5 the longest"] = max(waits)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return found


def killed(place: Path, lease_s: float) -> dict[str, Any]:
    """How long after a worker was killed the last of its tasks is executed again."""
    found: dict[str, Any] = {"lease, s": lease_s}
    for how in ("by its fork server", "when the leases end", "with --release-dead"):
        queue = fsqueue.Queue.create(
            place / how.replace(" ", "-"), lease_s=lease_s if how == "when the leases end" else 600
        )
        log = place / f"log-{how}"
        queue.insert_many(({"log": str(log), "n": n, "s": 0.05} for n in range(40)), batch_tasks=20)
        run = [*FSQUEUE, "run", str(queue.path), "--call", "worker_figures:note"]
        first = subprocess.Popen([*run, "-j", "4", "--prefetch", "5"], stderr=subprocess.DEVNULL)
        while queue.status().leased < 15:
            time.sleep(0.02)
        if how != "by its fork server":
            for server in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split():
                os.kill(int(server), signal.SIGKILL)
        first.kill()
        first.wait()
        began = time.time()
        if how == "with --release-dead":
            ended = subprocess.run(
                [*FSQUEUE, "workers", str(queue.path), "--release-dead"], capture_output=True, text=True
            )
            if ended.returncode == 2:
                found[f"s from the kill to the last task, {how}"] = "this fsqueue has no 'workers' command"
                continue
        subprocess.run([*run, "-j", "4"], check=True, stderr=subprocess.DEVNULL)
        last = max(float(line.split()[1]) for line in log.read_text().splitlines())
        found[f"s from the kill to the last task, {how}"] = last - began
    return found


def once(place: Path, tasks: int) -> dict[str, Any]:
    """How many tasks are executed twice, by eight workers, none of which is killed."""
    queue = fsqueue.Queue.create(place / "once")
    log = place / "once.log"
    queue.insert_many(({"log": str(log), "n": n} for n in range(tasks)), total=tasks)
    run = [*FSQUEUE, "run", str(queue.path), "--call", "worker_figures:note"]
    took = seconds(lambda: together(*[run] * 8))
    counts = collections.Counter(line.split()[0] for line in log.read_text().splitlines())
    return {
        "tasks": tasks,
        "executed": len(counts),
        "executed twice (0)": sum(count > 1 for count in counts.values()),
        "tasks a second": tasks / took,
    }


def row(what: str, value: Any) -> str:
    """Return a line of the table. A pair is of time and of processor time."""
    columns = value if isinstance(value, tuple) else (value,)
    return f"  {what:48} " + " ".join(f"{one:12,.3f}" if isinstance(one, float) else f"{one!s:>12}" for one in columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where the queues are made")
    parser.add_argument("--only", action="append", help="one of: commands, handlers, idle, killed, once (repeatable)")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    quick = options.quick
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    figures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "commands": lambda place: commands(place, *((20, 60, 1) if quick else (200, 1200, 5))),
        "handlers": lambda place: handlers(place, *((500, 2000, 1) if quick else (500, 20_500, 3))),
        "idle": lambda place: idle(place, 4 if quick else 200, 1 if quick else 60, 2 if quick else 60),
        "killed": lambda place: killed(place, 2 if quick else 10),
        "once": lambda place: once(place, 1000 if quick else 100_000),
    }
    unknown = set(options.only or ()) - figures.keys()
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}")
    found: dict[str, dict[str, Any]] = {}
    if not options.json:
        print(f"commit {commit()}\n{'':50} {'time':>12} {'CPU':>12}")
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="fsqueue-figures-") as place:
        for name, figure in figures.items():
            if name in (options.only or figures):
                found[name] = figure(Path(place))
                if not options.json:
                    print(name, flush=True)
                    for what, value in found[name].items():
                        print(row(what, value), flush=True)
    if options.json:
        print(json.dumps({"commit": commit(), **found}))


if __name__ == "__main__":
    main()
