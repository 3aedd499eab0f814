"""The results as Markdown: figures to reach, speed, ratios, latencies, memory, inodes, what was not run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from benchmarks import plot
from benchmarks.figures import Figure, figures, idle_workers, rank_ms
from benchmarks.summary import Summary
from benchmarks.systems import BY_NAME, ENTRIES

BEGIN, END = "<!-- results: scripts/bench writes what follows -->", "<!-- end of the results -->"
IDLE_BEGIN, IDLE_END = "<!-- idle workers: scripts/bench --only wake writes what follows -->", "<!-- end of those -->"
COSTS, LATENCIES = "benchmarks-cost.svg", "benchmarks-latency.svg"

SPEED = {
    "insert": "Insert many",
    "insert_one": "Insert one at a time",
    "lease_one": "Lease 1 + complete",
    "loop": "The work loop",
    "lease_many": "Lease 100 + complete",
    "leased": "Lease 1 + complete while 60 % of the tasks are leased",
}


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits, thousands set apart."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        digits = max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value, -digits):,.0f}{unit}"
    return f"{value:.3g}{unit}"


def ratio(value: float | None) -> str:
    """A ratio: one digit below 10, whole above."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 1 else f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, first column left, the others right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def markdown(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """All of it."""
    rest, idle = _apart(rows)
    made = [_queues(facts, rest)] if rest or not idle else []
    return "\n".join([*made, *([_idle(facts, idle)] if idle else [])])


def _apart(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows without those of idle workers, which have a place of their own, and those."""
    return [row for row in rows if row["step"] != "wake"], [row for row in rows if row["step"] == "wake"]


