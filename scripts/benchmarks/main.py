"""scripts/bench: measures fsqueue beside other queues and beside the bare system calls, in one run."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine, peers
from benchmarks.campaign import STEPS, Campaign, Plan
from benchmarks.launch import Launcher, StepFailed
from benchmarks.order.campaign import GROUPS
from benchmarks.systems import BY_NAME, ENTRIES

SIZES = [10_000, 100_000, 1_000_000]
QUICK_SIZES = [1_000, 10_000]
QUICK_SYSTEMS = ("fsqueue", "floor", "fsqueue-nohistory", "task-queue", "dirq", "huey", "huey-nosync")


def _whole_numbers(text: str) -> list[int]:
    try:
        sizes = sorted({int(part.replace("_", "")) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 10000,100000") from None
    if not sizes or sizes[0] < 100:
        raise argparse.ArgumentTypeError("a queue to be measured needs at least 100 tasks")
    return sizes


def _names(known: list[str]) -> Any:
    def parse(text: str) -> list[str]:
        wanted = text.split(",")
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not known; there are {', '.join(known)}")
        return [name for name in known if name in wanted]

    return parse


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure fsqueue beside task-queue, dirq, huey, Redis, and a bare loop of the same system calls.",
        epilog=f"{', '.join(GROUPS)}, each as a first argument, measure priorities and keys: scripts/bench pei "
        "--help. Steps for --only: " + "; ".join(f"{name}: {text}" for name, text in STEPS.items()) + ". "
        "systems for --systems: " + ", ".join(entry.name for entry in ENTRIES) + ".",
    )
    made.add_argument("--sizes", type=_whole_numbers, metavar="N,N", help="tasks in the queue (10000,100000,1000000)")
    made.add_argument("--only", type=_names(list(STEPS)), metavar="STEP,STEP", help="only these steps")
    made.add_argument(
        "--systems", type=_names([entry.name for entry in ENTRIES]), metavar="NAME,NAME", help="only these systems"
    )
    made.add_argument(
        "--peers",
        choices=["all", "none"],
        default="all",
        help="none: fsqueue and the floor alone; nothing is installed",
    )
    made.add_argument("--quick", action="store_true", help="small queues and one round: about a minute")
    made.add_argument(
        "--nfs",
        action="store_true",
        help="count the calls to a real NFS server for a task, and nothing else (scripts/lab; as root)",
    )
    made.add_argument("--repeat", type=int, metavar="K", help="rounds (3)")
    made.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="for filling a slow system's queue, and for all its rounds of a size (120)",
    )
    made.add_argument("--dir", metavar="DIR", help="measure below this directory (the system's temporary directory)")
    made.add_argument("--json", metavar="FILE", help="write all that was measured")
    made.add_argument(
        "--docs",
        metavar="DIR",
        help="write benchmarks.md and its plots there (docs/ after a full run; else the tables are printed)",
    )
    made.add_argument(
        "--from", dest="source", metavar="FILE", help="measure nothing: make tables and plots of an earlier --json FILE"
    )
    made.add_argument("--venv", type=Path, metavar="DIR", help=f"the peers' virtualenv ({peers.default_place()})")
    return made


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _plan(options: argparse.Namespace) -> Plan:
    systems = options.systems or [entry.name for entry in ENTRIES if not options.quick or entry.name in QUICK_SYSTEMS]
    if options.peers == "none":
        systems = [entry.name for entry in ENTRIES if entry.name in systems and not entry.peer]
    plan = Plan(
        sizes=options.sizes or (QUICK_SIZES if options.quick else SIZES),
        systems=systems,
        steps=options.only or list(STEPS),
        repeat=options.repeat or (1 if options.quick else 3),
        budget_s=options.budget or (10 if options.quick else 120),
    )
    if options.sizes or options.quick:
        plan.alive_tasks = max(plan.sizes)
    if options.quick:
        plan.many_tasks = plan.mixed_tasks = plan.drain_tasks
        plan.wake_workers, plan.wake_idle_s = 4, (0.3,)
        plan.settle = False
    return plan


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-"):
        from benchmarks.order import main as order

        return order.main(arguments)
    options = parser().parse_args(arguments)
    if options.source:
        made = json.loads(Path(options.source).read_text(encoding="utf-8"))
        _publish(options, made["facts"], made["rows"], Path(options.docs) if options.docs else None)
        return 0
    if options.nfs:
        return _count_calls(options)
    partial = options.quick or options.sizes or options.only or options.systems or options.peers == "none"
    docs = Path(options.docs) if options.docs else None if partial else machine.ROOT / "docs"
    plan = _plan(options)
    try:
        facts, rows = _measure(options, plan)
    except (StepFailed, subprocess.CalledProcessError, OSError) as error:
        _say(f"stopped: {error}")
        return 1
    _publish(options, facts, rows, docs)
    return 0


def _count_calls(options: argparse.Namespace) -> int:
    from benchmarks import calls

    try:
        wanted = options.peers != "none"
        found = calls.measure(peers.prepare(options.venv or peers.default_place(), _say) if wanted else None)
    except (subprocess.CalledProcessError, OSError) as error:
        _say(f"stopped: {error}")
        return 1
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(calls.markdown(found))
    _say(f"wrote {calls.write(Path(options.docs) if options.docs else machine.ROOT / 'docs', found)}")
    return 0


def _own_version() -> str | None:
    """fsqueue's version as its workers will find it; None (and the reason on standard error) if they will not."""
    paths = os.pathsep.join([str(machine.ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", "import fsqueue; print(fsqueue.__version__)"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _measure(options: argparse.Namespace, plan: Plan) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    _say(f"commit {machine.commit()}")
    own_version = _own_version()
    if own_version is None and any(not entry.peer for entry in ENTRIES if entry.name in plan.systems):
        raise StepFailed("this Python cannot import fsqueue; run scripts/bench with one that has its dependencies")
    python = None
    versions = {"fsqueue": own_version or "none", **peers.versions(sys.executable, ["orjson"])}
    if any(name in plan.systems for name in (entry.name for entry in ENTRIES if entry.peer)):
        python = peers.prepare(options.venv or peers.default_place(), _say)
        versions |= peers.versions(python, peers.PACKAGES)
        if (redis := peers.redis_version()) is not None:
            versions["redis-server"] = redis
        elif any(BY_NAME[name].module == "redis_" for name in plan.systems):
            _say(peers.NO_REDIS)
    directory = tempfile.mkdtemp(prefix="fsqueue-bench-", dir=options.dir)
    try:
        kind, flags = machine.mount_of(directory)
        _say(f"measuring in {directory}, on {kind} ({flags})")
        facts = machine.facts(directory, versions)
        facts["in_memory"] = kind in machine.MEMORY_FILESYSTEMS
        if facts["in_memory"]:
            _say(f"WARNING: {kind} is memory: syncing costs nothing there. Give a directory on a disk with --dir.")
        begin = time.monotonic()
        rows = Campaign(plan, Launcher(python, os.path.join(directory, "bytecode")), directory, _say).run()
        facts["took_s"] = round(time.monotonic() - begin)
        _say(f"done in {facts['took_s']} s")
        return facts, rows
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _publish(options: argparse.Namespace, facts: dict[str, Any], rows: list[dict[str, Any]], docs: Path | None) -> None:
    from benchmarks import report  # it draws, and what that takes is not there for --help

    if options.json:
        lines = ",\n".join("  " + json.dumps(row) for row in rows)
        content = f'{{\n "facts": {json.dumps(facts)},\n "rows": [\n{lines}\n ]\n}}\n'
        content = f'{{\n "facts": {json.dumps(facts)},\n "rows": [\n{lines}\n ]\n}}\n'
        Path(options.json).write_text(content, encoding="utf-8")
        _say(f"wrote {options.json}")
    if docs is None:
        print(report.markdown(facts, rows))
    else:
        for path in report.write(docs, facts, rows):
            _say(f"wrote {path}")
