"""scripts/bench order, keys, pei, taskmaster: the benchmarks of priorities and keys."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.launch import Launcher, StepFailed
from benchmarks.order import report
from benchmarks.order.campaign import GROUPS, Campaign, Plan, quick

ALL = "ordered"
"""All groups together."""


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure priorities and keys.",
        epilog="; ".join(f"{name}: {text}" for name, text in GROUPS.items()) + f"; {ALL}: all of these.",
    )
    made.add_argument("groups", nargs="+", choices=[*GROUPS, ALL], metavar="GROUP", help=", ".join([*GROUPS, ALL]))
    made.add_argument("--quick", action="store_true", help="small queues and one round: about a minute for all")
    made.add_argument("--repeat", type=int, metavar="K", help="rounds of what ratios are made of (3)")
    made.add_argument("--seed", type=int, default=1, metavar="N", help="of the random priorities (1)")
    made.add_argument("--dir", metavar="DIR", help="measure below this directory (the system's temporary directory)")
    made.add_argument("--json", metavar="FILE", help="write all that was measured")
    made.add_argument(
        "--docs",
        metavar="DIR",
        help=f"write {report.PAGE} and its plots there (docs/ after a full run of all; else the tables are printed)",
    )
    made.add_argument(
        "--from", dest="source", metavar="FILE", help="measure nothing: make tables and plots of an earlier --json FILE"
    )
    return made


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Run; return the exit code."""
    options = parser().parse_args(arguments)
    groups = [name for name in GROUPS if name in options.groups or ALL in options.groups]
    docs = Path(options.docs) if options.docs else None
    if options.source:
        made = json.loads(Path(options.source).read_text(encoding="utf-8"))
        facts, rows = made["facts"], made["rows"]
    else:
        if docs is None and groups == list(GROUPS) and not options.quick:
            docs = machine.ROOT / "docs"
        plan = quick(groups) if options.quick else Plan(groups)
        plan.seed, plan.repeat = options.seed, options.repeat or plan.repeat
        try:
            facts, rows = _measure(plan, options.dir)
        except (StepFailed, OSError) as error:
            _say(f"stopped: {error}")
            return 1
    if options.json and not options.source:
        report.write_json(Path(options.json), facts, rows)
        _say(f"wrote {options.json}")
    if docs is None:
        print(report.markdown(facts, rows))
    else:
        for path in report.write(docs, facts, rows):
            _say(f"wrote {path}")
    return 0


def _measure(plan: Plan, where: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    import fsqueue

    directory = tempfile.mkdtemp(prefix="fsqueue-bench-", dir=where)
    try:
        kind, flags = machine.mount_of(directory)
        _say(f"measuring in {directory}, on {kind} ({flags})")
        facts = machine.facts(directory, {"fsqueue": fsqueue.__version__})
        facts |= {"in_memory": kind in machine.MEMORY_FILESYSTEMS, "seed": plan.seed}
        if facts["in_memory"]:
            _say(f"WARNING: {kind} is memory: syncing costs nothing there. Give a directory on a disk with --dir.")
        begin = time.monotonic()
        rows = Campaign(plan, Launcher(None, os.path.join(directory, "bytecode")), directory, _say).run()
        rows.insert(0, {"step": "cores", "cores": facts["cores"]})
        facts["took_s"] = round(time.monotonic() - begin)
        _say(f"done in {facts['took_s']} s")
        return facts, rows
    finally:
        shutil.rmtree(directory, ignore_errors=True)