def _idle(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Idle workers, measured in one run or apart: what was to be reached, and each case."""
    what = (
        "From an insert on the same host to the start of the task, in milliseconds. The CPU time is that of an idle "
        "worker, with its share of the inserts."
    )
    parts = ["## Idle workers", _facts(facts, rows), _figures(idle_workers(Summary(rows))), what, _wake(rows)]
    return "\n\n".join(map(_broken, filter(None, parts))) + "\n"


def _queues(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """All but idle workers."""
    summary = Summary(rows)
    apart = {figure.what for figure in idle_workers(summary)}
    parts = [
        _facts(facts, rows),
        "## Figures to reach\n\n" + _figures([one for one in figures(summary) if one.what not in apart]),
        "## Speed\n\nTasks a second; in brackets, how many times that rate fsqueue's is (below 1: fsqueue is slower).",
        *(f"### {title}\n\n{made}" for step, title in SPEED.items() if (made := _speed(summary, step))),
        _section(
            "### Over the floor\n\nfsqueue's time over that of the bare system calls, which do no more than follow it.",
            _floor(summary),
        ),
        _section(
            "### Processor time\n\nMicroseconds a task, user and system, of the process that does the step; in "
            "brackets, over fsqueue's. What a server does (Redis) is not in it.",
            _cpu(summary),
        ),
        _section("### Status", _status(summary)),
        _section(
            "### Delete\n\nUntil the call returns, and until the disk is free of it, as time a task.", _delete(summary)
        ),
        _section(
            "## Latency\n\nMicroseconds, one call. What huey calls a dequeue stands as its lease.", _latency(summary)
        ),
        _section(
            "## Memory and inodes\n\nOf the process that inserts; files and directories in the whole tree.",
            _memory(summary),
        ),
        _section("## Eight processes", _together(summary)),
        _section(
            "## What is not alive\n\nOne command in a process of its own, start included. activity: after so many "
            "tasks were completed in bulk. zeros: 1 GiB behind a log, then 128 MiB behind other files.",
            _alive(rows),
        ),
        _section("## Not run, or not on all tasks", _not_run(summary)),
    ]
    return "\n\n".join(map(_broken, filter(None, parts))) + "\n"


def _broken(part: str) -> str:
    """Return a part with its prose broken at 100 columns, as all pages are."""
    return "\n\n".join(
        each if each.startswith(("|", "#", "!", "-")) or max(map(len, each.split("\n"))) <= 100 else _filled(each)
        for each in part.split("\n\n")
    )


def _filled(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _alive(rows: list[dict[str, Any]]) -> str:
    found: dict[tuple[str, int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["step"] == "alive" and "command" in row:
            found.setdefault((row["case"], row["size"], row["number"], row["command"]), []).append(row)
    lines = [
        [f"{case}, {size:,} tasks: {command}", *(number(median([row[key] for row in each])) for key in ALIVE)]
        for (case, size, _, command), each in found.items()
    ]
    return table(["command", *ALIVE.values()], lines) if lines else ""


def _wake(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            f"{row['system']}, {row['case']}, idle for {row['idle_s']:g} s",
            str(len(row["samples_us"])),
            *(f"{rank_ms(row['samples_us'], percent):.1f}" for percent in (50, 90, 99, 100)),
            f"{row['cpu_ms_a_s']:.2f}",
        ]
        for row in rows
        if row["step"] == "wake" and row.get("samples_us")
    ]
    return table(["worker", "samples", "p50", "p90", "p99", "max", "CPU ms a second"], lines) if lines else ""


ALIVE = {"seconds": "seconds", "cpu_s": "CPU seconds", "memory_mb": "peak MB"}


def _section(title: str, body: str) -> str:
    return f"{title}\n\n{body}" if body else ""


def _facts(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    rounds = max((row.get("round", 0) for row in rows), default=0)
    machine = f"{facts['cores']} cores ({facts['cpu']}), {facts['memory_gb']:.0f} GB, {facts['kernel']}"
    lines = [
        f"Measured on {facts['date']} at commit {facts['commit']}: {machine},",
        f"{facts['filesystem']} ({facts['mount_options']}), Python {facts['python']}; {versions}.",
        f"200-byte tasks; medians of up to {rounds} round{'s' if rounds != 1 else ''}.",
        f"What else the machine had to do when it began, as load average: {facts.get('load_average', 'unknown')}.",
    ]
    text = fill(" ".join(lines), 100, break_long_words=False, break_on_hyphens=False)
    if facts.get("in_memory"):
        text += (
            f"\n\n**{facts['filesystem']} is memory: nothing was written to a disk, and syncing costs nothing there.**"
        )
    return text


def _figures(found: list[Figure]) -> str:
    said = {True: "reached", False: "**not reached**", None: "not measured"}
    rows = [
        [figure.what, figure.wanted, figure.measured if figure.reached is not None else "–", said[figure.reached]]
        for figure in found
    ]
    return table(["what", "wanted", "measured", ""], rows)


def _named(size: int) -> str:
    return f"{size:,}" if size else "any size"


def _grid(summary: Summary, step: str, cell: Callable[[str, int], str], heading: str = "") -> str:
    sizes = summary.sizes(step)
    rows = []
    for entry in ENTRIES:
        cells = [cell(entry.name, size) for size in sizes]
        if any(text != "–" for text in cells):
            title = f"**{entry.title}**" if entry.name == "fsqueue" else entry.title
            rows.append([title, *cells])
    if not rows:
        return ""
    return table([heading or "tasks in the queue", *map(_named, sizes)], rows)


def _speed(summary: Summary, step: str) -> str:
    def cell(system: str, size: int) -> str:
        rate = summary.rate(system, step, size)
        if rate is None:
            return "not run" if summary.not_run(system, step, size) else "–"
        sample = " (sample)" if any("note" in row for row in summary.rounds(system, step, size)) else ""
        times = "" if system == "fsqueue" else f" ({ratio(summary.times(system, step, size))}×)"
        return number(rate) + times + sample

    return _grid(summary, step, cell)


def _floor(summary: Summary) -> str:
    rows = []
    sizes = sorted({size for step in SPEED for size in summary.sizes(step, "floor")})
    for step, title in SPEED.items():
        cells = [ratio(1 / times) if (times := summary.times("floor", step, size)) else "–" for size in sizes]
        if any(cell != "–" for cell in cells):
            rows.append([title, *cells])
    return table(["", *map(_named, sizes)], rows) if rows else ""


def _cpu(summary: Summary) -> str:
    """The steps side by side, each at the largest size at which fsqueue was measured."""
    sizes = {step: found[-1] for step in SPEED if (found := summary.sizes(step, "fsqueue"))}
    rows = []
    for entry in ENTRIES:
        cells = []
        for step, size in sizes.items():
            found, mine = summary.cpu_us(entry.name, step, size), summary.cpu_us("fsqueue", step, size)
            times = f" ({ratio(found / mine)}×)" if found and mine and entry.name != "fsqueue" else ""
            cells.append(number(found) + times)
        if any(cell != "–" for cell in cells):
            rows.append([entry.title, *cells])
    heads = [f"{SPEED[step]}, {_named(size)}" for step, size in sizes.items()]
    return table(["", *heads], rows) if rows else ""


def _status(summary: Summary) -> str:
    def cell(system: str, size: int) -> str:
        value = summary.value(system, "status", size, "seconds")
        first = summary.value(system, "status", size, "first_s")
        if value is None or first is None:
            return "not run" if summary.not_run(system, "status", size) else "–"
        return f"{number(value * 1e3)} ms (first {number(first * 1e3)} ms)"

    made = _grid(summary, "status", cell)
    sizes = summary.sizes("status")
    listing = [cell("64 empty directories", size) for size in sizes]
    return made + "\n| listing 64 empty directories | " + " | ".join(listing) + " |" if made else ""


def _delete(summary: Summary) -> str:
    def cell(system: str, size: int) -> str:
        each = summary.task_us(system, "delete", size)
        returned = summary.value(system, "delete", size, "return_s")
        if each is None:
            return "not run" if summary.not_run(system, "delete", size) else "–"
        first = "" if returned is None else f"{number(returned * 1e3)} ms, "
        times = "" if system == "fsqueue" else f" ({ratio(summary.times(system, 'delete', size))}×)"
        return f"{first}{number(each)} µs a task{times}"

    return _grid(summary, "delete", cell)


def _latency(summary: Summary) -> str:
    rows = []
    for step, verb, title in (
        ("insert_one", "insert", "insert one"),
        ("lease_one", "lease", "lease 1"),
        ("lease_one", "complete", "complete 1"),
        ("leased", "lease", "lease 1, 60 % leased"),
        ("lease_many", "lease", "lease 100"),
        ("lease_many", "complete", "complete 100"),
        ("mixed", "insert", "insert one, 8 processes"),
        ("mixed", "lease", "lease 1, 8 processes"),
        ("mixed", "complete", "complete 1, 8 processes"),
    ):
        for size in summary.sizes(step):
            for entry in ENTRIES:
                found = summary.latency(entry.name, step, size, verb)
                if found:
                    rows.append([title, _named(size), entry.title, *(number(found[key]) for key in plot.KEYS)])
    return table(["call", "tasks", "system", *plot.KEYS], rows) if rows else ""


def _memory(summary: Summary) -> str:
    def cell(system: str, size: int) -> str:
        memory, inodes = (
            summary.value(system, "insert", size, "memory_mb"),
            summary.value(system, "insert", size, "inodes"),
        )
        tasks = summary.value(system, "insert", size, "tasks")
        if memory is None or inodes is None or not tasks:
            return "–"
        sample = "" if tasks == size else f" (sample of {tasks:,.0f})"
        return f"{number(memory)} MB; {inodes:,.0f} inodes, {number(inodes / tasks)} a task{sample}"

    return _grid(summary, "insert", cell)


def _together(summary: Summary) -> str:
    rows = []
    titles = {
        "drain": "drain, no work",
        "drain_work": "drain, {work_ms:g} ms of work a task",
        "drain_many": "drain, no work",
        "mixed": "4 insert one at a time, 4 lease 1 + complete",
    }
    for step, title in titles.items():
        for size in summary.sizes(step):
            for entry in ENTRIES:
                rounds = summary.rounds(entry.name, step, size)
                if not rounds:
                    if reason := summary.not_run(entry.name, step, size):
                        rows.append(
                            [f"{title}, {size:,} tasks", entry.title, "not run", "–", "–", reason.replace("|", "/")]
                        )
                    continue
                title = title.format(work_ms=rounds[0].get("work_s", 0) * 1e3)
                spread = max(rounds, key=lambda row: row["shares"][-1] / max(row["shares"][0], 0.5))["shares"]
                false = "–" if step == "mixed" else str(sum(row["false_empties"] for row in rounds))
                wrong = sum(row["lost"] for row in rounds), sum(row["twice"] for row in rounds)
                rows.append(
                    [
                        f"{title}, {size:,} tasks",
                        entry.title,
                        number(summary.rate(entry.name, step, size)),
                        f"{spread[0]:,} to {spread[-1]:,}",
                        false,
                        "{} lost, {} twice".format(*wrong) if any(wrong) else "all once",
                    ]
                )
    spread_title = "tasks of the slowest and the fastest worker, worst round"
    header = ["", "system", "tasks/s", spread_title, "false empty answers, all rounds", "done"]
    return table(header, rows) if rows else ""


def _not_run(summary: Summary) -> str:
    """A line for each reason, with all the steps that it kept from running."""
    kept: dict[tuple[str, int, str], list[str]] = {}
    for row in summary.rows:
        system, step, size = row["system"], row["step"], row["size"]
        if "not_run" in row and summary.not_run(system, step, size):
            reason = row["not_run"]
        elif "note" in row:
            reason = f"measured on {row['note']}"
        else:
            continue
        steps = kept.setdefault((system, size, reason), [])
        if step not in steps:
            steps.append(step)
    return "\n".join(
        _filled(f"- {BY_NAME[system].title}, {_named(size)} tasks, {', '.join(steps)}: {reason}")
        for (system, size, reason), steps in kept.items()
    )


def write(docs: Path, facts: dict[str, Any], rows: list[dict[str, Any]]) -> list[Path]:
    """Put the results into docs/benchmarks.md, between their marks, and the plots beside it. What was not measured
    stays: idle workers may be measured apart from all else.
    """
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "benchmarks.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    rest, idle = _apart(rows)
    written = [page]
    if idle:
        if IDLE_BEGIN not in text:
            text += f"\n{IDLE_BEGIN}\n{IDLE_END}\n"
        text = _between(text, IDLE_BEGIN, IDLE_END, _idle(facts, idle))
    if rest or not idle:
        summary = Summary(rest)
        pictures = f"![Cost against size]({COSTS})\n\n![Latencies]({LATENCIES})\n"
        text = _between(text, BEGIN, END, f"{_queues(facts, rest)}\n## Plots\n\n{pictures}")
        (docs / COSTS).write_text(plot.costs(summary), encoding="utf-8")
        size = max(summary.sizes("lease_one", "task-queue") or summary.sizes("lease_one", "fsqueue"), default=0)
        (docs / LATENCIES).write_text(plot.latencies(summary, size), encoding="utf-8")
        written += [docs / COSTS, docs / LATENCIES]
    page.write_text(text, encoding="utf-8")
    return written


def _between(text: str, begin: str, end: str, body: str) -> str:
    """Return a page with what stands between two marks replaced."""
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n\n{body}\n{end}{rest.partition(end)[2]}"
