"""The demonstration: queue real files, let several processes work, kill one, and check that nothing is missing.

Every source file of this machine's Python standard library becomes a task. Worker processes (work.py) write down
each file's SHA-256 and number of lines. Half-way one worker is killed with SIGKILL while it holds tasks; they come back
when their leases end, and the others do them. At the end the results are compared with what coreutils say (check.py).
"""

from __future__ import annotations

import argparse
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from check import compare, measure_with_coreutils, read_results

from fsqueue import FsqueueError, Movement, Queue, Status, TaskInfo

LEASE_S = 3
"""Short, so that a killed worker's tasks come back soon."""

RUN_S = 4.0
"""About how long the undisturbed work is to take: each task is stretched accordingly, for us to watch and interfere."""

GIVE_UP_S = 300
"""A run that takes longer than this has gone wrong."""

SHOWN_MAX = 3
"""How many of the killed worker's tasks are shown with their history; all are checked."""


class Worker:
    """One worker process and the file it writes results to."""

    def __init__(self, name: str, queue: Path, results: Path, pace_s: float) -> None:
        self.name = name
        self.results = results
        results.touch()
        script = Path(__file__).with_name("work.py")
        command = [sys.executable, str(script), str(queue), str(results), f"{pace_s:.6f}"]
        self.process = subprocess.Popen(command, process_group=0)  # a Ctrl-C is for the coordinator

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def standard_library() -> tuple[Path, list[str]]:
    """Where the standard library is, and its source files; nothing that was installed beside it."""
    root = Path(sysconfig.get_path("stdlib")).resolve()
    installed = {"site-packages", "dist-packages"}
    files = (path for path in root.rglob("*.py") if path.is_file() and installed.isdisjoint(path.parts))
    return root, sorted(map(str, files))


def held_by(queue: Queue, worker: Worker) -> list[TaskInfo]:
    """The tasks whose leases, by their movement logs, belong to this process."""
    return [task for task in queue.tasks("leased") if task.worker and task.worker["pid"] == worker.pid]


def kill_one_that_holds_tasks(queue: Queue, workers: Sequence[Worker]) -> tuple[Worker | None, list[TaskInfo]]:
    """Kill a worker that provably holds tasks: stop it, so that it can't finish them meanwhile, look, and kill it."""
    for worker in workers:
        worker.process.send_signal(signal.SIGSTOP)
        if held := held_by(queue, worker):
            worker.process.kill()
            worker.process.wait()
            return worker, held
        worker.process.send_signal(signal.SIGCONT)
    return None, []


class Display:
    """What the reader sees: a progress line that is redrawn on a terminal, and written at each tenth elsewhere."""

    def __init__(self) -> None:
        self.started = time.time()
        self.live = sys.stdout.isatty()
        self.last = ""

    def since_start(self, at: float | None = None) -> str:
        return f"{(time.time() if at is None else at) - self.started:6.2f} s"

    def progress(self, status: Status) -> None:
        tenths = status.completed * 10 // max(status.inserted, 1)
        state = f"{tenths} {status.leased} {status.completed}" if self.live else f"{tenths}"
        if state == self.last:
            return
        self.last = state
        bar = "#" * (2 * tenths) + "." * (20 - 2 * tenths)
        line = f"  {self.since_start()}  [{bar}] {status.completed} of {status.inserted} done, {status.leased} leased"
        print(f"\r{line:<78}" if self.live else line, end="" if self.live else "\n", flush=True)

    def note(self, text: str) -> None:
        line = f"  {self.since_start()}  {text}"
        print(f"\r{line:<78}" if self.live else line, flush=True)


def story(movements: Sequence[Movement], names: dict[int, str], display: Display) -> Iterator[str]:
    """A task's history, a line each; an expiry is no record, it is what a lease's end means without one."""
    for number, movement in enumerate(movements):
        who = names.get((movement.worker or {}).get("pid", 0), "")
        text = {"insert": "inserted", "lease": f"leased by {who}", "complete": "completed"}.get(
            movement.op, movement.op
        )
        yield f"{display.since_start(movement.at)}  {text}"
        after = movements[number + 1].op if number + 1 < len(movements) else None
        if movement.op == "lease" and after == "lease" and movement.until is not None:
            yield f"{display.since_start(movement.until)}  lease expired"


def was_taken_over(movements: Sequence[Movement], killed: int) -> bool:
    """Leased by the killed process; leased by another once that lease had ended; completed by that one."""
    leases = [movement for movement in movements if movement.op == "lease"]
    completions = [movement for movement in movements if movement.op == "complete"]
    lost = [lease for lease in leases if lease.worker and lease.worker["pid"] == killed]
    if not lost or len(completions) != 1 or not leases[-1].worker or lost[-1].until is None:
        return False
    return (
        leases[-1].worker["pid"] != killed
        and leases[-1].at >= lost[-1].until
        and completions[0].lease == leases[-1].lease
    )


