"""The results as Markdown: figures to reach, throughput, PEI, keys, TaskMaster's numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.order import papers, plot
from benchmarks.order.campaign import WAYS
from benchmarks.order.figures import Rows, figures, share
from benchmarks.report import BEGIN, END, _figures, number, table

Row = dict[str, Any]

PAGE, PEI_PLOT, TASKMASTER_PLOT = "benchmarks-order.md", "benchmarks-order-pei.svg", "benchmarks-order-taskmaster.svg"
COLUMNS = 100
FILLED = {"bulk": "inserted in bulk", "single": "singly inserted"}
PEI = {"median": "median", "p90": "p90", "p99": "p99", "mean": "mean"}


def prose(text: str) -> str:
    """Return a paragraph, broken as the pages are."""
    return fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _section(title: str, *parts: str) -> str:
    """Return a section; nothing if no table of it has rows."""
    return "\n\n".join([title, *filter(None, parts)]) if any(part.startswith("|") for part in parts) else ""


def _table(header: list[str], lines: list[list[str]]) -> str:
    return table(header, lines) if lines else ""


def markdown(facts: Row, rows: list[Row]) -> str:
    """Return all of it."""
    found = Rows(rows)
    parts = [
        _facts(facts),
        "## Figures to reach\n\n" + _figures(figures(found)),
        _throughput(found),
        _keys(found),
        _pei(found),
        _figure_8(found),
        _cluster(found),
        _single_operations(found),
        _bulk(found),
        _collisions(found),
        _isolation(found),
        _not_run(rows),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _facts(facts: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    text = (
        f"Measured on {facts['date']} at commit {facts['commit']}: {facts['cores']} cores ({facts['cpu']}), "
        f"{facts['memory_gb']:.0f} GB, {facts['kernel']}, {facts['filesystem']} ({facts['mount_options']}), Python "
        f"{facts['python']}; {versions}. Seed {facts.get('seed', 'unknown')}. What else the machine had to do when it "
        f"began, as load average: {facts.get('load_average', 'unknown')}."
    )
    if facts.get("took_s"):
        text += f" It took {facts['took_s']} s."
    memory = f"**{facts['filesystem']} is memory: nothing was written to a disk, and syncing costs nothing there.**"
    return prose(text) + (f"\n\n{memory}" if facts.get("in_memory") else "")


def _throughput(rows: Rows) -> str:
    lines = []
    for way in WAYS:
        for priorities in (False, True):
            rates = [
                rows.rate("work", way=way, priorities=priorities, workers=workers)
                for workers in rows.kinds("work", "workers")
            ]
            inserted = rows.rate("fill", way=way, priorities=priorities)
            if any(rates):
                name = f"{FILLED[way]}, {'random priorities' if priorities else 'no priorities'}"
                tasks = rows.value("fill", lambda row: row["tasks"], way=way, priorities=priorities)
                lines.append([name, f"{tasks or 0:,.0f}", number(inserted), *map(number, rates)])
    heads = [f"lease 1 + complete, {workers} worker{'s'[: workers > 1]}" for workers in rows.kinds("work", "workers")]
    return _section(
        "## Throughput with priorities",
        prose(
            "Tasks a second, until the queue is empty; medians of the rounds, in which ordered and unordered queues "
            "take turns. Inserts are synced. 200-byte payloads."
        ),
        _table(["queue", "tasks", "insert", *heads], lines),
    )


def _keys(rows: Rows) -> str:
    lines = []
    titles = {
        "plain": "without a key",
        "keyed": "with a new key",
        "repeat": "with the key of a task that waits",
        "used": "with the key of a task that has ended",
        "file": "(a bare file: made, written, closed)",
    }
    sizes = rows.kinds("keys", "bytes")
    for kind, title in titles.items():
        costs = [rows.value("keys", lambda row, kind=kind: row.get(kind), bytes=size) for size in sizes]  # type: ignore[misc]
        syncs = [row[kind] for row in rows.found("syncs") if kind in row]
        if any(cost is not None for cost in costs):
            said = f"{syncs[0]['median']} ({syncs[0]['greatest']})" if syncs else "–"
            lines.append([title, *("–" if cost is None else number(cost) for cost in costs), said])
    return _section(
        "## What a key costs",
        prose(
            "One insert, by turns in one process: microseconds of the processor without syncs, for payloads of some "
            "sizes; and syncs with the default durability, in the median and at most. Every directory of keys is "
            "there. The syncs are counted within one open batch. A new key makes a file, so the disk's own cost of "
            "that is among these numbers: the last line has it."
        ),
        _table(["insert", *(f"{size} bytes: µs" for size in sizes), "syncs (most)"], lines),
    )


def _pei(rows: Rows) -> str:
    lines = []
    for shards in rows.kinds("pei", "shards"):
        for workers in rows.kinds("pei", "workers"):
            at = {"shards": shards, "workers": workers}
            simulated = rows.found("simulated", **at)
            line = [f"{shards}", f"{workers}"]
            for way in WAYS:
                real = rows.found("pei", way=way, **at)
                line += [_spread(real[0]["pei"]), f"{real[0]['held']['median']}"] if _has_pei(real) else ["–", "–"]
            line += [_spread(simulated[0][policy]) if simulated else "–" for policy in ("basic", "better")]
            lines.append(line)
    own = ["real, in bulk", "held", "real, singly", "held"]
    header = ["shards", "workers", *own, "simulated, basic", "simulated, better"]
    found = [row for step in ("pei", "figure 8") for row in rows.found(step) if "pei" in row]
    differ = max((abs(row["pei"]["median"] - row["pei_as_written"]["median"]) for row in found), default=0)
    return _section(
        "## How many more urgent tasks a pop passes over (PEI)",
        prose(
            "Median / 90th / 99th percentile. Processes lease one task and complete it, until half of the tasks are "
            "popped, because the simulation's queue does not drain. Priorities are distinct and in random order. The "
            "PEI of a pop is the number of more urgent tasks that are not popped yet. Held: the tasks that other "
            "workers had leased and not completed, in the median. Tasks are in two batches for each shard, each with "
            "random priorities; single inserts of one host go to at most 17 shards. Inserts are not synced. "
            "[pei.md](pei.md) says what the simulation does."
        ),
        prose(
            f"The simulation has a subqueue for each shard, {papers.POP_PEEKS} peeks, and as many clients that pop at "
            "the same time. Its basic policy keeps what a pop gives. The better one compares it with the second best "
            "peek, and is the one that counts."
        ),
        prose(
            "Pops are ordered by the `at` of their `lease` records, in milliseconds. Within one they are ordered by "
            "the moment at which the write of the record returned in its worker, under the log's lock, on "
            "CLOCK_MONOTONIC. A worker reads `at` before it writes, and may wait for a core in between. In the order "
            f"of the writes alone no median differs by more than {differ:,.0f}."
        ),
        _table(header, lines),
        f"![Median PEI]({PEI_PLOT})" if lines else "",
    )


def _has_pei(found: list[Row]) -> bool:
    return bool(found) and "pei" in found[0]


def _spread(pei: Row) -> str:
    return f"{pei['median']} / {pei['p90']} / {pei['p99']}"


def _figure_8(rows: Rows) -> str:
    lines = []
    for nodes in rows.kinds("figure 8", "shards"):
        for clients in rows.kinds("figure 8", "workers"):
            at = {"shards": nodes, "workers": clients}
            real, simulated = rows.found("figure 8", **at), rows.found("figure 8 simulated", **at)
            if _has_pei(real):
                said = [_spread(simulated[0][policy]) if simulated else "–" for policy in ("basic", "better")]
                lines.append([f"{nodes}", f"{clients}", _spread(real[0]["pei"]), number(real[0]["pei"]["mean"]), *said])
    return _section(
        "### In the setting of figure 8",
        prose(
            f"{papers.RELAXED}, section 6.1 and figure 8: {papers.POP_TASKS:,} elements with the priorities 0 to "
            f"{papers.POP_TASKS - 1}, popped until nothing is left. {papers.POP_SAYS}"
        ),
        prose(
            "Here each node is a shard, with one bulk insert of its share of the tasks. All pops count. The "
            "simulation has half as many elements all the time, which is the mean while a queue drains."
        ),
        _table(["nodes", "clients", "real", "real, mean", "simulated, basic", "simulated, better"], lines),
    )


def _cluster(rows: Rows) -> str:
    lines = []
    for row in rows.found("cluster"):
        both = [
            (rows.latency("cluster", "lease", key) or 0) + (rows.latency("cluster", "complete", key) or 0)
            for key in ("p50", "p90", "p99")
        ]
        lines.append(["fsqueue", number(row["tasks"] / row["seconds"]), " / ".join(number(us / 1000) for us in both)])
    if lines:
        latency = " / ".join(map(str, papers.CLUSTER_LATENCY_MS))
        lines.append(["the paper's system, section 6.2", f"{papers.CLUSTER_RATE}", latency])
    return _section(
        f"### {papers.CLUSTER_CLIENTS} clients, {papers.CLUSTER_NODES} nodes",
        prose(
            f"{papers.RELAXED}, section 6.2: clients of one machine in a loop of pop and commit, nodes on others. "
            "With clients on several machines it reached over 600 a second. fsqueue's clients and disk are one "
            "machine. The latency is in milliseconds, median / 90th / 99th percentile; fsqueue's is the sum of lease "
            "and complete."
        ),
        _table(["", "tasks a second", "latency, ms"], lines),
    )


def _single_operations(rows: Rows) -> str:
    lines = []
    names = {"insert_priority": "insert with priority", "insert": "insert", "work": "lease 1 + complete"}
    for operation, name in names.items():
        theirs, rate, varied = papers.SINGLE_OPERATIONS[operation]
        for row in rows.found("single", operation=operation):
            verb = "lease" if operation == "work" else "insert"
            crowd = f"{row['workers']} × {row['threads']} ({row['busy_threads']})"
            line = [name, crowd, number(row["tasks"] / row["seconds"]), f"{row['variation']} %"]
            line.append(number((row["latency_us"].get(verb) or {"p50": 0})["p50"] / 1000))
            lines.append([*line, f"{theirs}: {rate:,}", f"{varied} %"])
    header = ["operation", "workers × threads (that did something)", "tasks/s", "variation", "ms a call, median"]
    return _section(
        "## TaskMaster: single operations",
        prose(
            f"{papers.TASKMASTER}, table 1, beside fsqueue. TaskMaster: {papers.CROWD[0]} workers with "
            f"{papers.CROWD[1]} threads each, on other machines than the server and the 20 servers of its data store. "
            "fsqueue: all processes and the disk on the one machine above. Payloads of 1,000 bytes. Each worker has "
            "a queue of its own. Every insert is synced. TaskMaster's enqueue has a unique priority. The variation "
            "is the standard deviation of the rates in ten parts of the time; what TaskMaster's variance is, the "
            "paper does not say."
        ),
        _table([*header, "TaskMaster, tasks/s", "variance"], lines),
    )


def _bulk(rows: Rows) -> str:
    lines = []
    for n in rows.kinds("bulk", "n"):
        line = [f"{n:,}"]
        for operation, verb in (("insert_priority", "insert"), ("insert", "insert"), ("work", "lease")):
            at = {"n": n, "operation": operation}
            line.append(number(rows.rate("bulk", **at)))
            latency = [rows.latency("bulk", verb, key, **at) for key in ("p20", "p50", "p80")]
            line.append(" / ".join("–" if us is None else number(us / 1000) for us in latency))
        lines.append(line)
    crowd = rows.found("bulk")[:1]
    said = f"{crowd[0]['workers']} workers with {crowd[0]['threads']} threads each" if crowd else ""
    columns = ["insert with priority", "ms", "insert", "ms", "lease + complete", "ms of lease"]
    return _section(
        "## TaskMaster: bulk operations",
        prose(
            "Tasks a second, and the latency of a call in milliseconds (20th / 50th / 80th percentile), against the "
            f"tasks in a call. {papers.BULK_SAYS} It had 50 workers with 10 threads each; here there are {said}, each "
            "worker with a queue of its own."
        ),
        _table(["tasks in a call", *columns], lines),
        f"![TaskMaster's benchmarks]({TASKMASTER_PLOT})" if lines else "",
    )


def _collisions(rows: Rows) -> str:
    lines = []
    for row in rows.found("collisions"):
        name = "no keys" if row["collisions"] is None else f"{row['collisions']:g}"
        latency = [number(row["latency_us"]["insert"][key] / 1000) for key in ("p20", "p50", "p80")]
        lines.append([name, *latency, number(row["tasks"] / row["seconds"])])
    crowd = rows.found("collisions")[:1]
    said = f"{crowd[0]['workers']} workers with {crowd[0]['threads']} threads each" if crowd else ""
    return _section(
        "## TaskMaster: latency against collisions",
        prose(
            "Milliseconds of a keyed insert against the likelihood that it has the same key as others in its queue, "
            f"with {said}; TaskMaster had {papers.COLLISION_CROWD[0]} and {papers.COLLISION_CROWD[1]}. "
            f"{papers.COLLISION_SAYS} In fsqueue inserts of the same key wait for each other; while the first one's "
            "task waits, the others insert nothing."
        ),
        _table(["likelihood", "p20", "median", "p80", "inserts/s"], lines),
    )


def _isolation(rows: Rows) -> str:
    lines = []
    alone = rows.rate("isolation", loaders=0)
    cores = int(rows.value("cores", lambda row: row["cores"]) or 1)
    for loaders in rows.kinds("isolation", "loaders"):
        rate = rows.rate("isolation", loaders=loaders)
        load = rows.value("isolation", _load, loaders=loaders)
        if rate is None or not alone:
            continue
        mine = share(loaders, cores)
        lines.append([f"{loaders}", number(rate), f"{rate / alone:.2f}", f"{mine:.2f}", number(load)])
    found = rows.found("isolation")[:1]
    said = f"{found[0]['threads']} threads each" if found else ""
    return _section(
        "## TaskMaster: isolation",
        prose(
            f"A lone worker with one thread leases one task and completes it, while loaders, {said}, insert "
            f"{papers.LOADER_BATCH} tasks a call into queues of their own. {papers.ISOLATION_SAYS} A worker's share "
            "is the machine's cores over the processes that are at work. Medians of the rounds."
        ),
        _table(["loaders", "lone worker, tasks/s", "of its rate alone", "its share", "loaders, tasks/s"], lines),
    )


def _load(row: Row) -> float | None:
    return row["loaded_tasks"] / row["loaded_seconds"] if row.get("loaded_seconds") else None


def _not_run(rows: Iterable[Row]) -> str:
    failed = [row for row in rows if "not_run" in row]
    lines = [
        f"- {row['step']} ({', '.join(f'{key} {row[key]}' for key in row if key not in ('step', 'not_run'))}): "
        f"{row['not_run'].replace('|', '/')}"
        for row in failed
    ]
    return "## Not run\n\n" + "\n".join(fill(line, COLUMNS, subsequent_indent="  ") for line in lines) if lines else ""


def write(docs: Path, facts: Row, rows: list[Row]) -> list[Path]:
    """Put the results into the page, between its marks, and the plots beside it."""
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Priorities, measured\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    found = Rows(rows)
    page.write_text(f"{head}{BEGIN}\n\n{markdown(facts, rows)}\n{END}{tail}", encoding="utf-8")
    (docs / PEI_PLOT).write_text(plot.pei(found), encoding="utf-8")
    (docs / TASKMASTER_PLOT).write_text(plot.taskmaster(found), encoding="utf-8")
    return [page, docs / PEI_PLOT, docs / TASKMASTER_PLOT]


def write_json(path: Path, facts: Row, rows: list[Row]) -> None:
    """Write all that was measured, a row a line."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{\n "facts": {json.dumps(facts)},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
