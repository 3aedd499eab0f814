"""Measure a gateway against processes that work on the queue directly, in the same run: see scripts/bench-gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import group_figures

from fsqueue import Group, Queue

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests import browser
from tests.waiting import until

TOKEN = "benchmark-of-the-gateway"
ROUNDS = 3
"""Number of rounds, in which the gateway and the processes take turns. Each rate is the median."""
BEGIN_S = 60.0
"""Seconds to wait for the processes to begin."""
CLAIM_MS = 3_600_000
"""How long a client of taskstore claims a task: none runs out meanwhile."""
BATCH_TASKS = 64
"""Tasks in a batch: few, so that there are more batches than clients."""
PAYLOADS = {"20 B": 20, "1 KiB": 1 << 10, "16 KiB": 16 << 10}
VERBS = ("lease + complete", "lease + update", "claim + delete")
HEADING = """\
| a task | payload | clients | gateways | tasks/s | as many processes | ratio | µs of a task | of a process | \
ms to lease | 99 % |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""
FORKING = multiprocessing.get_context("fork")


@dataclass
class Counted:
    """What clients have done: tasks, and how long each lease took, in seconds."""

    tasks: int = 0
    passed_s: float = 0.0
    used_s: float = 0.0
    """Processor time: of the gateway, or of the processes."""
    leases_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return tasks in a second."""
        return self.tasks / self.passed_s

    @property
    def used_us(self) -> float:
        """Return the processor time of a task, in microseconds."""
        return self.used_s / self.tasks * 1e6


def arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench-gateway",
        description="Measure a gateway: lease + complete, lease + an update that completes and inserts, and claim + "
        "delete as taskstore's clients ask for them, by many clients over HTTP, against as many processes on the same "
        "filesystem; how long a lease takes at half of that load; the first answer of the page of a large group.",
        epilog="example: scripts/bench-gateway --dir /scratch/me --clients 64 --seconds 5",
    )
    parser.add_argument("--dir", default=None, help="where to make the group (default: a temporary directory)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="how many clients (default: 1 8 64)")
    parser.add_argument("--payloads", nargs="+", default=list(PAYLOADS), choices=PAYLOADS, help="sizes of payloads")
    parser.add_argument("--verbs", nargs="+", default=list(VERBS), choices=VERBS, help="what is measured")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (default: 3)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each (default: {ROUNDS})")
    parser.add_argument("--gateways", type=int, default=1, help="how many gateways the clients share (default: 1)")
    parser.add_argument("--queues", type=int, default=0, help="measure the page of a group of N queues instead",
                        metavar="N")  # fmt: skip
    return parser.parse_args()


class Gateway:
    """A process that serves a group on a TCP port, as `fsqueue serve` does."""

    def __init__(self, group: Group, home: Path) -> None:
        tokens = home / "tokens"
        tokens.write_text(f"write {TOKEN}\n")
        tokens.chmod(0o600)
        command = [sys.executable, "-m", "fsqueue_cli", "serve", str(group.path), "--listen", "localhost:0"]
        self.process = subprocess.Popen(
            [*command, "--token-file", str(tokens)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def used_s(self) -> float:
        """Return the processor time that it has used, in seconds."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