@contextmanager
def working_directory(parent: str | None, keep: bool) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="fsqueue-demo-", dir=parent))
    try:
        yield directory
    finally:
        if keep:
            print(f"\nkept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def work_through(queue: Queue, workers: Sequence[Worker], display: Display) -> tuple[Worker | None, list[TaskInfo]]:
    """Watch until every worker has ended; half-way, kill one. Returns that one, and the tasks it held."""
    killed: Worker | None = None
    held: list[TaskInfo] = []
    give_up = time.monotonic() + GIVE_UP_S
    while any(worker.process.poll() is None for worker in workers):
        status = queue.status()
        display.progress(status)
        if killed is None and 2 * status.completed >= status.inserted and not status.drained:
            killed, held = kill_one_that_holds_tasks(queue, workers)
            if killed:
                display.note(f"killed {killed} with SIGKILL; it held {len(held)} tasks")
        if time.monotonic() > give_up:
            sys.exit(f"the workers are not done after {GIVE_UP_S} s; the queue says {queue.status()}")
        time.sleep(0.02)
    display.progress(queue.status())
    if display.live:
        print()
    return killed, held


def report(
    queue: Queue,
    files: Sequence[str],
    workers: Sequence[Worker],
    killed: Worker,
    held: Sequence[TaskInfo],
    display: Display,
) -> bool:
    """Show and check everything; True if all of it agrees."""
    names = {worker.pid: str(worker) for worker in workers}
    print(f"\nWhat happened to the {len(held)} tasks that {killed} held\n")
    histories = {task.id: queue.history(task.id) for task in held}
    for task in held[:SHOWN_MAX]:
        print(f"  task {task.id}: {Path(task.payload['path']).name}")
        for line in story(histories[task.id], names, display):
            print(f"    {line}")
    if len(held) > SHOWN_MAX:
        print(f"  … and {len(held) - SHOWN_MAX} more, checked below")

    print("\nWho did how much\n")
    for worker in workers:
        lines = worker.results.read_bytes().count(b"\n")
        print(f"  {worker}: {lines} results{', until it was killed' if worker is killed else ''}")

    status = queue.status()
    results = read_results(worker.results for worker in workers)
    disagreements = compare(measure_with_coreutils(files), results)
    lines_total = sum(lines for _, lines in results.found.values())
    taken_over = sum(was_taken_over(movements, killed.pid) for movements in histories.values())
    survivors = [worker for worker in workers if worker is not killed]
    print("\nChecks\n")
    checks = [
        (len(files) == len(results.found), f"{len(files)} files queued, {len(results.found)} processed"),
        (
            not disagreements,
            f"hashes and {lines_total:,} lines agree with sha256sum and wc -l ({results.repeats} files done twice)",
        ),
        (status.inserted == len(files), f"the queue counts {status.inserted} tasks inserted"),
        (status.completed == len(files), f"the queue counts {status.completed} tasks completed"),
        (
            status.drained,
            f"nothing is left: {status.waiting} waiting, {status.delayed} delayed, {status.leased} leased",
        ),
        (status.dead == 0, f"no task was given up: {status.dead} dead"),
        (killed.process.returncode == -signal.SIGKILL, f"{killed} ended by signal {-killed.process.returncode}"),
        (
            0 < taken_over == len(held),
            f"of its {len(held)} tasks, {taken_over} expired, were leased by another and done",
        ),
        (not any(w.process.returncode for w in survivors), "the other workers ended by themselves, without an error"),
    ]
    for right, text in checks:
        print(f"  {'ok   ' if right else 'WRONG'}  {text}")
    for disagreement in disagreements[:20]:
        print(f"         {disagreement}")
    return all(right for right, _ in checks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="worker processes, at least 2 (default: 4)")
    parser.add_argument("--dir", help="where to make the working directory, say on a network mount")
    parser.add_argument("--keep", action="store_true", help="keep the queue and the results, to look at")
    parser.add_argument("--limit", type=int, help="take only the first so many files")
    options = parser.parse_args()
    if options.workers < 2:
        parser.error("--workers must be at least 2: one is killed, another takes over")
    if options.dir is not None and not Path(options.dir).is_dir():
        parser.error(f"--dir {options.dir} is not a directory")
    if options.limit is not None and options.limit < 10 * options.workers:
        parser.error("--limit must leave each worker 10 files, or there is no half-way to kill one at")

    root, files = standard_library()
    files = files[: options.limit]
    pace_s = RUN_S * options.workers / len(files)
    with working_directory(options.dir, options.keep) as directory:
        print(f"fsqueue: SHA-256 and line counts of the standard library of Python {platform.python_version()}\n")
        display = Display()
        with Queue.create(directory / "queue", lease_s=LEASE_S) as queue:
            inserted = queue.insert_many({"path": path} for path in files)
            print(f"  files    {inserted}, below {root}")
            print(f"  queue    {queue.path}, leases of {LEASE_S} s")
            workers = []
            try:
                for number in range(1, options.workers + 1):
                    results = directory / f"results-{number}.jsonl"
                    workers.append(Worker(f"worker {number}", queue.path, results, pace_s))
                pids = ", ".join(str(worker.pid) for worker in workers)
                print(f"  workers  {len(workers)} processes: {pids}; a task takes at least {pace_s * 1000:.0f} ms\n")
                killed, held = work_through(queue, workers, display)
            finally:
                for worker in workers:
                    worker.process.kill()
                    worker.process.wait()
            if killed is None:
                print("\nThe work was done before a worker could be killed: give it more files.")
                return 1
            agreed = report(queue, files, workers, killed, held, display)
    print("\nEverything agrees." if agreed else "\nSomething does not agree: see above.")
    return 0 if agreed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended, and the files removed
    try:
        sys.exit(main())
    except FsqueueError as error:
        sys.exit(f"scripts/demo: {error}")
    except KeyboardInterrupt:
        sys.exit("\nscripts/demo: interrupted")