class Connection:
    """A keep-alive connection that sends requests and reads answers: as little work as a client can have."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, number: int) -> None:
        self._reader, self._writer, self._number = reader, writer, number
        self._holder = {"host": "bench", "pid": number}
        self._head = f"Host: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"

    @classmethod
    async def to(cls, url: str, number: int) -> Connection:
        """Return the connection of a worker to a gateway."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port), parts.netloc, number)

    async def post(self, path: str, body: object) -> Any:
        """Return the value of an answer. RuntimeError if it is an error."""
        data = json.dumps(body).encode()
        self._writer.write(f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        found = json.loads(await self._reader.readexactly(length))
        if not head.startswith(b"http/1.1 20"):
            raise RuntimeError(f"{path}: {found}")
        return found

    async def turn(self, verb: str, source: str) -> float | None:
        """Lease a task and end it. Return how long the lease took, in seconds; None if there was no task."""
        began = time.monotonic()
        if verb == "claim + delete":
            asked = {"clientid": self._number + 1, "group": source, "duration": CLAIM_MS}
            tasks = (await self.post("/claim", asked))["tasks"]
            took = time.monotonic() - began
            for task in tasks:
                done = await self.post("/update", {"clientid": self._number + 1, "deletes": [task["id"]]})
                if done["error"]:
                    raise RuntimeError(f"{task['id']} was not deleted: {done['error']}")
            return took if tasks else None
        tasks = (await self.post(f"/v1/queues/{source}/lease", {"wait_s": 10, "holder": self._holder}))["tasks"]
        took = time.monotonic() - began
        for task in tasks:
            if verb == "lease + complete":
                await self.post(f"/v1/queues/{source}/complete", {"tasks": [{"token": task["token"]}]})
            else:
                done = {"queue": source, "token": task["token"]}
                inserted = {"queue": f"{source}-next", "payload": task["payload"]}
                await self.post("/v1/update", {"complete": [done], "inserts": [inserted]})
        return took if tasks else None


def over_http(urls: Sequence[str], verb: str, source: str, clients: int, seconds: float, rate: float | None) -> Counted:
    """Return what clients of gateways do in a time. `rate`: tasks a second, by a plan that does not wait."""

    async def work(connection: Connection, number: int, found: Counted, begin: float) -> None:
        turn = number
        while time.monotonic() < begin + seconds:
            late_s = 0.0
            if rate is not None:
                planned = begin + turn / rate
                turn += clients
                if (early_s := planned - time.monotonic()) > 0:
                    await asyncio.sleep(early_s)
                late_s = max(0.0, time.monotonic() - planned)
            took = await connection.turn(verb, source)
            if took is None:
                raise RuntimeError(f"{source} has no task left: fewer --seconds")
            found.tasks += 1
            found.leases_s.append(took + late_s)

    async def run() -> Counted:
        connections = [await Connection.to(urls[number % len(urls)], number) for number in range(clients)]
        for connection in connections:  # each has been used once
            await connection.turn(verb, source)
        found, begin = Counted(), time.monotonic()
        await asyncio.gather(*(work(one, number, found, begin) for number, one in enumerate(connections)))
        found.passed_s = time.monotonic() - begin
        return found

    return asyncio.run(run())


def directly(path: str, verb: str, source: str, clients: int, seconds: float) -> Counted:
    """Return what as many processes do on the filesystem."""
    barrier, counts = FORKING.Barrier(clients + 1), FORKING.SimpleQueue()

    def work() -> None:
        group = Group(path)
        queue, done = group[source], 0

        def turn() -> int:
            tasks = queue.lease(wait_s=10)
            for task in tasks:
                if verb != "lease + update":
                    task.complete()
                    continue
                with group.update() as update:
                    update.complete(task)
                    update.insert(f"{source}-next", task.payload)
            return len(tasks)

        turn()
        barrier.wait(BEGIN_S)
        end, used = time.monotonic() + seconds, time.process_time()
        while time.monotonic() < end:
            done += turn()
        counts.put((done, time.process_time() - used))

    processes = [FORKING.Process(target=work) for _ in range(clients)]
    for process in processes:
        process.start()
    barrier.wait(BEGIN_S)
    begin = time.monotonic()
    each = [counts.get() for _ in processes]
    passed_s = time.monotonic() - begin
    for process in processes:
        process.join()
    return Counted(sum(done for done, _ in each), passed_s, sum(used for _, used in each))


def apart(act: Callable[..., Counted], *given: object) -> Counted:
    """Return what a function returns, called in a process of its own."""
    with FORKING.Pool(1) as pool:
        return pool.apply(act, given)


def filled(group: Group, name: str, size: int, tasks: int) -> Queue:
    """Return a queue with tasks of a size to do."""
    queue = group[name]
    text = "x" * (size - 18)
    queue.insert_many(({"page": number, "t": text} for number in range(tasks)), batch_tasks=BATCH_TASKS)
    return queue


def compared(
    where: Path, verb: str, payload: str, clients: int, seconds: float, rounds: int, gateways: int
) -> None:  # fmt: skip
    """Print the rates of gateways and of as many processes, and how long leases take at half of that load."""
    # "default" syncs inserts and updates; the other verbs are synced with "strict" alone.
    durability: Any = "default" if verb == "lease + update" else "strict"
    group = Group.create(where / f"{verb}-{payload}-{clients}".replace(" ", ""), durability=durability)
    home = group.path.parent
    served = [Gateway(group, home) for _ in range(gateways)]
    urls = [one.url for one in served]
    try:
        tasks = int(min(200_000, 4_000 * seconds + clients * 2))
        http: list[Counted] = []
        direct: list[Counted] = []
        for number in range(rounds):
            filled(group, f"h{number}", PAYLOADS[payload], tasks)
            used = sum(one.used_s() for one in served)
            http.append(apart(over_http, urls, verb, f"h{number}", clients, seconds, None))
            http[-1].used_s = sum(one.used_s() for one in served) - used
            filled(group, f"d{number}", PAYLOADS[payload], tasks)
            direct.append(directly(str(group.path), verb, f"d{number}", clients, seconds))
        rates = [statistics.median(one.rate for one in found) for found in (http, direct)]
        used_us = [statistics.median(one.used_us for one in found) for found in (http, direct)]
        filled(group, "half", PAYLOADS[payload], tasks)
        half = sorted(apart(over_http, urls, verb, "half", clients, seconds, rates[0] / 2).leases_s)
        p50, p99 = (1e3 * half[int(share * (len(half) - 1))] for share in (0.5, 0.99))
        print(
            f"| {verb} | {payload} | {clients} | {gateways} | {rates[0]:,.0f} | {rates[1]:,.0f} | "
            f"{rates[0] / rates[1]:.2f} | {used_us[0]:,.0f} | {used_us[1]:,.0f} | {p50:.1f} | {p99:.1f} |",
            flush=True,
        )
    finally:
        for one in served:
            one.close()


def page(where: Path, queues: int) -> None:
    """Print how soon a gateway that has just begun shows the page of a group of many queues."""
    group = group_figures.make(str(where / "many"), queues, 1000)
    gateway = Gateway(group, where)
    try:
        print(f"page of {queues:,} queues:", flush=True)
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
        began, answers = time.monotonic(), 0
        while True:
            with urllib.request.urlopen(urllib.request.Request(gateway.url, headers=headers)) as answer:
                text, pause_s = answer.read().decode(), float(answer.headers["x-next-look"])
            answers += 1
            passed_s = time.monotonic() - began
            if answers == 1:
                print(f"  first answer after {passed_s:.2f} s", flush=True)
            if "<table" in text:
                print(f"  with its table after {passed_s:.2f} s, at answer {answers}", flush=True)
                break
            time.sleep(pause_s)
        if reason := browser.why_not():
            print(f"  in Chromium: {reason}")
            return
        gateway.close()
        gateway = Gateway(group, where)  # it has seen nothing
        shown = browser.Browser(where / "chromium")
        try:
            shown.show(f"{gateway.url}/login", 1280)
            shown.run(f"document.querySelector('#token').value = '{TOKEN}'")
            shown.run("document.querySelector('form').submit()")
            until(lambda: shown.run("location.pathname") == "/", "the token to be taken")
            paint = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)[0] || 0"
            until(lambda: shown.run(paint), "the page to be painted")
            print(f"  in Chromium: painted {shown.run(paint) / 1e3:.2f} s after it was asked for", flush=True)
        finally:
            shown.close()
    finally:
        gateway.close()


def main() -> None:
    """Measure, and print."""
    given = arguments()
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        where = Path(made)
        if given.queues:
            page(where, given.queues)
            return
        print(HEADING)
        for verb in given.verbs:
            for payload in given.payloads:
                for clients in given.clients:
                    compared(where, verb, payload, clients, given.seconds, given.rounds, given.gateways)


if __name__ == "__main__":
    main()
